#include "session/kv.h"

#include <stdlib.h>
#include <string.h>

enum { KV_FIRST_CAPACITY = 512, KV_MARK_BUDGET = 64 << 20 };

struct kv_mark {
    kv_mark *older;
    size_t   position; /* one past the last */
    size_t   first;    /* the first position copied */
    size_t   bytes;
    uint8_t  rows[];   /* layer by layer: keys, then values, of [first, position) */
};

static bool is_ring(const kv_cache *kv, uint32_t i) { return kv->config->layer[i].sliding && kv->config->layer[i].owns_kv; }

static size_t ring_slots(const kv_cache *kv) { return min_size((size_t)kv->config->window + KV_SLACK, kv->context); }

size_t kv_row_bytes(const kv_cache *kv, const kv_layer *layer) {
    return (size_t)quant_row_bytes(quant_format_of(kv->type), layer->kv_heads * layer->head);
}

static gm_status check_type(const model_config *c, quant_type type, error *e) {
    for (uint32_t i = 0; i < c->layers; i++) {
        if (type == TYPE_Q8_0 && c->layer[i].head % 32) {
            return fail(e, GM_UNSUPPORTED, "keys and values in q8_0 need heads of a multiple of 32 values; layer %u has %u", i, c->layer[i].head);
        }
    }
    return GM_OK;
}

gm_status kv_open(kv_cache *kv, const model_config *config, quant_type type, size_t context, error *e) {
    *kv = (kv_cache){ .config = config, .type = type, .context = context, .mark_budget = KV_MARK_BUDGET };
    if (check_type(config, type, e)) return e->status;
    kv->layer = calloc(config->layers, sizeof *kv->layer);
    if (!kv->layer) return fail_memory(e, "the K/V cache's table", config->layers * sizeof *kv->layer);
    for (uint32_t i = 0; i < config->layers; i++) {
        kv->layer[i] = (kv_layer){ .type = type, .kv_heads = config->layer[i].kv_heads, .head = config->layer[i].head };
        if (!is_ring(kv, i)) continue;
        const size_t bytes = kv_row_bytes(kv, &kv->layer[i]) * ring_slots(kv);
        kv->layer[i].slots = ring_slots(kv);
        kv->layer[i].k = malloc(bytes);
        kv->layer[i].v = malloc(bytes);
        if (!kv->layer[i].k || !kv->layer[i].v) {
            kv_close(kv);
            return fail_memory(e, "keys and values", 2 * bytes);
        }
    }
    if (kv_reserve(kv, 1, e)) kv_close(kv);
    return e->status;
}

static void drop_marks(kv_cache *kv, size_t beyond) {
    for (kv_mark **at = &kv->marks; *at;) {
        kv_mark *mark = *at;
        if (mark->position <= beyond) {
            at = &mark->older;
            continue;
        }
        *at = mark->older;
        kv->mark_bytes -= mark->bytes;
        free(mark);
    }
}

void kv_close(kv_cache *kv) {
    while (kv->marks) {
        kv_mark *older = kv->marks->older;
        free(kv->marks);
        kv->marks = older;
    }
    for (uint32_t i = 0; kv->layer && i < kv->config->layers; i++) {
        free(kv->layer[i].k);
        free(kv->layer[i].v);
    }
    free(kv->layer);
    *kv = (kv_cache){ 0 };
}

gm_status kv_reserve(kv_cache *kv, size_t positions, error *e) {
    if (positions <= kv->capacity) return GM_OK;
    size_t capacity = kv->capacity ? kv->capacity : KV_FIRST_CAPACITY;
    while (capacity < positions) capacity *= 2;
    capacity = min_size(capacity, kv->context);
    for (uint32_t i = 0; i < kv->config->layers; i++) {
        kv_layer *layer = &kv->layer[i];
        if (is_ring(kv, i) || !kv->config->layer[i].owns_kv) continue;
        const size_t bytes = kv_row_bytes(kv, layer) * capacity;
        uint8_t     *k = realloc(layer->k, bytes);
        if (k) layer->k = k;
        uint8_t *v = k ? realloc(layer->v, bytes) : NULL;
        if (v) layer->v = v;
        if (!v) return fail_memory(e, "keys and values", 2 * bytes);
    }
    /* All have the room now; a layer that had grown before another failed merely keeps more than it uses. */
    for (uint32_t i = 0; i < kv->config->layers; i++) {
        if (!is_ring(kv, i)) kv->layer[i].slots = capacity;
    }
    kv->capacity = capacity;
    return GM_OK;
}

