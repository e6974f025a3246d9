/* The GPU host on webgpu.h: opening and closing, problems, and the progress of the GPU.
 *
 * Nothing here blocks except where the contract says so: creating an object waits for the result of its error scope,
 * which Dawn has at once. */

#include "gpu/features.h"
#include "gpu/host_native.h"

#include "base/clock.h"
#include "base/free_memory.h"
#include "base/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define AWAIT_SECONDS 30.0
#define COMPILING_SECONDS 0.005
/* After so many bytes of writes we insert a fence, so that room becomes free in pieces. */
#define BYTES_PER_FENCE (UINT64_C(8) << 20)

static const WGPUErrorFilter filters[] = { WGPUErrorFilter_Validation, WGPUErrorFilter_OutOfMemory,
                                           WGPUErrorFilter_Internal };

/* ---- messages and problems ---- */

void webgpu_text(char *out, size_t size, WGPUStringView message) {
    size_t used = 0;
    for (size_t i = 0; message.data && i < message.length && used + 1 < size; i++) {
        const unsigned char c = (unsigned char)message.data[i];
        if (!c && message.length == SIZE_MAX) break;
        if (c > ' ' && c != 127) out[used++] = (char)c;
        else if (used && out[used - 1] != ' ') out[used++] = ' ';
    }
    while (used && out[used - 1] == ' ') used--;
    out[used] = 0;
}

static gm_status status_of(uint32_t type) {
    if (type == WGPUErrorType_OutOfMemory) return GM_NO_MEMORY;
    return type == WGPUErrorType_Validation ? GM_BAD_ARGUMENT : GM_UNSUPPORTED;
}

void host_set_problem(gpu_host *h, gm_status status, const char *what, WGPUStringView message) {
    char text[300];
    webgpu_text(text, sizeof text, message);
    fail(&h->problem, status, "%s: %s", what, *text ? text : "no reason was given");
}

void host_on_error(WGPUDevice const *device, uint32_t type, WGPUStringView message, void *first, void *second) {
    (void)device, (void)second;
    const gpu_host *h = first;
    char            what[100] = "the GPU refused a command";
    if (status_of(type) == GM_NO_MEMORY)
        snprintf(what, sizeof what, "the GPU ran out of memory with %llu bytes in its buffers",
                 (unsigned long long)h->bytes);
    host_set_problem(first, status_of(type), what, message);
}

void host_on_lost(WGPUDevice const *device, uint32_t reason, WGPUStringView message, void *first, void *second) {
    (void)device, (void)second, (void)reason;
    gpu_host *h = first;
    if (h->closing) return; /* we caused this ourselves */
    h->lost = true;
    h->news++;
    h->problem.status = GM_OK; /* a loss explains any earlier problem, so it replaces it */
    host_set_problem(h, GM_DEVICE_LOST, "the GPU was lost", message);
}

gm_status host_lost(const gpu_host *h, error *e) {
    return h->lost ? fail(e, GM_DEVICE_LOST, "%s", h->problem.why) : GM_OK;
}

gm_status gpu_host_problem(gpu_host *h, error *e) {
    host_process(h); /* the known error may be a consequence of a loss */
    const error problem = h->problem;
    if (problem.status == GM_OK) return GM_OK;
    if (!h->lost) h->problem = (error){ 0 };
    return fail(e, problem.status, "%s", problem.why);
}

/* ---- waiting for callbacks ---- */

void host_process(gpu_host *h) {
    h->api.InstanceProcessEvents(h->instance);
    host_compile(h);
}

bool host_await(gpu_host *h, WGPUFuture future) {
    const double deadline = clock_seconds() + AWAIT_SECONDS;
    while (!h->answer.done && clock_seconds() < deadline) {
        if (h->api.DevicePoll) { /* wgpu-native has no futures */
            h->api.InstanceProcessEvents(h->instance);
            if (!h->answer.done) nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
        } else {
            WGPUFutureWaitInfo wait = { .future = future };
            h->api.InstanceWaitAny(h->instance, 1, &wait, UINT64_C(100000000));
        }
    }
    return h->answer.done;
}

static void on_scope(uint32_t status, uint32_t type, WGPUStringView message, void *first, void *second) {
    (void)second;
    host_answer *answer = first;
    answer->done = true;
    answer->type =
        status == WGPUStatus_Success ? type : WGPUErrorType_NoError; /* a lost device is reported elsewhere */
    webgpu_text(answer->message, sizeof answer->message, message);
}

void host_scope_begin(gpu_host *h) {
    for (size_t i = 0; i < COUNT_OF(filters); i++) h->api.DevicePushErrorScope(h->device, filters[i]);
}

