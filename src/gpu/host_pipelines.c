/* Pipelines of the GPU host. They compile in the background on the library's threads, several at once and each once,
 * and live as long as the host.
 *
 * The library parses a text as soon as it gets it, so a mistake in the text is the caller's error. Everything else (the
 * constants, the driver's compiler) is known only later: gpu_host_problem reports it, and so does every list that runs
 * the pipeline. Dawn starts a thread for each compilation, so we hand it a few at a time; the rest wait in the order in
 * which they were requested, and a host that closes drops them. */

#include "gpu/host_native.h"

#include "base/clock.h"
#include "base/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLOSE_SECONDS 30.0

enum { MOST_CONSTANTS = 64 };

/* What compiling a pipeline takes, with copies of the caller's strings behind it. */
struct pipeline_job {
    WGPUShaderModule  module; /* owned by gpu_host.modules */
    const char       *label;
    size_t            count;
    WGPUConstantEntry constants[];
};

/* ---- shader modules: parsed texts ---- */

static void on_parsed(uint32_t status, const WGPUCompilationInfo *info, void *first, void *second) {
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

/* GM_BAD_ARGUMENT with "label:line:column: message" if the text has a mistake. */
static gm_status module_check(gpu_host *h, const char *label, WGPUShaderModule module, error *e) {
    const WGPUCompilationInfoCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                   .callback = on_parsed,
                                                   .userdata1 = &h->answer };
    if (h->api.DevicePoll) return GM_OK; /* wgpu-native reports this to the error scope only */
    h->answer = (host_answer){ 0 };
    host_await(h, h->api.ShaderModuleGetCompilationInfo(module, info));
    return h->answer.failed ? fail(e, GM_BAD_ARGUMENT, "shader %s:%s", label, h->answer.message) : GM_OK;
}

static WGPUShaderModule module_new(gpu_host *h, const char *label, const char *wgsl, error *e) {
    WGPUShaderSourceWGSL source = { .chain.sType = WGPUSType_ShaderSourceWGSL, .code = webgpu_string(wgsl) };
    const WGPUShaderModuleDescriptor d = { .nextInChain = &source.chain, .label = webgpu_string(label) };
    char                             what[100];
    snprintf(what, sizeof what, "shader %s", label);
    host_scope_begin(h);
    WGPUShaderModule module = h->api.DeviceCreateShaderModule(h->device, &d);
    gm_status        status = module_check(h, label, module, e);
    const gm_status  verdict = host_scope_end(h, what, e);
    if (status == GM_OK) status = verdict;
    if (status == GM_OK) return module;
    if (module) h->api.ShaderModuleRelease(module);
    return NULL;
}

/* The module of a text. Pipelines that differ only in their constants share it. */
static WGPUShaderModule module_of(gpu_host *h, const char *label, const char *wgsl, error *e) {
    uint8_t digest[32];
    sha256  s;
    sha256_start(&s);
    sha256_add(&s, wgsl, strlen(wgsl));
    sha256_end(&s, digest);
    for (size_t i = 0; i < h->module_count; i++) {
        if (!memcmp(h->modules[i].digest, digest, sizeof digest)) return h->modules[i].module;
    }
    if (h->module_count == h->module_capacity) {
        const size_t capacity = 2 * h->module_capacity + 32;
        host_module *grown = realloc(h->modules, capacity * sizeof *grown);
        if (!grown) return fail_memory(e, "a shader's record", sizeof *grown), NULL;
        h->modules = grown;
        h->module_capacity = capacity;
    }
    WGPUShaderModule module = module_new(h, label, wgsl, e);
    if (!module) return NULL;
    host_module *added = &h->modules[h->module_count++];
    added->module = module;
    memcpy(added->digest, digest, sizeof digest);
    return module;
}

static void modules_release(gpu_host *h) {
    for (size_t i = 0; i < h->module_count; i++) h->api.ShaderModuleRelease(h->modules[i].module);
    h->module_count = 0;
}

/* ---- jobs ---- */

