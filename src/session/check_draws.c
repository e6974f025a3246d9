/* The self-check of the sampler: draws from known logits with the generator that answers use, and compares with the
 * CPU.
 *
 * Vocabulary and history have the model's sizes, so the pipelines compiled here are the ones that the first answer
 * needs: the check makes opening slower, but the first answer faster. */

#include "base/random.h"
#include "session/self_check_parts.h"
#include "text/sampler_settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 4, /* rows of logits; row t follows token t, so a token below this can continue a chain of draws */
    DRAWS = 3,
    ALTERNATIVES = 5,
    MOST_VALUES = 3 + 2 * ALTERNATIVES, /* per draw, in a comparison */
    USUAL_CONTEXT = 8192,               /* of a session; decides the size of the history */
};

typedef struct {
    const char *what;
    bool        chained; /* each draw continues with the token of the one before */
    bool        logprobs;
    bool        slow; /* skipped by a quick check, because the other cases cover its kernels */
    gm_sampling sampling;
} draw_case;

static const gm_logit_bias biases[] = { { 2, 0.75f }, { 3, -0.5f } };
static const int32_t       said[] = { 1, 5, 2, 1 };

static const draw_case cases[] = {
    { "greedy draws with penalties and log-probabilities",
      true,
      true,
      false,
      { .top_p = 1,
        .typical_p = 1,
        .repetition_penalty = 1.1f,
        .presence_penalty = 0.7f,
        .frequency_penalty = 0.4f,
        .penalty_window = 64,
        .bias = biases,
        .bias_count = COUNT_OF(biases) } },
    { "draws with top-k and top-p",
      false,
      false,
      false,
      { .temperature = 2, .top_k = 64, .top_p = 0.95f, .typical_p = 1, .repetition_penalty = 1, .seed = 7 } },
    { "draws with top-k and typical-p",
      false,
      false,
      true,
      { .temperature = 2, .top_k = 64, .top_p = 1, .typical_p = 0.3f, .repetition_penalty = 1, .seed = 7 } },
    { "draws from the whole vocabulary",
      false,
      false,
      false,
      { .temperature = 9, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 8 } },
    { "draws with typical-p, min-p and penalties",
      false,
      true,
      true,
      { .temperature = 3,
        .top_p = 1,
        .min_p = 0.01f,
        .typical_p = 0.8f,
        .repetition_penalty = 1.3f,
        .penalty_window = 3,
        .seed = 9 } },
};

struct check_draws {
    uint32_t       vocabulary, context;
    bool           quick;
    sampler       *reference;
    gpu_generator *generator;
    const float   *logits; /* [ROWS][vocabulary], in the check's graph */
    size_t         at, drawn;
    bool           flying;
    uint64_t       position;                           /* of the next draw */
    int32_t        tokens[COUNT_OF(said) + 1 + DRAWS]; /* the tokens that penalties consider */
    size_t         token_count;
};

size_t check_draws_context(const model_config *config) { return min_size(config->context, USUAL_CONTEXT); }

gm_status check_draws_new(const model_config *config, bool quick, check_draws **out, error *e) {
    *out = NULL;
    if (config->vocabulary < 2 * ROWS) return GM_OK;
    check_draws *d = calloc(1, sizeof *d);
    if (!d) return fail_memory(e, "the self-check", sizeof *d);
    d->vocabulary = config->vocabulary;
    d->context = (uint32_t)check_draws_context(config);
    d->quick = quick;
    const gm_status status = sampler_new(d->vocabulary, &d->reference, e);
    if (status) check_draws_free(d);
    else *out = d;
    return status;
}

void check_draws_close(check_draws *d) {
    if (!d) return;
    gpu_generator_free(d->generator);
    d->generator = NULL;
}

void check_draws_free(check_draws *d) {
    if (!d) return;
    check_draws_close(d);
    sampler_free(d->reference);
    free(d);
}

const char *check_draws_name(const check_draws *d, size_t index) {
    for (size_t i = 0; d && i < COUNT_OF(cases); i++) {
        if (d->quick && cases[i].slow) continue;
        if (!index--) return cases[i].what;
    }
    return NULL;
}

