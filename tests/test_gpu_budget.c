/* Planning a GPU's memory: which weights stay outside a budget, in which order, and what that costs. Needs no GPU. */

#include "gpu/canvas_kernels.h"
#include "gpu/kernels.h"
#include "gpu/matmul.h"
#include "model/model.h"
#include "session/gpu_memory.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    gguf *file;
    model weights;
    graph g;
} subject;

static bool budget_open_model(subject *s, const char *path) {
    error e = { 0 };
    *s = (subject){ 0 };
    if (!gguf_open_file(path, &s->file, &e) && !model_load(s->file, &s->weights, &e))
        model_text_graph(&s->weights, NULL, &s->g, &e);
    CHECK_MESSAGE(!e.status, "%s", e.why);
    return !e.status;
}

static void close_model(subject *s) {
    graph_free(&s->g);
    model_free(&s->weights);
    gguf_free(s->file);
}

static gm_status plan(const subject *s, uint64_t limit, gpu_budget *out, error *e) {
    return gpu_memory_plan(&s->g, NULL, &s->weights.config, TYPE_F16, 512, 0, limit, 0, 0, out, e);
}

/* Bytes of a unit on the GPU. */
static uint64_t unit_bytes(const gpu_budget *b, const budget_weight *w) {
    uint64_t sum = 0;
    for (size_t i = 0; i < b->count; i++) {
        if (b->weights[i].unit == w->unit && b->weights[i].kind == w->kind) sum += b->weights[i].bytes;
    }
    return sum;
}

/* What must hold for every plan, whatever the limit. */
static void check_plan(const gpu_budget *b) {
    uint64_t sum = b->slot + b->staging + b->options.kv + b->options.plans, slot = 0, expert = 0;
    for (size_t i = 0; i < BUDGET_KINDS; i++) sum += b->resident[i];
    CHECK_MESSAGE(sum == b->total && (!b->options.limit || sum <= b->options.limit), "%llu of %llu, %llu allowed",
                  (unsigned long long)sum, (unsigned long long)b->total, (unsigned long long)b->options.limit);
    for (size_t i = 0; i < b->count; i++) {
        const budget_weight *w = &b->weights[i];
        CHECK(w->kind != BUDGET_VECTORS || !w->out);
        CHECK(w->bytes >= w->file * 9 / 10 && (w->kind == BUDGET_VECTORS || w->slot));
        if (w->kind == BUDGET_EXPERTS) {
            CHECK(w->out == (b->slots < w->weight->ne[2]) && b->slots >= w->used);
            expert += w->bytes / w->weight->ne[2] + 1024; /* planes are padded */
            continue;
        }
        CHECK_MESSAGE(!w->out || unit_bytes(b, w) > b->options.limit - b->total, "'%s' would have fitted",
                      w->weight->name);
        if (w->out && w->kind != BUDGET_TABLES && w->slot > slot) slot = w->slot;
        for (size_t j = 0; j < i; j++) {
            if (w->unit == b->weights[j].unit && w->kind == b->weights[j].kind) CHECK(w->out == b->weights[j].out);
        }
    }
    CHECK(slot == b->slot);
    CHECK_MESSAGE(!b->expert_bytes || b->total + expert > b->options.limit, "%u slots, and one more would have fitted",
                  b->slots);
}

static uint64_t out_count(const gpu_budget *b) {
    uint64_t count = 0;
    for (size_t i = 0; i < b->count; i++) count += b->weights[i].out;
    return count;
}

