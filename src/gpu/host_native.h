/* Shared by the files of the native GPU host; all other code sees only host.h. */

#ifndef GM_HOST_NATIVE_H
#define GM_HOST_NATIVE_H

#include "gpu/host.h"
#include "base/pool.h"
#include "gpu/webgpu_api.h"

/* ---- ids: kind, generation, slot (host_slots.c) ---- */

typedef enum { KIND_BUFFER = 0, KIND_PIPELINE = 1, KIND_GROUP = 2, KIND_TICKET = 3 } thing_kind;

/* The first member of every object that has an id. */
typedef struct {
    uint32_t generation; /* of the object in this slot; a slot that has used all its generations is retired */
    uint32_t next_free;  /* slot + 1 */
    bool     live;
} slot;

typedef struct {
    char      *items;
    size_t     size; /* of one item */
    uint32_t   count, capacity;
    uint32_t   free; /* slot + 1 */
    thing_kind kind;
} slots;

/* Items move when one is added: keep ids, not pointers. NULL: no memory, or all ids are used up. */
void *slots_add(slots *s, gpu_id *id);
void  slots_remove(slots *s, gpu_id id);
void *slots_next(slots *s, uint32_t *index, gpu_id *id); /* the next live item from *index on, or NULL */
void  slots_free(slots *s);
void *slots_find(const slots *s, gpu_id id); /* NULL: no such id, or a stale one */

/* ---- objects ---- */

typedef struct {
    slot       slot;
    WGPUBuffer buffer;
    uint64_t   bytes;
} host_buffer;

typedef struct {
    slot     slot;
    uint8_t *data;
    uint64_t bytes;
} host_source;

typedef enum { PIPELINE_WAITING, PIPELINE_COMPILING, PIPELINE_READY, PIPELINE_FAILED } pipeline_state;
typedef struct pipeline_job pipeline_job;

typedef struct {
    slot                slot;
    pipeline_state      state;
    pipeline_job       *job;      /* what compiling takes; NULL once it is ready or has failed */
    WGPUFuture          future;   /* while it compiles */
    WGPUComputePipeline pipeline; /* once it is ready */
    WGPUBindGroupLayout layout;
    gm_status           refused; /* once it has failed */
    char               *why;
    uint8_t             digest[32]; /* of text and constants: the same digest gets the same pipeline */
} host_pipeline;

/* A parsed shader, kept while any pipeline compiles. */
typedef struct {
    WGPUShaderModule module;
    uint8_t          digest[32]; /* of the text */
} host_module;

typedef struct {
    slot          slot;
    WGPUBindGroup group; /* NULL: its pipeline is not ready yet, and only a pipeline that is ready knows its layout */
    gpu_id        pipeline;
    gpu_binding  *bindings;
    uint32_t      count;
    uint64_t      checked_at; /* gpu_host.buffer_deaths when its buffers were last found alive */
} host_group;

typedef enum { TICKET_NEW, TICKET_FLYING, TICKET_HERE, TICKET_FAILED } ticket_state;

typedef struct {
    slot         slot;
    ticket_state state;
    bool         dropped; /* nobody waits for it any longer */
    uint32_t     staging;
    uint64_t     bytes, order;
    WGPUFuture   future;
} host_ticket;

/* A mappable buffer that read-backs reuse. */
typedef struct {
    WGPUBuffer buffer; /* NULL: the place is free */
    uint64_t   bytes;
    bool       busy;
} host_staging;

enum {
    UPLOAD_PIECE = 4 << 20,
    UPLOAD_PIECES = 16,
    UPLOAD_SMALLEST = 64 << 10, /* smaller writes are faster without staging memory of our own */
    UPLOAD_LARGEST = UPLOAD_PIECE * UPLOAD_PIECES / 2
};

/* Staging memory for large writes, and what is to be copied from it (host_uploads.c). */
typedef struct {
    WGPUBuffer buffer; /* NULL: not made yet */
    uint8_t   *memory; /* NULL: the GPU still reads it */
    uint64_t   used;
} host_upload_piece;

typedef struct {
    WGPUBuffer from, to;
    uint64_t   at, offset, bytes;
} host_upload_copy;

typedef struct {
    host_upload_piece pieces[UPLOAD_PIECES];
    host_upload_copy  copies[4 * UPLOAD_PIECES]; /* written to pieces, but not submitted yet */
    size_t            copy_count;
    pool             *threads; /* that copy large writes; NULL: none */
    bool              refused; /* there is no such memory */
} host_uploads;

/* A marker in the queue: once it has passed, all work up to `serial` is done. */
typedef struct {
    WGPUFuture future;
    uint64_t   serial, bytes, order;
} host_fence;

enum { FENCES = 32 };

/* Dispatches that are timed together (host_clock.c). */
typedef struct clock_batch clock_batch;

typedef struct {
    bool         on;
    clock_batch *first, *last; /* in the order of submission; the last one may still be recorded */
    uint64_t     end;          /* when the last dispatch ended whose time was taken, in ns */
} host_clock;

/* The answer of an awaited callback. It is part of the host, because a callback may come after we stopped waiting. */
typedef struct {
    bool        done, failed;
    uint32_t    type; /* of the error */
    WGPUAdapter adapter;
    WGPUDevice  device;
    char        message[300];
} host_answer;

struct gpu_host {
    webgpu_api   api;
    WGPUInstance instance;
    WGPUDevice   device;
    WGPUQueue    queue;
    gpu_info     info;

