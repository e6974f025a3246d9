/* The same computation in fewer ops, for a backend that pays for each: what a graph's builder wrote as primitives becomes
 *
 *   NORMS     s = (a + b · b_weight / rms(b)) · factor, or a without b; kept as `sum` if that is set
 *             out = s · weight · weight_factor / rms(s)   (normed; without it there is only the sum)
 *   PRODUCTS  weights W0, W1, W2 (those that are there; one type, one k), a column x: [W0·x, W1·x, W2·x] as one row
 *             x is what NORMS makes of a, b and the weights, or a itself
 *             routes: the one weight is [k, m, experts], and there is a row for each expert used, as with MATMUL_EXPERTS
 *             gate   pair: gelu(first half of the row) · second half;  value: gelu(row) · other
 *             cap    above 0: cap · tanh(row / cap)
 *   HEADS     queries q, and keys k and values v if they are there: q and k are normed by their weights and turned by the
 *             table, v is normed; k and v go to the cache of `layer`, q to out
 *   ATTEND    HEADS and the ATTENTION of its queries in one, where there is one token: inputs as HEADS has them, out as ATTENTION's
 *   MIX       rms(a)·a_weight + rms(Σ_e weight_e · experts[:, e])·weight
 *
 * `factor` is NORMS' and, with eps, a norm's as in the primitives. No fused op has a backward rule: training plans the
 * primitives. A pattern does not match where an inner value has another reader. */

#ifndef GM_FUSE_H
#define GM_FUSE_H

#include "graph/graph.h"

/* Where the fused ops have their inputs. */
enum {
    FUSED_W0 = 0, /* PRODUCTS */
    FUSED_W1 = 1,
    FUSED_W2 = 2,
    FUSED_A = 3, /* NORMS, PRODUCTS */
    FUSED_B = 4,
    FUSED_B_WEIGHT = 5,
    FUSED_WEIGHT = 6,
    FUSED_OTHER = 7,  /* PRODUCTS */
    FUSED_ROUTES = 8, /* PRODUCTS */

    HEADS_Q = 0, /* HEADS, ATTEND */
    HEADS_K = 1,
    HEADS_V = 2,
    HEADS_TABLE = 3,
    HEADS_Q_WEIGHT = 4,
    HEADS_K_WEIGHT = 5,

    MIX_A = 0,
    MIX_EXPERTS = 1,
    MIX_ROUTES = 2,
    MIX_A_WEIGHT = 3,
    MIX_WEIGHT = 4,
};

typedef struct {
    bool     one_token;   /* there is never more than one token: products may make their own column and pass a gate */
    bool     one_output;  /* the same for what is counted in outputs */
    uint64_t most_bytes;  /* of weights that are taken together */
    uint64_t most_column; /* the longest column that a product can make for itself */
} fuse_options;

/* `out` is a graph of its own, but its weights are those of `g`, which must live as long. Every product is a PRODUCTS; which
 * weights are taken together depends on most_bytes alone. */
gm_status graph_fuse(const graph *g, const fuse_options *options, graph *out, error *e);

#endif
