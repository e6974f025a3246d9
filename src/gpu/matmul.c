/* Which kernel a product gets, how it is cut into workgroups, and its constants. */

#include "gpu/matmul.h"

#include "gpu/kernel_build.h"

enum { MATVEC_COLUMNS = 4, MATVEC_THREADS = 128, MATMUL_THREADS = 256 };

bool gpu_matmul_takes_q8(const gpu_info *info, quant_type type, uint32_t tokens) {
    return info->dot4 && tokens > MATVEC_COLUMNS && type != TYPE_F32 && type != TYPE_F16 && type != TYPE_BF16;
}

bool gpu_matmul_takes_groups(uint32_t tokens) { return tokens > MATVEC_COLUMNS; }

uint64_t gpu_quantised_bytes(uint32_t k, uint64_t rows) { return rows * k + rows * (k / 32) * 16; }

static const char *word(bool on) { return on ? "1" : "0"; }

/* Columns can be read four values at a time. */
static bool by_fours(uint32_t k, const gpu_place *x) {
    return k % 4 == 0 && x->offset % 4 == 0 && x->token_stride % 4 == 0 && x->row_stride % 4 == 0;
}

static uint32_t divide_up(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a + b - 1) / b); }

/* What every product has; the rows of one expert are a product of their own. */
static void start_product(gpu_kernel *out, const char *file, const gpu_matmul_job *job, const weight_tile *tile) {
    *out = (gpu_kernel){ .file = file };
    weight_describe(out, job->weights, tile);
    kernel_define(out, "EXPERTS", word(job->used > 0));
    kernel_constant(out, "k", job->weights->k);
    kernel_constant(out, "rows", job->used ? job->weights->rows : tile->rows);
    kernel_constant(out, "first_row", job->used ? 0 : tile->first_row);
    kernel_constant(out, "y_offset", job->y.offset);
    kernel_constant(out, "y_token_stride", job->y.token_stride);
    if (job->used) {
        kernel_constant(out, "first_expert", tile->first_expert);
        kernel_constant(out, "used", job->used);
        kernel_constant(out, "y_row_stride", job->y.row_stride);
    }
    kernel_bind(out, "weights");
    kernel_bind(out, "x");
    kernel_bind(out, "y");
}

static void place_columns(gpu_kernel *out, const gpu_matmul_job *job) {
    const uint32_t  row_stride = job->x_slots ? job->x.row_stride : 0;
    const gpu_place x = { job->x.offset, job->x.token_stride, row_stride };
    kernel_define(out, "VEC4", word(by_fours(job->weights->k, &x)));
    kernel_constant(out, "x_offset", x.offset);
    kernel_constant(out, "x_token_stride", x.token_stride);
    if (job->used) kernel_constant(out, "x_row_stride", row_stride);
}

/* ---- few columns ---- */

/* Threads that share a row: so many that about 2^17 threads are busy, as long as each has as much to do as the others; where that
 * leaves most of a GPU idle, more. */
static uint32_t choose_lanes(uint64_t rows, uint32_t chunks, uint32_t rows_together) {
    const uint64_t wanted = 1 << 17, idle = 1 << 14;
    uint32_t       lanes = 8;
    while (lanes < MATVEC_THREADS && lanes * 2 <= chunks) {
        const uint64_t threads = rows * lanes / rows_together;
        if (threads >= wanted || (chunks % (lanes * 2) && threads >= idle)) break;
        lanes *= 2;
    }
    return lanes;
}

static void matvec(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job, const weight_tile *tile) {
    start_product(out, "matvec.wgsl", job, tile);
    place_columns(out, job);
    const uint32_t rows = job->used ? job->weights->rows : tile->rows, pairs = job->used ? job->tokens * job->used : 1;
    const bool     several = !job->used && job->tokens > 1;
    const uint32_t together = several || (uint64_t)rows * pairs < 4096 ? 2 : 4; /* rows of a thread */
    const uint32_t lanes = choose_lanes((uint64_t)rows * pairs, job->weights->chunks, together);
    kernel_define(out, "ROWS", together == 4 ? "4" : "2");
    kernel_define(out, "COLUMNS", several ? "4" : "1");
    kernel_constant(out, "lanes", lanes);
    kernel_constant(out, "columns", job->used ? 1 : job->tokens);
    if (job->used) {
        kernel_constant(out, "experts", tile->experts);
        kernel_constant(out, "routes_offset", job->routes.offset);
        kernel_constant(out, "routes_token_stride", job->routes.token_stride);
        kernel_bind(out, "run");
        kernel_bind(out, "routes");
    }
    kernel_spread(out, info, divide_up(rows, MATVEC_THREADS / lanes * together));
    out->z = out->y; /* y counts the pairs */
    out->y = pairs;
}

