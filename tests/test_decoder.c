/* Several answers of one engine are written together: each is what it is alone, whatever the others do, and a step computes a token
 * of every one that is ready. On the CPU they are the same bit for bit. On a GPU, log-probabilities may differ a little, and tokens
 * from where the two likeliest are closer than that, which is printed.
 *
 *     test_decoder [gpu] */

#include "session/decoder.h"
#include "session/decoder_gpu.h"
#include "session/plans.h"
#include "sessions.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

enum { MANY = 8, ANSWER = 24, LONG = 1500 };

static size_t many = MANY, length = ANSWER; /* answers at once, and their tokens */

static gm_engine *engine;
static bool       on_gpu;
static double     near; /* how close draws are to those alone, and how close likeliest tokens may be to change places */

/* ---- what the engine asks for: the linker puts these between it and the allocator ---- */

static long requests;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);

void *__wrap_malloc(size_t n) { return requests++, __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return requests++, __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return requests++, __real_realloc(p, n); }
void *__wrap_aligned_alloc(size_t alignment, size_t n) { return requests++, __real_aligned_alloc(alignment, n); }

/* ---- answers, each with settings of its own ---- */

typedef struct {
    gm_session      *s;
    gm_reply        *reply;
    gm_status        status; /* of its last call */
    gm_token_logprob drawn[ANSWER * 4];
    size_t           count, width; /* rows, and how many each has */
} answer;

static const gm_logit_bias bias[] = { { 310, 4 }, { 311, -4 } };

static uint32_t mask[1 << 10]; /* every third token may be drawn */

static void writer_settings(size_t i, gm_sampling *sampling, gm_reply_options *options) {
    gm_sampling_default(engine, sampling);
    sampling->seed = i;
    sampling->temperature = i % 3 ? 0.5f + 0.25f * (float)(i % 4) : 0;
    sampling->top_k = i % 2 ? 0 : 40;
    if (i % 4 == 1) sampling->repetition_penalty = 1.3f, sampling->penalty_window = 16;
    if (i % 4 == 2) sampling->bias = bias, sampling->bias_count = COUNT_OF(bias);
    if (i % 4 == 3) sampling->mask = mask;
    *options = (gm_reply_options){
        .sampling = sampling, .max_tokens = (uint32_t)length, .want_logprobs = true, .logprobs = (uint32_t)(i % 4)
    };
    if (!on_gpu) return;
    if (near > 1e-3)
        sampling->repetition_penalty = 1, sampling->bias_count = 0; /* log-probabilities are without them */
    options->logprobs = 2 + (uint32_t)(i % 2);                      /* they say which tokens are close */
    if (sampling->temperature > 0)
        sampling->top_k = 1; /* a random number may lie between two tokens, whatever their distance */
}

static void writer_start(answer *a, size_t i, gm_kv_type kv, uint32_t context) {
    int32_t          prompt[40];
    gm_sampling      sampling;
    gm_reply_options options;
    *a = (answer){ .s = open_session(engine, kv, context) };
    writer_settings(i, &sampling, &options);
    a->width = 1 + options.logprobs;
    make_tokens(prompt, 5 + i, (uint32_t)(i + 1));
    CHECK_MESSAGE(!gm_reply_start_tokens(a->s, prompt, 5 + i, &options, &a->reply, why, sizeof why), "%s", why);
}

/* One call. */
static void writer_poll(answer *a) {
    gm_piece piece = { 0 };
    if (a->status > GM_AGAIN) return;
    a->status = gm_reply_next(a->reply, &piece, why, sizeof why);
    if (a->status != GM_OK) return;
    const size_t n = piece.logprob_tokens * a->width;
    if (a->count + n <= COUNT_OF(a->drawn) && n) memcpy(a->drawn + a->count, piece.logprobs, n * sizeof *a->drawn);
    a->count += n;
}

static void writer_finish(answer *a) {
    while (a->status <= GM_AGAIN) writer_poll(a);
}

