/* The state of a training that is kept: adapters and checkpoints are made of it.
 *
 * A checkpoint is a GGUF file (general.architecture = gemmule-training):
 *
 *   training.model, training.data     digests          training.settings  a line for each setting
 *   training.step, training.worse, training.best_step, training.best_loss (the bits of a double)
 *   state  F32 [trainer_state_size]   best  the same, if there is one
 *   references I32 [4 · pairs]  the bits of two doubles for each, NAN if they are not known; of preference pairs only
 *   losses F32 [steps]   eval.losses F32, eval.steps I32 [evaluations]   digest  the seal over everything before it */

#include "train/training_parts.h"

#include "base/new_file.h"
#include "gguf/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRAINING_VERSION = 1 };
static const char training_architecture[] = "gemmule-training";

/* ---- keeping ---- */

gm_status training_keep(gm_training *t, training_state *into, double deadline, error *e) {
    const size_t size = trainer_state_size(t->trainer);
    if (!into->values) into->values = malloc(size * sizeof *into->values);
    if (!into->values) return fail_memory(e, "the adapter and its moments", size * sizeof *into->values);
    TRY(trainer_read_state(t->trainer, into->values, deadline, e));
    into->step = t->step;
    into->evaluations = t->eval_count;
    into->best_loss = t->best_loss;
    into->worse = t->worse;
    return GM_OK;
}

static gm_status keep_grow(void **items, size_t *capacity, size_t count, size_t size, error *e) {
    if (count < *capacity) return GM_OK;
    const size_t more = 2 * *capacity + 64;
    void        *grown = realloc(*items, more * size);
    if (!grown) return fail_memory(e, "the losses", more * size);
    *items = grown;
    *capacity = more;
    return GM_OK;
}

gm_status training_note_loss(gm_training *t, double loss, error *e) {
    TRY(keep_grow((void **)&t->losses, &t->losses_capacity, (size_t)t->step, sizeof *t->losses, e));
    t->losses[t->step] = (float)loss;
    return GM_OK;
}

gm_status training_note_evaluation(gm_training *t, double loss, error *e) {
    size_t capacity = t->eval_capacity;
    TRY(keep_grow((void **)&t->eval_losses, &capacity, t->eval_count, sizeof *t->eval_losses, e));
    TRY(keep_grow((void **)&t->eval_steps, &t->eval_capacity, t->eval_count, sizeof *t->eval_steps, e));
    t->eval_losses[t->eval_count] = (float)loss;
    t->eval_steps[t->eval_count++] = t->step;
    return GM_OK;
}

static gm_status keep_check(const gm_training *t, error *e) {
    return t->kept.values ? GM_OK
                          : fail(e, GM_NOT_FOUND, "nothing was kept yet: the training has not computed its first step");
}

/* ---- writing a checkpoint ---- */

