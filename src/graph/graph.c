/* Builds graphs: one function per op, with its shape rule. */

#include "graph/graph_parts.h"

#include <stdlib.h>
#include <string.h>

static const char *const op_names[OP_COUNT_FUSED] = {
    [OP_EMBED] = "embed",
    [OP_RMS_NORM] = "rms_norm",
    [OP_LAYER_NORM] = "layer_norm",
    [OP_MATMUL] = "matmul",
    [OP_ROPE_TABLE] = "rope_table",
    [OP_ROPE] = "rope",
    [OP_KV_STORE] = "kv_store",
    [OP_ATTENTION] = "attention",
    [OP_GEGLU] = "geglu",
    [OP_GATE] = "gate",
    [OP_ADD] = "add",
    [OP_MUL] = "mul",
    [OP_CLAMP] = "clamp",
    [OP_SCALE] = "scale",
    [OP_SOFTCAP] = "softcap",
    [OP_ROUTE] = "route",
    [OP_LORA_SHRINK] = "lora_shrink",
    [OP_LORA_EXPAND] = "lora_expand",
    [OP_CONV_GRID] = "conv_grid",
    [OP_CONV_TOKENS] = "conv_tokens",
    [OP_LOCAL_ATTENTION] = "local_attention",
    [OP_SELECT_ROWS] = "select_rows",
    [OP_TOKEN_SUM] = "token_sum",
    [OP_LEAF] = "leaf",
    [OP_CANVAS_HEAD] = "canvas_head",
    [OP_CANVAS_NEXT] = "canvas_next",
    [OP_MATMUL_EXPERTS] = "matmul_experts",
    [OP_EXPERT_SUM] = "expert_sum",
    [OP_MATMUL_BACK] = "matmul_back",
    [OP_MATMUL_EXPERTS_BACK] = "matmul_experts_back",
    [OP_RMS_NORM_BACK] = "rms_norm_back",
    [OP_ROPE_BACK] = "rope_back",
    [OP_GEGLU_BACK] = "geglu_back",
    [OP_ATTENTION_BACK_Q] = "attention_back_q",
    [OP_ATTENTION_BACK_KV] = "attention_back_kv",
    [OP_ROUTE_BACK] = "route_back",
    [OP_EXPERT_SUM_BACK] = "expert_sum_back",
    [OP_SELECT_ROWS_BACK] = "select_rows_back",
    [OP_ROW_SUM] = "row_sum",
    [OP_ROW_DOT] = "row_dot",
    [OP_CONCAT] = "concat",
    [OP_DROPOUT] = "dropout",
    [OP_CROSS_ENTROPY] = "cross_entropy",
    [OP_LORA_GRADIENT] = "lora_gradient",
    [OP_SQUARE_SUM] = "square_sum",
    [OP_ADAMW] = "adamw",
    [OP_NORMS] = "norms",
    [OP_PRODUCTS] = "products",
    [OP_SHRINKS] = "shrinks",
    [OP_HEADS] = "heads",
    [OP_ATTEND] = "attend",
    [OP_MIX] = "mix",
};

const char *op_name(op_kind kind) { return kind < OP_COUNT_FUSED ? op_names[kind] : "unknown op"; }

void graph_free(graph *g) {
    arena_free(&g->memory);
    free(g->ops);
    memset(g, 0, sizeof *g);
}

static tensor *new_tensor(graph *g, tensor t) {
    tensor *out = arena_alloc(&g->memory, sizeof *out);
    if (!out) {
        fail_memory(&g->problem, "a tensor of the graph", sizeof *out);
        return NULL;
    }
    *out = t;
    return out;
}

tensor *graph_weight(graph *g, const char *name, quant_type type, const uint64_t ne[3], const void *data) {
    return new_tensor(
        g, (tensor){ .kind = TENSOR_WEIGHT, .type = type, .ne = { ne[0], ne[1], ne[2] }, .data = data, .name = name });
}

