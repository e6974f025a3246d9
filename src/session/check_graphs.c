/* The graphs of the self-check. Each contains the primitives that occur together in a model, so that a plan fuses them
 * in the same way and gets the same kernel. Inputs are rows of tables of known noise. */

#include "base/random.h"
#include "session/self_check_parts.h"

#include <string.h>

#define LARGE 1e30f /* a bound that nothing reaches */

typedef struct {
    const self_check  *c;
    const check       *k;
    const void *const *data;
    bool               empty;
    graph             *g;
    uint32_t           streams; /* of noise used so far */
    tensor            *values[OP_INPUTS];
} check_builder;

/* ---- inputs ---- */

/* `n` × `rows` floats between `low` and `high`, the same every time, as a weight of the graph. */
static tensor *check_noise(check_builder *b, uint64_t n, uint64_t rows, float low, float high) {
    const uint32_t key[2] = { 0x67656d6d, ++b->streams };
    float         *values = arena_array(&b->g->memory, (size_t)(n * rows), sizeof *values);
    if (!values) {
        fail_memory(&b->g->problem, "the self-check's inputs", n * rows * sizeof *values);
        return NULL;
    }
    for (uint64_t i = 0; i < n * rows && !b->empty; i += 4) {
        uint32_t words[4];
        philox((uint32_t[]){ (uint32_t)i, 0, 0, 0 }, key, words);
        for (uint64_t j = 0; j < 4 && i + j < n * rows; j++)
            values[i + j] = low + (high - low) * (float)(words[j] >> 8) / (float)(1 << 24);
    }
    return graph_weight(b->g, "self-check", TYPE_F32, (uint64_t[]){ n, rows, 1 }, values);
}

static tensor *input(check_builder *b, uint64_t width, tensor_axis axis) {
    tensor *x = graph_embed(b->g, check_noise(b, width, TABLE_ROWS, -1, 1), 1);
    return axis == AXIS_OUTPUTS ? graph_select_rows(b->g, x) : x;
}

static tensor *check_gain(check_builder *b, uint64_t n) { return check_noise(b, n, 1, 0.5f, 1.5f); }

static tensor *norm(check_builder *b, tensor *x) {
    return x ? graph_rms_norm(b->g, x, check_gain(b, x->ne[0]), b->c->eps) : NULL;
}

/* A part of a value: `rows` contiguous rows of `n`. */
static tensor *part(check_builder *b, tensor *whole, uint64_t offset, uint64_t n, uint64_t rows) {
    tensor *t = whole ? arena_alloc(&b->g->memory, sizeof *t) : NULL;
    if (!t) {
        fail_memory(&b->g->problem, "the self-check", sizeof *t);
        return NULL;
    }
    *t = *whole;
    t->base = whole;
    t->ne[0] = t->row_stride = n;
    t->ne[1] = rows;
    t->offset = offset;
    return t;
}

/* An input of the op, as the same view of its value as in the model. */
static tensor *view(check_builder *b, size_t i) {
    const check_view *v = &b->k->in[i];
    tensor          **whole = &b->values[v->same_as];
    if (!*whole) *whole = input(b, v->token_stride, v->axis);
    if (!v->offset && v->rows == 1 && v->n == v->token_stride) return *whole;
    tensor *t = part(b, *whole, v->offset, v->n, v->rows);
    if (t) t->row_stride = v->row_stride;
    return t;
}

static tensor *first_of(check_builder *b, tensor *t, uint64_t n) {
    return t && t->ne[0] > n ? graph_slice(b->g, t, 0, n, 1) : t;
}

/* ---- products ---- */

/* Rows of one of the model's matrices, starting with `first`. */
static tensor *check_weight(check_builder *b, size_t which, uint64_t first, uint64_t rows) {
    const check_matrix *w = &b->k->products[which].w;
    const uint64_t      row = quant_row_bytes(quant_format_of(w->type), w->k);
    return graph_weight(b->g, w->name, w->type, (uint64_t[]){ w->k, rows, w->experts },
                        (const uint8_t *)b->data[which] + first * row);
}

/* Routes each token to `used` of `experts`. */
static tensor *routes_to(check_builder *b, uint64_t experts, uint32_t used) {
    return graph_route(b->g, input(b, experts, AXIS_TOKENS), NULL, used);
}

