/* The ops of training on the CPU: gradients, the loss, and the optimiser (graph.h lists them). Those with many sums are composed of the
 * table's kernels. What is summed over tokens is summed in their order by one task, so that the result is the same every time. */

#include "cpu/attention_back.h"
#include "cpu/steps_parts.h"

#include "base/random.h"

#include <math.h>
#include <string.h>

enum { PIECE = 256, ROWS = 64, TOKENS = 64, STATE_PIECE = 16384 };

bool cpu_back_has(op_kind kind) { return kind >= OP_MATMUL_BACK && kind <= OP_ADAMW; }

/* ---- products with transposed weights ---- */

/* Columns of values times rows of W: values [from, from + n) of each sum. */
typedef struct {
    const tensor  *w;
    const uint8_t *data; /* of the matrix */
    size_t         from, n, columns;
    const float   *d;
    float         *out;
    const int32_t *index; /* column i is column index[i] of d and out; NULL: i */
} transposed_job;

static void multiply_transposed(const cpu_context *c, const transposed_job *job, void *scratch) {
    const tensor *w = job->w;
    const size_t  k = w->ne[0], m = w->ne[1], bytes = matrix_row_bytes(w);
    const size_t  begin = (size_t)quant_row_bytes(quant_format_of(w->type), job->from);
    float        *rows = scratch;
    for (size_t i = 0; i < job->columns; i++)
        memset(job->out + (job->index ? (size_t)job->index[i] : i) * k + job->from, 0, job->n * sizeof(float));
    for (size_t row = 0; row < m; row += ROWS) {
        const size_t count = min_size(ROWS, m - row);
        for (size_t i = 0; i < count; i++)
            c->kernels->load_row(rows + i * job->n, w->type, job->data + (row + i) * bytes + begin, 1, job->n);
        for (size_t i = 0; i < job->columns; i++) {
            const size_t column = job->index ? (size_t)job->index[i] : i;
            c->kernels->add_rows(job->out + column * k + job->from, rows, job->n, job->d + column * m + row, count,
                                 job->n);
        }
    }
}

static size_t pieces_of(size_t n, size_t piece) { return (n + piece - 1) / piece; }

static void run_matmul_back(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    const op      *o = s->op;
    const size_t   pieces = pieces_of(o->in[0]->ne[0], PIECE), from = task % pieces * PIECE;
    const size_t   first = task / pieces * TOKENS;
    transposed_job job = { .w = o->in[0],
                           .data = o->in[0]->data,
                           .from = from,
                           .n = min_size(PIECE, o->in[0]->ne[0] - from),
                           .columns = min_size(TOKENS, step_entries(c, o->out) - first),
                           .d = row_at(c, o->in[1], first),
                           .out = row_at(c, o->out, first) };
    multiply_transposed(c, &job, scratch);
}

static void run_experts_back(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    const op           *o = s->op;
    const tensor       *w = o->in[0];
    const expert_groups g = cpu_groups_at(c, s);
    const size_t        pieces = pieces_of(w->ne[0], PIECE), from = task % pieces * PIECE;
    const int32_t       expert = g.active[1 + task / pieces], begin = g.begin[expert];
    transposed_job      job = { .w = w,
                                .data = (const uint8_t *)w->data + (size_t)expert * matrix_row_bytes(w) * w->ne[1],
                                .from = from,
                                .n = min_size(PIECE, w->ne[0] - from),
                                .columns = (size_t)(g.begin[expert + 1] - begin),
                                .d = value_at(c, o->in[1]),
                                .out = value_at(c, o->out),
                                .index = g.pair + begin };
    multiply_transposed(c, &job, scratch);
}

/* ---- attention: span by span ---- */

