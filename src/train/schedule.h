/* How fast a step learns: a rate that rises during the warm-up, and then stays, or falls to the end. */

#ifndef GM_TRAIN_SCHEDULE_H
#define GM_TRAIN_SCHEDULE_H

#include "base/base.h"

typedef enum { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE } schedule_kind;

typedef struct {
    schedule_kind kind;
    double        rate;          /* the highest */
    uint64_t      warmup, steps; /* of these steps, `warmup` rise; after `steps` the rate is 0, unless it is constant */
} schedule;

/* Of step number `step`, from 1 on. */
double schedule_rate(const schedule *s, uint64_t step);

#endif
