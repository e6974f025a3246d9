#include "gpu/budget.h"

#include "graph/fuse.h"
#include "graph/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMED_TILE = 32 << 20, MOST_STAGING = 16 << 20 };

const char *const budget_kind_names[BUDGET_KINDS] = { "tables", "experts", "layers", "head", "vectors" };

static const uint64_t default_binding = UINT64_C(1) << 30, binding_padding = 1 << 16; /* as in gpu_backend_fusion */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t budget_staging(const weight_layout *layout, uint64_t bytes) {
    return round_up(larger(smaller(bytes, MOST_STAGING), weight_staging_least(layout)), 256);
}

/* ---- the list of weights ---- */

const budget_weight *gpu_budget_weight(const gpu_budget *b, const tensor *weight) {
    for (size_t i = 0; i < b->count; i++) {
        if (tensor_same_weight(b->weights[i].weight, weight)) return &b->weights[i];
    }
    return NULL;
}

bool budget_can_cache(const tensor *w) {
    const weight_layout shape = { .k = (uint32_t)w->ne[0], .chunks = (uint32_t)((w->ne[0] + 31) / 32) };
    return w->ne[2] > 1 && w->ne[1] * shape.chunks % weight_piece_unit(&shape) == 0;
}

/* Bytes of the largest tile of a matrix that is uploaded tile by tile; rows are never split. */
static gm_status largest_tile(const tensor *w, uint64_t max_binding, uint64_t *out, error *e) {
    weight_layout layout;
    for (uint64_t wanted = STREAMED_TILE; w->ne[2] == 1 && wanted < max_binding; wanted *= 2) {
        error ignored = { 0 };
        if (weight_layout_make(&layout, w->type, w->ne, wanted, &ignored)) continue;
        *out = weight_tile_of(&layout, 0).bytes;
        return GM_OK;
    }
    TRY(weight_layout_make(&layout, w->type, w->ne, max_binding, e));
    *out = weight_tile_of(&layout, 0).bytes;
    return GM_OK;
}

static gm_status measure(budget_weight *b, uint64_t max_binding, error *e) {
    const tensor *w = b->weight;
    weight_layout layout;
    b->file = quant_row_bytes(quant_format_of(w->type), w->ne[0]) * w->ne[1] * w->ne[2];
    b->bytes = round_up(b->file, 16);
    if (b->kind == BUDGET_VECTORS) return GM_OK;
    TRY(weight_layout_make(&layout, w->type, w->ne, max_binding, e));
    b->bytes = weight_bytes(&layout);
    b->staging = budget_staging(&layout, b->file);
    if (b->kind == BUDGET_EXPERTS) b->expert_staging = budget_staging(&layout, GPU_EXPERT_LANES * b->file / w->ne[2]);
    return largest_tile(w, max_binding, &b->slot, e);
}

static gm_status budget_add_weight(gpu_budget *b, const op *o, size_t input, uint32_t unit, error *e) {
    const tensor  *w = o->in[input];
    const bool     product = o->kind == OP_PRODUCTS && input <= FUSED_W2, table = o->kind == OP_EMBED;
    budget_weight *known = (budget_weight *)gpu_budget_weight(b, w);
    budget_kind    kind = BUDGET_VECTORS;
    if (table) kind = BUDGET_TABLES;
    if (product) kind = BUDGET_LAYERS;
    if (product && o->in[FUSED_ROUTES] && budget_can_cache(w)) kind = BUDGET_EXPERTS;
    if (product && o->in[FUSED_A]->axis == AXIS_OUTPUTS) kind = BUDGET_HEAD;
    if (known) { /* a table that is also a matrix of a product */
        known->table = known->table || table;
        if (product) known->kind = kind;
        if (product) known->unit = unit;
        return GM_OK;
    }
    b->weights[b->count] = (budget_weight){ .weight = w, .kind = kind, .unit = unit, .table = table, .used = o->used };
    if (kind == BUDGET_EXPERTS) b->experts = (uint32_t)larger(b->experts, w->ne[2]);
    return measure(&b->weights[b->count++], b->options.max_binding, e);
}

