#include "gpu/kernels.h"

#include "gpu/kernel_build.h"
#include "graph/fuse.h"

enum { MOST_EXPERTS = 512, MOST_USED = 64, MOST_HEAD = 512 };

static uint32_t rounded_up(uint64_t n, uint64_t by) { return (uint32_t)((n + by - 1) / by); }

/* ---- views ---- */

/* A thread works on four values if the shapes of all views allow it, otherwise on one. Constants are in these units. */
static bool fours(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return (a | b | c | d) % 4 == 0; }

static bool view_fours(const tensor *t) { return fours(t->ne[0], t->offset, t->row_stride, t->token_stride); }

static const tensor *base_of(const tensor *t) { return t->base ? t->base : t; }

/* How many entries a value has in a run. A shader must use each binding, also where the answer is 1. */
static const char *counted(const tensor *t) {
    return t->axis == AXIS_TOKENS ? "run.tokens" : t->axis == AXIS_OUTPUTS ? "run.outputs" : "min(run.tokens, 1u)";
}

static uint32_t op_entries(const tensor *t, uint32_t tokens, uint32_t outputs) {
    return t->axis == AXIS_TOKENS ? tokens : t->axis == AXIS_OUTPUTS ? outputs : 1;
}

/* Contiguous rows can be treated as one long row. */
static bool can_flatten(const tensor *t) { return t->ne[1] == 1 || t->row_stride == t->ne[0]; }

static tensor flattened(const tensor *t, bool flatten) {
    tensor flat = *t;
    if (!flatten) return flat;
    flat.ne[0] *= t->ne[1];
    flat.ne[1] = 1;
    flat.row_stride = flat.ne[0];
    return flat;
}

static void place_a(gpu_kernel *k, const tensor *t, uint32_t unit) {
    kernel_constant(k, "a_offset", (double)(t->offset / unit));
    kernel_constant(k, "a_row_stride", (double)(t->row_stride / unit));
    kernel_constant(k, "a_token_stride", (double)(t->token_stride / unit));
}

static void place_b(gpu_kernel *k, const tensor *t, uint32_t unit) {
    kernel_constant(k, "b_offset", (double)(t->offset / unit));
    kernel_constant(k, "b_row_stride", (double)(t->row_stride / unit));
    kernel_constant(k, "b_token_stride", (double)(t->token_stride / unit));
}

/* ---- row-wise ops ---- */

/* RMS_NORM and LAYER_NORM. */
static gpu_kernel norm_kernel(const op *o, uint32_t count) {
    const tensor  *x = o->in[0];
    const bool     wide = view_fours(x);
    const uint32_t unit = wide ? 4 : 1;
    const uint64_t n = x->ne[0] / unit;
    gpu_kernel     k = { .file = "norm.wgsl", .x = (uint32_t)x->ne[1], .y = count, .z = 1 };
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "WEIGHT", kernel_flag(o->in[1] != NULL));
    kernel_define(&k, "CENTRED", kernel_flag(o->kind == OP_LAYER_NORM));
    kernel_define(&k, "BIAS", kernel_flag(o->in[2] != NULL));
    kernel_define(&k, "COUNT", counted(x));
    kernel_define(&k, "THREADS", n <= 64 ? "64" : n <= 128 ? "128" : "256");
    kernel_constant(&k, "n", (double)n);
    place_a(&k, x, unit);
    kernel_constant(&k, "eps", (double)o->factor);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    if (o->in[1]) kernel_bind(&k, BIND_IN + 1);
    if (o->in[2]) kernel_bind(&k, BIND_IN + 2);
    return k;
}

static const char *const elementwise[OP_COUNT] = {
    [OP_ADD] = "add",     [OP_MUL] = "mul",         [OP_SCALE] = "scale",        [OP_CLAMP] = "clamp",
    [OP_GEGLU] = "geglu", [OP_SOFTCAP] = "softcap", [OP_SELECT_ROWS] = "select", [OP_TOKEN_SUM] = "sum",
};

