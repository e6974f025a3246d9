/* The part of webgpu.h that we use. It is declared here because no package contains the header alone, and as function
 * pointers because the library (Dawn or wgpu-native) is found at run time. Names and numbers are the standard header's.
 *
 * Libraries of different ages differ: feature numbers have changed (host_adapters.c probes what a number means), and
 * the instance descriptor has two layouts (a symbol that only older libraries have tells them apart). Structs that a
 * library fills end in spare words, so that a library with more fields than we know does no harm. */

#ifndef GM_WEBGPU_API_H
#define GM_WEBGPU_API_H

#include "base/base.h"

/* ---- handles and plain types ---- */

typedef struct WGPUAdapterImpl            *WGPUAdapter;
typedef struct WGPUBindGroupImpl          *WGPUBindGroup;
typedef struct WGPUBindGroupLayoutImpl    *WGPUBindGroupLayout;
typedef struct WGPUBufferImpl             *WGPUBuffer;
typedef struct WGPUCommandBufferImpl      *WGPUCommandBuffer;
typedef struct WGPUCommandEncoderImpl     *WGPUCommandEncoder;
typedef struct WGPUComputePassEncoderImpl *WGPUComputePassEncoder;
typedef struct WGPUComputePipelineImpl    *WGPUComputePipeline;
typedef struct WGPUDeviceImpl             *WGPUDevice;
typedef struct WGPUInstanceImpl           *WGPUInstance;
typedef struct WGPUPipelineLayoutImpl     *WGPUPipelineLayout;
typedef struct WGPUQuerySetImpl           *WGPUQuerySet;
typedef struct WGPUQueueImpl              *WGPUQueue;
typedef struct WGPUSamplerImpl            *WGPUSampler;
typedef struct WGPUShaderModuleImpl       *WGPUShaderModule;
typedef struct WGPUSurfaceImpl            *WGPUSurface;
typedef struct WGPUTextureViewImpl        *WGPUTextureView;

typedef uint32_t WGPUBool;
typedef uint32_t WGPUFeatureName; /* see host_adapters.c: the numbers have changed */

typedef struct {
    const char *data;
    size_t      length; /* SIZE_MAX: NUL-terminated; with NULL data: not given */
} WGPUStringView;

typedef struct WGPUChainedStruct {
    struct WGPUChainedStruct *next;
    uint32_t                  sType;
} WGPUChainedStruct;

typedef struct {
    uint64_t id;
} WGPUFuture;

typedef struct {
    WGPUFuture future;
    WGPUBool   completed;
} WGPUFutureWaitInfo;

/* ---- numbers ---- */

enum { WGPUStatus_Success = 1 }; /* in every status enum; everything else is a failure */
enum { WGPUMapAsyncStatus_Error = 3 };
enum { WGPUCreatePipelineAsyncStatus_InternalError = 4 };
enum { WGPUWaitStatus_TimedOut = 2 };

enum { WGPUCallbackMode_WaitAnyOnly = 1, WGPUCallbackMode_AllowProcessEvents = 2 };

typedef enum {
    WGPUErrorFilter_Validation = 1,
    WGPUErrorFilter_OutOfMemory = 2,
    WGPUErrorFilter_Internal = 3
} WGPUErrorFilter;

typedef enum {
    WGPUErrorType_NoError = 1,
    WGPUErrorType_Validation = 2,
    WGPUErrorType_OutOfMemory = 3,
    WGPUErrorType_Internal = 4,
} WGPUErrorType;

enum { WGPUAdapterType_CPU = 3 };
enum { WGPUDawnValidation_Disabled = 2 };

enum {
    WGPUBackendType_Null = 1,
    WGPUBackendType_WebGPU = 2,
    WGPUBackendType_D3D11 = 3,
    WGPUBackendType_D3D12 = 4,
    WGPUBackendType_Metal = 5,
    WGPUBackendType_Vulkan = 6,
    WGPUBackendType_OpenGL = 7,
    WGPUBackendType_OpenGLES = 8,
};

enum { WGPUFeatureLevel_Core = 2 };
enum { WGPUPowerPreference_LowPower = 1, WGPUPowerPreference_HighPerformance = 2 };
enum { WGPUInstanceFeatureName_TimedWaitAny = 1 };
enum {
    WGPUSType_ShaderSourceWGSL = 2,
    WGPUSType_DawnInstanceDescriptor = 0x50006,
    WGPUSType_DawnTogglesDescriptor = 0x5000A
};
enum { WGPUCompilationMessageType_Error = 1 };
enum { WGPUQueryType_Timestamp = 2 };
enum { WGPUMapMode_Read = 1, WGPUMapMode_Write = 2 };

