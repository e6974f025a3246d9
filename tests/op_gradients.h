/* For test_ops.c: gradients. A graph of a few ops gets its backward ops by their rules. What the plain kernels compute for it is compared
 * with finite differences along random directions; what other backends compute, with the plain kernels. */

#ifndef GM_OP_GRADIENTS_H
#define GM_OP_GRADIENTS_H

#include "base/random.h"
#include "graph/backward.h"
#include "op_products.h"

enum { MOST_LEAVES = 3 };

/* Inputs of a graph that get gradients: leaves, and vectors of parameters. */
typedef struct gradient_case gradient_case;
struct gradient_case {
    op_case       c;
    const float  *layout; /* numbers that the builder understands */
    size_t        leaves, outputs;
    uint64_t      shape[MOST_LEAVES][2];
    tensor       *leaf[MOST_LEAVES];
    float        *data[MOST_LEAVES], *d;
    bool          frozen[MOST_LEAVES]; /* no gradient is asked for */
    backward_part parts[2];
    float        *parameters[2], *states[2]; /* of one slot */
    size_t        part_count, part_size[2];
    tensor *(*build)(gradient_case *);
    const void *weights[3];
    size_t      sizes[6]; /* for the builder */
    float       dropout;
    float       unit;    /* the size of the result's gradient; 0: 1 */
    float       growth;  /* of it from token to token, up to that size; 0: all are alike */
    double      in_half; /* the relative error that f16 may cause; 0: 4e-3 */
    bool        twice;   /* two runs have the same results */
};

static size_t leaf_size(const gradient_case *k, size_t i) { return k->c.tokens * k->shape[i][0] * k->shape[i][1]; }

static gradient_case gradient_begin(const backend *b, size_t tokens, tensor *(*build)(gradient_case *)) {
    gradient_case k = { .c = case_begin(b, tokens, 4), .build = build, .outputs = tokens };
    return k;
}

static void gradient_leaf(gradient_case *k, uint64_t n, uint64_t rows) {
    const size_t i = k->leaves++;
    k->shape[i][0] = n;
    k->shape[i][1] = rows;
    k->data[i] = random_units(leaf_size(k, i));
}

/* Builds the graph anew; returns its result. */
static tensor *gradient_build(gradient_case *k) {
    graph_free(&k->c.g);
    for (size_t i = 0; i < k->leaves; i++)
        k->leaf[i] = graph_leaf(&k->c.g, AXIS_TOKENS, k->shape[i][0], k->shape[i][1]);
    return k->build(k);
}

static size_t result_size(const gradient_case *k, const tensor *t) {
    return (t->axis == AXIS_TOKENS ? k->c.tokens : k->outputs) * t->ne[0] * t->ne[1];
}

static void gradient_open(gradient_case *k, open_plan *p) {
    *p = plan_open(&k->c);
    for (size_t i = 0; i < k->leaves; i++) plan_write(p, k->leaf[i], k->data[i], k->c.tokens);
}

/* <d, result> where the leaf or the parameters `at` are moved by h · v. */
static double gradient_moved(gradient_case *k, open_plan *p, float *at, const float *v, size_t n, double h,
                             const float *d, size_t results) {
    float *kept = malloc(n * sizeof *kept), *y = malloc(results * sizeof *y);
    double sum = 0;
    memcpy(kept, at, n * sizeof *kept);
    for (size_t i = 0; i < n; i++) at[i] += (float)h * v[i];
    for (size_t i = 0; i < k->leaves; i++) plan_write(p, k->leaf[i], k->data[i], k->c.tokens);
    plan_run_outputs(p, k->outputs, 1, (float *[]){ y }, (size_t[]){ results * sizeof *y });
    for (size_t i = 0; i < results; i++) sum += (double)d[i] * y[i];
    memcpy(at, kept, n * sizeof *kept);
    free(kept);
    free(y);
    return sum;
}

/* Compares a gradient with the slope along two random directions. */
static void gradient_slope(gradient_case *k, open_plan *p, float *at, const float *gradient, size_t n, const float *d,
                           size_t results, const char *what, size_t number) {
    for (int round = 0; round < 2; round++) {
        const double h = 1.0 / 64;
        float       *v = random_units(n);
        double       got = 0, length = 0;
        for (size_t i = 0; i < n; i++) got += (double)gradient[i] * v[i];
        for (size_t i = 0; i < n; i++) length += (double)gradient[i] * gradient[i] / 3; /* of a random direction */
        double near[2];
        for (int i = 0; i < 2; i++)
            near[i] = gradient_moved(k, p, at, v, n, h * (1 + i), d, results) -
                      gradient_moved(k, p, at, v, n, -h * (1 + i), d, results);
        const double slope = (8 * near[0] - near[1]) / (12 * h);
        CHECK_MESSAGE(fabs(slope - got) <= 2e-3 * sqrt(length) + 1e-6,
                      "%s %zu: slope %g, gradient gives %g of about %g", what, number, slope, got, sqrt(length));
        free(v);
    }
}

