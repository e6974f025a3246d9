/* All ops but products: which kernel an op gets, with its variant, its constants and its size. matmul.h has the products and
 * embeddings, sampler_kernels.h the sampler.
 *
 * A kernel is made for a shape class: up to `tokens` tokens and `outputs` outputs; the run record says how many there are.
 * What it binds, in the order of the shader's binding numbers, goes by these names:
 *
 *   a, b, out       in[0], in[1] and out of the op: a value's base as a whole (offset and strides of a view are constants in
 *                   the kernel), a weight from its first byte on. Two inputs of one base are bound once, as a.
 *   run             the run record     rows  u32 [outputs]: which tokens' outputs are wanted, ascending
 *   keys, values    the layer's cache, gpu_kv_bytes each
 *   last_seen       u32 [tokens]: up to which of the tokens each sees, where blocks count
 *   partial         scratch between the two dispatches of a split attention, gpu_attention_partial_bytes
 *   groups          u32: [experts + 1] begins, then [tokens · used] pairs (token · used + slot) by expert, gpu_groups_bytes */

#ifndef GM_GPU_KERNELS_H
#define GM_GPU_KERNELS_H

#include "gpu/kernel.h"
#include "graph/graph.h"

/* RMS_NORM, ROPE_TABLE, ROPE, GEGLU, ADD, SCALE, SOFTCAP, ROUTE, EXPERT_SUM and SELECT_ROWS: one dispatch. */
gm_status gpu_op_kernel(const op *o, uint32_t tokens, uint32_t outputs, gpu_kernel *out, error *e);

/* ---- keys and values ---- */

/* A layer's cache: `slots` rows of kv_heads · head values in two buffers, position p in row p mod slots. */
typedef struct {
    quant_type type; /* F32, F16, Q8_0 */
    uint32_t   kv_heads, head;
    uint32_t   slots; /* GPU_KV_NO_RING for a layer that never wraps: its kernels need not change when it grows */
} gpu_kv;

#define GPU_KV_NO_RING UINT32_MAX

/* Bytes of one row: of position p's keys, or of its values. Rows follow each other without gaps, so a cache grows by copying
 * what is there. F32: 4 a value; F16: 2; Q8_0: a byte a value, then a f32 scale for every 32 (exactly the f16 scale of a CPU
 * cache), up to a multiple of 16. */
uint64_t gpu_kv_row_bytes(quant_type type, uint32_t kv_heads, uint32_t head);
/* Bytes of a layer's keys; the values take the same. */
uint64_t gpu_kv_bytes(const gpu_kv *kv, uint64_t slots);

/* Whether the kernels can do with such a cache. */
gm_status   gpu_kv_check(const gpu_kv *kv, error *e);
const char *gpu_kv_type_word(quant_type type); /* for a shader's KV_TYPE */

/* KV_STORE: binds a, keys, values, run, b. */
gm_status gpu_kv_store_kernel(const op *o, const gpu_kv *kv, uint32_t tokens, gpu_kernel *out, error *e);

/* ---- attention ---- */

enum { GPU_DECODE_TOKENS = 4 }; /* up to so many tokens the keys are split over workgroups */

/* Into how many splits the keys are best cut when up to `depth` positions are held: rises with the depth, in powers of two.
 * 1 for more than GPU_DECODE_TOKENS tokens. */
uint32_t gpu_attention_splits(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint64_t depth);
/* Bytes of "partial"; 0 when there is a single split. */
uint64_t gpu_attention_partial_bytes(const op *o, uint32_t tokens, uint32_t splits);
/* ATTENTION: one dispatch (a, out, run, keys, values), or with splits two (a, partial, run, keys, values; partial, out, run). With
 * blocks, and more than GPU_DECODE_TOKENS tokens, it binds last_seen too; fewer tokens always see up to themselves.
 * ATTEND (graph/fuse.h): the same, and the first binds also table, q_weight and, where it stores, k_weight; a is what q, k and v lie
 * in. Any number of splits up to 256 is right at any depth. */
gm_status gpu_attention_kernels(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits,
                                gpu_kernel out[2], size_t *count, error *e);

/* ---- experts ---- */

uint64_t gpu_groups_bytes(uint32_t experts, uint32_t tokens, uint32_t used);
/* The pairs by expert, for products with many tokens. Binds routes (of a ROUTE op, contiguous), groups, run. */
gm_status gpu_group_kernel(uint32_t experts, uint32_t used, gpu_kernel *out, error *e);

/* ---- fused ops (graph/fuse.h), but PRODUCTS ---- */

/* NORMS binds a, b, b_weight, sum, run, numbers, out, weight; MIX a, experts, routes, a_weight, weight, out, run; HEADS rows (the value that
 * q, k and v lie in), table, q_weight, out, run, k_weight, keys, values: those at the end only where there is a norm or a store. */
gm_status gpu_fused_kernel(const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t outputs, gpu_kernel *out, error *e);

#endif
