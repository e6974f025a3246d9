/* Chooses a token with integer arithmetic. This comment is the specification that every backend follows.
 *
 * Units: a logit L is a whole number of 2^-16; a weight is a whole number of 2^-31; n is the vocabulary.
 *
 *  1. Fixed point.   L = round(logit · 65536), ties to even, clamped to ±2^30; −infinity becomes NEVER; NaN is an error.
 *  2. Bias.          For each (token, bias) in order: L += round(bias · 65536), clamped; a bias of −infinity is NEVER.
 *  3. Penalties.     For each token that occurs c > 0 times among the last `penalty_window` of the history:
 *                    L = L > 0 ? L · A / 2^24 : L · B / 2^24, rounded to nearest (halves away from zero), clamped,
 *                    with A = round(2^24 / repetition), B = round(2^24 · repetition), if repetition is not 1;
 *                    then L −= presence + c · frequency, both in units of 2^-16, clamped.
 *  4. Suppressed ids become NEVER. Steps 2 and 3 do not change NEVER. If all are NEVER, it is an error.
 *  5. Greedy.        With temperature 0: the largest L, the lowest id among equals. Done.
 *  6. Distance.      D = (largest L) − L, unsigned. The survivors, at first all but NEVER, are ordered by (D, id).
 *                    A weight is w(D, T) = 2^31 · exp(−D / (65536 · T)) as weight_of computes it, with D counted from the
 *                    smallest D among the survivors. The cuts use T = 1:
 *     top-k          keeps the first k.
 *     typical        M = Σ v·D / Σ v, rounded down, with v = w >> 4: the mean distance, which corresponds to the entropy.
 *                    Ordered by (|D − M|, id), keeps the first whose weights add up to at least typical_p of the sum.
 *     top-p          keeps the first whose weights add up to at least top_p of the sum.
 *     min-p          keeps D − (smallest D) ≤ −ln(min_p) · 65536, rounded down.
 *                    Shares of a sum are share_of(round(p · 2^32), sum); a p of 1 (min-p: 0) is off.
 *  7. Draw.          Z = Σ w(D, temperature). Four words u = philox(counter = position in two words, 0, 0; key = seed in two
 *                    words), low word first; R = (u[0] · 2^32 + u[1]) · Z / 2^64, rounded down. The token is the first one, in
 *                    the order (D, id), at which the weights so far add up to more than R.
 *
 * Nothing is sorted: top-k, typical, top-p and the draw all ask the same question ("where in this order does the sum of
 * weights reach this target?"), and find_border answers it by histograms of 11 bits of the key at a time. Sums of integers do
 * not depend on the order of adding, so threads and GPUs may split them as they like. */

#include "text/sampler.h"

#include "base/random.h"
#include "text/sampler_math.h"

#include <stdlib.h>
#include <string.h>

bool sampling_equal(const gm_sampling *a, const gm_sampling *b) {
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->typical_p == b->typical_p && a->repetition_penalty == b->repetition_penalty &&
           a->presence_penalty == b->presence_penalty && a->frequency_penalty == b->frequency_penalty &&
           a->penalty_window == b->penalty_window && a->seed == b->seed && a->bias == b->bias &&
           a->bias_count == b->bias_count && a->mask == b->mask;
}

enum { BLOCK = 256, DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, MOST_TOKENS = 1 << 20 };

struct sampler {
    size_t    n, blocks;
    int32_t  *fixed;      /* [n] L */
    int32_t  *block_best; /* [blocks] largest L of each BLOCK logits; makes top-k cheap */
    uint32_t *counts;     /* [n] occurrences in the penalty window; all 0 between draws */
    uint32_t *id;         /* [n] survivors, ascending */
    uint32_t *distance;   /* [n] their D */
    uint32_t *weight;     /* [n] */
    uint32_t *deviation;  /* [n] |D − M|, or distances of blocks */
    size_t    survivors;
    uint64_t  histogram[DIGITS];
};

