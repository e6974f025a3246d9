/* Compares fused kernels with the primitives that they replace: whole decoder layers of odd shapes, fused on the GPU and op by op on
 * the CPU, with one token and with several. Also counts the dispatches of a layer.
 *
 *     test_gpu_fuse [disabled GPU features] [only layers with this in their name; "half": all, but only half of them in 8 bits] */

#include "gpu/backend.h"
#include "gpu/kernels.h"
#include "model/towers.h"
#include "session/adapters.h"
#include "session/session.h"
#include "test.h"

#include "cpu/backend.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_TOKENS = 20, VOCABULARY = 40, SETS = 5 };

static uint32_t seed = 1;

static float layer_noise(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (1 << 23) - 1;
}

/* The parts of a layer. */
typedef struct {
    const char *name;
    quant_type  q, k, v, ff, down;
    uint64_t    width, head, heads, kv_heads, hidden, per_layer, experts, used;
    bool        shares_k; /* values are the keys */
    float       output_scale, cap;
    uint32_t    rank, slots; /* of adapters; rank 0: none */
    const char *adapted;     /* which linears; NULL: all */
} layer_case;

static const layer_case
    cases[] = {
        { "all of Q4_K", TYPE_Q4_K, TYPE_Q4_K, TYPE_Q4_K, TYPE_Q4_K, TYPE_Q4_K, 256, 64, 4, 1,
          512,           32,        0,         0,         false,     0.7f,      30,  0,  0, NULL },
        { "values of Q6_K",
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q6_K,
          TYPE_Q4_K,
          TYPE_Q6_K,
          512,
          128,
          4,
          2,
          768,
          64,
          0,
          0,
          false,
          1,
          0,
          0,
          0,
          NULL },
        { "three types", TYPE_Q8_0, TYPE_Q4_0, TYPE_Q5_1, TYPE_Q5_0, TYPE_Q4_1, 96, 32, 3, 1,
          160,           12,        0,         0,         false,     2,         30, 0,  0, NULL },
        { "halves", TYPE_F16, TYPE_F16, TYPE_BF16, TYPE_BF16, TYPE_F16, 60, 20, 2, 2,
          76,       0,        0,        0,         false,     1,        0,  0,  0, NULL },
        { "floats of odd width",
          TYPE_F32,
          TYPE_F32,
          TYPE_F32,
          TYPE_F32,
          TYPE_F32,
          45,
          10,
          3,
          1,
          33,
          0,
          0,
          0,
          false,
          1.5f,
          5,
          0,
          0,
          NULL },
        { "keys as values",
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q6_K,
          TYPE_Q4_K,
          256,
          512,
          2,
          1,
          256,
          0,
          0,
          0,
          true,
          1,
          0,
          0,
          0,
          NULL },
        { "experts", TYPE_Q4_K, TYPE_Q4_K, TYPE_Q6_K, TYPE_Q4_K, TYPE_Q5_0, 256, 64, 4, 2,
          96,        0,         8,         3,         false,     0.5f,      30,  0,  0, NULL },
        { "a long column", TYPE_Q4_K, TYPE_Q4_K, TYPE_Q4_K, TYPE_Q3_K, TYPE_Q6_K, 256, 64, 2, 1,
          12288,           0,         0,         0,         false,     1,         0,   0,  0, NULL },
        { "IQ4 and MXFP4", TYPE_IQ4_XS, TYPE_IQ4_XS, TYPE_IQ4_NL, TYPE_MXFP4, TYPE_Q2_K, 256, 32, 5, 5, 256, 8, 0, 0,
          false,           1,           0,           0,           0,          NULL },
        { "adapters of everything",
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q4_K,
          256,
          64,
          4,
          1,
          512,
          32,
          0,
          0,
          false,
          0.7f,
          30,
          16,
          4,
          NULL },
        { "one adapter of rank 1",
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q6_K,
          TYPE_Q4_K,
          TYPE_Q6_K,
          512,
          128,
          4,
          2,
          768,
          64,
          0,
          0,
          false,
          1,
          0,
          1,
          1,
          NULL },
        { "adapters of rank 256",
          TYPE_Q8_0,
          TYPE_Q4_0,
          TYPE_Q5_1,
          TYPE_Q5_0,
          TYPE_Q4_1,
          96,
          32,
          3,
          1,
          160,
          12,
          0,
          0,
          false,
          2,
          30,
          256,
          1,
          NULL },
        { "adapters of odd widths and rank",
          TYPE_F32,
          TYPE_F32,
          TYPE_F32,
          TYPE_F32,
          TYPE_F32,
          45,
          10,
          3,
          1,
          33,
          0,
          0,
          0,
          false,
          1.5f,
          5,
          7,
          4,
          NULL },
        { "adapters of values, up and down",
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q4_K,
          256,
          64,
          2,
          1,
          1024,
          0,
          0,
          0,
          false,
          1,
          0,
          33,
          4,
          "v up down" },
        { "adapters of keys that are values",
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q4_K,
          TYPE_Q6_K,
          TYPE_Q4_K,
          256,
          512,
          2,
          1,
          256,
          0,
          0,
          0,
          true,
          1,
          0,
          8,
          4,
          NULL },
    };

