/* Copies of a sequence's rings, which are kept for longer jumps back: rolling back to such a mark, or to a position behind it, starts
 * from that copy. Another sequence that begins with the same tokens can start from it, too. */

#ifndef GM_KV_MARKS_H
#define GM_KV_MARKS_H

#include "session/kv.h"

struct kv_mark {
    kv_mark  *next;     /* used before this one */
    uint32_t  sequence; /* whose */
    size_t    position; /* one past the last */
    size_t    first;    /* the first position copied */
    uint64_t  bytes;
    kv_memory rows[]; /* [layers]: keys, then values; one buffer each, because a GPU limits a buffer's size */
};

/* Copies the positions [first, position) of the rings. */
kv_mark  *kv_mark_new(const kv_cache *kv, size_t first, size_t position, error *e);
gm_status kv_mark_restore(const kv_cache *into, const kv_mark *mark, error *e);
void      kv_mark_free(kv_store *store, kv_mark *mark);

/* The sequence's mark with the highest position up to `most`; NULL: there is none. It becomes the one used last. */
const kv_mark *kv_marks_find(const kv_cache *kv, size_t most);
/* Drops the sequence's marks beyond a position. */
void kv_marks_drop(const kv_cache *kv, size_t beyond);
/* Keeps a mark. Those used longest ago go if the memory for marks is used up. */
void kv_marks_keep(kv_store *store, kv_mark *mark);

#endif
