// From navigator.gpu (or Dawn's in Node) to a device: finds the adapter, describes it, and opens a device with all of its features.
//
// Anything newer than Safari 26 is tested for before it is used.

import { GemmuleError } from './errors.ts';

/** What the engine is told about the GPU: the fields of gpu_info in src/gpu/host.h. */
export interface GpuDescription {
    name: string;
    vendor: string;
    backend: string;
    driver: string;
    /** Emulated by the CPU. */
    software: boolean;
    max_buffer: number;
    max_binding: number;
    max_storage_buffers: number;
    max_invocations: number;
    max_workgroups: number;
    max_workgroup_bytes: number;
    alignment: number;
    subgroup_min: number;
    subgroup_max: number;
    subgroups: boolean;
    f16: boolean;
    dot4: boolean;
    timestamps: boolean;
    subgroup_matrix: boolean;
    matrix_rows: number;
    matrix_columns: number;
    matrix_depth: number;
    /** Bytes of main memory that copies of weights may take. */
    main_memory: number;
}

export interface GpuOptions {
    powerPreference?: GPUPowerPreference | undefined;
}

const FEATURES = ['shader-f16', 'subgroups', 'timestamp-query', 'chromium-experimental-subgroup-matrix'];

// Limits to request: a device has the low defaults otherwise.
const LIMITS = [
    'maxBufferSize',
    'maxStorageBufferBindingSize',
    'maxStorageBuffersPerShaderStage',
    'maxComputeInvocationsPerWorkgroup',
    'maxComputeWorkgroupSizeX',
    'maxComputeWorkgroupSizeY',
    'maxComputeWorkgroupSizeZ',
    'maxComputeWorkgroupsPerDimension',
    'maxComputeWorkgroupStorageSize',
] as const;

// A limit is not a promise: SwiftShader cannot allocate a buffer of the size it claims. WebGPU reports that too late to try a smaller one,
// so no tile is larger than this.
const MOST_BINDING = 512 * 2 ** 20;

// Fields that some browsers have and the type definitions lack.
interface MatrixConfig {
    componentType: string;
    resultComponentType: string;
    M: number;
    N: number;
    K: number;
}
interface MoreAdapterInfo {
    subgroupMinSize?: number;
    subgroupMaxSize?: number;
    isFallbackAdapter?: boolean;
    backend?: string;
    subgroupMatrixConfigs?: Iterable<MatrixConfig>;
}

// The size of f16 subgroup matrices with f32 sums, if there is a kernel for it. All subgroups must have one size.
function matrixSize(adapter: GPUAdapter): number {
    const info: MoreAdapterInfo = adapter.info;
    const has = (name: string) => adapter.features.has(name);
    if (!has('chromium-experimental-subgroup-matrix') || !has('shader-f16') || !has('subgroups')) return 0;
    if (info.subgroupMinSize !== info.subgroupMaxSize || !info.subgroupMaxSize || info.subgroupMaxSize > 64) return 0;
    const configs = [...(info.subgroupMatrixConfigs ?? [])].filter((c) => c.componentType === 'f16' && c.resultComponentType === 'f32');
    return [16, 8].find((n) => configs.some((c) => c.M === n && c.N === n && c.K === n)) ?? 0;
}

// Half of what is free, where that is known (Node). A browser says at most how much the machine has, and it runs more than this page.
function mainMemory(): number {
    const { process, navigator } = globalThis as { process?: { availableMemory?(): number }; navigator?: { deviceMemory?: number } };
    const free = process?.availableMemory?.();
    return Math.floor(free ? free / 2 : ((navigator?.deviceMemory ?? 4) / 4) * 2 ** 30);
}

export function describeAdapter(gpu: GPU, adapter: GPUAdapter): GpuDescription {
    const info: GPUAdapterInfo & MoreAdapterInfo = adapter.info;
    const limits = adapter.limits;
    const subgroups = adapter.features.has('subgroups');
    const matrix = matrixSize(adapter);
    const made = [info.vendor, info.architecture].filter(Boolean).join(' ');
    const words = `${info.vendor} ${info.architecture} ${info.device} ${info.description}`;
    return {
        name: info.description || info.device || made || 'unnamed GPU',
        vendor: info.vendor,
        backend: info.backend || 'WebGPU',
        driver: [info.architecture, info.device].filter(Boolean).join(' '),
        software: info.isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe|basic render/i.test(words),
        max_buffer: limits.maxBufferSize,
        max_binding: Math.min(limits.maxStorageBufferBindingSize, limits.maxBufferSize, MOST_BINDING),
        max_storage_buffers: limits.maxStorageBuffersPerShaderStage,
        max_invocations: limits.maxComputeInvocationsPerWorkgroup,
        max_workgroups: limits.maxComputeWorkgroupsPerDimension,
        max_workgroup_bytes: limits.maxComputeWorkgroupStorageSize,
        alignment: limits.minStorageBufferOffsetAlignment,
        // The standard's bounds if the browser does not say.
        subgroup_min: subgroups ? (info.subgroupMinSize ?? 4) : 0,
        subgroup_max: subgroups ? (info.subgroupMaxSize ?? 128) : 0,
        subgroups,
        f16: adapter.features.has('shader-f16'),
        dot4: gpu.wgslLanguageFeatures?.has('packed_4x8_integer_dot_product') ?? false,
        timestamps: adapter.features.has('timestamp-query'),
        subgroup_matrix: matrix > 0,
        matrix_rows: matrix,
        matrix_columns: matrix,
        matrix_depth: matrix,
        main_memory: mainMemory(),
    };
}

/** The fastest adapter, or null: a browser may have WebGPU but no GPU. */
export async function findAdapter(gpu: GPU | null | undefined, options: GpuOptions = {}): Promise<GPUAdapter | null> {
    if (!gpu) return null;
    return gpu.requestAdapter({ powerPreference: options.powerPreference ?? 'high-performance' });
}

/** A device with the adapter's real limits. An adapter gives only one device: after a loss, ask for a new adapter. */
export async function openDevice(gpu: GPU, options: GpuOptions = {}): Promise<{ device: GPUDevice; description: GpuDescription }> {
    const adapter = await findAdapter(gpu, options);
    if (!adapter) {
        throw new GemmuleError('NoWebGPU', 'WebGPU found no graphics adapter: its driver may be missing or blocked');
    }
    const description = describeAdapter(gpu, adapter);
    const requiredLimits: Record<string, number> = {};
    for (const name of LIMITS) requiredLimits[name] = adapter.limits[name];
    const wanted = FEATURES.filter((name) => adapter.features.has(name)) as GPUFeatureName[];
    try {
        return { device: await adapter.requestDevice({ requiredFeatures: wanted, requiredLimits }), description };
    } catch (thrown) {
        const reason = thrown instanceof Error ? thrown.message : String(thrown);
        throw new GemmuleError('NoWebGPU', `cannot use the GPU ${description.name}: ${reason}`, undefined, { cause: thrown });
    }
}
