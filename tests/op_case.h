/* For test_ops.c: a graph of one op or a few, its inputs and weights, how it runs on a CPU or a GPU, and how its result is compared. */

#ifndef GM_OP_CASE_H
#define GM_OP_CASE_H

#include "cpu/backend.h"
#include "gpu/backend.h"
#include "gpu/matmul.h"
#include "session/records.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_TOKENS = 256, MOST_WIDTH = 1600 };

static uint32_t    seed = 1;
static const char *only = "";

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
    bool         exact; /* the GPU must give the same bits as `cpu`, which has the scalar kernels */
} backend;

/* Begins a case, unless others are wanted; CASE_OF: one with products of weights of a type. */
#define CASE(...) CASE_OF(TYPE_F32, __VA_ARGS__)
#define CASE_OF(type, ...)                                                                                             \
    do {                                                                                                               \
        if (!mode_counts(b, type)) return;                                                                             \
        TEST(__VA_ARGS__);                                                                                             \
        if (!strstr(test_name, only)) {                                                                                \
            test_open = false;                                                                                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* Whether a mode has to run: with 8-bit columns, or with f32 columns (precise). Where a GPU takes no 8-bit columns, both run the same
 * kernels, and a software GPU takes its time; the f32 mode has the stricter tolerances. On a CPU the modes also differ in threads. */
static bool mode_counts(const backend *b, quant_type type) {
    const gpu_info *info = b->gpu ? gpu_host_info(b->gpu->host) : NULL;
    return !info || b->precise || info->subgroup_matrix || gpu_matvec_takes_q8(info, type);
}

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
    bool           packed;     /* spans are sequences of their own, from index 0 on */
    const float   *given;      /* rows that ids below 0 stand for */
    uint32_t       sets;       /* of adapters, which tokens use by turns; 0: none */
    tensor        *x;
    kv_layer       kv;
    gpu_kv_layer   gpu_kv;
    uint64_t       start;        /* the first token's index */
    uint64_t       most_binding; /* not 0: weights are laid out in tiles of this size */
    uint32_t       slots;        /* not 0: so many experts are on the GPU at once */
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

/* Records of sequences that lie one behind the other in the cache. */
static void case_pack(op_case *c) {
    const size_t counts[2] = { c->first_span ? c->first_span : c->tokens,
                               c->first_span ? c->tokens - c->first_span : 0 };
    for (uint32_t i = 0, at = 0; i < 2 && counts[i]; at += (uint32_t)counts[i++]) {
        const record_sequence sequence = {
            .sequence = i, .window = c->window, .own = at, .ring = at, .ring_slots = (uint32_t)counts[i]
        };
        records_of_text(c->records, at, &sequence, c->ids + at, 0, counts[i]);
    }
}

static run_inputs case_inputs(op_case *c, size_t outputs) {
    const record_sequence sequence = { .window = c->window, .ring_slots = c->ring_slots };
    records_of_text(c->records, 0, &sequence, c->ids, (size_t)c->start, c->tokens);
    for (size_t t = 0; t < c->tokens && c->blocks; t++)
        c->records[t].full_last = c->records[t].sliding_last = (uint32_t)c->start + c->last_seen[t];
    for (size_t t = 0; t < c->tokens && c->first_span && !c->packed; t++) {
        const bool second = t >= c->first_span;
        c->records[t].sequence = second;
        c->records[t].span_first = second ? (uint32_t)c->first_span : 0;
        c->records[t].span_count = (uint32_t)(second ? c->tokens - c->first_span : c->first_span);
    }
    if (c->packed) case_pack(c);
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

/* In tiles of `most_binding`, if it is set. */
static void case_lay_out_weights(op_case *c) {
    gpu_info      *info = (gpu_info *)gpu_host_info(c->backend->gpu->host);
    const uint64_t most = info->max_binding;
    error          e = { 0 };
    if (!c->most_binding) return;
    info->max_binding = c->most_binding;
    CHECK_MESSAGE(!gpu_backend_find_weights(c->backend->gpu, &c->g, &e), "%s", e.why);
    info->max_binding = most;
}

static void case_run_on_gpu(op_case *c, size_t outputs, size_t bytes) {
    error            e = { 0 };
    gpu_plan        *plan = NULL;
    gpu_backend     *b = c->backend->gpu;
    gm_status        status;
    const run_inputs in = case_inputs(c, outputs);
    gpu_budget       budget = { 0 };
    gpu_backend_clear(b);
    if (c->slots) {
        CHECK_MESSAGE(!gpu_budget_make(&budget, &c->g, &(budget_options){ .slots = c->slots }, &e), "%s", e.why);
        gpu_backend_keep_to(b, &budget);
    }
    case_lay_out_weights(c);
    while ((status = gpu_backend_upload(b, &c->g, &e)) == GM_AGAIN) gpu_host_wait(b->host, 100);
    CHECK_MESSAGE(!status, "upload: %s", e.why);
    if (status || gpu_plan_new(b, &c->g, shape_class(c), outputs + 1, &c->gpu_kv, &plan, &e)) {
        CHECK_MESSAGE(false, "%s", e.why);
        return;
    }
    CHECK(!c->slots == !b->experts);
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
    if (!c->slots) return;
    gpu_backend_clear(b);
    gpu_backend_keep_to(b, NULL);
    gpu_budget_free(&budget);
}

/* Values are compared, not bytes: −0 is 0. */
static void check_same_values(const float *got, const float *want, size_t n) {
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (got[i] != got[i] && want[i] != want[i])) continue;
        if (!differ++) first = i;
    }
    CHECK_MESSAGE(!differ, "%zu of %zu values differ from the CPU's; value %zu is %a, expected %a", differ, n, first,
                  (double)got[first], (double)want[first]);
}

static void case_compare_bits(op_case *c, size_t outputs, size_t bytes) {
    float *got = c->result;
    c->result = calloc(1, bytes + 1);
    case_run_on_cpu(c, outputs, bytes);
    check_same_values(got, c->result, bytes / sizeof *got);
    free(c->result);
    c->result = got;
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
    if (c->backend->exact) case_compare_bits(c, outputs, bytes);
    return c->result;
}

static void end(op_case *c) {
    graph_free(&c->g);
    free(c->table);
    free(c->result);
}

static gpu_kv_layer gpu_cache(const backend *b, quant_type type, size_t kv_heads, size_t head, size_t slots) {
    error          e = { 0 };
    const gpu_kv   shape = { .type = type, .kv_heads = (uint32_t)kv_heads, .head = (uint32_t)head };
    const uint64_t size = round_up(gpu_kv_bytes(&shape, slots), 16);
    gpu_kv_layer   cache = { gpu_buffer_new(b->gpu->host, size, &e),
                             gpu_buffer_new(b->gpu->host, size, &e),
                             type,
                             shape.kv_heads,
                             shape.head,
                             size };
    CHECK_MESSAGE(!e.status, "%s", e.why);
    return cache;
}

static void gpu_cache_free(const backend *b, const gpu_kv_layer *cache) {
    gpu_buffer_free(b->gpu->host, cache->k);
    gpu_buffer_free(b->gpu->host, cache->v);
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
        case_lay_out_weights(c);
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

/* A state on the GPU: writes it from where the CPU has it, or reads it to there. */
static void state_move(const open_plan *p, const tensor *state, bool read) {
    gpu_backend *b = p->gpu ? p->c->backend->gpu : NULL;
    error        e = { 0 };
    const size_t bytes = state->ne[0] * sizeof(float);
    float       *memory = (float *)(uintptr_t)state->data;
    if (b && !read) {
        while (gpu_backend_write_vector(b, state, 0, memory, bytes, &e) == GM_AGAIN) gpu_host_wait(b->host, 100);
    } else if (b) {
        const uint32_t ticket = gpu_ticket_new(b->host);
        const void    *data = NULL;
        uint64_t       arrived = 0;
        gpu_backend_read_vector(b, state, bytes, ticket, &e);
        while (!e.status && !(data = gpu_ticket_data(b->host, ticket, &arrived)) && !gpu_host_problem(b->host, &e))
            gpu_host_wait(b->host, 100);
        if (data) memcpy(memory, data, bytes);
        gpu_ticket_done(b->host, ticket);
    }
    CHECK_MESSAGE(!e.status, "%s", e.why);
}

/* Runs all tokens. results[i] gets bytes[i] of the i-th result. */
static void plan_run_outputs(open_plan *p, size_t outputs, size_t count, float *const *results, const size_t *bytes) {
    error            e = { 0 };
    const run_inputs in = case_inputs(p->c, outputs);
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

static void plan_run(open_plan *p, size_t count, float *const *results, const size_t *bytes) {
    plan_run_outputs(p, p->c->tokens, count, results, bytes);
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

/* Runs of several spans: the first has a third of the tokens. */
static void case_spans(op_case *c) { c->first_span = c->tokens / 3; }

static size_t span_start(const op_case *c, size_t t) { return t < c->first_span ? 0 : c->first_span; }

#endif