gm_status sampler_new(size_t n, sampler **out, error *e) {
    *out = NULL;
    if (n == 0 || n > MOST_TOKENS)
        return fail(e, GM_BAD_ARGUMENT, "a sampler supports 1 to %d tokens, not %zu", MOST_TOKENS, n);
    const size_t blocks = (n + BLOCK - 1) / BLOCK, words = 6 * n + blocks;
    sampler     *s = calloc(1, sizeof *s);
    uint32_t    *memory = calloc(words, sizeof *memory);
    if (!s || !memory) {
        free(s);
        free(memory);
        return fail_memory(e, "the sampler", sizeof *s + words * sizeof *memory);
    }
    s->n = n;
    s->blocks = blocks;
    s->counts = memory;
    s->id = memory + n;
    s->distance = memory + 2 * n;
    s->weight = memory + 3 * n;
    s->deviation = memory + 4 * n;
    s->fixed = (int32_t *)(memory + 5 * n);
    s->block_best = (int32_t *)(memory + 6 * n);
    *out = s;
    return GM_OK;
}

void sampler_free(sampler *s) {
    if (!s) return;
    free(s->counts);
    free(s);
}

/* ---- parameters ---- */

gm_status sampling_check(const gm_sampling *p, size_t vocabulary, error *e) {
    const struct {
        const char *name;
        float       value, low, high;
        const char *off;
    } ranges[] = {
        { "temperature", p->temperature, 0, 100, "0 is greedy" },
        { "top_p", p->top_p, 0, 1, "1 is off" },
        { "min_p", p->min_p, 0, 1, "0 is off" },
        { "typical_p", p->typical_p, 0, 1, "1 is off" },
        { "repetition_penalty", p->repetition_penalty, 0.01f, 100, "1 is off" },
        { "presence_penalty", p->presence_penalty, -100, 100, "0 is off" },
        { "frequency_penalty", p->frequency_penalty, -100, 100, "0 is off" },
    };
    for (size_t i = 0; i < COUNT_OF(ranges); i++)
        if (!(ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high))
            return fail(e, GM_BAD_ARGUMENT, "%s must be between %g and %g (%s), found %g", ranges[i].name,
                        ranges[i].low, ranges[i].high, ranges[i].off, ranges[i].value);
    if (p->top_k < 0) return fail(e, GM_BAD_ARGUMENT, "top_k must not be negative (0 is off), found %d", (int)p->top_k);
    if (p->bias_count && !p->bias)
        return fail(e, GM_BAD_ARGUMENT, "bias_count is %zu, but bias is NULL", p->bias_count);
    for (size_t i = 0; i < p->bias_count; i++) {
        if (p->bias[i].token < 0 || (size_t)p->bias[i].token >= vocabulary)
            return fail(e, GM_BAD_ARGUMENT, "bias names token %d, but the vocabulary has ids from 0 to %zu",
                        (int)p->bias[i].token, vocabulary - 1);
        if (p->bias[i].bias != -INFINITY && !(fabsf(p->bias[i].bias) <= 1000))
            return fail(e, GM_BAD_ARGUMENT,
                        "the bias of token %d must be between -1000 and 1000, or -infinity, found %g",
                        (int)p->bias[i].token, p->bias[i].bias);
    }
    return GM_OK;
}

/* ---- logits to integers ---- */

static int32_t largest_of(const int32_t *values, size_t count) {
    int32_t best = values[0];
    for (size_t i = 1; i < count; i++) best = values[i] > best ? values[i] : best;
    return best;
}

static size_t block_size(const sampler *s, size_t block) { return min_size(BLOCK, s->n - block * BLOCK); }

static gm_status logits_to_fixed(sampler *s, const float *logits, error *e) {
    int32_t not_a_number = 0;
    for (size_t block = 0; block < s->blocks; block++) {
        const float *in = logits + block * BLOCK;
        int32_t     *out = s->fixed + block * BLOCK;
        const size_t count = block_size(s, block);
        for (size_t i = 0; i < count; i++) {
            out[i] = fixed_from_logit(in[i]);
            not_a_number |= is_not_a_number(in[i]);
        }
        s->block_best[block] = largest_of(out, count);
    }
    if (!not_a_number) return GM_OK;
    size_t at = 0;
    while (!is_not_a_number(logits[at])) at++;
    return fail(e, GM_BAD_FILE,
                "the model computed NaN as the logit of token %zu: its weights are damaged or out of range", at);
}