/* With ever smaller budgets more and more stays outside, until everything that can be outside is. */
static void test_shrinking(const char *path, bool tables, bool experts) {
    subject s;
    TEST("%s: everything fits without a limit", path);
    if (!budget_open_model(&s, path)) return;
    gpu_budget all, b;
    error      e = { 0 };
    char       note[400];
    CHECK_MESSAGE(!plan(&s, 0, &all, &e), "%s", e.why);
    check_plan(&all);
    CHECK(all.total == all.everything && !out_count(&all) && !all.slot && !all.token_bytes);
    CHECK(!all.resident[BUDGET_TABLES] == !tables && !all.resident[BUDGET_EXPERTS] == !experts);
    CHECK(all.resident[BUDGET_HEAD] && all.resident[BUDGET_LAYERS] && all.resident[BUDGET_VECTORS]);
    gpu_budget_explain(&all, false, note, sizeof note);
    CHECK(!*note);

    TEST("%s: exactly so much is enough", path);
    CHECK_MESSAGE(!plan(&s, all.total, &b, &e) && !out_count(&b), "%s", e.why);
    gpu_budget_free(&b);

    TEST("%s: smaller and smaller", path);
    uint64_t limit = all.total - 1, steps = 0;
    bool     seen[BUDGET_KINDS] = { false };
    while (!plan(&s, limit, &b, &e)) {
        check_plan(&b);
        CHECK(out_count(&b) && b.everything == all.everything && (b.token_bytes || b.expert_bytes));
        CHECK(!b.expert_bytes == !b.outside[BUDGET_EXPERTS] &&
              gpu_budget_expected(&b) <= b.token_bytes + b.expert_bytes);
        for (size_t i = 0; i < BUDGET_KINDS; i++) {
            CHECK(b.resident[i] <= all.resident[i] && (b.resident[i] == all.resident[i]) == !b.outside[i]);
            seen[i] = seen[i] || b.outside[i];
        }
        if (!steps) CHECK(b.outside[tables ? BUDGET_TABLES : BUDGET_EXPERTS] == b.outside[0] + b.outside[1]);
        gpu_budget_explain(&b, false, note, sizeof note);
        CHECK_MESSAGE(strstr(note, "left in main memory: ") == note && strstr(note, " over the bus for each token"),
                      "%s", note);
        limit = b.total - 1;
        steps++;
        gpu_budget_free(&b);
    }
    CHECK_MESSAGE(steps >= 4, "%llu", (unsigned long long)steps);
    CHECK(seen[BUDGET_TABLES] == tables && seen[BUDGET_EXPERTS] == experts && seen[BUDGET_LAYERS] && seen[BUDGET_HEAD]);
    CHECK(!seen[BUDGET_VECTORS]);
    CHECK_MESSAGE(e.status == GM_NO_MEMORY && strstr(e.why, "keys and values"), "%s", e.why);
    char number[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)limit);
    CHECK_MESSAGE(strstr(e.why, number), "%s", e.why);
    CHECK(!b.weights);
    gpu_budget_free(&all);
    close_model(&s);
}

