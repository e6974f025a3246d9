// The engine without DOM and without Worker: opens models from sources of bytes; sessions answer.
//
// The WebAssembly engine never blocks and never calls out. This is the loop that drives it: a call that returns "again" is repeated when
// bytes it asked for arrive, when the GPU has news, or after other events had their turn. Each engine has its own instance of the module,
// so closing it frees all of its memory.

import { type Verdict, type Verdicts, measureSpeed, openFaster } from './choice.ts';
import { ERROR_CODES, GemmuleError, throwIfAborted, toGemmuleError } from './errors.ts';
import { type GpuDescription, GpuHost, noGpuImports } from './gpu_host.ts';
import { Reads } from './reads.ts';
import { type ThreadHost, Threads, usualThreads } from './threads.ts';
import { Wasm } from './wasm.ts';
import type {
    Backend,
    ByteSource,
    CoreEngineLike,
    CoreLike,
    CoreOptions,
    CoreSessionLike,
    DeviceInfo,
    EngineInfo,
    EngineOptions,
    EngineStats,
    FitReport,
    KeyValueType,
    LoadProgress,
    Message,
    Piece,
    ReplyOptions,
    ReplyStats,
    Sampling,
    SessionOptions,
    TokenLogprob,
} from './types.ts';

const OK = 0;
const AGAIN = 1;
const DONE = 2;
const CANCELLED = ERROR_CODES.Aborted;

const KV_TYPES: Record<KeyValueType, number> = { f16: 1, f32: 2, q8_0: 3 };
const PHASES: LoadProgress['phase'][] = ['header', 'check', 'weights', 'plans'];
const FINISHES: ReplyStats['finish'][] = ['stop', 'stop', 'length', 'tool_calls', 'cancelled'];
const MOST_THREADS = 64; // of src/base/pool_wasm.c
const BREATH_MILLISECONDS = 10; // a small model writes tokens without ever waiting; let messages in this often, so that it can be stopped
const BUSY_MILLISECONDS = 30; // a call that took longer was computing, not waiting: repeat it at once

// Lets other events run, without the 4 ms that a timer costs.
const immediate = (globalThis as { setImmediate?: (call: () => void) => unknown }).setImmediate;
let channel: MessageChannel | null = null;
const waiting: (() => void)[] = [];
function letOthers(): Promise<void> {
    if (immediate) return new Promise((resolve) => void immediate(resolve));
    if (!channel) {
        channel = new MessageChannel();
        channel.port1.onmessage = () => waiting.shift()?.();
    }
    return new Promise((resolve) => {
        waiting.push(resolve);
        channel!.port2.postMessage(0);
    });
}

/** An instance and what drives it: its sources, its GPU, its threads. */
class Machine {
    readonly wasm: Wasm;
    readonly gpu: GpuHost | null;
    readonly threads: Threads | null;
    reads: Reads | null = null;
    note = ''; // for the engine's info
    #closed: GemmuleError | null = null;
    // Counts of events, now and at the start of the last call; when that call began, and how long it took.
    #events = 0;
    #eventsBefore = 0;
    #began = 0;
    #took = 0;
    #rests = false; // whether rest() ran since the last call
    #breath = performance.now(); // when other events last had their turn
    // Settles when something happens. Allocated only when needed: every token comes through here.
    #sleep: Promise<void> | null = null;
    #awake: (() => void) | null = null;
    readonly #fallAsleep = (resolve: () => void) => void (this.#awake = resolve);

    static async create(module: WebAssembly.Module, gpu: GpuHost | null, threads: Threads | null = null): Promise<Machine> {
        const imports = (memory: () => WebAssembly.Memory) => (gpu ? gpu.imports(memory) : noGpuImports());
        const wasm = await Wasm.create(module, imports as (memory: () => WebAssembly.Memory) => WebAssembly.ModuleImports, threads);
        return new Machine(wasm, gpu, threads);
    }

    private constructor(wasm: Wasm, gpu: GpuHost | null, threads: Threads | null) {
        this.wasm = wasm;
        this.gpu = gpu;
        this.threads = threads;
        if (threads) threads.onDeath = (why) => this.close(why);
        if (gpu) gpu.onNews = () => this.wake();
    }

    get closed(): boolean {
        return this.#closed !== null;
    }