enum {
    WGPUBufferUsage_MapRead = 0x1,
    WGPUBufferUsage_MapWrite = 0x2,
    WGPUBufferUsage_CopySrc = 0x4,
    WGPUBufferUsage_CopyDst = 0x8,
    WGPUBufferUsage_Uniform = 0x40,
    WGPUBufferUsage_Storage = 0x80,
    WGPUBufferUsage_Indirect = 0x100,
    WGPUBufferUsage_QueryResolve = 0x200,
};

/* ---- callbacks: each gets the two pointers of its info ---- */

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUStringView     message;
    uint32_t           type;
    uint64_t           lineNum, linePos, offset, length;
} WGPUCompilationMessage;

typedef struct {
    WGPUChainedStruct            *nextInChain;
    size_t                        messageCount;
    const WGPUCompilationMessage *messages;
} WGPUCompilationInfo;

#define WEBGPU_CALLBACK(name, ...)                                                                                     \
    typedef void (*name##Callback)(__VA_ARGS__, void *first, void *second);                                            \
    typedef struct {                                                                                                   \
        WGPUChainedStruct *nextInChain;                                                                                \
        uint32_t           mode;                                                                                       \
        name##Callback     callback;                                                                                   \
        void              *userdata1, *userdata2;                                                                      \
    } name##CallbackInfo

WEBGPU_CALLBACK(WGPURequestAdapter, uint32_t status, WGPUAdapter adapter, WGPUStringView message);
WEBGPU_CALLBACK(WGPURequestDevice, uint32_t status, WGPUDevice device, WGPUStringView message);
WEBGPU_CALLBACK(WGPUDeviceLost, WGPUDevice const *device, uint32_t reason, WGPUStringView message);
WEBGPU_CALLBACK(WGPUPopErrorScope, uint32_t status, uint32_t type, WGPUStringView message);
WEBGPU_CALLBACK(WGPUCompilationInfo, uint32_t status, const WGPUCompilationInfo *info);
WEBGPU_CALLBACK(WGPUCreateComputePipelineAsync, uint32_t status, WGPUComputePipeline pipeline, WGPUStringView message);
WEBGPU_CALLBACK(WGPUBufferMap, uint32_t status, WGPUStringView message);

/* Newer libraries pass a message before the two pointers, older ones do not, so the callback reads neither. */
typedef struct {
    WGPUChainedStruct *nextInChain;
    uint32_t           mode;
    void (*callback)(void);
    void *userdata1, *userdata2;
} WGPUQueueWorkDoneCallbackInfo;

typedef struct {
    WGPUChainedStruct *nextInChain;
    void (*callback)(WGPUDevice const *device, uint32_t type, WGPUStringView message, void *first, void *second);
    void *userdata1, *userdata2;
} WGPUUncapturedErrorCallbackInfo;

/* ---- descriptors ---- */

typedef struct {
    WGPUChainedStruct *nextInChain;
    size_t             requiredFeatureCount;
    const uint32_t    *requiredFeatures;
    const void        *requiredLimits;
} WGPUInstanceDescriptor;

typedef struct { /* of libraries that have wgpuGetInstanceCapabilities */
    WGPUChainedStruct *nextInChain;
    WGPUChainedStruct *capabilitiesNextInChain;
    WGPUBool           timedWaitAnyEnable;
    size_t             timedWaitAnyMaxCount;
} WGPUOlderInstanceDescriptor;

typedef void (*WGPULoggingCallback)(uint32_t type, WGPUStringView message, void *first, void *second);

typedef struct { /* Dawn's own */
    WGPUChainedStruct  *nextInChain;
    WGPULoggingCallback callback;
    void               *userdata1, *userdata2;
} WGPULoggingCallbackInfo;

/* Dawn's own. In Dawn it is a C++ class whose first member fills the gap after sType. */
typedef struct {
    void                   *next;
    uint32_t                sType;
    uint32_t                additionalRuntimeSearchPathsCount;
    const char *const      *additionalRuntimeSearchPaths;
    void                   *platform;
    uint32_t                backendValidationLevel;
    uint8_t                 beginCaptureOnStartup;
    WGPULoggingCallbackInfo loggingCallbackInfo;
    uint64_t                spare[8];
} WGPUDawnInstanceDescriptor;

typedef struct { /* Dawn's own */
    WGPUChainedStruct  chain;
    size_t             enabledToggleCount;
    const char *const *enabledToggles;
    size_t             disabledToggleCount;
    const char *const *disabledToggles;
} WGPUDawnTogglesDescriptor;

typedef struct {
    WGPUChainedStruct *nextInChain;
    uint32_t           featureLevel, powerPreference;
    WGPUBool           forceFallbackAdapter;
    uint32_t           backendType;
    WGPUSurface        compatibleSurface;
} WGPURequestAdapterOptions;

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUStringView     vendor, architecture, device, description;
    uint32_t           backendType, adapterType, vendorID, deviceID, subgroupMinSize, subgroupMaxSize;
    uint32_t           spare[16];
} WGPUAdapterInfo;

