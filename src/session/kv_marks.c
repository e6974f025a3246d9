#include "session/kv_marks.h"

#include <stdlib.h>

enum { LEAST_MARKS = 2, LEAST_BUDGET = 64 << 20 };

uint64_t kv_mark_budget(const model_config *c, quant_type type, bool on_gpu) {
    const uint64_t least = LEAST_MARKS * kv_mark_bytes(c, type, on_gpu);
    return least > LEAST_BUDGET ? least : LEAST_BUDGET;
}

void kv_mark_free(kv_store *store, kv_mark *mark) {
    for (uint32_t i = 0; i < store->config->layers; i++) kv_memory_free(store->gpu, &mark->rows[i]);
    free(mark);
}

/* Bytes of a layer's keys in a mark; 0 if the layer has no ring. */
static uint64_t mark_key_bytes(const kv_rows *rows, const kv_mark *mark) {
    return rows->space == KV_RINGS ? (uint64_t)rows->row * (mark->position - mark->first) : 0;
}

/* Copies the mark's rows between a ring and the packed array that starts at `at`, in pieces that do not wrap around. */
static gm_status copy_ring(const kv_cache *kv, const kv_memory *ring, const kv_memory *packed, uint64_t at, size_t row,
                           const kv_mark *mark, bool to_ring, error *e) {
    gpu_host *gpu = kv->store->gpu;
    for (size_t p = mark->first; p < mark->position;) {
        const size_t   slot = p % kv->ring->count, n = min_size(mark->position - p, kv->ring->count - slot);
        const uint64_t offset = (uint64_t)(kv->ring->first + slot) * row, bytes = (uint64_t)n * row;
        if (to_ring) TRY(kv_memory_copy(gpu, ring, offset, packed, at, bytes, e));
        else TRY(kv_memory_copy(gpu, packed, at, ring, offset, bytes, e));
        at += bytes;
        p += n;
    }
    return GM_OK;
}

static gm_status mark_copy(const kv_cache *kv, const kv_mark *mark, bool to_ring, error *e) {
    for (uint32_t i = 0; i < kv->store->config->layers; i++) {
        const kv_rows *rows = &kv->store->rows[i];
        const uint64_t bytes = mark_key_bytes(rows, mark);
        if (!bytes) continue;
        TRY(copy_ring(kv, &rows->k, &mark->rows[i], 0, rows->row, mark, to_ring, e));
        TRY(copy_ring(kv, &rows->v, &mark->rows[i], bytes, rows->row, mark, to_ring, e));
    }
    return GM_OK;
}

static gm_status mark_fill(const kv_cache *kv, kv_mark *mark, error *e) {
    kv_store *store = kv->store;
    for (uint32_t i = 0; i < store->config->layers; i++) {
        const uint64_t bytes = 2 * mark_key_bytes(&store->rows[i], mark);
        if (!bytes) continue;
        TRY(kv_memory_new(store->gpu, bytes, &mark->rows[i], e));
        mark->bytes += bytes;
    }
    return mark_copy(kv, mark, false, e);
}

kv_mark *kv_mark_new(const kv_cache *kv, size_t first, size_t position, error *e) {
    kv_store    *store = kv->store;
    const size_t size = sizeof(kv_mark) + store->config->layers * sizeof(kv_memory);
    kv_mark     *mark = calloc(1, size);
    if (!mark) {
        fail_memory(e, "a copy of the rings", size);
        return NULL;
    }
    mark->sequence = kv->number;
    mark->position = position;
    mark->first = first;
    if (!mark_fill(kv, mark, e)) return mark;
    kv_mark_free(store, mark);
    return NULL;
}

gm_status kv_mark_restore(const kv_cache *into, const kv_mark *mark, error *e) {
    return mark_copy(into, mark, true, e);
}

/* ---- those that are kept ---- */

static void mark_unlink(kv_store *store, kv_mark **link) {
    kv_mark *mark = *link;
    *link = mark->next;
    store->mark_bytes -= mark->bytes;
}

const kv_mark *kv_marks_find(const kv_cache *kv, size_t most) {
    kv_store *store = kv->store;
    kv_mark **best = NULL;
    for (kv_mark **link = &store->marks; *link; link = &(*link)->next) {
        if ((*link)->sequence != kv->number || (*link)->position > most) continue;
        if (!best || (*link)->position > (*best)->position) best = link;
    }
    if (!best) return NULL;
    kv_mark *mark = *best;
    *best = mark->next;
    mark->next = store->marks;
    store->marks = mark;
    return mark;
}

void kv_marks_drop(const kv_cache *kv, size_t beyond) {
    for (kv_mark **link = &kv->store->marks; *link;) {
        kv_mark *mark = *link;
        if (mark->sequence != kv->number || mark->position <= beyond) {
            link = &mark->next;
            continue;
        }
        mark_unlink(kv->store, link);
        kv_mark_free(kv->store, mark);
    }
}

void kv_marks_keep(kv_store *store, kv_mark *mark) {
    const uint64_t budget = store->mark_budget * max_size(store->sequences, 1);
    mark->next = store->marks;
    store->marks = mark;
    store->mark_bytes += mark->bytes;
    while (store->mark_bytes > budget) {
        kv_mark **link = &store->marks;
        while ((*link)->next) link = &(*link)->next;
        kv_mark *oldest = *link;
        mark_unlink(store, link);
        kv_mark_free(store, oldest);
    }
}
