/* What to compute: a list of ops on tensors. A model is a function that builds a graph; nothing here depends on a backend.
 *
 * Shapes are those of ONE token: ne[0] is contiguous, ne[1] counts rows within the token (heads, experts). How many tokens
 * there are is known only when a plan runs; they are the outermost dimension of every value, so a plan made for 256 tokens
 * also runs 3. After the layers only the tokens whose logits are wanted matter: values there have the axis of OUTPUTS. A sum
 * over tokens exists once per run: its axis is RUN.
 *
 * A graph says everything about the order of its ops: an op needs its inputs, and nothing else. Keys and values are edges, too:
 * KV_STORE gives the cache of its layer as it is after the store, and ATTENTION takes a cache. A value may have any number of
 * readers, and a graph several results. */

#ifndef GM_GRAPH_H
#define GM_GRAPH_H

#include "base/arena.h"
#include "gguf/quant.h"
#include "gguf/source.h"

/* The ops. in = [a, b, c] below; every value is f32 unless said otherwise.
 *
 *   EMBED           the row of the table a that the token's id, its position, or a value b [1] (i32 bits) names, times factor. An id
 *                   below 0 is a soft token: row −1−id of the rows that the run passes in, unscaled, if the op takes given rows;
 *                   otherwise row 0
 *   RMS_NORM        a / sqrt(mean(a²) + eps) · b      over each row; b may be NULL
 *   LAYER_NORM      (a − mean(a)) / sqrt(variance(a) + eps) · b + c   over each row; c may be NULL
 *   MATMUL          weights a [k, m], values b [k]  →  [m]
 *   ROPE_TABLE      cos and sin of position · frequency a[j] for each token  →  [2 · n/2]: cosines, then sines. With two axes
 *                   →  [2 · n/2, 2]: a row for the token's id, the column of a patch, and one for its position, the row
 *   ROPE            rotates the pairs (j, j + n/2) of each row of a by the table b; row r by row r mod rows(b)
 *   KV_STORE        keys a and values b of the tokens go to the cache of `layer`, to the slots that the run's records name  →
 *                   the cache
 *   ATTENTION       queries a against the cache b, which belongs to `layer`; the records say what each token sees (graph/run.h). With a window
 *                   the layer is a sliding one, else a full one; the number itself only helps to divide the work
 *   GEGLU           gelu(a) · b
 *   GATE            a · sigmoid(b); with b = a this is silu(a)
 *   ADD             a + b        here and below b is a value of the same shape, or a weight vector: the same for every row
 *   MUL             a · b
 *   CLAMP           min(max(a, least), most)
 *   SCALE           a · factor
 *   SOFTCAP         factor · tanh(a / factor)
 *   ROUTE           router logits a [experts], per-expert scale b (may be NULL)  →  [2 · used]: the ids of the `used`
 *                   likeliest experts as i32 bits, then their weights: p_e / Σ_used p · b_e, p = softmax over all experts
 *   MATMUL_EXPERTS  weights a [k, m, experts], values b [k, 1 or used], routes c  →  [m, used]
 *   EXPERT_SUM      Σ_e weight_e · a[:, e], routes b
 *   LORA_SHRINK     what adapters see of the values b [k, rows]: for slot s of each token's set (c: the table of sets)  w_s · A_s · b
 *                   →  [rank · slots, rows], and 0 for slots without a weight. A_s is a [slots · rank · k], a row for each rank. With
 *                   routes d there are such matrices for each expert, a [slots · experts · rank · k], and a row of the result for each
 *                   expert used. Without b the token's id names the column of A_s, a [slots · ids · rank]; soft tokens have none
 *   LORA_EXPAND     a + Σ_s B_s · c_s, the correction of a product's result a [m, rows] (NULL: 0) by what LORA_SHRINK gave, c: b [slots · rank · m] or
 *                   [slots · experts · rank · m], a column for each rank; the table of sets d, routes e
 *   CONV_GRID       a convolution of 3 × 3 with stride 2 over time and frequency. A row of a is a moment [channels · frequencies],
 *                   channels fastest, and three rows are a window of time. Weights b [out · channels · 3 · 3]: out channels fastest,
 *                   then channels, frequency, time  →  [out · ⌈frequencies / 2⌉, windows]. Beyond the first and the last frequency
 *                   there are zeros
 *   CONV_TOKENS     Σ_k b_k · a_{t − taps + 1 + k} over the tokens of t's span, for each value on its own; b [n · taps], the
 *                   earliest token's row first. Before the span there are zeros
 *   LOCAL_ATTENTION each head of the queries a sees the keys b and values c of its token and of up to reach − 1 before it in its
 *                   span: softmax_δ(factor · tanh(q·(k_{t−δ} + d_δ) / factor)); d [head · heads · reach]
 *   SELECT_ROWS     the tokens of a whose outputs are wanted; with a count above 1 the mean of that many tokens from there on
 *   TOKEN_SUM       the sum of a over all tokens (or outputs) of the run
 *   LEAF            what the caller last wrote there between two runs; at first 0
 *   CONCAT          rows that consist of the rows of up to 8 inputs, one behind the other
 *   CANVAS_HEAD     the tokens that a denoised position may be. Table a [k, m], hidden state b [k], settings c (CANVAS_SETTINGS, below), and
 *                   a leaf d [k] that it writes:  z = t · cap · tanh(a·b / cap) (`most`: the cap; 0: none), p = softmax(z)  →
 *                   [CANVAS_FINDINGS]: the likeliest id, one that is drawn with the probabilities p (both as i32 bits), the entropy of p in
 *                   nats, and the largest p;  d = factor · Σ_v p_v · a_v. Goes over the table once, a tile at a time, and rescales its sums
 *                   when a larger z appears. It draws the v with the largest z_v − ln(−ln(1 − u)), u = (w + ½) / 2^32, where w is word
 *                   v mod 4 of Philox, counter [v / 4, draw, 0, CANVAS_STREAM], key of the settings
 *   CANVAS_NEXT     the canvas that a step denoises; each span is one. Findings a of the step before, settings b of this one, and a leaf c
 *                   (canvas_state) that it writes  →  [1]: the ids, as i32 bits. In step 0 and at pinned positions that of c. Otherwise the
 *                   one that was drawn, if the entropies before it in ascending order add up to at most the bound; if not, a random
 *                   one: word 0 of Philox, counter [0, draw, 1, CANVAS_STREAM], times vocabulary / 2^32. If every canvas of the run is
 *                   done (canvas_rule), a GPU computes nothing more: the run was submitted before the host knew
 *
 * Ops of training. d is the gradient of the result of the op that the name begins with; backward.h appends them.
 *
 *   MATMUL_BACK          Wᵀ·b: weights a [k, m], values b [m]  →  [k]
 *   MATMUL_EXPERTS_BACK  the same by routes c: weights a [k, m, experts], values b [m, used]  →  [k, used]
 *   RMS_NORM_BACK        r·(w·d − a·r²·mean(w·d·a)), r = 1/sqrt(mean(a²) + eps), of values a, weights w = b (NULL: 1) and d = c
 *   ROPE_BACK            rotates a by the table b as ROPE does, but by the negative angle
 *   GEGLU_BACK           gelu'(a) · b · c: the gradient of the gate a, given b and d = c. (That of b is GEGLU(a, d).)
 *   ATTENTION_BACK_Q     the gradient of the queries a: Σ_j e_j·k_j, e_j = p_j·(d·v_j − δ), p_j = exp(a·k_j − l). Inputs: a, the cache b,
 *                        d = c, l = the logarithms d [heads], δ = ROW_DOT(result, gradient), e [heads]
 *   ATTENTION_BACK_KV    the gradient of a cache, of the same inputs: for each token its keys' gradient Σ e·q, then its values' Σ p·d, over all
 *                        queries that see the token  →  [head, 2 · kv_heads]. Every index that a token sees is that of a token of its span
 *   ROUTE_BACK           the gradient of the router logits a, of routes b, per-expert scale s = c (may be NULL) and the gradient w of the
 *                        routes' weights, d [used]: for experts used q_e·(s_e·w_e − Σ q·s·w), q = softmax over these; for others 0
 *   EXPERT_SUM_BACK      weight_e · a for each expert used, routes b: a [n]  →  [n, used]
 *   SELECT_ROWS_BACK     a at the tokens whose outputs are wanted, 0 at others; by outputs  →  by tokens
 *   ROW_SUM              Σ of the rows of a: [n, rows]  →  [n]
 *   ROW_DOT              a · b of each row: a [n, rows], b [n, rows or 1]  →  [rows]
 *   DROPOUT              a / (1 − factor) with the probability 1 − factor, else 0, for each value on its own. Value i of row r of the run is 0 if
 *                        word i mod 4 of Philox, counter [i / 4, r, stream, 0] and key b, a leaf [2] by run, is below factor · 2^32.
 *                        A key of two words 2^32 − 1 leaves all values as they are
 *   CROSS_ENTROPY        logits a [n] (before a soft cap of `factor`; 0: none), goals b [2]: a target as i32 bits, and a weight w  →  the
 *                        gradient of the logits a; second result [1]: the loss −w·ln p(target)
 *   LORA_GRADIENT        adds factor · Σ_rows p ⊗ q to the state b [rank · n], or [experts · rank · n] with routes d: p = the part of `slot` in
 *                        a [rank · slots, rows], q = c [n, rows or 1]. Without c the token's id names the row: b [ids · rank]. The order of
 *                        the sum is fixed
 *   SQUARE_SUM           Σ a² of the state a, plus b [1] if there is one; by run
 *   ADAMW                a step on the parameters a of `slot`, with the states gradient b, first and second moment c and d, and the rates
 *                        e (below); the gradient becomes 0. f [1]: the sum of all gradients' squares; if it is not finite, nothing changes
 *
 * A state is an F32 vector in memory that ops write: a weight that is not constant. */
