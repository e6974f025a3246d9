/* The cache of downloaded models in the origin's private file system:
 *
 *     /gemmule/v1/blobs/<key>/data        the file
 *     /gemmule/v1/blobs/<key>/meta.json   what it is, and whether it is whole
 *
 * The key is the file's SHA-256 where that is known beforehand, else that of its address. Data is hashed while it is written. Every
 * so often it is flushed, and only then its length and hash so far are noted: after a crash exactly that prefix is taken up again, once
 * its hash was found to be right. `done` is set after the last flush. What is read from here is not trusted: another page of the
 * origin, or an older mistake, may have written it. */

import type { ByteSource } from '../core/types.ts';
import { GemmuleError, throwIfAborted, toGemmuleError } from '../core/errors.ts';
import { expandUrl } from './address.ts';
import { BlobSource, checkRange, shortRead } from './blob.ts';
import { sha256Text } from '../core/sha256.ts';

export const SCHEMA = 1;
const LARGEST_META = 64 << 10;

export interface CacheEntry {
    key: string;
    url: string;
    /** null: the server did not say. */
    size: number | null;
    /** Bytes that are there. */
    stored: number;
    sha256: string | null;
    done: boolean;
    /** '' or why the entry cannot be used. */
    problem: string;
}

export interface Meta {
    schema: number;
    url: string;
    size: number | null;
    /** The server's validator: an ETag or Last-Modified. */
    etag: string | null;
    sha256: string | null;
    done: boolean;
    /** Bytes known to be on disk, and their SHA-256. */
    stored: number;
    prefix: string;
}

/* What lib.dom does not have yet. */
export interface SyncHandle {
    read(bytes: Uint8Array, options: { at: number }): number;
    write(bytes: Uint8Array, options: { at: number }): number;
    getSize(): number;
    truncate(size: number): void;
    flush(): void;
    close(): void;
}
export type SyncFileHandle = FileSystemFileHandle & {
    createSyncAccessHandle?(options?: { mode: 'read-only' | 'readwrite' }): Promise<SyncHandle>;
};
type Entries = AsyncIterable<[string, FileSystemHandle]>;

// ---- reading ----

class OpfsSource implements ByteSource {
    readonly name: string;
    readonly size: number;
    readonly #handle: SyncHandle;

    constructor(name: string, handle: SyncHandle) {
        this.name = name;
        this.size = handle.getSize();
        this.#handle = handle;
    }

    async read(offset: number, length: number, signal?: AbortSignal, into = new ArrayBuffer(length)): Promise<Uint8Array> {
        throwIfAborted(signal);
        checkRange(this, offset, length);
        const bytes = new Uint8Array(into, 0, length);
        const found = this.#handle.read(bytes, { at: offset });
        if (found !== length) throw shortRead(this, offset, length, found);
        return bytes;
    }

    async close(): Promise<void> {
        this.#handle.close();
    }
}

/** A file of the origin's private file system, or one that the user picked. A synchronous handle reads a small piece in
 * microseconds, where a File takes milliseconds; there is one only in workers, and where no one else holds the file. */
export async function openFileHandle(file: FileSystemFileHandle, name = file.name): Promise<ByteSource> {
    try {
        const handle = await (file as SyncFileHandle).createSyncAccessHandle?.({ mode: 'read-only' });
        if (handle) return new OpfsSource(name, handle);
    } catch {
        // Another tab reads it, or it lies outside the private file system.
    }
    try {
        return new BlobSource(await file.getFile(), name);
    } catch (thrown) {
        throw toGemmuleError(thrown, name);
    }
}

// ---- meta.json ----

function isSize(value: unknown): value is number {
    return Number.isSafeInteger(value) && (value as number) >= 0;
}

/* null for what is no meta.json of ours. */
function parseMeta(text: string): Meta | null {
    let value: Partial<Meta> | null;
    try {
        value = JSON.parse(text) as Partial<Meta> | null;
    } catch {
        return null;
    }
    if (typeof value !== 'object' || value === null || !isSize(value.schema)) return null;
    const { schema, url, size = null, etag = null, sha256 = null, done, stored, prefix } = value;
    // Of a newer one only the schema can be understood.
    if (schema > SCHEMA) return { schema, url: String(url ?? ''), size: null, etag: null, sha256: null, done: false, stored: 0, prefix: '' };
    if (typeof url !== 'string' || typeof done !== 'boolean' || !isSize(stored) || typeof prefix !== 'string') return null;
    if ((size !== null && !isSize(size)) || (etag !== null && typeof etag !== 'string')) return null;
    if (sha256 !== null && !(typeof sha256 === 'string' && isHash(sha256))) return null;
    if (done && (size !== stored || sha256 === null)) return null;
    return { schema, url, size, etag, sha256, done, stored, prefix };
}

function isHash(text: string): boolean {
    return /^[0-9a-f]{64}$/.test(text);
}

export async function readMeta(folder: FileSystemDirectoryHandle): Promise<Meta | null> {
    try {
        const file = await (await folder.getFileHandle('meta.json')).getFile();
        return file.size > LARGEST_META ? null : parseMeta(await file.text());
    } catch {
        return null;
    }
}

// ---- the cache ----

export class ModelCache {
    readonly #blobs: FileSystemDirectoryHandle;

    private constructor(blobs: FileSystemDirectoryHandle) {
        this.#blobs = blobs;
    }

