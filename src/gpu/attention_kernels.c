/* Chooses the kernels of an attention: for few tokens attention_decode.wgsl; for many, with subgroup matrices
 * attention_matrix.wgsl (or attention_bands.wgsl, for the small heads of towers), otherwise attention_blocks.wgsl. attention_plain.wgsl is for
 * comparison, and where the results must be exact. */

#include "gpu/attention_shape.h"
#include "gpu/kernel_build.h"
#include "gpu/kernels.h"
#include "graph/fuse.h"

/* ---- how the work is divided ---- */

/* How the keys are divided: a split has a multiple of LEAST_KEYS (MANY_LEAST_KEYS) keys, and there should be one
 * workgroup per core of a large GPU, or two for many tokens. These have at most MANY_SPLITS, because partial sums take memory. Software
 * GPUs get fewer, because workgroups without keys cost time there. */
enum { LEAST_KEYS = 16, WORKGROUPS = 128, SOFTWARE_WORKGROUPS = 4 };
enum { MANY_LEAST_KEYS = 64, MANY_WORKGROUPS = 256, MANY_SPLITS = 32 };
enum { MOST_QUERIES = 8 };

/* Pairs (token, head) of one K/V head. */
static uint64_t queries_of_kv_head(const op *o, const gpu_kv *kv, uint32_t tokens) {
    return (uint64_t)tokens * o->in[0]->ne[1] / kv->kv_heads;
}

