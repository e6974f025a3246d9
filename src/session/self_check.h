/* Whether this GPU computes right: known inputs through the kernels that a model will use, on the GPU and on the CPU, and the two
 * compared value by value. A driver that miscompiles a shader is found before anybody reads what it makes of a question.
 *
 * What is checked is what will run: every shader text that the model's plans dispatch on this GPU, for one token and for batches
 * of every class, is reached by a check, with blocks of the model's own weights (check_list.c). So is every kernel that draws
 * tokens (check_draws.c). */

#ifndef GM_SELF_CHECK_H
#define GM_SELF_CHECK_H

#include "gpu/backend.h"
#include "model/config.h"

typedef struct self_check self_check;

typedef struct {
    const char         *name;           /* "vision" */
    uint32_t            fewest;         /* tokens of a run */
    uint32_t            kv_heads, head; /* of its cache; 0: it has none */
    const graph        *text;           /* the model's own */
    const model_config *config;
} self_check_tower;

typedef struct {
    quant_type kv; /* the type of keys and values */
    /* NULL, or the type for which everything was checked before: then only the kernels that `kv` adds are checked. */
    const quant_type *checked;
    bool              precise; /* as for the plans to come */
    size_t            outputs; /* the most logits of one run: runner_most_outputs */
    bool              plans;   /* also has the kernels compiled that the model's plans for one output need */
    /* Plans for 1 and 16 tokens only, of towers for 16: a GPU in software has no driver to distrust, but compiles slowly. */
    bool quick;
    /* A tower: its graph is checked for the runs that it makes, of one picture or sound and of many. Kernels that the model's plans
     * have, too, were checked before. */
    const self_check_tower *tower;
    const graph *canvas; /* of a diffusion model: its denoiser, which runs canvases of so many tokens; NULL: none */
    uint32_t     canvas_length;
    bool         slots; /* experts have slots (gpu/experts.h) */
} self_check_options;

/* Graphs, config and host must outlive it. For a tower, `config` is NULL. */
gm_status self_check_new(gpu_host *host, const graph *g, const model_config *config, const self_check_options *options,
                         self_check **out, error *e);
void      self_check_free(self_check *c);

/* By whom weights are read that are not in memory. */
void self_check_read_by(self_check *c, reads *r);

/* The first steps have all kernels compiled in the background, about 20 ms at a time. GM_AGAIN while there is more of that to do, or
 * while kernels, results or blocks of weights are on their way (let gpu_host_wait run, then call again); GM_NO_DEVICE when a
 * result is wrong: the error names the GPU and what it gets wrong. */
gm_status self_check_step(self_check *c, error *e);
/* Kernels that are still to be handed to the compiler; until there are none, there is no reason to wait between steps. */
size_t self_check_kernels_left(const self_check *c);

/* Whether a GPU that should be exact (gpu_host_be_exact) gave other bits than the CPU, within the tolerance. NULL: nothing was checked. */
bool self_check_inexact(const self_check *c);

/* For tests: `spoil` may change what came back from the GPU before it is compared. */
typedef void self_check_spoil(void *user, const char *what, float *found, size_t count, const float *expected,
                              size_t distinct); /* found[i] should be expected[i % distinct] */
void         self_check_spoil_by(self_check *c, self_check_spoil *spoil, void *user);
/* For tests: what is checked, one after the other; NULL behind the last. */
const char *self_check_name(const self_check *c, size_t index);
/* For tests: kernels that the model's plans dispatch and no check reaches; there should be none. */
const char *self_check_missed(const self_check *c, size_t index);

#endif
