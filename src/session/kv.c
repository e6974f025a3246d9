#include "session/kv.h"

#include "gpu/kernels.h"

#include <stdlib.h>
#include <string.h>

enum { KV_FIRST_CAPACITY = 512, KV_LEAST_MARKS = 2, KV_LEAST_MARK_BUDGET = 64 << 20, KV_SLACK_STEP = 64 };

struct kv_mark {
    kv_mark  *older;
    size_t    position; /* one past the last */
    size_t    first;    /* the first position copied */
    uint64_t  bytes;
    kv_memory rows
        []; /* [layers]: keys, then values, of [first, position); one buffer each, because a GPU limits a buffer's size */
};

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static size_t ring_slots(const kv_cache *kv) { return min_size((size_t)kv->config->window + kv->slack, kv->context); }

record_sequence kv_sequence(const kv_cache *kv) {
    return (record_sequence){ .window = kv->config->window, .ring_slots = (uint32_t)ring_slots(kv) };
}

static gm_status check_type(const model_config *c, quant_type type, error *e) {
    for (uint32_t i = 0; i < c->layers; i++) {
        if (type == TYPE_Q8_0 && c->layer[i].head % 32) {
            return fail(e, GM_UNSUPPORTED,
                        "keys and values in q8_0 need heads of a multiple of 32 values; layer %u has %u", i,
                        c->layer[i].head);
        }
    }
    return GM_OK;
}

/* A GPU binds all keys of a layer at once, and all values. */
size_t kv_most_context(const model_config *c, gpu_host *gpu, quant_type type) {
    const uint64_t binding = gpu ? gpu_host_info(gpu)->max_binding / 16 * 16 : UINT64_MAX;
    uint64_t       most = SIZE_MAX;
    for (uint32_t i = 0; i < c->layers && gpu; i++) {
        const layer_config *layer = &c->layer[i];
        if (!layer->owns_kv || layer->sliding) continue;
        const uint64_t tokens = binding / gpu_kv_row_bytes(type, layer->kv_heads, layer->head);
        if (tokens < most) most = tokens;
    }
    return (size_t)most;
}

static gm_status check_binding(const kv_cache *kv, error *e) {
    const size_t most = kv_most_context(kv->config, kv->gpu, kv->type);
    if (kv->context <= most) return GM_OK;
    return fail(
        e, GM_NO_MEMORY,
        "a context of %zu tokens was asked for, but a binding of this GPU holds %llu bytes of a layer's keys: the "
        "largest context is %zu tokens",
        kv->context, (unsigned long long)gpu_host_info(kv->gpu)->max_binding, most);
}

static size_t row_bytes(const layer_config *layer, quant_type type, bool on_gpu) {
    if (on_gpu) return (size_t)gpu_kv_row_bytes(type, layer->kv_heads, layer->head);
    return (size_t)quant_row_bytes(quant_format_of(type), (uint64_t)layer->kv_heads * layer->head);
}

uint64_t kv_mark_bytes(const model_config *c, quant_type type, bool on_gpu) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->layers; i++) {
        const layer_config *layer = &c->layer[i];
        if (layer->owns_kv && layer->sliding) bytes += (uint64_t)2 * c->window * row_bytes(layer, type, on_gpu);
    }
    return bytes;
}

uint64_t kv_mark_budget(const model_config *c, quant_type type, bool on_gpu) {
    const uint64_t least = KV_LEAST_MARKS * kv_mark_bytes(c, type, on_gpu);
    return least > KV_LEAST_MARK_BUDGET ? least : KV_LEAST_MARK_BUDGET;
}

/* Tells the backend where a layer's rows are now. */
static void publish(kv_cache *kv, uint32_t i) {
    const kv_rows      *rows = &kv->rows[i];
    const layer_config *layer = &kv->config->layer[i];
    kv->changes++;
    if (kv->gpu) {
        kv->gpu_layers[i] = (gpu_kv_layer){ rows->k.device,
                                            rows->v.device,
                                            kv->type,
                                            rows->ring ? (uint32_t)rows->slots : GPU_KV_NO_RING,
                                            layer->kv_heads,
                                            layer->head,
                                            round_up(rows->row * rows->slots, 16) };
    } else {
        kv->cpu_layers[i] = (kv_layer){ rows->k.host, rows->v.host, kv->type, layer->kv_heads, layer->head };
    }
}

