/* Trainings that are kept in the origin's private file system, so that they can go on after the page was closed:
 *
 *     /gemmule/v1/trainings/<key>/about.json         settings, model, how far it is
 *     /gemmule/v1/trainings/<key>/data, media-N      the examples, and the pictures and sounds that they name
 *     /gemmule/v1/trainings/<key>/checkpoint         what it goes on from
 *     /gemmule/v1/trainings/<key>/adapter-STEP.gguf  the adapters after some of its steps
 *
 * The key is a hash of the name. Files are written beside and renamed by the browser; about.json is written last. Nothing read from here
 * is trusted. */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import { sha256Text } from '../core/sha256.ts';
import type { TrainingEnd, TrainingSettings, TrainingState } from '../core/types.ts';
import type { DataSpec } from '../worker/protocol.ts';
import { writeFile } from './adapter_store.ts';
import { withLock } from './opfs.ts';

const SCHEMA = 1;
const LARGEST_ABOUT = 4 << 20;
const LATEST = 3; // adapters that stay, beside the best one

/** An adapter of a training, after one of its steps. */
export interface TrainingAdapter {
    step: number;
    loss: number | null;
    evalLoss: number | null;
    bytes: number;
}

/** A training in this browser. */
export interface KeptTraining {
    name: string;
    /** The model that it belongs to. */
    model: { name: string; digest: string };
    settings: TrainingSettings;
    /** When it began, and when it was kept last, in milliseconds since 1970. */
    created: number;
    saved: number;
    /** As it was kept; null: no step was. */
    state: TrainingState | null;
    /** '' if it can go on. */
    end: TrainingEnd | '';
    adapters: TrainingAdapter[];
    /** '' or why it cannot go on. It can be deleted. */
    problem: string;
}

interface About extends Omit<KeptTraining, 'problem'> {
    schema: number;
    data: { name: string; size: number; media: { path: string; size: number }[] };
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
const isText = (value: unknown): value is string => typeof value === 'string';

function parseAbout(text: string): About | null {
    try {
        const about = JSON.parse(text) as Partial<About> | null;
        const { schema, name, model, settings, created, saved, data, adapters, end, state } = about ?? {};
        const good = schema === SCHEMA && isText(name) && isText(model?.name) && isText(model.digest) && typeof settings === 'object' && settings !== null &&
            isCount(created) && isCount(saved) && isText(data?.name) && isCount(data.size) && Array.isArray(data.media) &&
            data.media.every((file) => isText(file?.path) && isCount(file.size)) && Array.isArray(adapters) &&
            adapters.every((one) => isCount(one?.step) && isCount(one.bytes)) && isText(end) && (state === null || isCount(state?.step));
        return good ? (about as About) : null;
    } catch {
        return null;
    }
}

const adapterFile = (step: number): string => `adapter-${step}.gguf`;

export class TrainingStore {
    readonly #root: FileSystemDirectoryHandle;

    private constructor(root: FileSystemDirectoryHandle) {
        this.#root = root;
    }

    /** Whether there is a place for them: not in Node, and not on pages without https. */
    static get possible(): boolean {
        return typeof globalThis.navigator?.storage?.getDirectory === 'function';
    }

    /** The origin's trainings, or those in another folder. */
    static async open(root?: FileSystemDirectoryHandle): Promise<TrainingStore> {
        try {
            let folder = root ?? (await navigator.storage.getDirectory());
            for (const name of ['gemmule', 'v1', 'trainings']) folder = await folder.getDirectoryHandle(name, { create: true });
            return new TrainingStore(folder);
        } catch (thrown) {
            throw new GemmuleError('NotSupported', `trainings cannot be kept here: there is no file storage (${(thrown as Error).message})`, undefined, { cause: thrown });
        }
    }

    async list(): Promise<KeptTraining[]> {
        const kept: KeptTraining[] = [];
        for await (const [, handle] of (this.#root as unknown as { entries(): AsyncIterable<[string, FileSystemHandle]> }).entries()) {
            if (handle.kind !== 'directory') continue;
            const folder = handle as FileSystemDirectoryHandle, about = await readAbout(folder);
            if (about) kept.push(describe(about, await problemOf(folder, about)));
        }
        return kept.sort((a, b) => b.saved - a.saved);
    }

    async find(name: string): Promise<KeptTraining | null> {
        return (await this.list()).find((one) => one.name === name) ?? null;
    }

    /** What a training goes on from. */
    async read(name: string): Promise<{ kept: KeptTraining; data: DataSpec; checkpoint: Uint8Array<ArrayBuffer> | null }> {
        const { folder, about } = await this.#known(name);
        const problem = await problemOf(folder, about);
        if (problem) throw new GemmuleError('Storage', `the training '${name}' cannot go on: ${problem}`);
        const media: DataSpec['media'] = [];
        for (const [at, { path }] of about.data.media.entries()) media.push({ path, blob: (await fileIn(folder, `media-${at}`))! });
        const saved = about.state && (await fileIn(folder, 'checkpoint'));
        const checkpoint = saved ? new Uint8Array(await saved.arrayBuffer()) : null;
        return { kept: describe(about, ''), data: { name: about.data.name, blob: (await fileIn(folder, 'data'))!, media }, checkpoint };
    }

    /** An adapter of a training; by default the last one. */
    async adapter(name: string, step?: number): Promise<File> {
        const { folder, about } = await this.#known(name);
        const which = step === undefined ? about.adapters.at(-1) : about.adapters.find((one) => one.step === step);
        const file = which && (await fileIn(folder, adapterFile(which.step)));
        if (!file) throw new GemmuleError('NotFound', `the training '${name}' has no adapter ${step === undefined ? 'yet' : `after step ${step}`}`);
        return new File([file], `${name}.gguf`, { type: 'application/octet-stream' });
    }

    async #known(name: string): Promise<{ folder: FileSystemDirectoryHandle; about: About }> {
        const folder = await this.#root.getDirectoryHandle(sha256Text(name)).catch(() => null);
        const about = folder && (await readAbout(folder));
        if (!folder || !about) throw new GemmuleError('NotFound', `no training '${name}' is kept here; was it deleted?`);
        return { folder, about };
    }

