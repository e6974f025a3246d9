/* Opens the library and a device: instance, adapters, features and limits.
 *
 * Feature numbers differ between versions of webgpu.h. So we request a feature by both of its numbers (a number that
 * stands for another feature does no harm), and a tiny shader shows whether we got it. */

#include "gpu/features.h"
#include "gpu/host_native.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_ADAPTERS = 16, MOST_TOGGLES = 24 };

/* ---- features ---- */

typedef struct {
    WGPUFeatureName numbers[2]; /* in the current header, and before mid-2025; 0: part of the language */
    const char     *shader;     /* compiles if the feature is there; NULL: `probe` decides */
    bool (*probe)(gpu_host *h);
} feature;

#define PROBE(enable, type, expression)                                                                                \
    enable "@group(0) @binding(0) var<storage, read_write> x: array<" type ">;\n"                                      \
           "@compute @workgroup_size(1) fn main() { x[0] = " expression "; }\n"

static bool probe_timestamps(gpu_host *h);
static bool probe_matrices(gpu_host *h);

static const feature features[GPU_DEVICE_FEATURES] = {
    [GPU_SUBGROUPS] = { { 0x12, 0x11 }, PROBE("enable subgroups;\n", "f32", "subgroupAdd(x[1])"), NULL },
    [GPU_F16] = { { 0x0B, 0x0A }, PROBE("enable f16;\n", "f16", "x[1] * 2.0h"), NULL },
    [GPU_DOT4] = { { 0, 0 }, PROBE("", "i32", "dot4I8Packed(u32(x[1]), u32(x[2]))"), NULL },
    [GPU_TIMESTAMPS] = { { 0x09, 0x03 }, NULL, probe_timestamps },
    [GPU_SUBGROUP_MATRIX] = { { 0x50034, 0x50037 }, NULL, probe_matrices },
};

static bool has_number(const WGPUSupportedFeatures *list, WGPUFeatureName number) {
    for (size_t i = 0; i < list->featureCount; i++) {
        if (list->features[i] == number) return true;
    }
    return false;
}

static bool probe_timestamps(gpu_host *h) {
    error e = { 0 };
    host_scope_begin(h);
    const WGPUQuerySetDescriptor d = { .type = WGPUQueryType_Timestamp, .count = 2 };
    WGPUQuerySet                 set = h->api.DeviceCreateQuerySet(h->device, &d);
    const gm_status              status = host_scope_end(h, "timestamps", &e);
    if (set) h->api.QuerySetRelease(set);
    return set && status == GM_OK;
}

/* The matrix sizes that a GPU supports are probed, too: it rejects a pipeline with any other size. We need f16 with f32
 * sums, and subgroups that all have the same size. */
static bool probe_matrices(gpu_host *h) {
    static const struct {
        uint32_t rows, columns, depth;
    } sizes[] = { { 16, 16, 16 }, { 8, 8, 8 } };
    gpu_info *info = &h->info;
    if (!info->f16 || !info->subgroups || info->subgroup_min != info->subgroup_max || info->subgroup_max > 64)
        return false;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        char           text[1024];
        error          e = { 0 };
        const uint32_t rows = sizes[i].rows, columns = sizes[i].columns, depth = sizes[i].depth;
        snprintf(text, sizeof text,
                 "enable f16;\nenable subgroups;\nenable chromium_experimental_subgroup_matrix;\n"
                 "diagnostic(off, chromium.subgroup_matrix_uniformity);\n"
                 "@group(0) @binding(0) var<storage, read_write> x: array<vec4<u32>>;\n"
                 "@compute @workgroup_size(%u) fn main(@builtin(subgroup_id) id: u32) {\n"
                 "let a = subgroupMatrixLoad<subgroup_matrix_left<f16, %u, %u>, row_major>(&x, id, 4u);\n"
                 "let b = subgroupMatrixLoad<subgroup_matrix_right<f16, %u, %u>, col_major>(&x, id, 4u);\n"
                 "var c: subgroup_matrix_result<f32, %u, %u>;\n"
                 "c = subgroupMatrixMultiplyAccumulate(a, b, c);\n"
                 "subgroupMatrixStore<col_major>(&x, id, c, 4u); }\n",
                 info->subgroup_max, depth, rows, columns, depth, columns, rows);
        const gpu_id pipeline = gpu_pipeline_new(h, "subgroup matrices", text, NULL, 0, &e);
        if (!pipeline || host_await_pipeline(h, pipeline, &e) != GM_OK) continue;
        info->matrix_rows = rows;
        info->matrix_columns = columns;
        info->matrix_depth = depth;
        return true;
    }
    return false;
}

