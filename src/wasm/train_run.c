/* For JavaScript: training (web/src/core/training.ts). */

#include "wasm/train_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

typedef enum { SETTING_NUMBER, SETTING_SIZE, SETTING_UINT, SETTING_U64, SETTING_TEXT, SETTING_BOOL } setting_kind;

static const struct {
    const char  *name;
    size_t       offset;
    setting_kind kind;
} training_settings[] = {
#define SETTING(name, field, kind) { name, offsetof(gm_training_options, field), SETTING_##kind }
    SETTING("maxTokens", max_tokens, SIZE),
    SETTING("evalShare", eval_split, NUMBER),
    SETTING("name", name, TEXT),
    SETTING("rank", rank, UINT),
    SETTING("alpha", alpha, NUMBER),
    SETTING("rslora", rslora, BOOL),
    SETTING("targets", targets, TEXT),
    SETTING("layers", layers, TEXT),
    SETTING("loss", loss, TEXT),
    SETTING("beta", beta, NUMBER),
    SETTING("epochs", epochs, UINT),
    SETTING("maxSteps", max_steps, U64),
    SETTING("batch", batch, UINT),
    SETTING("accumulate", accumulate, UINT),
    SETTING("rate", rate, NUMBER),
    SETTING("schedule", schedule, TEXT),
    SETTING("warmup", warmup, NUMBER),
    SETTING("decay", decay, NUMBER),
    SETTING("clip", clip, NUMBER),
    SETTING("dropout", dropout, NUMBER),
    SETTING("loraPlus", lora_plus, NUMBER),
    SETTING("evalEvery", eval_every, UINT),
    SETTING("patience", patience, UINT),
    SETTING("keepEvery", keep_every, UINT),
    SETTING("seed", seed, U64),
    SETTING("memory", memory, U64),
#undef SETTING
};

static gm_status setting_read(size_t i, const json *value, gm_training_options *out, arena *a, error *e) {
    static const double most[] = { INFINITY, 4294967295.0, 4294967295.0, 9007199254740992.0 };
    const setting_kind  kind = training_settings[i].kind;
    const char         *name = training_settings[i].name;
    char               *at = (char *)out + training_settings[i].offset;
    if (kind == SETTING_BOOL) {
        memcpy(at, &(bool){ value->kind == JSON_TRUE }, sizeof(bool));
        return GM_OK;
    }
    if (kind == SETTING_TEXT) {
        const char *text = value->kind == JSON_STRING ? arena_copy(a, value->text) : NULL;
        if (!text) return fail(e, GM_BAD_ARGUMENT, "%s must be a text", name);
        memcpy(at, &text, sizeof text);
        return GM_OK;
    }
    const double n = value->number;
    if (value->kind != JSON_NUMBER) return fail(e, GM_BAD_ARGUMENT, "%s must be a number", name);
    if (kind == SETTING_NUMBER) memcpy(at, &n, sizeof n);
    else if (n != floor(n) || n < 0 || n > most[kind])
        return fail(e, GM_BAD_ARGUMENT, "%s must be a whole number from 0 on, found %g", name, n);
    else if (kind == SETTING_SIZE) memcpy(at, &(size_t){ (size_t)n }, sizeof(size_t));
    else if (kind == SETTING_UINT) memcpy(at, &(uint32_t){ (uint32_t)n }, sizeof(uint32_t));
    else memcpy(at, &(uint64_t){ (uint64_t)n }, sizeof(uint64_t));
    return GM_OK;
}

static gm_status settings_read(str text, gm_training_options *out, arena *a, error *e) {
    json *all = NULL;
    TRY(json_parse(text, a, &all, e));
    for (size_t i = 0; i < COUNT_OF(training_settings); i++) {
        const json *value = json_get(all, training_settings[i].name);
        if (value) TRY(setting_read(i, value, out, a, e));
    }
    return GM_OK;
}

/* ---- the training ---- */

static gm_status wasm_training_media(void *user, const char *path, void **bytes, size_t *size) {
    const wasm_file *f = wasm_data_find(user, path);
    if (!f) return GM_NOT_FOUND;
    *bytes = malloc(f->size + 1);
    if (!*bytes) return GM_NO_MEMORY;
    memcpy(*bytes, f->bytes, f->size);
    *size = f->size;
    return GM_OK;
}

