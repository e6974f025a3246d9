/* Drawing tokens on the GPU, several ahead, must give the same answers as reading logits back and drawing on the CPU: with many
 * sampling settings, and wherever an answer ends or is disturbed while steps are in flight. Needs a WebGPU library and a Vulkan
 * driver, like test_gpu_host.
 *
 *     test_gpu_generate [drawn|disturbed]: only draws and ends of answers; only things freed or stopped at odd moments, for
 *     sanitizers */

#include "sessions.h"

#include "model_file.h"

#include "base/clock.h"
#include "gpu/host_native.h"
#include "session/session.h"

#include <math.h>

enum { VOCABULARY = 640, MOST = 4096, ANSWER = 14, PROMPT = 20 };

static const char *const models[] = { "tests/fixtures/two-layers.gguf", "tests/fixtures/tiny-moe.gguf" };

/* How far logits may be apart where one session computed its tokens one by one, and the other together. */
static const float BATCHED = 1e-3f;

/* ---- replies ---- */

/* What came of a reply. */
typedef struct {
    int32_t   tokens[MOST]; /* that the session holds then, the prompt included */
    size_t    count, answer;
    gm_status status;
    gm_finish finish;
    char      text[8192], why[400];
} outcome;

static gm_reply *start_outcome(gm_session *s, const int32_t *prompt, size_t n, const gm_reply_options *options) {
    gm_reply *reply = NULL;
    CHECK_MESSAGE(!gm_reply_start_tokens(s, prompt, n, options, &reply, why, sizeof why), "%s", why);
    return reply;
}

static void note_tokens(const gm_session *s, outcome *out) {
    const int32_t *held;
    out->count = gm_session_tokens(s, &held);
    memcpy(out->tokens, held, out->count * sizeof *held);
}

/* The rest of a reply, which is freed. */
static void finish_outcome(gm_session *s, gm_reply *reply, outcome *out) {
    gm_piece       piece;
    gm_reply_stats stats;
    size_t         length = 0;
    *out = (outcome){ 0 };
    if (!reply) return;
    while ((out->status = gm_reply_next(reply, &piece, out->why, sizeof out->why)) <= GM_AGAIN) {
        if (out->status == GM_AGAIN || piece.kind != GM_PIECE_CONTENT || length + piece.length >= sizeof out->text)
            continue;
        memcpy(out->text + length, piece.text, piece.length);
        length += piece.length;
    }
    gm_reply_get_stats(reply, &stats);
    out->finish = stats.finish;
    out->answer = stats.reply_tokens;
    note_tokens(s, out);
    gm_reply_free(reply);
}

static void check_same(const outcome *got, const outcome *want) {
    CHECK_MESSAGE(got->status == want->status && !strcmp(got->why, want->why), "%s (%s), not %s (%s)",
                  gm_status_name(got->status), got->why, gm_status_name(want->status), want->why);
    CHECK_MESSAGE(got->finish == want->finish && got->answer == want->answer,
                  "finish %d after %zu tokens, not %d after %zu", (int)got->finish, got->answer, (int)want->finish,
                  want->answer);
    size_t same = 0;
    while (same < got->count && same < want->count && got->tokens[same] == want->tokens[same]) same++;
    CHECK_MESSAGE(got->count == want->count && same == want->count, "%zu tokens, not %zu; the same are %zu", got->count,
                  want->count, same);
    CHECK_MESSAGE(!strcmp(got->text, want->text), "'%s', not '%s'", got->text, want->text);
}

/* A session whose tokens are drawn on the GPU, and one whose logits come back. */
typedef struct {
    gm_session *ahead, *plain;
    outcome     got, want;
} pair;

static gm_session *new_plain_session(gm_engine *engine, uint32_t context) {
    gm_session *s = open_session(engine, GM_KV_DEFAULT, context);
    s->ahead.possible = false;
    return s;
}

static void open_pair(pair *p, gm_engine *engine, uint32_t context) {
    p->ahead = open_session(engine, GM_KV_DEFAULT, context);
    p->plain = new_plain_session(engine, context);
}

static void close_pair(pair *p) {
    gm_session_free(p->ahead);
    gm_session_free(p->plain);
}

static void reply_both(pair *p, const int32_t *prompt, size_t n, gm_reply_options options) {
    finish_outcome(p->ahead, start_outcome(p->ahead, prompt, n, &options), &p->got);
    finish_outcome(p->plain, start_outcome(p->plain, prompt, n, &options), &p->want);
    check_same(&p->got, &p->want);
    CHECK(session_dispatches(p->plain) == 0);
}

