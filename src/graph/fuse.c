/* Fusion: applies one rule after another to a copy of the graph. A rule looks for a pattern, writes the fused op in the
 * place of one of its primitives, and marks the others as gone. */

#include "graph/fuse.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { GONE = OP_COUNT_FUSED, NOBODY = UINT32_MAX };

typedef struct {
    graph              *g;
    const fuse_options *options;
    tensor            **values; /* of the copy, by index */
    uint32_t           *producer, *first_reader, *readers;
    bool                changed; /* since fuser_index last ran */
} fuser;

/* ---- the copy ---- */

static tensor *copy_tensor(fuser *f, const tensor *t) {
    tensor *copy = arena_alloc(&f->g->memory, sizeof *copy);
    if (copy) *copy = *t;
    else fail_memory(&f->g->problem, "a tensor of the fused graph", sizeof *copy);
    return copy;
}

/* The tensor in the copy. Copies a value once and a view at each use; shares weights. */
static tensor *copy_of(fuser *f, tensor *t) {
    if (!t || t->kind == TENSOR_WEIGHT) return t;
    const tensor *whole = t->base ? t->base : t;
    if (!f->values[whole->index]) f->values[whole->index] = copy_tensor(f, whole);
    if (!t->base || !f->values[whole->index]) return f->values[whole->index];
    tensor *view = copy_tensor(f, t);
    if (view) view->base = f->values[whole->index];
    return view;
}

static gm_status copy_graph(fuser *f, const graph *g, error *e) {
    f->g->ops = calloc(max_size(g->op_count, 1), sizeof *f->g->ops);
    if (!f->g->ops) return fail_memory(e, "a fused graph", g->op_count * sizeof *f->g->ops);
    f->g->op_count = f->g->op_capacity = g->op_count;
    f->g->value_count = g->value_count;
    for (size_t i = 0; i < g->op_count; i++) {
        f->g->ops[i] = g->ops[i];
        f->g->ops[i].out = copy_of(f, g->ops[i].out);
        f->g->ops[i].sum = copy_of(f, g->ops[i].sum);
        for (size_t j = 0; j < OP_INPUTS; j++) f->g->ops[i].in[j] = copy_of(f, g->ops[i].in[j]);
    }
    f->g->result = copy_of(f, g->result);
    for (size_t i = 0; i < GRAPH_FURTHER; i++) f->g->further[i] = copy_of(f, g->further[i]);
    return f->g->problem.status ? fail(e, GM_NO_MEMORY, "%s", f->g->problem.why) : GM_OK;
}

/* ---- producers and readers ---- */

/* The value that a tensor is a view of. Until fuser_finish runs, parts of a joined row may be views of views. */
static tensor *whole_of(tensor *t) {
    while (t->base) t = t->base;
    return t;
}

/* Whether this is a value, not a view, with one row per token. */
static bool is_row(const tensor *t) { return t && t->kind == TENSOR_VALUE && !t->base && t->ne[1] == 1; }

static void note_reader(fuser *f, const tensor *t, uint32_t reader) {
    const uint32_t value = whole_of((tensor *)t)->index;
    if (f->first_reader[value] == NOBODY) f->first_reader[value] = reader;
    f->readers[value]++;
}

/* Finds the producer, the first reader and the number of readers of every value. */
static void fuser_index(fuser *f) {
    for (size_t v = 0; v < f->g->value_count; v++) {
        f->producer[v] = f->first_reader[v] = NOBODY;
        f->readers[v] = 0;
    }
    for (uint32_t i = 0; i < f->g->op_count; i++) {
        const op *o = &f->g->ops[i];
        if (o->kind == (op_kind)GONE) continue;
        for (size_t j = 0; j < OP_INPUTS; j++) {
            if (o->in[j] && o->in[j]->kind != TENSOR_WEIGHT) note_reader(f, o->in[j], i);
        }
        if (o->out) f->producer[whole_of(o->out)->index] = i;
        if (o->sum) f->producer[o->sum->index] = i;
    }
    for (size_t i = 0; i < GRAPH_RESULTS; i++) {
        if (graph_result(f->g, i)) note_reader(f, graph_result(f->g, i), NOBODY - 1); /* the caller */
    }
}

/* Whether the caller reads this whole value or a part of it. */
static bool is_result(const fuser *f, const tensor *value) {
    for (size_t i = 0; i < GRAPH_RESULTS; i++) {
        if (graph_result(f->g, i) && whole_of(graph_result(f->g, i)) == value) return true;
    }
    return false;
}

/* The op that produces this whole value, if it is of this kind. */
static op *producer_of(const fuser *f, const tensor *t, op_kind kind) {
    if (!t || t->kind == TENSOR_WEIGHT || t->base || f->producer[t->index] == NOBODY) return NULL;
    op *o = &f->g->ops[f->producer[t->index]];
    return o->kind == kind ? o : NULL;
}