gm_status host_scope_end(gpu_host *h, const char *what, error *e) {
    const WGPUPopErrorScopeCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                 .callback = on_scope,
                                                 .userdata1 = &h->answer };
    gm_status                           status = GM_OK;
    for (size_t i = 0; i < COUNT_OF(filters); i++) {
        h->answer = (host_answer){ 0 };
        if (!host_await(h, h->api.DevicePopErrorScope(h->device, info))) {
            host_on_lost(&h->device, 0, webgpu_string("it does not respond"), h, NULL);
            break;
        }
        if (h->answer.type <= WGPUErrorType_NoError || status != GM_OK) continue;
        status = fail(e, status_of(h->answer.type), "%s: %s", what, h->answer.message);
    }
    return status == GM_OK ? host_lost(h, e) : status;
}

/* ---- progress of the GPU ---- */

/* Libraries disagree about the parameters, so we read none of them and poll the fences' futures instead. */
static void on_work_done(void) {}

static void add_fence(gpu_host *h) {
    if (h->work_fenced == h->work || h->fence_count == FENCES) return;
    host_uploads_flush(h);
    const WGPUQueueWorkDoneCallbackInfo info = { .mode = WGPUCallbackMode_WaitAnyOnly, .callback = on_work_done };
    h->fences[h->fence_count++] = (host_fence){ .future = h->api.QueueOnSubmittedWorkDone(h->queue, info),
                                                .serial = h->work,
                                                .bytes = h->written,
                                                .order = h->order++ };
    h->work_fenced = h->work;
    h->written = 0;
}

static bool fence_passed(gpu_host *h, const host_fence *fence) {
    if (h->lost) return true;
    if (h->api.DevicePoll) return h->api.DevicePoll(h->device, false, NULL);
    WGPUFutureWaitInfo wait = { .future = fence->future };
    return h->api.InstanceWaitAny(h->instance, 1, &wait, 0) == WGPUStatus_Success && wait.completed;
}

static void look_at_fences(gpu_host *h) {
    uint32_t passed = 0;
    while (passed < h->fence_count && fence_passed(h, &h->fences[passed])) {
        h->work_done = h->fences[passed].serial;
        h->write_bytes -= h->fences[passed].bytes;
        passed++;
    }
    if (!passed) return;
    h->news++;
    h->fence_count -= passed;
    memmove(h->fences, h->fences + passed, h->fence_count * sizeof *h->fences);
}

void host_count_work(gpu_host *h, uint64_t written) {
    h->work++;
    h->written += written;
    h->write_bytes += written;
    if (h->written >= BYTES_PER_FENCE) add_fence(h);
}

uint64_t gpu_submitted(const gpu_host *h) { return h->work; }

bool gpu_passed(gpu_host *h, uint64_t submitted) {
    add_fence(h);
    look_at_fences(h);
    return h->lost || h->work_done >= submitted;
}

bool gpu_idle(gpu_host *h) { return gpu_passed(h, h->work); }

static void let_news_in(gpu_host *h) {
    host_process(h);
    if (h->api.DevicePoll) h->api.DevicePoll(h->device, false, NULL);
    look_at_fences(h);
}

/* The oldest pending read-back or fence; false: nothing is pending. */
static bool oldest_future(gpu_host *h, WGPUFuture *out) {
    uint64_t     oldest = UINT64_MAX;
    uint32_t     index = 0;
    gpu_id       id;
    host_ticket *ticket;
    while ((ticket = slots_next(&h->tickets, &index, &id))) {
        if (ticket->state != TICKET_FLYING || ticket->order >= oldest) continue;
        oldest = ticket->order;
        *out = ticket->future;
    }
    if (oldest == UINT64_MAX) add_fence(h); /* otherwise the read-back arrives soon enough */
    if (h->fence_count && h->fences[0].order < oldest) {
        oldest = h->fences[0].order;
        *out = h->fences[0].future;
    }
    return oldest != UINT64_MAX;
}

/* Waits for the queue, but only a moment while pipelines compile: the next ones must be handed to the library in time.
 * False: there is nothing to wait for. */
static bool wait_for_something(gpu_host *h, double seconds) {
    WGPUFuture future;
    if (!oldest_future(h, &future) && !host_compiling_future(h, &future)) return false;
    if (h->api.DevicePoll) {
        nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
        return true;
    }
    WGPUFutureWaitInfo wait = { .future = future };
    const double       most = h->compiling && seconds > COMPILING_SECONDS ? COMPILING_SECONDS : seconds;
    const uint32_t     status = h->api.InstanceWaitAny(h->instance, 1, &wait, (uint64_t)(most * 1e9));
    return status == WGPUStatus_Success || status == WGPUWaitStatus_TimedOut;
}

