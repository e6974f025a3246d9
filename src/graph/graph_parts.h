/* What the files that append ops share: graph.c, graph_back.c, backward.c. */

#ifndef GM_GRAPH_PARTS_H
#define GM_GRAPH_PARTS_H

#include "graph/graph.h"

tensor *graph_value(graph *g, tensor_axis axis, uint64_t n, uint64_t rows);
/* Appends the op and creates its result, unless n is 0. If the shapes do not fit, notes the problem instead. */
tensor *graph_append(graph *g, bool fits, op what, tensor_axis axis, uint64_t n, uint64_t rows);
tensor *graph_view(graph *g, tensor *x, bool fits, uint64_t offset, uint64_t n, uint64_t rows, uint64_t row_stride);

bool tensor_is_contiguous(const tensor *t);
bool tensor_same_shape(const tensor *a, const tensor *b);
bool tensor_is_vector(const tensor *w, uint64_t n); /* an F32 vector of n weights */

#endif
