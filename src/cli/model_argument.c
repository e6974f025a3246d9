#include "cli/model_argument.h"

#include "session/engine.h"
#include "store/box.h"
#include "store/ollama.h"

#include <stdlib.h>
#include <string.h>

gm_status model_argument_resolve(const char *given, arena *a, model_argument *out, error *e) {
    engine_origin origin;
    *out = (model_argument){ .engine = given };
    return engine_find_model(given, a, &out->path, &origin, e);
}

gm_status model_argument_open(const char *given, arena *a, gguf **out, error *e) {
    model_argument model;
    gm_status      status = model_argument_resolve(given, a, &model, e);
    if (status == GM_OK) status = gguf_open_file(model.path, out, e);
    return status;
}

/* ---- the default model ---- */

static bool is_gemma4(const ollama_model *m) {
    if (m->problem[0] || !m->model) return false;
    if (m->family) return !strcmp(m->family, "gemma4");
    gguf *file = NULL;
    error ignored = { 0 };
    str   architecture = { "", 0 };
    bool  found = false, is = false;
    if (gguf_open_file(m->model, &file, &ignored) == GM_OK) {
        is = gguf_get_str(file, "general.architecture", &architecture, &found, &ignored) == GM_OK &&
             str_is(architecture, "gemma4");
    }
    gguf_free(file);
    return is;
}

static const char *first_in_store(arena *a) {
    ollama_store store;
    error        ignored = { 0 };
    if (ollama_list(a, &store, &ignored) != GM_OK) return NULL;
    for (size_t i = 0; i < store.count; i++) {
        if (is_gemma4(&store.models[i])) return store.models[i].name;
    }
    return NULL;
}

gm_status model_argument_choose(const char *named, arena *a, const char **out, model_choice *how, error *e) {
    *how = CHOICE_NAMED;
    *out = named ? named : getenv("GEMMULE_MODEL");
    if (*out && **out) return GM_OK;
    *how = CHOICE_STORE;
    if ((*out = first_in_store(a))) return GM_OK;
    *how = CHOICE_BOX;
    *out = "box";
    const char *path;
    error       none = { 0 };
    if (!box_find(a, &path, &none)) return GM_OK;
    return fail(e, GM_NOT_FOUND, "no model: give the path of a GGUF file, or get one with `ollama pull gemma4:e2b`; %s",
                none.why);
}
