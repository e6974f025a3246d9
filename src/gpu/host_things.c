/* Buffers and bind groups of the GPU host. Each is created inside an error scope, so that the call that caused an error
 * returns it; a bind group whose pipeline still compiles is created with the first list that uses it. */

#include "gpu/host_native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES_IN_FLIGHT (UINT64_C(64) << 20)

enum { MOST_BINDINGS = 64 };

/* ---- buffers ---- */

gpu_id gpu_buffer_new(gpu_host *h, uint64_t bytes, error *e) {
    gpu_id id = 0;
    if (host_lost(h, e) != GM_OK) return 0;
    if (!bytes) return fail(e, GM_BAD_ARGUMENT, "a GPU buffer cannot have 0 bytes"), 0;
    if (bytes > h->info.max_buffer) {
        fail(e, GM_NO_MEMORY, "a GPU buffer of %llu bytes is too large: %s allows %llu", (unsigned long long)bytes,
             h->info.name, (unsigned long long)h->info.max_buffer);
        return 0;
    }
    if (h->most && (h->bytes > h->most || bytes > h->most - h->bytes)) {
        fail(e, GM_NO_MEMORY,
             "a GPU buffer of %llu bytes does not fit: %llu are in use, and the budget is %llu (--gpu-memory)",
             (unsigned long long)bytes, (unsigned long long)h->bytes, (unsigned long long)h->most);
        return 0;
    }
    host_buffer *buffer = slots_add(&h->buffers, &id);
    if (!buffer) return fail_memory(e, "a GPU buffer's record", sizeof *buffer), 0;

    const bool                 small = bytes <= GPU_UNIFORM_BYTES;
    const WGPUBufferDescriptor d = { .usage = WGPUBufferUsage_Storage | WGPUBufferUsage_Indirect |
                                              WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst |
                                              (small ? WGPUBufferUsage_Uniform : 0),
                                     .size = round_up(bytes, 4) };
    char                       what[100];
    snprintf(what, sizeof what, "a GPU buffer of %llu bytes, beside %llu in use", (unsigned long long)bytes,
             (unsigned long long)h->bytes);
    host_scope_begin(h);
    buffer->buffer = h->api.DeviceCreateBuffer(h->device, &d);
    const gm_status status = host_scope_end(h, what, e);
    if (status != GM_OK || !buffer->buffer) {
        if (status == GM_OK) fail(e, GM_NO_MEMORY, "%s: the GPU gave none", what);
        if (buffer->buffer) h->api.BufferRelease(buffer->buffer);
        slots_remove(&h->buffers, id);
        return 0;
    }
    buffer->bytes = d.size;
    h->bytes += d.size;
    return id;
}

void gpu_buffer_free(gpu_host *h, gpu_id buffer) {
    host_buffer *thing = slots_find(&h->buffers, buffer);
    if (!thing) return;
    host_uploads_flush(h);
    h->api.BufferDestroy(thing->buffer); /* frees the memory even if a bind group still refers to the buffer */
    h->api.BufferRelease(thing->buffer);
    h->bytes -= thing->bytes;
    h->buffer_deaths++;
    slots_remove(&h->buffers, buffer);
}

gm_status gpu_buffer_write(gpu_host *h, gpu_id buffer, uint64_t offset, const void *data, uint64_t bytes, error *e) {
    const host_buffer *thing = slots_find(&h->buffers, buffer);
    if (host_lost(h, e) != GM_OK) return GM_DEVICE_LOST;
    if (!thing) return fail(e, GM_BAD_ARGUMENT, "write to GPU buffer %#x, which does not exist", buffer);
    if (offset % 4 || bytes % 4 || offset > thing->bytes || bytes > thing->bytes - offset) {
        return fail(e, GM_BAD_ARGUMENT, "write of %llu bytes at %llu to a GPU buffer of %llu",
                    (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)thing->bytes);
    }
    if (bytes > MOST_BYTES_IN_FLIGHT) {
        return fail(e, GM_BAD_ARGUMENT, "write of %llu bytes at once to a GPU buffer: at most %llu",
                    (unsigned long long)bytes, (unsigned long long)MOST_BYTES_IN_FLIGHT);
    }
    if (!bytes) return GM_OK;
    if (h->write_bytes + bytes > MOST_BYTES_IN_FLIGHT) {
        gpu_idle(h); /* adds a fence after the writes so far, and polls */
        if (h->write_bytes + bytes > MOST_BYTES_IN_FLIGHT) return GM_AGAIN;
    }
    if (!host_uploads_write(h, thing->buffer, offset, data, bytes)) {
        host_uploads_flush(h);
        h->api.QueueWriteBuffer(h->queue, thing->buffer, offset, data, bytes);
    }
    host_count_work(h, bytes);
    return GM_OK;
}

/* ---- sources ---- */

gm_status gpu_source_new(gpu_host *h, const uint32_t *tickets, size_t count, gpu_id *out, error *e) {
    uint64_t total = 0, bytes = 0;
    *out = 0;
    TRY(host_lost(h, e));
    for (size_t i = 0; i < count; i++, total += bytes) {
        if (!gpu_ticket_data(h, tickets[i], &bytes)) return GM_AGAIN;
    }
    host_source *made = slots_add(&h->sources, out);
    if (made) made->data = malloc(total);
    if (!made || !made->data) {
        gpu_source_free(h, *out);
        *out = 0;
        return fail_memory(e, "a copy of weights", total);
    }
    made->bytes = total;
    for (size_t i = 0, at = 0; i < count; i++, at += bytes) {
        const void *brought = gpu_ticket_data(h, tickets[i], &bytes);
        host_copy(h, made->data + at, brought, bytes);
    }
    return GM_OK;
}