/* ---- many columns ---- */

/* A tile of 64 or 32 rows and 16, 32 or 64 columns, all within 16 KiB of workgroup memory. */
typedef struct {
    uint32_t    columns, rows;
    const char *column_threads, *rows_together;
} tile_shape;

static const tile_shape shapes[] = {
    { 16, 64, "4", "1" },
    { 32, 64, "8", "2" },
    { 64, 64, "16", "4" },
    { 64, 32, "16", "2" }, /* for matrices so short that the taller tile leaves the GPU idle */
};

/* Experts have few columns each, and lists beside the tiles in workgroup memory. */
static const tile_shape *choose_shape(const gpu_matmul_job *job, const weight_tile *tile) {
    if (job->used) {
        const uint64_t expected = (uint64_t)job->tokens * job->used / job->weights->experts;
        return &shapes[job->tokens > 16 && expected > 8];
    }
    if (job->tokens <= 16) return &shapes[0];
    if (job->tokens <= 32) return &shapes[1];
    return &shapes[(uint64_t)divide_up(tile->rows, 64) * divide_up(job->tokens, 64) < 256 ? 3 : 2];
}

static void matmul(gpu_kernel *out, const gpu_matmul_job *job, const weight_tile *tile) {
    start_product(out, job->q8 ? "matmul_q8.wgsl" : "matmul.wgsl", job, tile);
    const tile_shape *shape = choose_shape(job, tile);
    kernel_define(out, "COLUMN_THREADS", shape->column_threads);
    kernel_define(out, "TILE", shape->rows_together);
    kernel_define(out, "OUTPUTS", word(job->outputs));
    if (job->q8) {
        const uint64_t rows = (uint64_t)job->tokens * (job->x_slots ? job->used : 1),
                       scales = rows * job->weights->k / 16;
        kernel_constant(out, "x_token_stride", job->x_slots ? job->used : 1);
        if (job->used) kernel_constant(out, "x_row_stride", job->x_slots);
        kernel_constant(out, "x_scales", (double)scales);
    } else place_columns(out, job);
    if (job->used) {
        kernel_constant(out, "all_experts", job->weights->experts);
        kernel_constant(out, "groups_offset", job->routes.offset);
    }
    kernel_bind(out, job->used ? "groups" : "run");
    out->x = divide_up(job->used ? job->weights->rows : tile->rows, shape->rows);
    out->y = job->used ? tile->experts : 1;
    out->z = divide_up(job->tokens, shape->columns);
}

void gpu_matmul_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job) {
    const weight_tile tile = weight_tile_of(job->weights, job->tile);
    if (job->tokens <= MATVEC_COLUMNS) matvec(out, info, job, &tile);
    else matmul(out, job, &tile);
}

/* ---- embeddings, 8 bits ---- */

void gpu_embed_kernel(gpu_kernel *out, const gpu_info *info, const gpu_embed_job *job) {
    const weight_tile tile = weight_tile_of(job->table, job->tile);
    (void)info;
    *out = (gpu_kernel){ .file = "embed.wgsl" };
    weight_describe(out, job->table, &tile);
    kernel_constant(out, "k", job->table->k);
    kernel_constant(out, "rows", tile.rows);
    kernel_constant(out, "first_row", tile.first_row);
    kernel_constant(out, "factor", job->factor);
    kernel_constant(out, "y_offset", job->y.offset);
    kernel_constant(out, "y_token_stride", job->y.token_stride);
    kernel_bind(out, "weights");
    kernel_bind(out, "ids");
    kernel_bind(out, "y");
    kernel_bind(out, "run");
    out->x = divide_up(job->table->chunks * 4, 64);
    out->y = job->tokens;
    out->z = 1;
}

void gpu_quantise_kernel(gpu_kernel *out, const gpu_info *info, const gpu_quantise_job *job) {
    const uint64_t scales = (uint64_t)job->tokens * job->rows * job->k / 16;
    (void)info;
    *out = (gpu_kernel){ .file = "quantise.wgsl" };
    kernel_define(out, "VEC4", word(by_fours(job->k, &job->x)));
    kernel_define(out, "OUTPUTS", word(job->outputs));
    kernel_constant(out, "k", job->k);
    kernel_constant(out, "per", job->rows);
    kernel_constant(out, "x_offset", job->x.offset);
    kernel_constant(out, "x_token_stride", job->x.token_stride);
    kernel_constant(out, "x_row_stride", job->x.row_stride);
    kernel_constant(out, "out_scales", (double)scales);
    kernel_bind(out, "x");
    kernel_bind(out, "out");
    kernel_bind(out, "run");
    out->x = divide_up(job->k / 32, 64);
    out->y = job->tokens * job->rows;
    out->z = 1;
}