tensor *graph_value(graph *g, tensor_axis axis, uint64_t n, uint64_t rows) {
    tensor *t = new_tensor(g, (tensor){ .kind = TENSOR_VALUE,
                                        .type = TYPE_F32,
                                        .ne = { n, rows, 1 },
                                        .axis = axis,
                                        .row_stride = n,
                                        .token_stride = n * rows });
    if (t) t->index = (uint32_t)g->value_count++;
    return t;
}

/* Appends the op and creates its result. If the shapes do not fit, notes the problem instead. */
tensor *graph_append(graph *g, bool fits, op what, tensor_axis axis, uint64_t n, uint64_t rows) {
    if (g->problem.status) return NULL;
    if (!fits) {
        const tensor *a = what.in[0], *b = what.in[1];
        fail(&g->problem, GM_BAD_FILE, "%s: shapes do not fit: [%llu, %llu]%s%s and [%llu, %llu]", op_name(what.kind),
             a ? (unsigned long long)a->ne[0] : 0, a ? (unsigned long long)a->ne[1] : 0, a && a->name ? " " : "",
             a && a->name ? a->name : "", b ? (unsigned long long)b->ne[0] : 0, b ? (unsigned long long)b->ne[1] : 0);
        return NULL;
    }
    if (g->op_count == g->op_capacity) {
        const size_t capacity = g->op_capacity ? 2 * g->op_capacity : 256;
        op          *ops = realloc(g->ops, capacity * sizeof *ops);
        if (!ops) {
            fail_memory(&g->problem, "the graph's ops", capacity * sizeof *ops);
            return NULL;
        }
        g->ops = ops;
        g->op_capacity = capacity;
    }
    if (n) what.out = graph_value(g, axis, n, rows);
    if (n && !what.out) return NULL;
    g->ops[g->op_count++] = what;
    return what.out;
}

bool tensor_is_contiguous(const tensor *t) {
    return t->row_stride == t->ne[0] && t->token_stride == t->ne[0] * t->ne[1];
}

bool tensor_same_shape(const tensor *a, const tensor *b) {
    return a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1] && a->axis == b->axis;
}

static tensor *append_embed(graph *g, tensor *table, op what) {
    if (!table) return NULL;
    what.kind = OP_EMBED;
    what.in[0] = table;
    return graph_append(g, true, what, AXIS_TOKENS, table->ne[0], 1);
}

tensor *graph_embed(graph *g, tensor *table, float factor) { return append_embed(g, table, (op){ .factor = factor }); }

tensor *graph_embed_or_given(graph *g, tensor *table, float factor) {
    return append_embed(g, table, (op){ .factor = factor, .given = true });
}

tensor *graph_embed_position(graph *g, tensor *table, float factor) {
    return append_embed(g, table, (op){ .factor = factor, .by_position = true });
}

static bool canvas_value_fits(const tensor *t, uint64_t n) {
    return t->axis == AXIS_TOKENS && t->ne[0] == n && t->ne[1] == 1 && tensor_is_contiguous(t);
}

tensor *graph_embed_value(graph *g, tensor *table, tensor *ids, float factor) {
    if (!table || !ids) return NULL;
    return graph_append(g, canvas_value_fits(ids, 1), (op){ .kind = OP_EMBED, .in = { table, ids }, .factor = factor },
                        AXIS_TOKENS, table->ne[0], 1);
}

tensor *graph_rms_norm(graph *g, tensor *x, tensor *weight, float eps) {
    if (!x) return NULL;
    return graph_append(g, !weight || weight->ne[0] == x->ne[0],
                        (op){ .kind = OP_RMS_NORM, .in = { x, weight }, .factor = eps }, x->axis, x->ne[0], x->ne[1]);
}

/* Backends read vectors as f32; loading a model converts them. */
bool tensor_is_vector(const tensor *w, uint64_t n) {
    return w->kind == TENSOR_WEIGHT && w->type == TYPE_F32 && w->ne[0] == n && w->ne[1] == 1 && w->ne[2] == 1;
}