static uint64_t double_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double bits_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static gm_status checkpoint_body(const gm_training *t, gguf_writer *w, gguf_sink sink, void *user, error *e) {
    const uint64_t size = trainer_state_size(t->trainer), step = t->kept.step, evaluations = t->kept.evaluations;
    const uint64_t references = 2 * t->memo.reference_count;
    gguf_write_str(w, "general.architecture", str_of(training_architecture));
    gguf_write_u32(w, "training.version", TRAINING_VERSION);
    gguf_write_str(w, "training.model", str_of(t->engine->digest));
    gguf_write_str(w, "training.data", str_of(t->data_digest));
    gguf_write_str(w, "training.settings", str_of(t->settings_text));
    gguf_write_u64(w, "training.step", step);
    gguf_write_u64(w, "training.worse", t->kept.worse);
    gguf_write_u64(w, "training.best_step", t->best.step);
    gguf_write_u64(w, "training.best_loss", double_bits(t->kept.best_loss));
    gguf_write_tensor(w, "state", TYPE_F32, 1, &size);
    if (t->best.values) gguf_write_tensor(w, "best", TYPE_F32, 1, &size);
    if (references) gguf_write_tensor(w, "references", TYPE_I32, 1, &references);
    if (step) gguf_write_tensor(w, "losses", TYPE_F32, 1, &step);
    if (evaluations) gguf_write_tensor(w, "eval.losses", TYPE_F32, 1, &evaluations);
    if (evaluations) gguf_write_tensor(w, "eval.steps", TYPE_I32, 1, &evaluations);
    gguf_write_seal(w);
    TRY(gguf_writer_head(w, sink, user, e));
    TRY(gguf_writer_data(w, t->kept.values, size * sizeof(float), e));
    if (t->best.values) TRY(gguf_writer_data(w, t->best.values, size * sizeof(float), e));
    if (references) TRY(gguf_writer_data(w, t->memo.references, references * sizeof(int32_t), e));
    if (step) TRY(gguf_writer_data(w, t->losses, step * sizeof(float), e));
    if (evaluations) TRY(gguf_writer_data(w, t->eval_losses, evaluations * sizeof(float), e));
    for (uint64_t i = 0; i < evaluations; i++) {
        const int32_t at = (int32_t)t->eval_steps[i];
        TRY(gguf_writer_data(w, &at, sizeof at, e));
    }
    return gguf_writer_end(w, e);
}

static gm_status checkpoint_write(const gm_training *t, gguf_sink sink, void *user, error *e) {
    gguf_writer *w = NULL;
    TRY(keep_check(t, e));
    TRY(gguf_writer_new(&w, e));
    const gm_status status = checkpoint_body(t, w, sink, user, e);
    gguf_writer_free(w);
    return status;
}

gm_status gm_training_save(const gm_training *t, const char *path, char *why, size_t why_size) {
    error     e = { 0 }, problem = { 0 };
    new_file *file = NULL;
    if (!keep_check(t, &e) && !new_file_open(path, NEW_FILE_KEPT, &file, &e)) {
        checkpoint_write(t, new_file_write, file, &problem);
        new_file_end(file, &problem, &e);
    }
    return error_report(&e, why, why_size);
}

/* Hands a buffer's bytes over. */
static void buffer_give(buffer *from, void **data, size_t *size) {
    *data = from->data;
    *size = from->length;
}

gm_status gm_training_save_buffer(const gm_training *t, void **data, size_t *size, char *why, size_t why_size) {
    error  e = { 0 };
    buffer out = { 0 };
    *data = NULL;
    *size = 0;
    checkpoint_write(t, buffer_sink, &out, &e);
    if (out.failed) {
        e = (error){ 0 };
        fail_memory(&e, "the checkpoint", out.length);
    }
    if (e.status) buffer_free(&out);
    else buffer_give(&out, data, size);
    return error_report(&e, why, why_size);
}

/* ---- reading a checkpoint ---- */

static const uint8_t *checkpoint_tensor(const gguf *g, const char *name, quant_type type, uint64_t count, error *e) {
    const gguf_tensor *t = gguf_find_tensor(g, name);
    if (t && t->type == type && t->count == count) return gguf_tensor_data(g, t);
    fail(e, GM_BAD_FILE, "the checkpoint has %s '%s', but %llu values were expected", t ? "another" : "no", name,
         (unsigned long long)count);
    return NULL;
}

/* The first line that differs, for the message. */
static gm_status checkpoint_compare_settings(const gm_training *t, str theirs, error *e) {
    const char *ours = t->settings_text;
    size_t      line = 0;
    if (str_is(theirs, ours)) return GM_OK;
    for (size_t i = 0; i < theirs.length && ours[i] && theirs.data[i] == ours[i]; i++) {
        if (ours[i] == '\n') line = i + 1;
    }
    str a = { theirs.data + line, theirs.length - line };
    for (size_t i = 0; i < a.length; i++) {
        if (a.data[i] == '\n') a.length = i;
    }
    return fail(e, GM_BAD_ARGUMENT, "the checkpoint was made with other settings: \"%.*s\", now \"%.*s\"", STR_ARGS(a),
                (int)strcspn(ours + line, "\n"), ours + line);
}

