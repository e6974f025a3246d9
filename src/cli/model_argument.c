#include "cli/model_argument.h"

#include "session/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The model in the box, where it lies beside the program: box.gguf in its folder, or in share/gemmule of an installation. */
static const char *find_box(arena *a) {
    static const char *const places[] = { "box.gguf", "../share/gemmule/box.gguf" };
    char                     program[4096], path[4200];
    const ssize_t            length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return NULL;
    program[length] = 0;
    char *slash = strrchr(program, '/');
    if (!slash) return NULL;
    *slash = 0;
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        snprintf(path, sizeof path, "%s/%s", program, places[i]);
        if (!access(path, R_OK)) return arena_copy(a, str_of(path));
    }
    return NULL;
}

gm_status model_argument_resolve(const char *given, arena *a, model_argument *out, error *e) {
    engine_origin origin;
    *out = (model_argument){ .engine = given };
    if (!strcmp(given, "box") && !getenv("GEMMULE_BOX")) {
        const char *box = find_box(a);
        if (box) out->engine = box;
    }
    return engine_find_model(out->engine, a, &out->path, &origin, e);
}

gm_status model_argument_open(const char *given, arena *a, gguf **out, error *e) {
    model_argument model;
    gm_status      status = model_argument_resolve(given, a, &model, e);
    if (status == GM_OK) status = gguf_open_file(model.path, out, e);
    return status;
}
