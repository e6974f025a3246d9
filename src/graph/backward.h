/* The backward graph: each op has a rule that appends ops for the gradients of its inputs.
 *
 *     backward b;
 *     backward_begin(&b, g, parts, count);
 *     backward_note(&b, 0, g->op_count);       which values depend on parameters
 *     backward_give(&b, loss_input, gradient); what the gradient of a value is, or a part of it
 *     backward_run(&b, 0, end);                the rules of ops [0, end), the last first
 *     backward_end(&b);
 *
 * Only values that depend on a parameter get a gradient. The gradient of a value with several readers is the sum of theirs; that of a
 * value that is read in slices is put together from the slices'. The gradient of a cache is a value [head, 2 · kv_heads]: of each token's
 * keys, then of its values. That of routes is [used]: of the weights. Layers can be computed again instead of being kept: their ops are
 * appended anew, noted, and run backward. */

#ifndef GM_GRAPH_BACKWARD_H
#define GM_GRAPH_BACKWARD_H

#include "graph/graph.h"

/* A parameter: the vector of matrices A or B that LORA ops read, the slot that is trained, and the state that gets its gradient, times
 * `factor`. */
typedef struct {
    const tensor *weight;
    uint32_t      slot;
    tensor       *gradient;
    float         factor;
} backward_part;

typedef struct backward_slice backward_slice;
typedef struct {
    tensor         *gradient; /* the sum so far; NULL: none */
    backward_slice *slices;   /* gradients of parts of it */
    bool            depends;  /* on a parameter */
} backward_value;

typedef struct {
    graph                      *g;
    const backward_part        *parts;
    size_t                      count;
    backward_value             *values; /* by index */
    size_t                      capacity;
    struct backward_correction *waiting; /* corrections by adapters that wait for a product to be added to */
} backward;

void backward_begin(backward *b, graph *g, const backward_part *parts, size_t count);
void backward_end(backward *b);

void backward_note(backward *b, size_t first, size_t end);
bool backward_depends(const backward *b, const tensor *t);
/* Says that a value depends on parameters: one that the caller gives a meaning. */
void backward_depend(backward *b, const tensor *t);
void backward_give(backward *b, tensor *value, tensor *gradient);
void backward_run(backward *b, size_t first, size_t end);
/* The gradient of a value, all of whose readers were run; NULL: it has none. */
tensor *backward_gradient(backward *b, tensor *value);

#endif
