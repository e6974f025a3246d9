/* The rows of kernels_gpu: pieces of Gemma 4's graphs on the shapes of E2B and 26B-A4B. */

#ifndef GM_KERNELS_GPU_ROWS_H
#define GM_KERNELS_GPU_ROWS_H

#include "gpu/backend.h"
#include "gpu/kernels.h"

#include <stdio.h>

enum {
    MOST_COPIES = 64,
    ROUTES = 8,
    TOKENS = 256,
    LEARNED = 512,
    LEARNED_LONG = 2048,
    PATCHES = 2520,
    HEARD = 750
}; /* of a prompt, two sequences to learn from, a picture, 30 s of sound */

typedef struct scene scene;
typedef struct {
    const char *name;
    void (*begin)(scene *s); /* what stands once before all repeats; NULL: nothing */
    void (*piece)(scene *s, size_t i);
    quant_type type;
    uint32_t   tokens, width; /* of the input */
    uint32_t   n, rows;       /* what the piece makes of it: see each */
    uint32_t   kv_heads, window, depth;
} row;

struct scene {
    row            row;
    gpu_backend   *gpu;
    graph          g;
    size_t         repeats, copies;
    tensor        *x, *other, *routes[ROUTES], *keys, *values;
    const uint8_t *matrices; /* random blocks of the row's type */
    const float   *numbers;  /* random */
    gpu_kv_layer   kv[MOST_COPIES];
    uint64_t       bytes; /* moved by one piece */
    uint64_t       held;  /* its weights or caches */
    double         products;
};

enum { EXPERTS = 128, USED = 8 };

/* Weights are told apart by their address: all share the random blocks, each begins a block later than the one before. */
static tensor *matrix(scene *s, size_t which, size_t i, uint64_t k, uint64_t m, uint64_t experts) {
    const quant_format *f = quant_format_of((uint32_t)s->row.type);
    const size_t        number = which * MOST_COPIES + i % s->copies;
    return graph_weight(&s->g, "matrix", s->row.type, (uint64_t[]){ k, m, experts }, s->matrices + number * f->bytes);
}

static tensor *numbers(scene *s, size_t which, uint64_t n, uint64_t rows) {
    return graph_weight(&s->g, "numbers", TYPE_F32, (uint64_t[]){ n, rows, 1 }, s->numbers + 16 * which);
}

static uint64_t matrix_bytes(const scene *s, uint64_t k, uint64_t m, uint64_t experts) {
    error         e = { 0 };
    weight_layout layout = { 0 };
    weight_layout_make(&layout, s->row.type, (uint64_t[]){ k, m, experts }, gpu_host_info(s->gpu->host)->max_binding,
                       &e);
    return e.status ? 0 : weight_bytes(&layout);
}

static void count_values(scene *s, uint64_t values) { s->bytes += values * s->row.tokens * sizeof(float); }

static void count_product(scene *s, uint64_t k, uint64_t m) {
    s->bytes += matrix_bytes(s, k, m, 1);
    s->held += matrix_bytes(s, k, m, 1);
    s->products += (double)(k * m) * s->row.tokens;
    count_values(s, k + m);
}

static void piece_scale(scene *s, size_t i) {
    s->g.result = graph_scale(&s->g, i ? s->g.result : s->x, 1.0009765625f);
    if (!i) count_values(s, 2 * (uint64_t)s->row.width);
}

/* Each has a view of its own: products of one column would be taken together. */
static void piece_matmul(scene *s, size_t i) {
    tensor *column = graph_reshape(&s->g, s->x, s->row.width, 1);
    s->g.result = graph_matmul(&s->g, matrix(s, 0, i, s->row.width, s->row.rows, 1), column);
    if (!i) count_product(s, s->row.width, s->row.rows);
}

static tensor *adapted(scene *s, size_t which, size_t i, tensor *y, tensor *x) {
    const uint32_t  rank = s->row.n;
    const size_t    a = 20000 + which * 9000 + i % s->copies * 17, b = a + 64;
    const lora_site site = { .a = numbers(s, a, rank * x->ne[0], 1),
                             .b = numbers(s, b + 4500, rank * y->ne[0], 1),
                             .sets = numbers(s, 5, 4, 1),
                             .rank = rank,
                             .slots = 1,
                             .experts = 1 };
    return graph_lora_expand(&s->g, &site, y, graph_lora_shrink(&s->g, &site, x, NULL, 0), NULL, 0);
}

