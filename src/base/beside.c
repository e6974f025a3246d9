#include "base/beside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__wasi__) /* no programs, no libraries */

gm_status beside_program(arena *a, const char **folder, error *e) {
    (void)a, (void)e;
    *folder = NULL;
    return GM_OK;
}

gm_status beside_library(arena *a, const char **folder, error *e) { return beside_program(a, folder, e); }

#else

#include <dlfcn.h>
#include <limits.h>

/* The path with all links resolved; NULL if there is no such file. The caller frees it. */
static gm_status resolve_path(const char *file, char **path, error *e) {
    *path = realpath(file, NULL);
    return *path || errno != ENOMEM ? GM_OK : fail_memory(e, "a path", PATH_MAX);
}

static gm_status copy_folder(const char *path, arena *a, const char **folder, error *e) {
    const char  *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) : 0;
    *folder = slash ? arena_copy(a, (str){ path, length }) : NULL;
    return *folder || !slash ? GM_OK : fail_memory(e, "a path", length);
}

/* The link may name a file that is gone: an update replaces a program while it runs, and its folder is still the right one. */
gm_status beside_program(arena *a, const char **folder, error *e) {
    char          path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return copy_folder(path, a, folder, e);
}

gm_status beside_library(arena *a, const char **folder, error *e) {
    static const char here = 0;
    Dl_info           about;
    char             *program = NULL, *file = NULL;
    const bool        known = dladdr(&here, &about) && about.dli_fname;
    *folder = NULL;
    gm_status status = resolve_path("/proc/self/exe", &program, e);
    if (!status && known) status = resolve_path(about.dli_fname, &file, e);
    if (!status && file && strstr(file, ".so") && (!program || strcmp(program, file)))
        status = copy_folder(file, a, folder, e);
    free(program);
    free(file);
    return status;
}

#endif

gm_status beside_find(const char *folder, const char *const *places, size_t count, arena *a, const char **path,
                      error *e) {
    *path = NULL;
    for (size_t i = 0; folder && i < count && !*path; i++) {
        const size_t size = strlen(folder) + strlen(places[i]) + 2;
        char        *place = arena_alloc(a, size);
        if (!place) return fail_memory(e, "a path", size);
        snprintf(place, size, "%s/%s", folder, places[i]);
        if (!access(place, R_OK)) *path = place;
    }
    return GM_OK;
}