/* Gradients of all leaves on a backend, one after the other in `out`; the parameters' are in the states. */
static void gradients_on(gradient_case *k, const backend *on, float *out) {
    const backend *kept = k->c.backend;
    k->c.backend = on;
    tensor  *y = gradient_build(k), *results[MOST_LEAVES];
    backward b;
    size_t   count = 0, bytes[MOST_LEAVES];
    float   *to[MOST_LEAVES];
    if (y) {
        const size_t end = k->c.g.op_count;
        tensor      *d = graph_leaf(&k->c.g, y->axis, y->ne[0], y->ne[1]);
        backward_begin(&b, &k->c.g, k->parts, k->part_count);
        for (size_t i = 0; i < k->leaves; i++) {
            if (!k->frozen[i]) backward_depend(&b, k->leaf[i]);
        }
        backward_note(&b, 0, end);
        backward_give(&b, y, d);
        backward_run(&b, 0, end);
        for (size_t i = 0; i < k->leaves; i++) {
            to[count] = out;
            bytes[count] = leaf_size(k, i) * sizeof *out;
            out += leaf_size(k, i);
            if (k->frozen[i]) continue;
            results[count] = backward_gradient(&b, k->leaf[i]);
            CHECK_MESSAGE(results[count], "leaf %zu has no gradient: %s", i, k->c.g.problem.why);
            /* a result that another op made, not a view: plans read it as a whole */
            if (results[count]) results[count] = graph_scale(&k->c.g, results[count], 1);
            *(count ? &k->c.g.further[count - 1] : &k->c.g.result) = results[count];
            count++;
        }
        if (!count) k->c.g.result = y;
        backward_end(&b);
        for (size_t i = 0; i < k->part_count; i++) memset(k->states[i], 0, k->part_size[i] * sizeof(float));
        open_plan p;
        gradient_open(k, &p);
        plan_write(&p, d, k->d, y->axis == AXIS_TOKENS ? k->c.tokens : k->outputs);
        plan_run_outputs(&p, k->outputs, count, to, bytes);
        for (size_t i = 0; i < k->part_count; i++) state_move(&p, k->parts[i].gradient, true);
        plan_close(&p);
    }
    k->c.backend = kept;
}

static backend plain_kernels(void) {
    static backend b = { .name = "plain", .precise = true };
    error          e = { 0 };
    if (!b.cpu.kernels && cpu_backend_open(&b.cpu, "scalar", 1, true, &e)) CHECK_MESSAGE(false, "%s", e.why);
    return b;
}

static void gradient_expect(const float *got, const float *want, size_t n, double tolerance, const char *what,
                            size_t number) {
    double difference = 0, size = 1e-30;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    CHECK_MESSAGE(sqrt(difference) <= tolerance * sqrt(size) + 1e-7 * sqrt((double)n), "%s %zu: relative error %g",
                  what, number, sqrt(difference / size));
}

/* The gradient of the result. */
static float *gradient_given(const gradient_case *k, size_t results) {
    float       *d = random_units(results);
    const size_t row = results / k->outputs;
    for (size_t i = 0; i < results && k->unit > 0; i++) d[i] *= k->unit;
    for (size_t i = 0; i < results && k->growth > 0; i++)
        d[i] *= powf(k->growth, (float)(i / row) - (float)(k->outputs - 1));
    return d;
}

static void gradient_enlarge(float *values, size_t n, float unit) {
    for (size_t i = 0; i < n && unit > 0; i++) values[i] /= unit;
}

static void gradient_again(gradient_case *k, const float *got, size_t n) {
    float *again = calloc(n + 1, sizeof *again);
    gradients_on(k, k->c.backend, again);
    CHECK_MESSAGE(!memcmp(got, again, n * sizeof *got), "another run has other results");
    free(again);
}

