/* For test_ops.c: what graphs and plans do beside computing an op: several results, leaves, sets of weights, selected rows, shapes. */

#ifndef GM_OP_GRAPHS_H
#define GM_OP_GRAPHS_H

#include "op_case.h"

/* A value with three readers, one of which is the caller: it must keep its place, and must not become part of a fused op. */
static void test_results(const backend *b, size_t tokens, size_t n) {
    CASE("%s: two results, and a value with several readers, %zu × %zu", b->name, tokens, n);
    op_case      c = case_begin(b, tokens, n);
    float       *w = random_units(n), *sum = random_units(tokens * n), *hidden = random_units(tokens * n);
    double      *want_sum = doubles(tokens * n), *want_hidden = doubles(tokens * n);
    const size_t bytes[2] = { tokens * n * sizeof(float), tokens * n * sizeof(float) };
    tensor      *h = graph_add(&c.g, c.x, graph_rms_norm(&c.g, c.x, weight(&c, "w", TYPE_F32, n, 1, 1, w), 1e-6f));
    tensor      *y = graph_add(&c.g, graph_scale(&c.g, h, 3), graph_rms_norm(&c.g, h, NULL, 1e-6f));
    for (int i = 0; i < 4; i++)
        y = graph_scale(&c.g, y, i % 2 ? 0.5f : 2); /* others want memory after h's last reader */
    c.g.result = y;
    c.g.further[0] = h;
    for (size_t t = 0; t < tokens; t++) {
        const float *x = case_input(&c, t);
        double       squares = 0, more = 0;
        for (size_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
        for (size_t i = 0; i < n; i++) {
            const double v = x[i] + x[i] / sqrt(squares / (double)n + 1e-6) * w[i];
            want_hidden[t * n + i] = v;
            more += v * v;
        }
        for (size_t i = 0; i < n; i++)
            want_sum[t * n + i] = want_hidden[t * n + i] * (3 + 1 / sqrt(more / (double)n + 1e-6));
    }
    open_plan p = plan_open(&c);
    plan_run(&p, 2, (float *[]){ sum, hidden }, bytes);
    case_expect(sum, want_sum, tokens * n, 2e-6);
    case_expect(hidden, want_hidden, tokens * n, 2e-6);
    plan_run(&p, 1, (float *[]){ sum }, bytes); /* not everybody wants the further ones */
    case_expect(sum, want_sum, tokens * n, 2e-6);
    plan_close(&p);
    free(w);
    free(sum);
    free(hidden);
    free(want_sum);
    free(want_hidden);
    end(&c);
}

/* Leaves keep what was written; a sum over tokens exists once. */
static void test_leaves(const backend *b, size_t tokens, size_t n) {
    CASE("%s: leaves and sums over tokens, %zu × %zu", b->name, tokens, n);
    op_case      c = case_begin(b, tokens, n);
    float       *rows = random_units(tokens * n), *bias = random_units(n), *got = random_units(2 * n);
    double      *want = doubles(2 * n);
    const size_t bytes[2] = { n * sizeof(float), n * sizeof(float) };
    tensor      *leaf = graph_leaf(&c.g, AXIS_TOKENS, n, 1), *once = graph_leaf(&c.g, AXIS_RUN, n, 1);
    tensor      *sum = graph_token_sum(&c.g, graph_add(&c.g, graph_scale(&c.g, c.x, 2), leaf));
    c.g.result = graph_scale(&c.g, graph_add(&c.g, sum, once), 0.5f);
    c.g.further[0] = graph_token_sum(&c.g, graph_select_rows(&c.g, leaf));
    open_plan p = plan_open(&c);
    for (int round = 0; round < 3; round++) { /* nothing written; both; the first once more */
        for (size_t i = 0; i < tokens * n && round == 2; i++) rows[i] = random_unit();
        if (round > 0) plan_write(&p, leaf, rows, tokens);
        if (round == 1) plan_write(&p, once, bias, 1);
        for (size_t i = 0; i < n; i++) {
            double total = 0, written = 0;
            for (size_t t = 0; t < tokens; t++) {
                total += 2.0 * case_input(&c, t)[i];
                written += round > 0 ? rows[t * n + i] : 0;
            }
            want[i] = (total + written + (round > 0 ? bias[i] : 0)) / 2;
            want[n + i] = written;
        }
        plan_run(&p, 2, (float *[]){ got, got + n }, bytes);
        case_expect(got, want, n, 2e-6);
        case_expect(got + n, want + n, round ? n : 0, 2e-6);
        for (size_t i = 0; i < n && !round; i++) CHECK(got[n + i] == 0);
    }
    plan_close(&p);
    free(rows);
    free(bias);
    free(got);
    free(want);
    end(&c);
}

static void weights_upload(const op_case *c) {
    error        e = { 0 };
    gpu_backend *b = c->backend->gpu;
    while (gpu_backend_upload(b, &c->g, &e) == GM_AGAIN) gpu_host_wait(b->host, 100);
    CHECK_MESSAGE(!e.status, "%s", e.why);
}

/* Runs the case on weights that are there, and compares with `want`. */
static void weights_run(op_case *c, const double *want, size_t n, double tolerance) {
    error     e = { 0 };
    float    *got = random_units(n);
    open_plan p = { .c = c };
    CHECK_MESSAGE(!gpu_plan_new(c->backend->gpu, &c->g, shape_class(c), c->tokens, NULL, &p.gpu, &e), "%s", e.why);
    if (p.gpu) plan_run(&p, 1, &got, (size_t[]){ n * sizeof *got });
    case_expect(got, want, n, tolerance);
    plan_close(&p);
    free(got);
}

/* One graph joins three matrices; others read one or two of them, from where they lie. Each graph has a set of weights: what several
 * use stays until the last one is released. */
static void test_weight_sets(const backend *b, quant_type type, size_t tokens, size_t k, size_t m) {
    CASE_OF(type, "%s: parts of joined weights, and sets of them, %s %zu × [%zu → %zu]", b->name,
            quant_format_of(type)->name, tokens, k, m);
    static const struct {
        size_t first, count;
    } graphs[] = { { 0, 3 }, { 1, 1 }, { 1, 2 }, { 2, 1 } };
    static op_case c[COUNT_OF(graphs)]; /* too large for the stack of WebAssembly */
    uint8_t       *data = random_weights(type, 3 * k * m);
    float         *w = dequantised(type, data, 3 * k * m);
    double        *want = doubles(COUNT_OF(graphs) * tokens * m);
    gpu_backend_clear(b->gpu);
    const uint64_t nothing = gpu_host_bytes(b->gpu->host);
    const double   tolerance = b->precise ? 5e-6 : cpu_type_has_q8(type) ? 2e-2 : 2e-3;
    float         *table = random_units(50 * k);
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        tensor *y = NULL;
        c[i] = case_begin(b, tokens, k);
        memcpy(c[i].table, table, 50 * k * sizeof *table);
        for (size_t j = graphs[i].first; j < graphs[i].first + graphs[i].count; j++) {
            const uint8_t *from = data + j * m * (size_t)quant_row_bytes(quant_format_of(type), k);
            tensor        *part = graph_matmul(&c[i].g, weight(&c[i], "part", type, k, m, 1, from), c[i].x);
            part = graph_rms_norm(&c[i].g, part, NULL, 1e-6f);
            y = y ? graph_add(&c[i].g, y, part) : part;
            for (size_t t = 0; t < tokens; t++) {
                double squares = 0, *row = doubles(m);
                for (size_t r = 0; r < m; r++) {
                    for (size_t x = 0; x < k; x++)
                        row[r] += (double)w[(j * m + r) * k + x] * table[(size_t)c[i].ids[t] * k + x];
                    squares += row[r] * row[r];
                }
                for (size_t r = 0; r < m; r++)
                    want[(i * tokens + t) * m + r] += row[r] / sqrt(squares / (double)m + 1e-6);
                free(row);
            }
        }
        c[i].g.result = y;
        weights_upload(&c[i]);
    }
    size_t sets = 0, weights = 0;
    for (const gpu_weight_set *set = b->gpu->sets; set; set = set->next, sets++) weights += set->count;
    CHECK_MESSAGE(sets == COUNT_OF(graphs) && weights == sets + 1, "%zu weights in %zu sets: the tables, and one",
                  weights, sets);
    const size_t n = tokens * m;
    for (size_t i = 0; i < COUNT_OF(graphs); i++) weights_run(&c[i], want + i * n, n, tolerance);
    gpu_backend_release(b->gpu, &c[0].g); /* the others use its weight */
    gpu_backend_release(b->gpu, &c[3].g);
    for (size_t i = 1; i < 3; i++) weights_run(&c[i], want + i * n, n, tolerance);
    gpu_backend_release(b->gpu, &c[1].g);
    gpu_backend_release(b->gpu, &c[2].g);
    CHECK(!b->gpu->sets && gpu_host_bytes(b->gpu->host) == nothing);
    weights_upload(&c[3]); /* alone it is no part of anything */
    weights_run(&c[3], want + 3 * n, n, tolerance);
    for (size_t i = 0; i < COUNT_OF(graphs); i++) end(&c[i]);
    free(data);
    free(w);
    free(want);
    free(table);
}