static bool read_once(const fuser *f, const tensor *t) { return f->readers[t->index] == 1; }

/* The only reader of a value, if it is of this kind. */
static op *only_reader(const fuser *f, const tensor *t, op_kind kind) {
    if (!read_once(f, t) || f->first_reader[t->index] >= f->g->op_count) return NULL;
    op *o = &f->g->ops[f->first_reader[t->index]];
    return o->kind == kind ? o : NULL;
}

static uint32_t op_index(const fuser *f, const op *o) { return (uint32_t)(o - f->g->ops); }

static void remove_op(op *o) { o->kind = (op_kind)GONE; }

/* ---- MIX: add(norm(a), norm(expert_sum)) ---- */

static op *weighted_norm_of(const fuser *f, const tensor *t) {
    op *norm = producer_of(f, t, OP_RMS_NORM);
    return norm && norm->in[1] && is_row(norm->in[0]) && is_row(norm->out) && read_once(f, t) ? norm : NULL;
}

static bool try_mix(fuser *f, op *add) {
    op *first = weighted_norm_of(f, add->in[0]), *second = weighted_norm_of(f, add->in[1]);
    op *sum = second ? producer_of(f, second->in[0], OP_EXPERT_SUM) : NULL;
    if (!first || !sum || !read_once(f, sum->out) || first->factor != second->factor) return false;
    *add = (op){ .kind = OP_MIX, .out = add->out, .used = sum->used, .eps = first->factor };
    add->in[MIX_A] = first->in[0];
    add->in[MIX_A_WEIGHT] = first->in[1];
    add->in[MIX_EXPERTS] = sum->in[0];
    add->in[MIX_ROUTES] = sum->in[1];
    add->in[MIX_WEIGHT] = second->in[1];
    remove_op(first);
    remove_op(second);
    remove_op(sum);
    return true;
}

/* ---- NORMS: scale(add(a, norm(b))), and the norm that reads it first ---- */

static bool try_residual(fuser *f, op *add) {
    for (size_t j = 0; j < 2; j++) {
        op *norm = weighted_norm_of(f, add->in[1 - j]);
        if (!norm || !is_row(add->in[j]) || add->in[j] == norm->in[0]) continue;
        op  fused = { .kind = OP_NORMS, .sum = add->out, .factor = 1, .eps = norm->factor, .weight_factor = 1 };
        op *place = add, *scale = only_reader(f, add->out, OP_SCALE);
        fused.in[FUSED_A] = add->in[j];
        fused.in[FUSED_B] = norm->in[0];
        fused.in[FUSED_B_WEIGHT] = norm->in[1];
        if (scale && is_row(scale->in[0])) {
            fused.factor = scale->factor;
            fused.sum = scale->out;
            place = scale;
        }
        remove_op(norm);
        remove_op(add);
        *place = fused;
        return true;
    }
    return false;
}

static bool try_norm_of_sum(fuser *f, op *norms) {
    const uint32_t reader = f->first_reader[norms->sum->index];
    op            *norm = reader < f->g->op_count ? &f->g->ops[reader] : NULL;
    if (!norm || norm->kind != OP_RMS_NORM || norm->in[0] != norms->sum || !norm->in[1] || norm->factor != norms->eps)
        return false;
    norms->normed = true;
    norms->in[FUSED_WEIGHT] = norm->in[1];
    norms->out = norm->out;
    remove_op(norm);
    return true;
}

/* ---- PRODUCTS: joins all products that read one column ---- */

/* Whether this op can read its input as a view. In towers some more do; of LOCAL_ATTENTION's inputs, which must not be parts of
 * one value, the values only. */
static bool takes_view(const op *o, size_t input, bool tower) {
    if (o->kind == OP_RMS_NORM || o->kind == OP_GEGLU || o->kind == OP_CLAMP) return true;
    if (o->kind == OP_LORA_EXPAND) return input == 0 || input == 2;
    return tower && (o->kind == OP_MUL || o->kind == OP_SCALE || (o->kind == OP_LOCAL_ATTENTION && input == 2));
}

/* Whether all readers of a value can also read it as a view. */
static bool readers_take_views(const fuser *f, const tensor *value, bool tower) {
    for (size_t i = 0; i < f->g->op_count; i++) {
        const op *o = &f->g->ops[i];
        for (size_t j = 0; o->kind != (op_kind)GONE && j < OP_INPUTS; j++) {
            const bool reads = o->in[j] && o->in[j]->kind == TENSOR_VALUE && whole_of(o->in[j]) == value;
            if (reads && !takes_view(o, j, tower)) return false;
        }
    }
    return !is_result(f, value);
}

static uint64_t tensor_bytes(const tensor *w) {
    return quant_row_bytes(quant_format_of((uint32_t)w->type), w->ne[0]) * w->ne[1];
}

