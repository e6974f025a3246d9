/* Products with few columns: which kernel, how many threads share a row, how the column is computed. */

#include "gpu/product_build.h"

enum {
    COLUMNS_THREADS = 128,
    COLUMNS_TOGETHER = 4,
    PRODUCT_THREADS = 256,
    SHORT_COLUMN_THREADS = 64,
    MOST_WORKGROUPS = 1024
};
enum { SHORT_COLUMN = 4 }; /* chunks: a column this short has at most one quad per thread of SHORT_COLUMN_THREADS */
enum { LEAST_WORKGROUP_BYTES = 16384, ENOUGH_WORKGROUP_BYTES = 32768 };

/* ---- the column in workgroup memory ---- */

/* Chunks of a column that fit: column_f32.wgsl takes 128 bytes per chunk, column_q8.wgsl 48; sums take the rest. A thread computes at
 * most 10 quads of the column. */
static uint32_t chunks_that_fit(const gpu_info *info, bool q8) {
    enum { MOST_CHUNKS = 10 * PRODUCT_THREADS / 8 };
    const uint32_t sums = PRODUCT_THREADS * (16 + 4 + 4 + (q8 ? 8 : 0));
    uint32_t       bytes = info->max_workgroup_bytes;
    if (bytes < LEAST_WORKGROUP_BYTES) bytes = LEAST_WORKGROUP_BYTES;
    if (bytes > ENOUGH_WORKGROUP_BYTES)
        bytes = ENOUGH_WORKGROUP_BYTES; /* with more, too few workgroups would run at once */
    return (uint32_t)min_size((bytes - sums) / (q8 ? 48 : 128), MOST_CHUNKS);
}

uint32_t gpu_column_threads(uint32_t chunks) { return chunks <= SHORT_COLUMN ? SHORT_COLUMN_THREADS : PRODUCT_THREADS; }

uint64_t gpu_matvec_most_column(const gpu_info *info) { return 32 * (uint64_t)chunks_that_fit(info, false); }

bool gpu_matvec_takes_q8(const gpu_info *info, quant_type type) {
    return info->dot4 && type != TYPE_F32 && type != TYPE_F16 && type != TYPE_BF16;
}

/* ---- which kernel ---- */

/* Threads per row: eight, or as many as the row has chunks. More until about 2^15 threads are busy, as long as all get
 * the same number of chunks. If most of the GPU would still be idle, more even without that condition. */
static uint32_t choose_lanes(uint64_t rows, uint32_t chunks, uint32_t rows_together, uint32_t most) {
    const uint64_t wanted = 1 << 15, idle = 1 << 14;
    uint32_t       lanes = 1;
    while (lanes < 8 && lanes * 2 <= chunks) lanes *= 2;
    while (lanes < most && lanes * 2 <= chunks) {
        const uint64_t threads = rows * lanes / rows_together;
        if (threads >= wanted || (chunks % (lanes * 2) && threads >= idle)) break;
        lanes *= 2;
    }
    return lanes;
}

/* How a product with one column, or with experts one per pair of a token, shares out its work: rows per thread, results of a thread,
 * threads per workgroup, and how many of them share a row. */
typedef struct {
    uint32_t together, outputs, threads, lanes;
} column_shape;

/* Rows per thread: two, or four for very tall matrices, which have more threads than the GPU can run at once anyway. */
static column_shape choose_column(const gpu_info *info, const gpu_matmul_job *job) {
    const weight_tile chosen = weight_tile_of(job->like, job->tile); /* the kernel is chosen for these */
    const uint64_t    read = job->used ? (uint64_t)job->like->rows * job->used : chosen.rows;
    column_shape      s = { .together = read < 4096 || job->gate == GATE_PAIR ? 2 : 4 };
    s.outputs = s.together / (job->gate == GATE_PAIR ? 2 : 1);
    s.threads = gpu_column_threads(job->like->chunks);
    s.lanes = choose_lanes(read, job->like->chunks, s.together, s.threads);
    const bool q8 = job->y_q8 && job->gate == GATE_PAIR;
    while (s.lanes > chunks_that_fit(info, false) || (q8 && s.threads / s.lanes * s.outputs % 32)) s.lanes /= 2;
    return s;
}

/* Adds a binding and tells the shader its number. */
static void bind_at(gpu_kernel *out, int range, const char *define) {
    static const char *const numbers[KERNEL_BINDS] = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" };
    kernel_define(out, define, numbers[out->bind_count]);
    kernel_bind(out, range);
}

/* Rows of B that a thread reads at once: those of one weight that it computes, or fewer where weights or tiles end between them. */
static const char *corrected_together(const gpu_corrections *c, const weight_tile *tile, uint32_t rows_each) {
    uint32_t all = tile->first_row | tile->rows | rows_each;
    for (int i = 0; i < OP_PARTS; i++) all |= c->rows[i];
    return all % 4 == 0 ? "4" : all % 2 == 0 ? "2" : "1";
}

