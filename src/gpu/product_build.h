/* Shared by the files that choose kernels for products. */

#ifndef GM_GPU_PRODUCT_BUILD_H
#define GM_GPU_PRODUCT_BUILD_H

#include "gpu/kernel_build.h"
#include "gpu/matmul.h"

/* matvec.c */
void gpu_matvec_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job, const weight_tile *tile);

/* matmul.c: the size of the matrices, and of the subgroups that multiply them. */
void gpu_define_matrices(gpu_kernel *out, const gpu_info *info);

/* Whether columns can be read four values at a time. */
static inline bool by_fours(uint32_t k, const gpu_place *x) {
    return k % 4 == 0 && x->offset % 4 == 0 && x->token_stride % 4 == 0 && x->row_stride % 4 == 0;
}

/* Binds the bounds at which a kernel clips its input or its results. */
static inline void clip_kernel(gpu_kernel *out, const gpu_clips *clips, bool in, bool results) {
    static const char *const places[KERNEL_BINDS] = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" };
    if (!in && !results) return;
    kernel_define(out, "CLIP_IN", kernel_flag(in));
    kernel_define(out, "CLIP_OUT", kernel_flag(results));
    kernel_define(out, "NUMBERS_AT", places[out->bind_count]);
    kernel_bind(out, BIND_NUMBERS);
    for (size_t i = 0; i < COUNT_OF(clips->bounds); i++) kernel_number(out, clips->bounds[i]);
    for (size_t i = 0; i < COUNT_OF(clips->ends) && results; i++)
        kernel_constant(out, i ? "second_end" : "first_end", clips->ends[i]);
}

static inline uint32_t divide_up(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a + b - 1) / b); }

/* The tile, or the part of it that is multiplied. */
static inline weight_tile product_tile(const gpu_matmul_job *job) {
    weight_tile tile = weight_tile_of(job->weights, job->tile);
    if (job->part_rows) tile.rows = job->part_rows;
    return tile;
}

/* Rows of y: a paired gate turns two rows of the weights into one. */
static inline uint32_t product_rows(const gpu_matmul_job *job, const weight_tile *tile) {
    const uint32_t rows = job->used ? job->weights->rows : tile->rows;
    return job->gate == GATE_PAIR ? rows / 2 : rows;
}

/* What every product needs. With experts, `rows` are those of one expert. */
static inline void start_product(gpu_kernel *out, const char *file, const gpu_matmul_job *job,
                                 const weight_tile *tile) {
    *out = (gpu_kernel){ .file = file };
    weight_describe(out, job->weights, tile);
    kernel_define(out, "EXPERTS", kernel_flag(job->used > 0));
    kernel_constant(out, "k", job->weights->k);
    kernel_constant(out, "rows", product_rows(job, tile));
    kernel_constant(out, "first_row", job->used ? 0 : tile->first_row);
    if (job->part_first) kernel_constant(out, "w_first", job->part_first);
    kernel_constant(out, "y_offset", job->y.offset);
    kernel_constant(out, "y_token_stride", job->y.token_stride);
    if (job->used) {
        kernel_constant(out, "first_expert", tile->first_expert);
        kernel_constant(out, "used", job->used);
        kernel_constant(out, "y_row_stride", job->y.row_stride);
    }
    kernel_bind(out, BIND_WEIGHTS);
    kernel_bind(out, job->q8 ? BIND_QUANTISED : BIND_IN + FUSED_A);
    kernel_bind(out, BIND_OUT);
}

static inline void place_columns(gpu_kernel *out, const gpu_matmul_job *job) {
    const uint32_t  row_stride = job->x_slots ? job->x.row_stride : 0;
    const gpu_place x = { job->x.offset, job->x.token_stride, row_stride };
    kernel_define(out, "VEC4", kernel_flag(by_fours(job->weights->k, &x)));
    kernel_constant(out, "x_offset", x.offset);
    kernel_constant(out, "x_token_stride", x.token_stride);
    if (job->used) kernel_constant(out, "x_row_stride", row_stride);
}

#endif
