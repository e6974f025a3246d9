#include "cli/bench_train.h"

#include "cli/bench_parallel.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/random.h"
#include "train/fresh.h"
#include "train/training_parts.h"

#include <stdio.h>
#include <stdlib.h>

enum { SEQUENCE_TOKENS = 512, TRAIN_RANK = 16 };

gm_status bench_train_read(const char *list, bench_train *out, error *e) {
    size_t numbers[BENCH_TRAIN_COUNTS];
    TRY(bench_numbers_read("--train", list, BENCH_TRAIN_MOST, numbers, BENCH_TRAIN_COUNTS, &out->count, e));
    for (size_t i = 0; i < out->count; i++) out->rows[i].tokens = numbers[i];
    return GM_OK;
}

/* A trainer, and the tokens of a step. */
typedef struct {
    gm_engine  *engine;
    adapter    *adapter;
    trainer    *trainer;
    size_t      tokens, run_tokens;
    int32_t    *ids;
    float      *weights;
    train_span *spans; /* of a full run */
    uint64_t    step;
} bench_trainee;

static gm_status trainee_make_tokens(bench_trainee *t, error *e) {
    const uint32_t vocabulary = t->engine->weights.config.vocabulary, key[2] = { 7, 0 };
    t->run_tokens = min_size(t->tokens, max_size(TRAINING_RUN_TOKENS, SEQUENCE_TOKENS));
    t->ids = calloc(t->tokens, sizeof *t->ids);
    t->weights = calloc(t->tokens, sizeof *t->weights);
    t->spans = calloc(t->run_tokens / SEQUENCE_TOKENS + 1, sizeof *t->spans);
    if (!t->ids || !t->weights || !t->spans) return fail_memory(e, "the tokens", t->tokens * sizeof *t->ids);
    for (size_t i = 0; i < t->tokens; i++) {
        uint32_t words[4];
        philox((uint32_t[]){ (uint32_t)i, 0, 0, 0 }, key, words);
        t->ids[i] = (int32_t)(words[0] % vocabulary);
        t->weights[i] = 1;
    }
    return GM_OK;
}

static gm_status trainee_open(bench_trainee *t, error *e) {
    const fresh_options fresh = { .rank = TRAIN_RANK, .alpha = 2 * TRAIN_RANK, .seed = 1 };
    TRY(trainee_make_tokens(t, e));
    TRY(adapter_fresh(&t->engine->weights, &fresh, "bench", &t->adapter, e));
    return trainer_new(t->engine, &(trainer_options){ .adapter = t->adapter, .tokens = t->run_tokens }, &t->trainer, e);
}

static void trainee_close(bench_trainee *t) {
    trainer_free(t->trainer);
    adapter_free(t->adapter);
    free(t->ids);
    free(t->weights);
    free(t->spans);
}

/* A run with the tokens from `first` on. */
static gm_status trainee_run(bench_trainee *t, size_t first, double share, error *e) {
    const size_t count = min_size(t->run_tokens, t->tokens - first);
    size_t       spans = 0;
    gm_status    status;
    for (size_t at = 0; at < count; at += SEQUENCE_TOKENS)
        t->spans[spans++] = (train_span){ at, min_size(SEQUENCE_TOKENS, count - at) };
    const train_run run = {
        .ids = t->ids + first, .weights = t->weights + first, .count = count, .spans = t->spans, .span_count = spans
    };
    TRY(trainer_begin(t->trainer, &run, share, e));
    while ((status = trainer_work(t->trainer, clock_seconds() + 0.1, e)) == GM_AGAIN) {
        if (interrupted()) return fail(e, GM_CANCELLED, "interrupted");
    }
    return status;
}

