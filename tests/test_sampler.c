/* The sampler: compares its arithmetic with double, its cuts with a plain reference and its draws with the exact distribution; and a
 * table of tokens that every backend must draw. */

#include "base/random.h"
#include "golden_sampler.h"
#include "test.h"
#include "text/sampler.h"
#include "text/sampler_math.h"

#include <float.h>
#include <stdlib.h>

enum { SMALL = 300, LARGE = 262144 };

static const gm_sampling plain = { .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1 };

static sampler *make_sampler(size_t n) {
    error    e = { 0 };
    sampler *s = NULL;
    CHECK_MESSAGE(sampler_new(n, &s, &e) == GM_OK, "%s", e.why);
    return s;
}

static uint32_t random_word(uint32_t index, uint32_t stream) {
    uint32_t out[4];
    philox((uint32_t[4]){ index, 0, 0, 7 }, (uint32_t[2]){ stream, 1 }, out);
    return out[0];
}

/* Roughly normal, with the given spread. */
static void spread_logits(float *logits, size_t n, uint32_t stream, float spread) {
    for (size_t i = 0; i < n; i++) {
        uint32_t out[4];
        philox((uint32_t[4]){ (uint32_t)i, 0, 0, 8 }, (uint32_t[2]){ stream, 2 }, out);
        const double sum = (double)out[0] + out[1] + out[2] + out[3];
        logits[i] = (float)((sum / 4294967296.0 - 2) * 1.7 * (double)spread);
    }
}

static int32_t draw_one(sampler *s, const gm_sampling *p, const float *logits, uint64_t position) {
    error   e = { 0 };
    int32_t token = -1;
    CHECK_MESSAGE(sampler_draw(s, p, logits, NULL, 0, NULL, position, &token, &e) == GM_OK, "%s", e.why);
    return token;
}

/* ---- arithmetic ---- */

