/* Saves an adapter to disk. */

#include "adapter/parts.h"
#include "base/new_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef gm_status (*adapter_writer)(const adapter *a, gguf_sink sink, void *user, error *e);

static gm_status save_file(const adapter *a, const char *path, adapter_writer write, error *e) {
    new_file *file = NULL;
    error     problem = { 0 };
    TRY(new_file_open(path, NEW_FILE_BULK, &file, e));
    (void)write(a, new_file_write, file, &problem);
    return new_file_end(file, &problem, e);
}

static gm_status write_config_to(const adapter *a, gguf_sink sink, void *user, error *e) {
    buffer    text = { 0 };
    gm_status status = adapter_write_config(a, &text, e);
    if (!status && !sink(user, text.data, text.length)) status = fail(e, GM_IO, "writing the file failed");
    buffer_free(&text);
    return status;
}

/* The weights come first: a folder with a configuration is complete. */
static gm_status save_folder(const adapter *a, const char *folder, arena *memory, error *e) {
    const size_t room = strlen(folder) + sizeof PEFT_WEIGHTS + sizeof PEFT_CONFIG;
    char        *path = arena_alloc(memory, room);
    if (!path) return fail_memory(e, "a path", room);
    if (mkdir(folder, 0777) && errno != EEXIST)
        return fail(e, GM_IO, "%s: cannot be created: %s", folder, strerror(errno));
    snprintf(path, room, "%s/%s", folder, PEFT_WEIGHTS);
    TRY(save_file(a, path, adapter_write_safetensors, e));
    snprintf(path, room, "%s/%s", folder, PEFT_CONFIG);
    return save_file(a, path, write_config_to, e);
}

gm_status adapter_save(const adapter *a, const char *path, error *e) {
    arena memory = { 0 };
    if (str_ends_with(str_of(path), ".gguf")) return save_file(a, path, adapter_write_gguf, e);
    const gm_status status = save_folder(a, path, &memory, e);
    arena_free(&memory);
    return status;
}
