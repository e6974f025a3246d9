/* Copies of experts in main memory, repacked as the GPU has them. An expert that was loaded from the file is read back once; after that it
 * comes from here, and a miss is one copy. The copies take at most half of the memory that is free when the cache is made, divided equally among
 * layers; when a layer's share is full, the expert with the lowest score gives up its copy. In a browser there are none. */

#ifndef GM_GPU_EXPERTS_KEPT_H
#define GM_GPU_EXPERTS_KEPT_H

#include "gpu/experts.h"

#ifndef __wasm__

/* Decides how many copies a layer may have. */
void expert_kept_make(expert_cache *c);
void expert_kept_free(gpu_backend *b);

/* Writes an expert that has a copy to its slot. GM_AGAIN: let gpu_host_wait run, and call again. */
gm_status expert_kept_write(gpu_backend *b, const expert_layer *l, uint32_t expert, uint32_t slot, error *e);
/* Begins to copy an expert that has just been loaded, if there is room. Without memory there is no copy. */
void expert_kept_ask(gpu_backend *b, expert_layer *l, uint32_t expert, uint32_t slot);
/* Takes the copies that have arrived. */
void expert_kept_take(gpu_backend *b);

#else

static inline void      expert_kept_make(expert_cache *c) { (void)c; }
static inline void      expert_kept_free(gpu_backend *b) { (void)b; }
static inline gm_status expert_kept_write(gpu_backend *b, const expert_layer *l, uint32_t expert, uint32_t slot,
                                          error *e) {
    (void)b, (void)l, (void)expert, (void)slot;
    return fail(e, GM_UNSUPPORTED, "no copies of experts are kept here");
}
static inline void expert_kept_ask(gpu_backend *b, expert_layer *l, uint32_t expert, uint32_t slot) {
    (void)b, (void)l, (void)expert, (void)slot;
}
static inline void expert_kept_take(gpu_backend *b) { (void)b; }

#endif

#endif