static void test_fixed(void) {
    static const struct {
        double  units; /* of 2^-16 */
        int32_t expect;
    } rows[] = {
        { 0, 0 },
        { 0.5, 0 },
        { 1.5, 2 },
        { 2.5, 2 },
        { -0.5, 0 },
        { -1.5, -2 },
        { -2.5, -2 },
        { 0.75, 1 },
        { -0.75, -1 },
        { 4194303.5, 4194304 },
        { 4194304.5, 4194304 },
        { 8388606.5, 8388606 },
        { -8388607.5, -8388608 },
        { 8388609, 8388609 },
        { 1966080, 1966080 },
        { 1073741824.0, 1073741824 },
        { 1e30, 1073741824 },
        { -1e30, -1073741824 },
        { -INFINITY, FIXED_NEVER },
        { INFINITY, 1073741824 },
        { 1e-40, 0 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("fixed point of %g units", rows[i].units);
        const int32_t got = fixed_from_logit((float)(rows[i].units / 65536));
        CHECK_MESSAGE(got == rows[i].expect, "%d, not %d", got, rows[i].expect);
    }
    TEST("fixed point of random floats");
    int wrong = 0;
    for (uint32_t i = 0; i < 300000; i++) {
        uint32_t bits = random_word(i, 3);
        if ((bits >> 23 & 255) > 140) bits = (bits & 0x807fffff) | ((bits >> 5 & 31) + 109) << 23; /* 2^-18 to 2^13 */
        float value;
        memcpy(&value, &bits, sizeof value);
        wrong += fixed_from_logit(value) != (int32_t)nearbyint((double)value * 65536);
    }
    CHECK_MESSAGE(wrong == 0, "%d differ", wrong);
}

static void test_weights(void) {
    TEST("the table of powers of two");
    for (int i = 0; i <= 256; i++) CHECK(exp2_table[i] == (uint32_t)nearbyint(2147483648.0 * exp2(-i / 256.0)));
    static const double temperatures[] = { 1, 0.7, 0.001, 0.01, 2, 100, 1.3333 };
    for (size_t t = 0; t < COUNT_OF(temperatures); t++) {
        TEST("weights at temperature %g", temperatures[t]);
        const exponent_scale scale = exponent_scale_of(temperatures[t]);
        double               worst = 0;
        CHECK(weight_of(0, scale) == 1u << 31);
        for (uint32_t i = 0; i < 100000; i++) {
            const double   wanted = 25.0 * random_word(i, 4) / 4294967296.0 * temperatures[t] * 65536;
            const uint32_t distance = wanted < 2147483648.0 ? (uint32_t)wanted : 1u << 31;
            const double   exact = 2147483648.0 * exp(-(double)distance / (65536 * temperatures[t]));
            const double   off = fabs(weight_of(distance, scale) - exact) - 0.5 - exact * 1e-5;
            if (off > worst) worst = off;
        }
        CHECK_MESSAGE(worst <= 0, "off by %g units beyond the bound", worst);
        CHECK(weight_of(1u << 31, scale) == 0 || temperatures[t] > 700);
    }
    TEST("a temperature close to 0 leaves only equals");
    CHECK(weight_of(1, exponent_scale_of(1e-30)) == 0 && weight_of(0, exponent_scale_of(1e-30)) == 1u << 31);
    TEST("shares and high products");
    CHECK(share_of(0, 100) == 1);
    CHECK(share_of(1u << 31, 1ull << 32) == 1ull << 31);
    CHECK(share_of(1u << 31, 3) == 2);
    CHECK(share_of(share_from_probability(0.95f), 1000ull << 31) == (uint64_t)ceil((double)0.95f * (1000ull << 31)));
    CHECK(share_of(UINT32_MAX, 1ull << 51) == (1ull << 51) - (1ull << 19));
    CHECK(multiply_high(UINT64_MAX, UINT64_MAX) == UINT64_MAX - 1);
    CHECK(multiply_high(1ull << 63, 10) == 5 &&
          multiply_high(0x123456789abcdef0, 0xfedcba9876543210) == 0x121fa00ad77d7422);
}

/* ---- the reference, in double ---- */

typedef struct {
    int32_t id;
    double  logit, p, order;
    bool    border; /* close enough to a border that rounding may decide */
} candidate;

static int by_order(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void normalise(candidate *c, size_t n, double temperature) {
    double largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, c[i].logit);
    for (size_t i = 0; i < n; i++) sum += c[i].p = exp((c[i].logit - largest) / temperature);
    for (size_t i = 0; i < n; i++) c[i].p /= sum;
}

/* Keeps the shortest prefix with at least p; candidates whose sum is within 1e-4 of p are marked and kept. */
static size_t keep_mass(candidate *c, size_t n, double p) {
    double sum = 0;
    size_t i = 0;
    for (; i < n; i++) {
        if (i > 0 && fabs(sum - p) < 1e-4) c[i].border = true;
        else if (i > 0 && sum >= p) break;
        sum += c[i].p;
    }
    return i;
}

static size_t reference_cuts(candidate *c, size_t n, const gm_sampling *p) {
    for (size_t i = 0; i < n; i++) c[i].order = -c[i].logit;
    qsort(c, n, sizeof *c, by_order);
    if (p->top_k && (size_t)p->top_k < n) n = (size_t)p->top_k;
    if (p->typical_p < 1) {
        normalise(c, n, 1);
        double entropy = 0;
        for (size_t i = 0; i < n; i++) entropy -= c[i].p > 0 ? c[i].p * log(c[i].p) : 0;
        for (size_t i = 0; i < n; i++) c[i].order = fabs(-log(c[i].p) - entropy);
        qsort(c, n, sizeof *c, by_order);
        n = keep_mass(c, n, (double)p->typical_p);
        for (size_t i = 0; i < n; i++) c[i].order = -c[i].logit;
        qsort(c, n, sizeof *c, by_order);
    }
    if (p->top_p < 1) {
        normalise(c, n, 1);
        n = keep_mass(c, n, (double)p->top_p);
    }
    if (p->min_p > 0) {
        size_t kept = 0;
        while (kept < n && c[kept].logit >= c[0].logit + log((double)p->min_p) - 1e-4) kept++;
        for (size_t i = 0; i < kept; i++)
            if (fabs(c[i].logit - c[0].logit - log((double)p->min_p)) < 1e-4) c[i].border = true;
        n = kept;
    }
    return n;
}

static size_t reference(candidate *c, const float *logits, size_t n, const gm_sampling *p) {
    for (size_t i = 0; i < n; i++) c[i] = (candidate){ .id = (int32_t)i, .logit = (double)logits[i] };
    return reference_cuts(c, n, p);
}

/* ---- cuts: draw so hot that every survivor comes up, and compare the sets ---- */

static void compare_sets(const gm_sampling *p, const float *logits, size_t n, size_t draws_each) {
    sampler    *s = make_sampler(n);
    candidate  *c = calloc(n, sizeof *c);
    uint8_t    *seen = calloc(n, 1);
    gm_sampling hot = *p;
    hot.temperature = 100;
    const size_t kept = reference(c, logits, n, p), draws = kept * draws_each;
    for (size_t i = 0; i < draws; i++) seen[draw_one(s, &hot, logits, i)] = 1;
    size_t missing = 0, extra = 0;
    for (size_t i = 0; i < kept; i++) {
        missing += !seen[c[i].id] && !c[i].border;
        seen[c[i].id] = 0;
    }
    for (size_t i = 0; i < n; i++) extra += seen[i];
    CHECK_MESSAGE(!missing && !extra, "%zu of %zu missing, %zu too many", missing, kept, extra);
    free(c);
    free(seen);
    sampler_free(s);
}

static void test_cuts(void) {
    static const struct {
        int32_t top_k;
        float   typical_p, top_p, min_p;
    } rows[] = {
        { 0, 1, 1, 0 },          { 1, 1, 1, 0 },         { 7, 1, 1, 0 },        { 64, 1, 1, 0 },
        { 299, 1, 1, 0 },        { 300, 1, 1, 0 },       { 100000, 1, 1, 0 },   { 0, 1, 0.95f, 0 },
        { 0, 1, 0.5f, 0 },       { 0, 1, 0.01f, 0 },     { 0, 1, 0, 0 },        { 0, 1, 0.9999f, 0 },
        { 0, 1, 1, 0.05f },      { 0, 1, 1, 0.5f },      { 0, 1, 1, 1 },        { 0, 1, 1, 1e-6f },
        { 0, 0.9f, 1, 0 },       { 0, 0.5f, 1, 0 },      { 0, 0.1f, 1, 0 },     { 0, 0, 1, 0 },
        { 64, 1, 0.95f, 0 },     { 64, 1, 0.9f, 0.02f }, { 40, 0.9f, 0.9f, 0 }, { 100, 0.95f, 0.9f, 0.05f },
        { 0, 0.4f, 0.8f, 0.1f },
    };
    static const float spreads[] = { 0.3f, 2, 6 };
    float              logits[SMALL];
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t j = 0; j < COUNT_OF(spreads); j++) {
            TEST("cuts: top_k %d typical %g top_p %g min_p %g, spread %g", rows[i].top_k, rows[i].typical_p,
                 rows[i].top_p, rows[i].min_p, spreads[j]);
            gm_sampling p = plain;
            p.top_k = rows[i].top_k;
            p.typical_p = rows[i].typical_p;
            p.top_p = rows[i].top_p;
            p.min_p = rows[i].min_p;
            spread_logits(logits, SMALL, (uint32_t)(i * 3 + j), spreads[j]);
            compare_sets(&p, logits, SMALL, 20);
        }
    float *large = calloc(LARGE, sizeof *large);
    spread_logits(large, LARGE, 99, 4);
    TEST("top_k 64 of a real vocabulary");
    gm_sampling p = plain;
    p.top_k = 64;
    compare_sets(&p, large, LARGE, 12);
    TEST("top_k above the number of blocks, with top_p");
    p.top_k = 2000;
    p.top_p = 0.1f;
    compare_sets(&p, large, LARGE, 12);
    TEST("top_k among equals keeps the lowest ids");
    for (size_t i = 0; i < LARGE; i++) large[i] = i % 3 ? 1 : 2;
    p.top_k = 100;
    p.top_p = 1;
    compare_sets(&p, large, LARGE, 12);
    free(large);
}

