/* Finds weights in a file by name and checks their shapes. */

#ifndef GM_LOADER_H
#define GM_LOADER_H

#include "model/model.h"

typedef struct {
    const gguf *file;
    arena      *memory; /* names, and vectors as f32 */
    bool        shapes; /* only shapes: values are not needed */
    gm_status   status; /* the first failure; after it, nothing more is loaded */
    error      *e;
} weight_loader;

/* A matrix, or a stack of matrices, not copied. If it is absent: an error if `required`, otherwise an empty weight. */
weight loader_matrix(weight_loader *l, const char *name, uint64_t n0, uint64_t n1, uint64_t n2, bool required);
/* The same for a tensor of any shape: it is up to the caller to check that, and to say how to read it. */
weight loader_any(weight_loader *l, const char *name, uint64_t ne[4], bool required);
/* A vector, converted to f32 from any float type. Vectors are small, so every value is checked: one NaN in a norm would
 * spoil everything. */
weight loader_vector(weight_loader *l, const char *name, uint64_t n, bool required);
/* A vector that is computed here: f32, in the loader's memory, to be filled. NULL after a failure, and if only shapes
 * are wanted. */
float *loader_new_vector(weight_loader *l, const char *name, uint64_t n, weight *out);

#endif
