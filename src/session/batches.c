#include "session/batches.h"

/* No batch should take longer than this. Attention takes the longer the deeper a prompt is; batches become smaller only when they take
 * TOO_LONG times this, so that the size does not go to and fro. */
#define BATCH_SECONDS 0.1
#define TOO_LONG 1.5

/* A rest of up to so many tokens runs on a plan of another class. */
enum { SMALL_REST = 64 };

/* Tokens per second that a size must reach, as a share of the next smaller one's. Small differences are noise, or come from the depth. */
#define LEAST_SHARE 0.95
enum { ENOUGH_MEASURED = 3 }; /* so that a disturbed measurement does not count */

batch_sizes batch_sizes_begin(bool large) {
    return (batch_sizes){ .now = KV_BATCH, .most = large ? BATCH_MOST : KV_BATCH, .seconds = BATCH_SECONDS };
}

static size_t batch_class(size_t tokens) {
    size_t class = 0;
    while (tokens > KV_BATCH) tokens /= 2, class ++;
    return class;
}

/* Whether a class is known to be slower than one below it. */
static bool class_is_slower(const batch_sizes *b, size_t class) {
    const batch_speed *large = &b->speeds[class];
    for (size_t i = 0; i < class && large->count >= ENOUGH_MEASURED; i++) {
        const batch_speed *small = &b->speeds[i];
        if (small->count && (double)(1 << (class - i)) * small->best < LEAST_SHARE * large->best) return true;
    }
    return false;
}

void batch_sizes_note(batch_sizes *b, double seconds) {
    const size_t class = batch_class(b->now);
    batch_speed *speed = &b->speeds[class];
    speed->best = speed->count && speed->best < seconds ? speed->best : seconds;
    if (speed->count < ENOUGH_MEASURED) speed->count++;
    const bool smaller = class && (seconds > TOO_LONG * b->seconds || class_is_slower(b, class));
    const bool larger = 2 * b->now <= b->most && 2 * seconds <= b->seconds && !class_is_slower(b, class + 1);
    b->now = smaller ? b->now / 2 : larger ? 2 * b->now : b->now;
}

void batch_sizes_stay_small(batch_sizes *b) { b->now = b->most = KV_BATCH; }

size_t batch_without_rest(size_t tokens) {
    const size_t rest = tokens % KV_BATCH;
    return tokens > KV_BATCH && rest <= SMALL_REST ? tokens - rest : tokens;
}
