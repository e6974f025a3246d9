/* Products with weights on the GPU: which kernel a job gets. Each function fills in one dispatch; a tensor of several tiles
 * takes one for each tile. Names of bindings, besides those explained below:
 *
 *   "weights"  the buffer of the tile     "x", "y"  the values' base     "run"  the run record
 *
 * Up to 4 columns go to matvec.wgsl: a row is read once, for all columns. More go to matmul.wgsl, or to matmul_q8.wgsl if the
 * activations were made 8 bits by the quantise kernel (gpu_matmul_takes_q8 says whether they should). */

#ifndef GM_GPU_MATMUL_H
#define GM_GPU_MATMUL_H

#include "gpu/weights.h"

/* Where a value lies within its base's binding: element of its first row, and from token to token, and row to row. */
typedef struct {
    uint32_t offset, token_stride, row_stride;
} gpu_place;

typedef struct {
    const weight_layout *weights;
    uint32_t             tile;
    uint32_t             tokens;  /* the plan's shape class: at most so many columns (tokens, or outputs) */
    bool                 outputs; /* columns are counted by run.outputs instead of run.tokens */
    bool                 q8;      /* x is the quantise kernel's result; x.offset is 0 and the strides do not matter */
    uint32_t             used;    /* experts for each token; 0: a plain product */
    bool                 x_slots; /* with experts: x has a row for each (token, slot), not one for each token */
    gpu_place            x, y;
    gpu_place            routes; /* with experts: of "routes" (few tokens) or "groups" (many) */
} gpu_matmul_job;

/* Whether a product of this kind is to be computed with 8-bit activations, if that is wanted at all. */
bool gpu_matmul_takes_q8(const gpu_info *info, quant_type type, uint32_t tokens);
/* Whether, with experts, the kernel wants the pairs grouped by expert ("groups") instead of "routes". */
bool gpu_matmul_takes_groups(uint32_t tokens);

/* Binds "weights", "x", "y"; then for up to 4 columns nothing, or with experts "run" and "routes"; for more columns "run", or
 * with experts "groups".
 *   "routes"  i32 [2 · used] for each token: the ids come first
 *   "groups"  u32: [experts + 1] beginnings of each expert's list, then the lists of token · used + slot */
void gpu_matmul_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job);

/* y[t] = factor · row ids[t]. Binds "weights", "ids" (u32), "y", "run". */
typedef struct {
    const weight_layout *table;
    uint32_t             tile;
    uint32_t             tokens;
    float                factor;
    gpu_place            y;
} gpu_embed_job;

void gpu_embed_kernel(gpu_kernel *out, const gpu_info *info, const gpu_embed_job *job);

/* Rows of k values (a multiple of 32) to 8 bits. Binds "x", "out", "run". */
typedef struct {
    uint32_t  k, rows; /* rows of each token */
    uint32_t  tokens;
    bool      outputs;
    gpu_place x;
} gpu_quantise_job;

void     gpu_quantise_kernel(gpu_kernel *out, const gpu_info *info, const gpu_quantise_job *job);
uint64_t gpu_quantised_bytes(uint32_t k, uint64_t rows); /* of "out"; rows of all tokens */

#endif
