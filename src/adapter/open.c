/* Opens an adapter that is complete: a folder, a file, or bytes in memory. */

#include "adapter/parts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static gm_status read_all(source *weights, source *config, const char *name, adapter **out, error *e) {
    adapter_reader *r = NULL;
    TRY(adapter_reader_new(weights, config, name, &r, e));
    const gm_status status = adapter_reader_step(r, out, e);
    adapter_reader_free(r);
    return status;
}

gm_status adapter_open_memory(str weights, str config, const char *name, adapter **out, error *e) {
    source *from = NULL, *beside = NULL;
    *out = NULL;
    gm_status status = source_memory(weights.data, weights.length, &from, e);
    if (!status && config.data) status = source_memory(config.data, config.length, &beside, e);
    if (!status) return read_all(from, beside, name, out, e);
    source_free(from);
    return status;
}

static bool file_exists(const char *path) {
    struct stat about;
    return !stat(path, &about);
}

/* Says which of a folder's two files is missing, and what there is instead. */
static gm_status check_folder(const char *folder, const char *weights, const char *config, arena *a, error *e) {
    const bool   has_weights = file_exists(weights), has_config = file_exists(config);
    const size_t room = strlen(folder) + 32;
    char        *pickle = arena_alloc(a, room);
    if (!pickle) return fail_memory(e, "a path", room);
    snprintf(pickle, room, "%s/adapter_model.bin", folder);
    if (has_weights && has_config) return GM_OK;
    if (!has_weights && file_exists(pickle))
        return fail(
            e, GM_UNSUPPORTED,
            "%s: adapter_model.bin is a PyTorch file. Reading one can run any program, so it is refused: save the "
            "adapter as safetensors",
            folder);
    if (has_weights || has_config)
        return fail(e, GM_NOT_FOUND, "%s: %s is missing beside %s", folder, has_weights ? PEFT_CONFIG : PEFT_WEIGHTS,
                    has_weights ? PEFT_WEIGHTS : PEFT_CONFIG);
    return fail(e, GM_NOT_FOUND, "%s: no adapter: a PEFT folder has %s and %s", folder, PEFT_CONFIG, PEFT_WEIGHTS);
}

static gm_status open_folder(const char *folder, arena *a, adapter **out, error *e) {
    const size_t room = strlen(folder) + sizeof PEFT_WEIGHTS + sizeof PEFT_CONFIG;
    char        *weights = arena_alloc(a, room), *config = arena_alloc(a, room);
    source      *from = NULL, *beside = NULL;
    error        inner = { 0 };
    if (!weights || !config) return fail_memory(e, "a path", room);
    snprintf(weights, room, "%s/%s", folder, PEFT_WEIGHTS);
    snprintf(config, room, "%s/%s", folder, PEFT_CONFIG);
    TRY(check_folder(folder, weights, config, a, e));
    TRY(source_file(weights, &from, e));
    gm_status status = source_file(config, &beside, e);
    if (status) {
        source_free(from);
        return status;
    }
    status = read_all(from, beside, folder, out, &inner);
    return status ? fail(e, status, "%s: %s", folder, inner.why) : GM_OK;
}

/* The folder of a path to a file. */
static char *folder_of(const char *path, arena *a) {
    const char *slash = strrchr(path, '/');
    return slash ? arena_copy(a, (str){ path, slash == path ? 1 : (size_t)(slash - path) })
                 : arena_copy(a, str_of("."));
}

static gm_status adapter_open_path(const char *path, arena *a, adapter **out, error *e) {
    struct stat about;
    source     *from = NULL;
    error       inner = { 0 };
    if (!stat(path, &about) && S_ISDIR(about.st_mode)) return open_folder(path, a, out, e);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *folder = folder_of(path, a);
    if (!folder) return fail_memory(e, "a path", strlen(path));
    if (!strcmp(name, PEFT_WEIGHTS) || !strcmp(name, PEFT_CONFIG)) return open_folder(folder, a, out, e);
    TRY(source_file(path, &from, e));
    const gm_status status = read_all(from, NULL, path, out, &inner);
    return status ? fail(e, status, "%s: %s", path, inner.why) : GM_OK;
}

gm_status adapter_open(const char *path, adapter **out, error *e) {
    arena memory = { 0 };
    *out = NULL;
    const gm_status status = adapter_open_path(path, &memory, out, e);
    arena_free(&memory);
    return status;
}
