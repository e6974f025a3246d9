/* A diffusion model in `gemmule bench`: how long a step of a canvas takes, and a block with all of its steps. */

#ifndef GM_BENCH_CANVAS_H
#define GM_BENCH_CANVAS_H

#include "cli/engine_arguments.h"
#include "cli/report.h"

#include "gpu/experts.h"
#include "gpu/profile.h"

typedef struct {
    size_t            depth;         /* tokens in the session before the block */
    size_t            length, steps; /* of the canvas; the steps that its block took */
    double            step_seconds;  /* of one step, on average in the best block */
    double            block_seconds; /* of all steps, and of reading the block, as an answer that goes on does */
    expert_statistics experts;       /* of the last block, with its own number of tokens; zeros without a cache */
} bench_canvas;

/* One block behind `depth` of the tokens; keeps the best times. With weights that are random a block takes all of its steps: `most_steps`
 * limits them. `timed` times the dispatches of the steps; NULL: not wanted. */
gm_status bench_canvas_measure(bench_canvas *b, const engine_values *values, gm_engine *engine, const int32_t *tokens,
                               size_t most_steps, gpu_profile *timed, error *e);
void      bench_canvas_print(const bench_canvas *b);
void      bench_canvas_report(report *r, const bench_canvas *b);

#endif
