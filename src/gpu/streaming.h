/* Runs plans whose weights are not all on the GPU. plan_record.c cuts the plan's words into parts where the host may have to act.
 *
 * Before an op whose weights are uploaded for each run, a part begins that needs a tile: a run uploads it into the backend's slot, then submits
 * the part. The queue keeps the order, so the host waits only if too much is in flight. Rows of tables that stay in main memory are written
 * before everything else.
 *
 * A part ends where a layer looks up the slots of its experts (experts.h). If the experts were found lately, runs submit several layers, up
 * to all of them, before they wait for a report; each miss takes a quarter off that number, and each report without one doubles it. After a miss
 * nothing else of what was submitted does anything, and the run goes on from that lookup. So nothing waits in layers whose experts are there. The
 * last lookup before a report also asks the router of the layer after it (experts_ahead.h); what that one will probably want is loaded, too. */

#ifndef GM_GPU_STREAMING_H
#define GM_GPU_STREAMING_H

#include "gpu/plan.h"

/* While recording: the host writes the rows of this EMBED, so its result must be live from the first op on. */
gm_status streaming_gather(gpu_plan *p, const op *embed, error *e);
/* The commands after this read this tile, until the next cut. */
gm_status streaming_cut(gpu_plan *p, const gpu_weight *w, uint32_t tile, error *e);
/* The commands after this read no streamed weight. */
gm_status streaming_resume(gpu_plan *p, error *e);
/* The dispatch recorded last, at `at`, looks up the slots of a layer of the cache of experts. */
gm_status streaming_ask(gpu_plan *p, uint32_t layer, size_t at, error *e);
/* The product of this op has been recorded. */
void streaming_section_ends(gpu_plan *p, size_t index);

/* Runs the list up to `end`. GM_AGAIN: let gpu_host_wait run, and call again with the same arguments. */
gm_status streaming_submit(gpu_plan *p, const run_inputs *in, size_t end, error *e);
/* Takes a run that returned GM_AGAIN to its end, because somebody else needs the plan. Its caller then gets GM_OK; if the run fails, it
 * begins again for its caller, who gets the error. */
gm_status streaming_finish(gpu_plan *p);
/* Forgets a run that returned GM_AGAIN. */
void streaming_abandon(gpu_plan *p);
void streaming_restart(gpu_plan *p);
void streaming_free(gpu_plan *p);

/* ---- for a generator, whose tokens are on the GPU: of a plan that has no tiles and no tables outside ---- */

/* Begins a run of the tokens in the plan's run buffer. */
void streaming_rewind(gpu_plan *p, size_t tokens);
/* Begins it where this report says that experts are missing: of the whole list, which was submitted last. */
gm_status streaming_return(gpu_plan *p, size_t tokens, const uint32_t *report, error *e);
/* Goes on, up to what is submitted last. GM_AGAIN as above. */
gm_status streaming_advance(gpu_plan *p, error *e);
/* Submits the first layers of what is left, in lists of growing length. Recording a layer takes a fifth of the time that a large GPU needs for it:
 * with one long list, the GPU would wait for all of it. */
gm_status streaming_submit_first(gpu_plan *p, error *e);
/* Begins a list with what is left of the run. The caller adds its own commands, submits it, and says so. */
void streaming_append_rest(gpu_plan *p, gpu_words *list);
void streaming_rest_submitted(gpu_plan *p);
/* A whole list, or the rest of one, lacked no experts. */
void streaming_found_all(gpu_plan *p);
/* How many steps may be under way, submitted whole: 0 while misses are frequent. */
size_t streaming_steps_ahead(const gpu_plan *p);

#endif
