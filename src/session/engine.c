#include "session/engine.h"

#include "base/json.h"
#include "gpu/experts.h"
#include "session/denoiser.h"
#include "session/expert_profile.h"
#include "session/load.h"
#include "store/box.h"
#include "store/ollama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- finding the model ----------------------------------------------------------------------------------------------- */

static bool looks_like_path(const char *name) {
    struct stat about;
    return strchr(name, '\\') || strstr(name, ".gguf") || name[0] == '/' || name[0] == '.' || !stat(name, &about);
}

gm_status engine_find_model(const char *name, arena *a, const char **path, engine_origin *origin, error *e) {
    *origin = (engine_origin){ 0 };
    if (!name || !*name)
        return fail(e, GM_BAD_ARGUMENT, "no model was named: give a path, an Ollama name such as gemma4:e2b, or 'box'");
    if (!strcmp(name, "box")) {
        TRY(box_find(a, path, e));
    } else if (looks_like_path(name)) {
        *path = arena_copy(a, str_of(name));
    } else {
        ollama_model found;
        TRY(ollama_resolve(name, a, &found, e));
        if (!found.model) return fail(e, GM_UNSUPPORTED, "'%s' in Ollama's store has no GGUF layer", name);
        *path = found.model;
        origin->renderer = found.renderer;
        origin->params = found.params;
        origin->system = found.system;
        origin->adapters = found.adapters;
        origin->adapter_count = found.adapter_count;
    }
    origin->name = arena_copy(a, str_of(name));
    return *path && origin->name ? GM_OK : fail_memory(e, "the model's name", strlen(name));
}

/* ---- what the model says about itself --------------------------------------------------------------------------------- */

/* Leaves *out alone if there is no such parameter. */
static gm_status number_from(const json *params, const char *key, float *out, error *e) {
    const json *value = json_get(params, key);
    if (!value || json_is(value, JSON_NULL)) return GM_OK;
    if (!json_is(value, JSON_NUMBER)) return fail(e, GM_BAD_FILE, "the params layer: %s must be a number", key);
    *out = (float)value->number;
    return GM_OK;
}

/* Of a number that counts; what is below 0 stands for no limit, and 0 does here. */
static uint32_t count_of(float number) { return number > 0 && number < 1e9f ? (uint32_t)number : 0; }

static gm_status sampling_from(const json *params, gm_sampling *s, error *e) {
    float k = (float)s->top_k, window = (float)s->penalty_window;
    TRY(number_from(params, "temperature", &s->temperature, e));
    TRY(number_from(params, "top_k", &k, e));
    TRY(number_from(params, "top_p", &s->top_p, e));
    TRY(number_from(params, "min_p", &s->min_p, e));
    TRY(number_from(params, "typical_p", &s->typical_p, e));
    TRY(number_from(params, "repeat_penalty", &s->repetition_penalty, e));
    TRY(number_from(params, "presence_penalty", &s->presence_penalty, e));
    TRY(number_from(params, "frequency_penalty", &s->frequency_penalty, e));
    TRY(number_from(params, "repeat_last_n", &window, e));
    s->top_k = (int32_t)count_of(k);
    s->penalty_window = count_of(window);
    return GM_OK;
}

/* A string, or a list of them. */
static gm_status stops_from(const json *params, gm_engine *engine, error *e) {
    const json *stop = json_get(params, "stop");
    if (!stop || json_is(stop, JSON_NULL)) return GM_OK;
    const bool list = json_is(stop, JSON_ARRAY);
    if (list && stop->count > MOST_STOPS)
        return fail(e, GM_BAD_FILE, "the params layer: stop has %zu strings, but at most %d are allowed", stop->count,
                    MOST_STOPS);
    engine->stops = arena_array(&engine->memory, list ? stop->count : 1, sizeof *engine->stops);
    if (!engine->stops) return fail_memory(e, "the stop strings", stop->count * sizeof *engine->stops);
    for (const json *text = list ? stop->first : stop; text; text = list ? text->next : NULL) {
        if (!json_is(text, JSON_STRING))
            return fail(e, GM_BAD_FILE, "the params layer: stop must be a string or a list of strings, found %s",
                        json_describe(text));
        if (memchr(text->text.data, 0, text->text.length))
            return fail(e, GM_BAD_FILE, "the params layer: a stop string has a NUL byte");
        if (!text->text.length) continue;
        const char *copy = arena_copy(&engine->memory, text->text);
        if (!copy) return fail_memory(e, "a stop string", text->text.length);
        engine->stops[engine->stop_count++] = copy;
    }
    return GM_OK;
}