/* Joined matrices are uploaded together, so they need a slot for all of them. */
static void join_slots(budget_weight *weights, size_t count) {
    for (size_t first = 0, end; first < count; first = end) {
        uint64_t all = 0;
        for (end = first; end < count && weights[end].unit == weights[first].unit; end++) {
            if (weights[end].kind == BUDGET_LAYERS) all += weights[end].bytes;
        }
        for (size_t i = first; i < end && all > weights[first].bytes; i++) weights[i].slot = all;
    }
}

static gm_status find_weights(gpu_budget *b, const graph *g, error *e) {
    b->weights = calloc(max_size(OP_INPUTS * g->op_count, 1), sizeof *b->weights);
    if (!b->weights) return fail_memory(e, "the memory plan", OP_INPUTS * g->op_count * sizeof *b->weights);
    for (size_t i = 0; i < g->op_count; i++) {
        for (size_t j = 0; j < OP_INPUTS; j++) {
            const tensor *t = g->ops[i].in[j];
            if (t && t->kind == TENSOR_WEIGHT) TRY(budget_add_weight(b, &g->ops[i], j, (uint32_t)i, e));
        }
    }
    join_slots(b->weights, b->count);
    return GM_OK;
}

/* ---- choosing what leaves the GPU ---- */

/* Bytes of a matrix of experts on the GPU if only so many of them have room. */
static uint64_t bytes_of_slots(const gpu_budget *b, const budget_weight *w, uint32_t slots) {
    const uint64_t ne[3] = { w->weight->ne[0], w->weight->ne[1], slots };
    weight_layout  layout;
    error          ignored = { 0 };
    if (slots >= w->weight->ne[2]) return w->bytes;
    return weight_layout_make(&layout, w->weight->type, ne, b->options.max_binding, &ignored) ? w->bytes
                                                                                              : weight_bytes(&layout);
}

static void budget_add_up(gpu_budget *b) {
    uint64_t weights = 0, experts = 0;
    memset(b->resident, 0, sizeof b->resident);
    memset(b->outside, 0, sizeof b->outside);
    b->slot = b->staging = b->token_bytes = b->expert_bytes = 0;
    b->cached = b->experts && (b->slots < b->experts || b->options.slots);
    for (size_t i = 0; i < b->count; i++) {
        budget_weight *w = &b->weights[i];
        const uint64_t each = w->file / w->weight->ne[2];
        b->staging = larger(b->staging, w->staging);
        if (w->kind == BUDGET_EXPERTS) {
            const uint64_t there = bytes_of_slots(b, w, b->slots);
            w->out = b->cached;
            b->resident[w->kind] += there;
            weights += there;
            if (!w->out) continue;
            b->outside[w->kind] += each * (w->weight->ne[2] - b->slots);
            b->expert_bytes += each * w->used;
            experts = larger(experts, w->expert_staging);
            continue;
        }
        if (!w->out) {
            b->resident[w->kind] += w->bytes;
            weights += w->bytes;
            continue;
        }
        b->outside[w->kind] += w->file;
        if (w->table) b->token_bytes += w->weight->ne[0] * sizeof(float);
        if (w->kind == BUDGET_TABLES) continue;
        b->token_bytes += w->file;
        b->slot = larger(b->slot, w->slot);
    }
    b->staging += experts;
    b->total = weights + b->slot + b->staging + b->options.kv + b->options.plans + b->options.tower;
}

uint64_t gpu_budget_expected(const gpu_budget *b) {
    return b->token_bytes + (b->experts ? b->expert_bytes / b->experts * (b->experts - b->slots) : 0);
}

/* The fewest slots that a layer needs: a token's experts should not replace each other. */
static uint32_t least_slots(const gpu_budget *b) {
    uint32_t used = 1;
    for (size_t i = 0; i < b->count; i++) {
        if (b->weights[i].kind == BUDGET_EXPERTS && b->weights[i].used > used) used = b->weights[i].used;
    }
    return (uint32_t)smaller(used, b->experts);
}

