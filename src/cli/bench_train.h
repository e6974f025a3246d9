/* What `gemmule bench --train` measures: steps of training on random tokens, of rank 16 on all seven projections. */

#ifndef GM_BENCH_TRAIN_H
#define GM_BENCH_TRAIN_H

#include "cli/report.h"

#include "gpu/profile.h"
#include "session/engine.h"

enum { BENCH_TRAIN_COUNTS = 8, BENCH_TRAIN_MOST = 65536 };

typedef struct {
    size_t   tokens; /* of a step: sequences of up to 512, divided into runs as training does */
    size_t   runs;
    double   seconds;       /* of the fastest step, with its update */
    double   first_seconds; /* of the first one: with plans and shaders */
    double   longest;       /* of what was submitted to the GPU at once, in seconds */
    uint64_t bytes;         /* of the training */
    uint64_t gpu_bytes;     /* of everything on the GPU */
    uint32_t kept;          /* layers whose activations stay in memory */
    double   loss;          /* of the last step */
} bench_train_row;

typedef struct {
    bench_train_row rows[BENCH_TRAIN_COUNTS];
    size_t          count;
} bench_train;

/* Reads a list such as "512,2048". */
gm_status bench_train_read(const char *list, bench_train *out, error *e);
/* Measures row i: one step to warm up, then so many more, and with a profile another one whose dispatches are timed. */
gm_status bench_train_measure(bench_train *b, size_t i, gm_engine *engine, size_t repeats, gpu_profile *profile,
                              error *e);
void      bench_train_print(const bench_train *b);
void      bench_train_report(report *r, const bench_train *b);

#endif
