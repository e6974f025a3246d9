/* A canvas of a diffusion model: a block of tokens behind those that a session holds, denoised step by step. This file is about its
 * numbers: how it begins, the settings of its steps, and what they found. denoiser.h computes the steps.
 *
 * A step finds, for each position, the likeliest token, one drawn at random, and the entropy. Positions are accepted in the order of
 * their entropies, as long as the entropies of those before add up to no more than a bound. Accepted positions get the token that was drawn,
 * the others a random one. The block is what is likeliest after the last step. Pinned positions keep their token in every step.
 *
 * The next step decides this itself, on its device (CANVAS_NEXT in graph.h), so that it need not wait for us. Here the same decisions are
 * made again, for whoever watches and to know when the canvas is done: cpu/canvas_next.h gives the same result to the bit.
 *
 * All random numbers depend on seed, block, step and position alone. */

#ifndef GM_CANVAS_H
#define GM_CANVAS_H

#include "cpu/canvas_next.h"
#include "model/model.h"
#include "text/canvas_text.h"

typedef struct {
    canvas_config config;
    canvas_rule   rule;
    float         warmth; /* a factor of all temperatures */
    uint64_t      seed;
    uint32_t      block, step;       /* step: how many were taken */
    canvas_state *states;            /* [length]: what the next step denoises */
    float        *settings;          /* [length, CANVAS_SETTINGS] of the next step */
    int32_t      *likeliest;         /* [length]: of the last step, like */
    float        *entropies;         /* [length] */
    bool         *accepted, *pinned; /* [length] */
    float         mean;              /* of the entropies of positions that are not pinned */
    bool          done;
} canvas_numbers;

gm_status canvas_new(const model_config *config, canvas_numbers *out, error *e);
void      canvas_free(canvas_numbers *c);

/* Begins a block. `start` may have fewer than `length` positions: the others begin as noise. */
void canvas_begin(canvas_numbers *c, uint64_t seed, uint32_t block, const canvas_start *start, size_t count);
/* What a step is computed with: [length, CANVAS_SETTINGS]. Depends on no other step. */
void canvas_settings(const canvas_numbers *c, uint32_t step, float *settings);
/* Makes this the temperature of the next step. */
void canvas_set_temperature(canvas_numbers *c, float temperature);
/* Takes in what a step found: CANVAS_FINDINGS values of each position (graph.h). False: there is a NaN among them. */
bool canvas_take(canvas_numbers *c, const float *findings);

#endif
