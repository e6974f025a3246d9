#include "cpu/steps_parts.h"

#include "cpu/canvas_head.h"
#include "cpu/canvas_next.h"
#include "cpu/exact.h"
#include "cpu/sound_rows.h"

#include <math.h>
#include <string.h>

/* A task must be worth waking a thread: about this many values of simple arithmetic, or bytes of weights. */
enum { VALUES_PER_TASK = 8192, WEIGHT_BYTES_PER_TASK = 48 << 10, MOST_EXPERTS_USED = 64 };

/* ---- addresses ---------------------------------------------------------------------------------------------- */

uint64_t q8_bytes(uint64_t rows, uint64_t k) {
    return round_up(rows * k, 64) + rows * (k / 32 + k / 16) * sizeof(float);
}

static q8 quantised_at(const cpu_context *c, int32_t item, size_t rows, size_t k) {
    uint8_t *at = c->memory + c->items[item].offset;
    float   *d = (float *)(at + round_up(rows * k, 64));
    return (q8){ .q = (int8_t *)at, .d = d, .s = d + rows * (k / 32) };
}

uint64_t groups_bytes(uint64_t experts, uint64_t tokens, uint64_t used) {
    return (1 + experts + experts + 1 + 2 * tokens * used) * sizeof(int32_t);
}

expert_groups cpu_groups_at(const cpu_context *c, const cpu_step *s) {
    const size_t experts = s->op->in[0]->ne[2], pairs = c->in->run.tokens * s->op->used;
    int32_t     *at = (int32_t *)(c->memory + c->items[s->groups].offset);
    return (expert_groups){
        .active = at, .begin = at + 1 + experts, .token = at + 2 + 2 * experts, .pair = at + 2 + 2 * experts + pairs
    };
}

/* ---- cutting into tasks ----------------------------------------------------------------------------------------------- */

row_split cpu_split_rows(size_t rows, size_t n, bool may_cut, size_t cost) {
    const size_t per_task = max_size(1, VALUES_PER_TASK / cost);
    if (may_cut && n > 2 * per_task) {
        const size_t pieces = n / per_task;
        return (row_split){ rows * pieces, 1, pieces, (size_t)round_up((n + pieces - 1) / pieces, 16) };
    }
    const size_t per = max_size(1, per_task / max_size(1, n));
    return (row_split){ (rows + per - 1) / per, per, 1, n };
}

static row_split split_of(const cpu_step *s, const cpu_context *c) {
    const op *o = s->op;
    if (s->kind == STEP_QUANTISE) return cpu_split_rows(step_rows(c, o->in[1]), o->in[1]->ne[0], false, 1);
    switch (o->kind) {
    case OP_GEGLU:
    case OP_GATE:
    case OP_SOFTCAP: return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], true, 2);
    case OP_ADD:
    case OP_MUL:
    case OP_CLAMP:
    case OP_SCALE: return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], true, 1);
    case OP_TOKEN_SUM:
        return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], true, max_size(1, step_entries(c, o->in[0])));
    case OP_KV_STORE: return cpu_split_rows(c->in->run.tokens, o->in[0]->ne[0] * o->in[0]->ne[1], false, 1);
    case OP_ROPE_TABLE: return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], false, 16);
    case OP_SELECT_ROWS: return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], false, o->count);
    case OP_CONV_GRID: return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], false, (size_t)o->channels * 9);
    case OP_CONV_TOKENS:
    case OP_LOCAL_ATTENTION: return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], false, (size_t)o->count * 2);
    case OP_ROUTE: return cpu_split_rows(c->in->run.tokens, o->in[0]->ne[0], false, 16);
    case OP_EXPERT_SUM: return cpu_split_rows(c->in->run.tokens, o->in[0]->ne[0] * o->used, false, 1);
    case OP_LORA_EXPAND: return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], true, 1 + o->rank / 4);
    default: return cpu_split_rows(step_rows(c, o->out), o->out->ne[0], false, 1);
    }
}

