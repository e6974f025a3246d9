/* The engine's view of a GPU: buffers, pipelines, bind groups, and recorded command lists that are replayed.
 *
 * One header, two implementations: the native one uses webgpu.h (src/gpu/host_native.c; the library is found at run
 * time), and WebAssembly's (src/gpu/host_wasm.c) calls the page. There, a call that creates an object cannot report a
 * failure at once; gpu_host_problem reports it before any result that depends on the object arrives.
 *
 * Nothing here waits. A read-back has a ticket, and whoever drives the engine asks whether it has arrived. An id is a
 * slot and a generation, so that stale ids are detected; 0 is none. */

#ifndef GM_GPU_HOST_H
#define GM_GPU_HOST_H

#include "base/base.h"

typedef struct gpu_host gpu_host;
typedef uint32_t        gpu_id;

typedef struct {
    char     name[128], vendor[64], backend[32], driver[128]; /* for display */
    bool     software;                                        /* runs on the CPU: SwiftShader, llvmpipe */
    uint64_t max_buffer;                                      /* bytes of one buffer, and of one binding */
    uint64_t max_binding;
    uint32_t max_storage_buffers; /* bindings per shader */
    uint32_t max_invocations;     /* threads per workgroup */
    uint32_t max_workgroups;      /* per dimension of a dispatch */
    uint32_t max_workgroup_bytes;
    uint32_t alignment;                  /* required for the offsets of bindings */
    uint32_t subgroup_min, subgroup_max; /* 0 without subgroups */
    bool     subgroups, f16, dot4, timestamps;
    bool     subgroup_matrix; /* products of f16 matrices with f32 sums, [rows, depth] · [depth, columns] */
    uint32_t matrix_rows, matrix_columns, matrix_depth;
    bool     matrix_attention; /* attention of many tokens by subgroup matrices, where there are some */
    uint32_t attention_step;   /* which of its steps that takes, for benches: 1 short, 2 long; 0: chosen by size */
    bool     bands;            /* of these, the small heads of towers with a band of queries for each subgroup */
    bool     deep_splits;      /* products by subgroup matrices with few tiles and much to add are split further */
    bool double_buffers;  /* products by register blocks load the next step beside this one, if weights are quantised */
    bool large_batches;   /* prompts in batches beyond 256 tokens, if the GPU is fast: session/batches.h */
    uint64_t main_memory; /* bytes that sources (gpu_source_new) may take, about; 0: there should be none */
    bool     blocks;      /* attention and f32 products of many tokens by register blocks; false: by plain kernels */
    bool     exact;       /* the same bits as the CPU's scalar kernels: gpu_host_be_exact */
} gpu_info;

typedef struct {
    int32_t     adapter;  /* index into gpu_host_list; -1: the fastest that the system reports */
    bool        hardware; /* with adapter -1: software GPUs do not count, and the error fits in a status line */
    const char *disable;  /* features to disable (gpu/features.h): "subgroups,dot4", or NULL */
    uint64_t    memory;   /* the most bytes of all buffers together; 0: no limit */
} gpu_options;

/* Lists the adapters of this machine: writes at most `capacity`, and returns their number in `*count`. */
gm_status gpu_host_list(gpu_info *out, size_t capacity, size_t *count, error *e);

/* GM_NO_DEVICE: the error says what we looked for and how to get it. */
gm_status       gpu_host_open(const gpu_options *options, gpu_host **out, error *e);
void            gpu_host_close(gpu_host *h); /* frees everything that is left */
const gpu_info *gpu_host_info(const gpu_host *h);
/* From now on kernels give the same bits as the CPU's scalar kernels do (wgsl/exact.wgsl), in f32 and with fewer features. Before any plan. */
void gpu_host_be_exact(gpu_host *h);
/* The first problem since the last call: GM_DEVICE_LOST, GM_NO_MEMORY, or a validation error, which is a bug of
 * ours. */
gm_status gpu_host_problem(gpu_host *h, error *e);
/* Bytes of all live buffers, and their limit (0: none). */
uint64_t gpu_host_bytes(const gpu_host *h);
uint64_t gpu_host_limit(const gpu_host *h);

/* ---- buffers, pipelines and bind groups ---- */

enum { GPU_UNIFORM_BYTES = 1 << 20 };
/* A zeroed buffer for storage and for copies in both directions; up to GPU_UNIFORM_BYTES also for uniform bindings. Returns 0, with an error, if there is no memory. */
gpu_id gpu_buffer_new(gpu_host *h, uint64_t bytes, error *e);
void   gpu_buffer_free(gpu_host *h, gpu_id buffer);
/* Queued in order with submits. Offset and size are multiples of 4. At most 64 MiB may be in flight: beyond that,
 * nothing is written and the result is GM_AGAIN, until gpu_host_wait (or the browser's event loop) makes room. */
