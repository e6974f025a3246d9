/* Fuzzes Ollama's store: manifests, config blobs and names. No name and no digest may lead out of it. */

#include "store/manifest.h"

#include <stdlib.h>
#include <string.h>

static void check_blob(const manifest_layer *layer) {
    if (strlen(layer->blob) != 71 || strncmp(layer->blob, "sha256-", 7) != 0 ||
        strspn(layer->blob + 7, "0123456789abcdef") != 64)
        abort();
}

static void check_name(const manifest_name *name, arena *a) {
    manifest_name again;
    if (strstr(name->path, "..") == name->path || strstr(name->path, "/.") || strstr(name->path, "//") ||
        name->path[0] == '/')
        abort();
    if (manifest_name_of_path(name->path, a, &again, NULL) || strcmp(again.path, name->path) != 0) abort();
    if (manifest_name_parse(name->shown, a, &again, NULL) || strcmp(again.path, name->path) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    arena           a = { 0 };
    error           e = { 0 }, config_error = { 0 };
    manifest        m;
    manifest_config config;
    manifest_name   name;
    str             text = { (const char *)data, size };
    if (manifest_parse(text, &a, &m, &e) == GM_OK) {
        if (m.config.blob[0]) check_blob(&m.config);
        for (size_t i = 0; i < m.count; i++) check_blob(&m.layers[i]);
    } else if (!e.why[0]) {
        abort();
    }
    if (manifest_config_parse(text, &a, &config, &config_error) && !config_error.why[0]) abort();
    const char *copy = arena_copy(&a, text);
    if (copy && manifest_name_parse(copy, &a, &name, NULL) == GM_OK) check_name(&name, &a);
    if (copy && manifest_name_of_path(copy, &a, &name, NULL) == GM_OK && name.path[0] == '/') abort();
    arena_free(&a);
    return 0;
}
