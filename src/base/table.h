/* A table from strings to numbers. The strings stay where they are: they must outlive the table. */

#ifndef GM_TABLE_H
#define GM_TABLE_H

#include "base/base.h"

typedef struct {
    uint32_t *slots; /* 1 + index into keys; 0 is free */
    str      *keys;
    uint32_t *values;
    size_t    count, capacity, slot_count;
} table; /* zero-initialise */

bool table_reserve(table *t, size_t count); /* false: no memory */
/* Adds key → value; returns false when the key was there already (nothing changes) or when memory ran out (`*failed`). */
bool table_add(table *t, str key, uint32_t value, bool *failed);
bool table_find(const table *t, str key, uint32_t *value);
void table_free(table *t);

#endif
