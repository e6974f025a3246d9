#include "gpu/experts_kept.h"

#include "base/free_memory.h"
#include "gpu/pipeline.h"

#include <stdlib.h>
#include <string.h>

#define MOST_COPY (UINT64_C(32) << 20) /* gpu_buffer_write takes no more than twice that at once */

static uint64_t kept_bytes(const expert_layer *l) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < l->weight_count; i++) {
        weight_range ranges[WEIGHT_PLANES];
        uint32_t     tile;
        const size_t count = weight_expert_planes(&l->weights[i]->layout, 0, &tile, ranges);
        for (size_t j = 0; j < count; j++) bytes += ranges[j].bytes;
    }
    return bytes;
}

void expert_kept_make(expert_cache *c) {
    uint64_t one = 0; /* of each layer */
    c->kept_most = 0;
    for (size_t i = 0; i < c->layer_count; i++) {
        if (kept_bytes(&c->layers[i]) > MOST_COPY) return;
        one += kept_bytes(&c->layers[i]);
    }
    if (one) c->kept_most = (uint32_t)min_size(free_memory() / 2 / one, EXPERT_MOST);
}

gm_status expert_kept_write(gpu_backend *b, const expert_layer *l, uint32_t expert, uint32_t slot, error *e) {
    const uint8_t *from = l->kept[expert];
    for (size_t i = 0; i < l->weight_count; i++) {
        const gpu_weight *w = l->weights[i];
        weight_range      ranges[WEIGHT_PLANES];
        uint32_t          tile;
        const size_t      count = weight_expert_planes(&w->layout, slot, &tile, ranges);
        for (size_t j = 0; j < count; from += ranges[j++].bytes) {
            const gm_status status = gpu_buffer_write(b->host, w->tiles[tile], ranges[j].at, from, ranges[j].bytes, e);
            if (status) return status;
        }
    }
    return GM_OK;
}

/* ---- reading back ---- */

static void kept_drop(gpu_backend *b, expert_reading *r) {
    for (size_t i = 0; i < r->count; i++) gpu_ticket_done(b->host, r->tickets[i]);
    *r = (expert_reading){ 0 };
}

void expert_kept_free(gpu_backend *b) {
    expert_cache *c = b->experts;
    for (size_t i = 0; i < COUNT_OF(c->reading); i++) kept_drop(b, &c->reading[i]);
    for (size_t i = 0; i < c->layer_count; i++) {
        for (uint32_t x = 0; c->layers[i].kept && x < c->layers[i].experts; x++) free(c->layers[i].kept[x]);
    }
}

static void kept_read(expert_reading *r, const expert_layer *l, uint32_t slot, gpu_host *h, gpu_words *words) {
    for (size_t i = 0; i < l->weight_count; i++) {
        const gpu_weight *w = l->weights[i];
        weight_range      ranges[WEIGHT_PLANES];
        uint32_t          tile;
        const size_t      count = weight_expert_planes(&w->layout, slot, &tile, ranges);
        for (size_t j = 0; j < count; j++) {
            const size_t   at = gpu_words_read(words, w->tiles[tile], ranges[j].at, ranges[j].bytes);
            const uint32_t ticket = gpu_ticket_new(h);
            if (!ticket) words->failed = true;
            if (words->failed) return;
            words->data[at] = ticket;
            r->tickets[r->count++] = ticket;
        }
    }
}

void expert_kept_ask(gpu_backend *b, expert_layer *l, uint32_t expert, uint32_t slot) {
    expert_cache   *c = b->experts;
    expert_reading *r = NULL;
    if (!c->kept_most) return;
    for (size_t i = 0; i < COUNT_OF(c->reading); i++) {
        if (!c->reading[i].layer) r = &c->reading[i];
        else if (c->reading[i].layer == l && c->reading[i].expert == expert) return;
    }
    if (!r) return; /* too many are under way; perhaps the next time */
    gpu_words words = { 0 };
    error     ignored = { 0 };
    gpu_words_begin(&words);
    *r = (expert_reading){ .layer = l, .expert = expert };
    kept_read(r, l, slot, b->host, &words);
    if (words.failed || gpu_submit(b->host, words.data, words.count, &ignored)) kept_drop(b, r);
    free(words.data);
}

/* Room for one more copy in the layer, if the expert is worth it. */
static bool kept_make_room(const expert_cache *c, expert_layer *l, uint32_t expert) {
    uint32_t count = 0, lowest = EXPERT_NOWHERE;
    for (uint32_t i = 0; i < l->experts; i++) {
        if (!l->kept[i]) continue;
        count++;
        if (lowest == EXPERT_NOWHERE || l->score[i] < l->score[lowest]) lowest = i;
    }
    if (count < c->kept_most) return true;
    if (l->score[lowest] >= l->score[expert]) return false;
    free(l->kept[lowest]);
    l->kept[lowest] = NULL;
    return true;
}

static bool kept_has_arrived(const gpu_backend *b, const expert_reading *r) {
    for (size_t i = 0; i < r->count; i++) {
        if (!gpu_ticket_data(b->host, r->tickets[i], NULL)) return false;
    }
    return r->layer;
}

void expert_kept_take(gpu_backend *b) {
    expert_cache *c = b->experts;
    for (size_t i = 0; i < COUNT_OF(c->reading); i++) {
        expert_reading *r = &c->reading[i];
        expert_layer   *l = r->layer;
        if (!kept_has_arrived(b, r)) continue;
        const uint64_t room = kept_bytes(l);
        uint8_t       *copy = !l->kept[r->expert] && kept_make_room(c, l, r->expert) ? malloc(room) : NULL;
        for (size_t j = 0, at = 0; j < r->count && copy; j++) {
            uint64_t    bytes = 0;
            const void *data = gpu_ticket_data(b->host, r->tickets[j], &bytes);
            memcpy(copy + at, data, min_size(bytes, room - at));
            at += bytes;
        }
        if (copy) l->kept[r->expert] = copy;
        kept_drop(b, r);
    }
}