static op products_of(const op *matmul) {
    op fused = { .kind = OP_PRODUCTS, .out = matmul->out, .factor = 1, .weight_factor = 1, .used = matmul->used };
    fused.in[FUSED_W0] = matmul->in[0];
    fused.in[FUSED_A] = matmul->in[1];
    fused.in[FUSED_ROUTES] = matmul->in[2];
    return fused;
}

/* The column, or what it is a clamp of. */
static const tensor *unclipped(const fuser *f, const tensor *x) {
    const op *clamp = producer_of(f, x, OP_CLAMP);
    return clamp ? clamp->in[0] : x;
}

/* Finds up to three products of the column of ops[first] whose results can become parts of one value. They may clip it
 * differently. */
static size_t find_parts(const fuser *f, uint32_t first, op *parts[OP_PARTS]) {
    const tensor *x = unclipped(f, f->g->ops[first].in[1]);
    size_t        count = 0;
    for (uint32_t i = first; i < f->g->op_count && count < OP_PARTS; i++) {
        op *o = &f->g->ops[i];
        if (o->kind == OP_MATMUL && unclipped(f, o->in[1]) == x && is_row(o->out) &&
            readers_take_views(f, o->out, false))
            parts[count++] = o;
    }
    return count;
}

/* Makes `value` a view of `row`. */
static void make_part_of(tensor *value, tensor *row, uint64_t offset) {
    value->base = row;
    value->offset = offset;
    value->token_stride = row->token_stride;
}

/* Joins parts[i] and all later parts of the same column and type into one PRODUCTS, up to most_bytes of weights. The backend
 * uploads joined weights in whole words, so their sizes must be multiples of 4. Returns where the next part starts in
 * the row. */
static uint64_t join_alike(fuser *f, op **parts, size_t i, size_t count, tensor *row, uint64_t offset) {
    op           *leader = parts[i], fused = products_of(leader);
    const tensor *first = leader->in[0], *column = leader->in[1];
    const bool    whole_words = tensor_bytes(first) % 4 == 0;
    uint64_t      bytes = tensor_bytes(first), end = offset + first->ne[1];
    size_t        weights = 1;
    make_part_of(leader->out, row, offset);
    for (size_t j = i + 1; j < count; j++) {
        const tensor *w = parts[j] ? parts[j]->in[0] : NULL;
        if (!w || parts[j]->in[1] != column || w->type != first->type || !whole_words || tensor_bytes(w) % 4 ||
            bytes + tensor_bytes(w) > f->options->most_bytes)
            continue;
        fused.in[FUSED_W0 + weights++] = parts[j]->in[0];
        make_part_of(parts[j]->out, row, end);
        bytes += tensor_bytes(w);
        end += w->ne[1];
        remove_op(parts[j]);
        parts[j] = NULL;
    }
    fused.out = copy_tensor(f, leader->out);
    if (fused.out) fused.out->ne[0] = fused.out->row_stride = end - offset;
    *leader = fused;
    return end;
}

static bool join_products(fuser *f, uint32_t first) {
    op          *parts[OP_PARTS];
    const size_t count = find_parts(f, first, parts);
    tensor      *row = count > 1 ? copy_tensor(f, parts[0]->out) : NULL;
    if (!row) return false;
    row->index = (uint32_t)f->g->value_count++;
    row->ne[0] = 0;
    for (size_t i = 0; i < count; i++) row->ne[0] += parts[i]->out->ne[0];
    row->row_stride = row->token_stride = row->ne[0];
    uint64_t filled = 0;
    for (size_t i = 0; i < count; i++) {
        if (parts[i]) filled = join_alike(f, parts, i, count, row, filled);
    }
    return true;
}

/* ---- SHRINKS: what adapters see of one column ---- */

static bool same_view(const tensor *a, const tensor *b) {
    return a == b ||
           (a->kind == TENSOR_VALUE && b->kind == TENSOR_VALUE && whole_of((tensor *)a) == whole_of((tensor *)b) &&
            a->offset == b->offset && a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1]);
}

/* Moves an op to an earlier place. */
static void move_op(fuser *f, uint32_t from, uint32_t to) {
    const op moved = f->g->ops[from];
    memmove(&f->g->ops[to + 1], &f->g->ops[to], (from - to) * sizeof moved);
    f->g->ops[to] = moved;
}

/* Whether both read the same column; views of one value are not taken for the same here. */
static bool shrinks_alike(const op *a, const op *b) {
    return b->kind == OP_LORA_SHRINK && a->in[1] == b->in[1] && !b->in[3] && a->slots == b->slots &&
           tensor_same_weight(a->in[2], b->in[2]);
}

/* Joins the LORA_SHRINKs of up to three weights that multiply one column. The result comes before the products, so that these can
 * use it. */
