/* A folder to read from: a handle of showDirectoryPicker, the files of <input webkitdirectory>, or a dropped folder. All have the few
 * functions of a directory handle that are needed here. */

import { GemmuleError } from '../core/errors.ts';

export interface FileEntry {
    readonly kind: 'file';
    readonly name: string;
    getFile(): Promise<File>;
}

export interface Folder {
    readonly kind: 'directory';
    readonly name: string;
    getFileHandle(name: string): Promise<FileEntry>;
    getDirectoryHandle(name: string): Promise<Folder>;
    entries(): AsyncIterable<[string, FileEntry | Folder]>;
}

/* A folder made from files with known paths. */
class FolderOfFiles implements Folder {
    readonly kind = 'directory';
    readonly name: string;
    readonly #children = new Map<string, FileEntry | FolderOfFiles>();

    constructor(name: string) {
        this.name = name;
    }

    add(path: string[], file: FileEntry): void {
        const [first, ...rest] = path;
        if (first === undefined) return;
        if (!rest.length) {
            this.#children.set(first, file);
            return;
        }
        let below = this.#children.get(first);
        if (!(below instanceof FolderOfFiles)) this.#children.set(first, (below = new FolderOfFiles(first)));
        below.add(rest, file);
    }

    async getFileHandle(name: string): Promise<FileEntry> {
        const child = this.#children.get(name);
        if (child?.kind !== 'file') throw new GemmuleError('NotFound', `the folder ${this.name} has no file ${name}`);
        return child;
    }

    async getDirectoryHandle(name: string): Promise<Folder> {
        const child = this.#children.get(name);
        if (child?.kind !== 'directory') throw new GemmuleError('NotFound', `the folder ${this.name} has no folder ${name}`);
        return child;
    }

    async *entries(): AsyncGenerator<[string, FileEntry | Folder]> {
        yield* this.#children;
    }
}

function fileEntry(file: File): FileEntry {
    return { kind: 'file', name: file.name, getFile: async () => file };
}

/** The files of <input type=file webkitdirectory>. */
export function folderOfFiles(files: Iterable<File>): Folder {
    let root: FolderOfFiles | null = null;
    for (const file of files) {
        const [top = '', ...path] = (file.webkitRelativePath || file.name).split('/');
        root ??= new FolderOfFiles(top);
        root.add(path.length ? path : [top], fileEntry(file));
    }
    if (!root) throw new GemmuleError('BadArgument', 'the folder is empty, or the browser did not give access to its files');
    return root;
}

/** A folder that was dropped onto the page. Must be called within the drop event: the browser empties `data` afterwards. */
export async function folderOfDrop(data: DataTransfer): Promise<Folder> {
    type Item = DataTransferItem & { getAsFileSystemHandle?(): Promise<FileSystemHandle | null> };
    const items = [...data.items].filter((item) => item.kind === 'file') as Item[];
    const entries = items.map((item) => item.webkitGetAsEntry?.() ?? null);
    const handles = await Promise.all(items.map((item) => item.getAsFileSystemHandle?.() ?? null));
    const handle = handles.find((one) => one?.kind === 'directory');
    if (handle) return handle as unknown as Folder;
    const entry = entries.find((one) => one?.isDirectory);
    if (!entry) throw new GemmuleError('BadArgument', 'what was dropped is not a folder');
    return new DroppedFolder(entry as FileSystemDirectoryEntry);
}

/* The older interface for dropped folders, which all browsers have. */
class DroppedFolder implements Folder {
    readonly kind = 'directory';
    readonly name: string;
    readonly #entry: FileSystemDirectoryEntry;

    constructor(entry: FileSystemDirectoryEntry) {
        this.#entry = entry;
        this.name = entry.name;
    }

    getFileHandle(name: string): Promise<FileEntry> {
        return new Promise((resolve, reject) => {
            const found = (entry: FileSystemEntry) => resolve(droppedFile(entry as FileSystemFileEntry));
            this.#entry.getFile(name, {}, found, () => reject(this.#missing(name)));
        });
    }

    getDirectoryHandle(name: string): Promise<Folder> {
        return new Promise((resolve, reject) => {
            const found = (entry: FileSystemEntry) => resolve(new DroppedFolder(entry as FileSystemDirectoryEntry));
            this.#entry.getDirectory(name, {}, found, () => reject(this.#missing(name)));
        });
    }

    async *entries(): AsyncGenerator<[string, FileEntry | Folder]> {
        const reader = this.#entry.createReader();
        for (;;) { // gives a hundred at a time, then none
            const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
            if (!some.length) return;
            for (const entry of some) {
                const folder = entry.isDirectory ? new DroppedFolder(entry as FileSystemDirectoryEntry) : null;
                yield [entry.name, folder ?? droppedFile(entry as FileSystemFileEntry)];
            }
        }
    }

    #missing(name: string): GemmuleError {
        return new GemmuleError('NotFound', `the folder ${this.name} has no ${name}`);
    }
}

function droppedFile(entry: FileSystemFileEntry): FileEntry {
    return { kind: 'file', name: entry.name, getFile: () => new Promise((resolve, reject) => entry.file(resolve, reject)) };
}