static bool writers_poll_all(answer *all, size_t n) {
    bool writing = false;
    for (size_t i = 0; i < n; i++) {
        writer_poll(&all[i]);
        writing = writing || all[i].status <= GM_AGAIN;
    }
    return writing;
}

static void writer_free(answer *a) {
    gm_reply_free(a->reply);
    gm_session_free(a->s);
}

/* On a GPU, up to where the two likeliest tokens are close. */
static void writer_compare_near(const answer *a, const answer *alone, size_t i) {
    const size_t width = a->width;
    for (size_t at = 0; at < a->count && at < alone->count; at += width) {
        const gm_token_logprob *got = &a->drawn[at], *want = &alone->drawn[at];
        const double            margin = fabs((double)want[1].logprob - (double)want[2].logprob);
        if (got->token != want->token && margin < near) {
            printf("answer %zu differs from draw %zu on: the two likeliest tokens are %g apart\n", i, at / width,
                   margin);
            return;
        }
        CHECK_MESSAGE(got->token == want->token && fabs((double)got->logprob - (double)want->logprob) < near,
                      "answer %zu, draw %zu: %d, %.9g; alone %d, %.9g", i, at / width, got->token, (double)got->logprob,
                      want->token, (double)want->logprob);
    }
    CHECK_MESSAGE(a->status == alone->status && a->count == alone->count && a->count,
                  "answer %zu: status %d and %zu numbers, alone %d and %zu", i, a->status, a->count, alone->status,
                  alone->count);
}

/* Answers alone are written once on a GPU: it is slow in software. */
static answer known[MANY];

static void writer_forget_known(void) {
    for (size_t i = 0; i < MANY; i++) known[i] = (answer){ 0 };
}

static void writer_compare_on_gpu(const answer *a, size_t i, uint32_t context) {
    answer alone = known[i];
    if (context || !alone.count) {
        writer_start(&alone, i, GM_KV_DEFAULT, context);
        writer_finish(&alone);
        writer_free(&alone);
    }
    if (!context) known[i] = alone;
    writer_compare_near(a, &alone, i);
}

static bool writer_is_masked(const answer *a) {
    size_t at = 0;
    while (at < a->count && a->drawn[at].token % 3 == 0) at += a->width;
    return at >= a->count;
}

/* As it is alone: the draws with their log-probabilities, the tokens held, and the logits. */
static void writer_compare(const answer *a, size_t i, gm_kv_type kv, uint32_t context) {
    answer         alone;
    const int32_t *got, *want;
    if (i % 4 == 3) CHECK(writer_is_masked(a));
    if (on_gpu) {
        writer_compare_on_gpu(a, i, context);
        return;
    }
    writer_start(&alone, i, kv, context);
    writer_finish(&alone);
    CHECK_MESSAGE(a->status == alone.status && a->count == alone.count && a->count,
                  "answer %zu: status %d and %zu numbers, alone %d and %zu", i, a->status, a->count, alone.status,
                  alone.count);
    size_t same = 0;
    while (same < a->count && !memcmp(&a->drawn[same], &alone.drawn[same], sizeof *a->drawn)) same++;
    CHECK_MESSAGE(same == a->count, "answer %zu differs from number %zu of %zu on: token %d, %.9g; alone %d, %.9g", i,
                  same, a->count, a->drawn[same].token, (double)a->drawn[same].logprob, alone.drawn[same].token,
                  (double)alone.drawn[same].logprob);
    const size_t held = gm_session_tokens(a->s, &got);
    CHECK(held == gm_session_tokens(alone.s, &want) && !memcmp(got, want, held * sizeof *got));
    const float *logits = gm_session_logits(a->s), *those = gm_session_logits(alone.s);
    CHECK(!logits == !those && (!logits || !memcmp(logits, those, engine->weights.config.vocabulary * sizeof *logits)));
    writer_free(&alone);
}

