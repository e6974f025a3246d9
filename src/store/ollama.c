/* Ollama's folder on disk. Everything is opened for reading only. */

#include "store/ollama.h"
#include "base/buffer.h"
#include "base/json.h"
#include "base/utf8.h"
#include "store/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Texts of the store are small; whatever is larger is not what it says. */
enum { LARGEST_TEXT = 4 << 20, DEEPEST_FOLDER = 7 };

/* ---- paths and files ---- */

static bool is_folder(const char *path) {
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

/* "a/b/c" in the arena; NULL when there is no memory. */
static char *join(arena *a, const char *folder, const char *middle, const char *name) {
    const size_t length = strlen(folder) + strlen(middle) + strlen(name) + 3;
    char        *path = arena_alloc(a, length);
    if (path) snprintf(path, length, "%s/%s%s%s", folder, middle, *middle ? "/" : "", name);
    return path;
}

const char *ollama_root(arena *a) {
    const char *set = getenv("OLLAMA_MODELS"), *home = getenv("HOME");
    if (set && *set) return arena_copy(a, str_of(set));
    const char *own = home && *home ? join(a, home, ".ollama", "models") : NULL;
    if (own && is_folder(own)) return own;
    static const char service[] = "/usr/share/ollama/.ollama/models";
    return is_folder(service) ? service : NULL;
}

/* A whole small file, in the arena. */
static gm_status read_text(const char *path, arena *a, str *out, error *e) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail(e, errno == ENOENT ? GM_NOT_FOUND : GM_IO, "%s: cannot be opened: %s", path, strerror(errno));
    buffer text = { 0 };
    char   piece[4096];
    size_t n = 0;
    do {
        n = fread(piece, 1, sizeof piece, file);
        buffer_append(&text, piece, n);
    } while (n == sizeof piece && text.length <= LARGEST_TEXT);
    const bool broken = ferror(file) != 0;
    fclose(file);
    gm_status   status = GM_OK;
    const char *copy = NULL;
    if (broken) status = fail(e, GM_IO, "%s: cannot be read", path);
    else if (text.length > LARGEST_TEXT)
        status = fail(e, GM_BAD_FILE, "%s: larger than %d MiB", path, LARGEST_TEXT >> 20);
    else if (text.failed || !(copy = arena_copy(a, buffer_view(&text)))) status = fail_memory(e, path, text.length);
    *out = (str){ copy, copy ? text.length : 0 };
    buffer_free(&text);
    return status;
}

/* ---- blobs ---- */

/* Whether blobs/ has "<blob>-partial" or "<blob>-partial-N": a download that did not end. */
static bool has_partial(arena *a, const char *root, const char *blob) {
    const char *folder = join(a, root, "", "blobs");
    DIR        *entries = folder ? opendir(folder) : NULL;
    if (!entries) return false;
    bool found = false;
    for (const struct dirent *entry; !found && (entry = readdir(entries));) {
        str name = str_of(entry->d_name);
        found = str_starts_with(name, blob) &&
                str_starts_with((str){ name.data + strlen(blob), name.length - strlen(blob) }, "-partial");
    }
    closedir(entries);
    return found;
}

/* The blob's path, once it is known to be there and whole. */
static gm_status find_blob(const char *root, const manifest_layer *layer, arena *a, const char **path, error *e) {
    struct stat about;
    const char *at = *path = join(a, root, "blobs", layer->blob);
    if (!at) return fail_memory(e, "a path", strlen(root));
    if (stat(at, &about)) {
        if (errno != ENOENT) return fail(e, GM_IO, "%s: %s", at, strerror(errno));
        if (has_partial(a, root, layer->blob)) {
            return fail(e, GM_NOT_FOUND,
                        "the download of the %s layer is not finished: %s-partial; `ollama pull` goes on with it",
                        layer->kind, at);
        }
        return fail(e, GM_NOT_FOUND, "the %s layer is missing: %s", layer->kind, at);
    }
    if (!S_ISREG(about.st_mode)) return fail(e, GM_BAD_FILE, "the %s layer is not a regular file: %s", layer->kind, at);
    if ((uint64_t)about.st_size != layer->size) {
        return fail(e, GM_BAD_FILE, "the %s layer has %llu bytes, the manifest says %llu: %s", layer->kind,
                    (unsigned long long)about.st_size, (unsigned long long)layer->size, at);
    }
    return GM_OK;
}

static gm_status read_blob(const char *root, const manifest_layer *layer, arena *a, str *text, const char **path,
                           error *e) {
    gm_status status = find_blob(root, layer, a, path, e);
    if (!status) status = read_text(*path, a, text, e);
    if (!status && !utf8_valid(*text))
        status = fail(e, GM_BAD_FILE, "%s: the %s layer is not UTF-8", *path, layer->kind);
    return status;
}

/* ---- one model ---- */

