/* Runs whose tokens belong to several sequences. Two layers of attention, a full and a sliding one, compute four sequences: text with an
 * image whose tokens see each other, a fork that shares the first one's prefix, a canvas that sees its prefix and all of itself, and
 * drafts that stand still at one position and are not stored. Once each sequence is computed alone, in a cache of its own; once all
 * are in one cache, and runs mix their spans. Both must agree, on every instruction set and on the GPU.
 *
 *     test_records [cpu|gpu] [disabled GPU features] */

#include "cpu/backend.h"
#include "gpu/backend.h"
#include "session/records.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { WIDTH = 64, HEAD = 32, HEADS = 4, KV_HEADS = 2, VOCABULARY = 50, WINDOW = 8 };
enum { LAYERS = 2, SLOTS = 128, MOST_TOKENS = 48, MOST_SPANS = 4 };
enum { PREFIX = 12 }; /* what the fork shares */

static uint32_t seed = 1;

static float noise(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (1 << 23) - 1;
}

/* ---- the sequences ---- */

typedef enum { TEXT, FORK, CANVAS, SEQUENCES } sequence_name;
typedef enum { PLAIN, IMAGE, WHOLE, DRAFTS, SHARED } span_kind;

/* A span of a run: the next tokens of a sequence. IMAGE: all but the first two and the last two are an image. WHOLE: a canvas.
 * DRAFTS: of the token before, not stored. SHARED: the fork's prefix, which goes to the slots of the sequence that it shares. */
typedef struct {
    sequence_name who;
    span_kind     kind;
    size_t        count;
} span;

/* GPU kernels differ for one token, for up to 4, and for more. */
static const struct {
    span spans[MOST_SPANS];
} runs[] = {
    { { { TEXT, PLAIN, PREFIX } } },
    { { { FORK, SHARED, PREFIX }, { CANVAS, PLAIN, 5 } } },
    { { { TEXT, IMAGE, 13 }, { FORK, PLAIN, 9 }, { CANVAS, PLAIN, 6 } } },
    { { { FORK, PLAIN, 1 }, { CANVAS, PLAIN, 2 }, { TEXT, PLAIN, 1 } } },
    { { { TEXT, DRAFTS, 3 }, { CANVAS, WHOLE, 8 }, { FORK, PLAIN, 2 }, { TEXT, PLAIN, 1 } } },
    { { { CANVAS, PLAIN, 1 }, { TEXT, DRAFTS, 2 }, { FORK, PLAIN, 1 } } },
    { { { FORK, PLAIN, 1 } } },
    { { { TEXT, DRAFTS, 1 } } },
    { { { TEXT, PLAIN, 1 } } },
    { { { CANVAS, PLAIN, 20 }, { TEXT, IMAGE, 12 }, { FORK, PLAIN, 16 } } },
};

/* Where the sequences are, in a cache of their own and in the common one. The fork's own slots begin at 3: its base wraps. */
static const record_sequence alone[SEQUENCES] = {
    [TEXT] = { .window = WINDOW, .ring_slots = 41 },
    [FORK] = { .window = WINDOW, .ring_slots = 41 },
    [CANVAS] = { .window = WINDOW, .ring_slots = 41 },
};
static const record_sequence together[SEQUENCES] = {
    [TEXT] = { .sequence = 0, .window = WINDOW, .own = 40, .ring = 30, .ring_slots = 32 },
    [FORK] = { .sequence = 1, .window = WINDOW, .shared = PREFIX, .prefix = 40, .own = 3u - PREFIX, .ring_slots = 30 },
    [CANVAS] = { .sequence = 2, .window = WINDOW, .own = 84, .ring = 62, .ring_slots = 40 },
};

