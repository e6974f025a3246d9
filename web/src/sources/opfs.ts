/* The cache of downloaded and copied models in the origin's private file system:
 *
 *     /gemmule/v1/blobs/<key>/data        the file
 *     /gemmule/v1/blobs/<key>/meta.json   what it is, and whether it is complete
 *
 * The key is the file's SHA-256 if that is known beforehand, else the SHA-256 of its address; the address of a copied file is
 * file:///NAME?bytes=SIZE&modified=TIME. Data is hashed while it is written. Now and then it is flushed, and only then meta.json gets the
 * length and the hash so far: after a crash a download continues after that prefix, once its hash has been checked. `done`
 * is set after the last flush. Nothing read from here is trusted: another page of the origin, or an older bug, may have written it. */

import type { ByteSource, EngineOptions } from '../core/types.ts';
import { GemmuleError, throwIfAborted, toGemmuleError } from '../core/errors.ts';
import { expandUrl } from './address.ts';
import { BlobSource, checkRange, shortRead } from './blob.ts';
import { sha256Text } from '../core/sha256.ts';

export const SCHEMA = 1;
const LARGEST_META = 16 << 20; // Ollama's texts may be long

export type OllamaTexts = NonNullable<EngineOptions['ollama']>;

export interface CacheEntry {
    key: string;
    url: string;
    /** null: the server does not say. */
    size: number | null;
    /** Bytes stored so far. */
    stored: number;
    sha256: string | null;
    done: boolean;
    /** '' or why the entry cannot be used. */
    problem: string;
    /** Of a model that was copied from Ollama's folder: the option `ollama` to load it with. */
    ollama?: OllamaTexts;
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
    ollama?: OllamaTexts;
}

/* Missing in lib.dom. */
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

/** A file of the origin's private file system, or one that the user picked. A synchronous handle reads a small piece in microseconds, a File
 * in milliseconds; but the handle exists only in workers, and only while nobody else holds the file. */
export async function openFileHandle(file: FileSystemFileHandle, name = file.name): Promise<ByteSource> {
    try {
        const handle = await (file as SyncFileHandle).createSyncAccessHandle?.({ mode: 'read-only' });
        if (handle) return new OpfsSource(name, handle);
    } catch {
        // Another tab is reading it, or it is outside the private file system.
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

/* null if the text is not a valid meta.json. */
function parseMeta(text: string): Meta | null {
    let value: Partial<Meta> | null;
    try {
        value = JSON.parse(text) as Partial<Meta> | null;
    } catch {
        return null;
    }
    if (typeof value !== 'object' || value === null || !isSize(value.schema)) return null;
    const { schema, url, size = null, etag = null, sha256 = null, done, stored, prefix, ollama } = value;
    // In a newer version only the schema number is known.
    if (schema > SCHEMA) return { schema, url: String(url ?? ''), size: null, etag: null, sha256: null, done: false, stored: 0, prefix: '' };
    if (typeof url !== 'string' || typeof done !== 'boolean' || !isSize(stored) || typeof prefix !== 'string') return null;
    if ((size !== null && !isSize(size)) || (etag !== null && typeof etag !== 'string')) return null;
    if (sha256 !== null && !(typeof sha256 === 'string' && isHash(sha256))) return null;
    if (done && (size !== stored || sha256 === null)) return null;
    if (ollama !== undefined && (typeof ollama !== 'object' || !Object.values(ollama ?? [0]).every((text) => typeof text === 'string'))) return null;
    return { schema, url, size, etag, sha256, done, stored, prefix, ...(ollama ? { ollama } : {}) };
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

    /** The origin's cache, or one in another folder. */
    static async open(root?: FileSystemDirectoryHandle): Promise<ModelCache> {
        const storage = globalThis.navigator?.storage;
        if (!root && typeof storage?.getDirectory !== 'function') {
            throw new GemmuleError('NotSupported', 'this page has no file storage (an old browser, or a page without https)');
        }
        try {
            let folder = root ?? (await storage.getDirectory());
            for (const name of ['gemmule', 'v1', 'blobs']) folder = await folder.getDirectoryHandle(name, { create: true });
            return new ModelCache(folder);
        } catch (thrown) {
            // As in a private window. Models still work, without being stored.
            const why = `cannot use this page's file storage: ${(thrown as Error).message}`;
            throw new GemmuleError('NotSupported', why, undefined, { cause: thrown });
        }
    }

    /** The key of a file. */
    static key(url: string, sha256?: string): string {
        if (sha256 !== undefined && !isHash(sha256)) {
            throw new GemmuleError('BadArgument', `sha256 must be 64 lower-case hexadecimal digits, found '${sha256}'`);
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
        const { url = '', size = null, sha256 = null, ollama } = meta ?? {};
        const entry: CacheEntry = { key, url, size, stored, sha256, done: false, problem: '', ...(ollama ? { ollama } : {}) };
        if (!meta) entry.problem = 'its meta.json cannot be read';
        else if (meta.schema > SCHEMA) entry.problem = newer(meta).message;
        else if (meta.done && stored !== meta.size) entry.problem = `it has ${stored} bytes, expected ${meta.size}`;
        else entry.done = meta.done;
        return entry;
    }

    /** Removes an entry. Throws Busy while it is being written. */
    async delete(key: string): Promise<void> {
        if (!isHash(key)) throw new GemmuleError('BadArgument', `'${key}' is not a key of the cache`);
        await withLock(key, { ifAvailable: true }, () => this.remove(key));
    }

    /** @internal Removes an entry whose lock is held. */
    async remove(key: string): Promise<void> {
        try {
            await this.#blobs.removeEntry(key, { recursive: true });
        } catch (thrown) {
            const error = toGemmuleError(thrown, `cannot remove the cached file ${key}`);
            if (error.name !== 'NotFound') throw error;
        }
    }

    async clear(): Promise<void> {
        for (const entry of await this.list()) await this.delete(entry.key);
    }

    /** Opens a complete file of the cache. */
    async read(key: string): Promise<ByteSource> {
        const entry = await this.find(key);
        if (!entry) throw new GemmuleError('NotFound', `the cache has no file ${key}`);
        if (entry.problem) throw new GemmuleError('Storage', `cannot use the cached file ${entry.url || key}: ${entry.problem}`);
        if (!entry.done) {
            throw new GemmuleError('NotFound', `the download of ${entry.url} is not complete: ${entry.stored} of ${entry.size ?? 'unknown'} bytes`);
        }
        const folder = await this.#blobs.getDirectoryHandle(key);
        return openFileHandle(await folder.getFileHandle('data'), entry.url || key);
    }

    /** @internal The folder of an entry; null if there is none. */
    async folder(key: string, { create = false } = {}): Promise<FileSystemDirectoryHandle | null> {
        if (!isHash(key)) return null;
        try {
            return await this.#blobs.getDirectoryHandle(key, { create });
        } catch (thrown) {
            if (create) throw toGemmuleError(thrown, 'cannot use the cache');
            return null;
        }
    }
}

export function newer(meta: Meta): GemmuleError {
    return new GemmuleError('Storage', `a newer version of gemmule wrote it (schema ${meta.schema}, this version knows ${SCHEMA})`);
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

/* One writer per file across all tabs. Without locks, the exclusive handle still keeps a second writer out. */
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
