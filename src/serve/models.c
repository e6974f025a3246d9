/* Models as files, for the app: the box, and what Ollama has on this machine. */

#include "serve/http.h"

#include "base/clock.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char model_type[] = "application/octet-stream";

/* The app keeps models itself: in the browser's cache they would only lie twice. */
static enum MHD_Result respond_model(request *r, int file, const char *etag) {
    return respond_file(
        r,
        &(file_answer){ .file = file, .etag = etag, .type = model_type, .policy = bare_policy, .cache = "no-store" });
}

/* ---- the store ---- */

void store_free(store_view *v) {
    arena_free(&v->memory);
    *v = (store_view){ 0 };
}

/* A model comes in hundreds of parts: the manifests are read again only after some seconds, or when something is not there. */
static const store_view *look_into_store(store_view *v, double at_most) {
    const double now = clock_seconds();
    if (v->at && now - v->at <= at_most) return v;
    store_free(v);
    v->at = now;
    if (ollama_list(&v->memory, &v->models, &v->count, &v->problem)) v->count = 0;
    return v;
}

static const char *file_name(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}

/* The path of a blob that a model of the store names as one of its files of weights. */
static const char *find_blob(const store_view *v, const char *name) {
    for (size_t i = 0; i < v->count; i++) {
        const ollama_model *m = &v->models[i];
        const char         *paths[] = { m->model, m->projector, m->draft };
        for (size_t k = 0; k < COUNT_OF(paths); k++) {
            if (paths[k] && !strcmp(file_name(paths[k]), name)) return paths[k];
        }
        for (size_t k = 0; k < m->adapter_count; k++) {
            if (!strcmp(file_name(m->adapters[k]), name)) return m->adapters[k];
        }
    }
    return NULL;
}

static bool is_blob_name(const char *name) {
    return strlen(name) == 71 && !strncmp(name, "sha256-", 7) && strspn(name + 7, "0123456789abcdef") == 64;
}

enum MHD_Result answer_blob(request *r) {
    const char *name = file_name(r->path);
    char        etag[80];
    const char *path = NULL;
    if (is_blob_name(name) && r->path + strlen(r->route->path) == name) {
        path = find_blob(look_into_store(&r->server->store, 5), name);
        if (!path) path = find_blob(look_into_store(&r->server->store, 0.2), name);
    }
    const int file = path ? open_regular(path) : -1;
    if (file < 0) return respond_error(r, 404, "not_found", NULL, NULL, "no model of Ollama's store has such a blob");
    snprintf(etag, sizeof etag, "\"%s\"", name);
    return respond_model(r, file, etag);
}

/* ---- the box ---- */

enum MHD_Result answer_box(request *r) {
    const char *path = r->server->options.box;
    const int   file = path ? open_regular(path) : -1;
    if (file >= 0) return respond_model(r, file, NULL);
    if (path)
        return respond_error(r, 404, "no_box", NULL, NULL, "the file of the model in the box, %s, cannot be read",
                             path);
    const char *why = r->server->options.no_box;
    return respond_error(r, 404, "no_box", NULL, NULL, "%s", why ? why : "there is no model in the box");
}

/* ---- the list ---- */

static void write_text(buffer *out, const char *key, const char *value) {
    buffer_printf(out, ",\"%s\":", key);
    if (value) json_write_string(out, str_of(value));
    else buffer_text(out, "null");
}

/* ,"model":{"url": …, "bytes": …, "digest": …}; null where there is no file. */
static void write_blob(buffer *out, const char *key, const char *path) {
    struct stat about;
    buffer_printf(out, ",\"%s\":", key);
    if (!path || stat(path, &about)) {
        buffer_text(out, "null");
        return;
    }
    const char *name = file_name(path);
    buffer_printf(out, "{\"url\":\"/ollama/blobs/%s\",\"bytes\":%" PRIu64 ",\"digest\":\"sha256:%s\"}", name,
                  (uint64_t)about.st_size, name + strlen("sha256-"));
}

static void write_ollama_model(buffer *out, const ollama_model *m) {
    buffer_text(out, "{\"source\":\"ollama\"");
    write_text(out, "name", m->name);
    buffer_printf(out, ",\"bytes\":%" PRIu64, m->bytes);
    buffer_printf(out, ",\"complete\":%s", m->problem[0] ? "false" : "true");
    write_text(out, "problem", m->problem[0] ? m->problem : NULL);
    write_text(out, "family", m->family);
    write_text(out, "parameters", m->size_label);
    write_text(out, "quantisation", m->quantisation);
    write_text(out, "renderer", m->renderer);
    write_text(out, "system", m->system);
    write_text(out, "params", m->params); /* Ollama's JSON, as text: its reader is elsewhere */
    write_blob(out, "model", m->model);
    write_blob(out, "projector", m->projector);
    buffer_char(out, '}');
}

static bool write_box(buffer *out, const serve_options *o) {
    struct stat about;
    if (!o->box || stat(o->box, &about) || !S_ISREG(about.st_mode)) return false;
    buffer_printf(out, "{\"source\":\"box\",\"name\":\"box\",\"bytes\":%" PRIu64 ",\"complete\":true,\"problem\":null",
                  (uint64_t)about.st_size);
    buffer_printf(out, ",\"model\":{\"url\":\"/models/box.gguf\",\"bytes\":%" PRIu64 ",\"digest\":null}}",
                  (uint64_t)about.st_size);
    return true;
}

enum MHD_Result answer_models(request *r) {
    buffer            out = { 0 };
    const store_view *v = look_into_store(&r->server->store, 0.2);
    buffer_text(&out, "{\"models\":[");
    const bool box = write_box(&out, &r->server->options);
    for (size_t i = 0; i < v->count; i++) {
        if (box || i) buffer_char(&out, ',');
        write_ollama_model(&out, &v->models[i]);
    }
    buffer_char(&out, ']');
    write_text(&out, "problem", v->problem.status ? v->problem.why : NULL);
    buffer_text(&out, "}\n");
    return respond_json(r, 200, &out, NULL, 0);
}