static bool feature_probe(gpu_host *h, gpu_feature which) {
    const feature *f = &features[which];
    if (!f->shader) return f->probe(h);
    error        e = { 0 };
    const gpu_id pipeline = gpu_pipeline_new(h, gpu_feature_names[which], f->shader, NULL, 0, &e);
    return pipeline && host_await_pipeline(h, pipeline, &e) == GM_OK;
}

/* ---- instance ---- */

/* Dawn's toggles; a version ignores those that it does not know. The first saves time wherever workgroup memory is
 * used, and our shaders do not rely on zeroed memory. The second saves a tenth of all time; our shaders stay within
 * their bindings. The others enable what drivers can do (subgroup matrices are experimental in Dawn, which counts as
 * unsafe). */
static const char *const toggles_on[] = { "disable_workgroup_init", "disable_robustness", "use_vulkan_memory_model",
                                          "vulkan_enable_f16_on_nvidia", "allow_unsafe_apis" };
/* Timestamps would be rounded to 0.1 ms. */
static const char *const toggles_off[] = { "timestamp_quantization" };

typedef struct {
    WGPUDawnTogglesDescriptor descriptor;
    const char               *on[MOST_TOGGLES], *off[MOST_TOGGLES];
    char                      text[512];
} toggles;

/* $GEMMULE_WEBGPU_TOGGLES adds toggles, for measurements: "disable_robustness,-disable_workgroup_init" (- disables
 * one). */
static void read_toggles(toggles *t) {
    size_t on = 0, off = 0;
    for (size_t i = 0; i < COUNT_OF(toggles_on); i++) t->on[on++] = toggles_on[i];
    for (size_t i = 0; i < COUNT_OF(toggles_off); i++) t->off[off++] = toggles_off[i];
    const char *more = getenv("GEMMULE_WEBGPU_TOGGLES");
    snprintf(t->text, sizeof t->text, "%s", more ? more : "");
    char *rest = t->text, *name;
    while ((name = strtok_r(rest, ", ", &rest))) {
        if (*name != '-' && on < MOST_TOGGLES) t->on[on++] = name;
        else if (*name == '-' && off < MOST_TOGGLES) t->off[off++] = name + 1;
    }
    for (size_t i = 0; i < off; i++) { /* a disabled toggle overrides our own list */
        for (size_t j = 0; j < on; j++) {
            if (!strcmp(t->off[i], t->on[j])) t->on[j] = t->on[--on];
        }
    }
    t->descriptor = (WGPUDawnTogglesDescriptor){ .chain.sType = WGPUSType_DawnTogglesDescriptor,
                                                 .enabledToggleCount = on,
                                                 .enabledToggles = t->on,
                                                 .disabledToggleCount = off,
                                                 .disabledToggles = t->off };
}

/* Each stage (instance, adapter, device) uses the toggles that apply to it. */
static WGPUChainedStruct *toggles_chain(const gpu_host *h, toggles *t) {
    return h->api.DeviceTick ? &t->descriptor.chain : NULL;
}

/* Dawn prints its messages unless there is a callback. Errors reach us in other ways. Of the rest we keep only the
 * reason why an adapter cannot be used, for the message that there is none. */
