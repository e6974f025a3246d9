#include "store/box.h"

#include "base/beside.h"

#include <stdlib.h>

/* Relative to the program, which may also be in build/ or build/release/. */
static const char *const near_program[] = {
    "box.gguf", "models/box.gguf", "../share/gemmule/box.gguf", "../models/box.gguf", "../../models/box.gguf",
};
/* Relative to lib/, lib/x86_64-linux-gnu/ and build/release/. */
static const char *const near_library[] = {
    "../share/gemmule/box.gguf",
    "../../share/gemmule/box.gguf",
    "../../models/box.gguf",
};

gm_status box_find(arena *a, const char **path, error *e) {
    const char *set = getenv("GEMMULE_BOX");
    if (set && *set) {
        *path = arena_copy(a, str_of(set));
        return *path ? GM_OK : fail_memory(e, "the box's path", str_of(set).length);
    }
    const char *program, *library;
    TRY(beside_program(a, &program, e));
    TRY(beside_library(a, &library, e));
    TRY(beside_find(program, near_program, COUNT_OF(near_program), a, path, e));
    if (!*path) TRY(beside_find(library, near_library, COUNT_OF(near_library), a, path, e));
    if (*path) return GM_OK;
    if (library)
        return fail(
            e, GM_NOT_FOUND,
            "the model in the box is missing: GEMMULE_BOX is not set, and there is no box.gguf in %.120s, nor in "
            "models, ../share/gemmule, ../models or ../../models relative to it, nor in ../share/gemmule, "
            "../../share/gemmule or ../../models relative to %.120s",
            program ? program : "the program's folder", library);
    return fail(e, GM_NOT_FOUND,
                "the model in the box is missing: GEMMULE_BOX is not set, and there is no box.gguf in %.200s, nor in "
                "models, ../share/gemmule, ../models or ../../models relative to it",
                program ? program : "the program's folder");
}
