/* Ollama's store: names, manifests and blobs, with a store that the test builds in a temporary folder. */

#include "base/buffer.h"
#include "base/sha256.h"
#include "store/manifest.h"
#include "store/ollama.h"
#include "test.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[100];

/* ---- building a store ---- */

static bool make_test_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    return true;
}

static void write_below(const char *below, const void *data, size_t length) {
    char path[500];
    snprintf(path, sizeof path, "%s/%s", root, below);
    make_test_folders(path);
    FILE *file = fopen(path, "wb");
    CHECK_MESSAGE(file && fwrite(data, 1, length, file) == length, "cannot write %s", path);
    if (file) fclose(file);
}

/* Writes the blob (unless `suffix` says otherwise) and appends its descriptor to a manifest. */
static void add_blob(buffer *manifest_text, const char *media, const char *content, const char *suffix,
                     long long more_bytes) {
    sha256  s;
    uint8_t digest[32];
    char    hex[65], path[200];
    sha256_start(&s), sha256_add(&s, content, strlen(content)), sha256_end(&s, digest);
    sha256_hex(digest, hex);
    snprintf(path, sizeof path, "blobs/sha256-%s%s", hex, suffix ? suffix : "");
    if (!suffix || *suffix) write_below(path, content, strlen(content));
    buffer_printf(manifest_text, "{\"mediaType\":\"%s\",\"digest\":\"sha256:%s\",\"size\":%lld}", media, hex,
                  (long long)strlen(content) + more_bytes);
}

#define LAYER "application/vnd.ollama.image."

typedef struct {
    const char *media, *content;
    const char *suffix; /* NULL: the blob is there; "": it is not; "-partial": only that is */
    long long   more_bytes;
} layer;

static void add_model(const char *manifest_path, const char *config, const layer *layers, size_t count) {
    buffer text = { 0 };
    char   path[300];
    buffer_text(&text, "{\"schemaVersion\":2,\"config\":");
    add_blob(&text, "application/vnd.docker.container.image.v1+json", config, NULL, 0);
    buffer_text(&text, ",\"layers\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) buffer_char(&text, ',');
        add_blob(&text, layers[i].media, layers[i].content, layers[i].suffix, layers[i].more_bytes);
    }
    buffer_text(&text, "]}");
    snprintf(path, sizeof path, "manifests/%s", manifest_path);
    write_below(path, text.data, text.length);
    buffer_free(&text);
}

static const char config_e2b[] = "{\"model_format\":\"gguf\",\"model_family\":\"gemma4\",\"model_type\":\"5.1B\","
                                 "\"file_type\":\"Q4_K_M\",\"renderer\":\"gemma4-small\"}";

static void build_store(void) {
    const layer whole[] = {
        { LAYER "model", "the model", NULL, 0 },
        { LAYER "projector", "the projector", NULL, 0 },
        { LAYER "draft", "the draft", NULL, 0 },
        { LAYER "adapter", "adapter 1", NULL, 0 },
        { LAYER "adapter", "adapter 2", NULL, 0 },
        { LAYER "system", "Be brief.\n\xc3\xa4", NULL, 0 },
        { LAYER "params", "{\"temperature\":1,\"top_k\":64}", NULL, 0 },
        { LAYER "license", "free", "", 0 },
    };
    add_model("registry.ollama.ai/library/gemma4/e2b", config_e2b, whole, COUNT_OF(whole));
    add_model("registry.ollama.ai/library/plain/latest", "{}", whole, 1);
    add_model("registry.ollama.ai/someone/tuned/v1", "{\"renderer\":7}", whole, 1);
    add_model("hf.co/user/Repo-GGUF/Q4_K_M", "{}", whole, 1);
    add_model("localhost:5000/a/b/c/latest", "{}", whole, 1);
    static const struct {
        const char *path;
        layer       layer;
    } broken[] = {
        { "missing", { LAYER "model", "not there", "", 0 } },
        { "partial", { LAYER "model", "half there", "-partial", 0 } },
        { "partial2", { LAYER "model", "half there too", "-partial-3", 0 } },
        { "cut", { LAYER "model", "cut off", NULL, 5 } },
        { "tensors", { LAYER "tensor", "safe", NULL, 0 } },
        { "nothing", { LAYER "license", "MIT", NULL, 0 } },
        { "badparams", { LAYER "params", "[1]", NULL, 0 } },
        { "badjson", { LAYER "params", "{\"a\":}", NULL, 0 } },
        { "badtext", { LAYER "system", "\xff\xfe", NULL, 0 } },
        { "negative", { LAYER "model", "negative", NULL, -100 } },
    };
    for (size_t i = 0; i < COUNT_OF(broken); i++) {
        char path[100];
        snprintf(path, sizeof path, "registry.ollama.ai/library/broken/%s", broken[i].path);
        add_model(path, "{}", &broken[i].layer, 1);
    }
    const layer twice[] = { whole[0], { LAYER "model", "another", NULL, 0 } };
    add_model("registry.ollama.ai/library/broken/twice", "{}", twice, 2);
    add_model("registry.ollama.ai/library/broken/badconfig", "not json", whole, 1);
    write_below("manifests/registry.ollama.ai/library/broken/notjson", "hello", 5);
    write_below("manifests/registry.ollama.ai/library/broken/list", "[]", 2);
    static const char escape[] =
        "{\"layers\":[{\"mediaType\":\"" LAYER "model\",\"digest\":\"sha256:../../../../etc/passwd\",\"size\":1}]}";
    write_below("manifests/registry.ollama.ai/library/broken/digest", escape, sizeof escape - 1);
    write_below("manifests/registry.ollama.ai/library/.DS_Store", "x", 1);
    write_below("manifests/registry.ollama.ai/stray", "x", 1);
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *where) {
    (void)about, (void)kind, (void)where;
    return remove(path);
}