/* ---- frequencies ---- */

static void test_frequencies(void) {
    static const struct {
        const char *name;
        gm_sampling p;
    } rows[] = {
        { "plain", { .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 5 } },
        { "cold", { .temperature = 0.6f, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 6 } },
        { "hot", { .temperature = 2.5f, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = 7 } },
        { "gemma",
          { .temperature = 1,
            .top_k = 64,
            .top_p = 0.95f,
            .typical_p = 1,
            .repetition_penalty = 1,
            .seed = 8ull << 33 } },
        { "typical",
          { .temperature = 0.9f, .top_p = 1, .typical_p = 0.7f, .min_p = 0.01f, .repetition_penalty = 1, .seed = 9 } },
    };
    enum { DRAWS = 200000, FEW = 100 };
    float     logits[FEW];
    candidate c[FEW];
    spread_logits(logits, FEW, 77, 1.5f);
    sampler *s = make_sampler(FEW);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("frequencies: %s", rows[i].name);
        size_t       seen[FEW] = { 0 };
        const size_t kept = reference(c, logits, FEW, &rows[i].p);
        normalise(c, kept, (double)rows[i].p.temperature);
        for (uint64_t j = 0; j < DRAWS; j++) seen[draw_one(s, &rows[i].p, logits, j)]++;
        double chi = 0, total = 0;
        for (size_t j = 0; j < kept; j++) {
            const double expected = c[j].p * DRAWS;
            CHECK(!c[j].border);
            chi += (seen[c[j].id] - expected) * (seen[c[j].id] - expected) / expected;
            total += (double)seen[c[j].id];
        }
        const double freedom = (double)kept - 1, bound = freedom + 4.5 * sqrt(2 * freedom) + 10;
        CHECK_MESSAGE(total == DRAWS, "%g draws lie outside the reference's set", DRAWS - total);
        CHECK_MESSAGE(chi < bound && kept > 10, "chi-square %g for %g degrees of freedom", chi, freedom);
    }
    sampler_free(s);
}