static decoder_totals totals_of(gm_kv_type kv) {
    decoder_totals all = { 0 };
    if (!on_gpu) return decoder_count(engine->decoders[kv == GM_KV_DEFAULT ? 0 : kv - 1]);
    for (size_t i = 0; i < COUNT_OF(engine->gpu_decoders); i++) {
        if (!engine->gpu_decoders[i]) continue;
        all.steps += gpu_decoder_count(engine->gpu_decoders[i]).steps;
        all.tokens += gpu_decoder_count(engine->gpu_decoders[i]).tokens;
    }
    return all;
}

/* ---- together ---- */

static double writers_round(answer all[MANY], gm_kv_type kv, uint32_t context) {
    for (size_t i = 0; i < many; i++) writer_start(&all[i], i, kv, context);
    const decoder_totals before = totals_of(kv);
    while (writers_poll_all(all, many)) {}
    const decoder_totals after = totals_of(kv);
    return (double)(after.tokens - before.tokens) / (double)max_size(after.steps - before.steps, 1);
}

static void writers_free(answer all[MANY]) {
    for (size_t i = 0; i < many; i++) writer_free(&all[i]);
}

/* Writes all answers; returns how many tokens a step computed on average. On a GPU, sessions draw alone while shaders compile, and while
 * the prompts of others take long, as on a busy machine: so it may take several rounds until they draw together. */
static double writers_together(answer all[MANY], gm_kv_type kv, uint32_t context) {
    const double end = clock_seconds() + 600;
    for (;;) {
        const double width = writers_round(all, kv, context);
        if (!on_gpu || width > (double)many / 3 || clock_seconds() > end) return width;
        writers_free(all);
        while (gpu_pipelines_pending(engine->gpu.host) && clock_seconds() < end) gpu_host_wait(engine->gpu.host, 100);
    }
}

static void test_together(const char *what, double turn_seconds, gm_kv_type kv, uint32_t context) {
    TEST("%s: %zu answers with settings of their own are those of each alone", what, many);
    answer all[MANY];
    engine->turn_seconds = turn_seconds;
    const double width = writers_together(all, kv, context);
    CHECK_MESSAGE(width > (double)many / (on_gpu ? 3 : 2), "a step computed %.2f tokens on average", width);
    for (size_t i = 0; i < many; i++) writer_compare(&all[i], i, kv, context);
    writers_free(all);
}

/* A session that is alone computes each token when it is asked for. */
static void test_alone(void) {
    TEST("one answer computes no token in vain");
    answer a;
    engine->turn_seconds = 1;
    writer_start(&a, 0, GM_KV_DEFAULT, 0);
    const decoder_totals before = totals_of(GM_KV_DEFAULT);
    writer_finish(&a);
    gm_reply_stats stats;
    gm_reply_get_stats(a.reply, &stats);
    const decoder_totals after = totals_of(GM_KV_DEFAULT);
    /* The first token comes from the prompt's logits, and the last one is computed only if the answer goes on. */
    CHECK(after.tokens - before.tokens == after.steps - before.steps);
    CHECK(after.tokens - before.tokens == stats.reply_tokens - (stats.finish == GM_FINISH_LENGTH));
    writer_free(&a);
}

static void test_more_than_rows(void) {
    TEST("more answers than the decoder has rows");
    enum { CROWD = DECODER_ROWS + 3 };
    answer *all = calloc(CROWD, sizeof *all);
    engine->turn_seconds = 1;
    for (size_t i = 0; i < CROWD; i++) writer_start(&all[i], i, GM_KV_DEFAULT, 256);
    while (writers_poll_all(all, CROWD)) {}
    for (size_t i = 0; i < CROWD; i++) writer_compare(&all[i], i, GM_KV_DEFAULT, 256);
    for (size_t i = 0; i < CROWD; i++) writer_free(&all[i]);
    free(all);
}