/* Runs and compares everything, and frees the case. */
static void gradient_check(gradient_case *k) {
    const backend  plain = plain_kernels();
    const backend *b = k->c.backend;
    const bool     is_plain = !b->gpu && b->cpu.kernels == plain.cpu.kernels;
    const double   tolerance = b->precise ? 1e-5 : k->in_half > 0 ? k->in_half : 4e-3;
    size_t         all = 0, results;
    for (size_t i = 0; i < k->leaves; i++) all += leaf_size(k, i);
    tensor *y = gradient_build(k);
    CHECK_MESSAGE(y, "%s", k->c.g.problem.why);
    if (y) {
        results = result_size(k, y);
        k->d = gradient_given(k, results);
        float *want = calloc(all + 1, sizeof *want), *got = calloc(all + 1, sizeof *got), *states[2];
        gradients_on(k, &plain, want);
        for (size_t i = 0; i < k->part_count; i++) {
            states[i] = malloc(k->part_size[i] * sizeof(float));
            memcpy(states[i], k->states[i], k->part_size[i] * sizeof(float));
        }
        if (is_plain && !(k->unit > 0)) { /* such small ones would be lost in differences */
            k->c.g.result = gradient_build(k);
            open_plan p;
            gradient_open(k, &p);
            for (size_t i = 0, at = 0; i < k->leaves; at += leaf_size(k, i++)) {
                if (!k->frozen[i])
                    gradient_slope(k, &p, k->data[i], want + at, leaf_size(k, i), k->d, results, "leaf", i);
            }
            for (size_t i = 0; i < k->part_count; i++)
                gradient_slope(k, &p, k->parameters[i], states[i], k->part_size[i], k->d, results, "parameters", i);
            plan_close(&p);
        }
        gradients_on(k, b, got);
        if (k->twice) gradient_again(k, got, all);
        gradient_enlarge(want, all, k->unit);
        gradient_enlarge(got, all, k->unit);
        for (size_t i = 0, at = 0; i < k->leaves; at += leaf_size(k, i++))
            gradient_expect(got + at, want + at, leaf_size(k, i), tolerance, "leaf", i);
        for (size_t i = 0; i < k->part_count; i++) {
            gradient_expect(k->states[i], states[i], k->part_size[i], tolerance, "parameters", i);
            free(states[i]);
        }
        free(want);
        free(got);
    }
    for (size_t i = 0; i < k->leaves; i++) free(k->data[i]);
    free(k->d);
    end(&k->c);
}

/* ---- ops on rows ---- */

static tensor *build_norms(gradient_case *k) {
    tensor *w = weight(&k->c, "w", TYPE_F32, k->shape[0][0], 1, 1, k->weights[0]);
    return graph_add(&k->c.g, graph_rms_norm(&k->c.g, k->leaf[0], w, 1e-6f),
                     graph_rms_norm(&k->c.g, k->leaf[0], NULL, 1e-6f)); /* two readers */
}

static void test_norm_gradient(const backend *b, size_t tokens, uint64_t n, uint64_t rows) {
    CASE("%s: gradient of rms_norm %zu × [%zu, %zu]", b->name, tokens, (size_t)n, (size_t)rows);
    gradient_case k = gradient_begin(b, tokens, build_norms);
    float        *w = random_units(n);
    k.weights[0] = w;
    gradient_leaf(&k, n, rows);
    gradient_check(&k);
    free(w);
}

/* Slices of one value, which together are all of it; products by values and by a vector; a slice with two readers. */
static tensor *build_elements(gradient_case *k) {
    graph         *g = &k->c.g;
    const uint64_t n = k->shape[1][0], rows = k->shape[1][1];
    tensor        *both = graph_scale(g, k->leaf[0], 1.5f);
    tensor        *gate = graph_slice(g, both, 0, n, rows), *up = graph_slice(g, both, n, n, rows);
    tensor        *y = graph_geglu(g, gate, up);
    y = graph_mul(g, graph_add(g, y, k->leaf[1]), gate);
    return graph_mul(g, y, weight(&k->c, "w", TYPE_F32, n, 1, 1, k->weights[0]));
}

static void test_element_gradients(const backend *b, size_t tokens, uint64_t n, uint64_t rows) {
    CASE("%s: gradients of elementwise ops and slices %zu × [%zu, %zu]", b->name, tokens, (size_t)n, (size_t)rows);
    gradient_case k = gradient_begin(b, tokens, build_elements);
    float        *w = random_units(n);
    k.weights[0] = w;
    gradient_leaf(&k, 2 * n, rows);
    gradient_leaf(&k, n, rows);
    gradient_check(&k);
    free(w);
}

/* The parts of a long row, as many as a model has layers: more than one op puts together. */
static tensor *build_parts(gradient_case *k) {
    graph         *g = &k->c.g;
    const uint64_t n = k->shape[0][0];
    tensor        *x = graph_scale(g, k->leaf[0], 0.5f), *y = NULL;
    for (uint64_t i = 0; i < k->shape[0][1]; i++) {
        tensor *part = graph_slice(g, x, i * n, n, 1);
        y = y ? graph_mul(g, y, graph_add(g, part, part)) : graph_add(g, part, part);
    }
    return graph_select_rows(g, y);
}

static void test_part_gradients(const backend *b, size_t tokens, uint64_t n, uint64_t parts) {
    CASE("%s: gradients of %zu parts of a row and of select_rows, %zu × %zu", b->name, (size_t)parts, tokens,
         (size_t)n);
    gradient_case k = gradient_begin(b, tokens, build_parts);
    k.outputs = 0;
    for (size_t t = 0; t < tokens; t += 1 + k.outputs % 3) k.c.rows[k.outputs++] = (int32_t)t;
    gradient_leaf(&k, n, parts);
    gradient_check(&k);
}

/* ---- attention ---- */

