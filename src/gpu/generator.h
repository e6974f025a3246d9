/* Decoding without the host in between: a plan for one token, then the sampler, whose choice the plan reads as its next token.
 *
 * A step computes the token whose id and position stand in the plan's buffers, draws the one that follows, and writes that id
 * and position there itself (wgsl/sampler.wgsl). So several steps are submitted one behind the other, and only the draws come
 * back, in their order, each when it is done. */

#ifndef GM_GPU_GENERATOR_H
#define GM_GPU_GENERATOR_H

#include "gpu/backend.h"
#include "gpu/sampler_kernels.h"

/* Steps under way at once. Two would hide the way back to the host; more let the host be late now and then. */
enum { GENERATOR_STEPS = 4 };

typedef struct gpu_generator gpu_generator;

/* What the first step goes on from; all of it is read when it begins. */
typedef struct {
    const uint32_t *settings; /* as sampler_settings_write leaves them: row 0, advance */
    size_t          setting_words;
    bool            greedy, edits; /* as sampler_settings.h tells */
    bool            logprobs;      /* draws come with what log-probabilities are made of */
    int32_t         token;         /* to be computed, */
    size_t          position;      /* and where it stands: all before it is in the caches */
    const int32_t  *history;       /* the tokens that penalties look at; the last one is `token` itself */
    size_t          history_count;
} generator_start;

/* On a plan for one token and one output, which must outlive it. The positions of tokens stay below `context`. */
gm_status gpu_generator_new(gpu_plan *p, size_t vocabulary, size_t context, gpu_generator **out, error *e);
void      gpu_generator_free(gpu_generator *g);

/* Gets ready for the first step; steps that are under way are dropped. GM_AGAIN: too much is being written to the GPU; let
 * gpu_host_wait run, and call again. */
gm_status gpu_generator_begin(gpu_generator *g, const generator_start *start, error *e);
bool      gpu_generator_begun(const gpu_generator *g);
/* One step more; at most GENERATOR_STEPS may be under way. */
gm_status gpu_generator_submit(gpu_generator *g, error *e);
/* The draw of the oldest step that is under way, which ends with this: token and status, and the rest if it was wanted. GM_AGAIN:
 * it has not come yet. */
gm_status gpu_generator_take(gpu_generator *g, sampler_record *out, error *e);
/* Whatever is under way runs, but nobody hears of it; the next step needs a new beginning. */
void gpu_generator_drop(gpu_generator *g);

/* Of a step, the sampler's included; 0 before the first beginning. */
size_t gpu_generator_dispatches(const gpu_generator *g);

#endif