static attention_back_job attention_back_of(const cpu_step *s, const cpu_context *c, size_t first) {
    const op       *o = s->op;
    const kv_layer *kv = &c->in->kv[o->layer];
    return (attention_back_job){ .q = row_at(c, o->in[0], first * o->in[0]->ne[1]),
                                 .d = row_at(c, o->in[2], first * o->in[2]->ne[1]),
                                 .logs = row_at(c, o->in[3], first),
                                 .delta = row_at(c, o->in[4], first),
                                 .out = row_at(c, o->out, first * o->out->ne[1]),
                                 .kv = { kv->k, kv->v, kv->type, kv->kv_heads, kv->head },
                                 .heads = o->in[0]->ne[1],
                                 .tokens = c->in->run.records[first].span_count,
                                 .records = c->in->run.records + first,
                                 .sliding = o->window > 0,
                                 .kernels = c->kernels };
}

/* Runs the task, or counts all if there is no scratch memory to run it in. */
static size_t attention_back(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    const bool queries = s->op->kind == OP_ATTENTION_BACK_Q;
    size_t     before = 0;
    for (size_t first = 0; first < c->in->run.tokens; first += c->in->run.records[first].span_count) {
        const attention_back_job job = attention_back_of(s, c, first);
        const size_t             tasks = queries ? attention_back_q_tasks(&job) : attention_back_kv_tasks(&job);
        if (scratch && task < before + tasks) {
            (queries ? attention_back_q : attention_back_kv)(&job, task - before, scratch);
            return 0;
        }
        before += tasks;
    }
    return before;
}

/* ---- experts ---- */

/* q = softmax of the logits of the experts used; dlogit_e = q_e · (s_e·d_e − Σ q·s·d) */
static void route_back_row(const op *o, const cpu_context *c, size_t r) {
    const float   *logits = row_at(c, o->in[0], r), *scale = o->in[2] ? o->in[2]->data : NULL;
    const int32_t *ids = (const int32_t *)row_at(c, o->in[1], r);
    const float   *d = row_at(c, o->in[3], r);
    float         *out = row_at(c, o->out, r);
    double         most = logits[ids[0]], sum = 0, mean = 0;
    for (size_t i = 0; i < o->used; i++) most = logits[ids[i]] > most ? logits[ids[i]] : most;
    for (size_t i = 0; i < o->used; i++) sum += exp(logits[ids[i]] - most);
    for (size_t i = 0; i < o->used; i++) mean += exp(logits[ids[i]] - most) / sum * d[i] * (scale ? scale[ids[i]] : 1);
    memset(out, 0, o->out->ne[0] * sizeof *out);
    for (size_t i = 0; i < o->used; i++)
        out[ids[i]] = (float)(exp(logits[ids[i]] - most) / sum * (d[i] * (scale ? scale[ids[i]] : 1) - mean));
}

/* ---- the loss ---- */

/* The rows are long and many, so exponentials are f32; their sum is not. */
static void cross_entropy_row(const op *o, const cpu_context *c, size_t r) {
    const float *logits = row_at(c, o->in[0], r), *goal = row_at(c, o->in[1], r);
    const size_t n = o->in[0]->ne[0];
    const float  weight = goal[1], inverse = o->factor > 0 ? 1 / o->factor : 0;
    float       *out = row_at(c, o->out, r), most = -INFINITY;
    int32_t      target;
    double       sum = 0;
    memcpy(&target, goal, sizeof target);
    if (o->factor > 0) c->kernels->softcap(out, logits, o->factor, n);
    else memcpy(out, logits, n * sizeof *out);
    for (size_t i = 0; i < n; i++) most = out[i] > most ? out[i] : most;
    for (size_t i = 0; i < n; i++) sum += (double)expf(out[i] - most);
    const float logarithm = most + (float)log(sum), goal_logit = out[target];
    *row_at(c, o->sum, r) = weight * (logarithm - goal_logit);
    const float scale = weight / (float)sum;
    for (size_t i = 0; i < n; i++) {
        const float y = out[i] * inverse;
        out[i] = scale * (1 - y * y) * expf(out[i] - most);
    }
    out[target] -= weight * (1 - goal_logit * inverse * (goal_logit * inverse));
}