/* The queries of two layers see the keys of one; where keys are values, these have two readers. */
static tensor *build_attention(gradient_case *k) {
    graph         *g = &k->c.g;
    const uint32_t window = k->c.window;
    tensor     *angles = graph_rope_table(g, weight(&k->c, "f", TYPE_F32, k->shape[0][0] / 2, 1, 1, k->weights[0]), 1);
    tensor     *keys = graph_rope(g, k->leaf[1], angles), *values = graph_rms_norm(g, k->leaf[1], NULL, 1e-6f);
    tensor     *cache = graph_kv_store(g, keys, values, 0, window);
    const float even = 4 / (float)k->shape[0][0]; /* scores so small that steps change little */
    tensor     *y = graph_attention(g, graph_scale(g, graph_rope(g, k->leaf[0], angles), even), cache);
    return graph_add(g, y, graph_attention(g, graph_scale(g, y, even), cache));
}

/* Keys are all of a size, values are not. */
static tensor *build_uneven_attention(gradient_case *k) {
    graph      *g = &k->c.g;
    tensor     *keys = graph_rms_norm(g, k->leaf[1], NULL, 1e-6f);
    const float even = 2 / sqrtf((float)k->shape[0][0]);
    return graph_attention(g, graph_scale(g, k->leaf[0], even), graph_kv_store(g, keys, k->leaf[1], 0, k->c.window));
}

static gradient_case attention_gradient_begin(const backend *b, size_t tokens, size_t head, size_t heads,
                                              size_t kv_heads, size_t window) {
    gradient_case k = gradient_begin(b, tokens, build_attention);
    const size_t  bytes = tokens * kv_heads * head * sizeof(float);
    k.in_half = 1e-3;
    k.c.packed = true;
    k.c.window = (uint32_t)window;
    k.c.ring_slots = (uint32_t)tokens;
    k.c.kv = (kv_layer){ .k = malloc(bytes), .v = malloc(bytes), .type = TYPE_F32, .kv_heads = kv_heads, .head = head };
    if (b->gpu) k.c.gpu_kv = gpu_cache(b, TYPE_F32, kv_heads, head, tokens);
    gradient_leaf(&k, head, heads);
    gradient_leaf(&k, head, kv_heads);
    return k;
}

static void attention_gradient_check(gradient_case *k) {
    uint8_t           *memory[2] = { k->c.kv.k, k->c.kv.v };
    const backend     *b = k->c.backend;
    const gpu_kv_layer cache = k->c.gpu_kv;
    gradient_check(k);
    free(memory[0]);
    free(memory[1]);
    if (b->gpu) gpu_cache_free(b, &cache);
}

static void test_attention_gradient(const backend *b, size_t tokens, size_t head, size_t heads, size_t kv_heads,
                                    size_t window, size_t first_span) {
    CASE("%s: gradient of attention %zu × %zu/%zu heads of %zu, window %zu%s", b->name, tokens, heads, kv_heads, head,
         window, first_span ? ", two sequences" : "");
    gradient_case k = attention_gradient_begin(b, tokens, head, heads, kv_heads, window);
    float         frequencies[MOST_WIDTH];
    for (size_t i = 0; i < head / 2; i++) frequencies[i] = 1 / (float)(1 + i);
    k.weights[0] = frequencies;
    k.c.first_span = first_span;
    attention_gradient_check(&k);
}

/* Small gradients, which grow from token to token as values do: from one tile of keys or queries to the next, an f16's scale does not do. */
static void test_growing_attention_gradient(const backend *b, size_t tokens, size_t head, size_t heads, size_t kv_heads,
                                            size_t window, float growth) {
    CASE("%s: gradient of attention that grows, %zu × %zu/%zu heads of %zu, window %zu", b->name, tokens, heads,
         kv_heads, head, window);
    gradient_case k = attention_gradient_begin(b, tokens, head, heads, kv_heads, window);
    k.build = build_uneven_attention;
    k.unit = 1e-6f;
    k.growth = growth;
    k.twice = true;
    for (size_t i = 0; i < leaf_size(&k, 1); i++)
        k.data[1][i] *= powf(growth, (float)(i / (head * kv_heads)) - (float)(tokens - 1));
    attention_gradient_check(&k);
}

/* ---- products ---- */

static void check_matmul_back(const backend *b, quant_type type, size_t tokens, size_t k, size_t m,
                              uint64_t most_binding) {
    op_case  c = case_begin(b, tokens, m);
    uint8_t *data = random_weights(type, k * m);
    float   *w = dequantised(type, data, k * m);
    double  *want = doubles(tokens * k);
    c.most_binding = most_binding;
    tensor *y = graph_matmul_back(&c.g, weight(&c, "w", type, k, m, 1, data), c.x);
    for (size_t i = 0; i < tokens * m; i++) {
        for (size_t j = 0; j < k; j++) want[i / m * k + j] += (double)w[i % m * k + j] * case_input(&c, i / m)[i % m];
    }
    case_expect(case_run(&c, y, 0), want, tokens * k, !b->precise && halves(b, type) ? 2e-3 : 2e-6);
    free(data);
    free(w);
    free(want);
    end(&c);
}