/* The column of a product; `*sum` gets the residual that it is computed from, if there is one. */
static tensor *column(check_builder *b, const check_product *p, tensor_axis axis, tensor **sum) {
    const uint64_t k = p->w.k;
    if (p->slots) return graph_reshape(b->g, input(b, k * p->o.used, AXIS_TOKENS), k, p->o.used);
    tensor *x = input(b, k, axis);
    if (p->residual) *sum = x = graph_add(b->g, x, norm(b, input(b, k, axis)));
    return p->o.normed ? norm(b, x) : x;
}

static tensor *one_product(check_builder *b, size_t which, tensor *x, tensor *routes, tensor *other) {
    const check_product *p = &b->k->products[which];
    const uint64_t       rows = p->w.rows, half = rows / 2;
    graph               *g = b->g;
    if (p->routed) {
        tensor *y = graph_matmul_experts(g, check_weight(b, which, 0, rows), x, routes, p->o.used);
        if (p->o.gate != GATE_PAIR) return y;
        return graph_geglu(g, graph_slice(g, y, 0, half, p->o.used), graph_slice(g, y, half, half, p->o.used));
    }
    if (p->o.gate == GATE_PAIR) {
        tensor *gate = graph_matmul(g, check_weight(b, which, 0, half), x);
        return graph_geglu(g, gate, graph_matmul(g, check_weight(b, which, half, half), x));
    }
    if (p->o.clips_in) x = graph_clamp(g, x, -0.5f, 0.5f);
    tensor *y = graph_matmul(g, check_weight(b, which, 0, rows), x);
    if (p->o.clips_out) return graph_clamp(g, y, 0, LARGE);
    if (p->o.gate == GATE_VALUE) return graph_geglu(g, y, other);
    return p->o.cap > 0 ? graph_softcap(g, y, p->o.cap) : y;
}

/* A product may also write its residual's sum. It is added to the result, so that the check covers it. */
static tensor *products(check_builder *b) {
    const check_product *first = &b->k->products[0], *last = &b->k->products[b->k->product_count - 1];
    const tensor_axis    axis = b->k->in[FUSED_A].axis;
    tensor              *sum = NULL, *x = column(b, first, axis, &sum);
    tensor              *other = first->o.gate == GATE_VALUE ? input(b, first->w.rows, axis) : NULL;
    tensor              *routes = first->routed ? routes_to(b, first->w.experts, first->o.used) : NULL;
    tensor              *y = one_product(b, 0, x, routes, other);
    if (b->k->product_count == 2) y = one_product(b, 1, y, routes, NULL);
    if (last->routed) y = graph_expert_sum(b->g, y, routes, last->o.used);
    if (!sum || !y) return y;
    const uint64_t n = min_size(y->ne[0], sum->ne[0]);
    return graph_add(b->g, first_of(b, y, n), first_of(b, sum, n));
}

/* ---- attention ---- */

/* Norms and rotates queries and keys, and norms values, which are stored if there is no cache yet. Small gains keep the softmax from selecting a single value. */
static tensor *check_attend(check_builder *b, tensor *rope, tensor **cache) {
    const check   *k = b->k;
    const uint64_t head = k->head, q_width = head * k->heads, kv_width = head * k->kv_heads;
    graph         *g = b->g;
    tensor        *row = input(b, q_width + 2 * kv_width, AXIS_TOKENS), *weight = check_noise(b, head, 1, 0.3f, 0.5f);
    tensor        *q = part(b, row, 0, head, k->heads);
    tensor        *keys = part(b, row, q_width, head, k->kv_heads);
    tensor        *values = part(b, row, q_width + kv_width, head, k->kv_heads);
    if (!*cache)
        *cache = graph_kv_store(g, graph_rope(g, graph_rms_norm(g, keys, weight, b->c->eps), rope),
                                graph_rms_norm(g, values, NULL, b->c->eps), 0, k->window);
    q = graph_rope(g, graph_rms_norm(g, q, weight, b->c->eps), rope);
    return graph_attention(g, q, *cache);
}

