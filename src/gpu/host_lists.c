/* Command lists: checks a whole list, then records and submits it; and the read-backs that lists start.
 *
 * A rejected list has no effect. After the first few submits nothing is allocated here: read-backs reuse the staging
 * buffers of earlier ones. */

#include "gpu/host_native.h"

#include <stdlib.h>

#define SMALLEST_STAGING UINT64_C(256)
#define LARGEST_KEPT (UINT64_C(16) << 20) /* larger staging buffers are not kept for reuse */

static uint64_t word64(const uint32_t *words) { return words[0] | (uint64_t)words[1] << 32; }

/* ---- staging buffers ---- */

static gm_status take_staging(gpu_host *h, uint64_t bytes, uint32_t *out, error *e) {
    uint32_t place = h->staging_count;
    for (uint32_t i = 0; i < h->staging_count; i++) {
        const host_staging *s = &h->staging[i];
        if (!s->buffer) place = i;
        else if (!s->busy && s->bytes >= bytes && s->bytes / 4 <= bytes + SMALLEST_STAGING) {
            h->staging[i].busy = true;
            *out = i;
            return GM_OK;
        }
    }
    if (place == h->staging_count) {
        host_staging *more = realloc(h->staging, (place + 1) * sizeof *more);
        if (!more) return fail_memory(e, "a staging buffer's record", sizeof *more);
        h->staging = more;
        h->staging[h->staging_count++] = (host_staging){ 0 };
    }
    uint64_t size = SMALLEST_STAGING;
    while (size < bytes && size < LARGEST_KEPT) size *= 2;
    if (size < bytes) size = bytes;
    const WGPUBufferDescriptor d = { .usage = WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst, .size = size };
    host_scope_begin(h);
    WGPUBuffer      buffer = h->api.DeviceCreateBuffer(h->device, &d);
    const gm_status status = host_scope_end(h, "a staging buffer for reading back", e);
    if (status != GM_OK || !buffer) {
        if (buffer) h->api.BufferRelease(buffer);
        return status != GM_OK ? status : fail_memory(e, "a staging buffer", size);
    }
    h->staging[place] = (host_staging){ .buffer = buffer, .bytes = size, .busy = true };
    *out = place;
    return GM_OK;
}

/* `usable`: it is not mapped, or mapping it succeeded. */
static void give_staging_back(gpu_host *h, uint32_t index, bool mapped, bool usable) {
    host_staging *s = &h->staging[index];
    if (usable && s->bytes <= LARGEST_KEPT) {
        if (mapped) h->api.BufferUnmap(s->buffer);
        s->busy = false;
        return;
    }
    h->api.BufferDestroy(s->buffer);
    h->api.BufferRelease(s->buffer);
    *s = (host_staging){ 0 };
}

/* ---- tickets ---- */

uint32_t gpu_ticket_new(gpu_host *h) {
    gpu_id id = 0;
    slots_add(&h->tickets, &id);
    return id;
}

static void on_mapped(uint32_t status, WGPUStringView message, void *first, void *second) {
    gpu_host    *h = first;
    const gpu_id id = (gpu_id)(uintptr_t)second;
    host_ticket *ticket = slots_find(&h->tickets, id);
    const bool   arrived = status == WGPUStatus_Success;
    if (!ticket) return;
    h->news++;
    ticket->state = arrived ? TICKET_HERE : TICKET_FAILED;
    if (!arrived && !h->closing && !h->lost) {
        if (status == WGPUMapAsyncStatus_Error)
            host_set_problem(h, GM_UNSUPPORTED, "reading back from the GPU failed", message);
        else host_on_lost(&h->device, 0, message, h, NULL); /* the library may report the loss only later */
    }
    if (!arrived) give_staging_back(h, ticket->staging, false, false);
    if (!ticket->dropped) return;
    if (arrived) give_staging_back(h, ticket->staging, true, true);
    slots_remove(&h->tickets, id);
}

