/* For JavaScript: examples to learn from, as web/src/core/dataset.ts gives them. */

#include "wasm/train_data.h"

#include "base/clock.h"
#include "train/data.h"

#include <stdlib.h>
#include <string.h>

/* ---- the bytes ---- */

static void file_free(wasm_file *f) {
    for (wasm_file *next; f; f = next) {
        next = f->next;
        free(f->path);
        free(f->bytes);
        free(f);
    }
}

EXPORT(gmw_data_free) void gmw_data_free(wasm_data *d) {
    if (!d) return;
    file_free(d->main);
    file_free(d->media);
    free(d);
}

EXPORT(gmw_data_new) wasm_data *gmw_data_new(void) { return calloc(1, sizeof(wasm_data)); }

/* Adds a file: the examples first. The bytes, from gmw_alloc, belong to the data then. */
EXPORT(gmw_data_add) gm_status gmw_data_add(wasm_context *c, wasm_data *d, const char *path, char *bytes, size_t size) {
    error      e = { 0 };
    wasm_file *f = calloc(1, sizeof *f);
    char      *copy = strdup(path);
    if (!f || !copy) {
        free(f);
        free(copy);
        free(bytes);
        fail_memory(&e, path, sizeof *f);
        return wasm_end(c, &e);
    }
    wasm_file **list = d->main ? &d->media : &d->main;
    *f = (wasm_file){ *list, copy, bytes, size };
    *list = f;
    return GM_OK;
}

const wasm_file *wasm_data_find(const wasm_data *d, const char *path) {
    const wasm_file *f = d->media;
    while (f && strcmp(f->path, path)) f = f->next;
    return f;
}

static gm_status data_read_media(void *host, const char *path, buffer *out, error *e) {
    const wasm_file *f = wasm_data_find(host, path);
    if (!f) return fail(e, GM_BAD_FILE, "%s is not among the files; give the whole folder", path);
    buffer_append(out, f->bytes, f->size);
    return out->failed ? fail_memory(e, path, f->size) : GM_OK;
}

/* ---- what is in it ---- */

static double train_number(const json *options, const char *key, double otherwise) {
    const json *value = json_get(options, key);
    return json_is(value, JSON_NUMBER) ? value->number : otherwise;
}

/* Options as JSON: {maxTokens, evalShare, seed}. The data must stay until the dataset is freed. */
EXPORT(gmw_dataset_new)
gm_status gmw_dataset_new(wasm_context *c, gm_engine *engine, wasm_data *d, const char *text, size_t length,
                          dataset **out) {
    error e = { 0 };
    arena a = { 0 };
    json *o = NULL;
    *out = NULL;
    if (!json_parse((str){ text, length }, &a, &o, &e)) {
        const data_source from = {
            .bytes = { d->main->bytes, d->main->size }, .name = d->main->path, .read_media = data_read_media, .host = d
        };
        const data_options options = { .words = engine->words,
                                       .variant = engine->variant,
                                       .system = engine->system,
                                       .max_tokens = (size_t)train_number(o, "maxTokens", 0),
                                       .eval_share = train_number(o, "evalShare", 0),
                                       .seed = (uint64_t)train_number(o, "seed", 0),
                                       .model = engine->file,
                                       .projector = engine->projector };
        dataset_open(&from, &options, out, &e);
    }
    arena_free(&a);
    return wasm_end(c, &e);
}

EXPORT(gmw_dataset_free) void gmw_dataset_free(dataset *d) { dataset_free(d); }

/* Reads on. A bad file: the result is a list of its problems. */
EXPORT(gmw_dataset_scan) gm_status gmw_dataset_scan(wasm_context *c, dataset *d) {
    error           e = { 0 };
    const gm_status status = dataset_scan(d, clock_seconds() + 0.03, &e);
    return wasm_end_step(c, status, &e);
}

/* Fills [bytes read, of how many]. */
EXPORT(gmw_dataset_progress) void gmw_dataset_progress(const dataset *d, double out[2]) {
    uint64_t done, total;
    dataset_progress(d, &done, &total);
    out[0] = (double)done;
    out[1] = (double)total;
}