/* A layer without its own cache reads another layer's, so a layer that stores comes first. */
static tensor *attention(check_builder *b) {
    tensor *rope = graph_rope_table(b->g, check_noise(b, b->k->head / 2, 1, 0, 1), 1), *cache = NULL;
    tensor *y = check_attend(b, rope, &cache);
    return b->k->store ? y : check_attend(b, rope, &cache);
}

/* ---- all other ops ---- */

static tensor *norms(check_builder *b) {
    const op *o = &b->k->o;
    tensor   *a = view(b, FUSED_A), *sum = graph_add(b->g, a, norm(b, view(b, FUSED_B)));
    if (o->factor != 1) sum = graph_scale(b->g, sum, o->factor);
    return o->normed ? graph_add(b->g, norm(b, sum), sum) : sum;
}

static tensor *routed(check_builder *b) {
    enum { WIDTH = 64 };
    const op      *o = &b->k->o;
    const uint64_t experts = b->k->in[0].n;
    tensor        *scale = b->k->in[1].weight ? check_gain(b, experts) : NULL;
    tensor        *x = graph_reshape(b->g, input(b, WIDTH * o->used, AXIS_TOKENS), WIDTH, o->used);
    return graph_expert_sum(b->g, x, graph_route(b->g, view(b, 0), scale, o->used), o->used);
}

static tensor *mix(check_builder *b, size_t experts_at) {
    const op *o = &b->k->o;
    tensor   *experts = view(b, experts_at);
    tensor   *sum = graph_expert_sum(b->g, experts, routes_to(b, 2 * o->used, o->used), o->used);
    return o->kind == OP_MIX ? graph_add(b->g, norm(b, view(b, MIX_A)), norm(b, sum)) : sum;
}

/* The ids of a canvas, for the embedding of these: it covers both. The entropies are so high that all ids but one are random; that one is 0, as
 * the likeliest and the drawn ones are. Noise as settings: any key and step will do. */
static tensor *canvas_ids(check_builder *b, uint32_t vocabulary) {
    const canvas_rule rule = { .units = 1 << 16, .bound = 1 << 10, .stability = 1, .vocabulary = vocabulary };
    tensor           *entropies = graph_embed(b->g, check_noise(b, 2, TABLE_ROWS, 0.5f, 1), 1);
    tensor           *found = graph_concat(b->g, (tensor *[]){ graph_leaf(b->g, AXIS_TOKENS, 2, 1), entropies }, 2);
    return graph_canvas_next(b->g, found, input(b, CANVAS_SETTINGS, AXIS_TOKENS),
                             graph_leaf(b->g, AXIS_TOKENS, CANVAS_STATE, 1), &rule);
}

static tensor *embed(check_builder *b) {
    const op *o = &b->k->o;
    tensor   *table = check_weight(b, 0, 0, b->k->products[0].w.rows);
    if (b->k->in[1].value)
        return graph_embed_value(b->g, table, canvas_ids(b, (uint32_t)b->k->products[0].w.rows), 1.5f);
    if (o->by_position) return graph_embed_position(b->g, table, 1.5f);
    return o->given ? graph_embed_or_given(b->g, table, 1.5f) : graph_embed(b->g, table, 1.5f);
}

/* The findings but the ids, then the expected embedding, which the op writes into a leaf. Noise as settings: any temperature and key will
 * do. */
static tensor *canvas_head(check_builder *b) {
    const op *o = &b->k->o;
    tensor *table = check_weight(b, 0, 0, b->k->products[0].w.rows), *x = input(b, b->k->products[0].w.k, AXIS_TOKENS);
    tensor *settings = input(b, CANVAS_SETTINGS, AXIS_TOKENS);
    tensor *soft = graph_leaf(b->g, AXIS_TOKENS, b->k->products[0].w.k, 1);
    tensor *found = graph_canvas_head(b->g, table, x, settings, soft, o->most, 1);
    if (!found) return NULL;
    return graph_concat(b->g, (tensor *[]){ graph_slice(b->g, found, CANVAS_ENTROPY, 2, 1), soft }, 2);
}

/* The second input: a value, or a vector that all rows share. */
static tensor *second(check_builder *b) { return b->k->in[1].weight ? check_gain(b, b->k->in[1].n) : view(b, 1); }

