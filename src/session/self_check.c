#include "session/self_check.h"

#include "base/random.h"
#include "cpu/backend.h"
#include "gpu/kernels.h"
#include "session/kv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TABLE_ROWS = 40, /* inputs are rows of a table, as in a model */
    CLASS = 16,      /* the shape class of the runs with several tokens */
    TOKENS = 13,     /* which leaves some of it empty */
    ROWS = 256,      /* of a product with the model's own depth */
    ODD_ROWS = 37,   /* of one that fits no tile */
    EXPERTS = 8,
    ATTENTION_WIDTH = 32,
    FULL_SLOTS = 512, /* as many as a session begins with, so that its kernels are the same */
};

/* Two batches, then one token, which reads what the first two left. */
enum { FIRST_BATCH, SECOND_BATCH, ONE_TOKEN, RUNS };
static const uint32_t run_tokens[RUNS] = { TOKENS, TOKENS, 1 };

/* Where blocks count, tokens 3 to 8 of a batch are one. */
static const uint32_t last_seen[TOKENS] = { 0, 1, 2, 8, 8, 8, 8, 8, 8, 9, 10, 11, 12 };

/* Which of them a check has. */
enum { BATCHED = 1 << FIRST_BATCH, SINGLE = 1 << ONE_TOKEN, ALL_RUNS = BATCHED | 1 << SECOND_BATCH | SINGLE };

typedef enum { CHECK_NORM, CHECK_EMBED, CHECK_PRODUCT, CHECK_EXPERTS, CHECK_ATTENTION } check_kind;

typedef struct {
    check_kind  kind;
    char        what[96]; /* for messages */
    quant_type  type;
    const char *name; /* of a weight of the model whose first blocks are used */
    const void *data; /* these blocks; NULL: they are in the source */
    source     *from;
    uint64_t    place;
    uint64_t    k, rows, experts;      /* how they are read */
    uint32_t    used;                  /* experts of a token */
    uint32_t    heads, kv_heads, head; /* attention */
    uint32_t    window;
    uint64_t    start;  /* position of the first token */
    bool        gated;  /* a product's two halves pass a GELU gate, as gate and up do */
    bool        blocks; /* attention: some of a batch's tokens see each other */
    uint32_t    runs;
} check;

struct self_check {
    gpu_host         *host;
    gpu_backend       gpu; /* on the engine's host, with weights of its own */
    cpu_backend       cpu;
    quant_type        kv_type;
    float             eps;
    check            *checks;
    size_t            count, capacity;
    self_check_spoil *spoil;
    void             *spoil_user;
    reads            *reads;

    /* the check that is under way */
    size_t       next, run;
    bool         open, uploaded;
    graph        g;
    gpu_plan    *plans[2]; /* for one token, for several */
    cpu_plan    *reference;
    gpu_kv_layer gpu_kv;
    kv_layer     cpu_kv;
    uint32_t     ticket;
    uint8_t     *blocks; /* of a weight, read for this check */
    uint32_t     blocks_ticket;
    int32_t      ids[TOKENS];
};

/* ---- what is to be checked ---------------------------------------------------------------------------------------------- */

/* Whether something of this kind and type is to be checked already. */
static bool known(const self_check *c, check_kind kind, quant_type type) {
    for (size_t i = 0; i < c->count; i++) {
        if (c->checks[i].kind == kind && c->checks[i].type == type) return true;
    }
    return false;
}

static bool known_by_name(const self_check *c, const char *what) {
    for (size_t i = 0; i < c->count; i++) {
        if (!strcmp(c->checks[i].what, what)) return true;
    }
    return false;
}

static void add_check(self_check *c, check added, error *e) {
    if (e->status || known_by_name(c, added.what)) return;
    if (c->count == c->capacity) {
        const size_t capacity = c->capacity ? 2 * c->capacity : 32;
        check       *checks = realloc(c->checks, capacity * sizeof *checks);
        if (!checks) {
            fail_memory(e, "the self-check", capacity * sizeof *checks);
            return;
        }
        c->checks = checks;
        c->capacity = capacity;
    }
    c->checks[c->count++] = added;
}

