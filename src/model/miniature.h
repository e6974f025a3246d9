/* A small model of the same architecture as a large one: its hyper-parameters and the kinds of its layers, with matrices that are the first
 * blocks of the large model's own. What it answers is nonsense, but it computes with the same ops on the same types, for checks. */

#ifndef GM_MODEL_MINIATURE_H
#define GM_MODEL_MINIATURE_H

#include "base/buffer.h"
#include "model/model.h"

typedef struct miniature miniature;

/* The model must outlive it. */
gm_status miniature_new(const model *of, reads *r, miniature **out, error *e);
/* Makes the small model. GM_AGAIN: weights are being read that are not in memory. */
gm_status miniature_step(miniature *m, error *e);
void      miniature_free(miniature *m);

const model *miniature_model(const miniature *m);
/* The weight of the large model whose blocks a weight of the small one has; NULL: it has none. */
const weight *miniature_origin(const miniature *m, const void *data);

#endif
