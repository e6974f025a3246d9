/* Kernels of products with transposed weights: matmul_back.wgsl in f32, or with subgroup matrices matmul_matrix.wgsl on gradients in f16. */

#include "gpu/gradient_kernels.h"

#include "gpu/product_build.h"

static weight_tile back_tile(const gpu_back_job *job, uint32_t number) {
    weight_tile tile = weight_tile_of(job->weights, number);
    if (job->part_rows) tile.rows = job->part_rows;
    return tile;
}

/* ---- by subgroup matrices ---- */

/* The columns of a tile of weights must begin at a chunk of 32 values. */
bool gpu_back_by_matrices(const gpu_info *info, const weight_layout *w, uint32_t columns) {
    return gpu_matmul_by_matrices(info, w->type, columns) && (w->tiles < 2 || w->experts > 1 || w->tile_rows % 32 == 0);
}

/* The rows of a tile of weights as what is multiplied: its rows are the values of the weights' rows. */
static weight_layout back_turned(const weight_layout *w, uint32_t rows) {
    weight_layout turned = *w;
    turned.k = rows;
    turned.chunks = divide_up(rows, 32);
    turned.rows = turned.tile_rows = w->k;
    turned.tiles = 1;
    return turned;
}

static gpu_tile back_matrix_tile(const gpu_info *info, const gpu_back_job *job, const weight_tile *tile) {
    const weight_layout  turned = back_turned(job->weights, job->used ? job->weights->rows : tile->rows);
    const weight_layout  like = back_turned(job->like, job->like->rows);
    const gpu_matmul_job product = { .weights = &turned,
                                     .like = &like,
                                     .tokens = job->tokens,
                                     .used = job->used,
                                     .q8 = true,
                                     .x_slots = job->used > 0,
                                     .split = true };
    return gpu_matmul_tile(info, &product);
}

/* `y`: where the first of the splits goes. */
static void back_matrix_kernel(gpu_kernel *out, const gpu_info *info, const gpu_back_job *job, const weight_tile *tile,
                               gpu_place y, uint64_t split_stride) {
    const weight_layout turned = back_turned(job->weights, job->used ? job->weights->rows : tile->rows);
    const gpu_tile      t = back_matrix_tile(info, job, tile);
    const gpu_groups    groups = { job->weights->experts, job->tokens, job->used, gpu_tile_columns(info, &t) };
    const uint32_t      per = job->used ? job->used : 1;
    *out = (gpu_kernel){ .file = "matmul_matrix.wgsl" };
    weight_describe(out, job->weights, tile);
    gpu_matmul_define_tile(out, info, &t);
    kernel_define(out, "BACK", "1");
    kernel_define(out, "EXPERTS", kernel_flag(job->used > 0));
    kernel_define(out, "OUTPUTS", kernel_flag(job->outputs));
    kernel_constant(out, "k", turned.k);
    kernel_constant(out, "rows", turned.rows);
    if (job->part_first) kernel_constant(out, "w_first", job->part_first);
    kernel_constant(out, "w_chunks", job->weights->chunks);
    const uint32_t column = job->used ? job->weights->rows : job->part_rows ? job->part_rows : job->weights->rows;
    kernel_constant(out, "x_chunks", divide_up(column, 32));
    if (!job->used && tile->first_row) kernel_constant(out, "x_first", tile->first_row / 32);
    kernel_constant(out, "x_token_stride", per);
    kernel_constant(out, "x_scales", gpu_quantised_scales_at(info, column, (uint64_t)job->tokens * per));
    kernel_constant(out, "y_offset", y.offset);
    kernel_constant(out, "y_token_stride", y.token_stride);
    if (split_stride) kernel_constant(out, "y_split_stride", (double)split_stride);
    if (t.splits > 1)
        kernel_constant(out, "split_chunks", (double)round_up(divide_up(turned.chunks, t.splits), t.chunks));
    if (job->used) {
        kernel_constant(out, "used", job->used);
        kernel_constant(out, "x_row_stride", 1);
        kernel_constant(out, "y_row_stride", job->weights->k);
        kernel_constant(out, "all_experts", job->weights->experts);
        kernel_constant(out, "first_expert", tile->first_expert);
        kernel_constant(out, "tile_experts", tile->experts);
        kernel_constant(out, "groups_pairs", job->weights->experts + 1 + gpu_groups_tiles(&groups));
    }
    kernel_bind(out, BIND_WEIGHTS);
    kernel_bind(out, BIND_QUANTISED);
    kernel_bind(out, BIND_OUT);
    kernel_bind(out, job->used ? BIND_GROUPS : BIND_RUN);
    out->x = divide_up(turned.rows, gpu_tile_rows(info, &t));
    out->y = job->used ? gpu_groups_tiles(&groups) : t.splits;
    out->z = job->used ? 1 : divide_up(job->tokens, gpu_tile_columns(info, &t));
}

/* ---- in f32 ---- */

