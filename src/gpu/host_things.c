/* The objects of the GPU host: buffers, pipelines, bind groups. Each is created inside an error scope, so that the call
 * that caused an error returns it. */

#include "gpu/host_native.h"

#include "base/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES_IN_FLIGHT (UINT64_C(64) << 20)

enum { MOST_BINDINGS = 64, MOST_CONSTANTS = 64 };

/* ---- buffers ---- */

gpu_id gpu_buffer_new(gpu_host *h, uint64_t bytes, error *e) {
    gpu_id id = 0;
    if (host_lost(h, e) != GM_OK) return 0;
    if (!bytes) return fail(e, GM_BAD_ARGUMENT, "a GPU buffer of 0 bytes was asked for"), 0;
    if (bytes > h->info.max_buffer) {
        fail(e, GM_NO_MEMORY, "a GPU buffer of %llu bytes was asked for, but %s allows %llu", (unsigned long long)bytes,
             h->info.name, (unsigned long long)h->info.max_buffer);
        return 0;
    }
    if (h->most && (h->bytes > h->most || bytes > h->most - h->bytes)) {
        fail(e, GM_NO_MEMORY,
             "a GPU buffer of %llu bytes was asked for, beside %llu in use, but the budget is %llu (--gpu-memory)",
             (unsigned long long)bytes, (unsigned long long)h->bytes, (unsigned long long)h->most);
        return 0;
    }
    host_buffer *buffer = slots_add(&h->buffers, &id);
    if (!buffer) return fail_memory(e, "a GPU buffer's record", sizeof *buffer), 0;

    const WGPUBufferDescriptor d = { .usage = WGPUBufferUsage_Storage | WGPUBufferUsage_Indirect |
                                              WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst,
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
    h->api.QueueWriteBuffer(h->queue, thing->buffer, offset, data, bytes);
    host_count_work(h, bytes);
    return GM_OK;
}

/* ---- pipelines ---- */

static void on_compiled(uint32_t status, const WGPUCompilationInfo *info, void *first, void *second) {
    (void)second;
    host_answer *answer = first;
    answer->done = true;
    for (size_t i = 0; status == WGPUStatus_Success && i < info->messageCount; i++) {
        const WGPUCompilationMessage *m = &info->messages[i];
        if (m->type != WGPUCompilationMessageType_Error) continue;
        char text[250];
        webgpu_text(text, sizeof text, m->message);
        snprintf(answer->message, sizeof answer->message, "%llu:%llu: %s", (unsigned long long)m->lineNum,
                 (unsigned long long)m->linePos, text);
        answer->failed = true;
        return; /* later messages are often consequences of the first */
    }
}

/* GM_BAD_ARGUMENT with "label:line:column: message" if the compiler found a mistake. */
static gm_status check_module(gpu_host *h, const char *label, WGPUShaderModule module, error *e) {
    const WGPUCompilationInfoCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                   .callback = on_compiled,
                                                   .userdata1 = &h->answer };
    if (h->api.DevicePoll) return GM_OK; /* wgpu-native reports this to the error scope only */
    h->answer = (host_answer){ 0 };
    host_await(h, h->api.ShaderModuleGetCompilationInfo(module, info));
    return h->answer.failed ? fail(e, GM_BAD_ARGUMENT, "shader %s:%s", label, h->answer.message) : GM_OK;
}

static gm_status make_pipeline(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants,
                               size_t count, host_pipeline *out, error *e) {
    WGPUShaderSourceWGSL source = { .chain.sType = WGPUSType_ShaderSourceWGSL, .code = webgpu_string(wgsl) };
    const WGPUShaderModuleDescriptor module_descriptor = { .nextInChain = &source.chain,
                                                           .label = webgpu_string(label) };
    WGPUConstantEntry                entries[MOST_CONSTANTS];
    char                             what[100];
    snprintf(what, sizeof what, "shader %s", label);
    for (size_t i = 0; i < count; i++) {
        entries[i] = (WGPUConstantEntry){ .key = webgpu_string(constants[i].name), .value = constants[i].value };
    }
    host_scope_begin(h);
    WGPUShaderModule module = h->api.DeviceCreateShaderModule(h->device, &module_descriptor);
    gm_status        status = check_module(h, label, module, e);
    if (status == GM_OK) {
        const WGPUComputePipelineDescriptor d = { .label = webgpu_string(label),
                                                  .compute = { .module = module,
                                                               .entryPoint = webgpu_string("main"),
                                                               .constantCount = count,
                                                               .constants = entries } };
        out->pipeline = h->api.DeviceCreateComputePipeline(h->device, &d);
    }
    const gm_status verdict = host_scope_end(h, what, e);
    if (status == GM_OK) status = verdict;
    if (status == GM_OK) out->layout = h->api.ComputePipelineGetBindGroupLayout(out->pipeline, 0);
    if (status != GM_OK && out->pipeline) h->api.ComputePipelineRelease(out->pipeline);
    if (module) h->api.ShaderModuleRelease(module);
    return status;
}

static void digest_of(const char *wgsl, const gpu_constant *constants, size_t count, uint8_t out[32]) {
    sha256 s;
    sha256_start(&s);
    sha256_add(&s, wgsl, strlen(wgsl) + 1);
    for (size_t i = 0; i < count; i++) {
        sha256_add(&s, constants[i].name, strlen(constants[i].name) + 1);
        sha256_add(&s, &constants[i].value, sizeof constants[i].value);
    }
    sha256_end(&s, out);
}

