/* Ops of training: one function per op, with its shape rule. */

#include "graph/graph_parts.h"

tensor *graph_matmul_back(graph *g, tensor *weight, tensor *d) {
    if (!weight || !d) return NULL;
    return graph_append(g, weight->ne[1] == d->ne[0] && d->ne[1] == 1 && tensor_is_contiguous(d),
                        (op){ .kind = OP_MATMUL_BACK, .in = { weight, d } }, d->axis, weight->ne[0], 1);
}

tensor *graph_matmul_experts_back(graph *g, tensor *weight, tensor *d, tensor *routes, uint32_t used) {
    if (!weight || !d || !routes) return NULL;
    const bool fits = weight->ne[1] == d->ne[0] && d->ne[1] == used && routes->ne[0] == 2 * (uint64_t)used &&
                      tensor_is_contiguous(d) && d->axis == AXIS_TOKENS;
    return graph_append(g, fits, (op){ .kind = OP_MATMUL_EXPERTS_BACK, .in = { weight, d, routes }, .used = used },
                        d->axis, weight->ne[0], used);
}

tensor *graph_rms_norm_back(graph *g, tensor *x, tensor *weight, tensor *d, float eps) {
    if (!x || !d) return NULL;
    return graph_append(g, tensor_same_shape(x, d) && (!weight || tensor_is_vector(weight, x->ne[0])),
                        (op){ .kind = OP_RMS_NORM_BACK, .in = { x, weight, d }, .factor = eps }, x->axis, x->ne[0],
                        x->ne[1]);
}

tensor *graph_rope_back(graph *g, tensor *d, tensor *table) {
    if (!d || !table) return NULL;
    return graph_append(g, d->ne[0] == table->ne[0] && d->ne[1] % table->ne[1] == 0,
                        (op){ .kind = OP_ROPE_BACK, .in = { d, table } }, d->axis, d->ne[0], d->ne[1]);
}

tensor *graph_geglu_back(graph *g, tensor *gate, tensor *up, tensor *d) {
    if (!gate || !up || !d) return NULL;
    return graph_append(g, tensor_same_shape(gate, up) && tensor_same_shape(gate, d),
                        (op){ .kind = OP_GEGLU_BACK, .in = { gate, up, d } }, gate->axis, gate->ne[0], gate->ne[1]);
}

/* ---- attention ---- */

static tensor *append_attention_back(graph *g, op_kind kind, tensor *const in[5], uint64_t rows) {
    for (size_t i = 0; i < 5; i++) {
        if (!in[i]) return NULL;
    }
    const tensor *q = in[0], *cache = in[1], *d = in[2];
    bool          fits = q->ne[0] <= ATTENTION_BACK_HEAD && cache->kind == TENSOR_CACHE && tensor_same_shape(q, d) &&
                tensor_is_contiguous(q) && tensor_is_contiguous(d) && rows && q->axis == AXIS_TOKENS;
    for (size_t i = 3; i < 5; i++) fits = fits && in[i]->ne[0] == q->ne[1] && tensor_is_contiguous(in[i]);
    return graph_append(
        g, fits,
        (op){
            .kind = kind, .in = { in[0], in[1], in[2], in[3], in[4] }, .layer = cache->layer, .window = cache->window },
        AXIS_TOKENS, q->ne[0], rows);
}

tensor *graph_attention_back_q(graph *g, tensor *queries, tensor *cache, tensor *d, tensor *logs, tensor *delta) {
    return append_attention_back(g, OP_ATTENTION_BACK_Q, (tensor *[]){ queries, cache, d, logs, delta },
                                 queries ? queries->ne[1] : 0);
}

tensor *graph_attention_back_kv(graph *g, tensor *queries, tensor *cache, tensor *d, tensor *logs, tensor *delta,
                                uint64_t kv_heads) {
    const bool fits =
        queries && kv_heads && queries->ne[1] % kv_heads == 0 && queries->ne[1] / kv_heads <= ATTENTION_BACK_GROUP;
    return append_attention_back(g, OP_ATTENTION_BACK_KV, (tensor *[]){ queries, cache, d, logs, delta },
                                 fits ? 2 * kv_heads : 0);
}

/* ---- experts ---- */

tensor *graph_route_back(graph *g, tensor *logits, tensor *routes, tensor *expert_scale, tensor *d, uint32_t used) {
    if (!logits || !routes || !d) return NULL;
    const bool fits = logits->ne[1] == 1 && routes->ne[0] == 2 * (uint64_t)used && d->ne[0] == used && d->ne[1] == 1 &&
                      (!expert_scale || tensor_is_vector(expert_scale, logits->ne[0]));
    return graph_append(g, fits, (op){ .kind = OP_ROUTE_BACK, .in = { logits, routes, expert_scale, d }, .used = used },
                        logits->axis, logits->ne[0], 1);
}

tensor *graph_expert_sum_back(graph *g, tensor *d, tensor *routes, uint32_t used) {
    if (!d || !routes) return NULL;
    return graph_append(g, d->ne[1] == 1 && routes->ne[0] == 2 * (uint64_t)used,
                        (op){ .kind = OP_EXPERT_SUM_BACK, .in = { d, routes }, .used = used }, d->axis, d->ne[0], used);
}

/* ---- rows ---- */

