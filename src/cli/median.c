#include "cli/median.h"

#include <stdlib.h>

static int compare_times(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(double *times, size_t count) {
    qsort(times, count, sizeof *times, compare_times);
    return times[count / 2];
}