/* The records of a span in the rows from `row` on. `held`: the tokens that the sequence holds. */
static void make_span(token_record *records, size_t row, const span *s, const record_sequence *places, size_t held) {
    record_sequence place = places[s->who];
    int32_t         ids[MOST_TOKENS];
    token_record   *own = records + row;
    const uint32_t  end = (uint32_t)(held + s->count);
    if (s->kind == SHARED && place.shared) {
        place.own = place.prefix;
        place.shared = 0;
    }
    for (size_t i = 0; i < s->count; i++) { /* text and fork begin in the same way */
        const size_t at = held + i, who = s->who == FORK && at < PREFIX ? TEXT : s->who;
        ids[i] = (int32_t)((at * 7 + who * 11 + (s->kind == DRAFTS) * 5 + 3) % VOCABULARY);
    }
    records_of_text(records, row, &place, ids, held, s->count);
    for (size_t i = 2; s->kind == IMAGE && i + 2 < s->count; i++) own[i].id = -1 - (int32_t)((held + i) % VOCABULARY);
    if (s->kind == IMAGE) records_join_block(own + 2, s->count - 4, false);
    for (size_t i = 0; i < s->count && s->kind == WHOLE; i++) {
        own[i].full_last = own[i].sliding_last = end - 1;
        own[i].sliding_first = own[0].sliding_first;
    }
    for (size_t i = 0; i < s->count && s->kind == DRAFTS; i++) {
        own[i].at = RUN_NOWHERE;
        own[i].position = (uint32_t)held - 1;
        own[i].full_last = own[i].sliding_last = (uint32_t)held - 1;
        own[i].sliding_first = own[0].sliding_first;
    }
}

/* ---- the graph ---- */

typedef struct {
    graph  g;
    float *data[32], *given;
    size_t data_count;
} model_parts;

static tensor *matrix(model_parts *m, const char *name, uint64_t k, uint64_t rows, float size) {
    float *values = malloc((size_t)(k * rows) * sizeof *values);
    for (size_t i = 0; i < k * rows; i++) values[i] = size * noise();
    m->data[m->data_count++] = values;
    return graph_weight(&m->g, name, TYPE_F32, (uint64_t[]){ k, rows, 1 }, values);
}

static tensor *gain(model_parts *m, const char *name, uint64_t n, float size) {
    tensor *t = matrix(m, name, n, 1, 0.2f * size);
    for (size_t i = 0; i < n; i++) m->data[m->data_count - 1][i] += size;
    return t;
}

static tensor *attend(model_parts *m, tensor *x, tensor *rope, uint32_t layer, uint32_t window) {
    graph  *g = &m->g;
    tensor *n = graph_rms_norm(g, x, gain(m, "norm", WIDTH, 1), 1e-6f);
    tensor *q = graph_matmul(g, matrix(m, "q", WIDTH, HEADS * HEAD, 0.2f), n);
    tensor *k = graph_matmul(g, matrix(m, "k", WIDTH, KV_HEADS * HEAD, 0.2f), n);
    tensor *v = graph_matmul(g, matrix(m, "v", WIDTH, KV_HEADS * HEAD, 0.2f), n);
    k = graph_rms_norm(g, graph_reshape(g, k, HEAD, KV_HEADS), gain(m, "k_norm", HEAD, 0.5f), 1e-6f);
    v = graph_rms_norm(g, graph_reshape(g, v, HEAD, KV_HEADS), NULL, 1e-6f);
    tensor *cache = graph_kv_store(g, graph_rope(g, k, rope), v, layer, window);
    q = graph_rms_norm(g, graph_reshape(g, q, HEAD, HEADS), gain(m, "q_norm", HEAD, 0.5f), 1e-6f);
    tensor *o = graph_reshape(g, graph_attention(g, graph_rope(g, q, rope), cache), HEADS * HEAD, 1);
    return graph_add(g, x, graph_matmul(g, matrix(m, "o", HEADS * HEAD, WIDTH, 0.2f), o));
}

static void records_graph(model_parts *m) {
    graph *g = &m->g;
    seed = 1;
    tensor *frequencies = matrix(m, "frequencies", HEAD / 2, 1, 1);
    tensor *rope = graph_rope_table(g, frequencies, 1);
    tensor *x = graph_embed_or_given(g, matrix(m, "table", WIDTH, VOCABULARY, 1), 1);
    x = attend(m, x, rope, 0, 0);
    x = attend(m, x, rope, 1, WINDOW);
    g->result = graph_scale(g, graph_select_rows(g, x), 1);
    m->given = malloc(VOCABULARY * WIDTH * sizeof *m->given);
    for (size_t i = 0; i < VOCABULARY * WIDTH; i++) m->given[i] = noise();
    CHECK_MESSAGE(!g->problem.status, "%s", g->problem.why);
}

static void free_parts(model_parts *m) {
    graph_free(&m->g);
    for (size_t i = 0; i < m->data_count; i++) free(m->data[i]);
    free(m->given);
}

/* ---- backends ---- */

typedef struct {
    const char        *name;
    const cpu_backend *cpu;
    gpu_backend       *gpu; /* NULL: it is the CPU */
} backend;

