#include "gpu/canvas_kernels.h"

#include "gpu/gradient_kernels.h"
#include "gpu/kernel_build.h"
#include "gpu/product_build.h"

/* Scores of 256 positions and 8,192 rows take 8 MiB. In software a chunk is small, so that tiny models have several. */
enum { CHUNK_ROWS = 8192, SOFTWARE_ROWS = 256, STATE_VALUES = 8, SCORE_ROWS = 64, SCORE_COLUMNS = 32 };

static uint32_t canvas_chunk_rows(const gpu_info *info, const gpu_canvas_job *job) {
    const uint32_t most = info->software ? SOFTWARE_ROWS : CHUNK_ROWS;
    return job->weights->rows < most ? (uint32_t)round_up(job->weights->rows, SCORE_ROWS) : most;
}

uint32_t gpu_canvas_chunks(const gpu_info *info, const gpu_canvas_job *job, uint32_t tile) {
    return rounded_up(weight_tile_of(job->weights, tile).rows, canvas_chunk_rows(info, job));
}

uint64_t gpu_canvas_scratch_bytes(const gpu_info *info, const gpu_canvas_job *job) {
    return (uint64_t)job->tokens * (canvas_chunk_rows(info, job) + STATE_VALUES) * sizeof(float);
}

/* Where the chunk is (wgsl/canvas_chunk.wgsl). */
static void canvas_describe(gpu_kernel *k, const gpu_info *info, const gpu_canvas_job *job, uint32_t tile,
                            uint32_t chunk) {
    const weight_tile t = weight_tile_of(job->weights, tile);
    const uint32_t    stride = canvas_chunk_rows(info, job), first = chunk * stride;
    const uint32_t    rows = t.rows - first < stride ? t.rows - first : stride;
    kernel_constant(k, "chunk_stride", stride);
    kernel_constant(k, "state_offset", (double)job->tokens * stride);
    kernel_number(k, (float)first);
    kernel_number(k, (float)rows);
    kernel_number(k, (float)(t.first_row + first));
    kernel_number(k, !t.first_row && !first);
    kernel_number(k, t.first_row + first + rows == job->weights->rows);
}

static gpu_kernel canvas_scores_kernel(const gpu_info *info, const gpu_canvas_job *job, const weight_tile *tile) {
    gpu_kernel k = { .file = "canvas_head.wgsl" };
    weight_describe(&k, job->weights, tile);
    kernel_define(&k, "KIND", "scores");
    kernel_define(&k, "WIDE", "0");
    kernel_constant(&k, "k", job->weights->k);
    kernel_constant(&k, "x_offset", job->x.offset);
    kernel_constant(&k, "x_token_stride", job->x.token_stride);
    kernel_constant(&k, "cap", (double)job->cap);
    kernel_bind(&k, BIND_WEIGHTS);
    kernel_bind(&k, BIND_IN + 1);
    kernel_bind(&k, BIND_PARTIAL);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_NUMBERS);
    kernel_bind(&k, BIND_IN + 2);
    k.x = rounded_up(canvas_chunk_rows(info, job), SCORE_ROWS);
    k.y = 1;
    k.z = rounded_up(job->tokens, SCORE_COLUMNS);
    return k;
}

static gpu_kernel canvas_update_kernel(const gpu_canvas_job *job) {
    gpu_kernel k = { .file = "canvas_head.wgsl", .x = 1, .y = job->tokens, .z = 1 };
    kernel_define(&k, "KIND", "update");
    kernel_bind(&k, BIND_PARTIAL);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_NUMBERS);
    kernel_bind(&k, BIND_IN + 2);
    return k;
}

void gpu_canvas_kernels(gpu_kernel out[CANVAS_KERNELS], const gpu_info *info, const gpu_canvas_job *job, uint32_t tile,
                        uint32_t chunk) {
    const weight_tile t = weight_tile_of(job->weights, tile);
    out[0] = canvas_scores_kernel(info, job, &t);
    out[1] = canvas_update_kernel(job);
    out[2] = gpu_back_online_kernel(job->weights, &t, job->tokens, canvas_chunk_rows(info, job), job->soft);
    kernel_constant(&out[2], "factor", (double)job->factor);
    for (size_t i = 0; i < CANVAS_KERNELS; i++) canvas_describe(&out[i], info, job, tile, chunk);
}
