/* Plans and runs each op as a graph on every backend and compares it with the formula in double: on the CPU with every instruction
 * set, with one thread and three; on the GPU with and without its optional features; with and without 8-bit activations. Inputs enter
 * through an embedding table, as in a model.
 *
 *     test_ops [cpu|gpu] [disabled GPU features, after a + in a second pass only] [only cases with this in their name] [deep]
 *
 * deep: attentions over as many tokens and keys as a long prompt has, instead of everything else; for a GPU that is one
 * (bench/node/ops.sh). */

#include "cpu/backend.h"
#include "gpu/backend.h"
#include "gpu/features.h"
#include "gpu/kernels.h"
#include "session/records.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_TOKENS = 256, MOST_WIDTH = 1600 };

static uint32_t    seed = 1;
static const char *only = "";

/* Begins a case, unless others are wanted. */
#define CASE(...)                                                                                                      \
    do {                                                                                                               \
        TEST(__VA_ARGS__);                                                                                             \
        if (!strstr(test_name, only)) {                                                                                \
            test_open = false;                                                                                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

static float random_unit(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (1 << 23) - 1;
}

static float *random_units(size_t n) {
    float *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] = random_unit();
    return values;
}

/* The one under test: a CPU table, or a GPU. */
typedef struct {
    char         name[64];
    bool         precise;
    cpu_backend  cpu; /* kernels NULL: it is the GPU */
    gpu_backend *gpu;
} backend;

/* What a case has: a backend, a graph, and inputs x of `width` values a token. */
typedef struct {
    const backend *backend;
    graph          g;
    size_t         tokens, width;
    float         *table; /* [50, width] */
    int32_t        ids[MOST_TOKENS];
    int32_t        rows[MOST_TOKENS];
    uint32_t       last_seen[MOST_TOKENS]; /* used if `blocks` */
    bool           blocks;
    size_t         first_span; /* tokens of a first span; the rest is a second one. 0: all are one */
    const float   *given;      /* rows that ids below 0 stand for */
    uint32_t       sets;       /* of adapters, which tokens use by turns; 0: none */
    tensor        *x;
    kv_layer       kv;
    gpu_kv_layer   gpu_kv;
    uint64_t       start; /* the first token's index */
    uint32_t       window, ring_slots;
    token_record   records[MOST_TOKENS];
    float         *result; /* of the last run */
} op_case;

static tensor *weight(op_case *c, const char *name, quant_type type, uint64_t n0, uint64_t n1, uint64_t n2,
                      const void *data) {
    return graph_weight(&c->g, name, type, (uint64_t[]){ n0, n1, n2 }, data);
}

static op_case case_begin(const backend *on, size_t tokens, size_t width) {
    op_case c = { .backend = on, .tokens = tokens, .width = width, .table = random_units(50 * width) };
    for (size_t t = 0; t < tokens; t++) {
        c.ids[t] = (int32_t)((t * 7 + 3) % 50);
        c.rows[t] = (int32_t)t;
    }
    c.x = graph_embed(&c.g, weight(&c, "table", TYPE_F32, width, 50, 1, c.table), 1);
    return c;
}

static const float *case_input(const op_case *c, size_t t) { return c->table + (size_t)c->ids[t] * c->width; }

static run_inputs case_inputs(op_case *c, size_t outputs) {
    const record_sequence sequence = { .window = c->window, .ring_slots = c->ring_slots };
    records_of_text(c->records, 0, &sequence, c->ids, (size_t)c->start, c->tokens);
    for (size_t t = 0; t < c->tokens && c->blocks; t++)
        c->records[t].full_last = c->records[t].sliding_last = (uint32_t)c->start + c->last_seen[t];
    for (size_t t = 0; t < c->tokens && c->first_span; t++) {
        const bool second = t >= c->first_span;
        c->records[t].sequence = second;
        c->records[t].span_first = second ? (uint32_t)c->first_span : 0;
        c->records[t].span_count = (uint32_t)(second ? c->tokens - c->first_span : c->first_span);
    }
    for (size_t t = 0; t < c->tokens && c->sets; t++) c->records[t].adapter = (uint32_t)(t / 3 + 2) % c->sets;
    return (run_inputs){
        .records = c->records, .tokens = c->tokens, .output_rows = c->rows, .outputs = outputs, .given = c->given
    };
}

/* Plans may be larger than a run: these are, by a few tokens. */
static void case_run_on_cpu(op_case *c, size_t outputs, size_t bytes) {
    error            e = { 0 };
    cpu_plan        *plan = NULL;
    const cpu_inputs in = { .run = case_inputs(c, outputs), .kv = &c->kv };
    CHECK_MESSAGE(!cpu_plan_new(&c->backend->cpu, &c->g, c->tokens + 3, outputs + 1, &plan, &e), "%s", e.why);
    if (!plan) return;
    while (cpu_plan_step(plan, &in, 0) == GM_AGAIN) {} /* returns after every region */
    memcpy(c->result, cpu_plan_result(plan), bytes);
    cpu_plan_free(plan);
}

static size_t shape_class(const op_case *c) {
    size_t n = 1;
    while (n < c->tokens) n *= 4;
    return n;
}

static void case_run_on_gpu(op_case *c, size_t outputs, size_t bytes) {
    error            e = { 0 };
    gpu_plan        *plan = NULL;
    gpu_backend     *b = c->backend->gpu;
    gm_status        status;
    const run_inputs in = case_inputs(c, outputs);
    gpu_backend_clear(b);
    while ((status = gpu_backend_upload(b, &c->g, &e)) == GM_AGAIN) gpu_host_wait(b->host, 100);
    CHECK_MESSAGE(!status, "upload: %s", e.why);
    if (status || gpu_plan_new(b, &c->g, shape_class(c), outputs + 1, &c->gpu_kv, &plan, &e)) {
        CHECK_MESSAGE(false, "%s", e.why);
        return;
    }
    const uint32_t ticket = gpu_ticket_new(b->host);
    const void    *data = NULL;
    uint64_t       arrived = 0;
    while (gpu_plan_submit(plan, &in, ticket, &e) == GM_AGAIN) gpu_host_wait(b->host, 100);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    while (!e.status && !(data = gpu_ticket_data(b->host, ticket, &arrived)) && !gpu_host_problem(b->host, &e))
        gpu_host_wait(b->host, 100);
    CHECK_MESSAGE(!e.status && arrived >= bytes, "%s", e.why);
    if (data && arrived >= bytes) memcpy(c->result, data, bytes);
    gpu_ticket_done(b->host, ticket);
    gpu_plan_free(plan);
}

static const float *case_run(op_case *c, tensor *result, size_t outputs) {
    c->g.result = result;
    CHECK_MESSAGE(!c->g.problem.status, "%s", c->g.problem.why);
    if (c->g.problem.status) return NULL;
    const size_t entries = result->axis == AXIS_TOKENS ? c->tokens : result->axis == AXIS_OUTPUTS ? outputs : 1;
    const size_t bytes = entries * result->token_stride * sizeof(float);
    free(c->result);
    c->result = calloc(1, bytes + 1);
    (c->backend->gpu ? case_run_on_gpu : case_run_on_cpu)(c, outputs, bytes);
    return c->result;
}

static void end(op_case *c) {
    graph_free(&c->g);
    free(c->table);
    free(c->result);
}

/* ---- a plan that runs several times ---- */

typedef struct {
    op_case  *c;
    cpu_plan *cpu; /* one of the two */
    gpu_plan *gpu;
} open_plan;

static open_plan plan_open(op_case *c) {
    error        e = { 0 };
    gpu_backend *b = c->backend->gpu;
    open_plan    p = { .c = c };
    CHECK_MESSAGE(!c->g.problem.status, "%s", c->g.problem.why);
    if (!b) cpu_plan_new(&c->backend->cpu, &c->g, c->tokens + 3, c->tokens, &p.cpu, &e);
    else {
        gpu_backend_clear(b);
        while (gpu_backend_upload(b, &c->g, &e) == GM_AGAIN) gpu_host_wait(b->host, 100);
        if (!e.status) gpu_plan_new(b, &c->g, shape_class(c), c->tokens, &c->gpu_kv, &p.gpu, &e);
    }
    CHECK_MESSAGE(!e.status, "%s", e.why);
    return p;
}

static void plan_close(open_plan *p) {
    cpu_plan_free(p->cpu);
    gpu_plan_free(p->gpu);
}

static void plan_write(open_plan *p, const tensor *leaf, const float *data, size_t entries) {
    error e = { 0 };
    if (p->cpu) memcpy(cpu_plan_leaf(p->cpu, leaf), data, entries * leaf->token_stride * sizeof *data);
    else if (p->gpu) CHECK_MESSAGE(!gpu_plan_write_leaf(p->gpu, leaf, 0, data, entries, &e), "%s", e.why);
}

/* Runs all tokens. results[i] gets bytes[i] of the i-th result. */
static void plan_run(open_plan *p, size_t count, float *const *results, const size_t *bytes) {
    error            e = { 0 };
    const run_inputs in = case_inputs(p->c, p->c->tokens);
    uint32_t         tickets[GRAPH_RESULTS];
    gpu_host        *h = p->gpu ? p->c->backend->gpu->host : NULL;
    if (p->cpu) {
        const cpu_inputs inputs = { .run = in, .kv = &p->c->kv };
        while (cpu_plan_step(p->cpu, &inputs, 0) == GM_AGAIN) {}
        for (size_t i = 0; i < count; i++) memcpy(results[i], cpu_plan_results(p->cpu, i), bytes[i]);
    }
    for (size_t i = 0; i < count && h; i++) tickets[i] = gpu_ticket_new(h);
    while (p->gpu && gpu_plan_submit_results(p->gpu, &in, tickets, count, &e) == GM_AGAIN) gpu_host_wait(h, 100);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    for (size_t i = 0; i < count && h; i++) {
        uint64_t    arrived = 0;
        const void *data = NULL;
        while (!e.status && !(data = gpu_ticket_data(h, tickets[i], &arrived)) && !gpu_host_problem(h, &e))
            gpu_host_wait(h, 100);
        CHECK_MESSAGE(data && arrived >= bytes[i], "result %zu: %s", i, e.why);
        if (data && arrived >= bytes[i]) memcpy(results[i], data, bytes[i]);
        gpu_ticket_done(h, tickets[i]);
    }
}

/* Relative error over all values. */
static void case_expect(const float *got, const double *want, size_t n, double tolerance) {
    double difference = 0, size = 1e-30;
    for (size_t i = 0; got && i < n; i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    CHECK_MESSAGE(got && sqrt(difference / size) <= tolerance, "relative error %g, at most %g allowed",
                  sqrt(difference / size), tolerance);
}

static double *doubles(size_t n) { return calloc(n, sizeof(double)); }

static double op_gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x))); }

