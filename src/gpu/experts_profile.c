#include "gpu/experts_profile.h"

#include <math.h>
#include <string.h>

/* Tokens after which a use counts half, from one profile to the next. */
enum { PROFILE_HALF_LIFE = 4096, PROFILE_HEADER = 3 };

static uint32_t profile_word(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void profile_put(buffer *out, uint32_t word) {
    for (size_t i = 0; i < 4; i++) buffer_char(out, (char)(word >> 8 * i));
}

size_t expert_profile_size(const expert_cache *c) {
    size_t words = PROFILE_HEADER;
    for (size_t i = 0; i < c->layer_count; i++) words += 1 + c->layers[i].experts;
    return words * sizeof(uint32_t);
}

void expert_profile_write(const expert_cache *c, buffer *out) {
    const float fade = exp2f(-(float)c->statistics.tokens / PROFILE_HALF_LIFE);
    profile_put(out, EXPERT_PROFILE_MAGIC);
    profile_put(out, EXPERT_PROFILE_VERSION);
    profile_put(out, (uint32_t)c->layer_count);
    for (size_t i = 0; i < c->layer_count; i++) {
        const expert_layer *l = &c->layers[i];
        profile_put(out, l->experts);
        for (uint32_t x = 0; x < l->experts; x++)
            profile_put(out, (uint32_t)fminf((float)l->known[x] * fade + (float)l->seen[x], 1e9f));
    }
}

/* Scores as if the last tokens had used experts as the profile says. */
static void profile_take_layer(expert_layer *l, const uint8_t *at) {
    double sum = 0;
    for (uint32_t x = 0; x < l->experts; x++) sum += l->known[x] = profile_word(at + 4 * x);
    for (uint32_t x = 0; x < l->experts && sum > 0; x++)
        l->score[x] = (float)(l->known[x] / sum * EXPERT_HALF_LIFE * l->used);
}

gm_status expert_profile_read(expert_cache *c, const uint8_t *data, size_t size, error *e) {
    const size_t expected = expert_profile_size(c);
    if (size != expected)
        return fail(e, GM_BAD_FILE, "the profile of experts has %zu bytes, expected %zu", size, expected);
    if (profile_word(data) != EXPERT_PROFILE_MAGIC || profile_word(data + 4) != EXPERT_PROFILE_VERSION ||
        profile_word(data + 8) != c->layer_count)
        return fail(e, GM_BAD_FILE, "this is no profile of %zu layers of experts in version %d", c->layer_count,
                    EXPERT_PROFILE_VERSION);
    const uint8_t *at = data + 4 * PROFILE_HEADER;
    for (size_t i = 0; i < c->layer_count; at += 4 * (1 + (size_t)c->layers[i++].experts)) {
        if (profile_word(at) != c->layers[i].experts)
            return fail(e, GM_BAD_FILE, "the profile has %u experts in layer %zu, expected %u", profile_word(at), i,
                        c->layers[i].experts);
    }
    at = data + 4 * PROFILE_HEADER;
    for (size_t i = 0; i < c->layer_count; at += 4 * (1 + (size_t)c->layers[i++].experts))
        profile_take_layer(&c->layers[i], at + 4);
    c->warm = 0;
    return GM_OK;
}

/* The experts that were used most, as many as there are slots. */
static void profile_wants(const expert_cache *c, expert_layer *l, expert_wants *out) {
    *out = (expert_wants){ .layer = l };
    for (uint32_t slot = 0; slot < c->slots; slot++) {
        uint32_t best = EXPERT_NOWHERE;
        for (uint32_t x = 0; x < l->experts; x++) {
            if (!out->wanted[x] && l->known[x] && (best == EXPERT_NOWHERE || l->known[x] > l->known[best])) best = x;
        }
        if (best == EXPERT_NOWHERE) return;
        out->wanted[best] = 1;
    }
}

gm_status expert_cache_warm(gpu_backend *b, error *e) {
    expert_cache *c = b->experts;
    for (; c->warm < c->layer_count; c->warm++) {
        expert_wants       wants;
        const expert_wants ahead = { 0 };
        const void        *owner = c; /* no run is */
        profile_wants(c, &c->layers[c->warm], &wants);
        const gm_status status = expert_cache_load(b, owner, &wants, &ahead, e);
        if (status) return status;
        expert_cache_release(b, owner);
    }
    return GM_OK;
}