/* A graph with a large model's weights, which are never read, so nobody needs the model. */
static void test_numbers(void) {
    enum { WIDTH = 1536, VOCABULARY = 262144, PER_LAYER = 8960, EXPERTS = 128, USED = 8, FF = 704 };
    static const char table[1], per_layer[1], q[1], k[1], gate_up[2], router[1];
    TEST("the numbers of a large model");
    graph   g = { 0 };
    tensor *embed = graph_weight(&g, "token_embd", TYPE_Q6_K, (uint64_t[]){ WIDTH, VOCABULARY, 1 }, table);
    tensor *x = graph_embed(&g, embed, 1);
    tensor *p = graph_embed(
        &g, graph_weight(&g, "per_layer", TYPE_F16, (uint64_t[]){ PER_LAYER, VOCABULARY, 1 }, per_layer), 1);
    tensor *a = graph_rms_norm(
        &g, graph_matmul(&g, graph_weight(&g, "q", TYPE_Q4_K, (uint64_t[]){ WIDTH, WIDTH, 1 }, q), x), NULL, 1e-6f);
    tensor *b = graph_rms_norm(
        &g, graph_matmul(&g, graph_weight(&g, "k", TYPE_Q4_K, (uint64_t[]){ WIDTH, WIDTH, 1 }, k), x), NULL, 1e-6f);
    tensor *routes = graph_route(
        &g, graph_matmul(&g, graph_weight(&g, "router", TYPE_F32, (uint64_t[]){ WIDTH, EXPERTS, 1 }, router), a), NULL,
        USED);
    for (size_t layer = 0; layer < 2; layer++) {
        tensor *w = graph_weight(&g, "gate_up", TYPE_Q4_K, (uint64_t[]){ WIDTH, 2 * FF, EXPERTS }, gate_up + layer);
        tensor *y = graph_expert_sum(&g, graph_matmul_experts(&g, w, b, routes, USED), routes, USED);
        graph_add(&g, graph_slice(&g, y, 0, 256, 1), graph_slice(&g, p, 0, 256, 1));
    }
    g.result = graph_matmul(&g, embed, graph_select_rows(&g, graph_add(&g, x, x)));
    CHECK_MESSAGE(!g.problem.status, "%s", g.problem.why);

    const uint64_t head_bytes = (uint64_t)WIDTH * VOCABULARY / 256 * 210,
                   table_bytes = (uint64_t)PER_LAYER * VOCABULARY * 2,
                   expert_bytes = 2 * ((uint64_t)WIDTH * 2 * FF * EXPERTS / 256 * 144);
    const struct {
        uint64_t limit, tables, head, token, experts; /* experts: bytes that a token may upload */
    } rows[] = {
        { 0, 0, 0, 0, 0 },
        { UINT64_C(6) << 30, 0, 0, 0, 0 },
        { UINT64_C(1) << 30, table_bytes, 0, 4 * PER_LAYER, 0 },
        { UINT64_C(500) << 20, table_bytes, 0, 4 * PER_LAYER, expert_bytes / EXPERTS * USED },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        gpu_budget budget;
        error      e = { 0 };
        CHECK_MESSAGE(!gpu_budget_make(&budget, &g, &(budget_options){ .limit = rows[i].limit }, &e), "%s", e.why);
        if (e.status) continue;
        check_plan(&budget);
        CHECK_MESSAGE(budget.outside[BUDGET_TABLES] == rows[i].tables && budget.expert_bytes == rows[i].experts &&
                          budget.outside[BUDGET_HEAD] == rows[i].head && budget.token_bytes == rows[i].token,
                      "row %zu: %llu %llu %llu %llu", i, (unsigned long long)budget.outside[BUDGET_TABLES],
                      (unsigned long long)budget.expert_bytes, (unsigned long long)budget.outside[BUDGET_HEAD],
                      (unsigned long long)budget.token_bytes);
        const budget_weight *first = gpu_budget_weight(&budget, &(tensor){ .data = q }),
                            *second = gpu_budget_weight(&budget, &(tensor){ .data = k }),
                            *both = gpu_budget_weight(&budget, &(tensor){ .data = table });
        CHECK(first && second && first->unit == second->unit); /* joined */
        CHECK(both && both->table && both->kind == BUDGET_HEAD);
        const uint64_t outside = expert_bytes / EXPERTS * (EXPERTS - budget.slots);
        CHECK_MESSAGE(budget.outside[BUDGET_EXPERTS] == outside && (budget.slots == EXPERTS) == !rows[i].experts,
                      "%u slots", budget.slots);
        gpu_budget_free(&budget);
    }
    CHECK(head_bytes);

    TEST("with everything outside a layer has slots for the experts of a token");
    gpu_budget budget;
    error      e = { 0 };
    CHECK_MESSAGE(!gpu_budget_make(&budget, &g, &(budget_options){ .limit = UINT64_C(200) << 20 }, &e), "%s", e.why);
    if (!e.status) {
        check_plan(&budget);
        CHECK_MESSAGE(budget.outside[BUDGET_HEAD] == head_bytes && budget.slot && budget.slots >= USED, "%u slots",
                      budget.slots);
        CHECK_MESSAGE(budget.token_bytes >= head_bytes + 4 * (WIDTH + PER_LAYER), "%llu",
                      (unsigned long long)budget.token_bytes);
        gpu_budget_free(&budget);
    }

    TEST("a given number of slots");
    CHECK_MESSAGE(!gpu_budget_make(&budget, &g, &(budget_options){ .slots = 3 }, &e), "%s", e.why);
    CHECK(budget.slots == 3 && budget.experts == EXPERTS && !budget.token_bytes && !budget.slot && budget.staging &&
          budget.outside[BUDGET_EXPERTS] == expert_bytes / EXPERTS * (EXPERTS - 3) && budget.total < budget.everything);
    gpu_budget_free(&budget);
    graph_free(&g);
}

static void test_budget_kv(void) {
    TEST("keys and values: full layers by the context, sliding ones by the window, sharing ones none");
    layer_config       layers[] = { { .sliding = true, .owns_kv = true, .kv_heads = 2, .head = 64 },
                                    { .sliding = false, .owns_kv = true, .kv_heads = 1, .head = 128 },
                                    { .sliding = false, .owns_kv = false, .kv_heads = 1, .head = 128 } };
    const model_config c = { .layers = 3, .window = 512, .layer = layers };
    CHECK(gpu_memory_kv(&c, TYPE_F16, 8192) == 2 * 2 * (768 * 128 + 8192 * 128));
    CHECK(gpu_memory_kv(&c, TYPE_F32, 8192) == 2 * 4 * (768 * 128 + 8192 * 128));
    CHECK(gpu_memory_kv(&c, TYPE_F16, 100) == 2 * 2 * (100 * 128 + 100 * 128));
    CHECK(gpu_memory_kv(&c, TYPE_Q8_0, 100) == 2 * (100 * 144 + 100 * 144));
}