typedef struct {
    WGPUChainedStruct *nextInChain;
    uint32_t           maxTextureDimension1D, maxTextureDimension2D, maxTextureDimension3D, maxTextureArrayLayers;
    uint32_t           maxBindGroups, maxBindGroupsPlusVertexBuffers, maxBindingsPerBindGroup;
    uint32_t           maxDynamicUniformBuffersPerPipelineLayout, maxDynamicStorageBuffersPerPipelineLayout;
    uint32_t           maxSampledTexturesPerShaderStage, maxSamplersPerShaderStage, maxStorageBuffersPerShaderStage;
    uint32_t           maxStorageTexturesPerShaderStage, maxUniformBuffersPerShaderStage;
    uint64_t           maxUniformBufferBindingSize, maxStorageBufferBindingSize;
    uint32_t           minUniformBufferOffsetAlignment, minStorageBufferOffsetAlignment, maxVertexBuffers;
    uint64_t           maxBufferSize;
    uint32_t           maxVertexAttributes, maxVertexBufferArrayStride, maxInterStageShaderVariables;
    uint32_t           maxColorAttachments, maxColorAttachmentBytesPerSample;
    uint32_t           maxComputeWorkgroupStorageSize, maxComputeInvocationsPerWorkgroup;
    uint32_t           maxComputeWorkgroupSizeX, maxComputeWorkgroupSizeY, maxComputeWorkgroupSizeZ;
    uint32_t           maxComputeWorkgroupsPerDimension, maxImmediateSize;
    uint32_t           spare[32]; /* all bits set: not asked for */
} WGPULimits;

typedef struct {
    size_t                 featureCount;
    const WGPUFeatureName *features;
} WGPUSupportedFeatures;

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUStringView     label;
} WGPUQueueDescriptor;

typedef struct {
    WGPUChainedStruct              *nextInChain;
    WGPUStringView                  label;
    size_t                          requiredFeatureCount;
    const WGPUFeatureName          *requiredFeatures;
    const WGPULimits               *requiredLimits;
    WGPUQueueDescriptor             defaultQueue;
    WGPUDeviceLostCallbackInfo      deviceLostCallbackInfo;
    WGPUUncapturedErrorCallbackInfo uncapturedErrorCallbackInfo;
} WGPUDeviceDescriptor;

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUStringView     label;
    uint64_t           usage, size;
    WGPUBool           mappedAtCreation;
} WGPUBufferDescriptor;

typedef struct {
    WGPUChainedStruct chain;
    WGPUStringView    code;
} WGPUShaderSourceWGSL;

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUStringView     label;
} WGPUShaderModuleDescriptor;

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUStringView     key;
    double             value;
} WGPUConstantEntry;

typedef struct {
    WGPUChainedStruct       *nextInChain;
    WGPUShaderModule         module;
    WGPUStringView           entryPoint;
    size_t                   constantCount;
    const WGPUConstantEntry *constants;
} WGPUComputeState;

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUStringView     label;
    WGPUPipelineLayout layout;
    WGPUComputeState   compute;
} WGPUComputePipelineDescriptor;

typedef struct {
    WGPUChainedStruct *nextInChain;
    uint32_t           binding;
    WGPUBuffer         buffer;
    uint64_t           offset, size;
    WGPUSampler        sampler;
    WGPUTextureView    textureView;
} WGPUBindGroupEntry;

typedef struct {
    WGPUChainedStruct        *nextInChain;
    WGPUStringView            label;
    WGPUBindGroupLayout       layout;
    size_t                    entryCount;
    const WGPUBindGroupEntry *entries;
} WGPUBindGroupDescriptor;

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUStringView     label;
    uint32_t           type, count;
} WGPUQuerySetDescriptor;

