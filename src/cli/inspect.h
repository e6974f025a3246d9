/* What `gemmule inspect` finds out about a file, before it is printed in either form. */

#ifndef GM_INSPECT_H
#define GM_INSPECT_H

#include "cli/model_argument.h"
#include "cli/report.h"
#include "model/config.h"
#include "session/gpu_memory.h"

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
    uint64_t     context; /* what the GPU's memory was planned for */
    quant_type   kv_type;
    gpu_budget   gpu;
    error        gpu_problem; /* why it cannot be planned */
} inspection;

/* What a GPU is to be planned for; zeros are the defaults. */
typedef struct {
    uint64_t   gpu_memory, context;
    gm_kv_type kv;
} inspect_wishes;

void     inspect_file(const char *path, const gguf *file, const inspect_wishes *wishes, arena *a, inspection *out);
void     inspect_free(inspection *f);
uint64_t kv_bytes_at(const kv_size *kv, uint64_t tokens);

/* "label   text": a line of the text form. */
void inspect_line(const char *label, const char *format, ...) PRINTF_LIKE(2, 3);
/* inspect_gpu.c: the plan of the GPU's memory. */
void inspect_print_gpu(const inspection *f);
void inspect_report_gpu(report *r, const inspection *f);

/* One value of the metadata as JSON; an array of more than `most` items as "[N strings]". */
void inspect_value(buffer *out, const gguf_value *value, uint64_t most);

#endif