void gpu_source_free(gpu_host *h, gpu_id from) {
    host_source *thing = slots_find(&h->sources, from);
    if (!thing) return;
    free(thing->data);
    slots_remove(&h->sources, from);
}

gm_status gpu_source_write(gpu_host *h, gpu_id from, uint64_t first, gpu_id buffer, uint64_t offset, uint64_t bytes,
                           error *e) {
    const host_source *thing = slots_find(&h->sources, from);
    if (!thing || first > thing->bytes || bytes > thing->bytes - first)
        return fail(e, GM_BAD_ARGUMENT, "%llu bytes at %llu of source %#x, which has %llu", (unsigned long long)bytes,
                    (unsigned long long)first, from, thing ? (unsigned long long)thing->bytes : 0);
    return gpu_buffer_write(h, buffer, offset, thing->data + first, bytes, e);
}

/* ---- bind groups ---- */

static gm_status check_binding(gpu_host *h, const gpu_binding *b, const host_buffer *buffer, error *e) {
    if (!buffer)
        return fail(e, GM_BAD_ARGUMENT, "binding %u names GPU buffer %#x, which does not exist", b->binding, b->buffer);
    if (!b->bytes || b->bytes % 4 || b->offset % h->info.alignment || b->offset > buffer->bytes ||
        b->bytes > buffer->bytes - b->offset || b->bytes > h->info.max_binding) {
        return fail(
            e, GM_BAD_ARGUMENT,
            "binding %u takes %llu bytes at %llu of a GPU buffer of %llu: an offset that is a multiple of %u, and at "
            "most %llu bytes that the buffer has are allowed",
            b->binding, (unsigned long long)b->bytes, (unsigned long long)b->offset, (unsigned long long)buffer->bytes,
            h->info.alignment, (unsigned long long)h->info.max_binding);
    }
    return GM_OK;
}

gm_status host_group_make(gpu_host *h, host_group *group, error *e) {
    WGPUBindGroupEntry   entries[MOST_BINDINGS];
    const host_pipeline *pipeline = slots_find(&h->pipelines, group->pipeline);
    const gm_status      ready = host_pipeline_ready(pipeline, e);
    if (ready != GM_OK) return ready;
    for (uint32_t i = 0; i < group->count; i++) {
        const gpu_binding *b = &group->bindings[i];
        const host_buffer *buffer = slots_find(&h->buffers, b->buffer);
        TRY(check_binding(h, b, buffer, e));
        entries[i] = (WGPUBindGroupEntry){
            .binding = b->binding, .buffer = buffer->buffer, .offset = b->offset, .size = b->bytes
        };
    }
    const WGPUBindGroupDescriptor d = { .layout = pipeline->layout, .entryCount = group->count, .entries = entries };
    host_scope_begin(h);
    WGPUBindGroup   made = h->api.DeviceCreateBindGroup(h->device, &d);
    const gm_status status = host_scope_end(h, "bindings", e);
    if (status == GM_OK) group->group = made;
    else if (made) h->api.BindGroupRelease(made);
    return status;
}

static gm_status group_check(gpu_host *h, const gpu_binding *bindings, size_t count, error *e) {
    for (size_t i = 0; i < count; i++) {
        TRY(check_binding(h, &bindings[i], slots_find(&h->buffers, bindings[i].buffer), e));
    }
    return GM_OK;
}

gpu_id gpu_group_new(gpu_host *h, gpu_id pipeline, const gpu_binding *bindings, size_t count, error *e) {
    gpu_id     id = 0;
    host_group made = { .pipeline = pipeline, .count = (uint32_t)count, .checked_at = h->buffer_deaths };
    if (host_lost(h, e) != GM_OK) return 0;
    if (!slots_find(&h->pipelines, pipeline))
        return fail(e, GM_BAD_ARGUMENT, "bindings for pipeline %#x, which does not exist", pipeline), 0;
    if (count > MOST_BINDINGS) return fail(e, GM_BAD_ARGUMENT, "%zu bindings: at most %d", count, MOST_BINDINGS), 0;
    made.bindings = malloc((count + 1) * sizeof *made.bindings);
    if (!made.bindings) return fail_memory(e, "bindings", count * sizeof *made.bindings), 0;
    if (count) memcpy(made.bindings, bindings, count * sizeof *bindings);
    gm_status status = group_check(h, bindings, count, e);
    if (!status) status = host_group_make(h, &made, e);
    host_group *group = status_failed(status) ? NULL : slots_add(&h->groups, &id);
    if (!group) {
        if (!status_failed(status)) fail_memory(e, "a bind group's record", sizeof *group);
        if (made.group) h->api.BindGroupRelease(made.group);
        free(made.bindings);
        return 0;
    }
    made.slot = group->slot;
    *group = made;
    return id;
}

void gpu_group_free(gpu_host *h, gpu_id group) {
    host_group *thing = slots_find(&h->groups, group);
    if (!thing) return;
    if (thing->group) h->api.BindGroupRelease(thing->group);
    free(thing->bindings);
    slots_remove(&h->groups, group);
}