/* The next weight to leave the GPU: the largest table, or the last unit, of the first kind that has any left. */
static budget_weight *next_out(const gpu_budget *b) {
    budget_weight *found = NULL;
    for (size_t i = 0; i < b->count; i++) {
        budget_weight *w = &b->weights[i];
        if ((w->kind == BUDGET_EXPERTS ? b->options.slots || b->slots <= least_slots(b) : w->out) ||
            w->kind == BUDGET_VECTORS)
            continue;
        if (!found || w->kind < found->kind) found = w;
        else if (w->kind == found->kind && (w->kind != BUDGET_TABLES || w->bytes > found->bytes)) found = w;
    }
    return found;
}

static gm_status budget_refuse(const gpu_budget *b, error *e) {
    return fail(
        e, GM_NO_MEMORY,
        "the model cannot run in %llu bytes of GPU memory: with every matrix in main memory it still takes %llu "
        "(keys and values %llu, activations %llu, a slot for weights %llu, staging %llu, vectors %llu)",
        (unsigned long long)b->options.limit, (unsigned long long)b->total, (unsigned long long)b->options.kv,
        (unsigned long long)b->options.plans, (unsigned long long)b->slot, (unsigned long long)b->staging,
        (unsigned long long)b->resident[BUDGET_VECTORS]);
}

/* Experts leave together, as far as they can. */
static void move_unit(gpu_budget *b, budget_kind kind, uint32_t unit, bool out) {
    if (kind == BUDGET_EXPERTS && out) b->slots = least_slots(b);
    for (size_t i = 0; i < b->count; i++) {
        if (kind != BUDGET_EXPERTS && b->weights[i].kind == kind && b->weights[i].unit == unit) b->weights[i].out = out;
    }
    budget_add_up(b);
}

/* As many slots for experts as fit. */
static void fill_slots(gpu_budget *b) {
    const uint32_t least = b->slots;
    if (b->options.slots) return;
    for (b->slots = b->experts; b->slots > least; b->slots--) {
        budget_add_up(b);
        if (b->total <= b->options.limit) return;
    }
    budget_add_up(b);
}

/* The last weight to leave may have been large. Brings back whatever still fits, the most costly kinds first. */
static void fill_up(gpu_budget *b) {
    static const budget_kind order[] = { BUDGET_LAYERS, BUDGET_HEAD, BUDGET_EXPERTS, BUDGET_TABLES };
    for (size_t k = 0; k < COUNT_OF(order); k++) {
        if (order[k] == BUDGET_EXPERTS) fill_slots(b);
        for (size_t i = 0; i < b->count; i++) {
            const budget_weight *w = &b->weights[i];
            if (w->kind != order[k] || w->kind == BUDGET_EXPERTS || !w->out) continue;
            move_unit(b, w->kind, w->unit, false);
            if (b->total > b->options.limit) move_unit(b, w->kind, w->unit, true);
        }
    }
}

static gm_status decide(gpu_budget *b, error *e) {
    b->slots = b->experts;
    budget_add_up(b);
    b->everything = b->total;
    if (b->options.slots && b->experts) b->slots = (uint32_t)smaller(b->options.slots, b->experts);
    budget_add_up(b);
    while (b->options.limit && b->total > b->options.limit) {
        const budget_weight *next = next_out(b);
        if (!next) return budget_refuse(b, e);
        move_unit(b, next->kind, next->unit, true);
    }
    if (b->options.limit && b->total < b->everything) fill_up(b);
    return GM_OK;
}

gm_status gpu_budget_make(gpu_budget *out, const graph *g, const budget_options *options, error *e) {
    graph fused;
    *out = (gpu_budget){ .options = *options };
    if (!out->options.max_binding) out->options.max_binding = default_binding;
    TRY(graph_fuse(g, &(fuse_options){ .most_bytes = out->options.max_binding - binding_padding }, &fused, e));
    gm_status status = find_weights(out, &fused, e);
    if (!status) status = decide(out, e);
    graph_free(&fused); /* the weights' tensors belong to g */
    if (status) {
        free(out->weights);
        out->weights = NULL;
        out->count = 0;
    }
    return status;
}

void gpu_budget_free(gpu_budget *b) {
    free(b->weights);
    *b = (gpu_budget){ 0 };
}

/* ---- describing the budget in words ---- */

