/* Several sequences in one generator draw what each draws alone, whatever settings the others have and whenever they join or leave.
 * Engines are precise. From where the two likeliest tokens are closer than 1e-4, a row may differ, which is printed. Needs a WebGPU
 * library and a Vulkan driver, like test_gpu_host. */

#include "sessions.h"

#include "base/clock.h"
#include "gpu/generator.h"
#include "text/sampler_settings.h"

#include <math.h>

enum { SEQUENCES = 5, ROWS = 4, MOST_PROMPT = 40, DRAWS = 9, FIRST = 350 };

static const gm_logit_bias biases[] = { { 310, 4 }, { 311, -INFINITY }, { 400, 2.5f }, { 0, -INFINITY } };

#define OF_32 0x10204080 /* of 32 tokens, 4 may be drawn */
static const uint32_t mask[] = { OF_32, OF_32, OF_32, OF_32, OF_32, OF_32, OF_32, OF_32, OF_32, OF_32,
                                 OF_32, OF_32, OF_32, OF_32, OF_32, OF_32, OF_32, OF_32, OF_32, OF_32 };

static const gm_sampling samplings[SEQUENCES] = {
    { .top_p = 1, .typical_p = 1, .repetition_penalty = 1 },
    { .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 5, .mask = mask },
    { .temperature = 1, .top_k = 64, .top_p = 0.95f, .typical_p = 1, .repetition_penalty = 1.2f, .penalty_window = 99 },
    { .top_p = 1, .typical_p = 1, .repetition_penalty = 1.3f, .frequency_penalty = 0.2f, .penalty_window = 8 },
    { .temperature = 0.7f,
      .top_p = 0.99f,
      .typical_p = 1,
      .repetition_penalty = 1,
      .seed = 7,
      .bias = biases,
      .bias_count = COUNT_OF(biases) },
};

/* What a sequence drew, and how far apart the two likeliest tokens were. */
typedef struct {
    int32_t token[DRAWS];
    float   logprob[DRAWS], margin[DRAWS];
    size_t  count;
} drawn_tokens;

/* A session with a prompt and a token that is not computed yet. */
static gm_session *waiting_session(gm_engine *engine, size_t i) {
    gm_session  *s = open_session(engine, GM_KV_DEFAULT, 0);
    int32_t      prompt[MOST_PROMPT];
    error        e = { 0 };
    const size_t n = 3 + 7 * i;
    make_tokens(prompt, n, (uint32_t)i + 1);
    if (!s) return NULL;
    CHECK_MESSAGE(!append_tokens(s, prompt, n), "%s", why);
    CHECK_MESSAGE(!session_hold(s, FIRST, &e), "%s", e.why);
    return s;
}

static drawn_tokens draw_alone(gm_engine *engine, size_t i) {
    drawn_tokens out = { .count = 0 };
    gm_session  *s = waiting_session(engine, i);
    for (error e = { 0 }; s && out.count < DRAWS; out.count++) {
        gm_token_logprob top[3];
        const draw_wish  wish = { .sampling = &samplings[i], .most = DRAWS, .logprobs = top, .alternatives = 2 };
        int32_t         *token = &out.token[out.count];
        gm_status        status;
        while ((status = session_next(s, &wish, token, clock_seconds() + 0.05, &e)) == GM_AGAIN) {}
        CHECK_MESSAGE(!status && !session_hold(s, *token, &e), "%s", e.why);
        out.logprob[out.count] = top[0].logprob;
        out.margin[out.count] = fabsf(top[1].logprob - top[2].logprob);
    }
    gm_session_free(s);
    return out;
}

/* ---- together ---- */

