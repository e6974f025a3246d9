/* For test_ops.c: attention over the keys of a cache, and over neighbours. */

#ifndef GM_OP_ATTENTION_H
#define GM_OP_ATTENTION_H

#include "gpu/kernels.h"
#include "op_case.h"

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
    if (b->gpu) c.gpu_kv = gpu_cache(b, type, kv_heads, head, slots);
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
    if (b->gpu) gpu_cache_free(b, &c.gpu_kv);
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

#endif