/* A list of texts, "line 7: …". */
EXPORT(gmw_dataset_problems) gm_status gmw_dataset_problems(wasm_context *c, const dataset *d) {
    const error e = { 0 };
    buffer_clear(&c->result);
    buffer_char(&c->result, '[');
    for (size_t i = 0; dataset_problem(d, i); i++) {
        if (i) buffer_char(&c->result, ',');
        json_write_string(&c->result, str_of(dataset_problem(d, i)));
    }
    buffer_char(&c->result, ']');
    return wasm_end(c, &e);
}

/* DataReport in web/src/core/types.ts. */
EXPORT(gmw_dataset_info) gm_status gmw_dataset_info(wasm_context *c, const dataset *d) {
    const data_stats *t = dataset_stats(d);
    const error       e = { 0 };
    buffer           *out = &c->result;
    size_t            evaluation = 0;
    const struct {
        const char *key;
        uint64_t    value;
    } counts[] = { { "records", t->records },
                   { "examples", t->examples },
                   { "tokens", t->tokens },
                   { "counted", t->counted },
                   { "shortest", t->shortest },
                   { "longest", t->longest },
                   { "truncated", t->truncated },
                   { "leftOut", t->left_out },
                   { "leftOutLine", t->left_out_line },
                   { "duplicates", t->duplicates },
                   { "duplicateLine", t->duplicate_line },
                   { "duplicateOf", t->duplicate_of },
                   { "media", t->media } };
    for (size_t i = 0; i < dataset_count(d); i++) evaluation += dataset_is_eval(d, i);
    buffer_clear(out);
    buffer_char(out, '{');
    wasm_text(out, "form", dataset_describe(d));
    wasm_bool(out, "pairs", dataset_form(d) == DATA_PAIRS);
    for (size_t i = 0; i < COUNT_OF(counts); i++) wasm_number(out, counts[i].key, (double)counts[i].value);
    wasm_number(out, "evaluation", (double)evaluation);
    wasm_key(out, "histogram");
    for (size_t i = 0; i < DATA_BINS; i++) {
        buffer_char(out, i ? ',' : '[');
        json_write_number(out, (double)t->histogram[i]);
    }
    buffer_text(out, "]}");
    return wasm_end(c, &e);
}

/* {"line", "evaluation", "sequences": [{"text", "tokens", "counted", "truncated"}]}. In the text, what counts is between U+0001 and
 * U+0002: the preview itself has no such characters. */
EXPORT(gmw_dataset_preview)
gm_status gmw_dataset_preview(wasm_context *c, const gm_engine *engine, dataset *d, size_t index) {
    error        e = { 0 };
    data_example x = { 0 };
    buffer      *out = &c->result, text = { 0 };
    buffer_clear(out);
    if (index >= dataset_count(d)) {
        fail(&e, GM_BAD_ARGUMENT, "there is no example %zu; there are %zu", index, dataset_count(d));
    } else if (!dataset_example(d, index, &x, &e)) {
        buffer_char(out, '{');
        wasm_number(out, "line", (double)x.line);
        wasm_bool(out, "evaluation", dataset_is_eval(d, index));
        wasm_key(out, "sequences");
        for (size_t i = 0; i < x.sequences; i++) {
            const data_sequence *q = &x.sequence[i];
            buffer_clear(&text);
            data_preview(engine->words, q, "\x01", "\x02", &text);
            buffer_text(out, i ? ",{" : "[{");
            wasm_key(out, "text");
            json_write_string(out, buffer_view(&text));
            wasm_number(out, "tokens", (double)q->count);
            wasm_number(out, "counted", (double)q->counted);
            wasm_bool(out, "truncated", q->truncated);
            buffer_char(out, '}');
        }
        buffer_text(out, "]}");
        if (text.failed) out->failed = true;
    }
    data_example_free(&x);
    buffer_free(&text);
    return wasm_end(c, &e);
}