typedef struct {
    const layer_case *shape;
    graph             g;
    void             *data[128];
    size_t            data_count;
    tensor           *sets; /* of adapters */
    kv_layer          kv;
    gpu_kv_layer      gpu_kv;
    token_record      records[MOST_TOKENS];
    int32_t           rows[MOST_TOKENS];
} layer_test;

/* Random blocks, made small: the scales of a block are wherever the type has them, so values are tried until they are finite. */
static void *random_blocks(quant_type type, uint64_t elements) {
    const quant_format *f = quant_format_of((uint32_t)type);
    const uint64_t      blocks = elements / f->block;
    uint8_t            *data = malloc((size_t)(blocks * f->bytes));
    float               values[256];
    for (uint64_t i = 0; i < blocks; i++) {
        uint8_t *block = data + i * f->bytes;
        for (;;) {
            float most = 0;
            for (size_t j = 0; j < f->bytes; j++)
                block[j] = (uint8_t)(seed = seed * 1664525u + 1013904223u, seed >> 24);
            if (f->block == 1 && f->bytes == 4) *(float *)(void *)block = layer_noise();
            f->dequantise(values, block, 1);
            for (size_t j = 0; j < f->block; j++) most = fmaxf(most, fabsf(values[j]));
            if (most < 4 && most > 1e-3f) break;
        }
    }
    return data;
}

static tensor *layer_matrix(layer_test *t, const char *name, quant_type type, uint64_t k, uint64_t rows,
                            uint64_t experts) {
    void *data = random_blocks(type, k * rows * experts);
    t->data[t->data_count++] = data;
    return graph_weight(&t->g, name, type, (uint64_t[]){ k, rows, experts }, data);
}

/* Norms that multiply by about 1; queries by a tenth, or scores would be so sharp that a rounding decides who wins. */
static tensor *vector(layer_test *t, const char *name, uint64_t n) {
    const float size = !strcmp(name, "q_norm") ? 0.1f : 1;
    float      *data = malloc((size_t)n * sizeof *data);
    for (uint64_t i = 0; i < n; i++) data[i] = size + 0.5f * size * layer_noise();
    t->data[t->data_count++] = data;
    return graph_weight(&t->g, name, TYPE_F32, (uint64_t[]){ n, 1, 1 }, data);
}

static tensor *layer_norm(layer_test *t, tensor *x, const char *name) {
    return graph_rms_norm(&t->g, x, vector(t, name, x->ne[0]), 1e-6f);
}

static tensor *layer_product(layer_test *t, const char *name, quant_type type, tensor *x, uint64_t rows) {
    return graph_matmul(&t->g, layer_matrix(t, name, type, x->ne[0], rows, 1), x);
}

static tensor *adapter_values(layer_test *t, const char *name, uint64_t n, uint64_t filled, float size) {
    float *data = malloc((size_t)n * sizeof *data);
    for (uint64_t i = 0; i < n; i++) data[i] = i < filled ? size * layer_noise() : NAN; /* which must not be read */
    t->data[t->data_count++] = data;
    return graph_weight(&t->g, name, TYPE_F32, (uint64_t[]){ n, 1, 1 }, data);
}

