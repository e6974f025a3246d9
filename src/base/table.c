/* Open addressing with linear probing; at most half of the slots are taken. */

#include "base/table.h"

#include <stdlib.h>
#include <string.h>

/* Keys come from files, which may be crafted to collide. The address of the slots, which differs from run to run, goes into the
 * hash, so such a file cannot be prepared. No result depends on it. */
static uint64_t hash(const uint32_t *slots, str key) {
    uint64_t h = (uint64_t)(uintptr_t)slots * 0x9e3779b97f4a7c15 + key.length;
    for (size_t i = 0; i < key.length; i += 8) {
        uint64_t word = 0;
        memcpy(&word, key.data + i, min_size(8, key.length - i));
        h = (h ^ word) * 0xff51afd7ed558ccd;
        h ^= h >> 32;
    }
    h *= 0xc4ceb9fe1a85ec53;
    return h ^ h >> 29;
}

/* The slot where the key is, or the free one where it would go. */
static size_t table_slot(const table *t, str key) {
    size_t slot = (size_t)hash(t->slots, key) & (t->slot_count - 1);
    while (t->slots[slot] && !str_equal(t->keys[t->slots[slot] - 1], key)) slot = (slot + 1) & (t->slot_count - 1);
    return slot;
}

bool table_reserve(table *t, size_t count) {
    if (count > UINT32_MAX / 4) return false;
    if (count > t->capacity) {
        if (count > SIZE_MAX / sizeof(str)) return false;
        str *keys = realloc(t->keys, count * sizeof *keys);
        if (!keys) return false;
        t->keys = keys;
        uint32_t *values = realloc(t->values, count * sizeof *values);
        if (!values) return false;
        t->values = values;
        t->capacity = count;
    }
    size_t slot_count = 16;
    while (slot_count < count * 2) slot_count *= 2;
    if (slot_count <= t->slot_count) return true;
    uint32_t *slots = calloc(slot_count, sizeof *slots);
    if (!slots) return false;
    free(t->slots);
    t->slots = slots;
    t->slot_count = slot_count;
    for (size_t i = 0; i < t->count; i++) t->slots[table_slot(t, t->keys[i])] = (uint32_t)i + 1;
    return true;
}

bool table_add(table *t, str key, uint32_t value, bool *failed) {
    if (failed) *failed = false;
    if (t->count == t->capacity && !table_reserve(t, t->capacity ? t->capacity * 2 : 8)) {
        if (failed) *failed = true;
        return false;
    }
    size_t slot = table_slot(t, key);
    if (t->slots[slot]) return false;
    t->keys[t->count] = key;
    t->values[t->count] = value;
    t->slots[slot] = (uint32_t)++t->count;
    return true;
}

bool table_find(const table *t, str key, uint32_t *value) {
    if (!t->slot_count) return false;
    uint32_t found = t->slots[table_slot(t, key)];
    if (!found) return false;
    if (value) *value = t->values[found - 1];
    return true;
}

void table_free(table *t) {
    free(t->slots);
    free(t->keys);
    free(t->values);
    *t = (table){ 0 };
}