/* Blocks lie one behind the other, so the first ones of a tensor can be read in any shape that is made of whole blocks. */
static check shaped(check_kind kind, const tensor *weight, uint64_t k, uint64_t rows, uint64_t experts) {
    check          added = { .kind = kind,
                             .type = weight->type,
                             .name = weight->name,
                             .data = weight->data,
                             .from = weight->from,
                             .place = weight->place };
    const uint64_t elements = weight->ne[0] * weight->ne[1] * weight->ne[2],
                   block = quant_format_of(weight->type)->block;
    added.k = k < block ? block : k / block * block;
    added.experts = min_size(experts, elements / added.k);
    added.rows = min_size(rows, elements / added.k / added.experts);
    return added;
}

/* A product with each weight type: of one token in a width of the model, behind a gate; of several in an odd shape. */
static void add_product(self_check *c, const op *o, uint64_t width, error *e) {
    const tensor       *w = o->in[0];
    const quant_format *f = quant_format_of(w->type);
    const bool          experts = o->kind == OP_MATMUL_EXPERTS;
    const check_kind    kind = experts ? CHECK_EXPERTS : CHECK_PRODUCT;
    const uint64_t      several = experts ? min_size(w->ne[2], EXPERTS) : 1;
    const struct {
        uint64_t k, rows;
        uint32_t runs;
        bool     gated;
    } shapes[] = { { min_size(w->ne[0], width), ROWS / several, SINGLE, true },
                   { f->block == 1 ? 33 : 3 * (uint64_t)f->block, ODD_ROWS, BATCHED, false } };
    if (known(c, kind, w->type)) return;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        check added = shaped(kind, w, min_size(shapes[i].k, w->ne[0]), shapes[i].rows, several);
        added.used = (uint32_t)min_size(o->used, added.experts);
        added.gated = shapes[i].gated && added.rows >= 2;
        added.runs = shapes[i].runs;
        if (added.gated) added.rows -= added.rows % 2;
        snprintf(added.what, sizeof added.what, "%s products%s of %s", f->name, experts ? " of experts" : "",
                 shapes[i].runs == SINGLE ? "one token" : "several tokens");
        add_check(c, added, e);
    }
}

static void add_embed(self_check *c, const op *o, uint64_t width, error *e) {
    check added = shaped(CHECK_EMBED, o->in[0], min_size(o->in[0]->ne[0], width), TABLE_ROWS, 1);
    added.runs = BATCHED | SINGLE;
    snprintf(added.what, sizeof added.what, "%s embeddings", quant_format_of(added.type)->name);
    add_check(c, added, e);
}

/* A ring closes on itself within the runs: what lies before them is zero on both sides. */
static void add_attention(self_check *c, const op *o, const model_config *config, error *e) {
    const layer_config *layer = &config->layer[o->layer];
    check               added = { .kind = CHECK_ATTENTION,
                                  .heads = (uint32_t)o->in[0]->ne[1],
                                  .kv_heads = layer->kv_heads,
                                  .head = layer->head,
                                  .window = o->window,
                                  .blocks = o->blocks,
                                  .start = o->window ? o->window + KV_SLACK - TOKENS - 1 : 0,
                                  .runs = ALL_RUNS };
    snprintf(added.what, sizeof added.what, "%s attention (%u/%u heads of %u, %s keys and values)",
             added.window ? "sliding" : "full", added.heads, added.kv_heads, added.head,
             quant_format_of(c->kv_type)->name);
    add_check(c, added, e);
}

static gm_status find_checks(self_check *c, const graph *g, const model_config *config, error *e) {
    const uint64_t width = config->width;
    add_check(c, (check){ .kind = CHECK_NORM, .what = "RMS norms", .k = width, .runs = BATCHED | SINGLE }, e);
    for (size_t i = 0; i < g->op_count && !e->status; i++) {
        const op *o = &g->ops[i];
        if (o->kind == OP_EMBED) add_embed(c, o, width, e);
        if (o->kind == OP_MATMUL || o->kind == OP_MATMUL_EXPERTS) add_product(c, o, width, e);
        if (o->kind == OP_ATTENTION) add_attention(c, o, config, e);
    }
    return e->status;
}

