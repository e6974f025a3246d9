/* Kernels of the ops of training (graph/graph.h). Each function fills in one dispatch, unless it says otherwise. */

#ifndef GM_GPU_GRADIENT_KERNELS_H
#define GM_GPU_GRADIENT_KERNELS_H

#include "gpu/kernels.h"
#include "gpu/matmul.h"

/* All but products and attention, for so many entries of the result. */
gm_status gpu_gradient_kernel(const op *o, uint32_t count, gpu_kernel *out, error *e);

/* ATTENTION_BACK_Q and ATTENTION_BACK_KV. The latter divides the queries among so many workgroups (splits): with more than one, their sums
 * go to BIND_PARTIAL, and gpu_matmul_sum_kernel adds them. Returns the number of dispatches in *count. */
typedef struct {
    gpu_kv   kv;
    uint32_t tokens, splits;
    bool halves; /* the gradients are in f16, in BIND_QUANTISED, a row for each token: gpu_attention_back_by_matrices */
} gpu_attention_back_job;

/* Whether such an op should go to subgroup matrices, if f16 is allowed at all. */
bool gpu_attention_back_by_matrices(const gpu_info *info, const op *o, const gpu_kv *kv, uint32_t tokens);
/* Of ATTENTION_BACK_KV; job.splits does not matter. */
uint32_t  gpu_attention_back_splits(const gpu_info *info, const op *o, const gpu_attention_back_job *job);
uint64_t  gpu_attention_back_partial_bytes(const gpu_attention_back_job *job);
gm_status gpu_attention_back_kernels(const gpu_info *info, const op *o, const gpu_attention_back_job *job,
                                     gpu_kernel out[2], size_t *count, error *e);

/* MATMUL_BACK and MATMUL_EXPERTS_BACK: a dispatch for each tile of the weights. The rows that are summed are divided among the tiles, and
 * more finely where there would be too few workgroups. If there are several parts, they go to BIND_PARTIAL, and gpu_matmul_sum_kernel adds
 * them. */
typedef struct {
    const weight_layout *weights;
    const weight_layout *like;       /* decides tiles of matrices; the same as `weights` except in a check */
    uint32_t  part_first, part_rows; /* the rows of the matrix, if others lie joined with it; part_rows 0: all */
    uint32_t  tokens, used;          /* used: experts, 0: none; their columns and results are contiguous */
    uint32_t  columns;               /* with experts: of a tile of their groups */
    bool      outputs;
    bool      halves; /* the columns are in f16, in BIND_QUANTISED: gpu_back_by_matrices */
    gpu_place x, y;
} gpu_back_job;

/* Whether such a product should go to subgroup matrices, if f16 is allowed at all. */
bool gpu_back_by_matrices(const gpu_info *info, const weight_layout *weights, uint32_t columns);

uint32_t gpu_back_splits(const gpu_info *info, const gpu_back_job *job);
uint64_t gpu_back_partial_bytes(const gpu_info *info, const gpu_back_job *job);
/* The kernel of a tile, after `before` parts of others; returns how many parts it has. */
uint32_t gpu_back_kernel(gpu_kernel *out, const gpu_info *info, const gpu_back_job *job, uint32_t tile,
                         uint32_t before);

#endif
