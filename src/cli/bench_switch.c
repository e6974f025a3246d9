#include "cli/bench_switch.h"

#include "cli/interrupt.h"
#include "cli/median.h"

#include "base/clock.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>

enum { WARM_UP = 8, ROUNDS = 25 };

/* A prompt of one token and the token drawn after it. */
static gm_status switch_first_token(gm_session *session, const gm_sampling *greedy, const int32_t *tokens, error *e) {
    const draw_wish wish = { .sampling = greedy, .most = 1 };
    char            why[sizeof e->why] = "";
    int32_t         token;
    gm_status       status;
    while ((status = gm_session_set(session, tokens, 1, why, sizeof why)) == GM_AGAIN) {}
    if (status) return fail(e, status, "%s", why);
    while ((status = session_next(session, &wish, &token, clock_seconds() + 0.05, e)) == GM_AGAIN) {}
    return status;
}

/* Changes and rounds without one take turns, so that both see the same clocks. */
static gm_status switch_rounds(bench_switch *b, gm_session *session, const gm_engine *engine, size_t count,
                               const int32_t *tokens, error *e) {
    const engine_adapters *a = &engine->adapters;
    double                 changes[ROUNDS], firsts[ROUNDS], sames[ROUNDS];
    gm_sampling            greedy;
    gm_sampling_default(session->engine, &greedy);
    greedy.temperature = 0;
    for (size_t i = 0; i < WARM_UP + ROUNDS; i++) {
        const size_t round = i < WARM_UP ? 0 : i - WARM_UP;
        const float  scale = 1;
        if (interrupted()) return fail(e, GM_CANCELLED, "interrupted");
        const double start = clock_seconds();
        TRY(session_set_adapters(session, &a->slots[a->own + i % count], &scale, 1, e));
        changes[round] = clock_seconds() - start;
        TRY(switch_first_token(session, &greedy, tokens, e));
        firsts[round] = clock_seconds() - start;
        TRY(session_rollback(session, 0, NULL, e));
        const double again = clock_seconds();
        TRY(switch_first_token(session, &greedy, tokens, e));
        sames[round] = clock_seconds() - again;
    }
    *b = (bench_switch){ median_of(changes, ROUNDS), median_of(firsts, ROUNDS), median_of(sames, ROUNDS) };
    return GM_OK;
}

gm_status bench_switch_measure(bench_switch *b, const engine_values *values, gm_engine *engine, const int32_t *tokens,
                               error *e) {
    gm_session *session = NULL;
    if (values->adapters.count < 2) return GM_OK;
    TRY(session_open(values, engine, 16, &session, e));
    session->shares = false;
    const gm_status status = switch_rounds(b, session, engine, values->adapters.count, tokens, e);
    gm_session_free(session);
    return status;
}

void bench_switch_print(const bench_switch *b) {
    if (b->first > 0)
        printf("switching %.3f ms to another adapter; the first token %.2f ms after it, %.2f ms without a change\n",
               1000 * b->seconds, 1000 * b->first, 1000 * b->same);
}

void bench_switch_report(report *r, const bench_switch *b) {
    if (b->first <= 0) return;
    report_open(r, "switching", '{');
    report_number(r, "seconds", b->seconds);
    report_number(r, "first_token_seconds", b->first);
    report_number(r, "first_token_seconds_unchanged", b->same);
    report_close(r, '}');
}
