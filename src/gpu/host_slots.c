/* Ids of the GPU host: 2 bits of kind, 12 of generation, 18 of slot. A stale id is detected, because the generation of
 * its slot has changed. A slot that has used all its generations is retired, so that no old id ever becomes valid
 * again. */

#include "gpu/host_native.h"

#include <stdlib.h>
#include <string.h>

enum { SLOT_BITS = 18, GENERATION_BITS = 12 };
enum { MOST_SLOTS = 1 << SLOT_BITS, LAST_GENERATION = (1 << GENERATION_BITS) - 1 };

static slot *slot_at(const slots *s, uint32_t index) {
    void *item = s->items + index * s->size;
    return item;
}

static gpu_id id_of(const slots *s, uint32_t index) {
    return (uint32_t)s->kind << (SLOT_BITS + GENERATION_BITS) | slot_at(s, index)->generation << SLOT_BITS | index;
}

static bool grow(slots *s) {
    if (s->capacity == MOST_SLOTS) return false;
    const uint32_t capacity = s->capacity ? s->capacity * 2 : 32;
    char          *items = realloc(s->items, capacity * s->size);
    if (!items) return false;
    s->items = items;
    s->capacity = capacity;
    return true;
}

void *slots_add(slots *s, gpu_id *id) {
    uint32_t index, generation = 1;
    if (s->free) {
        index = s->free - 1;
        s->free = slot_at(s, index)->next_free;
        generation = slot_at(s, index)->generation + 1;
    } else {
        if (s->count == s->capacity && !grow(s)) return NULL;
        index = s->count++;
    }
    slot *item = slot_at(s, index);
    memset(item, 0, s->size);
    item->generation = generation;
    item->live = true;
    *id = id_of(s, index);
    return item;
}

void *slots_find(const slots *s, gpu_id id) {
    const uint32_t index = id & (MOST_SLOTS - 1);
    if (index >= s->count || id_of(s, index) != id || !slot_at(s, index)->live) return NULL;
    return slot_at(s, index);
}

void slots_remove(slots *s, gpu_id id) {
    slot *item = slots_find(s, id);
    if (!item) return;
    item->live = false;
    if (item->generation == LAST_GENERATION) return;
    item->next_free = s->free;
    s->free = (id & (MOST_SLOTS - 1)) + 1;
}

void *slots_next(slots *s, uint32_t *index, gpu_id *id) {
    for (; *index < s->count; ++*index) {
        if (!slot_at(s, *index)->live) continue;
        *id = id_of(s, *index);
        return slot_at(s, (*index)++);
    }
    return NULL;
}

void slots_free(slots *s) {
    free(s->items);
    s->items = NULL;
    s->count = s->capacity = s->free = 0;
}
