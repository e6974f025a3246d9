/* The trainings that run in the worker. Each goes on beside sessions and other operations, step by step, also while the page is hidden.
 *
 * The state that is kept from time to time goes into the browser's storage. After a lost device the training goes on from there on the
 * new one. */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import type { CoreEngineLike, CoreTrainingLike, TrainingSettings, TrainingState } from '../core/types.ts';
import { TrainingStore, withTraining } from '../sources/training_store.ts';
import { readData } from './datasets.ts';
import type { DataSpec, TrainArgs, TrainingEvent, TrainingOutcome } from './protocol.ts';

/** What a training needs from the worker's host. */
export interface TrainingHost {
    /** The engine, on a new device if the last one was lost. */
    ready(): Promise<CoreEngineLike>;
    /** Whether an error came from a lost device. */
    lost(engine: CoreEngineLike, error: GemmuleError): boolean;
}

interface RunningTraining {
    stopped: boolean;
    core: CoreTrainingLike | null;
    /** Settles when the training may go on. */
    pause: { over: Promise<void>; end(): void } | null;
}

/* What a training goes on from. */
interface TrainingPlan {
    name: string;
    data: DataSpec;
    settings: TrainingSettings;
    checkpoint: Uint8Array<ArrayBuffer> | null;
    store: TrainingStore | null;
}

interface KeptState {
    state: TrainingState;
    adapter: Uint8Array<ArrayBuffer>;
}

const MOST_LOSSES = 4; // lost devices without a step between them

export class Trainings {
    readonly #host: TrainingHost;
    readonly #running = new Map<number, RunningTraining>();

    constructor(host: TrainingHost) {
        this.#host = host;
    }

    control(id: number, action: 'pause' | 'resume' | 'stop'): void {
        const training = this.#running.get(id);
        if (!training) return;
        if (action === 'pause') {
            if (!training.pause && !training.stopped) training.pause = pause();
            return;
        }
        training.pause?.end();
        training.pause = null;
        if (action === 'resume') return;
        training.stopped = true;
        training.core?.stop();
    }

    async run(args: TrainArgs, signal: AbortSignal, emit: (event: TrainingEvent) => void): Promise<TrainingOutcome> {
        const running: RunningTraining = { stopped: false, core: null, pause: null };
        const stop = () => this.control(args.training, 'stop');
        this.#running.set(args.training, running);
        signal.addEventListener('abort', stop);
        if (signal.aborted) stop();
        try {
            const { name, data, settings } = args, store = args.store ? await TrainingStore.open() : null;
            if (!store) return await this.#work({ name, data: data!, settings, checkpoint: null, store }, running, emit);
            return await withTraining(name, async () => this.#work(await this.#plan(args, store), running, emit));
        } finally {
            signal.removeEventListener('abort', stop);
            this.#running.delete(args.training);
        }
    }

    async #plan({ name, data, settings }: TrainArgs, store: TrainingStore): Promise<TrainingPlan> {
        const { info } = await this.#host.ready();
        if (data) {
            await store.create(name, { name: info.name, digest: info.digest }, settings, data);
            return { name, data, settings, checkpoint: null, store };
        }
        const { kept, ...rest } = await store.read(name);
        if (kept.model.digest !== info.digest) {
            throw new GemmuleError('BadArgument', `the training '${name}' belongs to the model ${kept.model.name}, not to ${info.name}: load that one to go on`);
        }
        return { name, settings: kept.settings, store, ...rest };
    }

    async #work(plan: TrainingPlan, running: RunningTraining, emit: (event: TrainingEvent) => void): Promise<TrainingOutcome> {
        const files = await readData(plan.data, new AbortController().signal);
        let kept: KeptState | null = null;
        for (let losses = 0, step = -1; ; ) {
            const engine = await this.#host.ready();
            try {
                const core = engine.train(files, { ...plan.settings, name: plan.name }, plan.checkpoint);
                running.core = core;
                if (running.stopped) core.stop();
                try {
                    return await this.#steps(core, plan, running, emit, (state) => (kept = state));
                } finally {
                    running.core = null;
                    core.free();
                }
            } catch (thrown) {
                const error = toGemmuleError(thrown), { state, adapter } = (kept ?? {}) as Partial<KeptState>;
                losses = step === (state?.keptStep ?? 0) ? losses + 1 : 0;
                step = state?.keptStep ?? 0;
                if (!this.#host.lost(engine, error) || losses > MOST_LOSSES) throw state ? afterKept(error, state, adapter!, plan) : error;
                emit({ kind: 'lost', reason: error.message, step });
            }
        }
    }

    async #steps(
        core: CoreTrainingLike, plan: TrainingPlan, running: RunningTraining, emit: (event: TrainingEvent) => void, remember: (state: KeptState) => void,
    ): Promise<TrainingOutcome> {
        let kept: KeptState | null = null, told = plan.checkpoint === null; // what was before
        for (;;) {
            if (running.pause) {
                emit({ kind: 'paused', ...core.state });
                await running.pause.over;
                emit({ kind: 'resumed', ...core.state });
            }
            const event = await core.next();
            if (typeof event === 'string') {
                if (kept && plan.checkpoint) await this.#store(plan, kept, event, emit);
                return { name: plan.name, end: event, state: core.state, history: core.history(), adapter: kept && kept.state.keptStep > 0 ? kept.adapter : null, stored: plan.store !== null };
            }
            if (!told && event.kind !== 'data') {
                emit({ kind: 'history', ...core.history() });
                told = true;
            }
            emit(event);
            if (event.kind !== 'kept') continue;
            plan.checkpoint = core.checkpoint();
            remember((kept = { state: core.state, adapter: core.adapter() }));
            await this.#store(plan, kept, '', emit);
        }
    }

    /* A training whose state cannot be stored goes on: it is in memory. */
    async #store({ store, name, checkpoint }: TrainingPlan, { state, adapter }: KeptState, end: TrainingOutcome['end'] | '', emit: (event: TrainingEvent) => void): Promise<void> {
        if (!store) return;
        try {
            await store.keep(name, state, checkpoint!, adapter, end);
            emit({ kind: 'stored', step: state.keptStep });
        } catch (thrown) {
            const { message } = toGemmuleError(thrown, `the state after step ${state.keptStep} could not be stored`);
            emit({ kind: 'not-stored', step: state.keptStep, reason: message });
        }
    }
}

function pause(): { over: Promise<void>; end(): void } {
    let end = (): void => undefined;
    const over = new Promise<void>((resolve) => (end = resolve));
    return { over, end };
}

/* An error, and what there is of the training before it. */
function afterKept(error: GemmuleError, { keptStep }: TrainingState, adapter: Uint8Array, { name, store }: TrainingPlan): GemmuleError {
    const how = store ? `; the state after step ${keptStep} is kept: go on with { resume: '${name}' }` : `; the adapter after step ${keptStep} is in the error's detail`;
    return new GemmuleError(error.name, error.message + how, { keptStep, adapter }, { cause: error });
}
