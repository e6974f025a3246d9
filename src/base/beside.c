#include "base/beside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__wasi__) /* no programs, no libraries */

const char *beside_program(arena *a) {
    (void)a;
    return NULL;
}

const char *beside_library(arena *a) {
    (void)a;
    return NULL;
}

#else

#include <dlfcn.h>

static const char *folder_of(const char *file, arena *a) {
    const char *slash = strrchr(file, '/');
    return slash ? arena_copy(a, (str){ file, (size_t)(slash - file) }) : NULL;
}

/* The link may name a file that is gone: an update replaces a program while it runs, and its folder is still the right one. */
const char *beside_program(arena *a) {
    char          path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return folder_of(path, a);
}

const char *beside_library(arena *a) {
    static const char here = 0;
    Dl_info           about;
    char             *program = realpath("/proc/self/exe", NULL);
    char             *file = dladdr(&here, &about) && about.dli_fname ? realpath(about.dli_fname, NULL) : NULL;
    const bool        is_library = file && strstr(file, ".so") && (!program || strcmp(program, file));
    const char       *folder = is_library ? folder_of(file, a) : NULL;
    free(program);
    free(file);
    return folder;
}

#endif

const char *beside_find(const char *folder, const char *const *places, size_t count, arena *a) {
    for (size_t i = 0; folder && i < count; i++) {
        const size_t size = strlen(folder) + strlen(places[i]) + 2;
        char        *path = arena_alloc(a, size);
        if (!path) return NULL;
        snprintf(path, size, "%s/%s", folder, places[i]);
        if (!access(path, R_OK)) return path;
    }
    return NULL;
}
