#include "session/gpu_memory.h"

#include "gpu/canvas_kernels.h"
#include "gpu/kernels.h"
#include "session/kv.h"
#include "session/plans.h"

uint64_t gpu_memory_kv(const model_config *config, quant_type type, size_t context) {
    const uint64_t ring = min_size((size_t)config->window + KV_SLACK, context);
    uint64_t       bytes = 0;
    for (uint32_t i = 0; i < config->layers; i++) {
        const layer_config *layer = &config->layer[i];
        const uint64_t      slots = layer->sliding ? ring : context;
        if (layer->owns_kv) bytes += 2 * round_up(slots * gpu_kv_row_bytes(type, layer->kv_heads, layer->head), 16);
    }
    return bytes;
}

/* While a layer grows, its old keys live beside the new ones. */
static uint64_t largest_growth(const model_config *config, quant_type type, size_t context) {
    uint64_t largest = 0;
    for (uint32_t i = 0; i < config->layers; i++) {
        const layer_config *layer = &config->layer[i];
        const uint64_t      row = gpu_kv_row_bytes(type, layer->kv_heads, layer->head);
        const uint64_t      growth = row * context / 2;
        if (layer->owns_kv && !layer->sliding && growth > largest) largest = growth;
    }
    return largest;
}

/* What a denoiser adds: weights that the text graph does not have, a plan with the scratch memory of its head, and what it carries from step to
 * step. */
static gm_status canvas_bytes(const graph *canvas, const gpu_budget *text, const model_config *config, uint64_t *out,
                              error *e) {
    gpu_budget           own = { 0 };
    const budget_options unlimited = { 0 };
    TRY(gpu_budget_make(&own, canvas, &unlimited, e));
    for (size_t i = 0; i < own.count; i++) {
        if (!gpu_budget_weight(text, own.weights[i].weight)) *out += own.weights[i].bytes;
    }
    gpu_budget_free(&own);
    *out += (uint64_t)config->canvas.length * (config->width + CANVAS_FINDINGS + CANVAS_STATE) * sizeof(float);
    *out += gpu_canvas_most_bytes(config->width, config->vocabulary, config->canvas.length);
    return budget_plan(canvas, config->canvas.length, out, e);
}

/* Partial sums of the attention that has most of them. A GPU in hardware divides the keys among many workgroups, and then they may take more than
 * all that budget_plan allows for scratch memory. */
static uint64_t partial_bytes(const graph *g, const model_config *config, quant_type kv, const gpu_info *gpu,
                              uint32_t tokens) {
    uint64_t most = 0;
    for (size_t i = 0; i < g->op_count; i++) {
        const op *o = &g->ops[i];
        if (o->kind != OP_ATTENTION) continue;
        const layer_config *layer = &config->layer[o->layer];
        const gpu_kv        cache = {
                   .type = kv, .kv_heads = layer->kv_heads, .head = layer->head, .precise = kv == TYPE_F32
        };
        most = max_size(most, gpu_attention_partial_bytes(o, tokens, gpu_attention_splits(gpu, o, &cache, tokens)));
    }
    return most;
}

gm_status gpu_memory_plan(const graph *g, const graph *canvas, const model_config *config, quant_type kv,
                          size_t context, uint64_t tower, uint64_t limit, uint32_t slots, const gpu_info *gpu,
                          gpu_budget *out, error *e) {
    error          ignored = { 0 };
    budget_options options = { .limit = limit,
                               .slots = slots,
                               .tower = limit ? tower : 0,
                               .kv = gpu_memory_kv(config, kv, context) + largest_growth(config, kv, context),
                               .max_binding = gpu ? gpu->max_binding : 0 };
    TRY(budget_plans(g, &options.plans, e));
    if (gpu && !gpu->software) {
        for (uint32_t tokens = 1; tokens <= PLANS_LARGEST_CLASS; tokens *= 4)
            options.plans += partial_bytes(g, config, kv, gpu, tokens);
        if (canvas) options.plans += partial_bytes(canvas, config, kv, gpu, config->canvas.length);
    }
    if (canvas) {
        const budget_options unlimited = { 0 };
        gpu_budget           text = { 0 };
        gm_status            status = gpu_budget_make(&text, g, &unlimited, e);
        if (!status) status = canvas_bytes(canvas, &text, config, &options.plans, e);
        gpu_budget_free(&text);
        TRY(status);
    }
    if (options.tower && gpu_budget_make(out, g, &options, &ignored) == GM_OK) return GM_OK;
    options.tower = 0; /* text alone may fit */
    return gpu_budget_make(out, g, &options, e);
}
