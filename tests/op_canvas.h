/* For test_ops.c: the head of a canvas, against the formulas in double, and what its next step denoises. */

#ifndef GM_OP_CANVAS_H
#define GM_OP_CANVAS_H

#include "base/random.h"
#include "cpu/canvas_next.h"
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

/* The same on the CPU must give the same bits. */
static void canvas_compare_bits(op_case *c, const tensor *leaf, const float *settings, const float *found,
                                const float *soft) {
    const backend *gpu = c->backend, cpu = { .precise = true, .cpu = gpu->cpu };
    const size_t   k = c->width, tokens = c->tokens;
    float         *want = calloc(tokens, CANVAS_FINDINGS * sizeof *want), *rows = calloc(tokens, k * sizeof *rows);
    c->backend = &cpu;
    open_plan p = plan_open(c);
    plan_write(&p, leaf, settings, tokens);
    plan_run(&p, 2, (float *[]){ want, rows },
             (size_t[]){ tokens * CANVAS_FINDINGS * sizeof *want, tokens * k * sizeof *rows });
    CHECK_MESSAGE(!memcmp(found, want, tokens * CANVAS_FINDINGS * sizeof *found), "the findings differ from the CPU's");
    check_same_values(soft, rows, tokens * k);
    plan_close(&p);
    c->backend = gpu;
    free(want);
    free(rows);
}

