/* Asks the router of the next layer before this layer's experts have run.
 *
 * The residual changes little from one layer to the next, so the next layer's router, applied to what this layer's router reads, chooses mostly
 * the experts that it will choose when its turn comes. A plan whose experts are cached gets a copy of that router's ops before the first product of
 * this layer's experts. What they choose goes into the plan's report, and nothing else depends on it. */

#ifndef GM_GPU_EXPERTS_AHEAD_H
#define GM_GPU_EXPERTS_AHEAD_H

#include "gpu/plan.h"

/* Adds these ops to the plan's graph, after fusion, if it has cached experts and few tokens; p->ahead says which they are. */
gm_status plan_add_ahead(gpu_plan *p, error *e);

#endif
