/* gemmule adapter merge: writes a model with adapters in its weights, says what that costs, and makes a Modelfile. */

#include "cli/adapter.h"

#include "adapter/merge.h"
#include "base/new_file.h"
#include "cli/engine_arguments.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cpu/quantise.h"
#include "session/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct {
    arena         memory;
    gguf         *file;
    model         m;
    engine_origin origin;
    merge_part   *parts;
    size_t        count;
    merge_options options;
    merge_report  report;
} merge_work;

static gm_status merge_type(const char *name, merge_options *o, error *e) {
    for (uint32_t type = 0; type < TYPE_COUNT; type++) {
        const quant_format *format = quant_format_of(type);
        if (!format || strcasecmp(format->name, name) || !quantise_known((quant_type)type)) continue;
        o->retype = true;
        o->type = (quant_type)type;
        return GM_OK;
    }
    return fail(e, GM_BAD_ARGUMENT,
                "'%s' is not a type of weights; expected f32, f16, bf16, q8_0, q6_k, q5_k, q4_k, q4_0, …", name);
}

static gm_status merge_add(merge_work *w, const char *given, error *e) {
    adapter *a = NULL;
    size_t   length;
    float    scale;
    TRY(adapter_argument(given, &length, &scale, e));
    const char *path = arena_copy(&w->memory, (str){ given, length });
    if (!path) return fail_memory(e, "an adapter's path", length);
    TRY(adapter_open(path, &a, e));
    w->parts[w->count++] = (merge_part){ a, scale };
    return adapter_fits(a, &w->m, w->file, w->file, e);
}

static gm_status merge_open(merge_work *w, const adapter_values *v, const char *const *given, size_t count, error *e) {
    const char *path = NULL;
    if (v->type) TRY(merge_type(v->type, &w->options, e));
    TRY(engine_find_model(given[0], &w->memory, &path, &w->origin, e));
    TRY(gguf_open_file(path, &w->file, e));
    TRY(model_shapes(w->file, &w->m, e));
    w->parts = arena_array(&w->memory, count + w->origin.adapter_count, sizeof *w->parts);
    if (!w->parts) return fail_memory(e, "the adapters", count * sizeof *w->parts);
    for (size_t i = 0; i < w->origin.adapter_count; i++) TRY(merge_add(w, w->origin.adapters[i], e));
    for (size_t i = 1; i + 1 < count; i++) TRY(merge_add(w, given[i], e));
    return GM_OK;
}

static void merge_close(merge_work *w) {
    for (size_t i = 0; i < w->count; i++) adapter_free((adapter *)w->parts[i].adapter);
    model_free(&w->m);
    gguf_free(w->file);
    arena_free(&w->memory);
}

/* ---- the Modelfile ---- */

static const char *merge_file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void modelfile_parameter(buffer *out, str key, const json *value) {
    buffer_text(out, "PARAMETER ");
    buffer_str(out, key);
    buffer_char(out, ' ');
    if (value->kind == JSON_STRING) json_write_string(out, value->text);
    else json_write(out, value);
    buffer_char(out, '\n');
}

/* The parameters of a model in Ollama's store. Lists, such as stop strings, have a line for each item. */
static gm_status modelfile_parameters(const char *params, arena *a, buffer *out, error *e) {
    json *root = NULL;
    if (!params) {
        buffer_text(out, "PARAMETER temperature 1\nPARAMETER top_k 64\nPARAMETER top_p 0.95\n");
        return GM_OK;
    }
    TRY(json_parse(str_of(params), a, &root, e));
    for (const json *one = root->first; one; one = one->next) {
        if (one->kind == JSON_ARRAY)
            for (const json *item = one->first; item; item = item->next) modelfile_parameter(out, one->key, item);
        else if (one->kind != JSON_NULL && one->kind != JSON_OBJECT) modelfile_parameter(out, one->key, one);
    }
    return GM_OK;
}

