/* Kernels of the fused ops except PRODUCTS (matmul.h). */

#include "gpu/kernel_build.h"
#include "gpu/kernels.h"
#include "gpu/matmul.h"
#include "graph/fuse.h"

/* Kernels read four values at a time if the length allows it. */
static uint32_t unit_of(const tensor *t) { return t->ne[0] % 4 ? 1 : 4; }

gpu_kernel gpu_norms_kernel(const op *o, uint32_t tokens, uint32_t outputs, bool q8) {
    const tensor  *a = o->in[FUSED_A];
    const uint32_t unit = unit_of(a);
    const bool     by_token = a->axis == AXIS_TOKENS, residual = o->in[FUSED_B] != NULL;
    gpu_kernel     k = { .file = "norms.wgsl", .x = 1, .y = by_token ? tokens : outputs, .z = 1 };
    kernel_define(&k, "WIDE", kernel_flag(unit == 4));
    kernel_define(&k, "RESIDUAL", kernel_flag(residual));
    kernel_define(&k, "NORMED", kernel_flag(o->normed));
    kernel_define(&k, "FACTORED", kernel_flag(o->factored));
    kernel_define(&k, "Q8_OUT", kernel_flag(q8));
    kernel_define(&k, "COUNT", by_token ? "run.tokens" : "run.outputs");
    kernel_define(&k, "THREADS", gpu_column_threads(rounded_up(a->ne[0], 32)) == 64 ? "64" : "256");
    kernel_define(&k, "OUT_AT", residual ? "6" : "2");
    kernel_define(&k, "WEIGHT_AT", residual ? "7" : "3");
    kernel_constant(&k, "n", (double)(a->ne[0] / unit));
    kernel_constant(&k, "eps", (double)o->eps);
    kernel_bind(&k, BIND_IN + FUSED_A);
    kernel_bind(&k, BIND_RUN);
    if (residual) {
        kernel_number(&k, o->factor);
        kernel_bind(&k, BIND_IN + FUSED_B);
        kernel_bind(&k, BIND_IN + FUSED_B_WEIGHT);
        kernel_bind(&k, BIND_SUM);
        kernel_bind(&k, BIND_NUMBERS);
    }
    if (o->normed) kernel_constant(&k, "weight_factor", (double)o->weight_factor);
    if (q8) kernel_constant(&k, "out_scales", (double)k.y * (double)a->ne[0] / 4);
    if (o->normed || q8) kernel_bind(&k, q8 ? BIND_QUANTISED : BIND_OUT);
    if (o->normed) kernel_bind(&k, BIND_IN + FUSED_WEIGHT);
    return k;
}

/* ---- adapters ---- */

enum { SHRINKS_MANY = 33, SHRINKS_TOGETHER = 4, CORRECT_TOKENS = 8 };

static void adapter_bind_at(gpu_kernel *k, int range, const char *define) {
    static const char *const numbers[KERNEL_BINDS] = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" };
    kernel_define(k, define, numbers[k->bind_count]);
    kernel_bind(k, range);
}

/* The residual and the norm that a column of one token is computed from. */
static void shrinks_column(gpu_kernel *k, const op *o) {
    kernel_define(k, "RESIDUAL", kernel_flag(o->in[FUSED_B] != NULL));
    kernel_define(k, "NORMED", kernel_flag(o->normed));
    kernel_define(k, "SUM", kernel_flag(o->sum != NULL));
    if (o->in[FUSED_B]) {
        adapter_bind_at(k, BIND_IN + FUSED_B, "B_AT");
        adapter_bind_at(k, BIND_IN + FUSED_B_WEIGHT, "B_WEIGHT_AT");
        adapter_bind_at(k, BIND_NUMBERS, "NUMBERS_AT");
        kernel_number(k, o->factor);
    }
    if (o->normed) {
        adapter_bind_at(k, BIND_IN + FUSED_WEIGHT, "WEIGHT_AT");
        kernel_constant(k, "weight_factor", (double)o->weight_factor);
    }
    if (o->in[FUSED_B] || o->normed) kernel_constant(k, "eps", (double)o->eps);
    if (o->sum) adapter_bind_at(k, BIND_SUM, "SUM_AT");
}

