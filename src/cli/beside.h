/* What lies beside the program, wherever it was put. */

#ifndef GM_BESIDE_H
#define GM_BESIDE_H

#include "base/arena.h"

/* The first of these paths, seen from the program's folder, that can be read; NULL: none. */
const char *beside_program(const char *const *places, size_t count, arena *a);

#endif
