/* Kernels of the fused ops except PRODUCTS (matmul.h). */

#include "gpu/kernel_build.h"
#include "gpu/kernels.h"
#include "graph/fuse.h"

/* Kernels read four values at a time if the length allows it. */
static uint32_t unit_of(const tensor *t) { return t->ne[0] % 4 ? 1 : 4; }

gpu_kernel gpu_norms_kernel(const op *o, uint32_t tokens, uint32_t outputs, bool q8) {
    const tensor  *a = o->in[FUSED_A];
    const uint32_t unit = unit_of(a);
    const bool     by_token = a->axis == AXIS_TOKENS;
    gpu_kernel     k = { .file = "norms.wgsl", .x = 1, .y = by_token ? tokens : outputs, .z = 1 };
    kernel_define(&k, "WIDE", kernel_flag(unit == 4));
    kernel_define(&k, "NORMED", kernel_flag(o->normed));
    kernel_define(&k, "Q8_OUT", kernel_flag(q8));
    kernel_define(&k, "COUNT", by_token ? "run.tokens" : "run.outputs");
    kernel_constant(&k, "n", (double)(a->ne[0] / unit));
    kernel_constant(&k, "eps", (double)o->eps);
    kernel_number(&k, o->factor);
    kernel_bind(&k, BIND_IN + FUSED_A);
    kernel_bind(&k, BIND_IN + FUSED_B);
    kernel_bind(&k, BIND_IN + FUSED_B_WEIGHT);
    kernel_bind(&k, BIND_SUM);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_NUMBERS);
    if (o->normed) kernel_constant(&k, "weight_factor", (double)o->weight_factor);
    if (q8) kernel_constant(&k, "out_scales", (double)k.y * (double)a->ne[0] / 4);
    if (o->normed || q8) kernel_bind(&k, q8 ? BIND_QUANTISED : BIND_OUT);
    if (o->normed) kernel_bind(&k, BIND_IN + FUSED_WEIGHT);
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
