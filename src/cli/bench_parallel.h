/* What `gemmule bench --parallel` measures: several sequences that are decoded at once. */

#ifndef GM_BENCH_PARALLEL_H
#define GM_BENCH_PARALLEL_H

#include "cli/engine_arguments.h"
#include "cli/report.h"

#include "gpu/profile.h"

enum { BENCH_MOST_COUNTS = 16, BENCH_MOST_SEQUENCES = 256 };

typedef struct {
    size_t count; /* of sequences */
    double seconds;
} bench_parallel_row;

typedef struct {
    bench_parallel_row rows[BENCH_MOST_COUNTS];
    size_t             count;
    size_t             depth, tokens; /* of each sequence: held before, and decoded */
} bench_parallel;

/* Reads a list of numbers from 1 to `most`, such as "1,2,4": what the option takes. */
gm_status bench_numbers_read(const char *name, const char *list, size_t most, size_t *out, size_t capacity,
                             size_t *count, error *e);
gm_status bench_parallel_read(const char *list, bench_parallel *out, error *e);
/* Measures row i once and keeps the best time; with a profile it times the dispatches instead. `tokens` has depth + 1 of them. */
gm_status bench_parallel_measure(bench_parallel *p, size_t i, const engine_values *values, gm_engine *engine,
                                 const int32_t *tokens, gpu_profile *profile, error *e);
void      bench_parallel_print(const bench_parallel *p);
void      bench_parallel_report(report *r, const bench_parallel *p);

#endif
