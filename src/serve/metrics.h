/* What the server counts, for GET /metrics: Prometheus' text form. Any thread may call any of these at any time. */

#ifndef GM_SERVE_METRICS_H
#define GM_SERVE_METRICS_H

#include "base/buffer.h"

#include <pthread.h>

enum { METRICS_MOST_SERIES = 96, METRICS_BUCKETS = 14 };

/* Requests of one route with one status. */
typedef struct {
    const char *route; /* lives as long as the metrics */
    unsigned    status;
    uint64_t    count;
} request_series;

typedef struct {
    uint64_t buckets[METRICS_BUCKETS + 1]; /* values up to each bound, not cumulative; the last has the rest */
    uint64_t count;
    double   sum;
} histogram;

typedef struct {
    pthread_mutex_t lock;
    request_series  requests[METRICS_MOST_SERIES];
    size_t          series;
    uint64_t        cut_off; /* of these, those whose client disconnected */
    uint64_t        prompt_tokens, cached_tokens, reply_tokens;
    histogram       first_token, next_token;
    size_t          running, waiting, places;     /* answers being written, requests that wait, most at once */
    size_t          cache_tokens, cache_capacity; /* positions of keys and values: held, and with memory for them */
    uint64_t        expert_uses, expert_misses, expert_bytes; /* of the cache of experts on the GPU */
} metrics;

void metrics_open(metrics *m);
void metrics_close(metrics *m);

/* A request has ended. `status` 0: it was never answered. */
void metrics_request(metrics *m, const char *route, unsigned status, bool cut_off);
/* A token was written, so many seconds after the request came, or after the token before. */
void metrics_token(metrics *m, bool first, double seconds);
/* An answer has ended, whatever the reason. */
void metrics_answer(metrics *m, size_t prompt_tokens, size_t cached_tokens, size_t reply_tokens);
void metrics_load(metrics *m, size_t running, size_t waiting);
void metrics_cache(metrics *m, size_t tokens, size_t capacity);
void metrics_experts(metrics *m, uint64_t uses, uint64_t misses, uint64_t bytes);

void metrics_write(metrics *m, buffer *out);

#endif