static pipeline_job *job_new(WGPUShaderModule module, const char *label, const gpu_constant *constants, size_t count,
                             error *e) {
    const size_t  records = sizeof(pipeline_job) + count * sizeof(WGPUConstantEntry);
    size_t        bytes = records + strlen(label) + 1;
    pipeline_job *job;
    for (size_t i = 0; i < count; i++) bytes += strlen(constants[i].name) + 1;
    job = calloc(1, bytes);
    if (!job) return fail_memory(e, "a pipeline's record", bytes), NULL;
    char *text = (char *)job + records;
    job->module = module;
    job->count = count;
    job->label = strcpy(text, label);
    text += strlen(label) + 1;
    for (size_t i = 0; i < count; i++) {
        job->constants[i] =
            (WGPUConstantEntry){ .key = webgpu_string(strcpy(text, constants[i].name)), .value = constants[i].value };
        text += strlen(constants[i].name) + 1;
    }
    return job;
}

static WGPUComputePipelineDescriptor job_descriptor(const pipeline_job *job) {
    return (WGPUComputePipelineDescriptor){ .label = webgpu_string(job->label),
                                            .compute = { .module = job->module,
                                                         .entryPoint = webgpu_string("main"),
                                                         .constantCount = job->count,
                                                         .constants = job->constants } };
}

/* ---- compiling ---- */

static void pipeline_settle(gpu_host *h, host_pipeline *p, pipeline_state state) {
    p->state = state;
    free(p->job);
    p->job = NULL;
    h->pipelines_pending--;
    h->news++;
    if (!h->pipelines_pending) modules_release(h);
}

static void pipeline_fail(gpu_host *h, host_pipeline *p, gm_status status, WGPUStringView message) {
    error refused = { 0 };
    char  text[300];
    webgpu_text(text, sizeof text, message);
    fail(&refused, status, "shader %s: %s", p->job->label, *text ? text : "no reason was given");
    p->refused = status;
    p->why = strdup(refused.why);
    if (!h->lost) fail(&h->problem, status, "%s", refused.why);
    pipeline_settle(h, p, PIPELINE_FAILED);
}

static void on_pipeline(uint32_t status, WGPUComputePipeline pipeline, WGPUStringView message, void *first,
                        void *second) {
    gpu_host      *h = first;
    host_pipeline *p = slots_find(&h->pipelines, (gpu_id)(uintptr_t)second);
    h->compiling--;
    if (!p || h->closing) {
        if (pipeline) h->api.ComputePipelineRelease(pipeline);
    } else if (status == WGPUStatus_Success && pipeline) {
        p->pipeline = pipeline;
        p->layout = h->api.ComputePipelineGetBindGroupLayout(pipeline, 0);
        pipeline_settle(h, p, PIPELINE_READY);
    } else {
        const bool internal = status == WGPUCreatePipelineAsyncStatus_InternalError;
        pipeline_fail(h, p, internal ? GM_UNSUPPORTED : GM_BAD_ARGUMENT, message);
    }
}

/* wgpu-native has no asynchronous compiler. */
static void pipeline_compile_now(gpu_host *h, host_pipeline *p) {
    const WGPUComputePipelineDescriptor d = job_descriptor(p->job);
    error                               refused = { 0 };
    host_scope_begin(h);
    WGPUComputePipeline pipeline = h->api.DeviceCreateComputePipeline(h->device, &d);
    if (host_scope_end(h, "compiling", &refused) == GM_OK) {
        p->pipeline = pipeline;
        p->layout = h->api.ComputePipelineGetBindGroupLayout(pipeline, 0);
        pipeline_settle(h, p, PIPELINE_READY);
        return;
    }
    if (pipeline) h->api.ComputePipelineRelease(pipeline);
    pipeline_fail(h, p, refused.status, webgpu_string(refused.why));
}

static void pipeline_compile(gpu_host *h, gpu_id id, host_pipeline *p) {
    if (h->api.DevicePoll) {
        pipeline_compile_now(h, p);
        return;
    }
    const WGPUComputePipelineDescriptor              d = job_descriptor(p->job);
    const WGPUCreateComputePipelineAsyncCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                              .callback = on_pipeline,
                                                              .userdata1 = h,
                                                              .userdata2 = (void *)(uintptr_t)id };
    p->state = PIPELINE_COMPILING;
    h->compiling++;
    p->future = h->api.DeviceCreateComputePipelineAsync(h->device, &d, info);
}

