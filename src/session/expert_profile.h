/* The profile of a model's experts (gpu/experts_profile.h) in the folder that gm_engine_options.cache names. Native only. */

#ifndef GM_EXPERT_PROFILE_H
#define GM_EXPERT_PROFILE_H

#include "session/engine.h"

/* Reads the model's profile, if there is one. A file that cannot be used is as good as none. */
void engine_profile_open(gm_engine *engine);
/* Writes it, if experts were used since. Nothing depends on whether that works. */
void engine_profile_save(const gm_engine *engine);

#endif
