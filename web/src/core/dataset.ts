// Examples to learn from: what is in a file of them, and how the model sees each.

import { GemmuleError } from './errors.ts';
import type { Machine } from './machine.ts';
import { wholeNumber } from './request.ts';
import type { CoreDatasetLike, DataFile, DataOptions, DataPreview, DataProgress, DataReport } from './types.ts';

/** Files in the module's memory: the examples, then the pictures and sounds that they name. Free them with `gmw_data_free`. */
export function copyData(machine: Machine, files: readonly DataFile[]): number {
    const { wasm } = machine, { training, context } = wasm;
    machine.check();
    if (!files.length) throw new GemmuleError('BadArgument', 'no file of examples given');
    const data = training.gmw_data_new() >>> 0;
    if (!data) throw new GemmuleError('OutOfMemory', 'out of memory for the examples');
    try {
        for (const { path, bytes } of files) {
            const at = wasm.alloc(bytes.length + 1);
            wasm.put(at, bytes);
            machine.call(wasm.withText(path, (name) => training.gmw_data_add(context, data, name, at, bytes.length)));
        }
        return data;
    } catch (thrown) {
        training.gmw_data_free(data);
        throw thrown;
    }
}

export class CoreDataset implements CoreDatasetLike {
    readonly report: DataReport;
    readonly #machine: Machine;
    readonly #engine: number;
    readonly #data: number;
    readonly #dataset: number;
    #freed = false;

    static async read(
        machine: Machine, engine: number, files: readonly DataFile[], options: DataOptions, signal?: AbortSignal, onProgress?: (progress: DataProgress) => void,
    ): Promise<CoreDataset> {
        const { wasm } = machine, { training, context } = wasm;
        const data = copyData(machine, files);
        let dataset = 0;
        try {
            dataset = machine.make((out) => wasm.withText(JSON.stringify(options), (at, length) => training.gmw_dataset_new(context, engine, data, at, length, out)));
            await machine.drive(() => {
                const status = training.gmw_dataset_scan(context, dataset);
                if (onProgress) {
                    training.gmw_dataset_progress(dataset, wasm.scratch);
                    const [done, total] = wasm.numbers(2) as [number, number];
                    onProgress({ phase: 'examples', done, total });
                }
                return status;
            }, signal);
            return new CoreDataset(machine, engine, data, dataset);
        } catch (thrown) {
            const problem = machine.closed ? thrown : withProblems(machine, dataset, thrown);
            machine.release(() => {
                if (dataset) training.gmw_dataset_free(dataset);
                training.gmw_data_free(data);
            });
            throw problem;
        }
    }

    private constructor(machine: Machine, engine: number, data: number, dataset: number) {
        const { wasm } = machine;
        this.#machine = machine;
        this.#engine = engine;
        this.#data = data;
        this.#dataset = dataset;
        machine.call(wasm.training.gmw_dataset_info(wasm.context, dataset));
        this.report = wasm.resultJson();
    }

    preview(index: number): DataPreview {
        const { wasm } = this.#machine;
        this.#machine.check();
        if (this.#freed) throw new GemmuleError('BadArgument', 'the examples were freed');
        this.#machine.call(wasm.training.gmw_dataset_preview(wasm.context, this.#engine, this.#dataset, wholeNumber(index, 'the number of an example')));
        const { sequences, ...rest } = wasm.resultJson<Omit<DataPreview, 'sequences'> & { sequences: (Omit<DataPreview['sequences'][0], 'parts'> & { text: string })[] }>();
        return { ...rest, sequences: sequences.map(({ text, ...sequence }) => ({ ...sequence, parts: partsOf(text) })) };
    }

    free(): void {
        if (this.#freed) return;
        this.#freed = true;
        const { training } = this.#machine.wasm;
        this.#machine.release(() => {
            training.gmw_dataset_free(this.#dataset);
            training.gmw_data_free(this.#data);
        });
    }
}

/* What counts is between U+0001 and U+0002. */
function partsOf(text: string): { text: string; counts: boolean }[] {
    const parts = text.split(/[\u0001\u0002]/).map((part, at) => ({ text: part, counts: at % 2 === 1 }));
    return parts.filter((part) => part.text !== '');
}

/* A bad file: the error has all bad lines that are known. */
function withProblems(machine: Machine, dataset: number, thrown: unknown): unknown {
    if (!(thrown instanceof GemmuleError) || thrown.name !== 'BadModel') return thrown;
    const { wasm } = machine;
    const known = dataset !== 0 && wasm.training.gmw_dataset_problems(wasm.context, dataset) === 0;
    return new GemmuleError('BadData', thrown.message, { problems: known ? wasm.resultJson<string[]>() : [] }, { cause: thrown });
}