static void join_row(gpu_generator *g, size_t row, gm_session *s, size_t i) {
    const sampler_settings settings = { .sampling = &samplings[i],
                                        .vocabulary = s->engine->weights.config.vocabulary,
                                        .suppressed = s->engine->suppressed,
                                        .advance = true };
    const size_t           words = sampler_settings_words(&settings);
    uint32_t              *data = malloc(words * sizeof *data);
    const record_sequence  sequence = kv_sequence(&s->kv);
    const size_t           window = min_size(samplings[i].penalty_window, s->tokens.count);
    token_record           record;
    error                  e = { 0 };
    gm_status              status;
    if (!data) abort();
    CHECK_MESSAGE(!sampler_settings_write(&settings, data, &e), "%s", e.why);
    data[SAMPLER_ALTERNATIVES] = 2;
    records_of_text(&record, 0, &sequence, s->tokens.ids + s->computed, s->computed, 1);
    const generator_start start = { .settings = data,
                                    .setting_words = words,
                                    .greedy = sampler_settings_greedy(&settings),
                                    .edits = sampler_settings_edits(&settings),
                                    .steps = sampler_settings_steps(&settings),
                                    .logprobs = i % 2 == 0,
                                    .token = &record,
                                    .window = sequence.window,
                                    .history = s->tokens.ids + (s->tokens.count - window),
                                    .history_count = window };
    while ((status = gpu_generator_join(g, row, &start, &e)) == GM_AGAIN) gpu_host_wait(s->engine->gpu.host, 100);
    CHECK_MESSAGE(!status, "%s", e.why);
    free(data);
}

static bool step_submit(gpu_generator *g, gpu_host *h) {
    error     e = { 0 };
    gm_status status;
    while ((status = gpu_generator_submit(g, &e)) == GM_AGAIN) gpu_host_wait(h, 100);
    CHECK_MESSAGE(!status, "%s", e.why);
    return !status;
}

/* Takes a step's draws; `in` says which sequence is in each row, or -1. */
static void step_take(gpu_generator *g, gpu_host *h, const int in[ROWS], drawn_tokens *out) {
    sampler_record records[ROWS];
    error          e = { 0 };
    gm_status      status;
    while ((status = gpu_generator_take(g, records, &e)) == GM_AGAIN) gpu_host_wait(h, 100);
    CHECK_MESSAGE(!status, "%s", e.why);
    for (size_t row = 0; row < ROWS && !status; row++) {
        CHECK(records[row].status == (in[row] < 0 ? (uint32_t)SAMPLER_ABSENT : (uint32_t)SAMPLER_DRAWN));
        drawn_tokens *mine = in[row] < 0 ? NULL : &out[in[row]];
        if (!mine || mine->count == DRAWS) continue;
        gm_token_logprob top[3] = { { 0 } };
        sampler_record_logprobs(&records[row], top, 2);
        mine->logprob[mine->count] = in[row] % 2 == 0 ? top[0].logprob : NAN;
        mine->token[mine->count++] = (int32_t)records[row].token;
    }
}

/* Who is in which row from a step on. Row 1 changes hands while steps are in flight; in the end a single row is left. */
static const struct {
    size_t step;
    int    in[ROWS];
} changes[] = { { 0, { 0, 1, -1, -1 } },
                { 2, { 0, 1, 2, -1 } },
                { 9, { 0, 4, 2, -1 } },
                { 10, { -1, 4, 2, 3 } },
                { 19, { -1, -1, -1, 3 } } };
enum { STEPS = 20 };

static void change_rows(gpu_generator *g, size_t step, int in[ROWS], gm_session *const *sessions) {
    error e = { 0 };
    for (size_t t = 0; t < COUNT_OF(changes); t++) {
        for (size_t row = 0; row < ROWS && changes[t].step == step; row++) {
            const int next = changes[t].in[row];
            if (next == in[row]) continue;
            if (in[row] >= 0) CHECK_MESSAGE(!gpu_generator_leave(g, row, &e), "%s", e.why);
            if (next >= 0) join_row(g, row, sessions[next], (size_t)next);
            in[row] = next;
        }
    }
}

