/* Vector attention. A task is a group of query rows (tokens × heads) that share a K/V head.
 *
 * Keys and values are processed in tiles of BLOCK indices, converted to f32 once for all rows of the task, with a running
 * softmax: m is the highest score so far, out = Σ e^(score − m) v, weight = Σ e^(score − m); both are rescaled when m grows. */

#ifndef GM_CPU_SIMD_ATTENTION_H
#define GM_CPU_SIMD_ATTENTION_H

#include "cpu/simd_matmul_f32.h"
#include "cpu/simd_rows.h"

#include <math.h>

enum {
    BLOCK = 32,            /* indices of a tile */
    MOST_ROWS = 64,        /* query rows of a task */
    ROW_FLOATS = 64 * 512, /* rows × head, at most */
    WANTED_TASKS = 8,      /* if there are few rows, so that all threads get some */
    LONG = 8192,           /* indices that a token sees */
};

typedef struct {
    float    q[ROW_FLOATS], out[ROW_FLOATS]; /* [rows, padded head] */
    float    k[BLOCK * 512], v[BLOCK * 512]; /* [block, padded head]; larger heads take smaller blocks */
    float    scores[MOST_ROWS][BLOCK];
    float    highest[MOST_ROWS];
    double   weight[MOST_ROWS];
    uint64_t first[MOST_ROWS], last[MOST_ROWS]; /* the indices that a row sees */
} attention_scratch;

_Static_assert(sizeof(attention_scratch) <= ATTENTION_SCRATCH, "attention needs more scratch memory than there is");

INLINE size_t padded_head(const attention_job *job) { return (job->kv.head + 15) / 16 * 16; }

/* Rows per task: as many as fit, but fewer if there would be too few tasks. With very few rows, converting keys and values costs
 * more than using them, so tasks become that small only for long contexts. */
INLINE size_t rows_of_task(const attention_job *job) {
    const size_t   rows = job->tokens * job->heads; /* over all K/V heads */
    const size_t   most = min_size(MOST_ROWS, ROW_FLOATS / padded_head(job));
    const uint32_t seen = attention_last(job, job->tokens - 1) - attention_first(job, job->tokens - 1);
    return min_size(most, max_size(seen >= LONG ? 2 : 4, (rows + WANTED_TASKS - 1) / WANTED_TASKS));
}

INLINE size_t tasks_of_kv_head(const attention_job *job) {
    const size_t rows = job->tokens * (job->heads / job->kv.kv_heads), of_task = rows_of_task(job);
    return (rows + of_task - 1) / of_task;
}

static size_t simd_attention_tasks(const attention_job *job) { return job->kv.kv_heads * tasks_of_kv_head(job); }

/* One head of one slot as f32, padded with zeros. */
INLINE void load_head(float *out, size_t padded, const kv_view *kv, const void *base, uint32_t slot, size_t kv_head) {
    const quant_format *format = quant_format_of((uint32_t)kv->type);
    const uint64_t      at = ((uint64_t)slot * kv->kv_heads + kv_head) * kv->head;
    const uint8_t      *from = (const uint8_t *)base + quant_row_bytes(format, at);
    size_t              i = 0;
    if (kv->type == TYPE_Q8_0) {
        for (; i < kv->head; from += 34)
            for (size_t end = i + 32, byte = 2; i < end; i += 8, byte += 8)
                f32_store(out + i, f32_mul(f32_set_f16(from), f32_from_i8(load_u64(from + byte))));
    } else if (kv->type == TYPE_F16) {
        for (; i + WIDE <= kv->head; i += WIDE) wide_store(out + i, wide_from_f16(from + 2 * i));
        format->dequantise(out + i, from + 2 * i, kv->head - i);
    } else {
        memcpy(out, from, kv->head * sizeof *out);
    }
    for (i = kv->head; i < padded; i++) out[i] = 0;
}

/* scores[r][j] = q[r] · k[j] for at most `columns` rows from r on, a constant. */
INLINE void score_rows(attention_scratch *s, size_t r, size_t columns, size_t rows, size_t count, size_t head) {
    for (size_t j = 0; j < count; j += TILE_ROWS) {
        const float *k[TILE_ROWS], *q[TILE_COLUMNS];
        float        sums[TILE_ROWS][TILE_COLUMNS];
        for (size_t i = 0; i < TILE_ROWS; i++) k[i] = s->k + min_size(j + i, count - 1) * head;
        for (size_t i = 0; i < columns; i++) q[i] = s->q + min_size(r + i, rows - 1) * head;
        dot_tile(sums, k, q, columns, head);
        for (size_t i = 0; i < columns && r + i < rows; i++)
            for (size_t l = 0; l < TILE_ROWS && j + l < count; l++) s->scores[r + i][j + l] = sums[l][i];
    }
}

INLINE void score_block(attention_scratch *s, size_t rows, size_t count, size_t head) {
    size_t r = 0;
    for (; r + 2 < rows; r += TILE_COLUMNS) score_rows(s, r, TILE_COLUMNS, rows, count, head);
    if (r < rows) score_rows(s, r, 2, rows, count, head);
}