/* Sets: none, slot 0, slot 1, both, slot 0 by another weight. Slots beyond the second are empty. */
static void adapter_sets(layer_test *t) {
    static const float weights[SETS][2] = { { 0, 0 }, { 1, 0 }, { 0, -0.5f }, { 0.7f, 0.4f }, { 2, 0 } };
    const uint32_t     slots = t->shape->slots;
    float             *data = calloc((size_t)SETS * slots, sizeof *data);
    for (size_t i = 0; i < SETS; i++) {
        for (uint32_t j = 0; j < slots && j < 2; j++) data[i * slots + j] = weights[i][j];
    }
    t->data[t->data_count++] = data;
    t->sets = graph_weight(&t->g, "sets", TYPE_F32, (uint64_t[]){ (uint64_t)SETS * slots, 1, 1 }, data);
}

/* y = W · x, and what adapters add. */
static tensor *layer_adapted(layer_test *t, const char *name, tensor *y, tensor *x) {
    const layer_case *s = t->shape;
    if (!s->rank || (s->adapted && !strstr(s->adapted, name))) return y;
    const uint64_t  one = (uint64_t)s->rank * x->ne[0], used = min_size(s->slots, 2);
    const float     size = sqrtf((float)y->ne[0]) / sqrtf((float)(s->rank * x->ne[0])); /* beside random weights of 1 */
    const lora_site site = { .a = adapter_values(t, "a", s->slots * one, used * one, 1),
                             .b =
                                 adapter_values(t, "b", s->slots * s->rank * y->ne[0], used * s->rank * y->ne[0], size),
                             .sets = t->sets,
                             .rank = s->rank,
                             .slots = s->slots,
                             .experts = 1 };
    return graph_lora_expand(&t->g, &site, y, graph_lora_shrink(&t->g, &site, x, NULL, 0), NULL, 0);
}

static tensor *layer_linear(layer_test *t, const char *name, quant_type type, tensor *x, uint64_t rows) {
    return layer_adapted(t, name, layer_product(t, name, type, x, rows), x);
}

static tensor *layer_attention(layer_test *t, tensor *x, tensor *rope) {
    const layer_case *s = t->shape;
    graph            *g = &t->g;
    tensor           *q = layer_product(t, "q", s->q, x, s->heads * s->head),
           *k = layer_product(t, "k", s->k, x, s->kv_heads * s->head);
    tensor *v = s->shares_k ? NULL : layer_product(t, "v", s->v, x, s->kv_heads * s->head);
    q = layer_adapted(t, "q", q, x);
    k = layer_adapted(t, "k", k, x);
    v = v ? layer_adapted(t, "v", v, x) : k;
    k = graph_reshape(g, k, s->head, s->kv_heads);
    v = graph_reshape(g, v, s->head, s->kv_heads);
    tensor *cache =
        graph_kv_store(g, graph_rope(g, layer_norm(t, k, "k_norm"), rope), graph_rms_norm(g, v, NULL, 1e-6f), 0, 0);
    q = graph_rope(g, layer_norm(t, graph_reshape(g, q, s->head, s->heads), "q_norm"), rope);
    tensor *o = graph_reshape(g, graph_attention(g, q, cache), s->head * s->heads, 1);
    return layer_linear(t, "o", s->head * s->heads % 256 ? TYPE_F16 : s->q, o, s->width);
}

static tensor *layer_experts(layer_test *t, tensor *r) {
    const layer_case *s = t->shape;
    graph            *g = &t->g;
    const uint32_t    used = (uint32_t)s->used;
    tensor           *z = graph_scale(g, layer_norm(t, r, "router_norm"), 0.06f);
    tensor           *routes =
        graph_route(g, layer_linear(t, "router", TYPE_F32, z, s->experts), vector(t, "scale", s->experts), used);
    tensor *u = layer_norm(t, r, "expert_norm");
    tensor *both = graph_matmul_experts(g, layer_matrix(t, "gate_up", s->ff, s->width, 2 * s->hidden, s->experts), u,
                                        routes, used);
    tensor *hidden =
        graph_geglu(g, graph_slice(g, both, 0, s->hidden, used), graph_slice(g, both, s->hidden, s->hidden, used));
    tensor *down = graph_matmul_experts(g, layer_matrix(t, "downs", s->down, s->hidden, s->width, s->experts), hidden,
                                        routes, used);
    return layer_norm(t, graph_expert_sum(g, down, routes, used), "post_experts");
}