/* ---- the tokens that every backend must draw ---- */

static void test_sampler_golden(void) {
    static float logits[GOLDEN_VOCABULARY];
    golden_logits(logits);
    sampler *s = make_sampler(GOLDEN_VOCABULARY);
    for (size_t i = 0; i < COUNT_OF(golden_rows); i++) {
        TEST("golden tokens: %s", golden_rows[i].name);
        for (size_t j = 0; j < GOLDEN_POSITIONS; j++) {
            error   e = { 0 };
            int32_t token = -1;
            CHECK(sampler_draw(s, &golden_rows[i].sampling, logits, golden_history, COUNT_OF(golden_history), NULL,
                               golden_positions[j], &token, &e) == GM_OK);
            CHECK_MESSAGE(token == golden_rows[i].tokens[j], "position %zu: %d, not %d", j, token,
                          golden_rows[i].tokens[j]);
        }
    }
    sampler_free(s);
}

/* ---- edits of the logits ---- */

/* Drawing with the parameters must give what drawing plainly from the edited logits gives. */
static void compare_edit(const gm_sampling *p, const float *logits, const int32_t *history, size_t history_count,
                         const uint32_t *suppressed, const float *edited) {
    sampler *s = make_sampler(SMALL);
    size_t   wrong = 0;
    for (uint64_t position = 0; position < 3000; position++) {
        error   e = { 0 };
        int32_t token = -1;
        CHECK_MESSAGE(sampler_draw(s, p, logits, history, history_count, suppressed, position, &token, &e) == GM_OK,
                      "%s", e.why);
        wrong += token != draw_one(s, &plain, edited, position);
    }
    CHECK_MESSAGE(wrong == 0, "%zu of 3000 tokens differ", wrong);
    sampler_free(s);
}

