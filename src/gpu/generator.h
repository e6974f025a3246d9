/* Decodes without waiting for the host: runs a plan for one token, or for one of each of several sequences, then the
 * sampler, whose tokens the plan reads next.
 *
 * A step computes the tokens whose records are in the plan's run, draws the next ones, and makes their records itself
 * (wgsl/sampler.wgsl). So several steps can be submitted ahead. Only the draws come back, in order, each as soon as it is
 * done. A sequence takes a row, which it joins and leaves between two steps; the host writes only rows that do so. */

#ifndef GM_GPU_GENERATOR_H
#define GM_GPU_GENERATOR_H

#include "gpu/backend.h"
#include "gpu/sampler_kernels.h"

/* Steps in flight at once. Two would hide the latency of the read-back; more allow the host to be late occasionally. */
enum { GENERATOR_STEPS = 4, GENERATOR_ROWS = 32 };

typedef struct gpu_generator gpu_generator;

/* The state from which a row's first step starts. Everything is copied when it joins. */
typedef struct {
    const uint32_t     *settings; /* as sampler_settings_write writes them, with advance */
    size_t              setting_words;
    bool                greedy, edits; /* see sampler_settings.h */
    uint32_t            steps;
    bool                logprobs; /* draws include the inputs of log-probabilities */
    const token_record *token;    /* the token to compute; everything that it sees is in the caches */
    uint32_t            window;   /* of the sliding layers: what the following tokens see; the same for all rows */
    const int32_t      *history;  /* the tokens that penalties consider; the last one is `token` itself */
    size_t              history_count;
} generator_start;

/* For a plan with as many outputs as tokens, at most GENERATOR_ROWS, which must outlive the generator. Positions stay below
 * `context`. Several generators may share a plan, also with runs of it: whoever submits next sets the tokens of the others
 * aside. */
gm_status gpu_generator_new(gpu_plan *p, size_t vocabulary, size_t context, gpu_generator **out, error *e);
void      gpu_generator_free(gpu_generator *g);
/* What its sampler's kernels depend on, besides greedy, edits and logprobs. */
sampler_shape gpu_generator_shape(size_t vocabulary, size_t context);

/* From the next step on, a sequence takes part in a row in which nobody is. GM_AGAIN: too many writes are pending; let
 * gpu_host_wait run, and call again. */
gm_status gpu_generator_join(gpu_generator *g, size_t row, const generator_start *start, error *e);
/* From the next step on, nobody is in the row: it stores nothing and draws nothing. If experts are cached, steps in flight may have to run
 * again, without the row: then it is SAMPLER_ABSENT there, too. */
gm_status gpu_generator_leave(gpu_generator *g, size_t row, error *e);
/* Drops steps in flight and all rows, and row 0 joins. */
gm_status gpu_generator_begin(gpu_generator *g, const generator_start *start, error *e);
bool      gpu_generator_begun(const gpu_generator *g);
/* Submits one more step. At most GENERATOR_STEPS may be in flight. GM_AGAIN: its pipelines still compile, or, if experts are cached and some were
 * missing lately, the step in flight comes first. */
gm_status gpu_generator_submit(gpu_generator *g, error *e);
/* Returns the draws of the oldest step in flight, one for each of the plan's tokens: token and status, and
 * log-probabilities if requested. Rows that were not in the step have SAMPLER_ABSENT. GM_AGAIN: it has not arrived yet. */
gm_status gpu_generator_take(gpu_generator *g, sampler_record *out, error *e);
/* Drops all steps in flight: they still run, but their results are discarded. Call gpu_generator_begin again. */
void gpu_generator_drop(gpu_generator *g);

/* Binds its plan to the buffers of these caches, as gpu_plan_bind: before `take`, if they may have grown since the steps were submitted and
 * experts are cached. */
gm_status gpu_generator_bind(gpu_generator *g, const gpu_kv_layer *kv, error *e);
bool      gpu_generator_uses(const gpu_generator *g, const gpu_plan *p);
/* Keeps the tokens that the next step computes, because somebody else is about to use the plan. */
gm_status gpu_generator_set_aside(gpu_generator *g, error *e);

/* Dispatches per step, including the sampler's; 0 before the first begin. */
size_t gpu_generator_dispatches(const gpu_generator *g);

#endif
