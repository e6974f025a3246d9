/* Memory that is given back all at once. */

#ifndef GM_ARENA_H
#define GM_ARENA_H

#include "base/base.h"

typedef struct arena_chunk arena_chunk;

typedef struct {
    arena_chunk *last;
} arena; /* zero-initialise */

/* Zeroed, aligned to 16; NULL when there is no memory. */
void *arena_alloc(arena *a, size_t bytes);
/* `count` items of `size`, NULL also when the product overflows. */
void *arena_array(arena *a, size_t count, size_t size);
/* A copy with a NUL behind it. */
char *arena_copy(arena *a, str text);
void  arena_free(arena *a);

#endif
