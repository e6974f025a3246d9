/* Memory layout of a plan: each value gets a place in one block of memory until its last reader has run. Computed once, when
 * the plan is created; nothing is allocated while it runs. */

#ifndef GM_LAYOUT_H
#define GM_LAYOUT_H

#include "base/base.h"

typedef struct {
    uint64_t bytes;
    uint32_t first, last; /* the steps during which it is live; last < first: never */
    uint64_t offset;      /* the result */
} layout_item;

/* Fills in offsets, multiples of `alignment`, so that items that are live at the same time do not overlap, and the total size. No item
 * crosses a multiple of `segment`, which is one of `alignment` (0: there are none); no item may be larger. */
gm_status layout_assign(layout_item *items, size_t count, uint64_t alignment, uint64_t segment, uint64_t *size,
                        error *e);

#endif
