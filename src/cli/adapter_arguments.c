/* --adapter: loads adapters into an engine that was just opened, which gives them its slots in turn, and hands them to sessions. */

#include "cli/engine_arguments.h"
#include "session/session.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const option adapter_options[ADAPTER_OPTIONS] = {
    TEXTS_OPTION(
        engine_values, adapters, "adapter", 0, "DIR[=SCALE]",
        "correct the model by a LoRA adapter, a PEFT folder or a GGUF file, times SCALE (default 1); may be given "
        "more than once: the corrections add up"),
};

gm_status adapter_argument(const char *text, size_t *length, float *scale, error *e) {
    const char *equals = strrchr(text, '=');
    double      number = 1;
    *length = strlen(text);
    *scale = 1;
    if (!equals || !access(text, F_OK)) return GM_OK;
    if (!parse_number(equals + 1, &number))
        return fail(e, GM_BAD_ARGUMENT,
                    "%s: there is no such file or folder, and '%s' is not a number; expected ADAPTER=SCALE", text,
                    equals + 1);
    if (!isfinite((float)number))
        return fail(e, GM_BAD_ARGUMENT, "%s: the scale '%s' is out of range; a scale is at most %g", text, equals + 1,
                    (double)FLT_MAX);
    *length = (size_t)(equals - text);
    *scale = (float)number;
    return GM_OK;
}

gm_status adapters_open(const engine_values *values, gm_engine *engine, error *e) {
    for (size_t i = 0; i < values->adapters.count; i++) {
        char        why[sizeof e->why] = "";
        size_t      length;
        float       scale;
        gm_adapter *loaded = NULL;
        TRY(adapter_argument(values->adapters.items[i], &length, &scale, e));
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
        status = adapter_argument(values->adapters.items[at], &length, &scales[i], e);
        if (factors) scales[i] *= factors[i];
    }
    if (!status && gm_session_adapters(session, chosen, scales, n, why, sizeof why))
        status = fail(e, GM_BAD_ARGUMENT, "%s", why);
    free(chosen);
    free(scales);
    return status;
}

/* ---- switching ---- */

static gm_adapter *adapter_loaded(const gm_engine *engine, str name) {
    const engine_adapters *a = &engine->adapters;
    for (size_t i = a->own; i < a->sites.model.slots; i++) {
        if (a->slots[i] && str_is(name, gm_adapter_name(a->slots[i]))) return a->slots[i];
    }
    return NULL;
}

static gm_adapter *adapter_alike(const gm_engine *engine, const gm_adapter *loaded) {
    const engine_adapters *a = &engine->adapters;
    for (size_t i = a->own; i < a->sites.model.slots; i++) {
        const gm_adapter *other = a->slots[i];
        if (other && other != loaded &&
            !memcmp(other->content->digest, loaded->content->digest, sizeof loaded->content->digest))
            return a->slots[i];
    }
    return NULL;
}

/* By the name of one that is loaded, or by a path; what lies there is loaded only once. */
static gm_status adapter_named(gm_engine *engine, str text, gm_adapter **out, error *e) {
    char  why[sizeof e->why] = "";
    char *path = strndup(text.data, text.length);
    if (!path) return fail_memory(e, "an adapter's path", text.length);
    *out = strchr(path, '/') ? NULL : adapter_loaded(engine, text);
    if (*out) {
        free(path);
        return GM_OK;
    }
    const gm_status status = gm_adapter_load(engine, path, out, why, sizeof why);
    free(path);
    if (status) return fail(e, status, "%s", why);
    gm_adapter *before = adapter_alike(engine, *out);
    if (!before) return GM_OK;
    gm_adapter_free(*out);
    *out = before;
    return GM_OK;
}

gm_status adapters_switch(gm_session *session, const char *text, error *e) {
    enum { MOST_WORDS = 32 };
    gm_adapter *chosen[MOST_WORDS];
    float       scales[MOST_WORDS];
    size_t      count = 0;
    char        why[sizeof e->why] = "", word[1024];
    for (const char *at = text + strspn(text, " \t"); *at && strcmp(text, "none") != 0;) {
        const size_t length = strcspn(at, " \t");
        size_t       name = 0;
        if (count == MOST_WORDS || length >= sizeof word)
            return fail(e, GM_BAD_ARGUMENT, "at most %d adapters can be given, each with a path of at most %zu bytes",
                        MOST_WORDS, sizeof word - 1);
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        name = length;
        scales[count] = 1;
        if (!adapter_loaded(session->engine, str_of(word))) TRY(adapter_argument(word, &name, &scales[count], e));
        TRY(adapter_named(session->engine, (str){ word, name }, &chosen[count], e));
        count++;
        at += length + strspn(at + length, " \t");
    }
    const gm_status status = gm_session_adapters(session, chosen, scales, count, why, sizeof why);
    return status ? fail(e, status, "%s", why) : GM_OK;
}

void adapters_show(const gm_session *session, buffer *out) {
    const engine_adapters *a = &session->engine->adapters;
    const float           *weights = a->sites.table + (size_t)session->adapters * a->sites.model.slots;
    const size_t           before = out->length;
    for (size_t i = a->own; session->adapters && i < a->sites.model.slots; i++) {
        if (!a->slots[i] || weights[i] == 0) continue;
        buffer_printf(out, "%s%s=%g", out->length > before ? " " : "", gm_adapter_name(a->slots[i]),
                      (double)weights[i]);
    }
    if (out->length == before) buffer_text(out, "none");
}