/* ---- tests ---- */

static void test_names(void) {
    static const struct {
        const char *name, *path, *shown; /* path NULL: refused */
    } rows[] = {
        { "gemma4", "registry.ollama.ai/library/gemma4/latest", "gemma4:latest" },
        { "gemma4:e2b", "registry.ollama.ai/library/gemma4/e2b", "gemma4:e2b" },
        { "library/gemma4:e2b", "registry.ollama.ai/library/gemma4/e2b", "gemma4:e2b" },
        { "someone/gemma4", "registry.ollama.ai/someone/gemma4/latest", "someone/gemma4:latest" },
        { "registry.ollama.ai/library/gemma4:e2b", "registry.ollama.ai/library/gemma4/e2b", "gemma4:e2b" },
        { "hf.co/user/Repo-GGUF:Q4_K_M", "hf.co/user/Repo-GGUF/Q4_K_M", "hf.co/user/Repo-GGUF:Q4_K_M" },
        { "localhost:5000/ns/m", "localhost:5000/ns/m/latest", "localhost:5000/ns/m:latest" },
        { "host/a/b/c:t", "host/a/b/c/t", "host/a/b/c:t" },
        { "", NULL, NULL },
        { ":", NULL, NULL },
        { ":tag", NULL, NULL },
        { "m:", NULL, NULL },
        { "/", NULL, NULL },
        { "a//b", NULL, NULL },
        { "../x", NULL, NULL },
        { "a/../../etc/passwd", NULL, NULL },
        { "..", NULL, NULL },
        { "a:..", NULL, NULL },
        { "/etc/passwd", NULL, NULL },
        { "a/", NULL, NULL },
        { ".hidden", NULL, NULL },
        { "a:.b", NULL, NULL },
        { "a\\b", NULL, NULL },
        { "a b", NULL, NULL },
        { "m:a:b", NULL, NULL },
        { "a/b/c/d/e/f/g/h/i", NULL, NULL },
        { "-x", NULL, NULL },
        { "m\n", NULL, NULL },
        { "\xc3\xa4", NULL, NULL },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        arena         a = { 0 };
        error         e = { 0 };
        manifest_name name = { 0 };
        TEST("name '%s'", rows[i].name);
        gm_status status = manifest_name_parse(rows[i].name, &a, &name, &e);
        if (rows[i].path) {
            CHECK_MESSAGE(status == GM_OK, "%s", e.why);
            CHECK_MESSAGE(name.path && !strcmp(name.path, rows[i].path), "%s", name.path ? name.path : "");
            CHECK_MESSAGE(name.shown && !strcmp(name.shown, rows[i].shown), "%s", name.shown ? name.shown : "");
        } else {
            CHECK(status == GM_BAD_ARGUMENT && strstr(e.why, "is not a model name"));
        }
        arena_free(&a);
    }
}

/* The file at `path` has this content. */
static bool file_holds(const char *path, const char *content) {
    char  text[100] = "";
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return n == strlen(content) && !memcmp(text, content, n);
}

