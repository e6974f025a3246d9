/* Products with weights on the GPU: chooses the kernel of a job. Each function fills in one dispatch; a tensor with
 * several tiles takes one per tile. plan_binds.h says what they can bind.
 *
 * One column goes to product.wgsl, which can compute it from a residual and a norm, and pass the result through a gate.
 * Up to 32 columns, or 8 on a GPU with subgroup matrices, go to product_columns.wgsl, which reads a row once for up to 4 columns, or with
 * experts each to product.wgsl. More go to matmul.wgsl, or, if the quantise kernel has converted the activations (gpu_matmul_takes_q8 says
 * whether it should), to matmul_q8.wgsl (8 bits) or, with subgroup matrices, to matmul_matrix.wgsl (f16). More than
 * 32 columns without experts go to matmul_blocks.wgsl instead of matmul.wgsl. */

#ifndef GM_GPU_MATMUL_H
#define GM_GPU_MATMUL_H

#include "gpu/plan_binds.h"
#include "gpu/weights.h"
#include "graph/fuse.h"

/* A value's place in its base's binding: the element at which it starts, and the strides from token to token and row to
 * row. */
typedef struct {
    uint32_t offset, token_stride, row_stride;
} gpu_place;

/* How a column is read: as f32; as f32 that the product quantises to 8 bits; or already in 8 bits, as y_q8 or the
 * quantise kernel writes it. In that case x.offset is 0, and token and row strides count whole columns. */
typedef enum { COLUMN_F32, COLUMN_Q8, COLUMN_GIVEN } gpu_column;

/* A linear layer of a tower that clips: least and most of the input, then of the rows of each joined weight. They differ between
 * layers, so kernels bind them as their numbers. */
typedef struct {
    bool     in, out;
    float    bounds[2 + 2 * OP_PARTS];
    uint32_t ends[OP_PARTS - 1]; /* rows at which the second and the third weight begin */
} gpu_clips;

/* What adapters add to the rows of a product with few columns (wgsl/corrections.wgsl). */
typedef struct {
    uint32_t slots;              /* 0: nothing */
    uint32_t stride;             /* of the rows of SHRINKS' result */
    uint32_t parts, part_stride; /* the result is the sum of so many parts */
    uint32_t ranks[OP_PARTS], at[OP_PARTS], rows[OP_PARTS];
} gpu_corrections;

typedef struct {
    const weight_layout *weights;
    const weight_layout *like; /* decides the kernel; the same as `weights` except in the self-check */
    uint32_t             tile;
    uint32_t             part_first, part_rows; /* only these rows, which lie joined with others; part_rows 0: all */
    uint32_t             tokens;  /* the plan's shape class: the most columns (tokens, or outputs) there can be */
    uint32_t             alike;   /* decides tiles and splits in the place of `tokens`; 0: tokens does */
    bool                 outputs; /* run.outputs is the number of columns, not run.tokens */
    bool                 q8;      /* x is the quantise kernel's result; x.offset is 0, and the strides are ignored */
    uint32_t             used;    /* experts per token; 0: a plain product */
    bool                 x_slots; /* with experts: x has one row per (token, slot), not per token */
    gpu_place            x, y;
    gpu_place            routes; /* with experts: place of the routes (few tokens) or of BIND_GROUPS (many) */
    bool                 split;  /* k may be split: there is room for gpu_matmul_partial_bytes */
    gpu_column           column; /* few columns: how they are read, without q8 */
    bool                 y_q8;   /* few columns with a gate: y is written in 8 bits; its rows are a multiple of 32 */
    /* What precedes the product (with one column only) and follows it (with few), as in graph/fuse.h. */
    bool            residual, normed, sum;
    op_gate         gate;
    bool            factored; /* few columns: there is a factor behind each, as fuse.h says; q8: in its scales */
    float           eps, factor, weight_factor, cap;
    uint32_t        other_offset, other_token_stride;
    gpu_corrections corrections;
    /* With more than one column only. */
    gpu_clips clips;
} gpu_matmul_job;

/* Whether so many columns are few: each thread multiplies its rows with up to four of them, or with experts each pair has a
 * column of its own. */
bool gpu_few_columns(const gpu_info *info, uint32_t columns);
/* Whether such a product should use 8-bit (or f16) activations that the quantise kernel has made, if they are allowed at
 * all. */
