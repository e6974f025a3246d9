/* Expectations of training: the loss with an adapter, its gradients, and the losses of some steps of AdamW. */

#include "cli/check.h"

#include "cli/interrupt.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The settings with which the expectation was computed. */
static gm_status find_adamw(const check_state *c, adamw_settings *out, error *e) {
    float rate = 1e-3f, decay = 0.01f;
    bool  found;
    TRY(gguf_get_f32(c->expect, "lr", &rate, &found, e));
    TRY(gguf_get_f32(c->expect, "weight_decay", &decay, &found, e));
    *out = (adamw_settings){ .rate = (double)rate, .beta = { 0.9, 0.999 }, .eps = 1e-8, .decay = (double)decay };
    return GM_OK;
}

/* The first train_tokens of the ids, of which train_prompt do not count; or all of them, with a mask. */
static gm_status train_ids(check_state *c, const int32_t **ids, size_t *count, float **weights, error *e) {
    const gguf_tensor *mask = gguf_find_tensor(c->expect, "loss_mask");
    uint32_t           tokens = 0, prompt = 0;
    bool               found = false, ignored = false;
    TRY(check_find_ids(c, "ids", c->engine->weights.config.vocabulary, ids, count, e));
    TRY(gguf_get_u32(c->expect, "train_tokens", &tokens, &found, e));
    TRY(gguf_get_u32(c->expect, "train_prompt", &prompt, &ignored, e));
    if (found && tokens < *count) *count = tokens;
    if (!found && (!mask || mask->type != TYPE_F32 || mask->count != *count))
        return fail(e, GM_BAD_ARGUMENT, "%s has no loss_mask for its %zu ids", c->expect_path, *count);
    const float *values = found ? NULL : check_values_of(c->expect, mask);
    *weights = malloc(*count * sizeof **weights);
    if (!*weights) return fail_memory(e, "the loss mask", *count * sizeof **weights);
    for (size_t i = 0; i < *count; i++) (*weights)[i] = values ? values[i] : i >= prompt;
    return GM_OK;
}

/* The one adapter of the options. */
static gm_status trained_adapter(const check_state *c, const adapter **out, error *e) {
    const engine_adapters *a = &c->engine->adapters;
    if (c->values->adapters.count != 1)
        return fail(e, GM_BAD_ARGUMENT, "this needs --adapter with the adapter that was trained, once");
    *out = a->slots[a->own]->content;
    return a->own ? fail(e, GM_UNSUPPORTED, "a model with adapters of its own cannot be compared") : GM_OK;
}

/* A turn of a job that returned GM_AGAIN. */
static gm_status train_turn(gm_status status, error *e) {
    return status == GM_AGAIN && interrupted() ? fail(e, GM_CANCELLED, "interrupted") : status;
}

static double train_deadline(void) { return clock_seconds() + 0.1; }

/* Forward and backward over all tokens; `weights` become shares of the mean. */
static gm_status train_once(trainer *t, const int32_t *ids, const float *weights, size_t count, error *e) {
    const train_span span = { 0, count };
    const train_run  run = { .ids = ids, .weights = weights, .count = count, .spans = &span, .span_count = 1 };
    double           counted = 0;
    gm_status        status;
    for (size_t i = 1; i < count; i++) counted += (double)weights[i];
    TRY(trainer_begin(t, &run, 1 / counted, e));
    while ((status = train_turn(trainer_work(t, train_deadline(), e), e)) == GM_AGAIN) {}
    return status;
}

typedef struct check_training {
    const int32_t *ids;
    float         *weights;
    size_t         count;
    trainer       *trainer;
    adapter       *gradients; /* in the place of an adapter's values */
} check_training;

static gm_status training_begin(check_state *c, check_training *out, error *e) {
    trainer_options o = { 0 };
    TRY(check_need_engine(c, e));
    TRY(trained_adapter(c, &o.adapter, e));
    TRY(train_ids(c, &out->ids, &out->count, &out->weights, e));
    o.tokens = out->count;
    return trainer_new(c->engine, &o, &out->trainer, e);
}

static void training_end(check_training *t) {
    if (!t) return;
    trainer_free(t->trainer);
    adapter_free(t->gradients);
    free(t->weights);
    *t = (check_training){ 0 };
}

