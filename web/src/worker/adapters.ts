/* The adapters that the worker holds: their files, and on the current device their matrices.
 *
 * The files are read again when a lost device is replaced. An adapter that was let go stays until no session uses it. */

import { GemmuleError, throwIfAborted, toGemmuleError } from '../core/errors.ts';
import type { AdapterBytes, AdapterInfo, ByteSource, CoreAdapterLike, CoreEngineLike } from '../core/types.ts';
import type { AdapterSpec, AdapterUse, Progress, SourceSpec } from './protocol.ts';

const PIECE = 4 << 20; // bytes of one read
const LARGEST_CONFIG = 16 << 20;

export type OpenSource = (spec: SourceSpec, options: { headerOnly: boolean; signal: AbortSignal; onProgress(progress: Progress): void }) => Promise<ByteSource>;

async function readWhole(source: ByteSource, signal: AbortSignal, tell: (done: number) => void): Promise<Uint8Array<ArrayBuffer>> {
    const bytes = new Uint8Array(source.size);
    for (let at = 0; at < source.size; ) {
        const length = Math.min(PIECE, source.size - at);
        bytes.set(await source.read(at, length, signal), at);
        tell((at += length));
    }
    return bytes;
}

/* Without an adapter_config.json, the weights must be a GGUF. */
function checkMagic(name: string, beginning: Uint8Array): void {
    const magic = String.fromCharCode(...beginning);
    if (magic === 'GGUF') return;
    const found = beginning.length ? `it starts with ${JSON.stringify(magic)}${/^\s*</.test(magic) ? ' (a web page?)' : ''}` : 'it is empty';
    throw new GemmuleError('BadModel', `${name} is not a GGUF file: ${found}`);
}

/** Reads the files of an adapter. */
export async function readAdapter(
    { name, weights, config }: AdapterSpec, open: OpenSource, signal: AbortSignal, onProgress: (progress: Progress) => void,
): Promise<{ weights: Uint8Array<ArrayBuffer>; config: Uint8Array<ArrayBuffer> | null }> {
    const sources: ByteSource[] = [];
    try {
        for (const spec of config ? [config, weights] : [weights]) sources.push(await open(spec, { headerOnly: false, signal, onProgress }));
        const [beside, main] = config ? [sources[0]!, sources[1]!] : [null, sources[0]!];
        if (beside && beside.size > LARGEST_CONFIG) {
            throw new GemmuleError('BadModel', `${beside.name} has ${beside.size} bytes: an adapter_config.json is smaller than ${LARGEST_CONFIG >> 20} MiB`);
        }
        const total = sources.reduce((sum, { size }) => sum + size, 0);
        const tell = (before: number) => (done: number) => onProgress({ phase: 'read', done: before + done, total });
        throwIfAborted(signal);
        if (!beside) checkMagic(main.name, await main.read(0, Math.min(4, main.size), signal));
        const small = beside && (await readWhole(beside, signal, tell(0)));
        return { weights: await readWhole(main, signal, tell(small?.length ?? 0)), config: small };
    } catch (thrown) {
        throw named(name, thrown);
    } finally {
        await Promise.allSettled(sources.map((source) => source.close?.()));
    }
}

/* The engine's messages do not say which adapter they are about. */
function named(name: string, thrown: unknown): GemmuleError {
    const error = toGemmuleError(thrown);
    if (error.name === 'Aborted' || error.name === 'DeviceLost') return error;
    return new GemmuleError(error.name, `the adapter '${name}' cannot be used: ${error.message}`, error.detail, { cause: thrown });
}

interface HeldAdapter {
    files: AdapterSpec;
    info: AdapterInfo;
    /** null: its files could not be read again after the device was lost. */
    core: CoreAdapterLike | null;
    problem: GemmuleError | null;
    /** Its owner let it go; sessions may still use it. */
    freed: boolean;
}

export class HeldAdapters {
    readonly #open: OpenSource;
    readonly #held = new Map<number, HeldAdapter>();
    #last = 0;
    /** Those that are part of the model. */
    #own: number[] = [];

    constructor(open: OpenSource) {
        this.#open = open;
    }

    read(files: AdapterSpec, signal: AbortSignal, onProgress: (progress: Progress) => void): ReturnType<typeof readAdapter> {
        return readAdapter(files, this.#open, signal, onProgress);
    }

    add(engine: CoreEngineLike, files: AdapterSpec, bytes: AdapterBytes): { adapter: number; info: AdapterInfo } {
        const core = make(engine, files, bytes);
        this.#held.set(++this.#last, { files, info: core.info, core, problem: null, freed: false });
        return { adapter: this.#last, info: core.info };
    }

    /** Adds the adapters that are part of the model. */
    async addOwn(engine: CoreEngineLike, all: AdapterSpec[], signal: AbortSignal, onProgress: (progress: Progress) => void): Promise<void> {
        for (const files of all) this.#own.push(this.add(engine, files, await this.read(files, signal, onProgress)).adapter);
    }

    /** Brings all adapters onto a new device. One that cannot be read again is reported when it is used. */
    async restore(engine: CoreEngineLike, signal: AbortSignal): Promise<void> {
        for (const held of this.#held.values()) {
            held.core = held.problem = null;
            try {
                held.core = make(engine, held.files, await this.read(held.files, signal, () => undefined));
            } catch (thrown) {
                held.problem = toGemmuleError(thrown);
                if (signal.aborted) throw held.problem;
            }
        }
    }

    #core(id: number): CoreAdapterLike {
        const held = this.#held.get(id);
        if (!held) throw new GemmuleError('BadArgument', `there is no adapter ${id}; was it deleted?`);
        if (!held.core) throw held.problem ?? new GemmuleError('Internal', `the adapter '${held.info.name}' is not on the device`);
        return held.core;
    }

    export(id: number, form: Parameters<CoreAdapterLike['export']>[0]): ReturnType<CoreAdapterLike['export']> {
        return this.#core(id).export(form);
    }

    /** What a session is to use: its own choice, and what is part of the model. */
    resolve(uses: readonly AdapterUse[]): { adapters: CoreAdapterLike[]; scales: number[] } {
        const all = [...this.#own.map((adapter) => ({ adapter, scale: 1 })), ...uses];
        return { adapters: all.map(({ adapter }) => this.#core(adapter)), scales: all.map(({ scale }) => scale) };
    }

    free(id: number): void {
        const held = this.#held.get(id);
        if (held) held.freed = true;
    }

    /** Frees what was let go and is used by nobody. */
    sweep(uses: Iterable<readonly AdapterUse[]>): void {
        const used = new Set([...uses].flatMap((some) => some.map(({ adapter }) => adapter)));
        for (const [id, held] of this.#held) {
            if (!held.freed || used.has(id)) continue;
            held.core?.free();
            this.#held.delete(id);
        }
    }

    clear(): void {
        this.#held.clear();
        this.#own = [];
    }
}

function make(engine: CoreEngineLike, files: AdapterSpec, bytes: AdapterBytes): CoreAdapterLike {
    try {
        return engine.adapter(files.name, bytes);
    } catch (thrown) {
        throw named(files.name, thrown);
    }
}
