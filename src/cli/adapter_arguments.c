/* --adapter: loads adapters into an engine that was just opened, which gives them its slots in turn, and hands them to sessions. */

#include "cli/engine_arguments.h"
#include "session/session.h"

#include <stdlib.h>
#include <string.h>

const option adapter_options[ADAPTER_OPTIONS] = {
    TEXTS_OPTION(
        engine_values, adapters, "adapter", 0, "DIR[=SCALE]",
        "correct the model by a LoRA adapter, a PEFT folder or a GGUF file, times SCALE (default 1); may be given "
        "more than once: the corrections add up"),
};

void adapter_argument(const char *text, size_t *length, float *scale) {
    const char *equals = strrchr(text, '=');
    double      number = 1;
    const bool  scaled = equals && parse_number(equals + 1, &number);
    *length = scaled ? (size_t)(equals - text) : strlen(text);
    *scale = scaled ? (float)number : 1;
}

gm_status adapters_open(const engine_values *values, gm_engine *engine, error *e) {
    for (size_t i = 0; i < values->adapters.count; i++) {
        char        why[sizeof e->why] = "";
        size_t      length;
        float       scale;
        gm_adapter *loaded = NULL;
        adapter_argument(values->adapters.items[i], &length, &scale);
        char *path = strndup(values->adapters.items[i], length);
        if (!path) return fail_memory(e, "an adapter's path", length);
        const gm_status status = gm_adapter_load(engine, path, &loaded, why, sizeof why);
        free(path);
        if (status) return fail(e, status, "%s", why);
    }
    return GM_OK;
}

static gm_status adapter_choose(const engine_values *values, const gm_engine *engine, const char *name, size_t *at,
                                error *e) {
    for (*at = 0; *at < values->adapters.count; ++*at) {
        if (!strcmp(gm_adapter_name(engine->adapters.slots[engine->adapters.own + *at]), name)) return GM_OK;
    }
    return fail(e, GM_BAD_ARGUMENT, "this needs the adapter '%s': give its folder or file with --adapter", name);
}

gm_status session_use_adapters(const engine_values *values, gm_session *session, const char *const *names,
                               const float *factors, size_t count, error *e) {
    const size_t n = names ? count : values->adapters.count;
    gm_adapter **chosen = calloc(n + 1, sizeof *chosen);
    float       *scales = calloc(n + 1, sizeof *scales);
    char         why[sizeof e->why] = "";
    gm_status    status = chosen && scales ? GM_OK : fail_memory(e, "the adapters", n * sizeof *chosen);
    for (size_t i = 0; i < n && !status; i++) {
        size_t at = i, length;
        if (names) status = adapter_choose(values, session->engine, names[i], &at, e);
        if (status) break;
        chosen[i] = session->engine->adapters.slots[session->engine->adapters.own + at];
        adapter_argument(values->adapters.items[at], &length, &scales[i]);
        if (factors) scales[i] *= factors[i];
    }
    if (!status && gm_session_adapters(session, chosen, scales, n, why, sizeof why))
        status = fail(e, GM_BAD_ARGUMENT, "%s", why);
    free(chosen);
    free(scales);
    return status;
}
