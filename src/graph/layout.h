/* Where values live: each gets a place in one block of memory for as long as somebody still reads it. Made once, when a
 * plan is made; nothing is allocated while it runs. */

#ifndef GM_LAYOUT_H
#define GM_LAYOUT_H

#include "base/base.h"

typedef struct {
    uint64_t bytes;
    uint32_t first, last; /* the steps from which to which it must live; last < first: it is not needed */
    uint64_t offset;      /* the answer */
} layout_item;

/* Fills in the offsets (multiples of `alignment`) so that no two items that live at the same time overlap; returns the size. */
gm_status layout_assign(layout_item *items, size_t count, uint64_t alignment, uint64_t *size, error *e);

#endif