typedef struct {
    WGPUChainedStruct *nextInChain;
    WGPUQuerySet       querySet;
    uint32_t           beginningOfPassWriteIndex, endOfPassWriteIndex;
} WGPUPassTimestampWrites;

typedef struct {
    WGPUChainedStruct             *nextInChain;
    WGPUStringView                 label;
    const WGPUPassTimestampWrites *timestampWrites;
} WGPUComputePassDescriptor;

/* ---- functions: F(result, name without "wgpu", parameters) ---- */

#define WEBGPU_FUNCTIONS(F)                                                                                            \
    F(WGPUInstance, CreateInstance, (const void *descriptor))                                                          \
    F(void, InstanceRelease, (WGPUInstance))                                                                           \
    F(void, InstanceProcessEvents, (WGPUInstance))                                                                     \
    F(uint32_t, InstanceWaitAny, (WGPUInstance, size_t count, WGPUFutureWaitInfo *, uint64_t nanoseconds))             \
    F(WGPUFuture, InstanceRequestAdapter,                                                                              \
      (WGPUInstance, const WGPURequestAdapterOptions *, WGPURequestAdapterCallbackInfo))                               \
    F(void, AdapterRelease, (WGPUAdapter))                                                                             \
    F(uint32_t, AdapterGetInfo, (WGPUAdapter, WGPUAdapterInfo *))                                                      \
    F(void, AdapterInfoFreeMembers, (WGPUAdapterInfo))                                                                 \
    F(uint32_t, AdapterGetLimits, (WGPUAdapter, WGPULimits *))                                                         \
    F(void, AdapterGetFeatures, (WGPUAdapter, WGPUSupportedFeatures *))                                                \
    F(void, SupportedFeaturesFreeMembers, (WGPUSupportedFeatures))                                                     \
    F(WGPUFuture, AdapterRequestDevice, (WGPUAdapter, const WGPUDeviceDescriptor *, WGPURequestDeviceCallbackInfo))    \
    F(void, DeviceDestroy, (WGPUDevice))                                                                               \
    F(void, DeviceRelease, (WGPUDevice))                                                                               \
    F(WGPUQueue, DeviceGetQueue, (WGPUDevice))                                                                         \
    F(void, DevicePushErrorScope, (WGPUDevice, uint32_t filter))                                                       \
    F(WGPUFuture, DevicePopErrorScope, (WGPUDevice, WGPUPopErrorScopeCallbackInfo))                                    \
    F(WGPUBuffer, DeviceCreateBuffer, (WGPUDevice, const WGPUBufferDescriptor *))                                      \
    F(WGPUShaderModule, DeviceCreateShaderModule, (WGPUDevice, const WGPUShaderModuleDescriptor *))                    \
    F(WGPUComputePipeline, DeviceCreateComputePipeline, (WGPUDevice, const WGPUComputePipelineDescriptor *))           \
    F(WGPUFuture, DeviceCreateComputePipelineAsync,                                                                    \
      (WGPUDevice, const WGPUComputePipelineDescriptor *, WGPUCreateComputePipelineAsyncCallbackInfo))                 \
    F(WGPUBindGroup, DeviceCreateBindGroup, (WGPUDevice, const WGPUBindGroupDescriptor *))                             \
    F(WGPUQuerySet, DeviceCreateQuerySet, (WGPUDevice, const WGPUQuerySetDescriptor *))                                \
    F(WGPUCommandEncoder, DeviceCreateCommandEncoder, (WGPUDevice, const void *descriptor))                            \
    F(void, QuerySetRelease, (WGPUQuerySet))                                                                           \
    F(WGPUFuture, ShaderModuleGetCompilationInfo, (WGPUShaderModule, WGPUCompilationInfoCallbackInfo))                 \
    F(void, ShaderModuleRelease, (WGPUShaderModule))                                                                   \
    F(WGPUBindGroupLayout, ComputePipelineGetBindGroupLayout, (WGPUComputePipeline, uint32_t group))                   \
    F(void, ComputePipelineRelease, (WGPUComputePipeline))                                                             \
    F(void, BindGroupLayoutRelease, (WGPUBindGroupLayout))                                                             \
    F(void, BindGroupRelease, (WGPUBindGroup))                                                                         \
    F(WGPUFuture, BufferMapAsync, (WGPUBuffer, uint64_t mode, size_t offset, size_t size, WGPUBufferMapCallbackInfo))  \
    F(const void *, BufferGetConstMappedRange, (WGPUBuffer, size_t offset, size_t size))                               \
    F(void *, BufferGetMappedRange, (WGPUBuffer, size_t offset, size_t size))                                          \
    F(void, BufferUnmap, (WGPUBuffer))                                                                                 \
    F(void, BufferDestroy, (WGPUBuffer))                                                                               \
    F(void, BufferRelease, (WGPUBuffer))                                                                               \
    F(WGPUComputePassEncoder, CommandEncoderBeginComputePass, (WGPUCommandEncoder, const void *descriptor))            \
    F(void, CommandEncoderCopyBufferToBuffer,                                                                          \
      (WGPUCommandEncoder, WGPUBuffer from, uint64_t from_offset, WGPUBuffer to, uint64_t to_offset, uint64_t size))   \
    F(void, CommandEncoderClearBuffer, (WGPUCommandEncoder, WGPUBuffer, uint64_t offset, uint64_t size))               \
    F(void, CommandEncoderResolveQuerySet,                                                                             \
      (WGPUCommandEncoder, WGPUQuerySet, uint32_t first, uint32_t count, WGPUBuffer, uint64_t offset))                 \
    F(WGPUCommandBuffer, CommandEncoderFinish, (WGPUCommandEncoder, const void *descriptor))                           \
    F(void, CommandEncoderRelease, (WGPUCommandEncoder))                                                               \
    F(void, CommandBufferRelease, (WGPUCommandBuffer))                                                                 \
    F(void, ComputePassEncoderSetPipeline, (WGPUComputePassEncoder, WGPUComputePipeline))                              \
    F(void, ComputePassEncoderSetBindGroup,                                                                            \
      (WGPUComputePassEncoder, uint32_t index, WGPUBindGroup, size_t offset_count, const uint32_t *offsets))           \
    F(void, ComputePassEncoderDispatchWorkgroups, (WGPUComputePassEncoder, uint32_t x, uint32_t y, uint32_t z))        \
    F(void, ComputePassEncoderDispatchWorkgroupsIndirect, (WGPUComputePassEncoder, WGPUBuffer, uint64_t offset))       \
    F(void, ComputePassEncoderEnd, (WGPUComputePassEncoder))                                                           \
    F(void, ComputePassEncoderRelease, (WGPUComputePassEncoder))                                                       \
    F(void, QueueWriteBuffer, (WGPUQueue, WGPUBuffer, uint64_t offset, const void *data, size_t size))                 \
    F(void, QueueSubmit, (WGPUQueue, size_t count, const WGPUCommandBuffer *))                                         \
    F(WGPUFuture, QueueOnSubmittedWorkDone, (WGPUQueue, WGPUQueueWorkDoneCallbackInfo))                                \
    F(void, QueueRelease, (WGPUQueue))

