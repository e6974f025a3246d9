/* The distance between two rows of logits: |a − b| / |b|. */

#ifndef GM_TEST_DISTANCE_H
#define GM_TEST_DISTANCE_H

#include <math.h>
#include <stddef.h>

static inline double distance(const float *a, const float *b, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

#endif