static gpu_kernel elementwise_kernel(const op *o, uint32_t count) {
    const bool     two = o->in[1] != NULL, shared = two && base_of(o->in[0]) == base_of(o->in[1]);
    const bool     vector = two && o->in[1]->kind == TENSOR_WEIGHT; /* its strides are 0: all rows share it */
    const bool     flat = vector ? o->in[0]->ne[1] == 1 : can_flatten(o->in[0]) && (!two || can_flatten(o->in[1]));
    const tensor   a = flattened(o->in[0], flat), b = two ? flattened(o->in[1], flat) : a;
    const bool     wide = view_fours(&a) && view_fours(&b);
    const uint32_t unit = wide ? 4 : 1;
    gpu_kernel     k = {
            .file = "elementwise.wgsl", .x = rounded_up(a.ne[0] / unit, 256), .y = (uint32_t)a.ne[1], .z = count
    };
    kernel_define(&k, "KIND", elementwise[o->kind]);
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "TWO", kernel_flag(two));
    kernel_define(&k, "SHARED", kernel_flag(shared));
    kernel_define(&k, "VECTOR", kernel_flag(vector));
    kernel_define(&k, "COUNT", counted(o->out));
    if (o->kind == OP_TOKEN_SUM) kernel_define(&k, "SUMMED", counted(o->in[0]));
    kernel_constant(&k, "n", (double)(a.ne[0] / unit));
    place_a(&k, &a, unit);
    if (two) place_b(&k, &b, unit);
    if (o->kind == OP_SCALE || o->kind == OP_SOFTCAP) kernel_constant(&k, "factor", (double)o->factor);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    if (o->kind == OP_CLAMP) { /* each linear of a tower has its own bounds */
        kernel_number(&k, o->least);
        kernel_number(&k, o->most);
        kernel_bind(&k, BIND_NUMBERS);
    }
    if (o->kind == OP_SELECT_ROWS) {
        kernel_constant(&k, "count", o->count);
        kernel_bind(&k, BIND_ROWS);
    }
    if (two && !shared) kernel_bind(&k, BIND_IN + 1);
    return k;
}

static gpu_kernel rope_table_kernel(const op *o, uint32_t tokens) {
    const uint32_t axes = (uint32_t)o->out->ne[1];
    gpu_kernel     k = { .file = "rope.wgsl", .x = rounded_up(o->in[0]->ne[0], 64), .y = tokens, .z = axes };
    kernel_define(&k, "KIND", "table");
    kernel_define(&k, "AXES", axes == 2 ? "2" : "1");
    kernel_constant(&k, "pairs", (double)o->in[0]->ne[0]);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    return k;
}

static gpu_kernel rope_kernel(const op *o, uint32_t count) {
    const tensor  *x = o->in[0];
    const bool     wide = view_fours(x) && x->ne[0] % 8 == 0;
    const uint32_t unit = wide ? 4 : 1;
    const uint64_t pairs = x->ne[0] / 2 / unit;
    gpu_kernel     k = { .file = "rope.wgsl", .x = rounded_up(x->ne[1] * pairs, 64), .y = count, .z = 1 };
    kernel_define(&k, "KIND", "rotate");
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "COUNT", counted(x));
    kernel_constant(&k, "pairs", (double)pairs);
    kernel_constant(&k, "rows", (double)x->ne[1]);
    kernel_constant(&k, "table_rows", (double)o->in[1]->ne[1]);
    place_a(&k, x, unit);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_IN + 1);
    return k;
}

/* ---- experts ---- */

static gpu_kernel route_kernel(const op *o, uint32_t tokens) {
    gpu_kernel k = { .file = "moe.wgsl", .x = 1, .y = tokens, .z = 1 };
    kernel_define(&k, "KIND", "route");
    kernel_define(&k, "SCALE", kernel_flag(o->in[1] != NULL));
    kernel_constant(&k, "experts", (double)o->in[0]->ne[0]);
    kernel_constant(&k, "used", o->used);
    kernel_constant(&k, "a_offset", (double)o->in[0]->offset);
    kernel_constant(&k, "a_token_stride", (double)o->in[0]->token_stride);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    if (o->in[1]) kernel_bind(&k, BIND_IN + 1);
    return k;
}