static gm_status read_config(const char *root, const manifest *m, arena *a, ollama_model *out, error *e) {
    if (!m->config.blob[0]) return GM_OK;
    manifest_layer  layer = m->config;
    manifest_config config;
    error           inner = { 0 };
    const char     *path = NULL;
    str             text;
    layer.kind = "config";
    gm_status status = read_blob(root, &layer, a, &text, &path, e);
    if (status) return status;
    if ((status = manifest_config_parse(text, a, &config, &inner))) return fail(e, status, "%s: %s", path, inner.why);
    out->renderer = config.renderer;
    out->family = config.family;
    out->size_label = config.size_label;
    out->quantisation = config.quantisation;
    return GM_OK;
}

/* A text layer; params must be a JSON object. */
static gm_status read_text_layer(const char *root, const manifest_layer *layer, arena *a, const char **out, error *e) {
    str         text;
    const char *path = NULL;
    gm_status   status = read_blob(root, layer, a, &text, &path, e);
    if (status) return status;
    if (!strcmp(layer->kind, "params")) {
        error inner = { 0 };
        json *value = NULL;
        if ((status = json_parse(text, a, &value, &inner))) return fail(e, status, "%s: %s", path, inner.why);
        if (value->kind != JSON_OBJECT) return fail(e, GM_BAD_FILE, "%s: the params layer must be a JSON object", path);
    }
    *out = text.data;
    return GM_OK;
}

static gm_status read_layer(const char *root, const manifest_layer *layer, arena *a, ollama_model *out, error *e) {
    struct {
        const char  *kind;
        const char **path, **text; /* one of the two */
    } kinds[] = {
        { "model", &out->model, NULL },   { "projector", &out->projector, NULL },
        { "draft", &out->draft, NULL },   { "system", NULL, &out->system },
        { "params", NULL, &out->params }, { "adapter", &out->adapters[out->adapter_count], NULL },
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (strcmp(layer->kind, kinds[i].kind) != 0) continue;
        const char *found = NULL;
        if (*(kinds[i].path ? kinds[i].path : kinds[i].text)) {
            return fail(e, GM_UNSUPPORTED, "the manifest names more than one %s layer", layer->kind);
        }
        gm_status status =
            kinds[i].path ? find_blob(root, layer, a, &found, e) : read_text_layer(root, layer, a, &found, e);
        if (status) return status;
        *(kinds[i].path ? kinds[i].path : kinds[i].text) = found;
        if (!strcmp(layer->kind, "adapter")) out->adapter_count++;
    }
    return GM_OK; /* templates, licences and the like are not ours */
}

static gm_status read_layers(const char *root, const manifest *m, arena *a, ollama_model *out, error *e) {
    out->bytes = m->bytes;
    out->adapters = arena_array(a, m->count + 1, sizeof *out->adapters);
    if (!out->adapters) return fail_memory(e, "a manifest", m->count * sizeof *out->adapters);
    gm_status status = read_config(root, m, a, out, e);
    bool      tensors = false;
    for (size_t i = 0; i < m->count && !status; i++) {
        tensors |= !strcmp(m->layers[i].kind, "tensor");
        status = read_layer(root, &m->layers[i], a, out, e);
    }
    if (status || out->model) return status;
    return fail(e, GM_UNSUPPORTED, "%s",
                tensors ? "the model is stored as safetensors, not as GGUF" : "the manifest names no model layer");
}

/* Fills in what it can, also when it fails: a list shows that too. */
static gm_status read_model(const char *root, const manifest_name *name, arena *a, ollama_model *out, error *e) {
    *out = (ollama_model){ .name = name->shown };
    const char *path = join(a, root, "manifests", name->path);
    str         text = { NULL, 0 };
    manifest    m;
    error       inner = { 0 };
    gm_status   status = path ? read_text(path, a, &text, e) : fail_memory(e, "a path", strlen(root));
    if (status) return status;
    if ((status = manifest_parse(text, a, &m, &inner))) return fail(e, status, "%s: %s", path, inner.why);
    if ((status = read_layers(root, &m, a, out, &inner))) return fail(e, status, "%s: %s", name->shown, inner.why);
    return GM_OK;
}

/* ---- all models ---- */

typedef struct {
    arena         *memory;
    const char    *root;
    manifest_name *names;
    size_t         count, capacity;
    error         *e;
} walk;

static gm_status add_name(walk *w, const char *path) {
    manifest_name name;
    if (manifest_name_of_path(path, w->memory, &name, NULL))
        return GM_OK; /* something that Ollama would not have made */
    if (w->count == w->capacity) {
        const size_t   capacity = w->capacity ? w->capacity * 2 : 32;
        manifest_name *names = arena_array(w->memory, capacity, sizeof *names);
        if (!names) return fail_memory(w->e, "the list of models", capacity * sizeof *names);
        if (w->count) memcpy(names, w->names, w->count * sizeof *names);
        w->names = names;
        w->capacity = capacity;
    }
    w->names[w->count++] = name;
    return GM_OK;
}