tensor *graph_layer_norm(graph *g, tensor *x, tensor *weight, tensor *bias, float eps) {
    if (!x || !weight) return NULL;
    const bool fits = tensor_is_vector(weight, x->ne[0]) && (!bias || tensor_is_vector(bias, x->ne[0]));
    return graph_append(g, fits, (op){ .kind = OP_LAYER_NORM, .in = { x, weight, bias }, .factor = eps }, x->axis,
                        x->ne[0], x->ne[1]);
}

tensor *graph_matmul(graph *g, tensor *weight, tensor *x) {
    if (!weight || !x) return NULL;
    return graph_append(g, weight->ne[0] == x->ne[0] && x->ne[1] == 1 && tensor_is_contiguous(x),
                        (op){ .kind = OP_MATMUL, .in = { weight, x } }, x->axis, weight->ne[1], 1);
}

tensor *graph_rope_table(graph *g, tensor *frequencies, uint32_t axes) {
    if (!frequencies) return NULL;
    return graph_append(g, axes == 1 || axes == 2, (op){ .kind = OP_ROPE_TABLE, .in = { frequencies } }, AXIS_TOKENS,
                        2 * frequencies->ne[0], axes);
}

tensor *graph_rope(graph *g, tensor *x, tensor *table) {
    if (!x || !table) return NULL;
    return graph_append(g, x->ne[0] == table->ne[0] && x->ne[1] % table->ne[1] == 0,
                        (op){ .kind = OP_ROPE, .in = { x, table } }, x->axis, x->ne[0], x->ne[1]);
}

tensor *graph_kv(graph *g, uint32_t layer, uint32_t window) {
    tensor *cache = new_tensor(g, (tensor){ .kind = TENSOR_CACHE, .layer = layer, .window = window });
    if (cache) cache->index = (uint32_t)g->value_count++;
    return cache;
}

tensor *graph_kv_store(graph *g, tensor *keys, tensor *values, uint32_t layer, uint32_t window) {
    tensor *cache = keys && values ? graph_kv(g, layer, window) : NULL;
    if (!cache) return NULL;
    cache->ne[0] = keys->ne[0];
    cache->ne[1] = keys->ne[1];
    return graph_append(
        g, tensor_same_shape(keys, values) && tensor_is_contiguous(keys) && tensor_is_contiguous(values),
        (op){ .kind = OP_KV_STORE, .out = cache, .in = { keys, values }, .layer = layer, .window = window },
        AXIS_TOKENS, 0, 0);
}

tensor *graph_attention(graph *g, tensor *queries, tensor *cache) {
    if (!queries || !cache) return NULL;
    return graph_append(
        g, tensor_is_contiguous(queries) && cache->kind == TENSOR_CACHE,
        (op){ .kind = OP_ATTENTION, .in = { queries, cache }, .layer = cache->layer, .window = cache->window },
        queries->axis, queries->ne[0], queries->ne[1]);
}

tensor *graph_attention_logs(graph *g, tensor *queries, tensor *cache, tensor **logs) {
    tensor *out = graph_attention(g, queries, cache);
    *logs = out ? graph_value(g, out->axis, out->ne[1], 1) : NULL;
    if (*logs) g->ops[g->op_count - 1].sum = *logs;
    return *logs ? out : NULL;
}

tensor *graph_geglu(graph *g, tensor *gate, tensor *up) {
    if (!gate || !up) return NULL;
    return graph_append(g, tensor_same_shape(gate, up), (op){ .kind = OP_GEGLU, .in = { gate, up } }, gate->axis,
                        gate->ne[0], gate->ne[1]);
}

tensor *graph_gate(graph *g, tensor *a, tensor *b) {
    if (!a || !b) return NULL;
    return graph_append(g, tensor_same_shape(a, b), (op){ .kind = OP_GATE, .in = { a, b } }, a->axis, a->ne[0],
                        a->ne[1]);
}

static tensor *append_pairwise(graph *g, op_kind kind, tensor *a, tensor *b) {
    if (!a || !b) return NULL;
    const bool fits = b->kind == TENSOR_WEIGHT ? tensor_is_vector(b, a->ne[0]) : tensor_same_shape(a, b);
    return graph_append(g, fits, (op){ .kind = kind, .in = { a, b } }, a->axis, a->ne[0], a->ne[1]);
}

