/* The GPU's sampler must draw the same tokens as the C sampler, for the golden tokens and for random logits with random parameters, and
 * find the same log-probabilities; in one row, and in several at once. Needs a WebGPU library and a Vulkan driver, like test_gpu_host.
 *
 *     test_gpu_sampler [rows, or only golden tokens with this in their name] */

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

enum { READS = 3, RESULTS = 3, HISTORY = 128, MOST_DRAWS = 4, START = 100, PROMPT = 5, WINDOW = 107, MOST_ROWS = 8 };

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

/* What the host writes when conversations begin. */
static uint32_t *first_state(const request *r, size_t rows, uint64_t bytes) {
    uint32_t *state = calloc(1, bytes);
    if (!state) abort();
    for (size_t row = 0; row < rows; row++, r++) {
        uint32_t *counters = state + row * SAMPLER_STATE_RESULTS;
        uint32_t *history = state + rows * (SAMPLER_STATE_RESULTS + 2 * RESULTS) + row * HISTORY;
        counters[SAMPLER_STATE_DRAWS] = (uint32_t)r->position;
        counters[SAMPLER_STATE_DRAWS + 1] = (uint32_t)(r->position >> 32);
        counters[SAMPLER_STATE_APPENDED] = (uint32_t)r->history_count;
        for (size_t i = 0; i < r->history_count; i++) history[i % HISTORY] = (uint32_t)r->history[i];
    }
    return state;
}

/* A run's buffer, as wgsl/run.wgsl has it. */
typedef struct {
    uint32_t     tokens, outputs, window, spare;
    token_record records[MOST_ROWS];
} run_buffer;

/* One row draws what follows a prompt; several follow one token each, at positions of their own. */
static run_buffer first_run(size_t rows) {
    const int32_t ids[PROMPT] = { 0 };
    run_buffer    run = { .tokens = rows > 1 ? (uint32_t)rows : PROMPT, .outputs = (uint32_t)rows, .window = WINDOW };
    for (uint32_t i = 0; i < rows; i++) {
        const record_sequence sequence = { 3 + i, 2 + i, WINDOW, 4, 5, 6, 7, 40 };
        records_of_text(run.records, i, &sequence, ids, START + (rows > 1 ? PROMPT - 1 : 0), rows > 1 ? 1 : PROMPT);
    }
    return run;
}

/* A row's record must have become that of the drawn token, which follows the last one. */
static void check_next(const run_buffer *run, uint32_t rows, uint32_t row, int32_t token, uint32_t index) {
    const token_record *r = &run->records[row];
    CHECK(run->tokens == rows && run->outputs == rows && run->window == WINDOW);
    CHECK(r->id == token && r->position == index && r->at == index && r->span_first == row && r->span_count == 1);
    CHECK(r->full_first == 0 && r->full_last == index);
    CHECK(r->sliding_first == (index < WINDOW ? 0 : index + 1 - WINDOW) && r->sliding_last == index);
    CHECK(r->sequence == 3 + row && r->shared == 4 && r->prefix == 5 && r->own == 6 && r->ring == 7 &&
          r->ring_slots == 40);
}

