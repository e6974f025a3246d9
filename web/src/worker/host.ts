/* The worker's end of the connection: one engine and its sessions.
 *
 * Sessions work beside each other, and their answers are written together; operations on one session take turns, and those on the engine
 * wait for all. The others answer at once. When the GPU is lost, each session is reduced to its tokens, the model is
 * loaded onto a new device, and running operations continue: a session's tokens are computed again when it is next used, and an answer
 * goes on after its last token. */

import { GemmuleError, abortedBy, throwIfAborted, toGemmuleError } from '../core/errors.ts';
import type {
    ByteSource, CoreEngineLike, CoreLike, CoreSessionLike, EngineInfo, EngineOptions, Piece, ReplyOptions, ReplyStats, SessionOptions,
} from '../core/types.ts';
import { copyFile } from '../sources/open.ts';
import { HeldAdapters, type OpenSource } from './adapters.ts';
import { HeldDatasets } from './datasets.ts';
import { Trainings } from './trainings.ts';
import {
    type AdapterUse, type Args, type DeviceEvent, type Event, type LoadArgs, type LoadResult, type Operation, type Port, PROTOCOL, type Progress,
    type ReplyPiece, type Request, type Result, type SourceSpec, type WasmUrls, type WireReplyOptions,
} from './protocol.ts';

/** What the host needs from its environment. */
export interface Environment {
    core(urls: WasmUrls): Promise<CoreLike>;
    /** headerOnly: only the header will be read, so nothing is stored. */
    openSource: OpenSource;
}

interface Context<O extends Operation> {
    signal: AbortSignal;
    emit(event: Event<O>): void;
}

type Tell = (progress: Progress) => void;

type BackendWish = Pick<EngineOptions, 'backend' | 'softwareGpu'>;

type Handlers = { [O in Operation]: (args: Args<O>, context: Context<O>) => Promise<Result<O>> | Result<O> };

interface HeldSession {
    options: SessionOptions;
    /** null after the device was lost, until the session is used again. */
    core: CoreSessionLike | null;
    /** What it holds while `core` is null. */
    tokens: Int32Array;
    adapters: readonly AdapterUse[];
}

const NOTHING: Transferable[] = []; // most messages transfer nothing
const MOST_LOSSES = 4; // lost devices during one operation
const OPEN_TRIES = 5; // the browser needs a moment to restart its GPU process

export class Host {
    readonly #port: Port;
    readonly #environment: Environment;
    readonly #running = new Map<number, AbortController>();
    readonly #sessions = new Map<number, HeldSession>();
    readonly #adapters: HeldAdapters;
    readonly #datasets = new HeldDatasets();
    readonly #trainings: Trainings;
    #lastSession = 0;
    #turn: Promise<unknown> = Promise.resolve(); // ends with the last operation on the engine
    readonly #last = new Map<number, Promise<unknown>>(); // ends with the last operation on each session; none is rejected
    #besides = 0;
    #restoring: Promise<CoreEngineLike> | null = null;
    #wasmUrls: WasmUrls = {};
    #core: Promise<CoreLike> | null = null;
    #loaded: { args: LoadArgs; sources: ByteSource[]; info: EngineInfo } | null = null;
    #engine: CoreEngineLike | null = null;
    #gone: GemmuleError | null = null;