static void test_resolve(void) {
    arena        a = { 0 };
    error        e = { 0 };
    ollama_model m;
    TEST("resolve a whole model");
    CHECK_MESSAGE(ollama_resolve("gemma4:e2b", &a, &m, &e) == GM_OK, "%s", e.why);
    CHECK(!strcmp(m.name, "gemma4:e2b") && file_holds(m.model, "the model") &&
          file_holds(m.projector, "the projector") && file_holds(m.draft, "the draft"));
    CHECK(m.adapter_count == 2 && file_holds(m.adapters[0], "adapter 1") && file_holds(m.adapters[1], "adapter 2"));
    CHECK(m.system && !strcmp(m.system, "Be brief.\n\xc3\xa4") && m.params &&
          !strcmp(m.params, "{\"temperature\":1,\"top_k\":64}"));
    CHECK(m.renderer && !strcmp(m.renderer, "gemma4-small") && !strcmp(m.family, "gemma4") &&
          !strcmp(m.size_label, "5.1B"));
    CHECK(!strcmp(m.quantisation, "Q4_K_M") && !m.problem[0] && m.bytes == 9 + 13 + 9 + 9 + 9 + 12 + 28 + 4);

    static const char *const good[][2] = {
        { "plain", "plain:latest" },
        { "someone/tuned:v1", "someone/tuned:v1" },
        { "hf.co/user/Repo-GGUF:Q4_K_M", "hf.co/user/Repo-GGUF:Q4_K_M" },
        { "hf.co/user/repo-gguf:q4_k_m", "hf.co/user/Repo-GGUF:Q4_K_M" },
        { "localhost:5000/a/b/c", "localhost:5000/a/b/c:latest" },
        { "GEMMA4:E2B", "gemma4:e2b" },
    };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        error why = { 0 };
        TEST("resolve %s", good[i][0]);
        CHECK_MESSAGE(ollama_resolve(good[i][0], &a, &m, &why) == GM_OK, "%s", why.why);
        CHECK(m.name && !strcmp(m.name, good[i][1]) && file_holds(m.model, "the model"));
        if (i == 1) CHECK(!m.renderer && !m.system && !m.params && !m.projector && !m.adapter_count);
    }

    static const struct {
        const char *name;
        gm_status   status;
        const char *message;
    } bad[] = {
        { "broken:missing", GM_NOT_FOUND, "model layer is missing: " },
        { "broken:partial", GM_NOT_FOUND, "-partial; run `ollama pull`" },
        { "broken:partial2", GM_NOT_FOUND, "only partly downloaded" },
        { "broken:cut", GM_BAD_FILE, "has 7 bytes, but the manifest says 12: " },
        { "broken:tensors", GM_UNSUPPORTED, "safetensors" },
        { "broken:nothing", GM_UNSUPPORTED, "names no model layer" },
        { "broken:badparams", GM_BAD_FILE, "must be a JSON object" },
        { "broken:badjson", GM_BAD_FILE, "JSON line 1 column 6" },
        { "broken:badtext", GM_BAD_FILE, "not UTF-8" },
        { "broken:negative", GM_BAD_FILE, "layer 1: size" },
        { "broken:twice", GM_UNSUPPORTED, "more than one model layer" },
        { "broken:badconfig", GM_BAD_FILE, "JSON line 1 column 1" },
        { "broken:notjson", GM_BAD_FILE, "broken/notjson: JSON line 1" },
        { "broken:list", GM_BAD_FILE, "layers: expected an array" },
        { "broken:digest", GM_BAD_FILE, "layer 1: digest 'sha256:../../../../etc/passwd'" },
        { "gemma4:e9b", GM_NOT_FOUND, "there is no model 'gemma4:e9b' in Ollama's store" },
        { "../x", GM_BAD_ARGUMENT, "is not a model name" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        error why = { 0 };
        TEST("resolve %s fails", bad[i].name);
        gm_status status = ollama_resolve(bad[i].name, &a, &m, &why);
        CHECK_MESSAGE(status == bad[i].status, "%d: %s", status, why.why);
        CHECK_MESSAGE(strstr(why.why, bad[i].message), "%s", why.why);
    }
    arena_free(&a);
}

