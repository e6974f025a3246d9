/* The GPU's sampler must draw the same tokens as the C sampler, for the golden tokens and for random logits with random parameters, and
 * find the same log-probabilities. Needs a WebGPU library and a Vulkan driver, like test_gpu_host.
 *
 *     test_gpu_sampler [only golden tokens with this in their name] */

#include "test.h"

#include "golden_sampler.h"

#include "base/clock.h"
#include "base/random.h"
#include "gpu/pipeline.h"
#include "gpu/sampler_kernels.h"
#include "session/records.h"
#include "text/sampler.h"
#include "text/sampler_settings.h"

#include <math.h>
#include <stdlib.h>

enum { READS = 3, RESULTS = 3, HISTORY = 128, MOST_DRAWS = 4, START = 100, PROMPT = 5, WINDOW = 107 };

/* ---- one draw after the other on the GPU ---- */

typedef struct {
    gpu_id   buffer;
    uint64_t bytes;
} range;

typedef struct {
    int32_t        token[MOST_DRAWS];
    uint32_t       status[MOST_DRAWS];
    sampler_record record; /* the last draw's */
} outcome;

typedef struct {
    const gm_sampling *sampling;
    const float       *logits;
    size_t             vocabulary;
    const int32_t     *history;
    size_t             history_count;
    const uint32_t    *suppressed;
    uint64_t           position;
    size_t             draws;
    uint32_t           alternatives;
} request;

static const void *wait_for_draws(gpu_host *h, uint32_t ticket) {
    const double deadline = clock_seconds() + 120;
    const void  *data;
    while (!(data = gpu_ticket_data(h, ticket, NULL)) && clock_seconds() < deadline) gpu_host_wait(h, 100);
    return data;
}

/* A buffer with these words at its front, or with zeros. */
static range new_range(gpu_host *h, uint64_t bytes, const void *data) {
    error e = { 0 };
    range r = { gpu_buffer_new(h, round_up(bytes, 16), &e), bytes };
    CHECK_MESSAGE(r.buffer, "%s", e.why);
    if (data) CHECK_MESSAGE(gpu_buffer_write(h, r.buffer, 0, data, bytes, &e) == GM_OK, "%s", e.why);
    return r;
}

static gpu_id group_of(gpu_host *h, const gpu_kernel *k, gpu_id pipeline, const range ranges[DRAW_BINDS]) {
    gpu_binding bindings[KERNEL_BINDS];
    error       e = { 0 };
    for (size_t i = 0; i < k->bind_count; i++) {
        const range *bound = &ranges[k->binds[i]];
        bindings[i] = (gpu_binding){ (uint32_t)i, bound->buffer, 0, bound->bytes };
    }
    const gpu_id group = gpu_group_new(h, pipeline, bindings, k->bind_count, &e);
    CHECK_MESSAGE(group, "%s", e.why);
    return group;
}

/* What the host writes when a conversation begins. */
static uint32_t *first_state(const request *r, uint64_t bytes) {
    uint32_t *state = calloc(1, bytes);
    if (!state) abort();
    state[SAMPLER_STATE_DRAWS] = (uint32_t)r->position;
    state[SAMPLER_STATE_DRAWS + 1] = (uint32_t)(r->position >> 32);
    state[SAMPLER_STATE_APPENDED] = (uint32_t)r->history_count;
    for (size_t i = 0; i < r->history_count; i++)
        state[SAMPLER_STATE_RESULTS + 2 * RESULTS + i % HISTORY] = (uint32_t)r->history[i];
    return state;
}

/* A run's buffer, as wgsl/run.wgsl has it. */
typedef struct {
    uint32_t     tokens, outputs, window, spare;
    token_record records[PROMPT];
} run_buffer;