    constructor(port: Port, environment: Environment) {
        this.#port = port;
        this.#environment = environment;
        this.#adapters = new HeldAdapters((spec, options) => environment.openSource(spec, options));
        this.#trainings = new Trainings({
            ready: () => this.#now(new AbortController().signal),
            lost: (engine, error) => {
                const lost = this.#loaded !== null && (error.name === 'DeviceLost' || this.#engine !== engine);
                if (lost) this.#lose(engine, error.message);
                return lost;
            },
        });
        port.onMessage = (message) => void this.#answer(message as Request);
    }

    // ---- messages ----

    async #answer({ v, id, op, args }: Request): Promise<void> {
        const controller = new AbortController();
        try {
            if (v !== PROTOCOL) {
                throw new GemmuleError('NotSupported', `the page uses protocol version ${v}, the worker ${PROTOCOL}: reload the page`);
            }
            const handler = Object.hasOwn(this.#handlers, op) ? this.#handlers[op] : null;
            if (!handler) throw new GemmuleError('BadArgument', `there is no operation '${op}'`);
            this.#running.set(id, controller);
            const emit = (event: unknown) => this.#port.post({ id, event }, NOTHING);
            const result = await (handler as (args: unknown, context: Context<Operation>) => unknown)(args, { signal: controller.signal, emit });
            this.#port.post({ id, result }, transferable(result));
        } catch (thrown) {
            this.#postError(id, toGemmuleError(thrown));
        } finally {
            this.#running.delete(id);
        }
    }

    #postError(id: number, error: GemmuleError): void {
        try {
            this.#port.post({ id, error: error.toWire() }, []);
        } catch { // the detail cannot be cloned
            this.#port.post({ id, error: { ...error.toWire(), detail: undefined } }, []);
        }
    }

    #tell(event: DeviceEvent): void {
        this.#port.post({ id: 0, event }, []);
    }

    // ---- turns ----

    /* Runs an operation after others. One that is aborted while it waits is rejected at once. `ended` is never rejected. */
    #after<T>(before: Promise<unknown>, signal: AbortSignal, work: () => Promise<T>): { ended: Promise<unknown>; result: Promise<T> } {
        let started = false;
        const turn = before.then(() => {
            throwIfAborted(signal);
            started = true;
            return work();
        });
        const result = new Promise<T>((resolve, reject) => {
            const stop = () => started || reject(abortedBy(signal));
            signal.addEventListener('abort', stop, { once: true });
            turn.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
        });
        return { ended: turn.catch(() => undefined), result };
    }

    /* An operation on the engine: after all that came before. */
    #exclusive<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
        const { ended, result } = this.#after(Promise.all([this.#turn, ...this.#last.values()]), signal, work);
        this.#turn = ended;
        return result;
    }

    /* An operation on a session, beside those on others. null: on none of them. */
    #beside<T>(session: number | null, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
        const key = session ?? --this.#besides;
        const { ended, result } = this.#after(Promise.all([this.#turn, this.#last.get(key)]), signal, work);
        this.#last.set(key, ended);
        void ended.then(() => this.#last.get(key) === ended && this.#last.delete(key));
        return result;
    }

    /* Work that needs the device. */
    #compute<T>(session: number | null, signal: AbortSignal, work: (engine: CoreEngineLike) => Promise<T> | T): Promise<T> {
        return this.#beside(session, signal, () => this.#onDevice(signal, work));
    }

    /* If the device is lost, the work is repeated on a new one. Call it only within a turn. */
    async #onDevice<T>(signal: AbortSignal, work: (engine: CoreEngineLike) => Promise<T> | T): Promise<T> {
        for (let losses = 0; ; losses++) {
            const engine = await this.#ready(signal);
            try {
                return await work(engine);
            } catch (thrown) {
                const error = toGemmuleError(thrown);
                const lost = error.name === 'DeviceLost' || this.#engine !== engine;
                if (!lost || losses === MOST_LOSSES) throw error;
                this.#lose(engine, error.message);
            }
        }
    }

    // ---- the engine ----

    #ownCore(): Promise<CoreLike> {
        this.#core ??= this.#environment.core(this.#wasmUrls);
        this.#core.catch(() => (this.#core = null));
        return this.#core;
    }

    async #openSources(specs: SourceSpec[], headerOnly: boolean, signal: AbortSignal, onProgress: Tell): Promise<ByteSource[]> {
        const sources: ByteSource[] = [];
        try {
            for (const spec of specs) sources.push(await this.#environment.openSource(spec, { headerOnly, signal, onProgress }));
            return sources;
        } catch (thrown) {
            await closeAll(sources);
            throw thrown;
        }
    }

    async #load(args: LoadArgs, signal: AbortSignal, emit: Tell): Promise<LoadResult> {
        if (this.#loaded) throw new GemmuleError('Busy', 'a model is already loaded: unload it first');
        const sources = await this.#openSources(args.sources, false, signal, emit);
        try {
            const engine = await this.#openEngine(sources, args, { backend: args.options.backend ?? 'auto' }, signal, emit);
            await closedOnFailure(engine, this.#adapters.addOwn(engine, args.adapters, signal, emit));
            this.#loaded = { args, sources, info: engine.info };
            return this.#adopt(engine);
        } catch (thrown) {
            this.#adapters.clear();
            await closeAll(sources);
            throw thrown;
        }
    }

    /* Tries again if the device is lost meanwhile. If none comes back, continues on wasm if the caller asked for that. */
    async #openEngine(
        sources: ByteSource[], args: LoadArgs, wish: BackendWish, signal: AbortSignal, emit: Tell,
    ): Promise<CoreEngineLike> {
        const core = await this.#ownCore();
        let lost = this.#loaded !== null;
        for (let tries = 1; ; tries++) {
            throwIfAborted(signal);
            try {
                return await core.open(sources.map(withoutClose), { ...args.options, ...wish, signal, onProgress: emit });
            } catch (thrown) {
                const error = toGemmuleError(thrown);
                lost ||= error.name === 'DeviceLost';
                if (!lost || (error.name !== 'DeviceLost' && error.name !== 'NoWebGPU')) throw error;
                if (tries < OPEN_TRIES) {
                    await new Promise((resolve) => setTimeout(resolve, 100 * 2 ** tries));
                } else if (args.fallback === 'wasm') {
                    wish = { backend: 'wasm' };
                    lost = false;
                } else {
                    throw new GemmuleError('NoWebGPU', `the GPU was lost and did not come back: ${error.message}`, {
                        conversationKept: this.#sessions.size > 0, offers: ['wasm', 'reload'],
                    });
                }
            }
        }
    }

    #adopt(engine: CoreEngineLike): LoadResult {
        this.#engine = engine;
        this.#gone = null;
        this.#loaded!.info = engine.info;
        void engine.lost.then((reason) => {
            if (this.#engine !== engine) return;
            this.#lose(engine, reason);
            const never = new AbortController().signal;
            this.#exclusive(never, () => this.#ready(never)).catch(() => undefined); // the next operation reports it
        });
        return { info: engine.info, samplingDefault: engine.samplingDefault };
    }

    #lose(engine: CoreEngineLike, reason: string): void {
        if (this.#engine !== engine) return;
        this.#engine = null;
        for (const held of this.#sessions.values()) {
            if (held.core) held.tokens = this.#tokens(held);
            held.core = null;
        }
        engine.close();
        this.#tell({ type: 'lost', reason });
    }

    /* The engine, restored first if it was lost. Call it only within a turn. */
    async #ready(signal: AbortSignal): Promise<CoreEngineLike> {
        if (this.#engine) return this.#engine;
        if (this.#gone) throw this.#gone;
        if (!this.#loaded) throw new GemmuleError('BadArgument', 'no model is loaded');
        // Several operations may wait for the new device, and none of them may take it from the others.
        this.#restoring ??= this.#restore(this.#sameBackend(), new AbortController().signal,
            seldom((progress) => this.#tell({ type: 'restoring', progress }))).finally(() => (this.#restoring = null));
        return unlessAborted(this.#restoring, signal);
    }

    /* The GPU that replaces a lost one may be a software one. Only a caller who asked for a GPU gets that. */
    #sameBackend(): BackendWish {
        const { args, info } = this.#loaded!;
        return { backend: info.backend, softwareGpu: args.options.backend === 'gpu' };
    }

    async #restore(wish: BackendWish, signal: AbortSignal, emit: Tell): Promise<CoreEngineLike> {
        const { args, sources } = this.#loaded!;
        try {
            const engine = await this.#openEngine(sources, args, wish, signal, emit);
            await closedOnFailure(engine, this.#adapters.restore(engine, signal));
            this.#adopt(engine);
            this.#tell({ type: 'restored', info: engine.info });
            return engine;
        } catch (thrown) {
            const error = toGemmuleError(thrown);
            if (error.name !== 'Aborted') {
                this.#gone = error;
                this.#tell({ type: 'gone', error: error.toWire() });
            }
            throw error;
        }
    }

    async #unload(): Promise<void> {
        const { sources = [] } = this.#loaded ?? {};
        const engine = this.#engine;
        this.#loaded = this.#engine = this.#gone = null;
        this.#sessions.clear();
        this.#adapters.clear();
        this.#datasets.clear();
        engine?.close();
        await closeAll(sources);
    }

    // ---- sessions ----

    #held(session: number): HeldSession {
        const held = this.#sessions.get(session);
        if (!held) throw new GemmuleError('BadArgument', `there is no session ${session}; was it closed?`);
        return held;
    }

    #hold(held: Omit<HeldSession, 'tokens'>, context: number, tokens = new Int32Array(0)): { session: number; context: number } {
        this.#sessions.set(++this.#lastSession, { ...held, tokens });
        return { session: this.#lastSession, context };
    }

    /* A session with its adapters, without tokens. */
    #openSession(engine: CoreEngineLike, { options, adapters: uses }: Pick<HeldSession, 'options' | 'adapters'>): CoreSessionLike {
        const core = engine.session(options);
        try {
            const { adapters, scales } = this.#adapters.resolve(uses);
            if (adapters.length) core.useAdapters(adapters, scales);
            return core;
        } catch (thrown) {
            core.free();
            throw thrown;
        }
    }

    #useAdapters(held: HeldSession, uses: readonly AdapterUse[]): void {
        const { adapters, scales } = this.#adapters.resolve(uses);
        held.core?.useAdapters(adapters, scales);
        held.adapters = uses;
    }

    /* If the work fails, the session has the adapters that it had before: they are not swept away meanwhile. */
    async #keepingAdapters<T>(session: number, work: () => Promise<T>): Promise<T> {
        const held = this.#held(session), before = held.adapters;
        try {
            const result = await work();
            this.#sweepAdapters();
            return result;
        } catch (thrown) {
            if (held.adapters !== before) this.#putBack(held, before);
            throw thrown;
        }
    }

    /* If the session cannot take them now, it is opened with them when it is used. */
    #putBack(held: HeldSession, before: readonly AdapterUse[]): void {
        held.adapters = before;
        try {
            if (held.core) this.#useAdapters(held, before);
        } catch {
            held.tokens = this.#tokens(held);
            held.core?.free();
            held.core = null;
        }
    }

    #sweepAdapters(): void {
        this.#adapters.sweep([...this.#sessions.values()].map(({ adapters }) => adapters));
    }

    /* A session that was lost with its device is not computed for this: the copy, too, is computed when it is used. */
    async #fork(engine: CoreEngineLike, { options, adapters, core, tokens }: HeldSession): Promise<{ session: number; context: number }> {
        if (core) {
            const copy = await core.fork();
            return this.#hold({ options, adapters, core: copy }, copy.context);
        }
        const made = engine.session(options);
        const { context } = made;
        made.free();
        return this.#hold({ options, adapters, core: null }, context, tokens.slice());
    }

    /* The session on the current device. Computes its tokens there first, if needed; if pictures or sounds are among them, only a reply
     * can bring them back, and anything else fails. */
    async #live(engine: CoreEngineLike, held: HeldSession, signal: AbortSignal): Promise<CoreSessionLike> {
        if (held.core) return held.core;
        const core = this.#openSession(engine, held);
        try {
            if (held.tokens.length) await core.set(held.tokens, signal);
        } catch (thrown) {
            if (this.#engine === engine) core.free();
            throw thrown;
        }
        return (held.core = core);
    }

    /* Changes a session. After a lost device the change starts again from the tokens that the session held before. */
    #change<T>(session: number, signal: AbortSignal, work: (core: CoreSessionLike) => Promise<T> | T): Promise<T> {
        let before: Int32Array | null = null;
        return this.#compute(session, signal, async (engine) => {
            const held = this.#held(session);
            if (before && !held.core) held.tokens = before;
            before ??= this.#tokens(held);
            return work(await this.#live(engine, held, signal));
        });
    }

    #tokens(held: HeldSession): Int32Array {
        return held.core ? held.core.tokens() : held.tokens.slice();
    }

    /* Writes an answer. After a lost device it continues on the new one with the same seed and tokens, without repeating pieces that were
     * already sent. */
    #reply(
        session: number, wire: WireReplyOptions, uses: readonly AdapterUse[] | undefined, context: { signal: AbortSignal; emit(piece: ReplyPiece): void },
        start: (core: CoreSessionLike, options: ReplyOptions) => AsyncGenerator<Piece, ReplyStats>,
    ): Promise<ReplyStats> {
        const options: ReplyOptions = { ...wire, sampling: { ...wire.sampling }, signal: context.signal };
        options.sampling!.seed ??= randomSeed();
        const said = new Said();
        let broken = false;
        const work = async (engine: CoreEngineLike): Promise<ReplyStats> => {
            const held = this.#held(session);
            if (uses && !broken) this.#useAdapters(held, uses);
            // The reply computes the prompt itself: there is no need to restore the old tokens first.
            if (broken && !held.core) options.resume = held.tokens;
            held.core ??= this.#openSession(engine, held);
            broken = true;
            const pieces = start(held.core, options);
            said.beginAgain();
            for (;;) {
                const next = await pieces.next();
                if (next.done) return next.value;
                const piece = said.rest(next.value);
                if (piece) context.emit(withText(engine, piece));
            }
        };
        return this.#beside(session, context.signal, () => this.#keepingAdapters(session, () => this.#onDevice(context.signal, work)));
    }

    // ---- operations ----

    readonly #handlers: Handlers = {
        hello: ({ life, ...urls }) => {
            this.#wasmUrls = urls;
            return life ? holdLock(life) : false;
        },
        devices: async () => (await this.#ownCore()).devices(),
        dryRun: async ({ sources: specs, options }, { signal, emit }) => {
            const onProgress = seldom(emit);
            const sources = await this.#openSources(specs, true, signal, onProgress);
            try {
                return await (await this.#ownCore()).dryRun(sources.map(withoutClose), { ...options, signal, onProgress });
            } finally {
                await closeAll(sources);
            }
        },
        copy: (args, { signal, emit }) => copyFile(args, { signal, onProgress: seldom(emit) }),
        load: (args, { signal, emit }) => this.#exclusive(signal, () => this.#load(args, signal, seldom(emit))),
        recover: ({ backend }, { signal, emit }) =>
            this.#exclusive(signal, async () => {
                if (!this.#loaded) throw new GemmuleError('BadArgument', 'no model is loaded');
                const engine = this.#engine ?? (await this.#restore(backend ? { backend } : this.#sameBackend(), signal, seldom(emit)));
                return { info: engine.info, samplingDefault: engine.samplingDefault };
            }),
        unload: async (_, { signal }) => {
            for (const controller of this.#running.values()) if (controller.signal !== signal) controller.abort();
            await this.#exclusive(signal, () => this.#unload());
            return null;
        },
        tokenize: async ({ text, special }, { signal }) => (await this.#now(signal)).tokenize(text, special),
        detokenize: async ({ ids }, { signal }) => (await this.#now(signal)).detokenize(ids),
        render: async ({ messages, options }, { signal }) => (await this.#now(signal)).render(messages, options),
        stats: async (_, { signal }) => (await this.#now(signal)).stats(),
        selfCheck: async (_, { signal }) => {
            await this.#compute(null, signal, (engine) => engine.selfCheck());
            return null;
        },
        // Adding or freeing an adapter may change the plans of all sessions, so no answer is under way meanwhile.
        adapterLoad: async ({ files }, { signal, emit }) => {
            const bytes = await this.#adapters.read(files, signal, seldom(emit));
            return this.#exclusive(signal, () => this.#onDevice(signal, (engine) => this.#adapters.add(engine, files, bytes)));
        },
        adapterRead: async ({ files }, { signal, emit }) => {
            const { weights, config } = await this.#adapters.read(files, signal, seldom(emit));
            return [{ name: nameOf(files.weights), bytes: weights }, ...(config ? [{ name: nameOf(files.config!), bytes: config }] : [])];
        },
        adapterInspect: async ({ files }, { signal, emit }) => {
            const bytes = await this.#adapters.read(files, signal, seldom(emit));
            return (await this.#now(signal)).inspectAdapter(files.name, bytes);
        },
        adapterConvert: async ({ files, form }, { signal, emit }) => {
            const bytes = await this.#adapters.read(files, signal, seldom(emit));
            return (await this.#now(signal)).convertAdapter(files.name, bytes, form);
        },
        adapterExport: async ({ adapter, form }, { signal }) => {
            await this.#now(signal);
            return this.#adapters.export(adapter, form);
        },
        adapterFree: ({ adapter }, { signal }) =>
            this.#exclusive(signal, async () => {
                this.#adapters.free(adapter);
                this.#sweepAdapters();
                return null;
            }),
        dataOpen: ({ data, options }, { signal, emit }) =>
            this.#compute(null, signal, (engine) => this.#datasets.open(engine, data, options, signal, seldom(emit))),
        dataPreview: ({ dataset, index }, { signal }) =>
            this.#compute(null, signal, (engine) => this.#datasets.preview(engine, dataset, index, signal)),
        // Outside of the turns: answers and new adapters do not wait for the end of a training.
        train: (args, { signal, emit }) => this.#trainings.run(args, signal, emit),
        trainControl: ({ training, action }) => {
            this.#trainings.control(training, action);
            return null;
        },
        dataFree: ({ dataset }) => {
            this.#datasets.free(dataset);
            return null;
        },
        useAdapters: ({ session, adapters }, { signal }) =>
            this.#compute(session, signal, () => {
                this.#useAdapters(this.#held(session), adapters);
                this.#sweepAdapters();
                return null;
            }),
        open: ({ options, adapters }, { signal }) =>
            this.#compute(null, signal, (engine) => {
                const core = this.#openSession(engine, { options, adapters });
                return this.#hold({ options, adapters, core }, core.context);
            }),
        close: ({ session }, { signal }) =>
            this.#beside(session, signal, async () => {
                this.#sessions.get(session)?.core?.free();
                this.#sessions.delete(session);
                this.#sweepAdapters();
                return null;
            }),
        tokens: ({ session }) => this.#tokens(this.#held(session)),
        set: async ({ session, ids }, { signal }) => {
            await this.#change(session, signal, (core) => core.set(ids, signal));
            return null;
        },
        append: async ({ session, ids }, { signal }) => {
            await this.#change(session, signal, (core) => core.append(ids, signal));
            return null;
        },
        rollback: ({ session, keep }, { signal }) => this.#change(session, signal, (core) => core.rollback(keep)),
        fork: ({ session }, { signal }) => this.#compute(session, signal, (engine) => this.#fork(engine, this.#held(session))),
        save: ({ session }, { signal }) => this.#change(session, signal, (core) => core.save()),
        restore: async ({ session, bytes }, { signal }) => {
            await this.#change(session, signal, (core) => core.restore(bytes));
            return null;
        },
        logits: ({ session }, { signal }) => this.#change(session, signal, (core) => core.logits()),
        reply: ({ session, messages, options, adapters }, context) =>
            this.#reply(session, options, adapters, context, (core, full) => core.reply(messages, full)),
        replyTokens: ({ session, ids, options, adapters }, context) =>
            this.#reply(session, options, adapters, context, (core, full) => core.replyTokens(ids, full)),
        abort: ({ target }) => {
            this.#running.get(target)?.abort();
            return null;
        },
    };

    /* The engine for operations that do not compute: at once if it is there, else in turn. */
    async #now(signal: AbortSignal): Promise<CoreEngineLike> {
        return this.#engine ?? this.#exclusive(signal, () => this.#ready(signal));
    }
}

