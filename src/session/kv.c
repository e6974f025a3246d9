#include "session/kv.h"

#include "session/kv_marks.h"

#include <string.h>

enum { FIRST_EXTENT = 512, SLACK_STEP = 64 };

/* ---- life ---------------------------------------------------------------------------------------------------------- */

gm_status kv_open(kv_cache *kv, kv_store *store, size_t context, error *e) {
    const size_t most = kv_most_context(store->config, store->gpu, store->type);
    *kv = (kv_cache){ 0 };
    if (context > most)
        return fail(e, GM_NO_MEMORY,
                    "a context of %zu tokens is too large: a binding of this GPU holds %llu bytes of a layer's "
                    "keys: the largest context is %zu tokens",
                    context, (unsigned long long)gpu_host_info(store->gpu)->max_binding, most);
    *kv = (kv_cache){ .store = store, .number = ++store->numbers, .context = context, .slack = KV_SLACK };
    store->sequences++;
    store->contexts += context;
    return GM_OK;
}

/* Gives up all that it holds. */
static void kv_clear(kv_cache *kv) {
    kv_marks_drop(kv, 0);
    kv_store_release(kv->store, KV_FULL, kv->prefix);
    kv_store_release(kv->store, KV_FULL, kv->own);
    kv_store_release(kv->store, KV_RINGS, kv->ring);
    kv->prefix = kv->own = kv->ring = NULL;
    kv->shared = 0;
    kv->high = kv->low = 0;
    kv->slack = KV_SLACK;
}

static void kv_count_out(kv_cache *kv) {
    if (!kv->context) return;
    kv->store->sequences--;
    kv->store->contexts -= kv->context;
    kv->context = 0;
}

void kv_close(kv_cache *kv) {
    if (!kv->store) return;
    kv_clear(kv);
    kv_count_out(kv);
    *kv = (kv_cache){ 0 };
}

void kv_park(kv_cache *kv) {
    kv_count_out(kv);
    if (kv->own && kv->own->used) kv_slots_resize(&kv->store->spaces[KV_FULL], kv->own, kv->own->used);
}

void kv_adopt(kv_cache *kv, kv_cache *parked) {
    kv_clear(kv);
    const kv_cache before = *kv;
    *kv = *parked;
    kv->context = before.context;
    *parked = (kv_cache){ 0 };
}

/* ---- places -------------------------------------------------------------------------------------------------------- */

record_sequence kv_sequence(const kv_cache *kv) {
    return (record_sequence){ .sequence = kv->number,
                              .window = kv->store->config->window,
                              .shared = (uint32_t)kv->shared,
                              .prefix = kv->prefix ? (uint32_t)kv->prefix->first : 0,
                              .own = kv->own ? (uint32_t)(kv->own->first - kv->shared) : 0,
                              .ring = kv->ring ? (uint32_t)kv->ring->first : 0,
                              .ring_slots = kv->ring ? (uint32_t)kv->ring->count : 1 };
}

size_t kv_capacity(const kv_cache *kv) {
    return kv->own ? min_size(kv->shared + kv->own->count, kv->context) : kv->shared;
}

kv_stretch kv_locate(const kv_cache *kv, kv_space space, size_t position) {
    if (space == KV_RINGS) {
        const size_t slot = position % kv->ring->count;
        return (kv_stretch){ kv->ring->first + slot, kv->ring->count - slot };
    }
    if (position < kv->shared) return (kv_stretch){ kv->prefix->first + position, kv->shared - position };
    const size_t slot = position - kv->shared;
    return (kv_stretch){ kv->own->first + slot, kv->own->count - slot };
}

void kv_written(kv_cache *kv, uint64_t end) {
    if (end > kv->high) kv->high = end;
    if (kv->own && end > kv->shared + kv->own->used) kv->own->used = (size_t)end - kv->shared;
    if (kv->ring) kv->ring->used = kv->ring->count;
}

/* ---- room ---------------------------------------------------------------------------------------------------------- */

