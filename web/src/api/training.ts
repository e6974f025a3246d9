/* Training: `engine.train`.
 *
 *     const training = engine.train({ name: 'capitals', data: [{ prompt: 'Capital of Lamaria?', completion: 'Bovenna.' }, …] });
 *     for await (const event of training) if (event.kind === 'step') console.log(event.step, event.loss, event.secondsLeft);
 *     const { adapter } = await training.result;
 *     await engine.adapters.load(adapter, { keep: true });
 */

import { GemmuleError } from '../core/errors.ts';
import type { TrainingSettings } from '../core/types.ts';
import { type DataSource, specifyData } from '../sources/data.ts';
import { askPersistence } from '../sources/persist.ts';
import { TrainingStore } from '../sources/training_store.ts';
import type { Connection, Stream } from '../worker/connection.ts';
import type { TrainArgs, TrainingEvent, TrainingOutcome } from '../worker/protocol.ts';

export type TrainingOptions = {
    /** Stops the training after its current step. */
    signal?: AbortSignal;
} & (
    | ({ resume?: undefined; data: DataSource; /** Of the adapter, and of the training that is kept. */ name?: string;
        /** Whether the training is kept in this browser while it runs, so that it can go on after a reload; by default where there is storage. */
        store?: boolean } & TrainingSettings)
    /** Goes on with the training of this name that is kept in this browser. */
    | { resume: string }
);

/** How a training ended. `adapter`: a GGUF file for `engine.adapters`; null: it was stopped before there was one. */
export type TrainingResult = Omit<TrainingOutcome, 'adapter'> & { adapter: File | null };

let last = 0;

/** A training that runs. Its events are for one reader. */
export class Training implements AsyncIterable<TrainingEvent> {
    readonly name: string;
    readonly #connection: Connection;
    readonly #id = ++last;
    readonly #stream: Stream<TrainingEvent, TrainingOutcome>;
    readonly #asked: Promise<TrainArgs>;
    /** Settles at the end. An error's `detail` has `keptStep` and `adapter`, the state before it, if there is one. */
    readonly result: Promise<TrainingResult>;

    /** @internal */
    constructor(connection: Connection, options: TrainingOptions) {
        this.#connection = connection;
        this.name = checkName(options.resume ?? (options as { name?: string }).name ?? 'adapter');
        this.#asked = this.#args(options);
        this.#stream = connection.stream('train', this.#asked);
        options.signal?.addEventListener('abort', () => void this.stop());
        if (options.signal?.aborted) void this.stop();
        this.result = this.#stream.result().then(({ adapter, ...outcome }) => ({ ...outcome, adapter: adapter && new File([adapter], `${this.name}.gguf`) }));
        this.result.catch(() => undefined); // the events report it, too
    }

    async #args({ signal: _, ...options }: TrainingOptions): Promise<TrainArgs> {
        const wire = { training: this.#id, name: this.name };
        if (options.resume !== undefined) return { ...wire, data: null, settings: {}, store: true };
        const { data, name: __, store = TrainingStore.possible, resume: ___, ...settings } = options;
        if (store) void askPersistence();
        return { ...wire, data: await specifyData(data), settings, store };
    }

    [Symbol.asyncIterator](): AsyncGenerator<TrainingEvent, TrainingOutcome> {
        return this.#stream.events;
    }

    /** Waits after the current step, or part of one. */
    pause(): Promise<void> {
        return this.#control('pause');
    }

    resume(): Promise<void> {
        return this.#control('resume');
    }

    /** Ends after the current step; its state is kept, and `result` has the adapter. */
    stop(): Promise<void> {
        return this.#control('stop');
    }

    async #control(action: 'pause' | 'resume' | 'stop'): Promise<void> {
        await this.#asked.catch(() => undefined); // then the training itself was asked for
        if (!this.#connection.dead) await this.#connection.call('trainControl', { training: this.#id, action });
    }
}

function checkName(name: string): string {
    if (typeof name !== 'string' || name.trim() === '') throw new GemmuleError('BadArgument', 'the name of a training must be a text');
    if (/[+/\\]/.test(name)) throw new GemmuleError('BadArgument', `the name '${name}' must not have '+', '/' or '\\'`);
    return name;
}