static void count_adapter(scene *s, uint64_t k, uint64_t m) {
    const uint64_t values = (k + m) * s->row.n;
    s->bytes += values * sizeof(float);
    s->held += values * sizeof(float);
    s->products += (double)values * s->row.tokens;
}

/* W · x + B · (A · x) of rank n: beside "matmul" of the same shape, what an adapter costs. */
static void piece_adapted(scene *s, size_t i) {
    tensor *column = graph_reshape(&s->g, s->x, s->row.width, 1);
    tensor *y = graph_matmul(&s->g, matrix(s, 0, i, s->row.width, s->row.rows, 1), column);
    s->g.result = adapted(s, 0, i, y, column);
    if (i) return;
    count_product(s, s->row.width, s->row.rows);
    count_adapter(s, s->row.width, s->row.rows);
}

static void piece_norm(scene *s, size_t i) {
    tensor *x = graph_reshape(&s->g, s->x, s->row.n, s->row.rows);
    s->g.result = graph_rms_norm(&s->g, x, numbers(s, 1, s->row.n, 1), 1e-6f);
    if (!i) count_values(s, 2 * (uint64_t)s->row.width);
}

/* gelu(Wgate · n) · Wup · n, n = norm(x); both with adapters, if the row has a rank */
static void piece_gated(scene *s, size_t i) {
    tensor *n = graph_rms_norm(&s->g, s->x, numbers(s, 1, s->row.width, 1), 1e-6f);
    tensor *gate = graph_matmul(&s->g, matrix(s, 0, i, s->row.width, s->row.rows, 1), n);
    tensor *up = graph_matmul(&s->g, matrix(s, 1, i, s->row.width, s->row.rows, 1), n);
    if (s->row.n) gate = adapted(s, 0, i, gate, n);
    if (s->row.n) up = adapted(s, 1, i, up, n);
    s->g.result = graph_geglu(&s->g, gate, up);
    for (size_t which = 0; !i && which < 2; which++) {
        count_product(s, s->row.width, s->row.rows);
        if (s->row.n) count_adapter(s, s->row.width, s->row.rows);
    }
}

static void begin_turned(scene *s) { s->other = graph_rope_table(&s->g, numbers(s, 2, s->row.n / 2, 1), 1); }

static void piece_rope(scene *s, size_t i) {
    s->g.result = graph_rope(&s->g, graph_reshape(&s->g, s->x, s->row.n, s->row.rows), s->other);
    if (!i) count_values(s, 2 * (uint64_t)s->row.width);
}

/* Queries, keys and values of norm(x), each with its norm, turned, stored, and the attention of an empty cache. */
static void piece_qkv(scene *s, size_t i) {
    const uint64_t head = s->row.n, queries = head * s->row.rows, keys = head * s->row.kv_heads;
    tensor        *n = graph_rms_norm(&s->g, s->x, numbers(s, 1, s->row.width, 1), 1e-6f);
    tensor        *q = graph_matmul(&s->g, matrix(s, 0, i, s->row.width, queries, 1), n);
    tensor        *k = graph_matmul(&s->g, matrix(s, 1, i, s->row.width, keys, 1), n);
    tensor        *v = graph_matmul(&s->g, matrix(s, 2, i, s->row.width, keys, 1), n);
    k = graph_rms_norm(&s->g, graph_reshape(&s->g, k, head, s->row.kv_heads), numbers(s, 3, head, 1), 1e-6f);
    v = graph_rms_norm(&s->g, graph_reshape(&s->g, v, head, s->row.kv_heads), NULL, 1e-6f);
    tensor *cache = graph_kv_store(&s->g, graph_rope(&s->g, k, s->other), v, (uint32_t)(i % s->copies), s->row.window);
    q = graph_rms_norm(&s->g, graph_reshape(&s->g, q, head, s->row.rows), numbers(s, 4, head, 1), 1e-6f);
    s->g.result = graph_attention(&s->g, graph_rope(&s->g, q, s->other), cache);
    if (i) return;
    count_product(s, s->row.width, queries);
    for (size_t which = 0; which < 2; which++) count_product(s, s->row.width, keys);
}

static void begin_store(scene *s) {
    const uint64_t n = (uint64_t)s->row.n * s->row.kv_heads;
    tensor        *keys = graph_scale(&s->g, graph_slice(&s->g, s->x, 0, n, 1), 1);
    tensor        *values = graph_scale(&s->g, graph_slice(&s->g, s->x, n, n, 1), 1);
    s->keys = graph_reshape(&s->g, keys, s->row.n, s->row.kv_heads);
    s->values = graph_reshape(&s->g, values, s->row.n, s->row.kv_heads);
}

