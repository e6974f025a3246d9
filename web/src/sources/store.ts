/* Brings a file from a server into the cache. Only in workers: a page cannot write synchronously. */

import { GemmuleError, throwIfAborted, toGemmuleError } from '../core/errors.ts';
import type { ByteSource } from '../core/types.ts';
import { expandUrl } from './address.ts';
import { type Meta, ModelCache, SCHEMA, type SyncFileHandle, type SyncHandle, dataSize, newer, readMeta, withLock } from './opfs.ts';
import { Sha256 } from '../core/sha256.ts';
import { type RemoteFile, type UrlOptions, probe, stream } from './url.ts';

const NOTE_EVERY = 64 << 20;
const WRITE_SIZE = 1 << 20;

export interface StoreProgress {
    /** wait: another tab is writing this file. verify: what is there is hashed again. download: bytes come in. */
    phase: 'wait' | 'verify' | 'download';
    done: number;
    total: number;
}

export interface StoreOptions extends UrlOptions {
    /** Hexadecimal. A file that has another one is refused. */
    sha256?: string;
    /** Sees the first bytes before anything is kept; throws `BadModel` for what is not wanted. */
    accept?: (beginning: Uint8Array) => void;
    onProgress?: (progress: StoreProgress) => void;
}

/* New text over the old one, and only then cut: a crash in between leaves JSON that does not parse at worst, never another's numbers. */
async function writeMeta(folder: FileSystemDirectoryHandle, meta: Meta): Promise<void> {
    const handle = await syncHandle(await folder.getFileHandle('meta.json', { create: true }));
    try {
        const bytes = new TextEncoder().encode(JSON.stringify(meta));
        if (handle.write(bytes, { at: 0 }) !== bytes.length) throw new GemmuleError('Storage', 'meta.json could not be written');
        handle.truncate(bytes.length);
        handle.flush();
    } finally {
        handle.close();
    }
}

async function syncHandle(file: FileSystemFileHandle): Promise<SyncHandle> {
    const make = (file as SyncFileHandle).createSyncAccessHandle;
    if (!make) throw new GemmuleError('NotSupported', 'this browser cannot write files of its own from a worker (createSyncAccessHandle)');
    return make.call(file);
}

