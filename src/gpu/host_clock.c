/* The time of each dispatch, by the GPU's own clock. Dispatches are timed in batches: a query set holds the beginnings and ends of
 * their passes, which are copied to a buffer that is mapped once the list has run. */

#include "gpu/host_native.h"

#include <stdlib.h>

enum { BATCH = 1024 }; /* dispatches; WebGPU allows 4096 queries in a set */

struct clock_batch {
    clock_batch *next;
    gpu_host    *host;
    WGPUQuerySet set;
    WGPUBuffer   times, seen; /* where the GPU writes them, and where we read them */
    uint32_t     count, taken;
    gpu_id       groups[BATCH];
    bool         resolved, asked, arrived, failed;
};

static void batch_free(clock_batch *b) {
    const webgpu_api *api = &b->host->api;
    if (b->set) api->QuerySetRelease(b->set);
    if (b->times) api->BufferRelease(b->times);
    if (b->seen) api->BufferRelease(b->seen);
    free(b);
}

static clock_batch *batch_new(gpu_host *h) {
    const uint64_t               bytes = 2 * BATCH * sizeof(uint64_t);
    const WGPUQuerySetDescriptor queries = { .type = WGPUQueryType_Timestamp, .count = 2 * BATCH };
    const WGPUBufferDescriptor   times = { .usage = WGPUBufferUsage_QueryResolve | WGPUBufferUsage_CopySrc,
                                           .size = bytes },
                               seen = { .usage = WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst, .size = bytes };
    clock_batch *b = calloc(1, sizeof *b);
    if (!b) {
        host_set_problem(h, GM_NO_MEMORY, "no memory for the times of dispatches", (WGPUStringView){ 0 });
        return NULL;
    }
    b->host = h;
    b->set = h->api.DeviceCreateQuerySet(h->device, &queries);
    b->times = h->api.DeviceCreateBuffer(h->device, &times);
    b->seen = h->api.DeviceCreateBuffer(h->device, &seen);
    if (b->set && b->times && b->seen) return b;
    host_set_problem(h, GM_NO_MEMORY, "no GPU memory for the times of dispatches", (WGPUStringView){ 0 });
    batch_free(b);
    return NULL;
}

bool host_clock_full(const gpu_host *h) {
    const clock_batch *b = h->clock.last;
    return b && !b->resolved && b->count == BATCH;
}

bool host_clock_dispatch(gpu_host *h, gpu_id group, WGPUPassTimestampWrites *out) {
    clock_batch *b = h->clock.last;
    if (!b || b->resolved) {
        b = batch_new(h);
        if (!b) return false;
        if (h->clock.last) h->clock.last->next = b;
        else h->clock.first = b;
        h->clock.last = b;
    }
    *out = (WGPUPassTimestampWrites){ .querySet = b->set,
                                      .beginningOfPassWriteIndex = 2 * b->count,
                                      .endOfPassWriteIndex = 2 * b->count + 1 };
    b->groups[b->count++] = group;
    return true;
}

void host_clock_resolve(gpu_host *h, WGPUCommandEncoder encoder) {
    clock_batch *b = h->clock.last;
    if (!b || b->resolved) return;
    const uint64_t bytes = 2 * b->count * sizeof(uint64_t);
    h->api.CommandEncoderResolveQuerySet(encoder, b->set, 0, 2 * b->count, b->times, 0);
    h->api.CommandEncoderCopyBufferToBuffer(encoder, b->times, 0, b->seen, 0, bytes);
    b->resolved = true;
}

static void on_seen(uint32_t status, WGPUStringView message, void *first, void *second) {
    (void)message, (void)second;
    clock_batch *b = first;
    b->arrived = status == WGPUStatus_Success;
    b->failed = !b->arrived;
    b->host->news++;
}

void host_clock_submitted(gpu_host *h) {
    for (clock_batch *b = h->clock.first; b; b = b->next) {
        if (!b->resolved || b->asked) continue;
        const WGPUBufferMapCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                 .callback = on_seen,
                                                 .userdata1 = b };
        b->asked = true;
        h->api.BufferMapAsync(b->seen, WGPUMapMode_Read, 0, 2 * b->count * sizeof(uint64_t), info);
    }
}

gm_status gpu_clock_start(gpu_host *h, error *e) {
    if (!h->info.timestamps)
        return fail(e, GM_UNSUPPORTED, "the GPU '%s' cannot time its work: it has no timestamps", h->info.name);
    h->clock.on = true;
    return GM_OK;
}

/* A pass may seem to begin while the one before it still runs. */
static double dispatch_seconds(host_clock *clock, const uint64_t times[2]) {
    const uint64_t begin = times[0] > clock->end ? times[0] : clock->end, end = times[1] > begin ? times[1] : begin;
    clock->end = end;
    return (double)(end - begin) * 1e-9;
}

size_t gpu_clock_take(gpu_host *h, gpu_time *out, size_t capacity) {
    clock_batch    *b = h->clock.first;
    const uint64_t *times =
        b && b->arrived ? h->api.BufferGetConstMappedRange(b->seen, 0, 2 * b->count * sizeof *times) : NULL;
    size_t n = 0;
    for (; times && n < capacity && b->taken < b->count; n++, b->taken++)
        out[n] = (gpu_time){ b->groups[b->taken], dispatch_seconds(&h->clock, times + 2 * (size_t)b->taken) };
    if (b && (b->failed || (times && b->taken == b->count))) {
        h->clock.first = b->next;
        if (!b->next) h->clock.last = NULL;
        batch_free(b);
    }
    return n;
}

/* Destroying a buffer ends its mapping: the callback comes with the next events. */
void gpu_clock_stop(gpu_host *h) {
    for (clock_batch *b = h->clock.first; b; b = b->next) h->api.BufferDestroy(b->seen);
    if (h->instance && h->clock.first) h->api.InstanceProcessEvents(h->instance);
    for (clock_batch *b = h->clock.first, *next; b; b = next) {
        next = b->next;
        batch_free(b);
    }
    h->clock = (host_clock){ 0 };
}