static int32_t sample(gm_session *s) {
    gm_token_logprob chosen = { .token = -1 };
    gm_status        status;
    while ((status = gm_session_sample(s, NULL, &chosen, NULL, 0, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", why);
    return chosen.token;
}

/* Both go on alike: a draw from the last token's logits, then logits behind further tokens. */
static void go_on_both(pair *p, float tolerance) {
    int32_t more[3];
    CHECK(p->ahead->computed + 1 >= p->ahead->tokens.count && p->ahead->computed <= p->ahead->tokens.count);
    CHECK(sample(p->ahead) == sample(p->plain));
    make_tokens(more, 3, 77);
    if (p->ahead->tokens.count + 3 > p->ahead->kv.context) return;
    CHECK_MESSAGE(!append_tokens(p->ahead, more, 3) && !append_tokens(p->plain, more, 3), "%s", why);
    const float *got = gm_session_logits(p->ahead), *want = gm_session_logits(p->plain);
    float        farthest = 0;
    CHECK(got && want);
    for (size_t i = 0; got && want && i < VOCABULARY; i++) farthest = fmaxf(farthest, fabsf(got[i] - want[i]));
    CHECK_MESSAGE(farthest <= tolerance, "the logits differ by %g", (double)farthest);
}

/* ---- samplings ---- */

static const gm_logit_bias biases[] = { { 310, 4 }, { 311, -INFINITY }, { 400, 2.5f },   { 310, -1 },
                                        { 12, -3 }, { 639, 1 },         { 0, -INFINITY } };

static const struct {
    const char *name;
    gm_sampling sampling;
} samplings[] = {
    { "greedy", { .top_p = 1, .typical_p = 1, .repetition_penalty = 1 } },
    { "greedy with penalties",
      { .top_p = 1, .typical_p = 1, .repetition_penalty = 1.3f, .frequency_penalty = 0.2f, .penalty_window = 8 } },
    { "temperature alone", { .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 5 } },
    { "the model's own",
      { .temperature = 1, .top_k = 64, .top_p = 0.95f, .typical_p = 1, .repetition_penalty = 1, .seed = 6 } },
    { "min-p", { .temperature = 1.5f, .top_p = 1, .min_p = 0.1f, .typical_p = 1, .repetition_penalty = 1, .seed = 7 } },
    { "typical",
      { .temperature = 0.9f, .top_k = 200, .top_p = 1, .typical_p = 0.6f, .repetition_penalty = 1, .seed = 8 } },
    { "penalties over more than the prompt",
      { .temperature = 1,
        .top_k = 40,
        .top_p = 0.9f,
        .typical_p = 1,
        .repetition_penalty = 1.2f,
        .presence_penalty = 0.5f,
        .frequency_penalty = 0.3f,
        .penalty_window = 1000,
        .seed = 9 } },
    { "biases",
      { .temperature = 0.7f,
        .top_p = 0.99f,
        .typical_p = 1,
        .repetition_penalty = 1,
        .seed = 0x123456789abcdefu,
        .bias = biases,
        .bias_count = COUNT_OF(biases) } },
};

/* One pair of sessions for all rows: lists of all shapes, settings that grow, prompts that are partly held. */
static void test_samplings(gm_engine *engine, const char *name, size_t step) {
    pair    p;
    int32_t prompt[PROMPT];
    TEST("sessions of %s", name);
    open_pair(&p, engine, 0);
    for (size_t i = 0; i < COUNT_OF(samplings); i += step) {
        TEST("%s: %s", name, samplings[i].name);
        make_tokens(prompt, PROMPT, (uint32_t)i / 2);
        reply_both(&p, prompt, PROMPT, (gm_reply_options){ .sampling = &samplings[i].sampling, .max_tokens = ANSWER });
        CHECK(session_dispatches(p.ahead) > 0);
        go_on_both(&p, 0);
    }
    TEST("%s: another seed gives another answer", name);
    gm_sampling other = { .temperature = 3, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 3 };
    outcome     first;
    reply_both(&p, prompt, PROMPT, (gm_reply_options){ .sampling = &other, .max_tokens = ANSWER });
    first = p.got;
    other.seed++;
    reply_both(&p, prompt, PROMPT, (gm_reply_options){ .sampling = &other, .max_tokens = ANSWER });
    CHECK(memcmp(first.tokens, p.got.tokens, first.count * sizeof *first.tokens));
    close_pair(&p);
}

/* ---- ends ---- */

static void test_stop_tokens(gm_engine *engine) {
    TEST("a stop token while steps are under way");
    pair          p;
    int32_t       prompt[PROMPT];
    const int32_t stop = tokenizer_special(engine->words, SPECIAL_TURN_END);
    gm_logit_bias bias = { stop, 9 };
    gm_sampling   sampling = samplings[2].sampling;
    size_t        stopped = 0;
    sampling.bias = &bias;
    sampling.bias_count = 1;
    CHECK(stop >= 0);
    make_tokens(prompt, PROMPT, 1);
    open_pair(&p, engine, 0);
    for (uint64_t seed = 0; seed < 4; seed++) {
        sampling.seed = seed;
        reply_both(&p, prompt, PROMPT, (gm_reply_options){ .sampling = &sampling, .max_tokens = ANSWER });
        if (p.got.finish == GM_FINISH_STOP && p.got.answer > 1) stopped++;
        go_on_both(&p, 0);
    }
    CHECK_MESSAGE(stopped > 0, "%zu of 4 answers ended so: the bias is wrong", stopped);
    close_pair(&p);
}

static void test_stop_strings(gm_engine *engine) {
    TEST("stop strings");
    pair    p;
    int32_t prompt[PROMPT];
    outcome whole;
    make_tokens(prompt, PROMPT, 2);
    open_pair(&p, engine, 0);
    gm_reply_options options = { .sampling = &samplings[3].sampling, .max_tokens = ANSWER };
    reply_both(&p, prompt, PROMPT, options);
    whole = p.got;
    CHECK(strlen(whole.text) > 15);
    for (size_t at = 3; at + 4 < strlen(whole.text) && at < 30; at += 9) {
        const char        text[4] = { whole.text[at], whole.text[at + 1], whole.text[at + 2], 0 };
        const char *const stops[] = { "never in there", text };
        options.stop = stops;
        options.stop_count = 2;
        reply_both(&p, prompt, PROMPT, options);
        CHECK(p.got.finish == GM_FINISH_STOP && strlen(p.got.text) <= at);
        go_on_both(&p, 0);
    }
    close_pair(&p);
}

static void test_generate_limits(gm_engine *engine) {
    pair    p;
    int32_t prompt[PROMPT];
    make_tokens(prompt, PROMPT, 3);
    TEST("at most so many tokens");
    open_pair(&p, engine, 0);
    for (uint32_t most = 1; most < 7; most++) {
        reply_both(&p, prompt, PROMPT, (gm_reply_options){ .sampling = &samplings[3].sampling, .max_tokens = most });
        CHECK(p.got.answer == most && p.got.count == PROMPT + most);
        go_on_both(&p, 0);
    }
    close_pair(&p);
    for (uint32_t room = 1; room < 8; room += 3) {
        TEST("a full context, %u tokens behind the prompt", room);
        open_pair(&p, engine, PROMPT + room);
        reply_both(&p, prompt, PROMPT, (gm_reply_options){ .sampling = &samplings[3].sampling });
        CHECK(p.got.status == GM_CONTEXT_FULL && p.got.count == PROMPT + room);
        go_on_both(&p, 0);
        close_pair(&p);
    }
}

/* How often the plan for one token was bound to other caches. */
static uint32_t rebinds_of_one(const gm_engine *engine) {
    const shared_plan *p = engine->plans.first;
    while (p && gpu_plan_tokens(p->gpu) > 1) p = p->next;
    return p ? gpu_plan_rebinds(p->gpu) : 0;
}

/* The caches grow at 512 tokens, which moves them; the rings have closed before. No plan is made again. */
static void test_generate_growth(gm_engine *engine) {
    enum { BEFORE = 505 };
    const size_t plans = plans_count(&engine->plans);
    int32_t      prompt[BEFORE];
    pair         p;
    TEST("an answer behind %d tokens", BEFORE);
    open_pair(&p, engine, 0);
    make_tokens(prompt, BEFORE, 4);
    reply_both(&p, prompt, BEFORE, (gm_reply_options){ .sampling = &samplings[6].sampling, .max_tokens = ANSWER });
    CHECK(p.got.count > 512 && kv_capacity(&p.ahead->kv) == kv_capacity(&p.plain->kv) &&
          kv_capacity(&p.ahead->kv) > 512);
    CHECK_MESSAGE(plans_count(&engine->plans) <= plans + 1, "%zu plans, not %zu and one for the long prompt",
                  plans_count(&engine->plans), plans);
    CHECK(rebinds_of_one(engine) > 0); /* the store has grown since that plan was made */
    TEST("back by 200 from %zu tokens, and on", p.got.count);
    CHECK(!gm_session_rollback(p.ahead, p.got.count - 200, NULL, why, sizeof why));
    CHECK(!gm_session_rollback(p.plain, p.got.count - 200, NULL, why, sizeof why));
    go_on_both(&p, 0);
    close_pair(&p);
}

/* ---- disturbances ---- */

/* Lets the reply give some pieces, so that steps are under way. */
static void take_pieces(gm_reply *reply, int count) {
    gm_piece  piece;
    gm_status status = GM_OK;
    for (int i = 0; reply && i < count && status <= GM_AGAIN; i += status == GM_OK)
        status = gm_reply_next(reply, &piece, why, sizeof why);
    CHECK_MESSAGE(status == GM_OK, "%s", why);
}

/* Makes the plain session hold what the other holds. */
static void follow(pair *p) {
    gm_status status;
    note_tokens(p->ahead, &p->got);
    while ((status = gm_session_set(p->plain, p->got.tokens, p->got.count, why, sizeof why)) == GM_AGAIN) {}
    CHECK_MESSAGE(!status, "%s", why);
}

static void test_generate_cancel(gm_engine *engine, const outcome *whole, const int32_t *prompt,
                                 const gm_reply_options *options) {
    TEST("a cancel while steps are under way");
    pair p;
    open_pair(&p, engine, 0);
    gm_reply *reply = start_outcome(p.ahead, prompt, PROMPT, options);
    take_pieces(reply, 7);
    gm_session_cancel(p.ahead);
    finish_outcome(p.ahead, reply, &p.got);
    CHECK(p.got.status == GM_CANCELLED && p.got.finish == GM_FINISH_CANCELLED);
    CHECK(p.got.count > PROMPT && p.got.count < whole->count);
    CHECK(!memcmp(p.got.tokens, whole->tokens, p.got.count * sizeof *whole->tokens));
    CHECK(p.ahead->computed == p.ahead->tokens.count);
    follow(&p);
    go_on_both(&p, BATCHED);
    close_pair(&p);
}

typedef enum { NOTHING, APPEND, ROLLBACK, ROLLBACK_NONE, SAMPLE, SET, FORK, SAVE, RESTORE, DISTURBANCES } disturbance;

static const char *const disturbance_names[] = { "nothing", "append", "rollback", "rollback by nothing",
                                                 "sample",  "set",    "fork",     "save",
                                                 "restore" };

/* What another call does to a session in the middle of an answer, and what the answer then does. */
static void disturb(gm_session *s, disturbance kind, pair *twin) {
    int32_t      more[2];
    void        *data = NULL;
    size_t       size = 0;
    const size_t count = s->tokens.count;
    make_tokens(more, 2, 55);
    switch (kind) {
    case APPEND: CHECK(!append_tokens(s, more, 2)); break;
    case ROLLBACK: CHECK(!gm_session_rollback(s, count - 3, NULL, why, sizeof why)); break;
    case ROLLBACK_NONE: CHECK(!gm_session_rollback(s, count, NULL, why, sizeof why)); break;
    case SAMPLE: sample(s); break;
    case SET:
        note_tokens(s, &twin->got);
        while (gm_session_set(s, twin->got.tokens, count, why, sizeof why) == GM_AGAIN) {}
        break;
    case FORK: CHECK_MESSAGE(!gm_session_fork(s, &twin->ahead, why, sizeof why), "%s", why); break;
    case SAVE:
    case RESTORE:
        CHECK_MESSAGE(!gm_session_save_buffer(s, &data, &size, why, sizeof why), "%s", why);
        if (kind == SAVE) twin->ahead = open_session(s->engine, GM_KV_DEFAULT, 0);
        CHECK_MESSAGE(!gm_session_restore_buffer(kind == SAVE ? twin->ahead : s, data, size, why, sizeof why), "%s",
                      why);
        gm_free(data);
        break;
    default: break;
    }
}

static void test_disturbances(gm_engine *engine, const int32_t *prompt, gm_reply_options options) {
    for (disturbance kind = 0; kind < DISTURBANCES; kind++) {
        TEST("in the middle of an answer: %s", disturbance_names[kind]);
        pair p = { 0 }, twin = { 0 };
        open_pair(&p, engine, 0);
        gm_reply *ahead = start_outcome(p.ahead, prompt, PROMPT, &options);
        take_pieces(ahead, 6);
        note_tokens(p.ahead, &p.got);
        gm_reply *plain = start_outcome(p.plain, prompt, PROMPT, &options);
        take_pieces(plain, 6);
        note_tokens(p.plain, &p.want);
        CHECK(p.got.count == p.want.count);
        disturb(p.ahead, kind, &twin);
        if (kind == FORK || kind == SAVE) { /* the twin goes its own way */
            twin.plain = new_plain_session(engine, 0);
            follow(&twin);
            go_on_both(&twin, BATCHED);
            close_pair(&twin);
        } else if (kind != SAMPLE) disturb(p.plain, kind, &twin);
        finish_outcome(p.ahead, ahead, &p.got);
        finish_outcome(p.plain, plain, &p.want);
        check_same(&p.got, &p.want);
        go_on_both(&p, 0);
        close_pair(&p);
    }
}

static void test_generate_two_sessions(gm_engine *engine, const outcome *whole, const int32_t *prompt,
                                       gm_reply_options options) {
    TEST("two answers take turns");
    int32_t     other[PROMPT + 3];
    outcome     alone, got;
    gm_session *sessions[3] = { open_session(engine, GM_KV_DEFAULT, 0), open_session(engine, GM_KV_DEFAULT, 0),
                                open_session(engine, GM_KV_DEFAULT, 0) };
    make_tokens(other, PROMPT + 3, 44);
    finish_outcome(sessions[2], start_outcome(sessions[2], other, PROMPT + 3, &options), &alone);
    gm_reply *one = start_outcome(sessions[0], prompt, PROMPT, &options),
             *two = start_outcome(sessions[1], other, PROMPT + 3, &options);
    const size_t plans = plans_count(&engine->plans);
    for (int i = 0; one && two && i < 40; i++) {
        gm_piece piece;
        CHECK(gm_reply_next(i % 3 ? one : two, &piece, why, sizeof why) <= GM_DONE);
    }
    finish_outcome(sessions[0], one, &got);
    CHECK(got.count == whole->count && !memcmp(got.tokens, whole->tokens, got.count * sizeof *got.tokens));
    finish_outcome(sessions[1], two, &got);
    CHECK(plans_count(&engine->plans) <= plans + 1); /* sessions share them; one for two rows is for both */
    CHECK(got.count == alone.count && !memcmp(got.tokens, alone.tokens, got.count * sizeof *got.tokens));
    for (size_t i = 0; i < COUNT_OF(sessions); i++) gm_session_free(sessions[i]);
}

static void test_replies_disturbed(gm_engine *engine) {
    TEST("an answer as it should be");
    pair    p;
    int32_t prompt[PROMPT];
    make_tokens(prompt, PROMPT, 5);
    const gm_reply_options options = { .sampling = &samplings[6].sampling, .max_tokens = ANSWER };
    open_pair(&p, engine, 0);
    reply_both(&p, prompt, PROMPT, options);
    close_pair(&p);
    const outcome whole = p.want;
    test_generate_cancel(engine, &whole, prompt, &options);
    test_disturbances(engine, prompt, options);
    test_generate_two_sessions(engine, &whole, prompt, options);
}

/* ---- tokens one by one ---- */

static gm_status next_with(gm_session *s, draw_wish wish, int32_t *token, error *e) {
    gm_status status;
    *e = (error){ 0 };
    while ((status = session_next(s, &wish, token, clock_seconds() + 0.05, e)) == GM_AGAIN) {}
    return status;
}

static gm_status next_draw(gm_session *s, const gm_sampling *sampling, int32_t *token, error *e) {
    return next_with(s, (draw_wish){ .sampling = sampling, .most = SIZE_MAX }, token, e);
}

static gm_session *prompted_session(gm_engine *engine, uint32_t seed) {
    gm_session *s = open_session(engine, GM_KV_DEFAULT, 0);
    int32_t     prompt[PROMPT];
    make_tokens(prompt, PROMPT, seed);
    CHECK_MESSAGE(!append_tokens(s, prompt, PROMPT), "%s", why);
    return s;
}

/* The same draws with logits that come back. */
static int32_t next_plain(gm_session *s, const gm_sampling *sampling) {
    error   e = { 0 };
    int32_t token = -1;
    while (session_want_logits(s, clock_seconds() + 0.05, &e) == GM_AGAIN) {}
    CHECK_MESSAGE(!session_sample(s, sampling, &token, &e), "%s", e.why);
    return token;
}

static void test_next(gm_engine *engine) {
    TEST("draws that are not held, other tokens, other samplings");
    gm_session *s = prompted_session(engine, 6), *plain = prompted_session(engine, 6);
    error       e;
    for (int i = 0; i < 60; i++) {
        const gm_sampling *sampling = &samplings[i / 9 % COUNT_OF(samplings)].sampling;
        const int32_t      want = next_plain(plain, sampling);
        int32_t            got = -1, again = -1;
        CHECK_MESSAGE(!next_draw(s, sampling, &got, &e), "%s", e.why);
        CHECK_MESSAGE(got == want, "token %d is %d, not %d", i, got, want);
        if (i % 7 == 3) CHECK(!next_draw(s, sampling, &again, &e) && again == want);
        const int32_t held = i % 11 == 5 ? (want + 1) % VOCABULARY : want;
        CHECK(!session_hold(s, held, &e) && !session_hold(plain, held, &e));
    }
    gm_session_free(s);
    gm_session_free(plain);
}

/* Their number changes on the way, and for some tokens none are wanted. */
static void test_generate_logprobs(gm_engine *engine) {
    TEST("log-probabilities of what the GPU draws");
    enum { ALTERNATIVES = 20 };
    gm_session *s = prompted_session(engine, 8), *plain = prompted_session(engine, 8);
    error       e;
    for (int i = 0; i < 24; i++) {
        gm_token_logprob   got[1 + ALTERNATIVES], want[1 + ALTERNATIVES];
        const gm_sampling *sampling = &samplings[i / 8 * 3].sampling;
        const size_t       count = (size_t)(i / 4 % 3 * 10);
        int32_t            token = -1;
        const draw_wish    wish = { sampling, SIZE_MAX, i % 12 == 11 ? NULL : got, count };
        CHECK_MESSAGE(!next_with(s, wish, &token, &e), "%s", e.why);
        CHECK(token == next_plain(plain, sampling));
        sampler_logprobs(plain->chooser, plain->logits, token, want, want + 1, count);
        for (size_t j = 0; wish.logprobs && j < 1 + count; j++)
            CHECK_MESSAGE(got[j].token == want[j].token && fabsf(got[j].logprob - want[j].logprob) < 1e-5f,
                          "token %d, place %zu: %d (%g), not %d (%g)", i, j, got[j].token, (double)got[j].logprob,
                          want[j].token, (double)want[j].logprob);
        CHECK(!session_hold(s, token, &e) && !session_hold(plain, token, &e));
    }
    CHECK(session_dispatches(s) > 0);
    gm_session_free(s);
    gm_session_free(plain);
}

static void test_nothing_left(gm_engine *engine) {
    TEST("a draw from nothing is an error, and the session goes on");
    static gm_logit_bias all[VOCABULARY];
    gm_session          *s = prompted_session(engine, 7), *plain = prompted_session(engine, 7);
    gm_sampling          none = samplings[3].sampling;
    int32_t              token = -1;
    error                e, other = { 0 };
    for (int32_t i = 0; i < VOCABULARY; i++) all[i] = (gm_logit_bias){ i, -INFINITY };
    none.bias = all;
    none.bias_count = VOCABULARY;
    for (int i = 0; i < 3; i++) {
        CHECK(!next_draw(s, &samplings[3].sampling, &token, &e) && token == next_plain(plain, &samplings[3].sampling));
        CHECK(!session_hold(s, token, &e) && !session_hold(plain, token, &e));
    }
    next_plain(plain, &samplings[3].sampling);
    CHECK(next_draw(s, &none, &token, &e) == session_sample(plain, &none, &token, &other) &&
          e.status == GM_BAD_ARGUMENT);
    CHECK_MESSAGE(!strcmp(e.why, other.why), "'%s', not '%s'", e.why, other.why);
    CHECK(!next_draw(s, &samplings[3].sampling, &token, &e) && token == next_plain(plain, &samplings[3].sampling));
    gm_session_free(s);
    gm_session_free(plain);
}

/* ---- faults of a GPU ---- */

/* A norm so large that logits are infinite or no numbers, though every weight is one; a soft cap would hide it. */
static void test_not_a_number(const char *path) {
    TEST("logits that are no numbers");
    error       e = { 0 };
    gguf       *g = NULL;
    const edit  edits[] = { { DROP_KEY, "gemma4.final_logit_softcapping", 0, NULL, 0 } };
    buffer      file = model_file_edit(path, edits, 1);
    const float huge = 3e38f;
    gm_sampling greedy = samplings[0].sampling;
    int32_t     token;
    CHECK(file.length && !gguf_open_memory(file.data, file.length, &g, &e));
    const gguf_tensor *norm = g ? gguf_find_tensor(g, "output_norm.weight") : NULL;
    CHECK(norm && norm->type == TYPE_F32);
    if (!norm) return;
    const size_t at = (size_t)((const char *)gguf_tensor_data(g, norm) - file.data);
    for (size_t i = 0; i < norm->ne[0]; i++) memcpy(file.data + at + i * sizeof huge, &huge, sizeof huge);
    gguf_free(g);
    gm_engine *engine =
        open_engine(&(gm_engine_options){ .data = file.data, .data_size = file.length, .backend = GM_BACKEND_GPU });
    gm_session *s = engine ? open_session(engine, GM_KV_DEFAULT, 0) : NULL;
    if (s) {
        CHECK(append_tokens(s, (const int32_t[]){ 310 }, 1) == GM_BAD_FILE);
        char plain[400];
        memcpy(plain, why, sizeof plain);
        CHECK(!gm_session_rollback(s, 0, NULL, why, sizeof why) && !session_hold(s, 310, &e));
        CHECK(next_draw(s, &greedy, &token, &e) == GM_BAD_FILE);
        CHECK_MESSAGE(!strcmp(plain, e.why), "'%s', not '%s'", e.why, plain);
        CHECK(s->tokens.count == s->computed && session_dispatches(s) > 0);
    }
    gm_session_free(s);
    gm_engine_close(engine);
    buffer_free(&file);
}

static void test_lost(const char *path) {
    TEST("a GPU that is lost while steps are under way");
    gm_engine  *engine = open_engine(&(gm_engine_options){ .model = path, .backend = GM_BACKEND_GPU });
    gm_session *s = engine ? prompted_session(engine, 8) : NULL;
    int32_t     token;
    error       e;
    for (int i = 0; s && i < 3; i++)
        CHECK(!next_draw(s, &samplings[3].sampling, &token, &e) && !session_hold(s, token, &e));
    if (s && host_force_loss(engine->gpu.host)) {
        const double deadline = clock_seconds() + 120;
        gm_status    status = GM_OK;
        while (!status && clock_seconds() < deadline) {
            gpu_host_wait(engine->gpu.host, 1);
            status = next_draw(s, &samplings[3].sampling, &token, &e);
            if (!status) CHECK(!session_hold(s, token, &e));
        }
        CHECK_MESSAGE(status == GM_DEVICE_LOST, "%s", e.why);
        CHECK(next_draw(s, &samplings[3].sampling, &token, &e) == GM_DEVICE_LOST);
    }
    gm_session_free(s);
    gm_engine_close(engine);
}

int main(int argc, char **argv) {
    const bool all = argc < 2, drawn = all || !strcmp(argv[1], "drawn"),
               disturbed = all || !strcmp(argv[1], "disturbed");
    for (size_t i = 0; i < (drawn ? COUNT_OF(models) : 1); i++) {
        TEST("opening %s", models[i]);
        gm_engine *engine = open_engine(&(gm_engine_options){ .model = models[i], .backend = GM_BACKEND_GPU });
        if (!engine) return test_end();
        if (drawn) test_samplings(engine, models[i], 1 + 2 * i);
        if (i == 0 && drawn) {
            test_stop_tokens(engine);
            test_generate_limits(engine);
            test_generate_growth(engine);
            test_next(engine);
            test_generate_logprobs(engine);
        }
        if (i == 0 && disturbed) {
            test_stop_strings(engine);
            test_replies_disturbed(engine);
            test_nothing_left(engine);
        }
        gm_engine_close(engine);
    }
    if (disturbed) test_not_a_number(models[0]);
    if (disturbed) test_lost(models[0]);
    return test_end();
}