/* The run must have become one of the drawn token, which follows the last one. */
static void check_next(const run_buffer *run, int32_t token, uint32_t index) {
    const token_record *r = &run->records[0];
    CHECK(run->tokens == 1 && run->outputs == 1 && run->window == WINDOW);
    CHECK(r->id == token && r->position == index && r->at == index && r->span_first == 0 && r->span_count == 1);
    CHECK(r->full_first == 0 && r->full_last == index);
    CHECK(r->sliding_first == (index < WINDOW ? 0 : index + 1 - WINDOW) && r->sliding_last == index);
    CHECK(r->sequence == 3 && r->shared == 4 && r->prefix == 5 && r->own == 6 && r->ring == 7 && r->ring_slots == 40);
}

/* All draws are submitted at once: only the rings tell afterwards what came out. */
static void draw_on_gpu(gpu_host *h, const request *r, outcome *out) {
    error                  e = { 0 };
    const sampler_settings settings = { r->sampling, r->vocabulary, r->suppressed, 0, true };
    const sampler_shape    shape = { .vocabulary = (uint32_t)r->vocabulary,
                                     .results = RESULTS,
                                     .history = HISTORY,
                                     .greedy = sampler_settings_greedy(&settings),
                                     .edits = sampler_settings_edits(&settings),
                                     .steps = sampler_settings_steps(&settings),
                                     .logprobs = true };
    const sampler_bytes    bytes = sampler_bytes_of(&shape);
    const size_t           words = sampler_settings_words(&settings);
    uint32_t              *record = malloc(words * sizeof *record), *state = first_state(r, bytes.state);
    if (!record) abort();
    CHECK_MESSAGE(sampler_settings_write(&settings, record, &e) == GM_OK, "%s", e.why);
    record[SAMPLER_ALTERNATIVES] = r->alternatives;
    const record_sequence sequence = { 3, WINDOW, 4, 5, 6, 7, 40 };
    const int32_t         ids[PROMPT] = { 0 };
    run_buffer            prompt = { .tokens = PROMPT, .outputs = 1, .window = WINDOW };
    records_of_text(prompt.records, 0, &sequence, ids, START, PROMPT);
    const range ranges[DRAW_BINDS] = {
        [DRAW_LOGITS] = new_range(h, r->vocabulary * sizeof(float), r->logits),
        [DRAW_SETTINGS] = new_range(h, words * sizeof *record, record),
        [DRAW_FIXED] = new_range(h, bytes.fixed, NULL),
        [DRAW_COUNTS] = new_range(h, bytes.counts, NULL),
        [DRAW_BLOCKS] = new_range(h, bytes.blocks, NULL),
        [DRAW_CANDIDATES] = new_range(h, bytes.candidates, NULL),
        [DRAW_HEADER] = new_range(h, bytes.header, NULL),
        [DRAW_CUTS] = new_range(h, bytes.cuts, NULL),
        [DRAW_STATE] = new_range(h, bytes.state, state),
        [DRAW_RUN] = new_range(h, sizeof prompt, &prompt),
        [DRAW_RECORD] = new_range(h, bytes.record, NULL),
        [DRAW_PARTS] = new_range(h, bytes.parts, NULL),
    };
    gpu_kernel   kernels[SAMPLER_KERNELS];
    gpu_id       pipelines[SAMPLER_KERNELS], groups[SAMPLER_KERNELS];
    const size_t count = sampler_kernels(&shape, kernels);
    for (size_t i = 0; i < count; i++) {
        pipelines[i] = gpu_kernel_pipeline(h, &kernels[i], &e);
        CHECK_MESSAGE(pipelines[i], "%s", e.why);
        groups[i] = group_of(h, &kernels[i], pipelines[i], ranges);
    }
    for (size_t d = 0; d < r->draws && !e.status; d++) { /* a read after each draw: the ring is shorter than the list */
        gpu_words      list = { 0 };
        const uint32_t tickets[READS] = { gpu_ticket_new(h), gpu_ticket_new(h), gpu_ticket_new(h) };
        gpu_words_begin(&list);
        for (size_t i = 0; i < count; i++)
            gpu_words_dispatch(&list, pipelines[i], groups[i], kernels[i].x, kernels[i].y, kernels[i].z);
        for (size_t i = 0; i < READS; i++) {
            static const int read[READS] = { DRAW_STATE, DRAW_RUN, DRAW_RECORD };
            const size_t     at = gpu_words_read(&list, ranges[read[i]].buffer, 0, ranges[read[i]].bytes);
            list.data[at] = tickets[i];
        }
        gm_status status;
        while ((status = gpu_submit(h, list.data, list.count, &e)) == GM_AGAIN) gpu_host_wait(h, 100);
        CHECK_MESSAGE(status == GM_OK, "%s", e.why);
        if (status) {
            free(list.data);
            break;
        }
        const uint32_t       *after = wait_for_draws(h, tickets[0]);
        const run_buffer     *run = wait_for_draws(h, tickets[1]);
        const sampler_record *drawn = wait_for_draws(h, tickets[2]);
        CHECK(after && run && drawn);
        if (after && run && drawn) {
            out->record = *drawn;
            CHECK(drawn->token == (uint32_t)run->records[0].id &&
                  drawn->status == after[SAMPLER_STATE_RESULTS + 2 * (d % RESULTS) + 1]);
            const uint32_t *result = after + SAMPLER_STATE_RESULTS + 2 * (d % RESULTS);
            const size_t    appended = r->history_count + d;
            out->token[d] = (int32_t)result[0];
            out->status[d] = result[1];
            CHECK(after[SAMPLER_STATE_DELIVERED] == d + 1 && after[SAMPLER_STATE_APPENDED] == appended + 1);
            CHECK(after[SAMPLER_STATE_RESULTS + 2 * RESULTS + appended % HISTORY] == result[0]);
            check_next(run, (int32_t)result[0], START + PROMPT + (uint32_t)d);
        }
        for (size_t i = 0; i < READS; i++) gpu_ticket_done(h, tickets[i]);
        free(list.data);
    }
    for (size_t i = 0; i < count; i++) gpu_group_free(h, groups[i]);
    for (size_t i = 0; i < COUNT_OF(ranges); i++) gpu_buffer_free(h, ranges[i].buffer);
    free(record);
    free(state);
}

