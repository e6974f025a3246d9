// Pipelines from WGSL texts. createComputePipelineAsync compiles several at once. Bind groups do not wait for it: a pipeline's layout is made
// from the bindings of its first bind group, and the text says of which kind each is.

import type { HostPipeline } from './gpu_list.ts';

const STAGE_COMPUTE = 0x4;
const BINDING = /@group\(\s*0\s*\)\s*@binding\(\s*(\d+)\s*\)\s*var\s*<\s*(storage|uniform)\s*(?:,\s*(read_write|read))?\s*>/g;

interface Shader {
    module: GPUShaderModule;
    /** By binding number. A text may declare more than its main function uses. */
    kinds: Map<number, GPUBufferBindingType>;
    pipelines: Map<string, HostPipeline>;
}

export interface ShaderOwner {
    happened(): void;
    pipelineFailed(internal: boolean, reason: string): void;
}

export class Shaders {
    readonly #device: GPUDevice;
    readonly #owner: ShaderOwner;
    readonly #shaders = new Map<string, Shader>();
    readonly #groups = new Map<string, GPUBindGroupLayout>();

    constructor(device: GPUDevice, owner: ShaderOwner) {
        this.#device = device;
        this.#owner = owner;
    }

    /** The same text and constants give the same pipeline, with one more reference. It is compiled only once, even if nobody refers to it
     * in between. */
    pipeline(label: string, wgsl: string, constants: Record<string, number>): HostPipeline {
        const shader = this.#shader(label, wgsl);
        const key = JSON.stringify(constants);
        const known = shader.pipelines.get(key);
        if (known) {
            known.references++;
            return known;
        }
        const pipeline: HostPipeline = {
            label,
            made: null,
            failed: false,
            references: 1,
            bind: (bindings) => {
                const group = this.#groupLayout(shader, bindings);
                if (!compiling) void this.#compile(pipeline, shader.module, group, constants);
                compiling = true;
                return group;
            },
            forget: () => {
                // Compiled pipelines stay: the next session, or this one with a larger cache, needs them again.
                if (pipeline.made) return;
                shader.pipelines.delete(key);
                if (shader.pipelines.size === 0) this.#shaders.delete(wgsl);
            },
        };
        let compiling = false;
        shader.pipelines.set(key, pipeline);
        return pipeline;
    }

    async #compile(pipeline: HostPipeline, module: GPUShaderModule, group: GPUBindGroupLayout, constants: Record<string, number>): Promise<void> {
        try {
            pipeline.made = await this.#device.createComputePipelineAsync({
                label: pipeline.label,
                layout: this.#device.createPipelineLayout({ bindGroupLayouts: [group] }),
                compute: { module, entryPoint: 'main', constants },
            });
            this.#owner.happened();
        } catch (thrown) {
            const { message, reason } = thrown as { message?: string; reason?: string };
            const mistake = await firstMistake(pipeline.label, module);
            pipeline.failed = true;
            this.#owner.pipelineFailed(reason === 'internal', mistake ?? `shader ${pipeline.label}: ${message ?? String(thrown)}`);
        }
    }

    #shader(label: string, wgsl: string): Shader {
        const known = this.#shaders.get(wgsl);
        if (known) return known;
        // The pipeline reports the error.
        this.#device.pushErrorScope('validation');
        const module = this.#device.createShaderModule({ label, code: wgsl });
        this.#device.popErrorScope().catch(() => null);
        const shader: Shader = { module, kinds: new Map(), pipelines: new Map() };
        for (const [, binding, space, access] of wgsl.matchAll(BINDING)) {
            const kind = space === 'uniform' ? 'uniform' : access === 'read_write' ? 'storage' : 'read-only-storage';
            shader.kinds.set(Number(binding), kind);
        }
        this.#shaders.set(wgsl, shader);
        return shader;
    }

    #groupLayout(shader: Shader, bindings: number[]): GPUBindGroupLayout {
        const entries = bindings.map((binding): GPUBindGroupLayoutEntry => {
            return { binding, visibility: STAGE_COMPUTE, buffer: { type: shader.kinds.get(binding) ?? 'read-only-storage' } };
        });
        const key = entries.map((e) => `${e.binding} ${e.buffer?.type}`).join();
        let group = this.#groups.get(key);
        if (!group) {
            group = this.#device.createBindGroupLayout({ entries });
            this.#groups.set(key, group);
        }
        return group;
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