static void test_ollama_list(void) {
    arena        a = { 0 };
    error        e = { 0 };
    ollama_store store;
    size_t       problems = 0;
    TEST("list the store");
    const gm_status     status = ollama_list(&a, &store, &e);
    const ollama_model *models = store.models;
    const size_t        count = store.count;
    CHECK_MESSAGE(status == GM_OK && count == 20 && !store.unreadable_count, "%zu: %s", count, e.why);
    for (size_t i = 0; i < count; i++) {
        const bool broken = !strncmp(models[i].name, "broken:", 7);
        if (i) CHECK(strcmp(models[i - 1].name, models[i].name) < 0);
        CHECK_MESSAGE(broken == (models[i].problem[0] != 0), "%s: %s", models[i].name, models[i].problem);
        CHECK(strncmp(models[i].problem, "broken:", 7));
        problems += broken;
        if (!strcmp(models[i].name, "gemma4:e2b")) CHECK(models[i].model && !strcmp(models[i].family, "gemma4"));
        if (!strcmp(models[i].name, "broken:cut")) CHECK(models[i].bytes == 12);
    }
    CHECK(problems == 15);
    arena_free(&a);
}

static void test_roots(void) {
    arena        a = { 0 };
    error        e = { 0 };
    ollama_model m;
    ollama_store listed;
    char         home[200], store[250];
    const char  *found = NULL;
    TEST("where the store is");
    CHECK(!ollama_root(&a, &found, &e) && found && !strcmp(found, root));
    setenv("OLLAMA_MODELS", "/nowhere/at/all", 1);
    CHECK(ollama_resolve("gemma4:e2b", &a, &m, &e) == GM_NOT_FOUND &&
          strstr(e.why, "/nowhere/at/all, which has no models") && strstr(e.why, "`ollama pull gemma4:e2b`") &&
          strstr(e.why, "`box`") && strstr(e.why, "path of a GGUF file"));
    CHECK(ollama_list(&a, &listed, NULL) == GM_OK && !listed.count && !listed.unreadable_count);
    setenv("OLLAMA_MODELS", "", 1);
    snprintf(home, sizeof home, "%s/home", root);
    snprintf(store, sizeof store, "%s/.ollama/models", home);
    setenv("HOME", home, 1);
    CHECK(!ollama_root(&a, &found, NULL));
    CHECK(!found || !strcmp(found, "/usr/share/ollama/.ollama/models"));
    if (!found) {
        error none = { 0 };
        CHECK(ollama_resolve("gemma4:e2b", &a, &m, &none) == GM_NOT_FOUND && strstr(none.why, "no Ollama store") &&
              strstr(none.why, "`ollama pull gemma4:e2b`") && strstr(none.why, "`box`"));
        CHECK(ollama_list(&a, &listed, NULL) == GM_OK && !listed.count && !listed.unreadable_count);
    }
    write_below("home/.ollama/models/x", "", 0);
    CHECK(!ollama_root(&a, &found, NULL));
    CHECK(found && !strcmp(found, store));
    arena_free(&a);
}

/* ---- links, and folders that cannot be read ---- */

static void make_link(const char *target, const char *below) {
    char path[500];
    snprintf(path, sizeof path, "%s/%s", root, below);
    make_test_folders(path);
    CHECK_MESSAGE(!symlink(target, path), "cannot link %s", path);
}

/* A model whose one layer is a blob of this name, which the caller makes. */
static void name_blob(const char *tag, const char *kind, const char *hex, size_t size) {
    char path[200], text[500];
    snprintf(path, sizeof path, "manifests/registry.ollama.ai/library/linked/%s", tag);
    snprintf(text, sizeof text, "{\"layers\":[{\"mediaType\":\"" LAYER "%s\",\"digest\":\"sha256:%s\",\"size\":%zu}]}",
             kind, hex, size);
    write_below(path, text, strlen(text));
}

static const ollama_model *find_listed(const ollama_store *s, const char *name) {
    for (size_t i = 0; i < s->count; i++) {
        if (!strcmp(s->models[i].name, name)) return &s->models[i];
    }
    return NULL;
}

static bool is_skipped(const ollama_store *s, const char *path, const char *reason) {
    for (size_t i = 0; i < s->unreadable_count; i++) {
        if (strstr(s->unreadable[i], path) && strstr(s->unreadable[i], reason)) return true;
    }
    return false;
}

