/* Plans with weights that are not on the GPU (budget.h decides which): the command list is cut before each op that
 * needs one.
 *
 * A run goes from cut to cut: it uploads the next tile into the backend's slot, then submits the commands that read it.
 * The queue keeps the order, so the host waits only if too much is in flight, or for the routes of a layer, because
 * only the routed experts are uploaded. Rows of tables that stay in main memory are written before everything else. */

#ifndef GM_GPU_STREAMING_H
#define GM_GPU_STREAMING_H

#include "gpu/plan.h"

/* While recording: the host writes the rows of this EMBED, so its result must be live from the first op on. */
gm_status streaming_gather(gpu_plan *p, const op *embed, error *e);
/* The commands after this read this tile, until the next cut. */
gm_status streaming_cut(gpu_plan *p, const op *product, const gpu_weight *w, uint32_t tile, error *e);
/* The commands after this read no streamed weight. */
gm_status streaming_resume(gpu_plan *p, error *e);

/* Runs the list up to `end`. GM_AGAIN: let gpu_host_wait run, and call again with the same arguments. */
gm_status streaming_submit(gpu_plan *p, const run_inputs *in, size_t end, error *e);
void      streaming_restart(gpu_plan *p);
void      streaming_free(gpu_plan *p);

#endif