static gm_status read_gradients(check_training *t, error *e) {
    gm_status status = adapter_like(trainer_parameters(t->trainer)->adapters[0], "gradients", &t->gradients, e);
    if (status) return status;
    do status = train_turn(trainer_store(t->trainer, TRAIN_GRADIENT, t->gradients, train_deadline(), e), e);
    while (status == GM_AGAIN);
    return status;
}

/* The loss and all gradients are computed once. */
static gm_status need_gradients(check_state *c, error *e) {
    if (c->training) return GM_OK;
    if (c->training_problem.status) return fail(e, c->training_problem.status, "%s", c->training_problem.why);
    check_training *t = calloc(1, sizeof *t);
    if (!t) return fail_memory(e, "a training run", sizeof *t);
    gm_status status = training_begin(c, t, &c->training_problem);
    if (!status) status = train_once(t->trainer, t->ids, t->weights, t->count, &c->training_problem);
    if (!status) status = read_gradients(t, &c->training_problem);
    if (!status) {
        c->training = t;
        return GM_OK;
    }
    training_end(t);
    free(t);
    return fail(e, status, "%s", c->training_problem.why);
}

void check_end_training(check_state *c) {
    training_end(c->training);
    free(c->training);
}

static gm_status check_floats(const gguf_tensor *want, uint64_t count, error *e) {
    if (want->type == TYPE_F32 && want->count == count) return GM_OK;
    return fail(e, GM_BAD_ARGUMENT, "the expectation is %s with %llu values, expected F32 with %llu",
                want->format->name, (unsigned long long)want->count, (unsigned long long)count);
}

gm_status check_loss(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    (void)rest;
    TRY(check_floats(want, 1, e));
    TRY(need_gradients(c, e));
    const float loss = (float)trainer_loss(c->training->trainer);
    result->error = relative_error(&loss, check_values_of(c->expect, want), 1);
    return GM_OK;
}

/* "L3.gate.A" → the pair of blk.3.ffn_gate.weight */
gm_status check_gradient(check_state *c, const gguf_tensor *want, const char *rest, check_result *result, error *e) {
    static const char *const modules[][2] = { { "q", "attn_q" },      { "k", "attn_k" },      { "v", "attn_v" },
                                              { "o", "attn_output" }, { "gate", "ffn_gate" }, { "up", "ffn_up" },
                                              { "down", "ffn_down" } };
    char                     module[20] = "", half = 0, base[ADAPTER_NAME] = "";
    unsigned                 layer = 0;
    TRY(need_gradients(c, e));
    if (sscanf(rest, "L%u.%19[a-z].%c", &layer, module, &half) == 3) {
        for (size_t i = 0; i < COUNT_OF(modules); i++) {
            if (!strcmp(module, modules[i][0])) snprintf(base, sizeof base, "blk.%u.%s.weight", layer, modules[i][1]);
        }
    }
    const bool          is_b = half == 'B';
    const adapter_pair *pair = adapter_find(c->training->gradients, base);
    if (!pair) return fail(e, GM_BAD_ARGUMENT, "the adapter has no such part");
    TRY(check_floats(want, (uint64_t)pair->rank * (is_b ? pair->out : pair->in), e));
    result->error = relative_error(is_b ? pair->b : pair->a, check_values_of(c->expect, want), want->count);
    return GM_OK;
}

static gm_status update_once(trainer *t, const adamw_settings *settings, uint64_t step, error *e) {
    double    norm;
    gm_status status;
    do status = train_turn(trainer_update(t, settings, step, &norm, train_deadline(), e), e);
    while (status == GM_AGAIN);
    return status;
}

gm_status check_adamw_losses(check_state *c, const gguf_tensor *want, const char *rest, check_result *result,
                             error *e) {
    (void)rest;
    check_training t = { 0 };
    adamw_settings settings;
    gm_status      status = check_floats(want, want->count, e);
    if (!status) status = find_adamw(c, &settings, e);
    float *losses = calloc((size_t)want->count + 1, sizeof *losses);
    if (!status && !losses) status = fail_memory(e, "the losses", want->count * sizeof *losses);
    if (!status) status = training_begin(c, &t, e);
    for (size_t i = 0; !status && i < want->count; i++) {
        status = train_once(t.trainer, t.ids, t.weights, t.count, e);
        if (!status) losses[i] = (float)trainer_loss(t.trainer);
        if (!status) status = update_once(t.trainer, &settings, i + 1, e);
    }
    if (!status) result->error = relative_error(losses, check_values_of(c->expect, want), want->count);
    training_end(&t);
    free(losses);
    return status;
}