static void instance_log(uint32_t type, WGPUStringView message, void *first, void *second) {
    (void)type, (void)second;
    gpu_host *h = first;
    size_t    length = 0; /* of the first line; the rest is a place in Dawn's source */
    while (message.data && length < message.length && message.data[length] && message.data[length] != '\n') length++;
    webgpu_text(h->log, sizeof h->log, (WGPUStringView){ message.data, length });
}

static void device_log(uint32_t type, WGPUStringView message, void *first, void *second) {
    (void)type, (void)message, (void)first, (void)second;
}

/* If the user names Vulkan drivers and none of them is there, says so. The Vulkan loader would complain on stderr in its
 * own words. */
static gm_status check_named_drivers(error *e) {
#ifdef __linux__
    const char *name = getenv("VK_DRIVER_FILES") ? "VK_DRIVER_FILES" : "VK_ICD_FILENAMES", *files = getenv(name);
    if (!files || !*files || getenv("VK_ADD_DRIVER_FILES")) return GM_OK;
    for (const char *at = files; *at;) {
        const size_t length = strcspn(at, ":");
        char         path[PATH_MAX];
        struct stat  about;
        snprintf(path, sizeof path, "%.*s", (int)length, at);
        if (!stat(path, &about) && (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode))) return GM_OK;
        at += length + (at[length] == ':');
    }
    return fail(e, GM_NO_DEVICE, "no GPU was found: %s names a Vulkan driver that does not exist: %s", name, files);
#else
    (void)e;
    return GM_OK;
#endif
}

static gm_status open_instance(gpu_host *h, toggles *t, error *e) {
    const uint32_t                    wanted = WGPUInstanceFeatureName_TimedWaitAny;
    WGPUDawnInstanceDescriptor        dawn = { .next = toggles_chain(h, t),
                                               .sType = WGPUSType_DawnInstanceDescriptor,
                                               .backendValidationLevel = WGPUDawnValidation_Disabled,
                                               .loggingCallbackInfo = { .callback = instance_log, .userdata1 = h } };
    WGPUChainedStruct                *chain = h->api.DeviceSetLoggingCallback ? (void *)&dawn : toggles_chain(h, t);
    const WGPUInstanceDescriptor      newer = { .nextInChain = chain,
                                                .requiredFeatureCount = 1,
                                                .requiredFeatures = &wanted };
    const WGPUOlderInstanceDescriptor older = { .nextInChain = chain, .timedWaitAnyEnable = true };
    const void                       *descriptor = &newer;
    TRY(check_named_drivers(e));
    if (h->api.GetInstanceCapabilities) descriptor = &older;
    if (h->api.DevicePoll) descriptor = NULL;
    h->instance = h->api.CreateInstance(descriptor);
    if (h->instance) return GM_OK;
    return fail(e, GM_NO_DEVICE, "the WebGPU library %s gave no instance with timed waits", h->api.path);
}

/* ---- adapters ---- */

static void on_adapter(uint32_t status, WGPUAdapter adapter, WGPUStringView message, void *first, void *second) {
    (void)second;
    host_answer *answer = first;
    answer->done = true;
    answer->failed = status != WGPUStatus_Success;
    answer->adapter = adapter;
    webgpu_text(answer->message, sizeof answer->message, message);
}

/* Without a driver, Dawn returns an adapter that computes nothing. */
static WGPUAdapter really_there(gpu_host *h, WGPUAdapter adapter) {
    WGPUAdapterInfo info = { 0 };
    if (!adapter) return NULL;
    h->api.AdapterGetInfo(adapter, &info);
    const bool null = info.backendType == WGPUBackendType_Null;
    h->api.AdapterInfoFreeMembers(info);
    if (!null) return adapter;
    h->api.AdapterRelease(adapter);
    return NULL;
}

