#include "model/text_parts.h"
#include "model/train.h"

/* The body while it is built. */
typedef struct {
    text_builder b;
    backward     back;
    tensor     **inputs; /* [layers + 1]: what each layer reads, and what the last one gives */
    size_t      *ends;   /* [layers + 1]: the first op behind the input, and behind each layer */
} body_builder;

static void body_forward(body_builder *t) {
    graph *g = t->b.g;
    t->inputs[0] = text_input(&t->b);
    t->ends[0] = g->op_count;
    for (uint32_t i = 0; i < t->b.c->layers; i++) {
        t->inputs[i + 1] = text_layer(&t->b, i, t->inputs[i]);
        t->ends[i + 1] = g->op_count;
    }
    g->result = t->inputs[t->b.c->layers];
    if (!g->problem.status) backward_note(&t->back, 0, g->op_count);
}

/* Computes a layer again. Its result and its cache get the gradients of the ones from before. */
static void body_repeat_layer(body_builder *t, uint32_t i) {
    graph       *g = t->b.g;
    const size_t first = g->op_count;
    tensor      *cache = t->b.caches[i], *out = text_layer(&t->b, i, t->inputs[i]);
    if (!out) return;
    backward_note(&t->back, first, g->op_count);
    backward_give(&t->back, out, backward_gradient(&t->back, t->inputs[i + 1]));
    if (cache && backward_depends(&t->back, cache))
        backward_give(&t->back, t->b.caches[i], backward_gradient(&t->back, cache));
    backward_run(&t->back, first, g->op_count);
}

static void body_backward(body_builder *t, uint32_t kept) {
    const uint32_t layers = t->b.c->layers;
    for (uint32_t i = layers; i-- > 0 && backward_depends(&t->back, t->inputs[i + 1]);) {
        if (layers - i <= kept) backward_run(&t->back, t->ends[i], t->ends[i + 1]);
        else body_repeat_layer(t, i);
    }
    backward_run(&t->back, 0, t->ends[0]);
}

static tensor *add_dropout(text_builder *b, float probability) {
    b->added.dropout = probability;
    b->added.dropout_key = probability > 0 && b->added.adapters ? graph_leaf(b->g, AXIS_RUN, 2, 1) : NULL;
    return b->added.dropout_key;
}

static const bool *build_body(const model *m, const train_graph_options *o, train_graphs *out) {
    graph       *g = &out->body;
    body_builder t = { 0 };
    text_begin(&t.b, g, m, o->adapters);
    out->keys[0] = add_dropout(&t.b, o->dropout);
    backward_begin(&t.back, g, o->parts, o->count);
    t.inputs = arena_array(&g->memory, m->config.layers + 1, sizeof *t.inputs);
    t.ends = arena_array(&g->memory, m->config.layers + 1, sizeof *t.ends);
    if (!t.inputs || !t.ends) fail_memory(&g->problem, "the graph of training", m->config.layers * sizeof *t.inputs);
    if (!g->problem.status) body_forward(&t);
    if (!g->problem.status && backward_depends(&t.back, g->result)) {
        g->split = g->op_count;
        out->gradient = graph_leaf(g, AXIS_TOKENS, m->config.width, 1);
        backward_give(&t.back, g->result, out->gradient);
        body_backward(&t, o->kept);
    }
    backward_end(&t.back);
    return t.b.added.done;
}

static void build_head(const model *m, const train_graph_options *o, const bool *in_body, train_graphs *out) {
    graph       *g = &out->head;
    text_builder b;
    backward     back;
    tensor      *loss = NULL;
    text_begin(&b, g, m, o->adapters);
    out->keys[1] = add_dropout(&b, o->dropout);
    backward_begin(&back, g, o->parts, o->count);
    out->x = graph_leaf(g, AXIS_TOKENS, m->config.width, 1);
    out->goals = graph_leaf(g, AXIS_OUTPUTS, 2, 1);
    if (out->gradient) {
        out->before = graph_leaf(g, AXIS_TOKENS, m->config.width, 1);
        backward_depend(&back, out->x);
    }
    tensor      *logits = text_head(&b, out->x);
    const size_t end = g->op_count;
    if (logits) {
        backward_note(&back, 0, end);
        backward_give(&back, logits, graph_cross_entropy(g, logits, out->goals, m->config.softcap, &loss));
        const size_t split = g->op_count;
        backward_run(&back, 0, end);
        if (g->op_count > split) g->split = split;
    }
    g->result = loss;
    if (out->gradient && loss) g->further[0] = graph_add(g, out->before, backward_gradient(&back, out->x));
    backward_end(&back);
    for (size_t i = 0; b.added.adapters && i < b.added.adapters->count; i++) b.added.done[i] |= in_body[i];
    text_check_sites(&b);
}

gm_status model_train_graphs(const model *m, const train_graph_options *o, train_graphs *out, error *e) {
    *out = (train_graphs){ 0 };
    const bool  *in_body = build_body(m, o, out);
    const error *problem = &out->body.problem;
    if (!problem->status) {
        build_head(m, o, in_body, out);
        problem = &out->head.problem;
    }
    out->body.trains = out->head.trains = true;
    gm_status status = problem->status ? fail(e, problem->status, "%s", problem->why) : GM_OK;
    if (!status && (!out->body.result || !out->head.result))
        status = fail(e, GM_BAD_FILE, "the graph of training could not be built");
    if (status) train_graphs_free(out);
    return status;
}

void train_graphs_free(train_graphs *t) {
    graph_free(&t->body);
    graph_free(&t->head);
    *t = (train_graphs){ 0 };
}
