/* What `gemmule inspect` finds out about a file, before it is printed in either form. */

#ifndef GM_INSPECT_H
#define GM_INSPECT_H

#include "cli/model_argument.h"
#include "cli/report.h"
#include "model/config.h"

typedef struct {
    uint64_t tensors, bytes;
} type_share;

/* Bytes of keys and values in f16. */
typedef struct {
    uint64_t full;    /* per token, growing with the context */
    uint64_t sliding; /* per token, for at most `window` tokens */
    uint64_t window;
} kv_size;

typedef struct {
    const char  *path;
    const gguf  *file;
    str          name, architecture, size_label, projector_vision, projector_audio;
    const char  *file_type; /* general.file_type as a word, or NULL */
    uint64_t     parameters;
    type_share   types[TYPE_COUNT];
    bool         vision, audio;
    bool         has_config; /* the two below are known: it is a Gemma 4 text model */
    model_config config;
    kv_size      kv;
    bool         runs; /* its weights are all there and fit */
    uint64_t     bytes_per_token;
    error        problem; /* why it is no model that can run */
} inspection;

void     inspect_file(const char *path, const gguf *file, arena *a, inspection *out);
uint64_t kv_bytes_at(const kv_size *kv, uint64_t tokens);

/* One value of the metadata as JSON; an array of more than `most` items as "[N strings]". */
void inspect_value(buffer *out, const gguf_value *value, uint64_t most);

#endif