gpu_kernel gpu_shrinks_kernel(const op *o, uint32_t tokens, bool q8, bool given, uint32_t parts, uint32_t stride) {
    const tensor  *x = o->in[FUSED_A];
    const bool     one = tokens == 1, eight = q8 || given;
    const bool     wide = eight || ((x->ne[0] | x->offset | x->token_stride) % 4 == 0);
    const uint32_t unit = wide ? 4 : 1;
    uint32_t       firsts[OP_PARTS + 1] = { 0 };
    bool           by_four = tokens >= SHRINKS_MANY;
    for (size_t i = 0; i < OP_PARTS; i++) {
        firsts[i + 1] = firsts[i] + o->slots * o->ranks[i];
        by_four = by_four && o->ranks[i] % SHRINKS_TOGETHER == 0;
    }
    const uint32_t together = by_four ? SHRINKS_TOGETHER : 1;
    gpu_kernel     k = {
            .file = "shrinks.wgsl", .x = firsts[OP_PARTS] / together, .y = parts, .z = rounded_up(tokens, together)
    };
    kernel_define(&k, "ONE", kernel_flag(one));
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "COLUMN", eight ? "given" : "f32");
    kernel_define(&k, "THREADS", "256");
    kernel_define(&k, "TOKENS", by_four ? "4" : "1");
    kernel_constant(&k, "slots", o->slots);
    kernel_constant(&k, "rank_0", o->ranks[0]);
    if (o->ranks[1]) kernel_constant(&k, "rank_1", o->ranks[1]);
    if (o->ranks[2]) kernel_constant(&k, "rank_2", o->ranks[2]);
    kernel_constant(&k, "first_1", firsts[1]);
    kernel_constant(&k, "first_2", firsts[2]);
    kernel_constant(&k, "k", (double)(x->ne[0] / unit));
    kernel_constant(&k, "head", SHRUNK_HEAD);
    kernel_constant(&k, "out_stride", stride);
    if (!by_four) kernel_constant(&k, "part_units", rounded_up(x->ne[0] / unit, parts));
    if (parts > 1) kernel_constant(&k, "part_stride", firsts[OP_PARTS]);
    if (eight) kernel_constant(&k, "x_scales", (double)tokens * (double)x->ne[0] / 4);
    else {
        kernel_constant(&k, "x_offset", (double)(x->offset / unit));
        kernel_constant(&k, "x_token_stride", (double)(x->token_stride / unit));
    }
    kernel_bind(&k, q8 ? BIND_QUANTISED : BIND_IN + FUSED_A);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_IN + FUSED_W0);
    kernel_bind(&k, BIND_IN + FUSED_SETS);
    kernel_bind(&k, BIND_RUN);
    if (one) shrinks_column(&k, o);
    return k;
}

gpu_kernel gpu_correct_kernel(const op *o, const gpu_corrections *c, uint32_t tokens) {
    static const struct {
        const char *flag, *at, *rank, *shrunk, *end;
    } names[OP_PARTS] = { { "EXPAND_0", "EXPAND_0_AT", "rank_0", "shrunk_0", "end_0" },
                          { "EXPAND_1", "EXPAND_1_AT", "rank_1", "shrunk_1", "end_1" },
                          { "EXPAND_2", "EXPAND_2_AT", "rank_2", "shrunk_2", "end_2" } };
    const tensor *y = o->out;
    const bool    wide = (c->rows[0] | c->rows[1] | c->rows[2] | y->offset | y->token_stride) % 4 == 0;
    const bool    by_fours =
        (c->ranks[0] | c->ranks[1] | c->ranks[2] | c->at[0] | c->at[1] | c->at[2] | c->stride) % 4 == 0;
    const uint32_t unit = wide ? 4 : 1, step = by_fours ? 4 : 1;
    uint32_t       end = 0;
    gpu_kernel     k = { .file = "correct.wgsl", .y = 1, .z = rounded_up(tokens, CORRECT_TOKENS) };
    kernel_define(&k, "WIDE", kernel_flag(wide));
    kernel_define(&k, "STEP", by_fours ? "4" : "1");
    kernel_constant(&k, "slots", c->slots);
    kernel_constant(&k, "shrunk_stride", c->stride / step);
    kernel_constant(&k, "y_offset", (double)(y->offset / unit));
    kernel_constant(&k, "y_token_stride", (double)(y->token_stride / unit));
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_IN + FUSED_SHRUNK);
    kernel_bind(&k, BIND_RUN);
    for (int i = 0; i < OP_PARTS; i++) {
        end += c->rows[i] / unit;
        kernel_constant(&k, names[i].end, end);
        kernel_define(&k, names[i].flag, kernel_flag(c->ranks[i] > 0));
        if (!c->ranks[i]) continue;
        adapter_bind_at(&k, BIND_IN + FUSED_EXPAND0 + i, names[i].at);
        kernel_constant(&k, names[i].rank, c->ranks[i]);
        kernel_constant(&k, names[i].shrunk, c->at[i]);
    }
    k.x = rounded_up(end, 64);
    return k;
}