static void test_no_allocation(void) {
    TEST("answers that are written ask for no memory");
    answer all[MANY];
    engine->turn_seconds = 1;
    for (size_t i = 0; i < MANY; i++) {
        writer_start(&all[i], i, GM_KV_DEFAULT, 0);
        for (size_t n = 0; n < 8; n++) writer_poll(&all[i]);
    }
    const long before = requests;
    for (size_t n = 0; n < 4; n++) writers_poll_all(all, MANY);
    CHECK_MESSAGE(requests == before, "%ld requests", requests - before);
    for (size_t i = 0; i < MANY; i++) {
        writer_finish(&all[i]);
        writer_compare(&all[i], i, GM_KV_DEFAULT, 0);
        writer_free(&all[i]);
    }
}

/* ---- prompts ---- */

static size_t tokens_written(const answer *a) {
    gm_reply_stats stats;
    gm_reply_get_stats(a->reply, &stats);
    return stats.reply_tokens;
}

static void test_prompt_beside(void) {
    TEST("a prompt that is being computed lets answers go on, by as many tokens as are taken");
    answer      a;
    int32_t     tokens[LONG];
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    gm_status   status = GM_AGAIN;
    make_tokens(tokens, LONG, 99);
    engine->turn_seconds = 1;
    writer_start(&a, 1, GM_KV_DEFAULT, 0);
    while (tokens_written(&a) < 2) writer_poll(&a);
    engine->turn_seconds = 0;
    for (size_t round = 0; round < 3; round++) {
        const uint64_t before = totals_of(GM_KV_DEFAULT).steps;
        const size_t   written = tokens_written(&a);
        while (status == GM_AGAIN && totals_of(GM_KV_DEFAULT).steps == before)
            status = gm_session_set(s, tokens, LONG, why, sizeof why);
        for (size_t i = 0; i < 20 && status == GM_AGAIN; i++) status = gm_session_set(s, tokens, LONG, why, sizeof why);
        CHECK_MESSAGE(status == GM_AGAIN, "the prompt is too short: round %zu", round);
        writer_poll(&a);
        CHECK(totals_of(GM_KV_DEFAULT).steps == before + 1 && tokens_written(&a) == written + 1);
    }
    engine->turn_seconds = 1;
    while (status == GM_AGAIN) status = gm_session_set(s, tokens, LONG, why, sizeof why);
    CHECK_MESSAGE(!status, "%s", why);
    writer_finish(&a);
    writer_compare(&a, 1, GM_KV_DEFAULT, 0);
    writer_free(&a);
    gm_session_free(s);
}

/* Answers that begin one after the other, and end one after the other. */
static void test_join_and_leave(void) {
    TEST("answers that join and leave in the middle are those of each alone");
    enum { STAGGERED = 4 };
    answer all[STAGGERED];
    size_t begun = 0;
    engine->turn_seconds = 1;
    for (bool writing = true; writing || begun < STAGGERED;) {
        if (begun < STAGGERED &&
            (!begun || all[begun - 1].count >= 5 * all[begun - 1].width || all[begun - 1].status > GM_AGAIN)) {
            writer_start(&all[begun], begun, GM_KV_DEFAULT, 0);
            begun++;
        }
        writing = writers_poll_all(all, begun);
    }
    for (size_t i = 0; i < STAGGERED; i++) writer_compare(&all[i], i, GM_KV_DEFAULT, 0);
    for (size_t i = 0; i < STAGGERED; i++) writer_free(&all[i]);
}

/* Whoever no longer asks does not hold up the others, and finds its answer when it asks again. */
static void test_pause(void) {
    TEST("an answer that pauses");
    answer all[3];
    engine->turn_seconds = 1;
    for (size_t i = 0; i < 3; i++) writer_start(&all[i], i, GM_KV_DEFAULT, 0);
    while (all[0].count < 3 * all[0].width) writers_poll_all(all, 3);
    while (all[1].status <= GM_AGAIN || all[2].status <= GM_AGAIN) writers_poll_all(all + 1, 2);
    writer_finish(&all[0]);
    for (size_t i = 0; i < 3; i++) writer_compare(&all[i], i, GM_KV_DEFAULT, 0);
    for (size_t i = 0; i < 3; i++) writer_free(&all[i]);
}

/* ---- odd times ---- */

