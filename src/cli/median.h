/* The median of measured times. */

#ifndef GM_CLI_MEDIAN_H
#define GM_CLI_MEDIAN_H

#include <stddef.h>

/* Sorts them. There is at least one. */
double median_of(double *times, size_t count);

#endif
