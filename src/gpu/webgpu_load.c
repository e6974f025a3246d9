/* Finds the WebGPU library and its functions at run time. */

#include "gpu/webgpu_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
static const char *const package_path = "node_modules/bun-webgpu-" SYSTEM "-" MACHINE "/libwebgpu_wrapper" SUFFIX;

/* How far above the program node_modules is looked for: a test in build/release is two folders below. */
enum { FOLDERS_UP = 3 };

static const struct {
    const char *name;
    size_t      offset;
    bool        needed;
} functions[] = {
#define WEBGPU_NEEDED(result, name, parameters) { "wgpu" #name, offsetof(webgpu_api, name), true },
#define WEBGPU_EXTRA(result, name, parameters) { "wgpu" #name, offsetof(webgpu_api, name), false },
    WEBGPU_FUNCTIONS(WEBGPU_NEEDED) WEBGPU_EXTRA_FUNCTIONS(WEBGPU_EXTRA)
};

/* The folder of the running program, without a slash at the end; empty when the system does not say. */
static void program_folder(char *out, size_t size) {
    const ssize_t length = readlink("/proc/self/exe", out, size - 1);
    out[length > 0 ? length : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
}

static bool open_library(webgpu_api *api, const char *path) {
    /* Never unmapped: threads and thread-local destructors of the library may outlive the last device. */
    api->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (api->library) snprintf(api->path, sizeof api->path, "%.*s", (int)sizeof api->path - 1, path);
    return api->library;
}

static bool open_file(webgpu_api *api, const char *folder, const char *name) {
    char      path[4096];
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length < (int)sizeof path && !access(path, R_OK) && open_library(api, path);
}

static bool open_beside_program(webgpu_api *api, char *folder) {
    for (size_t i = 0; i < COUNT_OF(library_names); i++) {
        if (open_file(api, folder, library_names[i])) return true;
    }
    char *slash = folder + strlen(folder);
    for (int up = 0; up < FOLDERS_UP && slash; up++) {
        *slash = 0;
        if (open_file(api, folder, package_path)) return true;
        slash = strrchr(folder, '/');
    }
    return false;
}

static gm_status find_library(webgpu_api *api, error *e) {
    const char *named = getenv("GEMMULE_WEBGPU");
    if (named && *named) {
        if (open_library(api, named)) return GM_OK;
        return fail(e, GM_NO_DEVICE, "GEMMULE_WEBGPU names a library that cannot be loaded: %s", dlerror());
    }
    char folder[4096];
    program_folder(folder, sizeof folder);
    if (*folder && open_beside_program(api, folder)) return GM_OK;
    for (size_t i = 0; i < COUNT_OF(library_names); i++) {
        if (open_library(api, library_names[i])) return GM_OK;
    }
    program_folder(folder, sizeof folder);
    return fail(
        e, GM_NO_DEVICE,
        "no WebGPU library: looked for %s, %s and %s in %.100s and the system's folders, and for the npm package "
        "bun-webgpu-" SYSTEM "-" MACHINE " above it; tools/setup.sh gets one, GEMMULE_WEBGPU=path names one",
        library_names[0], library_names[1], library_names[2], *folder ? folder : "the program's folder");
}

gm_status webgpu_load(webgpu_api *api, error *e) {
    *api = (webgpu_api){ 0 };
    if (find_library(api, e) != GM_OK) return e->status;
    for (size_t i = 0; i < COUNT_OF(functions); i++) {
        void *symbol = dlsym(api->library, functions[i].name);
        if (!symbol && functions[i].needed) {
            fail(e, GM_NO_DEVICE, "%s is no WebGPU library that we can use: it lacks %s", api->path, functions[i].name);
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
