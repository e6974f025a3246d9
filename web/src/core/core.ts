// The engine without DOM and without Worker: opens models from sources of bytes, on the GPU or on WebAssembly.

import { type Verdict, type Verdicts, measureSpeed, openFaster } from './choice.ts';
import type { CoreEngine } from './engine.ts';
import { GemmuleError, throwIfAborted, toGemmuleError } from './errors.ts';
import { type GpuDescription, GpuHost } from './gpu_host.ts';
import { Load } from './load.ts';
import { Machine } from './machine.ts';
import { wholeNumber } from './request.ts';
import { type ThreadHost, Threads, usualThreads } from './threads.ts';
import type { Backend, ByteSource, CoreLike, CoreOptions, DeviceInfo, EngineOptions, FitReport, Profiles } from './types.ts';

const MOST_THREADS = 64; // of src/base/pool_wasm.c

/** The module, and the GPU if there is one; opens engines. */
export class Core implements CoreLike {
    readonly #module: WebAssembly.Module;
    readonly #gpu: GPU | null;
    readonly #threads: ThreadHost | null;
    readonly #verdicts: Verdicts;
    readonly #profiles: Profiles | null;
    #threadModule: Promise<WebAssembly.Module> | null = null;

    static async create(options: CoreOptions): Promise<Core> {
        try {
            const given = options.wasm;
            const module = given instanceof WebAssembly.Module ? given : await WebAssembly.compile(given);
            return new Core(module, options);
        } catch (thrown) {
            const reason = thrown instanceof Error ? thrown.message : String(thrown);
            throw new GemmuleError('NotSupported', `cannot compile the engine: WebAssembly with SIMD is needed (${reason})`, undefined, {
                cause: thrown,
            });
        }
    }

    private constructor(module: WebAssembly.Module, { gpu, threads, verdicts, profiles }: CoreOptions) {
        this.#module = module;
        this.#gpu = gpu ?? null;
        this.#threads = threads ?? null;
        this.#verdicts = verdicts ?? verdictsInMemory();
        this.#profiles = profiles ?? null;
    }

    async devices(): Promise<DeviceInfo[]> {
        const threads = this.#threads ? usualThreads(this.#threads.processors) : 1;
        const wasm: DeviceInfo = {
            backend: 'wasm', name: 'WebAssembly', vendor: '', driver: '', software: true,
            features: threads > 1 ? ['simd128', 'threads'] : ['simd128'], limits: { threads },
        };
        const found = await GpuHost.describe(this.#gpu);
        if (!found) return [wasm];
        const features = (['subgroups', 'f16', 'dot4', 'timestamps', 'subgroup_matrix'] as const).filter((name) => found[name]);
        const limits: Record<string, number> = {};
        for (const [name, value] of Object.entries(found)) {
            if (typeof value === 'number') limits[name] = value;
        }
        const { name, vendor, driver, software } = found;
        return [{ backend: 'gpu', name, vendor, driver, software, features, limits }, wasm];
    }

    async dryRun(sources: ByteSource[], options: EngineOptions = {}): Promise<FitReport> {
        const { adapter } = await this.#findAdapter(options);
        const machine = await Machine.create(this.#module, null);
        try {
            const report = await new Load(machine, sources, options, adapter !== null).fit(adapter?.max_binding ?? 0);
            return { ...report, backend: adapter ? 'gpu' : 'wasm' };
        } finally {
            machine.close(new GemmuleError('Aborted', 'the dry run is over'));
        }
    }

    async open(sources: ByteSource[], options: EngineOptions = {}): Promise<CoreEngine> {
        throwIfAborted(options.signal);
        const { adapter, reason } = await this.#findAdapter(options);
        if (adapter && (options.backend ?? 'auto') === 'auto') {
            return openFaster<CoreEngine>({
                sources, options, gpu: adapter, verdicts: this.#verdicts, measure: measureSpeed,
                threads: options.threads ?? usualThreads(this.#threads?.processors ?? 1),
                open: (backend, given) => this.#openOn(backend, sources, given),
            });
        }
        const engine = await this.#openOn(adapter ? 'gpu' : 'wasm', sources, options);
        engine.info.backendReason = reason;
        return engine;
    }

    async #openOn(backend: Backend, sources: ByteSource[], options: EngineOptions): Promise<CoreEngine> {
        const gpu = backend === 'gpu' ? await GpuHost.open(this.#gpu!, { powerPreference: options.powerPreference }) : null;
        let machine: Machine | null = null;
        try {
            machine = gpu ? await Machine.create(this.#module, gpu) : await this.#wasmMachine(options.threads);
            const engine = await new Load(machine, sources, options, gpu !== null).finish();
            if (this.#profiles) await engine.rememberExperts(this.#profiles, options.signal);
            return engine;
        } catch (thrown) {
            const failed = toGemmuleError(thrown);
            machine?.close(failed);
            gpu?.close();
            throw failed;
        }
    }

    // The adapter to use; null: wasm. A software adapter is slower than wasm, so only a caller who asks for the GPU gets one.
    async #findAdapter(options: EngineOptions): Promise<{ adapter: GpuDescription | null; reason: string }> {
        const wanted = options.backend ?? 'auto';
        if (wanted === 'wasm') return { adapter: null, reason: 'requested' };
        const adapter = await GpuHost.describe(this.#gpu, { powerPreference: options.powerPreference });
        const usable = adapter && (!adapter.software || (options.softwareGpu ?? wanted === 'gpu'));
        const reason = usable ? 'requested' : whyNoGpu(this.#gpu, adapter);
        if (!usable && wanted === 'gpu') throw new GemmuleError('NoWebGPU', `${reason}; backend: 'wasm' runs the model on the CPU`);
        return { adapter: usable ? adapter : null, reason };
    }

    // If threads cannot be started, one thread computes: slower, with the same results.
    async #wasmMachine(wished: number | undefined): Promise<Machine> {
        const host = this.#threads;
        const count = wished === undefined ? usualThreads(host?.processors ?? 1) : wholeNumber(wished, 'threads', 1, MOST_THREADS);
        if (!host || count === 1) return Machine.create(this.#module, null);
        let threads: Threads | null = null;
        try {
            const module = await (this.#threadModule ??= host.compile());
            threads = await Threads.start(host, module, count);
            return await Machine.create(module, null, threads);
        } catch (thrown) {
            threads?.close();
            this.#threadModule = null;
            const machine = await Machine.create(this.#module, null);
            machine.note = `running on 1 thread instead of ${count}: ${toGemmuleError(thrown).message}`;
            return machine;
        }
    }
}

function whyNoGpu(gpu: GPU | null, adapter: GpuDescription | null): string {
    if (!gpu) return 'WebGPU is not available here';
    if (adapter) return `the only GPU is ${adapter.name}, which is software and slower than wasm`;
    return 'WebGPU found no graphics adapter: its driver may be missing or blocked';
}

function verdictsInMemory(): Verdicts {
    const known = new Map<string, Verdict>();
    return { get: async (key) => known.get(key), set: async (key, verdict) => known.set(key, verdict) };
}