/* A layer as model/text.c builds it, then once more its attention, so that what lies between two layers is there too. */
static void build(layer_test *t) {
    const layer_case *s = t->shape;
    graph            *g = &t->g;
    float            *frequencies = malloc((size_t)s->head / 2 * sizeof *frequencies);
    for (uint64_t j = 0; j < s->head / 2; j++) frequencies[j] = (float)pow(10000, -2.0 * (double)j / (double)s->head);
    t->data[t->data_count++] = frequencies;
    if (s->rank) adapter_sets(t);
    tensor *rope = graph_rope_table(
        g, graph_weight(g, "frequencies", TYPE_F32, (uint64_t[]){ s->head / 2, 1, 1 }, frequencies), 1);
    tensor *x = graph_embed(g, layer_matrix(t, "table", TYPE_F32, s->width, VOCABULARY, 1), 2);
    tensor *inputs =
        s->per_layer ? graph_embed(g, layer_matrix(t, "inputs", TYPE_F32, 2 * s->per_layer, VOCABULARY, 1), 1) : NULL;
    tensor *r =
        graph_add(g, x, layer_norm(t, layer_attention(t, layer_norm(t, x, "attn_norm"), rope), "post_attention"));
    tensor *n = layer_norm(t, r, "ffn_norm"), *gate = layer_product(t, "gate", s->ff, n, s->hidden),
           *up = layer_product(t, "up", s->ff, n, s->hidden);
    gate = layer_adapted(t, "gate", gate, n);
    up = layer_adapted(t, "up", up, n);
    tensor *m = layer_linear(t, "down", s->down, graph_geglu(g, gate, up), s->width);
    if (s->experts) m = graph_add(g, layer_norm(t, m, "post_1"), layer_experts(t, r));
    tensor *y = graph_add(g, r, layer_norm(t, m, "post_ffw"));
    if (s->per_layer) {
        tensor *gated = graph_geglu(g, layer_linear(t, "inp_gate", TYPE_F32, y, s->per_layer),
                                    graph_slice(g, inputs, s->per_layer, s->per_layer, 1));
        y = graph_add(g, y, layer_norm(t, layer_linear(t, "proj", TYPE_F32, gated, s->width), "post_norm"));
    }
    if (s->output_scale != 1) y = graph_scale(g, y, s->output_scale);
    y = graph_add(g, y, layer_attention(t, layer_norm(t, y, "attn_norm_2"), rope));
    tensor *logits = layer_linear(t, "head", TYPE_F32, layer_norm(t, graph_select_rows(g, y), "output_norm"), 77);
    g->result = s->cap > 0 ? graph_softcap(g, logits, s->cap) : logits;
    CHECK_MESSAGE(!g->problem.status, "%s", g->problem.why);
}

static void compute_on_cpu(layer_test *t, const cpu_backend *b, const run_inputs *run, float *out) {
    error            e = { 0 };
    cpu_plan        *plan = NULL;
    const cpu_inputs in = { .run = *run, .kv = &t->kv };
    CHECK_MESSAGE(!cpu_plan_new(b, &t->g, run->tokens, 1, &plan, &e), "%s", e.why);
    if (!plan) return;
    while (cpu_plan_step(plan, &in, 0) == GM_AGAIN) {}
    memcpy(out, cpu_plan_result(plan), 77 * sizeof *out);
    cpu_plan_free(plan);
}

/* The dispatches that only adapters need; the head's are two. */
static void count_adapters(void *user, const graph *fused, const op *o, const gpu_kernel *k) {
    (void)fused;
    size_t *count = user;
    if (strcmp(k->file, "shrinks.wgsl") == 0 || strcmp(k->file, "correct.wgsl") == 0) count[0]++;
    if (o->kind == OP_LORA_SHRINK || o->kind == OP_LORA_EXPAND) count[1]++;
}

