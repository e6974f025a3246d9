#include "cli/bench_parallel.h"

#include "cli/interrupt.h"

#include "base/clock.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>

/* Tokens of each sequence that make plans, and are not measured; repeated until a GPU has compiled its shaders, but not for ever. */
enum { WARM_UP = 3, WARM_ROUNDS = 16 };

gm_status bench_numbers_read(const char *name, const char *list, size_t most, size_t *out, size_t capacity,
                             size_t *count, error *e) {
    for (const char *at = list;; at++) {
        char               *end;
        const unsigned long n = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (!n || n > most || (*end && *end != ','))
            return fail(e, GM_BAD_ARGUMENT, "%s takes numbers from 1 to %zu with commas, such as 1,2,4, not '%s'", name,
                        most, list);
        if (*count == capacity) return fail(e, GM_BAD_ARGUMENT, "%s takes at most %zu numbers", name, capacity);
        out[(*count)++] = n;
        at = end;
        if (!*at) return GM_OK;
    }
}

gm_status bench_parallel_read(const char *list, bench_parallel *out, error *e) {
    size_t numbers[BENCH_MOST_COUNTS];
    TRY(bench_numbers_read("--parallel", list, BENCH_MOST_SEQUENCES, numbers, BENCH_MOST_COUNTS, &out->count, e));
    for (size_t i = 0; i < out->count; i++) out->rows[i].count = numbers[i];
    return GM_OK;
}

/* A sequence that is being decoded. */
typedef struct {
    gm_session *session;
    gm_sampling sampling;
    size_t      drawn;
} bench_sequence;

/* Of several adapters each sequence has one, in turn, as on a server. */
static gm_status sequence_adapt(bench_sequence *q, size_t i, const engine_values *values, error *e) {
    const engine_adapters *a = &q->session->engine->adapters;
    const size_t           count = values->adapters.count;
    size_t                 length;
    float                  scale;
    if (count < 2) return GM_OK;
    TRY(adapter_argument(values->adapters.items[i % count], &length, &scale, e));
    return session_set_adapters(q->session, &a->slots[a->own + i % count], &scale, 1, e);
}

/* The prompts differ, so that the sequences go different ways. */
static gm_status sequence_open(const bench_parallel *p, bench_sequence *q, size_t i, size_t extra,
                               const engine_values *values, gm_engine *engine, const int32_t *tokens, error *e) {
    const int32_t first = (int32_t)((size_t)tokens[0] + i) % (int32_t)engine->weights.config.vocabulary;
    char          why[sizeof e->why] = "";
    gm_status     status = session_open(values, engine, p->depth + p->tokens + extra + 1, &q->session, e);
    if (status) return status;
    TRY(sequence_adapt(q, i, values, e));
    q->session->shares = false;
    gm_sampling_default(engine, &q->sampling);
    q->sampling.seed = i;
    if (engine->on_gpu) q->sampling.temperature = 0;
    while ((status = gm_session_append(q->session, &first, 1, why, sizeof why)) == GM_AGAIN) {}
    while (!status && p->depth > 1) {
        status = gm_session_append(q->session, tokens + 1, p->depth - 1, why, sizeof why);
        if (!status) break;
        status = interrupted() ? GM_CANCELLED : status == GM_AGAIN ? GM_OK : status;
    }
    return status ? fail(e, status, "%s", status == GM_CANCELLED ? "interrupted" : why) : GM_OK;
}

/* One call; the token drawn is held, and computed with the next one. */
static gm_status sequence_advance(bench_sequence *q, size_t most, error *e) {
    int32_t         token;
    const draw_wish wish = { .sampling = &q->sampling, .most = most - q->drawn };
    const gm_status status = session_next(q->session, &wish, &token, clock_seconds() + 0.05, e);
    if (status) return status == GM_AGAIN ? GM_OK : status;
    q->drawn++;
    return session_hold(q->session, token, e);
}

static gm_status sequences_decode(bench_sequence *all, size_t count, size_t most, error *e) {
    for (size_t i = 0; i < count; i++) all[i].drawn = 0;
    for (bool open = true; open;) {
        open = false;
        for (size_t i = 0; i < count; i++) {
            if (all[i].drawn == most) continue;
            if (interrupted()) return fail(e, GM_CANCELLED, "interrupted");
            TRY(sequence_advance(&all[i], most, e));
            open = true;
        }
    }
    return GM_OK;
}

/* Tokens that a sequence may draw while the others begin. */
static size_t sequence_extra(size_t count) { return 8 * count + WARM_UP * WARM_ROUNDS; }