/* NULL if there is no adapter of this kind. */
static WGPUAdapter request_adapter(gpu_host *h, toggles *t, uint32_t power, bool fallback) {
    const WGPURequestAdapterOptions      options = { .nextInChain = toggles_chain(h, t),
                                                     .featureLevel = WGPUFeatureLevel_Core,
                                                     .powerPreference = power,
                                                     .forceFallbackAdapter = fallback };
    const WGPURequestAdapterCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                  .callback = on_adapter,
                                                  .userdata1 = &h->answer };
    h->answer = (host_answer){ 0 };
    if (!host_await(h, h->api.InstanceRequestAdapter(h->instance, &options, info))) return NULL;
    return really_there(h, h->answer.adapter);
}

static const char *const backends[] = {
    [WGPUBackendType_Null] = "none",         [WGPUBackendType_WebGPU] = "WebGPU",
    [WGPUBackendType_D3D11] = "Direct3D 11", [WGPUBackendType_D3D12] = "Direct3D 12",
    [WGPUBackendType_Metal] = "Metal",       [WGPUBackendType_Vulkan] = "Vulkan",
    [WGPUBackendType_OpenGL] = "OpenGL",     [WGPUBackendType_OpenGLES] = "OpenGL ES",
};

/* OpenGL on llvmpipe does not report that it is a CPU. */
static bool is_software(const char *name) {
    static const char *const names[] = { "SwiftShader", "llvmpipe", "lavapipe", "softpipe", "Microsoft Basic Render" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (strstr(name, names[i])) return true;
    }
    return false;
}

/* Fills in what is known without a device: names and limits. `limits` gets them in the library's form. */
static void read_adapter(const gpu_host *h, WGPUAdapter adapter, gpu_info *out, WGPULimits *limits) {
    WGPUAdapterInfo info = { 0 };
    *out = (gpu_info){ 0 };
    memset(limits, 0xff, sizeof *limits);
    limits->nextInChain = NULL;
    h->api.AdapterGetLimits(adapter, limits);
    out->max_buffer = limits->maxBufferSize;
    out->max_binding = limits->maxStorageBufferBindingSize;
    out->max_storage_buffers = limits->maxStorageBuffersPerShaderStage;
    out->max_invocations = limits->maxComputeInvocationsPerWorkgroup;
    out->max_workgroups = limits->maxComputeWorkgroupsPerDimension;
    out->max_workgroup_bytes = limits->maxComputeWorkgroupStorageSize;
    out->alignment = limits->minStorageBufferOffsetAlignment;

    h->api.AdapterGetInfo(adapter, &info);
    webgpu_text(out->name, sizeof out->name, info.device);
    webgpu_text(out->vendor, sizeof out->vendor, info.vendor);
    webgpu_text(out->driver, sizeof out->driver, info.description);
    const char *backend = info.backendType < COUNT_OF(backends) ? backends[info.backendType] : NULL;
    snprintf(out->backend, sizeof out->backend, "%s", backend ? backend : "unknown");
    out->software = info.adapterType == WGPUAdapterType_CPU || is_software(out->name) || is_software(out->driver);
    out->subgroup_min = info.subgroupMinSize;
    out->subgroup_max = info.subgroupMaxSize;
    h->api.AdapterInfoFreeMembers(info);
}

static bool same_adapter(const gpu_host *h, WGPUAdapter a, WGPUAdapter b) {
    WGPUAdapterInfo x = { 0 }, y = { 0 };
    char            x_name[256], y_name[256];
    h->api.AdapterGetInfo(a, &x);
    h->api.AdapterGetInfo(b, &y);
    webgpu_text(x_name, sizeof x_name, x.device);
    webgpu_text(y_name, sizeof y_name, y.device);
    const bool same = x.vendorID == y.vendorID && x.deviceID == y.deviceID && x.backendType == y.backendType &&
                      x.adapterType == y.adapterType && !strcmp(x_name, y_name);
    h->api.AdapterInfoFreeMembers(x);
    h->api.AdapterInfoFreeMembers(y);
    return same;
}