/* ---- the graph of a check ------------------------------------------------------------------------------------------------ */

/* `n` floats between `low` and `high`, the same ones every time, as a weight of the graph. */
static tensor *noise(graph *g, uint32_t stream, uint64_t n, uint64_t rows, float low, float high) {
    const uint32_t key[2] = { 0x67656d6d, stream };
    float         *values = arena_array(&g->memory, (size_t)(n * rows), sizeof *values);
    if (!values) {
        fail_memory(&g->problem, "the self-check's inputs", n * rows * sizeof *values);
        return NULL;
    }
    for (uint64_t i = 0; i < n * rows; i += 4) {
        uint32_t words[4];
        philox((uint32_t[]){ (uint32_t)i, 0, 0, 0 }, key, words);
        for (uint64_t j = 0; j < 4 && i + j < n * rows; j++)
            values[i + j] = low + (high - low) * (float)(words[j] >> 8) / (float)(1 << 24);
    }
    return graph_weight(g, "self-check", TYPE_F32, (uint64_t[]){ n, rows, 1 }, values);
}

static tensor *input(graph *g, uint64_t width) { return graph_embed(g, noise(g, 1, width, TABLE_ROWS, -1, 1), 1); }

static tensor *norm(const self_check *c, graph *g, tensor *x) {
    return x ? graph_rms_norm(g, x, noise(g, 2, x->ne[0], 1, 0.5f, 1.5f), c->eps) : NULL;
}

/* The blocks of a check as a matrix: rows from `first` on. */
static tensor *matrix(graph *g, const check *k, uint64_t first, uint64_t rows) {
    const uint64_t row = quant_row_bytes(quant_format_of(k->type), k->k);
    return graph_weight(g, k->name, k->type, (uint64_t[]){ k->k, rows, k->experts },
                        (const uint8_t *)k->data + first * row);
}

/* The graphs are made of what stands together in a model, so that a plan fuses here what it fuses there. */

static tensor *norms(const self_check *c, graph *g, const check *k) {
    tensor *x = input(g, k->k);
    return norm(c, g, graph_add(g, x, norm(c, g, graph_scale(g, x, 3))));
}

static tensor *product(const self_check *c, graph *g, const check *k) {
    tensor *x = norm(c, g, input(g, k->k));
    if (!k->gated) return graph_matmul(g, matrix(g, k, 0, k->rows), x);
    const uint64_t half = k->rows / 2;
    return graph_geglu(g, graph_matmul(g, matrix(g, k, 0, half), x), graph_matmul(g, matrix(g, k, half, half), x));
}

static tensor *experts(const self_check *c, graph *g, const check *k) {
    tensor *x = norm(c, g, input(g, k->k));
    tensor *routes = graph_route(g, graph_matmul(g, noise(g, 3, k->k, k->experts, -1, 1), x), NULL, k->used);
    tensor *y = graph_matmul_experts(g, matrix(g, k, 0, k->rows), x, routes, k->used);
    if (k->gated) {
        const uint64_t half = k->rows / 2;
        y = graph_geglu(g, graph_slice(g, y, 0, half, k->used), graph_slice(g, y, half, half, k->used));
    }
    return graph_expert_sum(g, y, routes, k->used);
}