const void *gpu_ticket_data(gpu_host *h, uint32_t ticket, uint64_t *bytes) {
    const host_ticket *t = slots_find(&h->tickets, ticket);
    if (!t || t->dropped || t->state != TICKET_HERE || h->lost) return NULL;
    if (bytes) *bytes = t->bytes;
    return h->api.BufferGetConstMappedRange(h->staging[t->staging].buffer, 0, t->bytes);
}

void gpu_ticket_done(gpu_host *h, uint32_t ticket) {
    host_ticket *t = slots_find(&h->tickets, ticket);
    if (!t) return;
    if (t->state == TICKET_FLYING) {
        t->dropped = true;
        return;
    }
    if (t->state == TICKET_HERE) give_staging_back(h, t->staging, true, true);
    slots_remove(&h->tickets, ticket);
}

void host_close_tickets(gpu_host *h) {
    for (uint32_t i = 0; i < h->staging_count; i++) { /* cancels pending maps; callbacks run with the next events */
        if (h->staging[i].buffer) h->api.BufferDestroy(h->staging[i].buffer);
    }
    if (h->instance) h->api.InstanceProcessEvents(h->instance);
    for (uint32_t i = 0; i < h->staging_count; i++) {
        if (h->staging[i].buffer) h->api.BufferRelease(h->staging[i].buffer);
    }
    free(h->staging);
    h->staging = NULL;
    h->staging_count = 0;
}

/* ---- checking ---- */

static gm_status check_range(const gpu_host *h, gpu_id id, uint64_t offset, uint64_t bytes, const char *what,
                             error *e) {
    const host_buffer *buffer = slots_find(&h->buffers, id);
    if (!buffer) return fail(e, GM_BAD_ARGUMENT, "a command list %s GPU buffer %#x, which does not exist", what, id);
    if (offset % 4 || bytes % 4 || !bytes || offset > buffer->bytes || bytes > buffer->bytes - offset) {
        return fail(e, GM_BAD_ARGUMENT, "a command list %s %llu bytes at %llu of a GPU buffer of %llu", what,
                    (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)buffer->bytes);
    }
    return GM_OK;
}

static gm_status check_group(gpu_host *h, gpu_id pipeline, gpu_id id, error *e) {
    host_group *group = slots_find(&h->groups, id);
    if (!slots_find(&h->pipelines, pipeline)) {
        return fail(e, GM_BAD_ARGUMENT, "a command list runs pipeline %#x, which does not exist", pipeline);
    }
    if (!group) return fail(e, GM_BAD_ARGUMENT, "a command list binds group %#x, which does not exist", id);
    if (group->pipeline != pipeline) {
        return fail(e, GM_BAD_ARGUMENT, "a command list binds group %#x of pipeline %#x to pipeline %#x", id,
                    group->pipeline, pipeline);
    }
    if (!group->group || group->checked_at != h->buffer_deaths) {
        for (uint32_t i = 0; i < group->count; i++) {
            if (!slots_find(&h->buffers, group->bindings[i].buffer)) {
                return fail(e, GM_BAD_ARGUMENT, "a command list binds group %#x, whose GPU buffer %#x does not exist",
                            id, group->bindings[i].buffer);
            }
        }
        group->checked_at = h->buffer_deaths;
    }
    return group->group ? GM_OK : host_group_make(h, group, e);
}

static gm_status check_nothing(gpu_host *h, const uint32_t *w, uint32_t length, error *e) {
    (void)h, (void)w, (void)length, (void)e;
    return GM_OK;
}

static gm_status check_dispatch(gpu_host *h, const uint32_t *w, uint32_t length, error *e) {
    (void)length;
    const uint32_t most = h->info.max_workgroups;
    if (w[2] > most || w[3] > most || w[4] > most) {
        return fail(e, GM_BAD_ARGUMENT, "a command list runs %u x %u x %u workgroups: at most %u in each dimension",
                    w[2], w[3], w[4], most);
    }
    return check_group(h, w[0], w[1], e);
}

