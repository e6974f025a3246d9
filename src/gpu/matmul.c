/* Chooses a product's kernel, its division into workgroups, and its constants. */

#include "gpu/matmul.h"

#include "gpu/kernels.h"
#include "gpu/product_build.h"

static bool by_matrices(const gpu_info *info, quant_type type) { return info->subgroup_matrix && type != TYPE_F32; }

/* Matrices take about as long for one column as for 16. */
bool gpu_few_columns(const gpu_info *info, uint32_t columns) {
    return !info->exact && columns <= (info->subgroup_matrix ? 8 : 32);
}

bool gpu_matmul_by_matrices(const gpu_info *info, quant_type type, uint32_t columns) {
    return by_matrices(info, type) && !gpu_few_columns(info, columns);
}

bool gpu_matmul_takes_q8(const gpu_info *info, quant_type type, uint32_t columns) {
    const bool bytes = columns > 1 && gpu_matvec_takes_q8(info, type);
    return info->subgroup_matrix && !gpu_few_columns(info, columns) ? gpu_matmul_by_matrices(info, type, columns)
                                                                    : bytes;
}

/* Sized for f16, which takes more room than 8 bits with scales. */
uint64_t gpu_quantised_bytes(uint32_t k, uint64_t rows) { return rows * (round_up(k, 32) * 2 + 16); }

double gpu_quantised_scales_at(const gpu_info *info, uint32_t k, uint64_t rows) {
    return (double)(info->subgroup_matrix ? rows * (round_up(k, 32) / 8) : rows * k / 16);
}

/* ---- many columns ---- */

static const char *number(uint32_t n) {
    static const char *const words[] = { "0", "1", "2", "3", "4", "5", "6", "7", "8" };
    return n < COUNT_OF(words) ? words[n] : n == 16 ? "16" : n == 32 ? "32" : n == 64 ? "64" : "128";
}

uint32_t gpu_tile_rows(const gpu_info *info, const gpu_tile *t) {
    return t->rows * t->row_threads * (t->matrix ? info->matrix_rows : 1);
}

uint32_t gpu_tile_columns(const gpu_info *info, const gpu_tile *t) {
    return t->columns * t->column_threads * (t->matrix ? info->matrix_columns : 1);
}

/* Matrices take about as long for 16 columns as for 32, because they wait for the weights' unpacking; threads do not. */
uint32_t gpu_expert_columns(const gpu_info *info, uint32_t tokens, uint32_t used, uint32_t experts) {
    const uint64_t pairs = (uint64_t)tokens * used, each = pairs / (experts ? experts : 1);
    if (!info->blocks) return each <= 8 || tokens <= 16 ? 16 : 32;
    if (info->subgroup_matrix) return each <= 8 ? 16 : each <= 40 ? 32 : 64;
    return each <= 24 ? 16 : each <= 48 ? 32 : 64;
}

/* How many columns a tile should have. */
static uint32_t wanted_columns(const gpu_info *info, const gpu_matmul_job *job) {
    if (job->used) return gpu_expert_columns(info, job->tokens, job->used, job->like->experts);
    return job->tokens <= 32 ? 16 : 64;
}

static uint64_t tile_count(const gpu_info *info, const gpu_matmul_job *job, const weight_layout *weights,
                           const gpu_tile *t) {
    const weight_tile tile = weight_tile_of(weights, job->tile);
    return (uint64_t)divide_up(tile.rows, gpu_tile_rows(info, t)) * divide_up(job->tokens, gpu_tile_columns(info, t));
}

/* For matrices with many columns: how many workgroups keep a large GPU busy, measured with 132 multiprocessors. */
#define ENOUGH_WORKGROUPS 96

/* Plain products of a whole batch. */
static bool many_columns(const gpu_matmul_job *job) { return job->tokens > 64 && !job->used; }

/* A tower's product that has few tiles, all of them small, and much to add for each: a sound's 4096 → 1024. Its tiles wait for memory
 * longer than they compute, so that more of them should run at once. Prompts (up to 256 tokens, or like 256) never have such ones. */