/* Queries and keys are normed and turned, values normed; small weights keep the softmax from being one value. */
static tensor *attention(const self_check *c, graph *g, const check *k) {
    const uint64_t head = k->head, rows = head * k->kv_heads;
    tensor        *x = input(g, ATTENTION_WIDTH), *rope = graph_rope_table(g, noise(g, 4, head / 2, 1, 0, 1));
    tensor        *q = graph_matmul(g, noise(g, 5, ATTENTION_WIDTH, head * k->heads, -1, 1), x);
    tensor        *keys = graph_matmul(g, noise(g, 6, ATTENTION_WIDTH, rows, -1, 1), x);
    tensor        *values = graph_matmul(g, noise(g, 7, ATTENTION_WIDTH, rows, -1, 1), x);
    tensor        *weight = noise(g, 8, head, 1, 0.3f, 0.5f);
    q = graph_rope(g, graph_rms_norm(g, graph_reshape(g, q, head, k->heads), weight, c->eps), rope);
    keys = graph_rope(g, graph_rms_norm(g, graph_reshape(g, keys, head, k->kv_heads), weight, c->eps), rope);
    values = graph_rms_norm(g, graph_reshape(g, values, head, k->kv_heads), NULL, c->eps);
    graph_kv_store(g, keys, values, 0);
    return k->blocks ? graph_attention_blocks(g, q, 0, k->window) : graph_attention(g, q, 0, k->window);
}

static gm_status build(const self_check *c, const check *k, graph *g, error *e) {
    switch (k->kind) {
    case CHECK_NORM: g->result = norms(c, g, k); break;
    case CHECK_EMBED: g->result = graph_embed(g, matrix(g, k, 0, k->rows), 1.5f); break;
    case CHECK_PRODUCT: g->result = product(c, g, k); break;
    case CHECK_EXPERTS: g->result = experts(c, g, k); break;
    case CHECK_ATTENTION: g->result = attention(c, g, k); break;
    }
    if (g->problem.status) return fail(e, g->problem.status, "%s", g->problem.why);
    return g->result ? GM_OK : fail_memory(e, "the self-check", sizeof(tensor));
}

/* ---- life ---------------------------------------------------------------------------------------------------------------- */

gm_status self_check_new(gpu_host *host, const graph *g, const model_config *config, quant_type kv, bool precise,
                         self_check **out, error *e) {
    *out = NULL;
    self_check *c = calloc(1, sizeof *c);
    if (!c) return fail_memory(e, "the self-check", sizeof *c);
    c->host = host;
    c->gpu = (gpu_backend){ .host = host, .precise = precise };
    c->kv_type = kv;
    c->eps = config->eps;
    if (!cpu_backend_open(&c->cpu, "scalar", 1, true, e)) find_checks(c, g, config, e);
    if (e->status) self_check_free(c);
    else *out = c;
    return e->status;
}

static void close_check(self_check *c) {
    if (c->ticket) gpu_ticket_done(c->host, c->ticket);
    reads_drop(c->reads, c->blocks_ticket);
    free(c->blocks);
    c->blocks = NULL;
    c->blocks_ticket = 0;
    for (size_t i = 0; i < COUNT_OF(c->plans); i++) gpu_plan_free(c->plans[i]);
    if (c->gpu_kv.k) gpu_buffer_free(c->host, c->gpu_kv.k);
    if (c->gpu_kv.v) gpu_buffer_free(c->host, c->gpu_kv.v);
    gpu_backend_clear(&c->gpu);
    cpu_plan_free(c->reference);
    graph_free(&c->g); /* the CPU's cache lies in its arena */
    c->g = (graph){ 0 };
    c->plans[0] = c->plans[1] = NULL;
    c->reference = NULL;
    c->gpu_kv = (gpu_kv_layer){ 0 };
    c->ticket = 0;
    c->run = 0;
    c->open = c->uploaded = false;
}

void self_check_free(self_check *c) {
    if (!c) return;
    close_check(c);
    cpu_backend_close(&c->cpu);
    free(c->checks);
    free(c);
}

void self_check_read_by(self_check *c, reads *r) { c->reads = r; }

void self_check_spoil_by(self_check *c, self_check_spoil *spoil, void *user) {
    c->spoil = spoil;
    c->spoil_user = user;
}

const char *self_check_name(const self_check *c, size_t index) {
    return index < c->count ? c->checks[index].what : NULL;
}

/* ---- running ------------------------------------------------------------------------------------------------------------- */

