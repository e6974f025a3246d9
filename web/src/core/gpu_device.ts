// From navigator.gpu (or Dawn's in Node) to a device: which adapter, what it can do, and a device with all of that switched on.
//
// Nothing here is newer than Safari 26 unless it is looked for first.

import { GemmuleError } from './errors.ts';

/** What the engine is told about the GPU: the fields of gpu_info in src/gpu/host.h. */
export interface GpuDescription {
    name: string;
    vendor: string;
    backend: string;
    driver: string;
    /** A CPU that plays a GPU. */
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
}

export interface GpuOptions {
    powerPreference?: GPUPowerPreference | undefined;
}

const FEATURES = ['shader-f16', 'subgroups', 'timestamp-query', 'chromium-experimental-subgroup-matrix'];

// A device has the default limits unless others are asked for.
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

// A limit is no promise (SwiftShader has no buffer of its own limit), and here a refusal comes too late to ask for less: nothing is cut
// into larger tiles than this.
const MOST_BINDING = 512 * 2 ** 20;

// What some engines have, and the types do not know.
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

// Products of f16 matrices with f32 sums, of the sizes that there are kernels for. Subgroups must all be of one size.
function matrixSize(adapter: GPUAdapter): number {
    const info: MoreAdapterInfo = adapter.info;
    const has = (name: string) => adapter.features.has(name);
    if (!has('chromium-experimental-subgroup-matrix') || !has('shader-f16') || !has('subgroups')) return 0;
    if (info.subgroupMinSize !== info.subgroupMaxSize || !info.subgroupMaxSize || info.subgroupMaxSize > 64) return 0;
    const configs = [...(info.subgroupMatrixConfigs ?? [])].filter((c) => c.componentType === 'f16' && c.resultComponentType === 'f32');
    return [16, 8].find((n) => configs.some((c) => c.M === n && c.N === n && c.K === n)) ?? 0;
}

export function describeAdapter(gpu: GPU, adapter: GPUAdapter): GpuDescription {
    const info: GPUAdapterInfo & MoreAdapterInfo = adapter.info;
    const limits = adapter.limits;
    const subgroups = adapter.features.has('subgroups');
    const matrix = matrixSize(adapter);
    const made = [info.vendor, info.architecture].filter(Boolean).join(' ');
    const words = `${info.vendor} ${info.architecture} ${info.device} ${info.description}`;
    return {
        name: info.description || info.device || made || 'a GPU without a name',
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
        // The standard's own bounds where a browser does not tell.
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
    };
}

/** The fastest adapter, or null: a browser may have WebGPU and still no GPU to give. */
export async function findAdapter(gpu: GPU | null | undefined, options: GpuOptions = {}): Promise<GPUAdapter | null> {
    if (!gpu) return null;
    return gpu.requestAdapter({ powerPreference: options.powerPreference ?? 'high-performance' });
}

/** A device with the adapter's real limits. An adapter gives one device only: after a loss a new one is asked for. */
export async function openDevice(gpu: GPU, options: GpuOptions = {}): Promise<{ device: GPUDevice; description: GpuDescription }> {
    const adapter = await findAdapter(gpu, options);
    if (!adapter) {
        throw new GemmuleError('NoWebGPU', 'WebGPU is there, but the browser gave no graphics adapter: its driver may be missing or blocked');
    }
    const description = describeAdapter(gpu, adapter);
    const requiredLimits: Record<string, number> = {};
    for (const name of LIMITS) requiredLimits[name] = adapter.limits[name];
    const wanted = FEATURES.filter((name) => adapter.features.has(name)) as GPUFeatureName[];
    try {
        return { device: await adapter.requestDevice({ requiredFeatures: wanted, requiredLimits }), description };
    } catch (thrown) {
        const reason = thrown instanceof Error ? thrown.message : String(thrown);
        throw new GemmuleError('NoWebGPU', `the GPU ${description.name} cannot be used: ${reason}`, undefined, { cause: thrown });
    }
}
