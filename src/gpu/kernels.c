#include "gpu/kernels.h"

#include "gpu/canvas_kernels.h"
#include "gpu/gradient_kernels.h"
#include "gpu/kernel_build.h"
#include "graph/fuse.h"

enum { MOST_EXPERTS = 512, MOST_USED = 64, MOST_HEAD = 512 };

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
    kernel_define(&k, "THREADS", n <= 32 ? "32" : n <= 64 ? "64" : n <= 128 ? "128" : "256");
    kernel_constant(&k, "n", (double)n);
    place_a(&k, x, unit);
    kernel_constant(&k, "share", (double)(1 / (float)x->ne[0]));
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
    [OP_GATE] = "gate",
};

static void elementwise_define(gpu_kernel *k, const char *kind, bool wide, bool two, bool vector, const tensor *out) {
    kernel_define(k, "KIND", kind);
    kernel_define(k, "WIDE", kernel_flag(wide));
    kernel_define(k, "TWO", kernel_flag(two));
    kernel_define(k, "VECTOR", kernel_flag(vector));
    kernel_define(k, "COUNT", counted(out));
}

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
    elementwise_define(&k, elementwise[o->kind], wide, two, vector, o->out);
    kernel_define(&k, "SHARED", kernel_flag(shared));
    if (o->kind == OP_TOKEN_SUM) kernel_define(&k, "SUMMED", counted(o->in[0]));
    kernel_constant(&k, "n", (double)(a.ne[0] / unit));
    place_a(&k, &a, unit);
    if (two) place_b(&k, &b, unit);
    if (o->kind == OP_SCALE || o->kind == OP_SOFTCAP) kernel_constant(&k, "factor", (double)o->factor);
    if (o->kind == OP_SOFTCAP) kernel_constant(&k, "inverse_factor", (double)(1 / o->factor));
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
        kernel_constant(&k, "share", (double)(1 / (float)max_size(o->count, 1)));
        kernel_bind(&k, BIND_ROWS);
    }
    if (two && !shared) kernel_bind(&k, BIND_IN + 1);
    return k;
}

size_t gpu_concat_kernels(gpu_kernel out[OP_INPUTS], const op *o, uint32_t count) {
    bool     wide = o->out->ne[0] % 4 == 0;
    uint64_t first = 0;
    for (size_t i = 0; i < o->count; i++) wide = wide && view_fours(o->in[i]);
    const uint32_t unit = wide ? 4 : 1;
    for (size_t i = 0; i < o->count; i++) {
        const tensor *a = o->in[i];
        gpu_kernel   *k = &out[i];
        *k = (gpu_kernel){
            .file = "elementwise.wgsl", .x = rounded_up(a->ne[0] / unit, 256), .y = (uint32_t)a->ne[1], .z = count
        };
        elementwise_define(k, "place", wide, false, false, o->out);
        kernel_constant(k, "n", (double)(a->ne[0] / unit));
        place_a(k, a, unit);
        kernel_constant(k, "width", (double)(o->out->ne[0] / unit));
        kernel_constant(k, "first", (double)(first / unit));
        kernel_bind(k, (uint8_t)(BIND_IN + i));
        kernel_bind(k, BIND_OUT);
        kernel_bind(k, BIND_RUN);
        first += a->ne[0];
    }
    return o->count;
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
    kernel_define(&k, "BACK", kernel_flag(o->kind == OP_ROPE_BACK));
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

/* ---- audio towers ---- */

static gpu_kernel conv_grid_kernel(const op *o, uint32_t tokens) {
    const tensor  *x = o->in[0];
    const uint64_t out = o->in[1]->ne[0] / (9 * (uint64_t)o->channels);
    const uint32_t unit = out % 4 ? 1 : 4;
    gpu_kernel     k = {
            .file = "conv_grid.wgsl", .x = rounded_up(o->out->ne[0] / unit, 64), .y = (uint32_t)o->out->ne[1], .z = tokens
    };
    kernel_define(&k, "WIDE", kernel_flag(unit == 4));
    kernel_constant(&k, "channels", o->channels);
    kernel_constant(&k, "frequencies", (double)(x->ne[0] / o->channels));
    kernel_constant(&k, "n", (double)(o->out->ne[0] / unit));
    kernel_constant(&k, "outs", (double)(out / unit));
    place_a(&k, x, 1);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_IN + 1);
    return k;
}

