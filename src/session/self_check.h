/* Whether this GPU computes right: known inputs through the kernels that a model will use, here and on the CPU, and the two
 * compared value by value. A driver that miscompiles a shader is found before anybody reads what it makes of a question.
 *
 * What is checked is what the model's graph has: products with each of its weight types (of one token in the model's own width, of
 * several in a shape that fits no tile), experts, embeddings, norms, and each kind of attention with the engine's K/V type. */

#ifndef GM_SELF_CHECK_H
#define GM_SELF_CHECK_H

#include "gpu/backend.h"
#include "model/config.h"

typedef struct self_check self_check;

/* Graph, config and host must outlive it. `kv` is the type of keys and values, `precise` as for the plans to come. */
gm_status self_check_new(gpu_host *host, const graph *g, const model_config *config, quant_type kv, bool precise,
                         self_check **out, error *e);
void      self_check_free(self_check *c);

/* By whom weights are read that are not in memory. */
void self_check_read_by(self_check *c, reads *r);

/* GM_AGAIN while results, or blocks of weights, are on their way (let gpu_host_wait run, then call again); GM_NO_DEVICE when one is wrong: the error
 * names the GPU and what it gets wrong. */
gm_status self_check_step(self_check *c, error *e);

/* For tests: `spoil` may change what came back from the GPU before it is compared. */
typedef void self_check_spoil(void *user, const char *what, float *found, size_t count);
void         self_check_spoil_by(self_check *c, self_check_spoil *spoil, void *user);
/* For tests: what is checked, one after the other; NULL behind the last. */
const char *self_check_name(const self_check *c, size_t index);

#endif
