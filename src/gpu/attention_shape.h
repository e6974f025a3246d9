/* How the kernels of attention by subgroup matrices (attention_matrix.wgsl, attention_back_matrix.wgsl) divide a workgroup. */

#ifndef GM_GPU_ATTENTION_SHAPE_H
#define GM_GPU_ATTENTION_SHAPE_H

#include "gpu/kernel.h"

enum { ATTENTION_SHAPE_THREADS = 256, ATTENTION_SHAPE_OTHERS = 64 };

/* A workgroup has so many rows of results, of one head each, and goes through others, ATTENTION_SHAPE_OTHERS at a time: in attention, rows
 * are queries and the others keys. */
typedef struct {
    uint32_t rows, score_blocks, row_blocks, column_blocks, column_groups;
    uint32_t chunk, value_rows; /* what goes through workgroup memory in one step: eights of the head, and others */
    uint64_t bytes;             /* of workgroup memory */
} attention_shape;

/* Whether such kernels may run on the GPU: it has matrices that they can use, square ones, and subgroups whose threads fill a workgroup. */
bool attention_shape_possible(const gpu_info *info, uint32_t head);

/* `beside`: bytes of workgroup memory besides what the shape takes. The caller checks whether all of it fits. */
attention_shape attention_shape_of(const gpu_info *info, uint32_t head, uint32_t rows, uint64_t beside);

/* Everything but QUERIES. */
void attention_shape_define(gpu_kernel *k, const gpu_info *info, const attention_shape *s);

/* The value of a define: up to 16, or 32, 64, 128. */
const char *attention_word(uint32_t n);

#endif
