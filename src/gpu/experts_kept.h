/* Copies of experts in main memory, repacked as the GPU has them. An expert that loses its slot for the first time is read back; after that
 * it comes from here, and a miss is one copy. The copies (gpu_source_new) take at most what the host allows, divided equally among layers; when a
 * layer's share is full, the experts that are in slots give up theirs, then those with the lowest scores. */

#ifndef GM_GPU_EXPERTS_KEPT_H
#define GM_GPU_EXPERTS_KEPT_H

#include "gpu/experts.h"
#include "gpu/pipeline.h"

/* Decides how many copies a layer may have. */
void expert_kept_make(gpu_backend *b);
void expert_kept_free(gpu_backend *b);

/* Writes an expert that has a copy to its slot. GM_AGAIN: let gpu_host_wait run, and call again. */
gm_status expert_kept_restore(gpu_backend *b, const expert_layer *l, uint32_t expert, uint32_t slot, error *e);
/* Begins to read back the experts in these slots (EXPERT_NOWHERE: none), unless there are copies of them; but only so many at once, and without
 * memory there is no copy. */
void expert_kept_ask(gpu_backend *b, expert_layer *l, const uint32_t *experts, const uint32_t *slots, size_t count);
/* Whether such a copy is on its way. */
bool expert_kept_is_read(const expert_cache *c, const expert_layer *l, uint32_t expert);
/* Takes the copies that have arrived. */
void expert_kept_take(gpu_backend *b);

/* For benches: writes every expert that has a copy and a slot to that slot again, which changes nothing. `bytes`: how many that are. Waits. */
gm_status expert_kept_rewrite(gpu_backend *b, uint64_t *bytes, error *e);

#endif