/* The rows of the next task, if `rows` of this matrix and `bytes` of all matrices are left. */
static size_t rows_of_task(const tensor *w, size_t multiple, size_t threads, size_t rows, uint64_t bytes) {
    const size_t row = matrix_row_bytes(w), least = max_size(WEIGHT_BYTES_PER_TASK / row / multiple, 1) * multiple;
    const size_t share = (size_t)(bytes / (2 * threads) / row) / multiple * multiple;
    return min_size(max_size(share, least), rows);
}

/* Writes the first row of each task of a matrix, then its end. `left`: the bytes of this matrix and of those after it. */
static size_t cut_matrix(const tensor *w, size_t multiple, size_t threads, uint64_t left, uint32_t *cuts) {
    size_t count = 0;
    for (size_t at = 0; at < w->ne[1]; count++) {
        const size_t n = rows_of_task(w, multiple, threads, w->ne[1] - at, left);
        if (cuts) cuts[count] = (uint32_t)at;
        at += n;
        left -= (uint64_t)n * matrix_row_bytes(w);
    }
    if (cuts) cuts[count] = (uint32_t)w->ne[1];
    return count;
}

bool cpu_steps_cut(cpu_step *steps, size_t count, size_t multiple, size_t threads, arena *a) {
    uint64_t left = 0;
    for (size_t i = 0; i < count; i++)
        left += (uint64_t)steps[i].op->in[0]->ne[1] * matrix_row_bytes(steps[i].op->in[0]);
    for (size_t i = 0; i < count; i++) {
        const tensor *w = steps[i].op->in[0];
        steps[i].tasks = cut_matrix(w, multiple, threads, left, NULL);
        uint32_t *cuts = arena_array(a, steps[i].tasks + 1, sizeof *cuts);
        if (!cuts) return false;
        cut_matrix(w, multiple, threads, left, cuts);
        steps[i].cuts = cuts;
        left -= (uint64_t)w->ne[1] * matrix_row_bytes(w);
    }
    return true;
}

/* ---- attention: span by span, or token by token ---- */

static size_t attention_tokens(const cpu_context *c, size_t first) {
    return c->alone ? 1 : c->in->run.records[first].span_count;
}

static attention_job attention_of_span(const cpu_step *s, const cpu_context *c, size_t first) {
    const op           *o = s->op;
    const kv_layer     *kv = &c->in->kv[o->layer];
    const token_record *records = c->in->run.records + first;
    return (attention_job){
        .q = value_at(c, o->in[0]) + first * o->in[0]->token_stride,
        .out = value_at(c, o->out) + first * o->out->token_stride,
        .logs = o->sum ? value_at(c, o->sum) + first * o->sum->token_stride : NULL,
        .kv = { kv->k, kv->v, kv->type, kv->kv_heads, kv->head },
        .heads = o->in[0]->ne[1],
        .tokens = attention_tokens(c, first),
        .records = records,
        .sliding = o->window > 0,
    };
}

static size_t attention_tasks(const cpu_step *s, const cpu_context *c) {
    size_t tasks = 0;
    for (size_t first = 0; first < c->in->run.tokens; first += attention_tokens(c, first)) {
        const attention_job job = attention_of_span(s, c, first);
        tasks += c->kernels->attention_tasks(&job);
    }
    return tasks;
}

static void run_attention(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    for (size_t first = 0;; first += attention_tokens(c, first)) {
        const attention_job job = attention_of_span(s, c, first);
        const size_t        tasks = c->kernels->attention_tasks(&job);
        if (task < tasks) {
            c->kernels->attention(&job, task, scratch);
            return;
        }
        task -= tasks;
    }
}

/* ---- adapters ---- */

/* How LORA_SHRINK is cut: a few rows into pieces of ranks, many into blocks of rows. */
typedef struct {
    size_t rows, ranks, pieces, tasks; /* rows and ranks of a task; pieces of a row */
} shrink_split;

