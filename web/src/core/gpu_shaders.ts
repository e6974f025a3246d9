// Pipelines from WGSL texts. They compile in the background, several at once and each once, and live as long as the host.

const MOST_COMPILING = 16;
const LEAST_COMPILING = 4;

export interface HostPipeline {
    label: string;
    /** null until it is compiled. */
    made: GPUComputePipeline | null;
    /** Why it was refused. */
    failed: string | null;
}

export interface ShaderOwner {
    happened(): void;
    /** Settles once the failure is reported, or the loss of the device that caused it. */
    pipelineFailed(internal: boolean, reason: string): Promise<void>;
}

export class Shaders {
    readonly #device: GPUDevice;
    readonly #owner: ShaderOwner;
    readonly #pipelines = new Map<string, HostPipeline>(); // by text and constants
    readonly #modules = new Map<string, GPUShaderModule>(); // by text; kept while pipelines compile
    #waiting: (() => Promise<void>)[] = [];
    #compiling = 0;
    #closed = false;

    constructor(device: GPUDevice, owner: ShaderOwner) {
        this.#device = device;
        this.#owner = owner;
    }

    get count(): number {
        return this.#pipelines.size;
    }

    /** How many are neither compiled nor refused. */
    get pending(): number {
        return this.#waiting.length + this.#compiling;
    }

    /** The same text and constants give the same pipeline. */
    pipeline(label: string, wgsl: string, constants: Record<string, number>): HostPipeline {
        const key = `${JSON.stringify(constants)}\n${wgsl}`;
        const known = this.#pipelines.get(key);
        if (known) return known;
        const module = this.#module(label, wgsl);
        const pipeline: HostPipeline = { label, made: null, failed: null };
        this.#pipelines.set(key, pipeline);
        this.#waiting.push(() => this.#compile(pipeline, module, constants));
        this.#next();
        return pipeline;
    }

    /** Drops what waits to be compiled. */
    close(): void {
        this.#closed = true;
        this.#waiting = [];
    }

    // A few at a time: Firefox compiles between other commands, which must not wait for all pipelines.
    #next(): void {
        const most = Math.min(Math.max(globalThis.navigator?.hardwareConcurrency ?? 0, LEAST_COMPILING), MOST_COMPILING);
        while (this.#compiling < most && this.#waiting.length > 0) {
            this.#compiling++;
            void this.#waiting.shift()!().then(() => {
                this.#compiling--;
                if (this.#closed) return;
                this.#next();
                if (this.pending === 0) this.#modules.clear();
                this.#owner.happened();
            });
        }
    }

    async #compile(pipeline: HostPipeline, module: GPUShaderModule, constants: Record<string, number>): Promise<void> {
        try {
            pipeline.made = await this.#device.createComputePipelineAsync({
                label: pipeline.label,
                layout: 'auto',
                compute: { module, entryPoint: 'main', constants },
            });
        } catch (thrown) {
            const { message, reason } = thrown as { message?: string; reason?: string };
            const mistake = (await firstMistake(pipeline.label, module)) ?? `shader ${pipeline.label}: ${message ?? String(thrown)}`;
            if (!this.#closed) await this.#owner.pipelineFailed(reason === 'internal', mistake);
            pipeline.failed = mistake;
        }
    }

    #module(label: string, wgsl: string): GPUShaderModule {
        let module = this.#modules.get(wgsl);
        if (!module) {
            this.#device.pushErrorScope('validation'); // the pipeline reports the error
            module = this.#device.createShaderModule({ label, code: wgsl });
            this.#device.popErrorScope().catch(() => null);
            this.#modules.set(wgsl, module);
        }
        return module;
    }
}

// "label:line:column: message" of the first error; later ones often only follow from it.
async function firstMistake(label: string, module: GPUShaderModule): Promise<string | null> {
    try {
        const { messages } = await module.getCompilationInfo();
        const first = messages.find((m) => m.type === 'error');
        return first ? `${label}:${first.lineNum}:${first.linePos}: ${first.message}` : null;
    } catch {
        return null; // the device is lost
    }
}