void host_compile(gpu_host *h) {
    gpu_id         id = 0;
    host_pipeline *p;
    while (h->compiling < h->most_compiling && !h->lost && !h->closing) {
        while ((p = slots_next(&h->pipelines, &h->next_pipeline, &id)) && p->state != PIPELINE_WAITING) {}
        if (!p) return;
        pipeline_compile(h, id, p);
    }
}

bool host_compiling_future(gpu_host *h, WGPUFuture *out) {
    uint32_t             index = 0;
    gpu_id               id;
    const host_pipeline *p;
    if (!h->compiling) return false;
    while ((p = slots_next(&h->pipelines, &index, &id)) && p->state != PIPELINE_COMPILING) {}
    if (p) *out = p->future;
    return p;
}

/* ---- the interface ---- */

static void pipeline_digest(const char *wgsl, const gpu_constant *constants, size_t count, uint8_t out[32]) {
    sha256 s;
    sha256_start(&s);
    sha256_add(&s, wgsl, strlen(wgsl) + 1);
    for (size_t i = 0; i < count; i++) {
        sha256_add(&s, constants[i].name, strlen(constants[i].name) + 1);
        sha256_add(&s, &constants[i].value, sizeof constants[i].value);
    }
    sha256_end(&s, out);
}

gm_status host_pipeline_ready(const host_pipeline *p, error *e) {
    if (p->state == PIPELINE_READY) return GM_OK;
    return p->state == PIPELINE_FAILED ? fail(e, p->refused, "%s", p->why ? p->why : "a shader was refused") : GM_AGAIN;
}

gpu_id gpu_pipeline_new(gpu_host *h, const char *label, const char *wgsl, const gpu_constant *constants, size_t count,
                        error *e) {
    uint32_t       index = 0;
    uint8_t        digest[32];
    gpu_id         id = 0;
    host_pipeline *p;
    if (host_lost(h, e) != GM_OK) return 0;
    if (count > MOST_CONSTANTS) {
        return fail(e, GM_BAD_ARGUMENT, "shader %s has %zu constants: at most %d", label, count, MOST_CONSTANTS), 0;
    }
    pipeline_digest(wgsl, constants, count, digest);
    while ((p = slots_next(&h->pipelines, &index, &id))) {
        if (memcmp(p->digest, digest, sizeof digest) != 0) continue;
        return p->state == PIPELINE_FAILED ? (host_pipeline_ready(p, e), 0) : id;
    }
    WGPUShaderModule module = module_of(h, label, wgsl, e);
    pipeline_job    *job = module ? job_new(module, label, constants, count, e) : NULL;
    p = job ? slots_add(&h->pipelines, &id) : NULL;
    if (!p) {
        free(job);
        return job ? (fail_memory(e, "a pipeline's record", sizeof *p), 0) : 0;
    }
    p->job = job;
    memcpy(p->digest, digest, sizeof digest);
    h->pipelines_pending++;
    host_compile(h);
    return id;
}

size_t gpu_pipelines(const gpu_host *h) { return h->pipelines.count; }
size_t gpu_pipelines_pending(const gpu_host *h) { return h->pipelines_pending; }

gm_status host_await_pipeline(gpu_host *h, gpu_id id, error *e) {
    const host_pipeline *p;
    gm_status            status = GM_AGAIN;
    while (status == GM_AGAIN && (p = slots_find(&h->pipelines, id))) {
        host_process(h);
        status = h->lost ? host_lost(h, e) : host_pipeline_ready(p, e);
        if (status == GM_AGAIN) nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
    }
    if (!h->lost) h->problem = (error){ 0 }; /* the caller has it now */
    return status;
}

void host_close_pipelines(gpu_host *h) {
    const double   deadline = clock_seconds() + CLOSE_SECONDS;
    uint32_t       index = 0;
    gpu_id         id;
    host_pipeline *p;
    while (h->compiling && clock_seconds() < deadline) { /* their callbacks point to the host */
        h->api.InstanceProcessEvents(h->instance);
        if (h->compiling) nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
    }
    while ((p = slots_next(&h->pipelines, &index, &id))) {
        if (p->layout) h->api.BindGroupLayoutRelease(p->layout);
        if (p->pipeline) h->api.ComputePipelineRelease(p->pipeline);
        free(p->job);
        free(p->why);
    }
    slots_free(&h->pipelines);
    modules_release(h);
    free(h->modules);
}