static shrink_split split_of_shrink(const cpu_step *s, const cpu_context *c) {
    enum { FEW = 4, BLOCK = 32, RANKS = 8 };
    const size_t rows = step_rows(c, s->op->out), n = s->op->out->ne[0];
    const bool   few = rows <= FEW;
    const size_t ranks = few ? min_size(n, RANKS) : n, pieces = (n + ranks - 1) / ranks, block = few ? 1 : BLOCK;
    return (shrink_split){ block, ranks, pieces, (rows + block - 1) / block * pieces };
}

/* The number of the set of row r of a value. */
static uint32_t set_of_row(const cpu_context *c, const tensor *t, size_t r) {
    const size_t entry = r / t->ne[1];
    return c->in->run.records[t->axis == AXIS_OUTPUTS ? (size_t)c->in->run.output_rows[entry] : entry].adapter;
}

static const float *set_weights(const op *o, const tensor *sets, uint32_t set) {
    return (const float *)sets->data + (size_t)set * o->slots;
}

static void scale_or_clear(const cpu_kernels *k, float *y, float weight, size_t n) {
    if (weight == 0) memset(y, 0, n * sizeof *y);
    else if (weight != 1) k->scale(y, y, weight, n);
}

/* Ranks [from, to) of one slot for n rows from `row` on, which have one set and one expert. */
static void shrink_slot(const op *o, const cpu_context *c, size_t row, size_t n, size_t slot, size_t from, size_t to,
                        void *scratch) {
    const tensor    *a = o->in[0], *x = o->in[1], *out = o->out;
    const float      weight = set_weights(o, o->in[2], set_of_row(c, out, row))[slot];
    const size_t     k = x->ne[0], experts = a->ne[0] / ((size_t)o->slots * o->rank * k);
    const size_t     matrix = (slot * experts + expert_of_row(o, c, o->in[3], row)) * o->rank * k;
    float           *y = row_at(c, out, row) + slot * o->rank;
    const matmul_job job = { .w = (const uint8_t *)((const float *)a->data + matrix),
                             .row_bytes = k * sizeof(float),
                             .k = k,
                             .type = TYPE_F32,
                             .x = row_at(c, x, x->ne[1] == out->ne[1] ? row : row / out->ne[1]),
                             .y = y,
                             .y_stride = out->ne[0],
                             .columns = n,
                             .alone = c->alone };
    if (weight != 0) c->kernels->matmul_f32(&job, from, to, scratch);
    for (size_t i = 0; i < n; i++) scale_or_clear(c->kernels, y + i * out->ne[0] + from, weight, to - from);
}

/* The same of the adapters of an embedding, for one row. */
static void shrink_id(const op *o, const cpu_context *c, size_t row, size_t slot, size_t from, size_t to) {
    const size_t  ids = o->in[0]->ne[0] / ((size_t)o->slots * o->rank);
    const int32_t id = c->in->run.records[row].id;
    const float   weight = id < 0 ? 0 : set_weights(o, o->in[2], set_of_row(c, o->out, row))[slot];
    const float  *a = (const float *)o->in[0]->data + (slot * ids + (size_t)(id < 0 ? 0 : id)) * o->rank;
    float        *y = row_at(c, o->out, row) + slot * o->rank;
    memcpy(y + from, a + from, (to - from) * sizeof *y);
    scale_or_clear(c->kernels, y + from, weight, to - from);
}

static void run_shrink(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    const op          *o = s->op;
    const shrink_split split = split_of_shrink(s, c);
    const size_t       rows = step_rows(c, o->out), rank = o->rank;
    const size_t       first = task / split.pieces * split.rows, last = min_size(first + split.rows, rows);
    const size_t       from = task % split.pieces * split.ranks, to = min_size(from + split.ranks, o->out->ne[0]);
    for (size_t row = first, n; row < last; row += n) {
        n = 1;
        while (o->in[1] && !o->in[3] && row + n < last && set_of_row(c, o->out, row + n) == set_of_row(c, o->out, row))
            n++;
        for (size_t slot = from / rank; slot * rank < to; slot++) {
            const size_t begin = from > slot * rank ? from - slot * rank : 0, end = min_size(rank, to - slot * rank);
            if (o->in[1]) shrink_slot(o, c, row, n, slot, begin, end, scratch);
            else shrink_id(o, c, row, slot, begin, end);
        }
    }
}