typedef struct {
    kv_layer     cpu[LAYERS];
    gpu_kv_layer gpu[LAYERS];
} cache;

static cache cache_new(const backend *b) {
    cache        c = { 0 };
    error        e = { 0 };
    const size_t bytes = SLOTS * KV_HEADS * HEAD * sizeof(float);
    for (size_t i = 0; i < LAYERS; i++) {
        c.cpu[i] = (kv_layer){ calloc(1, bytes), calloc(1, bytes), TYPE_F32, KV_HEADS, HEAD };
        if (!b->gpu) continue;
        c.gpu[i] = (gpu_kv_layer){ .k = gpu_buffer_new(b->gpu->host, bytes, &e),
                                   .v = gpu_buffer_new(b->gpu->host, bytes, &e),
                                   .type = TYPE_F32,
                                   .kv_heads = KV_HEADS,
                                   .head = HEAD,
                                   .bytes = bytes };
    }
    CHECK_MESSAGE(!e.status, "%s", e.why);
    return c;
}

static void cache_free(const backend *b, cache *c) {
    for (size_t i = 0; i < LAYERS; i++) {
        free(c->cpu[i].k);
        free(c->cpu[i].v);
        if (b->gpu) gpu_buffer_free(b->gpu->host, c->gpu[i].k);
        if (b->gpu) gpu_buffer_free(b->gpu->host, c->gpu[i].v);
    }
}

static void run_on_cpu(const backend *b, const model_parts *m, const cache *c, const run_inputs *run, float *out) {
    error            e = { 0 };
    cpu_plan        *plan = NULL;
    const cpu_inputs in = { .run = *run, .kv = c->cpu };
    CHECK_MESSAGE(!cpu_plan_new(b->cpu, &m->g, run->tokens, run->outputs, &plan, &e), "%s", e.why);
    if (!plan) return;
    while (cpu_plan_step(plan, &in, 0) == GM_AGAIN) {}
    memcpy(out, cpu_plan_result(plan), run->outputs * WIDTH * sizeof *out);
    cpu_plan_free(plan);
}

static void run_on_gpu(const backend *b, const model_parts *m, const cache *c, const run_inputs *run, float *out) {
    error        e = { 0 };
    gpu_host    *h = b->gpu->host;
    gpu_plan    *plan = NULL;
    const void  *data = NULL;
    uint64_t     arrived = 0;
    const size_t bytes = run->outputs * WIDTH * sizeof *out;
    size_t class = 1;
    while (class < run->tokens) class *= 4;
    if (gpu_plan_new(b->gpu, &m->g, class, class, c->gpu, &plan, &e)) {
        CHECK_MESSAGE(false, "%s", e.why);
        return;
    }
    const uint32_t ticket = gpu_ticket_new(h);
    while (gpu_plan_submit(plan, run, ticket, &e) == GM_AGAIN) gpu_host_wait(h, 100);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    while (!e.status && !(data = gpu_ticket_data(h, ticket, &arrived)) && !gpu_host_problem(h, &e))
        gpu_host_wait(h, 100);
    CHECK_MESSAGE(data && arrived >= bytes, "%s", e.why);
    if (data && arrived >= bytes) memcpy(out, data, bytes);
    gpu_ticket_done(h, ticket);
    gpu_plan_free(plan);
}

static void run_records(const backend *b, const model_parts *m, const cache *c, token_record *records, size_t tokens,
                        float *out) {
    int32_t rows[MOST_TOKENS];
    for (size_t i = 0; i < tokens; i++) rows[i] = (int32_t)i;
    const run_inputs run = {
        .records = records, .tokens = tokens, .output_rows = rows, .outputs = tokens, .given = m->given
    };
    (b->gpu ? run_on_gpu : run_on_cpu)(b, m, c, &run, out);
}

/* ---- comparing ---- */

static double difference(const float *got, const float *want, size_t n) {
    double squares = 0, size = 1e-30;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)got[i] - (double)want[i];
        squares += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(squares / size);
}

static size_t run_tokens(size_t run) {
    size_t tokens = 0;
    for (size_t i = 0; i < MOST_SPANS; i++) tokens += runs[run].spans[i].count;
    return tokens;
}