/* ---- parameters ---- */

static float *state_at(const tensor *t) { return (float *)(uintptr_t)t->data; }

/* Values [from, from + n) of every row of the state, for rows that all belong to one matrix. */
static void gradient_piece(const op *o, const cpu_context *c, size_t from, size_t n, void *scratch) {
    enum { MOST = 4096 };
    const tensor *p = o->in[0], *q = o->in[2];
    const size_t  rows = step_rows(c, p), width = q->ne[0];
    float        *factors = scratch;
    for (size_t first = 0; first < rows; first += MOST) {
        const size_t count = min_size(MOST, rows - first);
        for (size_t i = 0; i < o->rank; i++) {
            for (size_t r = 0; r < count; r++) factors[r] = o->factor * row_at(c, p, first + r)[o->slot * o->rank + i];
            c->kernels->add_rows(state_at(o->in[1]) + i * width + from, row_at(c, q, first) + from, width, factors,
                                 count, n);
        }
    }
}

static void gradient_piece_of_experts(const op *o, const cpu_context *c, size_t from, size_t n) {
    const tensor *p = o->in[0], *q = o->in[2];
    const size_t  width = q->ne[0];
    for (size_t r = 0; r < step_rows(c, p); r++) {
        float       *state = state_at(o->in[1]) + expert_of_row(o, c, o->in[3], r) * o->rank * width + from;
        const float *x = row_at(c, q, q->ne[1] == p->ne[1] ? r : r / p->ne[1]) + from;
        for (size_t i = 0; i < o->rank; i++)
            c->kernels->add_scaled(state + i * width, x, o->factor * row_at(c, p, r)[o->slot * o->rank + i], n);
    }
}

static void gradient_by_id(const op *o, const cpu_context *c) {
    for (size_t t = 0; t < c->in->run.tokens; t++) {
        const int32_t id = c->in->run.records[t].id;
        if (id >= 0)
            c->kernels->add_scaled(state_at(o->in[1]) + (size_t)id * o->rank,
                                   row_at(c, o->in[0], t) + o->slot * o->rank, o->factor, o->rank);
    }
}

static void run_gradient(const op *o, const cpu_context *c, size_t task, void *scratch) {
    if (!o->in[2]) {
        gradient_by_id(o, c);
        return;
    }
    const size_t from = task * PIECE, n = min_size(PIECE, o->in[2]->ne[0] - from);
    if (o->in[3]) gradient_piece_of_experts(o, c, from, n);
    else gradient_piece(o, c, from, n, scratch);
}

static void sum_squares(const op *o, const cpu_context *c) {
    const float *state = o->in[0]->data;
    double       sum = o->in[1] ? *value_at(c, o->in[1]) : 0;
    for (size_t i = 0; i < o->in[0]->ne[0]; i++) sum += (double)state[i] * state[i];
    *value_at(c, o->out) = (float)sum;
}

static void run_adamw(const op *o, const cpu_context *c, size_t task) {
    const float *rates = value_at(c, o->in[4]), squares = *value_at(c, o->in[5]);
    const size_t all = o->in[1]->ne[0], first = task * STATE_PIECE, n = min_size(STATE_PIECE, all - first);
    float       *parameter = state_at(o->in[0]) + o->slot * all + first, *gradient = state_at(o->in[1]) + first;
    float       *mean = state_at(o->in[2]) + first, *square = state_at(o->in[3]) + first;
    const float  norm = sqrtf(squares), most = rates[ADAMW_MOST_NORM], rate = rates[ADAMW_RATE] * o->most;
    const float  clip = most > 0 && norm > most ? most / norm : 1;
    if (!isfinite(squares)) return;
    for (size_t i = 0; i < n; i++) {
        const float g = gradient[i] * clip;
        mean[i] = rates[ADAMW_BETA_1] * mean[i] + (1 - rates[ADAMW_BETA_1]) * g;
        square[i] = rates[ADAMW_BETA_2] * square[i] + (1 - rates[ADAMW_BETA_2]) * g * g;
        const float size = sqrtf(square[i] * rates[ADAMW_CORRECTION_2]) + rates[ADAMW_EPS];
        parameter[i] -=
            rate * (rates[ADAMW_DECAY] * parameter[i] + o->factor * mean[i] * rates[ADAMW_CORRECTION_1] / size);
        gradient[i] = 0;
    }
}

