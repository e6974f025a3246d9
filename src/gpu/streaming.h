/* Plans whose weights are not all on the GPU (budget.h says which): the list of commands is cut where a weight must come first.
 *
 * A run goes from cut to cut: the tile that comes next is uploaded into the backend's slot, then the commands that read it are
 * submitted; the queue keeps the order, so the host waits only when too much is in flight, or for the routes of a layer, since
 * of experts only those in use are uploaded. Rows of tables that stay in main memory are written before everything else. */

#ifndef GM_GPU_STREAMING_H
#define GM_GPU_STREAMING_H

#include "gpu/plan.h"

/* While the plan is recorded: the rows of an EMBED come from the host; the result must live from the first op on. */
gm_status streaming_gather(gpu_plan *p, const op *embed, error *e);
/* What follows reads this tile, until the next cut. */
gm_status streaming_cut(gpu_plan *p, const op *product, const gpu_weight *w, uint32_t tile, error *e);
/* What follows reads no streamed weight. */
gm_status streaming_resume(gpu_plan *p, error *e);

/* GM_AGAIN: let gpu_host_wait run, and call again with the same arguments. */
gm_status streaming_submit(gpu_plan *p, const gpu_inputs *in, uint32_t ticket, error *e);
void      streaming_restart(gpu_plan *p);
void      streaming_free(gpu_plan *p);

#endif
