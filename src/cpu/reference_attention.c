/* Attention of the scalar table. A task is one query head of one token; the softmax keeps a running maximum. */

#include "cpu/reference.h"

#include <math.h>

size_t reference_attention_tasks(const attention_job *job) { return job->tokens * job->heads; }

/* One head of one slot as f32. */
static void load_head(float *out, const kv_view *kv, const void *base, uint32_t slot, size_t kv_head) {
    const quant_format *format = quant_format_of((uint32_t)kv->type);
    const uint64_t      at = ((uint64_t)slot * kv->kv_heads + kv_head) * kv->head;
    format->dequantise(out, (const uint8_t *)base + quant_row_bytes(format, at), kv->head / format->block);
}

void reference_attention(const attention_job *job, size_t task, void *scratch) {
    const size_t   head = job->kv.head, token = task / job->heads, h = task % job->heads;
    const size_t   kv_head = h / (job->heads / job->kv.kv_heads);
    const uint64_t first = attention_first(job, token), last = attention_last(job, token);
    const float   *q = job->q + (token * job->heads + h) * head;
    float         *out = job->out + (token * job->heads + h) * head;
    double        *sum = scratch; /* Σ e^(score − highest) · v, and the same without v in `weight` */
    float         *row = (float *)(sum + head);
    double         highest = -INFINITY, weight = 0;
    for (size_t i = 0; i < head; i++) sum[i] = 0;
    for (uint64_t j = first; j <= last; j++) {
        const uint32_t slot = record_slot(job->records, job->sliding, (uint32_t)j);
        double         score = 0;
        load_head(row, &job->kv, job->kv.k, slot, kv_head);
        for (size_t i = 0; i < head; i++) score += (double)q[i] * row[i];
        if (score > highest) {
            const double shrink = exp(highest - score); /* 0 at first */
            weight *= shrink;
            for (size_t i = 0; i < head; i++) sum[i] *= shrink;
            highest = score;
        }
        const double e = exp(score - highest);
        load_head(row, &job->kv, job->kv.v, slot, kv_head);
        weight += e;
        for (size_t i = 0; i < head; i++) sum[i] += e * row[i];
    }
    for (size_t i = 0; i < head; i++) out[i] = (float)(sum[i] / weight);
    if (job->logs) job->logs[token * job->heads + h] = (float)(highest + log(weight));
}
