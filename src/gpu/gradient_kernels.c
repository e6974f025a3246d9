/* Kernels of the ops of training. */

#include "gpu/gradient_kernels.h"

#include "gpu/attention_shape.h"
#include "gpu/kernel_build.h"

#include <math.h>

/* ---- views ---- */

static const tensor *gradient_base(const tensor *t) { return t->base ? t->base : t; }

static bool gradient_fours(const tensor *t) {
    return (t->ne[0] | t->offset | t->row_stride | t->token_stride) % 4 == 0;
}

static const char *gradient_count(const tensor *t) {
    return t->axis == AXIS_TOKENS ? "run.tokens" : t->axis == AXIS_OUTPUTS ? "run.outputs" : "min(run.tokens, 1u)";
}

/* Names of a view's constants. */
static const char *const places[3][3] = { { "a_offset", "a_row_stride", "a_token_stride" },
                                          { "b_offset", "b_row_stride", "b_token_stride" },
                                          { "c_offset", "c_row_stride", "c_token_stride" } };

static void gradient_place(gpu_kernel *k, size_t name, const tensor *t, uint32_t unit) {
    const uint64_t values[] = { t->offset, t->row_stride, t->token_stride };
    for (size_t i = 0; i < COUNT_OF(values); i++) kernel_constant(k, places[name][i], (double)(values[i] / unit));
}

/* ---- rows ---- */

static gpu_kernel rows_kernel(const char *kind, const op *o, const tensor *a, bool wide, bool by_row, uint32_t count) {
    const uint32_t unit = wide ? 4 : 1, rows = (uint32_t)o->out->ne[1];
    const uint64_t n = a->ne[0] / unit;
    gpu_kernel     k = { .file = "gradient_rows.wgsl", .x = rounded_up(n, 256), .y = rows, .z = count };
    kernel_define(&k, "KIND", kind);
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "BY_ROW", kernel_flag(by_row));
    kernel_define(&k, "COUNT", gradient_count(o->out));
    kernel_constant(&k, "n", (double)n);
    gradient_place(&k, 0, a, unit);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    if (!by_row) return k;
    k.x = (uint32_t)a->ne[1];
    k.y = count;
    k.z = 1;
    return k;
}

static gm_status geglu_back_kernel(const op *o, uint32_t count, gpu_kernel *out, error *e) {
    const tensor *a = o->in[0], *b = o->in[1], *c = o->in[2];
    const bool    wide = gradient_fours(a) && gradient_fours(b) && gradient_fours(c);
    const bool    shared = gradient_base(a) == gradient_base(b);
    gpu_kernel    k = rows_kernel("geglu", o, a, wide, false, count);
    kernel_define(&k, "SHARED", kernel_flag(shared));
    kernel_constant(&k, "rows", (double)o->out->ne[1]);
    gradient_place(&k, 1, b, wide ? 4 : 1);
    gradient_place(&k, 2, c, wide ? 4 : 1);
    kernel_bind(&k, BIND_IN + 2);
    if (!shared) kernel_bind(&k, BIND_IN + 1);
    *out = k;
    if (gradient_base(c) != gradient_base(a) && gradient_base(c) != gradient_base(b)) return GM_OK;
    return fail(e, GM_UNSUPPORTED, "%s: the gradient must not be a part of an input", op_name(o->kind));
}

/* RMS_NORM_BACK and ROW_DOT: a workgroup for each row. */
static gm_status row_kernel(const op *o, uint32_t count, gpu_kernel *out, error *e) {
    const bool    norm = o->kind == OP_RMS_NORM_BACK;
    const tensor *a = o->in[0], *c = o->in[norm ? 2 : 1];
    const bool    wide = gradient_fours(a) && gradient_fours(c);
    gpu_kernel    k = rows_kernel(norm ? "norm" : "dot", o, a, wide, true, count);
    tensor        view = *c;
    if (c->ne[1] != a->ne[1]) view.row_stride = 0; /* all rows have the same second one */
    kernel_define(&k, "WEIGHT", kernel_flag(norm && o->in[1]));
    kernel_constant(&k, "rows", (double)a->ne[1]);
    gradient_place(&k, 2, &view, wide ? 4 : 1);
    if (norm) kernel_constant(&k, "eps", (double)o->factor);
    kernel_bind(&k, BIND_IN + (norm ? 2 : 1));
    if (norm && o->in[1]) kernel_bind(&k, BIND_IN + 1);
    *out = k;
    if (gradient_base(c) != gradient_base(a)) return GM_OK;
    return fail(e, GM_UNSUPPORTED, "%s: the inputs must not be parts of one value", op_name(o->kind));
}