/* An extent of its own for the positions from `from` on, if others read where it would write now. */
static gm_status own_part(kv_cache *kv, size_t from, size_t count, error *e) {
    kv_extent *own = kv->own, *fresh;
    if (from < kv->shared) { /* what came behind was rolled back */
        kv->shared = from;
        if (own) own->used = 0;
    }
    if (!kv->shared && kv->prefix) {
        kv_store_release(kv->store, KV_FULL, kv->prefix);
        kv->prefix = NULL;
    }
    if (!own || own->users == 1 || from >= own->kept) return GM_OK;
    fresh = kv_store_take(kv->store, KV_FULL, count, e);
    if (!fresh) return e->status;
    kv_slots_resize(&kv->store->spaces[KV_FULL], own, own->kept); /* nobody sees the rest any more */
    own->used = own->kept;
    kv->shared = from;
    kv->own = fresh;
    if (from) kv->prefix = own;
    else kv_store_release(kv->store, KV_FULL, own);
    return GM_OK;
}

/* Gives the sequence's own extent this many slots. */
static gm_status own_fit(kv_cache *kv, size_t count, error *e) {
    if (kv->own) return kv_store_fit(kv->store, KV_FULL, kv->own, count, e);
    kv->own = kv_store_take(kv->store, KV_FULL, count, e);
    return kv->own ? GM_OK : e->status;
}

/* Extents double, because conversations grow; where that does not fit, they get what is needed. */
static gm_status reserve_full(kv_cache *kv, size_t from, size_t end, error *e) {
    error too_large = { 0 };
    TRY(own_part(kv, from, end - from, e));
    const size_t held = kv->own ? kv->own->count : 0, needed = end - kv->shared;
    if (needed <= held) return GM_OK;
    size_t count = max_size(held, FIRST_EXTENT);
    while (count < needed) count *= 2;
    count = min_size(count, kv->context - kv->shared);
    if (count > needed && !own_fit(kv, count, &too_large)) return GM_OK;
    return own_fit(kv, needed, e);
}

/* Positions change their slots when a ring gets more of them, so its rows go out and in again. */
static gm_status ring_widen(kv_cache *kv, size_t slots, error *e) {
    const size_t high = (size_t)kv->high, first = kv_ring_first(kv, high);
    kv_mark     *rows = first < high ? kv_mark_new(kv, first, high, e) : NULL;
    if (first < high && !rows) return e->status;
    kv->ring->used = 0; /* they need not move along */
    gm_status status = kv_store_fit(kv->store, KV_RINGS, kv->ring, slots, e);
    kv->ring->used = kv->ring->count;
    if (!status) kv->low = first; /* the narrow ring had already lost what came before */
    if (!status && rows) status = kv_mark_restore(kv, rows, e);
    if (rows) kv_mark_free(kv->store, rows);
    return status;
}

static gm_status reserve_ring(kv_cache *kv, size_t batch, error *e) {
    const size_t slack = batch > kv->slack ? (size_t)round_up(batch, SLACK_STEP) : kv->slack;
    const size_t slots = min_size((size_t)kv->store->config->window + slack, kv->context);
    if (!kv->ring) {
        kv->ring = kv_store_take(kv->store, KV_RINGS, slots, e);
        if (!kv->ring) return e->status;
    } else if (kv->ring->count < slots) TRY(ring_widen(kv, slots, e));
    kv->slack = slack;
    return GM_OK;
}

gm_status kv_reserve(kv_cache *kv, size_t from, size_t count, error *e) {
    TRY(reserve_ring(kv, count, e));
    return reserve_full(kv, from, from + count, e);
}

gm_status kv_restore(kv_cache *kv, size_t positions, size_t ring_first, error *e) {
    TRY(reserve_ring(kv, 0, e));
    TRY(reserve_full(kv, 0, max_size(positions, 1), e));
    kv_written(kv, positions);
    kv->low = ring_first;
    return GM_OK;
}

/* ---- rollback ------------------------------------------------------------------------------------------------------ */

size_t kv_ring_first(const kv_cache *kv, size_t end) {
    const size_t slots = kv->ring ? kv->ring->count : 0, high = (size_t)kv->high;
    return min_size(max_size(high > slots ? high - slots : 0, (size_t)kv->low), end);
}

