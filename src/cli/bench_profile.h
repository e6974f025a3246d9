/* What `gemmule bench --profile` shows: where the GPU's time goes, as a table, in JSON and as a picture. */

#ifndef GM_BENCH_PROFILE_H
#define GM_BENCH_PROFILE_H

#include "cli/report.h"

#include "gpu/profile.h"

typedef struct {
    gpu_limits  limits;
    gpu_profile prefill, decode, canvas, parallel, train, image, audio; /* runs 0: not measured */
} bench_profile;

void bench_profile_print(const bench_profile *p);
void bench_profile_report(report *r, const bench_profile *p);
/* Writes bars as SVG. `title` names the model and the device. */
gm_status bench_profile_draw(const bench_profile *p, const char *title, const char *path, error *e);
void      bench_profile_free(bench_profile *p);

#endif