static gpu_kernel mix_kernel(const op *o, uint32_t tokens) {
    const tensor  *a = o->in[MIX_A];
    const uint32_t unit = unit_of(a);
    gpu_kernel     k = { .file = "mix.wgsl", .x = 1, .y = tokens, .z = 1 };
    kernel_define(&k, "WIDE", kernel_flag(unit == 4));
    kernel_constant(&k, "n", (double)(a->ne[0] / unit));
    kernel_constant(&k, "used", o->used);
    kernel_constant(&k, "eps", (double)o->eps);
    kernel_bind(&k, BIND_IN + MIX_A);
    kernel_bind(&k, BIND_IN + MIX_EXPERTS);
    kernel_bind(&k, BIND_IN + MIX_ROUTES);
    kernel_bind(&k, BIND_IN + MIX_A_WEIGHT);
    kernel_bind(&k, BIND_IN + MIX_WEIGHT);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    return k;
}

enum { HEADS_THREADS = 64, HEADS_VALUES = 512 }; /* of a workgroup of heads.wgsl */

/* Threads that compute one head: heads below SMALL_HEAD share a workgroup. */
static uint32_t heads_lanes(uint64_t head) {
    enum { FEWEST_LANES = 8, SMALL_HEAD = 128 };
    uint32_t teams = 1;
    while (head < SMALL_HEAD && 2 * teams * head <= HEADS_VALUES && HEADS_THREADS / (2 * teams) >= FEWEST_LANES)
        teams *= 2;
    return HEADS_THREADS / teams;
}

static gpu_kernel heads_kernel(const op *o, const gpu_kv *kv, uint32_t tokens) {
    const tensor  *q = o->in[HEADS_Q], *k = o->in[HEADS_K], *v = o->in[HEADS_V];
    const bool     store = k != NULL;
    const uint32_t lanes = heads_lanes(q->ne[0]), all = (uint32_t)q->ne[1] + (store ? 2 * kv->kv_heads : 0);
    gpu_kernel     out = { .file = "heads.wgsl", .x = rounded_up(all, HEADS_THREADS / lanes), .y = tokens, .z = 1 };
    kernel_define(&out, "STORE", kernel_flag(store));
    kernel_define(&out, "WIDE", "1");
    kernel_constant(&out, "head", (double)q->ne[0]);
    kernel_constant(&out, "heads", (double)q->ne[1]);
    kernel_constant(&out, "row_stride", (double)q->token_stride);
    kernel_constant(&out, "q_offset", (double)q->offset);
    kernel_constant(&out, "eps", (double)o->eps);
    kernel_constant(&out, "lanes", lanes);
    if (o->in[HEADS_TABLE]->ne[1] > 1) kernel_constant(&out, "axes", (double)o->in[HEADS_TABLE]->ne[1]);
    kernel_bind(&out, BIND_IN + HEADS_Q);
    kernel_bind(&out, BIND_IN + HEADS_TABLE);
    kernel_bind(&out, BIND_IN + HEADS_Q_WEIGHT);
    kernel_bind(&out, BIND_OUT);
    kernel_bind(&out, BIND_RUN);
    if (!store) return out;
    kernel_define(&out, "KV_TYPE", gpu_kv_type_word(kv->type));
    kernel_define(&out, "QUADS", "1");
    kernel_define(&out, "SLIDING", kernel_flag(o->window > 0));
    kernel_constant(&out, "kv_heads", kv->kv_heads);
    kernel_constant(&out, "k_offset", (double)k->offset);
    kernel_constant(&out, "v_offset", (double)v->offset);
    kernel_bind(&out, BIND_IN + HEADS_K_WEIGHT);
    kernel_bind(&out, BIND_KEYS);
    kernel_bind(&out, BIND_VALUES);
    return out;
}

gm_status gpu_fused_kernel(const op *o, const gpu_kv *kv, uint32_t tokens, gpu_kernel *out, error *e) {
    switch ((int)o->kind) {
    case OP_MIX: *out = mix_kernel(o, tokens); return GM_OK;
    case OP_HEADS:
        if (o->in[HEADS_K]) TRY(gpu_kv_check(kv, e));
        *out = heads_kernel(o, kv, tokens);
        return GM_OK;
    default: return fail(e, GM_BAD_ARGUMENT, "%s has no kernel of this kind", op_name(o->kind));
    }
}