static gm_status check_indirect(gpu_host *h, const uint32_t *w, uint32_t length, error *e) {
    (void)length;
    const gm_status status = check_range(h, w[2], word64(w + 3), 3 * sizeof(uint32_t), "dispatches by", e);
    return status == GM_OK ? check_group(h, w[0], w[1], e) : status;
}

static gm_status check_copy(gpu_host *h, const uint32_t *w, uint32_t length, error *e) {
    (void)length;
    const uint64_t bytes = word64(w + 6);
    if (w[0] == w[3]) return fail(e, GM_BAD_ARGUMENT, "a command list copies GPU buffer %#x into itself", w[0]);
    const gm_status status = check_range(h, w[0], word64(w + 1), bytes, "copies from", e);
    return status == GM_OK ? check_range(h, w[3], word64(w + 4), bytes, "copies to", e) : status;
}

static gm_status check_clear(gpu_host *h, const uint32_t *w, uint32_t length, error *e) {
    (void)length;
    return check_range(h, w[0], word64(w + 1), word64(w + 3), "clears", e);
}

static gm_status check_write(gpu_host *h, const uint32_t *w, uint32_t length, error *e) {
    return check_range(h, w[0], word64(w + 1), (uint64_t)(length - 3) * sizeof(uint32_t), "writes", e);
}

static gm_status check_read(gpu_host *h, const uint32_t *w, uint32_t length, error *e) {
    (void)length;
    return check_range(h, w[0], word64(w + 1), word64(w + 3), "reads", e);
}

/* ---- recording ---- */

typedef struct {
    gpu_host              *host;
    WGPUCommandEncoder     encoder; /* created by the first record that needs it, and so is the pass */
    WGPUComputePassEncoder pass;
    gpu_id                 pipeline, group; /* current in the pass */
    uint64_t               written;
} recording;

static WGPUBuffer buffer_of(const gpu_host *h, gpu_id id) {
    return ((host_buffer *)slots_find(&h->buffers, id))->buffer; /* always found, because the list was checked */
}

static void end_pass(recording *r) {
    if (!r->pass) return;
    r->host->api.ComputePassEncoderEnd(r->pass);
    r->host->api.ComputePassEncoderRelease(r->pass);
    r->pass = NULL;
    r->pipeline = r->group = 0;
}

static WGPUCommandEncoder encoder_of(recording *r) {
    if (!r->encoder) r->encoder = r->host->api.DeviceCreateCommandEncoder(r->host->device, NULL);
    return r->encoder;
}

/* For commands that must be outside a pass. */
static WGPUCommandEncoder between_passes(recording *r) {
    end_pass(r);
    return encoder_of(r);
}

/* A dispatch that is timed gets a pass of its own. */
static void recording_begin_timed_pass(recording *r, gpu_id group) {
    gpu_host               *h = r->host;
    WGPUPassTimestampWrites times;
    WGPUCommandEncoder      encoder = between_passes(r);
    if (host_clock_full(h)) host_clock_resolve(h, encoder);
    const bool                      timed = host_clock_dispatch(h, group, &times);
    const WGPUComputePassDescriptor d = { .timestampWrites = timed ? &times : NULL };
    r->pass = h->api.CommandEncoderBeginComputePass(encoder, &d);
}

static void recording_bind(recording *r, gpu_id pipeline, gpu_id group) {
    const gpu_host *h = r->host;
    if (h->clock.on) recording_begin_timed_pass(r, group);
    if (!r->pass) r->pass = h->api.CommandEncoderBeginComputePass(encoder_of(r), NULL);
    if (r->pipeline != pipeline) {
        const host_pipeline *p = slots_find(&h->pipelines, pipeline);
        h->api.ComputePassEncoderSetPipeline(r->pass, p->pipeline);
        r->pipeline = pipeline;
    }
    if (r->group != group) {
        const host_group *g = slots_find(&h->groups, group);
        h->api.ComputePassEncoderSetBindGroup(r->pass, 0, g->group, 0, NULL);
        r->group = group;
    }
}

