/* Files that come with the program or the library, found relative to wherever they are installed. */

#ifndef GM_BESIDE_H
#define GM_BESIDE_H

#include "base/arena.h"

/* All of these fail only for lack of memory. */

/* The folder of the running program; NULL if the system does not tell. */
gm_status beside_program(arena *a, const char **folder, error *e);
/* The folder of the shared library; NULL if the engine is linked into the program. */
gm_status beside_library(arena *a, const char **folder, error *e);

/* The first of these paths, relative to the folder, that can be read; NULL if there is none, or no folder. */
gm_status beside_find(const char *folder, const char *const *places, size_t count, arena *a, const char **path,
                      error *e);

#endif