static gpu_kernel conv_tokens_kernel(const op *o, uint32_t tokens) {
    const tensor  *x = o->in[0];
    const uint32_t unit = view_fours(x) ? 4 : 1;
    gpu_kernel     k = { .file = "conv_tokens.wgsl", .x = rounded_up(x->ne[0] / unit, 64), .y = tokens, .z = 1 };
    kernel_define(&k, "WIDE", kernel_flag(unit == 4));
    kernel_constant(&k, "n", (double)(x->ne[0] / unit));
    kernel_constant(&k, "taps", o->count);
    kernel_constant(&k, "a_offset", (double)(x->offset / unit));
    kernel_constant(&k, "a_token_stride", (double)(x->token_stride / unit));
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_IN + 1);
    return k;
}

/* Queries, keys and values are separate values: one value cannot be bound twice. */
static gm_status local_attention_kernel(const op *o, uint32_t tokens, gpu_kernel *out, error *e) {
    const tensor *q = o->in[0], *keys = o->in[1], *v = o->in[2];
    *out = (gpu_kernel){ .file = "local_attention.wgsl", .x = (uint32_t)q->ne[1], .y = tokens, .z = 1 };
    kernel_define(out, "WIDE", "0");
    kernel_constant(out, "head", (double)q->ne[0]);
    kernel_constant(out, "reach", o->count);
    kernel_constant(out, "cap", (double)o->factor);
    place_a(out, q, 1);
    place_b(out, keys, 1);
    kernel_constant(out, "v_offset", (double)v->offset);
    kernel_constant(out, "v_row_stride", (double)v->row_stride);
    kernel_constant(out, "v_token_stride", (double)v->token_stride);
    kernel_bind(out, BIND_IN + 0);
    kernel_bind(out, BIND_OUT);
    kernel_bind(out, BIND_RUN);
    for (int j = 1; j < 4; j++) kernel_bind(out, BIND_IN + j);
    if (base_of(q) != base_of(keys) && base_of(q) != base_of(v) && base_of(keys) != base_of(v)) return GM_OK;
    return fail(e, GM_UNSUPPORTED, "%s: queries, keys and values must not be parts of one value", op_name(o->kind));
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

uint32_t gpu_groups_tiles(const gpu_groups *g) {
    const uint64_t pairs = (uint64_t)g->tokens * g->used;
    return (uint32_t)(min_size(g->experts, pairs) + pairs / g->columns);
}

uint64_t gpu_groups_bytes(const gpu_groups *g) {
    return (g->experts + 1 + (uint64_t)gpu_groups_tiles(g) + (uint64_t)g->tokens * g->used) * sizeof(uint32_t);
}

gm_status gpu_slots_kernel(const op *product, gpu_kernel *out, error *e) {
    const uint64_t experts = product->in[FUSED_W0]->ne[2];
    *out = (gpu_kernel){ .file = "moe.wgsl", .x = 1, .y = 1, .z = 1 };
    kernel_define(out, "KIND", "slots");
    kernel_constant(out, "experts", (double)experts);
    kernel_constant(out, "used", product->used);
    kernel_bind(out, BIND_IN + FUSED_ROUTES);
    kernel_bind(out, BIND_SLOTS);
    kernel_bind(out, BIND_RUN);
    kernel_bind(out, BIND_SLOT_TABLE);
    kernel_bind(out, BIND_SLOT_REPORT);
    return check_experts(experts, product->used, e);
}

gm_status gpu_ahead_kernel(const op *route, gpu_kernel *out, error *e) {
    const uint64_t experts = route->in[0]->ne[0];
    *out = (gpu_kernel){ .file = "moe.wgsl", .x = 1, .y = 1, .z = 1 };
    kernel_define(out, "KIND", "ahead");
    kernel_constant(out, "experts", (double)experts);
    kernel_constant(out, "used", route->used);
    kernel_bind(out, BIND_OUT);
    kernel_bind(out, BIND_SLOT_REPORT);
    kernel_bind(out, BIND_RUN);
    kernel_bind(out, BIND_SLOT_TABLE);
    return check_experts(experts, route->used, e);
}

gm_status gpu_group_kernel(const gpu_groups *g, int routes, gpu_kernel *out, error *e) {
    *out = (gpu_kernel){ .file = "moe.wgsl", .x = 1, .y = 1, .z = 1 };
    kernel_define(out, "KIND", "group");
    kernel_constant(out, "experts", g->experts);
    kernel_constant(out, "used", g->used);
    kernel_constant(out, "columns", g->columns);
    kernel_constant(out, "tiles", gpu_groups_tiles(g));
    kernel_bind(out, BIND_IN + routes);
    kernel_bind(out, BIND_GROUPS);
    kernel_bind(out, BIND_RUN);
    return check_experts(g->experts, g->used, e);
}

/* ---- adapters ---- */

/* Many tokens share what they read of A or B. */
enum { LORA_MANY = 8, LORA_RANKS = 4, LORA_SHRUNK_TOKENS = 4, LORA_EXPANDED_TOKENS = 8 };

/* What the kernels of both ops have: the sets, the run, and the routes or the outputs' tokens. */
static gpu_kernel lora_kernel(const op *o, const char *kind, const tensor *routes, uint32_t tokens_each) {
    gpu_kernel k = { .file = "lora.wgsl" };
    kernel_define(&k, "KIND", kind);
    kernel_define(&k, "TOKENS", tokens_each == 1 ? "1" : tokens_each == LORA_SHRUNK_TOKENS ? "4" : "8");
    kernel_define(&k, "OUTPUTS", kernel_flag(o->out->axis == AXIS_OUTPUTS));
    kernel_define(&k, "ROUTED", kernel_flag(routes != NULL));
    kernel_define(&k, "COUNT", counted(o->out));
    kernel_constant(&k, "slots", o->slots);
    kernel_constant(&k, "rank", o->rank);
    if (routes) kernel_constant(&k, "used", o->used);
    return k;
}

static void lora_bind_rows(gpu_kernel *k, const op *o, const tensor *routes, int route_input) {
    if (o->out->axis == AXIS_OUTPUTS) kernel_bind(k, BIND_ROWS);
    else if (routes) kernel_bind(k, BIND_IN + route_input);
}

static gpu_kernel lora_look_up_kernel(const op *o, uint32_t tokens) {
    const uint64_t n = (uint64_t)o->slots * o->rank;
    gpu_kernel     k = lora_kernel(o, "look_up", NULL, 1);
    kernel_define(&k, "WIDE", "0");
    kernel_constant(&k, "k", (double)(o->in[0]->ne[0] / n));
    k.x = rounded_up(n, 64);
    k.y = 1;
    k.z = tokens;
    kernel_bind(&k, BIND_IN + 2);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_IN + 0);
    return k;
}