static gpu_kernel expert_sum_kernel(const op *o, uint32_t tokens) {
    const tensor  *x = o->in[0];
    const bool     wide = view_fours(x);
    const uint32_t unit = wide ? 4 : 1;
    gpu_kernel     k = { .file = "moe.wgsl", .x = rounded_up(x->ne[0] / unit, 64), .y = tokens, .z = 1 };
    kernel_define(&k, "KIND", "sum");
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_constant(&k, "n", (double)(x->ne[0] / unit));
    kernel_constant(&k, "used", o->used);
    place_a(&k, x, unit);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_IN + 1);
    return k;
}

static gm_status check_experts(uint64_t experts, uint64_t used, error *e) {
    if (experts <= MOST_EXPERTS && used <= MOST_USED) return GM_OK;
    return fail(e, GM_UNSUPPORTED,
                "the GPU's router takes up to %d experts, %d of them used; the model has %llu and uses %llu",
                MOST_EXPERTS, MOST_USED, (unsigned long long)experts, (unsigned long long)used);
}

uint64_t gpu_groups_bytes(uint32_t experts, uint32_t tokens, uint32_t used) {
    return (experts + 1 + (uint64_t)tokens * used) * sizeof(uint32_t);
}

gm_status gpu_group_kernel(uint32_t experts, uint32_t used, gpu_kernel *out, error *e) {
    *out = (gpu_kernel){ .file = "moe.wgsl", .x = 1, .y = 1, .z = 1 };
    kernel_define(out, "KIND", "group");
    kernel_constant(out, "experts", experts);
    kernel_constant(out, "used", used);
    kernel_bind(out, BIND_IN + FUSED_ROUTES);
    kernel_bind(out, BIND_GROUPS);
    kernel_bind(out, BIND_RUN);
    return check_experts(experts, used, e);
}

/* ---- keys and values ---- */

const char *gpu_kv_type_word(quant_type type) { return type == TYPE_F32 ? "f32" : type == TYPE_F16 ? "f16" : "q8_0"; }

uint64_t gpu_kv_row_bytes(quant_type type, uint32_t kv_heads, uint32_t head) {
    const uint64_t n = (uint64_t)kv_heads * head;
    return type == TYPE_F32 ? 4 * n : type == TYPE_F16 ? 2 * n : round_up(n + n / 8, 16);
}

uint64_t gpu_kv_bytes(const gpu_kv *kv, uint64_t slots) {
    return slots * gpu_kv_row_bytes(kv->type, kv->kv_heads, kv->head);
}

gm_status gpu_kv_check(const gpu_kv *kv, error *e) {
    const uint64_t n = (uint64_t)kv->kv_heads * kv->head;
    if (kv->type != TYPE_F32 && kv->type != TYPE_F16 && kv->type != TYPE_Q8_0)
        return fail(e, GM_UNSUPPORTED, "keys and values are f32, f16 or q8_0 on the GPU, not type %d", (int)kv->type);
    if (kv->head == 0 || kv->head > MOST_HEAD)
        return fail(e, GM_UNSUPPORTED, "heads have 1 to %d values on the GPU, not %u", MOST_HEAD, (unsigned)kv->head);
    if (kv->type == TYPE_F16 && n % 2)
        return fail(e, GM_UNSUPPORTED,
                    "keys and values in f16 need an even number of values a position on the GPU, not %llu",
                    (unsigned long long)n);
    if (kv->type == TYPE_Q8_0 && kv->head % 32)
        return fail(e, GM_UNSUPPORTED, "keys and values in q8_0 need heads of a multiple of 32 values, not %u",
                    (unsigned)kv->head);
    return GM_OK;
}

