/* A canvas of a diffusion model: a block of tokens behind those that a session holds, denoised step by step. This file is about its
 * numbers: noise, acceptance and when to stop. denoiser.h computes the steps.
 *
 * A step finds, for each position, the likeliest token, one drawn at random, and the entropy. Positions are accepted in the order of
 * their entropies, as long as the entropies of those before add up to no more than a bound. Accepted positions get the token that was drawn,
 * the others a random one. The block is what is likeliest after the last step. Pinned positions keep their token in every step.
 *
 * All random numbers depend on seed, block, step and position alone. */

#ifndef GM_CANVAS_H
#define GM_CANVAS_H

#include "model/config.h"
#include "text/canvas_text.h"

typedef struct {
    canvas_config config;
    uint32_t      vocabulary;
    float         warmth; /* a factor of all temperatures */
    uint64_t      seed;
    uint32_t      block, step;     /* step: how many were taken */
    uint32_t      same;            /* for how many steps the likeliest tokens have stayed the same */
    int32_t      *ids, *likeliest; /* [length]: what the next step denoises, and the likeliest tokens of the last one */
    float        *entropies;       /* [length] */
    bool         *accepted, *pinned; /* [length] */
    float         mean;              /* of the entropies of positions that are not pinned */
    bool          done;
} canvas_numbers;

gm_status canvas_new(const model_config *config, canvas_numbers *out, error *e);
void      canvas_free(canvas_numbers *c);

/* Begins a block. `start` may have fewer than `length` positions: the others begin as noise. */
void canvas_begin(canvas_numbers *c, uint64_t seed, uint32_t block, const canvas_start *start, size_t count);
/* What the next step is computed with. */
float    canvas_temperature(const canvas_numbers *c);
uint32_t canvas_draw_number(const canvas_numbers *c, size_t position);
/* Takes in what a step found: CANVAS_FINDINGS values of each position (graph.h). False: there is a NaN among them. */
bool canvas_take(canvas_numbers *c, const float *findings);

/* Accepts positions in the order of their entropies, of equal ones the first, as long as those before add up to at most `bound`. */
void canvas_accept(const float *entropies, size_t n, float bound, bool *accepted);

#endif