static gm_status open_layer(kv_cache *kv, uint32_t i, error *e) {
    const layer_config *layer = &kv->config->layer[i];
    kv_rows            *rows = &kv->rows[i];
    rows->row = row_bytes(layer, kv->type, kv->gpu != NULL);
    rows->ring = layer->sliding;
    if (!layer->owns_kv || !rows->ring) return GM_OK;
    rows->slots = ring_slots(kv);
    if (kv_memory_new(kv->gpu, rows->row * rows->slots, &rows->k, e) ||
        kv_memory_new(kv->gpu, rows->row * rows->slots, &rows->v, e))
        return e->status;
    publish(kv, i);
    return GM_OK;
}

gm_status kv_open(kv_cache *kv, const model_config *config, gpu_host *gpu, quant_type type, size_t context, error *e) {
    *kv = (kv_cache){ .config = config, .gpu = gpu, .type = type, .context = context, .slack = KV_SLACK };
    /* Marks only save time. They get no memory that is short. */
    kv->mark_budget = gpu && gpu_host_limit(gpu) ? 0 : kv_mark_budget(config, type, gpu != NULL);
    if (check_type(config, type, e) || check_binding(kv, e)) return e->status;
    kv->rows = calloc(config->layers, sizeof *kv->rows);
    if (gpu) kv->gpu_layers = calloc(config->layers, sizeof *kv->gpu_layers);
    else kv->cpu_layers = calloc(config->layers, sizeof *kv->cpu_layers);
    if (!kv->rows || (!kv->gpu_layers && !kv->cpu_layers))
        fail_memory(e, "the K/V cache's table", config->layers * sizeof *kv->rows);
    for (uint32_t i = 0; i < config->layers && !e->status; i++) open_layer(kv, i, e);
    if (!e->status) kv_reserve(kv, 1, e);
    if (e->status) kv_close(kv);
    return e->status;
}

static void free_mark(kv_cache *kv, kv_mark *mark) {
    kv->mark_bytes -= mark->bytes;
    for (uint32_t i = 0; i < kv->config->layers; i++) kv_memory_free(kv->gpu, &mark->rows[i]);
    free(mark);
}

static void drop_marks(kv_cache *kv, size_t beyond) {
    for (kv_mark **at = &kv->marks; *at;) {
        kv_mark *mark = *at;
        if (mark->position <= beyond) {
            at = &mark->older;
            continue;
        }
        *at = mark->older;
        free_mark(kv, mark);
    }
}

void kv_close(kv_cache *kv) {
    while (kv->marks) {
        kv_mark *older = kv->marks->older;
        free_mark(kv, kv->marks);
        kv->marks = older;
    }
    for (uint32_t i = 0; kv->rows && i < kv->config->layers; i++) {
        kv_memory_free(kv->gpu, &kv->rows[i].k);
        kv_memory_free(kv->gpu, &kv->rows[i].v);
    }
    free(kv->rows);
    free(kv->cpu_layers);
    free(kv->gpu_layers);
    *kv = (kv_cache){ 0 };
}

/* ---- growing ------------------------------------------------------------------------------------------------------- */

/* Moves rows to larger memory. The old rows stay until the copy has succeeded. */
static gm_status grow(kv_cache *kv, kv_memory *rows, uint64_t held, uint64_t bytes, error *e) {
    kv_memory larger;
    if (kv_memory_new(kv->gpu, bytes, &larger, e)) return e->status;
    if (held && kv_memory_copy(kv->gpu, &larger, 0, rows, 0, held, e)) {
        kv_memory_free(kv->gpu, &larger);
        return e->status;
    }
    kv_memory_free(kv->gpu, rows);
    *rows = larger;
    return GM_OK;
}

gm_status kv_reserve(kv_cache *kv, size_t positions, error *e) {
    if (positions <= kv->capacity) return GM_OK;
    size_t capacity = kv->capacity ? kv->capacity : KV_FIRST_CAPACITY;
    while (capacity < positions) capacity *= 2;
    capacity = min_size(capacity, kv->context);
    for (uint32_t i = 0; i < kv->config->layers; i++) {
        kv_rows *rows = &kv->rows[i];
        if (rows->ring || !kv->config->layer[i].owns_kv || rows->slots >= capacity) continue;
        const uint64_t held = (uint64_t)rows->row * rows->slots, bytes = (uint64_t)rows->row * capacity;
        if (grow(kv, &rows->k, held, bytes, e) || grow(kv, &rows->v, held, bytes, e)) {
            publish(kv, i); /* the keys may have moved already; the capacity is the old one */
            return e->status;
        }
        rows->slots = capacity;
        publish(kv, i);
    }
    kv->capacity = capacity;
    return GM_OK;
}