typedef enum {
    OP_EMBED,
    OP_RMS_NORM,
    OP_LAYER_NORM,
    OP_MATMUL,
    OP_ROPE_TABLE,
    OP_ROPE,
    OP_KV_STORE,
    OP_ATTENTION,
    OP_GEGLU,
    OP_GATE,
    OP_ADD,
    OP_MUL,
    OP_CLAMP,
    OP_SCALE,
    OP_SOFTCAP,
    OP_ROUTE,
    OP_MATMUL_EXPERTS,
    OP_EXPERT_SUM,
    OP_LORA_SHRINK,
    OP_LORA_EXPAND,
    OP_CONV_GRID,
    OP_CONV_TOKENS,
    OP_LOCAL_ATTENTION,
    OP_SELECT_ROWS,
    OP_TOKEN_SUM,
    OP_LEAF,
    OP_CANVAS_HEAD,
    OP_CANVAS_NEXT,
    OP_CONCAT,
    OP_MATMUL_BACK,
    OP_MATMUL_EXPERTS_BACK,
    OP_RMS_NORM_BACK,
    OP_ROPE_BACK,
    OP_GEGLU_BACK,
    OP_ATTENTION_BACK_Q,
    OP_ATTENTION_BACK_KV,
    OP_ROUTE_BACK,
    OP_EXPERT_SUM_BACK,
    OP_SELECT_ROWS_BACK,
    OP_ROW_SUM,
    OP_ROW_DOT,
    OP_DROPOUT,
    OP_CROSS_ENTROPY,
    OP_LORA_GRADIENT,
    OP_SQUARE_SUM,
    OP_ADAMW,
    OP_COUNT,
    /* Fused ops: only fuse.c creates them, for plans; fuse.h says what they compute. */
    OP_NORMS = OP_COUNT,
    OP_PRODUCTS,
    OP_SHRINKS,
    OP_HEADS,
    OP_ATTEND,
    OP_MIX,
    OP_COUNT_FUSED,
} op_kind;