// ---- one file being written ----

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

    /** Takes up what an earlier try left, if it is what was noted of it. */
    async resume(old: Meta, options: StoreOptions): Promise<void> {
        const length = old.stored;
        if (this.#data.getSize() < length) return;
        const bytes = new Uint8Array(WRITE_SIZE);
        for (let at = 0; at < length; ) {
            throwIfAborted(options.signal);
            const wanted = Math.min(bytes.length, length - at);
            if (this.#data.read(bytes.subarray(0, wanted), { at }) !== wanted) throw new GemmuleError('Storage', 'the cached part cannot be read');
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

    async begin(): Promise<void> {
        this.#data.truncate(this.#at);
        await this.note();
    }

    async write(bytes: Uint8Array): Promise<void> {
        const written = this.#data.write(bytes, { at: this.#at });
        if (written !== bytes.length) {
            throw new GemmuleError('Storage', `${bytes.length} bytes were to be written at ${this.#at}, the browser says ${written}`);
        }
        this.#hash.update(bytes);
        this.#at += bytes.length;
        if (this.#at - this.#meta.stored >= NOTE_EVERY) await this.note();
    }

    /** What is written is on disk from here on. */
    async note(): Promise<void> {
        this.#data.flush();
        this.#meta.stored = this.#at;
        this.#meta.prefix = this.#hash.hex();
        await writeMeta(this.#folder, this.#meta);
    }

    async finish(): Promise<void> {
        const sha256 = this.#hash.hex();
        if (this.#meta.sha256 !== null && this.#meta.sha256 !== sha256) {
            throw new GemmuleError('BadModel', `${this.#meta.url}: its SHA-256 should be ${this.#meta.sha256} and is ${sha256}`);
        }
        this.#data.flush();
        Object.assign(this.#meta, { size: this.#at, sha256, stored: this.#at, prefix: sha256, done: true });
        await writeMeta(this.#folder, this.#meta);
    }

    /** After a failure: what came so far is kept, as far as that can be written. */
    async keep(): Promise<void> {
        try {
            this.#data.truncate(this.#at);
            await this.note();
        } catch {
            // The last note holds.
        }
    }
}

// ---- bringing it in ----

/** The file at `url`: from the cache, after it was brought there if need be. */
export async function fetchIntoCache(cache: ModelCache, url: string, options: StoreOptions = {}): Promise<ByteSource> {
    const key = ModelCache.key(url, options.sha256);
    if (!(await cache.find(key))?.done) {
        const lock = { signal: options.signal, onWait: () => options.onProgress?.({ phase: 'wait', done: 0, total: 0 }) };
        await withLock(key, lock, () => store(cache, key, expandUrl(url), options));
    }
    return cache.read(key);
}

async function store(cache: ModelCache, key: string, url: string, options: StoreOptions): Promise<void> {
    const there = await cache.folder(key);
    const old = there && (await readMeta(there));
    if (old && old.schema > SCHEMA) throw newer(old);
    if (old?.done && (await dataSize(there!)) === old.size) return; // another tab was faster
    const remote = await probe(url, options);
    // Without a validator nobody knows whether the rest on the server belongs to the part that is here.
    const same = old !== null && !old.done && old.url === url && old.size === remote.size && remote.validator !== null && old.etag === remote.validator;
    const meta: Meta = {
        schema: SCHEMA, url, size: remote.size, etag: remote.validator, sha256: options.sha256 ?? null, done: false, stored: 0, prefix: '',
    };
    const folder = there ?? (await cache.folder(key, { create: true }))!;
    const data = await syncHandle(await folder.getFileHandle('data', { create: true }));
    let refused: GemmuleError | null = null;
    try {
        const writer = new Writer(folder, data, meta);
        if (same) await writer.resume(old, options);
        await bring(writer, remote, options);
    } catch (thrown) {
        const error = toGemmuleError(thrown);
        if (error.name !== 'BadModel') throw error;
        refused = error;
    } finally {
        data.close();
    }
    if (!refused) return;
    await cache.remove(key); // what is no model, or not the right one, is of no use later
    throw refused;
}

async function bring(writer: Writer, remote: RemoteFile, options: StoreOptions): Promise<void> {
    try {
        await writer.begin();
        const report = () => options.onProgress?.({ phase: 'download', done: writer.stored, total: remote.size ?? 0 });
        report();
        const write = async (bytes: Uint8Array) => {
            if (writer.stored === 0) options.accept?.(bytes);
            await writer.write(bytes);
            report();
        };
        await stream(remote, writer.stored, { write, restart: () => writer.restart() }, options);
        await writer.finish();
    } catch (thrown) {
        const error = toGemmuleError(thrown);
        if (error.name !== 'BadModel') await writer.keep();
        throw error.name === 'QuotaExceeded' ? quotaError(remote, writer.stored) : error;
    }
}

// ---- space ----

/* What is free is not said: the browsers' own estimates are made up (Chromium's is always 10 GiB), so they are not asked beforehand, either. */
function quotaError(remote: RemoteFile, stored: number): GemmuleError {
    const needed = remote.size === null ? null : remote.size - stored;
    const size = remote.size === null ? 'its size is unknown' : `it has ${megabytes(remote.size)}`;
    const rest = needed === null ? '' : `, ${megabytes(needed)} are still needed`;
    const message = `${remote.url} does not fit into what the browser lets this page store: ${size}, ${megabytes(stored)} are stored and kept${rest}`;
    return new GemmuleError('QuotaExceeded', message, { size: remote.size, stored, needed });
}

function megabytes(bytes: number): string {
    return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
