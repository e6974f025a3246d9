/* Finds the WebGPU library and its functions at run time. */

#include "gpu/webgpu_api.h"

#include "base/beside.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__APPLE__)
#define SUFFIX ".dylib"
#define SYSTEM "darwin"
#else
#define SUFFIX ".so"
#define SYSTEM "linux"
#endif
#if defined(__aarch64__)
#define MACHINE "arm64"
#else
#define MACHINE "x64"
#endif

static const char *const library_names[] = { "libwebgpu_wrapper" SUFFIX, "libwebgpu_dawn" SUFFIX,
                                             "libwgpu_native" SUFFIX };

/* Places beside the program: its own folder, where `make install` puts the library, and the npm package of a source
 * tree (a test in build/release is two folders below). */
#define PACKAGE "node_modules/bun-webgpu-" SYSTEM "-" MACHINE "/libwebgpu_wrapper" SUFFIX
#define INSTALLED "gemmule/libwebgpu_wrapper" SUFFIX
static const char *const near_program[] = { "libwebgpu_wrapper" SUFFIX,
                                            "libwebgpu_dawn" SUFFIX,
                                            "libwgpu_native" SUFFIX,
                                            "../lib/" INSTALLED,
                                            PACKAGE,
                                            "../" PACKAGE,
                                            "../../" PACKAGE };
/* The same beside libgemmule.so, which may be in lib, lib64 or lib/x86_64-linux-gnu. */
static const char *const near_library[] = { INSTALLED, "../lib/" INSTALLED, "../" INSTALLED, "../" PACKAGE,
                                            "../../" PACKAGE };

static const struct {
    const char *name;
    size_t      offset;
    bool        needed;
} functions[] = {
#define WEBGPU_NEEDED(result, name, parameters) { "wgpu" #name, offsetof(webgpu_api, name), true },
#define WEBGPU_EXTRA(result, name, parameters) { "wgpu" #name, offsetof(webgpu_api, name), false },
    WEBGPU_FUNCTIONS(WEBGPU_NEEDED) WEBGPU_EXTRA_FUNCTIONS(WEBGPU_EXTRA)
};

static bool open_library(webgpu_api *api, const char *path) {
    /* Never unmapped: threads and thread-local destructors of the library may outlive the last device. */
    api->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (api->library) snprintf(api->path, sizeof api->path, "%.*s", (int)sizeof api->path - 1, path);
    return api->library;
}

static gm_status find_library(webgpu_api *api, arena *a, error *e) {
    const char *named = getenv("GEMMULE_WEBGPU");
    if (named && *named) {
        if (open_library(api, named)) return GM_OK;
        return fail(e, GM_NO_DEVICE, "GEMMULE_WEBGPU names a library that cannot be loaded: %s", dlerror());
    }
    const char *program, *library, *found;
    char        broken[300] = "";
    TRY(beside_program(a, &program, e));
    TRY(beside_library(a, &library, e));
    TRY(beside_find(program, near_program, COUNT_OF(near_program), a, &found, e));
    if (!found) TRY(beside_find(library, near_library, COUNT_OF(near_library), a, &found, e));
    if (found && open_library(api, found)) return GM_OK;
    if (found) snprintf(broken, sizeof broken, "%s", dlerror()); /* the next dlopen replaces the text */
    for (size_t i = 0; i < COUNT_OF(library_names); i++) {
        if (open_library(api, library_names[i])) return GM_OK;
    }
    if (found) return fail(e, GM_NO_DEVICE, "the WebGPU library cannot be loaded: %s", broken);
    api->missing = true;
    return fail(
        e, GM_NO_DEVICE,
        "no WebGPU library: looked for %s, %s and %s in %.100s, ../lib/gemmule and the system's folders, and for "
        "the npm package bun-webgpu-" SYSTEM "-" MACHINE
        " above it; tools/setup.sh gets one, GEMMULE_WEBGPU=path names one",
        library_names[0], library_names[1], library_names[2], program ? program : "the program's folder");
}

gm_status webgpu_load(webgpu_api *api, error *e) {
    arena scratch = { 0 };
    *api = (webgpu_api){ 0 };
    const gm_status status = find_library(api, &scratch, e);
    arena_free(&scratch);
    if (status) return status;
    for (size_t i = 0; i < COUNT_OF(functions); i++) {
        void *symbol = dlsym(api->library, functions[i].name);
        if (!symbol && functions[i].needed) {
            fail(e, GM_NO_DEVICE, "%s is not a WebGPU library that we can use: it lacks %s", api->path,
                 functions[i].name);
            webgpu_unload(api);
            return GM_NO_DEVICE;
        }
        memcpy((char *)api + functions[i].offset, &symbol, sizeof symbol);
    }
    return GM_OK;
}

void webgpu_unload(webgpu_api *api) {
    if (api->library) dlclose(api->library);
    api->library = NULL;
}
