// A training of an engine, step by step.

import { copyData } from './dataset.ts';
import { GemmuleError } from './errors.ts';
import { AGAIN, DONE, type Machine } from './machine.ts';
import type { CoreTrainingEvent, CoreTrainingLike, DataFile, TrainingEnd, TrainingHistory, TrainingSettings, TrainingState } from './types.ts';

const KINDS: CoreTrainingEvent['kind'][] = ['data', 'start', 'step', 'evaluation', 'kept'];
const ENDS: TrainingEnd[] = ['complete', 'complete', 'patience', 'stopped'];
const NUMBERS = 21; // of an event: gmw_training_next
const NOTHING = new Uint8Array();

export class CoreTraining implements CoreTrainingLike {
    readonly #machine: Machine;
    readonly #data: number;
    readonly #training: number;
    #state: TrainingState;
    #freed = false;

    constructor(machine: Machine, engine: number, files: readonly DataFile[], settings: TrainingSettings & { name?: string }, checkpoint: Uint8Array | null) {
        const { wasm } = machine, { training, context } = wasm;
        this.#machine = machine;
        this.#data = copyData(machine, files);
        this.#state = stateOf(new Array<number>(NUMBERS).fill(0));
        try {
            this.#training = machine.make((out) =>
                wasm.withText(JSON.stringify(settings), (at, length) =>
                    wasm.with(checkpoint ?? NOTHING, (saved, size) =>
                        machine.guard(() => training.gmw_training_new(context, engine, this.#data, at, length, saved, size, out)))));
        } catch (thrown) {
            machine.release(() => training.gmw_data_free(this.#data));
            throw thrown;
        }
    }

    get state(): TrainingState {
        return this.#state;
    }

    async next(): Promise<CoreTrainingEvent | TrainingEnd> {
        const { wasm } = this.#machine, { training, context } = wasm;
        this.#check();
        if (this.#machine.breathless) await this.#machine.breathe(); // small models never wait, and could not be stopped
        for (;;) {
            const status = this.#step(() => training.gmw_training_next(context, this.#training, wasm.scratch));
            const numbers = wasm.numbers(NUMBERS);
            this.#state = stateOf(numbers);
            if (status === DONE) return ENDS[numbers[1]!] ?? 'complete';
            if (status !== AGAIN) return { kind: KINDS[numbers[0]!]!, ...this.#state };
            await this.#machine.rest();
        }
    }

    /* A bad file is that of the examples. */
    #step(call: () => number): number {
        try {
            return this.#machine.step(call);
        } catch (thrown) {
            if (!(thrown instanceof GemmuleError) || thrown.name !== 'BadModel') throw thrown;
            throw new GemmuleError('BadData', thrown.message, { problems: [thrown.message] }, { cause: thrown });
        }
    }

    stop(): void {
        if (this.#freed || this.#machine.closed) return;
        this.#machine.wasm.training.gmw_training_stop(this.#training);
        this.#machine.wake();
    }

    checkpoint(): Uint8Array<ArrayBuffer> {
        return this.#saved('gmw_training_checkpoint');
    }

    adapter(): Uint8Array<ArrayBuffer> {
        return this.#saved('gmw_training_adapter');
    }

    #saved(what: 'gmw_training_checkpoint' | 'gmw_training_adapter'): Uint8Array<ArrayBuffer> {
        const { wasm } = this.#machine, { scratch, context, training } = wasm;
        this.#check();
        this.#machine.call(this.#machine.guard(() => training[what](context, this.#training, scratch, scratch + 4)));
        const [at, size] = this.#words(2) as [number, number];
        const bytes = wasm.view(at, size).slice() as Uint8Array<ArrayBuffer>;
        wasm.free(at);
        return bytes;
    }

    history(): TrainingHistory {
        const { wasm } = this.#machine, { scratch, training } = wasm;
        this.#check();
        const count = training.gmw_training_losses(this.#training, scratch);
        const [at] = this.#words(1) as [number];
        const losses = new Float32Array(wasm.view(at, 4 * count).slice().buffer as ArrayBuffer);
        const evaluations = training.gmw_training_evaluations(this.#training, scratch, scratch + 4);
        const [found, steps] = this.#words(2) as [number, number];
        const values = new Float32Array(wasm.view(found, 4 * evaluations).slice().buffer);
        const after = new BigUint64Array(wasm.view(steps, 8 * evaluations).slice().buffer);
        return { losses, evaluations: [...values].map((loss, i) => ({ step: Number(after[i]), loss })) };
    }

    #words(count: number): number[] {
        return Array.from(new Uint32Array(this.#machine.wasm.exports.memory.buffer, this.#machine.wasm.scratch, count));
    }

    #check(): void {
        this.#machine.check();
        if (this.#freed) throw new GemmuleError('BadArgument', 'the training was freed');
    }

    free(): void {
        if (this.#freed) return;
        this.#freed = true;
        const { training } = this.#machine.wasm;
        this.#machine.release(() => {
            training.gmw_training_free(this.#training);
            training.gmw_data_free(this.#data);
        });
    }
}

/* NaN: not known. */
function stateOf(numbers: readonly number[]): TrainingState {
    const at = (index: number): number => numbers[index] ?? 0;
    const known = (index: number): number | null => (Number.isFinite(at(index)) ? at(index) : null);
    return {
        step: at(2), steps: at(3), epoch: at(4), epochs: at(5), loss: known(6), evalLoss: known(7), perplexity: known(8), bestEvalLoss: known(9), accuracy: known(10),
        rate: at(11), norm: known(12), tokensPerSecond: known(13) ?? 0, seconds: at(14), secondsLeft: known(15), tokens: at(16), memory: at(17), keptStep: at(18),
    };
}