typedef enum {
    FREE_REPLY,
    FREE_SESSION,
    STOP,
    CANCEL,
    ROLLBACK,
    FORK,
    SAVE,
    RESTORE,
    OTHER_REPLY,
    APPEND,
    SAMPLE,
    WAYS
} way;

static void writer_disturb(answer *a, way w, gm_session **twin) {
    static const char *const names[] = { "free", "free the session", "stop",          "cancel", "rollback", "fork",
                                         "save", "restore",          "another reply", "append", "sample" };
    const gm_sampling        greedy = { .top_p = 1, .typical_p = 1, .repetition_penalty = 1 };
    gm_token_logprob         drawn;
    int32_t                  tokens[30];
    void                    *data = NULL;
    size_t                   size = 0;
    gm_status                status = GM_OK;
    make_tokens(tokens, 30, 7);
    switch (w) {
    case FREE_REPLY: gm_reply_free(a->reply), a->reply = NULL; break;
    case FREE_SESSION: gm_session_free(a->s), a->s = NULL; break;
    case STOP: gm_reply_stop(a->reply); break;
    case CANCEL: gm_session_cancel(a->s); break;
    case ROLLBACK: status = gm_session_rollback(a->s, 3, NULL, why, sizeof why); break;
    case FORK: status = gm_session_fork(a->s, twin, why, sizeof why); break;
    case SAVE:
    case RESTORE:
        status = gm_session_save_buffer(a->s, &data, &size, why, sizeof why);
        if (w == SAVE) *twin = open_session(engine, GM_KV_DEFAULT, 0);
        if (!status) status = gm_session_restore_buffer(w == SAVE ? *twin : a->s, data, size, why, sizeof why);
        gm_free(data);
        break;
    case OTHER_REPLY:
        gm_reply_free(a->reply);
        status = gm_reply_start_tokens(a->s, tokens, 30, NULL, &a->reply, why, sizeof why);
        break;
    case APPEND: status = append_tokens(a->s, tokens, 30); break;
    case SAMPLE:
        while ((status = gm_session_sample(a->s, &greedy, &drawn, NULL, 0, why, sizeof why)) == GM_AGAIN) {}
        break;
    case WAYS: break;
    }
    CHECK_MESSAGE(!status, "%s: %s", names[w], why);
}

/* `calls`: how many calls the others make first, so that a step is in the middle. */
static void test_disturbed(way w, size_t calls) {
    answer      all[4];
    gm_session *twin = NULL;
    for (size_t i = 0; i < 4; i++) writer_start(&all[i], i, GM_KV_DEFAULT, 0);
    while (all[0].count < 3 * all[0].width || all[3].count < 3 * all[3].width) writers_poll_all(all, 4);
    for (size_t i = 0; i < calls; i++) writer_poll(&all[i % 3 == 2 ? 3 : i % 3]);
    writer_disturb(&all[2], w, &twin);
    const bool goes_on = w == FORK || w == SAVE || w == SAMPLE;
    if (!goes_on && w != CANCEL && w != STOP) all[2].status = GM_DONE;
    while (writers_poll_all(all, 4)) {}
    for (size_t i = 0; i < 4; i++) {
        if (i != 2 || goes_on) writer_compare(&all[i], i, GM_KV_DEFAULT, 0);
    }
    if (w == CANCEL) CHECK(all[2].status == GM_CANCELLED);
    gm_session_free(twin);
    for (size_t i = 0; i < 4; i++) writer_free(&all[i]);
}

static void test_odd_times(void) {
    engine->turn_seconds = on_gpu ? 1 : 0;
    for (way w = 0; w < WAYS; w++) {
        if (on_gpu && w != FREE_SESSION && w != CANCEL && w != ROLLBACK && w != FORK) continue;
        TEST("an answer that is disturbed in the middle of a step (way %d) disturbs no other", (int)w);
        for (size_t calls = on_gpu ? 2 : 0; calls < (on_gpu ? 3 : 30); calls += 7) test_disturbed(w, calls);
    }
}