/* ---- towers ---- */

/* GPUs that choose other kernels: with nothing optional, with large blocks, and with matrices of 8 or 16. */
static const gpu_info gpu_kinds[] = {
    { .max_binding = 1 << 30, .max_workgroup_bytes = 32768 },
    { .max_binding = 1 << 30, .max_workgroup_bytes = 32768, .blocks = true },
    { .max_binding = 1 << 30,
      .max_workgroup_bytes = 32768,
      .blocks = true,
      .subgroup_max = 32,
      .subgroup_matrix = true,
      .matrix_attention = true,
      .bands = true,
      .deep_splits = true,
      .matrix_rows = 8,
      .matrix_columns = 8,
      .matrix_depth = 8 },
    { .max_binding = 1 << 30,
      .max_workgroup_bytes = 49152,
      .blocks = true,
      .subgroup_max = 32,
      .subgroup_matrix = true,
      .matrix_attention = true,
      .bands = true,
      .deep_splits = true,
      .matrix_rows = 16,
      .matrix_columns = 16,
      .matrix_depth = 16 },
};
enum { SCRATCH_MOST = 64 << 20, LARGEST_PICTURE = 10080 };

static uint64_t product_scratch(const gpu_info *info, quant_type type, uint64_t k, uint64_t rows, uint32_t tokens) {
    weight_layout  layout;
    error          e = { 0 };
    const uint64_t ne[3] = { k, rows, 1 };
    CHECK_MESSAGE(!weight_layout_make(&layout, type, ne, info->max_binding, &e), "%s", e.why);
    const gpu_matmul_job job = { .weights = &layout,
                                 .like = &layout,
                                 .tokens = tokens,
                                 .q8 = gpu_matmul_takes_q8(info, type, tokens),
                                 .split = true };
    return gpu_matmul_partial_bytes(info, &job);
}

static uint64_t attention_scratch(const gpu_info *info, uint32_t head, uint32_t heads, uint32_t tokens) {
    tensor       q = { .ne = { head, heads } };
    const op     o = { .kind = OP_ATTENTION, .in = { &q } };
    const gpu_kv kv = { .type = TYPE_F16, .kv_heads = heads, .head = head };
    return gpu_attention_partial_bytes(&o, tokens, gpu_attention_splits(info, &o, &kv, tokens));
}

/* Partial sums are all that a run of a tower keeps besides its activations, which may be an input in f16. */
static void test_tower_scratch(void) {
    static const struct {
        uint64_t k, rows;
    } products[] = {
        /* of small and large vision towers, of audio towers, and without an encoder; joined ones together */
        { 768, 768 },   { 768, 2304 },  { 768, 6144 },  { 3072, 768 },  { 768, 1152 },  { 1152, 3456 }, { 1152, 8608 },
        { 4304, 1152 }, { 1152, 5376 }, { 1024, 3072 }, { 1024, 4096 }, { 4096, 1024 }, { 1024, 2048 }, { 6912, 3840 }
    };
    static const quant_type types[] = { TYPE_F16, TYPE_BF16, TYPE_F32, TYPE_Q8_0 };
    TEST("towers keep no more than 64 MiB besides their activations");
    uint64_t most = 0;
    for (size_t g = 0; g < COUNT_OF(gpu_kinds); g++) {
        const gpu_info *info = &gpu_kinds[g];
        for (uint32_t tokens = 9; tokens <= LARGEST_PICTURE; tokens += tokens < 3000 ? 9 : 590) {
            for (size_t i = 0; i < COUNT_OF(products) * COUNT_OF(types); i++) {
                const uint64_t k = products[i / COUNT_OF(types)].k, rows = products[i / COUNT_OF(types)].rows;
                if (types[i % COUNT_OF(types)] == TYPE_Q8_0 && k % 32) continue; /* there are no such blocks */
                const uint64_t bytes = product_scratch(info, types[i % COUNT_OF(types)], k, rows, tokens);
                if (bytes > most) most = bytes;
                if (bytes <= SCRATCH_MOST) continue;
                CHECK_MESSAGE(false, "GPU %zu, %llu x %llu, %u tokens: %llu bytes", g, (unsigned long long)k,
                              (unsigned long long)rows, tokens, (unsigned long long)bytes);
                return;
            }
            const uint64_t small = attention_scratch(info, 64, 12, tokens),
                           large = attention_scratch(info, 72, 16, tokens);
            if (small > most) most = small;
            if (large > most) most = large;
            if (small <= SCRATCH_MOST && large <= SCRATCH_MOST) continue;
            CHECK_MESSAGE(false, "GPU %zu, attention of %u tokens: %llu and %llu bytes", g, tokens,
                          (unsigned long long)small, (unsigned long long)large);
            return;
        }
    }
    CHECK(LARGEST_PICTURE * gpu_kv_row_bytes(TYPE_F32, 16, 72) <= SCRATCH_MOST); /* its keys, and its values */
    CHECK_MESSAGE(most > 1 << 20, "%llu bytes at most: nothing was split", (unsigned long long)most);
}