static void apply_bias(sampler *s, const gm_sampling *p) {
    for (size_t i = 0; i < p->bias_count; i++) {
        const size_t id = (size_t)p->bias[i].token;
        if (s->fixed[id] == FIXED_NEVER) continue;
        const bool ban = p->bias[i].bias == -INFINITY;
        s->fixed[id] = ban ? FIXED_NEVER : fixed_clamp((int64_t)s->fixed[id] + fixed_from_parameter(p->bias[i].bias));
    }
}

static void apply_penalties(sampler *s, const gm_sampling *p, const int32_t *history, size_t count) {
    const bool     repetition = p->repetition_penalty != 1;
    const uint32_t divide = (uint32_t)nearbyint(16777216 / (double)p->repetition_penalty);
    const uint32_t multiply = (uint32_t)nearbyint(16777216 * (double)p->repetition_penalty);
    const int32_t  presence = fixed_from_parameter(p->presence_penalty),
                  frequency = fixed_from_parameter(p->frequency_penalty);
    const int32_t *window = history + (count - min_size(count, p->penalty_window)), *end = history + count;
    for (const int32_t *token = window; token < end; token++)
        if (*token >= 0 && (size_t)*token < s->n) s->counts[*token]++;
    for (const int32_t *token = window; token < end; token++) {
        if (*token < 0 || (size_t)*token >= s->n || !s->counts[*token]) continue;
        const int64_t times = s->counts[*token];
        s->counts[*token] = 0; /* so that each token counts once, and all counts are 0 for the next draw */
        int32_t value = s->fixed[*token];
        if (value == FIXED_NEVER) continue;
        if (repetition) value = fixed_scale(value, value > 0 ? divide : multiply);
        s->fixed[*token] = fixed_clamp(value - (presence + times * frequency));
    }
}

/* `suppressed` or `mask` may be NULL. */
static void apply_suppressed(sampler *s, const uint32_t *suppressed, const uint32_t *mask) {
    for (size_t word = 0; word < (s->n + 31) / 32; word++) {
        const uint32_t never = (suppressed ? suppressed[word] : 0) | (mask ? ~mask[word] : 0);
        if (!never) continue;
        for (size_t id = word * 32; id < min_size(s->n, word * 32 + 32); id++)
            if (never >> (id % 32) & 1) s->fixed[id] = FIXED_NEVER;
    }
}

/* Applies bias, penalties and suppression, then updates block_best. */
static void logits_edit(sampler *s, const gm_sampling *p, const int32_t *history, size_t history_count,
                        const uint32_t *suppressed) {
    const bool penalties = p->penalty_window && history_count &&
                           (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
    if (!p->bias_count && !penalties && !suppressed && !p->mask) return;
    apply_bias(s, p);
    if (penalties) apply_penalties(s, p, history, history_count);
    if (suppressed || p->mask) apply_suppressed(s, suppressed, p->mask);
    for (size_t block = 0; block < s->blocks; block++)
        s->block_best[block] = largest_of(s->fixed + block * BLOCK, block_size(s, block));
}

static int32_t draw_greedy(const sampler *s, int32_t best) {
    size_t block = 0;
    while (s->block_best[block] != best) block++;
    size_t id = block * BLOCK;
    while (s->fixed[id] != best) id++;
    return (int32_t)id;
}

/* ---- finding a border ---- */

/* A place in the order (key, id): everything with a smaller key is before it, and the first `ties` items with this key. */
typedef struct {
    uint32_t key;
    size_t   ties, last; /* last: index of the item at which the target is reached */
} border;

/* Finds where the weights (NULL: 1 each) of `count` items, in the order (key, index), add up to the target, which must be at least
 * 1 and at most the sum of all. */
static border find_border(sampler *s, const uint32_t *key, const uint32_t *weight, size_t count, uint64_t target) {
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) largest = key[i] > largest ? key[i] : largest;
    int shift = 0;
    while ((uint64_t)largest >> (shift + DIGIT_BITS)) shift += DIGIT_BITS;

    uint64_t before = 0;
    uint32_t prefix = 0; /* the digits found so far */
    for (; shift >= 0; shift -= DIGIT_BITS) {
        memset(s->histogram, 0, sizeof s->histogram);
        for (size_t i = 0; i < count; i++)
            if ((uint64_t)key[i] >> (shift + DIGIT_BITS) == prefix)
                s->histogram[key[i] >> shift & (DIGITS - 1)] += weight ? weight[i] : 1;
        uint32_t digit = 0;
        while (digit < DIGITS - 1 && before + s->histogram[digit] < target) before += s->histogram[digit++];
        prefix = prefix << DIGIT_BITS | digit;
    }
    border b = { .key = prefix };
    for (size_t i = 0; i < count && before < target; i++) {
        if (key[i] != prefix) continue;
        before += weight ? weight[i] : 1;
        b.ties++;
        b.last = i;
    }
    return b;
}

