#include "gpu/experts_ahead.h"

#include "graph/graph_parts.h"

#include <stdlib.h>

/* How a layer chooses its experts: ops of the plan's graph, by index. */
typedef struct {
    const gpu_weight *experts;
    size_t            norm, product, route; /* norm: as product, if that norms its column itself */
    size_t            first;                /* product of the experts */
} routing;

/* The op before `end` whose result this is; `end`: there is none. */
static size_t op_that_makes(const graph *g, const tensor *value, size_t end) {
    for (size_t i = 0; i < end; i++) {
        if (value && g->ops[i].out == value) return i;
    }
    return end;
}

/* Follows the routes of a product of experts back to the residual. False: the router is not of the usual form. */
static bool routing_find(const gpu_plan *p, size_t i, routing *out) {
    const graph      *g = &p->g;
    const op         *o = &g->ops[i];
    const gpu_weight *w =
        o->kind == OP_PRODUCTS && o->in[FUSED_ROUTES] ? gpu_backend_weight(p->backend, o->in[FUSED_W0]) : NULL;
    if (!w || !w->cached) return false;
    *out = (routing){ .experts = w, .first = i };
    out->route = op_that_makes(g, o->in[FUSED_ROUTES], i);
    if (out->route == i || g->ops[out->route].kind != OP_ROUTE) return false;
    out->product = out->norm = op_that_makes(g, g->ops[out->route].in[0], out->route);
    if (out->product == out->route || g->ops[out->product].kind != OP_PRODUCTS) return false;
    const gpu_weight *router = gpu_backend_part(p->backend, g->ops[out->product].in[FUSED_W0]).weight;
    if (!router || router->streamed) return false; /* it would be uploaded twice */
    if (!g->ops[out->product].normed) out->norm = op_that_makes(g, g->ops[out->product].in[FUSED_A], out->product);
    const op *norm = &g->ops[out->norm];
    return (out->norm == out->product ? norm->normed : out->norm < out->product && norm->kind == OP_NORMS) &&
           !norm->in[FUSED_B] && !norm->sum;
}

/* Appends a copy of an op with another input and a result of its own. Adapters of the router are left out: this is a guess. */
static tensor *ahead_copy(gpu_plan *p, graph *to, size_t from, int input, tensor *x, const gpu_weight *experts) {
    op copy = p->g.ops[from];
    copy.in[input] = x;
    if (copy.kind == OP_PRODUCTS) {
        copy.in[FUSED_SHRUNK] = NULL;
        for (int i = 0; i < 3; i++) copy.in[FUSED_EXPAND0 + i] = NULL;
    }
    const tensor *like = copy.out;
    copy.out = graph_value(to, like->axis, like->ne[0], like->ne[1]);
    p->ahead[to->op_count] = experts;
    to->ops[to->op_count++] = copy;
    return copy.out;
}

gm_status plan_add_ahead(gpu_plan *p, error *e) {
    enum { COPIES = 3 };      /* of each layer: norm, product, route */
    enum { MOST_TOKENS = 4 }; /* more want nearly all experts anyway */
    graph   g = p->g;
    size_t  layers = 0;
    routing own, *all = NULL;
    if (!p->backend->experts || (p->tokens > MOST_TOKENS && !p->rows_alone)) return GM_OK;
    all = calloc(g.op_count, sizeof *all);
    p->ahead = calloc(g.op_count * (1 + COPIES), sizeof *p->ahead);
    g.ops = malloc(g.op_count * (1 + COPIES) * sizeof *g.ops);
    if (!all || !p->ahead || !g.ops) {
        free(all);
        free(g.ops);
        return fail_memory(e, "a plan's ops", g.op_count * (1 + COPIES) * sizeof *g.ops);
    }
    for (size_t i = 0; i < g.op_count; i++) {
        if (!routing_find(p, i, &own) || (layers && all[layers - 1].route == own.route)) continue;
        all[layers++] = own;
    }
    g.op_capacity = g.op_count * (1 + COPIES);
    g.op_count = 0;
    for (size_t i = 0, layer = 0; i < p->g.op_count; i++) {
        if (layer + 1 < layers && i == all[layer].first) {
            const routing *here = &all[layer++], *next = &all[layer];
            tensor        *x = p->g.ops[here->norm].in[FUSED_A];
            if (next->norm != next->product) x = ahead_copy(p, &g, next->norm, FUSED_A, x, next->experts);
            x = ahead_copy(p, &g, next->product, FUSED_A, x, next->experts);
            ahead_copy(p, &g, next->route, 0, x, next->experts);
        }
        g.ops[g.op_count++] = p->g.ops[i];
    }
    free(all);
    free(p->g.ops);
    p->g = g;
    return g.problem.status ? fail(e, g.problem.status, "%s", g.problem.why) : GM_OK;
}