/* A sound's second feed-forward product has few small tiles, and much to add for each. Prompts are split as ever. */
static void test_deep_splits(void) {
    gpu_info with = gpu_kinds[COUNT_OF(gpu_kinds) - 1], without = with;
    without.deep_splits = false;
    TEST("products of sounds are split, others are not");
    CHECK(product_scratch(&with, TYPE_F16, 4096, 1024, 768) == UINT64_C(2) * 768 * 1024 * sizeof(float));
    CHECK(!product_scratch(&without, TYPE_F16, 4096, 1024, 768));
    CHECK(!product_scratch(&with, TYPE_F16, 1024, 1024, 768));
    CHECK(product_scratch(&with, TYPE_F16, 2048, 1536, 256) == product_scratch(&without, TYPE_F16, 2048, 1536, 256));
}

/* DiffusionGemma's head, for one canvas and for four: the table's rows are divided alike, so that each adds in the same order. */
static void test_canvas_chunks(void) {
    const uint64_t ne[3] = { 2816, 262144, 1 };
    TEST("a canvas is computed alone as it is beside others");
    for (size_t g = 0; g < COUNT_OF(gpu_kinds); g++) {
        const gpu_info *info = &gpu_kinds[g];
        weight_layout   layout;
        error           e = { 0 };
        gpu_kernel      alone[CANVAS_KERNELS], beside[CANVAS_KERNELS];
        CHECK_MESSAGE(!weight_layout_make(&layout, TYPE_Q6_K, ne, info->max_binding, &e), "%s", e.why);
        const gpu_canvas_job one = { .weights = &layout, .like = &layout, .tokens = 256, .alike = 256, .q8 = true };
        gpu_canvas_job       four = one;
        four.tokens = 4 * one.tokens;
        CHECK(gpu_canvas_chunks(info, &one, 0) > 1);
        CHECK(gpu_canvas_chunks(info, &one, 0) == gpu_canvas_chunks(info, &four, 0));
        gpu_canvas_kernels(alone, info, &one, 0, 1);
        gpu_canvas_kernels(beside, info, &four, 0, 1);
        for (size_t i = 0; i < CANVAS_KERNELS; i++) {
            CHECK(!strcmp(alone[i].file, beside[i].file));
            CHECK(!memcmp(alone[i].numbers, beside[i].numbers, sizeof alone[i].numbers)); /* first row, rows */
        }
        CHECK_MESSAGE(alone[2].x == beside[2].x && alone[2].y == beside[2].y && 4 * alone[2].z == beside[2].z,
                      "GPU %zu: %u and %u splits", g, alone[2].y, beside[2].y);
    }
}

int main(void) {
    test_shrinking("tests/fixtures/tiny-dense.gguf", true, false);
    test_shrinking("tests/fixtures/tiny-moe.gguf", false, true);
    test_shrinking("tests/fixtures/small-dense-Q4_K_M.gguf", true, false);
    test_shrinking("tests/fixtures/small-moe-Q4_K_M.gguf", false, true);
    test_numbers();
    test_budget_kv();
    test_tower_scratch();
    test_canvas_chunks();
    test_deep_splits();
    return test_end();
}