enum { OP_INPUTS = 13 };                                       /* the most inputs of any op; primitives have up to 8 */
enum { OP_PARTS = 3 };                                         /* weights of a PRODUCTS */
enum { LOCAL_ATTENTION_MOST = 16 };                            /* tokens that LOCAL_ATTENTION reaches */
enum { ATTENTION_BACK_HEAD = 512, ATTENTION_BACK_GROUP = 64 }; /* the largest head, and queries to a K/V head */

const char *op_name(op_kind kind);

typedef enum {
    TENSOR_WEIGHT,
    TENSOR_VALUE,
    TENSOR_CACHE, /* the keys and values of a layer; the run says where they are */
} tensor_kind;
typedef enum { AXIS_TOKENS, AXIS_OUTPUTS, AXIS_RUN } tensor_axis;

typedef struct tensor tensor;
struct tensor {
    tensor_kind kind;
    quant_type  type;
    uint64_t    ne
        [3]; /* a value: [n, rows]; a weight: as in the file, missing dimensions 1; a cache that is stored here: [head, kv_heads] */
    tensor_axis axis;       /* a value has one entry per token, per output, or per run */
    uint64_t    row_stride; /* values: elements from row to row, and from token to token */
    uint64_t    token_stride;
    tensor     *base; /* a view: the value it points into, at element `offset`; NULL otherwise */
    uint64_t    offset;
    const void *data; /* a weight's bytes; NULL: they are only in the source, at `place` */
    source     *from; /* a weight of a file: where its bytes come from; else NULL */
    uint64_t    place;
    const char *name;          /* a weight's, for messages */
    uint32_t    index;         /* a value's or cache's number, for the plan */
    uint32_t    layer, window; /* a cache's; window 0: a full layer */
};