gm_status gpu_kv_store_kernel(const op *o, const gpu_kv *kv, uint32_t tokens, gpu_kernel *out, error *e) {
    TRY(gpu_kv_check(kv, e));
    const tensor  *a = o->in[0], *b = o->in[1];
    const uint64_t n = (uint64_t)kv->kv_heads * kv->head;
    const bool     wide = fours(n, a->offset, b->offset, 0), shared = base_of(a) == base_of(b);
    if (kv->type == TYPE_Q8_0 && !wide)
        return fail(e, GM_UNSUPPORTED, "keys and values to be stored in q8_0 must begin at a multiple of 4 values");
    const uint64_t piece = kv->type == TYPE_Q8_0 ? 32 : wide ? 4 : kv->type == TYPE_F16 ? 2 : 1;
    *out = (gpu_kernel){ .file = "kv_store.wgsl", .x = rounded_up(n / piece, 64), .y = tokens, .z = 2 };
    kernel_define(out, "KV_TYPE", gpu_kv_type_word(kv->type));
    kernel_define(out, "WIDE", kernel_flag(wide));
    kernel_define(out, "QUADS", kernel_flag(wide));
    kernel_define(out, "SHARED", kernel_flag(shared));
    kernel_define(out, "SLIDING", kernel_flag(o->window > 0));
    kernel_constant(out, "n", (double)n);
    kernel_constant(out, "a_offset", (double)a->offset);
    kernel_constant(out, "b_offset", (double)b->offset);
    kernel_bind(out, BIND_IN + 0);
    kernel_bind(out, BIND_KEYS);
    kernel_bind(out, BIND_VALUES);
    kernel_bind(out, BIND_RUN);
    if (!shared) kernel_bind(out, BIND_IN + 1);
    return GM_OK;
}

void gpu_kv_copy_kernel(const gpu_info *info, const gpu_kv_move *move, gpu_kernel *out) {
    const uint32_t most = info->max_workgroups ? info->max_workgroups : 65535;
    const uint32_t distance = move->source > move->target ? move->source - move->target : move->target - move->source;
    const uint32_t chains = distance < move->count ? distance : move->count;
    *out = (gpu_kernel){
        .file = "kv_copy.wgsl", .x = rounded_up(move->words, 64), .y = chains < most ? chains : most, .z = 1
    };
    kernel_bind(out, KV_COPY_ROWS);
    kernel_bind(out, KV_COPY_JOB);
}

/* ---- attention ---- */

/* How the keys are divided: a split has a multiple of LEAST_KEYS (MANY_LEAST_KEYS) keys, and there should be one
 * workgroup per core of a large GPU, or two for many tokens. Software GPUs get fewer, because workgroups without keys
 * cost time there. */
enum { LEAST_KEYS = 16, WORKGROUPS = 128, MANY_LEAST_KEYS = 64, MANY_WORKGROUPS = 256, SOFTWARE_WORKGROUPS = 4 };
enum { MOST_QUERIES = 8, PREFILL_QUERIES = 16 };

static const char *number_word(uint32_t n) {
    static const char *const words[] = {
        [1] = "1", [2] = "2", [4] = "4", [8] = "8", [16] = "16", [32] = "32", [64] = "64"
    };
    return n < COUNT_OF(words) ? words[n] : NULL;
}

/* Pairs (token, head) of one K/V head. */
static uint64_t queries_of_kv_head(const op *o, const gpu_kv *kv, uint32_t tokens) {
    return (uint64_t)tokens * o->in[0]->ne[1] / kv->kv_heads;
}

/* Pairs per decode workgroup: as many as its memory holds, a power of two. */
static uint32_t decode_queries(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    enum { BESIDE = 7 * 1024 }; /* bytes that it needs besides the queries */
    const uint64_t all = queries_of_kv_head(o, kv, tokens);
    const uint64_t query_bytes = 16 * rounded_up(kv->head, 4);
    uint32_t       batch = 1;
    while (batch < all && batch < MOST_QUERIES && 2 * batch * query_bytes + BESIDE <= info->max_workgroup_bytes)
        batch *= 2;
    return batch;
}

/* How attention_blocks.wgsl divides a workgroup: its header says what these are. */
typedef struct {
    uint32_t queries, keys, chunk, lanes, own, steps;
} block_shape;

