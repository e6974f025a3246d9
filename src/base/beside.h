/* Files that come with the program or the library, found relative to wherever they are installed. */

#ifndef GM_BESIDE_H
#define GM_BESIDE_H

#include "base/arena.h"

/* The folder of the running program; NULL if the system does not tell. */
const char *beside_program(arena *a);
/* The folder of the shared library; NULL if the engine is linked into the program. */
const char *beside_library(arena *a);

/* The first of these paths, relative to the folder, that can be read; NULL if there is none, or no folder. */
const char *beside_find(const char *folder, const char *const *places, size_t count, arena *a);

#endif