static gm_status make_caches(self_check *c, const check *k, error *e) {
    const uint32_t slots = k->window ? k->window + KV_SLACK : FULL_SLOTS;
    const uint64_t row = quant_row_bytes(quant_format_of(c->kv_type), (uint64_t)k->kv_heads * k->head);
    const uint64_t bytes = round_up(gpu_kv_row_bytes(c->kv_type, k->kv_heads, k->head) * slots, 16);
    uint8_t       *rows = arena_array(&c->g.memory, 2 * slots, (size_t)row);
    if (!rows) return fail_memory(e, "the self-check's keys and values", 2 * slots * row);
    c->cpu_kv = (kv_layer){
        .k = rows, .v = rows + slots * row, .type = c->kv_type, .slots = slots, .kv_heads = k->kv_heads, .head = k->head
    };
    c->gpu_kv = (gpu_kv_layer){ .k = gpu_buffer_new(c->host, bytes, e),
                                .v = gpu_buffer_new(c->host, bytes, e),
                                .type = c->kv_type,
                                .slots = k->window ? slots : GPU_KV_NO_RING,
                                .kv_heads = k->kv_heads,
                                .head = k->head,
                                .bytes = bytes };
    return e->status;
}

static gm_status open_check(self_check *c, const check *k, error *e) {
    c->open = true;
    if (build(c, k, &c->g, e)) return e->status;
    if (k->kind == CHECK_ATTENTION && make_caches(c, k, e)) return e->status;
    return cpu_plan_new(&c->cpu, &c->g, TOKENS, 1, &c->reference, e);
}

static size_t rows_of_table(const check *k) { return k->kind == CHECK_EMBED ? (size_t)k->rows : TABLE_ROWS; }

static gm_status submit(self_check *c, const check *k, error *e) {
    const uint32_t tokens = run_tokens[c->run];
    gpu_plan     **plan = &c->plans[tokens > 1];
    for (uint32_t t = 0; t < tokens; t++) c->ids[t] = (int32_t)((t * 7 + c->run * 3 + 1) % rows_of_table(k));
    if (!*plan && gpu_plan_new(&c->gpu, &c->g, tokens > 1 ? CLASS : 1, 1, &c->gpu_kv, plan, e)) return e->status;
    c->ticket = gpu_ticket_new(c->host);
    const gpu_inputs in = { .ids = c->ids,
                            .tokens = tokens,
                            .start = k->start + c->run * TOKENS,
                            .last_seen = k->blocks && tokens > 1 ? last_seen : NULL };
    return gpu_plan_submit(*plan, &in, c->ticket, e);
}

/* ---- comparing ----------------------------------------------------------------------------------------------------------- */

/* How far a value may be off, as a part of the root mean square of all: 8-bit activations round each input to 1/127 of its
 * group's largest; f16 sums, and keys that fall to the other side of a rounding, are far closer. */
static double tolerance_of(const self_check *c, const check *k) {
    if (c->gpu.precise) return 2e-3;
    return k->kind == CHECK_PRODUCT || k->kind == CHECK_EXPERTS ? 0.12 : 2e-2;
}

/* The optional features that are in use, as --gpu-disable takes them. */
static const char *features_in_use(const gpu_info *info, char out[80]) {
    snprintf(out, 80, "%s%s%s%s", info->subgroups ? ",subgroups" : "", info->f16 ? ",f16" : "",
             info->dot4 ? ",dot4" : "", info->subgroup_matrix ? ",subgroup_matrix" : "");
    return *out ? out + 1 : out;
}

static gm_status refuse(const self_check *c, const check *k, float expected, float found, error *e) {
    const gpu_info *info = gpu_host_info(c->host);
    char            list[80];
    const char     *features = features_in_use(info, list);
    return fail(e, GM_NO_DEVICE, "the GPU '%.60s' (driver %.60s) computes %s wrongly: expected %g, found %g%s%s%s",
                info->name, *info->driver ? info->driver : "unknown", k->what, (double)expected, (double)found,
                *features ? "; --gpu-disable " : "", features, *features ? " may help" : "");
}