    slots         buffers, pipelines, groups, tickets;
    slots         sources; /* their ids look like those of buffers, but are only used in calls for sources */
    host_module  *modules;
    size_t        module_count, module_capacity;
    size_t        pipelines_pending;
    uint32_t      compiling; /* of the pending pipelines, those that the library has */
    uint32_t      most_compiling;
    uint32_t      next_pipeline; /* the first slot that may hold a waiting one */
    host_staging *staging;
    uint32_t      staging_count;
    host_uploads  uploads;
    uint64_t      bytes, most;   /* of all buffers, and their limit; 0: none */
    uint64_t      buffer_deaths; /* number of buffers freed so far */

    host_fence fences[FENCES]; /* oldest first */
    uint32_t   fence_count;
    uint64_t   work, work_fenced, work_done; /* serial numbers of submits and writes */
    uint64_t   written;                      /* bytes written since the last fence */
    uint64_t   write_bytes;                  /* bytes written and not yet known to have arrived */
    uint64_t   order;                        /* numbers read-backs and fences */
    uint64_t   news;                         /* counts arrivals */

    host_clock clock; /* see gpu_clock_start */

    bool        closing, lost;
    error       problem;
    char        log[300]; /* the library's last message about an adapter that it cannot use */
    host_answer answer;
};

/* ---- host_native.c ---- */

gm_status host_lost(const gpu_host *h, error *e); /* GM_OK, or GM_DEVICE_LOST */
/* Records a problem for gpu_host_problem; the first one wins. */
void host_set_problem(gpu_host *h, gm_status status, const char *what, WGPUStringView message);
/* The callbacks of a device; `first` is the host. */
void host_on_error(WGPUDevice const *device, uint32_t type, WGPUStringView message, void *first, void *second);
void host_on_lost(WGPUDevice const *device, uint32_t reason, WGPUStringView message, void *first, void *second);
/* A new serial number for a submit, or for a write of so many bytes. */
void host_count_work(gpu_host *h, uint64_t written);
/* Whatever the GPU rejects between begin and end becomes an error, with `what` before its message. */
void      host_scope_begin(gpu_host *h);
gm_status host_scope_end(gpu_host *h, const char *what, error *e);

/* Runs the callbacks that are due, and hands waiting pipelines to the library. */
void host_process(gpu_host *h);
/* Waits until a callback of `future` has set h->answer.done. False after 30 seconds: the driver hangs. */
bool host_await(gpu_host *h, WGPUFuture future);
/* Copies the message as one line, truncated to fit. */
void webgpu_text(char *out, size_t size, WGPUStringView message);

static inline WGPUStringView webgpu_string(const char *text) { return (WGPUStringView){ text, SIZE_MAX }; }

/* ---- host_adapters.c ---- */

/* Creates instance, device, queue and info. gpu_host_close releases them, also after a failure. */
gm_status host_open_device(gpu_host *h, const gpu_options *options, error *e);

/* ---- host_pipelines.c ---- */

void host_compile(gpu_host *h); /* hands waiting pipelines to the library, as many as may compile at once */
/* GM_AGAIN while it compiles; its error if it failed. */
gm_status host_pipeline_ready(const host_pipeline *p, error *e);
/* The same, but waits until it is known. */
gm_status host_await_pipeline(gpu_host *h, gpu_id id, error *e);
bool      host_compiling_future(gpu_host *h, WGPUFuture *out); /* of the oldest one that compiles; false: none does */
void      host_close_pipelines(gpu_host *h); /* drops those that wait, and waits for those that compile */

/* ---- host_things.c ---- */

/* Makes the group's bind group if its pipeline is ready; GM_AGAIN if it is not. */
gm_status host_group_make(gpu_host *h, host_group *group, error *e);

/* ---- host_uploads.c ---- */

/* As memcpy, by several threads: one thread alone reaches only a fraction of the bus's bandwidth, and of the rate at which the system hands out
 * fresh pages. */
void host_copy(gpu_host *h, uint8_t *to, const uint8_t *from, size_t bytes);

/* False: nothing was written, since the write is too small or too large to go this way, there is no room now, or no such memory at all. Then the
 * queue must write. (Waiting for room could go on for ever: callers repeat several writes if one of them must wait.) */
bool host_uploads_write(gpu_host *h, WGPUBuffer to, uint64_t offset, const void *data, uint64_t bytes);
/* Submits the copies so far. Whatever else goes to the queue must come after this. */
void host_uploads_flush(gpu_host *h);
void host_uploads_close(gpu_host *h);

/* ---- host_lists.c ---- */

/* Frees tickets and staging buffers. */
void host_close_tickets(gpu_host *h);

/* ---- host_clock.c ---- */

/* A place for the times of one dispatch: what its pass writes. False: there is no memory, which is noted as a problem. */
bool host_clock_dispatch(gpu_host *h, gpu_id group, WGPUPassTimestampWrites *out);
/* Whether the next dispatch needs a new batch, so that host_clock_resolve must come first. */
bool host_clock_full(const gpu_host *h);
/* Records, outside a pass, that the times of the batch are copied to where they can be read. */
void host_clock_resolve(gpu_host *h, WGPUCommandEncoder encoder);
/* Asks for the times of what was just submitted. */
void host_clock_submitted(gpu_host *h);

/* For tests: loses the device as if its driver had crashed. False if the library cannot do that. */
bool host_force_loss(gpu_host *h);

#endif