/* Options as JSON: TrainingSettings in web/src/core/types.ts. The data must stay until the training is freed; the checkpoint, of 0
 * bytes if there is none, need not. */
EXPORT(gmw_training_new)
gm_status gmw_training_new(wasm_context *c, gm_engine *engine, wasm_data *d, const char *text, size_t length,
                           const void *checkpoint, size_t checkpoint_size, gm_training **out) {
    error               e = { 0 };
    arena               a = { 0 };
    char                why[sizeof e.why];
    gm_training_options options = { .data = d->main->bytes,
                                    .data_size = d->main->size,
                                    .data_name = d->main->path,
                                    .media = wasm_training_media,
                                    .media_user = d,
                                    .checkpoint = checkpoint_size ? checkpoint : NULL,
                                    .checkpoint_size = checkpoint_size };
    *out = NULL;
    if (!settings_read((str){ text, length }, &options, &a, &e)) {
        const gm_status status = gm_training_new(engine, &options, out, why, sizeof why);
        if (status) fail(&e, status, "%s", why);
    }
    arena_free(&a);
    return wasm_end(c, &e);
}

EXPORT(gmw_training_free) void gmw_training_free(gm_training *t) { gm_training_free(t); }
EXPORT(gmw_training_stop) void gmw_training_stop(gm_training *t) { gm_training_stop(t); }

/* GM_OK: an event. Fills [kind, end, step, steps, epoch, epochs, loss, eval loss, perplexity, best eval loss, accuracy, rate, norm,
 * tokens/s, seconds, seconds left, tokens, memory, kept step, done, total], also with GM_AGAIN and GM_DONE. */
EXPORT(gmw_training_next) gm_status gmw_training_next(wasm_context *c, gm_training *t, double out[21]) {
    error             e = { 0 };
    char              why[sizeof e.why];
    gm_training_event v = { 0 };
    const gm_status   status = gm_training_next(t, &v, why, sizeof why);
    const double      numbers[] = { v.kind,
                                    v.end,
                                    (double)v.step,
                                    (double)v.steps,
                                    v.epoch,
                                    v.epochs,
                                    v.loss,
                                    v.eval_loss,
                                    v.perplexity,
                                    v.best_eval_loss,
                                    v.accuracy,
                                    v.rate,
                                    v.norm,
                                    v.tokens_per_second,
                                    v.seconds,
                                    v.seconds_left,
                                    (double)v.tokens,
                                    (double)v.memory,
                                    (double)v.kept_step,
                                    (double)v.done,
                                    (double)v.total };
    memcpy(out, numbers, sizeof numbers);
    buffer_clear(&c->result);
    if (status && status != GM_AGAIN && status != GM_DONE) fail(&e, status, "%s", why);
    return wasm_end_step(c, status, &e);
}

/* ---- what it has made ---- */

/* The state that was kept last: fills [address, bytes]. Free it with gmw_free. */
EXPORT(gmw_training_checkpoint)
gm_status gmw_training_checkpoint(wasm_context *c, const gm_training *t, void *out[1], size_t size[1]) {
    error           e = { 0 };
    char            why[sizeof e.why];
    const gm_status status = gm_training_save_buffer(t, out, size, why, sizeof why);
    if (status) fail(&e, status, "%s", why);
    return wasm_end(c, &e);
}

/* The adapter of that state, a GGUF file. */
EXPORT(gmw_training_adapter)
gm_status gmw_training_adapter(wasm_context *c, const gm_training *t, void *out[1], size_t size[1]) {
    error           e = { 0 };
    char            why[sizeof e.why];
    const gm_status status = gm_training_adapter_buffer(t, out, size, NULL, NULL, why, sizeof why);
    if (status) fail(&e, status, "%s", why);
    return wasm_end(c, &e);
}

/* The losses of all steps: how many, and where. */
EXPORT(gmw_training_losses) size_t gmw_training_losses(const gm_training *t, const float **losses) {
    return gm_training_losses(t, losses);
}

EXPORT(gmw_training_evaluations)
size_t gmw_training_evaluations(const gm_training *t, const float **losses, const uint64_t **steps) {
    return gm_training_evaluations(t, losses, steps);
}