static gpu_kernel lora_shrink_kernel(const op *o, uint32_t count) {
    const tensor  *a = o->in[0], *x = o->in[1], *routes = o->in[3];
    const bool     many = count >= LORA_MANY && !routes, wide = view_fours(x);
    const uint32_t unit = wide ? 4 : 1, tokens_each = many ? LORA_SHRUNK_TOKENS : 1;
    const uint32_t ranks = many && o->rank % LORA_RANKS == 0 ? LORA_RANKS : 1;
    tensor         view = *x;
    if (x->ne[1] != o->out->ne[1]) view.row_stride = 0; /* all experts of a token read one row */
    gpu_kernel k = lora_kernel(o, "shrink", routes, tokens_each);
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "RANKS", ranks == 1 ? "1" : "4");
    kernel_constant(&k, "k", (double)(x->ne[0] / unit));
    if (routes) kernel_constant(&k, "experts", (double)(a->ne[0] / (x->ne[0] * o->rank * o->slots)));
    place_a(&k, &view, unit);
    k.x = o->slots * o->rank / ranks;
    k.y = (uint32_t)o->out->ne[1];
    k.z = rounded_up(count, tokens_each);
    kernel_bind(&k, BIND_IN + 2);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_IN + 1);
    lora_bind_rows(&k, o, routes, 3);
    return k;
}

