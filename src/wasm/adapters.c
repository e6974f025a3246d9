/* For JavaScript: adapters. */

#include "wasm/wasm.h"

/* The bytes of a safetensors file and of its adapter_config.json, or those of a GGUF file and no config (0 bytes). */
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

EXPORT(gmw_session_adapters)
gm_status gmw_session_adapters(wasm_context *c, gm_session *s, gm_adapter *const *adapters, const float *scales,
                               size_t count) {
    error e = { 0 };
    session_set_adapters(s, adapters, scales, count, &e);
    return wasm_end(c, &e);
}
