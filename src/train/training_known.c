/* What is known of a training: its examples, and its losses so far. */

#include "train/training_parts.h"

#include <string.h>

gm_status gm_training_get_data(const gm_training *t, gm_training_data *out, char *why, size_t why_size) {
    error e = { 0 };
    *out = (gm_training_data){ .form = "" };
    if (t->stage == STAGE_SCAN) {
        fail(&e, GM_BUSY, "the examples are not read yet");
        return error_report(&e, why, why_size);
    }
    const data_stats *s = dataset_stats(t->data);
    *out = (gm_training_data){ .form = dataset_describe(t->data),
                               .records = s->records,
                               .examples = s->examples,
                               .evaluation = t->eval.order.count,
                               .tokens = s->tokens,
                               .counted = s->counted,
                               .shortest = s->shortest,
                               .longest = s->longest,
                               .truncated = s->truncated,
                               .left_out = s->left_out,
                               .duplicates = s->duplicates,
                               .media = s->media };
    _Static_assert(sizeof out->histogram == sizeof s->histogram, "the API shows the histogram as it is");
    memcpy(out->histogram, s->histogram, sizeof out->histogram);
    return GM_OK;
}

const char *gm_training_problem(const gm_training *t, size_t index) { return dataset_problem(t->data, index); }

gm_status gm_training_preview(gm_training *t, size_t index, const char *on, const char *off, char **text, char *why,
                              size_t why_size) {
    error        e = { 0 };
    data_example x;
    buffer       out = { 0 };
    *text = NULL;
    if (t->stage == STAGE_SCAN) fail(&e, GM_BUSY, "the examples are not read yet");
    else if (index >= dataset_count(t->data))
        fail(&e, GM_NOT_FOUND, "there are %zu examples; number %zu was asked for", dataset_count(t->data), index);
    else if (!dataset_example(t->data, index, &x, &e)) {
        for (size_t i = 0; i < x.sequences; i++) {
            if (i) buffer_text(&out, "\n\n");
            data_preview(t->engine->words, &x.sequence[i], on, off, &out);
        }
        data_example_free(&x);
        if (out.failed) fail_memory(&e, "the preview", out.length);
    }
    if (e.status) buffer_free(&out);
    else *text = out.data;
    return error_report(&e, why, why_size);
}

size_t gm_training_losses(const gm_training *t, const float **losses) {
    *losses = t->losses;
    return (size_t)t->step;
}

size_t gm_training_evaluations(const gm_training *t, const float **losses, const uint64_t **steps) {
    *losses = t->eval_losses;
    *steps = t->eval_steps;
    return t->eval_count;
}
