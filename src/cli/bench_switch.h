/* Several adapters in `gemmule bench`: what it costs a session to go from one to the next. */

#ifndef GM_BENCH_SWITCH_H
#define GM_BENCH_SWITCH_H

#include "cli/engine_arguments.h"
#include "cli/report.h"

typedef struct {
    double seconds; /* of the change itself */
    double first;   /* from the change to a token, behind a prompt of one token */
    double same;    /* to that token without a change */
} bench_switch;

/* Medians of several changes; nothing with fewer than two adapters. */
gm_status bench_switch_measure(bench_switch *b, const engine_values *values, gm_engine *engine, const int32_t *tokens,
                               error *e);
void      bench_switch_print(const bench_switch *b);
void      bench_switch_report(report *r, const bench_switch *b);

#endif
