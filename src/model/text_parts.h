/* The parts of the text model's graph, for inference (text.c) and for training (text_train.c). */

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
} text_builder;

void    text_begin(text_builder *b, graph *g, const model *m, const model_adapters *adapters);
tensor *text_input(text_builder *b);                        /* what the first layer reads */
tensor *text_layer(text_builder *b, uint32_t i, tensor *x); /* what the next one reads */
tensor *text_head(text_builder *b, tensor *x);              /* logits of the wanted outputs, without the soft cap */
/* The graph's problem, if there are sites that it does not have. */
void text_check_sites(const text_builder *b);

#endif