static gpu_kernel scatter_kernel(const op *o, uint32_t count) {
    gpu_kernel k = rows_kernel("scatter", o, o->in[0], gradient_fours(o->in[0]), false, count);
    kernel_constant(&k, "rows", (double)o->out->ne[1]);
    kernel_bind(&k, BIND_ROWS);
    return k;
}

static gpu_kernel row_sum_kernel(const op *o, uint32_t count) {
    gpu_kernel k = rows_kernel("sum", o, o->in[0], gradient_fours(o->in[0]), false, count);
    kernel_constant(&k, "rows", (double)o->in[0]->ne[1]);
    return k;
}

static gpu_kernel weigh_kernel(const op *o, uint32_t count) {
    tensor a = *o->in[0];
    a.row_stride = 0;
    gpu_kernel k = rows_kernel("weigh", o, &a, gradient_fours(&a), false, count);
    kernel_constant(&k, "rows", o->used);
    kernel_bind(&k, BIND_IN + 1);
    return k;
}

static gpu_kernel dropout_kernel(const op *o, uint32_t count) {
    const tensor *x = o->in[0];
    gpu_kernel    k = { .file = "dropout.wgsl", .x = rounded_up(x->ne[0], 256), .y = (uint32_t)x->ne[1], .z = count };
    kernel_define(&k, "COUNT", gradient_count(o->out));
    kernel_constant(&k, "n", (double)x->ne[0]);
    kernel_constant(&k, "rows", (double)x->ne[1]);
    kernel_number(&k, (float)o->stream); /* each adapter has a stream of its own, and all share a pipeline */
    kernel_constant(&k, "below", ceil((double)o->factor * 4294967296.0)); /* a probability below 1 */
    kernel_constant(&k, "scale", (double)(1 / (1 - o->factor)));
    gradient_place(&k, 0, x, 1);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_IN + 1);
    kernel_bind(&k, BIND_NUMBERS);
    return k;
}

/* ---- the router and the loss ---- */

static gpu_kernel loss_kernel(const op *o, uint32_t count) {
    const bool route = o->kind == OP_ROUTE_BACK;
    gpu_kernel k = { .file = "loss.wgsl", .x = 1, .y = count, .z = 1 };
    const bool wide = !route && o->in[0]->ne[0] % 4 == 0;
    kernel_define(&k, "KIND", route ? "route" : "loss");
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "COUNT", gradient_count(o->out));
    kernel_define(&k, "SCALE", kernel_flag(route && o->in[2]));
    kernel_define(&k, "CAPPED", kernel_flag(!route && o->factor > 0));
    kernel_constant(&k, "n", (double)(o->in[0]->ne[0] / (wide ? 4 : 1)));
    if (route) kernel_constant(&k, "used", o->used);
    else if (o->factor > 0) kernel_constant(&k, "cap", (double)o->factor);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_IN + 1);
    kernel_bind(&k, route ? BIND_IN + 3 : BIND_SUM);
    if (route && o->in[2]) kernel_bind(&k, BIND_IN + 2);
    return k;
}

/* ---- states ---- */

static gpu_kernel state_kernel(const char *kind, bool of_tokens) {
    gpu_kernel k = { .file = "states.wgsl", .x = 1, .y = 1, .z = 1 };
    kernel_define(&k, "KIND", kind);
    kernel_define(&k, "OF_TOKENS", kernel_flag(of_tokens));
    return k;
}

static gpu_kernel lora_gradient_kernel(const op *o, uint32_t count) {
    const tensor  *p = o->in[0], *q = o->in[2], *routes = o->in[3];
    gpu_kernel     k = state_kernel(q ? "gradient" : "look_up", true);
    const uint64_t n = q ? q->ne[0] : o->in[1]->ne[0] / o->rank;
    kernel_define(&k, "ROUTED", kernel_flag(routes != NULL));
    kernel_define(&k, "COUNT", gradient_count(p));
    kernel_constant(&k, "n", (double)n);
    kernel_constant(&k, "rank", o->rank);
    kernel_constant(&k, "slot", o->slot);
    kernel_constant(&k, "factor", (double)o->factor);
    kernel_constant(&k, "p_offset", (double)p->offset);
    kernel_constant(&k, "p_row_stride", (double)p->row_stride);
    kernel_constant(&k, "p_token_stride", (double)p->token_stride);
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_IN + 1);
    kernel_bind(&k, BIND_RUN);
    if (!q) {
        k.x = rounded_up(o->rank, 64);
        k.y = count;
        return k;
    }
    kernel_constant(&k, "rows", (double)p->ne[1]);
    kernel_constant(&k, "q_offset", (double)q->offset);
    kernel_constant(&k, "q_row_stride", q->ne[1] == p->ne[1] ? (double)q->row_stride : 0);
    kernel_constant(&k, "q_token_stride", (double)q->token_stride);
    kernel_bind(&k, BIND_IN + 2);
    if (routes) kernel_bind(&k, BIND_IN + 3);
    k.x = rounded_up(n, 32);
    k.y = rounded_up(o->rank, 8);
    k.z = (uint32_t)(o->in[1]->ne[0] / (o->rank * n));
    return k;
}

