/* The gradients of attention, composed of the table's products: a tile of queries against a tile of keys at a time. */

#ifndef GM_CPU_ATTENTION_BACK_H
#define GM_CPU_ATTENTION_BACK_H

#include "cpu/kernels.h"

/* The tokens of one span. Keys and values are F32. */
typedef struct {
    const float        *q, *d;        /* [tokens, heads, head]: queries, and the gradient of the result */
    const float        *logs, *delta; /* [tokens, heads] */
    float              *out;          /* of the queries: like q; of keys and values: [tokens, 2 · kv_heads, head] */
    kv_view             kv;
    size_t              heads, tokens;
    const token_record *records;
    bool                sliding;
    const cpu_kernels  *kernels;
} attention_back_job;

size_t attention_back_q_tasks(const attention_back_job *job);
void   attention_back_q(const attention_back_job *job, size_t task, void *scratch);
size_t attention_back_kv_tasks(const attention_back_job *job);
void   attention_back_kv(const attention_back_job *job, size_t task, void *scratch);

#endif