static void test_matmul_back(const backend *b, quant_type type, size_t tokens, size_t k, size_t m) {
    CASE("%s: matmul_back %s %zu × [%zu ← %zu]", b->name, quant_format_of(type)->name, tokens, k, m);
    check_matmul_back(b, type, tokens, k, m, 0);
}

/* A GPU that binds little has the weights in several buffers. */
static void test_matmul_back_tiles(const backend *b) {
    if (!b->gpu) return;
    CASE("%s: matmul_back in tiles", b->name);
    check_matmul_back(b, TYPE_Q8_0, 5, 256, 700, 64 << 10);
    if (halves(b, TYPE_Q8_0)) check_matmul_back(b, TYPE_Q8_0, 40, 256, 700, 64 << 10);
}

/* sizes: width, inner width, experts, used. Leaves: what the experts read, and the router's logits. */
static tensor *build_experts(gradient_case *k) {
    graph         *g = &k->c.g;
    const size_t  *s = k->sizes;
    const uint32_t used = (uint32_t)s[3];
    tensor        *routes = graph_route(g, k->leaf[1], weight(&k->c, "s", TYPE_F32, s[2], 1, 1, k->weights[2]), used);
    tensor        *both = graph_matmul_experts(g, weight(&k->c, "up", TYPE_F32, s[0], 2 * s[1], s[2], k->weights[0]),
                                               k->leaf[0], routes, used);
    tensor        *inner = graph_geglu(g, graph_slice(g, both, 0, s[1], used), graph_slice(g, both, s[1], s[1], used));
    tensor        *down =
        graph_matmul_experts(g, weight(&k->c, "down", TYPE_Q8_0, s[1], s[0], s[2], k->weights[1]), inner, routes, used);
    return graph_expert_sum(g, down, routes, used);
}

static void test_expert_gradients(const backend *b, size_t tokens, size_t width, size_t inner, size_t experts,
                                  size_t used) {
    CASE("%s: gradients of %zu of %zu experts %zu × [%zu → %zu]", b->name, used, experts, tokens, width, inner);
    gradient_case k = gradient_begin(b, tokens, build_experts);
    float        *up = random_units(2 * width * inner * experts), *scale = random_units(experts);
    uint8_t      *down = random_weights(TYPE_Q8_0, width * inner * experts);
    memcpy(k.sizes, (size_t[]){ width, inner, experts, used }, 4 * sizeof(size_t));
    memcpy(k.weights, (const void *[]){ up, down, scale }, sizeof k.weights);
    gradient_leaf(&k, width, 1);
    gradient_leaf(&k, experts, 1);
    for (size_t i = 0; i < tokens * experts; i++) /* so far apart that no step changes the choice */
        k.data[1][i] = 0.25f * (float)((i % experts * 5 + i / experts) % experts);
    gradient_check(&k);
    free(up);
    free(down);
    free(scale);
}

/* sizes: k, m, rank, slots, experts, kind */
static tensor *build_lora(gradient_case *k) {
    graph          *g = &k->c.g;
    const size_t   *s = k->sizes;
    const lora_kind kind = (lora_kind)s[5];
    const uint32_t  used = kind == LORA_ROUTED ? LORA_USED : 0;
    lora_site       site = { .rank = (uint32_t)s[2], .slots = (uint32_t)s[3], .experts = s[4] };
    site.a = weight(&k->c, "a", TYPE_F32, s[3] * s[4] * s[2] * s[0], 1, 1, k->weights[0]);
    site.b = weight(&k->c, "b", TYPE_F32, s[3] * s[4] * s[2] * s[1], 1, 1, k->weights[1]);
    site.sets = weight(&k->c, "sets", TYPE_F32, LORA_SETS * s[3], 1, 1, k->weights[2]);
    for (size_t i = 0; i < 2; i++) {
        tensor *parameters = i ? site.b : site.a;
        k->parts[i] =
            (backward_part){ parameters, 1, weight(&k->c, "d", TYPE_F32, k->part_size[i], 1, 1, k->states[i]), 1 };
    }
    tensor      *x = kind == LORA_OUTPUTS ? graph_select_rows(g, k->leaf[0]) : k->leaf[0], *routes = NULL, *y = x;
    const float *w = (const float *)k->layout;
    if (kind == LORA_ROUTED) {
        routes = graph_route(g, k->leaf[1], NULL, used);
        y = graph_matmul_experts(g, weight(&k->c, "w", TYPE_F32, s[0], s[1], s[4], w), x, routes, used);
    } else if (kind != LORA_EMBEDDING) y = graph_matmul(g, weight(&k->c, "w", TYPE_F32, s[0], s[1], 1, w), x);
    tensor *seen = x;
    if (k->dropout > 0) seen = graph_dropout(g, x, graph_leaf(g, AXIS_RUN, 2, 1), k->dropout, 7); /* the key is 0 */
    tensor *u =
        kind == LORA_EMBEDDING ? graph_lora_shrink_id(g, &site) : graph_lora_shrink(g, &site, seen, routes, used);
    return graph_lora_expand(g, &site, y, u, routes, used);
}