/* Every run of the table: its spans one by one in caches of their own, or all at once in one cache. [runs, MOST_TOKENS, WIDTH] */
static void compute_all(const backend *b, const model_parts *m, bool mixed, float *out) {
    cache  caches[SEQUENCES];
    size_t held[SEQUENCES] = { 0 };
    for (size_t i = 0; i < SEQUENCES; i++) caches[i] = cache_new(b);
    for (size_t r = 0; r < COUNT_OF(runs); r++) {
        token_record records[MOST_TOKENS];
        float       *to = out + r * MOST_TOKENS * WIDTH;
        size_t       row = 0;
        for (size_t i = 0; i < MOST_SPANS && runs[r].spans[i].count; i++) {
            const span *s = &runs[r].spans[i];
            make_span(records, mixed ? row : 0, s, mixed ? together : alone, held[s->who]);
            if (s->kind != DRAFTS) held[s->who] += s->count;
            if (!mixed) run_records(b, m, &caches[s->who], records, s->count, to + row * WIDTH);
            row += s->count;
        }
        if (mixed) run_records(b, m, &caches[0], records, row, to);
    }
    for (size_t i = 0; i < SEQUENCES; i++) cache_free(b, &caches[i]);
}

/* `reference` are the scalar kernels' results, alone: what a token sees is checked in test_kernels. */
static void test_mixed(const backend *b, const model_parts *m, const float *reference, double tolerance) {
    float *apart = calloc(COUNT_OF(runs) * MOST_TOKENS * WIDTH, sizeof *apart),
          *mixed = calloc(COUNT_OF(runs) * MOST_TOKENS * WIDTH, sizeof *mixed);
    TEST("%s: sequences alone", b->name);
    compute_all(b, m, false, apart);
    for (size_t r = 0; r < COUNT_OF(runs); r++) {
        const size_t at = r * MOST_TOKENS * WIDTH;
        const double d = difference(apart + at, reference + at, run_tokens(r) * WIDTH);
        CHECK_MESSAGE(d <= 1e-5, "run %zu is off by %g", r, d);
    }
    TEST("%s: sequences in one run", b->name);
    compute_all(b, m, true, mixed);
    for (size_t r = 0; r < COUNT_OF(runs); r++) {
        size_t row = 0;
        for (size_t i = 0; i < MOST_SPANS && runs[r].spans[i].count; row += runs[r].spans[i++].count) {
            const size_t at = (r * MOST_TOKENS + row) * WIDTH;
            const double d = difference(mixed + at, apart + at, runs[r].spans[i].count * WIDTH);
            CHECK_MESSAGE(d <= tolerance, "run %zu, span %zu is off by %g", r, i, d);
        }
    }
    free(apart);
    free(mixed);
}

static void test_spans(const backend *b, const model_parts *m) {
    TEST("%s: spans that do not fit their run are refused", b->name);
    static const uint32_t spans[][2] = {
        { 0, 0 }, { 0, 1 }, { 0, 3 }, { 1, 2 }
    }; /* of the first token; the run has 2 */
    const record_sequence sequence = { .window = WINDOW, .ring_slots = 41 };
    cache                 c = cache_new(b);
    gpu_plan             *plan = NULL;
    error                 e = { 0 };
    token_record          records[2];
    CHECK_MESSAGE(!gpu_plan_new(b->gpu, &m->g, 4, 4, c.gpu, &plan, &e), "%s", e.why);
    for (size_t i = 0; plan && i < COUNT_OF(spans); i++) {
        error            refused = { 0 };
        const run_inputs run = { .records = records, .tokens = 2, .given = m->given };
        records_of_text(records, 0, &sequence, (int32_t[]){ 1, 2 }, 0, 2);
        records[0].span_first = spans[i][0];
        records[0].span_count = spans[i][1];
        CHECK(gpu_plan_submit(plan, &run, 0, &refused) == GM_BAD_ARGUMENT && strstr(refused.why, "spans"));
    }
    gpu_plan_free(plan);
    cache_free(b, &c);
}

