/* What is known about how often a model's experts are used, as bytes that can be stored: a later engine of the same model begins with the
 * experts that were used most in its slots. Results do not depend on it.
 *
 *   u32, little endian: EXPERT_PROFILE_MAGIC, EXPERT_PROFILE_VERSION, layers; for each layer: experts, then how often each was used */

#ifndef GM_GPU_EXPERTS_PROFILE_H
#define GM_GPU_EXPERTS_PROFILE_H

#include "base/buffer.h"
#include "gpu/experts.h"

enum { EXPERT_PROFILE_MAGIC = 0x50584d47, EXPERT_PROFILE_VERSION = 1 };

/* Bytes of a profile of this cache. */
size_t expert_profile_size(const expert_cache *c);
/* Appends so many bytes: what was seen since opening, and what was known before, which fades as tokens are computed. */
void expert_profile_write(const expert_cache *c, buffer *out);
/* GM_BAD_FILE: it is damaged, or of another model; then nothing changes. */
gm_status expert_profile_read(expert_cache *c, const uint8_t *data, size_t size, error *e);

/* Loads the experts that the profile says are used most, until the slots are full. GM_AGAIN as expert_cache_load. */
gm_status expert_cache_warm(gpu_backend *b, error *e);

#endif
