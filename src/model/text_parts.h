/* The parts of the text model's graph, for inference (text.c), for training (text_train.c) and for canvases (canvas_graph.c). */

#ifndef GM_MODEL_TEXT_PARTS_H
#define GM_MODEL_TEXT_PARTS_H

#include "model/corrections.h"

typedef struct {
    graph              *g;
    const model        *m;
    const model_config *c;
    tensor             *rope_full, *rope_sliding; /* cosines and sines of the tokens' positions */
    tensor             *per_layer_inputs;         /* [P, L] */
    tensor            **caches;                   /* by layer: its keys and values, after its tokens' were stored */
    corrections         added;                    /* by adapters */
    bool                denoises;                 /* a canvas; otherwise it reads text */
} text_builder;

void    text_begin(text_builder *b, graph *g, const model *m, const model_adapters *adapters);
tensor *text_input(text_builder *b);                        /* what the first layer reads */
tensor *text_layer(text_builder *b, uint32_t i, tensor *x); /* what the next one reads */
tensor *text_head(text_builder *b, tensor *x);              /* logits of the wanted outputs, without the soft cap */
tensor *text_norm(text_builder *b, tensor *x, const weight *w);
/* Wdown · (gelu(Wgate·n) ⊙ Wup·n) */
tensor *text_feed_forward(text_builder *b, const weight *w_gate, const weight *w_up, const weight *w_down, tensor *n);
void    text_rope(text_builder *b); /* part of text_input, for graphs with an input of their own */
/* The end of building: GM_OK, or the graph's problem, and the graph is freed. */
gm_status text_finish(graph *g, const char *what, error *e);
/* The graph's problem, if there are sites that it does not have. */
void text_check_sites(const text_builder *b);

#endif