static void release(gpu_host *h, const host_pipeline *p) {
    h->api.BindGroupLayoutRelease(p->layout);
    h->api.ComputePipelineRelease(p->pipeline);
}

static bool take_kept(host_kept *kept, const uint8_t digest[32], host_pipeline *out) {
    for (size_t i = 0; i < kept->count; i++) {
        if (memcmp(kept->data[i].digest, digest, 32) != 0) continue;
        *out = kept->data[i];
        kept->data[i] = kept->data[--kept->count];
        return true;
    }
    return false;
}

static bool keep(host_kept *kept, const host_pipeline *p) {
    if (kept->count == kept->capacity) {
        const size_t   capacity = 2 * kept->capacity + 32;
        host_pipeline *grown = realloc(kept->data, capacity * sizeof *grown);
        if (!grown) return false;
        kept->data = grown;
        kept->capacity = capacity;
    }
    kept->data[kept->count++] = *p;
    return true;
}

void host_release_kept(gpu_host *h) {
    for (size_t i = 0; i < h->kept.count; i++) release(h, &h->kept.data[i]);
    free(h->kept.data);
    h->kept = (host_kept){ 0 };
}

gpu_id gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants, size_t count,
                        error *e) {
    uint8_t        digest[32];
    uint32_t       index = 0;
    gpu_id         id = 0;
    host_pipeline *pipeline, made = { 0 };
    if (host_lost(h, e) != GM_OK) return 0;
    if (count > MOST_CONSTANTS) {
        return fail(e, GM_BAD_ARGUMENT, "shader %s has %zu constants: at most %d", label, count, MOST_CONSTANTS), 0;
    }
    digest_of(wgsl, constants, count, digest);
    while ((pipeline = slots_next(&h->pipelines, &index, &id))) {
        if (memcmp(pipeline->digest, digest, sizeof digest) != 0) continue;
        pipeline->references++;
        return id;
    }
    if (!take_kept(&h->kept, digest, &made) && make_pipeline(h, label, wgsl, constants, count, &made, e) != GM_OK)
        return 0;
    memcpy(made.digest, digest, sizeof digest);
    pipeline = slots_add(&h->pipelines, &id);
    if (!pipeline) {
        release(h, &made);
        return fail_memory(e, "a pipeline's record", sizeof *pipeline), 0;
    }
    made.slot = pipeline->slot;
    made.references = 1;
    *pipeline = made;
    return id;
}

void gpu_pipeline_free(gpu_host *h, gpu_id pipeline) {
    host_pipeline *thing = slots_find(&h->pipelines, pipeline);
    if (!thing || --thing->references) return;
    if (!keep(&h->kept, thing)) release(h, thing);
    slots_remove(&h->pipelines, pipeline);
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

static gm_status make_group(gpu_host *h, const host_pipeline *pipeline, const gpu_binding *bindings, host_group *out,
                            error *e) {
    WGPUBindGroupEntry entries[MOST_BINDINGS];
    for (uint32_t i = 0; i < out->count; i++) {
        const host_buffer *buffer = slots_find(&h->buffers, bindings[i].buffer);
        if (check_binding(h, &bindings[i], buffer, e) != GM_OK) return e->status;
        entries[i] = (WGPUBindGroupEntry){ .binding = bindings[i].binding,
                                           .buffer = buffer->buffer,
                                           .offset = bindings[i].offset,
                                           .size = bindings[i].bytes };
        out->buffers[i] = bindings[i].buffer;
    }
    const WGPUBindGroupDescriptor d = { .layout = pipeline->layout, .entryCount = out->count, .entries = entries };
    host_scope_begin(h);
    out->group = h->api.DeviceCreateBindGroup(h->device, &d);
    const gm_status status = host_scope_end(h, "bindings", e);
    if (status != GM_OK && out->group) h->api.BindGroupRelease(out->group);
    return status;
}

gpu_id gpu_group_new(gpu_host *h, gpu_id pipeline, const gpu_binding *bindings, size_t count, error *e) {
    gpu_id               id = 0;
    const host_pipeline *made_for = slots_find(&h->pipelines, pipeline);
    host_group           made = { .pipeline = pipeline, .count = (uint32_t)count, .checked_at = h->buffer_deaths };
    if (host_lost(h, e) != GM_OK) return 0;
    if (!made_for) return fail(e, GM_BAD_ARGUMENT, "bindings for pipeline %#x, which does not exist", pipeline), 0;
    if (count > MOST_BINDINGS) return fail(e, GM_BAD_ARGUMENT, "%zu bindings: at most %d", count, MOST_BINDINGS), 0;
    made.buffers = malloc((count + 1) * sizeof *made.buffers);
    if (!made.buffers) return fail_memory(e, "bindings", count * sizeof *made.buffers), 0;
    if (make_group(h, made_for, bindings, &made, e) != GM_OK) {
        free(made.buffers);
        return 0;
    }
    host_group *group = slots_add(&h->groups, &id);
    if (!group) {
        h->api.BindGroupRelease(made.group);
        free(made.buffers);
        return fail_memory(e, "a bind group's record", sizeof *group), 0;
    }
    made.slot = group->slot;
    *group = made;
    return id;
}

void gpu_group_free(gpu_host *h, gpu_id group) {
    host_group *thing = slots_find(&h->groups, group);
    if (!thing) return;
    h->api.BindGroupRelease(thing->group);
    free(thing->buffers);
    slots_remove(&h->groups, group);
}
