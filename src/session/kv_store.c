#include "session/kv_store.h"

#include "gpu/kernels.h"
#include "session/kv_marks.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static gm_status store_check_type(const model_config *c, quant_type type, error *e) {
    for (uint32_t i = 0; i < c->layers; i++) {
        if (type == TYPE_Q8_0 && c->layer[i].head % 32) {
            return fail(e, GM_UNSUPPORTED,
                        "keys and values in q8_0 need heads of a multiple of 32 values; layer %u has %u", i,
                        c->layer[i].head);
        }
    }
    return GM_OK;
}

static size_t store_row_bytes(const layer_config *layer, quant_type type, bool on_gpu) {
    if (!layer->owns_kv) return 0;
    if (on_gpu) return (size_t)gpu_kv_row_bytes(type, layer->kv_heads, layer->head);
    return (size_t)quant_row_bytes(quant_format_of(type), (uint64_t)layer->kv_heads * layer->head);
}

/* How many rows a binding holds of each layer of this kind. */
static size_t binding_slots(const model_config *c, uint64_t binding, quant_type type, bool sliding) {
    uint64_t most = SIZE_MAX;
    for (uint32_t i = 0; i < c->layers; i++) {
        const layer_config *layer = &c->layer[i];
        if (!layer->owns_kv || layer->sliding != sliding) continue;
        const uint64_t slots = binding / 16 * 16 / gpu_kv_row_bytes(type, layer->kv_heads, layer->head);
        if (slots < most) most = slots;
    }
    return (size_t)most;
}

size_t kv_binding_positions(const model_config *config, uint64_t binding, quant_type type) {
    return binding_slots(config, binding, type, false);
}

size_t kv_most_context(const model_config *config, gpu_host *gpu, quant_type type) {
    return gpu ? kv_binding_positions(config, gpu_host_info(gpu)->max_binding, type) : SIZE_MAX;
}

uint64_t kv_mark_bytes(const model_config *c, quant_type type, bool on_gpu) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->layers; i++) {
        if (c->layer[i].sliding) bytes += (uint64_t)2 * c->window * store_row_bytes(&c->layer[i], type, on_gpu);
    }
    return bytes;
}

gm_status kv_store_open(kv_store *store, const model_config *config, gpu_host *gpu, quant_type type, error *e) {
    *store = (kv_store){ .config = config, .gpu = gpu, .type = type };
    /* Marks only save time. They get no memory that is short. */
    store->mark_budget = gpu && gpu_host_limit(gpu) ? 0 : kv_mark_budget(config, type, gpu != NULL);
    TRY(store_check_type(config, type, e));
    store->rows = calloc(config->layers, sizeof *store->rows);
    if (gpu) store->gpu_layers = calloc(config->layers, sizeof *store->gpu_layers);
    else store->cpu_layers = calloc(config->layers, sizeof *store->cpu_layers);
    const bool      made = store->rows && (store->gpu_layers || store->cpu_layers);
    const gm_status status = made
                                 ? kv_mover_open(&store->mover, gpu, e)
                                 : fail_memory(e, "the table of keys and values", config->layers * sizeof *store->rows);
    for (uint32_t i = 0; i < config->layers && !status; i++) {
        store->rows[i].row = store_row_bytes(&config->layer[i], type, gpu != NULL);
        store->rows[i].space = config->layer[i].sliding ? KV_RINGS : KV_FULL;
    }
    for (kv_space space = 0; space < KV_SPACES; space++) {
        store->most[space] =
            gpu ? binding_slots(config, gpu_host_info(gpu)->max_binding, type, space == KV_RINGS) : SIZE_MAX;
    }
    if (status) kv_store_close(store);
    return status;
}