/* ---- against the C sampler ---- */

static void draw_on_cpu(const request *r, outcome *out) {
    error    e = { 0 };
    sampler *s = NULL;
    int32_t  history[HISTORY + MOST_DRAWS];
    CHECK_MESSAGE(sampler_new(r->vocabulary, &s, &e) == GM_OK, "%s", e.why);
    memcpy(history, r->history, r->history_count * sizeof *history);
    for (size_t d = 0; s && d < r->draws; d++) {
        error           problem = { 0 };
        const gm_status status = sampler_draw(s, r->sampling, r->logits, history, r->history_count + d, r->suppressed,
                                              r->position + d, &out->token[d], &problem);
        out->status[d] = status == GM_OK         ? SAMPLER_DRAWN
                         : status == GM_BAD_FILE ? SAMPLER_NOT_A_NUMBER
                                                 : SAMPLER_NOTHING_LEFT;
        if (status != GM_OK) out->token[d] = 0;
        history[r->history_count + d] = out->token[d];
    }
    sampler_free(s);
}

static bool near(float a, double b) { return (isinf(a) && isinf(b)) || fabs(a - b) <= 2e-6 * (1 + fabs(b)); }

/* The record of a draw, finished as the session does it. */
static void compare_logprobs(const request *r, const sampler_record *record) {
    error            e = { 0 };
    sampler         *s = NULL;
    gm_token_logprob chosen, top[SAMPLER_MOST_ALTERNATIVES];
    CHECK_MESSAGE(sampler_new(r->vocabulary, &s, &e) == GM_OK, "%s", e.why);
    if (!s) return;
    sampler_logprobs(s, r->logits, (int32_t)record->token, &chosen, top, r->alternatives);
    const double base = (double)record->largest + log((double)record->sum);
    if (record->sum > 0) {
        const double logprob = record->known ? (double)record->logit - base : -INFINITY;
        CHECK_MESSAGE(near(chosen.logprob, logprob), "log-probability %g of token %u, not %g", logprob, record->token,
                      (double)chosen.logprob);
    } else CHECK(chosen.logprob == -INFINITY && !record->known);
    for (size_t i = 0; i < r->alternatives; i++) {
        const int32_t token = (int32_t)record->likeliest[i].token;
        CHECK_MESSAGE(token == top[i].token &&
                          (token < 0 || near(top[i].logprob, (double)record->likeliest[i].logit - base)),
                      "alternative %zu of %u: token %d (%g), not %d (%g)", i, r->alternatives, token,
                      (double)record->likeliest[i].logit - base, top[i].token, (double)top[i].logprob);
    }
    sampler_free(s);
}

