/* Products with few columns: which kernel, how many threads share a row, how the column is made. */

#include "gpu/product_build.h"

enum { MATVEC_THREADS = 128, PRODUCT_THREADS = 256, MOST_WORKGROUPS = 1024, LEAST_WORKGROUP_BYTES = 16384 };

/* Threads that share a row: so many that about 2^17 threads are busy, as long as each has as much to do as the others; where that
 * leaves most of a GPU idle, more. */
static uint32_t choose_lanes(uint64_t rows, uint32_t chunks, uint32_t rows_together, uint32_t most) {
    const uint64_t wanted = 1 << 17, idle = 1 << 14;
    uint32_t       lanes = 8;
    while (lanes < most && lanes * 2 <= chunks) {
        const uint64_t threads = rows * lanes / rows_together;
        if (threads >= wanted || (chunks % (lanes * 2) && threads >= idle)) break;
        lanes *= 2;
    }
    return lanes;
}

/* Two to four columns. */
static void columns_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job, const weight_tile *tile) {
    start_product(out, "matvec.wgsl", job, tile);
    place_columns(out, job);
    const uint32_t lanes = choose_lanes(tile->rows, job->weights->chunks, 2, MATVEC_THREADS);
    kernel_constant(out, "lanes", lanes);
    kernel_constant(out, "columns", job->tokens);
    kernel_spread(out, info, divide_up(tile->rows, MATVEC_THREADS / lanes * 2));
    out->z = out->y;
    out->y = 1;
}

/* Binds one more and tells the shader its number. */
static void bind_at(gpu_kernel *out, const char *name, const char *define) {
    static const char *const numbers[KERNEL_BINDS] = { "0", "1", "2", "3", "4", "5", "6", "7" };
    kernel_define(out, define, numbers[out->bind_count]);
    kernel_bind(out, name);
}

static void before_and_behind(gpu_kernel *out, const gpu_matmul_job *job) {
    static const char *const gates[] = { [GATE_NONE] = "none", [GATE_PAIR] = "pair", [GATE_VALUE] = "value" };
    kernel_define(out, "RESIDUAL", word(job->residual));
    kernel_define(out, "NORMED", word(job->normed));
    kernel_define(out, "SUM", word(job->sum));
    kernel_define(out, "GATE", gates[job->gate]);
    kernel_define(out, "CAP", word(job->cap > 0));
    kernel_define(out, "WIDE", "0");
    if (job->residual) {
        bind_at(out, "b", "B_AT");
        bind_at(out, "b_weight", "B_WEIGHT_AT");
        kernel_constant(out, "factor", (double)job->factor);
    }
    if (job->normed) {
        bind_at(out, "weight", "WEIGHT_AT");
        kernel_constant(out, "weight_factor", (double)job->weight_factor);
    }
    if (job->residual || job->normed) kernel_constant(out, "eps", (double)job->eps);
    if (job->sum) bind_at(out, "sum", "SUM_AT");
    if (job->gate == GATE_VALUE) {
        bind_at(out, "other", "OTHER_AT");
        kernel_constant(out, "other_offset", job->other_offset);
    }
    if (job->cap > 0) kernel_constant(out, "cap", (double)job->cap);
}

static void route(gpu_kernel *out, const gpu_matmul_job *job, const weight_tile *tile) {
    kernel_constant(out, "experts", tile->experts);
    kernel_constant(out, "routes_offset", job->routes.offset);
    kernel_constant(out, "routes_token_stride", job->routes.token_stride);
    bind_at(out, "run", "RUN_AT");
    bind_at(out, "routes", "ROUTES_AT");
}

/* Chunks of the column that a workgroup keeps at a time: all, or as even parts as fit. */
static uint32_t choose_segment(const gpu_info *info, uint32_t chunks, uint32_t lanes) {
    const uint32_t memory =
        info->max_workgroup_bytes > LEAST_WORKGROUP_BYTES ? info->max_workgroup_bytes : LEAST_WORKGROUP_BYTES;
    const uint32_t most =
        (memory / 2 > LEAST_WORKGROUP_BYTES ? memory / 2 : LEAST_WORKGROUP_BYTES) / 128 - PRODUCT_THREADS * 20 / 128;
    if (chunks <= most) return chunks;
    const uint32_t even = divide_up(chunks, divide_up(chunks, most));
    return even >= lanes && (even + lanes - 1) / lanes * lanes <= most ? (even + lanes - 1) / lanes * lanes : even;
}

/* One column; with experts, one for each pair. */
static void column_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job, const weight_tile *tile) {
    start_product(out, "product.wgsl", job, tile);
    place_columns(out, job);
    before_and_behind(out, job);
    if (job->used) route(out, job, tile);
    const uint32_t rows = product_rows(job, tile), pairs = job->used ? job->tokens * job->used : 1;
    const uint64_t read = (uint64_t)rows * pairs * (job->gate == GATE_PAIR ? 2 : 1); /* rows of the weights */
    const uint32_t together = read < 4096 ? 2 : 4;                                   /* of a thread */
    const uint32_t chunks = job->weights->chunks;
    const uint32_t lanes = choose_lanes(read, chunks, together, PRODUCT_THREADS);
    const uint32_t segment = choose_segment(info, chunks, lanes);
    kernel_define(out, "ROWS", together == 4 ? "4" : "2");
    kernel_define(out, "THREADS", "256");
    kernel_constant(out, "lanes", lanes);
    kernel_constant(out, "segment", segment);
    const uint32_t block = PRODUCT_THREADS / lanes * together / (job->gate == GATE_PAIR ? 2 : 1);
    const uint32_t blocks = divide_up(rows, block);
    /* A column that stays in workgroup memory serves several blocks of rows. */
    kernel_spread(out, info, segment == chunks && blocks > MOST_WORKGROUPS ? MOST_WORKGROUPS : blocks);
    out->z = out->y;
    out->y = pairs;
}

void gpu_matvec_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job, const weight_tile *tile) {
    if (job->tokens == 1 || job->used) column_kernel(out, info, job, tile);
    else columns_kernel(out, info, job, tile);
}
