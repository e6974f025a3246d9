#include "gpu/canvas_kernels.h"

#include "gpu/gradient_kernels.h"
#include "gpu/kernel_build.h"
#include "gpu/product_build.h"

/* Scores of a chunk take up to 16 MiB: 16,384 rows of 256 positions. In software a chunk is small, so that tiny models have several. */
enum { CHUNK_SCORES = 1 << 22, LEAST_ROWS = 1024, SOFTWARE_ROWS = 256, ROW_UNIT = 64, STATE_VALUES = 8 };
/* Splits of the rows: so many workgroups keep a large GPU busy. */
enum { SOFT_WORKGROUPS = 352, SOFT_SPLITS = 16, SOFT_LEAST_ROWS = 256, SOFT_MATRICES = 8, BACK_VALUES = 64 };

static uint32_t canvas_rows(uint64_t tokens, uint64_t rows, bool software) {
    uint64_t most = round_up(CHUNK_SCORES / tokens, ROW_UNIT);
    if (most < LEAST_ROWS) most = LEAST_ROWS;
    if (software) most = SOFTWARE_ROWS;
    return (uint32_t)(rows < most ? round_up(rows, ROW_UNIT) : most);
}

static uint32_t canvas_chunk_rows(const gpu_info *info, const gpu_canvas_job *job) {
    if (info->exact) return CANVAS_CHUNK;
    return canvas_rows(job->alike, job->weights->rows, info->software);
}

uint32_t gpu_canvas_chunks(const gpu_info *info, const gpu_canvas_job *job, uint32_t tile) {
    return rounded_up(weight_tile_of(job->weights, tile).rows, canvas_chunk_rows(info, job));
}

/* Whether matrices compute the expected embedding (canvas_soft.wgsl): if they compute the scores, and their tile fits. */
static bool canvas_by_matrices(const gpu_info *info, const gpu_canvas_job *job) {
    enum { STEP = 32, EIGHT = 16 }; /* rows of a step; bytes of eight f16 */
    if (!job->q8 || !info->subgroup_matrix) return false;
    const uint32_t columns = SOFT_MATRICES * info->matrix_rows, values = SOFT_MATRICES * info->matrix_columns;
    return EIGHT * (columns * (STEP / 8 + 1) + STEP * (values / 8 + 1)) <= info->max_workgroup_bytes;
}

/* Columns of a thread of matmul_back.wgsl. */
static uint32_t canvas_each(const gpu_canvas_job *job) { return job->alike > 64 ? 8 : 4; }

/* Workgroups that compute the expected embedding: of values and of columns, each of which is divided into splits of the chunk's rows. */
typedef struct {
    uint32_t values, columns, splits;
} canvas_groups;

static uint32_t canvas_splits(uint64_t groups, uint32_t rows, uint32_t most, uint32_t least) {
    uint32_t splits = 1;
    while (splits < most && groups * splits < SOFT_WORKGROUPS && rows / (2 * splits) >= least) splits *= 2;
    return splits;
}

static canvas_groups canvas_groups_of(const gpu_info *info, const gpu_canvas_job *job) {
    const bool     matrices = canvas_by_matrices(info, job);
    const uint32_t values = matrices ? SOFT_MATRICES * info->matrix_columns : BACK_VALUES;
    const uint32_t columns = matrices ? SOFT_MATRICES * info->matrix_rows : 16 * canvas_each(job);
    const uint64_t alike = (uint64_t)divide_up(job->weights->k, values) * divide_up(job->alike, columns);
    return (canvas_groups){ divide_up(job->weights->k, values), divide_up(job->tokens, columns),
                            info->exact
                                ? 1
                                : canvas_splits(alike, canvas_chunk_rows(info, job), info->software ? 2 : SOFT_SPLITS,
                                                info->software ? ROW_UNIT : SOFT_LEAST_ROWS) };
}

/* Places in the scratch memory, in values (wgsl/canvas_chunk.wgsl). */
typedef struct {
    uint64_t stride, state, weights, sums, sums_stride, sums_split, end;
} canvas_places;