/* Copies positions [first, last) from one ring to another, in pieces that wrap around in neither. */
static gm_status copy_positions(gpu_host *gpu, const kv_rows *rows, const kv_memory *to, size_t to_slots,
                                const kv_memory *from, size_t from_slots, size_t first, size_t last, error *e) {
    for (size_t p = first; p < last && !e->status;) {
        const size_t at = p % to_slots, source = p % from_slots,
                     n = min_size(last - p, min_size(to_slots - at, from_slots - source));
        kv_memory_copy(gpu, to, (uint64_t)at * rows->row, from, (uint64_t)source * rows->row, (uint64_t)n * rows->row,
                       e);
        p += n;
    }
    return e->status;
}

static bool has_ring(const kv_rows *rows) { return rows->ring && kv_memory_there(&rows->k); }

/* A copy of a ring with more slots. */
static gm_status copy_wider(const kv_cache *kv, const kv_rows *rows, size_t slots, kv_rows *out, error *e) {
    const uint64_t bytes = (uint64_t)rows->row * slots;
    const size_t   high = (size_t)kv->high, first = kv_ring_first(kv, high);
    *out = (kv_rows){ .row = rows->row, .slots = slots, .ring = true };
    if (kv_memory_new(kv->gpu, bytes, &out->k, e) || kv_memory_new(kv->gpu, bytes, &out->v, e)) return e->status;
    if (copy_positions(kv->gpu, rows, &out->k, slots, &rows->k, rows->slots, first, high, e)) return e->status;
    return copy_positions(kv->gpu, rows, &out->v, slots, &rows->v, rows->slots, first, high, e);
}

/* A token's record has one number of slots for all rings. So they grow together, or not at all. */
gm_status kv_widen(kv_cache *kv, size_t batch, error *e) {
    if (batch <= kv->slack) return GM_OK;
    const uint32_t layers = kv->config->layers;
    const size_t   slack = (size_t)round_up(batch, KV_SLACK_STEP), first = kv_ring_first(kv, (size_t)kv->high);
    const size_t   slots = min_size((size_t)kv->config->window + slack, kv->context);
    kv_rows       *wider = calloc(layers, sizeof *wider);
    if (!wider) return fail_memory(e, "wider rings", layers * sizeof *wider);
    for (uint32_t i = 0; i < layers && !e->status && slots > ring_slots(kv); i++) {
        if (has_ring(&kv->rows[i])) copy_wider(kv, &kv->rows[i], slots, &wider[i], e);
    }
    for (uint32_t i = 0; i < layers; i++) {
        kv_rows dropped = wider[i];
        if (!kv_memory_there(&wider[i].k)) continue;
        if (!e->status) {
            dropped = kv->rows[i];
            kv->rows[i] = wider[i];
            publish(kv, i);
        }
        kv_memory_free(kv->gpu, &dropped.k);
        kv_memory_free(kv->gpu, &dropped.v);
    }
    free(wider);
    if (e->status) return e->status;
    kv->slack = slack;
    kv->low = first; /* the narrow rings had already lost what came before */
    return GM_OK;
}

void kv_written(kv_cache *kv, uint64_t end) {
    if (end > kv->high) kv->high = end;
}

/* ---- rollback ------------------------------------------------------------------------------------------------------ */

size_t kv_ring_first(const kv_cache *kv, size_t end) {
    const size_t slots = ring_slots(kv), high = (size_t)kv->high;
    return min_size(max_size(high > slots ? high - slots : 0, (size_t)kv->low), end);
}

/* Whether the rings hold everything that a query at `position` sees. */
static bool ring_reaches(const kv_cache *kv, size_t position) {
    const size_t window = kv->config->window, oldest = position + 1 > window ? position + 1 - window : 0;
    return kv_ring_first(kv, position) <= oldest;
}

/* Copies rows [first, last) between a ring and a packed array, in pieces that do not wrap around. */
static gm_status copy_ring(kv_cache *kv, const kv_rows *rows, const kv_memory *ring, const kv_memory *packed,
                           uint64_t at, size_t first, size_t last, bool to_ring, error *e) {
    for (size_t p = first; p < last && !e->status;) {
        const size_t   slot = p % rows->slots, n = min_size(last - p, rows->slots - slot);
        const uint64_t offset = (uint64_t)slot * rows->row, bytes = (uint64_t)n * rows->row;
        if (to_ring) kv_memory_copy(kv->gpu, ring, offset, packed, at, bytes, e);
        else kv_memory_copy(kv->gpu, packed, at, ring, offset, bytes, e);
        at += bytes;
        p += n;
    }
    return e->status;
}