static void record_end_pass(recording *r, const uint32_t *w, uint32_t length) {
    (void)w, (void)length;
    end_pass(r);
}

static void record_dispatch(recording *r, const uint32_t *w, uint32_t length) {
    (void)length;
    recording_bind(r, w[0], w[1]);
    r->host->api.ComputePassEncoderDispatchWorkgroups(r->pass, w[2], w[3], w[4]);
}

static void record_indirect(recording *r, const uint32_t *w, uint32_t length) {
    (void)length;
    recording_bind(r, w[0], w[1]);
    r->host->api.ComputePassEncoderDispatchWorkgroupsIndirect(r->pass, buffer_of(r->host, w[2]), word64(w + 3));
}

static void record_copy(recording *r, const uint32_t *w, uint32_t length) {
    (void)length;
    r->host->api.CommandEncoderCopyBufferToBuffer(between_passes(r), buffer_of(r->host, w[0]), word64(w + 1),
                                                  buffer_of(r->host, w[3]), word64(w + 4), word64(w + 6));
}

static void record_clear(recording *r, const uint32_t *w, uint32_t length) {
    (void)length;
    r->host->api.CommandEncoderClearBuffer(between_passes(r), buffer_of(r->host, w[0]), word64(w + 1), word64(w + 3));
}

/* Queued immediately, so it happens before the list runs. */
static void record_write(recording *r, const uint32_t *w, uint32_t length) {
    const size_t bytes = (size_t)(length - 3) * sizeof *w;
    r->host->api.QueueWriteBuffer(r->host->queue, buffer_of(r->host, w[0]), word64(w + 1), w + 3, bytes);
    r->written += bytes;
}

static void record_read(recording *r, const uint32_t *w, uint32_t length) {
    (void)length;
    const host_ticket *ticket = slots_find(&r->host->tickets, w[5]);
    r->host->api.CommandEncoderCopyBufferToBuffer(between_passes(r), buffer_of(r->host, w[0]), word64(w + 1),
                                                  r->host->staging[ticket->staging].buffer, 0, ticket->bytes);
}

/* ---- table of ops ---- */

static const struct {
    uint32_t words; /* of the op; GPU_WRITE has more after them */
    gm_status (*check)(gpu_host *h, const uint32_t *w, uint32_t length, error *e);
    void (*record)(recording *r, const uint32_t *w, uint32_t length);
} ops[] = {
    [GPU_END_PASS] = { 0, check_nothing, record_end_pass },
    [GPU_DISPATCH] = { 5, check_dispatch, record_dispatch },
    [GPU_INDIRECT] = { 5, check_indirect, record_indirect },
    [GPU_COPY] = { 8, check_copy, record_copy },
    [GPU_CLEAR] = { 5, check_clear, record_clear },
    [GPU_WRITE] = { 3, check_write, record_write },
    [GPU_READ] = { 6, check_read, record_read },
};

static uint32_t op_of(uint32_t word) { return word & 0xffff; }
static uint32_t length_of(uint32_t word) { return word >> 16; }

static gm_status check_list(gpu_host *h, const uint32_t *words, size_t count, bool *reads, error *e) {
    if (!count || words[0] != GPU_LIST_VERSION) {
        return fail(e, GM_BAD_ARGUMENT, "a command list of version %u: this program knows %d", count ? words[0] : 0,
                    GPU_LIST_VERSION);
    }
    for (size_t at = 1; at < count; at += 1 + length_of(words[at])) {
        const uint32_t op = op_of(words[at]), length = length_of(words[at]);
        if (op >= COUNT_OF(ops) || !ops[op].check) {
            return fail(e, GM_BAD_ARGUMENT, "a command list has %u at word %zu, which is no command", op, at);
        }
        if (length > count - at - 1 || (op == GPU_WRITE ? length <= ops[op].words : length != ops[op].words)) {
            return fail(e, GM_BAD_ARGUMENT,
                        "a command list has %u words for command %u at word %zu, of %zu that are left", length, op, at,
                        count - at - 1);
        }
        const gm_status status = ops[op].check(h, words + at + 1, length, e);
        if (status != GM_OK) return status;
        *reads = *reads || op == GPU_READ;
    }
    return GM_OK;
}