gm_status gpu_buffer_write(gpu_host *h, gpu_id buffer, uint64_t offset, const void *data, uint64_t bytes, error *e);

/* A source: a copy, in main memory, of what these tickets brought, one after another. GM_AGAIN: not all of them have arrived. The tickets stay
 * the caller's. (A mappable buffer would do without the processor, but a driver may place it in the GPU's memory, as an H200's does.) */
gm_status gpu_source_new(gpu_host *h, const uint32_t *tickets, size_t count, gpu_id *out, error *e);
void      gpu_source_free(gpu_host *h, gpu_id from);
/* As gpu_buffer_write, from `first` on in the source. */
gm_status gpu_source_write(gpu_host *h, gpu_id from, uint64_t first, gpu_id buffer, uint64_t offset, uint64_t bytes,
                           error *e);

typedef struct {
    const char *name; /* of an `override` in the shader */
    double      value;
} gpu_constant;

/* One compute shader with entry point `main` and all bindings in group 0. `label` is for messages. Returns at once: the
 * pipeline compiles in the background, beside others and in the order of the calls. The same text and constants return
 * the same pipeline, which lives as long as the host. The error includes the compiler's messages; what the compiler
 * finds only later is reported by gpu_host_problem, and by every list that runs the pipeline. */
gpu_id gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants, size_t count,
                        error *e);
/* How many there are, and how many of these are neither compiled nor refused yet. */
size_t gpu_pipelines(const gpu_host *h);
size_t gpu_pipelines_pending(const gpu_host *h);

typedef struct {
    uint32_t binding;
    gpu_id   buffer;
    uint64_t offset, bytes;
} gpu_binding;

gpu_id gpu_group_new(gpu_host *h, gpu_id pipeline, const gpu_binding *bindings, size_t count, error *e);
void   gpu_group_free(gpu_host *h, gpu_id group);

/* ---- command lists ----
 *
 * An array of words: GPU_LIST_VERSION, then records of (op | length << 16) and `length` words of the op. 64-bit values
 * are two words, low word first. The browser gets the array once and replays it, so it contains no pointers. */

enum { GPU_LIST_VERSION = 1 };

typedef enum {
    GPU_END_PASS = 1, /* the next dispatch begins a new compute pass */
    GPU_DISPATCH = 2, /* pipeline, group, x, y, z */
    GPU_INDIRECT = 3, /* pipeline, group, buffer, offset (2): x, y, z are read there */
    GPU_COPY = 4,     /* source, offset (2), destination, offset (2), bytes (2) */
    GPU_CLEAR = 5,    /* buffer, offset (2), bytes (2) */
    GPU_WRITE = 6,    /* buffer, offset (2), then the data: written before the list runs */
    GPU_READ = 7,     /* buffer, offset (2), bytes (2), ticket: the bytes arrive later */
} gpu_op;

/* Runs the list after everything submitted before. Rejects a list that contains a freed id. GM_AGAIN: one of its
 * pipelines still compiles, and nothing was submitted. */
gm_status gpu_submit(gpu_host *h, const uint32_t *words, size_t count, error *e);

/* A new number for a GPU_READ, unique among those in flight. */
uint32_t gpu_ticket_new(gpu_host *h);
/* The bytes if they have arrived, otherwise NULL; valid until gpu_ticket_done. */
const void *gpu_ticket_data(gpu_host *h, uint32_t ticket, uint64_t *bytes);
void        gpu_ticket_done(gpu_host *h, uint32_t ticket); /* if it has not arrived yet, it is dropped when it does */
/* Whether everything submitted so far has run. */
bool gpu_idle(gpu_host *h);
/* gpu_submitted numbers what has been submitted so far; gpu_passed says whether all of that has run, ignoring later
 * work. */
uint64_t gpu_submitted(const gpu_host *h);
bool     gpu_passed(gpu_host *h, uint64_t submitted);

/* ---- timing: native only ---- */

typedef struct {
    gpu_id group; /* of the dispatch */
    double seconds;
} gpu_time;

/* From now on every dispatch is timed by the GPU's own clock. It gets a compute pass of its own, so that lists take longer.
 * GM_UNSUPPORTED: the GPU has no timestamps. */
gm_status gpu_clock_start(gpu_host *h, error *e);
void      gpu_clock_stop(gpu_host *h); /* discards times that nobody took */
/* Writes the times of the next dispatches, in the order of submission, and returns how many; 0: none has arrived. */
size_t gpu_clock_take(gpu_host *h, gpu_time *out, size_t capacity);

/* Processes what the GPU and the compiler have finished, waiting up to `milliseconds` (0: not at all). Native only: a browser has its own
 * event loop. */
void gpu_host_wait(gpu_host *h, uint32_t milliseconds);

#endif
