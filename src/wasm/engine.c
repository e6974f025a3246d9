/* For JavaScript: loading, the engine, and its text functions. */

#include "wasm/wasm.h"

#include "gpu/experts_profile.h"
#include "session/media.h"
#include "session/self_check.h"

#include <stdlib.h>
#include <string.h>

enum { LARGEST_PIECE = 4 << 20 }; /* of a header */

/* ---- loading ------------------------------------------------------------------------------------------------------------ */

/* NULL if there is no such option. */
static gm_status option_text(const json *options, const char *key, arena *a, const char **out, error *e) {
    const json *value = json_get(options, key);
    if (!json_is(value, JSON_STRING)) return GM_OK;
    *out = arena_copy(a, value->text);
    return *out ? GM_OK : fail_memory(e, "an option", value->text.length);
}

static uint64_t option_bytes(const json *options, const char *key) {
    const json *value = json_get(options, key);
    return json_is(value, JSON_NUMBER) && value->number > 0 && value->number < 9e15 ? (uint64_t)value->number : 0;
}

static gm_status make_sources(const double *sizes, size_t count, source **out, error *e) {
    for (size_t i = 0; i < count; i++) {
        if (!(sizes[i] >= 0) || sizes[i] > 9007199254740992.0)
            return fail(e, GM_BAD_ARGUMENT, "a source of %g bytes cannot be read", sizes[i]);
        TRY(source_pieces((uint64_t)sizes[i], &out[i], e));
        source_set_piece(out[i], LARGEST_PIECE);
    }
    return GM_OK;
}

static gm_status start_load(source **parts, size_t count, const json *o, arena *a, engine_load **out, error *e) {
    engine_origin     origin = { 0 };
    const bool        gpu = json_is(json_get(o, "gpu"), JSON_TRUE);
    gm_engine_options engine = { .backend = gpu ? GM_BACKEND_GPU : GM_BACKEND_CPU,
                                 .threads = (uint32_t)option_bytes(o, "threads"), /* 1 without workers */
                                 .precise = json_is(json_get(o, "precise"), JSON_TRUE),
                                 .gpu_memory = option_bytes(o, "gpuMemory"),
                                 .gpu_experts = (uint32_t)option_bytes(o, "gpuExperts") };
    gguf             *file = NULL, *projector = NULL;
    source           *first = parts[0];
    TRY(option_text(o, "name", a, &origin.name, e));
    TRY(option_text(o, "renderer", a, &origin.renderer, e));
    TRY(option_text(o, "params", a, &origin.params, e));
    TRY(option_text(o, "system", a, &origin.system, e));
    TRY(option_text(o, "gpuDisable", a, &engine.gpu_disable, e));
    const bool towers = json_is(json_get(o, "projector"), JSON_TRUE) && count > 1;
    parts[0] = NULL;
    TRY(gguf_new(first, &file, e));
    if (towers) { /* the last source */
        source *last = parts[--count];
        parts[count] = NULL;
        if (gguf_new(last, &projector, e)) {
            gguf_free(file);
            return e->status;
        }
    }
    source *others[64];
    memcpy(others, parts + 1, (count - 1) * sizeof *others);
    memset(parts, 0, count * sizeof *parts); /* the job owns them now */
    return engine_load_new(
        file, others, count - 1,
        &(load_options){
            .engine = &engine, .origin = &origin, .projector = projector, .memory = option_bytes(o, "wasmMemory") },
        out, e);
}

/* Sources by their sizes; options as JSON: {gpu, threads, precise, gpuMemory, wasmMemory, gpuDisable, projector, name, renderer, params,
 * system}. With `projector` the last source is a file with the model's towers (mmproj). */
EXPORT(gmw_load_new)
gm_status gmw_load_new(wasm_context *c, const char *options, size_t length, const double *sizes, size_t count,
                       engine_load **out) {
    error   e = { 0 };
    arena   a = { 0 };
    json   *o = NULL;
    source *parts[64] = { 0 };
    *out = NULL;
    if (count < 1 || count > COUNT_OF(parts))
        fail(&e, GM_BAD_ARGUMENT, "the model has %zu parts; 1 to %zu are supported", count, COUNT_OF(parts));
    if (!e.status && !json_parse((str){ options, length }, &a, &o, &e) && !make_sources(sizes, count, parts, &e))
        start_load(parts, count, o, &a, out, &e);
    for (size_t i = 0; i < COUNT_OF(parts); i++) source_free(parts[i]);
    arena_free(&a);
    return wasm_end(c, &e);
}

EXPORT(gmw_load_free) void gmw_load_free(engine_load *l) { engine_load_free(l); }

EXPORT(gmw_load_step) gm_status gmw_load_step(wasm_context *c, engine_load *l) {
    error           e = { 0 };
    const gm_status status = engine_load_step(l, &e);
    return wasm_end_step(c, status, &e);
}