static void test_lora_gradients(const backend *b, lora_kind kind, size_t tokens, size_t width, size_t m, size_t rank,
                                float dropout) {
    static const char *const names[] = { "a product", "a product of outputs", "an embedding", "products of experts" };
    CASE("%s: gradients of an adapter of %s, %zu × [%zu → %zu → %zu], dropout %g", b->name, names[kind], tokens, width,
         rank, m, (double)dropout);
    const size_t  slots = 2, experts = kind == LORA_ROUTED ? LORA_EXPERTS : 1, in = kind == LORA_EMBEDDING ? 50 : width;
    gradient_case k = gradient_begin(b, tokens, build_lora);
    lora_case     l = lora_begin(&k.c, in, m, rank, slots, experts);
    float        *w = random_units(width * m * experts), *states[2];
    memcpy(k.sizes, (size_t[]){ in, m, rank, slots, experts, kind }, sizeof k.sizes);
    memcpy(k.weights, (const void *[]){ l.a, l.b, l.sets }, sizeof k.weights);
    k.layout = w;
    k.dropout = dropout;
    k.part_count = 2;
    for (size_t i = 0; i < 2; i++) {
        k.part_size[i] = experts * rank * (i ? m : in);
        k.parameters[i] = (i ? l.b : l.a) + k.part_size[i]; /* of the second slot */
        k.states[i] = states[i] = calloc(k.part_size[i], sizeof(float));
    }
    gradient_leaf(&k, kind == LORA_EMBEDDING ? m : width, 1);
    if (kind == LORA_ROUTED) gradient_leaf(&k, experts, 1);
    for (size_t i = 0; kind == LORA_ROUTED && i < tokens * experts; i++)
        k.data[1][i] = 0.25f * (float)((i % experts * 3 + i / experts) % experts);
    k.frozen[1] = true;
    gradient_check(&k);
    lora_end(&l);
    free(w);
    free(states[0]);
    free(states[1]);
}

static void test_dropout(const backend *b, size_t tokens, uint64_t n, uint64_t rows, float probability, bool off) {
    CASE("%s: dropout %g of %zu × [%zu, %zu]%s", b->name, (double)probability, tokens, (size_t)n, (size_t)rows,
         off ? ", off" : "");
    const uint32_t key[2] = { off ? UINT32_MAX : 11, off ? UINT32_MAX : 22 };
    op_case        c = case_begin(b, tokens, n * rows);
    double        *want = doubles(tokens * n * rows);
    float         *got = random_units(tokens * n * rows), bits[2];
    tensor        *leaf = graph_leaf(&c.g, AXIS_RUN, 2, 1);
    size_t         zeros = 0;
    c.g.result = graph_dropout(&c.g, graph_reshape(&c.g, c.x, n, rows), leaf, probability, 5);
    for (size_t i = 0; i < tokens * n * rows; i++) {
        uint32_t words[4];
        philox((uint32_t[]){ (uint32_t)(i % n / 4), (uint32_t)(i / n), 5, 0 }, key, words);
        const bool zero = !off && words[i % n % 4] < (double)probability * 4294967296.0;
        want[i] = zero ? 0 : (double)case_input(&c, i / (n * rows))[i % (n * rows)];
        if (!off) want[i] /= 1 - (double)probability;
        zeros += zero;
    }
    memcpy(bits, key, sizeof bits);
    open_plan p = plan_open(&c);
    plan_write(&p, leaf, bits, 1);
    plan_run(&p, 1, (float *[]){ got }, (size_t[]){ tokens * n * rows * sizeof *got });
    case_expect(got, want, tokens * n * rows, 1e-6);
    CHECK(fabs((double)zeros / (double)(tokens * n * rows) - (off ? 0 : (double)probability)) < 0.1);
    plan_close(&p);
    free(got);
    free(want);
    end(&c);
}

/* ---- the loss and the optimiser ---- */

