/* Whether a model fits, and what it will take: from its header, before anything is loaded. */

#include "session/tower.h"
#include "session/gpu_memory.h"
#include "session/kv.h"
#include "session/load_parts.h"

#include <stdio.h>

static double gibibytes(uint64_t bytes) { return (double)bytes / (1 << 30); }

gm_status load_check_memory(const gguf *file, uint64_t limit, bool *rows, uint64_t *bytes, error *e) {
    model_fetch    all = { .file = file, .matrices = true };
    const uint64_t everything = model_fetch_bytes(&all);
    *rows = all.rows = everything > limit;
    const uint64_t least = model_fetch_bytes(&all);
    if (bytes) *bytes = least;
    if (least <= limit) return GM_OK;
    return fail(
        e, GM_NO_MEMORY,
        "without a GPU the model's weights take %.2f GiB of memory (the file has %.2f GiB; towers%s are left out), "
        "but at most %.2f GiB can be held: use a GPU, or a smaller model",
        gibibytes(least), gibibytes(gguf_file_bytes(file)), least < everything ? " and the per-layer table" : "",
        gibibytes(limit));
}

/* What a token more takes, once the sliding windows are full. */
static uint64_t kv_per_token(const model_config *c, quant_type type) {
    enum { STEP = 1024 };
    const size_t full = (size_t)c->window + KV_SLACK;
    return (gpu_memory_kv(c, type, full + STEP) - gpu_memory_kv(c, type, full)) / STEP;
}

static gm_status fit_on_gpu(const engine_load *l, const model *m, uint64_t max_binding, load_fit *out, error *e) {
    const quant_type kv = l->engine->precise ? TYPE_F32 : TYPE_F16;
    graph            g = { 0 };
    canvas_graph     canvas = { 0 };
    gpu_budget       budget = { 0 };
    error            too_small = { 0 };
    const gpu_info   page = { .max_binding = max_binding, .software = true }; /* nothing else is known of its GPU */
    TRY(model_text_graph(m, NULL, &g, e));
    gm_status      status = m->config.canvas.length ? model_canvas_graph(m, false, &canvas, e) : GM_OK;
    const size_t   context = min_size(m->config.context, GPU_MEMORY_CONTEXT);
    const uint64_t tower = towers_bytes(l->engine->file, l->engine->projector, m->config.width);
    if (!status)
        gpu_memory_plan(&g, m->config.canvas.length ? &canvas.g : NULL, &m->config, kv, context, tower,
                        l->options.gpu_memory, l->options.gpu_experts, &page, &budget, &too_small);
    graph_free(&canvas.g);
    graph_free(&g);
    if (status) return status;
    out->fits = !too_small.status;
    snprintf(out->why, sizeof out->why, "%s", too_small.why);
    if (!out->fits) return GM_OK;
    out->bytes = budget.total;
    out->table_kept = !budget.outside[BUDGET_TABLES];
    gpu_budget_explain(&budget, load_in_pieces(out->file), out->note, sizeof out->note);
    gpu_budget_free(&budget);
    return GM_OK;
}

static void fit_in_memory(const engine_load *l, load_fit *out) {
    error too_large = { 0 };
    bool  rows = false;
    out->fits = !load_check_memory(l->engine->file, l->most_memory, &rows, &out->bytes, &too_large);
    snprintf(out->why, sizeof out->why, "%s", too_large.why);
    out->table_kept = !rows;
    if (out->fits && rows) snprintf(out->note, sizeof out->note, "rows of the per-layer table are read for each token");
}

static uint64_t tower_bytes(const gguf *file) {
    uint64_t bytes = 0;
    for (size_t i = 0; file && i < gguf_tensor_count(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        if (model_part_of(t->name) != PART_TEXT) bytes += t->bytes;
    }
    return bytes;
}

gm_status engine_load_fit(const engine_load *l, uint64_t max_binding, load_fit *out, error *e) {
    model m;
    *out = (load_fit){ .file = l->engine->file };
    TRY(model_shapes(out->file, &m, e));
    out->name = l->origin.name;
    out->config = m.config;
    out->config.layer = NULL;
    out->parameters = m.parameters;
    out->table_bytes = m.per_layer_token_embd.bytes;
    out->tower_bytes = tower_bytes(out->file) + tower_bytes(l->engine->projector);
    out->kv_bytes_per_token = kv_per_token(&m.config, l->engine->precise ? TYPE_F32 : TYPE_F16);
    gm_status status = GM_OK;
    if (l->engine->on_gpu) status = fit_on_gpu(l, &m, max_binding, out, e);
    else fit_in_memory(l, out);
    model_free(&m);
    return status;
}