/* The adapters, fastest first. The standard has no list, so we collect what each power preference returns. */
static size_t find_adapters(gpu_host *h, toggles *t, WGPUAdapter out[MOST_ADAPTERS]) {
    static const struct {
        uint32_t power;
        bool     fallback;
    } wishes[] = { { WGPUPowerPreference_HighPerformance, false },
                   { WGPUPowerPreference_LowPower, false },
                   { 0, true } };
    size_t count = 0;
    for (size_t i = 0; i < COUNT_OF(wishes); i++) {
        WGPUAdapter adapter = request_adapter(h, t, wishes[i].power, wishes[i].fallback);
        if (adapter) out[count++] = adapter;
    }
    if (h->api.InstanceEnumerateAdapters && count) { /* only their order distinguishes several identical cards */
        WGPUAdapter  all[MOST_ADAPTERS];
        const size_t there = h->api.InstanceEnumerateAdapters(h->instance, NULL, NULL);
        if (there <= COUNT_OF(all)) {
            const size_t written = h->api.InstanceEnumerateAdapters(h->instance, NULL, all);
            for (size_t i = 0; i < written; i++) {
                if (count < MOST_ADAPTERS) out[count++] = all[i];
                else h->api.AdapterRelease(all[i]);
            }
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        bool seen = false;
        for (size_t j = 0; j < kept; j++) seen = seen || same_adapter(h, out[i], out[j]);
        if (seen) h->api.AdapterRelease(out[i]);
        else out[kept++] = out[i];
    }
    return kept;
}

static gm_status no_adapter(const gpu_host *h, error *e) {
    return fail(
        e, GM_NO_DEVICE,
        "%s found no GPU: it needs a Vulkan driver and the Vulkan loader (Debian: libvulkan1 and mesa-vulkan-drivers, "
        "or the maker's own); VK_ICD_FILENAMES names a driver's file in an unusual place%s%s%s",
        h->api.path, *h->log ? " (the library says: " : "", h->log, *h->log ? ")" : "");
}

/* ---- devices ---- */

static void on_device(uint32_t status, WGPUDevice device, WGPUStringView message, void *first, void *second) {
    (void)second;
    host_answer *answer = first;
    answer->done = true;
    answer->failed = status != WGPUStatus_Success;
    answer->device = device;
    webgpu_text(answer->message, sizeof answer->message, message);
}

/* A device with the adapter's actual limits, and every feature that it has and that is not disabled. */
static gm_status open_device(gpu_host *h, toggles *t, WGPUAdapter adapter, const bool disabled[GPU_FEATURES],
                             error *e) {
    WGPUSupportedFeatures there = { 0 };
    WGPUFeatureName       wanted[2 * GPU_DEVICE_FEATURES];
    size_t                count = 0;
    WGPULimits            limits;
    read_adapter(h, adapter, &h->info, &limits);
    h->api.AdapterGetFeatures(adapter, &there);
    for (size_t i = 0; i < GPU_DEVICE_FEATURES; i++) {
        for (size_t j = 0; j < 2 && !disabled[i]; j++) {
            if (features[i].numbers[j] && has_number(&there, features[i].numbers[j]))
                wanted[count++] = features[i].numbers[j];
        }
    }
    h->api.SupportedFeaturesFreeMembers(there);

    const WGPUDeviceDescriptor          d = { .nextInChain = toggles_chain(h, t),
                                              .requiredFeatureCount = count,
                                              .requiredFeatures = wanted,
                                              .requiredLimits = &limits,
                                              .deviceLostCallbackInfo = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                                          .callback = host_on_lost,
                                                                          .userdata1 = h },
                                              .uncapturedErrorCallbackInfo = { .callback = host_on_error, .userdata1 = h } };
    const WGPURequestDeviceCallbackInfo info = { .mode = WGPUCallbackMode_AllowProcessEvents,
                                                 .callback = on_device,
                                                 .userdata1 = &h->answer };
    h->answer = (host_answer){ 0 };
    if (!host_await(h, h->api.AdapterRequestDevice(adapter, &d, info))) {
        return fail(e, GM_NO_DEVICE, "the GPU %s does not respond", h->info.name);
    }
    if (h->answer.failed || !h->answer.device) {
        return fail(e, GM_NO_DEVICE, "the GPU %s cannot be used: %s", h->info.name, h->answer.message);
    }
    h->device = h->answer.device;
    if (h->api.DeviceSetLoggingCallback)
        h->api.DeviceSetLoggingCallback(h->device, (WGPULoggingCallbackInfo){ .callback = device_log });
    h->queue = h->api.DeviceGetQueue(h->device);

    for (size_t i = 0; i < GPU_FEATURES; i++) {
        *gpu_feature_field(&h->info, (gpu_feature)i) =
            !disabled[i] && (i >= GPU_DEVICE_FEATURES || feature_probe(h, (gpu_feature)i));
    }
    if (!h->info.subgroups) h->info.subgroup_min = h->info.subgroup_max = 0;
    return host_lost(h, e);
}

