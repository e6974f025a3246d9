#include "cpu/canvas_next.h"

#include "base/random.h"

#include <math.h>
#include <string.h>

enum { NOISE_STREAM = 1 };

static uint32_t canvas_word(const float *value) {
    uint32_t word;
    memcpy(&word, value, sizeof word);
    return word;
}

uint32_t canvas_units(const canvas_rule *rule, float entropy) { return (uint32_t)rintf(entropy * (float)rule->units); }

void canvas_accept(const uint32_t *entropies, size_t n, uint32_t bound, bool *accepted) {
    for (size_t i = 0; i < n; i++) {
        uint32_t before = 0;
        for (size_t j = 0; j < n; j++) {
            if (entropies[j] < entropies[i] || (entropies[j] == entropies[i] && j < i)) before += entropies[j];
        }
        accepted[i] = before <= bound;
    }
}

int32_t canvas_random_id(const canvas_rule *rule, const float *settings) {
    const uint32_t key[2] = { canvas_word(settings + CANVAS_KEY_0), canvas_word(settings + CANVAS_KEY_1) };
    uint32_t       words[4];
    philox((uint32_t[]){ 0, canvas_word(settings + CANVAS_DRAW), NOISE_STREAM, CANVAS_STREAM }, key, words);
    return (int32_t)((uint64_t)words[0] * rule->vocabulary >> 32);
}

bool canvas_next(const canvas_rule *rule, size_t n, const float *findings, const float *settings, canvas_state *states,
                 bool *accepted) {
    uint32_t entropies[CANVAS_MOST], total = 0, open = 0;
    bool     own[CANVAS_MOST], same = true;
    if (n > CANVAS_MOST || !(canvas_word(settings + CANVAS_DRAW) >> CANVAS_STEP_SHIFT & (CANVAS_MOST - 1)))
        return false;
    if (!accepted) accepted = own;
    for (size_t i = 0; i < n; i++) {
        const float  *found = findings + i * CANVAS_FINDINGS;
        canvas_state *s = &states[i];
        const int32_t likeliest = s->pinned ? s->id : (int32_t)canvas_word(found + CANVAS_LIKELIEST);
        entropies[i] = s->pinned ? 0 : canvas_units(rule, found[CANVAS_ENTROPY]);
        total += entropies[i];
        open += !s->pinned;
        same = same && s->likeliest == likeliest;
        s->likeliest = likeliest;
    }
    canvas_accept(entropies, n, rule->bound, accepted);
    for (size_t i = 0; i < n; i++) {
        canvas_state *s = &states[i];
        s->same = same ? s->same + 1 : 0;
        if (s->pinned) continue;
        s->id = accepted[i] ? (int32_t)canvas_word(findings + i * CANVAS_FINDINGS + CANVAS_DRAWN)
                            : canvas_random_id(rule, settings + i * CANVAS_SETTINGS);
    }
    return states->same >= rule->stability && total < rule->confidence * (open ? open : 1);
}