static bool try_shrinks(fuser *f, op *shrink) {
    enum { MOST_WORKGROUPS = 65535 }; /* that every GPU runs: each rank of each slot may need one */
    const tensor *x = shrink->in[1];
    if (f->g->trains) return false; /* the backward graph reads each vector by itself */
    if (!x || shrink->in[3] || x->ne[1] != 1 || shrink->out->axis != AXIS_TOKENS) return false;
    op       fused = { .kind = OP_SHRINKS, .slots = shrink->slots, .factor = 1, .weight_factor = 1 };
    uint64_t bytes = 0, end = SHRUNK_HEAD;
    tensor  *row = copy_tensor(f, shrink->out);
    if (!row) return false;
    fused.in[FUSED_A] = shrink->in[1];
    fused.in[FUSED_SETS] = shrink->in[2];
    const op like = *shrink;
    tensor  *parts[OP_PARTS];
    size_t   count = 0;
    for (uint32_t i = op_index(f, shrink); i < f->g->op_count && count < OP_PARTS; i++) {
        op *o = &f->g->ops[i];
        if (!shrinks_alike(&like, o) || (count && bytes + tensor_bytes(o->in[0]) > f->options->most_bytes) ||
            (count && end + o->out->ne[0] > MOST_WORKGROUPS))
            continue;
        bytes += tensor_bytes(o->in[0]);
        fused.in[FUSED_W0 + count] = o->in[0];
        fused.ranks[count] = o->rank;
        fused.shrunk_at[count++] = (uint32_t)end;
        parts[count - 1] = o->out;
        end += o->out->ne[0];
        if (o != shrink) remove_op(o);
    }
    row->index = (uint32_t)f->g->value_count++;
    row->ne[0] = end;
    row->row_stride = row->token_stride = end;
    for (size_t i = 0; i < count; i++) make_part_of(parts[i], row, fused.shrunk_at[i]);
    fused.out = row;
    *shrink = fused;
    const uint32_t first = f->first_reader[whole_of((tensor *)x)->index];
    if (first < op_index(f, shrink)) move_op(f, op_index(f, shrink), first);
    return true;
}

/* ---- PRODUCTS that clip: clamp(W · clamp(x)) ---- */

/* Sums the offsets of views of views, which fuser_finish has not flattened yet. */
static uint64_t offset_in_whole(const tensor *t) { return t ? t->offset + offset_in_whole(t->base) : 0; }

/* The product that computes exactly this value or part of a row, and with which of its weights. */
static op *product_of_part(const fuser *f, tensor *t, size_t *part) {
    const uint64_t first = offset_in_whole(t), count = t->ne[0] * t->ne[1];
    for (size_t i = 0; i < f->g->op_count; i++) {
        op *o = &f->g->ops[i];
        if (o->kind != OP_PRODUCTS || whole_of(o->out) != whole_of(t)) continue;
        uint64_t at = offset_in_whole(o->out);
        for (*part = 0; *part < OP_PARTS && o->in[FUSED_W0 + *part]; ++*part) {
            const uint64_t rows = o->in[FUSED_W0 + *part]->ne[1];
            if (at == first && rows == count) return o;
            at += rows;
        }
    }
    return NULL;
}

/* Whether one op alone reads any of the values [first, first + count) of a whole value. */
static bool part_read_once(const fuser *f, const tensor *whole, uint64_t first, uint64_t count) {
    size_t readers = 0;
    for (size_t i = 0; i < f->g->op_count; i++) {
        const op *o = &f->g->ops[i];
        for (size_t j = 0; o->kind != (op_kind)GONE && j < OP_INPUTS; j++) {
            const tensor *t = o->in[j];
            if (!t || t->kind != TENSOR_VALUE || whole_of((tensor *)t) != whole) continue;
            const uint64_t at = offset_in_whole(t), n = (t->ne[1] - 1) * t->row_stride + t->ne[0];
            readers += at < first + count && first < at + n;
        }
    }
    return readers == 1 && !is_result(f, whole);
}

/* The product writes what the clamp computes. If it has a part of a joined row, the clamp's readers read that part. */
static bool try_clip_output(fuser *f, op *clamp) {
    size_t  part = 0;
    tensor *row = whole_of(clamp->in[0]);
    op     *products = f->options->clips ? product_of_part(f, clamp->in[0], &part) : NULL;
    if (!products || products->in[FUSED_ROUTES] || row->axis != AXIS_TOKENS || !is_row(clamp->out)) return false;
    /* with many tokens, corrections are added after the product has clipped */
    if (products->in[FUSED_SHRUNK] && !f->options->few_tokens) return false;
    const uint64_t first = offset_in_whole(clamp->in[0]);
    if (!part_read_once(f, row, first, clamp->out->ne[0])) return false;
    if (!products->out->base) products->out = clamp->out;
    else if (readers_take_views(f, clamp->out, true)) make_part_of(clamp->out, row, first);
    else return false;
    for (size_t i = 0; i < OP_PARTS && !products->clips_out; i++) {
        products->out_least[i] = -FLT_MAX;
        products->out_most[i] = FLT_MAX;
    }
    products->clips_out = true;
    products->out_least[part] = clamp->least;
    products->out_most[part] = clamp->most;
    remove_op(clamp);
    return true;
}