// ---- answers that continue after a lost device ----

/* How much of an answer was sent: characters of each kind, and tool calls. An answer that is written again starts from the beginning. */
class Said {
    readonly #said = { content: 0, thinking: 0, calls: 0 };
    readonly #seen = { content: 0, thinking: 0, calls: 0 };

    beginAgain(): void {
        Object.assign(this.#seen, { content: 0, thinking: 0, calls: 0 });
    }

    /** The new part of a piece; null if all of it was sent. */
    rest(piece: Piece): Piece | null {
        if (piece.kind === 'progress' || piece.kind === 'canvas') return piece;
        const kind = piece.kind === 'tool_call' ? 'calls' : piece.kind;
        const length = piece.kind === 'tool_call' ? 1 : piece.text.length;
        const known = Math.min(length, this.#said[kind] - this.#seen[kind]);
        this.#seen[kind] += length;
        if (known === length) return null;
        this.#said[kind] = this.#seen[kind];
        return known === 0 || piece.kind === 'tool_call' ? piece : { kind: piece.kind, text: piece.text.slice(known) };
    }
}

function withText(engine: CoreEngineLike, piece: Piece): ReplyPiece {
    if ((piece.kind !== 'content' && piece.kind !== 'thinking') || !piece.logprobs) return piece as ReplyPiece;
    return { ...piece, logprobs: piece.logprobs.map((row) => row.map((one) => ({ ...one, bytes: engine.tokenText(one.token) }))) };
}

function randomSeed(): number {
    const [high, low] = crypto.getRandomValues(new Uint32Array(2)) as unknown as [number, number];
    return (high & 0x1fffff) * 2 ** 32 + low;
}

// ---- helpers ----

/* Work without which an engine that was just opened is of no use. */
async function closedOnFailure(engine: CoreEngineLike, work: Promise<void>): Promise<void> {
    try {
        await work;
    } catch (thrown) {
        engine.close();
        throw thrown;
    }
}

/* The result, or the reason why the caller no longer wants it. */
function unlessAborted<T>(result: Promise<T>, signal: AbortSignal): Promise<T> {
    return new Promise((resolve, reject) => {
        const stop = () => reject(abortedBy(signal));
        if (signal.aborted) stop();
        signal.addEventListener('abort', stop, { once: true });
        result.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
    });
}

/* Reports progress at most ten times a second, but always the first and the last step of a phase. */
function seldom<P extends { phase: string; done: number; total: number }>(tell: (progress: P) => void): (progress: P) => void {
    let phase = '';
    let last = 0;
    return (progress) => {
        const now = performance.now();
        if (progress.phase === phase && progress.done < progress.total && now - last < 100) return;
        phase = progress.phase;
        last = now;
        tell(progress);
    };
}

/* For the copy of a file. */
function nameOf(spec: SourceSpec): string {
    const path = spec.kind === 'url' ? new URL(spec.url).pathname : spec.kind === 'path' ? spec.path : spec.kind === 'blob' ? spec.name : '';
    return path.split(/[\\/]/).at(-1) ?? '';
}

/* An array can be transferred only if it covers its whole buffer. */
function transferable(result: unknown): Transferable[] {
    if (Array.isArray(result)) return result.flatMap((one: { bytes?: unknown } | null) => transferable(one?.bytes));
    if (!ArrayBuffer.isView(result) || !(result.buffer instanceof ArrayBuffer)) return [];
    return result.byteLength === result.buffer.byteLength ? [result.buffer] : [];
}

/* The host closes sources itself: the engine may be opened again and needs them then. */
function withoutClose(source: ByteSource): ByteSource {
    return { name: source.name, size: source.size, read: (...what) => source.read(...what) };
}

async function closeAll(sources: ByteSource[]): Promise<void> {
    await Promise.allSettled(sources.map((source) => source.close?.()));
}

/* Holds a lock for as long as this worker lives. The page requests the same lock and gets it when the worker has died. */
function holdLock(name: string): Promise<boolean> {
    return new Promise((resolve) => {
        const held = () => {
            resolve(true);
            return new Promise(() => undefined);
        };
        navigator.locks.request(name, held).catch(() => resolve(false)); // as on a page with an opaque origin
    });
}
