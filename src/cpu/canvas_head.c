#include "cpu/canvas_head.h"

#include "base/random.h"
#include "cpu/exact.h"

#include <math.h>
#include <string.h>

/* A task has some columns, and goes over the table in chunks of rows, whose sums are rounded in this order (cpu/exact.h). A chunk is unpacked in
 * blocks for the expected embedding. */
enum { COLUMNS = 16, CHUNK = CANVAS_CHUNK, BLOCK = 64, PIECE = 256 };

/* What is known of a column after some chunks. */
typedef struct {
    float    most;     /* the largest z so far */
    float    scale;    /* e^(most before this chunk − most) */
    float    sum;      /* Σ e^(z − most) */
    float    weighted; /* Σ e^(z − most) · (z − most) */
    uint32_t likeliest, drawn;
    float    drawn_score;
} canvas_column;

typedef struct {
    const op          *o;
    const cpu_context *c;
    size_t             first, count; /* columns */
    canvas_column      columns[COLUMNS];
    float             *scores; /* [COLUMNS, CHUNK] */
    float             *rows;   /* [BLOCK, PIECE] */
    float             *sums;   /* [COLUMNS, PIECE] */
    void              *scratch;
} canvas_task;

_Static_assert((COLUMNS * CHUNK + (BLOCK + COLUMNS) * PIECE) * sizeof(float) <= BACK_SCRATCH,
               "scratch before that of a product");

size_t cpu_canvas_head_tasks(const cpu_step *s, const cpu_context *c) {
    return (step_entries(c, s->op->out) + COLUMNS - 1) / COLUMNS;
}

/* z of the rows [row, row + n) */
static void canvas_scores(const canvas_task *t, size_t row, size_t n) {
    const tensor    *table = t->o->in[0];
    const matmul_job job = { .w = (const uint8_t *)table->data + row * matrix_row_bytes(table),
                             .row_bytes = matrix_row_bytes(table),
                             .k = table->ne[0],
                             .type = table->type,
                             .x = row_at(t->c, t->o->in[1], t->first),
                             .y = t->scores,
                             .y_stride = CHUNK,
                             .columns = t->count };
    t->c->kernels->matmul_f32(&job, 0, n, t->scratch);
    for (size_t i = 0; i < t->count; i++) {
        float *z = t->scores + i * CHUNK;
        if (t->o->most > 0) t->c->kernels->softcap(z, z, t->o->most, n);
        t->c->kernels->scale(z, z, row_at(t->c, t->o->in[2], t->first + i)[CANVAS_INVERSE], n);
    }
}

/* −ln(−ln(1 − u)), u = (word + ½) / 2^32: a draw is the largest z + this. Near u = 0, 1 − u would lose its digits. */
static float canvas_noise(uint32_t word) {
    const uint32_t nearer = word < UINT32_C(1) << 31 ? word : ~word;
    const float    u = ((float)(nearer >> 16) * 65536 + (float)(nearer & 0xffff) + 0.5f) * 0x1p-32f; /* or 1 − u */
    return -exact_log(nearer == word ? exact_log_ratio(u * exact_inverse(2 - u)) : -exact_log(u));
}

/* Looks for a better draw among the z of a chunk. No noise is above 22.9, so most tokens need none. */
static void canvas_draw(canvas_column *column, const float *z, size_t row, size_t n, const float *settings) {
    static const float most_noise = 23;
    uint32_t           words[4], key[2], draw, have = UINT32_MAX;
    memcpy(key, settings + CANVAS_KEY_0, sizeof key);
    memcpy(&draw, settings + CANVAS_DRAW, sizeof draw);
    for (size_t i = 0; i < n; i++) {
        const uint32_t id = (uint32_t)(row + i);
        if (z[i] + most_noise < column->drawn_score) continue;
        if (have != id / 4) philox((uint32_t[]){ id / 4, draw, 0, CANVAS_STREAM }, key, words);
        have = id / 4;
        const float score = z[i] + canvas_noise(words[id % 4]);
        if (!(score > column->drawn_score)) continue;
        column->drawn_score = score;
        column->drawn = id;
    }
}