/* The settings of all rows, then from *rest on what lies in DRAW_REST. Adds to the shape what the rows need. */
static uint32_t *write_row_settings(const request *r, size_t rows, sampler_shape *shape, size_t *rest, size_t *words) {
    error  e = { 0 };
    size_t most = 0;
    for (size_t i = 0; i < rows; i++) {
        const sampler_settings settings = { r[i].sampling, r[i].vocabulary, r[i].suppressed, 0, true };
        most = max_size(most, sampler_settings_words(&settings));
    }
    *rest = rows * SAMPLER_REST;
    *words = *rest + rows * (most - SAMPLER_REST);
    uint32_t *out = calloc(*words, sizeof *out), *one = malloc(most * sizeof *one);
    if (!out || !one) abort();
    for (size_t i = 0; i < rows; i++) {
        const sampler_settings settings = { r[i].sampling, r[i].vocabulary, r[i].suppressed, (uint32_t)i, true };
        sampler_shape          needs = { .greedy = sampler_settings_greedy(&settings),
                                         .edits = sampler_settings_edits(&settings),
                                         .steps = sampler_settings_steps(&settings),
                                         .logprobs = i % 3 < 2 };
        needs.candidates = !needs.greedy && !needs.steps;
        CHECK_MESSAGE(sampler_settings_write(&settings, one, &e) == GM_OK, "%s", e.why);
        const size_t more = sampler_settings_words(&settings) - SAMPLER_REST;
        one[SAMPLER_ALTERNATIVES] = r[i].alternatives;
        one[SAMPLER_HOW] = r[i].draws ? sampler_how(&needs) : 0;
        one[SAMPLER_REST_AT] = (uint32_t)(i * (most - SAMPLER_REST));
        memcpy(out + i * SAMPLER_REST, one, SAMPLER_REST * sizeof *one);
        memcpy(out + *rest + one[SAMPLER_REST_AT], one + SAMPLER_REST, more * sizeof *one);
        shape->greedy |= needs.greedy;
        shape->candidates |= needs.candidates;
        shape->edits |= needs.edits;
        shape->logprobs |= needs.logprobs;
        if (needs.steps > shape->steps) shape->steps = needs.steps;
    }
    free(one);
    return out;
}

/* What a draw left, in a row that takes part. */
static void read_row(const request *r, uint32_t rows, uint32_t row, size_t d, const uint32_t *after,
                     const run_buffer *run, const sampler_record *drawn, outcome *out) {
    const uint32_t *counters = after + row * SAMPLER_STATE_RESULTS;
    const uint32_t *result = after + rows * SAMPLER_STATE_RESULTS + 2 * (row * RESULTS + d % RESULTS);
    const uint32_t *history = after + rows * (SAMPLER_STATE_RESULTS + 2 * RESULTS) + row * HISTORY;
    const size_t    appended = r->history_count + d;
    out->record = drawn[row];
    CHECK(drawn[row].token == (uint32_t)run->records[row].id && drawn[row].status == result[1]);
    out->token[d] = (int32_t)result[0];
    out->status[d] = result[1];
    CHECK(counters[SAMPLER_STATE_DELIVERED] == d + 1 && counters[SAMPLER_STATE_APPENDED] == appended + 1);
    CHECK(history[appended % HISTORY] == result[0]);
    check_next(run, rows, row, (int32_t)result[0], START + PROMPT + (uint32_t)d);
}

/* Draws with all rows, as often as the first of them wants; a row that wants none takes no part. All draws are submitted at once: only
 * the rings tell afterwards what came out. */
