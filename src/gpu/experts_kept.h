/* Copies of experts in main memory, repacked as the GPU has them. An expert that was loaded from the file is read back once; after that it
 * comes from here, and a miss is one copy. The copies (gpu_source_new) take at most what the host allows, divided equally among layers; when a
 * layer's share is full, the experts with the lowest scores give up theirs. */

#ifndef GM_GPU_EXPERTS_KEPT_H
#define GM_GPU_EXPERTS_KEPT_H

#include "gpu/experts.h"
#include "gpu/pipeline.h"

/* Decides how many copies a layer may have. */
void expert_kept_make(gpu_backend *b);
void expert_kept_free(gpu_backend *b);

/* Writes an expert that has a copy to its slot. GM_AGAIN: let gpu_host_wait run, and call again. */
gm_status expert_kept_restore(gpu_backend *b, const expert_layer *l, uint32_t expert, uint32_t slot, error *e);
/* Begins to read back experts that have just been loaded, as far as there is room. Without memory there is no copy. */
void expert_kept_ask(gpu_backend *b, expert_layer *l, const uint32_t *experts, const uint32_t *slots, size_t count);
/* Takes the copies that have arrived. */
void expert_kept_take(gpu_backend *b);

/* For benches: writes every expert that has a copy and a slot to that slot again, which changes nothing. `bytes`: how many that are. Waits. */
gm_status expert_kept_rewrite(gpu_backend *b, uint64_t *bytes, error *e);

#endif