static bool deep_and_small(const gpu_info *info, const gpu_matmul_job *job, const gpu_tile *t) {
    enum { SMALL_TILE = 64, DEEP_CHUNKS = 64 };
    return info->deep_splits && job->tokens > 256 && gpu_tile_rows(info, t) <= SMALL_TILE &&
           job->weights->chunks >= DEEP_CHUNKS;
}

/* matmul_blocks.wgsl: large blocks, for many columns. */
static bool takes_blocks(const gpu_info *info, const gpu_matmul_job *job) {
    return info->blocks && !job->q8 && !job->used;
}

static bool of_halves(const gpu_matmul_job *job) {
    return job->weights->type == TYPE_F16 || job->weights->type == TYPE_BF16;
}

/* Whether matmul_blocks.wgsl should have two steps of 4 quads, and has room for them. That helps if weights have to be unpacked. */
static bool blocks_double(const gpu_info *info, const gpu_matmul_job *job, const gpu_tile *t) {
    const uint64_t step = (uint64_t)16 * 4 * (gpu_tile_rows(info, t) + 1 + gpu_tile_columns(info, t) + 1);
    return info->double_buffers && !of_halves(job) && job->weights->type != TYPE_F32 &&
           2 * step <= info->max_workgroup_bytes;
}

/* How long matmul_blocks.wgsl takes for a step along k on a GPU with 132 multiprocessors, in units of 10 ns: a multiprocessor runs up to
 * three workgroups at once. */
static uint64_t blocks_time(uint64_t groups) {
    static const uint64_t times[] = { 0, 13, 13, 19 }; /* for none to three of them */
    const uint64_t        wave = 3 * 132;
    return groups / wave * times[3] + times[divide_up(groups % wave, 132)];
}

#define MOST_PARTIAL (16 << 20) /* numbers in BIND_PARTIAL: 64 MiB */

/* The number of parts of k with which the product takes least. Parts must not become too short, and adding them takes time, too. */
static uint32_t blocks_splits(const gpu_info *info, const gpu_matmul_job *job, const gpu_tile *t) {
    const weight_layout *weights = job->weights;
    const uint64_t       groups = tile_count(info, job, weights, t), results = (uint64_t)job->tokens * weights->rows;
    uint64_t             least = 0;
    uint32_t             best = 1;
    for (uint32_t splits = 1; splits <= 8; splits++) {
        if (splits > 1 && (weights->chunks / splits < 8 || splits * results > MOST_PARTIAL)) break;
        const uint64_t adding = splits > 1 ? 24 + splits * (results >> 17) : 0;
        const uint64_t time = blocks_time(groups * splits) * divide_up(weights->chunks, splits) + adding;
        if (splits == 1 || time < least) least = time, best = splits;
    }
    return best;
}

static bool is_blocks(const gpu_matmul_job *job, const gpu_tile *t) {
    return t->columns == 8 && !t->matrix && !job->q8;
}

/* Splits k until the GPU has enough workgroups, as long as no split becomes too short. */
static uint32_t choose_splits(const gpu_info *info, const gpu_matmul_job *job, const gpu_tile *t) {
    const bool     few = t->matrix && many_columns(job) && !deep_and_small(info, job, t);
    const uint64_t wanted = few ? ENOUGH_WORKGROUPS : 384, least_chunks = 8;
    const uint64_t groups = tile_count(info, job, job->weights, t);
    uint32_t       splits = 1;
    if (!job->split || job->used || info->exact) return 1;
    if (is_blocks(job, t)) return blocks_splits(info, job, t);
    while (splits < 8 && groups * splits < wanted && job->weights->chunks / (2 * splits) >= least_chunks) splits *= 2;
    return splits;
}