static void piece_store(scene *s, size_t i) {
    graph_kv_store(&s->g, s->keys, s->values, (uint32_t)(i % s->copies), s->row.window);
    if (!i) s->bytes += (uint64_t)s->row.tokens * s->row.n * s->row.kv_heads * 2 * (sizeof(float) + 2);
}

/* Positions that the tokens see on average. */
static double seen(const row *r) {
    const double from = r->depth + 1.0, to = (double)r->depth + r->tokens, most = r->window ? r->window : to;
    return from > most ? most : (from + (to < most ? to : most)) / 2;
}

static void piece_attention(scene *s, size_t i) {
    tensor *q = graph_reshape(&s->g, s->x, s->row.n, s->row.rows);
    s->g.result = graph_attention(&s->g, q, graph_kv(&s->g, (uint32_t)(i % s->copies), s->row.window));
    if (i) return;
    const double   visible = seen(&s->row), values = (double)s->row.n * s->row.rows;
    const uint32_t last = s->row.depth + s->row.tokens,
                   reach = s->row.window && s->row.window + s->row.tokens < last ? s->row.window + s->row.tokens : last;
    s->held = 2 * (uint64_t)reach * gpu_kv_row_bytes(TYPE_F16, s->row.kv_heads, s->row.n);
    s->bytes += s->held; /* read once at best */
    s->products += 2 * visible * values * s->row.tokens;
    count_values(s, 2 * (uint64_t)s->row.width);
}

static void piece_embed(scene *s, size_t i) {
    s->g.result = graph_embed(&s->g, matrix(s, 0, i, s->row.n, s->row.rows, 1), 1);
    if (i) return;
    s->held = matrix_bytes(s, s->row.n, s->row.rows, 1);
    s->bytes += s->held / s->row.rows * s->row.tokens;
    count_values(s, s->row.n);
}

static void begin_pair(scene *s) { s->other = graph_scale(&s->g, s->x, 0.5f); }

static void piece_add(scene *s, size_t i) {
    s->g.result = graph_add(&s->g, s->x, s->other);
    if (!i) count_values(s, 3 * (uint64_t)s->row.width);
}

static void piece_geglu(scene *s, size_t i) {
    s->g.result = graph_geglu(&s->g, s->x, s->other);
    if (!i) count_values(s, 3 * (uint64_t)s->row.width);
}

static void piece_softcap(scene *s, size_t i) {
    s->g.result = graph_softcap(&s->g, s->x, 30);
    if (!i) count_values(s, 2 * (uint64_t)s->row.width);
}

/* Several routers, so that different experts are read in turn. row.n is the number of experts. */
static void begin_routes(scene *s) {
    const bool inner =
        s->row.width > 2816; /* the input is what the experts have inside: the router reads something else */
    tensor *x = inner ? graph_embed(&s->g, numbers(s, 50, s->row.width / USED, s->row.tokens), 1) : s->x;
    for (size_t i = 0; i < ROUTES; i++) {
        tensor *logits = graph_matmul(&s->g, numbers(s, 100 + 7 * i, x->ne[0], s->row.n), x);
        s->routes[i] = graph_route(&s->g, logits, NULL, USED);
    }
}

static void count_experts(scene *s, uint64_t k, uint64_t m) {
    const uint64_t pairs = (uint64_t)s->row.tokens * USED, touched = pairs < s->row.n ? pairs : s->row.n;
    s->held = matrix_bytes(s, k, m, s->row.n);
    s->bytes += s->held / s->row.n * touched;
    s->products += (double)(k * m) * (double)pairs;
    count_values(s, (k + m) * USED);
}

static void piece_experts_up(scene *s, size_t i) {
    tensor *w = matrix(s, 0, i, s->row.width, s->row.rows, s->row.n);
    s->g.result = graph_matmul_experts(&s->g, w, s->x, s->routes[i % ROUTES], USED);
    if (!i) count_experts(s, s->row.width, s->row.rows);
}

static void piece_experts_down(scene *s, size_t i) {
    const uint32_t k = s->row.width / USED;
    tensor        *w = matrix(s, 0, i, k, s->row.rows, s->row.n);
    s->g.result = graph_matmul_experts(&s->g, w, graph_reshape(&s->g, s->x, k, USED), s->routes[i % ROUTES], USED);
    if (!i) count_experts(s, k, s->row.rows);
}