static void test_edits(void) {
    float logits[SMALL], edited[SMALL];
    for (size_t i = 0; i < SMALL; i++) logits[i] = (float)((int32_t)(random_word((uint32_t)i, 11) % 512) - 256) / 128;
    const int32_t history[] = { 299, 299, 299, 4, 7, 7, 299, 0, -1, 300, 1 << 30, 8, 8, 4 };
    const size_t  count = COUNT_OF(history);
    uint32_t      suppressed[(SMALL + 31) / 32] = { 0 };

    TEST("repetition penalty");
    gm_sampling p = plain;
    p.repetition_penalty = 2;
    p.penalty_window = 64;
    memcpy(edited, logits, sizeof edited);
    const int32_t distinct[] = { 299, 4, 7, 0, 8 };
    for (size_t i = 0; i < COUNT_OF(distinct); i++) edited[distinct[i]] *= edited[distinct[i]] > 0 ? 0.5f : 2;
    compare_edit(&p, logits, history, count, NULL, edited);

    TEST("presence and frequency penalty over a window");
    p = plain;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = -0.25f;
    p.penalty_window = 8; /* 299, 0, -1, 300, 1<<30, 8, 8, 4 */
    memcpy(edited, logits, sizeof edited);
    edited[299] -= 0.25f;
    edited[0] -= 0.25f;
    edited[4] -= 0.25f;
    edited[8] -= 0.0f;
    compare_edit(&p, logits, history, count, NULL, edited);

    TEST("all penalties together: repetition first");
    p.repetition_penalty = 0.5f;
    p.penalty_window = 2;
    memcpy(edited, logits, sizeof edited);
    edited[8] = edited[8] * (edited[8] > 0 ? 2 : 0.5f) - 0.25f;
    edited[4] = edited[4] * (edited[4] > 0 ? 2 : 0.5f) - 0.25f;
    compare_edit(&p, logits, history, count, NULL, edited);

    TEST("a window of 0 is off");
    p.penalty_window = 0;
    compare_edit(&p, logits, history, count, NULL, logits);

    TEST("bias, twice on one token, and a ban");
    p = plain;
    const gm_logit_bias bias[] = { { 5, 3.5f }, { 5, -1.25f }, { 299, 6 }, { 0, -2 }, { 17, -INFINITY }, { 17, 100 } };
    p.bias = bias;
    p.bias_count = COUNT_OF(bias);
    memcpy(edited, logits, sizeof edited);
    edited[5] += 2.25f;
    edited[299] += 6;
    edited[0] -= 2;
    edited[17] = -INFINITY;
    compare_edit(&p, logits, NULL, 0, NULL, edited);

    TEST("suppressed ids, also against a bias");
    for (size_t i = 0; i < SMALL; i += 3) suppressed[i / 32] |= 1u << (i % 32);
    for (size_t i = 0; i < SMALL; i += 3) edited[i] = -INFINITY;
    compare_edit(&p, logits, NULL, 0, suppressed, edited);

    TEST("a mask, alone and with suppressed ids");
    uint32_t mask[(SMALL + 31) / 32] = { 0 };
    for (size_t i = 0; i < SMALL; i++) mask[i / 32] |= (uint32_t)(i % 5 != 2) << i % 32;
    p.mask = mask;
    for (size_t i = 2; i < SMALL; i += 5) edited[i] = -INFINITY;
    compare_edit(&p, logits, NULL, 0, suppressed, edited);
    gm_sampling masked = plain;
    masked.mask = mask;
    memcpy(edited, logits, sizeof edited);
    for (size_t i = 2; i < SMALL; i += 5) edited[i] = -INFINITY;
    compare_edit(&masked, logits, NULL, 0, NULL, edited);
    CHECK(sampling_equal(&masked, &masked) && !sampling_equal(&masked, &plain));
    p.mask = NULL;

    TEST("greedy sees bias, penalties and suppression");
    sampler *s = make_sampler(SMALL);
    error    e = { 0 };
    int32_t  token = -1;
    p.temperature = 0;
    CHECK(sampler_draw(s, &p, logits, NULL, 0, NULL, 0, &token, &e) == GM_OK && token == 299);
    suppressed[299 / 32] |= 1u << (299 % 32);
    CHECK(sampler_draw(s, &p, logits, NULL, 0, suppressed, 0, &token, &e) == GM_OK && token != 299 && token % 3);
    sampler_free(s);
}

/* ---- greedy and extremes ---- */

static void test_sampler_greedy(void) {
    sampler    *s = make_sampler(SMALL);
    float       logits[SMALL];
    gm_sampling p = plain;
    p.temperature = 0;
    p.top_k = 5; /* the cuts do not matter */
    for (uint32_t i = 0; i < 50; i++) {
        TEST("greedy %u", i);
        spread_logits(logits, SMALL, 200 + i, 5);
        int32_t best = 0;
        for (int32_t j = 1; j < SMALL; j++)
            if (logits[j] > logits[best]) best = j;
        CHECK(draw_one(s, &p, logits, i) == best);
    }
    TEST("greedy: ties go to the lower id");
    for (size_t i = 0; i < SMALL; i++) logits[i] = -3;
    CHECK(draw_one(s, &p, logits, 0) == 0);
    logits[299] = logits[258] = logits[257] = 9.25f;
    CHECK(draw_one(s, &p, logits, 0) == 257);
    TEST("greedy: less than half a unit apart is a tie");
    logits[20] = 9.25f - 0.25f / 65536 * 16; /* floats near 9 are 2^-20 apart: 4 units below is none */
    CHECK(draw_one(s, &p, logits, 0) == 257);
    logits[20] = 9.25f - 0.25f / 65536;
    CHECK(draw_one(s, &p, logits, 0) == 20);
    sampler_free(s);
}

