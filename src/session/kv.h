/* The keys and values of one sequence of tokens: its places in the engine's store.
 *
 * Full layers keep every position: those below `shared` in an extent that others use, too, the rest in an extent of its own. Sliding
 * layers keep the last positions in a ring of window + slack slots: position p is in slot p mod slots of the ring. Masks compare
 * positions, so rows beyond the end are never seen, and rolling back up to `slack` tokens (KV_SLACK, or more after a larger batch)
 * costs nothing. For longer jumps we copy the rings now and then (kv_marks.h); there is room for at least two such copies, whatever
 * the model's size.
 *
 * A fork shares its parent's extent. Whoever writes where others read first gets an extent of its own: kv_reserve. */

#ifndef GM_KV_H
#define GM_KV_H

#include "session/batches.h"
#include "session/kv_store.h"
#include "session/records.h"

enum { KV_SLACK = 256 }; /* a batch that is larger than the slack widens the ring: kv_reserve */

typedef struct {
    kv_store  *store; /* NULL: not open */
    uint32_t   number;
    size_t     context; /* the most positions; 0: nobody uses it */
    size_t     slack;   /* slots of the ring beyond the window */
    size_t     shared;  /* positions below this are in `prefix` */
    kv_extent *prefix, *own, *ring;
    uint64_t   high; /* one past the highest position that the ring was written at */
    uint64_t   low;  /* below this it was never filled: a mark or a snapshot holds no more than the window */
} kv_cache;

/* Bytes of one mark, and of the marks that each session has room for. `on_gpu`: with the GPU's rows, which differ for q8_0. */
uint64_t kv_mark_bytes(const model_config *config, quant_type type, bool on_gpu);
uint64_t kv_mark_budget(const model_config *config, quant_type type, bool on_gpu);

gm_status kv_open(kv_cache *kv, kv_store *store, size_t context, error *e);
void      kv_close(kv_cache *kv);
/* Keeps everything, but nobody uses it any more. kv_close or kv_adopt follow. */
void kv_park(kv_cache *kv);

/* Where the sequence's keys and values are, for its tokens' records. */
record_sequence kv_sequence(const kv_cache *kv);
/* Makes room for a batch of `count` positions, the first of which is `from`. */
gm_status kv_reserve(kv_cache *kv, size_t from, size_t count, error *e);
/* Makes room for what a snapshot holds: `positions`, and from `ring_first` on also in the ring. */
gm_status kv_restore(kv_cache *kv, size_t positions, size_t ring_first, error *e);
/* How many positions there is room for. */
size_t kv_capacity(const kv_cache *kv);
/* Notes that positions up to `end` were written. */
void kv_written(kv_cache *kv, uint64_t end);

/* A stretch of positions in consecutive slots. */
typedef struct {
    size_t slot, count;
} kv_stretch;
kv_stretch kv_locate(const kv_cache *kv, kv_space space, size_t position);

/* Forgets the positions from `keep` on. Returns the position from which the rest must be computed again: `keep` itself if
 * nothing was lost. */
size_t kv_rollback(kv_cache *kv, size_t keep);
/* Copies the rings as they are at `position`, which is the end of the tokens held. Marks only save time, so running out of
 * memory is no error. */
void kv_add_mark(kv_cache *kv, size_t position);
/* The first position that the rings still hold, if the session holds `end` positions. */
size_t kv_ring_first(const kv_cache *kv, size_t end);
/* Gives up the ring of a sequence that nobody uses; a mark at `end`, the number of its positions, takes its place. False: it has no
 * marks, so nobody can begin with it any more. */
bool kv_give_up_ring(kv_cache *kv, size_t end);

/* ---- sequences that begin alike ---- */

/* Whether the ring holds everything that a query at `position` sees. */
bool kv_ring_reaches(const kv_cache *kv, size_t position);
/* The last position up to `most` at which another sequence can go on: there is a ring for it. */
size_t kv_meeting_point(const kv_cache *kv, size_t most);
/* Makes `kv` hold the first n positions of `from`: shares the full layers' and copies the ring. n is a meeting point. On failure it
 * holds none. */
gm_status kv_share(kv_cache *kv, const kv_cache *from, size_t n, error *e);
/* Makes `kv` hold what `parked` holds, which is closed. */
void kv_adopt(kv_cache *kv, kv_cache *parked);

#endif
