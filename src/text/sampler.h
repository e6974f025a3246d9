/* Chooses a token. Logits become integers (round(logit · 2^16)); penalties, temperature, exp and sums are integer arithmetic in
 * 32-bit words with 64-bit sums, so that C and WGSL draw the same token for the same logits and seed. */

#ifndef GM_SAMPLER_H
#define GM_SAMPLER_H

#include "base/base.h"

typedef struct sampler sampler;

/* Allocates working memory for a vocabulary of n; drawing allocates nothing. */
gm_status sampler_new(size_t n, sampler **out, error *e);
void      sampler_free(sampler *s);

/* Checks the ranges. The error names the parameter. */
gm_status sampling_check(const gm_sampling *p, size_t vocabulary, error *e);

/* Whether both draw alike. Lists of biases and masks are compared by their address. */
bool sampling_equal(const gm_sampling *a, const gm_sampling *b);

/* `position` counts the random draws (the index of the token drawn); `history` are the tokens that penalties look at, the
 * newest last; ids for which `suppressed` (may be NULL, a bit per id) is set are never drawn. NaN in the logits is GM_BAD_FILE. */
gm_status sampler_draw(sampler *s, const gm_sampling *p, const float *logits, const int32_t *history,
                       size_t history_count, const uint32_t *suppressed, uint64_t position, int32_t *token, error *e);

/* Natural log-probabilities of the softmax of the raw logits: of `token`, and of the `count` likeliest (ties: lower id). */
void sampler_logprobs(sampler *s, const float *logits, int32_t token, gm_token_logprob *chosen, gm_token_logprob *top,
                      size_t count);

#endif