/* Whether two tensors refer to the same weight: the same bytes in memory or in a source. */
static inline bool tensor_same_weight(const tensor *a, const tensor *b) {
    return a->data == b->data && (a->data || (a->from == b->from && a->place == b->place));
}

typedef enum { GATE_NONE, GATE_PAIR, GATE_VALUE } op_gate;

/* How CANVAS_NEXT decides. Entropies are rounded to units, so that every backend adds them up to the same sum, in any order. */
typedef struct {
    uint32_t units; /* in a nat; a power of two */
    uint32_t bound; /* of the sum of entropies before an accepted position, in units */
    uint32_t stability,
        confidence; /* a canvas is done if the likeliest ids have stayed the same for so many steps, and the mean
                                     * entropy of positions that are not pinned is below so many units */
    uint32_t vocabulary;
} canvas_rule;

typedef struct {
    op_kind     kind;
    tensor     *out;
    tensor     *in[OP_INPUTS];
    float       factor;      /* as the list above says; eps of the norms */
    float       least, most; /* CLAMP; PRODUCTS that clip: of the input */
    uint32_t    layer;       /* KV_STORE, ATTENTION: whose cache */
    uint32_t    window;      /* KV_STORE, ATTENTION; 0: a full layer */
    bool        given;       /* EMBED */
    bool        by_position; /* EMBED: the position names the row, not the id */
    uint32_t    count;       /* SELECT_ROWS; taps of CONV_TOKENS, reach of LOCAL_ATTENTION */
    uint32_t    channels;    /* CONV_GRID: of the input */
    uint32_t    used;        /* ROUTE and the expert ops; 0 in the LORA ops: they have no experts */
    uint32_t    rank, slots; /* the LORA ops */
    uint32_t    slot;        /* LORA_GRADIENT, ADAMW: whose parameters */
    uint32_t    stream;      /* DROPOUT */
    canvas_rule rule;        /* CANVAS_NEXT */
    tensor     *sum; /* a second result: of ATTENTION, the logarithms of the softmax's sums; of fused ops, see fuse.h */
    /* fused ops */
    float   eps, weight_factor, cap;
    bool    normed, factored;
    op_gate gate;
    bool    clips_in, clips_out;
    float   out_least[OP_PARTS], out_most[OP_PARTS]; /* PRODUCTS that clip: of the rows of each weight */
    /* SHRINKS, and PRODUCTS that adapters correct: for each weight the rank, 0: none, and where its part of SHRINKS' result begins */
    uint32_t ranks[OP_PARTS], shrunk_at[OP_PARTS];
} op;

enum { GRAPH_FURTHER = 3, GRAPH_RESULTS = 1 + GRAPH_FURTHER };

typedef struct {
    arena   memory;
    op     *ops;
    size_t  op_count, op_capacity;
    size_t  value_count;
    size_t  split;  /* the first op of a second part, which plans can run later than the first; 0: there is one part */
    tensor *result; /* set by the builder: the caller reads it after a run */
    tensor *further[GRAPH_FURTHER]; /* more results, if the caller wants any: the hidden state beside the logits */
    bool batched; /* a token's results must not depend on the batch that it is computed in: prompts are cut anywhere */
    bool
        trains; /* computes gradients: values stay f32 in every product, and no fused op takes the place of an adapter's */
    error problem; /* the first shape that did not fit, or no memory; builders continue and check at the end */
} graph;           /* zero-initialise */

void graph_free(graph *g);

/* A tensor for weights that somebody else owns. */
tensor *graph_weight(graph *g, const char *name, quant_type type, const uint64_t ne[3], const void *data);

