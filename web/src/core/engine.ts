// A model on a device: its text functions, its figures, and its sessions.

import { convertAdapter, CoreAdapter, inspectAdapter } from './adapter.ts';
import { CoreDataset } from './dataset.ts';
import { GemmuleError } from './errors.ts';
import type { Machine } from './machine.ts';
import { wholeNumber, withRequest } from './request.ts';
import { CoreSession } from './session.ts';
import { CoreTraining } from './training.ts';
import type {
    AdapterBytes,
    AdapterFile,
    AdapterForm,
    AdapterReport,
    CoreEngineLike,
    DataFile,
    DataOptions,
    DataProgress,
    EngineInfo,
    EngineStats,
    KeyValueType,
    PlainMessage,
    Profiles,
    ReplyOptions,
    Sampling,
    SessionOptions,
    TrainingSettings,
} from './types.ts';

const KV_TYPES: Record<KeyValueType, number> = { f16: 1, f32: 2, q8_0: 3 };

export class CoreEngine implements CoreEngineLike {
    readonly info: EngineInfo;
    readonly samplingDefault: Sampling;
    readonly lost: Promise<string>;

    readonly #machine: Machine;
    readonly #engine: number;
    readonly #sessions = new Set<CoreSession>();
    #profiles: Profiles | null = null;

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
        const context = wholeNumber(options.context ?? 0, 'context');
        return this.#adopt(this.#machine.make((out) => wasm.exports.gmw_session_new(wasm.context, this.#engine, context, kv, out)));
    }

    adapter(name: string, bytes: AdapterBytes): CoreAdapter {
        return CoreAdapter.load(this.#machine, this.#engine, name, bytes);
    }

    inspectAdapter(name: string, bytes: AdapterBytes): AdapterReport {
        return inspectAdapter(this.#machine, this.#engine, name, bytes);
    }

    convertAdapter(name: string, bytes: AdapterBytes, form: AdapterForm): AdapterFile[] {
        return convertAdapter(this.#machine, name, bytes, form);
    }

    dataset(files: readonly DataFile[], options: DataOptions = {}, signal?: AbortSignal, onProgress?: (progress: DataProgress) => void): Promise<CoreDataset> {
        return CoreDataset.read(this.#machine, this.#engine, files, options, signal, onProgress);
    }

    train(files: readonly DataFile[], settings: TrainingSettings & { name?: string }, checkpoint: Uint8Array | null = null): CoreTraining {
        return new CoreTraining(this.#machine, this.#engine, files, settings, checkpoint);
    }

    #adopt(pointer: number): CoreSession {
        const session: CoreSession = new CoreSession(this.#machine, pointer, {
            adopt: (forked) => this.#adopt(forked),
            gone: () => void this.#sessions.delete(session),
            replied: () => this.#keepProfile(),
        });
        this.#sessions.add(session);
        return session;
    }

    tokenize(text: string, parseSpecial = false): Int32Array {
        const { wasm } = this.#machine;
        const special = Number(parseSpecial);
        this.#machine.check();
        this.#machine.call(wasm.withText(text, (at, length) => wasm.exports.gmw_tokenize(wasm.context, this.#engine, at, length, special)));
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

    render(messages: readonly PlainMessage[], options: ReplyOptions = {}): string {
        const { wasm } = this.#machine;
        this.#machine.check();
        this.#machine.call(withRequest(wasm, messages, options, (at, length) => wasm.exports.gmw_render(wasm.context, this.#engine, at, length)));
        return wasm.resultText();
    }

    async selfCheck(): Promise<void> {
        const { context, exports } = this.#machine.wasm;
        this.#machine.check();
        const check = this.#machine.make((out) => exports.gmw_check_new(context, this.#engine, out));
        if (!check) return; // without a GPU there is nothing to compare with
        await this.#machine.finish(check, exports.gmw_check_step, exports.gmw_check_free, () => {});
    }

    stats(): EngineStats {
        const { wasm } = this.#machine;
        this.#machine.check();
        wasm.exports.gmw_engine_stats(this.#engine, wasm.scratch);
        const [gpuBytes = 0, checkSeconds = 0, loadSeconds = 0, planSeconds = 0, shaderSeconds = 0, ...experts] = wasm.numbers(9);
        const [uses = 0, misses = 0, tokens = 0, bytes = 0] = experts;
        const dispatchesPerToken = Math.max(0, ...[...this.#sessions].map((session) => session.dispatches));
        return {
            wasmBytes: wasm.bytes, gpuBytes, dispatchesPerToken, checkSeconds, loadSeconds, shaderSeconds, planSeconds,
            ...(tokens > 0 ? { expertHitRate: 1 - misses / uses, expertBytesPerToken: bytes / tokens } : {}),
        };
    }

    /** If there is a cache of experts on the GPU: begins with those that were used most before, and remembers from now on which are. */
    async rememberExperts(profiles: Profiles, signal?: AbortSignal): Promise<void> {
        const { context, exports } = this.#machine.wasm;
        if (exports.gmw_experts_profile(context, this.#engine) || !this.#machine.wasm.resultBytes().length) return;
        this.#profiles = profiles;
        const known = await profiles.get(this.#profileKey).catch(() => undefined);
        if (!(known instanceof Uint8Array)) return;
        // One that cannot be used, such as one of an older version, is as good as none.
        if (this.#machine.wasm.with(known, (at, length) => exports.gmw_experts_know(context, this.#engine, at, length))) return;
        await this.#machine.drive(() => exports.gmw_experts_warm(context, this.#engine), signal);
    }

    get #profileKey(): string {
        return `experts ${this.info.digest}`;
    }

    #keepProfile(): void {
        const { wasm, closed } = this.#machine;
        if (!this.#profiles || closed) return;
        if (wasm.exports.gmw_experts_profile(wasm.context, this.#engine)) return; // no memory for it
        this.#profiles.set(this.#profileKey, wasm.resultBytes()).catch(() => undefined); // storage is off
    }

    close(): void {
        if (this.#machine.closed) return;
        this.#machine.close(new GemmuleError('Aborted', 'the engine was closed'));
        this.#sessions.clear();
    }
}
