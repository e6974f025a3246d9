#include "cpu/attention_back.h"

#include "graph/graph.h"

#include <math.h>
#include <string.h>

enum { TILE = 64 }; /* keys of a tile, and about as many queries: tokens times the heads that share a K/V head */

/* A tile of queries, copied together; the probabilities p of its scores and their gradients e, both also the other way round. */
typedef struct {
    size_t   first, tokens, columns;
    float   *q, *d;     /* [columns, head] */
    float   *p, *e;     /* [columns, TILE] */
    float   *across[2]; /* [TILE, columns]: p and e */
    uint8_t *rest;      /* of the scratch memory, for the products */
} query_tile;

_Static_assert((2 * ATTENTION_BACK_HEAD + 4 * TILE) * TILE * sizeof(float) <= BACK_SCRATCH &&
                   (size_t)ATTENTION_BACK_GROUP <= (size_t)TILE,
               "a tile needs more scratch memory than there is");

static size_t query_group(const attention_back_job *job) { return job->heads / job->kv.kv_heads; }

static size_t tile_tokens(const attention_back_job *job) { return max_size(1, TILE / query_group(job)); }

static query_tile tile_begin(const attention_back_job *job, void *scratch) {
    const size_t columns = tile_tokens(job) * query_group(job), head = job->kv.head;
    query_tile   t = { .q = scratch };
    t.d = t.q + columns * head;
    t.p = t.d + columns * head;
    t.e = t.p + columns * TILE;
    t.across[0] = t.e + columns * TILE;
    t.across[1] = t.across[0] + columns * TILE;
    t.rest = (uint8_t *)scratch + BACK_SCRATCH;
    return t;
}

static void tile_fill(query_tile *t, const attention_back_job *job, size_t first, size_t kv_head) {
    const size_t group = query_group(job), head = job->kv.head;
    t->first = first;
    t->tokens = min_size(tile_tokens(job), job->tokens - first);
    t->columns = t->tokens * group;
    for (size_t i = 0; i < t->tokens; i++) {
        const size_t at = ((first + i) * job->heads + kv_head * group) * head;
        memcpy(t->q + i * group * head, job->q + at, group * head * sizeof(float));
        memcpy(t->d + i * group * head, job->d + at, group * head * sizeof(float));
    }
}

static void tile_product(const query_tile *t, const attention_back_job *job, const float *rows, size_t n,
                         const float *x, float *y) {
    const matmul_job product = { .w = (const uint8_t *)rows,
                                 .row_bytes = job->kv.kv_heads * job->kv.head * sizeof(float),
                                 .k = job->kv.head,
                                 .type = TYPE_F32,
                                 .x = x,
                                 .y = y,
                                 .y_stride = TILE,
                                 .columns = t->columns };
    job->kernels->matmul_f32(&product, 0, n, t->rest);
}

/* Keys [index, index + n), whose slots are adjacent. */
typedef struct {
    uint32_t     index;
    size_t       n;
    const float *k, *v;
} key_tile;

static key_tile key_tile_at(const attention_back_job *job, uint32_t index, size_t most, size_t kv_head) {
    const token_record *r = job->records;
    const size_t        at = ((size_t)record_slot(r, job->sliding, index) * job->kv.kv_heads + kv_head) * job->kv.head;
    size_t              n = min_size(most, TILE);
    if (job->sliding) n = min_size(n, r->ring_slots - index % r->ring_slots);
    else if (index < r->shared) n = min_size(n, r->shared - index);
    return (key_tile){ index, n, (const float *)job->kv.k + at, (const float *)job->kv.v + at };
}

/* p = exp(q·k − log) and e = p·(d·v − delta) where the query sees the key, else 0. */
static void tile_weigh(query_tile *t, const attention_back_job *job, const key_tile *keys, size_t kv_head) {
    const size_t group = query_group(job);
    tile_product(t, job, keys->k, keys->n, t->q, t->p);
    tile_product(t, job, keys->v, keys->n, t->d, t->e);
    for (size_t c = 0; c < t->columns; c++) {
        const size_t        token = t->first + c / group, row = token * job->heads + kv_head * group + c % group;
        const token_record *r = &job->records[token];
        const uint32_t      first = record_first(r, job->sliding), last = record_last(r, job->sliding);
        for (size_t j = 0; j < keys->n; j++) {
            const uint32_t index = keys->index + (uint32_t)j;
            float         *p = t->p + c * TILE + j, *e = t->e + c * TILE + j;
            *p = index >= first && index <= last ? expf(*p - job->logs[row]) : 0;
            *e = *p == 0 ? 0 : *p * (*e - job->delta[row]);
            t->across[0][j * t->columns + c] = *p;
            t->across[1][j * t->columns + c] = *e;
        }
    }
}

