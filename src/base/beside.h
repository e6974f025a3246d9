/* What lies beside the program or the library, wherever they were put. */

#ifndef GM_BESIDE_H
#define GM_BESIDE_H

#include "base/arena.h"

/* The folder of the running program; NULL where the system does not say. */
const char *beside_program(arena *a);
/* The folder of the shared library; NULL where the engine is a part of the program. */
const char *beside_library(arena *a);

/* The first of these paths, seen from the folder (NULL: nothing is found), that can be read; NULL: none. */
const char *beside_find(const char *folder, const char *const *places, size_t count, arena *a);

#endif