/* The product adds what adapters correct. */
static bool try_correct(fuser *f, op *expand) {
    if (!expand->in[0]) return false; /* a correction of nothing, of dropout's gradient */
    size_t         part = 0;
    tensor        *row = whole_of(expand->in[0]), *shrunk = whole_of(expand->in[2]);
    op            *products = product_of_part(f, expand->in[0], &part), *shrinks = producer_of(f, shrunk, OP_SHRINKS);
    const uint64_t first = offset_in_whole(expand->in[0]);
    if (!products || !shrinks || products->in[FUSED_ROUTES] || products->clips_in || !is_row(expand->out) ||
        op_index(f, shrinks) > op_index(f, products) || !same_view(products->in[FUSED_A], shrinks->in[FUSED_A]) ||
        (products->in[FUSED_SHRUNK] && products->in[FUSED_SHRUNK] != shrunk) ||
        !part_read_once(f, row, first, expand->out->ne[0]))
        return false;
    if (!products->out->base) products->out = expand->out;
    else if (readers_take_views(f, expand->out, false)) make_part_of(expand->out, row, first);
    else return false;
    products->in[FUSED_SHRUNK] = shrunk;
    products->in[FUSED_EXPAND0 + part] = expand->in[1];
    products->ranks[part] = expand->rank;
    products->shrunk_at[part] = (uint32_t)offset_in_whole(expand->in[2]);
    products->slots = expand->slots;
    remove_op(expand);
    return true;
}

static bool takes_clipped(const op *o, size_t input, const tensor *x) {
    return o->kind == OP_PRODUCTS && input == FUSED_A && o->in[input] == x && !o->in[FUSED_ROUTES] && !o->clips_in;
}

/* Products clip what they read, if nobody else reads it. */
static bool try_clip_input(fuser *f, op *clamp) {
    tensor *x = clamp->out;
    if (!f->options->clips || !is_row(x) || x->axis != AXIS_TOKENS || clamp->in[0]->ne[1] != 1 || is_result(f, x))
        return false;
    for (size_t i = 0; i < f->g->op_count; i++) {
        const op *o = &f->g->ops[i];
        for (size_t j = 0; o->kind != (op_kind)GONE && j < OP_INPUTS; j++) {
            const bool reads = o->in[j] && o->in[j]->kind == TENSOR_VALUE && whole_of(o->in[j]) == x;
            if (reads && !takes_clipped(o, j, x)) return false;
        }
    }
    for (size_t i = 0; i < f->g->op_count; i++) {
        op *o = &f->g->ops[i];
        if (o->kind != OP_PRODUCTS || o->in[FUSED_A] != x) continue;
        o->in[FUSED_A] = clamp->in[0];
        o->clips_in = true;
        o->least = clamp->least;
        o->most = clamp->most;
    }
    remove_op(clamp);
    return true;
}

/* ---- HEADS: norms, rotations and the K/V store before an attention ---- */

typedef struct {
    op *norm, *rope; /* rope NULL: values are not rotated */
} head_chain;

/* The value itself, also if it is seen in another shape: with two axes the halves of a head are rows of their own. */
static const tensor *reshaped(const tensor *t) {
    const tensor *whole = t->base;
    const bool    all = whole && !whole->base && !t->offset && t->ne[0] * t->ne[1] == whole->ne[0] * whole->ne[1];
    return all ? whole : t;
}

static bool find_head_chain(const fuser *f, const tensor *t, bool turned, head_chain *out) {
    const tensor *whole = reshaped(t);
    *out = (head_chain){ .rope = turned ? producer_of(f, whole, OP_ROPE) : NULL };
    if (turned && (!out->rope || !read_once(f, whole))) return false;
    const tensor  *normed = turned ? reshaped(out->rope->in[0]) : whole;
    const uint64_t axes = turned ? out->rope->in[1]->ne[1] : 1;
    out->norm = producer_of(f, normed, OP_RMS_NORM);
    if (!out->norm || !read_once(f, normed) || !out->norm->in[1] != !turned) return false;
    const uint64_t head = out->norm->in[0]->ne[0];
    return head % 4 == 0 && axes <= 2 && (!turned || out->rope->in[0]->ne[0] * axes == head);
}

static void remove_head_chain(const head_chain *c) {
    remove_op(c->norm);
    if (c->rope) remove_op(c->rope);
}

/* The store whose cache this attention is the first to read. */
static op *store_before(const fuser *f, const op *attention) {
    op *store = producer_of(f, attention->in[1], OP_KV_STORE);
    return store && f->first_reader[store->out->index] == op_index(f, attention) ? store : NULL;
}