/* Both results by the formula: w·(p − 1)·(1 − (y / cap)²), y = cap·tanh(z / cap), and −w·ln p. */
static void test_cross_entropy(const backend *b, size_t tokens, size_t n, double cap) {
    CASE("%s: cross_entropy %zu × %zu, cap %g", b->name, tokens, n, cap);
    op_case c = case_begin(b, tokens, n);
    tensor *goals = graph_leaf(&c.g, AXIS_TOKENS, 2, 1), *loss = NULL;
    float  *goal = calloc(2 * tokens, sizeof *goal), *got = random_units(tokens * n), *losses = random_units(tokens);
    double *want = doubles(tokens * n), *want_losses = doubles(tokens);
    tensor *z = graph_scale(&c.g, c.x, 20);
    c.g.result = graph_cross_entropy(&c.g, z, goals, (float)cap, &loss);
    c.g.further[0] = loss;
    for (size_t t = 0; t < tokens; t++) {
        const int32_t target = (int32_t)(t * 13 % n);
        double        sum = 0;
        memcpy(goal + 2 * t, &target, sizeof target);
        goal[2 * t + 1] = t % 3 == 1 ? 0 : 0.25f + (float)(t % 2);
        for (size_t i = 0; i < n; i++) {
            const double x = 20.0 * (double)case_input(&c, t)[i];
            want[t * n + i] = cap > 0 ? cap * tanh(x / cap) : x;
            sum += exp(want[t * n + i]);
        }
        want_losses[t] = goal[2 * t + 1] * (log(sum) - want[t * n + (size_t)target]);
        for (size_t i = 0; i < n; i++) {
            const double y = want[t * n + i], slope = cap > 0 ? 1 - y * y / cap / cap : 1;
            want[t * n + i] = goal[2 * t + 1] * slope * (exp(y) / sum - ((size_t)target == i));
        }
    }
    open_plan p = plan_open(&c);
    plan_write(&p, goals, goal, tokens);
    plan_run(&p, 2, (float *[]){ got, losses }, (size_t[]){ tokens * n * sizeof *got, tokens * sizeof *losses });
    case_expect(got, want, tokens * n, 1e-5);
    case_expect(losses, want_losses, tokens, 1e-5);
    plan_close(&p);
    free(goal);
    free(got);
    free(losses);
    free(want);
    free(want_losses);
    end(&c);
}

/* Three steps with gradients that are clipped in the first, not in the second, and not finite in the third. */
static void test_adamw(const backend *b, size_t n) {
    CASE("%s: adamw of %zu", b->name, n);
    op_case     c = case_begin(b, 1, 4);
    const float scale = 2.5f, beta[2] = { 0.9f, 0.99f };
    float      *states[4], squares;
    double     *want = doubles(2 * n), *moments = doubles(2 * n);
    tensor     *state[4], *rates = graph_leaf(&c.g, AXIS_RUN, ADAMW_RATES, 1);
    for (size_t i = 0; i < 4; i++) {
        states[i] = i ? calloc(n, sizeof(float)) : random_units(2 * n);
        state[i] = weight(&c, "state", TYPE_F32, i ? n : 2 * n, 1, 1, states[i]);
    }
    for (size_t i = 0; i < 2 * n; i++) want[i] = states[0][i];
    c.g.result = graph_square_sum(&c.g, state[1], graph_square_sum(&c.g, state[1], NULL));
    graph_adamw(&c.g, &(adamw_part){ state[0], state[1], { state[2], state[3] }, 1, scale, 2 }, rates, c.g.result);
    open_plan p = plan_open(&c);
    for (int step = 1; step <= 3; step++) {
        double norm = 0;
        for (size_t i = 0; i < n; i++) states[1][i] = random_unit() * (step == 1 ? 8 : 0.01f);
        for (size_t i = 0; i < n; i++) norm += 2.0 * states[1][i] * states[1][i]; /* it is added up twice */
        if (step == 3) states[1][n / 2] = NAN;
        const float values[ADAMW_RATES] = { 0.1f,
                                            beta[0],
                                            beta[1],
                                            1e-8f,
                                            0.05f,
                                            1 / (1 - powf(beta[0], (float)step)),
                                            1 / (1 - powf(beta[1], (float)step)),
                                            1.5f };
        for (size_t i = 0; i < n && step < 3; i++) {
            const double g = states[1][i] * (sqrt(norm) > 1.5 ? 1.5 / sqrt(norm) : 1);
            double      *m = moments + 2 * i, *w = want + n + i;
            m[0] = (double)beta[0] * m[0] + (1 - (double)beta[0]) * g;
            m[1] = (double)beta[1] * m[1] + (1 - (double)beta[1]) * g * g;
            *w -= 0.2 * (0.05 * *w +
                         scale * m[0] * values[ADAMW_CORRECTION_1] / (sqrt(m[1] * values[ADAMW_CORRECTION_2]) + 1e-8));
        }
        plan_write(&p, rates, values, 1);
        state_move(&p, state[1], false);
        plan_run(&p, 1, (float *[]){ &squares }, (size_t[]){ sizeof squares });
        for (size_t i = 0; i < 2; i++) state_move(&p, state[i], true);
        CHECK(step == 3 ? isnan(squares) : fabs(squares - norm) <= 1e-5 * norm);
        case_expect(states[0], want, 2 * n, 1e-5);
        CHECK(step == 3 || states[1][n - 1] == 0);
    }
    plan_close(&p);
    for (size_t i = 0; i < 4; i++) free(states[i]);
    free(want);
    free(moments);
    end(&c);
}