/* Keeps the survivors up to the border. */
static void cut_at(sampler *s, const uint32_t *key, border b) {
    size_t kept = 0;
    for (size_t i = 0; i < s->survivors; i++) {
        if (key[i] > b.key || (key[i] == b.key && b.ties == 0)) continue;
        if (key[i] == b.key) b.ties--;
        s->id[kept] = s->id[i];
        s->distance[kept++] = s->distance[i];
    }
    s->survivors = kept;
}

/* ---- survivors ---- */

/* Collects all tokens that can be drawn. With top-k only those that can be among the first k: if k blocks have a logit of at least
 * x each, the k-th largest logit is at least x. */
static void gather_survivors(sampler *s, int32_t best, size_t k) {
    size_t alive = 0;
    for (size_t block = 0; block < s->blocks; block++)
        if (s->block_best[block] != FIXED_NEVER)
            s->deviation[alive++] = (uint32_t)best - (uint32_t)s->block_best[block];
    const uint32_t farthest = k && k <= alive ? find_border(s, s->deviation, NULL, alive, k).key : UINT32_MAX;

    s->survivors = 0;
    for (size_t block = 0; block < s->blocks; block++) {
        if (s->block_best[block] == FIXED_NEVER || (uint32_t)best - (uint32_t)s->block_best[block] > farthest) continue;
        const size_t first = block * BLOCK, end = first + block_size(s, block);
        for (size_t id = first; id < end; id++) {
            const uint32_t distance = (uint32_t)best - (uint32_t)s->fixed[id];
            if (s->fixed[id] == FIXED_NEVER || distance > farthest) continue;
            s->id[s->survivors] = (uint32_t)id;
            s->distance[s->survivors++] = distance;
        }
    }
}

static uint32_t nearest_of(const sampler *s) {
    uint32_t nearest = UINT32_MAX;
    for (size_t i = 0; i < s->survivors; i++) nearest = s->distance[i] < nearest ? s->distance[i] : nearest;
    return nearest;
}

/* Weights of the survivors at a temperature; returns their sum. */
static uint64_t weigh_survivors(sampler *s, double temperature) {
    const exponent_scale scale = exponent_scale_of(temperature);
    const uint32_t       nearest = nearest_of(s);
    uint64_t             sum = 0;
    for (size_t i = 0; i < s->survivors; i++) sum += s->weight[i] = weight_of(s->distance[i] - nearest, scale);
    return sum;
}

static void cut_typical(sampler *s, float typical_p) {
    const uint64_t sum = weigh_survivors(s, 1);
    uint64_t       moment = 0, mass = 0; /* v·D is below 2^42 where v is not 0, and there are at most 2^20 of them */
    const uint32_t nearest = nearest_of(s);
    for (size_t i = 0; i < s->survivors; i++) {
        moment += (uint64_t)(s->weight[i] >> 4) * (s->distance[i] - nearest);
        mass += s->weight[i] >> 4;
    }
    const uint32_t mean = nearest + (uint32_t)(mass ? moment / mass : 0); /* the nearest has mass */
    for (size_t i = 0; i < s->survivors; i++)
        s->deviation[i] = s->distance[i] > mean ? s->distance[i] - mean : mean - s->distance[i];
    cut_at(s, s->deviation,
           find_border(s, s->deviation, s->weight, s->survivors, share_of(share_from_probability(typical_p), sum)));
}

static void cut_top_p(sampler *s, float top_p) {
    const uint64_t sum = weigh_survivors(s, 1);
    cut_at(s, s->distance,
           find_border(s, s->distance, s->weight, s->survivors, share_of(share_from_probability(top_p), sum)));
}

