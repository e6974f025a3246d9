#include "session/engine.h"

#include "base/clock.h"
#include "base/json.h"
#include "session/gpu_memory.h"
#include "session/self_check.h"
#include "store/ollama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- finding the model ----------------------------------------------------------------------------------------------- */

static bool looks_like_path(const char *model) {
    struct stat about;
    return strchr(model, '\\') || strstr(model, ".gguf") || model[0] == '/' || model[0] == '.' || !stat(model, &about);
}

gm_status engine_find_model(const char *model, arena *a, const char **path, engine_origin *origin, error *e) {
    *origin = (engine_origin){ 0 };
    if (!model || !*model)
        return fail(e, GM_BAD_ARGUMENT, "no model was named: give a path, an Ollama name such as gemma4:e2b, or 'box'");
    if (!strcmp(model, "box")) {
        const char *box = getenv("GEMMULE_BOX");
        if (!box)
            return fail(e, GM_NOT_FOUND,
                        "the model in the box is not part of this version; GEMMULE_BOX can name its file");
        *path = arena_copy(a, str_of(box));
    } else if (looks_like_path(model)) {
        *path = arena_copy(a, str_of(model));
    } else {
        ollama_model found;
        if (ollama_resolve(model, a, &found, e)) return e->status;
        if (!found.model) return fail(e, GM_UNSUPPORTED, "'%s' in Ollama's store has no GGUF layer", model);
        *path = found.model;
        origin->renderer = found.renderer;
        origin->params = found.params;
        origin->system = found.system;
    }
    origin->name = arena_copy(a, str_of(model));
    return *path && origin->name ? GM_OK : fail_memory(e, "the model's name", strlen(model));
}

/* ---- what the model says about itself --------------------------------------------------------------------------------- */

static void number_from(const json *params, const char *key, float *out) {
    const json *value = json_get(params, key);
    if (json_is(value, JSON_NUMBER)) *out = (float)value->number;
}

/* Ollama's params layer, else the file's own keys, else what Gemma 4 was released with. */
static gm_status read_sampling(gm_engine *engine, const engine_origin *origin, error *e) {
    gm_sampling *s = &engine->sampling;
    *s = (gm_sampling){
        .temperature = 1, .top_k = 64, .top_p = 0.95f, .typical_p = 1, .repetition_penalty = 1, .penalty_window = 64
    };
    bool     found;
    uint32_t top_k = 0;
    if (gguf_get_u32(engine->file, "general.sampling.top_k", &top_k, &found, e)) return e->status;
    if (found) s->top_k = (int32_t)(top_k > INT32_MAX ? INT32_MAX : top_k);
    if (gguf_get_f32(engine->file, "general.sampling.top_p", &s->top_p, &found, e)) return e->status;
    if (gguf_get_f32(engine->file, "general.sampling.temp", &s->temperature, &found, e)) return e->status;
    if (origin->params) {
        arena scratch = { 0 };
        json *params = NULL;
        if (json_parse(str_of(origin->params), &scratch, &params, e)) {
            arena_free(&scratch);
            return e->status;
        }
        float k = (float)s->top_k, window = (float)s->penalty_window;
        number_from(params, "temperature", &s->temperature);
        number_from(params, "top_k", &k);
        number_from(params, "top_p", &s->top_p);
        number_from(params, "min_p", &s->min_p);
        number_from(params, "typical_p", &s->typical_p);
        number_from(params, "repeat_penalty", &s->repetition_penalty);
        number_from(params, "presence_penalty", &s->presence_penalty);
        number_from(params, "frequency_penalty", &s->frequency_penalty);
        number_from(params, "repeat_last_n", &window);
        s->top_k = k > 0 && k < 1e9f ? (int32_t)k : 0;
        s->penalty_window = window > 0 && window < 1e9f ? (uint32_t)window : 0;
        arena_free(&scratch);
    }
    return sampling_check(s, engine->weights.config.vocabulary, e);
}

static bool contains_word(const char *text, const char *const *words, size_t count) {
    for (size_t i = 0; text && i < count; i++) {
        if (strstr(text, words[i])) return true;
    }
    return false;
}