/* "1.23 GB", "35.8 kB" */
static const char *in_words(uint64_t bytes, char out[32]) {
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB" };
    double                   value = (double)bytes;
    size_t                   unit = 0;
    for (; value >= 999.5 && unit + 1 < COUNT_OF(units); unit++) value /= 1000;
    snprintf(out, 32, "%.3g %s", value, units[unit]);
    return out;
}

void gpu_budget_explain(const gpu_budget *b, bool in_file, char *out, size_t size) {
    const char *const how[BUDGET_KINDS] = { in_file ? "tables (rows are read for each token)"
                                                    : "tables (the host looks up rows)",
                                            "experts (uploaded when they are used)", "layers (uploaded for each run)",
                                            "head (uploaded for each run)", "" };
    const char *where = in_file ? "left in the file: " : "left in main memory: ";
    char        amount[32];
    int         used = 0;
    *out = 0;
    for (size_t kind = 0; kind < BUDGET_KINDS; kind++) {
        if (!b->outside[kind] || used < 0 || (size_t)used >= size) continue;
        used += snprintf(out + used, size - (size_t)used, "%s%s of %s", used ? ", " : where,
                         in_words(b->outside[kind], amount), how[kind]);
    }
    if (used > 0 && (size_t)used < size && b->token_bytes)
        used += snprintf(out + used, size - (size_t)used, "; %s over the bus for each token",
                         in_words(b->token_bytes, amount));
    if (used > 0 && (size_t)used < size && b->expert_bytes && b->slots < b->experts)
        snprintf(out + used, size - (size_t)used,
                 "; %u of %u experts of each layer are on the GPU, up to %s over the bus for each token for others, or "
                 "twice that if guesses for the next layer are wrong",
                 b->slots, b->experts, in_words(b->expert_bytes, amount));
}

/* ---- memory of plans ---- */

static void value_live_at(layout_item *items, const tensor *t, uint32_t now) {
    if (!t || t->kind != TENSOR_VALUE) return;
    layout_item *item = &items[(t->base ? t->base : t)->index];
    if (now < item->first) item->first = now;
    if (now > item->last) item->last = now;
}

void budget_keep_values(layout_item *items, size_t count, uint32_t first, uint32_t last) {
    for (size_t i = 0; i < count; i++) {
        layout_item *item = &items[i];
        if (!item->bytes || item->first > last || item->last < first) continue;
        if (item->first > first) item->first = first;
        if (item->last < last) item->last = last;
    }
}

/* Bytes of the values of `tokens` tokens in a plan's layout, plus an eighth for what a plan adds. */
gm_status budget_plan(const graph *g, uint64_t tokens, uint64_t *out, error *e) {
    layout_item *items = calloc(max_size(g->value_count, 1), sizeof *items);
    uint64_t     bytes = 0;
    if (!items) return fail_memory(e, "the memory plan", g->value_count * sizeof *items);
    for (size_t i = 0; i < g->value_count; i++) items[i].first = UINT32_MAX;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const op *o = &g->ops[i];
        for (size_t j = 0; j < OP_INPUTS; j++) value_live_at(items, o->in[j], i);
        if (!o->out) continue;
        items[o->out->index].bytes =
            round_up((o->out->axis == AXIS_TOKENS ? tokens : 1) * o->out->token_stride * sizeof(float), 256);
        value_live_at(items, o->out, i);
    }
    for (uint32_t first = 0, last; first < g->op_count; first++) {
        if (g->ops[first].kind != OP_MATMUL_EXPERTS) continue;
        for (uint32_t i = last = first; i < g->op_count; i++) {
            if (g->ops[i].kind == OP_MATMUL_EXPERTS && g->ops[i].in[2] == g->ops[first].in[2]) last = i;
        }
        budget_keep_values(items, g->value_count, first, last);
        first = last;
    }
    const gm_status status = layout_assign(items, g->value_count, 256, 0, &bytes, e);
    free(items);
    *out += bytes + bytes / 8;
    return status;
}

gm_status budget_plans(const graph *g, uint64_t *out, error *e) {
    *out = 3 * sizeof(uint32_t) * g->result->ne[0] + (64 << 10); /* for the sampler, and the plans' small buffers */
    for (uint64_t tokens = 1; tokens <= 256; tokens *= 4) TRY(budget_plan(g, tokens, out, e));
    return GM_OK;
}