/* Whether an adapter may be used if only hardware GPUs are wanted. */
static gm_status refuse_software(const gpu_host *h, WGPUAdapter adapter, error *e) {
    gpu_info   info;
    WGPULimits limits;
    read_adapter(h, adapter, &info, &limits);
    return info.software ? fail(e, GM_NO_DEVICE, "the only GPU, '%s', is software", info.name) : GM_OK;
}

gm_status host_open_device(gpu_host *h, const gpu_options *options, error *e) {
    const bool  hardware = options && options->hardware && options->adapter < 0;
    bool        disabled[GPU_FEATURES];
    toggles     t;
    WGPUAdapter adapters[MOST_ADAPTERS];
    size_t      count = 0, chosen = 0;
    gm_status   status = gpu_features_read(options ? options->disable : NULL, disabled, e);
    if (status != GM_OK) return status;
    read_toggles(&t);
    TRY(open_instance(h, &t, e));
    if (options && options->adapter >= 0) {
        chosen = (size_t)options->adapter;
        count = find_adapters(h, &t, adapters);
    } else if ((adapters[0] = request_adapter(h, &t, WGPUPowerPreference_HighPerformance, false))) {
        count = 1;
    }
    if (!count) status = hardware ? fail(e, GM_NO_DEVICE, "no GPU was found") : no_adapter(h, e);
    else if (chosen >= count) {
        status =
            fail(e, GM_NO_DEVICE, "there is no GPU %zu: this machine has %zu, counted from 0 (see `gemmule devices`)",
                 chosen, count);
    } else {
        if (hardware) status = refuse_software(h, adapters[0], e);
        if (!status) status = open_device(h, &t, adapters[chosen], disabled, e);
    }
    for (size_t i = 0; i < count; i++) h->api.AdapterRelease(adapters[i]);
    return status;
}

/* Opens each adapter once, because only a device reports features reliably. One that cannot be opened is listed without
 * features. */
gm_status gpu_host_list(gpu_info *out, size_t capacity, size_t *count, error *e) {
    gpu_host    looking = { 0 };
    toggles     t;
    WGPUAdapter adapters[MOST_ADAPTERS];
    *count = 0;
    gm_status status = webgpu_load(&looking.api, e);
    if (status != GM_OK) return status;
    read_toggles(&t);
    status = open_instance(&looking, &t, e);
    if (status == GM_OK) {
        *count = find_adapters(&looking, &t, adapters);
        if (!*count) status = no_adapter(&looking, e);
        for (size_t i = 0; i < *count; i++) {
            error      ignored = { 0 };
            WGPULimits limits;
            gpu_host  *h = NULL;
            if (i < capacity && gpu_host_open(&(gpu_options){ .adapter = (int32_t)i }, &h, &ignored) == GM_OK)
                out[i] = h->info;
            else if (i < capacity) read_adapter(&looking, adapters[i], &out[i], &limits);
            gpu_host_close(h);
            looking.api.AdapterRelease(adapters[i]);
        }
        looking.api.InstanceRelease(looking.instance);
    }
    webgpu_unload(&looking.api);
    return status;
}