/* Bytes of the keys of one layer in a mark; 0 if the layer has no ring. */
static uint64_t mark_layer_bytes(const kv_cache *kv, const kv_mark *mark, uint32_t i) {
    const kv_rows *rows = &kv->rows[i];
    return rows->ring && kv_memory_there(&rows->k) ? (uint64_t)rows->row * (mark->position - mark->first) : 0;
}

static gm_status copy_mark(kv_cache *kv, const kv_mark *mark, bool to_ring, error *e) {
    for (uint32_t i = 0; i < kv->config->layers && !e->status; i++) {
        const kv_rows *rows = &kv->rows[i];
        const uint64_t bytes = mark_layer_bytes(kv, mark, i);
        if (!bytes) continue;
        copy_ring(kv, rows, &rows->k, &mark->rows[i], 0, mark->first, mark->position, to_ring, e);
        copy_ring(kv, rows, &rows->v, &mark->rows[i], bytes, mark->first, mark->position, to_ring, e);
    }
    return e->status;
}

size_t kv_rollback(kv_cache *kv, size_t keep) {
    error e = { 0 };
    drop_marks(kv, keep);
    if (ring_reaches(kv, keep)) return keep;
    if (kv->marks && !copy_mark(kv, kv->marks, true, &e)) { /* the newest mark left; none lies beyond `keep` */
        kv->high = kv->marks->position;
        kv->low = kv->marks->first;
        return kv->marks->position;
    }
    kv->high = kv->low = 0;
    return 0;
}

/* A mark without its contents; NULL if there is no memory for it. */
static kv_mark *mark_new(kv_cache *kv, size_t first, size_t position) {
    error    e = { 0 };
    kv_mark *mark = calloc(1, sizeof *mark + kv->config->layers * sizeof *mark->rows);
    if (!mark) return NULL;
    mark->position = position;
    mark->first = first;
    for (uint32_t i = 0; i < kv->config->layers && !e.status; i++) {
        const uint64_t bytes = 2 * mark_layer_bytes(kv, mark, i);
        if (bytes && !kv_memory_new(kv->gpu, bytes, &mark->rows[i], &e)) mark->bytes += bytes;
    }
    kv->mark_bytes += mark->bytes;
    if (!e.status && mark->bytes) return mark;
    free_mark(kv, mark);
    return NULL;
}

static void drop_oldest_mark(kv_cache *kv) {
    kv_mark **at = &kv->marks;
    while ((*at)->older) at = &(*at)->older;
    free_mark(kv, *at);
    *at = NULL;
}

void kv_add_mark(kv_cache *kv, size_t position) {
    const size_t window = kv->config->window,
                 first = max_size(position > window ? position - window : 0, kv_ring_first(kv, position));
    const uint64_t most = kv_mark_bytes(kv->config, kv->type, kv->gpu != NULL);
    error          e = { 0 };
    if (!position || (kv->marks && kv->marks->position >= position) || most > kv->mark_budget) return;
    while (kv->marks && kv->mark_bytes + most > kv->mark_budget) drop_oldest_mark(kv);
    kv_mark *mark = mark_new(kv, first, position);
    if (!mark) return;
    if (copy_mark(kv, mark, false, &e)) {
        free_mark(kv, mark);
        return;
    }
    mark->older = kv->marks;
    kv->marks = mark;
}

gm_status kv_copy(kv_cache *out, const kv_cache *kv, size_t positions, error *e) {
    if (kv_open(out, kv->config, kv->gpu, kv->type, kv->context, e)) return e->status;
    if (!kv_widen(out, kv->slack, e)) kv_reserve(out, max_size(positions, 1), e);
    for (uint32_t i = 0; i < kv->config->layers && !e->status; i++) {
        const kv_rows *from = &kv->rows[i], *to = &out->rows[i];
        const size_t last = from->ring ? (size_t)kv->high : positions, first = from->ring ? kv_ring_first(kv, last) : 0;
        if (!kv_memory_there(&from->k)) continue;
        if (!copy_positions(kv->gpu, from, &to->k, to->slots, &from->k, from->slots, first, last, e))
            copy_positions(kv->gpu, from, &to->v, to->slots, &from->v, from->slots, first, last, e);
    }
    out->high = kv->high;
    out->low = kv->low;
    if (e->status) kv_close(out);
    return e->status;
}
