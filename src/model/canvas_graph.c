/* The denoiser of a diffusion model as a graph, formula by formula. */

#include "model/text_parts.h"

#include <math.h>

/* x = rms(E[id]·√d + Wdown·(gelu(Wgate·n) ⊙ Wup·n)), n = rms(s, w): what the step before expected, s, conditions this one */
static tensor *canvas_input(text_builder *b, tensor *soft) {
    const model *m = b->m;
    tensor      *e = graph_embed(b->g, weight_tensor(b->g, &m->token_embd), sqrtf((float)b->c->width));
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
    tensor *x = canvas_input(&b, out->soft);
    for (uint32_t i = 0; i < b.c->layers && x; i++) x = text_layer(&b, i, x);
    if (logits) {
        tensor *z = text_head(&b, x);
        g->result = b.c->softcap > 0 ? graph_softcap(g, z, b.c->softcap) : z;
    }
    tensor *found = graph_canvas_head(g, weight_tensor(g, &m->token_embd), text_norm(&b, x, &m->output_norm),
                                      out->settings, out->soft, b.c->softcap, sqrtf((float)b.c->width));
    if (logits) g->further[0] = found;
    else g->result = found;
    if (!found) g->result = NULL;
    return text_finish(g, "denoiser", e);
}
