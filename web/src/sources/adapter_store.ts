/* Adapters that are kept in the origin's private file system:
 *
 *     /gemmule/v1/adapters/<digest>/about.json   what it is
 *     /gemmule/v1/adapters/<digest>/…            its files, as they came: a GGUF, or the two of a PEFT folder
 *
 * The digest is that of the content, so that an adapter is there once, whatever its name and form. about.json is written last: a folder
 * without it is what an interrupted copy left. Nothing read from here is trusted. */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import type { AdapterForm, AdapterInfo } from '../core/types.ts';
import { withLock } from './opfs.ts';

const SCHEMA = 1;
const LARGEST_ABOUT = 1 << 20;

/** An adapter in this browser. */
export interface KeptAdapter {
    readonly kind: 'kept-adapter';
    /** The digest of its content. */
    key: string;
    name: string;
    form: AdapterForm;
    /** Of its files. */
    bytes: number;
    /** When it was kept, in milliseconds since 1970. */
    saved: number;
    /** null if it has a problem. */
    info: AdapterInfo | null;
    /** '' or why it cannot be used. It can be deleted. */
    problem: string;
}

interface About {
    schema: number;
    name: string;
    saved: number;
    info: AdapterInfo;
    files: { name: string; size: number }[];
}

type Entries = AsyncIterable<[string, FileSystemHandle]>;

const isKey = (text: string): boolean => /^[0-9a-f]{64}$/.test(text);
const isName = (text: unknown): text is string => typeof text === 'string' && /^[\w.-]{1,100}$/.test(text) && !/^\.+$/.test(text);
const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

function isInfo(value: unknown): value is AdapterInfo {
    const info = (value ?? {}) as AdapterInfo;
    return [info.name, info.baseModel, info.digest].every((text) => typeof text === 'string') && Array.isArray(info.targets) &&
        info.targets.every((text) => typeof text === 'string') && [info.pairs, info.layers, info.rank, info.parameters, info.bytes].every(isCount);
}

/* null if the text is not a valid about.json. */
function parseAbout(text: string): About | null {
    try {
        const about = JSON.parse(text) as Partial<About> | null;
        const { schema, name, saved, info, files } = about ?? {};
        const good = schema === SCHEMA && typeof name === 'string' && isCount(saved) && isInfo(info) && Array.isArray(files) && files.length > 0 &&
            files.every((file) => isName(file?.name) && isCount(file?.size));
        return good ? (about as About) : null;
    } catch {
        return null;
    }
}

export class AdapterStore {
    readonly #root: FileSystemDirectoryHandle;

    private constructor(root: FileSystemDirectoryHandle) {
        this.#root = root;
    }

    /** The origin's adapters, or those in another folder. */
    static async open(root?: FileSystemDirectoryHandle): Promise<AdapterStore> {
        const storage = globalThis.navigator?.storage;
        if (!root && typeof storage?.getDirectory !== 'function') {
            throw new GemmuleError('NotSupported', 'adapters cannot be kept here: there is no file storage (an old browser, or a page without https)');
        }
        try {
            let folder = root ?? (await storage.getDirectory());
            for (const name of ['gemmule', 'v1', 'adapters']) folder = await folder.getDirectoryHandle(name, { create: true });
            return new AdapterStore(folder);
        } catch (thrown) {
            throw new GemmuleError('NotSupported', `cannot use this page's file storage: ${(thrown as Error).message}`, undefined, { cause: thrown });
        }
    }

