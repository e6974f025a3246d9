/* For test_ops.c: the head of a canvas, against the formulas in double. */

#ifndef GM_OP_CANVAS_H
#define GM_OP_CANVAS_H

#include "base/random.h"
#include "op_case.h"

/* Settings of each token: temperatures from ½ to 2, or so high that the noise decides what is drawn; a key and a draw of its own. */
static void canvas_settings(float *settings, size_t tokens) {
    for (size_t t = 0; t < tokens; t++) {
        const uint32_t words[] = { 77, (uint32_t)t % 3, (uint32_t)(t << 10) };
        settings[t * CANVAS_SETTINGS + CANVAS_INVERSE] = t % 3 ? 0.5f + 1.5f * (float)(t % 5) / 4 : 0.01f;
        memcpy(settings + t * CANVAS_SETTINGS + CANVAS_KEY_0, words, sizeof words);
    }
}

/* The id with the largest z + noise, and how far the second is behind it. */
static uint32_t canvas_drawn(const double *z, size_t m, const float *settings, double *ahead) {
    double   best = -INFINITY, second = -INFINITY;
    uint32_t id = 0, key[2], draw;
    memcpy(key, settings + CANVAS_KEY_0, sizeof key);
    memcpy(&draw, settings + CANVAS_DRAW, sizeof draw);
    for (uint32_t v = 0; v < m; v++) {
        uint32_t words[4];
        philox((uint32_t[]){ v / 4, draw, 0, CANVAS_STREAM }, key, words);
        const double score = z[v] - log(-log1p(-(words[v % 4] + 0.5) / 4294967296.0));
        if (score > best) second = best, best = score, id = v;
        else if (score > second) second = score;
    }
    *ahead = best - second;
    return id;
}

/* What is found of one token; `soft` gets its expected embedding. Ids whose scores are as near as `near` may stand for each other. */
static void canvas_expected(const float *w, const float *x, const float *settings, size_t k, size_t m, float cap,
                            double near, double *z, double *soft, const float *found, double *worst) {
    double   most = -INFINITY, sum = 0, entropy = 0, ahead, next = -INFINITY;
    uint32_t likeliest = 0, got[2];
    for (size_t v = 0; v < m; v++) {
        z[v] = 0;
        for (size_t j = 0; j < k; j++) z[v] += (double)w[v * k + j] * x[j];
        z[v] = (cap > 0 ? cap * tanh(z[v] / cap) : z[v]) * settings[CANVAS_INVERSE];
        if (z[v] > most) next = most, most = z[v], likeliest = (uint32_t)v;
        else if (z[v] > next) next = z[v];
    }
    for (size_t v = 0; v < m; v++) sum += exp(z[v] - most);
    for (size_t j = 0; j < k; j++) soft[j] = 0;
    for (size_t v = 0; v < m; v++) {
        const double p = exp(z[v] - most) / sum;
        entropy -= p > 0 ? p * log(p) : 0;
        for (size_t j = 0; j < k; j++) soft[j] += 3 * p * (double)w[v * k + j];
    }
    memcpy(got, found, sizeof got);
    const uint32_t drawn = canvas_drawn(z, m, settings, &ahead);
    CHECK_MESSAGE(got[0] == likeliest || most - next < near, "found %u as the likeliest, expected %u", got[0],
                  likeliest);
    CHECK_MESSAGE(got[1] == drawn || ahead < near, "drew %u, expected %u, which is %g ahead", got[1], drawn, ahead);
    *worst = fmax(*worst, fmax(fabs(found[CANVAS_ENTROPY] - entropy), fabs(found[CANVAS_LARGEST] - 1 / sum)));
}

static void test_canvas_head(const backend *b, quant_type type, size_t tokens, size_t k, size_t m, float cap) {
    CASE_OF(type, "%s: canvas head %s %zu × [%zu, %zu]%s%s", b->name, quant_format_of(type)->name, tokens, k, m,
            cap > 0 ? " capped" : "", b->precise ? " precise" : "");
    const double loose = !b->gpu || b->precise ? 1e-5 : cpu_type_has_q8(type) ? 2e-2 : halves(b, type) ? 2e-3 : 1e-5;
    op_case      c = case_begin(b, tokens, k);
    uint8_t     *data = random_weights(type, k * m);
    float       *w = dequantised(type, data, k * m), *settings = malloc(tokens * CANVAS_SETTINGS * sizeof *settings);
    float       *found = calloc(tokens, CANVAS_FINDINGS * sizeof *found), *got = calloc(tokens, k * sizeof *got);
    double      *z = doubles(m), *soft = doubles(tokens * k), worst = 0;
    tensor      *leaf = graph_leaf(&c.g, AXIS_TOKENS, CANVAS_SETTINGS, 1), *state = graph_leaf(&c.g, AXIS_TOKENS, k, 1);
    c.g.result = graph_canvas_head(&c.g, weight(&c, "w", type, k, m, 1, data), c.x, leaf, state, cap, 3);
    c.g.further[0] = state;
    canvas_settings(settings, tokens);
    open_plan p = plan_open(&c);
    plan_write(&p, leaf, settings, tokens);
    for (size_t i = 0; i < 2; i++) /* what was there before does not matter */
        plan_run(&p, 2, (float *[]){ found, got },
                 (size_t[]){ tokens * CANVAS_FINDINGS * sizeof *found, tokens * k * sizeof *got });
    for (size_t t = 0; t < tokens; t++)
        canvas_expected(w, case_input(&c, t), settings + t * CANVAS_SETTINGS, k, m, cap,
                        loose > 1e-5 ? 10 * loose : 1e-4, z, soft + t * k, found + t * CANVAS_FINDINGS, &worst);
    CHECK_MESSAGE(worst < (loose > 1e-5 ? 10 * loose : 1e-5 * (double)m), "an entropy or a probability is off by %g",
                  worst);
    case_expect(got, soft, tokens * k, loose);
    plan_close(&p);
    free(data);
    free(w);
    free(settings);
    free(found);
    free(got);
    free(z);
    free(soft);
    end(&c);
}

static void test_canvas_heads(const backend *b) {
    test_canvas_head(b, TYPE_F32, 1, 64, 640, 30); /* three chunks on a GPU in software */
    test_canvas_head(b, TYPE_F16, 33, 33, 301,
                     0); /* one column more than a tile, and a row that is no multiple of 32 */
    test_canvas_head(b, TYPE_Q6_K, 17, 256, 513, 5);
    test_canvas_head(b, TYPE_Q4_K, 66, 256, 65, 0);
}

#endif