/* Row 3's biases forbid everything: its owner is told, and the others go on. */
static void test_own_errors(void) {
    TEST("an error belongs to its row");
    answer         all[3];
    gm_sampling    sampling;
    gm_logit_bias *never = calloc(engine->weights.config.vocabulary, sizeof *never);
    const int32_t  prompt[] = { 301, 302, 303 };
    for (uint32_t i = 0; i < engine->weights.config.vocabulary; i++)
        never[i] = (gm_logit_bias){ (int32_t)i, -INFINITY };
    gm_sampling_default(engine, &sampling);
    engine->turn_seconds = 1;
    for (size_t i = 0; i < 3; i++) writer_start(&all[i], i, GM_KV_DEFAULT, 0);
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    error       e = { 0 };
    int32_t     token = 0;
    CHECK(!set_tokens(s, prompt, 3) && !session_next(s, &(draw_wish){ &sampling, 9, NULL, 0 }, &token, INFINITY, &e));
    CHECK(!session_hold(s, token, &e));
    for (size_t i = 0; i < 3; i++) writers_poll_all(all, 3);
    sampling.bias = never;
    sampling.bias_count = engine->weights.config.vocabulary;
    CHECK(session_next(s, &(draw_wish){ &sampling, 9, NULL, 0 }, &token, INFINITY, &e) == GM_BAD_ARGUMENT);
    CHECK_MESSAGE(strstr(e.why, "suppressed"), "%s", e.why);
    while (writers_poll_all(all, 3)) {}
    for (size_t i = 0; i < 3; i++) {
        writer_compare(&all[i], i, GM_KV_DEFAULT, 0);
        writer_free(&all[i]);
    }
    gm_session_free(s);
    free(never);
}

/* ---- on a GPU ---- */

static void draw_once(gm_session *s, size_t most) {
    gm_sampling sampling;
    int32_t     token;
    error       e = { 0 };
    gm_sampling_default(engine, &sampling);
    sampling.temperature = 0;
    gm_status status = session_next(s, &(draw_wish){ &sampling, most, NULL, 0 }, &token, INFINITY, &e);
    if (!status) status = session_hold(s, token, &e);
    CHECK_MESSAGE(!status, "status %d: %s", status, e.why);
}

static size_t drawn_for(const gm_session *s) {
    return gpu_decoder_drawn(engine->gpu_decoders[s->kv.store - engine->stores], s);
}

/* One session ends, while the row of the other, which is late, keeps as many draws as it can. When all of them are taken, whoever computes a
 * prompt submits its next step. */
static void test_prompt_beside_on_gpu(void) {
    TEST("a prompt that is being computed submits a step for an answer that has none on the way");
    enum { LATE, ENDS, PROMPT, SESSIONS, ROUNDS = 2 * GENERATOR_STEPS, LAST = 4 * GENERATOR_STEPS };
    gm_session *s[SESSIONS];
    int32_t     tokens[8];
    engine->turn_seconds = 1;
    for (size_t i = 0; i < SESSIONS; i++) {
        make_tokens(tokens, COUNT_OF(tokens), (uint32_t)i);
        s[i] = open_session(engine, GM_KV_DEFAULT, 0);
        if (i != PROMPT) CHECK(!append_tokens(s[i], tokens, COUNT_OF(tokens)));
    }
    for (size_t round = 0; round < ROUNDS; round++) {
        draw_once(s[LATE], 64);
        draw_once(s[ENDS], LAST + ROUNDS - round);
    }
    for (size_t most = LAST; most; most--) draw_once(s[ENDS], most);
    CHECK_MESSAGE(drawn_for(s[LATE]), "the sessions did not draw together");
    for (size_t i = 0; i < LAST && drawn_for(s[LATE]); i++) draw_once(s[LATE], 64);
    CHECK_MESSAGE(!drawn_for(s[LATE]), "%zu draws are left", drawn_for(s[LATE]));
    CHECK_MESSAGE(!append_tokens(s[PROMPT], tokens, COUNT_OF(tokens)), "%s", why);
    CHECK_MESSAGE(drawn_for(s[LATE]), "nothing was submitted");
    draw_once(s[LATE], 64);
    for (size_t i = 0; i < SESSIONS; i++) gm_session_free(s[i]);
}

