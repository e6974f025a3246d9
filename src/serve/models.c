/* Model files for the app: the box, and what is in Ollama's store. */

#include "serve/http.h"

#include "base/clock.h"
#include "base/json.h"
#include "store/below.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char model_type[] = "application/octet-stream";

/* The app stores models itself; the browser's cache would only hold a second copy. */
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

/* The app fetches a model in hundreds of parts, so manifests are read again only when the view is older than `most_seconds`. */
static const store_view *store_refresh(store_view *v, double most_seconds) {
    const double now = clock_seconds();
    if (v->at && now - v->at <= most_seconds) return v;
    store_free(v);
    v->at = now;
    ollama_list(&v->memory, &v->store, &v->problem);
    return v;
}

static const char *file_name(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}

/* Whether a model of the store names this blob as one of its files of weights. */
static bool names_blob(const ollama_model *m, const char *blob) {
    const char *paths[] = { m->model, m->projector, m->draft };
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        if (paths[i] && !strcmp(file_name(paths[i]), blob)) return true;
    }
    for (size_t i = 0; i < m->adapter_count; i++) {
        if (!strcmp(file_name(m->adapters[i]), blob)) return true;
    }
    return false;
}

static bool store_names_blob(const store_view *v, const char *blob) {
    for (size_t i = 0; i < v->store.count; i++) {
        if (names_blob(&v->store.models[i], blob)) return true;
    }
    return false;
}

static bool is_blob_name(const char *name) {
    return strlen(name) == 71 && !strncmp(name, "sha256-", 7) && strspn(name + 7, "0123456789abcdef") == 64;
}

/* The view may be old: a blob that it lacks may belong to a model pulled since. */
static bool is_served_blob(server *s, const char *blob) {
    return store_names_blob(store_refresh(&s->store, 5), blob) || store_names_blob(store_refresh(&s->store, 0.2), blob);
}

enum MHD_Result answer_blob(request *r) {
    server     *s = r->server;
    const char *name = r->path + strlen(r->route->path);
    char        etag[80];
    const int   file = is_blob_name(name) && is_served_blob(s, name) ? ollama_open_blob(s->store.store.root, name) : -1;
    if (file < 0)
        return respond_error(r, 404, "not_found", NULL, NULL, "no model in Ollama's store has a blob of this name");
    snprintf(etag, sizeof etag, "\"%s\"", name);
    return respond_model(r, file, etag);
}

/* ---- the box ---- */

enum MHD_Result answer_box(request *r) {
    const char *path = r->server->options.box;
    const int   file = path ? open_regular_file(path) : -1;
    if (file >= 0) return respond_model(r, file, NULL);
    if (path) return respond_error(r, 404, "no_box", NULL, NULL, "cannot read the model in the box: %s", path);
    const char *why = r->server->options.no_box;
    return respond_error(r, 404, "no_box", NULL, NULL, "%s", why ? why : "this server has no model in the box");
}

/* ---- the list ---- */

static void write_text(buffer *out, const char *key, const char *value) {
    buffer_printf(out, ",\"%s\":", key);
    if (value) json_write_string(out, str_of(value));
    else buffer_text(out, "null");
}

/* ,"model":{"url": …, "bytes": …, "digest": …}, or null if there is no file. */
static void write_blob(buffer *out, const char *key, const char *path, uint64_t bytes) {
    buffer_printf(out, ",\"%s\":", key);
    if (!path) {
        buffer_text(out, "null");
        return;
    }
    const char *name = file_name(path);
    buffer_printf(out, "{\"url\":\"/ollama/blobs/%s\",\"bytes\":%" PRIu64 ",\"digest\":\"sha256:%s\"}", name, bytes,
                  name + strlen("sha256-"));
}

/* ,"adapters":[{"url": …, "digest": …}, …]: part of the model, so the app's engine loads them with it. */
static void write_adapters(buffer *out, const ollama_model *m) {
    buffer_text(out, ",\"adapters\":[");
    for (size_t i = 0; i < m->adapter_count; i++) {
        const char *name = file_name(m->adapters[i]);
        buffer_printf(out, "%s{\"url\":\"/ollama/blobs/%s\",\"digest\":\"sha256:%s\"}", i ? "," : "", name,
                      name + strlen("sha256-"));
    }
    buffer_char(out, ']');
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
    write_text(out, "params", m->params); /* Ollama's JSON, passed on as text */
    write_blob(out, "model", m->model, m->model_bytes);
    write_blob(out, "projector", m->projector, m->projector_bytes);
    write_adapters(out, m);
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

/* ,"problem":… null, or everything that could not be read. */
static void write_problem(buffer *out, const store_view *v) {
    buffer text = { 0 };
    if (v->problem.status) buffer_text(&text, v->problem.why);
    for (size_t i = 0; i < v->store.unreadable_count; i++)
        buffer_printf(&text, "%s%s", text.length ? "; " : "skipped ", v->store.unreadable[i]);
    write_text(out, "problem", text.length ? text.data : NULL);
    out->failed |= text.failed;
    buffer_free(&text);
}

enum MHD_Result answer_models(request *r) {
    buffer            out = { 0 };
    const store_view *v = store_refresh(&r->server->store, 0.2);
    buffer_text(&out, "{\"models\":[");
    const bool box = write_box(&out, &r->server->options);
    for (size_t i = 0; i < v->store.count; i++) {
        if (box || i) buffer_char(&out, ',');
        write_ollama_model(&out, &v->store.models[i]);
    }
    buffer_char(&out, ']');
    write_problem(&out, v);
    buffer_text(&out, "}\n");
    return respond_json(r, 200, &out, NULL, 0);
}
