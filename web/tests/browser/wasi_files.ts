// Files in memory for a WASI program: the calls that wasi-libc makes to read files and to list folders. All paths are below the current
// folder, as in 'tests/fixtures/tiny-mm.png'.

const [SUCCESS, BAD_DESCRIPTOR, NOT_FOUND, NOT_A_FOLDER] = [0, 8, 44, 54];
const [FOLDER, REGULAR_FILE] = [3, 4];
const ROOT = 3; // the first descriptor after those of the terminal
const ENTRY_BYTES = 24;

interface Open {
    path: string;
    /** Null: a folder. */
    bytes: Uint8Array | null;
    at: number;
}

export type Files = ReadonlyMap<string, Uint8Array>;

export function fileCalls(files: Files, memory: () => WebAssembly.Memory): Record<string, Function> {
    const view = () => new DataView(memory().buffer);
    const text = (at: number, length: number) => new TextDecoder().decode(new Uint8Array(memory().buffer).slice(at, at + length));
    const opened = new Map<number, Open>([[ROOT, { path: '', bytes: null, at: 0 }]]);
    let next = ROOT + 1;

    /** What is directly in a folder. */
    const entries = (folder: string) => {
        const below = [...files.keys()].filter((path) => path.startsWith(folder && `${folder}/`)).map((path) => path.slice(folder ? folder.length + 1 : 0));
        return [...new Set(below.map((path) => path.split('/')[0]!))];
    };
    const find = (path: string): Omit<Open, 'at'> | null => {
        const name = path.replace(/^\.\//, '').replace(/\/$/, '');
        const bytes = files.get(name) ?? null;
        return bytes || entries(name).length ? { path: name, bytes } : null;
    };
    const writeStat = (out: number, { bytes }: Omit<Open, 'at'>) => {
        new Uint8Array(memory().buffer).fill(0, out, out + 64);
        view().setUint8(out + 16, bytes ? REGULAR_FILE : FOLDER);
        view().setBigUint64(out + 32, BigInt(bytes?.length ?? 0), true);
        return SUCCESS;
    };

    return {
        fd_prestat_get(descriptor: number, out: number) {
            if (descriptor !== ROOT) return BAD_DESCRIPTOR;
            view().setUint32(out, 0, true); // a folder
            view().setUint32(out + 4, 1, true);
            return SUCCESS;
        },
        fd_prestat_dir_name(_descriptor: number, out: number) {
            view().setUint8(out, '.'.charCodeAt(0));
            return SUCCESS;
        },
        path_open(_folder: number, _follow: number, path: number, length: number, flags: number, _base: bigint, _more: bigint, _mode: number, out: number) {
            const found = find(text(path, length));
            if (!found) return NOT_FOUND;
            if (found.bytes && flags & 2) return NOT_A_FOLDER;
            opened.set(next, { ...found, at: 0 });
            view().setUint32(out, next++, true);
            return SUCCESS;
        },
        path_filestat_get(_folder: number, _follow: number, path: number, length: number, out: number) {
            const found = find(text(path, length));
            return found ? writeStat(out, found) : NOT_FOUND;
        },
        fd_filestat_get(descriptor: number, out: number) {
            const file = opened.get(descriptor);
            return file ? writeStat(out, file) : BAD_DESCRIPTOR;
        },
        fd_fdstat_get(descriptor: number, out: number) {
            const file = opened.get(descriptor);
            if (descriptor > 2 && !file) return BAD_DESCRIPTOR;
            new Uint8Array(memory().buffer).fill(0, out, out + 8).fill(255, out + 8, out + 24); // all rights
            view().setUint8(out, !file ? 2 /* a character device */ : file.bytes ? REGULAR_FILE : FOLDER);
            return SUCCESS;
        },
        fd_read(descriptor: number, pieces: number, count: number, read: number) {
            const file = opened.get(descriptor);
            if (!file?.bytes) return BAD_DESCRIPTOR;
            let sum = 0;
            for (let i = 0; i < count; i++) {
                const [out, length] = [view().getUint32(pieces + 8 * i, true), view().getUint32(pieces + 8 * i + 4, true)];
                const part = file.bytes.subarray(file.at, file.at + length);
                new Uint8Array(memory().buffer).set(part, out);
                file.at += part.length;
                sum += part.length;
            }
            view().setUint32(read, sum, true);
            return SUCCESS;
        },
        fd_seek(descriptor: number, offset: bigint, whence: number, out: number) {
            const file = opened.get(descriptor);
            if (!file?.bytes) return BAD_DESCRIPTOR;
            file.at = Number(offset) + [0, file.at, file.bytes.length][whence]!;
            view().setBigUint64(out, BigInt(file.at), true);
            return SUCCESS;
        },
        fd_readdir(descriptor: number, out: number, size: number, cookie: bigint, used: number) {
            const folder = opened.get(descriptor);
            if (!folder || folder.bytes) return BAD_DESCRIPTOR;
            let end = 0;
            for (const [i, entry] of entries(folder.path).entries()) {
                const name = new TextEncoder().encode(entry);
                if (BigInt(i) < cookie || end + ENTRY_BYTES + name.length > size) continue;
                view().setBigUint64(out + end, BigInt(i + 1), true);
                view().setBigUint64(out + end + 8, BigInt(i + 1), true);
                view().setUint32(out + end + 16, name.length, true);
                view().setUint32(out + end + 20, REGULAR_FILE, true);
                new Uint8Array(memory().buffer).set(name, out + end + ENTRY_BYTES);
                end += ENTRY_BYTES + name.length;
            }
            view().setUint32(used, end, true);
            return SUCCESS;
        },
        fd_close: (descriptor: number) => (opened.delete(descriptor) ? SUCCESS : BAD_DESCRIPTOR),
    };
}
