/* Downloads a file into the cache, or copies one from this machine. Works only in workers: a page cannot write synchronously. */

import { GemmuleError, throwIfAborted, toGemmuleError } from '../core/errors.ts';
import type { ByteSource } from '../core/types.ts';
import { expandUrl } from './address.ts';
import { type Meta, ModelCache, type OllamaTexts, SCHEMA, type SyncFileHandle, type SyncHandle } from './opfs.ts';
import { dataSize, newer, readMeta, withLock } from './opfs.ts';
import { Sha256 } from '../core/sha256.ts';
import { type RemoteFile, type Sink, type UrlOptions, probe, stream } from './url.ts';

const NOTE_EVERY = 64 << 20;
const WRITE_SIZE = 1 << 20;
const COPY_SIZE = 8 << 20;

export interface StoreProgress {
    /** wait: another tab is storing this file. verify: the stored part is hashed again. download: bytes come in. copy: a file is copied. */
    phase: 'wait' | 'verify' | 'download' | 'copy';
    done: number;
    total: number;
}

export interface StoreOptions extends UrlOptions {
    /** Hexadecimal. A file with a different hash is refused. */
    sha256?: string;
    /** Sees the first bytes before anything is stored; throws `BadModel` to refuse the file. */
    accept?: (beginning: Uint8Array) => void;
    onProgress?: (progress: StoreProgress) => void;
}

/* Writes over the old text, then truncates. A crash in between leaves JSON that does not parse at worst, never wrong numbers. */
async function writeMeta(folder: FileSystemDirectoryHandle, meta: Meta): Promise<void> {
    const handle = await syncHandle(await folder.getFileHandle('meta.json', { create: true }));
    try {
        const bytes = new TextEncoder().encode(JSON.stringify(meta));
        if (handle.write(bytes, { at: 0 }) !== bytes.length) throw new GemmuleError('Storage', 'cannot write meta.json');
        handle.truncate(bytes.length);
        handle.flush();
    } finally {
        handle.close();
    }
}

async function syncHandle(file: FileSystemFileHandle): Promise<SyncHandle> {
    const make = (file as SyncFileHandle).createSyncAccessHandle;
    if (!make) throw new GemmuleError('NotSupported', 'this browser cannot write files in a worker (createSyncAccessHandle is missing)');
    return make.call(file);
}

// ---- writing one file ----

class Writer {
    readonly #folder: FileSystemDirectoryHandle;
    readonly #data: SyncHandle;
    readonly #meta: Meta;
    readonly #hash = new Sha256();
    #at = 0;

    constructor(folder: FileSystemDirectoryHandle, data: SyncHandle, meta: Meta) {
        this.#folder = folder;
        this.#data = data;
        this.#meta = meta;
    }

    get stored(): number {
        return this.#at;
    }