    /** All adapters, by name. A broken one has a `problem`. */
    async list(): Promise<KeptAdapter[]> {
        const kept: KeptAdapter[] = [];
        for await (const [key, handle] of (this.#root as unknown as { entries(): Entries }).entries()) {
            if (handle.kind === 'directory' && isKey(key)) kept.push((await this.#look(key, handle as FileSystemDirectoryHandle)).kept);
        }
        return kept.sort((a, b) => a.name.localeCompare(b.name) || a.saved - b.saved);
    }

    async find(key: string): Promise<KeptAdapter | null> {
        const folder = await this.#folder(key);
        return folder && (await this.#look(key, folder)).kept;
    }

    /** The files of an adapter. */
    async read(key: string): Promise<{ name: string; files: File[] }> {
        const folder = await this.#folder(key);
        if (!folder) throw new GemmuleError('NotFound', `no adapter ${key} is kept here; was it deleted?`);
        const { kept, files } = await this.#look(key, folder);
        if (kept.problem) throw new GemmuleError('Storage', `cannot use the adapter ${kept.name || key}: ${kept.problem}`);
        return { name: kept.name, files };
    }

    async #folder(key: string): Promise<FileSystemDirectoryHandle | null> {
        if (!isKey(key)) return null;
        return this.#root.getDirectoryHandle(key).catch(() => null);
    }

    async #look(key: string, folder: FileSystemDirectoryHandle): Promise<{ kept: KeptAdapter; files: File[] }> {
        const file = (name: string): Promise<File | null> => folder.getFileHandle(name).then((handle) => handle.getFile()).catch(() => null);
        const text = await file('about.json');
        const about = text && text.size <= LARGEST_ABOUT ? parseAbout(await text.text()) : null;
        const kept: KeptAdapter = { kind: 'kept-adapter', key, name: about?.name ?? '', form: 'gguf', bytes: 0, saved: about?.saved ?? 0, info: null, problem: '' };
        if (!about) return { kept: { ...kept, problem: text ? 'its about.json cannot be read' : 'it is incomplete' }, files: [] };
        const files: File[] = [];
        for (const { name, size } of about.files) {
            const found = await file(name);
            if (found?.size === size) files.push(found);
            else kept.problem ||= found ? `${name} has ${found.size} bytes, expected ${size}` : `${name} is missing`;
        }
        const bytes = files.reduce((sum, { size }) => sum + size, 0);
        return { kept: { ...kept, form: about.files.length > 1 ? 'peft' : 'gguf', bytes, info: kept.problem ? null : about.info }, files };
    }

    /** Keeps a copy of an adapter. If its content is here already, only its name changes: `files` may be that very copy. */
    async add(name: string, info: AdapterInfo, files: readonly { name: string; blob: Blob }[]): Promise<KeptAdapter> {
        const key = info.digest;
        if (!isKey(key) || !files.every((file) => isName(file.name))) throw new GemmuleError('BadArgument', `the adapter '${name}' cannot be kept under these names`);
        await withLock(`adapters/${key}`, { ifAvailable: true }, async () => {
            const folder = await this.#folder(key), there = folder && (await this.#look(key, folder));
            try {
                if (there && !there.kept.problem) await writeAbout(folder, name, info, there.files);
                else await this.#copy(name, info, files);
            } catch (thrown) {
                throw toGemmuleError(thrown, `cannot keep the adapter '${name}'`);
            }
        });
        return (await this.find(key))!;
    }

    /* In place of what an interrupted copy left. A copy that fails leaves nothing. */
    async #copy(name: string, info: AdapterInfo, files: readonly { name: string; blob: Blob }[]): Promise<void> {
        await this.#remove(info.digest);
        try {
            const folder = await this.#root.getDirectoryHandle(info.digest, { create: true });
            for (const file of files) await writeFile(folder, file.name, file.blob);
            await writeAbout(folder, name, info, files.map(({ name: called, blob }) => ({ name: called, size: blob.size })));
        } catch (thrown) {
            await this.#remove(info.digest).catch(() => undefined);
            throw thrown;
        }
    }

    async delete(key: string): Promise<void> {
        if (!isKey(key)) throw new GemmuleError('BadArgument', `'${key}' is not the key of an adapter`);
        await withLock(`adapters/${key}`, { ifAvailable: true }, () => this.#remove(key));
    }

    async #remove(key: string): Promise<void> {
        try {
            await this.#root.removeEntry(key, { recursive: true });
        } catch (thrown) {
            const error = toGemmuleError(thrown, `cannot remove the adapter ${key}`);
            if (error.name !== 'NotFound') throw error;
        }
    }
}

function writeAbout(folder: FileSystemDirectoryHandle, name: string, info: AdapterInfo, files: readonly { name: string; size: number }[]): Promise<void> {
    const about: About = { schema: SCHEMA, name, saved: Date.now(), info, files: files.map(({ name: called, size }) => ({ name: called, size })) };
    return writeFile(folder, 'about.json', new Blob([JSON.stringify(about)]));
}

/* The browser writes beside and renames: never half a file. */
export async function writeFile(folder: FileSystemDirectoryHandle, name: string, content: Blob): Promise<void> {
    const file = await folder.getFileHandle(name, { create: true });
    if (typeof file.createWritable !== 'function') throw new GemmuleError('NotSupported', 'this browser cannot write files (createWritable is missing)');
    const stream = await file.createWritable();
    await stream.write(content);
    await stream.close();
}