tensor *graph_add(graph *g, tensor *a, tensor *b) { return append_pairwise(g, OP_ADD, a, b); }

tensor *graph_mul(graph *g, tensor *a, tensor *b) { return append_pairwise(g, OP_MUL, a, b); }

tensor *graph_clamp(graph *g, tensor *x, float least, float most) {
    if (!x) return NULL;
    return graph_append(g, least <= most, (op){ .kind = OP_CLAMP, .in = { x }, .least = least, .most = most }, x->axis,
                        x->ne[0], x->ne[1]);
}

tensor *graph_scale(graph *g, tensor *x, float factor) {
    if (!x) return NULL;
    return graph_append(g, true, (op){ .kind = OP_SCALE, .in = { x }, .factor = factor }, x->axis, x->ne[0], x->ne[1]);
}

tensor *graph_softcap(graph *g, tensor *x, float cap) {
    if (!x) return NULL;
    return graph_append(g, cap > 0, (op){ .kind = OP_SOFTCAP, .in = { x }, .factor = cap }, x->axis, x->ne[0],
                        x->ne[1]);
}

tensor *graph_route(graph *g, tensor *logits, tensor *expert_scale, uint32_t used) {
    if (!logits) return NULL;
    const bool fits = logits->ne[1] == 1 && used >= 1 && used <= logits->ne[0] &&
                      (!expert_scale || expert_scale->ne[0] == logits->ne[0]);
    return graph_append(g, fits, (op){ .kind = OP_ROUTE, .in = { logits, expert_scale }, .used = used }, logits->axis,
                        2 * used, 1);
}

tensor *graph_matmul_experts(graph *g, tensor *weight, tensor *x, tensor *routes, uint32_t used) {
    if (!weight || !x || !routes) return NULL;
    const bool fits = weight->ne[0] == x->ne[0] && (x->ne[1] == 1 || x->ne[1] == used) && routes->ne[0] == 2 * used &&
                      tensor_is_contiguous(x);
    return graph_append(g, fits, (op){ .kind = OP_MATMUL_EXPERTS, .in = { weight, x, routes }, .used = used }, x->axis,
                        weight->ne[1], used);
}

tensor *graph_expert_sum(graph *g, tensor *x, tensor *routes, uint32_t used) {
    if (!x || !routes) return NULL;
    return graph_append(g, x->ne[1] == used && routes->ne[0] == 2 * used,
                        (op){ .kind = OP_EXPERT_SUM, .in = { x, routes }, .used = used }, x->axis, x->ne[0], 1);
}

/* ---- adapters ---- */

bool lora_site_fits(const lora_site *s, uint64_t k, uint64_t m) {
    const uint64_t columns = (uint64_t)s->slots * s->experts * s->rank;
    return s->rank && s->slots && tensor_is_vector(s->sets, s->sets->ne[0]) && s->sets->ne[0] % s->slots == 0 &&
           (!k || tensor_is_vector(s->a, columns * k)) && (!m || tensor_is_vector(s->b, columns * m));
}

/* As in graph_matmul_experts: with routes, the rows of x are 1 or those of the experts used. */
bool lora_routes_fit(const lora_site *s, const tensor *routes, uint32_t used) {
    return routes ? used && routes->ne[0] == 2 * (uint64_t)used : s->experts == 1 && !used;
}

tensor *graph_lora_shrink(graph *g, const lora_site *site, tensor *x, tensor *routes, uint32_t used) {
    if (!site->a || !site->sets || !x) return NULL;
    const bool fits = lora_site_fits(site, x->ne[0], 0) && lora_routes_fit(site, routes, used) &&
                      tensor_is_contiguous(x) && x->axis != AXIS_RUN && (x->ne[1] == 1 || x->ne[1] == used);
    return graph_append(g, fits,
                        (op){ .kind = OP_LORA_SHRINK,
                              .in = { site->a, x, site->sets, routes },
                              .used = used,
                              .rank = site->rank,
                              .slots = site->slots },
                        x->axis, (uint64_t)site->rank * site->slots, routes ? used : 1);
}

