/* How many tokens of a prompt the GPU computes at once.
 *
 * A larger batch reads weights less often and fills a large GPU better. But nothing else runs on the GPU meanwhile, and a cancel takes
 * effect after it. So batches begin with KV_BATCH tokens and double while they are fast. A token's results do not depend on its batch
 * (PLAN_ALIKE in gpu/plan.h), so nothing else depends on the size. */

#ifndef GM_BATCHES_H
#define GM_BATCHES_H

#include "base/base.h"

enum { KV_BATCH = 256, BATCH_MOST = 1024, BATCH_CLASSES = 3 };

/* What was measured of one size. */
typedef struct {
    double   best; /* seconds per batch */
    uint32_t count;
} batch_speed;

typedef struct {
    size_t      now;                   /* tokens */
    size_t      most;                  /* never more than this */
    double      seconds;               /* that a batch may take */
    batch_speed speeds[BATCH_CLASSES]; /* of KV_BATCH, 2 · KV_BATCH, … tokens */
} batch_sizes;

/* `large`: batches may grow beyond KV_BATCH. */
batch_sizes batch_sizes_begin(bool large);
/* Notes that batches of b->now tokens took so long each, and decides b->now anew. */
void batch_sizes_note(batch_sizes *b, double seconds);
/* There is no memory for larger batches. */
void batch_sizes_stay_small(batch_sizes *b);
/* A batch of so many tokens without its rest, if that is so small that it belongs on a smaller plan, which adds in another order. */
size_t batch_without_rest(size_t tokens);

#endif
