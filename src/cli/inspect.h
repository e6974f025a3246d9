/* What `gemmule inspect` finds out about a file, before printing it as text or JSON. */

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
    uint64_t binding; /* tokens whose keys in a full layer fit WebGPU's smallest binding */
    uint64_t copy;    /* bytes of a copy of the rings (session/kv_marks.h) */
    uint64_t copies;  /* how many each session has room for */
} kv_size;

typedef struct {
    const char  *path;
    const gguf  *file;
    str          name, architecture, size_label, projector_vision, projector_audio;
    const char  *file_type; /* general.file_type by name, or NULL */
    uint64_t     parameters;
    type_share   types[TYPE_COUNT];
    bool         vision, audio;
    uint64_t     vision_bytes, audio_bytes; /* of the towers' weights */
    uint64_t     picture_bytes;             /* that encoding a picture takes besides, about; 0: unknown */
    bool         has_config;                /* a Gemma 4 text model: the two fields below are set */
    model_config config;
    kv_size      kv;
    bool         runs; /* all weights are present and fit the config */
    uint64_t     bytes_per_token;
    error        problem; /* why it cannot run */
    uint64_t     context; /* tokens that the GPU memory was planned for */
    quant_type   kv_type;
    gpu_budget   gpu;
    error        gpu_problem; /* why there is no plan */
} inspection;

/* What to plan GPU memory for; zeros are the defaults. */
typedef struct {
    uint64_t   gpu_memory, context;
    uint32_t   gpu_experts;
    gm_kv_type kv;
} inspect_wishes;

/* What is wrong with the file is part of the inspection; fails only for lack of memory. inspect_free in either case. */
gm_status inspect_file(const char *path, const gguf *file, const inspect_wishes *wishes, arena *a, inspection *out,
                       error *e);
void      inspect_free(inspection *f);
uint64_t  kv_bytes_at(const kv_size *kv, uint64_t tokens);

/* "label   text": a line of the text form. */
void inspect_line(const char *label, const char *format, ...) PRINTF_LIKE(2, 3);
/* inspect_gpu.c: the GPU memory plan. */
void inspect_print_gpu(const inspection *f);
void inspect_report_gpu(report *r, const inspection *f);

/* Writes a metadata value as JSON; an array of more than `most` items becomes "[N strings]". */
void inspect_value(buffer *out, const gguf_value *value, uint64_t most);

#endif