static tensor *check_layer_norm(check_builder *b) {
    tensor *x = view(b, 0);
    if (!x) return NULL;
    return graph_layer_norm(b->g, x, check_gain(b, x->ne[0]), b->k->in[2].weight ? check_gain(b, x->ne[0]) : NULL,
                            b->c->eps);
}

/* What only audio towers have. */
static tensor *heard(check_builder *b) {
    const op *o = &b->k->o;
    tensor   *x = view(b, 0);
    if (o->kind == OP_CONV_GRID) return graph_conv_grid(b->g, x, check_noise(b, b->k->in[1].n, 1, -1, 1), o->channels);
    if (o->kind == OP_CONV_TOKENS) return graph_conv_tokens(b->g, x, check_noise(b, b->k->in[1].n, 1, -1, 1), o->count);
    tensor *keys = view(b, 1), *values = view(b, 2);
    return graph_local_attention(b->g, x, keys, values, check_noise(b, b->k->in[3].n, 1, -1, 1), o->count, o->factor);
}

static tensor *result_of(check_builder *b) {
    const op *o = &b->k->o;
    if (is_attention(o->kind)) return attention(b);
    switch ((int)o->kind) {
    case OP_EMBED: return embed(b);
    case OP_CANVAS_HEAD: return canvas_head(b);
    case OP_PRODUCTS: return products(b);
    case OP_NORMS: return norms(b);
    case OP_MIX: return mix(b, MIX_EXPERTS);
    case OP_EXPERT_SUM: return mix(b, 0);
    case OP_ROUTE: return routed(b);
    case OP_RMS_NORM: {
        tensor *x = view(b, 0);
        return graph_rms_norm(b->g, x, x && b->k->in[1].weight ? check_gain(b, x->ne[0]) : NULL, b->c->eps);
    }
    case OP_ROPE: {
        tensor *x = view(b, 0);
        return x ? graph_rope(b->g, x, graph_rope_table(b->g, check_noise(b, x->ne[0] / 2, 1, 0, 1), 1)) : NULL;
    }
    case OP_ROPE_TABLE: return graph_rope_table(b->g, check_noise(b, b->k->in[0].n, 1, 0, 1), b->k->axes);
    case OP_GEGLU: {
        tensor *x = view(b, 0);
        return graph_geglu(b->g, x, view(b, 1));
    }
    case OP_ADD: {
        tensor *x = view(b, 0);
        return graph_add(b->g, x, second(b));
    }
    case OP_MUL: {
        tensor *x = view(b, 0);
        return graph_mul(b->g, x, second(b));
    }
    case OP_GATE: {
        tensor *x = view(b, 0);
        return graph_gate(b->g, x, view(b, 1));
    }
    case OP_CLAMP: return graph_clamp(b->g, view(b, 0), 0, LARGE);
    case OP_LAYER_NORM: return check_layer_norm(b);
    case OP_CONV_GRID:
    case OP_CONV_TOKENS:
    case OP_LOCAL_ATTENTION: return heard(b);
    case OP_SCALE: return graph_scale(b->g, view(b, 0), o->factor);
    case OP_SOFTCAP: return graph_softcap(b->g, view(b, 0), o->factor);
    case OP_SELECT_ROWS: return graph_select_rows(b->g, view(b, 0));
    default: return NULL;
    }
}

gm_status check_build(const self_check *c, const check *k, const void *const data[2], bool empty, graph *g, error *e) {
    check_builder b = { .c = c, .k = k, .data = data, .empty = empty, .g = g };
    g->result = result_of(&b);
    if (g->problem.status) return fail(e, g->problem.status, "%s", g->problem.why);
    return g->result ? GM_OK : fail(e, GM_BAD_ARGUMENT, "the self-check has no graph for %s", op_name(k->o.kind));
}

void check_choose_kernels(gpu_backend *b, const check *k, const void *const data[2]) {
    for (size_t i = 0; i < b->sets->count; i++) {
        gpu_weight *w = &b->sets->weights[i];
        for (size_t j = 0; j < k->product_count; j++) {
            if (w->parts[0].weight.data == data[j]) w->like = k->products[j].w.like;
        }
    }
}