static void expand_row(const op *o, const cpu_context *c, size_t r, size_t from, size_t n) {
    const tensor *b = o->in[1];
    const size_t  m = o->out->ne[0], experts = b->ne[0] / ((size_t)o->slots * o->rank * m);
    const float  *weights = set_weights(o, o->in[3], set_of_row(c, o->out, r)), *u = row_at(c, o->in[2], r);
    const size_t  expert = expert_of_row(o, c, o->in[4], r);
    float        *y = row_at(c, o->out, r) + from;
    if (o->in[0]) memcpy(y, row_at(c, o->in[0], r) + from, n * sizeof *y);
    else memset(y, 0, n * sizeof *y);
    for (size_t slot = 0; slot < o->slots; slot++) {
        const float *columns = (const float *)b->data + (slot * experts + expert) * o->rank * m + from;
        if (weights[slot] != 0) c->kernels->add_rows(y, columns, m, u + slot * o->rank, o->rank, n);
    }
}

/* ---- tasks of a step ---- */

size_t cpu_step_tasks(const cpu_step *s, const cpu_context *c) {
    const op *o = s->op;
    if (s->kind == STEP_GROUP) return 1;
    if (o->kind == OP_LEAF) return 0;
    if (cpu_back_has(o->kind)) return cpu_back_tasks(s, c);
    if (o->out && step_entries(c, o->out) == 0) return 0;
    if (s->kind == STEP_OP) {
        switch (o->kind) {
        case OP_MATMUL: return s->tasks;
        case OP_MATMUL_EXPERTS: return (size_t)cpu_groups_at(c, s).active[0] * s->tasks;
        case OP_ATTENTION: return attention_tasks(s, c);
        case OP_LORA_SHRINK: return split_of_shrink(s, c).tasks;
        case OP_CANVAS_HEAD: return cpu_canvas_head_tasks(s, c);
        case OP_CANVAS_NEXT: return 1;
        default: break;
        }
    }
    return split_of(s, c).tasks;
}

/* ---- the ops -------------------------------------------------------------------------------------------------------- */

static void run_matmul(const cpu_step *s, const cpu_context *c, size_t task, const matmul_job *shared, void *scratch) {
    const tensor *w = s->op->in[0];
    matmul_job    job = *shared;
    job.row_bytes = matrix_row_bytes(w);
    job.k = w->ne[0];
    job.type = w->type;
    job.y = value_at(c, s->op->out);
    job.y_stride = w->ne[1];
    job.alone = c->alone;
    if (s->quantised >= 0) job.x8 = quantised_at(c, s->quantised, step_rows(c, s->op->in[1]), w->ne[0]);
    else job.x = value_at(c, s->op->in[1]);
    (s->quantised >= 0 ? c->kernels->matmul_q8 : c->kernels->matmul_f32)(&job, s->cuts[task], s->cuts[task + 1],
                                                                         scratch);
}

static void run_dense_matmul(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    run_matmul(s, c, task, &(matmul_job){ .w = s->op->in[0]->data, .columns = step_entries(c, s->op->in[1]) }, scratch);
}

static void run_expert_matmul(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    const tensor       *w = s->op->in[0];
    const expert_groups g = cpu_groups_at(c, s);
    const int32_t       expert = g.active[1 + task / s->tasks], begin = g.begin[expert];
    const uint64_t      bytes = (uint64_t)matrix_row_bytes(w) * w->ne[1];
    matmul_job          job = {
                 .w = (const uint8_t *)w->data + (size_t)expert * bytes,
                 .columns = (size_t)(g.begin[expert + 1] - begin),
                 .x_index = (s->op->in[1]->ne[1] == 1 ? g.token : g.pair) + begin,
                 .y_index = g.pair + begin,
    };
    run_matmul(s, c, task % s->tasks, &job, scratch);
}

