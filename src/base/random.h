/* Random numbers that are the same everywhere: Philox4x32-10 (a counter and a key give four words, no state). */

#ifndef GM_RANDOM_H
#define GM_RANDOM_H

#include "base/base.h"

void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