static gm_status write_modelfile(merge_work *w, const char *path, error *e) {
    buffer      text = { 0 };
    new_file   *file = NULL;
    const char *renderer = w->origin.renderer;
    if (!renderer) renderer = w->m.config.per_layer_width ? "gemma4-small" : "gemma4-large";
    buffer_printf(&text, "FROM ./%s\nRENDERER %s\nPARSER gemma4\n", merge_file_name(path), renderer);
    gm_status status = modelfile_parameters(w->origin.params, &w->memory, &text, e);
    if (w->origin.system) buffer_printf(&text, "SYSTEM \"\"\"%s\"\"\"\n", w->origin.system);
    const size_t room = strlen(path) + sizeof ".Modelfile";
    char        *name = arena_alloc(&w->memory, room);
    if (!status && (text.failed || !name)) status = fail_memory(e, "the Modelfile", text.length);
    if (!status) {
        snprintf(name, room, "%s.Modelfile", path);
        status = new_file_open(name, NEW_FILE_BULK, &file, e);
    }
    if (!status) {
        (void)new_file_write(file, text.data, text.length); /* new_file_end tells */
        status = new_file_end(file, &(error){ 0 }, e);
    }
    buffer_free(&text);
    return status;
}

/* ---- the report ---- */

static double relative(double part, double whole) { return whole > 0 ? sqrt(part / whole) : 0; }

static void merge_print_kind(const merge_kind *k, const char *type) {
    printf("%-24s %-7s %8zu %11.3g %11.3g %11.3g\n", k->kind, type, k->tensors, relative(k->change, k->weights),
           relative(k->lost, k->weights), relative(k->lost, k->change));
}

static void merge_print(const merge_report *r, const char *path) {
    char bytes[32], name[1000];
    printf("%-24s %-7s %8s %11s %11s %11s\n", "KIND", "TYPE", "TENSORS", "CHANGE", "ERROR", "ERR/CHANGE");
    for (size_t i = 0; i < r->count; i++) merge_print_kind(&r->kinds[i], quant_format_of(r->kinds[i].type)->name);
    merge_print_kind(&r->all, "");
    format_bytes(r->bytes, bytes);
    printf("%s: %s\n", printable(str_of(path), name, sizeof name), bytes);
}

static void merge_report_kind(report *out, const char *key, const merge_kind *k, const char *type) {
    report_open(out, key, '{');
    report_text(out, "kind", k->kind);
    if (type) report_text(out, "type", type);
    report_count(out, "tensors", k->tensors);
    report_number(out, "change", relative(k->change, k->weights));
    report_number(out, "error", relative(k->lost, k->weights));
    report_number(out, "error_of_change", relative(k->lost, k->change));
    report_close(out, '}');
}

static int merge_print_json(const merge_report *r, const char *path) {
    report out = { 0 };
    report_open(&out, NULL, '{');
    report_text(&out, "path", path);
    report_count(&out, "bytes", r->bytes);
    report_open(&out, "kinds", '[');
    for (size_t i = 0; i < r->count; i++)
        merge_report_kind(&out, NULL, &r->kinds[i], quant_format_of(r->kinds[i].type)->name);
    report_close(&out, ']');
    merge_report_kind(&out, "all", &r->all, NULL);
    report_close(&out, '}');
    return report_print(&out);
}

static bool show_merge(void *user, uint64_t done, uint64_t total) {
    progress_update(user, done, total);
    return !interrupted();
}

int adapter_merge_run(const adapter_values *v, const char *const *given, size_t count) {
    const char *path = given[count - 1];
    merge_work  w = { 0 };
    error       e = { 0 };
    progress    bar;
    int         code = EXIT_OK;
    gm_status   status = merge_open(&w, v, given, count, &e);
    if (!status) {
        interrupt_catch();
        progress_start(&bar, "merging", PROGRESS_BYTES, !v->json && !v->quiet);
        w.options.progress = show_merge;
        w.options.user = &bar;
        status = adapter_merge(w.file, &w.m, w.parts, w.count, path, &w.options, &w.memory, &w.report, &e);
        progress_end(&bar);
    }
    if (!status && v->ollama) status = write_modelfile(&w, path, &e);
    if (status) code = complain_error(&e);
    else if (v->json) code = merge_print_json(&w.report, path);
    else if (!v->quiet) merge_print(&w.report, path);
    merge_close(&w);
    return code;
}