/* Turns the scores of one row into weights e^(score − highest). Indices that the row does not see get 0. */
INLINE void weigh_row(attention_scratch *s, size_t r, uint64_t index, size_t count, size_t head) {
    float       *scores = s->scores[r];
    const size_t from = s->first[r] > index ? (size_t)(s->first[r] - index) : 0;
    const size_t to = s->last[r] < index ? 0 : min_size(count, (size_t)(s->last[r] - index + 1));
    if (from >= to) {
        memset(scores, 0, sizeof s->scores[r]);
        return;
    }
    for (size_t j = 0; j < BLOCK; j++)
        if (j < from || j >= to) scores[j] = -INFINITY;
    f32x8 most = f32_load(scores);
    for (size_t j = 8; j < BLOCK; j += 8) most = f32_max(most, f32_load(scores + j));
    const float highest = f32_most(most);
    if (highest > s->highest[r]) {
        const float shrink = s->weight[r] > 0 ? expf(s->highest[r] - highest) : 0;
        s->weight[r] *= shrink;
        s->highest[r] = highest;
        simd_scale(s->out + r * head, s->out + r * head, shrink, head);
    }
    f32x8 sum = f32_zero();
    for (size_t j = 0; j < BLOCK; j += 8) {
        const f32x8 score = f32_sub(f32_load(scores + j), f32_set(s->highest[r]));
        const f32x8 weight = f32_choose_less(score, f32_set(-87), f32_zero(), f32_exp(score));
        f32_store(scores + j, weight);
        sum = f32_add(sum, weight);
    }
    s->weight[r] += f32_sum(sum);
}

/* out[r] += Σ_j weight[r][j] v[j] for `count` rows from r on and `parts` registers from i on, both constants: enough sums at
 * once to hide the latency of an addition. */
INLINE void add_values_at(attention_scratch *s, size_t r, size_t count, size_t i, size_t parts, size_t positions,
                          size_t head) {
    wide_f sum[4][4];
    UNROLL for (size_t row = 0; row < count; row++) {
        UNROLL for (size_t part = 0; part < parts; part++) sum[row][part] =
            wide_load(s->out + (r + row) * head + i + part * WIDE);
    }
    for (size_t j = 0; j < positions; j++) {
        wide_f weight[4];
        UNROLL for (size_t row = 0; row < count; row++) weight[row] = wide_set(s->scores[r + row][j]);
        UNROLL for (size_t part = 0; part < parts; part++) {
            const wide_f v = wide_load(s->v + j * head + i + part * WIDE);
            UNROLL for (size_t row = 0; row < count; row++) sum[row][part] = wide_fma(weight[row], v, sum[row][part]);
        }
    }
    UNROLL for (size_t row = 0; row < count; row++) {
        UNROLL for (size_t part = 0; part < parts; part++)
            wide_store(s->out + (r + row) * head + i + part * WIDE, sum[row][part]);
    }
}

INLINE void add_values(attention_scratch *s, size_t r, size_t count, size_t positions, size_t head) {
    enum { PARTS = WIDE == 16 ? 4 : 2 };
    size_t i = 0;
    for (; i + PARTS * WIDE <= head; i += PARTS * WIDE) add_values_at(s, r, count, i, PARTS, positions, head);
    for (; i < head; i += WIDE) add_values_at(s, r, count, i, 1, positions, head);
}

/* Indices [index, index + count) for all rows of the task. */
static void attend_block(const attention_job *job, attention_scratch *s, size_t kv_head, size_t rows, uint64_t index,
                         size_t count) {
    const size_t head = padded_head(job);
    for (size_t j = 0; j < count; j++) {
        const uint32_t slot = record_slot(job->records, job->sliding, (uint32_t)(index + j));
        load_head(s->k + j * head, head, &job->kv, job->kv.k, slot, kv_head);
        load_head(s->v + j * head, head, &job->kv, job->kv.v, slot, kv_head);
    }
    score_block(s, rows, count, head);
    for (size_t r = 0; r < rows; r++) weigh_row(s, r, index, count, head);
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) add_values(s, r, 4, count, head);
    for (; r + 2 <= rows; r += 2) add_values(s, r, 2, count, head);
    for (; r < rows; r++) add_values(s, r, 1, count, head);
}

static void simd_attention(const attention_job *job, size_t task, void *scratch) {
    attention_scratch *s = scratch;
    const size_t       group = job->heads / job->kv.kv_heads, head = job->kv.head, padded = padded_head(job);
    const size_t       tasks = tasks_of_kv_head(job), kv_head = task / tasks, of_task = rows_of_task(job);
    /* The last rows see the most positions. They run first, so that all threads finish together. */
    const size_t begin = (tasks - 1 - task % tasks) * of_task, rows = min_size(of_task, job->tokens * group - begin);
    for (size_t r = 0; r < rows; r++) {
        const size_t token = (begin + r) / group, h = kv_head * group + (begin + r) % group;
        memset(s->q + r * padded, 0, padded * sizeof *s->q);
        memcpy(s->q + r * padded, job->q + (token * job->heads + h) * head, head * sizeof *s->q);
        memset(s->out + r * padded, 0, padded * sizeof *s->out);
        s->highest[r] = -INFINITY;
        s->weight[r] = 0;
        s->first[r] = attention_first(job, token);
        s->last[r] = attention_last(job, token);
    }
    const size_t step = min_size(BLOCK, BLOCK * 512 / padded);
    for (uint64_t index = s->first[0]; index <= s->last[rows - 1]; index += step) {
        const uint64_t left = s->last[rows - 1] - index + 1;
        attend_block(job, s, kv_head, rows, index, left < step ? (size_t)left : step);
    }
    for (size_t r = 0; r < rows; r++) {
        const size_t token = (begin + r) / group, h = kv_head * group + (begin + r) % group;
        simd_scale(job->out + (token * job->heads + h) * head, s->out + r * padded, (float)(1 / s->weight[r]), head);
        if (job->logs) job->logs[token * job->heads + h] = s->highest[r] + logf((float)s->weight[r]);
    }
}

#endif
