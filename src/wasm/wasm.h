/* What JavaScript calls: thin functions over gemmule.h and the jobs behind it (web/src/core/core.ts has the other side).
 *
 * Numbers and addresses cross as they are, everything with a structure as JSON. A call that can fail returns a gm_status; its
 * message, or the text or bytes that it gives, are in the context until the next call (gmw_result, gmw_result_length). Nothing
 * waits: GM_AGAIN is repeated once a read was answered, the GPU has news, or others had their turn. */

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

/* Ends a call: the message of an error becomes the result, which otherwise stays as it is. */
gm_status wasm_end(wasm_context *c, const error *e);
/* The same for a call that may go on. */
gm_status wasm_end_step(wasm_context *c, gm_status status, const error *e);

/* Writes `"key":` and the value, with a comma in front unless it is the first of its object. */
void wasm_key(buffer *out, const char *key);
void wasm_text(buffer *out, const char *key, const char *value);
void wasm_number(buffer *out, const char *key, double value);
void wasm_bool(buffer *out, const char *key, bool value);

/* {"temperature": …, …, "seed": "digits", "logit_bias": [[id, bias], …]}: what is there replaces what `out` has. */
gm_status wasm_read_sampling(const json *from, gm_sampling *out, arena *a, error *e);
void      wasm_write_sampling(buffer *out, const gm_sampling *s);

#endif