static void correct_rows(gpu_kernel *out, const gpu_corrections *c, const weight_tile *tile, uint32_t rows_each) {
    static const struct {
        const char *flag, *at, *rank, *shrunk;
    } names[OP_PARTS] = { { "EXPAND_0", "EXPAND_0_AT", "rank_0", "shrunk_0" },
                          { "EXPAND_1", "EXPAND_1_AT", "rank_1", "shrunk_1" },
                          { "EXPAND_2", "EXPAND_2_AT", "rank_2", "shrunk_2" } };
    if (!c->slots) return;
    kernel_define(out, "CORRECTED", "1");
    kernel_define(out, "BUNDLE", corrected_together(c, tile, rows_each));
    bind_at(out, BIND_IN + FUSED_SHRUNK, "SHRUNK_AT");
    kernel_constant(out, "slots", c->slots);
    kernel_constant(out, "shrunk_stride", c->stride);
    if (c->parts > 1) kernel_constant(out, "shrunk_parts", c->parts);
    if (c->parts > 1) kernel_constant(out, "shrunk_part", c->part_stride);
    kernel_constant(out, "end_0", c->rows[0]);
    kernel_constant(out, "end_1", c->rows[0] + c->rows[1]);
    if (c->ranks[2]) kernel_constant(out, "rows_2", c->rows[2]);
    for (int i = 0; i < OP_PARTS; i++) {
        kernel_define(out, names[i].flag, kernel_flag(c->ranks[i] > 0));
        if (!c->ranks[i]) continue;
        bind_at(out, BIND_IN + FUSED_EXPAND0 + i, names[i].at);
        kernel_constant(out, names[i].rank, c->ranks[i]);
        kernel_constant(out, names[i].shrunk, c->at[i]);
    }
}

static void before_and_behind(gpu_kernel *out, const gpu_matmul_job *job, const weight_tile *tile, uint32_t rows_each) {
    static const char *const gates[] = { [GATE_NONE] = "none", [GATE_PAIR] = "pair", [GATE_VALUE] = "value" };
    kernel_define(out, "RESIDUAL", kernel_flag(job->residual));
    kernel_define(out, "NORMED", kernel_flag(job->normed));
    kernel_define(out, "FACTORED", kernel_flag(job->factored));
    kernel_define(out, "SUM", kernel_flag(job->sum));
    kernel_define(out, "GATE", gates[job->gate]);
    kernel_define(out, "CAP", kernel_flag(job->cap > 0));
    kernel_define(out, "WIDE", "0");
    if (job->residual) {
        bind_at(out, BIND_IN + FUSED_B, "B_AT");
        bind_at(out, BIND_IN + FUSED_B_WEIGHT, "B_WEIGHT_AT");
        bind_at(out, BIND_NUMBERS, "NUMBERS_AT");
        kernel_number(out, job->factor);
    }
    if (job->normed) {
        bind_at(out, BIND_IN + FUSED_WEIGHT, "WEIGHT_AT");
        kernel_constant(out, "weight_factor", (double)job->weight_factor);
    }
    if (job->residual || job->normed) kernel_constant(out, "eps", (double)job->eps);
    if (job->sum) bind_at(out, BIND_SUM, "SUM_AT");
    if (job->gate == GATE_VALUE) {
        bind_at(out, BIND_IN + FUSED_OTHER, "OTHER_AT");
        kernel_constant(out, "other_offset", job->other_offset);
        if (job->tokens > 1) kernel_constant(out, "other_token_stride", job->other_token_stride);
    }
    if (job->cap > 0) kernel_constant(out, "cap", (double)job->cap);
    correct_rows(out, &job->corrections, tile, rows_each);
}

static void route(gpu_kernel *out, const gpu_matmul_job *job, const weight_tile *tile) {
    kernel_constant(out, "experts", tile->experts);
    kernel_constant(out, "routes_offset", job->routes.offset);
    kernel_constant(out, "routes_token_stride", job->routes.token_stride);
    bind_at(out, BIND_RUN, "RUN_AT");
    bind_at(out, BIND_IN + FUSED_ROUTES, "ROUTES_AT");
}

/* Chunks of the column that a workgroup keeps at a time: all, or equal parts that fit, each a multiple of the lanes. */
static uint32_t choose_segment(uint32_t chunks, uint32_t most, uint32_t lanes) {
    if (chunks <= most) return chunks;
    const uint32_t turns = divide_up(chunks, lanes), parts = divide_up(turns, most / lanes);
    return divide_up(turns, parts) * lanes;
}

static const char *digit(uint32_t n) {
    static const char *const digits[] = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" };
    return n < COUNT_OF(digits) ? digits[n] : "10";
}

/* How the kernel for several columns shares out its work: threads per four rows, as many as with one column, so that a column's sum has the
 * same order; threads per workgroup; and columns that are multiplied with a weight once it is unpacked. Many columns together read and
 * unpack less, but small matrices then keep too few threads busy: on an H200 eight columns of 1536 → 256 take 3.4 µs one by one and 7.6 µs
 * in fours, those of 1536 → 12288 take 20 and 17. */
typedef struct {
    uint32_t lanes, threads, together;
} columns_shape;

/* Results of a thread for one column. */
static uint32_t columns_outputs(const gpu_matmul_job *job) { return job->gate == GATE_PAIR ? 2 : 4; }

