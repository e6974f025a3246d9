/* For test_ops.c: products with weights, clipped ones, experts, and adapters. */

#ifndef GM_OP_PRODUCTS_H
#define GM_OP_PRODUCTS_H

#include "op_case.h"

static void test_matmul(const backend *b, quant_type type, size_t tokens, size_t k, size_t m) {
    CASE_OF(type, "%s: matmul %s %zu × [%zu → %zu]%s", b->name, quant_format_of(type)->name, tokens, k, m,
            b->precise ? " precise" : "");
    op_case  c = case_begin(b, tokens, k);
    uint8_t *data = random_weights(type, k * m);
    float   *w = dequantised(type, data, k * m);
    double  *want = doubles(tokens * m);
    tensor  *y = graph_matmul(&c.g, weight(&c, "w", type, k, m, 1, data), c.x);
    for (size_t i = 0; i < tokens * m; i++) {
        for (size_t j = 0; j < k; j++) want[i] += (double)w[i % m * k + j] * case_input(&c, i / m)[j];
    }
    case_expect(case_run(&c, y, 0), want, tokens * m,
                b->precise              ? 2e-6
                : cpu_type_has_q8(type) ? 2e-2
                : halves(b, type)       ? 2e-3
                                        : 2e-6);
    free(data);
    free(w);
    free(want);
    end(&c);
}

static double clipped(double x, double least, double most) { return x < least ? least : x > most ? most : x; }

/* Linears of a tower: two that read one clipped column and clip their results differently, and one that reads what these give. The
 * GPU clips in the products if there are many tokens. */
