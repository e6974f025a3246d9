#include "session/expert_profile.h"

#include "base/buffer.h"
#include "base/new_file.h"
#include "gpu/experts_profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char *profile_path(const gm_engine *engine) {
    buffer path = { 0 };
    buffer_printf(&path, "%s/experts-%.32s", engine->cache, engine->digest);
    if (path.failed) buffer_free(&path);
    return path.data;
}

void engine_profile_open(gm_engine *engine) {
    expert_cache *c = engine->on_gpu ? engine->gpu.experts : NULL;
    char         *path = c && engine->cache ? profile_path(engine) : NULL;
    FILE         *file = path ? fopen(path, "rb") : NULL;
    const size_t  size = c ? expert_profile_size(c) : 0;
    uint8_t      *bytes = file ? malloc(size + 1) : NULL;
    error         ignored = { 0 };
    if (bytes) expert_profile_read(c, bytes, fread(bytes, 1, size + 1, file), &ignored);
    if (file) fclose(file);
    free(bytes);
    free(path);
}

void engine_profile_save(const gm_engine *engine) {
    const expert_cache *c = engine->on_gpu ? engine->gpu.experts : NULL;
    char               *path = c && c->statistics.tokens && engine->cache ? profile_path(engine) : NULL;
    buffer              bytes = { 0 };
    new_file           *file = NULL;
    const error         none = { 0 };
    error               ignored = { 0 };
    if (path) {
        mkdir(engine->cache, 0700);
        expert_profile_write(c, &bytes);
    }
    if (bytes.length && !bytes.failed && !new_file_open(path, NEW_FILE_BULK, &file, &ignored)) {
        new_file_write(file, bytes.data, bytes.length);
        new_file_end(file, &none, &ignored);
    }
    buffer_free(&bytes);
    free(path);
}