static void test_select(const backend *b) {
    CASE("%s: select_rows", b->name);
    op_case c = case_begin(b, 9, 33);
    c.rows[0] = 2;
    c.rows[1] = 8;
    double *want = doubles(2 * 33);
    for (size_t i = 0; i < 66; i++) want[i] = 2.0 * case_input(&c, (size_t)c.rows[i / 33])[i % 33];
    case_expect(case_run(&c, graph_scale(&c.g, graph_select_rows(&c.g, c.x), 2), 2), want, 66, 1e-6);
    case_run(&c, c.g.result, 0); /* no outputs wanted: nothing happens */
    free(want);
    end(&c);
}

static void test_select_means(const backend *b, size_t outputs, size_t count, size_t n, size_t rows) {
    CASE("%s: means of %zu tokens, %zu × [%zu, %zu]", b->name, count, outputs, n, rows);
    const size_t width = n * rows;
    op_case      c = case_begin(b, outputs * count, width);
    double      *want = doubles(outputs * width);
    for (size_t o = 0; o < outputs; o++) {
        c.rows[o] = (int32_t)(o * count);
        for (size_t i = 0; i < count * width; i++)
            want[o * width + i % width] += case_input(&c, o * count + i / width)[i % width] / (double)count;
    }
    tensor *y = graph_select_means(&c.g, graph_reshape(&c.g, c.x, n, rows), (uint32_t)count);
    case_expect(case_run(&c, y, outputs), want, outputs * width, 2e-6);
    free(want);
    end(&c);
}