/* ---- rows ---- */

static void rope_back_row(const op *o, const cpu_context *c, size_t r, size_t n, float *swapped) {
    const tensor *d = o->in[0], *table = o->in[1];
    const float  *in = row_at(c, d, r);
    float        *out = row_at(c, o->out, r);
    /* With its halves swapped, a row turns the other way. */
    memcpy(swapped, in + n / 2, n / 2 * sizeof *out);
    memcpy(swapped + n / 2, in, n / 2 * sizeof *out);
    c->kernels->rope(swapped, row_at(c, table, r / d->ne[1] * table->ne[1] + r % table->ne[1]), n);
    memcpy(out, swapped + n / 2, n / 2 * sizeof *out);
    memcpy(out + n / 2, swapped, n / 2 * sizeof *out);
}

/* Zero, or what came from the outputs of this token. */
static void select_back_row(const op *o, const cpu_context *c, size_t r, size_t n) {
    const size_t   rows = o->out->ne[1];
    const int32_t *at = c->in->run.output_rows, token = (int32_t)(r / rows);
    float         *y = row_at(c, o->out, r);
    size_t         low = 0, high = c->in->run.outputs;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (at[middle] < token) low = middle + 1;
        else high = middle;
    }
    memset(y, 0, n * sizeof *y);
    for (; low < c->in->run.outputs && at[low] == token; low++)
        c->kernels->add(y, y, row_at(c, o->in[0], low * rows + r % rows), n);
}

static void dot_rows(const op *o, const cpu_context *c, size_t entry) {
    const tensor *a = o->in[0], *b = o->in[1];
    float        *out = row_at(c, o->out, entry);
    for (size_t r = 0; r < a->ne[1]; r++) {
        const float *x = row_at(c, a, entry * a->ne[1] + r), *y = row_at(c, b, entry * b->ne[1] + r % b->ne[1]);
        double       sum = 0;
        for (size_t i = 0; i < a->ne[0]; i++) sum += (double)x[i] * y[i];
        out[r] = (float)sum;
    }
}

static void sum_rows(const op *o, const cpu_context *c, size_t entry, size_t n) {
    const tensor *a = o->in[0];
    float        *y = row_at(c, o->out, entry);
    memcpy(y, row_at(c, a, entry * a->ne[1]), n * sizeof *y);
    for (size_t r = 1; r < a->ne[1]; r++) c->kernels->add(y, y, row_at(c, a, entry * a->ne[1] + r), n);
}

static void dropout_row(const op *o, const cpu_context *c, size_t r, size_t n) {
    const float *x = row_at(c, o->in[0], r);
    const double below = (double)o->factor * 4294967296.0;
    const float  scale = 1 / (1 - o->factor);
    float       *y = row_at(c, o->out, r);
    uint32_t     key[2], words[4];
    memcpy(key, value_at(c, o->in[1]), sizeof key);
    if ((key[0] & key[1]) == UINT32_MAX) {
        memcpy(y, x, n * sizeof *y);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 0) philox((uint32_t[]){ (uint32_t)(i / 4), (uint32_t)r, o->stream, 0 }, key, words);
        y[i] = (double)words[i % 4] < below ? 0 : x[i] * scale;
    }
}