bool gpu_matmul_takes_q8(const gpu_info *info, quant_type type, uint32_t columns);

/* Whether it should use f16 activations and subgroup matrices, if they are allowed. */
bool gpu_matmul_by_matrices(const gpu_info *info, quant_type type, uint32_t columns);

/* Columns of a tile of such a product: as many as an expert has on average, roughly. */
uint32_t gpu_expert_columns(const gpu_info *info, uint32_t tokens, uint32_t used, uint32_t experts);

/* Whether a product should quantise its single column to 8 bits, if that is allowed at all. */
bool gpu_matvec_takes_q8(const gpu_info *info, quant_type type);
/* Threads of the workgroup that computes a column of so many chunks of 32. What computes columns for several tokens has as many, so that it
 * adds in the same order. */
uint32_t gpu_column_threads(uint32_t chunks);
/* Whether the product can write its results in 8 bits, although it adds in the order of a product with one column. */
bool gpu_product_gives_q8(const gpu_info *info, const gpu_matmul_job *job);
/* The longest column that a product can compute from a residual and a norm. */
uint64_t gpu_matvec_most_column(const gpu_info *info);

/* Routes are i32 [2 · used] for each token, the ids first. If k is split (job.split allows it), the first dispatch
 * writes partial sums to BIND_PARTIAL, and a second one adds them. Returns the number of dispatches. */
size_t   gpu_matmul_kernels(gpu_kernel out[2], const gpu_info *info, const gpu_matmul_job *job);
uint64_t gpu_matmul_partial_bytes(const gpu_info *info, const gpu_matmul_job *job); /* of BIND_PARTIAL; 0: not needed */

/* Adds parts of a product's sums, which lie in BIND_PARTIAL as [splits, tokens, rows]. */
typedef struct {
    uint32_t  rows, first_row, splits, tokens;
    bool      outputs;
    gpu_place y;
} gpu_sum_job;

void gpu_matmul_sum_kernel(gpu_kernel *out, const gpu_sum_job *job);

/* The tiling of a product with more than 4 columns: the default choice, and kernels for any other, for comparison. */
typedef struct {
    bool     matrix;                      /* with subgroup matrices, otherwise with threads */
    uint32_t rows, columns;               /* per thread; or matrices per subgroup */
    uint32_t row_threads, column_threads; /* per workgroup; or subgroups */
    uint32_t chunks;                      /* chunks of 32 along k per step */
    uint32_t splits;                      /* parts of k */
} gpu_tile;

gpu_tile gpu_matmul_tile(const gpu_info *info, const gpu_matmul_job *job);
void     gpu_matmul_define_tile(gpu_kernel *out, const gpu_info *info, const gpu_tile *tile);
size_t   gpu_matmul_tile_kernels(gpu_kernel out[2], const gpu_info *info, const gpu_matmul_job *job,
                                 const gpu_tile *tile);
uint32_t gpu_tile_rows(const gpu_info *info, const gpu_tile *tile);
uint32_t gpu_tile_columns(const gpu_info *info, const gpu_tile *tile);

/* y[t] = factor · the row of t's id, its position, or a second input. An id below 0 reads row 0, or is skipped if others write its row (given). */
typedef struct {
    const weight_layout *table;
    uint32_t             tile;
    uint32_t             tokens;
    float                factor;
    bool                 given, by_position, by_value;
    gpu_place            y;
} gpu_embed_job;

void gpu_embed_kernel(gpu_kernel *out, const gpu_info *info, const gpu_embed_job *job);

/* Converts rows of k values to 8 bits (k a multiple of 32), or to f16 on a GPU with subgroup matrices, from an input of a product
 * to BIND_QUANTISED. */
typedef struct {
    uint32_t  input;   /* its number */
    uint32_t  k, rows; /* rows per token */
    uint32_t  tokens;
    bool      outputs;
    bool      factored; /* the factor behind a row is passed on with its scales */
    gpu_place x;
    gpu_clips clips;
} gpu_quantise_job;

void     gpu_quantise_kernel(gpu_kernel *out, const gpu_info *info, const gpu_quantise_job *job);
uint64_t gpu_quantised_bytes(uint32_t k, uint64_t rows);                           /* `rows` counts all tokens' rows */
double   gpu_quantised_scales_at(const gpu_info *info, uint32_t k, uint64_t rows); /* in units of 16 bytes */

#endif
