/* The functions that JavaScript calls: a thin layer over gemmule.h and its jobs (web/src/core is the other side).
 *
 * Numbers and addresses are passed as they are, structures as JSON. A call that can fail returns a gm_status; the context keeps its
 * error message, or its resulting text or bytes, until the next call (gmw_result, gmw_result_length). Nothing waits: after GM_AGAIN,
 * call again when a read was answered, the GPU has results, or other events had their turn. */

#ifndef GM_WASM_H
#define GM_WASM_H

#include "base/buffer.h"
#include "base/json.h"
#include "session/load.h"
#include "session/session.h"

#if defined(__wasm__)
#define EXPORT(name) __attribute__((export_name(#name)))
#else
#define EXPORT(name)
#endif

typedef struct {
    buffer result;
} wasm_context;

/* Ends a call. If there is an error, its message becomes the result. */
gm_status wasm_end(wasm_context *c, const error *e);
/* The same for a call that may return GM_AGAIN. */
gm_status wasm_end_step(wasm_context *c, gm_status status, const error *e);

/* Writes `"key":` and the value, after a comma unless it is the first of its object. */
void wasm_key(buffer *out, const char *key);
void wasm_text(buffer *out, const char *key, const char *value);
void wasm_number(buffer *out, const char *key, double value);
void wasm_bool(buffer *out, const char *key, bool value);

/* {"temperature": …, …, "seed": "digits", "logit_bias": [[id, bias], …]}: given settings replace those in `out`. */
gm_status wasm_read_sampling(const json *from, gm_sampling *out, arena *a, error *e);
void      wasm_write_sampling(buffer *out, const gm_sampling *s);

#endif
