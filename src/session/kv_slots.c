#include "session/kv_slots.h"

bool kv_slots_find(const kv_slots *s, size_t count, size_t *first) {
    *first = 0;
    for (const kv_extent *x = s->extents; x; x = x->next) {
        if (x->first - *first >= count) return true;
        *first = x->first + x->count;
    }
    return s->capacity - *first >= count;
}

void kv_slots_remove(kv_slots *s, kv_extent *x) {
    for (kv_extent **link = &s->extents; *link; link = &(*link)->next) {
        if (*link != x) continue;
        *link = x->next;
        x->next = NULL;
        return;
    }
}

void kv_slots_place(kv_slots *s, kv_extent *x, size_t first, size_t count) {
    kv_slots_remove(s, x);
    kv_extent **link = &s->extents;
    while (*link && (*link)->first < first) link = &(*link)->next;
    x->first = first;
    x->count = count;
    x->next = *link;
    *link = x;
}

bool kv_slots_resize(kv_slots *s, kv_extent *x, size_t count) {
    const size_t end = x->next ? x->next->first : s->capacity;
    if (count > end - x->first) return false;
    x->count = count;
    return true;
}

size_t kv_slots_taken(const kv_slots *s) {
    size_t sum = 0;
    for (const kv_extent *x = s->extents; x; x = x->next) sum += x->count;
    return sum;
}

size_t kv_slots_end(const kv_slots *s) {
    size_t end = 0;
    for (const kv_extent *x = s->extents; x; x = x->next) end = x->first + x->count;
    return end;
}

static gm_status extent_move(kv_extent *x, kv_slots_mover *move, void *user, error *e) {
    if (x->used) TRY(move(user, x->first, x->target, x->used, e));
    x->first = x->target;
    return GM_OK;
}

/* The order of extents stays. So one that moves down only enters slots that those before it have left, and one that moves up only
 * slots that those behind it have left: the first go in ascending order, the second in descending order. */
gm_status kv_slots_pack(kv_slots *s, kv_extent *larger, size_t count, kv_slots_mover *move, void *user, error *e) {
    size_t at = 0;
    for (kv_extent *x = s->extents; x; x = x->next) {
        x->target = at;
        at += x == larger ? count : x->count;
    }
    for (kv_extent *x = s->extents; x; x = x->next) {
        if (x->target < x->first) TRY(extent_move(x, move, user, e));
    }
    for (;;) {
        kv_extent *last = NULL;
        for (kv_extent *x = s->extents; x; x = x->next) {
            if (x->target > x->first) last = x;
        }
        if (!last) break;
        TRY(extent_move(last, move, user, e));
    }
    if (larger) larger->count = count;
    return GM_OK;
}
