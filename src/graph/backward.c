#include "graph/backward.h"

#include "graph/graph_parts.h"

#include <stdlib.h>
#include <string.h>

struct backward_slice {
    const tensor   *view;
    tensor         *gradient;
    backward_slice *next;
};

/* x gets Aᵀ·p: what LORA_EXPAND adds to a product's result [k, rows], with A in the place of B. */
typedef struct backward_correction {
    const op                   *shrink; /* a copy: ops move */
    tensor                     *p;
    struct backward_correction *next;
} backward_correction;

void backward_begin(backward *b, graph *g, const backward_part *parts, size_t count) {
    *b = (backward){ .g = g, .parts = parts, .count = count };
}

void backward_end(backward *b) {
    free(b->values);
    *b = (backward){ 0 };
}

/* ---- values ---- */

static void *backward_alloc(backward *b, size_t bytes) {
    void *p = b->g->problem.status ? NULL : arena_alloc(&b->g->memory, bytes);
    if (!p) fail_memory(&b->g->problem, "the backward graph", bytes);
    return p;
}

static const tensor *storage_whole(const tensor *t) { return t->base ? t->base : t; }

/* NULL: there is no memory, which the graph notes. Valid until the next call. */
static backward_value *backward_of(backward *b, const tensor *t) {
    const size_t index = storage_whole(t)->index;
    if (index >= b->capacity) {
        const size_t    capacity = max_size(2 * b->capacity, index + 256);
        backward_value *values = realloc(b->values, capacity * sizeof *values);
        if (!values) {
            fail_memory(&b->g->problem, "the backward graph", capacity * sizeof *values);
            return NULL;
        }
        memset(values + b->capacity, 0, (capacity - b->capacity) * sizeof *values);
        b->values = values;
        b->capacity = capacity;
    }
    return &b->values[index];
}

bool backward_depends(const backward *b, const tensor *t) {
    return t && t->kind != TENSOR_WEIGHT && storage_whole(t)->index < b->capacity &&
           b->values[storage_whole(t)->index].depends;
}

void backward_depend(backward *b, const tensor *t) {
    backward_value *value = t ? backward_of(b, t) : NULL;
    if (value) value->depends = true;
}

static const backward_part *backward_part_of(const backward *b, const tensor *weight) {
    for (size_t i = 0; weight && i < b->count; i++) {
        const tensor *w = b->parts[i].weight;
        if (w->data == weight->data && w->place == weight->place) return &b->parts[i];
    }
    return NULL;
}

void backward_note(backward *b, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        const op *o = &b->g->ops[i];
        bool      depends = o->kind == OP_LORA_SHRINK && backward_part_of(b, o->in[0]);
        depends = depends || (o->kind == OP_LORA_EXPAND && backward_part_of(b, o->in[1]));
        for (size_t j = 0; j < OP_INPUTS && !depends; j++) depends = backward_depends(b, o->in[j]);
        if (depends) backward_depend(b, o->out);
    }
}

/* ---- sums ---- */

static bool covers(const tensor *view, const tensor *whole) {
    return view == whole || view->ne[0] * view->ne[1] == whole->ne[0] * whole->ne[1];
}

static tensor *sum_of(graph *g, tensor *a, tensor *b) { return !a ? b : !b ? a : graph_add(g, a, b); }

static tensor *in_shape(graph *g, tensor *t, const tensor *like) {
    return !t || (t->ne[0] == like->ne[0] && t->ne[1] == like->ne[1]) ? t
                                                                      : graph_reshape(g, t, like->ne[0], like->ne[1]);
}

static void give_slice(backward *b, backward_value *value, const tensor *view, tensor *gradient) {
    for (backward_slice *s = value->slices; s; s = s->next) {
        if (s->view->offset != view->offset || s->view->ne[0] != view->ne[0] || s->view->ne[1] != view->ne[1]) continue;
        s->gradient = sum_of(b->g, s->gradient, gradient);
        return;
    }
    backward_slice *fresh = backward_alloc(b, sizeof *fresh), **at = &value->slices;
    if (!fresh) return;
    while (*at && (*at)->view->offset < view->offset) at = &(*at)->next;
    *fresh = (backward_slice){ view, gradient, *at };
    *at = fresh;
}