static bool try_heads(fuser *f, op *attention) {
    head_chain q, k, v;
    if (!find_head_chain(f, attention->in[0], true, &q)) return false;
    op  fused = { .kind = OP_HEADS,
                  .out = q.rope->out,
                  .layer = attention->layer,
                  .window = attention->window,
                  .eps = q.norm->factor };
    op *store = store_before(f, attention), *place = q.rope;
    fused.in[HEADS_Q] = q.norm->in[0];
    fused.in[HEADS_Q_WEIGHT] = q.norm->in[1];
    fused.in[HEADS_TABLE] = q.rope->in[1];
    if (store && find_head_chain(f, store->in[0], true, &k) && find_head_chain(f, store->in[1], false, &v) &&
        k.rope->in[1] == q.rope->in[1] && k.norm->factor == q.norm->factor && v.norm->factor == q.norm->factor &&
        whole_of(k.norm->in[0]) == whole_of(q.norm->in[0]) && whole_of(v.norm->in[0]) == whole_of(q.norm->in[0]) &&
        k.norm->in[0]->ne[0] == q.norm->in[0]->ne[0]) {
        fused.in[HEADS_K] = k.norm->in[0];
        fused.in[HEADS_V] = v.norm->in[0];
        fused.in[HEADS_K_WEIGHT] = k.norm->in[1];
        fused.sum = store->out;
        remove_head_chain(&k);
        remove_head_chain(&v);
        remove_op(store);
    }
    remove_head_chain(&q);
    *place = fused;
    return true;
}

/* ---- ATTEND: HEADS and its ATTENTION ---- */

static bool try_attend(fuser *f, op *attention) {
    op *heads = producer_of(f, attention->in[0], OP_HEADS);
    if (!(f->options->one_token || f->options->rows) || !heads || !read_once(f, attention->in[0]) ||
        heads->in[HEADS_Q]->ne[0] % 8 || attention->sum)
        return false;
    for (size_t j = HEADS_Q; j <= HEADS_V; j++) {
        if (offset_in_whole(heads->in[j]) % 4) return false;
    }
    op fused = *heads;
    fused.kind = OP_ATTEND;
    fused.out = attention->out;
    if (!heads->sum) fused.in[HEADS_CACHE] = attention->in[1];
    *attention = fused;
    remove_op(heads);
    return true;
}

/* ---- PRODUCTS with norms, a gate or a cap ---- */

static bool can_make_column(const fuser *f, const op *products) {
    const tensor *x = products->in[FUSED_A];
    return is_row(x) && x->ne[0] % 4 == 0 && x->ne[0] <= f->options->most_column &&
           (x->axis == AXIS_TOKENS ? f->options->one_token : f->options->one_output);
}

/* Ops that can compute their column. */
static bool has_column(const op *o) { return o->kind == OP_PRODUCTS || o->kind == OP_SHRINKS; }

static bool read_by_products(const fuser *f, const tensor *x) {
    for (size_t i = 0; i < f->g->op_count; i++) {
        const op *o = &f->g->ops[i];
        for (size_t j = 0; o->kind != (op_kind)GONE && j < OP_INPUTS; j++) {
            const bool reads = o->in[j] && o->in[j]->kind == TENSOR_VALUE && whole_of(o->in[j]) == x;
            if (reads && (!has_column(o) || j != FUSED_A || !can_make_column(f, o))) return false;
        }
    }
    return !is_result(f, x);
}

/* x = norm(s) or scale(norm(s)): every product that reads x computes it for itself. */
static bool try_absorb_norm(fuser *f, op *products) {
    const tensor *x = products->in[FUSED_A];
    if (!can_make_column(f, products)) return false;
    op *scale = producer_of(f, x, OP_SCALE);
    op *norm = producer_of(f, scale ? scale->in[0] : x, OP_RMS_NORM);
    if (!norm || !norm->in[1] || !is_row(norm->in[0]) || (scale && !read_once(f, norm->out)) || !read_by_products(f, x))
        return false;
    for (size_t i = 0; i < f->g->op_count; i++) {
        op *o = &f->g->ops[i];
        if (!has_column(o) || o->in[FUSED_A] != x) continue;
        o->in[FUSED_A] = norm->in[0];
        o->in[FUSED_WEIGHT] = norm->in[1];
        o->eps = norm->factor;
        o->normed = true;
        o->weight_factor = scale ? scale->factor : 1;
    }
    remove_op(norm);
    if (scale) remove_op(scale);
    return true;
}