void gpu_host_wait(gpu_host *h, uint32_t milliseconds) {
    const uint64_t before = h->news;
    const double   deadline = clock_seconds() + milliseconds / 1000.0;
    let_news_in(h);
    while (milliseconds && h->news == before && !h->lost) {
        const double left = deadline - clock_seconds();
        if (left <= 0 || !wait_for_something(h, left)) return;
        let_news_in(h);
    }
}

/* ---- opening and closing ---- */

/* Loading Dawn and querying Vulkan takes about 50 ms, longer than a small model needs for its first word. A machine
 * without any of these device files has no GPU, unless the user names a driver. */
static bool may_have_gpu(void) {
#if defined(__linux__)
    static const char *const nodes[] = { "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/mali0", "/dev/kgsl-3d0" };
    if (getenv("VK_ICD_FILENAMES") || getenv("VK_DRIVER_FILES") || getenv("VK_ADD_DRIVER_FILES")) return true;
    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        if (!access(nodes[i], F_OK)) return true;
    }
    for (int i = 128; i < 192; i++) { /* the numbers that Linux assigns to render nodes */
        char path[40];
        snprintf(path, sizeof path, "/dev/dri/renderD%d", i);
        if (!access(path, F_OK)) return true;
    }
    return false;
#else
    return true;
#endif
}

/* For callers that use the CPU if there is no GPU: if no library is found, a short error that does not say where to get one. */
static gm_status load_quickly(webgpu_api *api, error *e) {
    error problem = { 0 };
    if (!may_have_gpu()) return fail(e, GM_NO_DEVICE, "no GPU was found");
    if (!webgpu_load(api, &problem)) return GM_OK;
    return fail(e, GM_NO_DEVICE, "%s", api->missing ? "no WebGPU library was found" : problem.why);
}

gm_status gpu_host_open(const gpu_options *options, gpu_host **out, error *e) {
    *out = NULL;
    gpu_host *h = calloc(1, sizeof *h);
    if (!h) return fail_memory(e, "the GPU host", sizeof *h);
    h->buffers = (slots){ .size = sizeof(host_buffer), .kind = KIND_BUFFER };
    h->sources = (slots){ .size = sizeof(host_source), .kind = KIND_BUFFER };
    h->pipelines = (slots){ .size = sizeof(host_pipeline), .kind = KIND_PIPELINE };
    h->groups = (slots){ .size = sizeof(host_group), .kind = KIND_GROUP };
    h->tickets = (slots){ .size = sizeof(host_ticket), .kind = KIND_TICKET };
    h->most = options ? options->memory : 0;
    h->most_compiling = 2 * (uint32_t)usable_processors(); /* when one is ready, the library already has the next */
    gm_status status = options && options->hardware ? load_quickly(&h->api, e) : webgpu_load(&h->api, e);
    if (status == GM_OK) status = host_open_device(h, options, e);
    h->info.main_memory = free_memory() / 2;
    if (status != GM_OK) {
        gpu_host_close(h);
        return status;
    }
    *out = h;
    return GM_OK;
}

static void close_things(gpu_host *h) {
    uint32_t index;
    gpu_id   id;
    for (index = 0; slots_next(&h->groups, &index, &id);) gpu_group_free(h, id);
    host_close_pipelines(h);
    for (index = 0; slots_next(&h->buffers, &index, &id);) gpu_buffer_free(h, id);
    for (index = 0; slots_next(&h->sources, &index, &id);) gpu_source_free(h, id);
    host_uploads_close(h);
    host_close_tickets(h);
    gpu_clock_stop(h);
    slots_free(&h->groups);
    slots_free(&h->buffers);
    slots_free(&h->tickets);
    slots_free(&h->sources);
}

void gpu_host_close(gpu_host *h) {
    if (!h) return;
    h->closing = true;
    close_things(h);
    if (h->queue) h->api.QueueRelease(h->queue);
    if (h->device) {
        h->api.DeviceDestroy(h->device);
        h->api.InstanceProcessEvents(h->instance); /* runs callbacks that still point to us */
        h->api.DeviceRelease(h->device);
    }
    if (h->instance) h->api.InstanceRelease(h->instance);
    webgpu_unload(&h->api);
    free(h);
}

const gpu_info *gpu_host_info(const gpu_host *h) { return &h->info; }
void            gpu_host_be_exact(gpu_host *h) { gpu_features_be_exact(&h->info); }
uint64_t        gpu_host_bytes(const gpu_host *h) { return h->bytes; }
uint64_t        gpu_host_limit(const gpu_host *h) { return h->most; }

bool host_force_loss(gpu_host *h) {
    enum { UNKNOWN_REASON = 1 };
    if (!h->api.DeviceForceLoss) return false;
    h->api.DeviceForceLoss(h->device, UNKNOWN_REASON, webgpu_string("lost on purpose"));
    return true;
}