static void piece_expert_sum(scene *s, size_t i) {
    tensor *x = graph_reshape(&s->g, s->x, s->row.width / USED, USED);
    s->g.result = graph_expert_sum(&s->g, x, s->routes[i % ROUTES], USED);
    if (!i) count_values(s, s->row.width + s->row.width / USED);
}

static void piece_route(scene *s, size_t i) {
    s->g.result = graph_route(&s->g, s->x, numbers(s, 1, s->row.width, 1), USED);
    if (!i) count_values(s, s->row.width);
}

/* ---- training ---- */

/* A product with f32 activations. */
static void piece_train_matmul(scene *s, size_t i) {
    s->g.trains = true;
    piece_matmul(s, i);
}

/* Wᵀ·x: W has `width` rows of `rows` values. */
static void piece_matmul_back(scene *s, size_t i) {
    tensor *column = graph_reshape(&s->g, s->x, s->row.width, 1);
    s->g.trains = true;
    s->g.result = graph_matmul_back(&s->g, matrix(s, 0, i, s->row.rows, s->row.width, 1), column);
    if (!i) count_product(s, s->row.rows, s->row.width);
}

/* The gradient of the attention's result, and something in the place of logarithms and δ. */
static void begin_attention_back(scene *s) {
    tensor *q = graph_reshape(&s->g, s->x, s->row.n, s->row.rows);
    s->other = graph_scale(&s->g, q, 0.5f);
    s->keys = graph_row_dot(&s->g, q, s->other);
    s->values = graph_scale(&s->g, s->keys, 1);
}

static void count_attention_back(scene *s, double products) {
    const double values = (double)s->row.n * s->row.rows;
    s->held = 2 * (uint64_t)s->row.tokens * gpu_kv_row_bytes(TYPE_F32, s->row.kv_heads, s->row.n);
    s->bytes += s->held;
    s->products += products * seen(&s->row) * values * s->row.tokens;
    count_values(s, 3 * (uint64_t)s->row.width);
}

static void piece_attention_train(scene *s, size_t i) {
    tensor *q = graph_reshape(&s->g, s->x, s->row.n, s->row.rows), *logs;
    s->g.result = graph_attention_logs(&s->g, q, graph_kv(&s->g, (uint32_t)(i % s->copies), s->row.window), &logs);
    if (!i) count_attention_back(s, 2);
}

static void piece_attention_back_q(scene *s, size_t i) {
    tensor *q = graph_reshape(&s->g, s->x, s->row.n, s->row.rows);
    tensor *cache = graph_kv(&s->g, (uint32_t)(i % s->copies), s->row.window);
    s->g.result = graph_attention_back_q(&s->g, q, cache, s->other, s->keys, s->values);
    if (!i) count_attention_back(s, 3);
}

static void piece_attention_back_kv(scene *s, size_t i) {
    tensor *q = graph_reshape(&s->g, s->x, s->row.n, s->row.rows);
    tensor *cache = graph_kv(&s->g, (uint32_t)(i % s->copies), s->row.window);
    s->g.result = graph_attention_back_kv(&s->g, q, cache, s->other, s->keys, s->values, s->row.kv_heads);
    if (!i) count_attention_back(s, 4);
}

static void piece_cross_entropy(scene *s, size_t i) {
    tensor *loss, *goals = graph_leaf(&s->g, AXIS_TOKENS, 2, 1);
    s->g.result = graph_cross_entropy(&s->g, s->x, goals, 30, &loss);
    if (!i) count_values(s, 2 * (uint64_t)s->row.width);
}

/* What the gradient of an adapter's matrices A and B costs: both are of this shape. `other` is [n], of rank n. */
static void begin_lora_gradient(scene *s) {
    s->other = graph_scale(&s->g, graph_slice(&s->g, s->x, 0, s->row.n, 1), 1);
}

static void piece_lora_gradient(scene *s, size_t i) {
    const op like = { .rank = s->row.n, .slots = 1 };
    graph_lora_gradient(&s->g, s->other, s->x, numbers(s, 200 + i % s->copies, s->row.n * (uint64_t)s->row.width, 1),
                        NULL, &like, 0, 1);
    if (i) return;
    count_values(s, s->row.width + s->row.n);
    s->products += (double)s->row.n * s->row.width * s->row.tokens;
}