/* x = the result of NORMS: the first product computes it and stores the sum, from which the others start. */
static bool try_absorb_norms(fuser *f, op *products) {
    const tensor *x = products->in[FUSED_A];
    if (!can_make_column(f, products)) return false;
    op *norms = f->producer[x->index] == NOBODY ? NULL : &f->g->ops[f->producer[x->index]];
    if (!norms || norms->kind != OP_NORMS || products->in[FUSED_ROUTES] ||
        f->first_reader[norms->sum->index] < op_index(f, products))
        return false;
    if (x == norms->out ? !read_by_products(f, x) : norms->normed) return false;
    const op made = *norms;
    for (size_t i = op_index(f, products); i < f->g->op_count && made.normed; i++) {
        op *o = &f->g->ops[i];
        if (!has_column(o) || o->in[FUSED_A] != x) continue;
        o->in[FUSED_A] = made.sum;
        o->in[FUSED_WEIGHT] = made.in[FUSED_WEIGHT];
        o->eps = made.eps;
        o->normed = true;
        o->weight_factor = made.weight_factor;
    }
    products->in[FUSED_A] = made.in[FUSED_A];
    products->in[FUSED_B] = made.in[FUSED_B];
    products->in[FUSED_B_WEIGHT] = made.in[FUSED_B_WEIGHT];
    products->sum = made.sum;
    products->factor = made.factor;
    products->eps = made.eps;
    remove_op(norms);
    return true;
}

/* Whether only products read x, as it is. */
static bool is_column(const fuser *f, const tensor *x) {
    for (size_t i = 0; i < f->g->op_count; i++) {
        const op *o = &f->g->ops[i];
        for (size_t j = 0; o->kind != (op_kind)GONE && j < OP_INPUTS; j++) {
            const bool reads = o->in[j] && o->in[j]->kind == TENSOR_VALUE && whole_of(o->in[j]) == x;
            if (reads && (o->kind != OP_PRODUCTS || j != FUSED_A || o->in[j] != x || o->clips_in)) return false;
        }
    }
    return !is_result(f, x);
}

/* x = norm(s) or scale(norm(s)) that no product computes for itself: becomes NORMS without a residual. */
static op *norm_before(fuser *f, tensor *x, op *made) {
    op *scale = made->kind == OP_SCALE ? made : NULL;
    op *norm = producer_of(f, scale ? scale->in[0] : x, OP_RMS_NORM);
    if (!norm || !norm->in[1] || !is_row(norm->in[0]) || (scale && !read_once(f, norm->out))) return NULL;
    op fused = { .kind = OP_NORMS, .out = x, .normed = true, .factor = 1, .eps = norm->factor };
    fused.weight_factor = scale ? scale->factor : 1;
    fused.in[FUSED_A] = norm->in[0];
    fused.in[FUSED_WEIGHT] = norm->in[1];
    remove_op(norm);
    *made = fused;
    return made;
}

/* A product that computes its own column divides by rms(s) in the end. So do those that are given one. */
static bool try_factor(fuser *f, op *products) {
    tensor    *x = products->in[FUSED_A];
    const bool few = x->axis == AXIS_TOKENS ? f->options->few_tokens : f->options->few_outputs;
    if (!few || products->factored || !is_row(x) || x->ne[0] % 4 || f->producer[x->index] == NOBODY || !is_column(f, x))
        return false;
    op *norms = &f->g->ops[f->producer[x->index]];
    if (norms->kind != OP_NORMS) norms = norm_before(f, x, norms);
    if (!norms || norms->out != x) return false;
    norms->factored = true;
    x->token_stride = x->ne[0] + 4; /* the factor, in as many values as kernels read at a time */
    for (size_t i = 0; i < f->g->op_count; i++) {
        if (f->g->ops[i].kind == OP_PRODUCTS && f->g->ops[i].in[FUSED_A] == x) f->g->ops[i].factored = true;
    }
    return true;
}

static bool are_halves_of(const op *geglu, const tensor *row) {
    const tensor *a = geglu->in[0], *b = geglu->in[1];
    return a->base == row && b->base == row && a->offset == 0 && b->offset == a->ne[0] && 2 * a->ne[0] == row->ne[0] &&
           a->ne[1] == row->ne[1] && b->ne[1] == row->ne[1] && (a->ne[1] == 1 || a->row_stride == row->row_stride);
}

/* Matches geglu of the product's two halves, or of the product and a value that was computed before it. */
static bool try_gate(fuser *f, op *geglu) {
    tensor  *row = whole_of(geglu->in[0]), *other = geglu->in[1];
    uint32_t producer = f->producer[row->index];
    op      *products = producer == NOBODY ? NULL : &f->g->ops[producer];
    if (!products || products->kind != OP_PRODUCTS || products->cap > 0 || products->clips_out ||
        !is_row(products->in[FUSED_A]))
        return false;
    if (!(row->axis == AXIS_TOKENS ? f->options->few_tokens : f->options->few_outputs)) return false;
    const tensor *made = products->out;
    const bool    whole = made->ne[0] == row->ne[0]; /* no other product has a part of this row */
    if (whole && f->readers[row->index] == 2 && are_halves_of(geglu, row)) products->gate = GATE_PAIR;
    else if (whole && !geglu->in[0]->base && is_row(row) && read_once(f, row) && !products->in[FUSED_ROUTES] &&
             other->kind == TENSOR_VALUE && other->ne[1] == 1 && whole_of(other) != products->in[FUSED_A] &&
             f->producer[whole_of(other)->index] < producer) {
        products->gate = GATE_VALUE;
        products->in[FUSED_OTHER] = other;
    } else return false;
    products->out = geglu->out;
    remove_op(geglu);
    return true;
}