/* Each appends an op and returns its result. A shape that does not fit is noted in g->problem. A NULL input returns NULL. */
tensor *graph_embed(graph *g, tensor *table, float factor);
tensor *graph_embed_or_given(graph *g, tensor *table, float factor);
tensor *graph_embed_position(graph *g, tensor *table, float factor);
tensor *graph_embed_value(graph *g, tensor *table, tensor *ids, float factor);
tensor *graph_rms_norm(graph *g, tensor *x, tensor *weight, float eps);                 /* weight NULL: none */
tensor *graph_layer_norm(graph *g, tensor *x, tensor *weight, tensor *bias, float eps); /* bias NULL: none */
tensor *graph_matmul(graph *g, tensor *weight, tensor *x);
tensor *graph_rope_table(graph *g, tensor *frequencies, uint32_t axes); /* 1 or 2 */
tensor *graph_rope(graph *g, tensor *x, tensor *table);
tensor *graph_kv(graph *g, uint32_t layer, uint32_t window); /* a layer's cache as the run finds it; no op */
tensor *graph_kv_store(graph *g, tensor *keys, tensor *values, uint32_t layer, uint32_t window);
tensor *graph_attention(graph *g, tensor *queries, tensor *cache);
/* The same with a second result, [heads]: the logarithm of each softmax's denominator, log Σ_j e^score_j. */
tensor *graph_attention_logs(graph *g, tensor *queries, tensor *cache, tensor **logs);
tensor *graph_geglu(graph *g, tensor *gate, tensor *up);
tensor *graph_gate(graph *g, tensor *a, tensor *b);
tensor *graph_add(graph *g, tensor *a, tensor *b); /* b: a value, or an F32 vector */
tensor *graph_mul(graph *g, tensor *a, tensor *b); /* the same */
tensor *graph_clamp(graph *g, tensor *x, float least, float most);
tensor *graph_scale(graph *g, tensor *x, float factor);
tensor *graph_softcap(graph *g, tensor *x, float cap);
tensor *graph_route(graph *g, tensor *logits, tensor *expert_scale, uint32_t used);
tensor *graph_matmul_experts(graph *g, tensor *weight, tensor *x, tensor *routes, uint32_t used);
tensor *graph_expert_sum(graph *g, tensor *x, tensor *routes, uint32_t used);

/* The adapters of one weight: `slots` matrices A and B of rank `rank`, or, for experts' weights, so many for each expert. The vectors a, b and
 * sets [table of sets · slots] are as LORA_SHRINK and LORA_EXPAND say. */
typedef struct {
    tensor  *a, *b, *sets;
    uint32_t rank, slots;
    uint64_t experts; /* 1: the weight has none */
} lora_site;

/* routes NULL: no experts. */
tensor *graph_lora_shrink(graph *g, const lora_site *site, tensor *x, tensor *routes, uint32_t used);
tensor *graph_lora_shrink_id(graph *g, const lora_site *site); /* the adapters of an embedding */
tensor *graph_lora_expand(graph *g, const lora_site *site, tensor *y, tensor *shrunk, tensor *routes, uint32_t used);

tensor *graph_conv_grid(graph *g, tensor *x, tensor *weight, uint32_t channels);
tensor *graph_conv_tokens(graph *g, tensor *x, tensor *weight, uint32_t taps);
tensor *graph_local_attention(graph *g, tensor *queries, tensor *keys, tensor *values, tensor *relative, uint32_t reach,
                              float cap);
tensor *graph_select_rows(graph *g, tensor *x);
tensor *graph_select_means(graph *g, tensor *x, uint32_t count);
tensor *graph_token_sum(graph *g, tensor *x);
tensor *graph_leaf(graph *g, tensor_axis axis, uint64_t n, uint64_t rows);

/* Of a position of a canvas; all but the first are bits of u32. t = 1 / temperature; `draw` is different in every block, step and position. */
enum { CANVAS_INVERSE, CANVAS_KEY_0, CANVAS_KEY_1, CANVAS_DRAW, CANVAS_SETTINGS };
enum { CANVAS_STEP_SHIFT = 10, CANVAS_BLOCK_SHIFT = 20 }; /* the bits of `draw`: the position is in the lowest */
enum { CANVAS_LIKELIEST, CANVAS_DRAWN, CANVAS_ENTROPY, CANVAS_LARGEST, CANVAS_FINDINGS };
/* Rows of the table that CANVAS_HEAD takes at a time where it must give the same bits on every backend: the order of its sums follows from it. */
enum { CANVAS_CHUNK = 2048 };
#define CANVAS_STREAM 0x63616e76u