static gpu_tile thread_tile(const gpu_info *info, const gpu_matmul_job *job, uint32_t columns) {
    if (columns == 64 && takes_blocks(info, job))
        return (gpu_tile){ .rows = 8, .columns = 8, .row_threads = 16, .column_threads = 8, .chunks = 1 };
    /* Rows per thread. An expert's few columns are done by few threads with many rows each, so that they read less from
     * workgroup memory; many such workgroups fill the GPU. A GPU in software would compile so many rows for seconds. */
    const bool     few_threads = !info->software && (columns == 64 || (job->used && info->blocks));
    const uint32_t rows = few_threads ? (job->q8 ? 8 : 4) : columns / 16;
    return (gpu_tile){
        .rows = rows, .columns = 4, .row_threads = 64 / rows, .column_threads = columns / 4, .chunks = job->q8 ? 2 : 1
    };
}

/* What matmul_matrix.wgsl keeps in workgroup memory: 64 bytes per 32 values, and 16 bytes of padding per row and
 * column. */
static bool tile_fits(const gpu_info *info, const gpu_tile *t) {
    return (gpu_tile_rows(info, t) + gpu_tile_columns(info, t)) * (64 * t->chunks + 16) <= info->max_workgroup_bytes;
}

/* A large tile loads and unpacks less per result, but a small product would have too few large tiles. A longer step has
 * fewer barriers, but takes more memory; with many workgroups, others run during a barrier, so the memory matters
 * more. */
static gpu_tile matrix_tile(const gpu_info *info, const gpu_matmul_job *job, uint32_t columns) {
    const uint64_t large_weights = 8 << 20;
    gpu_tile       large = { true, 4, 4, 2, 2, 1, 1 };
    gpu_tile       small = { .matrix = true,
                             .rows = 32 / info->matrix_rows,
                             .columns = (columns == 64 ? 32 : 16) / info->matrix_columns,
                             .row_threads = 2,
                             .column_threads = columns == 16 ? 1 : 2,
                             .chunks = 1 };
    if (!many_columns(job)) return small;
    /* a picture has thousands of columns: enough large tiles also for small weights */
    const bool fills = job->tokens > 256 && tile_count(info, job, job->like, &large) >= 2 * ENOUGH_WORKGROUPS;
    const bool is_large =
        ((uint64_t)job->like->rows * job->like->k >= large_weights || fills) && tile_fits(info, &large);
    gpu_tile *t = is_large ? &large : &small;
    t->chunks = is_large && tile_count(info, job, job->like, t) > ENOUGH_WORKGROUPS ? 1 : 2;
    if (!tile_fits(info, t)) t->chunks = 1;
    return *t;
}

gpu_tile gpu_matmul_tile(const gpu_info *info, const gpu_matmul_job *given) {
    gpu_matmul_job cut = *given, *job = &cut;
    if (given->alike) cut.tokens = given->alike;
    const bool     matrix = job->q8 && by_matrices(info, job->weights->type);
    const uint32_t columns = wanted_columns(info, job);
    gpu_tile       t = matrix ? matrix_tile(info, job, columns) : thread_tile(info, job, columns);
    t.splits = choose_splits(info, job, &t);
    return t;
}

uint64_t gpu_matmul_partial_bytes(const gpu_info *info, const gpu_matmul_job *job) {
    if (gpu_few_columns(info, job->tokens)) return 0;
    const uint64_t splits = gpu_matmul_tile(info, job).splits;
    return splits > 1 ? splits * job->tokens * product_tile(job).rows * sizeof(float) : 0;
}

void gpu_define_matrices(gpu_kernel *out, const gpu_info *info) {
    kernel_define(out, "SUBGROUP", number(info->subgroup_max));
    kernel_define(out, "MATRIX_ROWS", number(info->matrix_rows));
    kernel_define(out, "MATRIX_COLUMNS", number(info->matrix_columns));
    kernel_define(out, "MATRIX_DEPTH", number(info->matrix_depth));
}

