/* Rewrites a graph into fewer ops, for a backend where each op costs a dispatch. The builder's primitives become
 *
 *   NORMS     s = (a + b · b_weight / rms(b)) · factor, or a if there is no b; stored in `sum` if that is set
 *             out = s · weight · weight_factor / rms(s)   (only if `normed`)
 *             factored: out is s · weight, and the factor behind each row, weight_factor / rms(s), is left to its readers
 *   PRODUCTS  up to three weights W0, W1, W2 of one type and one k, a column x: [W0·x, W1·x, W2·x] as one row
 *             x is a, or what NORMS computes from a, b and the norm weights; factored: the results are multiplied by the
 *             factor behind x, so that they are rounded as by a product that computes its own column
 *             with routes: one weight [k, m, experts] and a row for each expert used, as in MATMUL_EXPERTS
 *             gate   pair: gelu(first half of the row) · second half;  value: gelu(row) · other
 *             cap    above 0: cap · tanh(row / cap)
 *             clips  x is clamped before the product, the rows of each weight after it
 *             with SHRUNK, adapters correct the rows before the gate: those of weight i by Σ_s EXPAND_i,s · u_i,s
 *   SHRINKS   what the adapters of up to three weights see of one column x, which is as that of PRODUCTS: a row with a mask of the
 *             slots in the token's set, room up to SHRUNK_HEAD, and for each weight i, u_i = w_s · A_i,s · x of each slot
 *             s, 0 for slots without a weight (LORA_SHRINK). Its inputs W0, W1, W2 are the vectors A of the weights
 *   HEADS     queries q, and optionally keys k and values v: norms q and k with their weights and rotates them by the
 *             table, norms v; k and v go to the cache of `layer`, which becomes `sum`, q to out. A table of two rows rotates
 *             the first half of a head by the one and the second half by the other
 *   ATTEND    HEADS and its ATTENTION in one, for a single token of each sequence: the inputs of HEADS, the output of ATTENTION
 *   MIX       rms(a)·a_weight + rms(Σ_e weight_e · experts[:, e])·weight
 *
 * No fused op has a backward rule: gradients are appended to the primitives, and what the two need only once is fused after that. A pattern
 * does not match if an inner value has another reader. */

#ifndef GM_FUSE_H
#define GM_FUSE_H

#include "graph/graph.h"

/* Indices of the fused ops' inputs. */
enum {
    FUSED_W0 = 0, /* PRODUCTS */
    FUSED_W1 = 1,
    FUSED_W2 = 2,
    FUSED_A = 3, /* NORMS, PRODUCTS */
    FUSED_B = 4,
    FUSED_B_WEIGHT = 5,
    FUSED_WEIGHT = 6,
    FUSED_OTHER = 7,   /* PRODUCTS */
    FUSED_ROUTES = 8,  /* PRODUCTS */
    FUSED_EXPAND0 = 9, /* PRODUCTS: the vectors B of the adapters of W0, W1, W2 */
    FUSED_SHRUNK = 12, /* PRODUCTS: the result of SHRINKS */
    FUSED_SETS = 12,   /* SHRINKS: the table of sets */

    HEADS_Q = 0, /* HEADS, ATTEND */
    HEADS_K = 1,
    HEADS_V = 2,
    HEADS_TABLE = 3,
    HEADS_Q_WEIGHT = 4,
    HEADS_K_WEIGHT = 5,
    HEADS_CACHE = 6, /* ATTEND that stores nothing: the cache that it reads */

    MIX_A = 0,
    MIX_EXPERTS = 1,
    MIX_ROUTES = 2,
    MIX_A_WEIGHT = 3,
    MIX_WEIGHT = 4,
};

/* Values before the first u in a row of SHRINKS. */
enum { SHRUNK_HEAD = 4 };

typedef struct {
    bool     plain;       /* only products change, and what they clip: every other op stays as it is */
    bool     one_token;   /* for one token only: products may compute their own column */
    bool     one_output;  /* the same for values on the axis of outputs */
    bool     rows;        /* each token is a sequence of its own, as with one token */
    bool     clips;       /* for several tokens: products may clip what they read and write */
    bool     few_tokens;  /* for few tokens, or one: products may apply a gate or a cap */
    bool     few_outputs; /* the same */
    uint64_t most_bytes;  /* the limit for joined weights */
    uint64_t most_column; /* the longest column that a product can compute for itself */
} fuse_options;

/* `out` shares the weights of `g`, which must outlive it. Every product becomes a PRODUCTS. Which weights are joined
 * depends only on most_bytes, so that all plans of a model agree. */
gm_status graph_fuse(const graph *g, const fuse_options *options, graph *out, error *e);

#endif