EXPORT(gmw_load_header) gm_status gmw_load_header(wasm_context *c, engine_load *l) {
    error           e = { 0 };
    const gm_status status = engine_load_header(l, &e);
    return wasm_end_step(c, status, &e);
}

/* Fills in [phase, done, total]. */
EXPORT(gmw_load_progress) void gmw_load_progress(const engine_load *l, double out[3]) {
    const load_progress p = engine_load_progress(l);
    out[0] = p.phase;
    out[1] = (double)p.done;
    out[2] = (double)p.total;
}

EXPORT(gmw_load_take) gm_engine *gmw_load_take(engine_load *l) { return engine_load_take(l); }

EXPORT(gmw_load_reads) reads *gmw_load_reads(const engine_load *l) { return engine_load_reads(l); }

/* After gmw_load_header: a FitReport as JSON, without `backend`. */
EXPORT(gmw_load_fit) gm_status gmw_load_fit(wasm_context *c, const engine_load *l, double max_binding) {
    error    e = { 0 };
    load_fit fit;
    buffer  *out = &c->result;
    buffer_clear(out);
    if (engine_load_fit(l, (uint64_t)max_binding, &fit, &e)) return wasm_end(c, &e);
    str  name = str_of(fit.name);
    bool found;
    if (gguf_get_str(fit.file, "general.name", &name, &found, &e)) return wasm_end(c, &e);
    buffer_char(out, '{');
    wasm_bool(out, "fits", fit.fits);
    wasm_text(out, "why", fit.why);
    wasm_key(out, "name");
    json_write_string(out, name);
    wasm_text(out, "architecture", fit.config.canvas.length ? "diffusion-gemma" : "gemma4");
    wasm_number(out, "layers", fit.config.layers);
    wasm_number(out, "parameters", (double)fit.parameters);
    wasm_number(out, "fileBytes", (double)gguf_file_bytes(fit.file));
    wasm_number(out, "gpuBytes", (double)fit.bytes);
    wasm_number(out, "kvBytesPerToken", (double)fit.kv_bytes_per_token);
    wasm_number(out, "tableBytes", (double)fit.table_bytes);
    wasm_bool(out, "tableKept", fit.table_kept);
    wasm_number(out, "towerBytes", (double)fit.tower_bytes);
    wasm_key(out, "notes");
    buffer_char(out, '[');
    if (fit.note[0]) json_write_string(out, str_of(fit.note));
    buffer_text(out, "]}");
    return wasm_end(c, &e);
}

/* ---- reads -------------------------------------------------------------------------------------------------------------- */

/* The projector's number is behind those of the model's parts. */
static uint32_t part_of(const gguf *file, const source *from) {
    uint32_t part = 0;
    while (part < gguf_parts(file) && gguf_source(file, part) != from) part++;
    return part;
}

/* The next order as [part, offset, length, buffer (0: memory), offset in the buffer]. Returns its ticket; 0: none. `file` belongs to
 * the load, or later to the engine. */
EXPORT(gmw_read_next) uint32_t gmw_read_next(reads *r, const gguf *file, double out[5]) {
    read_order     order;
    const uint32_t ticket = reads_next(r, &order);
    if (!ticket) return 0;
    out[0] = part_of(file, order.from);
    out[1] = (double)order.offset;
    out[2] = (double)order.length;
    out[3] = order.memory ? 0 : order.buffer;
    out[4] = (double)order.at;
    return ticket;
}

EXPORT(gmw_load_file) const gguf *gmw_load_file(const engine_load *l) { return engine_load_file(l); }

/* Whether the read is still wanted. */
EXPORT(gmw_read_waits) int32_t gmw_read_waits(const reads *r, uint32_t ticket) {
    return reads_order(r, ticket) != NULL;
}

/* Where its bytes go; NULL: they are not wanted, or go to the GPU. */
EXPORT(gmw_read_memory) void *gmw_read_memory(const reads *r, uint32_t ticket) {
    const read_order *order = reads_order(r, ticket);
    return order ? order->memory : NULL;
}

/* `why` ends with a NUL. */
EXPORT(gmw_read_answer) void gmw_read_answer(reads *r, uint32_t ticket, gm_status status, const char *why) {
    reads_answer(r, ticket, status, why);
}

/* ---- the engine --------------------------------------------------------------------------------------------------------- */

/* EngineInfo as JSON, without `backend`, and with `sampling`. */
static bool engine_understands(gm_engine *engine, tower_kind kind) {
    error why_not = { 0 };
    engine_enter(engine);
    const bool has = engine_has_tower(engine, kind, &why_not) == GM_OK;
    engine_leave(engine);
    return has;
}