static void test_norm(const backend *b, size_t tokens, size_t n, size_t rows, bool weighted) {
    CASE("%s: rms_norm %zu × [%zu, %zu]%s", b->name, tokens, n, rows, weighted ? " weighted" : "");
    op_case c = case_begin(b, tokens, n * rows);
    float  *w = random_units(n);
    double *want = doubles(tokens * n * rows);
    tensor *y = graph_rms_norm(&c.g, graph_reshape(&c.g, c.x, n, rows),
                               weighted ? weight(&c, "w", TYPE_F32, n, 1, 1, w) : NULL, 1e-6f);
    for (size_t r = 0; r < tokens * rows; r++) {
        const float *x = case_input(&c, r / rows) + r % rows * n;
        double       sum = 0;
        for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
        for (size_t i = 0; i < n; i++) want[r * n + i] = x[i] / sqrt(sum / (double)n + 1e-6) * (weighted ? w[i] : 1);
    }
    case_expect(case_run(&c, y, 0), want, tokens * n * rows, 1e-6);
    free(w);
    free(want);
    end(&c);
}

/* The mean is far from 0 and the variance small, as in pictures. */
static void test_layer_norm(const backend *b, size_t tokens, size_t n, size_t rows, bool biased) {
    CASE("%s: layer_norm %zu × [%zu, %zu]%s", b->name, tokens, n, rows, biased ? " with a bias" : "");
    op_case c = case_begin(b, tokens, n * rows);
    float  *w = random_units(n), *bias = random_units(n);
    double *want = doubles(tokens * n * rows);
    for (size_t i = 0; i < 50 * c.width; i++) c.table[i] = 3 + c.table[i] / 4;
    tensor *y = graph_layer_norm(&c.g, graph_reshape(&c.g, c.x, n, rows), weight(&c, "w", TYPE_F32, n, 1, 1, w),
                                 biased ? weight(&c, "b", TYPE_F32, n, 1, 1, bias) : NULL, 1e-3f);
    for (size_t r = 0; r < tokens * rows; r++) {
        const float *x = case_input(&c, r / rows) + r % rows * n;
        double       mean = 0, squares = 0;
        for (size_t i = 0; i < n; i++) mean += x[i] / (double)n;
        for (size_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
        for (size_t i = 0; i < n; i++)
            want[r * n + i] = (x[i] - mean) / sqrt(squares / (double)n + 1e-3) * w[i] + (biased ? bias[i] : 0);
    }
    case_expect(case_run(&c, y, 0), want, tokens * n * rows, 5e-6);
    free(w);
    free(bias);
    free(want);
    end(&c);
}

/* Random blocks of a type whose scales are sane: f32 values made to f16, or bytes with a small f16 scale put in. */
static uint8_t *random_weights(quant_type type, size_t count) {
    const quant_format *f = quant_format_of(type);
    const size_t        blocks = count / f->block;
    uint8_t            *data = malloc(blocks * f->bytes);
    static const struct {
        quant_type type;
        int        scales[2]; /* byte offsets of f16 scales, -1: none */
    } places[] = { { TYPE_Q4_0, { 0, -1 } },   { TYPE_Q4_1, { 0, 2 } },    { TYPE_Q5_0, { 0, -1 } },
                   { TYPE_Q5_1, { 0, 2 } },    { TYPE_Q8_0, { 0, -1 } },   { TYPE_Q2_K, { 80, 82 } },
                   { TYPE_Q3_K, { 108, -1 } }, { TYPE_Q4_K, { 0, 2 } },    { TYPE_Q5_K, { 0, 2 } },
                   { TYPE_Q6_K, { 208, -1 } }, { TYPE_IQ4_NL, { 0, -1 } }, { TYPE_IQ4_XS, { 0, -1 } } };
    if (type == TYPE_F32) {
        for (size_t i = 0; i < count; i++) ((float *)data)[i] = random_unit();
        return data;
    }
    for (size_t i = 0; i < blocks * f->bytes; i++) data[i] = (uint8_t)(int)(random_unit() * 127);
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *block = data + i * f->bytes;
        if (type == TYPE_MXFP4) block[0] = (uint8_t)(120 + i % 5);
        if (type == TYPE_F16 || type == TYPE_BF16)
            block[1] = (uint8_t)((block[1] & 0x83) | (type == TYPE_F16 ? 0x30 : 0x3c));
        for (size_t j = 0; j < COUNT_OF(places); j++) {
            for (int k = 0; k < 2 && places[j].type == type; k++) {
                if (places[j].scales[k] >= 0)
                    block[places[j].scales[k] + 1] = (uint8_t)(0x20 | (block[places[j].scales[k] + 1] & 3));
            }
        }
    }
    return data;
}