static void test_extremes(void) {
    static const float temperatures[] = { 0, 1e-30f, 1e-3f, 1, 100 };
    sampler           *s = make_sampler(SMALL);
    float              logits[SMALL];
    for (size_t i = 0; i < COUNT_OF(temperatures); i++) {
        gm_sampling p = plain;
        p.temperature = temperatures[i];
        TEST("one possible token, temperature %g", temperatures[i]);
        for (size_t j = 0; j < SMALL; j++) logits[j] = -INFINITY;
        logits[123] = -FLT_MAX;
        for (uint64_t k = 0; k < 100; k++) CHECK(draw_one(s, &p, logits, k) == 123);
        TEST("huge logits, temperature %g", temperatures[i]);
        for (size_t j = 0; j < SMALL; j++) logits[j] = j % 2 ? FLT_MAX : -FLT_MAX;
        logits[100] = INFINITY;
        for (uint64_t k = 0; k < 100; k++) {
            const int32_t token = draw_one(s, &p, logits, k);
            CHECK(token == 100 || token % 2);
        }
        TEST("all cuts at their limits, temperature %g", temperatures[i]);
        spread_logits(logits, SMALL, 5, 4);
        int32_t best = 0;
        for (int32_t j = 1; j < SMALL; j++)
            if (logits[j] > logits[best]) best = j;
        p.top_p = 0;
        p.top_k = INT32_MAX;
        p.min_p = 1e-45f;
        for (uint64_t k = 0; k < 100; k++) CHECK(draw_one(s, &p, logits, k) == best);
    }
    TEST("a cold draw after a typical cut that drops the likeliest");
    gm_sampling p = plain;
    p.temperature = 0.001f;
    p.typical_p = 0.3f;
    for (size_t j = 0; j < SMALL; j++) logits[j] = 0.001f * (float)j;
    logits[7] = 3.5f; /* likeliest by far, and far from typical */
    CHECK(draw_one(s, &p, logits, 0) != 7);

    TEST("a vocabulary of one");
    sampler *one = make_sampler(1);
    CHECK(draw_one(one, &plain, (float[1]){ -5 }, 3) == 0);
    sampler_free(one);
    sampler_free(s);
}