static gm_status checkpoint_check(const gm_training *t, const gguf *g, error *e) {
    str      kind, their_model, data, settings;
    uint32_t version = 0;
    TRY(gguf_get_str(g, "general.architecture", &kind, NULL, e));
    if (!str_is(kind, training_architecture))
        return fail(e, GM_BAD_FILE, "not a checkpoint of a training: general.architecture is '%.*s', expected '%s'",
                    STR_ARGS(kind), training_architecture);
    TRY(gguf_get_u32(g, "training.version", &version, NULL, e));
    if (version != TRAINING_VERSION)
        return fail(e, GM_UNSUPPORTED, "the checkpoint has version %u; this program reads version %d", version,
                    TRAINING_VERSION);
    TRY(gguf_get_str(g, "training.model", &their_model, NULL, e));
    TRY(gguf_get_str(g, "training.data", &data, NULL, e));
    TRY(gguf_get_str(g, "training.settings", &settings, NULL, e));
    if (!str_is(their_model, t->engine->digest))
        return fail(e, GM_BAD_ARGUMENT, "the checkpoint belongs to another model (%.12s…, this one is %.12s…)",
                    their_model.length >= 12 ? their_model.data : "?", t->engine->digest);
    TRY(checkpoint_compare_settings(t, settings, e));
    if (!str_is(data, t->data_digest))
        return fail(e, GM_BAD_ARGUMENT,
                    "the checkpoint was made with other examples, or with another way to read them (digest %.12s…, "
                    "now %.12s…)",
                    data.length >= 12 ? data.data : "?", t->data_digest);
    return GM_OK;
}

static gm_status checkpoint_state(gm_training *t, const gguf *g, const char *name, training_state *out, error *e) {
    const size_t   size = trainer_state_size(t->trainer);
    const uint8_t *bytes = checkpoint_tensor(g, name, TYPE_F32, size, e);
    if (!bytes) return e->status;
    out->values = malloc(size * sizeof *out->values);
    if (!out->values) return fail_memory(e, "the adapter and its moments", size * sizeof *out->values);
    memcpy(out->values, bytes, size * sizeof *out->values);
    return GM_OK;
}

/* What the model thinks of pairs without the adapter; checkpoints of older versions have nothing of it. */
static gm_status checkpoint_references(gm_training *t, const gguf *g, error *e) {
    const size_t count = t->memo.reference_count;
    if (!count || !gguf_find_tensor(g, "references")) return GM_OK;
    const uint8_t *bytes = checkpoint_tensor(g, "references", TYPE_I32, 2 * count, e);
    if (!bytes) return e->status;
    memcpy(t->memo.references, bytes, count * sizeof *t->memo.references);
    return GM_OK;
}

static gm_status checkpoint_history(gm_training *t, const gguf *g, uint64_t step, error *e) {
    const gguf_tensor *evals = gguf_find_tensor(g, "eval.losses");
    const uint64_t     count = evals ? evals->count : 0;
    const uint8_t     *losses = step ? checkpoint_tensor(g, "losses", TYPE_F32, step, e) : NULL;
    if (step && !losses) return e->status;
    for (t->step = 0; t->step < step; t->step++) {
        float loss;
        memcpy(&loss, losses + t->step * sizeof loss, sizeof loss);
        TRY(training_note_loss(t, (double)loss, e));
    }
    const uint8_t *values = count ? checkpoint_tensor(g, "eval.losses", TYPE_F32, count, e) : NULL;
    const uint8_t *steps = values ? checkpoint_tensor(g, "eval.steps", TYPE_I32, count, e) : NULL;
    if (count && !steps) return e->status;
    for (uint64_t i = 0; i < count; i++) {
        float   loss;
        int32_t at;
        memcpy(&loss, values + i * sizeof loss, sizeof loss);
        memcpy(&at, steps + i * sizeof at, sizeof at);
        TRY(training_note_evaluation(t, (double)loss, e));
        t->eval_steps[i] = at < 0 ? 0 : (uint64_t)at;
    }
    return GM_OK;
}