/* A task reads two streams, from its beginning and from its middle (see avx512_q4_k.h). Thread i will probably take task i. The
 * first worker fetches the caller's: into its own cache, or into the core's cache if they share one. */
void cpu_step_announce(const cpu_step *s, const cpu_context *c, pool *threads) {
    enum { AHEAD = 128 << 10 };
    const size_t row = matrix_row_bytes(s->op->in[0]);
    for (size_t thread = 1; thread < c->threads && thread < s->tasks; thread++) {
        const size_t   half = (s->cuts[thread + 1] - s->cuts[thread]) / 2 * row;
        const uint8_t *streams[POOL_STREAMS] = { NULL }, *w = s->op->in[0]->data;
        streams[0] = w + s->cuts[thread] * row;
        streams[1] = streams[0] + half;
        if (thread == 1) {
            streams[2] = w;
            streams[3] = w + s->cuts[1] / 2 * row;
        }
        pool_will_read(threads, thread, streams, min_size(half, AHEAD));
    }
}

/* Counting sort of the pairs by expert, stable in the tokens. */
static void run_group(const cpu_step *s, const cpu_context *c) {
    const op           *o = s->op;
    const expert_groups g = cpu_groups_at(c, s);
    const size_t        experts = o->in[0]->ne[2], used = o->used;
    memset(g.begin, 0, (experts + 1) * sizeof *g.begin);
    for (size_t t = 0; t < c->in->run.tokens; t++) {
        const int32_t *ids = (const int32_t *)row_at(c, o->in[2], t);
        for (size_t i = 0; i < used; i++) g.begin[ids[i] + 1]++;
    }
    g.active[0] = 0;
    for (size_t x = 0; x < experts; x++) {
        if (g.begin[x + 1]) g.active[1 + g.active[0]++] = (int32_t)x;
        g.begin[x + 1] += g.begin[x];
    }
    for (size_t t = 0; t < c->in->run.tokens;
         t++) { /* fill in; begin[x] moves to the end of x, which is the beginning of x + 1 */
        const int32_t *ids = (const int32_t *)row_at(c, o->in[2], t);
        for (size_t i = 0; i < used; i++) {
            const int32_t at = g.begin[ids[i]]++;
            g.token[at] = (int32_t)t;
            g.pair[at] = (int32_t)(t * used + i);
        }
    }
    memmove(g.begin + 1, g.begin, experts * sizeof *g.begin);
    g.begin[0] = 0;
}

/* The `used` likeliest experts and their weights: softmax over all experts, the largest (ties: lowest index first), normalised to
 * a sum of 1, each times its scale. */
static void route_row(float *out, const float *logits, const float *scale, size_t experts, size_t used) {
    int32_t ids[MOST_EXPERTS_USED];
    float   weights[MOST_EXPERTS_USED], most = logits[0], sum = 0;
    for (size_t x = 0; x < experts; x++) most = logits[x] > most ? logits[x] : most;
    for (size_t i = 0; i < used; i++) {
        size_t best = experts;
        for (size_t x = 0; x < experts; x++) {
            bool taken = false;
            for (size_t j = 0; j < i; j++) taken |= ids[j] == (int32_t)x;
            if (!taken && (best == experts || logits[x] > logits[best])) best = x;
        }
        if (best == experts) best = i; /* only with NaN, which will show in the logits */
        ids[i] = (int32_t)best;
        weights[i] = exact_exp(logits[best] - most);
        sum += weights[i];
    }
    const float inverse = exact_inverse(sum);
    memcpy(out, ids, used * sizeof *ids);
    for (size_t i = 0; i < used; i++) out[used + i] = weights[i] * inverse * (scale ? scale[ids[i]] : 1);
}

static void rope_table_row(float *table, const float *frequencies, size_t pairs, uint32_t position) {
    for (size_t j = 0; j < pairs; j++) {
        exact_cosine_sine((float)position * frequencies[j], &table[j], &table[pairs + j]);
    }
}