/* A · x alone, and B · (A · x) alone, as training computes them. */
static void piece_lora_shrink(scene *s, size_t i) {
    const lora_site site = { .a = numbers(s, 20000 + i % s->copies * 17, s->row.n * (uint64_t)s->row.width, 1),
                             .b = numbers(s, 60000 + i % s->copies * 17, s->row.n * (uint64_t)s->row.width, 1),
                             .sets = numbers(s, 5, 4, 1),
                             .rank = s->row.n,
                             .slots = 1,
                             .experts = 1 };
    s->g.trains = true;
    tensor *shrunk = graph_lora_shrink(&s->g, &site, s->x, NULL, 0);
    s->g.result = graph_lora_correction(&s->g, &site, s->row.width, shrunk, NULL, 0);
    if (!i) count_adapter(s, s->row.width, s->row.width);
}

/* ---- diffusion ---- */

static void begin_canvas(scene *s) {
    s->other = graph_scale(&s->g, graph_slice(&s->g, s->x, 0, CANVAS_SETTINGS, 1), 1);
    s->values = graph_leaf(&s->g, AXIS_TOKENS, s->row.width, 1);
}

/* The head of a diffusion model, the softmax and the expected embedding: two products with the table */
static void piece_canvas(scene *s, size_t i) {
    tensor *table = matrix(s, 0, i, s->row.width, s->row.rows, 1);
    s->g.result = graph_canvas_head(&s->g, table, s->x, s->other, s->values, 30, 1);
    if (i) return;
    count_product(s, s->row.width, s->row.rows);
    s->products *= 2;
}

/* E2B has width 1536, 8 heads of 256 (sliding) or 512 on one K/V head, window 512; 26B-A4B width 2816, 16 heads on 8 (256) or
 * 2 (512), window 1024, 128 experts of 704, of which 8 are used. */