static gm_status checkpoint_read(gm_training *t, const gguf *g, error *e) {
    uint64_t  step = 0, worse = 0, best = 0, loss = 0;
    gguf_seal seal = { 0 };
    gm_status status;
    TRY(checkpoint_check(t, g, e));
    do status = gguf_seal_check(g, &seal, UINT64_C(1) << 24, e);
    while (status == GM_AGAIN);
    if (status) return status;
    TRY(gguf_get_u64(g, "training.step", &step, NULL, e));
    TRY(gguf_get_u64(g, "training.worse", &worse, NULL, e));
    TRY(gguf_get_u64(g, "training.best_step", &best, NULL, e));
    TRY(gguf_get_u64(g, "training.best_loss", &loss, NULL, e));
    if (step > t->steps)
        return fail(e, GM_BAD_FILE, "the checkpoint has made %llu steps of %llu", (unsigned long long)step,
                    (unsigned long long)t->steps);
    TRY(checkpoint_state(t, g, "state", &t->kept, e));
    if (gguf_find_tensor(g, "best")) TRY(checkpoint_state(t, g, "best", &t->best, e));
    TRY(checkpoint_references(t, g, e));
    TRY(checkpoint_history(t, g, step, e));
    t->kept.step = step;
    t->kept.evaluations = t->eval_count;
    t->best.step = best;
    t->best_loss = t->kept.best_loss = bits_double(loss);
    t->worse = t->kept.worse = (uint32_t)worse;
    return GM_OK;
}

gm_status training_restore(gm_training *t, error *e) {
    gguf           *g = NULL;
    error           damage = { 0 };
    const gm_status opened = gguf_open_memory(t->checkpoint.data, t->checkpoint.length, &g, &damage);
    if (opened) return fail(e, opened, "the checkpoint cannot be read: %s", damage.why);
    const gm_status status = checkpoint_read(t, g, e);
    gguf_free(g);
    return status;
}

/* ---- the adapter ---- */

/* The adapter of the state that counts. The caller enters no engine: the trainer only says how values are laid out. */
static gm_status keep_adapter(const gm_training *t, const adapter **out, error *e) {
    const bool best = t->settings.o.patience && t->best.values;
    TRY(keep_check(t, e));
    trainer_state_adapter(t->trainer, best ? t->best.values : t->kept.values, t->adapter);
    *out = t->adapter;
    return GM_OK;
}

gm_status gm_training_save_adapter(const gm_training *t, const char *path, char *why, size_t why_size) {
    error          e = { 0 };
    const adapter *a = NULL;
    if (!keep_adapter(t, &a, &e)) adapter_save(a, path, &e);
    return error_report(&e, why, why_size);
}

gm_status gm_training_adapter_buffer(const gm_training *t, void **weights, size_t *weights_size, void **config,
                                     size_t *config_size, char *why, size_t why_size) {
    error          e = { 0 };
    buffer         values = { 0 }, about = { 0 };
    const adapter *a = NULL;
    *weights = NULL;
    *weights_size = 0;
    if (config) *config = NULL;
    if (!keep_adapter(t, &a, &e)) {
        if (!config) adapter_write_gguf(a, buffer_sink, &values, &e);
        else if (!adapter_write_safetensors(a, buffer_sink, &values, &e)) adapter_write_config(a, &about, &e);
    }
    if (values.failed || about.failed) {
        e = (error){ 0 };
        fail_memory(&e, "the adapter", values.length);
    }
    if (e.status) {
        buffer_free(&values);
        buffer_free(&about);
        return error_report(&e, why, why_size);
    }
    buffer_give(&values, weights, weights_size);
    if (config) buffer_give(&about, config, config_size);
    return GM_OK;
}
