/* How long training takes on this device, before it begins: short runs of any tokens, each longer than the one before, until one takes long enough to
 * be measured. Nothing is learned from them. */

#include "train/training_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_FIRST = 4, PROBE_GROWTH = 4 };
#define PROBE_SECONDS 0.3

void training_probe_end(training_probe *p) {
    free(p->ids);
    free(p->weights);
    *p = (training_probe){ 0 };
}

static gm_status probe_begin(gm_training *t, error *e) {
    training_probe   *p = &t->probe;
    const data_stats *s = dataset_stats(t->data);
    const size_t      most = training_run_tokens(t->data, &t->settings);
    const double      counted = (double)s->counted / (double)s->tokens; /* as in the examples */
    if (!p->ids) p->ids = malloc(most * sizeof *p->ids);
    if (!p->weights) p->weights = malloc(most * sizeof *p->weights);
    if (!p->ids || !p->weights) return fail_memory(e, "a short run", most * sizeof *p->ids);
    p->tokens = min_size(p->runs ? PROBE_GROWTH * p->tokens : PROBE_FIRST, most);
    for (size_t i = 0; i < p->tokens; i++) {
        p->ids[i] = (int32_t)((7 * i + 11) % t->engine->weights.config.vocabulary);
        p->weights[i] = i == 1 || floor((double)(i + 1) * counted) > floor((double)i * counted);
    }
    p->span = (train_span){ 0, p->tokens };
    const train_run run = {
        .ids = p->ids, .weights = p->weights, .count = p->tokens, .spans = &p->span, .span_count = 1, .draw = 1
    };
    p->since = clock_seconds();
    p->begun = true;
    return trainer_begin(t->trainer, &run, 1, e);
}

gm_status training_probe_work(gm_training *t, double deadline, error *e) {
    training_probe *p = &t->probe;
    const size_t    most = training_run_tokens(t->data, &t->settings);
    for (;;) {
        if (!p->begun) TRY(probe_begin(t, e));
        TRY(trainer_work(t->trainer, deadline, e));
        const double took = clock_seconds() - p->since;
        const bool   counts = p->runs; /* in the first one, a GPU compiles its shaders, and a file comes into memory */
        p->begun = false;
        p->runs++;
        if (counts && (took >= PROBE_SECONDS || p->tokens == most)) {
            t->probe_seconds = took / (double)p->tokens;
            break;
        }
    }
    trainer_forget(t->trainer);
    training_probe_end(p);
    return GM_OK;
}