static void compute_on_gpu(layer_test *t, gpu_backend *b, const run_inputs *run, float *out) {
    error       e = { 0 };
    gpu_plan   *plan = NULL;
    uint64_t    bytes = 0;
    const void *data = NULL;
    CHECK_MESSAGE(!gpu_plan_new(b, &t->g, run->tokens, 1, &t->gpu_kv, &plan, &e), "%s", e.why);
    if (!plan) return;
    if (run->tokens == 1 && !strcmp(t->shape->name, "adapters of everything")) {
        size_t count[2] = { 0 };
        CHECK(!gpu_plan_kernels(plan, count_adapters, count, &e));
        /* for q, k and v (twice), gate and up, down, and the two of the per-layer input; an attention's are computed with it */
        CHECK_MESSAGE(count[0] == 6 && count[1] == 2, "adapters take %zu dispatches, their head %zu", count[0],
                      count[1]);
    }
    const uint32_t ticket = gpu_ticket_new(b->host);
    while (gpu_plan_submit(plan, run, ticket, &e) == GM_AGAIN) gpu_host_wait(b->host, 100);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    while (!e.status && !(data = gpu_ticket_data(b->host, ticket, &bytes)) && !gpu_host_problem(b->host, &e))
        gpu_host_wait(b->host, 100);
    CHECK_MESSAGE(data && bytes >= 77 * sizeof *out, "%s", e.why);
    if (data && bytes >= 77 * sizeof *out) memcpy(out, data, 77 * sizeof *out);
    gpu_ticket_done(b->host, ticket);
    gpu_plan_free(plan);
}

static void compare_layer(layer_test *t, const cpu_backend *cpu, gpu_backend *gpu, size_t tokens, uint64_t start) {
    float                 want[77] = { 0 }, got[77] = { 0 };
    double                difference = 0, size = 0;
    const record_sequence sequence = { 0 };
    const run_inputs      run = { .records = t->records, .tokens = tokens, .output_rows = t->rows, .outputs = 1 };
    int32_t               ids[MOST_TOKENS];
    for (size_t i = 0; i < tokens; i++) ids[i] = (int32_t)((i * 7 + start * 3 + 1) % VOCABULARY);
    records_of_text(t->records, 0, &sequence, ids, (size_t)start, tokens);
    for (size_t i = 0; i < tokens && t->shape->rank; i++) t->records[i].adapter = (uint32_t)((start + i) % SETS);
    t->rows[0] = (int32_t)tokens - 1;
    compute_on_cpu(t, cpu, &run, want);
    compute_on_gpu(t, gpu, &run, got);
    for (size_t i = 0; i < 77; i++) {
        const double d = (double)got[i] - (double)want[i];
        difference += d * d;
        size += (double)want[i] * (double)want[i];
    }
    /* In 8 bits a value on the edge may be rounded to either side, and a token may go to another expert. These adapters are as large as the
     * weights, and random weights amplify such a difference: 0.14 was seen natively where f32 columns differ by 3e-7, and 0.30 with the
     * kernels of WebAssembly on the other side. */
    CHECK_MESSAGE(size > 0 && sqrt(difference / size) < (gpu->precise     ? 2e-4
                                                         : t->shape->rank ? 0.4
                                                                          : 0.2),
                  "%zu tokens from %llu on: off by %g", tokens, (unsigned long long)start, sqrt(difference / size));
}

static void open_caches(layer_test *t, gpu_backend *b, quant_type type) {
    const layer_case *s = t->shape;
    const size_t      slots = 64, row = (size_t)quant_row_bytes(quant_format_of((uint32_t)type), s->kv_heads * s->head);
    const gpu_kv      shape = { .type = type, .kv_heads = (uint32_t)s->kv_heads, .head = (uint32_t)s->head };
    const uint64_t    bytes = round_up(gpu_kv_bytes(&shape, slots), 16);
    error             e = { 0 };
    t->kv = (kv_layer){ malloc(row * slots), malloc(row * slots), type, (size_t)s->kv_heads, (size_t)s->head };
    t->gpu_kv = (gpu_kv_layer){
        gpu_buffer_new(b->host, bytes, &e), gpu_buffer_new(b->host, bytes, &e), type, shape.kv_heads, shape.head, bytes
    };
    CHECK_MESSAGE(!e.status, "%s", e.why);
}

