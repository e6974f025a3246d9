#include "text/sampler_settings.h"

#include "gpu/sampler_kernels.h"
#include "text/sampler.h"
#include "text/sampler_math.h"

#include <stdlib.h>

static bool has_suppressed(const sampler_settings *s) { return s->suppressed || s->sampling->mask; }

static size_t suppressed_words(const sampler_settings *s) { return has_suppressed(s) ? (s->vocabulary + 31) / 32 : 0; }

static void write_suppressed(const sampler_settings *s, uint32_t *words) {
    const uint32_t *mask = s->sampling->mask;
    for (size_t i = 0; i < suppressed_words(s); i++)
        words[i] = (s->suppressed ? s->suppressed[i] : 0) | (mask ? ~mask[i] : 0);
}

size_t sampler_settings_words(const sampler_settings *s) {
    const size_t rest = suppressed_words(s) + 2 * s->sampling->bias_count;
    return SAMPLER_REST + max_size(2, rest); /* a binding must not be empty */
}

bool sampler_settings_greedy(const sampler_settings *s) { return s->sampling->temperature == 0; }

static bool has_penalties(const gm_sampling *p) {
    return p->penalty_window && (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
}

bool sampler_settings_edits(const sampler_settings *s) { return s->sampling->bias_count || has_penalties(s->sampling); }

/* ---- steps among all tokens ---- */

typedef struct {
    uint32_t *words, count;
} step_writer;

/* The steps of one border. The first digit starts at `shift`, a multiple of 10; each further one has 10 bits. */
static void write_border(step_writer *w, uint32_t cut, uint32_t shift, bool ids) {
    for (uint32_t at = shift + 10; at; at -= 10) {
        const uint32_t flags = (at == shift + 10 ? SAMPLER_FIRST : 0) | (at == 10 && !ids ? SAMPLER_CLOSES : 0);
        w->words[w->count++] = SAMPLER_STEP(SAMPLER_DIGIT, cut, at - 10, flags);
    }
    if (ids) w->words[w->count++] = SAMPLER_STEP(SAMPLER_TIES, cut, 0, 0);
}

/* With a small top-k a single workgroup chooses among candidates, which have a list: tokens at least as likely as the best of the k-th
 * block of 256. If k is at most half the number of blocks, hardly more than a few tokens of each are candidates. */
size_t sampler_most_candidates(size_t vocabulary) {
    return vocabulary <= SAMPLER_CANDIDATES ? vocabulary : (vocabulary + 255) / 256 / 2;
}

static bool has_candidates(const sampler_settings *s) {
    return s->sampling->top_k && (size_t)s->sampling->top_k <= sampler_most_candidates(s->vocabulary);
}

static uint32_t write_steps(const sampler_settings *s, uint32_t words[SAMPLER_MOST_STEPS]) {
    const gm_sampling *p = s->sampling;
    step_writer        w = { words, 0 };
    if (p->temperature == 0 || has_candidates(s)) return 0;
    const bool top_k = p->top_k && (size_t)p->top_k < s->vocabulary, typical = p->typical_p < 1;
    if (top_k) write_border(&w, SAMPLER_BY_TOP_K, 20, typical);
    if (typical) {
        if (!top_k) words[w.count++] = SAMPLER_STEP(SAMPLER_MEAN, SAMPLER_BY_TYPICAL, 0, 0);
        write_border(&w, SAMPLER_BY_TYPICAL, 10, true);
    }
    if (p->top_p < 1) write_border(&w, SAMPLER_BY_TOP_P, 10, false);
    const exponent_scale scale = exponent_scale_of((double)p->temperature); /* if it is hot, far tokens count as well */
    write_border(&w, SAMPLER_DRAW, weight_of(SAMPLER_FIRST_VALUES << 10, scale) ? 20 : 10, true);
    return w.count;
}

uint32_t sampler_settings_steps(const sampler_settings *s) {
    uint32_t words[SAMPLER_MOST_STEPS];
    return write_steps(s, words);
}

/* ---- biases ---- */

typedef struct {
    uint32_t token, order, bias;
} ordered_bias;

static int by_token(const void *a, const void *b) {
    const ordered_bias *x = a, *y = b;
    if (x->token != y->token) return x->token < y->token ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* Sorted by token; biases of the same token stay in order. */
static gm_status write_biases(const gm_sampling *p, uint32_t *words, error *e) {
    if (!p->bias_count) return GM_OK;
    ordered_bias *list = malloc(p->bias_count * sizeof *list);
    if (!list) return fail_memory(e, "the list of biases", p->bias_count * sizeof *list);
    for (size_t i = 0; i < p->bias_count; i++) {
        const float   bias = p->bias[i].bias;
        const int32_t value = bias == -INFINITY ? FIXED_NEVER : fixed_from_parameter(bias);
        list[i] = (ordered_bias){ (uint32_t)p->bias[i].token, (uint32_t)i, (uint32_t)value };
    }
    qsort(list, p->bias_count, sizeof *list, by_token);
    for (size_t i = 0; i < p->bias_count; i++) {
        words[2 * i] = list[i].token;
        words[2 * i + 1] = list[i].bias;
    }
    free(list);
    return GM_OK;
}

/* ---- all ---- */

static void write_scale(uint32_t *words, double temperature) {
    const exponent_scale scale = exponent_scale_of(temperature);
    words[0] = scale.factor;
    words[1] = scale.shift;
}

gm_status sampler_settings_write(const sampler_settings *s, uint32_t *words, error *e) {
    const gm_sampling *p = s->sampling;
    TRY(sampling_check(p, s->vocabulary, e));
    memset(words, 0, sampler_settings_words(s) * sizeof *words);
    write_scale(words + SAMPLER_TEMPERATURE, p->temperature > 0 ? (double)p->temperature : 1);
    write_scale(words + SAMPLER_ONE, 1);
    words[SAMPLER_SEED] = (uint32_t)p->seed;
    words[SAMPLER_SEED + 1] = (uint32_t)(p->seed >> 32);
    words[SAMPLER_ROW] = s->row;
    words[SAMPLER_ADVANCE] = s->advance;
    words[SAMPLER_TOP_K] = (size_t)p->top_k < s->vocabulary ? (uint32_t)p->top_k : 0;
    words[SAMPLER_TYPICAL] = p->typical_p < 1;
    words[SAMPLER_TYPICAL_P] = p->typical_p < 1 ? share_from_probability(p->typical_p) : 0;
    words[SAMPLER_TOP] = p->top_p < 1;
    words[SAMPLER_TOP_P] = p->top_p < 1 ? share_from_probability(p->top_p) : 0;
    words[SAMPLER_REACH] = p->min_p > 0 ? (uint32_t)floor(-log((double)p->min_p) * 65536) : UINT32_MAX;
    words[SAMPLER_DIVIDE] = (uint32_t)nearbyint(16777216 / (double)p->repetition_penalty);
    words[SAMPLER_MULTIPLY] = (uint32_t)nearbyint(16777216 * (double)p->repetition_penalty);
    words[SAMPLER_PRESENCE] = (uint32_t)fixed_from_parameter(p->presence_penalty);
    words[SAMPLER_FREQUENCY] = (uint32_t)fixed_from_parameter(p->frequency_penalty);
    words[SAMPLER_WINDOW] = has_penalties(p) ? p->penalty_window : 0;
    words[SAMPLER_BIASES] = (uint32_t)p->bias_count;
    words[SAMPLER_SUPPRESS] = has_suppressed(s);
    words[SAMPLER_STEP_COUNT] = write_steps(s, words + SAMPLER_STEPS);
    memcpy(words + SAMPLER_EXPONENTS, exp2_table, sizeof exp2_table);
    write_suppressed(s, words + SAMPLER_REST);
    return write_biases(p, words + SAMPLER_REST + suppressed_words(s), e);
}