void kv_store_close(kv_store *store) {
    for (uint32_t i = 0; store->rows && i < store->config->layers; i++) {
        kv_memory_free(store->gpu, &store->rows[i].k);
        kv_memory_free(store->gpu, &store->rows[i].v);
    }
    kv_mover_close(&store->mover);
    free(store->rows);
    free(store->cpu_layers);
    free(store->gpu_layers);
    *store = (kv_store){ 0 };
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

/* Tells the backend where a layer's rows are now. */
static void store_publish(kv_store *store, uint32_t i) {
    const kv_rows      *rows = &store->rows[i];
    const layer_config *layer = &store->config->layer[i];
    if (store->gpu) {
        store->gpu_layers[i] = (gpu_kv_layer){ rows->k.device,  rows->v.device, store->type,
                                               layer->kv_heads, layer->head,    round_up(rows->row * rows->slots, 16) };
    } else {
        store->cpu_layers[i] = (kv_layer){ rows->k.host, rows->v.host, store->type, layer->kv_heads, layer->head };
    }
}

/* Moves rows to larger memory. The old rows stay until the copy has succeeded. */
static gm_status rows_grow(kv_store *store, kv_memory *rows, uint64_t held, uint64_t bytes, error *e) {
    kv_memory larger;
    TRY(kv_memory_new(store->gpu, bytes, &larger, e));
    const gm_status status = held ? kv_memory_copy(store->gpu, &larger, 0, rows, 0, held, e) : GM_OK;
    if (status) {
        kv_memory_free(store->gpu, &larger);
        return status;
    }
    kv_memory_free(store->gpu, rows);
    *rows = larger;
    return GM_OK;
}

/* Layer by layer, so that the old rows of only one layer live beside the new ones. If this fails halfway, some layers have more slots
 * than the capacity says, which does no harm. */
static gm_status store_grow(kv_store *store, kv_space space, size_t capacity, error *e) {
    kv_slots *slots = &store->spaces[space];
    for (uint32_t i = 0; i < store->config->layers; i++) {
        kv_rows *rows = &store->rows[i];
        if (!rows->row || rows->space != space || rows->slots >= capacity) continue;
        const uint64_t held = (uint64_t)rows->row * min_size(kv_slots_end(slots), rows->slots),
                       bytes = (uint64_t)rows->row * capacity;
        gm_status status = rows_grow(store, &rows->k, held, bytes, e);
        if (!status) status = rows_grow(store, &rows->v, held, bytes, e);
        if (!status) rows->slots = capacity;
        store_publish(store, i); /* also after a failure: the keys may have moved already */
        TRY(status);
    }
    slots->capacity = capacity;
    return GM_OK;
}

gm_status kv_store_move(kv_store *store, kv_space space, size_t from, size_t to, size_t count, error *e) {
    for (uint32_t i = 0; i < store->config->layers; i++) {
        const kv_rows *rows = &store->rows[i];
        const uint64_t bytes = round_up((uint64_t)rows->row * rows->slots, 16);
        if (!rows->row || rows->space != space) continue;
        TRY(kv_mover_move(&store->mover, &rows->k, bytes, rows->row, from, to, count, e));
        TRY(kv_mover_move(&store->mover, &rows->v, bytes, rows->row, from, to, count, e));
    }
    return GM_OK;
}

/* ---- slots --------------------------------------------------------------------------------------------------------- */

/* Memory is limited: sequences that nobody uses give up their slots before the store grows. */
static bool memory_is_tight(const kv_store *store) { return store->gpu && gpu_host_limit(store->gpu); }

/* How many slots the store gets for the asking. Beyond that it grows only if nothing else helps. */
static size_t slots_wanted(const kv_store *store, kv_space space) {
    if (space == KV_RINGS) return 0;
    const size_t idle = memory_is_tight(store) ? 0 : store->idle;
    return min_size(max_size(store->contexts, idle), store->most[space]);
}

/* Makes room for `x` with `count` slots: behind all others, or where it is if it is the last. `least` is the least capacity, and
 * `limit` the most. False: that is no more than there is, or there is no memory. */
static bool grow_for(kv_store *store, kv_space space, const kv_extent *x, size_t count, size_t least, size_t limit,
                     error *e) {
    const kv_slots *slots = &store->spaces[space];
    const size_t    first = x->count && !x->next ? x->first : kv_slots_end(slots);
    const size_t    capacity = min_size(max_size(first + count, least), limit);
    return capacity > slots->capacity && !store_grow(store, space, capacity, e);
}

typedef struct {
    kv_store *store;
    kv_space  space;
} packing;

static gm_status store_pack_rows(void *user, size_t from, size_t to, size_t count, error *e) {
    const packing *packed = user;
    return kv_store_move(packed->store, packed->space, from, to, count, e);
}

static void store_note_move(kv_store *store) {
    store->moves++;
    if (store->gpu_moves) ++*store->gpu_moves;
}

static gm_status store_pack(kv_store *store, kv_space space, kv_extent *larger, size_t count, error *e) {
    packing packed = { store, space };
    store_note_move(store);
    return kv_slots_pack(&store->spaces[space], larger, count, store_pack_rows, &packed, e);
}

static gm_status extent_relocate(kv_store *store, kv_space space, kv_extent *x, size_t first, size_t count, error *e) {
    if (x->used) {
        TRY(kv_store_move(store, space, x->first, first, x->used, e));
        store_note_move(store);
    }
    kv_slots_place(&store->spaces[space], x, first, count);
    return GM_OK;
}

static gm_status fit_refuse(const kv_store *store, kv_space space, size_t count, const error *cause, error *e) {
    const size_t most = store->most[space], taken = kv_slots_taken(&store->spaces[space]);
    char         held[32], more[32], limit[32];
    if (most - taken >= count) return fail(e, cause->status ? cause->status : GM_NO_MEMORY, "%s", cause->why);
    with_commas(taken, held), with_commas(count, more), with_commas(most, limit);
    return fail(e, GM_NO_MEMORY,
                "all sessions together hold %s positions of the %s layers, and %s more are needed, but a binding of "
                "this GPU has room for %s: close a session, or use smaller contexts",
                held, space == KV_RINGS ? "sliding" : "full", more, limit);
}

gm_status kv_store_fit(kv_store *store, kv_space space, kv_extent *x, size_t count, error *e) {
    kv_slots  *slots = &store->spaces[space];
    const bool tight = memory_is_tight(store);
    error      cause = { 0 };
    for (;;) {
        const size_t wanted = slots_wanted(store, space), twice = 2 * slots->capacity;
        size_t       first;
        if (x->count && kv_slots_resize(slots, x, count)) return GM_OK;
        if (kv_slots_find(slots, count, &first)) return extent_relocate(store, space, x, first, count, e);
        if (!tight && grow_for(store, space, x, count, twice, wanted, &cause)) continue;
        if (kv_slots_taken(slots) - x->count + count <= slots->capacity) {
            if (x->count) return store_pack(store, space, x, count, e);
            TRY(store_pack(store, space, NULL, 0, e));
            continue;
        }
        if (store->give_up && store->give_up(store->user, store, space)) continue;
        cause = (error){ 0 };
        if (tight && grow_for(store, space, x, count, twice, wanted, &cause)) continue;
        if (grow_for(store, space, x, count, 0, store->most[space], &cause)) continue;
        if (cause.status && store->free_memory && store->free_memory(store->user)) continue;
        return fit_refuse(store, space, count, &cause, e);
    }
}

kv_extent *kv_store_take(kv_store *store, kv_space space, size_t count, error *e) {
    kv_extent *x = calloc(1, sizeof *x);
    if (!x) fail_memory(e, "an extent of keys and values", sizeof *x);
    else if (kv_store_fit(store, space, x, count, e)) {
        free(x);
        x = NULL;
    } else x->users = 1;
    return x;
}

void kv_store_release(kv_store *store, kv_space space, kv_extent *x) {
    if (!x) return;
    if (--x->users == 1) x->kept = 0; /* the last user is alone with it */
    if (x->users) return;
    kv_slots_remove(&store->spaces[space], x);
    free(x);
}
