/* The towers in `gemmule bench`: how long a picture or a sound takes, alone and in a batch of four. */

#ifndef GM_BENCH_MEDIA_H
#define GM_BENCH_MEDIA_H

#include "cli/report.h"

#include "gpu/profile.h"
#include "session/engine.h"

enum { BENCH_BATCH = 4 };

typedef struct {
    size_t size;         /* soft tokens of the picture, or seconds of sound; 0: not wanted */
    size_t tokens;       /* soft tokens of one */
    double load_seconds; /* until the first one was encoded: weights, kernels */
    double one, batch;   /* seconds for 1 and for BENCH_BATCH, the best of the repeats */
} bench_medium;

/* Measures a tower of the engine. One more run, of one picture or sound, times every dispatch for the profile; NULL: none. */
gm_status bench_medium_measure(bench_medium *m, gm_engine *engine, bool heard, size_t repeats, gpu_profile *profile,
                               error *e);
void      bench_medium_print(const bench_medium *m, bool heard);
void      bench_medium_report(report *r, const bench_medium *m, bool heard);

#endif