    /** Continues after the part that an earlier download left, if its hash is still the noted one. */
    async resume(old: Meta, options: StoreOptions): Promise<void> {
        const length = old.stored;
        if (this.#data.getSize() < length) return;
        const bytes = new Uint8Array(WRITE_SIZE);
        for (let at = 0; at < length; ) {
            throwIfAborted(options.signal);
            const wanted = Math.min(bytes.length, length - at);
            if (this.#data.read(bytes.subarray(0, wanted), { at }) !== wanted) throw new GemmuleError('Storage', 'cannot read the stored part');
            this.#hash.update(bytes.subarray(0, wanted));
            at += wanted;
            options.onProgress?.({ phase: 'verify', done: at, total: length });
            if (at % (16 * WRITE_SIZE) === 0) await new Promise((resolve) => setTimeout(resolve)); // lets an abort in
        }
        if (this.#hash.hex() === old.prefix) this.#at = length;
        else this.#hash.reset();
    }

    /** Discards everything: the file comes again from its beginning. */
    async restart(): Promise<void> {
        this.#at = 0;
        this.#hash.reset();
        await this.begin();
    }

    /** With `room`: takes the space for so many bytes at once, or fails without it. */
    async begin(room = this.#at): Promise<void> {
        this.#data.truncate(room);
        await this.note();
    }

    /** How many of so many bytes the browser would store, to a thousandth. It is tried, because its own estimates are made up. */
    room(most: number): number {
        let room = 0;
        for (let more = most / 2; more >= most / 1024; more /= 2) {
            try {
                this.#data.truncate(Math.floor(room + more));
                room += more;
            } catch {
                // too much
            }
        }
        return Math.floor(room);
    }

    async write(bytes: Uint8Array): Promise<void> {
        const written = this.#data.write(bytes, { at: this.#at });
        if (written !== bytes.length) {
            throw new GemmuleError('Storage', `cannot store the file: the browser wrote ${written} of ${bytes.length} bytes at ${this.#at}`);
        }
        this.#hash.update(bytes);
        this.#at += bytes.length;
        if (this.#at - this.#meta.stored >= NOTE_EVERY) await this.note();
    }

    /** Flushes, and notes that everything written so far is on disk. */
    async note(): Promise<void> {
        this.#data.flush();
        this.#meta.stored = this.#at;
        this.#meta.prefix = this.#hash.hex();
        await writeMeta(this.#folder, this.#meta);
    }

    async finish(): Promise<void> {
        const sha256 = this.#hash.hex();
        if (this.#meta.sha256 !== null && this.#meta.sha256 !== sha256) {
            throw new GemmuleError('BadModel', `cannot load ${this.#meta.url}: its SHA-256 is ${sha256}, expected ${this.#meta.sha256}`);
        }
        this.#data.flush();
        Object.assign(this.#meta, { size: this.#at, sha256, stored: this.#at, prefix: sha256, done: true });
        await writeMeta(this.#folder, this.#meta);
    }

    /** After a failure: keeps what came so far, if it can still be written. */
    async keep(): Promise<void> {
        try {
            this.#data.truncate(this.#at);
            await this.note();
        } catch {
            // The last note still holds.
        }
    }
}

// ---- downloading and copying ----

/* Where a file comes from. */
interface Origin extends Pick<RemoteFile, 'url' | 'size' | 'validator'> {
    phase: 'download' | 'copy';
    stream(offset: number, sink: Sink): Promise<unknown>;
}

/** The file at `url` from the cache; downloads it first if it is not there. */
export async function fetchIntoCache(cache: ModelCache, url: string, options: StoreOptions = {}): Promise<ByteSource> {
    const whole = expandUrl(url);
    const key = await storeOnce(cache, whole, options, async () => {
        const remote = await probe(whole, options);
        return { ...remote, phase: 'download', stream: (offset, sink) => stream(remote, offset, sink, options) };
    });
    return cache.read(key);
}

/** Copies a file into the cache if it is not there, and returns its key. Nothing is left of a copy that fails or is stopped. */
export function copyIntoCache(
    cache: ModelCache, url: string, file: ByteSource, { ollama, ...options }: StoreOptions & { ollama?: OllamaTexts } = {},
): Promise<string> {
    const copy = async (at: number, sink: Sink) => {
        const space = new ArrayBuffer(COPY_SIZE);
        for (; at < file.size; at += COPY_SIZE) await sink.write(await file.read(at, Math.min(COPY_SIZE, file.size - at), options.signal, space));
    };
    return storeOnce(cache, url, options, async () => ({ url, size: file.size, validator: null, phase: 'copy', stream: copy }), ollama);
}

async function storeOnce(
    cache: ModelCache, url: string, options: StoreOptions, open: () => Promise<Origin>, ollama?: OllamaTexts,
): Promise<string> {
    const key = ModelCache.key(url, options.sha256);
    if ((await cache.find(key))?.done) return key;
    const lock = { signal: options.signal, onWait: () => options.onProgress?.({ phase: 'wait', done: 0, total: 0 }) };
    await withLock(key, lock, () => store(cache, key, open, options, ollama));
    return key;
}

async function store(cache: ModelCache, key: string, open: () => Promise<Origin>, options: StoreOptions, ollama?: OllamaTexts): Promise<void> {
    const there = await cache.folder(key);
    const old = there && (await readMeta(there));
    if (old && old.schema > SCHEMA) throw newer(old);
    if (old?.done && (await dataSize(there!)) === old.size) return; // another tab was faster
    const origin = await open();
    const { url, size, validator } = origin;
    // Without a validator nobody knows whether the rest on the server belongs to the part that is here.
    const same = old !== null && !old.done && old.url === url && old.size === size && validator !== null && old.etag === validator;
    const meta: Meta = {
        schema: SCHEMA, url, size, etag: validator, sha256: options.sha256 ?? null, done: false, stored: 0, prefix: '', ...(ollama ? { ollama } : {}),
    };
    const folder = there ?? (await cache.folder(key, { create: true }))!;
    const data = await syncHandle(await folder.getFileHandle('data', { create: true }));
    let failed: GemmuleError | null = null;
    try {
        const writer = new Writer(folder, data, meta);
        if (same) await writer.resume(old, options);
        await bring(writer, origin, options);
    } catch (thrown) {
        failed = toGemmuleError(thrown);
    } finally {
        data.close();
    }
    if (!failed) return;
    // A file that is not the model is of no use later, and a copy cannot go on without the user's file.
    if (failed.name === 'BadModel' || origin.phase === 'copy') await cache.remove(key);
    throw failed;
}

async function bring(writer: Writer, origin: Origin, options: StoreOptions): Promise<void> {
    const { size, phase } = origin;
    try {
        await writer.begin(phase === 'copy' ? size! : writer.stored);
        const report = () => options.onProgress?.({ phase, done: writer.stored, total: size ?? 0 });
        report();
        const write = async (bytes: Uint8Array) => {
            if (writer.stored === 0) options.accept?.(bytes);
            await writer.write(bytes);
            report();
        };
        await origin.stream(writer.stored, { write, restart: () => writer.restart() });
        await writer.finish();
    } catch (thrown) {
        const error = toGemmuleError(thrown);
        if (error.name !== 'BadModel' && phase !== 'copy') await writer.keep();
        if (error.name !== 'QuotaExceeded') throw error;
        throw phase === 'copy' ? copyQuotaError(size!, writer.stored || writer.room(size!)) : quotaError(origin, writer.stored);
    }
}

// ---- space ----

/* Says nothing about free space, and nobody asks for it beforehand: browsers make their estimates up (Chromium always says 10 GiB). */
function quotaError({ url, size }: Origin, stored: number): GemmuleError {
    const needed = size === null ? null : size - stored;
    const whole = size === null ? '' : ` of ${megabytes(size)}`;
    const rest = needed === null ? '' : `; ${megabytes(needed)} more are needed`;
    const message = `cannot store ${url}: the browser gives this page no more space. ${megabytes(stored)}${whole} are stored and kept${rest}`;
    return new GemmuleError('QuotaExceeded', message, { size, stored, needed });
}

function copyQuotaError(needed: number, free: number): GemmuleError {
    const message = `cannot copy the file: it needs ${megabytes(needed)}, and the browser gives this page ${megabytes(free)}. Nothing was stored`;
    return new GemmuleError('QuotaExceeded', message, { needed, free });
}

function megabytes(bytes: number): string {
    return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