/* A run of so many tokens that not all records are part of the command list. */
static void test_many(gpu_backend *gpu) {
    TEST("gpu: a run of 5,000 tokens");
    enum { COUNT = 5000, N = 4 };
    error         e = { 0 };
    graph         g = { 0 };
    gpu_plan     *plan = NULL;
    float        *table = calloc(COUNT * N, sizeof *table);
    token_record *records = calloc(COUNT, sizeof *records);
    int32_t      *rows = calloc(COUNT, sizeof *rows);
    const float  *got = NULL;
    uint64_t      arrived = 0;
    for (size_t i = 0; i < COUNT * N; i++) table[i] = noise();
    for (uint32_t i = 0; i < COUNT; i++) {
        records[i] = (token_record){ .id = (int32_t)(i * 7 % COUNT), .position = COUNT - 1 - i, .span_count = COUNT };
        rows[i] = (int32_t)i;
    }
    tensor *w = graph_weight(&g, "table", TYPE_F32, (uint64_t[]){ N, COUNT, 1 }, table);
    g.result = graph_select_rows(&g, graph_add(&g, graph_embed(&g, w, 1), graph_embed_position(&g, w, 2)));
    while (gpu_backend_upload(gpu, &g, &e) == GM_AGAIN) gpu_host_wait(gpu->host, 100);
    const run_inputs in = { .records = records, .tokens = COUNT, .output_rows = rows, .outputs = COUNT };
    CHECK_MESSAGE(!e.status && !gpu_plan_new(gpu, &g, COUNT, COUNT, NULL, &plan, &e), "%s", e.why);
    const uint32_t ticket = gpu_ticket_new(gpu->host);
    while (plan && gpu_plan_submit(plan, &in, ticket, &e) == GM_AGAIN) gpu_host_wait(gpu->host, 100);
    while (plan && !e.status && !(got = gpu_ticket_data(gpu->host, ticket, &arrived)) &&
           !gpu_host_problem(gpu->host, &e))
        gpu_host_wait(gpu->host, 100);
    CHECK_MESSAGE(got && arrived >= COUNT * N * sizeof *got, "%s", e.why);
    size_t wrong = 0;
    for (size_t i = 0; i < COUNT * N && got; i++) {
        const float want =
            table[(size_t)records[i / N].id * N + i % N] + 2 * table[records[i / N].position * N + i % N];
        wrong += fabsf(got[i] - want) > 1e-5f;
    }
    CHECK_MESSAGE(!wrong, "%zu values are wrong", wrong);
    gpu_ticket_done(gpu->host, ticket);
    gpu_plan_free(plan);
    gpu_backend_release(gpu, &g);
    graph_free(&g);
    free(table);
    free(records);
    free(rows);
}

static void test_cpu(const model_parts *m, const float *reference) {
    const cpu_kernels *const *tables;
    const size_t              count = cpu_kernels_available(&tables);
    for (size_t i = 0; i < count; i++) {
        error       e = { 0 };
        cpu_backend cpu;
        TEST("%s opens", tables[i]->name);
        CHECK_MESSAGE(!cpu_backend_open(&cpu, tables[i]->name, 3, true, &e), "%s", e.why);
        if (e.status) continue;
        test_mixed(&(backend){ .name = tables[i]->name, .cpu = &cpu }, m, reference, 1e-6);
        cpu_backend_close(&cpu);
    }
}

static void test_gpu(const model_parts *m, const float *reference, const char *disable) {
    error       e = { 0 };
    gm_status   status;
    gpu_backend gpu;
    TEST("the GPU opens");
    CHECK_MESSAGE(!gpu_backend_open(&gpu, &(gpu_options){ .adapter = -1, .disable = disable }, true, &e), "%s", e.why);
    if (e.status) return;
    while ((status = gpu_backend_upload(&gpu, &m->g, &e)) == GM_AGAIN) gpu_host_wait(gpu.host, 100);
    CHECK_MESSAGE(!status, "%s", e.why);
    const backend b = { .name = "gpu", .gpu = &gpu };
    if (!status) test_mixed(&b, m, reference, 1e-5);
    if (!status) test_spans(&b, m);
    if (!status) test_many(&gpu);
    gpu_backend_close(&gpu);
}

int main(int argc, char **argv) {
    error       e = { 0 };
    cpu_backend scalar;
    model_parts m = { 0 };
    float      *reference = calloc(COUNT_OF(runs) * MOST_TOKENS * WIDTH, sizeof *reference);
    TEST("the reference");
    CHECK_MESSAGE(!cpu_backend_open(&scalar, "scalar", 1, true, &e), "%s", e.why);
    records_graph(&m);
    if (e.status || m.g.problem.status) return test_end();
    compute_all(&(backend){ .name = "scalar", .cpu = &scalar }, &m, false, reference);
    if (argc > 1 && !strcmp(argv[1], "gpu")) test_gpu(&m, reference, argc > 2 ? argv[2] : "");
    else test_cpu(&m, reference);
    cpu_backend_close(&scalar);
    free_parts(&m);
    free(reference);
    return test_end();
}