/* ---- queries: a task is a tile of them and a K/V head ---- */

static size_t query_tiles(const attention_back_job *job) {
    return (job->tokens + tile_tokens(job) - 1) / tile_tokens(job);
}

size_t attention_back_q_tasks(const attention_back_job *job) { return query_tiles(job) * job->kv.kv_heads; }

void attention_back_q(const attention_back_job *job, size_t task, void *scratch) {
    const size_t kv_head = task % job->kv.kv_heads, group = query_group(job), head = job->kv.head;
    query_tile   t = tile_begin(job, scratch);
    tile_fill(&t, job, task / job->kv.kv_heads * tile_tokens(job), kv_head);
    const uint64_t first = record_first(&job->records[t.first], job->sliding),
                   end = (uint64_t)record_last(&job->records[t.first + t.tokens - 1], job->sliding) + 1;
    for (size_t i = 0; i < t.tokens; i++)
        memset(job->out + ((t.first + i) * job->heads + kv_head * group) * head, 0, group * head * sizeof(float));
    for (uint64_t index = first; index < end;) {
        const key_tile keys = key_tile_at(job, (uint32_t)index, (size_t)(end - index), kv_head);
        tile_weigh(&t, job, &keys, kv_head);
        for (size_t c = 0; c < t.columns; c++) {
            float *out = job->out + ((t.first + c / group) * job->heads + kv_head * group + c % group) * head;
            job->kernels->add_rows(out, keys.k, job->kv.kv_heads * head, t.e + c * TILE, keys.n, head);
        }
        index += keys.n;
    }
}

/* ---- keys and values: a task is up to TILE tokens and a K/V head ---- */

size_t attention_back_kv_tasks(const attention_back_job *job) {
    return (job->tokens + TILE - 1) / TILE * job->kv.kv_heads;
}

/* The gradients of n keys, those of the tokens from `row` on. */
static void keys_gather(const attention_back_job *job, query_tile *t, size_t row, const key_tile *keys,
                        size_t kv_head) {
    const size_t   head = job->kv.head, rows = 2 * job->kv.kv_heads;
    const uint32_t end = keys->index + (uint32_t)keys->n;
    for (size_t token = 0; token < job->tokens; token += tile_tokens(job)) {
        const size_t last = min_size(token + tile_tokens(job), job->tokens) - 1;
        if (record_last(&job->records[last], job->sliding) < keys->index) continue;
        if (record_first(&job->records[token], job->sliding) >= end) break;
        tile_fill(t, job, token, kv_head);
        tile_weigh(t, job, keys, kv_head);
        for (size_t j = 0; j < keys->n; j++) {
            float *out = job->out + ((row + j) * rows + kv_head) * head;
            job->kernels->add_rows(out, t->q, head, t->across[1] + j * t->columns, t->columns, head);
            out += job->kv.kv_heads * head;
            job->kernels->add_rows(out, t->d, head, t->across[0] + j * t->columns, t->columns, head);
        }
    }
}

void attention_back_kv(const attention_back_job *job, size_t task, void *scratch) {
    const size_t kv_head = task % job->kv.kv_heads, head = job->kv.head;
    const size_t first = task / job->kv.kv_heads * TILE, end = min_size(first + TILE, job->tokens);
    query_tile   t = tile_begin(job, scratch);
    for (size_t row = first, n; row < end; row += n) {
        const token_record *r = &job->records[row];
        n = 1;
        while (row + n < end && r[n].at == r->at + n) n++;
        key_tile keys = { 0 };
        if (r->at != RUN_NOWHERE) keys = key_tile_at(job, r->at, n, kv_head);
        if (keys.n) n = keys.n;
        for (size_t i = 0; i < 2 * n; i++)
            memset(job->out + ((row + i / 2) * 2 + i % 2) * job->kv.kv_heads * head + kv_head * head, 0,
                   head * sizeof(float));
        if (keys.n) keys_gather(job, &t, row, &keys, kv_head);
    }
}