static void run_back_row(const op *o, const cpu_context *c, size_t r, void *scratch) {
    const tensor *a = o->in[0], *b = o->in[1], *d = o->in[2];
    const size_t  n = o->out->ne[0];
    switch (o->kind) {
    case OP_RMS_NORM_BACK:
        c->kernels->rms_norm_back(row_at(c, o->out, r), row_at(c, a, r), b ? b->data : NULL, row_at(c, d, r), o->factor,
                                  n);
        break;
    case OP_ROPE_BACK: rope_back_row(o, c, r, n, scratch); break;
    case OP_GEGLU_BACK:
        c->kernels->geglu_back(row_at(c, o->out, r), row_at(c, a, r), row_at(c, b, r), row_at(c, d, r), n);
        break;
    case OP_ROUTE_BACK: route_back_row(o, c, r); break;
    case OP_EXPERT_SUM_BACK:
        c->kernels->scale(row_at(c, o->out, r), row_at(c, a, r / o->used),
                          row_at(c, b, r / o->used)[o->used + r % o->used], n);
        break;
    case OP_SELECT_ROWS_BACK: select_back_row(o, c, r, n); break;
    case OP_ROW_SUM: sum_rows(o, c, r, n); break;
    case OP_ROW_DOT: dot_rows(o, c, r); break;
    case OP_DROPOUT: dropout_row(o, c, r, n); break;
    case OP_CROSS_ENTROPY: cross_entropy_row(o, c, r); break;
    default: break; /* the others are cut differently */
    }
}

/* About how much one value of a result costs, in simple sums. */
static size_t back_cost(const op *o) {
    switch (o->kind) {
    case OP_CROSS_ENTROPY: return 64;
    case OP_GEGLU_BACK:
    case OP_DROPOUT: return 8;
    case OP_ROW_DOT: return o->in[0]->ne[0];
    case OP_ROW_SUM: return o->in[0]->ne[1];
    default: return 2;
    }
}

static row_split back_split(const cpu_step *s, const cpu_context *c) {
    return cpu_split_rows(step_rows(c, s->op->out), s->op->out->ne[0], false, back_cost(s->op));
}

/* ---- tasks ---- */

size_t cpu_back_tasks(const cpu_step *s, const cpu_context *c) {
    const op *o = s->op;
    if (o->out && step_entries(c, o->out) == 0) return 0;
    switch (o->kind) {
    case OP_MATMUL_BACK: return pieces_of(o->in[0]->ne[0], PIECE) * pieces_of(step_entries(c, o->out), TOKENS);
    case OP_MATMUL_EXPERTS_BACK: return (size_t)cpu_groups_at(c, s).active[0] * pieces_of(o->in[0]->ne[0], PIECE);
    case OP_ATTENTION_BACK_Q:
    case OP_ATTENTION_BACK_KV: return attention_back(s, c, 0, NULL);
    case OP_LORA_GRADIENT: return o->in[2] ? pieces_of(o->in[2]->ne[0], PIECE) : 1;
    case OP_SQUARE_SUM: return 1;
    case OP_ADAMW: return pieces_of(o->in[1]->ne[0], STATE_PIECE);
    default: return back_split(s, c).tasks;
    }
}

void cpu_back_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    const op *o = s->op;
    switch (o->kind) {
    case OP_MATMUL_BACK: run_matmul_back(s, c, task, scratch); return;
    case OP_MATMUL_EXPERTS_BACK: run_experts_back(s, c, task, scratch); return;
    case OP_ATTENTION_BACK_Q:
    case OP_ATTENTION_BACK_KV: attention_back(s, c, task, scratch); return;
    case OP_LORA_GRADIENT: run_gradient(o, c, task, scratch); return;
    case OP_SQUARE_SUM: sum_squares(o, c); return;
    case OP_ADAMW: run_adamw(o, c, task); return;
    default: break;
    }
    const row_split split = back_split(s, c);
    const size_t    last = min_size((task + 1) * split.rows_per_task, step_rows(c, o->out));
    for (size_t r = task * split.rows_per_task; r < last; r++) run_back_row(o, c, r, scratch);
}
