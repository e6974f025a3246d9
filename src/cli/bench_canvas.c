#include "cli/bench_canvas.h"

#include "base/clock.h"
#include "cli/interrupt.h"
#include "session/session.h"

#include <stdio.h>

static gm_status canvas_append(gm_session *s, const int32_t *tokens, size_t count, error *e) {
    char      why[sizeof e->why] = "";
    gm_status status = GM_OK;
    while (count && (status = gm_session_append(s, tokens, count, why, sizeof why)) == GM_AGAIN) {}
    return status ? fail(e, status, "%s", why) : GM_OK;
}

/* The steps of one block. `best`: the least time of a step so far, on average in its block, since two are under way at once. */
static gm_status canvas_denoise(bench_canvas *b, session_canvas *c, size_t most_steps, double *best, error *e) {
    gm_engine *engine = c->session->engine;
    c->numbers.config.steps = (uint32_t)min_size(most_steps, engine->weights.config.canvas.steps);
    engine_enter(engine);
    gm_status status = session_canvas_begin(c, 1, 0, NULL, 0, e);
    engine_leave(engine);
    const double start = clock_seconds();
    for (b->steps = 0; !status && !c->numbers.done; b->steps++) {
        do {
            engine_enter(engine);
            status = session_canvas_step(c, engine_deadline(engine), e);
            engine_leave(engine);
        } while (status == GM_AGAIN);
        if (!status && interrupted()) status = fail(e, GM_CANCELLED, "interrupted");
    }
    const double each = (clock_seconds() - start) / (double)max_size(b->steps, 1);
    if (!status && (*best == 0 || each < *best)) *best = each;
    return status;
}

gm_status bench_canvas_measure(bench_canvas *b, const engine_values *values, gm_engine *engine, const int32_t *tokens,
                               size_t most_steps, gpu_profile *timed, error *e) {
    gm_session     *s = NULL;
    session_canvas *c = NULL;
    b->length = engine->weights.config.canvas.length;
    TRY(session_open(values, engine, b->depth + 2 * b->length, &s, e));
    s->shares = false;
    interrupt_watch(s);
    gm_status status = canvas_append(s, tokens, b->depth, e);
    if (!status) {
        engine_enter(engine);
        status = session_canvas_get(s, &c, e);
        engine_leave(engine);
    }
    const expert_statistics seen = expert_statistics_since(&engine->gpu, &(expert_statistics){ 0 });
    const double            start = clock_seconds();
    if (!status && timed) status = gpu_profile_start(timed, &engine->gpu, e);
    if (!status) {
        status = canvas_denoise(b, c, most_steps, &b->step_seconds, e);
        if (timed) {
            error           ignored = { 0 };
            const gm_status ended = gpu_profile_end(timed, status ? &ignored : e);
            if (!status) status = ended;
        }
    }
    if (!status) status = canvas_append(s, c->numbers.likeliest, b->length, e);
    const double seconds = clock_seconds() - start;
    b->experts = expert_statistics_since(&engine->gpu, &seen);
    b->experts.tokens = b->length; /* each was computed in every step */
    if (!status && (b->block_seconds == 0 || seconds < b->block_seconds)) b->block_seconds = seconds;
    interrupt_watch(NULL);
    gm_session_free(s);
    return status;
}

static double canvas_speed(const bench_canvas *b) {
    return b->block_seconds > 0 ? (double)b->length / b->block_seconds : 0;
}

void bench_canvas_print(const bench_canvas *b) {
    if (!b->length) return;
    printf("blocks    %.2f tokens per second (%zu tokens in %zu steps at depth %zu, then read)\n", canvas_speed(b),
           b->length, b->steps, b->depth);
    printf("step      %.2f ms\n", 1e3 * b->step_seconds);
}

void bench_canvas_report(report *r, const bench_canvas *b) {
    if (!b->length) return;
    report_open(r, "diffusion", '{');
    report_count(r, "block_tokens", b->length);
    report_count(r, "depth", b->depth);
    report_count(r, "steps_per_block", b->steps);
    report_number(r, "step_seconds", b->step_seconds);
    report_number(r, "block_seconds", b->block_seconds);
    report_number(r, "tokens_per_second", canvas_speed(b));
    report_close(r, '}');
}