static void draw_together(gm_engine *engine, drawn_tokens out[SEQUENCES]) {
    gm_session    *sessions[SEQUENCES];
    gpu_generator *g = NULL;
    error          e = { 0 };
    int            in[GENERATOR_STEPS][ROWS], now[ROWS] = { -1, -1, -1, -1 };
    for (size_t i = 0; i < SEQUENCES; i++) sessions[i] = waiting_session(engine, i);
    for (size_t i = 0; i < SEQUENCES; i++)
        CHECK_MESSAGE(!kv_reserve(&sessions[i]->kv, sessions[i]->computed, STEPS, &e), "%s", e.why);
    const plan_wish wish = { .g = &engine->text,
                             .tokens = ROWS,
                             .outputs = ROWS,
                             .most_outputs = ROWS,
                             .kv = sessions[0]->kv.store->gpu_layers,
                             .rows = true };
    shared_plan    *plan = plans_borrow(&engine->plans, &wish, &e);
    CHECK_MESSAGE(plan, "%s", e.why);
    if (plan) CHECK_MESSAGE(!gpu_generator_new(plan->gpu, engine->weights.config.vocabulary, 512, &g, &e), "%s", e.why);
    for (size_t submitted = 0, taken = 0; g && taken < STEPS; taken++) {
        for (; submitted < STEPS && submitted < taken + GENERATOR_STEPS; submitted++) {
            change_rows(g, submitted, now, sessions);
            memcpy(in[submitted % GENERATOR_STEPS], now, sizeof now);
            if (!step_submit(g, engine->gpu.host)) break;
        }
        if (submitted <= taken) break;
        step_take(g, engine->gpu.host, in[taken % GENERATOR_STEPS], out);
    }
    gpu_generator_free(g);
    if (plan) plans_return(plan);
    for (size_t i = 0; i < SEQUENCES; i++) gm_session_free(sessions[i]);
}

static void compare_rows(const drawn_tokens *got, const drawn_tokens *want, size_t i) {
    CHECK_MESSAGE(got->count == DRAWS && want->count == DRAWS, "%zu draws, not %zu", got->count, want->count);
    for (size_t d = 0; d < got->count && d < want->count; d++) {
        if (got->token[d] != want->token[d] && want->margin[d] < 1e-4f) {
            printf("sequence %zu differs from draw %zu on: the two likeliest tokens are %g apart\n", i, d,
                   (double)want->margin[d]);
            return;
        }
        const uint32_t id = (uint32_t)got->token[d], *only = samplings[i].mask;
        CHECK_MESSAGE(!only || only[id / 32] >> id % 32 & 1, "sequence %zu, draw %zu: %u is masked", i, d, id);
        CHECK_MESSAGE(got->token[d] == want->token[d], "sequence %zu, draw %zu: %d, not %d", i, d, got->token[d],
                      want->token[d]);
        if (isnan(got->logprob[d])) continue;
        CHECK_MESSAGE(fabsf(got->logprob[d] - want->logprob[d]) < 1e-4f, "sequence %zu, draw %zu: %g, not %g", i, d,
                      (double)got->logprob[d], (double)want->logprob[d]);
    }
}

int main(void) {
    static const char *const models[] = { "tests/fixtures/two-layers.gguf", "tests/fixtures/tiny-moe.gguf" };
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        drawn_tokens got[SEQUENCES] = { { .count = 0 } };
        TEST("rows of %s", models[i]);
        gm_engine *engine =
            open_engine(&(gm_engine_options){ .model = models[i], .backend = GM_BACKEND_GPU, .precise = true });
        if (!engine) return test_end();
        draw_together(engine, got);
        for (size_t j = 0; j < SEQUENCES; j++) {
            const drawn_tokens want = draw_alone(engine, j);
            compare_rows(&got[j], &want, j);
        }
        gm_engine_close(engine);
    }
    return test_end();
}
