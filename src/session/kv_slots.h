/* Who has which slots. A slot holds one row of every layer of a kind; an extent is a range of slots that belongs to one sequence,
 * or is shared by several. Only numbers live here: whoever owns the rows moves them. */

#ifndef GM_KV_SLOTS_H
#define GM_KV_SLOTS_H

#include "base/base.h"

typedef struct kv_extent kv_extent;
struct kv_extent {
    kv_extent *next; /* the one behind it */
    size_t     first, count;
    size_t     used;   /* slots from the first on whose rows matter */
    size_t     kept;   /* slots from the first on that others see; the owner must not write there */
    size_t     users;  /* sequences */
    size_t     target; /* where kv_slots_pack moves it */
};

typedef struct {
    kv_extent *extents; /* by slot */
    size_t     capacity;
} kv_slots; /* zero-initialise */

/* The first gap of `count` slots. False: there is none. */
bool kv_slots_find(const kv_slots *s, size_t count, size_t *first);
/* Puts an extent where kv_slots_find said; one that has a place already leaves it. */
void kv_slots_place(kv_slots *s, kv_extent *x, size_t first, size_t count);
void kv_slots_remove(kv_slots *s, kv_extent *x);
/* Changes an extent's size where it is. False: the next one is in the way. */
bool kv_slots_resize(kv_slots *s, kv_extent *x, size_t count);

size_t kv_slots_taken(const kv_slots *s); /* by all extents together */
size_t kv_slots_end(const kv_slots *s);   /* one past the last extent */

/* Moves the rows of `count` slots; the two ranges may overlap. */
typedef gm_status kv_slots_mover(void *user, size_t from, size_t to, size_t count, error *e);
/* Closes all gaps, in an order in which no extent overwrites another, and gives `larger` (NULL: none) the size `count`. They must
 * fit. After a failed move some gaps are left, but every extent is where it says. */
gm_status kv_slots_pack(kv_slots *s, kv_extent *larger, size_t count, kv_slots_mover *move, void *user, error *e);

#endif