static float *dequantised(quant_type type, const void *data, size_t count) {
    float *values = malloc(count * sizeof *values);
    quant_format_of(type)->dequantise(values, data, count / quant_format_of(type)->block);
    return values;
}

/* On a GPU with subgroup matrices activations are f16 where weights are. */
static bool halves(const backend *b, quant_type type) {
    return b->gpu && gpu_host_info(b->gpu->host)->subgroup_matrix && type != TYPE_F32;
}

static void test_matmul(const backend *b, quant_type type, size_t tokens, size_t k, size_t m) {
    CASE("%s: matmul %s %zu × [%zu → %zu]%s", b->name, quant_format_of(type)->name, tokens, k, m,
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
    CASE("%s: clipped linears %s %zu × [%zu → %zu]%s", b->name, quant_format_of(type)->name, tokens, k, m,
         b->precise ? " precise" : "");
    op_case  c = case_begin(b, tokens, k);
    uint8_t *data[3] = { random_weights(type, k * m), random_weights(type, k * m), random_weights(type, m * 40) };
    float   *w[3] = { dequantised(type, data[0], k * m), dequantised(type, data[1], k * m),
                      dequantised(type, data[2], m * 40) };
    double  *inner = doubles(m), *want = doubles(tokens * 40);
    tensor  *x = graph_clamp(&c.g, c.x, -0.5f, 0.25f);
    tensor  *gate = graph_clamp(&c.g, graph_matmul(&c.g, weight(&c, "w0", type, k, m, 1, data[0]), x), -0.75f, 1.5f);
    tensor  *up = graph_clamp(&c.g, graph_matmul(&c.g, weight(&c, "w1", type, k, m, 1, data[1]), x), -1.25f, 0.5f);
    tensor  *y = graph_clamp(&c.g, graph_geglu(&c.g, gate, up), -0.25f, 0.5f);
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

static void test_elementwise(const backend *b, size_t tokens, size_t n) {
    CASE("%s: add, scale, geglu, softcap, slices %zu × %zu", b->name, tokens, n);
    op_case c = case_begin(b, tokens, 2 * n);
    double *want = doubles(tokens * n);
    tensor *left = graph_slice(&c.g, c.x, 0, n, 1), *right = graph_slice(&c.g, c.x, n, n, 1);
    tensor *y = graph_softcap(&c.g, graph_scale(&c.g, graph_add(&c.g, graph_geglu(&c.g, left, right), right), 3), 2.5f);
    for (size_t i = 0; i < tokens * n; i++) {
        const double l = case_input(&c, i / n)[i % n], r = case_input(&c, i / n)[n + i % n];
        want[i] = 2.5 * tanh((op_gelu(l) * r + r) * 3 / 2.5);
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 2e-6);
    free(want);
    end(&c);
}

static void test_gate(const backend *b, size_t tokens, size_t n) {
    CASE("%s: gate %zu × %zu", b->name, tokens, n);
    op_case c = case_begin(b, tokens, 2 * n);
    double *want = doubles(tokens * n);
    for (size_t i = 0; i < 50 * c.width; i++) c.table[i] *= 8;
    tensor *left = graph_slice(&c.g, c.x, 0, n, 1), *right = graph_slice(&c.g, c.x, n, n, 1);
    tensor *gated = graph_gate(&c.g, left, right), *y = graph_add(&c.g, gated, graph_gate(&c.g, right, right));
    for (size_t i = 0; i < tokens * n; i++) {
        const double l = case_input(&c, i / n)[i % n], r = case_input(&c, i / n)[n + i % n];
        want[i] = (l + r) / (1 + exp(-r));
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 2e-6);
    free(want);
    end(&c);
}

/* Runs of several spans: the first has a third of the tokens. */
static void case_spans(op_case *c) { c->first_span = c->tokens / 3; }

static size_t span_start(const op_case *c, size_t t) { return t < c->first_span ? 0 : c->first_span; }

static void test_conv_grid(const backend *b, size_t tokens, size_t frequencies, size_t channels, size_t out,
                           size_t windows) {
    CASE("%s: conv_grid %zu × [%zu · %zu → %zu, %zu]", b->name, tokens, channels, frequencies, out, windows);
    const size_t row = channels * frequencies, half = (frequencies + 1) / 2, taps = 9 * channels;
    op_case      c = case_begin(b, tokens, row * 3 * windows);
    float       *w = random_units(taps * out);
    double      *want = doubles(tokens * windows * half * out);
    tensor      *y = graph_conv_grid(&c.g, graph_reshape(&c.g, c.x, row, 3 * windows),
                                     weight(&c, "w", TYPE_F32, taps * out, 1, 1, w), (uint32_t)channels);
    for (size_t i = 0; i < tokens * windows * half * out; i++) {
        const size_t o = i % out, f = i / out % half, window = i / out / half % windows, t = i / out / half / windows;
        for (size_t tap = 0; tap < taps; tap++) {
            const size_t channel = tap % channels, column = 2 * f + tap / channels % 3, time = tap / channels / 3;
            if (column < 1 || column > frequencies) continue;
            want[i] += (double)w[tap * out + o] *
                       case_input(&c, t)[(3 * window + time) * row + (column - 1) * channels + channel];
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * windows * half * out, 2e-6);
    free(w);
    free(want);
    end(&c);
}

static void test_conv_tokens(const backend *b, size_t tokens, size_t n, size_t taps) {
    CASE("%s: conv_tokens %zu × %zu, %zu taps", b->name, tokens, n, taps);
    op_case c = case_begin(b, tokens, n);
    float  *w = random_units(taps * n);
    double *want = doubles(tokens * n);
    case_spans(&c);
    tensor *y = graph_conv_tokens(&c.g, c.x, weight(&c, "w", TYPE_F32, taps * n, 1, 1, w), (uint32_t)taps);
    for (size_t i = 0; i < tokens * n; i++) {
        const size_t t = i / n;
        for (size_t back = 0; back < taps && span_start(&c, t) + back <= t; back++)
            want[i] += (double)w[(taps - 1 - back) * n + i % n] * case_input(&c, t - back)[i % n];
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 2e-6);
    free(w);
    free(want);
    end(&c);
}

/* Queries are 2·x, keys 3·x and values x of three parts of the input. */
static void test_local_attention(const backend *b, size_t tokens, size_t head, size_t heads, size_t reach, double cap) {
    CASE("%s: local_attention %zu × [%zu, %zu], reach %zu", b->name, tokens, head, heads, reach);
    const size_t n = head * heads;
    op_case      c = case_begin(b, tokens, 3 * n);
    float       *r = random_units(reach * n);
    double      *want = doubles(tokens * n), score[LOCAL_ATTENTION_MOST];
    tensor      *parts[3];
    case_spans(&c);
    for (size_t i = 0; i < 3; i++)
        parts[i] = graph_reshape(
            &c.g, graph_scale(&c.g, graph_slice(&c.g, c.x, i * n, n, 1), (float)(i == 2 ? 1 : 2 + i)), head, heads);
    tensor *y = graph_local_attention(&c.g, parts[0], parts[1], parts[2], weight(&c, "r", TYPE_F32, reach * n, 1, 1, r),
                                      (uint32_t)reach, (float)cap);
    for (size_t row = 0; row < tokens * heads; row++) {
        const size_t t = row / heads, h = row % heads * head;
        size_t       seen = 0;
        double       sum = 0;
        for (; seen < reach && span_start(&c, t) + seen <= t; seen++) {
            double dot = 0;
            for (size_t i = h; i < h + head; i++)
                dot += 2.0 * case_input(&c, t)[i] * (3.0 * case_input(&c, t - seen)[n + i] + r[seen * n + i]);
            score[seen] = exp(cap * tanh(dot / cap));
            sum += score[seen];
        }
        for (size_t back = 0; back < seen; back++)
            for (size_t i = 0; i < head; i++)
                want[row * head + i] += score[back] / sum * case_input(&c, t - back)[2 * n + h + i];
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 5e-6);
    free(r);
    free(want);
    end(&c);
}

static void test_op_vectors(const backend *b, size_t tokens, size_t n, size_t rows) {
    CASE("%s: clamp, and vectors added and multiplied %zu × [%zu, %zu]", b->name, tokens, n, rows);
    op_case c = case_begin(b, tokens, 2 * n * rows);
    float  *v = random_units(2 * n);
    double *want = doubles(tokens * n * rows);
    tensor *x = graph_reshape(&c.g, c.x, 2 * n, rows), *bias = weight(&c, "b", TYPE_F32, n, 1, 1, v),
           *gain = weight(&c, "g", TYPE_F32, n, 1, 1, v + n);
    tensor *left = graph_slice(&c.g, x, 0, n, rows), *right = graph_slice(&c.g, x, n, n, rows);
    tensor *y = graph_mul(&c.g, graph_add(&c.g, graph_mul(&c.g, left, right), bias), gain);
    y = graph_add(&c.g, graph_mul(&c.g, graph_clamp(&c.g, y, -0.125f, 0.25f), left), graph_clamp(&c.g, right, 0, 1));
    for (size_t r = 0; r < tokens * rows; r++) {
        const float *row = case_input(&c, r / rows) + r % rows * 2 * n;
        for (size_t i = 0; i < n; i++) {
            const double sum = ((double)row[i] * row[n + i] + v[i]) * v[n + i];
            want[r * n + i] = (sum < -0.125 ? -0.125
                               : sum > 0.25 ? 0.25
                                            : sum) *
                                  row[i] +
                              (row[n + i] > 0 ? row[n + i] : 0);
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * n * rows, 2e-6);
    free(v);
    free(want);
    end(&c);
}

static void test_embed(const backend *b, quant_type type, size_t tokens, size_t n) {
    CASE("%s: embed %s %zu × %zu", b->name, quant_format_of(type)->name, tokens, n);
    op_case  c = case_begin(b, tokens, 8);
    uint8_t *data = random_weights(type, 50 * n);
    float   *w = dequantised(type, data, 50 * n);
    double  *want = doubles(tokens * n);
    tensor  *y = graph_embed(&c.g, weight(&c, "e", type, n, 50, 1, data), 1.5f);
    for (size_t i = 0; i < tokens * n; i++) want[i] = 1.5 * w[(size_t)c.ids[i / n] * n + i % n];
    case_expect(case_run(&c, y, 0), want, tokens * n, 1e-6);
    free(data);
    free(w);
    free(want);
    end(&c);
}

static void test_embed_position(const backend *b, size_t tokens, size_t n) {
    CASE("%s: embed by position %zu × %zu", b->name, tokens, n);
    op_case c = case_begin(b, tokens, n);
    float  *table = random_units(80 * n);
    double *want = doubles(tokens * n);
    c.start = 7;
    tensor *y = graph_add(&c.g, c.x, graph_embed_position(&c.g, weight(&c, "p", TYPE_F32, n, 80, 1, table), 2));
    for (size_t i = 0; i < tokens * n; i++)
        want[i] = case_input(&c, i / n)[i % n] + 2.0 * table[((size_t)c.start + i / n) * n + i % n];
    case_expect(case_run(&c, y, 0), want, tokens * n, 1e-6);
    free(table);
    free(want);
    end(&c);
}

/* Ids below 0: one table takes given rows in their place, the other its row 0. Given rows come in no order. */
static void test_given(const backend *b, quant_type type, size_t tokens, size_t n) {
    CASE("%s: embed %s %zu × %zu, some rows given", b->name, quant_format_of(type)->name, tokens, n);
    op_case  c = case_begin(b, tokens, 8);
    uint8_t *data = random_weights(type, 2 * 50 * n);
    float   *w = dequantised(type, data, 2 * 50 * n), *rows = random_units(tokens * n);
    double  *want = doubles(tokens * n);
    tensor  *first = weight(&c, "first", type, n, 50, 1, data),
           *second = weight(&c, "second", type, n, 50, 1, data + quant_row_bytes(quant_format_of(type), n) * 50);
    tensor *y = graph_add(&c.g, graph_embed(&c.g, second, 3), graph_embed_or_given(&c.g, first, 1.5f));
    for (size_t t = 0; t < tokens; t++) { /* the last token always, and of every four two that follow each other */
        if (t + 1 == tokens) c.ids[t] = -1;
        else if (t % 4 > 1) c.ids[t] = -1 - (int32_t)(tokens - 1 - t);
        else if (t % 8 > 3) c.ids[t] = -1 - (int32_t)t;
    }
    c.given = rows;
    for (size_t i = 0; i < tokens * n; i++) {
        const int32_t id = c.ids[i / n];
        const double  added = id < 0 ? rows[(size_t)(-1 - id) * n + i % n] : 1.5 * w[(size_t)id * n + i % n];
        want[i] = added + 3.0 * w[(50 + (size_t)(id < 0 ? 0 : id)) * n + i % n];
    }
    case_expect(case_run(&c, y, 0), want, tokens * n, 1e-6);
    free(data);
    free(w);
    free(rows);
    free(want);
    end(&c);
}

static void test_rope(const backend *b, size_t tokens, size_t head, size_t heads) {
    CASE("%s: rope %zu × %zu heads of %zu", b->name, tokens, heads, head);
    op_case c = case_begin(b, tokens, head * heads);
    float  *frequencies = malloc(head / 2 * sizeof *frequencies);
    double *want = doubles(tokens * head * heads);
    for (size_t j = 0; j < head / 2; j++) frequencies[j] = (float)pow(10000, -2.0 * (double)j / (double)head);
    c.start = 1000;
    tensor *y = graph_rope(&c.g, graph_reshape(&c.g, c.x, head, heads),
                           graph_rope_table(&c.g, weight(&c, "f", TYPE_F32, head / 2, 1, 1, frequencies), 1));
    for (size_t r = 0; r < tokens * heads; r++) {
        const float *x = case_input(&c, r / heads) + r % heads * head;
        for (size_t j = 0; j < head / 2; j++) {
            const double angle = (float)(c.start + r / heads) * frequencies[j];
            want[r * head + j] = x[j] * cos(angle) - x[j + head / 2] * sin(angle);
            want[r * head + j + head / 2] = x[j + head / 2] * cos(angle) + x[j] * sin(angle);
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * head * heads, 2e-6);
    free(frequencies);
    free(want);
    end(&c);
}

/* As patches of a picture: the id is the column and the position the row. Of each head the first half is turned by the column. */
static void test_rope_of_patches(const backend *b, size_t tokens, size_t head, size_t heads) {
    CASE("%s: rope along two axes %zu × %zu heads of %zu", b->name, tokens, heads, head);
    op_case      c = case_begin(b, tokens, head * heads);
    const size_t half = head / 2, pairs = head / 4;
    float       *frequencies = malloc(pairs * sizeof *frequencies);
    double      *want = doubles(tokens * head * heads);
    for (size_t j = 0; j < pairs; j++) frequencies[j] = (float)pow(100, -2.0 * (double)j / (double)half);
    c.start = 20;
    tensor *table = graph_rope_table(&c.g, weight(&c, "f", TYPE_F32, pairs, 1, 1, frequencies), 2);
    tensor *y = graph_rope(&c.g, graph_reshape(&c.g, c.x, half, 2 * heads), table);
    for (size_t r = 0; r < tokens * heads * 2; r++) {
        const size_t t = r / heads / 2;
        const float *x = case_input(&c, t) + r % (2 * heads) * half;
        for (size_t j = 0; j < pairs; j++) {
            const double angle = (r % 2 ? (double)(c.start + t) : (double)c.ids[t]) * frequencies[j];
            want[r * half + j] = x[j] * cos(angle) - x[j + pairs] * sin(angle);
            want[r * half + j + pairs] = x[j + pairs] * cos(angle) + x[j] * sin(angle);
        }
    }
    case_expect(case_run(&c, y, 0), want, tokens * head * heads, 2e-6);
    free(frequencies);
    free(want);
    end(&c);
}

/* Tokens [begin, begin + count) of a batch see each other. */
typedef struct {
    size_t begin, count;
} block;

/* PLAIN; with the sums' logarithms as a second result; with scores so different that the maximum rises from tile to tile. */
typedef enum { PLAIN, LOGARITHMS, STEEP } attention_kind;

/* Runs an attention with its two results. */
static void attention_expect_both(op_case *c, tensor *y, tensor *logs, const double *want, const double *want_logs,
                                  double tolerance) {
    const size_t n = c->tokens * y->token_stride, heads = c->tokens * logs->token_stride;
    float       *out = random_units(n), *sums = random_units(heads);
    c->g.result = y;
    c->g.further[0] = logs;
    open_plan p = plan_open(c);
    plan_run(&p, 2, (float *[]){ out, sums }, (size_t[]){ n * sizeof *out, heads * sizeof *sums });
    case_expect(out, want, n, tolerance);
    case_expect(sums, want_logs, heads, tolerance);
    plan_close(&p);
    free(out);
    free(sums);
}

/* Keys and values are stored batch by batch, so that the ring closes on itself; each batch's queries are checked. There are no
 * blocks behind the first that is empty. */
static void test_attention_with(const backend *b, quant_type type, size_t tokens, size_t batches, size_t head,
                                size_t heads, size_t kv_heads, size_t window, const block blocks[2],
                                attention_kind kind) {
    char with[80] = "";
    for (size_t i = 0; i < 2 && blocks[i].count; i++)
        snprintf(with + strlen(with), sizeof with - strlen(with), ", block of %zu at %zu", blocks[i].count,
                 blocks[i].begin);
    CASE("%s: kv_store and attention %s %zu · %zu × %zu/%zu heads of %zu, window %zu%.60s%.20s", b->name,
         quant_format_of(type)->name, batches, tokens, heads, kv_heads, head, window, with,
         kind == LOGARITHMS ? ", logarithms"
         : kind == STEEP    ? ", steep"
                            : "");
    const float  steep = kind == STEEP ? 8 : 1;
    const size_t rows = kv_heads * head, slots = window ? window + tokens : tokens * batches;
    op_case      c = case_begin(b, tokens, (heads + 2 * kv_heads) * head);
    const size_t bytes = (size_t)quant_row_bytes(quant_format_of(type), rows) * slots;
    c.kv = (kv_layer){ .k = malloc(bytes), .v = malloc(bytes), .type = type, .kv_heads = kv_heads, .head = head };
    c.window = (uint32_t)window;
    c.ring_slots = (uint32_t)slots;
    if (b->gpu) {
        error          e = { 0 };
        const gpu_kv   shape = { .type = type, .kv_heads = (uint32_t)kv_heads, .head = (uint32_t)head };
        const uint64_t size = round_up(gpu_kv_bytes(&shape, slots), 16);
        c.gpu_kv = (gpu_kv_layer){ gpu_buffer_new(b->gpu->host, size, &e),
                                   gpu_buffer_new(b->gpu->host, size, &e),
                                   type,
                                   shape.kv_heads,
                                   shape.head,
                                   size };
        CHECK_MESSAGE(!e.status, "%s", e.why);
    }
    tensor *q = graph_scale(&c.g, graph_slice(&c.g, c.x, 0, heads * head, 1), steep);
    tensor *k = graph_scale(&c.g, graph_slice(&c.g, c.x, heads * head, rows, 1), 1),
           *v = graph_scale(&c.g, graph_slice(&c.g, c.x, heads * head + rows, rows, 1), 1);
    tensor *cache = graph_kv_store(&c.g, graph_reshape(&c.g, k, head, kv_heads), graph_reshape(&c.g, v, head, kv_heads),
                                   0, (uint32_t)window);
    q = graph_reshape(&c.g, q, head, heads);
    c.blocks = blocks[0].count > 0;
    for (size_t t = 0; t < tokens; t++) {
        c.last_seen[t] = (uint32_t)t;
        for (size_t i = 0; i < 2; i++) {
            if (t >= blocks[i].begin && t < blocks[i].begin + blocks[i].count)
                c.last_seen[t] = (uint32_t)(blocks[i].begin + blocks[i].count - 1);
        }
    }
    tensor *logs = NULL,
           *y = kind == LOGARITHMS ? graph_attention_logs(&c.g, q, cache, &logs) : graph_attention(&c.g, q, cache);
    double *want = doubles(tokens * heads * head), *weights = doubles(tokens * batches),
           *want_logs = doubles(tokens * heads);
    int32_t seen[5 * MOST_TOKENS];
    for (size_t batch = 0; batch < batches; batch++) {
        for (size_t t = 0; t < tokens; t++) seen[batch * tokens + t] = c.ids[t] = (int32_t)((t * 7 + batch * 13) % 50);
        c.start = batch * tokens;
        for (size_t r = 0; r < tokens * heads; r++) {
            const size_t p = c.start + r / heads, h = r % heads, g = h / (heads / kv_heads),
                         first = window && p + 1 > window ? p + 1 - window : 0, last = c.start + c.last_seen[r / heads];
            const float *query = case_input(&c, r / heads) + h * head;
            double       most = -1e30, sum = 0;
            for (size_t j = first; j <= last; j++) {
                const float *key = c.table + (size_t)seen[j] * c.width + heads * head + g * head;
                weights[j] = 0;
                for (size_t i = 0; i < head; i++) weights[j] += (double)steep * query[i] * key[i];
                if (weights[j] > most) most = weights[j];
            }
            for (size_t i = 0; i < head; i++) want[r * head + i] = 0;
            for (size_t j = first; j <= last; j++) sum += exp(weights[j] - most);
            for (size_t j = first; j <= last; j++) {
                const float *value = c.table + (size_t)seen[j] * c.width + heads * head + rows + g * head;
                for (size_t i = 0; i < head; i++) want[r * head + i] += exp(weights[j] - most) / sum * value[i];
            }
            want_logs[r] = most + log(sum);
        }
        const double tolerance = (type == TYPE_F32 ? 5e-6 : type == TYPE_F16 ? 5e-3 : 6e-2) * (kind == STEEP ? 4 : 1);
        if (!logs) case_expect(case_run(&c, y, 0), want, tokens * heads * head, tolerance);
        else attention_expect_both(&c, y, logs, want, want_logs, tolerance);
    }
    free(want_logs);
    free(c.kv.k);
    free(c.kv.v);
    if (b->gpu) {
        gpu_buffer_free(b->gpu->host, c.gpu_kv.k);
        gpu_buffer_free(b->gpu->host, c.gpu_kv.v);
    }
    free(want);
    free(weights);
    end(&c);
}

static void test_op_attention(const backend *b, quant_type type, size_t tokens, size_t batches, size_t head,
                              size_t heads, size_t kv_heads, size_t window) {
    test_attention_with(b, type, tokens, batches, head, heads, kv_heads, window, (block[2]){ { 0, 0 } }, PLAIN);
}

/* The sums' logarithms, from one dispatch or two, for few tokens and many. */
static void test_attention_logs(const backend *b, size_t tokens, size_t batches, size_t head, size_t heads,
                                size_t kv_heads, size_t window) {
    test_attention_with(b, TYPE_F32, tokens, batches, head, heads, kv_heads, window, (block[2]){ { 0, 0 } },
                        LOGARITHMS);
}

/* A GPU takes 16 queries at a time, tokens × heads of a K/V head, and 32 keys; a CPU up to 64 queries, and 32 keys too. */
static void test_image_blocks(const backend *b) {
    static const struct {
        size_t tokens, batches, head, heads, kv_heads, window;
        block  blocks[2];
        bool   all_types;
    } cases[] = {
        { 33, 3, 32, 3, 1, 16, { { 0, 7 } }, false },   /* at the start: the window reaches into the batch before */
        { 33, 3, 32, 3, 1, 16, { { 26, 7 } }, false },  /* at the end */
        { 33, 2, 32, 3, 1, 16, { { 0, 33 } }, true },   /* all of it, longer than the window */
        { 33, 3, 64, 4, 2, 16, { { 2, 30 } }, true },   /* so that what a token sees begins inside the block */
        { 64, 2, 32, 2, 2, 24, { { 16, 32 } }, false }, /* from edge to edge of what is taken at once */
        { 64, 2, 32, 2, 2, 24, { { 15, 34 } }, false }, /* across the edges */
        { 70, 2, 16, 4, 1, 40, { { 1, 68 } }, false },  /* over several steps of 32 keys */
        { 33, 3, 32, 2, 1, 16, { { 5, 6 }, { 11, 9 } }, true }, /* side by side */
        { 64, 2, 8, 2, 1, 1, { { 7, 9 }, { 40, 13 } }, false }, /* the smallest window: nothing before itself */
        { 33, 3, 32, 3, 1, 0, { { 4, 21 } }, false },           /* no window */
        { 5, 4, 32, 3, 1, 16, { { 1, 3 } }, false },            /* few tokens */
        { 2, 6, 32, 3, 1, 16, { { 0, 2 } }, false },
        { 1, 3, 32, 3, 1, 16, { { 0, 1 } }, false },
        { 17, 3, 6, 5, 5, 9, { { 3, 11 } }, false }, /* odd sizes */
        { 33, 2, 256, 8, 1, 40, { { 9, 20 } }, false },
        { 20, 2, 512, 2, 1, 16, { { 3, 16 } }, false }, /* the largest heads */
        { 70, 1, 72, 3, 3, 0, { { 0, 70 } }, false },   /* as the patches of a picture, which all see each other */
        { 45, 1, 64, 2, 2, 0, { { 0, 45 } }, false },
        { 36, 1, 20, 3, 3, 0, { { 0, 36 } }, false },
    };
    static const quant_type types[] = { TYPE_F32, TYPE_F16, TYPE_Q8_0 };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t t = 0; t < (cases[i].all_types ? COUNT_OF(types) : 1); t++)
            test_attention_with(b, types[t], cases[i].tokens, cases[i].batches, cases[i].head, cases[i].heads,
                                cases[i].kv_heads, cases[i].window, cases[i].blocks, PLAIN);
    }
}

/* The whole mixture: route, experts, sum; against the formula. Lopsided: all tokens go to the first experts, none to the others. */
static void test_experts_with(const backend *b, quant_type type, size_t tokens, size_t k, size_t ff, size_t experts,
                              size_t used, bool lopsided) {
    CASE("%s: route and experts %s %zu × [%zu → %zu → %zu], %zu of %zu%s%s", b->name, quant_format_of(type)->name,
         tokens, k, ff, k, used, experts, b->precise ? " precise" : "", lopsided ? " lopsided" : "");
    op_case  c = case_begin(b, tokens, k);
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
    test_experts_with(b, type, tokens, k, ff, experts, used, false);
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
    CASE("%s: parts of joined weights, and sets of them, %s %zu × [%zu → %zu]", b->name, quant_format_of(type)->name,
         tokens, k, m);
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

/* Every head size with full layers, windows, blocks, and all tokens seeing each other, several hundred keys deep. */
static void test_deep(const backend *b) {
    static const struct {
        size_t head, heads, kv_heads;
    } shapes[] = { { 64, 12, 12 }, { 72, 16, 16 }, { 128, 8, 8 }, { 256, 8, 1 }, { 256, 16, 8 }, { 512, 8, 1 } };
    static const quant_type types[] = { TYPE_F16, TYPE_Q8_0 };
    for (size_t i = 0; i < 2 * COUNT_OF(shapes); i++) {
        const size_t     head = shapes[i / 2].head, heads = shapes[i / 2].heads, kv_heads = shapes[i / 2].kv_heads;
        const quant_type type = types[i % 2];
        if (head % 32 && type == TYPE_Q8_0) continue;
        test_attention_with(b, type, 256, 3, head, heads, kv_heads, 0, (block[2]){ { 0, 0 } }, PLAIN);
        test_attention_with(b, type, 256, 3, head, heads, kv_heads, 0, (block[2]){ { 0, 0 } }, STEEP);
        test_attention_with(b, type, 256, 3, head, heads, kv_heads, 200, (block[2]){ { 0, 0 } }, PLAIN);
        test_attention_with(b, type, 256, 2, head, heads, kv_heads, 200, (block[2]){ { 3, 70 }, { 90, 150 } }, PLAIN);
        test_attention_with(b, type, 250, 2, head, heads, kv_heads, 0, (block[2]){ { 0, 250 } }, PLAIN);
        test_attention_with(b, type, 13, 4, head, heads, kv_heads, 0, (block[2]){ { 0, 0 } }, PLAIN);
    }
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

static void test_backend(const backend *b) {
    static const size_t     tokens[] = { 1, 2, 5, 33, 64 };
    static const quant_type embeds[] = { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q8_0, TYPE_Q6_K, TYPE_Q4_K };
    static const quant_type kv[] = { TYPE_F32, TYPE_F16, TYPE_Q8_0 };
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        const size_t n = tokens[i];
        test_norm(b, n, 96, 1, true);
        test_norm(b, n, 33, 3, false);
        test_norm(b, n, 1, 1, true);
        test_layer_norm(b, n, 96, 1, true);
        test_layer_norm(b, n, 33, 3, false);
        test_op_vectors(b, n, 40, 3);
        test_op_vectors(b, n, 7, 1);
        test_elementwise(b, n, 1 + 16 * n);
        test_gate(b, n, 1 + 16 * n);
        test_conv_grid(b, n, 9, 1, 5, 3);
        test_conv_grid(b, n, 8, 12, 8, 1);
        test_conv_tokens(b, n, 40, 5);
        test_conv_tokens(b, n, 33, 3);
        test_local_attention(b, n, 16, 3, 12, 50);
        test_local_attention(b, n, 72, 2, 16, 2);
        test_rope(b, n, 32, 3);
        test_rope(b, n, 6, 1);
        test_rope_of_patches(b, n, 72, 3);
        test_rope_of_patches(b, n, 32, 2);
        test_embed_position(b, n, 36);
        for (size_t t = 0; t < COUNT_OF(embeds); t++) test_embed(b, embeds[t], n, 512);
        test_given(b, TYPE_F16, n, 64);
        for (uint32_t type = 0; type < TYPE_COUNT; type++) {
            const quant_format *f = quant_format_of(type);
            if (f && f->dequantise) test_matmul(b, (quant_type)type, n, 512, 37);
        }
        test_matmul(b, TYPE_F16, n, 33, 5);
        test_matmul(b, TYPE_Q4_0, n, 96, 65);
        for (size_t t = 0; t < COUNT_OF(kv); t++) {
            test_op_attention(b, kv[t], n, 5, 64, 4, 2, 0);
            test_op_attention(b, kv[t], n, 5, 32, 3, 1, 16);
        }
        test_op_attention(b, TYPE_F16, n, 5, 256, 8, 1, 40);
        test_experts(b, TYPE_F32, n, 40, 24, 8, 2);
        test_experts(b, TYPE_Q8_0, n, 64, 32, 16, 3);
        test_experts(b, TYPE_Q4_K, n, 256, 256, 4, 2);
    }
    test_lora(b, LORA_PLAIN, 1, 33, 35, 1, 1);
    test_lora(b, LORA_PLAIN, 2, 36, 68, 3, 2);
    test_lora(b, LORA_PLAIN, 5, 33, 35, 256, 3);
    test_lora(b, LORA_PLAIN, 33, 36, 68, 17, 2);
    test_lora(b, LORA_PLAIN, 64, 36, 35, 8, 1);
    test_lora(b, LORA_PLAIN, 1, 700, 1100, 16, 4);
    test_lora(b, LORA_PLAIN, 35, 700, 1100, 16, 4);
    test_lora(b, LORA_OUTPUTS, 5, 64, 129, 8, 3);
    test_lora(b, LORA_OUTPUTS, 33, 64, 129, 8, 3);
    test_lora(b, LORA_EMBEDDING, 33, 1, 52, 12, 3);
    test_lora(b, LORA_ROUTED, 1, 40, 24, 8, 3);
    test_lora(b, LORA_ROUTED, 33, 33, 7, 5, 1);
    test_experts_with(b, TYPE_Q8_0, 37, 32, 32, 9, 2, true); /* experts without tokens, and two with all */
    test_experts(b, TYPE_Q4_0, 67, 32, 32, 4, 2);            /* tiles of 32 pairs, of 64, and many experts */
    test_experts(b, TYPE_Q4_0, 97, 32, 32, 2, 1);
    test_experts(b, TYPE_F32, 33, 8, 4, 61, 5);
    test_matmul(b, TYPE_Q6_K, 7, 256,
                4101); /* a few columns: four rows to a thread, a whole block of columns, and two */
    test_matmul(b, TYPE_Q4_K, 16, 256, 37);
    test_matmul(b, TYPE_Q4_0, 29, 96, 65);
    test_matmul(b, TYPE_F16, 32, 33, 5);
    test_experts(b, TYPE_Q4_K, 11, 256, 256, 4, 2);
    test_matmul(b, TYPE_F16, 130, 160, 150); /* several tiles of rows and of columns */
    test_matmul(b, TYPE_BF16, 70, 96, 129);
    test_matmul(b, TYPE_F32, 65, 33, 130);
    test_clipped(b, TYPE_F16, 1, 64, 96); /* with separate clamps on the GPU */
    test_clipped(b, TYPE_F16, 2, 64, 96); /* by each kind of kernel, with k split and not */
    test_clipped(b, TYPE_F16, 5, 33, 48);
    test_clipped(b, TYPE_F16, 70, 512, 160);
    test_clipped(b, TYPE_BF16, 130, 96, 130);
    test_clipped(b, TYPE_Q8_0, 33, 512, 64);
    test_op_attention(b, TYPE_F16, 4, 40, 64, 4, 2, 0); /* so deep that the GPU shares out the keys */
    test_op_attention(b, TYPE_F16, 1, 90, 32, 2, 1, 72);
    test_op_attention(b, TYPE_F16, 3, 12, 32, 3, 1, 16); /* the window's edge lies between the tokens of a batch */
    test_op_attention(b, TYPE_F16, 1, 18, 512, 8, 1, 0); /* the largest heads */
    /* several tiles of 32 keys to a workgroup, with splits and without */
    test_op_attention(b, TYPE_F16, 4, 20, 8, 8, 8, 70);
    if (!b->gpu || b->precise) { /* the same with columns of 8 bits */
        /* A software GPU has no splits with 4 heads either: more of them only take longer. */
        const bool software = b->gpu && gpu_host_info(b->gpu->host)->software;
        test_op_attention(b, TYPE_F16, 4, 20, 8, software ? 4 : 64, software ? 4 : 64, 70);
        test_op_attention(b, TYPE_F32, 2, 20, 2, software ? 4 : 192, software ? 4 : 192, 0);
    }
    test_op_attention(b, TYPE_F16, 70, 2, 72, 2, 2, 0); /* heads of a picture's tower */
    test_op_attention(b, TYPE_F16, 70, 2, 128, 2, 1, 0);
    test_op_attention(b, TYPE_F16, 20, 4, 512, 2, 1, 40);
    test_attention_with(b, TYPE_F16, 32, 4, 64, 2, 1, 0, (block[2]){ { 0, 0 } }, STEEP);
    test_attention_logs(b, 1, 5, 32, 2, 1, 0);
    test_attention_logs(b, 33, 4, 64, 2, 1, 0);
    test_attention_logs(b, 64, 2, 6, 5, 5, 40);
    test_image_blocks(b);
    test_attention_with(b, TYPE_F16, 70, 1, 72, 3, 3, 0, (block[2]){ { 0, 70 } }, PLAIN);
    test_layer_norm(b, 2, 1601, 1, true);
    test_op_vectors(b, 2, 20000, 1);
    test_elementwise(b, 1, 40000); /* one long row is shared between threads */
    for (size_t n = 1; n <= 20; n += 19) {
        test_results(b, n, 64);
        test_leaves(b, n, 30 + 2 * n);
    }
    for (size_t n = 1; n <= 9 && b->gpu; n += n) { /* a kernel for one column, for a few, for many */
        test_weight_sets(b, TYPE_Q4_K, n, 256, 24);
        test_weight_sets(b, TYPE_F16, n, 96, 40);
    }
    test_select(b);
    test_select_means(b, 7, 9, 32, 1);
    test_select_means(b, 3, 4, 11, 3);
}

static void test_ops_on_cpu(void) {
    const cpu_kernels *const *tables;
    const size_t              count = cpu_kernels_available(&tables);
    for (size_t i = 0; i < count; i++) {
        for (int mode = 0; mode < 2; mode++) {
            error   e = { 0 };
            backend b = { .precise = mode };
            snprintf(b.name, sizeof b.name, "%s", tables[i]->name);
            TEST("%s opens", b.name);
            CHECK_MESSAGE(!cpu_backend_open(&b.cpu, tables[i]->name, mode ? 3 : 1, mode, &e), "%s", e.why);
            if (e.status) continue;
            test_backend(&b);
            cpu_backend_close(&b.cpu);
        }
    }
}

/* With 8-bit and with f32 columns. */
static void test_ops_with(gpu_backend *gpu, const char *without, bool deep) {
    for (int mode = 0; mode < 2; mode++) {
        backend b = { .precise = mode, .gpu = gpu };
        gpu->precise = mode;
        snprintf(b.name, sizeof b.name, "gpu%s%s", *without ? " without " : "", without);
        (deep ? test_deep : test_backend)(&b);
    }
}

/* One device for all: many kernels are the same in both modes, and without features. `disable` begins with a `+` if the features are to
 * be hidden only after everything has been tested with them. */
static void test_ops_on_gpu(const char *disable, bool deep) {
    error             e = { 0 };
    gpu_backend       gpu;
    const bool        both = *disable == '+';
    const gpu_options options = { .adapter = -1, .disable = both ? NULL : disable };
    TEST("the GPU opens");
    CHECK_MESSAGE(!gpu_backend_open(&gpu, &options, false, &e), "%s", e.why);
    if (e.status) return;
    test_ops_with(&gpu, both ? "" : disable, deep);
    if (both) {
        bool hidden[GPU_FEATURES];
        TEST("features are hidden");
        CHECK_MESSAGE(!gpu_features_read(disable + 1, hidden, &e), "%s", e.why);
        for (size_t i = 0; i < GPU_FEATURES; i++) {
            if (hidden[i]) *gpu_feature_field((gpu_info *)gpu_host_info(gpu.host), (gpu_feature)i) = false;
        }
        test_ops_with(&gpu, disable + 1, deep);
    }
    gpu_backend_close(&gpu);
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "cpu";
    if (argc > 3) only = argv[3];
    if (!strcmp(which, "gpu")) test_ops_on_gpu(argc > 2 ? argv[2] : "", argc > 4 && !strcmp(argv[4], "deep"));
    else {
        test_ops_on_cpu();
        test_op_shapes();
    }
    return test_end();
}