/* The two variants of the chat format differ when thinking is off. */
static chat_variant find_variant(const gm_engine *engine, const engine_origin *origin) {
    static const char *const small[] = { "e2b", "e4b", "E2B", "E4B" }, *const large[] = { "12b", "26b", "31b",
                                                                                          "12B", "26B", "31B" };
    if (origin->renderer && !strcmp(origin->renderer, "gemma4-small")) return CHAT_SMALL;
    if (origin->renderer && !strcmp(origin->renderer, "gemma4-large")) return CHAT_LARGE;
    if (contains_word(origin->name, small, COUNT_OF(small))) return CHAT_SMALL;
    if (contains_word(origin->name, large, COUNT_OF(large))) return CHAT_LARGE;
    return engine->weights.config.per_layer_width ? CHAT_SMALL : CHAT_LARGE;
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

static gm_status describe(gm_engine *engine, const engine_origin *origin, error *e) {
    char device[200];
    bool found;
    str  name = str_of(origin->name);
    if (gguf_get_str(engine->file, "general.name", &name, &found, e)) return e->status;
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

/* ---- opening ----------------------------------------------------------------------------------------------------------- */

/* A GPU that computes wrongly is refused before the weights go there. */
static gm_status check_gpu(gm_engine *engine, error *e) {
    self_check      *check;
    gm_status        status;
    const quant_type kv = engine->precise ? TYPE_F32 : TYPE_F16;
    if (self_check_new(engine->gpu.host, &engine->text, &engine->weights.config, kv, engine->precise, &check, e))
        return e->status;
    while ((status = self_check_step(check, e)) == GM_AGAIN) gpu_host_wait(engine->gpu.host, 100);
    self_check_free(check);
    return status;
}

static gm_status plan_memory(gm_engine *engine, uint64_t limit, error *e) {
    const model_config *c = &engine->weights.config;
    const size_t        context = min_size(c->context, GPU_MEMORY_CONTEXT);
    if (!limit) return GM_OK;
    if (gpu_memory_plan(&engine->text, c, engine->precise ? TYPE_F32 : TYPE_F16, context, limit,
                        gpu_host_info(engine->gpu.host)->max_binding, &engine->budget, e))
        return e->status;
    gpu_budget_explain(&engine->budget, engine->note, sizeof engine->note);
    gpu_backend_keep_to(&engine->gpu, &engine->budget);
    return GM_OK;
}

static gm_status open_backend(gm_engine *engine, const gm_engine_options *options, error *e) {
    if (!engine->on_gpu) return cpu_backend_open(&engine->cpu, options->cpu, options->threads, options->precise, e);
    const gpu_options gpu = { .adapter = (int32_t)options->gpu - 1,
                              .disable = options->gpu_disable,
                              .memory = options->gpu_memory };
    gm_status         status = gpu_backend_open(&engine->gpu, &gpu, options->precise, e);
    if (!status) status = plan_memory(engine, options->gpu_memory, e);
    const double checked_from = clock_seconds();
    if (!status) status = check_gpu(engine, e);
    const double uploaded_from = clock_seconds();
    while (!status && (status = gpu_backend_upload(&engine->gpu, &engine->text, e)) == GM_AGAIN) {
        gpu_host_wait(engine->gpu.host, 100);
        status = GM_OK;
    }
    while (!status && !gpu_idle(engine->gpu.host)) gpu_host_wait(engine->gpu.host, 100);
    engine->seconds.check = uploaded_from - checked_from;
    engine->seconds.upload = clock_seconds() - uploaded_from;
    return status;
}

gm_status engine_open_file(gguf *file, const gm_engine_options *options, const engine_origin *origin, gm_engine **out,
                           error *e) {
    gm_engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        gguf_free(file);
        return fail_memory(e, "the engine", sizeof *engine);
    }
    engine->file = file;
    engine->on_gpu = options->backend == GM_BACKEND_GPU;
    engine->precise = options->precise;
    if (!e->status && !model_load(file, &engine->weights, e) && !tokenizer_new(file, &engine->words, e)) {
        if (tokenizer_size(engine->words) != engine->weights.config.vocabulary) {
            fail(e, GM_BAD_FILE, "tokenizer.ggml.tokens has %zu entries, but token_embd.weight has %u rows",
                 tokenizer_size(engine->words), engine->weights.config.vocabulary);
        }
    }
    if (!e->status) model_text_graph(&engine->weights, &engine->text, e);
    if (!e->status) open_backend(engine, options, e);
    if (!e->status) find_suppressed(engine, e);
    if (!e->status) read_sampling(engine, origin, e);
    if (!e->status) describe(engine, origin, e);
    if (e->status) {
        gm_engine_close(engine);
        return e->status;
    }
    engine->variant = find_variant(engine, origin);
    *out = engine;
    return GM_OK;
}

gm_status gm_engine_open(const gm_engine_options *options, gm_engine **out, char *why, size_t why_size) {
    error         e = { 0 };
    arena         scratch = { 0 };
    engine_origin origin = { 0 };
    gguf         *file = NULL;
    const char   *path = NULL;
    *out = NULL;
    if (options->threads > 1024)
        fail(&e, GM_BAD_ARGUMENT, "threads must be between 1 and 1024, found %u", options->threads);
    else if (options->data) gguf_open_memory(options->data, options->data_size, &file, &e);
    else if (!engine_find_model(options->model, &scratch, &path, &origin, &e)) gguf_open_file(path, &file, &e);
    if (!e.status) engine_open_file(file, options, &origin, out, &e);
    arena_free(&scratch);
    return error_report(&e, why, why_size);
}

void gm_engine_close(gm_engine *engine) {
    if (!engine) return;
    tokenizer_free(engine->words);
    graph_free(&engine->text);
    cpu_backend_close(&engine->cpu);
    gpu_backend_close(&engine->gpu);
    gpu_budget_free(&engine->budget);
    model_free(&engine->weights);
    gguf_free(engine->file);
    arena_free(&engine->memory);
    free(engine);
}

void gm_engine_get_info(const gm_engine *engine, gm_engine_info *out) {
    const model_config *c = &engine->weights.config;
    *out = (gm_engine_info){
        .name = engine->name,
        .architecture = "gemma4",
        .device = engine->device,
        .layers = c->layers,
        .width = c->width,
        .vocabulary = c->vocabulary,
        .context = c->context,
        .parameters = engine->weights.parameters,
        .file_bytes = gguf_file_bytes(engine->file),
        .bytes_per_token = engine->weights.bytes_per_token,
        .note = engine->note,
    };
}

void gm_sampling_default(const gm_engine *engine, gm_sampling *out) { *out = engine->sampling; }

/* ---- text --------------------------------------------------------------------------------------------------------------- */

gm_status gm_tokenize(const gm_engine *engine, const char *text, size_t length, bool parse_special, int32_t *ids,
                      size_t capacity, size_t *count, char *why, size_t why_size) {
    error      e = { 0 };
    token_list list = { 0 };
    const str  input = { text, length };
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
