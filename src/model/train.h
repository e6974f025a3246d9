/* The graphs of training a text model's adapters.
 *
 * The body is the input and all layers, forward, and then backward from the gradient of what the last layer gives. It runs in two parts
 * (graph.split). The head is run in between, for a chunk of the tokens that count at a time: their loss, and, as its second part, its gradient, added
 * to what earlier chunks gave. */

#ifndef GM_MODEL_TRAIN_H
#define GM_MODEL_TRAIN_H

#include "graph/backward.h"
#include "model/model.h"

typedef struct {
    graph   body;       /* result: what the last layer gives, [width] by tokens */
    tensor *gradient;   /* a leaf: its gradient; NULL: nothing in the body is trained */
    graph   head;       /* results: the loss of each output; the gradient of x by tokens, if the body wants it */
    tensor *x, *before; /* leaves: what the last layer gave, and its gradient by earlier chunks */
    tensor *keys[2];    /* leaves of body and head: DROPOUT's; NULL: there is none */
    tensor *goals;      /* a leaf, by outputs: as CROSS_ENTROPY reads them */
} train_graphs;

/* The activations of the last `kept` layers stay in memory; those of the others are computed a second time, from what went into the layer. */
typedef struct {
    const model_adapters *adapters;
    const backward_part  *parts;
    size_t                count;
    uint32_t              kept;
    float                 dropout; /* the share of each adapter's input that it does not see */
} train_graph_options;

gm_status model_train_graphs(const model *m, const train_graph_options *options, train_graphs *out, error *e);
void      train_graphs_free(train_graphs *t);

#endif
