#include "session/canvas.h"

#include "base/random.h"
#include "graph/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_SHIFT = 10, BLOCK_SHIFT = 20, NOISE_STREAM = 1 };

gm_status canvas_new(const model_config *config, canvas_numbers *out, error *e) {
    const size_t n = config->canvas.length;
    *out = (canvas_numbers){ .config = config->canvas, .vocabulary = config->vocabulary, .warmth = 1 };
    out->ids = calloc(n, sizeof *out->ids);
    out->likeliest = calloc(n, sizeof *out->likeliest);
    out->entropies = calloc(n, sizeof *out->entropies);
    out->accepted = calloc(n, sizeof *out->accepted);
    out->pinned = calloc(n, sizeof *out->pinned);
    if (out->ids && out->likeliest && out->entropies && out->accepted && out->pinned) return GM_OK;
    canvas_free(out);
    return fail_memory(e, "a canvas", n * sizeof *out->ids);
}

void canvas_free(canvas_numbers *c) {
    free(c->ids);
    free(c->likeliest);
    free(c->entropies);
    free(c->accepted);
    free(c->pinned);
    *c = (canvas_numbers){ 0 };
}

uint32_t canvas_draw_number(const canvas_numbers *c, size_t position) {
    return c->block << BLOCK_SHIFT | c->step << STEP_SHIFT | (uint32_t)position;
}

/* A token that is as likely as any other. */
static int32_t canvas_random_id(const canvas_numbers *c, size_t position) {
    const uint32_t key[2] = { (uint32_t)c->seed, (uint32_t)(c->seed >> 32) };
    uint32_t       words[4];
    philox((uint32_t[]){ 0, canvas_draw_number(c, position), NOISE_STREAM, CANVAS_STREAM }, key, words);
    return (int32_t)((uint64_t)words[0] * c->vocabulary >> 32);
}

void canvas_begin(canvas_numbers *c, uint64_t seed, uint32_t block, const canvas_start *start, size_t count) {
    c->seed = seed;
    c->block = block;
    c->step = c->same = 0;
    c->mean = 0;
    c->done = false;
    for (size_t i = 0; i < c->config.length; i++) {
        const bool given = i < count && start[i].id != CANVAS_HOLE;
        c->pinned[i] = given && start[i].pinned;
        c->accepted[i] = c->pinned[i];
        c->entropies[i] = 0;
        c->ids[i] = c->likeliest[i] = given ? start[i].id : canvas_random_id(c, i);
    }
}

float canvas_temperature(const canvas_numbers *c) {
    const float left = (float)(c->config.steps - c->step) / (float)c->config.steps;
    return (c->config.coolest + (c->config.warmest - c->config.coolest) * left) * c->warmth;
}

void canvas_accept(const float *entropies, size_t n, float bound, bool *accepted) {
    for (size_t i = 0; i < n; i++) {
        double before = 0;
        for (size_t j = 0; j < n; j++) {
            if (entropies[j] < entropies[i] || (entropies[j] == entropies[i] && j < i)) before += (double)entropies[j];
        }
        accepted[i] = before <= (double)bound;
    }
}

/* What each position's findings say. Returns whether the likeliest tokens are those of the step before. */
static bool canvas_read(canvas_numbers *c, const float *findings, int32_t *drawn) {
    bool   same = c->step > 0;
    double sum = 0;
    size_t open = 0;
    for (size_t i = 0; i < c->config.length; i++) {
        int32_t likeliest = c->ids[i];
        if (!c->pinned[i]) {
            memcpy(&likeliest, findings + i * CANVAS_FINDINGS + CANVAS_LIKELIEST, sizeof likeliest);
            memcpy(&drawn[i], findings + i * CANVAS_FINDINGS + CANVAS_DRAWN, sizeof drawn[i]);
            c->entropies[i] = findings[i * CANVAS_FINDINGS + CANVAS_ENTROPY];
            sum += (double)c->entropies[i];
            open++;
        }
        same = same && likeliest == c->likeliest[i];
        c->likeliest[i] = likeliest;
    }
    c->mean = open ? (float)(sum / (double)open) : 0;
    return same;
}

bool canvas_take(canvas_numbers *c, const float *findings) {
    enum { MOST = 1024 };
    int32_t drawn[MOST];
    for (size_t i = 0; i < c->config.length; i++) {
        if (isnan(findings[i * CANVAS_FINDINGS + CANVAS_ENTROPY])) return false;
    }
    c->same = canvas_read(c, findings, drawn) ? c->same + 1 : 0;
    canvas_accept(c->entropies, c->config.length, c->config.entropy_bound, c->accepted);
    c->step++;
    for (size_t i = 0; i < c->config.length; i++) {
        if (!c->pinned[i]) c->ids[i] = c->accepted[i] ? drawn[i] : canvas_random_id(c, i);
    }
    c->done = c->step >= c->config.steps || (c->same >= c->config.stability && c->mean < c->config.confidence);
    return true;
}