/* ---- staging for a list's read-backs ---- */

static void unprepare_reads(gpu_host *h, const uint32_t *words, size_t end) {
    for (size_t at = 1; at < end; at += 1 + length_of(words[at])) {
        if (op_of(words[at]) != GPU_READ) continue;
        host_ticket *ticket = slots_find(&h->tickets, words[at + 6]);
        if (!ticket) continue;
        ticket->state = TICKET_NEW;
        give_staging_back(h, ticket->staging, false, true);
    }
}

static gm_status prepare_read(gpu_host *h, const uint32_t *w, error *e) {
    host_ticket *ticket = slots_find(&h->tickets, w[5]);
    if (!ticket || ticket->state != TICKET_NEW) {
        return fail(e, GM_BAD_ARGUMENT, "a command list reads into ticket %#x, which %s", w[5],
                    ticket ? "is already in use" : "does not exist");
    }
    const gm_status status = take_staging(h, word64(w + 3), &ticket->staging, e);
    if (status != GM_OK) return status;
    ticket->state = TICKET_FLYING;
    ticket->bytes = word64(w + 3);
    return GM_OK;
}

/* Gives every ticket of the list a staging buffer. */
static gm_status prepare_reads(gpu_host *h, const uint32_t *words, size_t count, error *e) {
    for (size_t at = 1; at < count; at += 1 + length_of(words[at])) {
        if (op_of(words[at]) != GPU_READ) continue;
        const gm_status status = prepare_read(h, words + at + 1, e);
        if (status == GM_OK) continue;
        unprepare_reads(h, words, at);
        return status;
    }
    return GM_OK;
}

static void map_reads(gpu_host *h, const uint32_t *words, size_t count) {
    for (size_t at = 1; at < count; at += 1 + length_of(words[at])) {
        if (op_of(words[at]) != GPU_READ) continue;
        const gpu_id                    id = words[at + 6];
        host_ticket                    *ticket = slots_find(&h->tickets, id);
        const WGPUBufferMapCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                 .callback = on_mapped,
                                                 .userdata1 = h,
                                                 .userdata2 = (void *)(uintptr_t)id };
        if (!ticket) continue;
        ticket->order = h->order++;
        ticket->future =
            h->api.BufferMapAsync(h->staging[ticket->staging].buffer, WGPUMapMode_Read, 0, ticket->bytes, info);
    }
}

/* ---- submitting ---- */

static void finish(recording *r) {
    gpu_host *h = r->host;
    if (!r->encoder) return;
    end_pass(r);
    if (h->clock.on) host_clock_resolve(h, r->encoder);
    WGPUCommandBuffer commands = h->api.CommandEncoderFinish(r->encoder, NULL);
    h->api.QueueSubmit(h->queue, 1, &commands);
    h->api.CommandBufferRelease(commands);
    h->api.CommandEncoderRelease(r->encoder);
    if (h->clock.on) host_clock_submitted(h);
}

gm_status gpu_submit(gpu_host *h, const uint32_t *words, size_t count, error *e) {
    recording r = { .host = h };
    bool      reads = false;
    gm_status status = host_lost(h, e);
    if (status == GM_OK) status = check_list(h, words, count, &reads, e);
    if (status == GM_OK && reads) status = prepare_reads(h, words, count, e);
    if (status != GM_OK) return status;
    host_uploads_flush(h);
    for (size_t at = 1; at < count; at += 1 + length_of(words[at])) {
        ops[op_of(words[at])].record(&r, words + at + 1, length_of(words[at]));
    }
    finish(&r);
    host_count_work(h, r.written);
    if (reads) map_reads(h, words, count);
    return GM_OK;
}