/* Takes in the z of a chunk, which become e^(z − most). */
static void canvas_update(canvas_column *column, float *z, size_t row, size_t n) {
    float before = column->most, most = before;
    for (size_t i = 0; i < n; i++) {
        if (!(z[i] > most)) continue;
        most = z[i];
        column->likeliest = (uint32_t)(row + i);
    }
    float lanes[2][EXACT_LANES] = { 0 };
    for (size_t i = 0; i < n; i++) {
        const float below = z[i] - most;
        z[i] = exact_exp(below);
        lanes[0][i % EXACT_LANES] += z[i];
        lanes[1][i % EXACT_LANES] += z[i] * below;
    }
    const float sum = exact_lanes_sum(lanes[0]), weighted = exact_lanes_sum(lanes[1]), lower = before - most;
    column->most = most;
    column->scale = row ? exact_exp(lower) : 0;
    column->weighted = row ? weighted + column->scale * (column->weighted + column->sum * lower) : weighted;
    column->sum = row ? sum + column->scale * column->sum : sum;
}

/* soft = scale · soft + Σ e^(z − most) · a_v over the rows [row, row + n) */
static void canvas_expect(const canvas_task *t, size_t row, size_t n) {
    const tensor      *table = t->o->in[0];
    const cpu_kernels *kernels = t->c->kernels;
    const size_t       k = table->ne[0], bytes = matrix_row_bytes(table);
    for (size_t from = 0; from < k; from += PIECE) {
        const size_t piece = min_size(PIECE, k - from),
                     begin = (size_t)quant_row_bytes(quant_format_of(table->type), from);
        memset(t->sums, 0, COLUMNS * PIECE * sizeof *t->sums);
        for (size_t block = 0; block < n; block += BLOCK) {
            const size_t   count = min_size(BLOCK, n - block);
            const uint8_t *data = (const uint8_t *)table->data + (row + block) * bytes + begin;
            for (size_t i = 0; i < count; i++)
                kernels->load_row(t->rows + i * piece, table->type, data + i * bytes, 1, piece);
            for (size_t i = 0; i < t->count; i++)
                kernels->add_rows(t->sums + i * PIECE, t->rows, piece, t->scores + i * CHUNK + block, count, piece);
        }
        for (size_t i = 0; i < t->count; i++) {
            float *soft = row_at(t->c, t->o->in[3], t->first + i) + from, *sums = t->sums + i * PIECE;
            if (row) kernels->scale(soft, soft, t->columns[i].scale, piece);
            if (row) kernels->add(soft, soft, sums, piece);
            else memcpy(soft, sums, piece * sizeof *soft);
        }
    }
}

static void canvas_finish(const canvas_task *t, size_t i) {
    const canvas_column *column = &t->columns[i];
    float               *found = row_at(t->c, t->o->out, t->first + i), *soft = row_at(t->c, t->o->in[3], t->first + i);
    memcpy(found + CANVAS_LIKELIEST, &column->likeliest, sizeof column->likeliest);
    memcpy(found + CANVAS_DRAWN, &column->drawn, sizeof column->drawn);
    const float largest = exact_inverse(column->sum);
    /* −Σ p·ln p; rounding must not take it below 0 */
    found[CANVAS_ENTROPY] = fmaxf(exact_log(column->sum) - column->weighted * largest, 0);
    found[CANVAS_LARGEST] = largest;
    if (isnan(column->sum)) found[CANVAS_ENTROPY] = NAN;
    t->c->kernels->scale(soft, soft, t->o->factor * largest, t->o->in[0]->ne[0]);
}

void cpu_canvas_head_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    const size_t first = task * COLUMNS, rows = s->op->in[0]->ne[1];
    canvas_task  t = { .o = s->op,
                       .c = c,
                       .first = first,
                       .count = min_size(COLUMNS, step_entries(c, s->op->out) - first),
                       .scores = scratch,
                       .rows = (float *)scratch + COLUMNS * CHUNK,
                       .sums = (float *)scratch + COLUMNS * CHUNK + BLOCK * PIECE,
                       .scratch = (uint8_t *)scratch + BACK_SCRATCH };
    for (size_t i = 0; i < t.count; i++) t.columns[i] = (canvas_column){ .most = -INFINITY, .drawn_score = -INFINITY };
    for (size_t row = 0; row < rows; row += CHUNK) {
        const size_t n = min_size(CHUNK, rows - row);
        canvas_scores(&t, row, n);
        for (size_t i = 0; i < t.count; i++) {
            canvas_draw(&t.columns[i], t.scores + i * CHUNK, row, n, row_at(c, s->op->in[2], first + i));
            canvas_update(&t.columns[i], t.scores + i * CHUNK, row, n);
        }
        canvas_expect(&t, row, n);
    }
    for (size_t i = 0; i < t.count; i++) canvas_finish(&t, i);
}