static canvas_places canvas_places_of(const gpu_info *info, const gpu_canvas_job *job) {
    canvas_places p = { .stride = canvas_chunk_rows(info, job), .sums_stride = round_up(job->weights->k, 32) };
    p.state = job->tokens * p.stride;
    p.weights = p.state + (uint64_t)job->tokens * STATE_VALUES;
    p.sums = p.weights + (canvas_by_matrices(info, job) ? job->tokens * p.stride / 2 : 0);
    p.sums_split = job->tokens * p.sums_stride;
    p.end = p.sums + canvas_groups_of(info, job).splits * p.sums_split;
    return p;
}

uint64_t gpu_canvas_scratch_bytes(const gpu_info *info, const gpu_canvas_job *job) {
    return canvas_places_of(info, job).end * sizeof(float);
}

uint64_t gpu_canvas_most_bytes(uint64_t k, uint64_t rows, uint64_t tokens) {
    enum { LARGEST_TILE = 128 };
    const uint32_t chunk = canvas_rows(tokens, rows, false);
    const uint64_t groups = (uint64_t)rounded_up(k, LARGEST_TILE) * rounded_up(tokens, LARGEST_TILE);
    const uint64_t sums = canvas_splits(groups, chunk, SOFT_SPLITS, SOFT_LEAST_ROWS) * round_up(k, 32);
    return tokens * (chunk + chunk / 2 + STATE_VALUES + sums) * sizeof(float);
}

static void canvas_place(gpu_kernel *k, const gpu_info *info, const gpu_canvas_job *job) {
    const canvas_places p = canvas_places_of(info, job);
    kernel_constant(k, "chunk_stride", (double)p.stride);
    kernel_constant(k, "state_offset", (double)p.state);
    kernel_constant(k, "weights_offset", (double)p.weights);
    kernel_constant(k, "sums_offset", (double)p.sums);
    kernel_constant(k, "sums_stride", (double)p.sums_stride);
    kernel_constant(k, "sums_split", (double)p.sums_split);
}

/* Where the chunk is. */
static void canvas_describe(gpu_kernel *k, const gpu_info *info, const gpu_canvas_job *job, uint32_t tile,
                            uint32_t chunk) {
    const weight_tile t = weight_tile_of(job->weights, tile);
    const uint32_t    stride = canvas_chunk_rows(info, job), first = chunk * stride;
    const uint32_t    rows = t.rows - first < stride ? t.rows - first : stride;
    canvas_place(k, info, job);
    kernel_number(k, (float)first);
    kernel_number(k, (float)rows);
    kernel_number(k, (float)(t.first_row + first));
    kernel_number(k, !t.first_row && !first);
    kernel_number(k, t.first_row + first + rows == job->weights->rows);
}

/* W·x, by a kernel for products. Canvases have many columns; a few are computed in the same way. */
static gpu_kernel canvas_scores_kernel(const gpu_info *info, const gpu_canvas_job *job, uint32_t tile) {
    const uint32_t       stride = canvas_chunk_rows(info, job);
    const gpu_matmul_job product = { .weights = job->weights,
                                     .like = job->like,
                                     .tile = tile,
                                     .tokens = job->tokens,
                                     .alike = job->alike,
                                     .q8 = job->q8,
                                     .x = job->q8 ? (gpu_place){ 0 } : job->x,
                                     .y = { 0, stride, 0 } };
    const gpu_tile       t = gpu_matmul_tile(info, &product);
    gpu_kernel           k[2];
    gpu_matmul_tile_kernels(k, info, &product, &t);
    kernel_define(&k[0], "CHUNKED", "1");
    if (!job->q8) k[0].binds[1] = BIND_IN + 1;
    k[0].binds[2] = BIND_PARTIAL;
    kernel_bind(&k[0], BIND_NUMBERS);
    k[0].x = divide_up(stride, gpu_tile_rows(info, &t));
    return k[0];
}

static gpu_kernel canvas_update_kernel(const gpu_info *info, const gpu_canvas_job *job) {
    gpu_kernel k = { .file = "canvas_head.wgsl", .x = 1, .y = job->tokens, .z = 1 };
    kernel_define(&k, "KIND", "update");
    kernel_define(&k, "WIDE", "0");
    kernel_define(&k, "HALVES", kernel_flag(canvas_by_matrices(info, job)));
    kernel_constant(&k, "cap", (double)job->cap);
    kernel_constant(&k, "inverse_cap", job->cap > 0 ? (double)(1 / job->cap) : 0);
    kernel_bind(&k, BIND_PARTIAL);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_NUMBERS);
    kernel_bind(&k, BIND_IN + 2);
    return k;
}

