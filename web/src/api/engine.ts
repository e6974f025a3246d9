/* Loading models, and the loaded model. */

import { GemmuleError } from '../core/errors.ts';
import type {
    Backend, DeviceInfo, EngineInfo, EngineStats, FitReport, KeyValueType, Message, ReplyOptions, Sampling, SessionOptions,
} from '../core/types.ts';
import { partTokens, plainMessages, withoutMedia } from '../media/parts.ts';
import type { Connection } from '../worker/connection.ts';
import type { DeviceEvent, LoadArgs, LoadResult, Progress } from '../worker/protocol.ts';
import { adapterLayer, specifyAdapter } from '../sources/adapter.ts';
import { type DataSource, specifyData } from '../sources/data.ts';
import { type AdapterChoice, Adapters, wireAdapters } from './adapters.ts';
import { Chat } from './chat.ts';
import { Dataset, type DatasetOptions } from './dataset.ts';
import type { Connect, WorkerOptions } from './connect.ts';
import { Session, tokenIds, wireOptions } from './session.ts';
import { type SourceOptions, type Specified } from './source.ts';
import { Training, type TrainingOptions } from './training.ts';

export interface LoadOptions extends SourceOptions, WorkerOptions {
    /** 'auto', the default: a hardware GPU or wasm, whichever writes this model faster (`info.backendReason` says why).
     * 'gpu': any GPU, also a software one such as SwiftShader. 'wasm': the CPU. */
    backend?: 'auto' | Backend;
    /** Most tokens of a conversation; by default an Ollama model's `num_ctx`, else the model's context, at most 8192. */
    context?: number;
    /** Type of the keys and values: f16 by default. */
    kv?: KeyValueType;
    /** Computes in f32 throughout: slower, and exact compared with the reference. A diffusion model then writes the same text on every backend. */
    precise?: boolean;
    /** Bytes of GPU memory to use. Weights that do not fit are read from the source when they are needed. */
    gpuMemory?: number;
    /** Experts of each layer that the GPU holds at once; they are read when they are used. By default all are there from the beginning, or as
     * many as fit `gpuMemory`. */
    gpuExperts?: number;
    /** Threads on wasm, in Node and on cross-origin isolated pages; by default as many as the processor can use. 1: off. */
    threads?: number;
    /** GPU features not to use, such as 'subgroups,f16'. */
    gpuDisable?: string;
    powerPreference?: GPUPowerPreference;
    /** A name for the model. */
    name?: string;
    /** What Ollama has beside the weights, for its files loaded by address: the params layer as JSON, the system prompt, the renderer, and
     * the addresses of adapter layers, which become part of the model. */
    ollama?: { params?: string; system?: string; renderer?: string; adapters?: readonly (string | URL)[] };
    /** If a lost GPU does not come back: 'wasm' continues there, 'none' (the default) waits for `recover`. */
    fallback?: 'wasm' | 'none';
    onProgress?(progress: Progress): void;
    onDeviceLost?(event: DeviceEvent): void;
}

/** A loaded model. It has a worker of its own until `unload`. */
export class Engine {
    readonly #connection: Connection;
    readonly #sessionOptions: SessionOptions;
    #loaded: LoadResult;
    #onDevice: (event: DeviceEvent) => void;
    /** OpenAI's interface: `chat.completions.create`. */
    readonly chat: Chat;
    /** Loads adapters (LoRA), and keeps them in this browser. */
    readonly adapters: Adapters;

    /** @internal */
    constructor(connection: Connection, loaded: LoadResult, options: LoadOptions, specify = specifyAdapter) {
        this.#connection = connection;
        this.#loaded = loaded;
        this.#sessionOptions = sessionOptions(options);
        this.#onDevice = options.onDeviceLost ?? (() => undefined);
        connection.onDevice = (event) => {
            if (event.type === 'restored') this.#loaded = { ...this.#loaded, info: event.info };
            this.#onDevice(event);
        };
        this.adapters = new Adapters(connection, specify);
        this.chat = new Chat(this);
    }