/* A batch, then single tokens, then two tokens and another batch: every plan writes the cache that the next one reads. */
static void test_layer(const layer_case *shape, quant_type type, const cpu_backend *cpu, gpu_backend *gpu) {
    TEST("a layer: %s, keys and values %s%s", shape->name, quant_format_of((uint32_t)type)->name,
         gpu->precise ? "" : ", columns in 8 bits");
    static const size_t batches[] = { 7, 1, 1, 2, 16, 1 };
    layer_test          t = { .shape = shape };
    error               e = { 0 };
    gm_status           status;
    uint64_t            start = 0;
    build(&t);
    gpu_backend_clear(gpu);
    while ((status = gpu_backend_upload(gpu, &t.g, &e)) == GM_AGAIN) gpu_host_wait(gpu->host, 100);
    CHECK_MESSAGE(!status, "%s", e.why);
    open_caches(&t, gpu, type);
    for (size_t i = 0; i < COUNT_OF(batches) && !status && !test_bad; start += batches[i++])
        compare_layer(&t, cpu, gpu, batches[i], start);
    gpu_buffer_free(gpu->host, t.gpu_kv.k);
    gpu_buffer_free(gpu->host, t.gpu_kv.v);
    free(t.kv.k);
    free(t.kv.v);
    graph_free(&t.g);
    for (size_t i = 0; i < t.data_count; i++) free(t.data[i]);
}

/* From one layer's attention to the next one's there is one layer's worth of dispatches; attention may take two. `with` NULL: no adapter.
 * rows: of several sequences. */
static void test_dispatches(const char *path, const char *with, bool rows, size_t most) {
    TEST("%s%s: at most %zu dispatches a layer%s", path, with ? " with an adapter" : "", most,
         rows ? " of several sequences" : "");
    const gm_engine_options options = { .model = path, .backend = GM_BACKEND_CPU, .threads = 1 };
    const fuse_options      one = { .one_token = !rows,
                                    .one_output = !rows,
                                    .rows = rows,
                                    .few_tokens = true,
                                    .few_outputs = true,
                                    .most_bytes = 1 << 27,
                                    .most_column = 4096 };
    gm_engine              *engine = NULL;
    gm_adapter             *held = NULL;
    char                    why[400] = "";
    error                   e = { 0 };
    graph                   fused;
    CHECK_MESSAGE(!gm_engine_open(&options, &engine, why, sizeof why), "%s", why);
    if (with && engine) CHECK_MESSAGE(!gm_adapter_load(engine, with, &held, why, sizeof why), "%s", why);
    if (!engine || graph_fuse(engine_adapters_graph(engine, held != NULL), &one, &fused, &e)) {
        CHECK_MESSAGE(!engine, "%s", e.why);
        return;
    }
    size_t layers = 0, dispatches = 0;
    for (size_t i = 0; i < fused.op_count; i++) {
        const op *o = &fused.ops[i];
        /* an embedding, and what comes after the layers, is corrected by an op of its own */
        if (o->kind == OP_LORA_EXPAND && layers) CHECK(o->out->axis == AXIS_OUTPUTS);
        if (fused.ops[i].kind == OP_ATTEND) {
            if (layers) CHECK_MESSAGE(dispatches <= most, "layer %zu takes %zu", layers - 1, dispatches);
            layers++;
            dispatches = 0;
        }
        dispatches += fused.ops[i].kind == OP_ATTEND ? 2 + rows : 1; /* its result is quantised */
    }
    CHECK_MESSAGE(layers == engine->weights.config.layers, "%zu of %u layers make their heads in the attention", layers,
                  engine->weights.config.layers);
    graph_free(&fused);
    gm_adapter_free(held);
    gm_engine_close(engine);
}

