/* Kernels of CANVAS_HEAD: some for each chunk of the table's rows, and one at the end; and that of CANVAS_NEXT. */

#ifndef GM_GPU_CANVAS_KERNELS_H
#define GM_GPU_CANVAS_KERNELS_H

#include "gpu/matmul.h"

typedef struct {
    const weight_layout *weights;
    const weight_layout *like; /* as in gpu_matmul_job */
    uint32_t             tokens;
    uint32_t  alike; /* decides chunks, tiles and splits: a canvas adds in the same order alone and beside others */
    bool      q8;    /* the quantise kernel has converted x */
    float     cap, factor;
    gpu_place x, soft;
} gpu_canvas_job;

enum { CANVAS_KERNELS = 3 };

/* A tile of the weights has so many chunks. */
uint32_t gpu_canvas_chunks(const gpu_info *info, const gpu_canvas_job *job, uint32_t tile);
/* Of BIND_PARTIAL: a chunk's scores, and the columns' state and sums. */
uint64_t gpu_canvas_scratch_bytes(const gpu_info *info, const gpu_canvas_job *job);
/* The same for a table of so many rows of k values, on any GPU: at most this. */
uint64_t gpu_canvas_most_bytes(uint64_t k, uint64_t rows, uint64_t tokens);
/* The kernels of a chunk of a tile. */
void gpu_canvas_kernels(gpu_kernel out[CANVAS_KERNELS], const gpu_info *info, const gpu_canvas_job *job, uint32_t tile,
                        uint32_t chunk);
/* Comes after all chunks. */
gpu_kernel gpu_canvas_finish_kernel(const gpu_info *info, const gpu_canvas_job *job);

gpu_kernel gpu_canvas_next_kernel(const canvas_rule *rule);

#endif
