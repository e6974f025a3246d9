// Opening a model: a job that reads its sources, from the header to the last weight.

import { CoreEngine } from './engine.ts';
import { GemmuleError } from './errors.ts';
import { AGAIN, type Machine, OK } from './machine.ts';
import { Reads } from './reads.ts';
import type { ByteSource, EngineOptions, FitReport, LoadProgress } from './types.ts';

const PHASES: LoadProgress['phase'][] = ['header', 'check', 'weights', 'shaders', 'plans'];

/** The job, which ends with its machine or becomes an engine. */
export class Load {
    readonly #machine: Machine;
    readonly #options: EngineOptions;
    readonly #load: number;

    constructor(machine: Machine, sources: ByteSource[], options: EngineOptions, onGpu: boolean) {
        if (!sources.length) throw new GemmuleError('BadArgument', 'a model needs at least one source');
        const { wasm, gpu, threads } = machine;
        const { name, ollama, precise, gpuMemory, gpuExperts, wasmMemory, gpuDisable, projector } = options;
        const text = JSON.stringify({ ...ollama, name, precise, gpuMemory, gpuExperts, wasmMemory, gpuDisable, projector, gpu: onGpu, threads: threads?.count });
        const sizes = new Uint8Array(new Float64Array(sources.map((source) => source.size)).buffer);
        const load = machine.make((out) =>
            wasm.withText(text, (at, length) =>
                wasm.with(sizes, (list) => wasm.exports.gmw_load_new(wasm.context, at, length, list, sources.length, out)),
            ),
        );
        machine.reads = new Reads(wasm, gpu, sources, wasm.exports.gmw_load_reads(load), wasm.exports.gmw_load_file(load), () => machine.wake());
        this.#machine = machine;
        this.#options = options;
        this.#load = load;
    }

    /** Reads the header only. Returns whether the model fits into memory, on the GPU if `maxBinding` is not 0. */
    async fit(maxBinding: number): Promise<Omit<FitReport, 'backend'>> {
        const { wasm } = this.#machine;
        await this.#machine.drive(() => wasm.exports.gmw_load_header(wasm.context, this.#load), this.#options.signal);
        this.#machine.call(wasm.exports.gmw_load_fit(wasm.context, this.#load, maxBinding));
        return wasm.resultJson();
    }

    /** Reads everything. */
    async finish(): Promise<CoreEngine> {
        const { wasm } = this.#machine;
        await this.#machine.drive(() => {
            const status = wasm.exports.gmw_load_step(wasm.context, this.#load);
            if (status === OK || status === AGAIN) this.#tell();
            return status;
        }, this.#options.signal);
        const engine = wasm.exports.gmw_load_take(this.#load);
        wasm.exports.gmw_load_free(this.#load);
        return new CoreEngine(this.#machine, engine);
    }

    #tell(): void {
        const { onProgress } = this.#options;
        if (!onProgress) return;
        const { wasm } = this.#machine;
        wasm.exports.gmw_load_progress(this.#load, wasm.scratch);
        const [phase, done, total] = wasm.numbers(3) as [number, number, number];
        onProgress({ phase: PHASES[phase]!, done, total });
    }
}
