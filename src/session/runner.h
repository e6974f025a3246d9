/* Runs batches of tokens on the engine's backend: chooses and caches plans, and fetches the logits. */

#ifndef GM_RUNNER_H
#define GM_RUNNER_H

#include "gguf/rows.h"
#include "gpu/generator.h"
#include "session/engine.h"
#include "session/kv.h"

/* GPU plans exist for 1, 4, 16, 64 and 256 tokens; a sixth one is as large as the largest batch needs. */
enum { RUNNER_CLASSES = 6 };

typedef struct {
    gm_engine     *engine;
    cpu_plan      *one, *batch;                /* CPU: for one token, and for several */
    gpu_plan      *classes[RUNNER_CLASSES][2]; /* GPU: for one output, and for many */
    uint32_t       kv_changes;                 /* the state of the cache that the GPU plans are bound to */
    uint32_t       ticket;                     /* for logits that are on their way */
    bool           submitted;
    uint64_t       behind;    /* gpu_submitted right after the batch was submitted */
    gpu_generator *generator; /* on the plan for one token; NULL until tokens are drawn on the GPU */
    table_rows     table;     /* CPU: of a per-layer table that is not in memory */
    bool           has_rows;  /* of the batch that is being computed */
} runner;

gm_status runner_open(runner *r, gm_engine *engine, error *e);
void      runner_close(runner *r);
/* How many rows of logits one run can give. Memory limits this. */
size_t runner_most_outputs(const runner *r);
size_t runner_outputs(size_t vocabulary); /* the same for any model */
/* Computes the tokens, stores their keys and values, and writes the logits of the wanted rows, at most runner_most_outputs, to
 * `out` [outputs, vocabulary].
 * Returns GM_AGAIN at the deadline: call again with the same inputs. */
gm_status runner_step(runner *r, kv_cache *kv, const run_inputs *in, float *out, double deadline, error *e);
void      runner_restart(runner *r); /* drops an unfinished run, and draws that are under way */

/* Waits a moment for results from the GPU. False: the deadline has passed, or results arrive only after the caller returns, as
 * in a browser. */
bool runner_wait(gpu_host *gpu, double deadline);

/* The GPU's generator for this cache; NULL on failure. Any other run ends what it has begun. */
gpu_generator *runner_generator(runner *r, const kv_cache *kv, error *e);
/* Whether the generator is drawing, and the cache has not moved since. */
bool runner_is_drawing(const runner *r, const kv_cache *kv);

#endif