/* clang-format off */
static const row all_rows[] = {
    /* name, begin, piece, type, tokens, width, n, rows, kv_heads, window, depth */
    { "empty dispatch",    NULL,         piece_scale,        TYPE_F16,  1,      4,          0,       0,      0, 0,       0 },

    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      1536,       0,       2048,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      2048,       0,       1536,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      4096,       0,       1536,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      1536,       0,       6144,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      12288,      0,       1536,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q6_K, 1,      12288,      0,       1536,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q6_K, 1,      1536,       0,       262144, 0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_0, 1,      1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q8_0, 1,      1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_F16,  1,      1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_BF16, 1,      1536,       0,       8960,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      1536,       0,       256,    0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      256,        0,       1536,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      2816,       0,       4096,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, 1,      2816,       0,       2112,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q8_0, 1,      2112,       0,       2816,   0, 0,       0 },

    { "with adapters",     NULL,         piece_adapted,      TYPE_Q4_K, 1,      1536,       16,      2048,   0, 0,       0 },
    { "with adapters",     NULL,         piece_adapted,      TYPE_Q4_K, 1,      1536,       16,      12288,  0, 0,       0 },
    { "with adapters",     NULL,         piece_adapted,      TYPE_Q4_K, 1,      12288,      16,      1536,   0, 0,       0 },
    { "with adapters",     NULL,         piece_adapted,      TYPE_Q4_K, 8,      1536,       16,      12288,  0, 0,       0 },
    { "with adapters",     NULL,         piece_adapted,      TYPE_Q4_K, TOKENS, 1536,       16,      12288,  0, 0,       0 },
    { "with adapters",     NULL,         piece_adapted,      TYPE_Q4_K, TOKENS, 12288,      16,      1536,   0, 0,       0 },
    { "with adapters, gate and up", NULL, piece_gated,       TYPE_Q4_K, 1,      1536,       16,      12288,  0, 0,       0 },

    /* several sequences at once */
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 1,      1536,       0,       12288,  0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 2,      1536,       0,       12288,  0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 4,      1536,       0,       12288,  0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 8,      1536,       0,       12288,  0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 16,     1536,       0,       12288,  0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 32,     1536,       0,       12288,  0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 1,      1536,       0,       2048,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 4,      1536,       0,       2048,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 16,     1536,       0,       2048,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 1,      12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 2,      12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 4,      12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 8,      12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 16,     12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q4_K, 32,     12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q6_K, 1,      12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q6_K, 4,      12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q6_K, 16,     12288,      0,       1536,   0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q6_K, 1,      1536,       0,       262144, 0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q6_K, 4,      1536,       0,       262144, 0, 0,       0 },
    { "columns",           NULL,         piece_matmul,       TYPE_Q6_K, 16,     1536,       0,       262144, 0, 0,       0 },
    { "experts up",        begin_routes, piece_experts_up,   TYPE_Q4_K, 8,      2816,       EXPERTS, 1408,   0, 0,       0 },

    { "norm, gate and up", NULL,         piece_gated,        TYPE_Q4_K, 1,      1536,       0,       6144,   0, 0,       0 },
    { "norm, gate and up", NULL,         piece_gated,        TYPE_Q4_K, 1,      1536,       0,       12288,  0, 0,       0 },
    { "norm, gate and up", NULL,         piece_gated,        TYPE_Q4_K, 1,      2816,       0,       2112,   0, 0,       0 },
    { "norm to attention", begin_turned, piece_qkv,          TYPE_Q4_K, 1,      1536,       256,     8,      1, 512,     0 },
    { "norm to attention", begin_turned, piece_qkv,          TYPE_Q4_K, 1,      1536,       512,     8,      1, 0,       0 },
    { "norm to attention", begin_turned, piece_qkv,          TYPE_Q4_K, 1,      2816,       256,     16,     8, 1024,    0 },
    { "experts up",        begin_routes, piece_experts_up,   TYPE_Q4_K, 1,      2816,       EXPERTS, 1408,   0, 0,       0 },
    { "experts down",      begin_routes, piece_experts_down, TYPE_Q8_0, 1,      704 * USED, EXPERTS, 2816,   0, 0,       0 },

    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, TOKENS, 1536,       0,       2048,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, TOKENS, 1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_K, TOKENS, 12288,      0,       1536,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q6_K, TOKENS, 12288,      0,       1536,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q4_0, TOKENS, 1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_Q8_0, TOKENS, 1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_F16,  TOKENS, 1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_BF16, TOKENS, 1536,       0,       8960,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_F32,  TOKENS, 1536,       0,       12288,  0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_F16,  TOKENS, 768,        0,       3072,   0, 0,       0 },
    { "matmul",            NULL,         piece_matmul,       TYPE_F16,  TOKENS, 1152,       0,       1152,   0, 0,       0 },
    { "norm, gate and up", NULL,         piece_gated,        TYPE_Q4_K, TOKENS, 1536,       0,       12288,  0, 0,       0 },
    { "norm to attention", begin_turned, piece_qkv,          TYPE_Q4_K, TOKENS, 1536,       256,     8,      1, 512,     0 },
    { "experts up",        begin_routes, piece_experts_up,   TYPE_Q4_K, TOKENS, 2816,       EXPERTS, 1408,   0, 0,       0 },
    { "experts down",      begin_routes, piece_experts_down, TYPE_Q8_0, TOKENS, 704 * USED, EXPERTS, 2816,   0, 0,       0 },

    { "attention",         NULL,         piece_attention,    TYPE_F16,  1,      2048,       256,     8,      1, 512,     0 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  1,      2048,       256,     8,      1, 512,   512 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  1,      2048,       256,     8,      1, 512,  4096 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  1,      4096,       512,     8,      1, 0,       0 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  1,      4096,       512,     8,      1, 0,     512 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  1,      4096,       512,     8,      1, 0,    4096 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  1,      4096,       256,     16,     8, 1024, 4096 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  1,      8192,       512,     16,     2, 0,    4096 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 2048,       256,     8,      1, 512,     0 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 2048,       256,     8,      1, 512,   512 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 4096,       512,     8,      1, 0,       0 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 4096,       512,     8,      1, 0,    4096 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 4096,       512,     8,      1, 0,   16384 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 4096,       256,     16,     8, 1024,    0 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 8192,       512,     16,     2, 0,    4096 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 768,        64,      12,    12, 0,    2264 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 1152,       72,      16,    16, 0,    2264 },
    { "attention",         NULL,         piece_attention,    TYPE_F16,  TOKENS, 1024,       128,     8,      8, 0,    1250 },

    { "tower attention",   NULL,         piece_attention,    TYPE_F16,  PATCHES, 768,       64,      12,    12, 0,       0 },
    { "tower attention",   NULL,         piece_attention,    TYPE_F16,  PATCHES, 1152,      72,      16,    16, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  PATCHES, 768,       0,       6144,   0, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  PATCHES, 768,       0,       2304,   0, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  PATCHES, 3072,      0,       768,    0, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  PATCHES, 768,       0,       768,    0, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  PATCHES, 1152,      0,       8608,   0, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  PATCHES, 4304,      0,       1152,   0, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  HEARD,  4096,       0,       1024,   0, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  HEARD,  1024,       0,       4096,   0, 0,       0 },
    { "tower matmul",      NULL,         piece_matmul,       TYPE_F16,  HEARD,  1024,       0,       1024,   0, 0,       0 },

    { "train matmul",      NULL,         piece_train_matmul, TYPE_Q4_K, LEARNED, 1536,      0,       2048,   0, 0,       0 },
    { "train matmul",      NULL,         piece_train_matmul, TYPE_Q4_K, LEARNED, 1536,      0,       12288,  0, 0,       0 },
    { "train matmul",      NULL,         piece_train_matmul, TYPE_Q6_K, LEARNED, 12288,     0,       1536,   0, 0,       0 },
    { "train matmul",      NULL,         piece_train_matmul, TYPE_Q6_K, 64,     1536,       0,       262144, 0, 0,       0 },
    { "train matmul back", NULL,         piece_matmul_back,  TYPE_Q4_K, LEARNED, 2048,      0,       1536,   0, 0,       0 },
    { "train matmul back", NULL,         piece_matmul_back,  TYPE_Q4_K, LEARNED, 12288,     0,       1536,   0, 0,       0 },
    { "train matmul back", NULL,         piece_matmul_back,  TYPE_Q6_K, LEARNED, 1536,      0,       12288,  0, 0,       0 },
    { "train matmul back", NULL,         piece_matmul_back,  TYPE_Q6_K, 32,     262144,     0,       1536,   0, 0,       0 },
    { "train attention",   NULL,         piece_attention_train, TYPE_F32, LEARNED, 2048,    256,     8,      1, 512,     0 },
    { "train attention",   NULL,         piece_attention_train, TYPE_F32, LEARNED, 4096,    512,     8,      1, 0,       0 },
    { "train attention back q", begin_attention_back, piece_attention_back_q, TYPE_F32, LEARNED, 2048, 256, 8, 1, 512,   0 },
    { "train attention back q", begin_attention_back, piece_attention_back_q, TYPE_F32, LEARNED, 4096, 512, 8, 1, 0,     0 },
    { "train attention back kv", begin_attention_back, piece_attention_back_kv, TYPE_F32, LEARNED, 2048, 256, 8, 1, 512, 0 },
    { "train attention back kv", begin_attention_back, piece_attention_back_kv, TYPE_F32, LEARNED, 4096, 512, 8, 1, 0,   0 },
    { "train attention back q", begin_attention_back, piece_attention_back_q, TYPE_F32, LEARNED_LONG, 2048, 256, 8, 1, 512, 0 },
    { "train attention back q", begin_attention_back, piece_attention_back_q, TYPE_F32, LEARNED_LONG, 4096, 512, 8, 1, 0, 0 },
    { "train attention back kv", begin_attention_back, piece_attention_back_kv, TYPE_F32, LEARNED_LONG, 2048, 256, 8, 1, 512, 0 },
    { "train attention back kv", begin_attention_back, piece_attention_back_kv, TYPE_F32, LEARNED_LONG, 4096, 512, 8, 1, 0, 0 },
    { "train loss",        NULL,         piece_cross_entropy, TYPE_F16, 32,     262144,     0,       0,      0, 0,       0 },
    { "train adapter",     NULL,         piece_lora_shrink,  TYPE_F16,  LEARNED, 1536,      16,      0,      0, 0,       0 },
    { "train adapter",     NULL,         piece_lora_shrink,  TYPE_F16,  LEARNED, 12288,     16,      0,      0, 0,       0 },
    { "train adapter gradient", begin_lora_gradient, piece_lora_gradient, TYPE_F16, LEARNED, 1536, 16, 0,    0, 0,       0 },
    { "train adapter gradient", begin_lora_gradient, piece_lora_gradient, TYPE_F16, LEARNED, 12288, 16, 0,   0, 0,       0 },

    { "canvas head",       begin_canvas, piece_canvas,       TYPE_Q6_K, TOKENS, 2816,       0,       131072, 0, 0,       0 },
    { "canvas head",       begin_canvas, piece_canvas,       TYPE_Q8_0, TOKENS, 2816,       0,       65536,  0, 0,       0 },
    { "canvas matmul",     NULL,         piece_matmul,       TYPE_Q6_K, TOKENS, 2816,       0,       65536,  0, 0,       0 },

    { "norm",              NULL,         piece_norm,         TYPE_F16,  1,      1536,       1536,    1,      0, 0,       0 },
    { "norm",              NULL,         piece_norm,         TYPE_F16,  1,      2816,       2816,    1,      0, 0,       0 },
    { "norm",              NULL,         piece_norm,         TYPE_F16,  1,      2048,       256,     8,      0, 0,       0 },
    { "norm",              NULL,         piece_norm,         TYPE_F16,  TOKENS, 1536,       1536,    1,      0, 0,       0 },
    { "rope",              begin_turned, piece_rope,         TYPE_F16,  1,      2048,       256,     8,      0, 0,       0 },
    { "rope",              begin_turned, piece_rope,         TYPE_F16,  TOKENS, 2048,       256,     8,      0, 0,       0 },
    { "kv store",          begin_store,  piece_store,        TYPE_F16,  1,      512,        256,     0,      1, 512,     0 },
    { "kv store",          begin_store,  piece_store,        TYPE_F16,  TOKENS, 1024,       512,     0,      1, 0,       0 },
    { "add",               begin_pair,   piece_add,          TYPE_F16,  1,      1536,       0,       0,      0, 0,       0 },
    { "add",               begin_pair,   piece_add,          TYPE_F16,  TOKENS, 1536,       0,       0,      0, 0,       0 },
    { "geglu",             begin_pair,   piece_geglu,        TYPE_F16,  1,      12288,      0,       0,      0, 0,       0 },
    { "geglu",             begin_pair,   piece_geglu,        TYPE_F16,  TOKENS, 12288,      0,       0,      0, 0,       0 },
    { "softcap",           NULL,         piece_softcap,      TYPE_F16,  1,      262144,     0,       0,      0, 0,       0 },
    { "route",             NULL,         piece_route,        TYPE_F16,  1,      EXPERTS,    0,       0,      0, 0,       0 },
    { "expert sum",        begin_routes, piece_expert_sum,   TYPE_F16,  1,      704 * USED, EXPERTS, 0,      0, 0,       0 },
    { "embed",             NULL,         piece_embed,        TYPE_Q6_K, 1,      4,          1536,    65536,  0, 0,       0 },
    { "embed",             NULL,         piece_embed,        TYPE_Q6_K, TOKENS, 4,          1536,    65536,  0, 0,       0 },
    { "embed",             NULL,         piece_embed,        TYPE_Q6_K, 1,      4,          8960,    16384,  0, 0,       0 },
};
/* clang-format on */

