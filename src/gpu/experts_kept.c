#include "gpu/experts_kept.h"

#include <stdlib.h>
#include <string.h>

#define MOST_COPY (UINT64_C(32) << 20) /* gpu_source_write takes no more than twice that at once */

/* Bytes of an expert in all weights of its layer. */
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

void expert_kept_make(gpu_backend *b) {
    expert_cache *c = b->experts;
    uint64_t      one = 0; /* of each layer */
    c->kept_most = 0;
    for (size_t i = 0; i < c->layer_count; i++) {
        if (kept_bytes(&c->layers[i]) > MOST_COPY) return;
        one += kept_bytes(&c->layers[i]);
    }
    if (one) c->kept_most = (uint32_t)min_size(gpu_host_info(b->host)->main_memory / one, EXPERT_MOST);
}

gm_status expert_kept_restore(gpu_backend *b, const expert_layer *l, uint32_t expert, uint32_t slot, error *e) {
    uint64_t from = 0;
    for (size_t i = 0; i < l->weight_count; i++) {
        const gpu_weight *w = l->weights[i];
        weight_range      ranges[WEIGHT_PLANES];
        uint32_t          tile;
        const size_t      count = weight_expert_planes(&w->layout, slot, &tile, ranges);
        for (size_t j = 0; j < count; from += ranges[j++].bytes) {
            const gm_status status =
                gpu_source_write(b->host, l->kept[expert], from, w->tiles[tile], ranges[j].at, ranges[j].bytes, e);
            if (status) return status;
        }
    }
    return GM_OK;
}

/* Whether a copy of expert a is worth less than one of expert b. What is in a slot can be read back when it loses that. */
static bool kept_is_worth_less(const expert_layer *l, uint32_t a, uint32_t b) {
    const bool a_is_here = l->slot_of[a] != EXPERT_NOWHERE, b_is_here = l->slot_of[b] != EXPERT_NOWHERE;
    return a_is_here != b_is_here ? a_is_here : l->score[a] < l->score[b];
}

/* Room for one more copy in the layer, if the expert is worth it. */
static bool kept_make_room(gpu_backend *b, expert_layer *l, uint32_t expert) {
    uint32_t count = 0, lowest = EXPERT_NOWHERE;
    for (uint32_t i = 0; i < l->experts; i++) {
        if (!l->kept[i]) continue;
        count++;
        if (lowest == EXPERT_NOWHERE || kept_is_worth_less(l, i, lowest)) lowest = i;
    }
    if (count < b->experts->kept_most) return true;
    if (lowest == EXPERT_NOWHERE || !kept_is_worth_less(l, lowest, expert)) return false;
    gpu_source_free(b->host, l->kept[lowest]);
    l->kept[lowest] = 0;
    return true;
}

/* ---- reading back ---- */

static void reading_end(gpu_backend *b, expert_reading *r) {
    for (size_t i = 0; i < r->tickets; i++) gpu_ticket_done(b->host, r->ticket[i]);
    *r = (expert_reading){ 0 };
}

void expert_kept_free(gpu_backend *b) {
    expert_cache *c = b->experts;
    for (size_t i = 0; i < COUNT_OF(c->reading); i++) reading_end(b, &c->reading[i]);
    for (size_t i = 0; i < c->layer_count; i++) {
        for (uint32_t x = 0; c->layers[i].kept && x < c->layers[i].experts; x++)
            gpu_source_free(b->host, c->layers[i].kept[x]);
    }
}

static void reading_add(expert_reading *r, uint32_t expert, uint32_t slot, gpu_host *h, gpu_words *words) {
    const expert_layer *l = r->layer;
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
            r->ticket[r->tickets++] = ticket;
        }
    }
    r->expert[r->count++] = expert;
}

bool expert_kept_is_read(const expert_cache *c, const expert_layer *l, uint32_t expert) {
    for (size_t i = 0; i < COUNT_OF(c->reading); i++) {
        const expert_reading *r = &c->reading[i];
        for (size_t j = 0; j < r->count && r->layer == l; j++) {
            if (r->expert[j] == expert) return true;
        }
    }
    return false;
}

static expert_reading *reading_free_one(expert_cache *c) {
    if (!c->kept_most) return NULL;
    for (size_t i = 0; i < COUNT_OF(c->reading); i++) {
        if (!c->reading[i].layer) return &c->reading[i];
    }
    return NULL; /* too many are under way; perhaps the next time */
}

void expert_kept_ask(gpu_backend *b, expert_layer *l, const uint32_t *experts, const uint32_t *slots, size_t count) {
    expert_cache *c = b->experts;
    for (size_t i = 0; i < count;) {
        expert_reading *r = reading_free_one(c);
        gpu_words       words = { 0 };
        error           ignored = { 0 };
        if (!r) return;
        r->layer = l;
        gpu_words_begin(&words);
        for (; i < count && r->count < EXPERT_READ_TOGETHER && !words.failed; i++) {
            if (experts[i] == EXPERT_NOWHERE || l->kept[experts[i]] || expert_kept_is_read(c, l, experts[i])) continue;
            reading_add(r, experts[i], slots[i], b->host, &words);
        }
        const bool failed = words.failed;
        if (!r->count || failed || gpu_submit(b->host, words.data, words.count, &ignored)) reading_end(b, r);
        free(words.data);
        if (failed) return;
    }
}

/* Takes the copy of the next expert, and keeps it if the expert is worth that. GM_AGAIN: it has not arrived. */
static gm_status reading_take(gpu_backend *b, expert_reading *r) {
    const size_t    each = r->tickets / r->count;
    const uint32_t *tickets = r->ticket + r->taken * each, expert = r->expert[r->taken];
    error           ignored = { 0 };
    gpu_id          made = 0;
    if (gpu_source_new(b->host, tickets, each, &made, &ignored) == GM_AGAIN) return GM_AGAIN;
    r->taken++;
    if (!made) return GM_OK; /* no memory */
    if (!r->layer->kept[expert] && kept_make_room(b, r->layer, expert)) r->layer->kept[expert] = made;
    else gpu_source_free(b->host, made);
    return GM_OK;
}

void expert_kept_take(gpu_backend *b) {
    expert_cache *c = b->experts;
    for (size_t i = 0; i < COUNT_OF(c->reading); i++) {
        expert_reading *r = &c->reading[i];
        while (r->layer && r->taken < r->count && !reading_take(b, r)) {}
        if (r->layer && r->taken == r->count) reading_end(b, r);
    }
}

gm_status expert_kept_rewrite(gpu_backend *b, uint64_t *bytes, error *e) {
    const expert_cache *c = b->experts;
    *bytes = 0;
    for (size_t i = 0; i < c->layer_count; i++) {
        const expert_layer *l = &c->layers[i];
        for (uint32_t x = 0; x < l->experts; x++) {
            gm_status status = GM_AGAIN;
            if (!l->kept[x] || l->slot_of[x] == EXPERT_NOWHERE) continue;
            while (status == GM_AGAIN) {
                status = expert_kept_restore(b, l, x, l->slot_of[x], e);
                if (status == GM_AGAIN) gpu_host_wait(b->host, 10);
            }
            if (status) return status;
            *bytes += kept_bytes(l);
        }
    }
    return GM_OK;
}