EXPORT(gmw_engine_info) gm_status gmw_engine_info(wasm_context *c, gm_engine *engine) {
    const error    e = { 0 };
    gm_engine_info info;
    buffer        *out = &c->result;
    gm_engine_get_info(engine, &info);
    buffer_clear(out);
    buffer_char(out, '{');
    wasm_text(out, "name", info.name);
    wasm_text(out, "architecture", info.architecture);
    wasm_text(out, "device", info.device);
    wasm_number(out, "layers", info.layers);
    wasm_number(out, "width", info.width);
    wasm_number(out, "vocabulary", info.vocabulary);
    wasm_number(out, "context", info.context);
    wasm_number(out, "parameters", (double)info.parameters);
    wasm_number(out, "fileBytes", (double)info.file_bytes);
    wasm_number(out, "bytesPerToken", (double)info.bytes_per_token);
    wasm_text(out, "note", info.note);
    wasm_number(out, "experts", info.experts);
    wasm_number(out, "gpuExperts", info.gpu_experts);
    wasm_bool(out, "vision", engine_understands(engine, TOWER_VISION));
    wasm_bool(out, "audio", engine_understands(engine, TOWER_AUDIO));
    wasm_number(out, "pictureBudget", media_default_budget(engine->file));
    wasm_text(out, "digest", engine->digest);
    wasm_key(out, "sampling");
    wasm_write_sampling(out, &engine->sampling);
    buffer_char(out, '}');
    return wasm_end(c, &e);
}

/* What is known about the use of experts (gpu/experts_profile.h): bytes; none without a cache. */
EXPORT(gmw_experts_profile) gm_status gmw_experts_profile(wasm_context *c, const gm_engine *engine) {
    const error         e = { 0 };
    const expert_cache *cache = engine->gpu.experts;
    buffer_clear(&c->result);
    if (cache) expert_profile_write(cache, &c->result);
    return wasm_end(c, &e);
}

/* Takes such bytes of an earlier engine. */
EXPORT(gmw_experts_know)
gm_status gmw_experts_know(wasm_context *c, gm_engine *engine, const uint8_t *bytes, size_t length) {
    error e = { 0 };
    if (engine->gpu.experts) expert_profile_read(engine->gpu.experts, bytes, length, &e);
    return wasm_end(c, &e);
}

/* Then loads the experts that are used most, step by step. */
EXPORT(gmw_experts_warm) gm_status gmw_experts_warm(wasm_context *c, gm_engine *engine) {
    error           e = { 0 };
    const gm_status status = engine->gpu.experts ? expert_cache_warm(&engine->gpu, &e) : GM_OK;
    return wasm_end_step(c, status, &e);
}

/* Fills [bytes of GPU buffers, seconds of self-check, upload, plans and shaders]. */
EXPORT(gmw_engine_stats) void gmw_engine_stats(const gm_engine *engine, double out[9]) {
    gm_engine_info info;
    gm_engine_get_info(engine, &info);
    out[0] = engine->gpu.host ? (double)gpu_host_bytes(engine->gpu.host) : 0;
    out[1] = engine->seconds.check;
    out[2] = engine->seconds.upload;
    out[3] = engine->plans.seconds;
    out[4] = engine->seconds.shaders;
    out[5] = (double)info.expert_uses;
    out[6] = (double)info.expert_misses;
    out[7] = (double)info.expert_tokens;
    out[8] = (double)info.expert_bytes;
}

/* The result is ids, 4 bytes each. */
EXPORT(gmw_tokenize)
gm_status gmw_tokenize(wasm_context *c, const gm_engine *engine, const char *text, size_t length, int32_t special) {
    error      e = { 0 };
    token_list list = { 0 };
    buffer_clear(&c->result);
    if (special) tokenizer_encode(engine->words, (str){ text, length }, true, &list, &e);
    else tokenizer_encode_plain(engine->words, (str){ text, length }, &list, &e);
    if (!e.status && list.count) buffer_append(&c->result, list.ids, list.count * sizeof *list.ids);
    token_list_free(&list);
    return wasm_end(c, &e);
}

/* The result is the token's bytes. */
EXPORT(gmw_token_text) gm_status gmw_token_text(wasm_context *c, const gm_engine *engine, int32_t id) {
    error       e = { 0 };
    const char *text;
    size_t      length;
    buffer_clear(&c->result);
    if (gm_token_text(engine, id, &text, &length))
        fail(&e, GM_BAD_ARGUMENT, "token %d is not in the vocabulary, which has ids from 0 to %zu", id,
             tokenizer_size(engine->words) - 1);
    else buffer_append(&c->result, text, length);
    return wasm_end(c, &e);
}

/* ---- self-check --------------------------------------------------------------------------------------------------------- */

EXPORT(gmw_check_new) gm_status gmw_check_new(wasm_context *c, gm_engine *engine, self_check **out) {
    error e = { 0 };
    *out = NULL;
    if (!engine->on_gpu) return GM_OK;
    engine_check_new(engine, out, &e);
    return wasm_end(c, &e);
}

EXPORT(gmw_check_step) gm_status gmw_check_step(wasm_context *c, self_check *check) {
    error           e = { 0 };
    const gm_status status = self_check_step(check, &e);
    return wasm_end_step(c, status, &e);
}

EXPORT(gmw_check_free) void gmw_check_free(self_check *check) { self_check_free(check); }