tensor *graph_lora_shrink_id(graph *g, const lora_site *site) {
    if (!site->a || !site->sets) return NULL;
    const uint64_t columns = (uint64_t)site->slots * site->rank;
    const bool     fits = columns && site->a->ne[0] % columns == 0 && lora_site_fits(site, site->a->ne[0] / columns, 0);
    return graph_append(
        g, fits && site->experts == 1,
        (op){ .kind = OP_LORA_SHRINK, .in = { site->a, NULL, site->sets }, .rank = site->rank, .slots = site->slots },
        AXIS_TOKENS, columns, 1);
}

tensor *graph_lora_expand(graph *g, const lora_site *site, tensor *y, tensor *shrunk, tensor *routes, uint32_t used) {
    if (!site->b || !site->sets || !y || !shrunk) return NULL;
    const bool fits = lora_site_fits(site, 0, y->ne[0]) && lora_routes_fit(site, routes, used) &&
                      y->axis == shrunk->axis && y->ne[1] == shrunk->ne[1] &&
                      shrunk->ne[0] == (uint64_t)site->rank * site->slots;
    return graph_append(g, fits,
                        (op){ .kind = OP_LORA_EXPAND,
                              .in = { y, site->b, shrunk, site->sets, routes },
                              .used = used,
                              .rank = site->rank,
                              .slots = site->slots },
                        y->axis, y->ne[0], y->ne[1]);
}

tensor *graph_conv_grid(graph *g, tensor *x, tensor *weight, uint32_t channels) {
    if (!x || !weight) return NULL;
    const uint64_t taps = UINT64_C(9) * channels, out = taps ? weight->ne[0] / taps : 0;
    const bool     fits = taps && out && tensor_is_vector(weight, out * taps) && x->ne[0] % channels == 0 &&
                      x->ne[1] % 3 == 0 && x->axis == AXIS_TOKENS;
    return graph_append(g, fits, (op){ .kind = OP_CONV_GRID, .in = { x, weight }, .channels = channels }, AXIS_TOKENS,
                        fits ? (x->ne[0] / channels + 1) / 2 * out : 1, x->ne[1] / 3);
}

tensor *graph_conv_tokens(graph *g, tensor *x, tensor *weight, uint32_t taps) {
    if (!x || !weight) return NULL;
    return graph_append(g, x->ne[1] == 1 && x->axis == AXIS_TOKENS && tensor_is_vector(weight, x->ne[0] * taps),
                        (op){ .kind = OP_CONV_TOKENS, .in = { x, weight }, .count = taps }, AXIS_TOKENS, x->ne[0], 1);
}

tensor *graph_local_attention(graph *g, tensor *queries, tensor *keys, tensor *values, tensor *relative, uint32_t reach,
                              float cap) {
    if (!queries || !keys || !values || !relative) return NULL;
    const bool fits = tensor_same_shape(queries, keys) && tensor_same_shape(queries, values) &&
                      queries->axis == AXIS_TOKENS && reach && reach <= LOCAL_ATTENTION_MOST && cap > 0 &&
                      tensor_is_vector(relative, queries->ne[0] * queries->ne[1] * reach);
    return graph_append(
        g, fits,
        (op){ .kind = OP_LOCAL_ATTENTION, .in = { queries, keys, values, relative }, .count = reach, .factor = cap },
        AXIS_TOKENS, queries->ne[0], queries->ne[1]);
}

tensor *graph_select_rows(graph *g, tensor *x) { return graph_select_means(g, x, 1); }

tensor *graph_select_means(graph *g, tensor *x, uint32_t count) {
    if (!x) return NULL;
    return graph_append(g, x->axis == AXIS_TOKENS && count, (op){ .kind = OP_SELECT_ROWS, .in = { x }, .count = count },
                        AXIS_OUTPUTS, x->ne[0], x->ne[1]);
}

