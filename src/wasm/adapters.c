/* For JavaScript: adapters. */

#include "wasm/wasm.h"

#include "base/sha256.h"

#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------------------------ */

/* Reads an adapter without an engine: the bytes of a safetensors file and of its adapter_config.json, or those of a GGUF file and
 * no config (0 bytes). */
EXPORT(gmw_adapter_read)
gm_status gmw_adapter_read(wasm_context *c, const char *name, const void *weights, size_t size, const void *config,
                           size_t config_size, adapter **out) {
    error e = { 0 };
    adapter_open_memory((str){ weights, size }, (str){ config_size ? config : NULL, config_size }, name, out, &e);
    return wasm_end(c, &e);
}

EXPORT(gmw_adapter_drop) void gmw_adapter_drop(adapter *a) { adapter_free(a); }

/* The layer of "blk.3.attn_q.weight"; -1: it is in none. Layers of towers do not count. */
static int pair_layer(const adapter_pair *p) {
    int layer = 0;
    if (strncmp(p->base, "blk.", 4)) return -1;
    for (const char *at = p->base + 4; *at >= '0' && *at <= '9'; at++) layer = 10 * layer + (*at - '0');
    return layer;
}

static bool kind_came_before(const adapter *a, size_t pair, const char *kind) {
    char other[ADAPTER_NAME];
    for (size_t i = 0; i < pair; i++) {
        if (!strcmp(kind, adapter_kind(a->pairs[i].base, other))) return true;
    }
    return false;
}

static void info_targets(const adapter *a, buffer *out) {
    bool any = false;
    char kind[ADAPTER_NAME];
    wasm_key(out, "targets");
    buffer_char(out, '[');
    for (size_t i = 0; i < a->count; i++) {
        adapter_kind(a->pairs[i].base, kind);
        if (kind_came_before(a, i, kind)) continue;
        if (any) buffer_char(out, ',');
        any = true;
        json_write_string(out, str_of(kind));
    }
    buffer_char(out, ']');
}

/* {"name", "baseModel", "digest", "pairs", "rank", "layers", "parameters", "bytes", "targets"}: AdapterInfo in web/src/core/types.ts. */
EXPORT(gmw_adapter_info) gm_status gmw_adapter_info(wasm_context *c, const adapter *a) {
    error    e = { 0 };
    buffer  *out = &c->result;
    uint32_t rank = 0, layers = 0;
    char     digest[65];
    for (size_t i = 0, last = (size_t)-1; i < a->count; i++) { /* pairs are sorted by layer */
        const int layer = pair_layer(&a->pairs[i]);
        if (a->pairs[i].rank > rank) rank = a->pairs[i].rank;
        if (layer < 0 || (size_t)layer == last) continue;
        last = (size_t)layer;
        layers++;
    }
    sha256_hex(a->digest, digest);
    buffer_clear(out);
    buffer_char(out, '{');
    wasm_text(out, "name", a->name);
    wasm_text(out, "baseModel", a->base_model ? a->base_model : "");
    wasm_text(out, "digest", digest);
    wasm_number(out, "pairs", (double)a->count);
    wasm_number(out, "rank", rank);
    wasm_number(out, "layers", layers);
    wasm_number(out, "parameters", (double)(a->bytes / sizeof(float)));
    wasm_number(out, "bytes", (double)a->bytes);
    info_targets(a, out);
    buffer_char(out, '}');
    return wasm_end(c, &e);
}

/* The result are the bytes of a file: a GGUF, or one of the two of a PEFT folder. Free them with gmw_result_drop. */
EXPORT(gmw_adapter_write) gm_status gmw_adapter_write(wasm_context *c, const adapter *a, uint32_t file) {
    enum { FILE_GGUF, FILE_SAFETENSORS, FILE_CONFIG };
    error e = { 0 };
    buffer_clear(&c->result);
    if (file == FILE_CONFIG) adapter_write_config(a, &c->result, &e);
    else if (file == FILE_GGUF) adapter_write_gguf(a, buffer_sink, &c->result, &e);
    else adapter_write_safetensors(a, buffer_sink, &c->result, &e);
    if (c->result.failed) e = (error){ 0 }; /* out of memory, which the sink cannot say */
    return wasm_end(c, &e);
}

/* ---- engines and sessions --------------------------------------------------------------------------------------------- */

/* Whether it fits the engine's model; the result says why not. */
EXPORT(gmw_adapter_fits) gm_status gmw_adapter_fits(wasm_context *c, const gm_engine *engine, const adapter *a) {
    error e = { 0 };
    engine_adapters_check(engine, a, &e);
    return wasm_end(c, &e);
}

/* The same bytes as for gmw_adapter_read. */
EXPORT(gmw_adapter_new)
gm_status gmw_adapter_new(wasm_context *c, gm_engine *engine, const char *name, const void *weights, size_t size,
                          const void *config, size_t config_size, gm_adapter **out) {
    error           e = { 0 };
    char            why[sizeof e.why];
    const gm_status status = gm_adapter_load_data(engine, name, weights, size, config_size ? config : NULL, config_size,
                                                  out, why, sizeof why);
    if (status) fail(&e, status, "%s", why);
    return wasm_end(c, &e);
}

EXPORT(gmw_adapter_free) void gmw_adapter_free(gm_adapter *a) { gm_adapter_free(a); }

EXPORT(gmw_adapter_content) const adapter *gmw_adapter_content(const gm_adapter *a) { return a->content; }

EXPORT(gmw_session_adapters)
gm_status gmw_session_adapters(wasm_context *c, gm_session *s, gm_adapter *const *adapters, const float *scales,
                               size_t count) {
    error e = { 0 };
    session_set_adapters(s, adapters, scales, count, &e);
    return wasm_end(c, &e);
}