static bool try_cap(fuser *f, op *softcap) {
    op *products = producer_of(f, softcap->in[0], OP_PRODUCTS);
    if (!products || !read_once(f, softcap->in[0]) || products->gate || products->clips_out ||
        !is_row(products->in[FUSED_A]))
        return false;
    if (!(products->out->axis == AXIS_TOKENS ? f->options->few_tokens : f->options->few_outputs)) return false;
    products->cap = softcap->factor;
    products->out = softcap->out;
    remove_op(softcap);
    return true;
}

/* ---- the rules, in order ---- */

static bool try_add(fuser *f, op *add) { return try_mix(f, add) || try_residual(f, add); }

static bool try_join(fuser *f, op *matmul) { return join_products(f, op_index(f, matmul)); }

static bool make_products(fuser *f, op *matmul) {
    (void)f;
    *matmul = products_of(matmul);
    return true;
}

static const struct {
    op_kind kind;
    bool    plain;                  /* also if only products change */
    bool    few;                    /* only in plans for few tokens or outputs; the rule itself asks whether for one */
    bool (*apply)(fuser *f, op *o); /* returns whether it changed the graph */
} rules[] = {
    { OP_ADD, false, false, try_add },
    { OP_NORMS, false, false, try_norm_of_sum },
    { OP_LORA_SHRINK, false, false, try_shrinks },
    { OP_MATMUL, true, false, try_join },
    { OP_MATMUL, true, false, make_products },
    { OP_MATMUL_EXPERTS, true, false, make_products },
    { OP_LORA_EXPAND, false, false, try_correct },
    { OP_CLAMP, true, false, try_clip_output },
    { OP_CLAMP, true, false, try_clip_input },
    { OP_ATTENTION, false, false, try_heads },
    { OP_ATTENTION, false, true, try_attend },
    { OP_GEGLU, false, true, try_gate },
    { OP_SOFTCAP, false, true, try_cap },
    { OP_SHRINKS, false, true, try_absorb_norms },
    { OP_PRODUCTS, false, true, try_absorb_norms },
    { OP_SHRINKS, false, true, try_absorb_norm },
    { OP_PRODUCTS, false, true, try_absorb_norm },
    { OP_PRODUCTS, false, true, try_factor },
};

/* Flattens a view of a view into a view of the whole value. */
static void view_flatten(tensor *t) {
    if (!t || !t->base || !t->base->base) return;
    t->offset += t->base->offset;
    t->token_stride = t->base->token_stride;
    t->base = t->base->base;
}

static void fuser_finish(fuser *f) {
    size_t count = 0, split = 0;
    for (size_t i = 0; i < f->g->op_count; i++) {
        op *o = &f->g->ops[i];
        if (i == f->g->split) split = count;
        if (o->kind == (op_kind)GONE) continue;
        view_flatten(o->out);
        for (size_t j = 0; j < OP_INPUTS; j++) view_flatten(o->in[j]);
        f->g->ops[count++] = *o;
    }
    f->g->op_count = count;
    f->g->split = split;
}

static void apply_rules(fuser *f) {
    f->changed = true;
    const bool few = f->options->few_tokens || f->options->few_outputs;
    for (size_t r = 0; r < COUNT_OF(rules) && !f->g->problem.status; r++) {
        if ((rules[r].few && !few) || (!rules[r].plain && f->options->plain)) continue;
        for (size_t i = 0; i < f->g->op_count && !f->g->problem.status; i++) {
            if (f->g->ops[i].kind != rules[r].kind) continue;
            if (f->changed) fuser_index(f);
            f->changed = rules[r].apply(f, &f->g->ops[i]);
        }
    }
    fuser_finish(f);
}

gm_status graph_fuse(const graph *g, const fuse_options *options, graph *out, error *e) {
    const size_t most = g->value_count + g->op_count + 1; /* joining products adds values */
    fuser        f = { .g = out, .options = options };
    *out = (graph){ .batched = g->batched, .trains = g->trains, .split = g->split };
    f.values = calloc(most, sizeof(tensor *));
    f.producer = calloc(3 * most, sizeof *f.producer);
    gm_status status;
    if (!f.values || !f.producer) status = fail_memory(e, "a fused graph", most * sizeof(tensor *));
    else {
        f.first_reader = f.producer + most;
        f.readers = f.first_reader + most;
        status = copy_graph(&f, g, e);
        if (!status) apply_rules(&f);
        if (!status && out->problem.status) status = fail(e, out->problem.status, "%s", out->problem.why);
    }
    free(f.values);
    free(f.producer);
    if (status) graph_free(out);
    return status;
}