/* What turns row r of a table of angles: the token's position; with two axes, first its id. */
static uint32_t place_of_row(const op *o, const cpu_context *c, size_t r) {
    const token_record *record = &c->in->run.records[r / o->out->ne[1]];
    return r % o->out->ne[1] + 1 < o->out->ne[1] ? (uint32_t)record->id : record->position;
}

static void store_row(const cpu_step *s, const cpu_context *c, size_t t) {
    const op           *o = s->op;
    const token_record *record = &c->in->run.records[t];
    if (record->at == RUN_NOWHERE) return;
    const kv_layer *kv = &c->in->kv[o->layer];
    const size_t    n = kv->kv_heads * kv->head, bytes = (size_t)quant_row_bytes(quant_format_of(kv->type), n);
    const size_t    slot = record_slot(record, o->window > 0, record->at);
    c->kernels->store(kv->k + slot * bytes, kv->type, row_at(c, o->in[0], t * o->in[0]->ne[1]), n);
    c->kernels->store(kv->v + slot * bytes, kv->type, row_at(c, o->in[1], t * o->in[1]->ne[1]), n);
}

/* A row of the table, or a soft token. */
static void embed_row(const op *o, const cpu_context *c, size_t t, size_t n) {
    const tensor *table = o->in[0];
    const int32_t id = o->in[1]         ? *(const int32_t *)row_at(c, o->in[1], t)
                       : o->by_position ? (int32_t)c->in->run.records[t].position
                                        : c->in->run.records[t].id;
    float        *out = row_at(c, o->out, t);
    if (id < 0 && o->given) {
        memcpy(out, c->in->run.given + (size_t)(-1 - id) * n, n * sizeof *out);
        return;
    }
    const size_t bytes = (size_t)quant_row_bytes(quant_format_of(table->type), table->ne[0]),
                 at = id < 0 ? 0 : (size_t)id;
    const uint8_t *from = table->data ? (const uint8_t *)table->data + at * bytes : c->in->rows + t * bytes;
    c->kernels->load_row(out, table->type, from, o->factor, n);
}

/* Row r of the second input of ADD and MUL: of a value, or the vector that all rows share. */
static const float *pair_at(const cpu_context *c, const tensor *b, size_t r) {
    return b->kind == TENSOR_WEIGHT ? b->data : row_at(c, b, r);
}

/* The canvases of a run, one after the other. */
static void run_canvas_next(const op *o, const cpu_context *c) {
    const token_record *records = c->in->run.records;
    canvas_state       *states = (canvas_state *)value_at(c, o->in[2]);
    int32_t            *ids = (int32_t *)value_at(c, o->out);
    for (size_t t = 0; t < c->in->run.tokens; t += records[t].span_count)
        canvas_next(&o->rule, records[t].span_count, row_at(c, o->in[0], t), row_at(c, o->in[1], t), states + t, NULL);
    for (size_t t = 0; t < c->in->run.tokens; t++) ids[t] = states[t].id;
}

/* The row of an output's token, or the mean of that row of several tokens. */
static void select_row(const op *o, const cpu_context *c, size_t r, size_t n) {
    const tensor *a = o->in[0];
    const size_t  first = (size_t)c->in->run.output_rows[r / a->ne[1]] * a->ne[1] + r % a->ne[1];
    float        *y = row_at(c, o->out, r);
    memcpy(y, row_at(c, a, first), n * sizeof *y);
    for (size_t i = 1; i < o->count; i++) c->kernels->add(y, y, row_at(c, a, first + i * a->ne[1]), n);
    if (o->count > 1) c->kernels->scale(y, y, 1 / (float)o->count, n);
}

/* The same row of all tokens, added up in their order. */
static void sum_tokens(const op *o, const cpu_context *c, size_t r, size_t from, size_t n) {
    float *y = row_at(c, o->out, r) + from;
    memset(y, 0, n * sizeof *y);
    for (size_t t = 0; t < step_entries(c, o->in[0]); t++)
        c->kernels->add(y, y, row_at(c, o->in[0], t * o->in[0]->ne[1] + r) + from, n);
}