/* On a GPU with subgroup matrices that may take f16. */
static void test_gradients_in_halves(const backend *b) {
    test_matmul_back(b, TYPE_Q4_0, 67, 288, 65);
    test_matmul_back(b, TYPE_Q4_K, 140, 256, 37);
    test_matmul_back(b, TYPE_F16, 33, 100, 40);
    test_matmul_back(b, TYPE_Q6_K, 9, 256, 700);
    test_matmul_back_tiles(b);
    test_expert_gradients(b, 9, 288, 32, 7, 3);
    test_attention_gradient(b, 16, 16, 4, 1, 0, 0); /* one tile of keys, whose queries are divided */
    test_attention_gradient(b, 70, 16, 4, 2, 0, 0);
    test_attention_gradient(b, 70, 16, 4, 1, 16, 0);
    test_attention_gradient(b, 67, 8, 3, 1, 0, 20);
    test_attention_gradient(b, 67, 64, 8, 4, 9, 33);
    test_attention_gradient(b, 131, 72, 2, 2, 90, 0);
    test_attention_gradient(b, 18, 256, 2, 1, 0, 0);
    test_attention_gradient(b, 18, 512, 2, 1, 0, 0); /* the largest heads */
    test_growing_attention_gradient(b, 40, 24, 2, 1, 0, 1);
    test_growing_attention_gradient(b, 150, 16, 2, 1, 0, 1.125f);
}

static void test_gradients(const backend *b) {
    for (uint32_t type = 0; type < TYPE_COUNT; type++) {
        const quant_format *f = quant_format_of(type);
        if (f && f->dequantise) test_matmul_back(b, (quant_type)type, 3, 512, 37);
    }
    test_matmul_back(b, TYPE_F16, 1, 33, 5);
    test_matmul_back(b, TYPE_Q4_0, 67, 288, 65);
    test_matmul_back(b, TYPE_Q4_K, 140, 256, 37);
    test_matmul_back(b, TYPE_F16, 33, 100, 40);
    test_matmul_back(b, TYPE_Q6_K, 2, 256, 400);
    test_matmul_back(b, TYPE_F16, 3, 64, 600); /* so few results that the rows are divided */
    test_matmul_back_tiles(b);
    test_norm_gradient(b, 5, 96, 1);
    test_norm_gradient(b, 3, 33, 3);
    test_element_gradients(b, 5, 40, 1);
    test_element_gradients(b, 2, 33, 3);
    test_part_gradients(b, 7, 5, 8);
    test_part_gradients(b, 2, 3, 19);
    test_attention_gradient(b, 1, 32, 2, 1, 0, 0);
    test_attention_gradient(b, 5, 6, 3, 3, 0, 0);
    test_attention_gradient(b, 16, 16, 4, 1, 0, 0); /* one tile of keys, whose queries are divided */
    test_attention_gradient(b, 70, 16, 4, 2, 0, 0);
    test_attention_gradient(b, 70, 16, 4, 1, 16, 0);
    test_attention_gradient(b, 67, 8, 3, 1, 0, 20);
    test_attention_gradient(b, 67, 64, 8, 4, 9, 33);
    test_attention_gradient(b, 18, 256, 2, 1, 0, 0);
    test_attention_gradient(b, 18, 512, 2, 1, 0, 0); /* the largest heads */
    test_growing_attention_gradient(b, 40, 24, 2, 1, 0, 1);
    test_growing_attention_gradient(b, 150, 16, 2, 1, 0, 1.125f);
    test_expert_gradients(b, 5, 24, 32, 8, 2);
    test_expert_gradients(b, 9, 288, 32, 7, 3);
    test_lora_gradients(b, LORA_PLAIN, 5, 33, 35, 3, 0);
    test_lora_gradients(b, LORA_PLAIN, 33, 300, 270, 8, 0.25f);
    test_lora_gradients(b, LORA_PLAIN, 140, 20, 12, 4, 0);
    test_lora_gradients(b, LORA_ROUTED, 9, 33, 35, 3, 0);
    test_dropout(b, 5, 33, 3, 0.25f, false);
    test_dropout(b, 2, 1024, 1, 0.5f, false);
    test_dropout(b, 2, 33, 1, 0.5f, true);
    test_lora_gradients(b, LORA_OUTPUTS, 5, 36, 40, 4, 0.5f);
    test_lora_gradients(b, LORA_EMBEDDING, 67, 36, 36, 5, 0); /* ids that come twice */
    test_lora_gradients(b, LORA_ROUTED, 9, 33, 35, 3, 0.3f);
    test_cross_entropy(b, 5, 33, 30);
    test_cross_entropy(b, 3, 1000, 0);
    test_adamw(b, 37);
    test_adamw(b, 20000);
}

#endif