static void test_clipped(const backend *b, quant_type type, size_t tokens, size_t k, size_t m) {
    CASE_OF(type, "%s: clipped linears %s %zu × [%zu → %zu]%s", b->name, quant_format_of(type)->name, tokens, k, m,
            b->precise ? " precise" : "");
    op_case  c = case_begin(b, tokens, k);
    uint8_t *data[3] = { random_weights(type, k * m), random_weights(type, k * m), random_weights(type, m * 40) };
    float   *w[3] = { dequantised(type, data[0], k * m), dequantised(type, data[1], k * m),
                      dequantised(type, data[2], m * 40) };
    double  *inner = doubles(m), *want = doubles(tokens * 40);
    for (size_t i = 0; i < 50; i++)
        c.table[(i + 1) * k - 1] = i % 2 ? 0.75f : -0.75f; /* an odd one is read by itself */
    tensor *x = graph_clamp(&c.g, c.x, -0.5f, 0.25f);
    tensor *gate = graph_clamp(&c.g, graph_matmul(&c.g, weight(&c, "w0", type, k, m, 1, data[0]), x), -0.75f, 1.5f);
    tensor *up = graph_clamp(&c.g, graph_matmul(&c.g, weight(&c, "w1", type, k, m, 1, data[1]), x), -1.25f, 0.5f);
    tensor *y = graph_clamp(&c.g, graph_geglu(&c.g, gate, up), -0.25f, 0.5f);
    y = graph_clamp(&c.g, graph_matmul(&c.g, weight(&c, "w2", type, m, 40, 1, data[2]), y), -1, 0.75f);
    for (size_t t = 0; t < tokens; t++) {
        for (size_t i = 0; i < m; i++) {
            double sums[2] = { 0, 0 };
            for (size_t j = 0; j < 2 * k; j++)
                sums[j / k] += (double)w[j / k][i * k + j % k] * clipped(case_input(&c, t)[j % k], -0.5, 0.25);
            inner[i] = clipped(op_gelu(clipped(sums[0], -0.75, 1.5)) * clipped(sums[1], -1.25, 0.5), -0.25, 0.5);
        }
        for (size_t i = 0; i < 40; i++) {
            double sum = 0;
            for (size_t j = 0; j < m; j++) sum += w[2][i * m + j] * inner[j];
            want[t * 40 + i] = clipped(sum, -1, 0.75);
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * 40,
                b->precise              ? 5e-6
                : cpu_type_has_q8(type) ? 4e-2
                : halves(b, type)       ? 3e-3
                                        : 5e-6);
    for (size_t i = 0; i < 3; i++) free(data[i]), free(w[i]);
    free(inner);
    free(want);
    end(&c);
}

/* The whole mixture: route, experts, sum; against the formula. Lopsided: all tokens go to the first experts, none to the others. */
static void test_experts_with(const backend *b, quant_type type, size_t tokens, size_t k, size_t ff, size_t experts,
                              size_t used, bool lopsided, uint32_t slots) {
    CASE_OF(type, "%s: route and experts %s %zu × [%zu → %zu → %zu], %zu of %zu%s%s", b->name,
            quant_format_of(type)->name, tokens, k, ff, k, used, experts, b->precise ? " precise" : "",
            lopsided ? " lopsided"
            : slots  ? " in slots"
                     : "");
    op_case c = case_begin(b, tokens, k);
    c.slots = slots;
    float   *router = random_units(k * experts), *scale = random_units(experts);
    uint8_t *up_data = random_weights(type, k * 2 * ff * experts), *down_data = random_weights(type, ff * k * experts);
    float   *up = dequantised(type, up_data, k * 2 * ff * experts),
          *down = dequantised(type, down_data, ff * k * experts);
    double *want = doubles(tokens * k), *inner = doubles(2 * ff), *logits = doubles(experts);
    for (size_t i = 0; i < k * 2; i++) router[i] = router[i % k];       /* experts 0 and 1 tie: the lower wins */
    for (size_t i = 0; i < k * experts && lopsided; i++) router[i] = 0; /* all tie */
    tensor *routes = graph_route(&c.g, graph_matmul(&c.g, weight(&c, "r", TYPE_F32, k, experts, 1, router), c.x),
                                 weight(&c, "s", TYPE_F32, experts, 1, 1, scale), (uint32_t)used);
    tensor *both =
        graph_matmul_experts(&c.g, weight(&c, "u", type, k, 2 * ff, experts, up_data), c.x, routes, (uint32_t)used);
    tensor *h = graph_geglu(&c.g, graph_slice(&c.g, both, 0, ff, used), graph_slice(&c.g, both, ff, ff, used));
    tensor *y = graph_expert_sum(
        &c.g, graph_matmul_experts(&c.g, weight(&c, "d", type, ff, k, experts, down_data), h, routes, (uint32_t)used),
        routes, (uint32_t)used);
    for (size_t t = 0; t < tokens; t++) {
        bool   taken[64] = { false };
        size_t chosen[8];
        double sum = 0;
        for (size_t x = 0; x < experts; x++) {
            logits[x] = 0;
            for (size_t j = 0; j < k; j++) logits[x] += (double)router[x * k + j] * case_input(&c, t)[j];
        }
        for (size_t i = 0; i < used; i++) {
            size_t best = experts;
            for (size_t x = 0; x < experts; x++) {
                if (!taken[x] && (best == experts || logits[x] > logits[best])) best = x;
            }
            taken[best] = true;
            chosen[i] = best;
            sum += exp(logits[best]);
        }
        for (size_t i = 0; i < used; i++) {
            const size_t x = chosen[i];
            for (size_t o = 0; o < 2 * ff; o++) {
                inner[o] = 0;
                for (size_t j = 0; j < k; j++) inner[o] += (double)up[(x * 2 * ff + o) * k + j] * case_input(&c, t)[j];
            }
            for (size_t o = 0; o < k; o++) {
                double out = 0;
                for (size_t j = 0; j < ff; j++)
                    out += (double)down[(x * k + o) * ff + j] * op_gelu(inner[j]) * inner[ff + j];
                want[t * k + o] += exp(logits[x]) / sum * scale[x] * out;
            }
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * k, !b->precise && cpu_type_has_q8(type) ? 5e-2 : 1e-5);
    free(router);
    free(scale);
    free(up_data);
    free(down_data);
    free(up);
    free(down);
    free(want);
    free(inner);
    free(logits);
    end(&c);
}

static void test_experts(const backend *b, quant_type type, size_t tokens, size_t k, size_t ff, size_t experts,
                         size_t used) {
    test_experts_with(b, type, tokens, k, ff, experts, used, false, 0);
}

/* ---- adapters ---- */

enum { LORA_SETS = 4, LORA_EXPERTS = 5, LORA_USED = 2 };
typedef enum { LORA_PLAIN, LORA_OUTPUTS, LORA_EMBEDDING, LORA_ROUTED } lora_kind;

/* The adapters of one weight. Sets 1 to 3 use slots 0 and 1, alone and together; slots beyond these hold NaN, which must not be read. */
typedef struct {
    size_t    k, m, experts;
    float    *a, *b, *sets;
    lora_site site;
} lora_case;

static lora_case lora_begin(op_case *c, size_t k, size_t m, size_t rank, size_t slots, size_t experts) {
    const size_t one_a = experts * rank * k, one_b = experts * rank * m;
    lora_case    l = { .k = k, .m = m, .experts = experts, .a = random_units(slots * one_a) };
    l.b = random_units(slots * one_b);
    l.sets = calloc(LORA_SETS * slots, sizeof *l.sets);
    l.sets[1 * slots] = 1;
    l.sets[2 * slots] = -0.3f;
    if (slots > 1) l.sets[2 * slots + 1] = 0.7f;
    l.sets[3 * slots + (slots > 1)] = 2;
    for (size_t i = 2 * one_a; i < slots * one_a; i++) l.a[i] = NAN;
    for (size_t i = 2 * one_b; i < slots * one_b; i++) l.b[i] = NAN;
    l.site = (lora_site){ .a = weight(c, "a", TYPE_F32, slots * one_a, 1, 1, l.a),
                          .b = weight(c, "b", TYPE_F32, slots * one_b, 1, 1, l.b),
                          .sets = weight(c, "sets", TYPE_F32, LORA_SETS * slots, 1, 1, l.sets),
                          .rank = (uint32_t)rank,
                          .slots = (uint32_t)slots,
                          .experts = experts };
    c->sets = LORA_SETS;
    return l;
}

static void lora_end(lora_case *l) {
    free(l->a);
    free(l->b);
    free(l->sets);
}

/* Adds the correction of one row. x NULL: the id names A's column. */
static void lora_add(const lora_case *l, const op_case *c, size_t token, const float *x, size_t expert, double *y) {
    const size_t slots = l->site.slots, rank = l->site.rank, set = (token / 3 + 2) % LORA_SETS;
    for (size_t s = 0; s < slots; s++) {
        const double weight = l->sets[set * slots + s];
        for (size_t r = 0; r < rank && weight != 0; r++) {
            const size_t row = (s * l->experts + expert) * rank + r;
            double       u = x ? 0 : (double)l->a[(s * l->k + (size_t)c->ids[token]) * rank + r];
            for (size_t j = 0; x && j < l->k; j++) u += (double)l->a[row * l->k + j] * x[j];
            for (size_t i = 0; i < l->m; i++) y[i] += weight * u * l->b[row * l->m + i];
        }
    }
}

static void test_lora(const backend *b, lora_kind kind, size_t tokens, size_t k, size_t m, size_t rank, size_t slots) {
    static const char *const names[] = { "a linear", "a head", "an embedding", "experts" };
    CASE("%s: adapters of %s %zu × [%zu → %zu → %zu], %zu slots", b->name, names[kind], tokens, k, rank, m, slots);
    const size_t used = kind == LORA_ROUTED ? LORA_USED : 1, experts = kind == LORA_ROUTED ? LORA_EXPERTS : 1;
    op_case      c = case_begin(b, tokens, kind == LORA_EMBEDDING ? m : k);
    const size_t ids = kind == LORA_EMBEDDING ? 50 : k;
    lora_case    l = lora_begin(&c, ids, m, rank, slots, experts);
    float       *w = random_units(k * m * experts), *router = random_units(k * experts);
    double      *want = doubles(tokens * used * m);
    tensor      *x = kind == LORA_OUTPUTS ? graph_select_rows(&c.g, c.x) : c.x, *y, *u, *routes = NULL;
    if (kind == LORA_ROUTED) {
        routes =
            graph_route(&c.g, graph_matmul(&c.g, weight(&c, "r", TYPE_F32, k, experts, 1, router), x), NULL, LORA_USED);
        y = graph_matmul_experts(&c.g, weight(&c, "w", TYPE_F32, k, m, experts, w), x, routes, LORA_USED);
    } else y = kind == LORA_EMBEDDING ? c.x : graph_matmul(&c.g, weight(&c, "w", TYPE_F32, k, m, 1, w), x);
    const uint32_t routed = routes ? LORA_USED : 0;
    u = kind == LORA_EMBEDDING ? graph_lora_shrink_id(&c.g, &l.site)
                               : graph_lora_shrink(&c.g, &l.site, x, routes, routed);
    y = graph_lora_expand(&c.g, &l.site, y, u, routes, routed);
    for (size_t t = 0; t < tokens; t++) {
        const float *in = case_input(&c, t);
        double       logits[LORA_EXPERTS] = { 0 };
        size_t       chosen[LORA_USED] = { 0 };
        for (size_t e = 0; routes && e < experts; e++) {
            for (size_t j = 0; j < k; j++) logits[e] += (double)router[e * k + j] * in[j];
            if (logits[e] > logits[chosen[0]]) chosen[0] = e;
        }
        chosen[1] = chosen[0] == 0;
        for (size_t e = 0; routes && e < experts; e++) {
            if (e != chosen[0] && logits[e] > logits[chosen[1]]) chosen[1] = e;
        }
        for (size_t i = 0; i < used; i++) {
            double *row = want + (t * used + i) * m;
            for (size_t o = 0; o < m; o++) {
                if (kind == LORA_EMBEDDING) row[o] = in[o];
                for (size_t j = 0; kind != LORA_EMBEDDING && j < k; j++)
                    row[o] += (double)w[(chosen[i] * m + o) * k + j] * in[j];
            }
            lora_add(&l, &c, t, kind == LORA_EMBEDDING ? NULL : in, chosen[i], row);
        }
    }
    case_expect(case_run(&c, y, tokens), want, tokens * used * m, 1e-5);
    lora_end(&l);
    free(w);
    free(router);
    free(want);
    end(&c);
}

#endif