/* NULL if the library has none. */
#define WEBGPU_EXTRA_FUNCTIONS(F)                                                                                      \
    F(uint32_t, GetInstanceCapabilities, (void *))                                    /* older: see above */           \
    F(void, DeviceTick, (WGPUDevice))                                                 /* Dawn */                       \
    F(void, DeviceForceLoss, (WGPUDevice, uint32_t reason, WGPUStringView message))   /* Dawn */                       \
    F(void, DeviceSetLoggingCallback, (WGPUDevice, WGPULoggingCallbackInfo))          /* Dawn */                       \
    F(WGPUBool, DevicePoll, (WGPUDevice, WGPUBool wait, const uint64_t *submission))  /* wgpu-native */                \
    F(size_t, InstanceEnumerateAdapters, (WGPUInstance, const void *, WGPUAdapter *)) /* wgpu-native */

typedef struct {
    void *library;
    char  path[256]; /* the library's path, for messages */
    bool  missing;   /* webgpu_load failed because it found no library at all */
#define WEBGPU_POINTER(result, name, parameters) result(*name) parameters;
    WEBGPU_FUNCTIONS(WEBGPU_POINTER)
    WEBGPU_EXTRA_FUNCTIONS(WEBGPU_POINTER)
#undef WEBGPU_POINTER
} webgpu_api;

/* Looks for a library in $GEMMULE_WEBGPU, beside the program, in node_modules beside or above it, and where the
 * system's loader looks. GM_NO_DEVICE: the error lists these places. */
gm_status webgpu_load(webgpu_api *api, error *e);
void      webgpu_unload(webgpu_api *api);

#endif