static block_shape choose_blocks(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    enum { LONG_CHUNK_BYTES = 22784 };
    const uint32_t chunk = info->max_workgroup_bytes >= LONG_CHUNK_BYTES ? 8 : 4;
    if (kv->head > 256 || queries_of_kv_head(o, kv, tokens) <= 32)
        return (block_shape){ 32, 64, chunk, 64, 8, kv->head > 256 ? 2 : 1 };
    if (kv->head <= 64) return (block_shape){ 64, 32, chunk, 16, 4, 1 };
    return (block_shape){ 64, 32, chunk, 32, 8, kv->head > 128 ? 2 : 1 };
}

/* The kernel for an attention over many tokens, or few. */
typedef enum { ATTENTION_DECODE, ATTENTION_PREFILL, ATTENTION_BLOCKS } attention_way;

static bool keeps_logs(const op *o) { return o->kind == OP_ATTENTION && o->sum; }

static attention_way choose_attention(const gpu_info *info, const op *o, uint32_t tokens) {
    if (keeps_logs(o)) return ATTENTION_BLOCKS;
    if (tokens <= GPU_DECODE_TOKENS) return ATTENTION_DECODE;
    return info->blocks ? ATTENTION_BLOCKS : ATTENTION_PREFILL;
}

static uint32_t attention_queries(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    switch (choose_attention(info, o, tokens)) {
    case ATTENTION_DECODE: return decode_queries(info, o, kv, tokens);
    case ATTENTION_PREFILL: return PREFILL_QUERIES;
    default: return choose_blocks(info, o, kv, tokens).queries;
    }
}

uint32_t gpu_attention_splits(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    const attention_way way = choose_attention(info, o, tokens);
    if (way == ATTENTION_PREFILL) return 1;
    const bool     many = way != ATTENTION_DECODE;
    const uint64_t seen = o->window ? (uint64_t)o->window + tokens - 1 : UINT64_MAX;
    const uint64_t abreast = /* workgroups per split */
        rounded_up(queries_of_kv_head(o, kv, tokens), attention_queries(info, o, kv, tokens)) * (uint64_t)kv->kv_heads;
    const uint32_t most = info->software ? SOFTWARE_WORKGROUPS : many ? MANY_WORKGROUPS : WORKGROUPS;
    uint32_t       splits = 1;
    while (2 * splits * abreast <= most && (uint64_t)splits * (many ? MANY_LEAST_KEYS : LEAST_KEYS) < seen) splits *= 2;
    return splits;
}

uint64_t gpu_attention_partial_bytes(const op *o, uint32_t tokens, uint32_t splits) {
    if (splits == 1) return 0;
    const uint64_t quads = (o->in[0]->ne[0] + 3) / 4 + 1;
    return tokens * o->in[0]->ne[1] * splits * quads * 4 * sizeof(float);
}

/* Which fields of the records count, and whether there is only one record. */
static void attention_records(gpu_kernel *k, const op *o, uint32_t tokens) {
    kernel_define(k, "SLIDING", kernel_flag(o->window > 0));
    kernel_define(k, "ONE", kernel_flag(tokens == 1));
}

static void attention_common(gpu_kernel *k, const op *o, const gpu_kv *kv, uint32_t tokens) {
    const tensor *q = o->in[0];
    attention_records(k, o, tokens);
    kernel_define(k, "KV_TYPE", gpu_kv_type_word(kv->type));
    kernel_define(k, "QUADS", kernel_flag(fours(kv->head, q->offset, 0, 0)));
    kernel_constant(k, "head", kv->head);
    kernel_constant(k, "heads", (double)q->ne[1]);
    kernel_constant(k, "kv_heads", kv->kv_heads);
    kernel_constant(k, "q_offset", (double)q->offset);
}

/* Quads of the head per lane, of 32. */
static void attention_steps(gpu_kernel *k, const gpu_kv *kv) {
    static const char *const steps[] = { "0", "1", "2", "3", "4" };
    kernel_define(k, "STEPS", steps[rounded_up(kv->head, 128)]);
}