enum { BACK_VALUES = 64, BACK_MOST_SPLITS = 16, BACK_LEAST_ROWS = 256, BACK_WORKGROUPS = 512 };

/* Columns of a thread. */
static uint32_t back_each(const gpu_back_job *job) {
    if (job->used) return job->columns / 16;
    return job->tokens <= 16 ? 1 : job->tokens <= 64 ? 4 : 8;
}

/* Among how many workgroups the rows of a tile are divided. */
static uint32_t back_tile_splits(const gpu_info *info, const gpu_back_job *job, const weight_tile *tile) {
    const uint32_t rows = tile->rows;
    if (job->halves) return back_matrix_tile(info, job, tile).splits;
    const uint64_t groups =
        (uint64_t)divide_up(job->weights->k, BACK_VALUES) * divide_up(job->tokens, 16 * back_each(job));
    const uint64_t wanted = info->software ? 2 : BACK_WORKGROUPS;
    uint32_t       splits = 1;
    while (splits < BACK_MOST_SPLITS && groups * splits < wanted && rows / (2 * splits) >= BACK_LEAST_ROWS) splits *= 2;
    return splits;
}

/* Partial sums of all tiles: every tile has a part of the rows. */
uint32_t gpu_back_splits(const gpu_info *info, const gpu_back_job *job) {
    uint32_t all = 0;
    for (uint32_t i = 0; i < job->weights->tiles && !job->used; i++) {
        const weight_tile tile = back_tile(job, i);
        all += back_tile_splits(info, job, &tile);
    }
    return all;
}

uint64_t gpu_back_partial_bytes(const gpu_info *info, const gpu_back_job *job) {
    const uint64_t splits = gpu_back_splits(info, job);
    return splits > 1 ? splits * job->tokens * job->weights->k * sizeof(float) : 0;
}

uint32_t gpu_back_kernel(gpu_kernel *out, const gpu_info *info, const gpu_back_job *job, uint32_t number,
                         uint32_t before) {
    static const char *const words[] = { "0", "1", "2", "3", "4", "5", "6", "7", "8" };
    const weight_tile        tile = back_tile(job, number);
    const uint32_t           each = back_each(job), k = job->weights->k;
    const bool               partial = gpu_back_splits(info, job) > 1;
    const uint32_t           rows = job->used ? job->weights->rows : tile.rows;
    const uint32_t           splits = job->used ? 1 : back_tile_splits(info, job, &tile);
    const gpu_groups         groups = { job->weights->experts, job->tokens, job->used, 16 * each };
    const gpu_place          y = { partial ? before * job->tokens * k : job->y.offset,
                          partial     ? k
                                   : job->used ? job->used * k
                                               : job->y.token_stride,
                          0 };
    if (job->halves) {
        back_matrix_kernel(out, info, job, &tile, y, partial ? (uint64_t)job->tokens * k : 0);
        if (partial) out->binds[2] = BIND_PARTIAL;
        return splits;
    }
    *out = (gpu_kernel){ .file = "matmul_back.wgsl" };
    weight_describe(out, job->weights, &tile);
    kernel_define(out, "ONLINE", "0");
    kernel_define(out, "EXPERTS", kernel_flag(job->used > 0));
    kernel_define(out, "OUTPUTS", kernel_flag(job->outputs));
    kernel_define(out, "EACH", words[each]);
    kernel_define(out, "FOURS", words[each / 4]);
    kernel_constant(out, "k", k);
    kernel_constant(out, "rows", rows);
    kernel_constant(out, "first_row", job->used ? 0 : tile.first_row);
    if (job->part_first) kernel_constant(out, "w_first", job->part_first);
    kernel_constant(out, "x_offset", job->x.offset);
    kernel_constant(out, "x_token_stride", job->used ? job->weights->rows : job->x.token_stride);
    kernel_constant(out, "y_offset", y.offset);
    kernel_constant(out, "y_token_stride", job->used ? k : y.token_stride);
    if (partial) kernel_constant(out, "y_split_stride", (double)job->tokens * k);
    if (splits > 1) kernel_constant(out, "split_rows", (double)round_up(divide_up(rows, splits), 16));
    if (job->used) {
        kernel_constant(out, "all_experts", job->weights->experts);
        kernel_constant(out, "first_expert", tile.first_expert);
        kernel_constant(out, "tile_experts", tile.experts);
        kernel_constant(out, "groups_pairs", job->weights->experts + 1 + gpu_groups_tiles(&groups));
    }
    kernel_bind(out, BIND_WEIGHTS);
    kernel_bind(out, BIND_IN + 1);
    kernel_bind(out, partial ? BIND_PARTIAL : BIND_OUT);
    kernel_bind(out, job->used ? BIND_GROUPS : BIND_RUN);
    out->x = divide_up(k, BACK_VALUES);
    out->y = job->used ? gpu_groups_tiles(&groups) : splits;
    out->z = job->used ? 1 : divide_up(job->tokens, 16 * each);
    return splits;
}