static void test_links(void) {
    static const char weights[] = "1111111111111111111111111111111111111111111111111111111111111111";
    static const char system[] = "2222222222222222222222222222222222222222222222222222222222222222";
    static const char pipe[] = "3333333333333333333333333333333333333333333333333333333333333333";
    arena             a = { 0 };
    error             e = { 0 };
    ollama_store      store;
    ollama_model      m;
    char              path[300];
    TEST("links out of the store are not followed");
    write_below("outside/secret", "secret", 6);
    snprintf(path, sizeof path, "blobs/sha256-%s", weights), make_link("../outside/secret", path);
    snprintf(path, sizeof path, "blobs/sha256-%s", system), make_link("../outside/secret", path);
    snprintf(path, sizeof path, "%s/blobs/sha256-%s", root, pipe);
    CHECK(!mkfifo(path, 0644));
    name_blob("weights", "model", weights, 6), name_blob("system", "system", system, 6),
        name_blob("pipe", "model", pipe, 0);
    make_link("../../../..", "manifests/registry.ollama.ai/library/up");
    make_link("/proc/self/root", "manifests/registry.ollama.ai/everything");
    make_link("linked/weights", "manifests/registry.ollama.ai/library/alias/latest");
    CHECK_MESSAGE(ollama_list(&a, &store, &e) == GM_OK && store.count == 23, "%zu: %s", store.count, e.why);
    for (size_t i = 0; i < store.count; i++)
        CHECK(!store.models[i].system || !strstr(store.models[i].system, "secret"));
    static const char *const refused[] = { "linked:weights", "linked:system" };
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        const ollama_model *listed = find_listed(&store, refused[i]);
        error               why = { 0 };
        CHECK_MESSAGE(listed && strstr(listed->problem, "links in Ollama's store are not followed"), "%s",
                      listed ? listed->problem : "not listed");
        CHECK(ollama_resolve(refused[i], &a, &m, &why) == GM_IO && strstr(why.why, "are not followed"));
    }
    CHECK(ollama_resolve("linked:pipe", &a, &m, NULL) == GM_BAD_FILE);
    CHECK(ollama_resolve("alias", &a, &m, NULL) == GM_IO);
    CHECK(store.unreadable_count == 3 && is_skipped(&store, "/library/up: ", "links") &&
          is_skipped(&store, "/everything: ", "links") && is_skipped(&store, "/alias/latest: ", "links"));

    TEST("blobs are opened without links");
    const ollama_model *whole = find_listed(&store, "plain:latest");
    const char         *name = whole && whole->model ? strrchr(whole->model, '/') + 1 : "";
    const int           file = ollama_open_blob(root, name);
    CHECK(file >= 0 && !close(file));
    snprintf(path, sizeof path, "sha256-%s", weights);
    CHECK(ollama_open_blob(root, path) < 0);
    snprintf(path, sizeof path, "sha256-%s", pipe);
    CHECK(ollama_open_blob(root, path) < 0 && ollama_open_blob(root, "../outside/secret") < 0);
    CHECK(ollama_open_blob("/nowhere", name) < 0);
    arena_free(&a);
}

static void test_unreadable(void) {
    arena        a = { 0 };
    error        e = { 0 }, why = { 0 };
    ollama_store store;
    ollama_model m;
    char         closed[300];
    TEST("a folder that cannot be read hides no other model");
    snprintf(closed, sizeof closed, "%s/manifests/hf.co", root);
    CHECK(!chmod(root, 0755) && !chmod(closed, 0));
    const bool superuser = geteuid() == 0; /* for whom every folder is open */
    if (superuser) CHECK(!seteuid(65534));
    CHECK_MESSAGE(ollama_list(&a, &store, &e) == GM_OK && store.count == 22, "%zu: %s", store.count, e.why);
    CHECK(is_skipped(&store, "/manifests/hf.co: ", "Permission denied") && find_listed(&store, "plain:latest"));
    CHECK(ollama_resolve("PLAIN", &a, &m, NULL) == GM_OK);
    CHECK(ollama_resolve("hf.co/user/Repo-GGUF:Q4_K_M", &a, &m, &why) == GM_IO && strstr(why.why, "Permission denied"));
    error unknown = { 0 };
    CHECK(ollama_resolve("unknown", &a, &m, &unknown) == GM_NOT_FOUND && strstr(unknown.why, "could not read"));
    if (superuser) CHECK(!seteuid(0));
    CHECK(!chmod(closed, 0755));
    arena_free(&a);
}

int main(void) {
    strcpy(root, "/tmp/gemmule-test-XXXXXX");
    TEST("a folder for the store");
    CHECK(mkdtemp(root) && !setenv("OLLAMA_MODELS", root, 1));
    build_store();
    test_names();
    test_resolve();
    test_ollama_list();
    test_links();
    test_unreadable();
    test_roots();
    CHECK(!nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS));
    return test_end();
}
