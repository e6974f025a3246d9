/* A chain of chunks; each allocation takes the next bytes of the last one. */

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 16, ARENA_SMALLEST = 4096, ARENA_LARGEST = 1 << 20 };

struct arena_chunk {
    arena_chunk *before;
    size_t       used, capacity; /* of the bytes behind this header */
};

/* The header's size rounded up, so that what follows is aligned as malloc aligns. */
static size_t header_bytes(void) { return (size_t)round_up(sizeof(arena_chunk), ARENA_ALIGN); }

static void *chunk_take(arena_chunk *chunk, size_t bytes) {
    char *at = (char *)chunk + header_bytes() + chunk->used;
    chunk->used += bytes;
    return at;
}

void *arena_alloc(arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (size_t)round_up(bytes ? bytes : 1, ARENA_ALIGN);
    arena_chunk *last = a->last;
    if (last && bytes <= last->capacity - last->used) return chunk_take(last, bytes);

    size_t       next = last ? min_size(last->capacity * 2, ARENA_LARGEST) : ARENA_SMALLEST;
    bool         large = bytes > next / 2; /* gets a chunk of its own behind the last, whose rest stays in use */
    size_t       capacity = large ? bytes : next;
    arena_chunk *chunk = calloc(1, header_bytes() + capacity);
    if (!chunk) return NULL;
    chunk->capacity = capacity;
    if (large && last) {
        chunk->before = last->before;
        last->before = chunk;
    } else {
        chunk->before = last;
        a->last = chunk;
    }
    return chunk_take(chunk, bytes);
}

void *arena_array(arena *a, size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) return NULL;
    return arena_alloc(a, count * size);
}

char *arena_copy(arena *a, str text) {
    if (text.length == SIZE_MAX) return NULL;
    char *copy = arena_alloc(a, text.length + 1); /* zeroed: the NUL is there */
    if (copy && text.length) memcpy(copy, text.data, text.length);
    return copy;
}

void arena_free(arena *a) {
    for (arena_chunk *chunk = a->last; chunk;) {
        arena_chunk *before = chunk->before;
        free(chunk);
        chunk = before;
    }
    a->last = NULL;
}
