/* A training step: forward and backward over one or more runs of sequences, then an update of the parameters.
 *
 *     trainer_new
 *     for each step:
 *         for each of its runs: trainer_begin, trainer_work until it is not GM_AGAIN
 *         trainer_update until it is not GM_AGAIN
 *
 * Gradients and the loss add up over the runs. Each counted token weighs `share`, so with 1 / (all counted tokens of the step) the loss is
 * their mean, however they are divided into runs. A run may also be measured only, which changes nothing.
 *
 * The engine's backend computes. On a GPU everything stays there: a run brings back its losses, and an update the norm of the gradients.
 * Functions with a deadline return GM_AGAIN when it has passed, or when the GPU is not ready: call them again with the same arguments. In a
 * page, let the event loop run first; natively they wait for the GPU until the deadline.
 *
 * All functions are called between engine_enter and engine_leave. */

#ifndef GM_TRAINER_H
#define GM_TRAINER_H

#include "session/engine.h"
#include "train/parameters.h"

typedef struct {
    const adapter *adapter; /* trained; must outlive the trainer */
    /* Adapters that are part of the model, and their weights. */
    const adapter *const *frozen;
    const float          *scales;
    size_t                frozen_count;
    size_t                tokens; /* the most of a run */
    uint64_t memory;       /* for the activations of all layers; those that do not fit are computed twice. 0: any */
    uint64_t logits_bytes; /* the most for the logits of some tokens; 0: trainer_logits_bytes */
    uint32_t repeated;     /* so many layers are computed twice in any case */
    float    dropout;      /* the share of its input that the adapter does not see; 0: it sees all */
    uint64_t seed;         /* of that */
    float    rate_of_b;    /* how much faster B learns than A; 0: the same */
} trainer_options;

typedef struct trainer trainer;

/* What logits_bytes 0 means. */
uint64_t  trainer_logits_bytes(const gm_engine *engine);
gm_status trainer_new(gm_engine *engine, const trainer_options *options, trainer **out, error *e);
void      trainer_free(trainer *t);

/* A sequence among the tokens of a run. */
typedef struct {
    size_t first, count;
} train_span;

typedef struct {
    const int32_t    *ids;     /* below 0: soft tokens */
    const float      *weights; /* of the loss of predicting each token; the first of a sequence never counts */
    size_t            count;
    const train_span *spans; /* one behind the other, all tokens together */
    size_t            span_count;
    const float      *given; /* the rows of soft tokens: the i-th from the start of the run has row i */
    /* Soft tokens that see each other in sliding layers, such as those of a picture: places in the run. */
    const train_span *blocks;
    size_t            block_count;
    uint64_t          draw; /* what dropout leaves out, the same by the same number; 0: nothing */
    bool
        measured; /* only the losses of the sequences are wanted: no gradients, and nothing is added to the step's loss */
    bool without; /* without the trained adapter; only if measured */
} train_run;

/* `run` must stay until the work is done. */
gm_status trainer_begin(trainer *t, const train_run *run, double share, error *e);
gm_status trainer_work(trainer *t, double deadline, error *e);
/* Abandons a run, and forgets the gradients and the loss of the step. */
void trainer_forget(trainer *t);

/* Of the runs since the last update. */
double trainer_loss(const trainer *t);
/* Of a sequence of the last run: the sum over its tokens. */
double trainer_span_loss(const trainer *t, size_t span);

/* Between the last run of a step and its update: sums the gradients over several processes. */
typedef gm_status (*train_reduce)(void *user, float *values, size_t count, error *e);
gm_status trainer_reduce(trainer *t, train_reduce reduce, void *user, double deadline, error *e);

typedef struct {
    double rate, beta[2], eps, decay;
    double most_norm; /* of all gradients; 0: any */
} adamw_settings;

/* Step number `step`, from 1 on. *norm: that of all gradients before they were clipped. If it is not finite, the parameters and
 * the gradients are as before. */
gm_status trainer_update(trainer *t, const adamw_settings *settings, uint64_t step, double *norm, double deadline,
                         error *e);

/* Writes a state of all parts as it is now into an adapter with the same pairs: with the values, that is the adapter that was trained. Between
 * runs. */
gm_status trainer_store(trainer *t, train_state what, adapter *into, double deadline, error *e);

/* All that steps change: for each trained part its values and two moments, so many floats. Read and written between steps.
 * Training that goes on from a state gives the same bits. */
size_t    trainer_state_size(const trainer *t);
gm_status trainer_read_state(trainer *t, float *out, double deadline, error *e);
gm_status trainer_write_state(trainer *t, const float *state, double deadline, error *e);
/* Writes the values of a state into an adapter with the pairs of the trained one. */
void trainer_state_adapter(const trainer *t, const float *state, adapter *into);

const train_parameters *trainer_parameters(const trainer *t);
uint64_t                trainer_bytes(const trainer *t); /* of its memory */
uint32_t                trainer_kept(const trainer *t);  /* layers whose activations stay in memory */
/* The longest that the GPU took for a submit since the last call, in seconds; 0 on the CPU. */
double trainer_longest_piece(trainer *t);

#endif