void backward_give(backward *b, tensor *value, tensor *gradient) {
    const tensor   *whole = value ? storage_whole(value) : NULL;
    backward_value *v = whole && gradient ? backward_of(b, whole) : NULL;
    if (!v || !v->depends) return;
    if (whole->kind == TENSOR_VALUE && !covers(value, whole)) give_slice(b, v, value, gradient);
    else if (!v->gradient) v->gradient = gradient;
    else v->gradient = graph_add(b->g, v->gradient, in_shape(b->g, gradient, v->gradient));
}

/* Puts the slices together: pieces of one row, or of each row. */
static tensor *join_slices(backward *b, const backward_value *v, const tensor *whole) {
    tensor  *parts[OP_INPUTS - 1], *joined = NULL;
    uint64_t end = 0;
    size_t   count = 0;
    for (const backward_slice *s = v->slices; s; s = s->next) {
        if (s->view->offset != end || s->view->ne[1] != v->slices->view->ne[1]) break;
        end += s->view->ne[0];
        parts[count++] = s->gradient;
        if (s->next && count < COUNT_OF(parts)) continue;
        joined = parts[0] = graph_concat(b->g, parts, count);
        count = 1;
    }
    if (joined && end * v->slices->view->ne[1] == whole->ne[0] * whole->ne[1]) return in_shape(b->g, joined, whole);
    fail(&b->g->problem, GM_UNSUPPORTED, "a value that is read in parts has a gradient only if all parts have one");
    return NULL;
}

tensor *backward_gradient(backward *b, tensor *value) {
    const tensor   *whole = storage_whole(value);
    backward_value *v = backward_of(b, whole);
    if (!v || b->g->problem.status) return NULL;
    if (v->slices) {
        tensor *joined = join_slices(b, v, whole);
        v->gradient = sum_of(b->g, in_shape(b->g, v->gradient, whole), joined);
        v->slices = NULL;
    }
    return whole->kind == TENSOR_VALUE && v->gradient &&
                   v->gradient->ne[0] * v->gradient->ne[1] == whole->ne[0] * whole->ne[1]
               ? in_shape(b->g, v->gradient, whole)
               : v->gradient;
}

/* ---- rules: o is a copy of the op, d the gradient of its result ---- */

typedef void (*backward_rule)(backward *b, const op *o, tensor *d);

static void back_rms_norm(backward *b, const op *o, tensor *d) {
    backward_give(b, o->in[0], graph_rms_norm_back(b->g, o->in[0], o->in[1], d, o->factor));
}

static void back_rope(backward *b, const op *o, tensor *d) {
    backward_give(b, o->in[0], graph_rope_back(b->g, d, o->in[1]));
}

static void back_kv_store(backward *b, const op *o, tensor *d) {
    const uint64_t heads = o->in[0]->ne[1];
    backward_give(b, o->in[0], graph_rows(b->g, d, 0, heads));
    backward_give(b, o->in[1], graph_rows(b->g, d, heads, heads));
}

static void back_attention(backward *b, const op *o, tensor *d) {
    tensor *q = o->in[0], *cache = o->in[1], *delta = graph_row_dot(b->g, o->out, d);
    if (backward_depends(b, q)) backward_give(b, q, graph_attention_back_q(b->g, q, cache, d, o->sum, delta));
    if (backward_depends(b, cache))
        backward_give(b, cache, graph_attention_back_kv(b->g, q, cache, d, o->sum, delta, cache->ne[1]));
}

static void back_geglu(backward *b, const op *o, tensor *d) {
    tensor *gate = o->in[0], *up = o->in[1];
    if (backward_depends(b, up)) backward_give(b, up, graph_geglu(b->g, gate, d));
    if (backward_depends(b, gate)) backward_give(b, gate, graph_geglu_back(b->g, gate, up, d));
}

