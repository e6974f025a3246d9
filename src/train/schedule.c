#include "train/schedule.h"

#include <math.h>

/* As in transformers: the first step of a warm-up of n has 1/n of the rate, and the step after the last would have 0. */
double schedule_rate(const schedule *s, uint64_t step) {
    const double pi = 3.14159265358979323846;
    if (step <= s->warmup) return s->rate * (double)step / (double)s->warmup;
    if (s->kind == SCHEDULE_CONSTANT) return s->rate;
    if (step > s->steps) return 0;
    const double done = (double)(step - 1 - s->warmup) / (double)(s->steps - s->warmup);
    return s->rate * (s->kind == SCHEDULE_LINEAR ? 1 - done : 0.5 * (1 + cos(pi * done)));
}