void kv_written(kv_cache *kv, uint64_t end) {
    if (end > kv->high) kv->high = end;
}

size_t kv_ring_first(const kv_cache *kv, size_t end) {
    const size_t slots = ring_slots(kv), high = (size_t)kv->high;
    return min_size(max_size(high > slots ? high - slots : 0, (size_t)kv->low), end);
}

/* Whether the rings hold all that a query at `position` may see. */
static bool ring_reaches(const kv_cache *kv, size_t position) {
    const size_t window = kv->config->window, oldest = position + 1 > window ? position + 1 - window : 0;
    return kv_ring_first(kv, position) <= oldest;
}

/* Copies rows [first, last) between a ring and a packed array, in either direction. */
static void copy_ring(uint8_t *ring, uint8_t *packed, size_t row, size_t slots, size_t first, size_t last, bool to_ring) {
    for (size_t p = first; p < last; p++, packed += row) {
        uint8_t *slot = ring + p % slots * row;
        memcpy(to_ring ? slot : packed, to_ring ? packed : slot, row);
    }
}

static void copy_mark(kv_cache *kv, kv_mark *mark, bool to_ring) {
    uint8_t *at = mark->rows;
    for (uint32_t i = 0; i < kv->config->layers; i++) {
        kv_layer *layer = &kv->layer[i];
        if (!is_ring(kv, i)) continue;
        const size_t row = kv_row_bytes(kv, layer), bytes = row * (mark->position - mark->first);
        copy_ring(layer->k, at, row, layer->slots, mark->first, mark->position, to_ring);
        copy_ring(layer->v, at + bytes, row, layer->slots, mark->first, mark->position, to_ring);
        at += 2 * bytes;
    }
}

size_t kv_rollback(kv_cache *kv, size_t keep) {
    drop_marks(kv, keep);
    if (ring_reaches(kv, keep)) return keep;
    if (kv->marks) { /* the newest that is left: none is beyond `keep` */
        copy_mark(kv, kv->marks, true);
        kv->high = kv->marks->position;
        kv->low = kv->marks->first;
        return kv->marks->position;
    }
    kv->high = kv->low = 0;
    return 0;
}

void kv_add_mark(kv_cache *kv, size_t position) {
    const size_t window = kv->config->window, first = max_size(position > window ? position - window : 0, kv_ring_first(kv, position));
    if (!position || (kv->marks && kv->marks->position >= position)) return;
    size_t bytes = 0;
    for (uint32_t i = 0; i < kv->config->layers; i++) {
        if (is_ring(kv, i)) bytes += 2 * kv_row_bytes(kv, &kv->layer[i]) * (position - first);
    }
    if (bytes > kv->mark_budget) return;
    kv_mark *mark = malloc(sizeof *mark + bytes);
    if (!mark) return;
    *mark = (kv_mark){ .older = kv->marks, .position = position, .first = first, .bytes = bytes };
    copy_mark(kv, mark, false);
    kv->marks = mark;
    kv->mark_bytes += bytes;
    while (kv->mark_bytes > kv->mark_budget) { /* the oldest goes */
        kv_mark **at = &kv->marks;
        while ((*at)->older) at = &(*at)->older;
        kv->mark_bytes -= (*at)->bytes;
        free(*at);
        *at = NULL;
    }
}

gm_status kv_copy(kv_cache *out, const kv_cache *kv, size_t positions, error *e) {
    if (kv_open(out, kv->config, kv->type, kv->context, e)) return e->status;
    if (kv_reserve(out, positions, e)) {
        kv_close(out);
        return e->status;
    }
    for (uint32_t i = 0; i < kv->config->layers; i++) {
        const kv_layer *from = &kv->layer[i];
        if (!from->k) continue;
        const size_t bytes = kv_row_bytes(kv, from) * (is_ring(kv, i) ? from->slots : positions);
        memcpy(out->layer[i].k, from->k, bytes);
        memcpy(out->layer[i].v, from->v, bytes);
    }
    out->high = kv->high;
    out->low = kv->low;
    return GM_OK;
}

uint64_t kv_bytes(const kv_cache *kv) {
    uint64_t bytes = kv->mark_bytes;
    for (uint32_t i = 0; i < kv->config->layers; i++) {
        if (kv->layer[i].k) bytes += 2 * (uint64_t)kv_row_bytes(kv, &kv->layer[i]) * kv->layer[i].slots;
    }
    return bytes;
}