static void back_add(backward *b, const op *o, tensor *d) {
    for (size_t i = 0; i < 2; i++) {
        if (o->in[i]->kind != TENSOR_WEIGHT) backward_give(b, o->in[i], d);
    }
}

static void back_mul(backward *b, const op *o, tensor *d) {
    for (size_t i = 0; i < 2; i++) {
        if (backward_depends(b, o->in[i])) backward_give(b, o->in[i], graph_mul(b->g, d, o->in[1 - i]));
    }
}

static void back_scale(backward *b, const op *o, tensor *d) {
    backward_give(b, o->in[0], graph_scale(b->g, d, o->factor));
}

static void back_route(backward *b, const op *o, tensor *d) {
    backward_give(b, o->in[0], graph_route_back(b->g, o->in[0], o->out, o->in[1], d, o->used));
}

static void back_expert_sum(backward *b, const op *o, tensor *d) {
    tensor *x = o->in[0], *routes = o->in[1];
    if (backward_depends(b, routes)) backward_give(b, routes, graph_row_dot(b->g, x, d));
    if (backward_depends(b, x)) backward_give(b, x, graph_expert_sum_back(b->g, d, routes, o->used));
}

static void back_select_rows(backward *b, const op *o, tensor *d) {
    backward_give(b, o->in[0], graph_select_rows_back(b->g, d));
}

/* ---- products, and their corrections by adapters ----
 *
 * Of y + B·u, u = w·A·x, with the gradient d: p = w·Bᵀ·d is LORA_SHRINK with B in the place of A; the gradient of B is d ⊗ u, that of A is
 * p ⊗ x, and that of x is Aᵀ·p: LORA_EXPAND with A in the place of B, added to that of the product, Wᵀ·d. */

static lora_site site_of(const op *o, tensor *a, tensor *b, tensor *sets) {
    const tensor  *matrices = a ? a : b;
    const uint64_t columns = (uint64_t)o->slots * o->rank;
    lora_site      site = { .a = a, .b = b, .sets = sets, .rank = o->rank, .slots = o->slots, .experts = 1 };
    const uint64_t length = o->kind == OP_LORA_EXPAND ? o->out->ne[0] : o->in[1] ? o->in[1]->ne[0] : matrices->ne[0];
    if (o->used) site.experts = matrices->ne[0] / (columns * length);
    return site;
}

static void back_lora_expand(backward *b, const op *o, tensor *d) {
    tensor              *shrunk = o->in[2], *routes = o->in[4];
    const backward_part *part = backward_part_of(b, o->in[1]);
    const lora_site      site = site_of(o, o->in[1], NULL, o->in[3]);
    if (part) graph_lora_gradient(b->g, shrunk, d, part->gradient, routes, o, part->slot, part->factor);
    if (backward_depends(b, shrunk)) backward_give(b, shrunk, graph_lora_shrink(b->g, &site, d, routes, o->used));
    backward_give(b, o->in[0], d);
}

static void back_lora_shrink(backward *b, const op *o, tensor *p) {
    const backward_part *part = backward_part_of(b, o->in[0]);
    if (part) graph_lora_gradient(b->g, p, o->in[1], part->gradient, o->in[3], o, part->slot, part->factor);
    if (!backward_depends(b, o->in[1])) return;
    backward_correction *correction = backward_alloc(b, sizeof *correction);
    op                  *copy = backward_alloc(b, sizeof *copy);
    if (!correction || !copy) return;
    *copy = *o;
    *correction = (backward_correction){ copy, p, b->waiting };
    b->waiting = correction;
}

/* Adds the corrections that wait for x to a product's gradient d of it. */
static tensor *add_corrections(backward *b, const tensor *x, tensor *d) {
    for (backward_correction **at = &b->waiting; *at;) {
        const op *o = (*at)->shrink;
        if (o->in[1] != x) {
            at = &(*at)->next;
            continue;
        }
        const lora_site site = site_of(o, NULL, o->in[0], o->in[2]);
        d = graph_lora_expand(b->g, &site, d, (*at)->p, o->in[3], o->used);
        *at = (*at)->next;
    }
    return d;
}

