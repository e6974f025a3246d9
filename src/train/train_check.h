/* Whether this GPU trains right: one step on a small model of the same architecture (model/miniature.h), on the GPU and on the CPU. The loss,
 * all gradients and the parameters after the update are compared. A driver that miscompiles a shader of training would otherwise make an
 * adapter of garbage. */

#ifndef GM_TRAIN_CHECK_H
#define GM_TRAIN_CHECK_H

#include "session/engine.h"
#include "train/fresh.h"

typedef struct {
    const char *targets; /* as fresh_options has them */
    uint32_t    rank;
    bool        dropout;
    size_t      tokens; /* of the runs to come: the kernels depend on it */
} train_check_options;

typedef struct train_check train_check;

/* All functions are called between engine_enter and engine_leave; the strings must stay. */
gm_status train_check_new(gm_engine *engine, const train_check_options *options, train_check **out, error *e);
void      train_check_free(train_check *c);
/* GM_AGAIN: as for a trainer. GM_NO_DEVICE: the GPU computes wrongly; the error says what. */
gm_status train_check_step(train_check *c, double deadline, error *e);

/* For tests: `spoil` may change what came back from the GPU before it is compared. */
typedef void train_check_spoil(void *user, const char *what, float *found, size_t count, const float *expected);
void         train_check_spoil_by(train_check *c, train_check_spoil *spoil, void *user);

/* The check of an engine, once for each kind of training; `*running` is the one under way, which the caller frees. In software there is no driver
 * to distrust, and compiling takes long: nothing is checked. */
gm_status engine_check_training(gm_engine *engine, const train_check_options *options, train_check **running,
                                double deadline, error *e);

#endif
