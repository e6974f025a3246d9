/* Where a GPU's time goes: the time of each kind of dispatch, by the GPU's own clock, beside the bytes and the arithmetic that it
 * cannot do without. Native only. */

#ifndef GM_GPU_PROFILE_H
#define GM_GPU_PROFILE_H

#include "gpu/backend.h"

/* Dispatches of one kind: the same kernel for the same purpose, in any layer. */
typedef struct {
    char     what[112];  /* "Q4_K ffn_gate + ffn_up, 1536 → 24576" */
    char     kernel[48]; /* the shader's file, and its stage if it has several */
    uint64_t count;
    double   seconds;
    double   bytes; /* weights, visible keys and values, and activations, each once */
    double   flops; /* of products and attention; the rest is not worth counting */
} profile_row;

typedef struct {
    gpu_backend *backend;
    profile_row *rows; /* after gpu_profile_end: the longest first */
    size_t       count, capacity;
    size_t       runs, tokens, dispatches;
    double       seconds; /* of all rows */

    struct profile_wait *waiting; /* dispatches whose times have not arrived yet, a queue */
    size_t               first_waiting, waiting_count, waiting_capacity;
    error                problem;
} gpu_profile; /* zero-initialise */

/* Times everything that plans of this backend submit from now on. The profile must not move. GM_UNSUPPORTED: the GPU has no
 * timestamps. */
gm_status gpu_profile_start(gpu_profile *p, gpu_backend *b, error *e);
/* Waits for the last times; nothing is timed any longer. */
gm_status gpu_profile_end(gpu_profile *p, error *e);
void      gpu_profile_free(gpu_profile *p);

/* What the GPU can do, measured now: bytes read and f32 operations (a multiply-add counts as two) per second. */
typedef struct {
    double bytes, flops;
} gpu_limits;

gm_status gpu_limits_measure(gpu_host *h, gpu_limits *out, error *e);

#endif