static void test_sampler_errors(void) {
    sampler *s = make_sampler(SMALL);
    float    logits[SMALL] = { 0 };
    int32_t  token = -1;
    TEST("NaN in the logits");
    error e = { 0 };
    logits[299] = NAN;
    CHECK(sampler_draw(s, &plain, logits, NULL, 0, NULL, 0, &token, &e) == GM_BAD_FILE && strstr(e.why, "NaN") &&
          strstr(e.why, "299"));
    TEST("nothing can be drawn");
    for (size_t i = 0; i < SMALL; i++) logits[i] = -INFINITY;
    e = (error){ 0 };
    CHECK(sampler_draw(s, &plain, logits, NULL, 0, NULL, 0, &token, &e) == GM_BAD_ARGUMENT &&
          strstr(e.why, "no token"));
    CHECK(token == -1);
    sampler_free(s);

    TEST("impossible vocabularies");
    e = (error){ 0 };
    CHECK(sampler_new(0, &s, &e) == GM_BAD_ARGUMENT && !s);
    e = (error){ 0 };
    CHECK(sampler_new(SIZE_MAX, &s, &e) == GM_BAD_ARGUMENT && !s);

    static const gm_logit_bias outside[] = { { 300, 1 } }, negative[] = { { -1, 1 } }, infinite[] = { { 1, INFINITY } };
    static const gm_logit_bias not_a_number[] = { { 1, NAN } };
    static const struct {
        const char *says;
        gm_sampling p;
    } rows[] = {
        { "temperature must be between 0 and 100 (0 is greedy), found -1",
          { .temperature = -1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1 } },
        { "temperature", { .temperature = NAN, .top_p = 1, .typical_p = 1, .repetition_penalty = 1 } },
        { "temperature", { .temperature = INFINITY, .top_p = 1, .typical_p = 1, .repetition_penalty = 1 } },
        { "top_k", { .top_k = -1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1 } },
        { "top_p", { .top_p = 1.5f, .typical_p = 1, .repetition_penalty = 1 } },
        { "min_p", { .top_p = 1, .min_p = -0.1f, .typical_p = 1, .repetition_penalty = 1 } },
        { "typical_p", { .top_p = 1, .typical_p = NAN, .repetition_penalty = 1 } },
        { "repetition_penalty must be between 0.01 and 100 (1 is off), found 0", { .top_p = 1, .typical_p = 1 } },
        { "presence_penalty", { .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .presence_penalty = 1000 } },
        { "frequency_penalty",
          { .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .frequency_penalty = -INFINITY } },
        { "bias is NULL", { .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .bias_count = 1 } },
        { "token 300, but the vocabulary has ids from 0 to 299",
          { .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .bias = outside, .bias_count = 1 } },
        { "token -1", { .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .bias = negative, .bias_count = 1 } },
        { "the bias of token 1",
          { .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .bias = infinite, .bias_count = 1 } },
        { "the bias of token 1",
          { .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .bias = not_a_number, .bias_count = 1 } },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TEST("check %zu: %s", i, rows[i].says);
        e = (error){ 0 };
        CHECK(sampling_check(&rows[i].p, SMALL, &e) == GM_BAD_ARGUMENT);
        CHECK_MESSAGE(strstr(e.why, rows[i].says), "says '%s'", e.why);
    }
    TEST("check: fine");
    e = (error){ 0 };
    CHECK(sampling_check(&plain, SMALL, &e) == GM_OK && e.status == GM_OK);
}

/* ---- log-probabilities ---- */

static void test_sampler_logprobs(void) {
    enum { TOP = 20 };
    sampler         *s = make_sampler(SMALL);
    float            logits[SMALL];
    candidate        c[SMALL];
    gm_token_logprob chosen, top[TOP], many[SMALL + 3];
    TEST("log-probabilities against the reference");
    spread_logits(logits, SMALL, 31, 3);
    logits[40] = logits[90] = 20;
    logits[3] = -INFINITY;
    reference(c, logits, SMALL, &plain);
    normalise(c, SMALL, 1);
    sampler_logprobs(s, logits, 150, &chosen, top, TOP);
    for (size_t i = 0; i < SMALL; i++)
        if (c[i].id == 150) CHECK(chosen.token == 150 && fabs((double)chosen.logprob - log(c[i].p)) < 1e-5);
    for (size_t i = 0; i < TOP; i++)
        CHECK(top[i].token == c[i].id && fabs((double)top[i].logprob - log(c[i].p)) < 1e-5);
    CHECK(top[0].token == 40 && top[1].token == 90 && top[0].logprob == top[1].logprob);
    TEST("log-probabilities: more than there are, impossible and unknown tokens");
    sampler_logprobs(s, logits, 3, &chosen, many, COUNT_OF(many));
    CHECK(chosen.token == 3 && chosen.logprob == -INFINITY);
    CHECK(many[SMALL - 2].token == c[SMALL - 2].id && many[SMALL - 1].token == -1 &&
          many[SMALL + 2].logprob == -INFINITY);
    sampler_logprobs(s, logits, -7, &chosen, NULL, 0);
    CHECK(chosen.logprob == -INFINITY);
    TEST("log-probabilities of infinite logits");
    for (size_t i = 0; i < SMALL; i++) logits[i] = -INFINITY;
    sampler_logprobs(s, logits, 0, &chosen, top, 2);
    CHECK(chosen.logprob == -INFINITY && top[0].token == -1);
    logits[5] = INFINITY;
    sampler_logprobs(s, logits, 5, &chosen, top, 2);
    CHECK(chosen.logprob == 0 && top[0].token == 5 && top[0].logprob == 0 && top[1].token == -1);
    sampler_free(s);
}

int main(void) {
    test_fixed();
    test_weights();
    test_sampler_greedy();
    test_cuts();
    test_frequencies();
    test_sampler_golden();
    test_edits();
    test_extremes();
    test_sampler_errors();
    test_sampler_logprobs();
    return test_end();
}