/* What CANVAS_NEXT keeps of a position from step to step. */
typedef struct {
    int32_t  id; /* that the step denoises */
    uint32_t pinned;
    int32_t  likeliest; /* of the step before; CANVAS_NONE: there was none */
    uint32_t same;      /* for how many steps the canvas's likeliest ids have stayed the same */
} canvas_state;
enum { CANVAS_NONE = -1, CANVAS_STATE = sizeof(canvas_state) / sizeof(float) };

tensor *graph_canvas_next(graph *g, tensor *findings, tensor *settings, tensor *state, const canvas_rule *rule);
tensor *graph_concat(graph *g, tensor *const *parts, size_t count);
tensor *graph_canvas_head(graph *g, tensor *table, tensor *x, tensor *settings, tensor *soft, float cap, float factor);

/* The i-th result: the result itself, then the further ones; NULL if there are fewer. */
static inline tensor *graph_result(const graph *g, size_t i) {
    return i == 0 ? g->result : i < GRAPH_RESULTS ? g->further[i - 1] : NULL;
}

/* ---- training: graph_back.c ---- */

tensor *graph_matmul_back(graph *g, tensor *weight, tensor *d);
tensor *graph_matmul_experts_back(graph *g, tensor *weight, tensor *d, tensor *routes, uint32_t used);
tensor *graph_rms_norm_back(graph *g, tensor *x, tensor *weight, tensor *d, float eps);
tensor *graph_rope_back(graph *g, tensor *d, tensor *table);
tensor *graph_geglu_back(graph *g, tensor *gate, tensor *up, tensor *d);
tensor *graph_attention_back_q(graph *g, tensor *queries, tensor *cache, tensor *d, tensor *logs, tensor *delta);
tensor *graph_attention_back_kv(graph *g, tensor *queries, tensor *cache, tensor *d, tensor *logs, tensor *delta,
                                uint64_t kv_heads);
tensor *graph_route_back(graph *g, tensor *logits, tensor *routes, tensor *expert_scale, tensor *d, uint32_t used);
tensor *graph_expert_sum_back(graph *g, tensor *d, tensor *routes, uint32_t used);
tensor *graph_select_rows_back(graph *g, tensor *d);
tensor *graph_row_sum(graph *g, tensor *x);
tensor *graph_row_dot(graph *g, tensor *a, tensor *b);
tensor *graph_dropout(graph *g, tensor *x, tensor *key, float probability, uint32_t stream);
/* LORA_EXPAND without a product's result: only the correction, Σ_s B_s · c_s. */
tensor *graph_lora_correction(graph *g, const lora_site *site, uint64_t m, tensor *shrunk, tensor *routes,
                              uint32_t used);
tensor *graph_cross_entropy(graph *g, tensor *logits, tensor *goals, float cap, tensor **loss);
void graph_lora_gradient(graph *g, tensor *p, tensor *q, tensor *state, tensor *routes, const op *like, uint32_t slot,
                         float factor); /* like: the LORA op with the shapes */
tensor *graph_square_sum(graph *g, tensor *state, tensor *before);

/* What ADAMW reads of the rates, which are a leaf [ADAMW_RATES] by run. A gradient is scaled so that the norm of all of them is at most
 * MOST_NORM (0: any). */
enum {
    ADAMW_RATE, /* times the op's rate */
    ADAMW_BETA_1,
    ADAMW_BETA_2,
    ADAMW_EPS,
    ADAMW_DECAY,
    ADAMW_CORRECTION_1, /* 1 / (1 − beta^step) */
    ADAMW_CORRECTION_2,
    ADAMW_MOST_NORM,
    ADAMW_RATES,
};

/* What one ADAMW works on. The parameters may contain several slots, the others are of one. In memory, parameters are `scale` times those
 * that the optimiser sees. */
typedef struct {
    tensor  *parameter, *gradient, *moments[2];
    uint32_t slot;
    float    scale, rate;
} adamw_part;

void graph_adamw(graph *g, const adamw_part *part, tensor *rates, tensor *squares);

/* Views: no op; they share the memory of x. */
tensor *graph_reshape(graph *g, tensor *x, uint64_t n, uint64_t rows);                /* x must be contiguous */
tensor *graph_slice(graph *g, tensor *x, uint64_t offset, uint64_t n, uint64_t rows); /* n of each row, or whole rows */
tensor *graph_rows(graph *g, tensor *x, uint64_t first, uint64_t count);              /* so many rows of each token */

#endif
