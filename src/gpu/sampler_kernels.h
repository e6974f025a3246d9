/* The sampler on the GPU (wgsl/sampler.wgsl): its dispatches, its buffers and its records.
 *
 * One draw is a list of dispatches that reads the logits of one output and leaves the token where the next step's
 * embedding reads it. The host reads nothing in between: results wait in a ring. Several rows of logits draw in the same
 * dispatches, each with its own settings and state.
 */

#ifndef GM_GPU_SAMPLER_KERNELS_H
#define GM_GPU_SAMPLER_KERNELS_H

#include "gpu/kernel.h"

enum {
    SAMPLER_MOST_STEPS = 16,
    SAMPLER_KERNELS = 10 + SAMPLER_MOST_STEPS, /* in a list, if its rows draw in all ways */
    SAMPLER_MOST_ALTERNATIVES = 20,
    SAMPLER_CANDIDATES = 8192
};

/* What the kernels bind: ranges of buffers, at offsets that are multiples of 256, initially zero. */
enum {
    DRAW_LOGITS,   /* the value that holds the logits */
    DRAW_SETTINGS, /* SAMPLER_REST words of each row; sampler_settings.h writes them */
    DRAW_REST,     /* suppressed ids and biases, where SAMPLER_REST_AT says */
    DRAW_FIXED,    /* from here to STATE: sampler_bytes long. First working memory */
    DRAW_COUNTS,
    DRAW_BLOCKS,
    DRAW_CANDIDATES,
    DRAW_HEADER,
    DRAW_CUTS,
    DRAW_PARTS,
    DRAW_RECORD, /* with log-probabilities: a sampler_record for each row */
    DRAW_STATE,  /* what persists from token to token; see SAMPLER_STATE_… */
    DRAW_RUN,    /* the run that just ended; it becomes a run of the drawn tokens */
    DRAW_BINDS,
};

typedef struct {
    uint32_t rows;       /* that draw at once; 0 is 1 */
    uint32_t vocabulary; /* at most 2^20 */
    uint32_t results;    /* entries in the ring of results: more than the draws in flight */
    uint32_t history;    /* entries in the ring of tokens for penalties: at least the penalty window, or the context */
    /* What some row needs. One row draws in one of the first three ways. */
    bool     greedy;     /* temperature 0 */
    bool     candidates; /* among few candidates */
    uint32_t steps;      /* among all tokens: the most steps of the cuts and the draw */
    bool     edits;      /* there are biases or penalties */
    bool     logprobs;   /* also writes the inputs of log-probabilities to DRAW_RECORD */
} sampler_shape;

/* Words of DRAW_STATE: counters of every row, then from rows · SAMPLER_STATE_RESULTS on rows · results × (token, status), then
 * rows · history × token. The host writes draws and history when a conversation starts or is rolled back; the GPU continues them. */
enum {
    SAMPLER_STATE_DRAWS = 0, /* two words: the counter for the next random number; each draw adds 1 */
    SAMPLER_STATE_APPENDED =
        2, /* tokens appended to the history so far; the i-th is at i % history; each draw appends its token */
    SAMPLER_STATE_DELIVERED = 3, /* results so far; the i-th is at i % results */
    SAMPLER_STATE_RESULTS = 4,   /* the counters' number */
};

/* A result's status. The token is 0 unless it is SAMPLER_DRAWN. SAMPLER_ABSENT: the row was not in that step (generator.h). SAMPLER_HALTED: the
 * run lacked experts (experts.h), and nothing was drawn. */
enum { SAMPLER_DRAWN = 0, SAMPLER_NOT_A_NUMBER = 1, SAMPLER_NOTHING_LEFT = 2, SAMPLER_ABSENT = 3, SAMPLER_HALTED = 4 };

/* The inputs of a draw's log-probabilities: log p = logit − largest − log(sum). */
typedef struct {
    uint32_t token, status;
    uint32_t known; /* 0: the token's logit is −infinity */
    float    logit, largest, sum;
    struct {
        uint32_t token; /* UINT32_MAX: no more */
        float    logit;
    } likeliest[SAMPLER_MOST_ALTERNATIVES];
} sampler_record;

/* Log-probabilities of the drawn token, then of `alternatives` others; token −1: no more. */
void sampler_record_logprobs(const sampler_record *r, gm_token_logprob *out, size_t alternatives);

typedef struct {
    uint64_t fixed, counts, blocks, candidates, header, cuts, parts, record, state;
} sampler_bytes;

sampler_bytes sampler_bytes_of(const sampler_shape *s);

/* The bits of SAMPLER_HOW for a row that needs this. */
uint32_t sampler_how(const sampler_shape *s);

/* The dispatches of one draw, in order. Returns their number (at most SAMPLER_KERNELS). */
size_t sampler_kernels(const sampler_shape *s, gpu_kernel out[SAMPLER_KERNELS]);

/* A step among all tokens; wgsl/sampler_cuts.wgsl explains them. */
enum { SAMPLER_DIGIT = 0, SAMPLER_TIES = 1, SAMPLER_MEAN = 2 };                                /* kinds */
enum { SAMPLER_BY_TOP_K = 0, SAMPLER_BY_TYPICAL = 1, SAMPLER_BY_TOP_P = 2, SAMPLER_DRAW = 3 }; /* cuts */
enum { SAMPLER_FIRST = 1, SAMPLER_CLOSES = 2 };                                                /* flags of a digit */
#define SAMPLER_STEP(kind, cut, shift, flags)                                                                          \
    ((uint32_t)(kind) | (uint32_t)(cut) << 4 | (shift) << 8 | (uint32_t)(flags) << 16)
enum { SAMPLER_FIRST_VALUES = 1536 }; /* of a first digit of weights */

/* Words of DRAW_SETTINGS; wgsl/sampler.wgsl explains them. */
enum {
    SAMPLER_TEMPERATURE = 0, /* factor, shift */
    SAMPLER_ONE = 2,         /* factor, shift */
    SAMPLER_SEED = 4,        /* low, high */
    SAMPLER_ROW = 6,
    SAMPLER_ADVANCE = 7,
    SAMPLER_TOP_K = 8,
    SAMPLER_TYPICAL = 9,
    SAMPLER_TYPICAL_P = 10,
    SAMPLER_TOP = 11,
    SAMPLER_TOP_P = 12,
    SAMPLER_REACH = 13,
    SAMPLER_DIVIDE = 14,
    SAMPLER_MULTIPLY = 15,
    SAMPLER_PRESENCE = 16,
    SAMPLER_FREQUENCY = 17,
    SAMPLER_WINDOW = 18,
    SAMPLER_BIASES = 19,
    SAMPLER_SUPPRESS = 20,
    SAMPLER_FINITE = 21,
    SAMPLER_EXPONENTS = 22, /* 257 */
    SAMPLER_ALTERNATIVES = 279,
    SAMPLER_STEP_COUNT = 280,
    SAMPLER_STEPS = 281, /* 16, each a SAMPLER_STEP */
    SAMPLER_HOW = 297,   /* bits: the stages in which the row takes part, if there are several rows; 0: none */
    SAMPLER_REST_AT = 298,
    SAMPLER_REST = 300, /* DRAW_REST: a bit per suppressed id, if any; then (token, bias) by token */
};

#endif