static void compare_draws(gpu_host *h, const request *r) {
    outcome gpu = { .status = { 99 } }, cpu = { .status = { 0 } };
    draw_on_gpu(h, r, &gpu);
    draw_on_cpu(r, &cpu);
    for (size_t d = 0; d < r->draws; d++)
        CHECK_MESSAGE(gpu.token[d] == cpu.token[d] && gpu.status[d] == cpu.status[d],
                      "draw %zu of %zu tokens: %d (status %u), not %d (status %u)", d, r->vocabulary, gpu.token[d],
                      gpu.status[d], cpu.token[d], cpu.status[d]);
    compare_logprobs(r, &gpu.record);
}

/* Each golden row at one of the positions: all of them would take minutes without a real GPU. */
static void test_gpu_golden(gpu_host *h, const char *only) {
    float *logits = malloc(GOLDEN_VOCABULARY * sizeof *logits);
    if (!logits) abort();
    golden_logits(logits);
    for (size_t i = 0; i < COUNT_OF(golden_rows); i++) {
        if (!strstr(golden_rows[i].name, only)) continue;
        TEST("golden token: %s", golden_rows[i].name);
        const size_t  j = i % GOLDEN_POSITIONS;
        outcome       out = { { -1 }, { 99 }, { 0 } };
        const request wanted = { &golden_rows[i].sampling,
                                 logits,
                                 GOLDEN_VOCABULARY,
                                 golden_history,
                                 COUNT_OF(golden_history),
                                 NULL,
                                 golden_positions[j],
                                 1,
                                 3 };
        draw_on_gpu(h, &wanted, &out);
        compare_logprobs(&wanted, &out.record);
        CHECK_MESSAGE(out.token[0] == golden_rows[i].tokens[j] && out.status[0] == SAMPLER_DRAWN,
                      "position %zu: %d, not %d", j, out.token[0], golden_rows[i].tokens[j]);
    }
    free(logits);
}

typedef struct {
    uint32_t counter, seed;
} dice;

static uint32_t roll(dice *d, uint32_t sides) {
    uint32_t out[4];
    philox((const uint32_t[4]){ d->counter++, 0, 0, 0 }, (const uint32_t[2]){ d->seed, 7 }, out);
    return out[0] % sides;
}

#define PICK(d, ...) ((const float[]){ __VA_ARGS__ }[roll(d, sizeof((const float[]){ __VA_ARGS__ }) / sizeof(float))])

static gm_sampling random_sampling(dice *d) {
    gm_sampling p = { .temperature = PICK(d, 0, 0.001f, 0.3f, 1, 1, 1.7f, 100, 1e-9f),
                      .top_k = (int32_t)PICK(d, 0, 0, 0, 1, 3, 40, 64, 300, 5000),
                      .top_p = PICK(d, 1, 1, 0, 0.1f, 0.5f, 0.95f, 0.9999999f),
                      .min_p = PICK(d, 0, 0, 0, 1e-40f, 0.05f, 0.3f, 1),
                      .typical_p = PICK(d, 1, 1, 1, 0, 0.1f, 0.5f, 0.95f),
                      .repetition_penalty = PICK(d, 1, 1, 0.01f, 0.3f, 1.1f, 100),
                      .presence_penalty = PICK(d, 0, 0.3f, -5.1f, 100),
                      .frequency_penalty = PICK(d, 0, 0.7f, -1.3f, -100),
                      .penalty_window = (uint32_t)PICK(d, 0, 1, 8, 64, 100000) };
    p.seed = (uint64_t)roll(d, UINT32_MAX) << 32 | roll(d, UINT32_MAX);
    return p;
}