static gpu_kernel square_sum_kernel(const op *o) {
    gpu_kernel     k = state_kernel("squares", false);
    const uint64_t n = o->in[0]->ne[0];
    kernel_define(&k, "MORE", kernel_flag(o->in[1] != NULL));
    kernel_define(&k, "WIDE", kernel_flag(n % 4 == 0));
    kernel_constant(&k, "n", (double)(n % 4 ? n : n / 4));
    kernel_bind(&k, BIND_IN + 0);
    kernel_bind(&k, BIND_OUT);
    if (o->in[1]) kernel_bind(&k, BIND_IN + 1);
    return k;
}

static gpu_kernel adamw_kernel(const op *o) {
    const uint64_t n = o->in[1]->ne[0];
    gpu_kernel     k = state_kernel("adamw", false);
    kernel_constant(&k, "n", (double)n);
    kernel_constant(&k, "slot", o->slot);
    kernel_constant(&k, "factor", (double)o->factor);
    kernel_constant(&k, "rate", (double)o->most);
    for (int i = 0; i < 6; i++) kernel_bind(&k, BIND_IN + i);
    k.x = rounded_up(n, 256);
    return k;
}

gm_status gpu_gradient_kernel(const op *o, uint32_t count, gpu_kernel *out, error *e) {
    switch (o->kind) {
    case OP_GEGLU_BACK: return geglu_back_kernel(o, count, out, e);
    case OP_RMS_NORM_BACK:
    case OP_ROW_DOT: return row_kernel(o, count, out, e);
    case OP_SELECT_ROWS_BACK: *out = scatter_kernel(o, count); return GM_OK;
    case OP_ROW_SUM: *out = row_sum_kernel(o, count); return GM_OK;
    case OP_EXPERT_SUM_BACK: *out = weigh_kernel(o, count); return GM_OK;
    case OP_DROPOUT: *out = dropout_kernel(o, count); return GM_OK;
    case OP_ROUTE_BACK:
    case OP_CROSS_ENTROPY: *out = loss_kernel(o, count); return GM_OK;
    case OP_LORA_GRADIENT: *out = lora_gradient_kernel(o, count); return GM_OK;
    case OP_SQUARE_SUM: *out = square_sum_kernel(o); return GM_OK;
    case OP_ADAMW: *out = adamw_kernel(o); return GM_OK;
    default: return fail(e, GM_UNSUPPORTED, "the GPU cannot compute %s", op_name(o->kind));
    }
}

/* ---- attention ---- */

enum { ATTENTION_BACK_ROWS = 16 }; /* `batch` in attention_back.wgsl */
enum { ATTENTION_BACK_WORKGROUPS = 512, ATTENTION_BACK_LEAST_WORKGROUPS = 128, ATTENTION_BACK_SPLITS = 16 };

/* 64 rows, or 32: if the results of 64 would not fit the registers, if memory is short, or if queries would be the rows of too few
 * workgroups (for keys, splits make more of them). */
static attention_shape attention_back_shape(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    /* of attention_back_matrix.wgsl besides its tile: for all threads, for own rows, for others */
    enum { BESIDE = 4 * (ATTENTION_SHAPE_THREADS + 1) + 28 * ATTENTION_SHAPE_OTHERS, BESIDE_ROW = 12 };
    const attention_shape large = attention_shape_of(info, kv->head, 64, BESIDE + 64 * BESIDE_ROW);
    const bool            few = o->kind == OP_ATTENTION_BACK_Q && !info->software &&
                     tokens * o->in[0]->ne[1] < (uint64_t)64 * ATTENTION_BACK_LEAST_WORKGROUPS;
    return kv->head > 256 || few || large.bytes > info->max_workgroup_bytes
               ? attention_shape_of(info, kv->head, 32, BESIDE + 32 * BESIDE_ROW)
               : large;
}

bool gpu_attention_back_by_matrices(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens) {
    if (!attention_shape_possible(info, kv->head) || gpu_few_columns(info, tokens) || o->in[0]->offset % 4)
        return false;
    const attention_shape s = attention_back_shape(info, o, kv, tokens);
    return s.score_blocks && s.bytes <= info->max_workgroup_bytes;
}

static uint32_t attention_back_rows(const gpu_info *info, const op *o, const gpu_attention_back_job *job) {
    return job->halves ? attention_back_shape(info, o, &job->kv, job->tokens).rows : ATTENTION_BACK_ROWS;
}

