/* The denoiser of a diffusion model as a graph, formula by formula. */

#include "model/text_parts.h"

#include <math.h>

canvas_rule model_canvas_rule(const model_config *config) {
    enum { MOST_NATS = 22 }; /* more than the logarithm of any vocabulary; the sum over a canvas must fit in 32 bits */
    const canvas_config *c = &config->canvas;
    uint32_t             units = 1 << 24;
    while (units > UINT32_MAX / MOST_NATS / c->length) units /= 2;
    const double bound = (double)c->entropy_bound * units;
    return (canvas_rule){ .units = units,
                          .bound = bound < UINT32_MAX ? (uint32_t)bound : UINT32_MAX,
                          .stability = c->stability,
                          .confidence = (uint32_t)(fminf(c->confidence, MOST_NATS) * (float)units),
                          .vocabulary = config->vocabulary };
}

/* x = rms(E[id]·√d + Wdown·(gelu(Wgate·n) ⊙ Wup·n)), n = rms(s, w): what the step before expected, s, conditions this one */
static tensor *canvas_input(text_builder *b, tensor *ids, tensor *soft) {
    const model *m = b->m;
    tensor      *e = graph_embed_value(b->g, weight_tensor(b->g, &m->token_embd), ids, sqrtf((float)b->c->width));
    tensor      *n = text_norm(b, soft, &m->self_norm);
    tensor      *x = graph_add(b->g, e, text_feed_forward(b, &m->self_gate, &m->self_up, &m->self_down, n));
    text_rope(b);
    return b->caches ? graph_rms_norm(b->g, x, NULL, b->c->eps) : NULL;
}

gm_status model_canvas_graph(const model *m, bool logits, canvas_graph *out, error *e) {
    *out = (canvas_graph){ .g = { .batched = true } };
    graph       *g = &out->g;
    text_builder b;
    text_begin(&b, g, m, NULL);
    b.denoises = true;
    out->soft = graph_leaf(g, AXIS_TOKENS, b.c->width, 1);
    out->settings = graph_leaf(g, AXIS_TOKENS, CANVAS_SETTINGS, 1);
    out->state = graph_leaf(g, AXIS_TOKENS, CANVAS_STATE, 1);
    out->before = graph_leaf(g, AXIS_TOKENS, CANVAS_FINDINGS, 1);
    const canvas_rule rule = model_canvas_rule(b.c);
    tensor *x = canvas_input(&b, graph_canvas_next(g, out->before, out->settings, out->state, &rule), out->soft);
    for (uint32_t i = 0; i < b.c->layers && x; i++) x = text_layer(&b, i, x);
    if (logits) {
        tensor *z = text_head(&b, x);
        g->result = b.c->softcap > 0 ? graph_softcap(g, z, b.c->softcap) : z;
    }
    out->found = graph_canvas_head(g, weight_tensor(g, &m->token_embd), text_norm(&b, x, &m->output_norm),
                                   out->settings, out->soft, b.c->softcap, sqrtf((float)b.c->width));
    if (logits) g->further[0] = out->found;
    else g->result = out->found;
    if (!out->found) g->result = NULL;
    return text_finish(g, "denoiser", e);
}
