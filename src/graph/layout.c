#include "graph/layout.h"

#include <stdlib.h>

typedef struct {
    uint64_t bytes;
    uint32_t item;
} by_size;

static int larger_first(const void *a, const void *b) {
    const by_size *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->item < y->item ? -1 : 1;
}

static int lower_first(const void *a, const void *b) {
    const layout_item *x = *(const layout_item *const *)a, *y = *(const layout_item *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The first offset from `at` on where an item does not cross the end of a segment. */
static uint64_t in_one_segment(uint64_t at, uint64_t bytes, uint64_t segment) {
    return segment && at / segment != (at + bytes - 1) / segment && bytes ? round_up(at, segment) : at;
}

/* Places the largest items first, each at the lowest offset where it overlaps no item that is live at the same time. */
gm_status layout_assign(layout_item *items, size_t count, uint64_t alignment, uint64_t segment, uint64_t *size,
                        error *e) {
    *size = 0;
    if (!count) return GM_OK;
    by_size            *order = malloc(count * sizeof *order);
    const layout_item **neighbours = malloc(count * sizeof *neighbours);
    if (!order || !neighbours) {
        free(order);
        free(neighbours);
        return fail_memory(e, "the memory plan", count * sizeof *order);
    }
    for (size_t i = 0; i < count; i++) order[i] = (by_size){ items[i].bytes, (uint32_t)i };
    qsort(order, count, sizeof *order, larger_first);

    for (size_t placed = 0; placed < count; placed++) {
        layout_item *item = &items[order[placed].item];
        size_t       near = 0;
        for (size_t i = 0; i < placed; i++) {
            const layout_item *other = &items[order[i].item];
            if (other->first <= item->last && item->first <= other->last) neighbours[near++] = other;
        }
        qsort(neighbours, near, sizeof *neighbours, lower_first);
        uint64_t at = 0;
        for (size_t i = 0; i < near; i++) {
            if (neighbours[i]->offset >= at + item->bytes) break; /* it fits in the gap before this one */
            const uint64_t end = round_up(neighbours[i]->offset + neighbours[i]->bytes, alignment);
            if (end > at) at = in_one_segment(end, item->bytes, segment);
        }
        item->offset = at;
        if (at + item->bytes > *size) *size = at + item->bytes;
    }
    free(order);
    free(neighbours);
    return GM_OK;
}
