// A GPU with one device for all engines, which compiles each pipeline once, for tests of other things than opening: a driver in software
// compiles for seconds. Natively, tests/quick_gpu.c does the same.

interface KeptDevice {
    device: GPUDevice;
    modules: Map<string, GPUShaderModule>; // by text
    texts: Map<GPUShaderModule, string>;
    pipelines: Map<string, Promise<GPUComputePipeline>>; // by text and constants
}

/** The device as one engine sees it, from its opening to its end. */
function lend({ device, modules, texts, pipelines }: KeptDevice): GPUDevice {
    const ended = new AbortController();
    const destroyed = new Promise<{ reason: string; message: string }>((resolve) => {
        ended.signal.addEventListener('abort', () => resolve({ reason: 'destroyed', message: 'closed' }));
    });
    const own: Partial<Record<keyof GPUDevice, unknown>> = {
        lost: Promise.race([device.lost, destroyed]),
        addEventListener: (type: string, listener: (event: Event) => void) => {
            device.addEventListener(type, listener);
            ended.signal.addEventListener('abort', () => device.removeEventListener(type, listener));
        },
        createShaderModule: (descriptor: GPUShaderModuleDescriptor) => {
            const module = modules.get(descriptor.code) ?? device.createShaderModule(descriptor);
            modules.set(descriptor.code, module);
            texts.set(module, descriptor.code);
            return module;
        },
        createComputePipelineAsync: (descriptor: GPUComputePipelineDescriptor) => {
            const key = JSON.stringify([texts.get(descriptor.compute.module), descriptor.compute.constants]);
            const pipeline = pipelines.get(key) ?? device.createComputePipelineAsync(descriptor);
            pipelines.set(key, pipeline);
            return pipeline;
        },
        destroy: () => ended.abort(),
    };
    return new Proxy(device, {
        get(_, name: keyof GPUDevice) {
            if (name in own) return own[name];
            const value: unknown = device[name];
            return typeof value === 'function' ? (own[name] = value.bind(device)) : value; // once: some tests count what a token allocates
        },
    });
}

/** `close` destroys its devices. */
export function keptGpu(gpu: GPU): GPU & { close(): void } {
    const all = new Map<string, Promise<KeptDevice>>(); // by what was asked for
    const deviceOf = (adapter: GPUAdapter, wanted: GPUDeviceDescriptor): Promise<GPUDevice> => {
        const key = JSON.stringify(wanted);
        const open = async (): Promise<KeptDevice> => {
            const device = await adapter.requestDevice(wanted);
            void device.lost.then(() => all.delete(key));
            return { device, modules: new Map(), texts: new Map(), pipelines: new Map() };
        };
        if (!all.has(key)) all.set(key, open());
        return all.get(key)!.then(lend);
    };
    const requestAdapter = async (options?: GPURequestAdapterOptions) => {
        const adapter = await gpu.requestAdapter(options);
        if (!adapter) return null;
        const { info, features, limits } = adapter;
        return { info, features, limits, requestDevice: (wanted: GPUDeviceDescriptor) => deviceOf(adapter, wanted) };
    };
    const close = () => all.forEach((kept) => void kept.then(({ device }) => device.destroy()));
    return { requestAdapter, wgslLanguageFeatures: gpu.wgslLanguageFeatures, close } as unknown as GPU & { close(): void };
}
