#include "serve/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Seconds; the same for both histograms, so that they can be compared. */
static const double bounds[METRICS_BUCKETS] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                0.25,  0.5,    1,     2.5,  5,     10,   30 };

void metrics_open(metrics *m) {
    *m = (metrics){ 0 };
    pthread_mutex_init(&m->lock, NULL);
}

void metrics_close(metrics *m) { pthread_mutex_destroy(&m->lock); }

/* ---- counting ---- */

void metrics_request(metrics *m, const char *route, unsigned status, bool cut_off) {
    pthread_mutex_lock(&m->lock);
    size_t i = 0;
    while (i < m->series && (m->requests[i].status != status || strcmp(m->requests[i].route, route) != 0)) i++;
    if (i == m->series && i < METRICS_MOST_SERIES - 1) m->requests[m->series++] = (request_series){ route, status, 0 };
    m->requests[i].count++;
    m->cut_off += cut_off;
    pthread_mutex_unlock(&m->lock);
}

static void histogram_add(histogram *h, double seconds) {
    size_t i = 0;
    while (i < METRICS_BUCKETS && seconds > bounds[i]) i++;
    h->buckets[i]++;
    h->count++;
    h->sum += seconds;
}

void metrics_token(metrics *m, bool first, double seconds) {
    pthread_mutex_lock(&m->lock);
    histogram_add(first ? &m->first_token : &m->next_token, seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_answer(metrics *m, size_t prompt_tokens, size_t cached_tokens, size_t reply_tokens) {
    pthread_mutex_lock(&m->lock);
    m->prompt_tokens += prompt_tokens;
    m->cached_tokens += cached_tokens;
    m->reply_tokens += reply_tokens;
    pthread_mutex_unlock(&m->lock);
}

void metrics_load(metrics *m, size_t running, size_t waiting) {
    pthread_mutex_lock(&m->lock);
    m->running = running;
    m->waiting = waiting;
    pthread_mutex_unlock(&m->lock);
}

void metrics_cache(metrics *m, size_t tokens, size_t capacity) {
    pthread_mutex_lock(&m->lock);
    m->cache_tokens = tokens;
    m->cache_capacity = capacity;
    pthread_mutex_unlock(&m->lock);
}

void metrics_experts(metrics *m, uint64_t uses, uint64_t misses, uint64_t bytes) {
    pthread_mutex_lock(&m->lock);
    m->expert_uses = uses;
    m->expert_misses = misses;
    m->expert_bytes = bytes;
    pthread_mutex_unlock(&m->lock);
}

/* ---- writing ---- */

static void metrics_write_name(buffer *out, const char *name, const char *type, const char *help) {
    buffer_printf(out, "# HELP gemmule_%s %s\n# TYPE gemmule_%s %s\n", name, help, name, type);
}

static void metrics_write_value(buffer *out, const char *name, const char *type, const char *help, uint64_t value) {
    metrics_write_name(out, name, type, help);
    buffer_printf(out, "gemmule_%s %" PRIu64 "\n", name, value);
}

static void metrics_write_histogram(buffer *out, const char *name, const char *help, const histogram *h) {
    uint64_t sum = 0;
    metrics_write_name(out, name, "histogram", help);
    for (size_t i = 0; i < METRICS_BUCKETS; i++) {
        sum += h->buckets[i];
        buffer_printf(out, "gemmule_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], sum);
    }
    buffer_printf(out,
                  "gemmule_%s_bucket{le=\"+Inf\"} %" PRIu64 "\ngemmule_%s_sum %.9g\ngemmule_%s_count %" PRIu64 "\n",
                  name, h->count, name, h->sum, name, h->count);
}

/* Routes are our own texts and need no escapes. */
static void metrics_write_requests(const metrics *m, buffer *out) {
    metrics_write_name(out, "requests_total", "counter",
                       "Requests by route and status; status 0: the client left before the answer.");
    for (size_t i = 0; i < METRICS_MOST_SERIES; i++) {
        const request_series *s = &m->requests[i];
        if (s->count)
            buffer_printf(out, "gemmule_requests_total{route=\"%s\",status=\"%u\"} %" PRIu64 "\n",
                          s->route ? s->route : "more", s->status, s->count);
    }
}

void metrics_write(metrics *m, buffer *out) {
    pthread_mutex_lock(&m->lock);
    metrics_write_requests(m, out);
    metrics_write_value(out, "requests_cut_off_total", "counter", "Requests whose client left before the end.",
                        m->cut_off);
    metrics_write_value(out, "requests_running", "gauge", "Answers that are being written.", m->running);
    metrics_write_value(out, "requests_waiting", "gauge", "Requests in the queue.", m->waiting);
    metrics_write_value(out, "parallel", "gauge", "Answers that can be written at once.", m->places);
    metrics_write_value(out, "prompt_tokens_total", "counter", "Tokens of prompts.", m->prompt_tokens);
    metrics_write_value(out, "prompt_tokens_cached_total", "counter", "Tokens of prompts that were cached.",
                        m->cached_tokens);
    metrics_write_value(out, "reply_tokens_total", "counter", "Tokens written.", m->reply_tokens);
    metrics_write_histogram(out, "time_to_first_token_seconds", "From the request to the first token of its answer.",
                            &m->first_token);
    metrics_write_histogram(out, "time_between_tokens_seconds", "Between two tokens of an answer.", &m->next_token);
    metrics_write_value(out, "cache_tokens", "gauge",
                        "Positions of keys and values that sessions hold or keep for others.", m->cache_tokens);
    metrics_write_value(out, "cache_capacity_tokens", "gauge", "Positions that memory is allocated for.",
                        m->cache_capacity);
    metrics_write_value(out, "expert_uses_total", "counter", "Uses of experts, if the GPU has a cache of them.",
                        m->expert_uses);
    metrics_write_value(out, "expert_misses_total", "counter", "Of these, uses of experts that were not on the GPU.",
                        m->expert_misses);
    metrics_write_value(out, "expert_bytes_total", "counter", "Bytes of experts that were loaded.", m->expert_bytes);
    pthread_mutex_unlock(&m->lock);
}