/* ---- the logits ---- */

/* A table of logits as the embeddings of a graph. Tokens (r + 1) and (r + 2) modulo ROWS stand out in row r: penalties
 * change their order, but the likeliest token always has a row of its own. */
static tensor *logits_table(check_draws *d, graph *g) {
    const uint64_t n = d->vocabulary;
    float         *logits = arena_array(&g->memory, (size_t)n * ROWS, sizeof *logits);
    if (!logits) return NULL;
    uint32_t words[4] = { 0 };
    for (uint64_t i = 0; i < n * ROWS; i++) {
        if (i % 4 == 0) philox((uint32_t[]){ (uint32_t)i, 0, 0, 0 }, (uint32_t[]){ 0x64726177, 1 }, words);
        logits[i] = -10 + 16 * (float)(words[i % 4] >> 8) / (float)(1 << 24);
    }
    for (uint64_t r = 0; r < ROWS; r++) {
        logits[r * n + (r + 1) % ROWS] = 11;
        logits[r * n + (r + 2) % ROWS] = 10.5f;
    }
    d->logits = logits;
    return graph_weight(g, "self-check", TYPE_F32, (uint64_t[]){ n, ROWS, 1 }, logits);
}

static gm_status open_draws(self_check *c, check_draws *d, error *e) {
    c->open = true;
    tensor *table = logits_table(d, &c->g);
    if (!table) return fail_memory(e, "the self-check's logits", (uint64_t)d->vocabulary * ROWS * sizeof(float));
    c->g.result = graph_embed(&c->g, table, 1);
    if (c->g.problem.status) return fail(e, c->g.problem.status, "%s", c->g.problem.why);
    return gpu_backend_find_weights(&c->gpu, &c->g, e);
}

/* ---- one draw ---- */

static int32_t last_token(const check_draws *d) { return d->tokens[d->token_count - 1]; }

/* A top-k with which a single workgroup chooses. */
static gm_sampling sampling_of(const check_draws *d) {
    gm_sampling p = cases[d->at].sampling;
    p.top_k = (int32_t)min_size((size_t)p.top_k, sampler_most_candidates(d->vocabulary));
    return p;
}

static size_t window_of(const check_draws *d) { return min_size(cases[d->at].sampling.penalty_window, d->token_count); }

/* Starts from the same tokens each time, but at another position, so that the random numbers differ. */
static gm_status begin_draw(check_draws *d, error *e) {
    const draw_case       *from = &cases[d->at];
    const gm_sampling      sampling = sampling_of(d);
    const sampler_settings settings = { .sampling = &sampling, .vocabulary = d->vocabulary, .advance = true };
    memcpy(d->tokens, said, sizeof said);
    d->token_count = COUNT_OF(said);
    d->tokens[d->token_count++] = (int32_t)(d->drawn % ROWS);
    d->position = d->token_count + 2 * d->drawn;
    const size_t count = sampler_settings_words(&settings), window = window_of(d);
    uint32_t    *words = malloc(count * sizeof *words);
    if (!words) return fail_memory(e, "the sampler's settings", count * sizeof *words);
    gm_status status = sampler_settings_write(&settings, words, e);
    words[SAMPLER_FINITE] = 1;
    words[SAMPLER_ALTERNATIVES] = ALTERNATIVES;
    const uint32_t        index = (uint32_t)d->position - 1;
    const token_record    record = { .id = last_token(d), .position = index, .at = index, .span_count = 1 };
    const generator_start start = { .settings = words,
                                    .setting_words = count,
                                    .greedy = sampler_settings_greedy(&settings),
                                    .edits = sampler_settings_edits(&settings),
                                    .steps = sampler_settings_steps(&settings),
                                    .logprobs = from->logprobs,
                                    .token = &record,
                                    .history = d->tokens + (d->token_count - window),
                                    .history_count = window };
    if (!status) status = gpu_generator_begin(d->generator, &start, e);
    free(words);
    return status;
}

