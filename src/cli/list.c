/* gemmule list: the model in the box and those in Ollama's store. */

#include "cli/cli.h"
#include "cli/inspect.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "store/box.h"
#include "store/ollama.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    bool json;
} list_values;

static const option options[] = {
    FLAG_OPTION(list_values, json, "json", 0, "print one JSON object with the paths of the files"),
};
static const option_group groups[] = { OPTION_GROUP("options", options, 0) };

/* ---- the box as an entry of the store ---- */

static gm_status describe_inspected(const inspection *found, arena *a, ollama_model *out, error *e) {
    static const struct {
        uint64_t    unit;
        const char *name;
    } units[] = { { 1000000000, "B" }, { 1000000, "M" }, { 1000, "K" }, { 1, "" } };
    char   label[32];
    size_t i = 0;
    while (i < COUNT_OF(units) - 1 && found->parameters < units[i].unit) i++;
    snprintf(label, sizeof label, "%.3g%s", (double)found->parameters / (double)units[i].unit, units[i].name);
    out->bytes = gguf_file_bytes(found->file);
    out->family = arena_copy(a, found->architecture);
    out->size_label = arena_copy(a, str_of(label));
    out->quantisation = found->file_type;
    if (!found->runs)
        snprintf(out->problem, sizeof out->problem, "%.*s", (int)sizeof out->problem - 1, found->problem.why);
    return out->family && out->size_label ? GM_OK : fail_memory(e, "the list of models", sizeof label);
}

/* What is wrong with the file becomes the model's `problem`. */
static gm_status describe_file(const char *path, arena *a, ollama_model *out, error *e) {
    error      problem = { 0 };
    gguf      *file = NULL;
    inspection found;
    if (gguf_open_file(path, &file, &problem)) {
        if (problem.status == GM_NO_MEMORY) return fail(e, GM_NO_MEMORY, "%s", problem.why);
        snprintf(out->problem, sizeof out->problem, "%.*s", (int)sizeof out->problem - 1, problem.why);
        return GM_OK;
    }
    gm_status status = inspect_file(path, file, &(inspect_wishes){ 0 }, a, &found, e);
    if (!status) status = describe_inspected(&found, a, out, e);
    inspect_free(&found);
    gguf_free(file);
    return status;
}

/* Puts the box, if there is one, before the models of the store. */
static gm_status add_box(arena *a, ollama_store *store, error *e) {
    error           none = { 0 };
    const char     *path = NULL;
    const gm_status status = box_find(a, &path, &none);
    if (status) return status == GM_NOT_FOUND ? GM_OK : fail(e, status, "%s", none.why);
    ollama_model *all = arena_array(a, store->count + 1, sizeof *all);
    if (!all) return fail_memory(e, "the list of models", (store->count + 1) * sizeof *all);
    all[0] = (ollama_model){ .name = "box", .model = path };
    TRY(describe_file(path, a, &all[0], e));
    if (store->count) memcpy(all + 1, store->models, store->count * sizeof *all);
    store->models = all;
    store->count += 1;
    return GM_OK;
}

/* ---- printing ---- */

static int list_print_json(const ollama_store *store) {
    report r = { 0 };
    report_open(&r, NULL, '{');
    report_text(&r, "root", store->root);
    report_open(&r, "models", '[');
    for (size_t i = 0; i < store->count; i++) {
        const ollama_model *m = &store->models[i];
        report_open(&r, NULL, '{');
        report_text(&r, "name", m->name);
        report_count(&r, "bytes", m->bytes);
        report_text(&r, "family", m->family);
        report_text(&r, "parameters", m->size_label);
        report_text(&r, "quantisation", m->quantisation);
        report_text(&r, "model", m->model);
        report_text(&r, "projector", m->projector);
        report_text(&r, "draft", m->draft);
        report_text(&r, "problem", m->problem[0] ? m->problem : NULL);
        report_close(&r, '}');
    }
    report_close(&r, ']');
    report_open(&r, "unreadable", '[');
    for (size_t i = 0; i < store->unreadable_count; i++) report_text(&r, NULL, store->unreadable[i]);
    report_close(&r, ']');
    report_close(&r, '}');
    return report_print(&r);
}

static const char *or_dash(const char *text) { return text && *text ? text : "-"; }

static void print_table(const ollama_model *models, size_t count) {
    size_t width = strlen("NAME");
    for (size_t i = 0; i < count; i++) width = max_size(width, strlen(models[i].name));
    printf("%-*s  %9s  %10s  %-8s  %s\n", (int)width, "NAME", "SIZE", "PARAMETERS", "TYPE", "STATE");
    for (size_t i = 0; i < count; i++) {
        const ollama_model *m = &models[i];
        char                size[32];
        format_bytes(m->bytes, size);
        printf("%-*s  %9s  %10s  %-8s  %s\n", (int)width, m->name, size, or_dash(m->size_label),
               or_dash(m->quantisation), m->problem[0] ? m->problem : "ok");
    }
}

/* An empty list is not a failure, but people should learn where we looked. */
static void explain_empty_store(const char *root) {
    if (!root) {
        fprintf(stderr,
                "gemmule: there is no Ollama store: $OLLAMA_MODELS is not set, and neither ~/.ollama/models nor "
                "/usr/share/ollama/.ollama/models exists\n");
    } else {
        fprintf(stderr, "gemmule: the Ollama store %s %s\n", root,
                access(root, F_OK) ? "does not exist" : "has no models");
    }
}

static int list_run(void *values, const arguments *args) {
    (void)args;
    const list_values *v = values;
    arena              a = { 0 };
    error              e = { 0 };
    ollama_store       store;
    int                code = EXIT_OK;
    gm_status          status = ollama_list(&a, &store, &e);
    const bool         empty = !store.count && !store.unreadable_count;
    if (!status) status = add_box(&a, &store, &e);
    if (status) {
        code = complain_error(&e);
    } else {
        if (empty) explain_empty_store(store.root);
        for (size_t i = 0; i < store.unreadable_count; i++) complain(EXIT_OK, "skipped %s", store.unreadable[i]);
        if (v->json) code = list_print_json(&store);
        else if (store.count) print_table(store.models, store.count);
    }
    arena_free(&a);
    return code;
}

const command command_list = {
    .name = "list",
    .arguments = "",
    .summary = "list the model in the box and those in Ollama's store",
    .description =
        "Looks in $OLLAMA_MODELS, ~/.ollama/models or /usr/share/ollama/.ollama/models, whichever comes first, and "
        "prints a line for each model: name, size on disk, parameters, quantisation, and `ok` or what is wrong with "
        "it. "
        "`box` is the model that comes with the program. Every name can be used as MODEL. The store is only read, "
        "links "
        "in it are not followed, and folders that cannot be read are named on standard error. Without a store, lists "
        "only the box.",
    .examples = "  gemmule list\n  gemmule list --json | jq -r '.models[] | select(.problem == null) | .name'\n",
    .groups = groups,
    .group_count = COUNT_OF(groups),
    .values_size = sizeof(list_values),
    .run = list_run,
};
