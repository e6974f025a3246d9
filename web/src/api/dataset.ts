/* Examples to learn from: `engine.dataset`. */

import type { DataOptions, DataPreview, DataProgress, DataReport } from '../core/types.ts';
import type { Connection } from '../worker/connection.ts';

export interface DatasetOptions extends DataOptions {
    signal?: AbortSignal;
    onProgress?(progress: DataProgress): void;
}

/** Examples that were read: what is in them, and how the model sees each. */
export class Dataset {
    readonly report: DataReport;
    readonly #connection: Connection;
    readonly #id: number;

    /** @internal */
    constructor(connection: Connection, id: number, report: DataReport) {
        this.#connection = connection;
        this.#id = id;
        this.report = report;
    }

    /** Example `index`, from 0 on, as the model sees it, and what of it counts. */
    preview(index: number): Promise<DataPreview> {
        return this.#connection.call('dataPreview', { dataset: this.#id, index });
    }

    async free(): Promise<void> {
        if (!this.#connection.dead) await this.#connection.call('dataFree', { dataset: this.#id });
    }

    [Symbol.asyncDispose](): Promise<void> {
        return this.free();
    }
}
