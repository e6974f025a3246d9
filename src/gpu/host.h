/* The GPU as the engine sees it: buffers, pipelines, bind groups, and recorded command lists that are replayed.
 *
 * One header, two implementations: native on webgpu.h (src/gpu/host_native.c, the library is found at run time), and
 * WebAssembly's (src/gpu/host_wasm.c), whose calls the page answers. There, the call that makes a thing does not tell that it failed;
 * gpu_host_problem does, before any result of it arrives.
 *
 * Nothing here waits: what comes back from the GPU has a ticket, and whoever drives the engine asks whether it has arrived. Ids are
 * slot and generation, so that an id kept too long is noticed; 0 is none. */

#ifndef GM_GPU_HOST_H
#define GM_GPU_HOST_H

#include "base/base.h"

typedef struct gpu_host gpu_host;
typedef uint32_t        gpu_id;

typedef struct {
    char     name[128], vendor[64], backend[32], driver[128]; /* for people */
    bool     software;                                        /* a GPU in software: SwiftShader, llvmpipe */
    uint64_t max_buffer;                                      /* bytes of one buffer, and of one binding */
    uint64_t max_binding;
    uint32_t max_storage_buffers; /* bindings of one shader */
    uint32_t max_invocations;     /* of one workgroup */
    uint32_t max_workgroups;      /* in one dimension of a dispatch */
    uint32_t max_workgroup_bytes;
    uint32_t alignment;                  /* of a binding's offset */
    uint32_t subgroup_min, subgroup_max; /* 0 without subgroups */
    bool     subgroups, f16, dot4, timestamps;
    bool     subgroup_matrix; /* products of f16 matrices with f32 sums, [rows, depth] · [depth, columns] */
    uint32_t matrix_rows, matrix_columns, matrix_depth;
} gpu_info;

typedef struct {
    int32_t adapter; /* which of gpu_host_list; -1: the fastest that the system names */
    bool
        hardware; /* with adapter -1: a software GPU counts as none, and the error is short enough for a line of status */
    const char *disable; /* features not to use: "subgroups,dot4,f16,subgroup_matrix", or NULL */
    uint64_t    memory;  /* bytes that all buffers may take together; 0: as many as there are */
} gpu_options;

/* The adapters of this machine; at most `capacity` are written, the count is returned in `*count`. */
gm_status gpu_host_list(gpu_info *out, size_t capacity, size_t *count, error *e);

/* GM_NO_DEVICE says what was looked for and how to get it. */
gm_status       gpu_host_open(const gpu_options *options, gpu_host **out, error *e);
void            gpu_host_close(gpu_host *h); /* frees whatever is left */
const gpu_info *gpu_host_info(const gpu_host *h);
/* The first problem since the last call: GM_DEVICE_LOST, GM_NO_MEMORY, or a validation error, which is our own mistake. */
gm_status gpu_host_problem(gpu_host *h, error *e);
/* Bytes of all buffers that live, and how many they may be (0: no limit). */
uint64_t gpu_host_bytes(const gpu_host *h);
uint64_t gpu_host_limit(const gpu_host *h);

/* ---- things ---- */

/* Usable as storage, as source and as destination of copies. 0 and an error when there is no memory. Zeroed. */
gpu_id gpu_buffer_new(gpu_host *h, uint64_t bytes, error *e);
void   gpu_buffer_free(gpu_host *h, gpu_id buffer);
/* Queued in order with submits. Offset and size are multiples of 4. At most 64 MiB are in flight: then GM_AGAIN, nothing was
 * taken, and gpu_host_wait (or the browser's loop) makes room. */
gm_status gpu_buffer_write(gpu_host *h, gpu_id buffer, uint64_t offset, const void *data, uint64_t bytes, error *e);

typedef struct {
    const char *name; /* of an `override` in the shader */
    double      value;
} gpu_constant;

/* One compute shader, entry point `main`, all bindings in group 0. `label` is for messages. Compiler messages go into the
 * error. The same text and constants give the same pipeline again, without compiling it even if all have freed it. */
gpu_id gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants, size_t count,
                        error *e);
void   gpu_pipeline_free(gpu_host *h, gpu_id pipeline);

typedef struct {
    uint32_t binding;
    gpu_id   buffer;
    uint64_t offset, bytes;
} gpu_binding;

gpu_id gpu_group_new(gpu_host *h, gpu_id pipeline, const gpu_binding *bindings, size_t count, error *e);
void   gpu_group_free(gpu_host *h, gpu_id group);

/* ---- command lists ----
 *
 * An array of words: GPU_LIST_VERSION, then records: (op | length << 16), then `length` words of the op. 64-bit values are two
 * words, the low one first. The browser gets the array once and replays it, so there are no pointers in it. */

enum { GPU_LIST_VERSION = 1 };

typedef enum {
    GPU_END_PASS = 1, /* the next dispatch begins a new compute pass */
    GPU_DISPATCH = 2, /* pipeline, group, x, y, z */
    GPU_INDIRECT = 3, /* pipeline, group, buffer, offset (2): x, y, z are read there */
    GPU_COPY = 4,     /* source, offset (2), destination, offset (2), bytes (2) */
    GPU_CLEAR = 5,    /* buffer, offset (2), bytes (2) */
    GPU_WRITE = 6,    /* buffer, offset (2), then the words themselves: written before the list runs */
    GPU_READ = 7,     /* buffer, offset (2), bytes (2), ticket: a copy that arrives later */
} gpu_op;

/* Runs the list after everything submitted before. Refuses a list that names a freed id. */
gm_status gpu_submit(gpu_host *h, const uint32_t *words, size_t count, error *e);

/* A number for a GPU_READ, not used by another that is under way. */
uint32_t gpu_ticket_new(gpu_host *h);
/* The bytes once they have arrived, else NULL; valid until gpu_ticket_done. */
const void *gpu_ticket_data(gpu_host *h, uint32_t ticket, uint64_t *bytes);
void gpu_ticket_done(gpu_host *h, uint32_t ticket); /* also for one that has not arrived: it is dropped when it does */
/* Whether everything submitted so far has run. */
bool gpu_idle(gpu_host *h);
/* A number for what was submitted so far, and whether all of that has run: others may have submitted more since. */
uint64_t gpu_submitted(const gpu_host *h);
bool     gpu_passed(gpu_host *h, uint64_t submitted);

/* Handles what the GPU has finished, and waits up to `milliseconds` for it (0: does not wait). Native only: a browser has its loop. */
void gpu_host_wait(gpu_host *h, uint32_t milliseconds);

#endif