tensor *graph_token_sum(graph *g, tensor *x) {
    if (!x) return NULL;
    return graph_append(g, x->axis != AXIS_RUN, (op){ .kind = OP_TOKEN_SUM, .in = { x } }, AXIS_RUN, x->ne[0],
                        x->ne[1]);
}

tensor *graph_leaf(graph *g, tensor_axis axis, uint64_t n, uint64_t rows) {
    return graph_append(g, n && rows, (op){ .kind = OP_LEAF }, axis, n, rows);
}

tensor *graph_concat(graph *g, tensor *const *parts, size_t count) {
    op       what = { .kind = OP_CONCAT, .count = (uint32_t)count };
    uint64_t n = 0;
    bool     fits = count && count < OP_INPUTS;
    for (size_t i = 0; i < count && fits; i++) {
        if (!parts[i]) return NULL;
        what.in[i] = parts[i];
        n += parts[i]->ne[0];
        fits = parts[i]->ne[1] == parts[0]->ne[1] && parts[i]->axis == parts[0]->axis;
    }
    return graph_append(g, fits, what, fits ? parts[0]->axis : AXIS_TOKENS, n, fits ? parts[0]->ne[1] : 1);
}

tensor *graph_canvas_head(graph *g, tensor *table, tensor *x, tensor *settings, tensor *soft, float cap, float factor) {
    if (!table || !x || !settings || !soft) return NULL;
    const bool fits = canvas_value_fits(x, table->ne[0]) && canvas_value_fits(soft, table->ne[0]) &&
                      canvas_value_fits(settings, CANVAS_SETTINGS) && cap >= 0;
    return graph_append(
        g, fits, (op){ .kind = OP_CANVAS_HEAD, .in = { table, x, settings, soft }, .factor = factor, .most = cap },
        AXIS_TOKENS, CANVAS_FINDINGS, 1);
}

tensor *graph_canvas_next(graph *g, tensor *findings, tensor *settings, tensor *state, const canvas_rule *rule) {
    if (!findings || !settings || !state) return NULL;
    const bool fits = canvas_value_fits(findings, CANVAS_FINDINGS) && canvas_value_fits(settings, CANVAS_SETTINGS) &&
                      canvas_value_fits(state, CANVAS_STATE);
    return graph_append(g, fits, (op){ .kind = OP_CANVAS_NEXT, .in = { findings, settings, state }, .rule = *rule },
                        AXIS_TOKENS, 1, 1);
}

tensor *graph_view(graph *g, tensor *x, bool fits, uint64_t offset, uint64_t n, uint64_t rows, uint64_t row_stride) {
    if (g->problem.status || !x) return NULL;
    if (!fits) {
        fail(&g->problem, GM_BAD_FILE, "a view of [%llu, %llu] at %llu does not fit a value of [%llu, %llu]",
             (unsigned long long)n, (unsigned long long)rows, (unsigned long long)offset, (unsigned long long)x->ne[0],
             (unsigned long long)x->ne[1]);
        return NULL;
    }
    tensor view = *x;
    view.base = x->base ? x->base : x;
    view.offset = x->offset + offset;
    view.ne[0] = n;
    view.ne[1] = rows;
    view.row_stride = row_stride;
    return new_tensor(g, view);
}

tensor *graph_reshape(graph *g, tensor *x, uint64_t n, uint64_t rows) {
    return graph_view(g, x, x && tensor_is_contiguous(x) && n * rows == x->ne[0] * x->ne[1], 0, n, rows, n);
}

tensor *graph_slice(graph *g, tensor *x, uint64_t offset, uint64_t n, uint64_t rows) {
    return graph_view(
        g, x, x && offset + n <= x->ne[0] * x->ne[1] && (rows == 1 || (rows == x->ne[1] && offset + n <= x->ne[0])),
        offset, n, rows, x ? x->row_stride : 0);
}

tensor *graph_rows(graph *g, tensor *x, uint64_t first, uint64_t count) {
    return graph_view(g, x, x && first + count <= x->ne[1], x ? first * x->row_stride : 0, x ? x->ne[0] : 0, count,
                      x ? x->row_stride : 0);
}