uint32_t gpu_attention_back_splits(const gpu_info *info, const op *o, const gpu_attention_back_job *job) {
    const uint64_t each = job->halves ? 2 : 1; /* workgroups for a tile of a K/V head */
    const uint64_t tiles = each * rounded_up(job->tokens, attention_back_rows(info, o, job)) * job->kv.kv_heads;
    const uint64_t wanted = info->software ? 2 * each : ATTENTION_BACK_WORKGROUPS;
    uint32_t       splits = 1;
    while (splits < ATTENTION_BACK_SPLITS && tiles * splits < wanted) splits *= 2;
    return splits;
}

/* Values of keys and of values, of each token. */
static uint64_t attention_back_row(const gpu_kv *kv) { return (uint64_t)2 * kv->kv_heads * kv->head; }

uint64_t gpu_attention_back_partial_bytes(const gpu_attention_back_job *job) {
    return job->splits > 1 ? job->splits * job->tokens * attention_back_row(&job->kv) * sizeof(float) : 0;
}

/* What attention_back.wgsl and attention_back_matrix.wgsl differ in. */
static void attention_back_way(gpu_kernel *k, const gpu_info *info, const op *o, const gpu_attention_back_job *job) {
    static const char *const steps[] = { "0", "1", "2", "4", "4" };
    const tensor            *q = o->in[0], *d = o->in[2];
    const gpu_kv            *kv = &job->kv;
    if (job->halves) {
        const attention_shape s = attention_back_shape(info, o, kv, job->tokens);
        k->file = "attention_back_matrix.wgsl";
        kernel_define(k, "QUADS", "1");
        kernel_define(k, "QUERIES", attention_word(s.rows));
        attention_shape_define(k, info, &s);
        kernel_constant(k, "d_scales", gpu_quantised_scales_at(info, (uint32_t)(d->ne[0] * d->ne[1]), job->tokens));
        if (o->kind == OP_ATTENTION_BACK_KV) k->z *= 2;
    } else {
        k->file = "attention_back.wgsl";
        kernel_define(k, "QUADS", kernel_flag((kv->head | q->offset | d->offset) % 4 == 0));
        kernel_define(k, "STEPS", steps[rounded_up(kv->head, 128)]);
        kernel_constant(k, "d_offset", (double)d->offset);
    }
}

gm_status gpu_attention_back_kernels(const gpu_info *info, const op *o, const gpu_attention_back_job *job,
                                     gpu_kernel out[2], size_t *count, error *e) {
    const tensor  *q = o->in[0];
    const gpu_kv  *kv = &job->kv;
    const bool     queries = o->kind == OP_ATTENTION_BACK_Q;
    const bool     partial = !queries && job->splits > 1;
    const uint32_t tokens = job->tokens, tile = attention_back_rows(info, o, job);
    TRY(gpu_kv_check(kv, e));
    *out = (gpu_kernel){ .x = 1, .z = kv->kv_heads };
    attention_back_way(out, info, o, job);
    kernel_define(out, "KIND", queries ? "queries" : "keys");
    kernel_define(out, "KV_TYPE", gpu_kv_type_word(kv->type));
    kernel_define(out, "SLIDING", kernel_flag(o->window > 0));
    kernel_define(out, "ONE", "0");
    kernel_constant(out, "head", kv->head);
    kernel_constant(out, "heads", (double)q->ne[1]);
    kernel_constant(out, "kv_heads", kv->kv_heads);
    kernel_constant(out, "q_offset", (double)q->offset);
    kernel_bind(out, BIND_IN + 0);
    kernel_bind(out, partial ? BIND_PARTIAL : BIND_OUT);
    kernel_bind(out, BIND_RUN);
    kernel_bind(out, BIND_KEYS);
    kernel_bind(out, BIND_VALUES);
    kernel_bind(out, job->halves ? BIND_QUANTISED : BIND_IN + 2);
    kernel_bind(out, BIND_IN + 3);
    kernel_bind(out, BIND_IN + 4);
    *count = 1;
    if (partial) {
        const uint32_t rows = (uint32_t)attention_back_row(kv);
        const tensor  *y = o->out;
        kernel_constant(out, "splits", job->splits);
        kernel_constant(out, "split_stride", (double)tokens * rows);
        out->x = job->splits;
        gpu_matmul_sum_kernel(&out[(*count)++], &(gpu_sum_job){ .rows = rows,
                                                                .splits = job->splits,
                                                                .tokens = tokens,
                                                                .y = { (uint32_t)y->offset, (uint32_t)y->token_stride,
                                                                       (uint32_t)y->row_stride } });
    }
    out->tile_queries = tile;
    out->token_queries = queries ? (uint32_t)q->ne[1] / kv->kv_heads : 1;
    out->y = rounded_up((uint64_t)tokens * out->token_queries, tile);
    return GM_OK;
}