static gm_status trainee_step(bench_trainee *t, double *loss, double *seconds, error *e) {
    const adamw_settings settings = { .rate = 1e-4, .beta = { 0.9, 0.999 }, .eps = 1e-8, .most_norm = 1 };
    const double         start = clock_seconds();
    double               norm;
    gm_status            status = GM_OK;
    for (size_t first = 0; first < t->tokens && !status; first += t->run_tokens)
        status = trainee_run(t, first, 1 / (double)t->tokens, e);
    *loss = trainer_loss(t->trainer);
    t->step++;
    while (!status && (status = trainer_update(t->trainer, &settings, t->step, &norm, clock_seconds() + 0.1, e)) != 0) {
        if (status != GM_AGAIN) return status;
        status = interrupted() ? fail(e, GM_CANCELLED, "interrupted") : GM_OK;
    }
    *seconds = clock_seconds() - start;
    return status;
}

static gm_status trainee_measure(bench_trainee *t, bench_train_row *row, size_t repeats, gpu_profile *profile,
                                 error *e) {
    TRY(trainee_open(t, e));
    TRY(trainee_step(t, &row->loss, &row->first_seconds, e));
    row->runs = (t->tokens + t->run_tokens - 1) / t->run_tokens;
    row->bytes = trainer_bytes(t->trainer);
    row->kept = trainer_kept(t->trainer);
    if (t->engine->on_gpu) row->gpu_bytes = gpu_host_bytes(t->engine->gpu.host);
    trainer_longest_piece(t->trainer); /* compiling is over */
    for (size_t i = 0; i < repeats; i++) {
        double seconds = 0;
        TRY(trainee_step(t, &row->loss, &seconds, e));
        if (row->seconds == 0 || seconds < row->seconds) row->seconds = seconds;
    }
    row->longest = trainer_longest_piece(t->trainer);
    if (!profile) return GM_OK;
    double ignored;
    error  second = { 0 };
    TRY(gpu_profile_start(profile, &t->engine->gpu, e));
    const gm_status status = trainee_step(t, &row->loss, &ignored, e);
    const gm_status ended = gpu_profile_end(profile, status ? &second : e);
    return status ? status : ended;
}

gm_status bench_train_measure(bench_train *b, size_t i, gm_engine *engine, size_t repeats, gpu_profile *profile,
                              error *e) {
    bench_trainee t = { .engine = engine, .tokens = b->rows[i].tokens };
    engine_enter(engine);
    const gm_status status = trainee_measure(&t, &b->rows[i], repeats, profile, e);
    trainee_close(&t);
    engine_leave(engine);
    return status;
}

static double train_speed(const bench_train_row *row) {
    return row->seconds > 0 ? (double)row->tokens / row->seconds : 0;
}

void bench_train_print(const bench_train *b) {
    for (size_t i = 0; i < b->count; i++) {
        const bench_train_row *row = &b->rows[i];
        char                   own[32], all[32];
        format_bytes(row->bytes, own);
        format_bytes(row->gpu_bytes, all);
        printf("%-9s %.2f tokens per second (%zu tokens a step, %.3f s; the first took %.3f s)\n", i ? "" : "train",
               train_speed(row), row->tokens, row->seconds, row->first_seconds);
        printf("          training takes %s", own);
        if (row->gpu_bytes) printf(", all on the GPU %s; at most %.0f ms at once", all, row->longest * 1e3);
        printf("; %u layers are kept, loss %.4f\n", row->kept, row->loss);
    }
}

void bench_train_report(report *r, const bench_train *b) {
    report_open(r, "train", '[');
    for (size_t i = 0; i < b->count; i++) {
        const bench_train_row *row = &b->rows[i];
        report_open(r, NULL, '{');
        report_count(r, "tokens", row->tokens);
        report_count(r, "runs", row->runs);
        report_number(r, "seconds", row->seconds);
        report_number(r, "tokens_per_second", train_speed(row));
        report_number(r, "first_seconds", row->first_seconds);
        report_number(r, "longest_submit_seconds", row->longest);
        report_count(r, "memory_bytes", row->bytes);
        report_count(r, "gpu_bytes", row->gpu_bytes);
        report_count(r, "kept_layers", row->kept);
        report_number(r, "loss", row->loss);
        report_close(r, '}');
    }
    report_close(r, ']');
}