static void rolled_logits(dice *d, float *logits, size_t n) {
    const float spread = PICK(d, 0.001f, 0.5f, 3, 10, 200, 20000), grain = PICK(d, 0, 0, 1);
    for (size_t i = 0; i < n; i++) {
        const float sum = (float)(roll(d, 65536) + roll(d, 65536) + roll(d, 65536)) / 65536 - 1.5f; /* like a bell */
        logits[i] = 2 * sum * spread;
        if (grain > 0) logits[i] = roundf(logits[i]); /* so that there are many equals */
        if (roll(d, 50) == 0) logits[i] = -INFINITY;
    }
    if (roll(d, 20) == 0) logits[roll(d, (uint32_t)n)] = NAN;
    if (roll(d, 20) == 0) logits[roll(d, (uint32_t)n)] = INFINITY;
    if (roll(d, 20) == 0)
        for (size_t i = 0; i < n; i++) logits[i] = -INFINITY;
}

static void test_gpu_random(gpu_host *h) {
    static const size_t sizes[] = { 1, 2, 5, 255, 256, 257, 640, 1024, 1025, 2999, 9001, 33001 };
    enum { CASES = 60, LARGEST = 33001, MOST_BIASES = 20 };
    static float    logits[LARGEST];
    static uint32_t suppressed[LARGEST / 32 + 1];
    for (uint32_t i = 0; i < CASES; i++) {
        dice           d = { 0, i };
        const size_t   n = sizes[i % COUNT_OF(sizes)], history_count = roll(&d, 3) ? roll(&d, 100) : 0;
        const uint32_t near = n < 5 ? (uint32_t)n : 5;
        gm_sampling    p = random_sampling(&d);
        gm_logit_bias  biases[MOST_BIASES];
        int32_t        history[HISTORY];
        TEST("random logits and parameters %u, %zu tokens", i, n);
        rolled_logits(&d, logits, n);
        for (size_t j = 0; j < history_count; j++)
            history[j] = roll(&d, 10) ? (int32_t)roll(&d, roll(&d, 2) ? (uint32_t)n : near) : -1;
        p.bias = biases;
        p.bias_count = roll(&d, 3) ? 0 : roll(&d, MOST_BIASES);
        for (size_t j = 0; j < p.bias_count; j++)
            biases[j] = (gm_logit_bias){ (int32_t)roll(&d, near), PICK(&d, -INFINITY, -1000, 0.25f, 3, 700, 1000) };
        for (size_t j = 0; j < COUNT_OF(suppressed); j++) {
            const uint32_t half = roll(&d, UINT32_MAX);
            suppressed[j] = half & roll(&d, UINT32_MAX); /* one bit in four */
        }
        compare_draws(h, &(request){ &p, logits, n, history, history_count, roll(&d, 4) ? NULL : suppressed,
                                     (uint64_t)roll(&d, 3) << 32 | roll(&d, UINT32_MAX), MOST_DRAWS,
                                     (uint32_t)PICK(&d, 0, 1, 5, SAMPLER_MOST_ALTERNATIVES) });
    }
}

int main(int argc, char **argv) {
    error     e = { 0 };
    gpu_host *h = NULL;
    TEST("a GPU, or what plays one");
    CHECK_MESSAGE(gpu_host_open(&(gpu_options){ .adapter = -1 }, &h, &e) == GM_OK, "%s", e.why);
    if (!h) return test_end();
    if (argc < 2) test_gpu_random(h);
    test_gpu_golden(h, argc > 1 ? argv[1] : "");
    TEST("nothing was refused");
    CHECK_MESSAGE(gpu_host_problem(h, &e) == GM_OK, "%s", e.why);
    gpu_host_close(h);
    return test_end();
}