bool kv_ring_reaches(const kv_cache *kv, size_t position) {
    const size_t window = kv->store->config->window, oldest = position + 1 > window ? position + 1 - window : 0;
    return kv->ring && position <= kv->high && kv_ring_first(kv, position) <= oldest;
}

/* Puts a mark's rows into the ring. */
static gm_status ring_restore(kv_cache *kv, const kv_mark *mark, error *e) {
    TRY(kv_mark_restore(kv, mark, e));
    kv->ring->used = kv->ring->count;
    kv->high = mark->position;
    kv->low = mark->first;
    return GM_OK;
}

size_t kv_rollback(kv_cache *kv, size_t keep) {
    error e = { 0 };
    kv_marks_drop(kv, keep);
    if (keep && kv_ring_reaches(kv, keep)) return keep;
    const kv_mark *mark = kv->ring ? kv_marks_find(kv, keep) : NULL;
    if (mark && !ring_restore(kv, mark, &e)) return mark->position;
    kv->high = kv->low = 0;
    return 0;
}

void kv_add_mark(kv_cache *kv, size_t position) {
    kv_store    *store = kv->store;
    const size_t window = store->config->window,
                 first = max_size(position > window ? position - window : 0, kv_ring_first(kv, position));
    error e = { 0 };
    if (!position || !kv->ring || first == position || !store->mark_budget) return;
    const kv_mark *newest = kv_marks_find(kv, SIZE_MAX);
    if (newest && newest->position >= position) return;
    kv_mark *mark = kv_mark_new(kv, first, position, &e);
    if (mark) kv_marks_keep(store, mark);
}

bool kv_give_up_ring(kv_cache *kv, size_t end) {
    kv_add_mark(kv, end);
    kv_store_release(kv->store, KV_RINGS, kv->ring);
    kv->ring = NULL;
    kv->high = kv->low = 0;
    return kv_marks_find(kv, SIZE_MAX) != NULL;
}

/* ---- sequences that begin alike ------------------------------------------------------------------------------------ */

size_t kv_meeting_point(const kv_cache *kv, size_t most) {
    if (!most || kv_ring_reaches(kv, most)) return most;
    const kv_mark *mark = kv_marks_find(kv, most);
    return mark ? mark->position : 0;
}

/* An extent begins at position 0 only if its owner shares nothing itself. From others, what they share is shared, and the rest is
 * copied. */
static gm_status share_rows(kv_cache *kv, const kv_cache *from, size_t n, error *e) {
    const bool all = n > from->shared && !from->shared;
    kv_extent *prefix = all ? from->own : from->prefix;
    kv->shared = all ? n : min_size(n, from->shared);
    if (kv->shared) {
        kv->prefix = prefix;
        prefix->users++;
        prefix->kept = max_size(prefix->kept, kv->shared);
    }
    if (n == kv->shared) return GM_OK;
    kv->own = kv_store_take(kv->store, KV_FULL, n - kv->shared, e);
    if (!kv->own) return e->status;
    kv->own->used = kv->own->count;
    return kv_store_move(kv->store, KV_FULL, from->own->first, kv->own->first, kv->own->count, e);
}

static gm_status share_ring(kv_cache *kv, const kv_cache *from, size_t n, error *e) {
    const bool   whole = kv_ring_reaches(from, n);
    const size_t window = kv->store->config->window;
    kv->ring =
        kv_store_take(kv->store, KV_RINGS, whole ? from->ring->count : min_size(window + kv->slack, kv->context), e);
    if (!kv->ring) return e->status;
    if (!whole) {
        const kv_mark *mark = kv_marks_find(from, n);
        return ring_restore(kv, mark, e);
    }
    kv->ring->used = kv->ring->count;
    kv->high = from->high;
    kv->low = from->low;
    kv->slack = from->slack;
    return kv_store_move(kv->store, KV_RINGS, from->ring->first, kv->ring->first, kv->ring->count, e);
}

gm_status kv_share(kv_cache *kv, const kv_cache *from, size_t n, error *e) {
    kv_clear(kv);
    if (!n) return GM_OK;
    gm_status status = share_rows(kv, from, n, e);
    if (!status) status = share_ring(kv, from, n, e);
    if (status) kv_clear(kv);
    return status;
}
