#include "cpu/canvas_head.h"

#include "base/random.h"

#include <math.h>
#include <string.h>

/* A task has some columns, and goes over the table in tiles of rows. A tile is unpacked in blocks for the expected embedding. */
enum { COLUMNS = 16, TILE = 256, BLOCK = 64, PIECE = 256 };

/* What is known of a column after some tiles. */
typedef struct {
    float    most;     /* the largest z so far */
    float    scale;    /* e^(most before this tile − most) */
    double   sum;      /* Σ e^(z − most) */
    double   weighted; /* Σ e^(z − most) · (z − most) */
    uint32_t likeliest, drawn;
    float    drawn_score;
} canvas_column;

typedef struct {
    const op          *o;
    const cpu_context *c;
    size_t             first, count; /* columns */
    canvas_column      columns[COLUMNS];
    float             *scores; /* [COLUMNS, TILE] */
    float             *rows;   /* [BLOCK, PIECE] */
    void              *scratch;
} canvas_task;

_Static_assert((COLUMNS * TILE + BLOCK * PIECE) * sizeof(float) <= BACK_SCRATCH, "scratch before that of a product");

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
                             .y_stride = TILE,
                             .columns = t->count };
    t->c->kernels->matmul_f32(&job, 0, n, t->scratch);
    for (size_t i = 0; i < t->count; i++) {
        float *z = t->scores + i * TILE;
        if (t->o->most > 0) t->c->kernels->softcap(z, z, t->o->most, n);
        t->c->kernels->scale(z, z, row_at(t->c, t->o->in[2], t->first + i)[CANVAS_INVERSE], n);
    }
}

/* −ln(−ln(1 − u)), u = (word + ½) / 2^32: a draw is the largest z + this */
static float canvas_noise(uint32_t word) {
    const double u = ((double)word + 0.5) / 4294967296.0;
    return (float)-log(-log1p(-u));
}

/* Looks for a better draw among the z of a tile. No noise is above 22.9, so most tokens need none. */
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

/* Takes in the z of a tile, which become e^(z − most). */
static void canvas_update(canvas_column *column, float *z, size_t row, size_t n) {
    float before = column->most, most = before;
    for (size_t i = 0; i < n; i++) {
        if (!(z[i] > most)) continue;
        most = z[i];
        column->likeliest = (uint32_t)(row + i);
    }
    column->most = most;
    column->scale = row ? expf(before - most) : 0;
    if (row) {
        column->weighted = column->scale * (column->weighted + column->sum * (double)(before - most));
        column->sum *= column->scale;
    }
    for (size_t i = 0; i < n; i++) {
        const float below = z[i] - most;
        z[i] = expf(below);
        column->sum += z[i];
        column->weighted += (double)(z[i] * below);
    }
}

/* soft = scale · soft + Σ e^(z − most) · a_v over the rows [row, row + n) */
static void canvas_expect(const canvas_task *t, size_t row, size_t n) {
    const tensor *table = t->o->in[0];
    const size_t  k = table->ne[0], bytes = matrix_row_bytes(table);
    for (size_t i = 0; i < t->count; i++) {
        float *soft = row_at(t->c, t->o->in[3], t->first + i);
        if (row) t->c->kernels->scale(soft, soft, t->columns[i].scale, k);
        else memset(soft, 0, k * sizeof *soft);
    }
    for (size_t from = 0; from < k; from += PIECE) {
        const size_t piece = min_size(PIECE, k - from),
                     begin = (size_t)quant_row_bytes(quant_format_of(table->type), from);
        for (size_t block = 0; block < n; block += BLOCK) {
            const size_t   count = min_size(BLOCK, n - block);
            const uint8_t *data = (const uint8_t *)table->data + (row + block) * bytes + begin;
            for (size_t i = 0; i < count; i++)
                t->c->kernels->load_row(t->rows + i * piece, table->type, data + i * bytes, 1, piece);
            for (size_t i = 0; i < t->count; i++)
                t->c->kernels->add_rows(row_at(t->c, t->o->in[3], t->first + i) + from, t->rows, piece,
                                        t->scores + i * TILE + block, count, piece);
        }
    }
}

static void canvas_finish(const canvas_task *t, size_t i) {
    const canvas_column *column = &t->columns[i];
    float               *found = row_at(t->c, t->o->out, t->first + i), *soft = row_at(t->c, t->o->in[3], t->first + i);
    memcpy(found + CANVAS_LIKELIEST, &column->likeliest, sizeof column->likeliest);
    memcpy(found + CANVAS_DRAWN, &column->drawn, sizeof column->drawn);
    /* −Σ p·ln p; rounding must not take it below 0 */
    found[CANVAS_ENTROPY] = (float)fmax(log(column->sum) - column->weighted / column->sum, 0);
    found[CANVAS_LARGEST] = (float)(1 / column->sum);
    if (isnan(column->sum)) found[CANVAS_ENTROPY] = NAN;
    t->c->kernels->scale(soft, soft, (float)(t->o->factor / column->sum), t->o->in[0]->ne[0]);
}

void cpu_canvas_head_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    const size_t first = task * COLUMNS, rows = s->op->in[0]->ne[1];
    canvas_task  t = { .o = s->op,
                       .c = c,
                       .first = first,
                       .count = min_size(COLUMNS, step_entries(c, s->op->out) - first),
                       .scores = scratch,
                       .rows = (float *)scratch + COLUMNS * TILE,
                       .scratch = (uint8_t *)scratch + BACK_SCRATCH };
    for (size_t i = 0; i < t.count; i++) t.columns[i] = (canvas_column){ .most = -INFINITY, .drawn_score = -INFINITY };
    for (size_t row = 0; row < rows; row += TILE) {
        const size_t n = min_size(TILE, rows - row);
        canvas_scores(&t, row, n);
        for (size_t i = 0; i < t.count; i++) {
            canvas_draw(&t.columns[i], t.scores + i * TILE, row, n, row_at(c, s->op->in[2], first + i));
            canvas_update(&t.columns[i], t.scores + i * TILE, row, n);
        }
        canvas_expect(&t, row, n);
    }
    for (size_t i = 0; i < t.count; i++) canvas_finish(&t, i);
}
