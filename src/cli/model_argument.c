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
    model_argument chosen;
    gm_status      status = model_argument_resolve(given, a, &chosen, e);
    if (status == GM_OK) status = gguf_open_file(chosen.path, out, e);
    return status;
}

/* ---- the default model ---- */

/* A file that cannot be read is not a Gemma 4. Fails only for lack of memory. */
static gm_status is_gemma4(const ollama_model *m, bool *is, error *e) {
    *is = !m->problem[0] && m->model && m->family && !strcmp(m->family, "gemma4");
    if (m->problem[0] || !m->model || m->family) return GM_OK;
    gguf *file = NULL;
    error problem = { 0 };
    str   architecture = { "", 0 };
    bool  found = false;
    if (gguf_open_file(m->model, &file, &problem) == GM_OK) {
        *is = gguf_get_str(file, "general.architecture", &architecture, &found, &problem) == GM_OK &&
              str_is(architecture, "gemma4");
    }
    gguf_free(file);
    return problem.status == GM_NO_MEMORY ? fail(e, GM_NO_MEMORY, "%s", problem.why) : GM_OK;
}

/* NULL if the store has none, or cannot be read. Fails only for lack of memory. */
static gm_status first_in_store(arena *a, const char **name, error *e) {
    ollama_store store;
    error        problem = { 0 };
    bool         is = false;
    *name = NULL;
    if (ollama_list(a, &store, &problem) != GM_OK)
        return problem.status == GM_NO_MEMORY ? fail(e, GM_NO_MEMORY, "%s", problem.why) : GM_OK;
    for (size_t i = 0; i < store.count && !is; i++) {
        TRY(is_gemma4(&store.models[i], &is, e));
        if (is) *name = store.models[i].name;
    }
    return GM_OK;
}

gm_status model_argument_choose(const char *named, arena *a, const char **out, model_choice *how, error *e) {
    *how = CHOICE_NAMED;
    *out = named ? named : getenv("GEMMULE_MODEL");
    if (*out && **out) return GM_OK;
    *how = CHOICE_STORE;
    TRY(first_in_store(a, out, e));
    if (*out) return GM_OK;
    *how = CHOICE_BOX;
    *out = "box";
    const char     *path;
    error           none = { 0 };
    const gm_status status = box_find(a, &path, &none);
    if (!status) return GM_OK;
    if (status != GM_NOT_FOUND) return fail(e, status, "%s", none.why);
    return fail(e, GM_NOT_FOUND, "no model: give the path of a GGUF file, or get one with `ollama pull gemma4:e2b`; %s",
                none.why);
}
