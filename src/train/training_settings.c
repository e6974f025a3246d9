/* What the options of a training mean, and how a checkpoint remembers them. */

#include "train/training_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static gm_status settings_copy(const char **text, arena *a, error *e) {
    if (!*text) return GM_OK;
    *text = arena_copy(a, str_of(*text));
    return *text ? GM_OK : fail_memory(e, "the settings", 1);
}

static gm_status settings_schedule(training_settings *s, error *e) {
    static const char *const names[] = { "constant", "linear", "cosine" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!strcmp(s->o.schedule, names[i])) {
            s->schedule = (schedule){ .kind = (schedule_kind)i, .rate = s->o.rate };
            return GM_OK;
        }
    }
    return fail(e, GM_BAD_ARGUMENT, "schedule '%s': expected constant, linear or cosine", s->o.schedule);
}

typedef struct {
    const char *name;
    double      value, least, most; /* most: exclusive */
} settings_bound;

static gm_status settings_bounds(const gm_training_options *o, error *e) {
    const settings_bound bounds[] = { { "the learning rate", o->rate, 0, 1e6 },
                                      { "the evaluation split", o->eval_split, 0, 1 },
                                      { "dropout", o->dropout, 0, 1 },
                                      { "the weight decay", o->decay, 0, 1e6 },
                                      { "beta", o->beta, 0, 1e6 },
                                      { "the rate of B (LoRA+)", o->lora_plus, 0, 1e6 },
                                      { "alpha", o->alpha, 0, 1e9 } };
    for (size_t i = 0; i < COUNT_OF(bounds); i++) {
        const settings_bound *b = &bounds[i];
        if (!(b->value >= b->least && b->value < b->most))
            return fail(e, GM_BAD_ARGUMENT, "%s is %g: expected %g to less than %g", b->name, b->value, b->least,
                        b->most);
    }
    if (!isfinite(o->warmup) || !isfinite(o->clip))
        return fail(e, GM_BAD_ARGUMENT, "warm-up %g and clipping %g must be finite numbers", o->warmup, o->clip);
    if (o->max_tokens < 8) return fail(e, GM_BAD_ARGUMENT, "examples need at least 8 tokens, not %zu", o->max_tokens);
    if (o->patience && !(o->eval_split > 0))
        return fail(e, GM_BAD_ARGUMENT,
                    "patience needs evaluations: keep some examples for them, such as an evaluation split of 0.1");
    return GM_OK;
}

gm_status training_settings_read(training_settings *s, const gm_training_options *given, arena *a, error *e) {
    gm_training_options *o = &s->o;
    *s = (training_settings){ .o = *given };
    if (!o->path && !o->data) return fail(e, GM_BAD_ARGUMENT, "training needs examples, as a file or as bytes");
    const char **texts[] = { &o->path, &o->data_name, &o->name, &o->targets, &o->layers, &o->loss, &o->schedule };
    if (!o->name) o->name = "adapter";
    if (!o->targets) o->targets = "q,k,v,o,gate,up,down";
    if (!o->schedule) o->schedule = "cosine";
    for (size_t i = 0; i < COUNT_OF(texts); i++) TRY(settings_copy(texts[i], a, e));
    if (!o->max_tokens) o->max_tokens = 2048;
    if (!o->rank) o->rank = 16;
    if (o->alpha == 0) o->alpha = 2.0 * o->rank;
    if (o->beta == 0) o->beta = 0.1;
    if (!o->epochs) o->epochs = 3;
    if (!o->batch) o->batch = 8;
    if (!o->accumulate) o->accumulate = 1;
    if (o->rate == 0) o->rate = 2e-4;
    if (o->lora_plus == 0) o->lora_plus = 1;
    if (!o->keep_every) o->keep_every = 50;
    if (o->warmup == 0) o->warmup = 0.05;
    if (o->clip == 0) o->clip = 1;
    s->warmup = o->warmup > 0 ? o->warmup : 0;
    TRY(settings_bounds(o, e));
    if (o->loss && strcmp(o->loss, "completions") && strcmp(o->loss, "dpo"))
        return fail(e, GM_BAD_ARGUMENT, "loss '%s': expected completions or dpo", o->loss);
    return settings_schedule(s, e);
}

void training_settings_text(const training_settings *s, buffer *out) {
    const gm_training_options *o = &s->o;
    buffer_printf(out, "loss %s\n", s->pairs ? "dpo" : "completions");
    if (s->pairs) buffer_printf(out, "beta %.17g\n", o->beta);
    buffer_printf(out, "rank %u\nalpha %.17g\nrslora %d\ntargets %s\nlayers %s\n", o->rank, o->alpha, o->rslora,
                  o->targets, o->layers ? o->layers : "all");
    buffer_printf(out, "epochs %u\nmax-steps %llu\nbatch %u\naccumulate %u\n", o->epochs,
                  (unsigned long long)o->max_steps, o->batch, o->accumulate);
    buffer_printf(out, "learning rate %.17g\nschedule %s\nwarmup %.17g\ndecay %.17g\nclip %.17g\n", o->rate,
                  o->schedule, o->warmup, o->decay, o->clip);
    buffer_printf(out, "dropout %.17g\nlora-plus %.17g\neval-every %u\npatience %u\nseed %llu\n", o->dropout,
                  o->lora_plus, o->eval_every, o->patience, (unsigned long long)o->seed);
}