static void attention_binds(gpu_kernel *k, int out) {
    kernel_bind(k, BIND_IN + 0);
    kernel_bind(k, out);
    kernel_bind(k, BIND_RUN);
    kernel_bind(k, BIND_KEYS);
    kernel_bind(k, BIND_VALUES);
}

/* The dispatch's y for a run of one span; a run with more spans counts anew. */
static void attention_tiles(gpu_kernel *k, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t tile_queries) {
    k->tile_queries = tile_queries;
    k->token_queries = (uint32_t)o->in[0]->ne[1] / kv->kv_heads;
    k->y = rounded_up((uint64_t)tokens * k->token_queries, tile_queries);
    k->z = kv->kv_heads;
}

static gpu_kernel prefill_kernel(const op *o, const gpu_kv *kv, uint32_t tokens) {
    gpu_kernel k = { .file = "attention_prefill.wgsl", .x = 1 };
    attention_tiles(&k, o, kv, tokens, PREFILL_QUERIES);
    attention_common(&k, o, kv, tokens);
    attention_steps(&k, kv);
    attention_binds(&k, BIND_OUT);
    return k;
}

/* The constants that a kernel with splits and attention_reduce.wgsl must agree on. */
static void share_out(gpu_kernel *k, const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens,
                      uint32_t splits) {
    const bool many = choose_attention(info, o, tokens) != ATTENTION_DECODE;
    kernel_define(k, "QUERIES", number_word(attention_queries(info, o, kv, tokens)));
    kernel_constant(k, "splits", splits);
    kernel_constant(k, "least", many ? MANY_LEAST_KEYS : LEAST_KEYS);
}

static gpu_kernel blocks_kernel(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits) {
    const block_shape b = choose_blocks(info, o, kv, tokens);
    gpu_kernel        k = { .file = "attention_blocks.wgsl", .x = splits };
    attention_tiles(&k, o, kv, tokens, b.queries);
    attention_common(&k, o, kv, tokens);
    share_out(&k, info, o, kv, tokens, splits);
    kernel_define(&k, "KEYS", number_word(b.keys));
    kernel_define(&k, "CHUNK", number_word(b.chunk));
    kernel_define(&k, "LANES", number_word(b.lanes));
    kernel_define(&k, "OWN", number_word(b.own));
    kernel_define(&k, "STEPS", number_word(b.steps));
    kernel_define(&k, "FINAL", kernel_flag(splits == 1));
    kernel_define(&k, "LOGS", kernel_flag(keeps_logs(o) && splits == 1));
    attention_binds(&k, splits == 1 ? BIND_OUT : BIND_PARTIAL);
    if (keeps_logs(o) && splits == 1) kernel_bind(&k, BIND_SUM);
    return k;
}

/* ATTEND: the kernel also makes the queries and, if there are keys at in[HEADS_K], the token's row of the cache. */
static void add_heads(gpu_kernel *k, const op *o) {
    const bool store = o->in[HEADS_K] != NULL;
    kernel_define(k, "HEADS", "1");
    kernel_define(k, "STORE", kernel_flag(store));
    kernel_define(k, "WIDE", "1");
    kernel_constant(k, "eps", (double)o->eps);
    kernel_bind(k, BIND_IN + HEADS_TABLE);
    kernel_bind(k, BIND_IN + HEADS_Q_WEIGHT);
    if (!store) return;
    kernel_constant(k, "k_offset", (double)o->in[HEADS_K]->offset);
    kernel_constant(k, "v_offset", (double)o->in[HEADS_V]->offset);
    kernel_bind(k, BIND_IN + HEADS_K_WEIGHT);
}

static gpu_kernel decode_kernel(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits) {
    gpu_kernel k = { .file = "attention_decode.wgsl", .x = splits };
    attention_tiles(&k, o, kv, tokens, decode_queries(info, o, kv, tokens));
    attention_common(&k, o, kv, tokens);
    attention_steps(&k, kv);
    share_out(&k, info, o, kv, tokens, splits);
    kernel_define(&k, "SHARES", kv->head > 256 ? "2" : "4");
    kernel_define(&k, "FINAL", kernel_flag(splits == 1));
    attention_binds(&k, splits == 1 ? BIND_OUT : BIND_PARTIAL);
    if (o->kind == OP_ATTEND) add_heads(&k, o);
    return k;
}

