/* A file on disk, for Node. */

import { type FileHandle, open } from 'node:fs/promises';
import { GemmuleError, throwIfAborted } from '../core/errors.ts';
import type { ByteSource } from '../core/types.ts';
import { checkRange, shortRead } from './blob.ts';

export class FileSource implements ByteSource {
    readonly name: string;
    readonly size: number;
    readonly #file: FileHandle;

    private constructor(name: string, size: number, file: FileHandle) {
        this.name = name;
        this.size = size;
        this.#file = file;
    }

    static async open(path: string): Promise<FileSource> {
        let file: FileHandle | undefined;
        try {
            file = await open(path);
            const about = await file.stat();
            if (!about.isFile()) throw new GemmuleError('BadArgument', `cannot load ${path}: it is not a file`);
            return new FileSource(path, about.size, file);
        } catch (thrown) {
            await file?.close();
            if (thrown instanceof GemmuleError) throw thrown;
            throw openError(path, thrown as NodeJS.ErrnoException);
        }
    }

    async read(offset: number, length: number, signal?: AbortSignal, into = new ArrayBuffer(length)): Promise<Uint8Array> {
        throwIfAborted(signal);
        checkRange(this, offset, length);
        const bytes = new Uint8Array(into, 0, length);
        for (let at = 0; at < length; ) {
            const { bytesRead } = await this.#file.read(bytes, at, length - at, offset + at);
            if (!bytesRead) throw shortRead(this, offset, length, at);
            at += bytesRead;
        }
        return bytes;
    }

    close(): Promise<void> {
        return this.#file.close();
    }
}

function openError(path: string, cause: NodeJS.ErrnoException): GemmuleError {
    if (cause.code !== 'ENOENT') return new GemmuleError('Storage', `cannot load ${path}: ${cause.message}`, undefined, { cause });
    const isName = !/[\\/]|\.gguf$/i.test(path);
    const hint = isName ? `. Expected the path of a GGUF file, an address (https:, hf:owner/repo/file) or 'box'` : '';
    return new GemmuleError('NotFound', `cannot load ${path}: there is no such file${hint}`, undefined, { cause });
}
