#include "session/canvas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

gm_status canvas_new(const model_config *config, canvas_numbers *out, error *e) {
    const size_t n = config->canvas.length;
    *out = (canvas_numbers){ .config = config->canvas, .rule = model_canvas_rule(config), .warmth = 1 };
    out->states = calloc(n, sizeof *out->states);
    out->settings = calloc(n, CANVAS_SETTINGS * sizeof *out->settings);
    out->likeliest = calloc(n, sizeof *out->likeliest);
    out->entropies = calloc(n, sizeof *out->entropies);
    out->accepted = calloc(n, sizeof *out->accepted);
    out->pinned = calloc(n, sizeof *out->pinned);
    if (out->states && out->settings && out->likeliest && out->entropies && out->accepted && out->pinned) return GM_OK;
    canvas_free(out);
    return fail_memory(e, "a canvas", n * sizeof *out->states);
}

void canvas_free(canvas_numbers *c) {
    free(c->states);
    free(c->settings);
    free(c->likeliest);
    free(c->entropies);
    free(c->accepted);
    free(c->pinned);
    *c = (canvas_numbers){ 0 };
}

static float canvas_temperature(const canvas_numbers *c, uint32_t step) {
    const float left = (float)(c->config.steps - step) / (float)c->config.steps;
    return (c->config.coolest + (c->config.warmest - c->config.coolest) * left) * c->warmth;
}

void canvas_set_temperature(canvas_numbers *c, float temperature) {
    c->warmth *= temperature / canvas_temperature(c, c->step);
}

void canvas_settings(const canvas_numbers *c, uint32_t step, float *settings) {
    const float inverse = 1 / canvas_temperature(c, step);
    for (uint32_t i = 0; i < c->config.length; i++) {
        float         *at = settings + i * CANVAS_SETTINGS;
        const uint32_t words[] = { (uint32_t)c->seed, (uint32_t)(c->seed >> 32),
                                   c->block << CANVAS_BLOCK_SHIFT | step << CANVAS_STEP_SHIFT | i };
        at[CANVAS_INVERSE] = inverse;
        memcpy(at + CANVAS_KEY_0, words, sizeof words);
    }
}

void canvas_begin(canvas_numbers *c, uint64_t seed, uint32_t block, const canvas_start *start, size_t count) {
    c->seed = seed;
    c->block = block;
    c->step = 0;
    c->mean = 0;
    c->done = true; /* unless a position is open */
    canvas_settings(c, 0, c->settings);
    for (size_t i = 0; i < c->config.length; i++) {
        const bool given = i < count && start[i].id != CANVAS_HOLE;
        c->pinned[i] = c->accepted[i] = given && start[i].pinned;
        c->done = c->done && c->pinned[i];
        c->entropies[i] = 0;
        c->likeliest[i] = given ? start[i].id : canvas_random_id(&c->rule, c->settings + i * CANVAS_SETTINGS);
        c->states[i] = (canvas_state){ .id = c->likeliest[i], .pinned = c->pinned[i], .likeliest = CANVAS_NONE };
    }
}

bool canvas_take(canvas_numbers *c, const float *findings) {
    double sum = 0;
    size_t open = 0;
    for (size_t i = 0; i < c->config.length; i++) {
        const float *found = findings + i * CANVAS_FINDINGS;
        if (isnan(found[CANVAS_ENTROPY])) return false;
        if (c->pinned[i]) continue;
        memcpy(&c->likeliest[i], found + CANVAS_LIKELIEST, sizeof c->likeliest[i]);
        c->entropies[i] = found[CANVAS_ENTROPY];
        sum += (double)c->entropies[i];
        open++;
    }
    c->mean = open ? (float)(sum / (double)open) : 0;
    c->step++;
    canvas_settings(c, c->step, c->settings);
    c->done = canvas_next(&c->rule, c->config.length, findings, c->settings, c->states, c->accepted) ||
              c->step >= c->config.steps;
    return true;
}