static void draw_on_gpu(gpu_host *h, const request *r, size_t rows, outcome *out) {
    error         e = { 0 };
    sampler_shape shape = {
        .rows = (uint32_t)rows, .vocabulary = (uint32_t)r->vocabulary, .results = RESULTS, .history = HISTORY
    };
    size_t              rest = 0, words = 0;
    uint32_t           *record = write_row_settings(r, rows, &shape, &rest, &words);
    const sampler_bytes bytes = sampler_bytes_of(&shape);
    uint32_t           *state = first_state(r, rows, bytes.state);
    float              *logits = malloc(rows * r->vocabulary * sizeof *logits);
    if (!logits) abort();
    for (size_t i = 0; i < rows; i++) memcpy(logits + i * r->vocabulary, r[i].logits, r->vocabulary * sizeof *logits);
    const run_buffer prompt = first_run(rows);
    const range      ranges[DRAW_BINDS] = {
        [DRAW_LOGITS] = new_range(h, rows * r->vocabulary * sizeof(float), logits),
        [DRAW_SETTINGS] = new_range(h, rest * sizeof *record, record),
        [DRAW_REST] = new_range(h, (words - rest) * sizeof *record, record + rest),
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
        for (uint32_t row = 0; row < rows && after && run && drawn; row++) {
            if (r[row].draws) read_row(&r[row], (uint32_t)rows, row, d, after, run, drawn, &out[row]);
            else CHECK(!memcmp(&run->records[row], &prompt.records[row], sizeof run->records[row]));
        }
        for (size_t i = 0; i < READS; i++) gpu_ticket_done(h, tickets[i]);
        free(list.data);
    }
    for (size_t i = 0; i < count; i++) gpu_group_free(h, groups[i]);
    for (size_t i = 0; i < COUNT_OF(ranges); i++) gpu_buffer_free(h, ranges[i].buffer);
    free(record);
    free(state);
    free(logits);
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

static void compare_draws(gpu_host *h, const request *r, size_t rows) {
    outcome gpu[MOST_ROWS] = { { .status = { 99 } } };
    draw_on_gpu(h, r, rows, gpu);
    for (size_t row = 0; row < rows; row++) {
        outcome cpu = { .status = { 0 } };
        draw_on_cpu(&r[row], &cpu);
        for (size_t d = 0; d < r[row].draws; d++)
            CHECK_MESSAGE(gpu[row].token[d] == cpu.token[d] && gpu[row].status[d] == cpu.status[d],
                          "row %zu, draw %zu of %zu tokens: %d (status %u), not %d (status %u)", row, d, r->vocabulary,
                          gpu[row].token[d], gpu[row].status[d], cpu.token[d], cpu.status[d]);
        if (row % 3 < 2 && r[row].draws) compare_logprobs(&r[row], &gpu[row].record);
    }
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
        draw_on_gpu(h, &wanted, 1, &out);
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

enum { LARGEST = 33001, MOST_BIASES = 20 };

/* A request with what it points to. */
typedef struct {
    float         logits[LARGEST];
    uint32_t      suppressed[LARGEST / 32 + 1], mask[LARGEST / 32 + 1];
    gm_sampling   sampling;
    gm_logit_bias biases[MOST_BIASES];
    int32_t       history[HISTORY];
} random_case;

static request random_request(dice *d, size_t n, random_case *c) {
    const size_t   history_count = roll(d, 3) ? roll(d, 100) : 0;
    const uint32_t near = n < 5 ? (uint32_t)n : 5;
    gm_sampling   *p = &c->sampling;
    *p = random_sampling(d);
    rolled_logits(d, c->logits, n);
    for (size_t j = 0; j < history_count; j++)
        c->history[j] = roll(d, 10) ? (int32_t)roll(d, roll(d, 2) ? (uint32_t)n : near) : -1;
    p->bias = c->biases;
    p->bias_count = roll(d, 3) ? 0 : roll(d, MOST_BIASES);
    for (size_t j = 0; j < p->bias_count; j++)
        c->biases[j] = (gm_logit_bias){ (int32_t)roll(d, near), PICK(d, -INFINITY, -1000, 0.25f, 3, 700, 1000) };
    for (size_t j = 0; j < COUNT_OF(c->suppressed); j++) {
        const uint32_t half = roll(d, UINT32_MAX);
        c->suppressed[j] = half & roll(d, UINT32_MAX); /* one bit in four */
    }
    request r = { p, c->logits, n, c->history, history_count, NULL, 0, MOST_DRAWS, 0 };
    if (!roll(d, 4)) r.suppressed = c->suppressed;
    for (size_t j = 0; j < COUNT_OF(c->mask); j++) c->mask[j] = roll(d, UINT32_MAX) | 1u << j % 32;
    if (!roll(d, 4)) p->mask = c->mask;
    r.position = (uint64_t)roll(d, 3) << 32 | roll(d, UINT32_MAX);
    r.alternatives = (uint32_t)PICK(d, 0, 1, 5, SAMPLER_MOST_ALTERNATIVES);
    return r;
}

static void test_gpu_random(gpu_host *h) {
    static const size_t sizes[] = { 1, 5, 255, 256, 257, 1024, 1025, 9001, LARGEST };
    enum { CASES = 60 };
    static random_case one;
    for (uint32_t i = 0; i < CASES; i++) {
        dice         d = { 0, i };
        const size_t n = sizes[i % COUNT_OF(sizes)];
        TEST("random logits and parameters %u, %zu tokens", i, n);
        const request r = random_request(&d, n, &one);
        compare_draws(h, &r, 1);
    }
}

/* Each row has its own way to draw; the third takes no part. */
static void test_gpu_rows(gpu_host *h) {
    static const struct {
        size_t rows, vocabulary;
    } cases[] = { { 2, 5 }, { 3, 1025 }, { MOST_ROWS, 1024 }, { 5, 9001 }, { MOST_ROWS, 257 } };
    static random_case all[MOST_ROWS];
    for (uint32_t i = 0; i < COUNT_OF(cases); i++) {
        request r[MOST_ROWS];
        TEST("%zu rows with parameters of their own, %zu tokens", cases[i].rows, cases[i].vocabulary);
        for (uint32_t row = 0; row < cases[i].rows; row++) {
            dice d = { 0, 1000 + 100 * i + row };
            r[row] = random_request(&d, cases[i].vocabulary, &all[row]);
            if (row == 2) r[row].draws = 0;
        }
        compare_draws(h, r, cases[i].rows);
    }
}

/* No list has more dispatches than one whose rows draw in all ways: greedily, among few candidates, and with every cut, with a bias. */
static void test_gpu_longest_list(gpu_host *h) {
    static random_case all[3];
    request            r[3];
    TEST("rows that draw in all ways");
    for (uint32_t row = 0; row < 3; row++) {
        dice         d = { 0, 77 + row };
        gm_sampling *p = &all[row].sampling;
        r[row] = random_request(&d, LARGEST, &all[row]);
        for (size_t i = 0; i < LARGEST; i++) all[row].logits[i] = (float)(i % 1000) * 0.01f;
        *p = (gm_sampling){ .temperature = row ? 1 : 0,
                            .top_k = row == 1   ? 64
                                     : row == 2 ? 20000
                                                : 0,
                            .top_p = row == 2 ? 0.95f : 1,
                            .min_p = row == 2 ? 0.001f : 0,
                            .typical_p = row == 2 ? 0.9f : 1,
                            .repetition_penalty = 1.1f,
                            .penalty_window = 8,
                            .seed = row };
        r[row].suppressed = NULL;
        r[row].alternatives = 5;
    }
    compare_draws(h, r, 3);
}

/* Cuts in the middle of tokens that are equally likely. */
static void test_gpu_equals(gpu_host *h) {
    enum { N = 9001 };
    static const gm_sampling cuts[] = {
        { .temperature = 1, .top_p = 0.5f, .typical_p = 1, .repetition_penalty = 1 },
        { .temperature = 0.7f, .top_k = 5000, .top_p = 1, .typical_p = 1, .repetition_penalty = 1 },
        { .temperature = 2, .top_k = 5000, .top_p = 0.97f, .typical_p = 1, .repetition_penalty = 1 },
        { .temperature = 2, .top_k = 7000, .top_p = 0.9f, .min_p = 0.2f, .typical_p = 1, .repetition_penalty = 1 },
        { .temperature = 1, .top_k = 5000, .top_p = 1, .typical_p = 0.6f, .repetition_penalty = 1 },
        { .temperature = 2, .top_k = 5000, .top_p = 0.999f, .min_p = 0.1f, .typical_p = 0.9f, .repetition_penalty = 1 },
    };
    static random_case one;
    dice               d = { 0, 1 };
    for (size_t i = 0; i < N; i++) one.logits[i] = -(float)roll(&d, 4) / 2;
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        TEST("a cut among equals %zu", i);
        compare_draws(h, &(request){ &cuts[i], one.logits, N, one.history, 0, NULL, 3, MOST_DRAWS, 0 }, 1);
    }
}

int main(int argc, char **argv) {
    error     e = { 0 };
    gpu_host *h = NULL;
    TEST("a GPU, or what plays one");
    CHECK_MESSAGE(gpu_host_open(&(gpu_options){ .adapter = -1 }, &h, &e) == GM_OK, "%s", e.why);
    if (!h) return test_end();
    const char *only = argc > 1 ? argv[1] : "";
    if (!*only) test_gpu_random(h);
    if (!*only || !strcmp(only, "rows")) {
        test_gpu_rows(h);
        test_gpu_longest_list(h);
    }
    if (!*only || !strcmp(only, "equals")) test_gpu_equals(h);
    test_gpu_golden(h, only);
    TEST("nothing was refused");
    CHECK_MESSAGE(gpu_host_problem(h, &e) == GM_OK, "%s", e.why);
    gpu_host_close(h);
    return test_end();
}
