/* Runs batches of tokens on the engine's backend: borrows a plan of the engine's, and fetches the logits. */

#ifndef GM_RUNNER_H
#define GM_RUNNER_H

#include "gguf/rows.h"
#include "gpu/generator.h"
#include "session/engine.h"
#include "session/kv.h"

typedef struct {
    gm_engine     *engine;
    shared_plan   *plan;   /* of the run that is under way; NULL: none needs it */
    uint32_t       moves;  /* of the store, when that run's records were made */
    uint32_t       ticket; /* for logits that are on their way */
    bool           submitted;
    uint64_t       behind;                       /* gpu_submitted right after the batch was submitted, */
    uint64_t       before;                       /* and right after the one before it; 0: there was none */
    size_t         behind_tokens, before_tokens; /* of these batches, while we do not know that they have ended */
    double         since;                        /* when the first of these began, as far as we know */
    gpu_generator *generator; /* on the engine's plan for one token; NULL until tokens are drawn on the GPU */
    bool           rows;      /* every token of its runs is a sequence of its own */
    const float   *logits;    /* of the last run on the CPU */
    table_rows     table;     /* CPU: of a per-layer table that is not in memory */
    bool           has_rows;  /* of the batch that is being computed */
} runner;

gm_status runner_open(runner *r, gm_engine *engine, error *e);
void      runner_close(runner *r);
/* A plan of the engine's (plans_borrow). If there is no memory for it, towers that nobody uses give up theirs. */
shared_plan *runner_borrow(gm_engine *engine, const plan_wish *wish, error *e);
/* How many rows of logits one run can give. Memory limits this. */
size_t runner_most_outputs(const runner *r);
size_t runner_outputs(size_t vocabulary); /* the same for any model */
/* Computes the tokens, stores their keys and values, and writes the logits of the wanted rows, at most runner_most_outputs, to
 * `out` [outputs, vocabulary]. On the CPU `out` may be NULL: runner_logits has them until the next run of any runner.
 * Returns GM_AGAIN at the deadline: call again with the same inputs. */
gm_status    runner_step(runner *r, const kv_store *store, const run_inputs *in, float *out, double deadline, error *e);
const float *runner_logits(const runner *r);
/* Makes the plan for a run of so many tokens, each with an output, unless it is there. `adapted`: some of them have adapters. */
gm_status runner_prepare(const runner *r, const kv_store *store, size_t tokens, bool adapted, error *e);
void      runner_restart(runner *r); /* drops an unfinished run, and draws that are under way */

/* The most tokens that the next batch of a prompt should have. */
size_t runner_batch(const runner *r);

/* Waits a moment for results from the GPU. False: the deadline has passed, or results arrive only after the caller returns, as
 * in a browser. */
bool runner_wait(gpu_host *gpu, double deadline);

/* The GPU's generator, on a plan that is bound to this cache; NULL on failure. Another run of this session ends what it has
 * begun; those of other sessions do not disturb it, but its plan must be bound again: call this before each submit. */
gpu_generator *runner_generator(runner *r, const kv_cache *kv, bool adapted, error *e);
bool           runner_is_drawing(const runner *r);

#endif