static void cut_min_p(sampler *s, float min_p) {
    const uint64_t farthest =
        (uint64_t)floor(-log((double)min_p) * 65536) + nearest_of(s); /* ln of the least float is −103 */
    if (farthest <= UINT32_MAX) cut_at(s, s->distance, (border){ .key = (uint32_t)farthest, .ties = s->survivors });
}

static int32_t draw_weighted(sampler *s, float temperature, uint64_t seed, uint64_t position) {
    const uint64_t sum = weigh_survivors(s, (double)temperature);
    const uint32_t counter[4] = { (uint32_t)position, (uint32_t)(position >> 32), 0, 0 };
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    uint32_t       random[4];
    philox(counter, key, random);
    const uint64_t target = multiply_high((uint64_t)random[0] << 32 | random[1], sum) + 1;
    return (int32_t)s->id[find_border(s, s->distance, s->weight, s->survivors, target).last];
}

gm_status sampler_draw(sampler *s, const gm_sampling *p, const float *logits, const int32_t *history,
                       size_t history_count, const uint32_t *suppressed, uint64_t position, int32_t *token, error *e) {
    gm_status status = sampling_check(p, s->n, e);
    if (status == GM_OK) status = logits_to_fixed(s, logits, e);
    if (status != GM_OK) return status;
    logits_edit(s, p, history, history_count, suppressed);

    const int32_t best = largest_of(s->block_best, s->blocks);
    if (best == FIXED_NEVER)
        return fail(e, GM_BAD_ARGUMENT, "no token can be drawn: all %zu are suppressed or impossible", s->n);
    if (p->temperature == 0) {
        *token = draw_greedy(s, best);
        return GM_OK;
    }
    const size_t k = (size_t)p->top_k < s->n ? (size_t)p->top_k : 0;
    gather_survivors(s, best, k);
    if (k && k < s->survivors) cut_at(s, s->distance, find_border(s, s->distance, NULL, s->survivors, k));
    if (p->typical_p < 1) cut_typical(s, p->typical_p);
    if (p->top_p < 1) cut_top_p(s, p->top_p);
    if (p->min_p > 0) cut_min_p(s, p->min_p);
    *token = draw_weighted(s, p->temperature, p->seed, position);
    return GM_OK;
}

/* ---- log-probabilities ---- */

/* Inserts an id into the ordered list of the likeliest; `filled` of `count` places are taken. */
static size_t insert_likeliest(gm_token_logprob *top, size_t filled, size_t count, int32_t id, float logit) {
    if (filled == count && !(logit > top[count - 1].logprob)) return filled;
    size_t at = filled < count ? filled : count - 1;
    for (; at > 0 && logit > top[at - 1].logprob; at--) top[at] = top[at - 1];
    top[at] = (gm_token_logprob){ id, logit };
    return filled < count ? filled + 1 : count;
}

void sampler_logprobs(sampler *s, const float *logits, int32_t token, gm_token_logprob *chosen, gm_token_logprob *top,
                      size_t count) {
    const float limit = 3e38f; /* an infinite logit counts as a huge one: differences stay numbers */
    float       largest = -limit;
    for (size_t i = 0; i < s->n; i++)
        if (logits[i] > largest) largest = logits[i] < limit ? logits[i] : limit;
    double sum = 0;
    size_t filled = 0;
    for (size_t i = 0; i < s->n; i++) {
        const float logit = logits[i] < limit ? logits[i] : limit;
        if (!(logits[i] >= -limit)) continue; /* −infinity, and NaN, which sampler_draw reports */
        sum += exp((double)logit - (double)largest);
        if (top && count) filled = insert_likeliest(top, filled, count, (int32_t)i, logit);
    }
    const double base = (double)largest + (sum > 0 ? log(sum) : 0);
    for (size_t i = 0; top && i < count; i++)
        top[i] = i < filled ? (gm_token_logprob){ top[i].token, (float)((double)top[i].logprob - base) }
                            : (gm_token_logprob){ -1, -INFINITY };
    if (!chosen) return;
    const bool   known = token >= 0 && (size_t)token < s->n && logits[token] >= -limit;
    const double logit = known ? (double)(logits[token] < limit ? logits[token] : limit) : 0;
    *chosen = (gm_token_logprob){ token, known ? (float)(logit - base) : -INFINITY };
}
