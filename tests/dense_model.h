/* A model for tests of mechanisms, which need a layer of each kind and no more. */

#ifndef GM_DENSE_MODEL_H
#define GM_DENSE_MODEL_H

#include "gemmule.h"

/* tiny-dense; on a GPU, which in software takes its time, only its second and third layer, without embeddings by layer. */
static inline const char *dense_model(gm_backend device) {
    return device == GM_BACKEND_GPU ? "tests/fixtures/two-layers.gguf" : "tests/fixtures/tiny-dense.gguf";
}

#endif
