/* The parts of the browser's private file system that the cache and Ollama's folder use, in memory. Handles of one file exclude each
 * other as in a browser; `quota` limits the total size of all files. */

import type { FileEntry, Folder } from '../../src/sources/folder.ts';

export interface Disk {
    quota: number;
    used: number;
    /** What the next writes return instead of the length, like a broken browser. */
    shortWrites: number[];
    flushes: number;
}

export function disk(quota = Infinity): Disk {
    return { quota, used: 0, shortWrites: [], flushes: 0 };
}

class MemoryFile implements FileEntry {
    readonly kind = 'file';
    readonly name: string;
    readonly #disk: Disk;
    bytes = new Uint8Array(0);
    readers = 0;
    writer = false;
    removed = false;

    constructor(name: string, on: Disk) {
        this.name = name;
        this.#disk = on;
    }

    /** As in a browser, its content is read when it is asked for, and is gone once the file is removed. */
    async getFile(): Promise<File> {
        const file = new File([this.bytes], this.name);
        for (const method of ['arrayBuffer', 'text', 'slice', 'stream'] as const) {
            const read = file[method].bind(file) as (...args: unknown[]) => unknown;
            const checked = (...args: unknown[]): unknown => {
                if (!this.removed) return read(...args);
                const error = new DOMException(`${this.name} was removed`, 'NotFoundError');
                if (method === 'slice' || method === 'stream') throw error;
                return Promise.reject(error);
            };
            Object.defineProperty(file, method, { value: checked });
        }
        return file;
    }

    /** Nothing is written before it is closed. */
    async createWritable() {
        const parts: Uint8Array[] = [];
        return {
            write: async (content: Blob) => void parts.push(new Uint8Array(await content.arrayBuffer())),
            close: async () => {
                const whole = new Uint8Array(Buffer.concat(parts));
                if (whole.length - this.bytes.length > this.#disk.quota - this.#disk.used) throw new DOMException('no space', 'QuotaExceededError');
                this.#disk.used += whole.length - this.bytes.length;
                this.bytes = whole;
            },
        };
    }

    async createSyncAccessHandle({ mode = 'readwrite' }: { mode?: string } = {}) {
        if (this.writer || (mode === 'readwrite' && this.readers)) throw new DOMException('the file is locked', 'NoModificationAllowedError');
        if (mode === 'readwrite') this.writer = true;
        else this.readers++;
        let open = true;
        const resize = (size: number) => {
            const more = size - this.bytes.length;
            if (more > this.#disk.quota - this.#disk.used) throw new DOMException('no space', 'QuotaExceededError');
            const next = new Uint8Array(size);
            next.set(this.bytes.subarray(0, size));
            this.bytes = next;
            this.#disk.used += more;
        };
        return {
            read: (into: Uint8Array, { at }: { at: number }) => {
                const piece = this.bytes.subarray(at, at + into.length);
                into.set(piece);
                return piece.length;
            },
            write: (from: Uint8Array, { at }: { at: number }) => {
                const short = this.#disk.shortWrites.shift();
                if (short !== undefined) return short;
                if (at + from.length > this.bytes.length) resize(at + from.length);
                this.bytes.set(from, at);
                return from.length;
            },
            getSize: () => this.bytes.length,
            truncate: resize,
            flush: () => void this.#disk.flushes++,
            close: () => {
                if (!open) return;
                open = false;
                if (mode === 'readwrite') this.writer = false;
                else this.readers--;
            },
        };
    }
}

export class MemoryFolder implements Folder {
    readonly kind = 'directory';
    readonly name: string;
    readonly #disk: Disk;
    readonly children = new Map<string, MemoryFile | MemoryFolder>();

    constructor(name = '', on: Disk = disk()) {
        this.name = name;
        this.#disk = on;
    }

    async getFileHandle(name: string, { create = false } = {}): Promise<MemoryFile> {
        let child = this.children.get(name);
        if (!child && create) this.children.set(name, (child = new MemoryFile(name, this.#disk)));
        if (!child) throw new DOMException(`no ${name}`, 'NotFoundError');
        if (!(child instanceof MemoryFile)) throw new DOMException(`${name} is a folder`, 'TypeMismatchError');
        return child;
    }

    async getDirectoryHandle(name: string, { create = false } = {}): Promise<MemoryFolder> {
        let child = this.children.get(name);
        if (!child && create) this.children.set(name, (child = new MemoryFolder(name, this.#disk)));
        if (!child) throw new DOMException(`no ${name}`, 'NotFoundError');
        if (!(child instanceof MemoryFolder)) throw new DOMException(`${name} is a file`, 'TypeMismatchError');
        return child;
    }

    async removeEntry(name: string): Promise<void> {
        const child = this.children.get(name);
        if (!child) throw new DOMException(`no ${name}`, 'NotFoundError');
        if (child instanceof MemoryFile) child.removed = true;
        else for (const below of [...child.children.keys()]) await child.removeEntry(below);
        this.children.delete(name);
    }

    async *entries(): AsyncGenerator<[string, MemoryFile | MemoryFolder]> {
        yield* this.children;
    }

    /** Puts a file at a path, with the folders that lead there. */
    put(path: string, content: Uint8Array<ArrayBuffer> | string | object): void {
        const parts = path.split('/');
        const name = parts.pop()!;
        let folder: MemoryFolder = this;
        for (const part of parts) {
            let below = folder.children.get(part);
            if (!(below instanceof MemoryFolder)) folder.children.set(part, (below = new MemoryFolder(part, this.#disk)));
            folder = below;
        }
        const file = new MemoryFile(name, this.#disk);
        file.bytes = content instanceof Uint8Array ? content : new TextEncoder().encode(typeof content === 'string' ? content : JSON.stringify(content));
        folder.children.set(name, file);
    }

    /** The file at a path. */
    at(path: string): MemoryFile {
        const found = path.split('/').reduce<MemoryFile | MemoryFolder | undefined>(
            (node, part) => (node instanceof MemoryFolder ? node.children.get(part) : undefined), this,
        );
        if (!(found instanceof MemoryFile)) throw new Error(`there is no file ${path}`);
        return found;
    }
}

/** Runs with the package's own folder in memory, as a browser has it. */
export async function withStorage(work: (root: MemoryFolder, on: Disk) => Promise<void>): Promise<void> {
    const on = disk(), root = new MemoryFolder('opfs', on);
    Object.defineProperty(navigator, 'storage', { value: { getDirectory: async () => root }, configurable: true });
    try {
        await work(root, on);
    } finally {
        delete (navigator as { storage?: unknown }).storage;
    }
}
