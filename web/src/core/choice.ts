// What `backend: 'auto'` means where there is a hardware GPU.
//
// A large model always goes to the GPU. A small one may be faster on wasm, since every token costs the GPU a fixed latency: both
// backends write a few tokens, the faster one stays, and the verdict is remembered for this GPU and this model.

import { throwIfAborted, toGemmuleError } from './errors.ts';
import type { GpuDescription } from './gpu_device.ts';
import { Sha256 } from './sha256.ts';
import type { Backend, ByteSource, CoreEngineLike, EngineOptions, ReplyStats } from './types.ts';

/** Tokens per second of both backends, and the one to use. */
export interface Verdict {
    backend: Backend;
    gpu: number;
    wasm: number;
}

/** Where verdicts are remembered. */
export interface Verdicts {
    get(key: string): Promise<Verdict | undefined>;
    set(key: string, verdict: Verdict): Promise<unknown>;
}

export interface Contest<E extends CoreEngineLike> {
    sources: ByteSource[];
    options: EngineOptions;
    gpu: GpuDescription;
    /** How many threads wasm would have. */
    threads: number;
    verdicts: Verdicts;
    open(backend: Backend, options: EngineOptions): Promise<E>;
    measure(engine: E, signal?: AbortSignal): Promise<number>;
}

const LARGEST_TRIAL = 256 * 2 ** 20; // bytes; during the trial both backends hold the model
const HEADER_BYTES = 64 << 10; // enough to tell models apart, together with the file's size
const CLEARLY_FASTER = 1.2; // wasm must win by this much: the GPU reads prompts faster, and leaves the processor free

/** Opens the model on the backend that writes faster. `info.backendReason` says why. */
export async function openFaster<E extends CoreEngineLike>(contest: Contest<E>): Promise<E> {
    const { sources, options, gpu, verdicts } = contest;
    const bytes = sources.reduce((sum, source) => sum + source.size, 0);
    if (bytes > LARGEST_TRIAL) return openGpuElseWasm(contest, `${gpu.name}: a model this large belongs on the GPU`);
    const key = await contestKey(contest);
    const known = await verdicts.get(key).catch(() => undefined);
    if (known?.backend === 'wasm') return explained(await contest.open('wasm', options), describeVerdict(known));
    const engine = await openGpuElseWasm(contest, known ? describeVerdict(known) : '');
    if (known || engine.info.backend === 'wasm') return engine;
    try {
        return await compare(contest, engine, key);
    } catch (thrown) {
        engine.close();
        throw thrown;
    }
}

/* A GPU that refuses the model, or fails the self-check, is no reason to fail: nobody asked for it. */
async function openGpuElseWasm<E extends CoreEngineLike>({ open, options }: Contest<E>, reason: string): Promise<E> {
    try {
        return explained(await open('gpu', options), reason);
    } catch (thrown) {
        const refused = toGemmuleError(thrown);
        if (refused.name !== 'NoWebGPU' && refused.name !== 'OutOfMemory') throw refused;
        try {
            return explained(await open('wasm', options), `the GPU cannot run this model: ${refused.message}`);
        } catch {
            throwIfAborted(options.signal);
            throw refused;
        }
    }
}

async function compare<E extends CoreEngineLike>({ open, measure, options, verdicts }: Contest<E>, gpu: E, key: string): Promise<E> {
    const { onProgress, ...quietly } = options;
    const report = (done: number) => onProgress?.({ phase: 'measure', done, total: 2 });
    report(0);
    const gpuSpeed = await measure(gpu, options.signal);
    report(1);
    let wasm: E;
    try {
        wasm = await open('wasm', quietly);
    } catch (thrown) {
        throwIfAborted(options.signal);
        return explained(gpu, `wasm cannot run this model: ${toGemmuleError(thrown).message}`);
    }
    try {
        const wasmSpeed = await measure(wasm, options.signal);
        const verdict: Verdict = { backend: wasmSpeed > CLEARLY_FASTER * gpuSpeed ? 'wasm' : 'gpu', gpu: gpuSpeed, wasm: wasmSpeed };
        const [winner, loser] = verdict.backend === 'gpu' ? [gpu, wasm] : [wasm, gpu];
        await verdicts.set(key, verdict).catch(() => undefined); // storage is off: measured again next time
        loser.close();
        report(2);
        return explained(winner, describeVerdict(verdict));
    } catch (thrown) {
        wasm.close();
        throw thrown;
    }
}

function explained<E extends CoreEngineLike>(engine: E, reason: string): E {
    engine.info.backendReason = reason;
    return engine;
}

function describeVerdict({ gpu, wasm }: Verdict): string {
    return `measured with this model: ${Math.round(gpu)} tokens per second on the GPU, ${Math.round(wasm)} on wasm`;
}

/* Everything that the speeds depend on. */
async function contestKey<E extends CoreEngineLike>({ sources, options, gpu, threads }: Contest<E>): Promise<string> {
    const [first] = sources;
    const hash = new Sha256();
    if (first) hash.update(await first.read(0, Math.min(HEADER_BYTES, first.size), options.signal));
    const { precise, gpuMemory, gpuExperts, gpuDisable, powerPreference } = options;
    const { name, vendor, backend, driver } = gpu;
    const rest = { sizes: sources.map(({ size }) => size), name, vendor, backend, driver, threads, precise, gpuMemory, gpuExperts, gpuDisable, powerPreference };
    return `backend/1/${hash.update(new TextEncoder().encode(JSON.stringify(rest))).hex()}`;
}

// ---- measuring ----

const PROMPT = 'One, two, three, four,';
const WARM_UP_TOKENS = 4; // the first tokens pay for pipelines and page faults
const MEASURED_TOKENS = 32;
const LONGEST_RUN = 500; // milliseconds
const MOST_RUNS = 8; // of answers that end by themselves

/** Tokens per second that an engine writes; 0 if the model wrote nothing. */
export async function measureSpeed(engine: CoreEngineLike, signal?: AbortSignal): Promise<number> {
    const ids = engine.tokenize(PROMPT);
    const session = engine.session({ context: 256 });
    try {
        let [tokens, seconds] = [0, 0];
        for (let run = 0; run < MOST_RUNS && tokens < MEASURED_TOKENS; run++) {
            const stop = new AbortController();
            const late = AbortSignal.any([stop.signal, ...(signal ? [signal] : [])]);
            const maxTokens = run === 0 ? WARM_UP_TOKENS : MEASURED_TOKENS - tokens;
            const sampling = { temperature: 1, top_k: 0, top_p: 1, min_p: 0, seed: run };
            const stats = await timed(session.replyTokens(ids, { maxTokens, sampling, signal: late }), run === 0 ? null : stop);
            throwIfAborted(signal);
            if (run === 0) continue;
            tokens += stats.replyTokens;
            seconds += stats.replySeconds;
            if (stop.signal.aborted) break;
        }
        return seconds > 0 ? tokens / seconds : 0;
    } finally {
        session.free();
    }
}

/* Reads an answer to its end, or for as long as a run may take. */
async function timed(pieces: AsyncGenerator<unknown, ReplyStats>, stop: AbortController | null): Promise<ReplyStats> {
    const start = performance.now();
    for (;;) {
        const next = await pieces.next();
        if (next.done) return next.value;
        if (performance.now() - start > LONGEST_RUN) stop?.abort();
    }
}
