/* A loaded model, and how one is loaded. */

import { GemmuleError } from '../core/errors.ts';
import type {
    Backend, DeviceInfo, EngineInfo, EngineStats, FitReport, KeyValueType, Message, ReplyOptions, Sampling, SessionOptions,
} from '../core/types.ts';
import type { Connection } from '../worker/connection.ts';
import type { DeviceEvent, LoadArgs, LoadResult, Progress } from '../worker/protocol.ts';
import { Chat } from './chat.ts';
import type { Connect, WorkerOptions } from './connect.ts';
import { Session, tokenIds, wireOptions } from './session.ts';
import { type SourceOptions, type Specified } from './source.ts';

export interface LoadOptions extends SourceOptions, WorkerOptions {
    /** 'auto', the default: a hardware GPU or wasm, whichever writes this model faster (`info.backendReason` says why).
     * 'gpu': any GPU, also a software one such as SwiftShader. 'wasm': the CPU. */
    backend?: 'auto' | Backend;
    /** Most tokens of a conversation; by default an Ollama model's `num_ctx`, else the model's, at most 8192. */
    context?: number;
    /** Type of the keys and values: f16 by default. */
    kv?: KeyValueType;
    /** f32 throughout: slower, exact against the reference. */
    precise?: boolean;
    /** Bytes of GPU memory to use; what does not fit is read from the source when it is needed. */
    gpuMemory?: number;
    /** Threads on wasm, where the page is cross-origin isolated, and in Node: as many as the processor is worth by default; 1: off. */
    threads?: number;
    /** GPU features not to use, such as 'subgroups,f16'. */
    gpuDisable?: string;
    powerPreference?: GPUPowerPreference;
    /** What to call the model. */
    name?: string;
    /** What Ollama says beside the weights, for its files by address: JSON of the params layer, the system prompt, the renderer. */
    ollama?: { params?: string; system?: string; renderer?: string };
    /** Where the GPU is lost and none comes back: 'wasm' goes on with that, 'none' (the default) waits for `recover`. */
    fallback?: 'wasm' | 'none';
    onProgress?(progress: Progress): void;
    onDeviceLost?(event: DeviceEvent): void;
}

/** A model, loaded. It lives in a worker of its own until `unload`. */
export class Engine {
    readonly #connection: Connection;
    readonly #sessionOptions: SessionOptions;
    #loaded: LoadResult;
    #onDevice: (event: DeviceEvent) => void;
    /** OpenAI's interface: `chat.completions.create`. */
    readonly chat: Chat;

    /** @internal */
    constructor(connection: Connection, loaded: LoadResult, options: LoadOptions) {
        this.#connection = connection;
        this.#loaded = loaded;
        this.#sessionOptions = sessionOptions(options);
        this.#onDevice = options.onDeviceLost ?? (() => undefined);
        connection.onDevice = (event) => {
            if (event.type === 'restored') this.#loaded = { ...this.#loaded, info: event.info };
            this.#onDevice(event);
        };
        this.chat = new Chat(this);
    }

    get info(): EngineInfo {
        return this.#loaded.info;
    }

    /** What is sampled with where the caller says nothing: the file's or Ollama's parameters. */
    get samplingDefault(): Sampling {
        return this.#loaded.samplingDefault;
    }

    /** Told when the GPU is lost, while a new one is made ready, and how that ended. */
    set onDeviceLost(listener: (event: DeviceEvent) => void) {
        this.#onDevice = listener;
    }