void gpu_matmul_define_tile(gpu_kernel *out, const gpu_info *info, const gpu_tile *t) {
    kernel_define(out, t->matrix ? "BLOCK_ROWS" : "ROWS", number(t->rows));
    kernel_define(out, t->matrix ? "BLOCK_COLUMNS" : "COLUMNS", number(t->columns));
    kernel_define(out, t->matrix ? "SUBGROUP_ROWS" : "ROW_THREADS", number(t->row_threads));
    kernel_define(out, t->matrix ? "SUBGROUP_COLUMNS" : "COLUMN_THREADS", number(t->column_threads));
    kernel_define(out, "CHUNKS", number(t->chunks));
    if (t->matrix) gpu_define_matrices(out, info);
}

void gpu_matmul_sum_kernel(gpu_kernel *out, const gpu_sum_job *job) {
    *out = (gpu_kernel){ .file = "matmul_sum.wgsl", .x = divide_up(job->rows, 256), .y = job->tokens, .z = 1 };
    kernel_define(out, "OUTPUTS", kernel_flag(job->outputs));
    kernel_constant(out, "rows", job->rows);
    kernel_constant(out, "splits", job->splits);
    kernel_constant(out, "first_row", job->first_row);
    kernel_constant(out, "y_offset", job->y.offset);
    kernel_constant(out, "y_token_stride", job->y.token_stride);
    kernel_bind(out, BIND_PARTIAL);
    kernel_bind(out, BIND_OUT);
    kernel_bind(out, BIND_RUN);
}

size_t gpu_matmul_tile_kernels(gpu_kernel out[2], const gpu_info *info, const gpu_matmul_job *job, const gpu_tile *t) {
    const weight_tile tile = product_tile(job);
    gpu_matmul_job    part = *job;
    weight_tile       part_tile = tile;
    const gpu_groups  groups = { job->weights->experts, job->tokens, job->used, gpu_tile_columns(info, t) };
    if (t->splits > 1) { /* partial sums are contiguous */
        part.y = (gpu_place){ 0, tile.rows, 0 };
        part_tile.first_row = 0;
    }
    const char *file = t->matrix           ? "matmul_matrix.wgsl"
                       : job->q8           ? "matmul_q8.wgsl"
                       : is_blocks(job, t) ? "matmul_blocks.wgsl"
                                           : "matmul.wgsl";
    start_product(&out[0], file, &part, &part_tile);
    gpu_matmul_define_tile(&out[0], info, t);
    if (is_blocks(job, t)) kernel_define(&out[0], "DOUBLE", kernel_flag(blocks_double(info, job, t)));
    kernel_define(&out[0], "OUTPUTS", kernel_flag(job->outputs));
    if (job->q8) {
        const uint64_t rows = (uint64_t)job->tokens * (job->x_slots ? job->used : 1);
        kernel_constant(&out[0], "x_token_stride", job->x_slots ? job->used : 1);
        if (job->used) kernel_constant(&out[0], "x_row_stride", job->x_slots);
        kernel_constant(&out[0], "x_scales", gpu_quantised_scales_at(info, job->weights->k, rows));
    } else place_columns(&out[0], job);
    if (job->used) {
        kernel_constant(&out[0], "all_experts", job->weights->experts);
        kernel_constant(&out[0], "groups_offset", job->routes.offset);
        kernel_constant(&out[0], "tile_experts", tile.experts);
        kernel_constant(&out[0], "groups_pairs", job->weights->experts + 1 + gpu_groups_tiles(&groups));
    }
    kernel_bind(&out[0], job->used ? BIND_GROUPS : BIND_RUN);
    clip_kernel(&out[0], &job->clips, job->clips.in && !job->q8, job->clips.out && t->splits == 1);
    out[0].x = divide_up(job->used ? job->weights->rows : tile.rows, gpu_tile_rows(info, t));
    out[0].y = job->used ? gpu_groups_tiles(&groups) : t->splits;
    out[0].z = job->used ? 1 : divide_up(job->tokens, gpu_tile_columns(info, t));
    if (t->splits < 2) return 1;
    const uint32_t chunks = divide_up(job->weights->chunks, t->splits);
    kernel_constant(&out[0], "split_chunks", (double)round_up(chunks, t->chunks));
    kernel_constant(&out[0], "y_split_stride", (double)job->tokens * tile.rows);
    out[0].binds[2] = BIND_PARTIAL;
    gpu_matmul_sum_kernel(&out[1], &(gpu_sum_job){ .rows = tile.rows,
                                                   .first_row = tile.first_row,
                                                   .splits = t->splits,
                                                   .tokens = job->tokens,
                                                   .outputs = job->outputs,
                                                   .y = job->y });
    clip_kernel(&out[1], &job->clips, false, job->clips.out);
    return 2;
}

