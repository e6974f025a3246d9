/* Adapters in a graph: what they add to the results of products. The graphs of the text model and of the towers share this. */

#ifndef GM_CORRECTIONS_H
#define GM_CORRECTIONS_H

#include "model/model.h"

typedef struct {
    graph                *g;
    const model_adapters *adapters;    /* NULL: none, and nothing is corrected */
    tensor               *sets;        /* their table */
    bool                 *done;        /* of each site: it is in the graph */
    tensor               *dropout_key; /* training; NULL: adapters see everything */
    float                 dropout;
} corrections;

/* Problems are the graph's. */
void corrections_begin(corrections *c, graph *g, const model_adapters *adapters);
/* The adapters of a weight; false: none corrects it. */
bool corrections_site(corrections *c, const char *base, lora_site *out);
/* What the adapters of a weight see of x. */
tensor *corrections_seen(corrections *c, const char *base, tensor *x);
/* y + Σ_s w_s · B_s · (A_s · x), y = W·x */
tensor *corrections_add(corrections *c, tensor *y, const char *base, tensor *x);
/* After the last one: every site must be in the graph. `what`: "the text model". */
void corrections_end(const corrections *c, const char *what);

#endif