    /** Something happened that a call may be waiting for. */
    wake(): void {
        const awake = this.#awake;
        this.#events++;
        this.#sleep = this.#awake = null;
        awake?.();
    }

    close(why: GemmuleError): void {
        if (this.#closed) return;
        this.#closed = why;
        this.reads?.close();
        this.gpu?.close();
        this.threads?.close();
        this.wake();
    }

    check(): void {
        if (this.#closed) throw this.#closed;
    }

    /** The error for a status. If a read failed, its own error says more than what passed through the engine. */
    error(status: number): GemmuleError {
        const message = this.wasm.resultText();
        return this.reads?.errorFor(message) ?? GemmuleError.fromCode(status, message);
    }

    /** Checks the status of a call that completes at once. */
    call(status: number): void {
        if (status !== OK) throw this.error(status);
    }

    /** Repeats a call until it is done. Returns its last status, which is neither "again" nor an error. */
    async drive(call: () => number, signal?: AbortSignal): Promise<number> {
        const stop = () => this.wake();
        signal?.addEventListener('abort', stop);
        try {
            for (;;) {
                const status = this.step(call, signal);
                if (status !== AGAIN) return status;
                await this.rest();
            }
        } finally {
            signal?.removeEventListener('abort', stop);
        }
    }

    /** Calls once. Returns the status; throws for an error. */
    step(call: () => number, signal?: AbortSignal): number {
        this.check();
        throwIfAborted(signal);
        const start = performance.now();
        if (this.#rests) this.#breath = start;
        this.#rests = false;
        this.#began = start;
        this.#eventsBefore = this.#events;
        const status = this.#guarded(call);
        if (status === OK || status === DONE) return status;
        if (status !== AGAIN) throw this.error(status);
        this.reads?.start();
        this.#took = performance.now() - start;
        return AGAIN;
    }

    // After a trap, or the death of a thread, the instance cannot continue.
    #guarded(call: () => number): number {
        try {
            return call();
        } catch (thrown) {
            if (thrown instanceof GemmuleError && thrown.name === 'WorkerDied') this.close(thrown);
            if (thrown instanceof WebAssembly.RuntimeError) {
                this.close(new GemmuleError('Internal', `the engine crashed: ${thrown.message}`, undefined, { cause: thrown }));
                this.check();
            }
            throw thrown;
        }
    }

    /** After a step that returned "again": waits until something happens, or lets other events run. */
    rest(): Promise<void> {
        this.#rests = true;
        const waits = this.#events === this.#eventsBefore && (this.gpu ? !this.gpu.gone : this.reads?.underWay);
        if (this.#took > BUSY_MILLISECONDS || !waits) return letOthers();
        return (this.#sleep ??= new Promise(this.#fallAsleep));
    }

    /** Whether other events have waited for too long. */
    get breathless(): boolean {
        return this.#began - this.#breath > BREATH_MILLISECONDS;
    }

    breathe(): Promise<void> {
        this.#rests = true;
        return letOthers();
    }
}

// ---- the core ----

/** The module, and the GPU if there is one; opens engines. */
export class Core implements CoreLike {
    readonly #module: WebAssembly.Module;
    readonly #gpu: GPU | null;
    readonly #threads: ThreadHost | null;
    readonly #verdicts: Verdicts;
    #threadModule: Promise<WebAssembly.Module> | null = null;

    static async create(options: CoreOptions): Promise<Core> {
        try {
            const given = options.wasm;
            const module = given instanceof WebAssembly.Module ? given : await WebAssembly.compile(given);
            return new Core(module, options);
        } catch (thrown) {
            const reason = thrown instanceof Error ? thrown.message : String(thrown);
            throw new GemmuleError('NotSupported', `cannot compile the engine: WebAssembly with SIMD is needed (${reason})`, undefined, {
                cause: thrown,
            });
        }
    }

    private constructor(module: WebAssembly.Module, { gpu, threads, verdicts }: CoreOptions) {
        this.#module = module;
        this.#gpu = gpu ?? null;
        this.#threads = threads ?? null;
        this.#verdicts = verdicts ?? verdictsInMemory();
    }

    async devices(): Promise<DeviceInfo[]> {
        const threads = this.#threads ? usualThreads(this.#threads.processors) : 1;
        const wasm: DeviceInfo = {
            backend: 'wasm', name: 'WebAssembly', vendor: '', driver: '', software: true,
            features: threads > 1 ? ['simd128', 'threads'] : ['simd128'], limits: { threads },
        };
        const found = await GpuHost.describe(this.#gpu);
        if (!found) return [wasm];
        const features = (['subgroups', 'f16', 'dot4', 'timestamps', 'subgroup_matrix'] as const).filter((name) => found[name]);
        const limits: Record<string, number> = {};
        for (const [name, value] of Object.entries(found)) {
            if (typeof value === 'number') limits[name] = value;
        }
        const { name, vendor, driver, software } = found;
        return [{ backend: 'gpu', name, vendor, driver, software, features, limits }, wasm];
    }

    async dryRun(sources: ByteSource[], options: EngineOptions = {}): Promise<FitReport> {
        const { adapter } = await this.#findAdapter(options);
        const machine = await Machine.create(this.#module, null);
        const { wasm } = machine;
        try {
            const load = beginLoading(sources, options, machine, adapter !== null);
            await machine.drive(() => wasm.exports.gmw_load_header(wasm.context, load), options.signal);
            machine.call(wasm.exports.gmw_load_fit(wasm.context, load, adapter?.max_binding ?? 0));
            return { ...wasm.resultJson<Omit<FitReport, 'backend'>>(), backend: adapter ? 'gpu' : 'wasm' };
        } finally {
            machine.close(new GemmuleError('Aborted', 'the dry run is over'));
        }
    }

    async open(sources: ByteSource[], options: EngineOptions = {}): Promise<CoreEngine> {
        throwIfAborted(options.signal);
        const { adapter, reason } = await this.#findAdapter(options);
        if (adapter && (options.backend ?? 'auto') === 'auto') {
            return openFaster<CoreEngine>({
                sources, options, gpu: adapter, verdicts: this.#verdicts, measure: measureSpeed,
                threads: options.threads ?? usualThreads(this.#threads?.processors ?? 1),
                open: (backend, given) => this.#openOn(backend, sources, given),
            });
        }
        const engine = await this.#openOn(adapter ? 'gpu' : 'wasm', sources, options);
        engine.info.backendReason = reason;
        return engine;
    }

    async #openOn(backend: Backend, sources: ByteSource[], options: EngineOptions): Promise<CoreEngine> {
        const gpu = backend === 'gpu' ? await GpuHost.open(this.#gpu!, { powerPreference: options.powerPreference }) : null;
        let machine: Machine | null = null;
        try {
            machine = gpu ? await Machine.create(this.#module, gpu) : await this.#wasmMachine(options.threads);
            return await finishLoading(machine, beginLoading(sources, options, machine, gpu !== null), options);
        } catch (thrown) {
            const failed = toGemmuleError(thrown);
            machine?.close(failed);
            gpu?.close();
            throw failed;
        }
    }

    /* The adapter to use; null: wasm. A software adapter is slower than wasm, so only a caller who asks for the GPU gets one. */
    async #findAdapter(options: EngineOptions): Promise<{ adapter: GpuDescription | null; reason: string }> {
        const wanted = options.backend ?? 'auto';
        if (wanted === 'wasm') return { adapter: null, reason: 'requested' };
        const adapter = await GpuHost.describe(this.#gpu, { powerPreference: options.powerPreference });
        const usable = adapter && (!adapter.software || (options.softwareGpu ?? wanted === 'gpu'));
        const reason = usable ? 'requested' : whyNoGpu(this.#gpu, adapter);
        if (!usable && wanted === 'gpu') throw new GemmuleError('NoWebGPU', `${reason}; backend: 'wasm' runs the model on the CPU`);
        return { adapter: usable ? adapter : null, reason };
    }

    // Without threads one computes: slower, with the same results.
    async #wasmMachine(wished: number | undefined): Promise<Machine> {
        const host = this.#threads;
        const count = wished === undefined ? usualThreads(host?.processors ?? 1) : wholeNumber(wished, 'threads', 1, MOST_THREADS);
        if (!host || count === 1) return Machine.create(this.#module, null);
        let threads: Threads | null = null;
        try {
            const module = await (this.#threadModule ??= host.compile());
            threads = await Threads.start(host, module, count);
            return await Machine.create(module, null, threads);
        } catch (thrown) {
            threads?.close();
            this.#threadModule = null;
            const machine = await Machine.create(this.#module, null);
            machine.note = `running on 1 thread instead of ${count}: ${toGemmuleError(thrown).message}`;
            return machine;
        }
    }
}

function whyNoGpu(gpu: GPU | null, adapter: GpuDescription | null): string {
    if (!gpu) return 'WebGPU is not available here';
    if (adapter) return `the only GPU is ${adapter.name}, which is software and slower than wasm`;
    return 'WebGPU found no graphics adapter: its driver may be missing or blocked';
}

function verdictsInMemory(): Verdicts {
    const known = new Map<string, Verdict>();
    return { get: async (key) => known.get(key), set: async (key, verdict) => known.set(key, verdict) };
}

function beginLoading(sources: ByteSource[], options: EngineOptions, machine: Machine, onGpu: boolean): number {
    if (!sources.length) throw new GemmuleError('BadArgument', 'a model needs at least one source');
    const { wasm, gpu, threads } = machine;
    const { name, ollama, precise, gpuMemory, wasmMemory, gpuDisable } = options;
    const text = JSON.stringify({ ...ollama, name, precise, gpuMemory, wasmMemory, gpuDisable, gpu: onGpu, threads: threads?.count });
    const sizes = new Float64Array(sources.map((source) => source.size));
    machine.call(
        wasm.withText(text, (at, length) =>
            wasm.with(new Uint8Array(sizes.buffer), (list) =>
                wasm.exports.gmw_load_new(wasm.context, at, length, list, sizes.length, wasm.scratch),
            ),
        ),
    );
    const load = wasm.pointer();
    machine.reads = new Reads(wasm, gpu, sources, wasm.exports.gmw_load_reads(load), wasm.exports.gmw_load_file(load), () => machine.wake());
    return load;
}

async function finishLoading(machine: Machine, load: number, options: EngineOptions): Promise<CoreEngine> {
    const { wasm } = machine;
    const tell = () => {
        if (!options.onProgress) return;
        wasm.exports.gmw_load_progress(load, wasm.scratch);
        const [phase, done, total] = wasm.numbers(3) as [number, number, number];
        options.onProgress({ phase: PHASES[phase]!, done, total });
    };
    await machine.drive(() => {
        const status = wasm.exports.gmw_load_step(wasm.context, load);
        if (status === OK || status === AGAIN) tell();
        return status;
    }, options.signal);
    const engine = wasm.exports.gmw_load_take(load);
    wasm.exports.gmw_load_free(load);
    return new CoreEngine(machine, engine);
}

// ---- an engine ----

/** A model on a device. */
export class CoreEngine implements CoreEngineLike {
    readonly info: EngineInfo;
    readonly samplingDefault: Sampling;
    readonly lost: Promise<string>;

    readonly #machine: Machine;
    readonly #engine: number;
    readonly #sessions = new Set<CoreSession>();

    /** @internal */
    constructor(machine: Machine, engine: number) {
        const { wasm } = machine;
        this.#machine = machine;
        this.#engine = engine;
        machine.call(wasm.exports.gmw_engine_info(wasm.context, engine));
        const { sampling, ...info } = wasm.resultJson<Omit<EngineInfo, 'backend' | 'backendReason' | 'threads'> & { sampling: Sampling }>();
        const backend = machine.gpu ? 'gpu' : 'wasm';
        this.info = { ...info, backend, backendReason: '', threads: machine.threads?.count ?? 1, note: info.note || machine.note };
        this.samplingDefault = sampling;
        this.lost = machine.gpu?.lost ?? new Promise<string>(() => {});
    }

    session(options: SessionOptions = {}): CoreSession {
        const { wasm } = this.#machine;
        this.#machine.check();
        const kv = options.kv ? KV_TYPES[options.kv] : 0;
        if (kv === undefined) throw new GemmuleError('BadArgument', `kv must be f16, f32 or q8_0, found '${options.kv}'`);
        this.#machine.call(wasm.exports.gmw_session_new(wasm.context, this.#engine, wholeNumber(options.context ?? 0, 'context'), kv, wasm.scratch));
        return this.#adopt(wasm.pointer());
    }

    #adopt(pointer: number): CoreSession {
        const session: CoreSession = new CoreSession(this.#machine, pointer, {
            adopt: (forked) => this.#adopt(forked),
            gone: () => void this.#sessions.delete(session),
        });
        this.#sessions.add(session);
        return session;
    }

    tokenize(text: string, parseSpecial = false): Int32Array {
        const { wasm } = this.#machine;
        this.#machine.check();
        this.#machine.call(wasm.withText(text, (at, length) => wasm.exports.gmw_tokenize(wasm.context, this.#engine, at, length, Number(parseSpecial))));
        return new Int32Array(wasm.resultBytes().buffer);
    }

    tokenText(id: number): Uint8Array {
        const { wasm } = this.#machine;
        this.#machine.check();
        this.#machine.call(wasm.exports.gmw_token_text(wasm.context, this.#engine, wholeNumber(id, 'a token id', -1)));
        return wasm.resultBytes();
    }

    detokenize(ids: Iterable<number>): string {
        const decoder = new TextDecoder();
        let text = '';
        for (const id of ids) text += decoder.decode(this.tokenText(id), { stream: true });
        return text + decoder.decode();
    }

    render(messages: Message[], options: ReplyOptions = {}): string {
        const { wasm } = this.#machine;
        this.#machine.check();
        this.#machine.call(wasm.withText(requestText(messages, options), (at, length) => wasm.exports.gmw_render(wasm.context, this.#engine, at, length)));
        return wasm.resultText();
    }

    async selfCheck(): Promise<void> {
        const { wasm } = this.#machine;
        this.#machine.check();
        this.#machine.call(wasm.exports.gmw_check_new(wasm.context, this.#engine, wasm.scratch));
        const check = wasm.pointer();
        if (!check) return; // without a GPU there is nothing to compare with
        try {
            await this.#machine.drive(() => wasm.exports.gmw_check_step(wasm.context, check));
        } finally {
            if (!this.#machine.closed) wasm.exports.gmw_check_free(check);
        }
    }

    stats(): EngineStats {
        const { wasm } = this.#machine;
        this.#machine.check();
        wasm.exports.gmw_engine_stats(this.#engine, wasm.scratch);
        const [gpuBytes, checkSeconds, loadSeconds, planSeconds] = wasm.numbers(4) as [number, number, number, number];
        const dispatchesPerToken = Math.max(0, ...[...this.#sessions].map((session) => session.dispatches));
        return { wasmBytes: wasm.bytes, gpuBytes, dispatchesPerToken, checkSeconds, loadSeconds, planSeconds };
    }

    close(): void {
        if (this.#machine.closed) return;
        this.#machine.close(new GemmuleError('Aborted', 'the engine was closed'));
        this.#sessions.clear();
    }
}

function wholeNumber(value: number, what: string, least = 0, most = 0x7fffffff): number {
    if (Number.isInteger(value) && value >= least && value <= most) return value;
    const range = most === 0x7fffffff ? `of at least ${least}` : `from ${least} to ${most}`;
    throw new GemmuleError('BadArgument', `${what} must be a whole number ${range}, found ${value}`);
}

// JSON numbers cannot hold a seed's 64 bits, so it crosses as digits. Object keys are strings, so token ids cross as a list of pairs.
function requestText(messages: Message[] | null, options: ReplyOptions): string {
    const { signal: _, sampling, resume, ...rest } = options;
    const { seed, logit_bias, ...numbers } = sampling ?? {};
    const random = () => new DataView(crypto.getRandomValues(new Uint8Array(8)).buffer).getBigUint64(0);
    const settings: Record<string, unknown> = { ...numbers, seed: String(seed ?? random()) };
    if (logit_bias) settings['logit_bias'] = Object.entries(logit_bias).map(([id, bias]) => [Number(id), bias]);
    return JSON.stringify({ messages, options: { ...rest, ...(resume ? { resume: [...resume] } : {}), sampling: settings } });
}

// ---- a session ----

interface SessionOwner {
    adopt(session: number): CoreSession;
    gone(): void;
}

type WirePiece =
    | { kind: 'content' | 'thinking' | 'tool_call'; text: string; logprobs?: TokenLogprob[][] }
    | { kind: 'progress'; done: number; total: number };

/** One conversation. One call at a time: a second one throws Busy. */
export class CoreSession implements CoreSessionLike {
    readonly context: number;
    readonly #machine: Machine;
    readonly #session: number;
    readonly #owner: SessionOwner;
    #free = false;
    #busy = false;

    /** @internal */
    constructor(machine: Machine, session: number, owner: SessionOwner) {
        this.#machine = machine;
        this.#session = session;
        this.#owner = owner;
        this.context = machine.wasm.exports.gmw_session_context(session);
    }

    #check(): void {
        this.#machine.check();
        if (this.#free) throw new GemmuleError('BadArgument', 'the session was freed');
    }

    #checkIdle(): void {
        this.#check();
        if (this.#busy) throw new GemmuleError('Busy', 'the session is busy with another call');
    }

    /** @internal */
    get dispatches(): number {
        return this.#machine.wasm.exports.gmw_session_dispatches(this.#session);
    }

    tokens(): Int32Array {
        const { wasm } = this.#machine;
        this.#check();
        const at = wasm.exports.gmw_session_ids(this.#session) >>> 0;
        return new Int32Array(wasm.view(at, 4 * wasm.exports.gmw_session_count(this.#session)).slice().buffer);
    }

    logits(): Float32Array | null {
        const { wasm } = this.#machine;
        this.#check();
        const at = wasm.exports.gmw_session_logits(this.#session) >>> 0;
        return at ? new Float32Array(wasm.view(at, 4 * this.#vocabulary()).slice().buffer) : null;
    }

    #vocabulary(): number {
        return this.#machine.wasm.exports.gmw_session_vocabulary(this.#session);
    }

    rollback(keep: number): number {
        const { wasm } = this.#machine;
        this.#checkIdle();
        this.#machine.call(wasm.exports.gmw_session_rollback(wasm.context, this.#session, wholeNumber(keep, 'tokens to keep'), wasm.scratch));
        return wasm.pointer();
    }

    set(ids: Int32Array, signal?: AbortSignal): Promise<void> {
        const { exports } = this.#machine.wasm;
        return this.#compute(ids, exports.gmw_session_set, signal);
    }

    append(ids: Int32Array, signal?: AbortSignal): Promise<void> {
        const { exports } = this.#machine.wasm;
        return this.#compute(ids, exports.gmw_session_append, signal);
    }

    async #compute(ids: Int32Array, call: (context: number, session: number, ids: number, count: number) => number, signal?: AbortSignal): Promise<void> {
        const { wasm } = this.#machine;
        await this.#alone(async () => {
            const copy = wasm.alloc(4 * ids.length);
            wasm.put(copy, new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength));
            try {
                await this.#machine.drive(() => call(wasm.context, this.#session, copy, ids.length), signal);
            } finally {
                if (!this.#machine.closed) wasm.free(copy);
            }
        });
    }

    // A call that is aborted halfway also ends in the engine; what was computed stays.
    async #alone<T>(work: () => Promise<T>): Promise<T> {
        this.#checkIdle();
        this.#busy = true;
        try {
            return await work();
        } catch (thrown) {
            if (!this.#machine.closed) this.#machine.wasm.exports.gmw_session_stop(this.#session);
            throw thrown;
        } finally {
            this.#busy = false;
            if (this.#free) this.#reallyFree();
        }
    }

    async fork(): Promise<CoreSession> {
        const { wasm } = this.#machine;
        this.#checkIdle();
        this.#machine.call(wasm.exports.gmw_session_fork(wasm.context, this.#session, wasm.scratch));
        return this.#owner.adopt(wasm.pointer());
    }

    async save(): Promise<Uint8Array> {
        const { wasm } = this.#machine;
        return this.#alone(async () => {
            this.#machine.call(wasm.exports.gmw_save_new(wasm.context, this.#session, wasm.scratch));
            const save = wasm.pointer();
            try {
                await this.#machine.drive(() => wasm.exports.gmw_save_step(wasm.context, save));
                return wasm.view(wasm.exports.gmw_save_bytes(save), wasm.exports.gmw_save_length(save)).slice();
            } finally {
                if (!this.#machine.closed) wasm.exports.gmw_save_free(save);
            }
        });
    }

    async restore(bytes: Uint8Array): Promise<void> {
        const { wasm } = this.#machine;
        return this.#alone(async () => {
            const copy = wasm.alloc(bytes.length);
            let restore = 0;
            try {
                wasm.put(copy, bytes);
                this.#machine.call(wasm.exports.gmw_restore_new(wasm.context, this.#session, copy, bytes.length, wasm.scratch));
                restore = wasm.pointer();
                await this.#machine.drive(() => wasm.exports.gmw_restore_step(wasm.context, restore));
            } finally {
                if (!this.#machine.closed) {
                    if (restore) wasm.exports.gmw_restore_free(restore);
                    wasm.free(copy);
                }
            }
        });
    }

    reply(messages: Message[], options: ReplyOptions = {}): AsyncGenerator<Piece, ReplyStats> {
        return this.#reply(requestText(messages, options), null, options);
    }

    replyTokens(ids: Int32Array, options: ReplyOptions = {}): AsyncGenerator<Piece, ReplyStats> {
        return this.#reply(requestText(null, options), ids, options);
    }

    async *#reply(request: string, ids: Int32Array | null, options: ReplyOptions): AsyncGenerator<Piece, ReplyStats> {
        const { wasm } = this.#machine;
        const row = options.logprobs === undefined ? 0 : 1 + options.logprobs;
        this.#checkIdle();
        this.#busy = true;
        let reply = 0;
        const next = () => wasm.exports.gmw_reply_next(wasm.context, reply, row);
        const stop = () => this.#machine.wake();
        options.signal?.addEventListener('abort', stop);
        try {
            reply = this.#startReply(request, ids);
            for (;;) {
                const status = this.#machine.step(next, options.signal);
                if (status === DONE) return this.#stats(reply);
                if (status === AGAIN) {
                    await this.#machine.rest();
                    continue;
                }
                yield pieceOf(wasm.resultJson<WirePiece>());
                if (this.#machine.breathless) await this.#machine.breathe();
            }
        } catch (thrown) {
            const failed = toGemmuleError(thrown);
            // A full context ends an answer, too: its statistics say how far it came.
            if (failed.name === 'ContextFull' && reply) throw new GemmuleError('ContextFull', failed.message, { stats: this.#stats(reply) });
            if (!options.signal?.aborted || failed.code !== CANCELLED || this.#machine.closed || !reply) throw failed;
            return { ...this.#stats(reply), finish: 'cancelled' };
        } finally {
            options.signal?.removeEventListener('abort', stop);
            this.#busy = false;
            if (reply && !this.#machine.closed) wasm.exports.gmw_reply_free(reply);
            if (this.#free) this.#reallyFree();
        }
    }

    #startReply(request: string, ids: Int32Array | null): number {
        const { wasm } = this.#machine;
        const start = (tokens: number, count: number) =>
            wasm.withText(request, (at, length) =>
                wasm.exports.gmw_reply_new(wasm.context, this.#session, at, length, tokens, count, wasm.scratch),
            );
        this.#machine.call(ids ? wasm.withIds(ids, start) : start(0, 0));
        return wasm.pointer();
    }

    #stats(reply: number): ReplyStats {
        const { wasm } = this.#machine;
        wasm.exports.gmw_reply_stats(reply, wasm.scratch);
        const [finish, promptTokens, cachedTokens, replyTokens, promptSeconds, replySeconds] = wasm.numbers(6) as [number, number, number, number, number, number];
        return { finish: FINISHES[finish]!, promptTokens, cachedTokens, replyTokens, promptSeconds, replySeconds };
    }

    /** Frees the session; during a call, at the end of the call. */
    free(): void {
        if (this.#free) return;
        this.#free = true;
        if (!this.#busy) this.#reallyFree();
    }

    #reallyFree(): void {
        if (!this.#machine.closed) this.#machine.wasm.exports.gmw_session_free(this.#session);
        this.#owner.gone();
    }
}

function pieceOf(wire: WirePiece): Piece {
    if (wire.kind !== 'tool_call') return wire as Piece;
    const { name, arguments: given } = JSON.parse(wire.text) as { name: string; arguments: unknown };
    return { kind: 'tool_call', name, arguments: given, json: wire.text };
}