size_t gpu_matmul_kernels(gpu_kernel out[2], const gpu_info *info, const gpu_matmul_job *job) {
    if (gpu_few_columns(info, job->tokens)) {
        const weight_tile tile = product_tile(job);
        gpu_matvec_kernel(&out[0], info, job, &tile);
        return 1;
    }
    const gpu_tile t = gpu_matmul_tile(info, job);
    return gpu_matmul_tile_kernels(out, info, job, &t);
}

/* ---- embeddings, 8 bits ---- */

void gpu_embed_kernel(gpu_kernel *out, const gpu_info *info, const gpu_embed_job *job) {
    const weight_tile tile = weight_tile_of(job->table, job->tile);
    (void)info;
    *out = (gpu_kernel){ .file = "embed.wgsl" };
    weight_describe(out, job->table, &tile);
    kernel_define(out, "GIVEN", kernel_flag(job->given));
    kernel_define(out, "BY", job->by_value ? "value" : job->by_position ? "position" : "id");
    kernel_constant(out, "k", job->table->k);
    kernel_constant(out, "rows", tile.rows);
    kernel_constant(out, "first_row", tile.first_row);
    kernel_constant(out, "factor", job->factor);
    kernel_constant(out, "y_offset", job->y.offset);
    kernel_constant(out, "y_token_stride", job->y.token_stride);
    kernel_bind(out, BIND_WEIGHTS);
    kernel_bind(out, BIND_OUT);
    kernel_bind(out, BIND_RUN);
    if (job->by_value) kernel_bind(out, BIND_IN + 1);
    out->x = divide_up(job->table->chunks * 4, 64);
    out->y = job->tokens;
    out->z = 1;
}

void gpu_quantise_kernel(gpu_kernel *out, const gpu_info *info, const gpu_quantise_job *job) {
    const bool halves = info->subgroup_matrix && !gpu_few_columns(info, job->tokens);
    *out = (gpu_kernel){ .file = halves ? "halve.wgsl" : "quantise.wgsl" };
    kernel_define(out, "VEC4", kernel_flag(by_fours(job->k, &job->x)));
    kernel_define(out, "OUTPUTS", kernel_flag(job->outputs));
    kernel_define(out, "FACTORED", kernel_flag(job->factored));
    kernel_constant(out, "k", job->k);
    kernel_constant(out, "per", job->rows);
    kernel_constant(out, "x_offset", job->x.offset);
    kernel_constant(out, "x_token_stride", job->x.token_stride);
    kernel_constant(out, "x_row_stride", job->x.row_stride);
    kernel_bind(out, BIND_IN + (int)job->input);
    kernel_bind(out, BIND_QUANTISED);
    kernel_bind(out, BIND_RUN);
    clip_kernel(out, &job->clips, job->clips.in, false);
    if (halves) {
        out->x = 1;
        out->y = job->tokens * job->rows;
        out->z = 1;
    } else {
        kernel_constant(out, "out_scales", (double)job->tokens * job->rows * job->k / 16);
        kernel_constant(out, "all_rows", (double)job->tokens * job->rows);
        kernel_spread(out, info, divide_up(job->tokens * job->rows * (job->k / 32), 32));
    }
}
