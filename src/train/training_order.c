/* Which examples are computed together: runs of up to `batch` examples, steps of up to `accumulate` such batches. */

#include "train/training_parts.h"

#include <stdlib.h>

size_t training_run_tokens(const dataset *d, const training_settings *s) {
    const size_t longest = (size_t)dataset_stats(d)->longest, most = max_size(longest, TRAINING_RUN_TOKENS);
    return s->o.batch > most / longest ? most : s->o.batch * longest;
}

/* The order has a run for each example; several of them become one, if they are of one batch and not too long. */
static void order_join(training_order *p, const dataset *d, const training_settings *s, size_t most) {
    const uint64_t batch = s->o.batch, step = batch * s->o.accumulate;
    size_t         runs = 0, tokens = 0;
    for (size_t i = 0; i < p->order.count; i++) {
        const size_t n = dataset_tokens(d, p->order.examples[i]);
        const bool   new_step = i % step == 0;
        if (new_step) p->first[p->steps++] = runs;
        if (i % step % batch == 0 || tokens + n > most) {
            p->order.runs[runs++] = (uint32_t)i;
            tokens = 0;
        }
        tokens += n;
    }
    p->order.runs[runs] = (uint32_t)p->order.count;
    p->order.run_count = runs;
    p->first[p->steps] = runs;
}

gm_status training_order_make(training_order *p, const dataset *d, const training_settings *s, bool eval,
                              uint64_t epoch, error *e) {
    const size_t most = training_run_tokens(d, s);
    training_order_free(p);
    TRY(dataset_epoch(d, eval, s->o.seed, epoch, eval ? most : 0, &p->order, e)); /* evaluations have full runs */
    if (eval) return GM_OK;
    p->first = calloc(p->order.count + 1, sizeof *p->first);
    if (!p->first) return fail_memory(e, "the order of the examples", p->order.count * sizeof *p->first);
    order_join(p, d, s, most);
    return GM_OK;
}

void training_order_free(training_order *p) {
    data_epoch_free(&p->order);
    free(p->first);
    *p = (training_order){ 0 };
}