static gm_status read_params(gm_engine *engine, const char *text, error *e) {
    arena     scratch = { 0 };
    json     *params = NULL;
    float     context = 0, most_tokens = 0;
    gm_status status = json_parse(str_of(text), &scratch, &params, e);
    if (!status) status = sampling_from(params, &engine->sampling, e);
    if (!status) status = stops_from(params, engine, e);
    if (!status) status = number_from(params, "num_ctx", &context, e);
    if (!status) status = number_from(params, "num_predict", &most_tokens, e);
    engine->most_tokens = count_of(most_tokens);
    if (count_of(context)) engine->context = (uint32_t)min_size(count_of(context), engine->weights.config.context);
    arena_free(&scratch);
    return status;
}

/* Ollama's params layer, else the file's own keys, else what Gemma 4 was released with. */
static gm_status read_defaults(gm_engine *engine, const engine_origin *origin, error *e) {
    enum { CONTEXT = 8192 };
    gm_sampling *s = &engine->sampling;
    *s = (gm_sampling){
        .temperature = 1, .top_k = 64, .top_p = 0.95f, .typical_p = 1, .repetition_penalty = 1, .penalty_window = 64
    };
    engine->context = (uint32_t)min_size(engine->weights.config.context, CONTEXT);
    bool     found;
    uint32_t top_k = 0;
    TRY(gguf_get_u32(engine->file, "general.sampling.top_k", &top_k, &found, e));
    if (found) s->top_k = (int32_t)(top_k > INT32_MAX ? INT32_MAX : top_k);
    TRY(gguf_get_f32(engine->file, "general.sampling.top_p", &s->top_p, &found, e));
    TRY(gguf_get_f32(engine->file, "general.sampling.temp", &s->temperature, &found, e));
    if (origin->params) TRY(read_params(engine, origin->params, e));
    return sampling_check(s, engine->weights.config.vocabulary, e);
}

static bool contains_word(const char *text, const char *const *words, size_t count) {
    for (size_t i = 0; text && i < count; i++) {
        if (strstr(text, words[i])) return true;
    }
    return false;
}

chat_variant engine_chat_variant(const model_config *config, const engine_origin *origin) {
    static const char *const small[] = { "e2b", "e4b", "E2B", "E4B" }, *const large[] = { "12b", "26b", "31b",
                                                                                          "12B", "26B", "31B" };
    if (origin->renderer && !strcmp(origin->renderer, "gemma4-small")) return CHAT_SMALL;
    if (origin->renderer && !strcmp(origin->renderer, "gemma4-large")) return CHAT_LARGE;
    if (contains_word(origin->name, small, COUNT_OF(small))) return CHAT_SMALL;
    if (contains_word(origin->name, large, COUNT_OF(large))) return CHAT_LARGE;
    return config->per_layer_width ? CHAT_SMALL : CHAT_LARGE;
}

static gm_status find_suppressed(gm_engine *engine, error *e) {
    const size_t n = engine->weights.config.vocabulary;
    for (size_t id = 0; id < n; id++) {
        if (!tokenizer_is_suppressed(engine->words, (int32_t)id)) continue;
        if (!engine->suppressed)
            engine->suppressed = arena_array(&engine->memory, n / 32 + 1, sizeof *engine->suppressed);
        if (!engine->suppressed) return fail_memory(e, "the suppressed tokens", n / 8);
        engine->suppressed[id / 32] |= 1u << id % 32;
    }
    return GM_OK;
}