static void convolve_grid(const op *o, const cpu_context *c, size_t r) {
    const tensor       *a = o->in[0];
    const conv_grid_job job = { .x = row_at(c, a, 3 * r),
                                .stride = a->row_stride,
                                .frequencies = a->ne[0] / o->channels,
                                .channels = o->channels,
                                .out = o->in[1]->ne[0] / (9 * (size_t)o->channels),
                                .w = o->in[1]->data };
    conv_grid_row(c->kernels, &job, row_at(c, o->out, r));
}

/* How many tokens of its span come before token t. */
static size_t before_in_span(const cpu_context *c, size_t t) { return t - c->in->run.records[t].span_first; }

static void attend_locally(const op *o, const cpu_context *c, size_t r) {
    const tensor             *q = o->in[0], *k = o->in[1], *v = o->in[2];
    const size_t              heads = q->ne[1], head = q->ne[0];
    const local_attention_job job = { .q = row_at(c, q, r),
                                      .k = row_at(c, k, r),
                                      .v = row_at(c, v, r),
                                      .relative = (const float *)o->in[3]->data + r % heads * head,
                                      .k_stride = k->token_stride,
                                      .v_stride = v->token_stride,
                                      .r_stride = heads * head,
                                      .seen = min_size(before_in_span(c, r / heads) + 1, o->count),
                                      .head = head,
                                      .cap = o->factor };
    local_attention_row(c->kernels, &job, row_at(c, o->out, r));
}

static void concat_row(const op *o, const cpu_context *c, size_t r) {
    float *y = row_at(c, o->out, r);
    for (size_t i = 0; i < o->count; i++) {
        memcpy(y, row_at(c, o->in[i], r), o->in[i]->ne[0] * sizeof *y);
        y += o->in[i]->ne[0];
    }
}

/* Values [from, from + n) of row r. */
static void step_run_row(const cpu_step *s, const cpu_context *c, size_t r, size_t from, size_t n) {
    const op          *o = s->op;
    const cpu_kernels *k = c->kernels;
    const tensor      *a = o->in[0], *b = o->in[1];
    switch (o->kind) {
    case OP_EMBED: embed_row(o, c, r, n); break;
    case OP_RMS_NORM: k->rms_norm(row_at(c, o->out, r), row_at(c, a, r), b ? b->data : NULL, o->factor, n); break;
    case OP_LAYER_NORM:
        k->layer_norm(row_at(c, o->out, r), row_at(c, a, r), b->data, o->in[2] ? o->in[2]->data : NULL, o->factor, n);
        break;
    case OP_ROPE_TABLE: rope_table_row(row_at(c, o->out, r), a->data, a->ne[0], place_of_row(o, c, r)); break;
    case OP_ROPE:
        memcpy(row_at(c, o->out, r), row_at(c, a, r), n * sizeof(float));
        k->rope(row_at(c, o->out, r), row_at(c, b, r / a->ne[1] * b->ne[1] + r % b->ne[1]), n);
        break;
    case OP_KV_STORE: store_row(s, c, r); break;
    case OP_CONCAT: concat_row(o, c, r); break;
    case OP_GEGLU: k->geglu(row_at(c, o->out, r) + from, row_at(c, a, r) + from, row_at(c, b, r) + from, n); break;
    case OP_GATE: k->gate(row_at(c, o->out, r) + from, row_at(c, a, r) + from, row_at(c, b, r) + from, n); break;
    case OP_ADD: k->add(row_at(c, o->out, r) + from, row_at(c, a, r) + from, pair_at(c, b, r) + from, n); break;
    case OP_MUL: k->mul(row_at(c, o->out, r) + from, row_at(c, a, r) + from, pair_at(c, b, r) + from, n); break;
    case OP_CLAMP: k->clamp(row_at(c, o->out, r) + from, row_at(c, a, r) + from, o->least, o->most, n); break;
    case OP_SCALE: k->scale(row_at(c, o->out, r) + from, row_at(c, a, r) + from, o->factor, n); break;
    case OP_SOFTCAP: k->softcap(row_at(c, o->out, r) + from, row_at(c, a, r) + from, o->factor, n); break;
    case OP_ROUTE: route_row(row_at(c, o->out, r), row_at(c, a, r), b ? b->data : NULL, a->ne[0], o->used); break;
    case OP_EXPERT_SUM: {
        float       *y = row_at(c, o->out, r);
        const float *weights = row_at(c, b, r) + o->used;
        memset(y, 0, o->out->ne[0] * sizeof *y);
        for (size_t i = 0; i < o->used; i++) k->add_scaled(y, row_at(c, a, r * o->used + i), weights[i], o->out->ne[0]);
        break;
    }
    case OP_CONV_GRID: convolve_grid(o, c, r); break;
    case OP_CONV_TOKENS:
        conv_tokens_row(k, row_at(c, o->out, r), row_at(c, a, r), a->token_stride, b->data, o->count,
                        before_in_span(c, r), n);
        break;
    case OP_LOCAL_ATTENTION: attend_locally(o, c, r); break;
    case OP_TOKEN_SUM: sum_tokens(o, c, r, from, n); break;
    case OP_SELECT_ROWS: select_row(o, c, r, n); break;
    case OP_LORA_EXPAND: expand_row(o, c, r, from, n); break;
    default: break; /* matmuls and attention are cut differently */
    }
}