static gpu_kernel lora_expand_kernel(const op *o, uint32_t count) {
    const tensor  *y = o->in[0] ? o->in[0] : o->out, *b = o->in[1], *routes = o->in[4];
    const bool     wide = view_fours(y), by_rows = routes || o->out->axis == AXIS_OUTPUTS;
    const uint32_t unit = wide ? 4 : 1, tokens_each = count >= LORA_MANY && !routes ? LORA_EXPANDED_TOKENS : 1;
    gpu_kernel     k = lora_kernel(o, "expand", routes, tokens_each);
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "ADDED", kernel_flag(o->in[0] != NULL));
    kernel_define(&k, "Y_AT", by_rows ? "6" : "5");
    kernel_constant(&k, "m", (double)(y->ne[0] / unit));
    if (routes) kernel_constant(&k, "experts", (double)(b->ne[0] / (y->ne[0] * o->rank * o->slots)));
    place_a(&k, y, unit);
    kernel_constant(&k, "u_offset", (double)o->in[2]->offset);
    kernel_constant(&k, "u_token_stride", (double)o->in[2]->token_stride);
    k.x = rounded_up(y->ne[0] / unit, 64);
    k.y = (uint32_t)y->ne[1];
    k.z = rounded_up(count, tokens_each);
    kernel_bind(&k, BIND_IN + 3);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_IN + 1);
    kernel_bind(&k, BIND_IN + 2);
    lora_bind_rows(&k, o, routes, 4);
    if (o->in[0]) kernel_bind(&k, BIND_IN + 0);
    return k;
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
    case OP_ROPE:
    case OP_ROPE_BACK: *out = rope_kernel(o, count); return check_whole(o, e);
    case OP_ADD:
    case OP_MUL:
    case OP_CLAMP:
    case OP_SCALE:
    case OP_GEGLU:
    case OP_GATE:
    case OP_SOFTCAP:
    case OP_TOKEN_SUM:
    case OP_SELECT_ROWS: *out = elementwise_kernel(o, count); return GM_OK;
    case OP_CONV_GRID: *out = conv_grid_kernel(o, tokens); return GM_OK;
    case OP_CONV_TOKENS: *out = conv_tokens_kernel(o, tokens); return GM_OK;
    case OP_LOCAL_ATTENTION: return local_attention_kernel(o, tokens, out, e);
    case OP_ROUTE: *out = route_kernel(o, tokens); return check_experts(o->in[0]->ne[0], o->used, e);
    case OP_EXPERT_SUM: *out = expert_sum_kernel(o, tokens); return check_whole(o, e);
    case OP_LORA_SHRINK: *out = o->in[1] ? lora_shrink_kernel(o, count) : lora_look_up_kernel(o, count); return GM_OK;
    case OP_LORA_EXPAND: *out = lora_expand_kernel(o, count); return GM_OK;
    case OP_CANVAS_NEXT: *out = gpu_canvas_next_kernel(&o->rule); return GM_OK;
    default: return gpu_gradient_kernel(o, count, out, e);
    }
}