static void test_canvas_head_in(const backend *b, quant_type type, size_t tokens, size_t k, size_t m, float cap,
                                uint64_t most_binding) {
    CASE_OF(type, "%s: canvas head %s %zu × [%zu, %zu]%s%s%s", b->name, quant_format_of(type)->name, tokens, k, m,
            cap > 0 ? " capped" : "", b->precise ? " precise" : "", most_binding ? " in tiles" : "");
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
    c.most_binding = most_binding;
    open_plan p = plan_open(&c);
    plan_write(&p, leaf, settings, tokens);
    for (size_t i = 0; i < 2; i++) /* what was there before does not matter */
        plan_run(&p, 2, (float *[]){ found, got },
                 (size_t[]){ tokens * CANVAS_FINDINGS * sizeof *found, tokens * k * sizeof *got });
    if (b->exact) canvas_compare_bits(&c, leaf, settings, found, got);
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

static void test_canvas_head(const backend *b, quant_type type, size_t tokens, size_t k, size_t m, float cap) {
    test_canvas_head_in(b, type, tokens, k, m, cap, 0);
}

/* ---- CANVAS_NEXT ---- */

enum { NEXT_VOCABULARY = 40, NEXT_STEPS = 5 };

/* What step `step` of the test finds at a position. From step 3 on nothing changes any more, and the last canvas is sure. */
static void canvas_next_found(float *found, size_t t, size_t step, bool sure) {
    const uint32_t key[2] = { (uint32_t)t, (uint32_t)(step < 3 ? step : 3) };
    uint32_t       words[4];
    philox((uint32_t[4]){ 7 }, key, words);
    const uint32_t ids[2] = { words[0] % NEXT_VOCABULARY, words[1] % NEXT_VOCABULARY };
    memcpy(found, ids, sizeof ids);
    found[CANVAS_ENTROPY] = sure ? 0.001f * (float)(t % 3) : 0.03f * (float)(words[2] % 8) * (float)(t % 4);
    found[CANVAS_LARGEST] = 1;
}

/* One span, position by position in the order of their entropies. Returns whether it is done. */
static bool canvas_next_expected(const canvas_rule *rule, size_t n, const float *found, const float *settings,
                                 canvas_state *s) {
    bool   taken[MOST_TOKENS] = { false }, same = true;
    double before = 0, total = 0, open = 0;
    for (size_t i = 0; i < n; i++) {
        size_t next = n;
        for (size_t j = 0; j < n; j++) {
            const double least =
                next < n && !s[next].pinned ? (double)found[next * CANVAS_FINDINGS + CANVAS_ENTROPY] : 0;
            const double own = s[j].pinned ? 0 : (double)found[j * CANVAS_FINDINGS + CANVAS_ENTROPY];
            if (!taken[j] && (next == n || own < least)) next = j;
        }
        const float *f = found + next * CANVAS_FINDINGS;
        int32_t      ids[2];
        taken[next] = true;
        memcpy(ids, f, sizeof ids);
        if (s[next].pinned) ids[0] = s[next].id;
        same = same && s[next].likeliest == ids[0];
        s[next].likeliest = ids[0];
        if (s[next].pinned) continue;
        s[next].id =
            before * rule->units <= rule->bound ? ids[1] : canvas_random_id(rule, settings + next * CANVAS_SETTINGS);
        before += (double)f[CANVAS_ENTROPY];
        total += (double)f[CANVAS_ENTROPY];
        open++;
    }
    for (size_t i = 0; i < n; i++) s[i].same = same ? s[i].same + 1 : 0;
    return s->same >= rule->stability && total * rule->units < fmax(open, 1) * rule->confidence;
}

/* Steps of two canvases. In the last one both are done: a GPU computes nothing behind it. */
static void test_canvas_next(const backend *b, size_t tokens, size_t first) {
    CASE("%s: canvas next %zu + %zu", b->name, first, tokens - first);
    enum { WIDTH = 32 };
    const canvas_rule rule = { .units = 1 << 19,
                               .bound = (1 << 19) / 10 + 7,
                               .stability = 1,
                               .confidence = (1 << 19) / 200,
                               .vocabulary = NEXT_VOCABULARY };
    op_case           c = case_begin(b, tokens, WIDTH);
    float            *table = random_units(NEXT_VOCABULARY * WIDTH);
    float             found[MOST_TOKENS * CANVAS_FINDINGS], settings[MOST_TOKENS * CANVAS_SETTINGS];
    float             rows[MOST_TOKENS * WIDTH] = { 0 };
    canvas_state      want[MOST_TOKENS], got[MOST_TOKENS];
    int32_t           ids[MOST_TOKENS], computed[MOST_TOKENS];
    tensor           *leaves[] = { graph_leaf(&c.g, AXIS_TOKENS, CANVAS_FINDINGS, 1),
                                   graph_leaf(&c.g, AXIS_TOKENS, CANVAS_SETTINGS, 1),
                                   graph_leaf(&c.g, AXIS_TOKENS, CANVAS_STATE, 1) };
    c.first_span = first;
    c.g.result = graph_canvas_next(&c.g, leaves[0], leaves[1], leaves[2], &rule);
    c.g.further[0] = leaves[2];
    tensor *row = graph_embed_value(&c.g, weight(&c, "w", TYPE_F32, WIDTH, NEXT_VOCABULARY, 1, table), c.g.result, 1);
    c.g.further[1] = graph_add(&c.g, c.x, row);
    for (size_t t = 0; t < tokens; t++)
        want[t] = (canvas_state){ .id = (int32_t)t % NEXT_VOCABULARY, .pinned = t % 5 == 4, .likeliest = CANVAS_NONE };
    open_plan p = plan_open(&c);
    plan_write(&p, leaves[2], (const float *)want, tokens);
    for (uint32_t step = 0; step <= NEXT_STEPS; step++) {
        bool done = step > 0;
        for (uint32_t t = 0; t < tokens; t++) {
            const uint32_t words[] = { 77, t < first, 3u << CANVAS_BLOCK_SHIFT | step << CANVAS_STEP_SHIFT | t };
            memcpy(settings + t * CANVAS_SETTINGS + CANVAS_KEY_0, words, sizeof words);
            settings[t * CANVAS_SETTINGS] = 1;
            canvas_next_found(found + t * CANVAS_FINDINGS, t, step, step == NEXT_STEPS || (step == 4 && t < first));
        }
        plan_write(&p, leaves[0], found, tokens);
        plan_write(&p, leaves[1], settings, tokens);
        for (size_t at = 0; at < tokens && step; at += at < first ? first : tokens - first)
            done &= canvas_next_expected(&rule, at < first ? first : tokens - first, found + at * CANVAS_FINDINGS,
                                         settings + at * CANVAS_SETTINGS, want + at);
        CHECK(done == (step == NEXT_STEPS)); /* the test is right */
        plan_run(&p, 3, (float *[]){ (float *)ids, (float *)got, rows },
                 (size_t[]){ tokens * sizeof *ids, tokens * sizeof *got, tokens * WIDTH * sizeof *rows });
        for (size_t t = 0; t < tokens; t++) {
            CHECK_MESSAGE(!memcmp(&got[t], &want[t], sizeof *got) && ids[t] == want[t].id,
                          "step %u, position %zu: id %d, likeliest %d, same for %u; expected %d, %d, %u", step, t,
                          ids[t], got[t].likeliest, got[t].same, want[t].id, want[t].likeliest, want[t].same);
            if (!b->gpu || !done) computed[t] = ids[t];
            CHECK_MESSAGE(rows[t * WIDTH] == case_input(&c, t)[0] + table[computed[t] * WIDTH],
                          "step %u: position %zu has another row", step, t);
        }
    }
    plan_close(&p);
    free(table);
    end(&c);
}

static void test_canvas_heads(const backend *b) {
    test_canvas_next(b, 33, 13);
    test_canvas_next(b, 256, 140); /* more than a workgroup has threads */
    test_canvas_next(b, 2, 1);
    test_canvas_head(b, TYPE_F32, 1, 64, 640, 30); /* three chunks on a GPU in software */
    test_canvas_head(b, TYPE_F16, 33, 33, 301,
                     0); /* one column more than a tile, and a row that is no multiple of 32 */
    test_canvas_head(b, TYPE_Q6_K, 17, 256, 513, 5);
    test_canvas_head(b, TYPE_Q4_K, 66, 256, 65, 0);
}

#endif