/* How long `tokens` of each sequence take in all, counted from when the last one has drawn its first. They begin one after the other, as
 * requests do. */
static gm_status sequences_time(bench_sequence *all, size_t count, size_t tokens, double *seconds, error *e) {
    const size_t most = tokens + sequence_extra(count);
    size_t       begun = 0, drawn = 0; /* sequences, and tokens since all have begun */
    double       start = 0;
    for (size_t i = 0; i < count; i++) all[i].drawn = 0;
    for (size_t i = 0;; i = (i + 1) % count) {
        const size_t before = all[i].drawn;
        if (interrupted()) return fail(e, GM_CANCELLED, "interrupted");
        TRY(sequence_advance(&all[i], most, e));
        const bool advanced = all[i].drawn > before;
        drawn += advanced && begun == count;
        begun += advanced && !before;
        if (begun == count && !drawn && start <= 0) start = clock_seconds();
        if (drawn < count * tokens && all[i].drawn < most) continue;
        *seconds = (clock_seconds() - start) * (double)(count * tokens) / (double)max_size(drawn, 1);
        return GM_OK;
    }
}

/* Until the GPU's shaders are compiled, sequences are decoded one by one. */
static gm_status sequences_warm_up(bench_sequence *all, size_t count, size_t most, const gm_engine *engine, error *e) {
    for (size_t round = 0, ready = 0; round < WARM_ROUNDS && ready < 2; round++) {
        TRY(sequences_decode(all, count, most, e));
        ready = engine->on_gpu && gpu_pipelines_pending(engine->gpu.host) ? 0 : ready + 1;
        while (!ready && gpu_pipelines_pending(engine->gpu.host)) {
            if (interrupted()) return fail(e, GM_CANCELLED, "interrupted");
            gpu_host_wait(engine->gpu.host, 10);
        }
    }
    return GM_OK;
}

gm_status bench_parallel_measure(bench_parallel *p, size_t i, const engine_values *values, gm_engine *engine,
                                 const int32_t *tokens, gpu_profile *profile, error *e) {
    bench_parallel_row *row = &p->rows[i];
    bench_sequence     *all = calloc(row->count, sizeof *all);
    gm_status           status = all ? GM_OK : fail_memory(e, "the sequences", row->count * sizeof *all);
    for (size_t k = 0; k < row->count && !status; k++)
        status = sequence_open(p, &all[k], k, 2 * sequence_extra(row->count), values, engine, tokens, e);
    if (!status) status = sequences_warm_up(all, row->count, min_size(WARM_UP, p->tokens), engine, e);
    if (!status && profile) status = gpu_profile_start(profile, &engine->gpu, e);
    const bool timed = !status && profile;
    double     seconds = 0;
    if (!status) status = sequences_time(all, row->count, p->tokens, &seconds, e);
    error           ignored = { 0 };
    const gm_status ended = timed ? gpu_profile_end(profile, status ? &ignored : e) : GM_OK;
    if (!status) status = ended;
    if (!status && !profile && (row->seconds == 0 || seconds < row->seconds)) row->seconds = seconds;
    for (size_t k = 0; all && k < row->count; k++) gm_session_free(all[k].session);
    free(all);
    return status;
}

static double row_speed(const bench_parallel *p, const bench_parallel_row *row) {
    return row->seconds > 0 ? (double)(row->count * p->tokens) / row->seconds : 0;
}

void bench_parallel_print(const bench_parallel *p) {
    for (size_t i = 0; i < p->count; i++) {
        const bench_parallel_row *row = &p->rows[i];
        const double              speed = row_speed(p, row);
        printf("%-9s %3zu at once: %.2f tokens per second, %.2f each (%zu tokens at depth %zu)\n", i ? "" : "parallel",
               row->count, speed, speed / (double)row->count, p->tokens, p->depth);
    }
}

void bench_parallel_report(report *r, const bench_parallel *p) {
    report_open(r, "parallel", '[');
    for (size_t i = 0; i < p->count; i++) {
        const bench_parallel_row *row = &p->rows[i];
        const double              speed = row_speed(p, row);
        report_open(r, NULL, '{');
        report_count(r, "sequences", row->count);
        report_count(r, "tokens", p->tokens);
        report_count(r, "depth", p->depth);
        report_number(r, "seconds", row->seconds);
        report_number(r, "tokens_per_second", speed);
        report_number(r, "tokens_per_second_each", speed / (double)row->count);
        report_close(r, '}');
    }
    report_close(r, ']');
}