static gpu_kernel canvas_matrix_kernel(const gpu_info *info, const gpu_canvas_job *job, const weight_tile *tile) {
    gpu_kernel k = { .file = "canvas_soft.wgsl" };
    weight_describe(&k, job->weights, tile);
    gpu_define_matrices(&k, info);
    kernel_bind(&k, BIND_WEIGHTS);
    kernel_bind(&k, BIND_PARTIAL);
    kernel_bind(&k, BIND_RUN);
    kernel_bind(&k, BIND_NUMBERS);
    return k;
}

/* With 16 · each columns of a workgroup. */
static gpu_kernel canvas_online_kernel(const weight_layout *weights, const weight_tile *tile, uint32_t each) {
    gpu_kernel k = { .file = "matmul_back.wgsl" };
    weight_describe(&k, weights, tile);
    kernel_define(&k, "ONLINE", "1");
    kernel_define(&k, "EXPERTS", "0");
    kernel_define(&k, "OUTPUTS", "0");
    kernel_define(&k, "EACH", each == 8 ? "8" : "4");
    kernel_define(&k, "FOURS", each == 8 ? "2" : "1");
    kernel_bind(&k, BIND_WEIGHTS);
    kernel_bind(&k, BIND_PARTIAL);
    kernel_bind(&k, BIND_NUMBERS);
    kernel_bind(&k, BIND_RUN);
    return k;
}

static gpu_kernel canvas_soft_kernel(const gpu_info *info, const gpu_canvas_job *job, const weight_tile *tile) {
    const canvas_groups g = canvas_groups_of(info, job);
    gpu_kernel          k = canvas_by_matrices(info, job) ? canvas_matrix_kernel(info, job, tile)
                                                          : canvas_online_kernel(job->weights, tile, canvas_each(job));
    kernel_constant(&k, "k", job->weights->k);
    kernel_constant(&k, "split_rows", (double)round_up(divide_up(canvas_chunk_rows(info, job), g.splits), 32));
    k.x = g.values;
    k.y = g.splits;
    k.z = g.columns;
    return k;
}

void gpu_canvas_kernels(gpu_kernel out[CANVAS_KERNELS], const gpu_info *info, const gpu_canvas_job *job, uint32_t tile,
                        uint32_t chunk) {
    const weight_tile t = weight_tile_of(job->weights, tile);
    out[0] = canvas_scores_kernel(info, job, tile);
    out[1] = canvas_update_kernel(info, job);
    out[2] = canvas_soft_kernel(info, job, &t);
    for (size_t i = 0; i < CANVAS_KERNELS; i++) canvas_describe(&out[i], info, job, tile, chunk);
}

gpu_kernel gpu_canvas_finish_kernel(const gpu_info *info, const gpu_canvas_job *job) {
    gpu_kernel k = { .file = "canvas_head.wgsl", .x = divide_up(job->weights->k, 256), .y = job->tokens, .z = 1 };
    kernel_define(&k, "KIND", "finish");
    canvas_place(&k, info, job);
    kernel_constant(&k, "k", job->weights->k);
    kernel_constant(&k, "splits", canvas_groups_of(info, job).splits);
    kernel_constant(&k, "factor", (double)job->factor);
    kernel_constant(&k, "soft_offset", job->soft.offset);
    kernel_constant(&k, "soft_token_stride", job->soft.token_stride);
    kernel_bind(&k, BIND_PARTIAL);
    kernel_bind(&k, BIND_IN + 3);
    kernel_bind(&k, BIND_RUN);
    return k;
}

gpu_kernel gpu_canvas_next_kernel(const canvas_rule *rule) {
    gpu_kernel k = { .file = "canvas_next.wgsl", .x = 1, .y = 1, .z = 1 };
    kernel_constant(&k, "units", rule->units);
    kernel_constant(&k, "bound", rule->bound);
    kernel_constant(&k, "stability", rule->stability);
    kernel_constant(&k, "confidence", rule->confidence);
    kernel_constant(&k, "vocabulary", rule->vocabulary);
    for (int i = 0; i < 3; i++) kernel_bind(&k, BIND_IN + i);
    kernel_bind(&k, BIND_OUT);
    kernel_bind(&k, BIND_RUN);
    return k;
}