static gm_status compare(const self_check *c, const check *k, const float *expected, const float *found, error *e) {
    const size_t n = run_tokens[c->run] * (size_t)c->g.result->token_stride;
    double       squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)expected[i] * expected[i];
    const double most = tolerance_of(c, k) * sqrt(squares / (double)n);
    for (size_t i = 0; i < n; i++) {
        if (!(fabs((double)found[i] - expected[i]) <= most)) return refuse(c, k, expected[i], found[i], e); /* or NaN */
    }
    return GM_OK;
}

/* The run's results are here: the same on the CPU, and compared. */
static gm_status finish_run(self_check *c, const check *k, const void *data, uint64_t bytes, error *e) {
    const size_t     n = run_tokens[c->run] * (size_t)c->g.result->token_stride;
    const cpu_inputs in = { .ids = c->ids,
                            .tokens = run_tokens[c->run],
                            .start = k->start + c->run * TOKENS,
                            .kv = &c->cpu_kv,
                            .last_seen = k->blocks && run_tokens[c->run] > 1 ? last_seen : NULL };
    if (bytes < n * sizeof(float))
        return fail(e, GM_IO, "the GPU gave back %llu bytes in the self-check, %zu were expected",
                    (unsigned long long)bytes, n * sizeof(float));
    float *found = malloc(n * sizeof *found);
    if (!found) return fail_memory(e, "the self-check's results", n * sizeof *found);
    memcpy(found, data, n * sizeof *found);
    if (c->spoil) c->spoil(c->spoil_user, k->what, found, n);
    while (cpu_plan_step(c->reference, &in, INFINITY) == GM_AGAIN) {}
    compare(c, k, cpu_plan_result(c->reference), found, e);
    free(found);
    gpu_ticket_done(c->host, c->ticket);
    c->ticket = 0;
    return e->status;
}

/* The check's blocks come into memory. */
static gm_status read_blocks(self_check *c, check *k, error *e) {
    const uint64_t bytes = quant_row_bytes(quant_format_of(k->type), k->k) * k->rows * k->experts;
    if (!c->reads || bytes > READ_BYTES_MOST) return fail(e, GM_IO, "tensor '%s' is not in memory", k->name);
    if (!c->blocks) c->blocks = malloc((size_t)bytes);
    if (!c->blocks) return fail_memory(e, "the self-check's blocks", bytes);
    if (!c->blocks_ticket)
        c->blocks_ticket = reads_ask(
            c->reads, &(read_order){ .from = k->from, .offset = k->place, .length = bytes, .memory = c->blocks });
    if (!c->blocks_ticket) return GM_AGAIN;
    const gm_status status = reads_take(c->reads, c->blocks_ticket, e);
    if (status == GM_AGAIN) return status;
    c->blocks_ticket = 0;
    if (!status) k->data = c->blocks;
    return status;
}

/* The runs of one check. */
static gm_status step_check(self_check *c, check *k, error *e) {
    if (!k->data && k->from) {
        const gm_status status = read_blocks(c, k, e);
        if (status) return status;
    }
    if (!c->open && open_check(c, k, e)) return e->status;
    if (!c->uploaded) {
        const gm_status status = gpu_backend_upload(&c->gpu, &c->g, e);
        if (status) return status;
        c->uploaded = true;
    }
    for (; c->run < RUNS; c->run++) {
        uint64_t bytes = 0;
        if (!(k->runs >> c->run & 1)) continue;
        if (!c->ticket && submit(c, k, e)) return e->status;
        const void *data = gpu_ticket_data(c->host, c->ticket, &bytes);
        if (gpu_host_problem(c->host, e)) return e->status;
        if (!data) return GM_AGAIN;
        if (finish_run(c, k, data, bytes, e)) return e->status;
    }
    return GM_OK;
}

gm_status self_check_step(self_check *c, error *e) {
    for (; c->next < c->count; c->next++) {
        check          *k = &c->checks[c->next];
        const gm_status status = step_check(c, k, e);
        if (status) return status;
        if (c->blocks) k->data = NULL;
        close_check(c);
    }
    return GM_OK;
}
