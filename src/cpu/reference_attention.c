/* Attention of the scalar table. A task is one query head of one token. */

#include "cpu/exact.h"
#include "cpu/reference.h"

#include <math.h>

size_t reference_attention_tasks(const attention_job *job) { return job->tokens * job->heads; }

/* One head of one slot as f32. */
static void load_head(float *out, const kv_view *kv, const void *base, uint32_t slot, size_t kv_head) {
    const quant_format *format = quant_format_of((uint32_t)kv->type);
    const uint64_t      at = ((uint64_t)slot * kv->kv_heads + kv_head) * kv->head;
    format->dequantise(out, (const uint8_t *)base + quant_row_bytes(format, at), kv->head / format->block);
}

static float score_of(const float *query, const float *key, size_t head) {
    float lanes[4] = { 0 };
    exact_dot_add(lanes, query, key, head);
    return exact_dot_end(lanes);
}

/* Twice over the keys, which gives the same bits everywhere (cpu/exact.h): for the largest score, and for the sums in the order of the keys. */
void reference_attention(const attention_job *job, size_t task, void *scratch) {
    const size_t   head = job->kv.head, token = task / job->heads, h = task % job->heads;
    const size_t   kv_head = h / (job->heads / job->kv.kv_heads);
    const uint64_t first = attention_first(job, token), last = attention_last(job, token);
    const float   *q = job->q + (token * job->heads + h) * head;
    float         *out = job->out + (token * job->heads + h) * head, *row = scratch;
    float          highest = -INFINITY, sum = 0;
    for (uint64_t j = first; j <= last; j++) {
        load_head(row, &job->kv, job->kv.k, record_slot(job->records, job->sliding, (uint32_t)j), kv_head);
        const float score = score_of(q, row, head);
        if (!(score <= highest)) highest = score;
    }
    for (size_t i = 0; i < head; i++) out[i] = 0;
    for (uint64_t j = first; j <= last; j++) {
        const uint32_t slot = record_slot(job->records, job->sliding, (uint32_t)j);
        load_head(row, &job->kv, job->kv.k, slot, kv_head);
        const float weight = exact_exp(score_of(q, row, head) - highest);
        load_head(row, &job->kv, job->kv.v, slot, kv_head);
        sum += weight;
        for (size_t i = 0; i < head; i++) out[i] += weight * row[i];
    }
    const float inverse = exact_inverse(sum);
    for (size_t i = 0; i < head; i++) out[i] *= inverse;
    if (job->logs) job->logs[token * job->heads + h] = highest + exact_log(sum);
}