static void run_rows(const cpu_step *s, const cpu_context *c, size_t task) {
    const row_split split = split_of(s, c);
    const op       *o = s->op;
    if (s->kind == STEP_QUANTISE) {
        const tensor *x = o->in[1];
        const size_t  first = task * split.rows_per_task, rows = step_rows(c, x), k = x->ne[0];
        q8            out = quantised_at(c, s->quantised, rows, k);
        out = (q8){ out.q + first * k, out.d + first * (k / 32), out.s + first * (k / 16) };
        c->kernels->quantise(out, row_at(c, x, first), min_size(split.rows_per_task, rows - first), k);
        return;
    }
    const size_t n = o->out ? o->out->ne[0] : 0;
    if (split.pieces_per_row > 1) {
        const size_t from = task % split.pieces_per_row * split.piece;
        if (from < n) step_run_row(s, c, task / split.pieces_per_row, from, min_size(split.piece, n - from));
        return;
    }
    const size_t rows = o->kind == OP_KV_STORE ? c->in->run.tokens : step_rows(c, o->out);
    const size_t last = min_size((task + 1) * split.rows_per_task, rows);
    for (size_t r = task * split.rows_per_task; r < last; r++) step_run_row(s, c, r, 0, n);
}

void cpu_step_run(const cpu_step *s, const cpu_context *c, size_t task, void *scratch) {
    if (s->kind == STEP_GROUP) {
        run_group(s, c);
        return;
    }
    if (cpu_back_has(s->op->kind)) cpu_back_run(s, c, task, scratch);
    else if (s->kind == STEP_OP && s->op->kind == OP_MATMUL) run_dense_matmul(s, c, task, scratch);
    else if (s->kind == STEP_OP && s->op->kind == OP_MATMUL_EXPERTS) run_expert_matmul(s, c, task, scratch);
    else if (s->kind == STEP_OP && s->op->kind == OP_ATTENTION) run_attention(s, c, task, scratch);
    else if (s->kind == STEP_OP && s->op->kind == OP_LORA_SHRINK) run_shrink(s, c, task, scratch);
    else if (s->kind == STEP_OP && s->op->kind == OP_CANVAS_HEAD) cpu_canvas_head_run(s, c, task, scratch);
    else if (s->kind == STEP_OP && s->op->kind == OP_CANVAS_NEXT) run_canvas_next(s->op, c);
    else run_rows(s, c, task);
}