tensor *graph_select_rows_back(graph *g, tensor *d) {
    if (!d) return NULL;
    return graph_append(g, d->axis == AXIS_OUTPUTS, (op){ .kind = OP_SELECT_ROWS_BACK, .in = { d } }, AXIS_TOKENS,
                        d->ne[0], d->ne[1]);
}

tensor *graph_row_sum(graph *g, tensor *x) {
    if (!x) return NULL;
    return graph_append(g, true, (op){ .kind = OP_ROW_SUM, .in = { x } }, x->axis, x->ne[0], 1);
}

tensor *graph_row_dot(graph *g, tensor *a, tensor *b) {
    if (!a || !b) return NULL;
    return graph_append(g, a->ne[0] == b->ne[0] && a->axis == b->axis && (b->ne[1] == 1 || b->ne[1] == a->ne[1]),
                        (op){ .kind = OP_ROW_DOT, .in = { a, b } }, a->axis, a->ne[1], 1);
}

/* ---- adapters that forget some of their inputs ---- */

tensor *graph_dropout(graph *g, tensor *x, tensor *key, float probability, uint32_t stream) {
    if (!x || !key) return NULL;
    const bool fits = key->axis == AXIS_RUN && key->ne[0] == 2 && probability >= 0 && probability < 1;
    return graph_append(g, fits, (op){ .kind = OP_DROPOUT, .in = { x, key }, .factor = probability, .stream = stream },
                        x->axis, x->ne[0], x->ne[1]);
}

tensor *graph_lora_correction(graph *g, const lora_site *site, uint64_t m, tensor *shrunk, tensor *routes,
                              uint32_t used) {
    if (!site->b || !site->sets || !shrunk) return NULL;
    const uint64_t columns = (uint64_t)site->rank * site->slots;
    return graph_append(g, shrunk->ne[0] == columns && tensor_is_vector(site->b, columns * site->experts * m),
                        (op){ .kind = OP_LORA_EXPAND,
                              .in = { NULL, site->b, shrunk, site->sets, routes },
                              .used = used,
                              .rank = site->rank,
                              .slots = site->slots },
                        shrunk->axis, m, shrunk->ne[1]);
}

/* ---- loss and parameters ---- */

tensor *graph_cross_entropy(graph *g, tensor *logits, tensor *goals, float cap, tensor **loss) {
    *loss = NULL;
    if (!logits || !goals) return NULL;
    const bool fits = logits->ne[1] == 1 && goals->ne[0] == 2 && goals->ne[1] == 1 && goals->axis == logits->axis &&
                      logits->axis != AXIS_RUN && cap >= 0;
    tensor *out = graph_append(g, fits, (op){ .kind = OP_CROSS_ENTROPY, .in = { logits, goals }, .factor = cap },
                               logits->axis, logits->ne[0], 1);
    *loss = out ? graph_value(g, out->axis, 1, 1) : NULL;
    if (*loss) g->ops[g->op_count - 1].sum = *loss;
    return *loss ? out : NULL;
}

void graph_lora_gradient(graph *g, tensor *p, tensor *q, tensor *state, tensor *routes, const op *like, uint32_t slot,
                         float factor) {
    if (!p || !state) return;
    const uint64_t width = like->rank * (q ? q->ne[0] : 1);
    const bool     fits = p->ne[0] == (uint64_t)like->rank * like->slots && slot < like->slots && width &&
                      state->ne[0] % width == 0 && tensor_is_vector(state, state->ne[0]) &&
                      (!q || routes || state->ne[0] == width) &&
                      (!q || (q->axis == p->axis && tensor_is_contiguous(q)));
    graph_append(g, fits && tensor_is_contiguous(p),
                 (op){ .kind = OP_LORA_GRADIENT,
                       .in = { p, state, q, routes },
                       .used = like->used,
                       .rank = like->rank,
                       .slots = like->slots,
                       .slot = slot,
                       .factor = factor },
                 p->axis, 0, 0);
}

tensor *graph_square_sum(graph *g, tensor *state, tensor *before) {
    if (!state) return NULL;
    return graph_append(g, tensor_is_vector(state, state->ne[0]) && (!before || before->axis == AXIS_RUN),
                        (op){ .kind = OP_SQUARE_SUM, .in = { state, before } }, AXIS_RUN, 1, 1);
}

void graph_adamw(graph *g, const adamw_part *part, tensor *rates, tensor *squares) {
    if (!part->parameter || !part->gradient || !part->moments[0] || !part->moments[1] || !rates || !squares) return;
    const uint64_t n = part->gradient->ne[0];
    bool           fits = n && tensor_is_vector(part->parameter, part->parameter->ne[0]) &&
                part->parameter->ne[0] / n > part->slot && part->parameter->ne[0] % n == 0 && part->scale != 0;
    for (size_t i = 0; i < 2; i++) fits = fits && tensor_is_vector(part->moments[i], n);
    graph_append(g, fits && rates->axis == AXIS_RUN && rates->ne[0] == ADAMW_RATES && squares->axis == AXIS_RUN,
                 (op){ .kind = OP_ADAMW,
                       .in = { part->parameter, part->gradient, part->moments[0], part->moments[1], rates, squares },
                       .slot = part->slot,
                       .factor = part->scale,
                       .most = part->rate },
                 AXIS_RUN, 0, 0);
}