/* Dropout has one reader, the adapter: its gradient consists of corrections only. */
static void back_dropout(backward *b, const op *o) {
    for (backward_correction **at = &b->waiting; *at;) {
        const op *shrink = (*at)->shrink;
        if (shrink->in[1] != o->out) {
            at = &(*at)->next;
            continue;
        }
        const lora_site site = site_of(shrink, NULL, shrink->in[0], shrink->in[2]);
        tensor         *d = graph_lora_correction(b->g, &site, o->out->ne[0], (*at)->p, shrink->in[3], shrink->used);
        if (d && d->ne[1] != o->out->ne[1]) d = graph_row_sum(b->g, d);
        backward_give(b, o->in[0], graph_dropout(b->g, d, o->in[1], o->factor, o->stream));
        *at = (*at)->next;
    }
}

static void back_matmul(backward *b, const op *o, tensor *d) {
    backward_give(b, o->in[1], add_corrections(b, o->in[1], graph_matmul_back(b->g, o->in[0], d)));
}

static void back_matmul_experts(backward *b, const op *o, tensor *d) {
    tensor *x = o->in[1], *dx = add_corrections(b, x, graph_matmul_experts_back(b->g, o->in[0], d, o->in[2], o->used));
    backward_give(b, x, x->ne[1] == o->used ? dx : graph_row_sum(b->g, dx));
}

static const backward_rule rules[OP_COUNT] = {
    [OP_RMS_NORM] = back_rms_norm,
    [OP_MATMUL] = back_matmul,
    [OP_ROPE] = back_rope,
    [OP_KV_STORE] = back_kv_store,
    [OP_ATTENTION] = back_attention,
    [OP_GEGLU] = back_geglu,
    [OP_ADD] = back_add,
    [OP_MUL] = back_mul,
    [OP_SCALE] = back_scale,
    [OP_ROUTE] = back_route,
    [OP_MATMUL_EXPERTS] = back_matmul_experts,
    [OP_EXPERT_SUM] = back_expert_sum,
    [OP_LORA_SHRINK] = back_lora_shrink,
    [OP_LORA_EXPAND] = back_lora_expand,
    [OP_SELECT_ROWS] = back_select_rows,
};

/* Attention saves the logarithms of its sums for its rule. */
static void save_logs(backward *b, op *o) {
    if (o->kind == OP_ATTENTION && !o->sum) o->sum = graph_value(b->g, o->out->axis, o->out->ne[1], 1);
    if (o->kind == OP_ATTENTION && !o->sum) fail_memory(&b->g->problem, "the backward graph", sizeof *o->sum);
}

void backward_run(backward *b, size_t first, size_t end) {
    for (size_t i = end; i-- > first && !b->g->problem.status;) {
        op *o = &b->g->ops[i];
        if (!o->out || !backward_depends(b, o->out)) continue;
        if (o->kind == OP_DROPOUT) {
            const op copy = *o;
            back_dropout(b, &copy);
            continue;
        }
        tensor *d = backward_gradient(b, o->out);
        if (!d) continue;  /* nobody read it */
        o = &b->g->ops[i]; /* what joins slices and sums appends ops, which may move them all */
        const bool one = o->kind != OP_SELECT_ROWS || o->count == 1;
        if (!rules[o->kind] || !one) {
            if (o->kind != OP_LEAF)
                fail(&b->g->problem, GM_UNSUPPORTED, "%s has no gradient: nothing before it can be trained",
                     op_name(o->kind));
            continue;
        }
        save_logs(b, o);
        const op copy = b->g->ops[i]; /* rules append ops, which moves them all */
        if (!b->g->problem.status) rules[copy.kind](b, &copy, d);
    }
    if (b->waiting && !b->g->problem.status)
        fail(&b->g->problem, GM_UNSUPPORTED, "an adapter corrects a product that the graph does not compute");
}