static columns_shape choose_columns(const gpu_info *info, const gpu_matmul_job *job) {
    enum { BUSY = 1 << 15, LONG = 4 }; /* threads; chunks of a thread that keep memory busy with half of them */
    const uint32_t rows = weight_tile_of(job->like, job->tile).rows, chunks = job->like->chunks;
    columns_shape  s = { .lanes = choose_column(info, job).lanes, .threads = COLUMNS_THREADS };
    /* results of 32 rows are quantised together */
    if (s.lanes > s.threads || (job->y_q8 && s.threads / s.lanes * columns_outputs(job) % 32)) s.threads *= 2;
    for (s.together = job->tokens < COLUMNS_TOGETHER ? 2 : COLUMNS_TOGETHER; s.together > 1; s.together /= 2) {
        const uint32_t threads = divide_up(rows, 4) * divide_up(job->tokens, s.together) * s.lanes;
        if (threads >= BUSY || (threads >= BUSY / 2 && chunks / s.lanes >= LONG)) break;
    }
    return s;
}

bool gpu_product_gives_q8(const gpu_info *info, const gpu_matmul_job *job) {
    gpu_matmul_job given = *job;
    given.y_q8 = true;
    const columns_shape s = choose_columns(info, &given);
    return s.threads / s.lanes * columns_outputs(job) % 32 == 0;
}

static void columns_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job, const weight_tile *tile) {
    const bool     given = job->q8 || job->column == COLUMN_GIVEN;
    const uint32_t rows = product_rows(job, tile);
    start_product(out, "product_columns.wgsl", job, tile);
    if (given) kernel_constant(out, "x_scales", (double)job->tokens * job->weights->k / 16);
    else place_columns(out, job);
    before_and_behind(out, job, tile, columns_outputs(job));
    clip_kernel(out, &job->clips, job->clips.in && !given, job->clips.out);
    const columns_shape shape = choose_columns(info, job);
    kernel_define(out, "COLUMNS", digit(shape.together));
    kernel_define(out, "COLUMN", given ? "given" : "f32");
    kernel_define(out, "Q8_OUT", kernel_flag(job->y_q8));
    kernel_define(out, "THREADS", shape.threads == COLUMNS_THREADS ? "128" : "256");
    if (job->y_q8) kernel_constant(out, "y_scales", (double)job->tokens * rows / 4);
    kernel_constant(out, "lanes", shape.lanes);
    kernel_constant(out, "columns", job->tokens);
    kernel_spread(out, info, divide_up(rows, shape.threads / shape.lanes * columns_outputs(job)));
    out->z = out->y;
    out->y = out->x;
    out->x = divide_up(job->tokens, shape.together);
}

/* One column, or one per pair with experts. */
static void column_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job, const weight_tile *tile) {
    start_product(out, "product.wgsl", job, tile);
    place_columns(out, job);
    const column_shape shape = choose_column(info, job);
    before_and_behind(out, job, tile, shape.outputs);
    if (job->used) route(out, job, tile);
    static const char *const columns[] = { [COLUMN_F32] = "f32", [COLUMN_Q8] = "q8", [COLUMN_GIVEN] = "given" };
    const uint32_t           rows = product_rows(job, tile), pairs = job->used ? job->tokens * job->used : 1;
    const uint32_t           chunks = job->weights->chunks, most = chunks_that_fit(info, job->column == COLUMN_Q8);
    const bool               given = job->column == COLUMN_GIVEN;
    const uint32_t           segment = given ? chunks : choose_segment(chunks, most, shape.lanes);
    const uint32_t           longest = given ? job->like->chunks : choose_segment(job->like->chunks, most, shape.lanes);
    kernel_define(out, "ROWS", digit(shape.together));
    kernel_define(out, "COLUMNS", "1");
    kernel_define(out, "COLUMN", columns[job->column]);
    kernel_define(out, "Q8_OUT", kernel_flag(job->y_q8));
    if (job->y_q8) kernel_constant(out, "y_scales", (double)pairs * rows / 4);
    if (given) kernel_constant(out, "x_scales", (double)(job->x_slots ? pairs : job->tokens) * job->weights->k / 16);
    kernel_define(out, "THREADS", shape.threads == SHORT_COLUMN_THREADS ? "64" : "256");
    kernel_define(out, "QUADS_EACH", digit(divide_up(8 * longest, shape.threads)));
    kernel_constant(out, "lanes", shape.lanes);
    kernel_constant(out, "segment", segment);
    const uint32_t blocks = divide_up(rows, shape.threads / shape.lanes * shape.outputs);
    /* If the whole column stays in workgroup memory, it serves several blocks of rows. */
    kernel_spread(out, info, segment == chunks && blocks > MOST_WORKGROUPS ? MOST_WORKGROUPS : blocks);
    out->z = out->y;
    out->y = pairs;
}

void gpu_matvec_kernel(gpu_kernel *out, const gpu_info *info, const gpu_matmul_job *job, const weight_tile *tile) {
    if (job->tokens == 1 || job->used) column_kernel(out, info, job, tile);
    else columns_kernel(out, info, job, tile);
}