/* A draw as numbers to compare: log-probabilities if there are any, status, token. Returns how many. */
static size_t values_of(const gm_token_logprob *logprobs, bool any, uint32_t status, int32_t token, float *out) {
    size_t n = 0;
    for (size_t i = 0; any && i < 1 + ALTERNATIVES; i++) {
        if (i) out[n++] = (float)logprobs[i].token;
        out[n++] = logprobs[i].logprob;
    }
    out[n++] = (float)status;
    out[n++] = (float)token;
    return n;
}

/* Draws on the CPU, compares, and continues with that token. */
static gm_status compare_draw(self_check *c, check_draws *d, const sampler_record *record, error *e) {
    const draw_case  *from = &cases[d->at];
    const float      *logits = d->logits + (size_t)last_token(d) * d->vocabulary;
    const size_t      window = window_of(d);
    const gm_sampling sampling = sampling_of(d);
    gm_token_logprob  logprobs[1 + ALTERNATIVES];
    float             expected[MOST_VALUES], found[MOST_VALUES];
    int32_t           token = 0;
    sampler_record_logprobs(record, logprobs, ALTERNATIVES);
    const size_t n = values_of(logprobs, from->logprobs, record->status, (int32_t)record->token, found);
    TRY(sampler_draw(d->reference, &sampling, logits, d->tokens + (d->token_count - window), window, NULL, d->position,
                     &token, e));
    if (from->logprobs) sampler_logprobs(d->reference, logits, token, logprobs, logprobs + 1, ALTERNATIVES);
    values_of(logprobs, from->logprobs, SAMPLER_DRAWN, token, expected);
    if (c->spoil) c->spoil(c->spoil_user, from->what, found, n, expected, n);
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(found[i] - expected[i]) <= 1e-3f))
            return check_refuse(c, from->what, expected[i], found[i], e); /* also if NaN */
    }
    d->tokens[d->token_count++] = token;
    d->position++;
    d->drawn++;
    return GM_OK;
}

/* If the GPU drew a token outside the vocabulary and has no other problem, it computes wrongly. */
static gm_status refuse_strange(const self_check *c, error *e) {
    error           problem = { 0 };
    const error     strange = *e;
    const gpu_info *info = gpu_host_info(c->host);
    if (gpu_host_problem(c->host, &problem)) return strange.status;
    *e = (error){ 0 };
    return fail(e, GM_NO_DEVICE, "the GPU '%.60s' computes %s wrongly: %.200s", info->name, cases[c->draws->at].what,
                strange.why);
}

static gm_status step_draw(self_check *c, check_draws *d, error *e) {
    sampler_record record;
    gm_status      status = GM_OK;
    if (!d->flying) {
        const bool goes_on = d->drawn && cases[d->at].chained && last_token(d) < ROWS;
        if (!goes_on) status = begin_draw(d, e);
        if (!status) status = gpu_generator_submit(d->generator, e);
        if (status) return status;
        d->flying = true;
    }
    status = gpu_generator_take(d->generator, &record, e);
    if (status == GM_AGAIN) return status;
    d->flying = false;
    return status ? refuse_strange(c, e) : compare_draw(c, d, &record, e);
}

gm_status check_draws_step(self_check *c, error *e) {
    check_draws *d = c->draws;
    if (!d) return GM_OK;
    if (!c->open) TRY(open_draws(c, d, e));
    if (!c->uploaded) {
        const gm_status status = gpu_backend_upload(&c->gpu, &c->g, e);
        if (status) return status;
        c->uploaded = true;
    }
    if (!c->plan) TRY(gpu_plan_new(&c->gpu, &c->g, 1, 1, &c->gpu_kv, &c->plan, e));
    if (!d->generator) TRY(gpu_generator_new(c->plan, d->vocabulary, d->context, &d->generator, e));
    for (; d->at < COUNT_OF(cases); d->at++, d->drawn = 0) {
        while (d->drawn < DRAWS && !(d->quick && cases[d->at].slow)) {
            const gm_status status = step_draw(c, d, e);
            if (status) return status;
        }
    }
    return GM_OK;
}