/* Tests want each kernel once, on a CPU that plays a GPU. */
static row quick_row(row r) {
    const uint32_t rows = r.piece == piece_matmul_back ? 256 : 128; /* there they are the width of the weights */
    r.rows = r.rows > rows ? rows : r.rows;
    r.tokens = r.tokens > 16 ? 16 : r.tokens;
    r.depth = r.depth > 128 ? 128 : r.depth;
    if (r.begin == begin_routes) r.n = 16;
    if (r.width == 262144 && r.tokens > 1) r.width = 4096;
    return r;
}

static void name_row(const row *r, char *out, size_t size) {
    const char *type = quant_format_of((uint32_t)r->type)->name;
    char        shape[120];
    if (r->piece == piece_attention || r->piece == piece_attention_train || r->piece == piece_attention_back_q ||
        r->piece == piece_attention_back_kv)
        snprintf(shape, sizeof shape, "%u heads of %u on %u, window %u, depth %u", r->rows, r->n, r->kv_heads,
                 r->window, r->depth);
    else if (r->piece == piece_qkv)
        snprintf(shape, sizeof shape, "%s %u -> %u heads of %u on %u", type, r->width, r->rows, r->n, r->kv_heads);
    else if (r->piece == piece_experts_up || r->piece == piece_experts_down)
        snprintf(shape, sizeof shape, "%s %u -> %u, %d of %u", type,
                 r->piece == piece_experts_down ? r->width / USED : r->width, r->rows, USED, r->n);
    else if (r->piece == piece_embed) snprintf(shape, sizeof shape, "%s %u of %u rows", type, r->n, r->rows);
    else if (r->piece == piece_matmul || r->piece == piece_gated || r->piece == piece_adapted ||
             r->piece == piece_train_matmul || r->piece == piece_matmul_back || r->piece == piece_canvas)
        snprintf(shape, sizeof shape, "%s %u -> %u", type, r->width, r->rows);
    else snprintf(shape, sizeof shape, "%u", r->width);
    snprintf(out, size, "%s %s, %u token%s", r->name, shape, r->tokens, r->tokens > 1 ? "s" : "");
}

#endif
