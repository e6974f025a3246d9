/* Ollama's store on disk. Everything is opened for reading only, and no link in it is followed: a manifest may name any
 * blob, and the server sends blobs to browsers. */

#include "store/ollama.h"
#include "base/buffer.h"
#include "base/json.h"
#include "base/utf8.h"
#include "store/below.h"
#include "store/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The store's texts are small; anything larger is not what it claims to be. */
enum { LARGEST_TEXT = 4 << 20, DEEPEST_FOLDER = 7 };

/* ---- the root ---- */

typedef struct {
    const char *path;
    int         folder; /* -1: it does not exist */
} store_root;

static bool is_folder(const char *path) {
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

/* "a/b/c" in the arena; NULL when there is no memory. */
static char *join_path(arena *a, const char *folder, const char *middle, const char *name) {
    const size_t length = strlen(folder) + strlen(middle) + strlen(name) + 3;
    char        *path = arena_alloc(a, length);
    if (path) snprintf(path, length, "%s%s%s%s%s", folder, *middle ? "/" : "", middle, *name ? "/" : "", name);
    return path;
}

gm_status ollama_root(arena *a, const char **path, error *e) {
    static const char service[] = "/usr/share/ollama/.ollama/models";
    const char       *set = getenv("OLLAMA_MODELS"), *home = getenv("HOME");
    const bool        is_set = set && *set;
    *path = NULL;
    if (is_set) *path = arena_copy(a, str_of(set));
    else if (home && *home) *path = join_path(a, home, ".ollama", "models");
    if (!*path && (is_set || (home && *home))) return fail_memory(e, "the path of Ollama's store", PATH_MAX);
    if (!is_set && !(*path && is_folder(*path))) *path = is_folder(service) ? service : NULL;
    return GM_OK;
}

/* The root itself may be a link: whoever set it up wanted the store there. */
static gm_status root_open(const char *path, store_root *out, error *e) {
    *out = (store_root){ .path = path, .folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
    if (out->folder >= 0 || errno == ENOENT) return GM_OK;
    return fail(e, GM_IO, "Ollama's store %s cannot be read: %s", path, strerror(errno));
}

static void root_close(store_root *r) {
    if (r->folder >= 0) close(r->folder);
    r->folder = -1;
}

/* Why something below the store could not be opened, from errno. */
static const char *open_problem(void) {
    if (errno == ELOOP) return "links in Ollama's store are not followed";
    if (errno == EINVAL) return "it is not a regular file";
    return strerror(errno);
}

static gm_status fail_open(const char *path, error *e) {
    const gm_status status = errno == ENOENT || errno == ENOTDIR ? GM_NOT_FOUND : errno == EINVAL ? GM_BAD_FILE : GM_IO;
    return fail(e, status, "%s: cannot be opened: %s", path, open_problem());
}

/* ---- texts ---- */

/* A whole small file, in the arena. Closes it. */
static gm_status read_text(int file, const char *path, arena *a, str *out, error *e) {
    buffer  text = { 0 };
    char    piece[4096];
    ssize_t n = 0;
    do {
        n = read(file, piece, sizeof piece);
        if (n > 0) buffer_append(&text, piece, (size_t)n);
    } while ((n > 0 || (n < 0 && errno == EINTR)) && text.length <= LARGEST_TEXT);
    const int   problem = n < 0 ? errno : 0;
    gm_status   status = GM_OK;
    const char *copy = NULL;
    close(file);
    if (problem) status = fail(e, GM_IO, "%s: cannot be read: %s", path, strerror(problem));
    else if (text.length > LARGEST_TEXT)
        status = fail(e, GM_BAD_FILE, "%s: larger than %d MiB", path, LARGEST_TEXT >> 20);
    else if (text.failed || !(copy = arena_copy(a, buffer_view(&text)))) status = fail_memory(e, path, text.length);
    *out = (str){ copy, copy ? text.length : 0 };
    buffer_free(&text);
    return status;
}

/* ---- blobs ---- */

/* Whether blobs/ has "<blob>-partial" or "<blob>-partial-N": a download that was interrupted. */
static bool has_partial(const store_root *root, const char *blob) {
    const int folder = below_open_folder(root->folder, "blobs");
    DIR      *entries = folder >= 0 ? fdopendir(folder) : NULL;
    bool      found = false;
    if (!entries) {
        if (folder >= 0) close(folder);
        return false;
    }
    for (const struct dirent *entry; !found && (entry = readdir(entries));) {
        str name = str_of(entry->d_name);
        found = str_starts_with(name, blob) &&
                str_starts_with((str){ name.data + strlen(blob), name.length - strlen(blob) }, "-partial");
    }
    closedir(entries);
    return found;
}

static gm_status fail_blob(const store_root *root, const manifest_layer *layer, const char *path, error *e) {
    if (errno != ENOENT && errno != ENOTDIR)
        return fail(e, errno == EINVAL ? GM_BAD_FILE : GM_IO, "the %s layer %s cannot be opened: %s", layer->kind, path,
                    open_problem());
    if (has_partial(root, layer->blob))
        return fail(e, GM_NOT_FOUND,
                    "the %s layer is only partly downloaded: %s-partial; run `ollama pull` again to finish it",
                    layer->kind, path);
    return fail(e, GM_NOT_FOUND, "the %s layer is missing: %s", layer->kind, path);
}

/* Opens the blob and checks that it is whole. */
static gm_status open_blob(const store_root *root, const manifest_layer *layer, arena *a, int *file, const char **path,
                           error *e) {
    struct stat about;
    char        below[100];
    snprintf(below, sizeof below, "blobs/%s", layer->blob);
    *path = join_path(a, root->path, "", below);
    if (!*path) return fail_memory(e, "a path", strlen(root->path));
    *file = below_open_file(root->folder, below);
    if (*file < 0) return fail_blob(root, layer, *path, e);
    const bool known = !fstat(*file, &about);
    if (known && (uint64_t)about.st_size == layer->size) return GM_OK;
    close(*file);
    *file = -1;
    if (!known) return fail(e, GM_IO, "%s: cannot be examined: %s", *path, strerror(errno));
    return fail(e, GM_BAD_FILE, "the %s layer has %llu bytes, but the manifest says %llu: %s", layer->kind,
                (unsigned long long)about.st_size, (unsigned long long)layer->size, *path);
}

static gm_status find_blob(const store_root *root, const manifest_layer *layer, arena *a, const char **path, error *e) {
    int             file = -1;
    const gm_status status = open_blob(root, layer, a, &file, path, e);
    if (file >= 0) close(file);
    return status;
}

static gm_status read_blob(const store_root *root, const manifest_layer *layer, arena *a, str *text, const char **path,
                           error *e) {
    int       file = -1;
    gm_status status = open_blob(root, layer, a, &file, path, e);
    if (!status) status = read_text(file, *path, a, text, e);
    if (!status && !utf8_valid(*text))
        status = fail(e, GM_BAD_FILE, "%s: the %s layer is not UTF-8", *path, layer->kind);
    return status;
}

int ollama_open_blob(const char *root_path, const char *blob) {
    store_root root;
    char       below[100];
    error      ignored = { 0 };
    const int  length = snprintf(below, sizeof below, "blobs/%s", blob);
    if (length < 0 || (size_t)length >= sizeof below || root_open(root_path, &root, &ignored) || root.folder < 0)
        return -1;
    const int file = below_open_file(root.folder, below);
    root_close(&root);
    return file;
}

/* ---- one model ---- */

static gm_status read_config(const store_root *root, const manifest *m, arena *a, ollama_model *out, error *e) {
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
static gm_status read_text_layer(const store_root *root, const manifest_layer *layer, arena *a, const char **out,
                                 error *e) {
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

static gm_status read_layer(const store_root *root, const manifest_layer *layer, arena *a, ollama_model *out,
                            error *e) {
    struct {
        const char  *kind;
        const char **path, **text; /* one of the two */
        uint64_t    *bytes;        /* may be NULL */
    } kinds[] = {
        { "model", &out->model, NULL, &out->model_bytes },
        { "projector", &out->projector, NULL, &out->projector_bytes },
        { "draft", &out->draft, NULL, NULL },
        { "adapter", &out->adapters[out->adapter_count], NULL, NULL },
        { "system", NULL, &out->system, NULL },
        { "params", NULL, &out->params, NULL },
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
        if (kinds[i].bytes) *kinds[i].bytes = layer->size;
        if (!strcmp(layer->kind, "adapter")) out->adapter_count++;
    }
    return GM_OK; /* we have no use for templates, licences and the like */
}

static gm_status ollama_read_layers(const store_root *root, const manifest *m, arena *a, ollama_model *out, error *e) {
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

/* Fills in what it can even when it fails: a list shows that much. */
static gm_status ollama_read_model(const store_root *root, const manifest_name *name, arena *a, ollama_model *out,
                                   error *e) {
    *out = (ollama_model){ .name = name->shown };
    const char *below = join_path(a, "manifests", "", name->path),
               *path = join_path(a, root->path, "manifests", name->path);
    str      text = { NULL, 0 };
    manifest m;
    error    inner = { 0 };
    if (!below || !path) return fail_memory(e, "a path", strlen(root->path));
    const int file = below_open_file(root->folder, below);
    if (file < 0) return fail_open(path, e);
    gm_status status = read_text(file, path, a, &text, e);
    if (status) return status;
    if ((status = manifest_parse(text, a, &m, &inner))) return fail(e, status, "%s: %s", path, inner.why);
    if ((status = ollama_read_layers(root, &m, a, out, &inner)))
        return fail(e, status, "%s: %s", name->shown, inner.why);
    return GM_OK;
}

/* ---- finding the manifests ---- */

typedef struct {
    arena            *memory;
    const store_root *root;
    manifest_name    *names;
    size_t            count, capacity;
    const char      **unreadable;
    size_t            unreadable_count, unreadable_capacity;
    error            *e;
} walk;

/* Room for one more item in an array that lives in the arena; NULL when there is no memory. */
static void *array_grow(arena *a, void *items, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return items;
    const size_t wider = *capacity ? *capacity * 2 : 32;
    void        *moved = arena_array(a, wider, size);
    if (!moved) return NULL;
    if (count) memcpy(moved, items, count * size);
    *capacity = wider;
    return moved;
}

static gm_status walk_add_name(walk *w, const char *path) {
    manifest_name name;
    if (manifest_name_of_path(path, w->memory, &name, NULL)) return GM_OK; /* not a file that Ollama wrote */
    manifest_name *names = array_grow(w->memory, w->names, w->count, &w->capacity, sizeof *names);
    if (!names) return fail_memory(w->e, "the list of models", w->count * sizeof *names);
    w->names = names;
    w->names[w->count++] = name;
    return GM_OK;
}

/* Notes, from errno, that something below manifests/ cannot be looked into. */
static gm_status walk_add_problem(walk *w, const char *below) {
    buffer text = { 0 };
    if (errno == ENOMEM) return fail_memory(w->e, "a folder's entries", strlen(below));
    buffer_printf(&text, "%s/manifests%s%s: %s", w->root->path, *below ? "/" : "", below, open_problem());
    const char  *line = text.failed ? NULL : arena_copy(w->memory, buffer_view(&text));
    const char **lines =
        array_grow(w->memory, w->unreadable, w->unreadable_count, &w->unreadable_capacity, sizeof *w->unreadable);
    buffer_free(&text);
    if (!line || !lines) return fail_memory(w->e, "the list of models", strlen(below));
    w->unreadable = lines;
    w->unreadable[w->unreadable_count++] = line;
    return GM_OK;
}

static gm_status walk_folder(walk *w, int folder, const char *below, int depth);

static gm_status walk_entry(walk *w, int folder, const char *below, const char *entry, int depth) {
    struct stat about;
    const char *path = *below ? join_path(w->memory, below, "", entry) : arena_copy(w->memory, str_of(entry));
    if (!path) return fail_memory(w->e, "a path", strlen(below));
    if (fstatat(folder, entry, &about, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? GM_OK : walk_add_problem(w, path); /* ENOENT: deleted meanwhile */
    if (S_ISREG(about.st_mode)) return walk_add_name(w, path);
    if (S_ISLNK(about.st_mode)) {
        errno = ELOOP;
        return walk_add_problem(w, path);
    }
    if (!S_ISDIR(about.st_mode) || depth == DEEPEST_FOLDER) return GM_OK;
    const int inner = below_open_folder(folder, entry);
    return inner < 0 ? walk_add_problem(w, path) : walk_folder(w, inner, path, depth + 1);
}

/* `below` is the path from manifests/ on, "" at the top. Closes the folder. */
static gm_status walk_folder(walk *w, int folder, const char *below, int depth) {
    DIR *entries = fdopendir(folder);
    if (!entries) {
        close(folder);
        return fail_memory(w->e, "a folder", sizeof(struct dirent));
    }
    gm_status status = GM_OK;
    for (const struct dirent *entry; !status && (entry = readdir(entries));) {
        if (entry->d_name[0] != '.') status = walk_entry(w, folder, below, entry->d_name, depth);
    }
    closedir(entries);
    return status;
}

static int by_name(const void *a, const void *b) {
    const manifest_name *x = a, *y = b;
    return strcmp(x->shown, y->shown);
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Every manifest, and what could not be read on the way; only a lack of memory is a failure. */
static gm_status walk_store(const store_root *root, arena *a, walk *out, error *e) {
    *out = (walk){ .memory = a, .root = root, .e = e };
    if (root->folder < 0) return GM_OK;
    const int folder = below_open_folder(root->folder, "manifests");
    if (folder < 0) return errno == ENOENT ? GM_OK : walk_add_problem(out, "");
    const gm_status status = walk_folder(out, folder, "", 0);
    if (!status && out->count) qsort(out->names, out->count, sizeof *out->names, by_name);
    if (!status && out->unreadable_count)
        qsort(out->unreadable, out->unreadable_count, sizeof *out->unreadable, by_text);
    return status;
}

/* ---- listing ---- */

/* Reads a model for the list: what is wrong with it becomes its `problem`. */
static gm_status list_model(const store_root *root, const manifest_name *name, arena *a, ollama_model *out, error *e) {
    error inner = { 0 };
    if (ollama_read_model(root, name, a, out, &inner) == GM_OK) return GM_OK;
    if (inner.status == GM_NO_MEMORY) return fail(e, GM_NO_MEMORY, "%s", inner.why);
    const str   prefix = str_of(out->name);
    const char *why = inner.why;
    if (!strncmp(why, prefix.data, prefix.length) && !strncmp(why + prefix.length, ": ", 2))
        why += prefix.length + 2; /* the list shows the name already */
    snprintf(out->problem, sizeof out->problem, "%.*s", (int)sizeof out->problem - 1, why);
    return GM_OK;
}

static gm_status list_models(const store_root *root, arena *a, ollama_store *out, error *e) {
    walk      w;
    gm_status status = walk_store(root, a, &w, e);
    if (status) return status;
    out->models = arena_array(a, w.count, sizeof *out->models);
    if (!out->models) return fail_memory(e, "the list of models", w.count * sizeof *out->models);
    for (; out->count < w.count && !status; out->count++)
        status = list_model(root, &w.names[out->count], a, &out->models[out->count], e);
    out->unreadable = w.unreadable;
    out->unreadable_count = w.unreadable_count;
    return status;
}

/* The one line of a store that cannot be opened at all. */
static gm_status list_nothing(const error *problem, arena *a, ollama_store *out, error *e) {
    const char  *line = arena_copy(a, str_of(problem->why));
    const char **lines = arena_array(a, 1, sizeof *lines);
    if (!line || !lines) return fail_memory(e, "the list of models", sizeof *lines);
    lines[0] = line;
    out->unreadable = lines;
    out->unreadable_count = 1;
    return GM_OK;
}

gm_status ollama_list(arena *a, ollama_store *out, error *e) {
    store_root root;
    error      closed = { 0 };
    *out = (ollama_store){ 0 };
    gm_status status = ollama_root(a, &out->root, e);
    if (status || !out->root) return status;
    if (root_open(out->root, &root, &closed)) return list_nothing(&closed, a, out, e);
    status = list_models(&root, a, out, e);
    root_close(&root);
    if (status) *out = (ollama_store){ .root = out->root };
    return status;
}

/* ---- resolving ---- */

static bool same_name(const char *a, const char *b) {
    while (*a && ascii_lower(*a) == ascii_lower(*b)) a++, b++;
    return !*a && !*b;
}

/* How to get on without the model. */
#define ADVICE                                                                                                         \
    "get it with `ollama pull %.100s`, give the path of a GGUF file, or use `box`, the model that comes with gemmule"

static gm_status fail_unknown(const store_root *root, const manifest_name *name, const walk *there, error *e) {
    buffer list = { 0 };
    for (size_t i = 0; i < there->count && list.length < 100; i++)
        buffer_printf(&list, "%s%s", i ? ", " : "", there->names[i].shown);
    if (list.length >= 100) buffer_text(&list, " …");
    const char *unreadable = there->unreadable_count ? there->unreadable[0] : NULL;
    gm_status   status =
        fail(e, GM_NOT_FOUND, "there is no model '%.100s' in Ollama's store %.80s, which has %s; " ADVICE "%s%.100s",
             name->shown, root->path, list.length && !list.failed ? list.data : "no models", name->shown,
             unreadable ? "; could not read " : "", unreadable ? unreadable : "");
    buffer_free(&list);
    return status;
}

/* Ollama ignores case. */
static gm_status resolve_any_case(const store_root *root, const manifest_name *name, arena *a, ollama_model *out,
                                  error *e) {
    walk there;
    TRY(walk_store(root, a, &there, e));
    for (size_t i = 0; i < there.count; i++) {
        if (same_name(there.names[i].path, name->path)) return ollama_read_model(root, &there.names[i], a, out, e);
    }
    return fail_unknown(root, name, &there, e);
}

/* Whether the exact manifest is there, readable or not. */
static bool has_manifest(const store_root *root, const manifest_name *name) {
    char      below[2200]; /* eight names of at most 255 bytes */
    const int length = snprintf(below, sizeof below, "manifests/%s", name->path);
    if (root->folder < 0 || length < 0 || (size_t)length >= sizeof below) return false;
    const int file = below_open_file(root->folder, below);
    if (file < 0) return errno != ENOENT && errno != ENOTDIR;
    close(file);
    return true;
}

gm_status ollama_resolve(const char *name, arena *a, ollama_model *out, error *e) {
    *out = (ollama_model){ 0 };
    manifest_name parsed;
    store_root    root;
    gm_status     status = manifest_name_parse(name, a, &parsed, e);
    const char   *path = NULL;
    if (!status) status = ollama_root(a, &path, e);
    if (status) return status;
    if (!path)
        return fail(e, GM_NOT_FOUND, "there is no model '%.100s', and no Ollama store on this machine; " ADVICE,
                    parsed.shown, parsed.shown);
    TRY(root_open(path, &root, e));
    status = has_manifest(&root, &parsed) ? ollama_read_model(&root, &parsed, a, out, e)
                                          : resolve_any_case(&root, &parsed, a, out, e);
    root_close(&root);
    return status;
}