    async delete(name: string): Promise<void> {
        await withTraining(name, () => this.#remove(name));
    }

    async #remove(name: string): Promise<void> {
        try {
            await this.#root.removeEntry(sha256Text(name), { recursive: true });
        } catch (thrown) {
            const error = toGemmuleError(thrown, `cannot remove the training '${name}'`);
            if (error.name !== 'NotFound') throw error;
        }
    }

    // ---- of a training that runs; its lock is held ----

    /** Copies the examples, in place of an earlier training with this name. @internal */
    async create(name: string, model: KeptTraining['model'], settings: TrainingSettings, data: DataSpec): Promise<void> {
        await this.#remove(name);
        try {
            const folder = await this.#root.getDirectoryHandle(sha256Text(name), { create: true }), now = Date.now();
            await writeFile(folder, 'data', data.blob);
            for (const [at, { blob }] of data.media.entries()) await writeFile(folder, `media-${at}`, blob);
            const sizes = { name: data.name, size: data.blob.size, media: data.media.map(({ path, blob }) => ({ path, size: blob.size })) };
            await writeAbout(folder, { schema: SCHEMA, name, model, settings, created: now, saved: now, state: null, end: '', adapters: [], data: sizes });
        } catch (thrown) {
            await this.#remove(name).catch(() => undefined);
            throw toGemmuleError(thrown, `cannot keep the training '${name}'`);
        }
    }

    /** Keeps a state, and its adapter. @internal */
    async keep(name: string, state: TrainingState, checkpoint: Uint8Array<ArrayBuffer>, adapter: Uint8Array<ArrayBuffer>, end: TrainingEnd | ''): Promise<void> {
        const { folder, about } = await this.#known(name), { keptStep: step, loss, evalLoss } = state;
        await writeFile(folder, 'checkpoint', new Blob([checkpoint]));
        if (step > 0) await writeFile(folder, adapterFile(step), new Blob([adapter])); // before, it has learned nothing
        const all = [...about.adapters.filter((one) => one.step < step), ...(step > 0 ? [{ step, loss, evalLoss, bytes: adapter.length }] : [])];
        const best = all.filter((one) => one.evalLoss !== null).sort((a, b) => a.evalLoss! - b.evalLoss!)[0];
        const adapters = all.filter((one, at) => one === best || at >= all.length - LATEST);
        await writeAbout(folder, { ...about, state: { ...state, step }, saved: Date.now(), end, adapters });
        for (const { step: old } of all) if (!adapters.some((one) => one.step === old)) await folder.removeEntry(adapterFile(old)).catch(() => undefined);
    }
}

/** Runs while nobody else, here or in another tab, works on this training. @internal */
export async function withTraining<T>(name: string, work: () => Promise<T>): Promise<T> {
    try {
        return await withLock(`trainings/${sha256Text(name)}`, { ifAvailable: true }, work);
    } catch (thrown) {
        const error = toGemmuleError(thrown);
        throw error.name === 'Busy' && /file is being written/.test(error.message) ? new GemmuleError('Busy', `the training '${name}' is running, here or in another tab`) : error;
    }
}

const fileIn = (folder: FileSystemDirectoryHandle, name: string): Promise<File | null> =>
    folder.getFileHandle(name).then((handle) => handle.getFile()).catch(() => null);

async function readAbout(folder: FileSystemDirectoryHandle): Promise<About | null> {
    const file = await fileIn(folder, 'about.json');
    return file && file.size <= LARGEST_ABOUT ? parseAbout(await file.text()) : null;
}

const writeAbout = (folder: FileSystemDirectoryHandle, about: About): Promise<void> => writeFile(folder, 'about.json', new Blob([JSON.stringify(about)]));

async function problemOf(folder: FileSystemDirectoryHandle, { data, state }: About): Promise<string> {
    const files = [{ name: 'data', size: data.size }, ...data.media.map(({ size }, at) => ({ name: `media-${at}`, size }))];
    for (const { name, size } of files) {
        const file = await fileIn(folder, name);
        if (file?.size !== size) return file ? `its copy of the examples has ${file.size} bytes, expected ${size}` : 'its copy of the examples is missing';
    }
    return state && !(await fileIn(folder, 'checkpoint')) ? 'its checkpoint is missing' : '';
}

function describe({ schema: _, data: __, ...about }: About, problem: string): KeptTraining {
    return { ...about, problem };
}