/* The same for the towers, whose linears clip their input and their results. */
static void test_tower_dispatches(const char *path, bool audio, size_t most) {
    TEST("%s: at most %zu dispatches a layer of the %s tower", path, most, audio ? "audio" : "vision");
    enum { SOFT_WIDTH = 64 };
    const fuse_options many = { .clips = true, .most_bytes = 1 << 27, .most_column = 4096 };
    const op_kind      each = audio ? OP_LOCAL_ATTENTION : OP_ATTENTION;
    error              e = { 0 };
    gguf              *file = NULL;
    vision_weights     vision = { 0 };
    audio_weights      heard = { 0 };
    graph              g = { 0 }, fused = { 0 };
    tensor            *leaf;
    size_t             layers = 0, dispatches = 0;
    gm_status          status = gguf_open_file(path, &file, &e);
    if (!status) status = audio ? audio_load(file, SOFT_WIDTH, &heard, &e) : vision_load(file, SOFT_WIDTH, &vision, &e);
    if (!status) status = audio ? audio_graph(&heard, NULL, &g, &leaf, &e) : vision_graph(&vision, NULL, &g, &leaf, &e);
    if (!status) status = graph_fuse(&g, &many, &fused, &e);
    CHECK_MESSAGE(!status, "%s", e.why);
    for (size_t i = 0; i < fused.op_count; i++, dispatches++) {
        CHECK_MESSAGE(fused.ops[i].kind != OP_CLAMP || !layers, "layer %zu has a clamp of its own", layers - 1);
        if (fused.ops[i].kind != each) continue;
        if (layers++) CHECK_MESSAGE(dispatches <= most, "layer %zu takes %zu", layers - 2, dispatches);
        dispatches = 0;
    }
    CHECK(layers == (audio ? heard.config.layers : vision.config.layers) && layers > 1);
    graph_free(&fused);
    graph_free(&g);
    if (audio) audio_free(&heard);
    else vision_free(&vision);
    gguf_free(file);
}

/* With f32 columns and, if the GPU has packed dot products, with 8-bit columns, which both backends round in the same way.
 * `step` 2: every other case. */
static void test_layers(gpu_backend *gpu, bool precise, size_t step, const char *only) {
    cpu_backend cpu;
    error       e = { 0 };
    if (!precise && !gpu_host_info(gpu->host)->dot4) return;
    TEST("opening a CPU");
    CHECK_MESSAGE(!cpu_backend_open(&cpu, "scalar", 1, precise, &e), "%s", e.why);
    if (e.status) return;
    gpu->precise = precise;
    for (size_t i = 0; i < COUNT_OF(cases); i += step) {
        if (only && !strstr(cases[i].name, only)) continue;
        test_layer(&cases[i], TYPE_F32, &cpu, gpu);
        if (i == 0 && precise) test_layer(&cases[i], TYPE_F16, &cpu, gpu);
        if (i == 0 && precise) test_layer(&cases[i], TYPE_Q8_0, &cpu, gpu);
    }
    cpu_backend_close(&cpu);
}

int main(int argc, char **argv) {
    const bool        half = argc > 2 && !strcmp(argv[2], "half");
    const char       *only = argc > 2 && !half ? argv[2] : NULL;
    gpu_backend       gpu;
    error             e = { 0 };
    const gpu_options options = { .adapter = -1, .disable = argc > 1 ? argv[1] : NULL };
    TEST("opening a GPU"); /* one for both: half of the kernels are the same */
    CHECK_MESSAGE(!gpu_backend_open(&gpu, &options, true, &e), "%s", e.why);
    if (e.status) return test_end();
    test_layers(&gpu, true, 1, only);
    test_layers(&gpu, false, half ? 2 : 1, only);
    gpu_backend_close(&gpu);
    if (only && strcmp(only, "counts")) return test_end();
    test_dispatches("tests/fixtures/tiny-dense.gguf", NULL, false, 9);
    test_dispatches("tests/fixtures/tiny-moe.gguf", NULL, false, 14);
    test_dispatches("tests/fixtures/small-dense-Q4_K_M.gguf", NULL, false, 9);
    test_dispatches("tests/fixtures/small-dense-Q4_K_M.gguf", NULL, true, 13);
    test_dispatches("tests/fixtures/small-moe-Q4_K_M.gguf", NULL, false, 14);
    test_dispatches("tests/fixtures/tiny-dense.gguf", "tests/fixtures/tiny-dense-lora", false, 13);
    test_tower_dispatches("tests/fixtures/tiny-mm.mmproj.gguf", false, 12);
    test_tower_dispatches("tests/fixtures/tiny-mm.mmproj.gguf", true, 25);
    return test_end();
}