    get info(): EngineInfo {
        return this.#loaded.info;
    }

    /** The default sampling parameters: the file's or Ollama's. */
    get samplingDefault(): Sampling {
        return this.#loaded.samplingDefault;
    }

    /** Called when the GPU is lost, while the model is restored, and when that succeeds or fails. */
    set onDeviceLost(listener: (event: DeviceEvent) => void) {
        this.#onDevice = listener;
    }

    /** Starts a conversation, with adapters if there are some. */
    async session({ adapters = [], ...options }: SessionOptions & { adapters?: readonly AdapterChoice[] } = {}): Promise<Session> {
        const uses = this.adapters.resolve(adapters);
        const wire = { options: { ...this.#sessionOptions, ...options }, adapters: wireAdapters(uses) };
        const { session, context } = await this.#connection.call('open', wire);
        return new Session(this.#connection, session, context, this.adapters, uses);
    }

    /** Reads examples to learn from: what is in them, and how the model sees them. Bad lines are a `BadData` error. The model must have been
     * loaded with `training: true`. */
    async dataset(source: DataSource, { signal, onProgress, ...options }: DatasetOptions = {}): Promise<Dataset> {
        const data = await specifyData(source);
        const { dataset, report } = await this.#connection.call('dataOpen', { data, options }, { signal, onEvent: onProgress });
        return new Dataset(this.#connection, dataset, report);
    }

    /** Teaches the model: makes an adapter from examples. The model must have been loaded with `training: true`. Trainings that are kept in
     * this browser are in `TrainingStore`. */
    train(options: TrainingOptions): Training {
        return new Training(this.#connection, options);
    }

    /** The tokens of a text. Special tokens such as <|turn> are recognised only with `special`: never set it for text from others. */
    async tokenize(text: string, { special = false }: { special?: boolean } = {}): Promise<Int32Array> {
        if (typeof text !== 'string') throw new GemmuleError('BadArgument', `text must be a string, found ${String(text)}`);
        return this.#connection.call('tokenize', { text, special });
    }

    async detokenize(ids: Iterable<number>): Promise<string> {
        return this.#connection.call('detokenize', { ids: tokenIds(ids) });
    }

    /** The prompt for a conversation, as text: to look at, not to send back. */
    async render(messages: readonly Message[], options: ReplyOptions = {}): Promise<string> {
        return this.#connection.call('render', { messages: await plainMessages(messages), options: wireOptions(options) });
    }

    /** How many tokens a conversation takes, with its pictures, sounds and videos. */
    async countTokens(messages: readonly Message[], options: ReplyOptions = {}): Promise<number> {
        const plain = await plainMessages(messages);
        const parts = plain.flatMap(({ content }) => (typeof content === 'string' ? [] : content));
        const text = await this.#connection.call('render', { messages: withoutMedia(plain), options: wireOptions(options) });
        const ids = await this.tokenize(text, { special: true });
        return parts.reduce((sum, part) => sum + partTokens(part, this.info.pictureBudget), ids.length);
    }

    devices(): Promise<DeviceInfo[]> {
        return this.#connection.call('devices', {});
    }

    /** Computes known results on the device; throws if one is wrong. */
    async selfCheck(): Promise<void> {
        await this.#connection.call('selfCheck', {});
    }

    stats(): Promise<EngineStats> {
        return this.#connection.call('stats', {});
    }

    /** If a lost GPU did not come back: tries again, or continues on wasm. Conversations are kept. */
    async recover({ backend, signal, onProgress }: Pick<LoadOptions, 'backend' | 'signal' | 'onProgress'> = {}): Promise<EngineInfo> {
        checkBackend(backend);
        this.#loaded = await this.#connection.call('recover', { ...(backend ? { backend } : {}) }, { signal, onEvent: onProgress });
        return this.info;
    }

    /** Frees everything and ends the worker. Running calls are rejected with `Aborted`. */
    async unload(): Promise<void> {
        if (this.#connection.dead) return;
        const unloaded = this.#connection.call('unload', {}).catch(() => undefined);
        this.#connection.refuse(new GemmuleError('Aborted', 'the engine was unloaded'));
        let timer: ReturnType<typeof setTimeout> | undefined;
        await Promise.race([unloaded, new Promise((resolve) => (timer = setTimeout(resolve, LONGEST_UNLOAD)))]);
        clearTimeout(timer);
        this.#connection.close();
    }

    [Symbol.asyncDispose](): Promise<void> {
        return this.unload();
    }
}

const LONGEST_UNLOAD = 3000; // milliseconds; then the worker is terminated

function sessionOptions({ context, kv }: LoadOptions): SessionOptions {
    return { ...(context === undefined ? {} : { context }), ...(kv === undefined ? {} : { kv }) };
}

const BACKENDS = ['auto', 'gpu', 'wasm'];

function checkBackend(backend: string | undefined): void {
    if (backend === undefined || BACKENDS.includes(backend)) return;
    throw new GemmuleError('BadArgument', `backend must be one of ${BACKENDS.join(', ')}, found ${backend}`);
}

const ENGINE_OPTIONS = ['backend', 'precise', 'gpuMemory', 'gpuExperts', 'threads', 'gpuDisable', 'powerPreference', 'name', 'ollama'] as const;

function loadArgs({ sources, options: own, adapters = [] }: Specified, options: LoadOptions, towers: Specified | null): LoadArgs {
    checkBackend(options.backend);
    if (towers && towers.sources.length !== 1) throw new GemmuleError('BadArgument', `mmproj must be one file, found ${towers.sources.length}`);
    const { adapters: layers = [], ...ollama } = options.ollama ?? {};
    const given = Object.fromEntries(ENGINE_OPTIONS.filter((key) => options[key] !== undefined).map((key) => [key, options[key]]));
    const all = towers ? [...sources, ...towers.sources] : sources;
    return {
        sources: all, options: { ...own, ...given, ...(options.ollama ? { ollama } : {}), ...(towers ? { projector: true } : {}) },
        adapters: [...adapters, ...layers.map(adapterLayer)], fallback: options.fallback ?? 'none',
    };
}

/** What can be done without a loaded model. `S`: the sources that can be loaded. */
export interface Loader<S> {
    /** Loads a model. `mmproj`: a second file with its vision and audio towers, if they are not in the model's own. */
    load(source: S, options?: LoadOptions & { mmproj?: S }): Promise<Engine>;
    /** Whether a model fits, from its header alone. Nothing is stored. */
    dryRun(source: S, options?: LoadOptions & { mmproj?: S }): Promise<FitReport>;
    /** The devices to compute on. */
    devices(options?: WorkerOptions): Promise<DeviceInfo[]>;
}

export function makeLoader<S>(
    connect: Connect, specify: (source: S, options: SourceOptions) => Specified, prepare?: (args: LoadArgs) => void, describe = specifyAdapter,
): Loader<S> {
    async function once<T>(options: WorkerOptions, work: (connection: Connection) => Promise<T>): Promise<T> {
        const connection = await connect(options);
        try {
            return await work(connection);
        } finally {
            connection.close();
        }
    }
    function argsOf(source: S, options: LoadOptions & { mmproj?: S }): LoadArgs {
        const { sha256: _, ...own } = options; // the hashes are those of the model
        return loadArgs(specify(source, options), options, options.mmproj === undefined ? null : specify(options.mmproj, own));
    }
    return {
        async load(source, options = {}) {
            const args = argsOf(source, options);
            prepare?.(args);
            const connection = await connect(options);
            try {
                const loaded = await connection.call('load', args, { signal: options.signal, onEvent: options.onProgress });
                return new Engine(connection, loaded, options, describe);
            } catch (thrown) {
                connection.close();
                throw thrown;
            }
        },
        dryRun: async (source, options = {}) => {
            const args = argsOf(source, options);
            return once(options, (connection) => connection.call('dryRun', args, { signal: options.signal, onEvent: options.onProgress }));
        },
        devices: (options = {}) => once(options, (connection) => connection.call('devices', {}, { signal: options.signal })),
    };
}

