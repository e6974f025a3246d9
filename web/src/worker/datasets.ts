/* The examples that the worker holds. After a lost device they are read again when they are next used. */

import { GemmuleError, throwIfAborted, toGemmuleError } from '../core/errors.ts';
import type { CoreDatasetLike, CoreEngineLike, DataFile, DataOptions, DataPreview, DataProgress, DataReport } from '../core/types.ts';
import type { DataSpec } from './protocol.ts';

interface HeldDataset {
    data: DataSpec;
    options: DataOptions;
    core: CoreDatasetLike;
    /** The one that has read them. */
    engine: CoreEngineLike;
}

/** The bytes of all files: the examples, then what they name. */
export async function readData({ name, blob, media }: DataSpec, signal: AbortSignal): Promise<DataFile[]> {
    const files: DataFile[] = [];
    for (const [path, content] of [[name, blob] as const, ...media.map((file) => [file.path, file.blob] as const)]) {
        throwIfAborted(signal);
        try {
            files.push({ path, bytes: new Uint8Array(await content.arrayBuffer()) });
        } catch (thrown) {
            throw toGemmuleError(thrown, `cannot read ${path}; has it changed since it was chosen?`);
        }
    }
    return files;
}

export class HeldDatasets {
    readonly #held = new Map<number, HeldDataset>();
    #last = 0;

    async open(
        engine: CoreEngineLike, data: DataSpec, options: DataOptions, signal: AbortSignal, onProgress: (progress: DataProgress) => void,
    ): Promise<{ dataset: number; report: DataReport }> {
        const core = await engine.dataset(await readData(data, signal), options, signal, onProgress);
        this.#held.set(++this.#last, { data, options, core, engine });
        return { dataset: this.#last, report: core.report };
    }

    async preview(engine: CoreEngineLike, id: number, index: number, signal: AbortSignal): Promise<DataPreview> {
        const held = this.#held.get(id);
        if (!held) throw new GemmuleError('BadArgument', `there are no examples ${id}; were they freed?`);
        if (held.engine !== engine) {
            held.core = await engine.dataset(await readData(held.data, signal), held.options, signal);
            held.engine = engine;
        }
        return held.core.preview(index);
    }

    free(id: number): void {
        this.#held.get(id)?.core.free();
        this.#held.delete(id);
    }

    clear(): void {
        this.#held.clear();
    }
}