    /** The origin's cache, or one below another folder. */
    static async open(root?: FileSystemDirectoryHandle): Promise<ModelCache> {
        const storage = globalThis.navigator?.storage;
        if (!root && typeof storage?.getDirectory !== 'function') {
            throw new GemmuleError('NotSupported', 'there is no file storage for web pages here (an old browser, or a page without https)');
        }
        try {
            let folder = root ?? (await storage.getDirectory());
            for (const name of ['gemmule', 'v1', 'blobs']) folder = await folder.getDirectoryHandle(name, { create: true });
            return new ModelCache(folder);
        } catch (thrown) {
            // As in a private window: models can still be used, without keeping them.
            const why = `the file storage for web pages cannot be used: ${(thrown as Error).message}`;
            throw new GemmuleError('NotSupported', why, undefined, { cause: thrown });
        }
    }

    /** The key under which a file is kept. */
    static key(url: string, sha256?: string): string {
        if (sha256 !== undefined && !isHash(sha256)) {
            throw new GemmuleError('BadArgument', `'${sha256}' is no SHA-256 of 64 lower-case hexadecimal digits`);
        }
        return sha256 ?? sha256Text(expandUrl(url));
    }

    async list(): Promise<CacheEntry[]> {
        const entries: CacheEntry[] = [];
        for await (const [key, handle] of (this.#blobs as unknown as { entries(): Entries }).entries()) {
            if (handle.kind === 'directory' && isHash(key)) entries.push(await this.#entry(key, handle as FileSystemDirectoryHandle));
        }
        return entries.sort((a, b) => a.url.localeCompare(b.url));
    }

    async find(key: string): Promise<CacheEntry | null> {
        const folder = await this.folder(key);
        return folder ? this.#entry(key, folder) : null;
    }

    async #entry(key: string, folder: FileSystemDirectoryHandle): Promise<CacheEntry> {
        const meta = await readMeta(folder);
        const stored = await dataSize(folder);
        const { url = '', size = null, sha256 = null } = meta ?? {};
        const entry: CacheEntry = { key, url, size, stored, sha256, done: false, problem: '' };
        if (!meta) entry.problem = 'its description cannot be read';
        else if (meta.schema > SCHEMA) entry.problem = newer(meta).message;
        else if (meta.done && stored !== meta.size) entry.problem = `it has ${stored} bytes and should have ${meta.size}`;
        else entry.done = meta.done;
        return entry;
    }

    /** Removes an entry; one that somebody is writing is left alone. */
    async delete(key: string): Promise<void> {
        if (!isHash(key)) throw new GemmuleError('BadArgument', `'${key}' is no key of the cache`);
        await withLock(key, { ifAvailable: true }, () => this.remove(key));
    }

    /** @internal Removes an entry whose lock is held. */
    async remove(key: string): Promise<void> {
        try {
            await this.#blobs.removeEntry(key, { recursive: true });
        } catch (thrown) {
            const error = toGemmuleError(thrown, `the cached file ${key} cannot be removed`);
            if (error.name !== 'NotFound') throw error;
        }
    }

    async clear(): Promise<void> {
        for (const entry of await this.list()) await this.delete(entry.key);
    }

    /** A whole file of the cache, for reading. */
    async read(key: string): Promise<ByteSource> {
        const entry = await this.find(key);
        if (!entry) throw new GemmuleError('NotFound', `the cache has no file ${key}`);
        if (entry.problem) throw new GemmuleError('Storage', `the cached file ${entry.url || key} cannot be used: ${entry.problem}`);
        if (!entry.done) {
            throw new GemmuleError('NotFound', `the download of ${entry.url} is not complete: ${entry.stored} of ${entry.size ?? 'unknown'} bytes`);
        }
        const folder = await this.#blobs.getDirectoryHandle(key);
        return openFileHandle(await folder.getFileHandle('data'), entry.url || key);
    }

    /** @internal The folder of an entry; null where there is none. */
    async folder(key: string, { create = false } = {}): Promise<FileSystemDirectoryHandle | null> {
        if (!isHash(key)) return null;
        try {
            return await this.#blobs.getDirectoryHandle(key, { create });
        } catch (thrown) {
            if (create) throw toGemmuleError(thrown, 'the cache');
            return null;
        }
    }
}

export function newer(meta: Meta): GemmuleError {
    return new GemmuleError('Storage', `it was written by a newer gemmule (schema ${meta.schema}, this one knows ${SCHEMA}) and is left alone`);
}

export async function dataSize(folder: FileSystemDirectoryHandle): Promise<number> {
    try {
        return (await (await folder.getFileHandle('data')).getFile()).size;
    } catch {
        return 0;
    }
}

// ---- locks ----

interface LockWish {
    ifAvailable?: boolean;
    signal?: AbortSignal | undefined;
    onWait?: () => void;
}

/* One writer per file, over all tabs. Where there are no locks the exclusive handle still keeps a second writer out. */
export async function withLock<T>(key: string, wish: LockWish, work: () => Promise<T>): Promise<T> {
    const locks = globalThis.navigator?.locks;
    if (!locks) return work();
    const name = `gemmule/v1/${key}`;
    let held = false;
    const result = await locks.request(name, { ifAvailable: true }, async (lock) => {
        held = lock !== null;
        return held ? work() : undefined;
    });
    if (held) return result as T;
    if (wish.ifAvailable) throw new GemmuleError('Busy', 'the file is being written, here or in another tab');
    wish.onWait?.();
    try {
        return (await locks.request(name, wish.signal ? { signal: wish.signal } : {}, work)) as T;
    } catch (thrown) {
        throw toGemmuleError(thrown);
    }
}
