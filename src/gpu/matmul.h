/* Products with weights on the GPU: which kernel a job gets. Each function fills in one dispatch; a tensor of several tiles
 * takes one for each tile. Names of bindings, besides those explained below:
 *
 *   "weights"  the buffer of the tile     "x", "y"  the values' base     "run"  the run record
 *
 * One column goes to product.wgsl, which can make it from a residual and a norm, and pass the result through a gate. Up to 4 columns
 * go to matvec.wgsl: a row is read once, for all columns. More go to matmul.wgsl, or, if the
 * activations were made smaller by the quantise kernel (gpu_matmul_takes_q8 says whether they should), to matmul_q8.wgsl (8 bits)
 * or on a GPU with subgroup matrices to matmul_matrix.wgsl (f16). */

#ifndef GM_GPU_MATMUL_H
#define GM_GPU_MATMUL_H

#include "gpu/weights.h"
#include "graph/graph.h"

/* Where a value lies within its base's binding: element of its first row, and from token to token, and row to row. */
typedef struct {
    uint32_t offset, token_stride, row_stride;
} gpu_place;

/* A column as it is; made 8 bits on its way into the product; or in 8 bits already, as y_q8 or the quantise kernel left it: then
 * x.offset is 0, and token and row stride count whole columns. */
typedef enum { COLUMN_F32, COLUMN_Q8, COLUMN_GIVEN } gpu_column;

typedef struct {
    const weight_layout *weights;
    const weight_layout *like; /* the weights for which the kernel is chosen; not `weights` only in the self-check */
    uint32_t             tile;
    uint32_t             tokens;  /* the plan's shape class: at most so many columns (tokens, or outputs) */
    bool                 outputs; /* columns are counted by run.outputs instead of run.tokens */
    bool                 q8;      /* x is the quantise kernel's result; x.offset is 0 and the strides do not matter */
    uint32_t             used;    /* experts for each token; 0: a plain product */
    bool                 x_slots; /* with experts: x has a row for each (token, slot), not one for each token */
    gpu_place            x, y;
    gpu_place            routes; /* with experts: of "routes" (few tokens) or "groups" (many) */
    bool                 split;  /* k may be split: there is a place for gpu_matmul_partial_bytes */
    gpu_column           column; /* one column: how it is read */
    bool y_q8; /* one column, with a gate of a pair: the result goes on in 8 bits; its rows are a multiple of 32 */
    /* One column only: what stands before and behind the product, as in graph/fuse.h. */
    bool     residual, normed, sum;
    op_gate  gate;
    float    eps, factor, weight_factor, cap;
    uint32_t other_offset;
} gpu_matmul_job;

/* Whether a product of this kind is to be computed with 8-bit (or f16) activations, if that is wanted at all. */
bool gpu_matmul_takes_q8(const gpu_info *info, quant_type type, uint32_t tokens);
/* Whether, with experts, the kernel wants the pairs grouped by expert ("groups") instead of "routes". */
bool gpu_matmul_takes_groups(uint32_t tokens);

/* Whether one column is to be made 8 bits on its way into the product, if that is wanted at all. */
bool gpu_matvec_takes_q8(const gpu_info *info, quant_type type);
/* The longest column that a product can make from a residual and a norm. */
uint64_t gpu_matvec_most_column(const gpu_info *info);

/* Binds "weights", "x", "y"; then for one column (or experts and up to 4 tokens) what it needs of "b", "b_weight", "numbers", "weight", "sum",
 * "other", "run" and "routes"; for more than 4 columns "run", or with experts "groups".
 *   "routes"  i32 [2 · used] for each token: the ids come first
 *   "groups"  u32: [experts + 1] beginnings of each expert's list, then the lists of token · used + slot
 * Where k is split (job.split allows it), the first dispatch binds "partial" instead of "y", and a second ("partial", "y", "run")
 * adds up what the parts left. Returns how many dispatches there are. */
size_t   gpu_matmul_kernels(gpu_kernel out[2], const gpu_info *info, const gpu_matmul_job *job);
uint64_t gpu_matmul_partial_bytes(const gpu_info *info, const gpu_matmul_job *job); /* of "partial"; 0: there is none */

/* How a product of more than 4 columns is cut. The choice, and kernels for any other, so that they can be compared. */
typedef struct {
    bool     matrix;                      /* by subgroup matrices, else by threads */
    uint32_t rows, columns;               /* of one thread; matrices of one subgroup */
    uint32_t row_threads, column_threads; /* of a workgroup; subgroups */
    uint32_t chunks;                      /* of 32 along k in one step */
    uint32_t splits;                      /* of k */
} gpu_tile;

gpu_tile gpu_matmul_tile(const gpu_info *info, const gpu_matmul_job *job);
size_t   gpu_matmul_tile_kernels(gpu_kernel out[2], const gpu_info *info, const gpu_matmul_job *job,
                                 const gpu_tile *tile);
uint32_t gpu_tile_rows(const gpu_info *info, const gpu_tile *tile);
uint32_t gpu_tile_columns(const gpu_info *info, const gpu_tile *tile);

/* y[t] = factor · row ids[t]; below 0 row 0, or none where others write it (given). Binds "weights", "ids", "y", "run". */
typedef struct {
    const weight_layout *table;
    uint32_t             tile;
    uint32_t             tokens;
    float                factor;
    bool                 given;
    gpu_place            y;
} gpu_embed_job;

void gpu_embed_kernel(gpu_kernel *out, const gpu_info *info, const gpu_embed_job *job);

/* Rows of k values to 8 bits (k a multiple of 32), or to f16 on a GPU with subgroup matrices. Binds "x", "out", "run". */
typedef struct {
    uint32_t  k, rows; /* rows of each token */
    uint32_t  tokens;
    bool      outputs;
    gpu_place x;
} gpu_quantise_job;

void     gpu_quantise_kernel(gpu_kernel *out, const gpu_info *info, const gpu_quantise_job *job);
uint64_t gpu_quantised_bytes(uint32_t k, uint64_t rows); /* of "out"; rows of all tokens */

#endif