/* Pairs per decode workgroup: as many as its memory holds, a power of two. */
static uint32_t decode_queries(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    enum { BESIDE = 7 * 1024 }; /* bytes that it needs besides the queries */
    const uint64_t all = queries_of_kv_head(o, kv, kv->rows ? 1 : tokens);
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

/* What attention_matrix.wgsl has in workgroup memory besides its tile. */
enum { MATRIX_BESIDE = 4 * (ATTENTION_SHAPE_THREADS + 2), MATRIX_BESIDE_QUERY = 4 };

static attention_shape matrix_shape(const gpu_info *info, const gpu_kv *kv, uint32_t queries) {
    return attention_shape_of(info, kv->head, queries, MATRIX_BESIDE + queries * MATRIX_BESIDE_QUERY);
}

/* 64 queries, or 32: if the results of 64 would not fit the registers, if there are no more, or if memory is short. */
static attention_shape choose_matrices(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    const attention_shape large = matrix_shape(info, kv, 64);
    const bool            small =
        kv->head > 256 || queries_of_kv_head(o, kv, tokens) <= 32 || large.bytes > info->max_workgroup_bytes;
    return small ? matrix_shape(info, kv, 32) : large;
}

static bool takes_matrices(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    if (kv->precise || kv->type == TYPE_F32 || o->in[0]->offset % 4 || !attention_shape_possible(info, kv->head))
        return false;
    const attention_shape s = choose_matrices(info, o, kv, tokens);
    return s.score_blocks && s.bytes <= info->max_workgroup_bytes;
}

/* The kernel for an attention over many tokens, or few. */
typedef enum { ATTENTION_DECODE, ATTENTION_PLAIN, ATTENTION_BLOCKS, ATTENTION_MATRIX, ATTENTION_BANDS } attention_way;

/* attention_bands.wgsl wants matrices of BAND_QUERIES rows, and subgroups of BAND_LANES threads. */
enum { BAND_QUERIES = 16, BAND_LANES = 32, BAND_KEYS = 64, BAND_HEAD = 64, BAND_LARGEST_HEAD = 80 };

static bool bands_fit(const gpu_info *info, uint32_t head, uint32_t bands) {
    const uint64_t row = (head > BAND_HEAD ? BAND_LARGEST_HEAD : BAND_HEAD) / 8 + 1, queries = bands * BAND_QUERIES;
    const uint64_t bytes = 16 * (queries * (BAND_KEYS / 4 + 1) + BAND_KEYS * row) + 4 * (queries + 1);
    return bytes <= info->max_workgroup_bytes;
}

/* The queries of a workgroup: eight bands, or four if memory is short (gpu_info.attention_step 1: four). 0: other kernels. */
static uint32_t bands_queries(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    const uint64_t queries = queries_of_kv_head(o, kv, tokens);
    if (!info->bands || info->matrix_rows != BAND_QUERIES || info->subgroup_max != BAND_LANES) return 0;
    if (kv->head <= BAND_HEAD / 2 || kv->head > BAND_LARGEST_HEAD) return 0;
    for (uint32_t bands = info->attention_step == 1 ? 4 : 8; bands >= 4; bands /= 2)
        if (queries >= bands * BAND_QUERIES && bands_fit(info, kv->head, bands)) return bands * BAND_QUERIES;
    return 0;
}

static bool keeps_logs(const op *o) { return o->kind == OP_ATTENTION && o->sum; }

static attention_way choose_attention(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    if (keeps_logs(o)) return ATTENTION_BLOCKS;
    if (info->exact) return ATTENTION_PLAIN;
    if (tokens <= GPU_DECODE_TOKENS || kv->rows) return ATTENTION_DECODE;
    if (takes_matrices(info, o, kv, tokens))
        return bands_queries(info, o, kv, tokens) ? ATTENTION_BANDS : ATTENTION_MATRIX;
    return info->blocks ? ATTENTION_BLOCKS : ATTENTION_PLAIN;
}

static uint32_t attention_queries(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    switch (choose_attention(info, o, kv, tokens)) {
    case ATTENTION_DECODE: return decode_queries(info, o, kv, tokens);
    case ATTENTION_PLAIN: return 1;
    case ATTENTION_MATRIX: return choose_matrices(info, o, kv, tokens).rows;
    case ATTENTION_BANDS: return bands_queries(info, o, kv, tokens);
    default: return choose_blocks(info, o, kv, tokens).queries;
    }
}

uint32_t gpu_attention_splits(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    const attention_way way = choose_attention(info, o, kv, tokens);
    if (way == ATTENTION_PLAIN) return 1;
    if (kv->rows) tokens = 1; /* each is computed as if it were alone: the splits decide the order of its sums */
    const bool     many = way != ATTENTION_DECODE;
    const uint64_t seen = o->window ? (uint64_t)o->window + tokens - 1 : UINT64_MAX;
    const uint64_t abreast = /* workgroups per split */
        (uint64_t)rounded_up(queries_of_kv_head(o, kv, tokens), attention_queries(info, o, kv, tokens)) * kv->kv_heads;
    const uint32_t most = info->software ? SOFTWARE_WORKGROUPS : many ? MANY_WORKGROUPS : WORKGROUPS;
    const uint32_t most_splits = many ? MANY_SPLITS : WORKGROUPS;
    uint32_t       splits = 1;
    while (splits < most_splits && 2 * splits * abreast <= most &&
           (uint64_t)splits * (many ? MANY_LEAST_KEYS : LEAST_KEYS) < seen)
        splits *= 2;
    return splits;
}

uint64_t gpu_attention_partial_bytes(const op *o, uint32_t tokens, uint32_t splits) {
    if (splits == 1) return 0;
    const uint64_t quads = (o->in[0]->ne[0] + 3) / 4 + 1;
    return tokens * o->in[0]->ne[1] * splits * quads * 4 * sizeof(float);
}

/* ---- kernels ---- */

/* Which fields of the records count, and whether there is only one record. */
static void attention_records(gpu_kernel *k, const op *o, uint32_t tokens) {
    kernel_define(k, "SLIDING", kernel_flag(o->window > 0));
    kernel_define(k, "ONE", kernel_flag(tokens == 1));
}

static void attention_common(gpu_kernel *k, const op *o, const gpu_kv *kv, uint32_t tokens) {
    const tensor *q = o->in[0];
    attention_records(k, o, tokens);
    kernel_define(k, "KV_TYPE", gpu_kv_type_word(kv->type));
    kernel_define(k, "QUADS", kernel_flag((kv->head | q->offset) % 4 == 0));
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

static gpu_kernel plain_kernel(const op *o, const gpu_kv *kv, uint32_t tokens) {
    gpu_kernel k = { .file = "attention_plain.wgsl", .x = 1 };
    attention_tiles(&k, o, kv, tokens, 1);
    attention_common(&k, o, kv, tokens);
    attention_binds(&k, BIND_OUT);
    return k;
}

/* The constants that a kernel with splits and attention_reduce.wgsl must agree on. */
static void share_out(gpu_kernel *k, const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens,
                      uint32_t splits) {
    const bool many = choose_attention(info, o, kv, tokens) != ATTENTION_DECODE;
    kernel_define(k, "QUERIES", attention_word(attention_queries(info, o, kv, tokens)));
    kernel_constant(k, "splits", splits);
    kernel_constant(k, "least", many ? MANY_LEAST_KEYS : LEAST_KEYS);
}

static gpu_kernel blocks_kernel(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits) {
    const block_shape b = choose_blocks(info, o, kv, tokens);
    gpu_kernel        k = { .file = "attention_blocks.wgsl", .x = splits };
    attention_tiles(&k, o, kv, tokens, b.queries);
    attention_common(&k, o, kv, tokens);
    share_out(&k, info, o, kv, tokens, splits);
    kernel_define(&k, "KEYS", attention_word(b.keys));
    kernel_define(&k, "CHUNK", attention_word(b.chunk));
    kernel_define(&k, "LANES", attention_word(b.lanes));
    kernel_define(&k, "OWN", attention_word(b.own));
    kernel_define(&k, "STEPS", attention_word(b.steps));
    kernel_define(&k, "FINAL", kernel_flag(splits == 1));
    kernel_define(&k, "LOGS", kernel_flag(keeps_logs(o) && splits == 1));
    attention_binds(&k, splits == 1 ? BIND_OUT : BIND_PARTIAL);
    if (keeps_logs(o) && splits == 1) kernel_bind(&k, BIND_SUM);
    return k;
}

static gpu_kernel matrix_kernel(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits) {
    const attention_shape s = choose_matrices(info, o, kv, tokens);
    gpu_kernel            k = { .file = "attention_matrix.wgsl", .x = splits };
    attention_tiles(&k, o, kv, tokens, s.rows);
    attention_common(&k, o, kv, tokens);
    share_out(&k, info, o, kv, tokens, splits);
    attention_shape_define(&k, info, &s);
    kernel_define(&k, "FINAL", kernel_flag(splits == 1));
    attention_binds(&k, splits == 1 ? BIND_OUT : BIND_PARTIAL);
    return k;
}

static gpu_kernel bands_kernel(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits) {
    gpu_kernel k = { .file = "attention_bands.wgsl", .x = splits };
    attention_tiles(&k, o, kv, tokens, bands_queries(info, o, kv, tokens));
    attention_common(&k, o, kv, tokens);
    share_out(&k, info, o, kv, tokens, splits);
    kernel_define(&k, "FIVE", kernel_flag(kv->head > BAND_HEAD));
    kernel_define(&k, "FINAL", kernel_flag(splits == 1));
    attention_binds(&k, splits == 1 ? BIND_OUT : BIND_PARTIAL);
    return k;
}

/* ATTEND: the kernel also makes the queries and, if there are keys at in[HEADS_K], the token's row of the cache. */
static void add_heads(gpu_kernel *k, const op *o) {
    const bool store = o->in[HEADS_K] != NULL;
    kernel_define(k, "HEADS", "1");
    kernel_define(k, "STORE", kernel_flag(store));
    kernel_define(k, "WIDE", "1");
    kernel_constant(k, "row_stride", (double)o->in[HEADS_Q]->token_stride);
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
    if (kv->rows) kernel_constant(&k, "lone", 1);
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

void gpu_attention_shrinks(gpu_kernel *k, const op *o, uint32_t stride) {
    kernel_define(k, "SHRINKS", "1");
    kernel_constant(k, "slots", o->slots);
    kernel_constant(k, "rank", o->ranks[0]);
    kernel_constant(k, "u_head", SHRUNK_HEAD);
    kernel_constant(k, "u_stride", stride);
    kernel_bind(k, BIND_IN + FUSED_EXPAND0);
    kernel_bind(k, BIND_IN + FUSED_SETS);
    kernel_bind(k, BIND_IN + FUSED_EXPAND0 + 1);
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
    if (o->kind == OP_ATTEND && tokens != 1 && !kv->rows)
        return fail(e, GM_BAD_ARGUMENT, "attention with heads is for one token of a sequence, not %u",
                    (unsigned)tokens);
    const attention_way way = choose_attention(info, o, kv, tokens);
    if (way == ATTENTION_PLAIN) out[(*count)++] = plain_kernel(o, kv, tokens);
    else if (way == ATTENTION_MATRIX) out[(*count)++] = matrix_kernel(info, o, kv, tokens, splits);
    else if (way == ATTENTION_BANDS) out[(*count)++] = bands_kernel(info, o, kv, tokens, splits);
    else if (way == ATTENTION_BLOCKS) out[(*count)++] = blocks_kernel(info, o, kv, tokens, splits);
    else out[(*count)++] = decode_kernel(info, o, kv, tokens, splits);
    if (way != ATTENTION_PLAIN && splits > 1) out[(*count)++] = reduce_kernel(info, o, kv, tokens, splits);
    return GM_OK;
}