static gpu_kernel reduce_kernel(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits) {
    const uint32_t heads = (uint32_t)o->in[0]->ne[1];
    gpu_kernel     k = { .file = "attention_reduce.wgsl", .x = heads, .y = tokens, .z = rounded_up(kv->head, 128) };
    kernel_define(&k, "QUADS", kernel_flag(kv->head % 4 == 0));
    kernel_constant(&k, "head", kv->head);
    kernel_constant(&k, "heads", heads);
    kernel_constant(&k, "kv_heads", kv->kv_heads);
    attention_records(&k, o, tokens);
    share_out(&k, info, o, kv, tokens, splits);
    kernel_define(&k, "LOGS", kernel_flag(keeps_logs(o)));
    kernel_bind(&k, BIND_PARTIAL);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    if (keeps_logs(o)) kernel_bind(&k, BIND_SUM);
    return k;
}

gm_status gpu_attention_kernels(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits,
                                gpu_kernel out[2], size_t *count, error *e) {
    *count = 0;
    TRY(gpu_kv_check(kv, e));
    const tensor *q = o->in[0];
    if (q->ne[0] != kv->head || kv->kv_heads == 0 || q->ne[1] % kv->kv_heads)
        return fail(e, GM_BAD_ARGUMENT, "attention: %llu heads of %llu do not fit %u K/V heads of %u",
                    (unsigned long long)q->ne[1], (unsigned long long)q->ne[0], (unsigned)kv->kv_heads,
                    (unsigned)kv->head);
    if (o->kind == OP_ATTEND && tokens != 1)
        return fail(e, GM_BAD_ARGUMENT, "attention with heads is for one token, not %u", (unsigned)tokens);
    const attention_way way = choose_attention(info, o, tokens);
    if (way == ATTENTION_PREFILL) out[(*count)++] = prefill_kernel(o, kv, tokens);
    else if (way == ATTENTION_BLOCKS) out[(*count)++] = blocks_kernel(info, o, kv, tokens, splits);
    else out[(*count)++] = decode_kernel(info, o, kv, tokens, splits);
    if (way != ATTENTION_PREFILL && splits > 1) out[(*count)++] = reduce_kernel(info, o, kv, tokens, splits);
    return GM_OK;
}

/* ---- all other ops ---- */

/* Kernels read tables of angles and routes as whole values, never as views. */
static gm_status check_whole(const op *o, error *e) {
    const tensor *b = o->in[1];
    if (b->offset == 0 && b->token_stride == b->ne[0] * b->ne[1]) return GM_OK;
    return fail(e, GM_UNSUPPORTED, "%s: the second input must not be a part of a value", op_name(o->kind));
}

gm_status gpu_op_kernel(const op *o, uint32_t tokens, uint32_t outputs, gpu_kernel *out, error *e) {
    const uint32_t count = o->out ? op_entries(o->out, tokens, outputs) : tokens;
    switch (o->kind) {
    case OP_RMS_NORM:
    case OP_LAYER_NORM: *out = norm_kernel(o, count); return GM_OK;
    case OP_ROPE_TABLE: *out = rope_table_kernel(o, tokens); return GM_OK;
    case OP_ROPE: *out = rope_kernel(o, count); return check_whole(o, e);
    case OP_ADD:
    case OP_MUL:
    case OP_CLAMP:
    case OP_SCALE:
    case OP_GEGLU:
    case OP_SOFTCAP:
    case OP_TOKEN_SUM:
    case OP_SELECT_ROWS: *out = elementwise_kernel(o, count); return GM_OK;
    case OP_ROUTE: *out = route_kernel(o, tokens); return check_experts(o->in[0]->ne[0], o->used, e);
    case OP_EXPERT_SUM: *out = expert_sum_kernel(o, tokens); return check_whole(o, e);
    default: return fail(e, GM_BAD_ARGUMENT, "%s has no kernel of this kind", op_name(o->kind));
    }
}