static shared_plan *borrow_rows(const gm_session *s, size_t rows) {
    error           e = { 0 };
    const plan_wish wish = { .g = &engine->text,
                             .tokens = rows,
                             .outputs = rows,
                             .most_outputs = rows,
                             .kv = s->kv.store->gpu_layers,
                             .rows = true };
    shared_plan    *plan = plans_borrow(&engine->plans, &wish, &e);
    CHECK_MESSAGE(plan, "%s", e.why);
    return plan;
}

/* Somebody else borrows the plan of the generator in use. */
static void test_plan_taken_away(void) {
    TEST("answers go on when the generator has to be made anew");
    answer all[MANY];
    bool   writing = true;
    engine->turn_seconds = 1;
    for (size_t i = 0; i < many; i++) writer_start(&all[i], i, GM_KV_DEFAULT, 0);
    while (writing && all[many - 1].count < 2 * all[many - 1].width) writing = writers_poll_all(all, many);
    shared_plan   *taken = borrow_rows(all[0].s, many);
    const uint64_t steps = totals_of(GM_KV_DEFAULT).steps;
    while (writing && totals_of(GM_KV_DEFAULT).steps == steps) writing = writers_poll_all(all, many);
    CHECK_MESSAGE(writing, "the answers are too short: %zu and %zu", all[0].count, all[1].count);
    while (writers_poll_all(all, many)) {}
    plans_return(taken);
    for (size_t i = 0; i < many; i++) writer_compare(&all[i], i, GM_KV_DEFAULT, 0);
    writers_free(all);
}

/* Shader compilers take most of the time: no more rows than four, which need two plans. */
static void test_on_gpu(void) {
    static const struct {
        bool   precise;
        double near;
    } engines[] = { { true, 1e-4 }, { false, 5e-3 } };
    on_gpu = true;
    many = 4;
    length = 16;
    for (size_t i = 0; i < COUNT_OF(engines); i++) {
        TEST("opening");
        engine = open_engine(&(gm_engine_options){
            .model = "tests/fixtures/two-layers.gguf", .backend = GM_BACKEND_GPU, .precise = engines[i].precise });
        if (!engine) return;
        near = engines[i].near;
        writer_forget_known();
        test_together(engines[i].precise ? "precise" : "8-bit", 1, GM_KV_DEFAULT, 0);
        if (engines[i].precise) {
            test_together("a context that fills up", 1, GM_KV_DEFAULT, 24);
            test_join_and_leave();
            test_pause();
            test_odd_times();
            test_own_errors();
            test_prompt_beside_on_gpu();
            test_plan_taken_away();
        }
        gm_engine_close(engine);
    }
}

static void test_on_cpu(void) {
    static const char *const models[] = { "tests/fixtures/tiny-dense.gguf", "tests/fixtures/tiny-moe.gguf" };
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        TEST("opening %s", models[i]);
        engine = open_engine(&(gm_engine_options){ .model = models[i], .backend = GM_BACKEND_CPU, .threads = 2 });
        if (!engine) return;
        test_together("whole steps", 1, GM_KV_DEFAULT, 0);
        test_together("steps in pieces", 0, GM_KV_Q8_0, 0);
        test_together("a context that fills up", 1, GM_KV_F32, 24);
        if (!i) {
            test_alone();
            test_join_and_leave();
            test_pause();
            test_more_than_rows();
            test_no_allocation();
            test_prompt_beside();
            test_odd_times();
            test_own_errors();
        }
        gm_engine_close(engine);
    }
}

int main(int argc, char **argv) {
    for (size_t id = 0; id < 32 * COUNT_OF(mask); id += 3) mask[id / 32] |= 1u << id % 32;
    if (argc > 1 && !strcmp(argv[1], "gpu")) test_on_gpu();
    else test_on_cpu();
    return test_end();
}