static gm_status engine_read_name(gm_engine *engine, const engine_origin *origin, error *e) {
    char device[200];
    bool found;
    str  name = str_of(origin->name);
    TRY(gguf_get_str(engine->file, "general.name", &name, &found, e));
    if (engine->on_gpu) {
        snprintf(device, sizeof device, "gpu (%s%s)", gpu_host_info(engine->gpu.host)->name,
                 engine->precise ? ", precise" : "");
    } else {
        const size_t threads = pool_threads(engine->cpu.threads);
        snprintf(device, sizeof device, "cpu (%s, %zu thread%s%s)", engine->cpu.kernels->name, threads,
                 threads == 1 ? "" : "s", engine->precise ? ", precise" : "");
    }
    engine->name = arena_copy(&engine->memory, name);
    engine->device = arena_copy(&engine->memory, str_of(device));
    engine->system = origin->system ? arena_copy(&engine->memory, str_of(origin->system)) : NULL;
    if (!engine->name || !engine->device || (origin->system && !engine->system))
        return fail_memory(e, "the model's description", 200);
    return GM_OK;
}

gm_status engine_describe(gm_engine *engine, const engine_origin *origin, error *e) {
    TRY(find_suppressed(engine, e));
    TRY(read_defaults(engine, origin, e));
    TRY(engine_read_name(engine, origin, e));
    engine->variant = engine_chat_variant(&engine->weights.config, origin);
    return GM_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------------- */

/* False: whoever opens the engine has given up. */
static bool tell_opening(const gm_engine_options *options, const engine_load *load) {
    const load_progress p = engine_load_progress(load);
    const gm_opening    now = { p.phase == LOAD_SHADERS ? GM_OPENING_SHADERS : GM_OPENING_WEIGHTS, p.done, p.total };
    const bool          counts = p.phase == LOAD_WEIGHTS || p.phase == LOAD_SHADERS;
    return !options->opening || options->opening(options->opening_user, counts ? &now : &(gm_opening){ 0 });
}

/* A file that is all there: the job waits for nothing but the GPU. */
static gm_status load_file(gguf *file, gguf *projector, const gm_engine_options *options, const engine_origin *origin,
                           gm_engine **out, error *e) {
    engine_load *load = NULL;
    gm_status    status = engine_load_new(
        file, NULL, 0, &(load_options){ .engine = options, .origin = origin, .projector = projector }, &load, e);
    while (!status && (status = engine_load_step(load, e)) == GM_AGAIN) {
        engine_load_wait(load);
        status =
            tell_opening(options, load) ? GM_OK : fail(e, GM_CANCELLED, "cancelled while the model was being opened");
    }
    if (!status) *out = engine_load_take(load);
    engine_load_free(load);
    return status;
}

/* Ollama's models may have adapters as layers: every session uses them. */
static gm_status load_own_adapters(gm_engine *engine, const engine_origin *origin, error *e) {
    gm_status status = GM_OK;
    engine_enter(engine);
    for (size_t i = 0; i < origin->adapter_count && !status; i++) {
        adapter    *content = NULL;
        gm_adapter *held = NULL;
        status = adapter_open(origin->adapters[i], &content, e);
        if (!status) status = engine_adapters_add(engine, content, &held, e);
        if (!status) engine->adapters.own++;
    }
    engine_leave(engine);
    return status;
}

static gm_status check_options(const gm_engine_options *options, error *e) {
    if (options->threads > 1024)
        return fail(e, GM_BAD_ARGUMENT, "threads must be between 1 and 1024, found %u", options->threads);
    if (options->backend > GM_BACKEND_GPU)
        return fail(e, GM_BAD_ARGUMENT, "%d is not a backend", (int)options->backend);
    return GM_OK;
}

gm_status gm_engine_open(const gm_engine_options *options, gm_engine **out, char *why, size_t why_size) {
    const gm_engine_options none = { 0 };
    error                   e = { 0 };
    arena                   scratch = { 0 };
    engine_origin           origin = { 0 };
    gguf                   *file = NULL, *projector = NULL;
    const char             *path = NULL;
    *out = NULL;
    if (!options) options = &none;
    if (!check_options(options, &e)) {
        if (options->data) gguf_open_memory(options->data, options->data_size, &file, &e);
        else if (!engine_find_model(options->model, &scratch, &path, &origin, &e)) gguf_open_file(path, &file, &e);
    }
    if (!e.status && options->mmproj && gguf_open_file(options->mmproj, &projector, &e)) gguf_free(file);
    if (!e.status && !load_file(file, projector, options, &origin, out, &e) && load_own_adapters(*out, &origin, &e)) {
        gm_engine_close(*out);
        *out = NULL;
    }
    arena_free(&scratch);
    return error_report(&e, why, why_size);
}

void gm_engine_close(gm_engine *engine) {
    if (!engine) return;
#ifndef __wasm__
    engine_profile_save(engine);
#endif
    engine_check_end(engine);
    engine_close_stores(engine);
    engine_close_towers(engine);
    tokenizer_free(engine->words);
    denoiser_free(engine->denoiser); /* its runs have borrowed plans */
    plans_close(&engine->plans);
    engine_adapters_close(engine);
    graph_free(&engine->text);
    cpu_backend_close(&engine->cpu);
    gpu_backend_close(&engine->gpu);
    gpu_budget_free(&engine->budget);
    reads_free(engine->reads);
    model_free(&engine->weights);
    gguf_free(engine->file);
    gguf_free(engine->projector);
    arena_free(&engine->memory);
    turns_close(&engine->turns);
    free(engine);
}

bool gm_engine_release_towers(gm_engine *engine) {
    engine_enter(engine);
    const bool released = engine_release_towers(engine);
    engine_leave(engine);
    return released;
}

void gm_engine_get_info(const gm_engine *engine, gm_engine_info *out) {
    const model_config *c = &engine->weights.config;
    *out = (gm_engine_info){
        .name = engine->name,
        .architecture = c->canvas.length ? "diffusion-gemma" : "gemma4",
        .device = engine->device,
        .layers = c->layers,
        .width = c->width,
        .vocabulary = c->vocabulary,
        .context = c->context,
        .parameters = engine->weights.parameters,
        .file_bytes = gguf_file_bytes(engine->file),
        .bytes_per_token = engine->weights.bytes_per_token,
        .note = engine->note,
        .why_device = engine->why_device,
        .experts = c->experts,
        .gpu_experts = engine->on_gpu ? c->experts : 0,
    };
    const expert_cache *cache = engine->on_gpu ? engine->gpu.experts : NULL;
    if (!cache) return;
    out->gpu_experts = cache->slots;
    out->expert_uses = cache->statistics.picks;
    out->expert_misses = cache->statistics.missed;
    out->expert_tokens = cache->statistics.tokens;
    out->expert_bytes = cache->statistics.bytes;
}

void gm_sampling_default(const gm_engine *engine, gm_sampling *out) { *out = engine->sampling; }

/* ---- text --------------------------------------------------------------------------------------------------------------- */

gm_status gm_tokenize(const gm_engine *engine, const char *text, size_t length, bool parse_special, int32_t *ids,
                      size_t capacity, size_t *count, char *why, size_t why_size) {
    error      e = { 0 };
    token_list list = { 0 };
    const str  input = { length ? text : "", length };
    if (parse_special) tokenizer_encode(engine->words, input, true, &list, &e);
    else tokenizer_encode_plain(engine->words, input, &list, &e);
    *count = list.count;
    if (!e.status && capacity && list.count) memcpy(ids, list.ids, min_size(capacity, list.count) * sizeof *ids);
    token_list_free(&list);
    return error_report(&e, why, why_size);
}

gm_status gm_token_text(const gm_engine *engine, int32_t id, const char **text, size_t *length) {
    if (id < 0 || (size_t)id >= tokenizer_size(engine->words)) return GM_BAD_ARGUMENT;
    const str s = tokenizer_text(engine->words, id);
    *text = s.data;
    *length = s.length;
    return GM_OK;
}