static void test_op_shapes(void) {
    TEST("shapes that do not fit are noticed");
    graph   g = { 0 };
    tensor *w = graph_weight(&g, "some.weight", TYPE_F32, (uint64_t[]){ 8, 4, 1 }, "");
    tensor *x = graph_embed(&g, graph_weight(&g, "e", TYPE_F32, (uint64_t[]){ 9, 4, 1 }, ""), 1);
    CHECK(!graph_matmul(&g, w, x));
    CHECK(g.problem.status == GM_BAD_FILE && strstr(g.problem.why, "some.weight"));
    CHECK(!graph_add(&g, x, x)); /* the first problem sticks */
    graph_free(&g);
    x = graph_embed(&g, graph_weight(&g, "e", TYPE_F32, (uint64_t[]){ 8, 4, 1 }, ""), 1);
    CHECK(!graph_mul(&g, x, graph_weight(&g, "halves", TYPE_F16, (uint64_t[]){ 8, 1, 1 }, ""))); /* must be f32 */
    graph_free(&g);
    x = graph_embed(&g, graph_weight(&g, "e", TYPE_F32, (uint64_t[]){ 8, 4, 1 }, ""), 1);
    CHECK(!graph_clamp(&g, x, 1, -1));
    graph_free(&g);
}

#endif
