/* Kernels of all ops except products: chooses an op's kernel, with its variant, constants and size. matmul.h has the
 * products and embeddings, sampler_kernels.h the sampler.
 *
 * A kernel is built for a shape class of up to `tokens` tokens and `outputs` outputs; the run has the actual
 * counts. plan_binds.h says what it can bind. */

#ifndef GM_GPU_KERNELS_H
#define GM_GPU_KERNELS_H

#include "gpu/kernel.h"
#include "gpu/matmul.h"
#include "gpu/plan_binds.h"

/* RMS_NORM, ROPE_TABLE, ROPE, GEGLU, ADD, SCALE, SOFTCAP, ROUTE, EXPERT_SUM, LORA_SHRINK, LORA_EXPAND, SELECT_ROWS, TOKEN_SUM and
 * CANVAS_NEXT: one dispatch. */
gm_status gpu_op_kernel(const op *o, uint32_t tokens, uint32_t outputs, gpu_kernel *out, error *e);

/* CONCAT: a dispatch for each input; returns their number. */
size_t gpu_concat_kernels(gpu_kernel out[OP_INPUTS], const op *o, uint32_t count);

/* ---- keys and values ---- */

/* A layer's cache: rows of kv_heads · head values in each of two buffers. */
typedef struct {
    quant_type type; /* F32, F16, Q8_0 */
    uint32_t   kv_heads, head;
    bool       precise; /* queries, keys and values are not rounded to f16 for a product */
    bool       rows;    /* each token of the run is a span of its own */
} gpu_kv;

/* Bytes of one row, which holds one position's keys or its values. Rows are contiguous, so a cache grows by copying its
 * contents. F32: 4 bytes per value; F16: 2; Q8_0: one byte per value, then an f32 scale for every 32 values (equal to
 * the f16 scale of a CPU cache), rounded up to a multiple of 16. */
uint64_t gpu_kv_row_bytes(quant_type type, uint32_t kv_heads, uint32_t head);
/* Bytes of a layer's keys; the values take as many. */
uint64_t gpu_kv_bytes(const gpu_kv *kv, uint64_t slots);

/* Whether the kernels support such a cache. */
gm_status   gpu_kv_check(const gpu_kv *kv, error *e);
const char *gpu_kv_type_word(quant_type type); /* for a shader's KV_TYPE */

/* KV_STORE. */
gm_status gpu_kv_store_kernel(const op *o, const gpu_kv *kv, uint32_t tokens, gpu_kernel *out, error *e);

/* What kv_copy.wgsl binds: the whole buffer of keys or values, and its job of four words. */
enum { KV_COPY_ROWS, KV_COPY_JOB };

typedef struct {
    uint32_t source, target, count; /* rows */
    uint32_t words;                 /* of a row */
} gpu_kv_move;

/* Moves rows within a layer's keys or values; the ranges may overlap. */
void gpu_kv_copy_kernel(const gpu_info *info, const gpu_kv_move *move, gpu_kernel *out);

/* ---- attention ---- */

/* attention_kernels.c */
enum { GPU_DECODE_TOKENS = 4 }; /* up to so many tokens, attention has a kernel for few queries */

/* The most splits that a run can use, a power of two. How many of them have keys depends on how much the run's tokens
 * see (wgsl/attention_split.wgsl); the other workgroups return at once. */
uint32_t gpu_attention_splits(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens);
/* Bytes of BIND_PARTIAL; 0 if there is only one split. */
uint64_t gpu_attention_partial_bytes(const op *o, uint32_t tokens, uint32_t splits);
/* ATTENTION, and ATTEND (graph/fuse.h): one dispatch, or with splits two. Any number of splits up to 256 gives correct
 * results at any depth. */
gm_status gpu_attention_kernels(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens, uint32_t splits,
                                gpu_kernel out[2], size_t *count, error *e);

/* Adds to the second of these dispatches what plan_decide_shrinks gave the attention. */
void gpu_attention_shrinks(gpu_kernel *k, const op *o, uint32_t stride);

/* ---- experts ---- */

/* The pairs (token, slot) grouped by expert, for products with many tokens: BIND_GROUPS. */
typedef struct {
    uint32_t experts, tokens, used;
    uint32_t columns; /* pairs of a tile of a product, gpu_expert_columns */
} gpu_groups;

uint32_t gpu_groups_tiles(const gpu_groups *g); /* the most tiles that the groups can have */
uint64_t gpu_groups_bytes(const gpu_groups *g);
/* Looks up the slots of the experts of a product (gpu/experts.h). Its routes are those of a ROUTE op, contiguous. */
gm_status gpu_slots_kernel(const op *product, gpu_kernel *out, error *e);
/* Notes in the report what a ROUTE that was computed early chose. */
gm_status gpu_ahead_kernel(const op *route, gpu_kernel *out, error *e);
/* Groups the pairs. Their routes, which the input `routes` binds, are those of a ROUTE op, contiguous, or slots. */
gm_status gpu_group_kernel(const gpu_groups *g, int routes, gpu_kernel *out, error *e);

/* ---- fused ops (graph/fuse.h) except PRODUCTS ---- */

/* A residual sum and its norm, or only a norm. With `q8`, what products read is written in 8 bits (BIND_QUANTISED): the norm, instead of
 * the result, or the sum, if there is no norm. */
gpu_kernel gpu_norms_kernel(const op *o, uint32_t tokens, uint32_t outputs, bool q8);
/* SHRINKS. The column is in f32, or in 8 bits: as the quantise kernel writes it, to BIND_QUANTISED (q8), or as a product gives it. Its readers add up
 * the parts. */
gpu_kernel gpu_shrinks_kernel(const op *o, uint32_t tokens, bool q8, bool given, uint32_t parts, uint32_t stride);
/* What adapters add to the rows of a PRODUCTS with many columns, in place. */
gpu_kernel gpu_correct_kernel(const op *o, const gpu_corrections *c, uint32_t tokens);
/* MIX, HEADS. */
gm_status gpu_fused_kernel(const op *o, const gpu_kv *kv, uint32_t tokens, gpu_kernel *out, error *e);

#endif