/* `below` is the path from manifests/ on, "" at the top. */
static gm_status walk_folder(walk *w, const char *below, int depth) {
    const char *folder = join(w->memory, w->root, "manifests", below);
    if (!folder) return fail_memory(w->e, "a path", strlen(below));
    DIR *entries = opendir(folder);
    if (!entries) {
        if (depth == 0 && errno == ENOENT) return GM_OK;
        return fail(w->e, GM_IO, "%s: cannot be read: %s", folder, strerror(errno));
    }
    gm_status status = GM_OK;
    for (const struct dirent *entry; !status && (entry = readdir(entries));) {
        if (entry->d_name[0] == '.') continue;
        struct stat about;
        const char *name =
            *below ? join(w->memory, below, "", entry->d_name) : arena_copy(w->memory, str_of(entry->d_name));
        const char *path = name ? join(w->memory, w->root, "manifests", name) : NULL;
        if (!path) status = fail_memory(w->e, "a path", strlen(below));
        else if (stat(path, &about)) continue;
        else if (S_ISREG(about.st_mode)) status = add_name(w, name);
        else if (S_ISDIR(about.st_mode) && depth < DEEPEST_FOLDER) status = walk_folder(w, name, depth + 1);
    }
    closedir(entries);
    return status;
}

static int by_name(const void *a, const void *b) {
    const manifest_name *x = a, *y = b;
    return strcmp(x->shown, y->shown);
}

static gm_status find_names(const char *root, arena *a, walk *out, error *e) {
    *out = (walk){ .memory = a, .root = root, .e = e };
    gm_status status = walk_folder(out, "", 0);
    if (!status && out->count) qsort(out->names, out->count, sizeof *out->names, by_name);
    return status;
}

const char *ollama_unsupported(const ollama_model *m) {
    return m->adapter_count ? "it has an adapter, and adapters are not supported yet" : NULL;
}

gm_status ollama_list(arena *a, ollama_model **models, size_t *count, error *e) {
    *models = NULL;
    *count = 0;
    walk        w;
    const char *root = ollama_root(a);
    gm_status   status = root ? find_names(root, a, &w, e) : GM_OK;
    if (status || !root) return status;
    *models = arena_array(a, w.count, sizeof **models);
    if (!*models) return fail_memory(e, "the list of models", w.count * sizeof **models);
    for (size_t i = 0; i < w.count; i++) {
        ollama_model *model = &(*models)[i];
        error         inner = { 0 };
        if (read_model(root, &w.names[i], a, model, &inner) == GM_OK) {
            const char *lacking = ollama_unsupported(model);
            snprintf(model->problem, sizeof model->problem, "%s", lacking ? lacking : "");
            continue;
        }
        if (inner.status == GM_NO_MEMORY) return fail(e, GM_NO_MEMORY, "%s", inner.why);
        str         prefix = str_of(model->name);
        const char *why = inner.why;
        if (!strncmp(why, prefix.data, prefix.length) && !strncmp(why + prefix.length, ": ", 2))
            why += prefix.length + 2; /* the list says the name */
        snprintf(model->problem, sizeof model->problem, "%.*s", (int)sizeof model->problem - 1, why);
    }
    *count = w.count;
    return GM_OK;
}

/* ---- resolving ---- */

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

static bool same_name(const char *a, const char *b) {
    while (*a && lower(*a) == lower(*b)) a++, b++;
    return !*a && !*b;
}

static gm_status not_found(const char *root, const manifest_name *name, const walk *there, error *e) {
    buffer list = { 0 };
    for (size_t i = 0; i < there->count && list.length < 150; i++)
        buffer_printf(&list, "%s%s", i ? ", " : "", there->names[i].shown);
    const size_t rest = list.length >= 150 ? there->count : 0;
    gm_status    status =
        fail(e, GM_NOT_FOUND, "no model '%s' in Ollama's store: there is no %s/manifests/%s; the store has %s%s",
             name->shown, root, name->path, list.length ? list.data : "no models", rest ? " …" : "");
    buffer_free(&list);
    return status;
}

gm_status ollama_resolve(const char *name, arena *a, ollama_model *out, error *e) {
    *out = (ollama_model){ 0 };
    manifest_name parsed;
    walk          there;
    gm_status     status = manifest_name_parse(name, a, &parsed, e);
    if (status) return status;
    const char *root = ollama_root(a);
    if (!root) {
        return fail(
            e, GM_NOT_FOUND,
            "no model '%s': there is no Ollama store ($OLLAMA_MODELS is not set, and neither ~/.ollama/models nor "
            "/usr/share/ollama/.ollama/models exists)",
            parsed.shown);
    }
    struct stat about;
    const char *path = join(a, root, "manifests", parsed.path);
    if (!path) return fail_memory(e, "a path", strlen(root));
    if (!stat(path, &about) && S_ISREG(about.st_mode)) return read_model(root, &parsed, a, out, e);
    if ((status = find_names(root, a, &there, e))) return status;
    for (size_t i = 0; i < there.count; i++) { /* Ollama takes no notice of case */
        if (same_name(there.names[i].path, parsed.path)) return read_model(root, &there.names[i], a, out, e);
    }
    return not_found(root, &parsed, &there, e);
}
