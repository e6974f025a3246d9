/* Decodes without waiting for the host: runs a plan for one token, then the sampler, whose token the plan reads next.
 *
 * A step computes the token whose record is in the plan's run, draws the next one, and makes that one's record itself
 * (wgsl/sampler.wgsl). So several steps can be submitted ahead. Only the draws come back, in
 * order, each as soon as it is done. */

#ifndef GM_GPU_GENERATOR_H
#define GM_GPU_GENERATOR_H

#include "gpu/backend.h"
#include "gpu/sampler_kernels.h"

/* Steps in flight at once. Two would hide the latency of the read-back; more allow the host to be late occasionally. */
enum { GENERATOR_STEPS = 4 };

typedef struct gpu_generator gpu_generator;

/* The state from which the first step starts. Everything is copied when it begins. */
typedef struct {
    const uint32_t     *settings; /* as sampler_settings_write writes them: row 0, advance */
    size_t              setting_words;
    bool                greedy, edits; /* see sampler_settings.h */
    uint32_t            steps;
    bool                logprobs; /* draws include the inputs of log-probabilities */
    const token_record *token;    /* the token to compute; everything that it sees is in the caches */
    uint32_t            window;   /* of the sliding layers: what the following tokens see */
    const int32_t      *history;  /* the tokens that penalties consider; the last one is `token` itself */
    size_t              history_count;
} generator_start;

/* For a plan with one token and one output, which must outlive the generator. Positions stay below `context`. Several
 * generators may share a plan, also with runs of it: whoever submits next sets the token of the others aside. */
gm_status gpu_generator_new(gpu_plan *p, size_t vocabulary, size_t context, gpu_generator **out, error *e);
void      gpu_generator_free(gpu_generator *g);
/* What its sampler's kernels depend on, besides greedy, edits and logprobs. */
sampler_shape gpu_generator_shape(size_t vocabulary, size_t context);

/* Prepares the first step, and drops steps in flight. GM_AGAIN: too many writes are pending; let gpu_host_wait run, and
 * call again. */
gm_status gpu_generator_begin(gpu_generator *g, const generator_start *start, error *e);
bool      gpu_generator_begun(const gpu_generator *g);
/* Submits one more step. At most GENERATOR_STEPS may be in flight. GM_AGAIN: its pipelines still compile. */
gm_status gpu_generator_submit(gpu_generator *g, error *e);
/* Returns the draw of the oldest step in flight: token and status, and log-probabilities if requested. GM_AGAIN: it has
 * not arrived yet. */
gm_status gpu_generator_take(gpu_generator *g, sampler_record *out, error *e);
/* Drops all steps in flight: they still run, but their results are discarded. Call gpu_generator_begin again. */
void gpu_generator_drop(gpu_generator *g);

bool gpu_generator_uses(const gpu_generator *g, const gpu_plan *p);
/* Keeps the token that the next step computes, because somebody else is about to use the plan. */
gm_status gpu_generator_set_aside(gpu_generator *g, error *e);

/* Dispatches per step, including the sampler's; 0 before the first begin. */
size_t gpu_generator_dispatches(const gpu_generator *g);

#endif