    /** A conversation of its own. */
    async session(options: SessionOptions = {}): Promise<Session> {
        const { session, context } = await this.#connection.call('open', { options: { ...this.#sessionOptions, ...options } });
        return new Session(this.#connection, session, context);
    }

    /** The tokens of a text. Special tokens such as <|turn> are recognised only with `special`: leave it off for text of others. */
    async tokenize(text: string, { special = false }: { special?: boolean } = {}): Promise<Int32Array> {
        if (typeof text !== 'string') throw new GemmuleError('BadArgument', `the text must be a string, found ${String(text)}`);
        return this.#connection.call('tokenize', { text, special });
    }

    async detokenize(ids: Iterable<number>): Promise<string> {
        return this.#connection.call('detokenize', { ids: tokenIds(ids) });
    }

    /** The prompt that a conversation becomes, as text: for looking, not for feeding back. */
    render(messages: readonly Message[], options: ReplyOptions = {}): Promise<string> {
        return this.#connection.call('render', { messages: [...messages], options: wireOptions(options) });
    }

    devices(): Promise<DeviceInfo[]> {
        return this.#connection.call('devices', {});
    }

    /** Computes known things on the device; throws where the result is wrong. */
    async selfCheck(): Promise<void> {
        await this.#connection.call('selfCheck', {});
    }

    stats(): Promise<EngineStats> {
        return this.#connection.call('stats', {});
    }

    /** After a lost GPU of which none came back: tries again, or goes on with wasm. Conversations are as they were. */
    async recover({ backend, signal, onProgress }: Pick<LoadOptions, 'backend' | 'signal' | 'onProgress'> = {}): Promise<EngineInfo> {
        checkBackend(backend);
        this.#loaded = await this.#connection.call('recover', { ...(backend ? { backend } : {}) }, { signal, onEvent: onProgress });
        return this.info;
    }

    /** Frees everything, and ends the worker. What is under way is rejected with `Aborted`. */
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

const LONGEST_UNLOAD = 3000; // milliseconds; then the worker is ended in the middle of whatever it does

function sessionOptions({ context, kv }: LoadOptions): SessionOptions {
    return { ...(context === undefined ? {} : { context }), ...(kv === undefined ? {} : { kv }) };
}

const BACKENDS = ['auto', 'gpu', 'wasm'];

function checkBackend(backend: string | undefined): void {
    if (backend === undefined || BACKENDS.includes(backend)) return;
    throw new GemmuleError('BadArgument', `backend must be one of ${BACKENDS.join(', ')}, found ${backend}`);
}

const ENGINE_OPTIONS = ['backend', 'precise', 'gpuMemory', 'threads', 'gpuDisable', 'powerPreference', 'name', 'ollama'] as const;

function loadArgs({ sources, options: own }: Specified, options: LoadOptions): LoadArgs {
    checkBackend(options.backend);
    const given = Object.fromEntries(ENGINE_OPTIONS.filter((key) => options[key] !== undefined).map((key) => [key, options[key]]));
    return { sources, options: { ...own, ...given }, fallback: options.fallback ?? 'none' };
}

/** Everything that can be done before a model is there; `S` is what can be loaded. */
export interface Loader<S> {
    /** Loads a model. */
    load(source: S, options?: LoadOptions): Promise<Engine>;
    /** Whether a model fits, from its header alone: nothing is downloaded for keeps. */
    dryRun(source: S, options?: LoadOptions): Promise<FitReport>;
    /** What there is to compute on. */
    devices(options?: WorkerOptions): Promise<DeviceInfo[]>;
}

export function makeLoader<S>(
    connect: Connect, specify: (source: S, options: SourceOptions) => Specified, prepare?: (args: LoadArgs) => void,
): Loader<S> {
    async function once<T>(options: WorkerOptions, work: (connection: Connection) => Promise<T>): Promise<T> {
        const connection = await connect(options);
        try {
            return await work(connection);
        } finally {
            connection.close();
        }
    }
    return {
        async load(source, options = {}) {
            const args = loadArgs(specify(source, options), options);
            prepare?.(args);
            const connection = await connect(options);
            try {
                const loaded = await connection.call('load', args, { signal: options.signal, onEvent: options.onProgress });
                return new Engine(connection, loaded, options);
            } catch (thrown) {
                connection.close();
                throw thrown;
            }
        },
        dryRun: async (source, options = {}) => {
            const args = loadArgs(specify(source, options), options);
            return once(options, (connection) => connection.call('dryRun', args, { signal: options.signal, onEvent: options.onProgress }));
        },
        devices: (options = {}) => once(options, (connection) => connection.call('devices', {}, { signal: options.signal })),
    };
}

