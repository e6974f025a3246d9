/* Sampling parameters as the GPU's sampler reads them: whole numbers, computed once per change, the same as sampler_draw's. */

#ifndef GM_SAMPLER_SETTINGS_H
#define GM_SAMPLER_SETTINGS_H

#include "base/base.h"

typedef struct {
    const gm_sampling *sampling;
    size_t             vocabulary;
    const uint32_t    *suppressed; /* a bit per id, or NULL */
    uint32_t           row;        /* which of the logits' rows */
    bool               advance;    /* the sampler also makes the run of the next token */
} sampler_settings;

/* How many words sampler_settings_write fills. */
size_t sampler_settings_words(const sampler_settings *s);
/* The parameters are checked first; words: see gpu/sampler_kernels.h. */
gm_status sampler_settings_write(const sampler_settings *s, uint32_t *words, error *e);
/* Which dispatches it takes: without a temperature; with biases or penalties; with so many steps among all tokens, or 0. */
bool     sampler_settings_greedy(const sampler_settings *s);
bool     sampler_settings_edits(const sampler_settings *s);
uint32_t sampler_settings_steps(const sampler_settings *s);

/* Up to which top-k it takes none. */
size_t sampler_most_candidates(size_t vocabulary);

#endif
