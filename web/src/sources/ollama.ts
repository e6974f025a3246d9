/* Ollama's folder: names → manifests → blobs. Its files are not trusted: a digest is checked before it becomes a file name.
 *
 *     manifests/<host>/<namespace>/<model>/<tag>   JSON that lists a model's layers
 *     blobs/sha256-<64 hex>                        the layers; -partial… while a download is incomplete */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import type { Folder } from './folder.ts';
import { folderOfDrop, folderOfFiles } from './folder.ts';
import { forget, keep, kept } from './keep.ts';

const LARGEST_TEXT = 4 << 20;
const DEEPEST_FOLDER = 7;
const MEDIA_PREFIX = 'application/vnd.ollama.image.';
const DEFAULT_HOST = 'registry.ollama.ai';
const DEFAULT_NAMESPACE = 'library';
const KEPT = 'ollama-folder';

/** A model in the folder. */
export interface OllamaModel {
    readonly kind: 'ollama';
    /** 'gemma4:e2b', 'hf.co/user/repo:Q4_K_M' */
    name: string;
    /** The GGUF file; null if it is missing. */
    model: File | null;
    /** The SHA-256 that the manifest gives for the model's file. */
    digest: string;
    /** Bytes of the model's file, and of all layers. */
    size: number;
    bytes: number;
    /** A second file with the towers of older models; null if there is none. */
    projector: File | null;
    draft: boolean;
    /** The adapters that are part of the model. */
    adapters: readonly OllamaAdapter[];
    /** The system prompt, and the parameters as JSON. */
    system?: string;
    params?: string;
    renderer?: string;
    family?: string;
    sizeLabel?: string;
    quantisation?: string;
    /** '' or what is missing or incomplete. */
    problem: string;
}

/** An adapter layer of a model. */
export interface OllamaAdapter {
    readonly kind: 'ollama-adapter';
    /** The model's: 'me/tuned:latest'; of several, with a number: 'me/tuned:latest (2)'. */
    name: string;
    /** A GGUF file. */
    file: File;
    digest: string;
}

// ---- names ----

export interface ModelName {
    /** Components of the manifest's path below manifests/. */
    path: string[];
    shown: string;
}

/* Letters, digits and _; after the first also - and . This excludes "..", hidden files and separators. A host may have a port. */
function validComponent(text: string, host: boolean): boolean {
    return text.length <= 255 && (host ? /^\w[\w.:-]*$/ : /^\w[\w.-]*$/).test(text);
}

function buildName(path: string[]): ModelName {
    const hideHost = path.length === 4 && path[0] === DEFAULT_HOST;
    const hideNamespace = hideHost && path[1] === DEFAULT_NAMESPACE;
    const shown = path.slice(hideNamespace ? 2 : hideHost ? 1 : 0);
    return { path, shown: `${shown.slice(0, -1).join('/')}:${shown.at(-1)}` };
}

function validPath(path: string[]): boolean {
    return path.length >= 4 && path.length <= 8 && path.every((part, i) => validComponent(part, i === 0));
}

/** A name as Ollama reads it: [[host/]namespace/]model[:tag]. */
export function parseName(name: string): ModelName {
    const colon = name.lastIndexOf(':') > name.lastIndexOf('/') ? name.lastIndexOf(':') : -1;
    const given = (colon < 0 ? name : name.slice(0, colon)).split('/');
    const defaults = [DEFAULT_HOST, DEFAULT_NAMESPACE].slice(0, Math.max(0, 3 - given.length));
    const path = [...defaults, ...given, colon < 0 ? 'latest' : name.slice(colon + 1)];
    // Only the first of three components is a host, which may have a port.
    if (!validPath(path) || (given.length < 3 && given.some((part) => !validComponent(part, false)))) {
        throw new GemmuleError(
            'BadArgument',
            `'${name}' is not a model name: expected model:tag, namespace/model:tag or host/namespace/model:tag with letters, digits, '_', '-' and '.'`,
        );
    }
    return buildName(path);
}

// ---- manifests ----

interface Layer {
    kind: string;
    blob: string;
    size: number;
}

function parseLayer(value: unknown, where: string): Layer {
    const { mediaType, digest, size } = (typeof value === 'object' && value !== null ? value : {}) as Record<string, unknown>;
    if (typeof digest !== 'string' || !/^sha256[:-][0-9a-f]{64}$/.test(digest)) {
        throw new GemmuleError('BadModel', `${where}: the digest must be sha256: and 64 hexadecimal digits, found '${String(digest).slice(0, 100)}'`);
    }
    if (!Number.isSafeInteger(size) || (size as number) < 0) {
        throw new GemmuleError('BadModel', `${where}: the size must be a whole number of bytes`);
    }
    const media = typeof mediaType === 'string' ? mediaType : '';
    const kind = media.startsWith(MEDIA_PREFIX) ? media.slice(MEDIA_PREFIX.length) : media;
    return { kind, blob: digest.replace(':', '-'), size: size as number };
}

interface Manifest {
    config: Layer | null;
    layers: Layer[];
}

export function parseManifest(text: string): Manifest {
    const { config, layers } = parseObject(text);
    if (!Array.isArray(layers)) throw new GemmuleError('BadModel', 'the manifest has no list of layers');
    return {
        config: config == null ? null : parseLayer(config, 'config'),
        layers: layers.map((layer, i) => parseLayer(layer, `layer ${i + 1}`)),
    };
}

function parseObject(text: string): Record<string, unknown> {
    let value: unknown;
    try {
        value = JSON.parse(text);
    } catch (thrown) {
        throw new GemmuleError('BadModel', `not JSON: ${(thrown as Error).message}`);
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new GemmuleError('BadModel', 'expected a JSON object');
    return value as Record<string, unknown>;
}

async function readText(file: File, where: string): Promise<string> {
    if (file.size > LARGEST_TEXT) throw new GemmuleError('BadModel', `${where}: larger than ${LARGEST_TEXT >> 20} MiB`);
    try {
        return new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
    } catch (thrown) {
        throw thrown instanceof TypeError ? new GemmuleError('BadModel', `${where}: not UTF-8`) : toGemmuleError(thrown, where);
    }
}

// ---- the folder ----

type Permission = 'granted' | 'denied' | 'prompt';
type AskingHandle = FileSystemDirectoryHandle & {
    queryPermission?(wish: { mode: 'read' }): Promise<Permission>;
    requestPermission?(wish: { mode: 'read' }): Promise<Permission>;
};

export class OllamaFolder {
    readonly #root: Folder;
    #unreadable: string[] = [];

    private constructor(root: Folder) {
        this.#root = root;
    }

    /** Whether `pick` works here. If not, use an <input webkitdirectory> or a drop. */
    static canPick(): boolean {
        return typeof (globalThis as { showDirectoryPicker?: unknown }).showDirectoryPicker === 'function';
    }

    /** Asks the user for the folder. Needs a click. The next visit can open it again with `saved`. */
    static async pick(): Promise<OllamaFolder> {
        const pick = (globalThis as { showDirectoryPicker?(options: object): Promise<FileSystemDirectoryHandle> }).showDirectoryPicker;
        if (!pick) throw new GemmuleError('NotSupported', 'this browser cannot pick folders (showDirectoryPicker is missing)');
        let handle: FileSystemDirectoryHandle;
        try {
            handle = await pick.call(globalThis, { id: 'ollama', mode: 'read' });
        } catch (thrown) {
            throw toGemmuleError(thrown, 'no folder chosen');
        }
        const folder = await OllamaFolder.from(handle as unknown as Folder);
        await keep(KEPT, handle).catch(() => undefined); // without IndexedDB the user must pick it again
        return folder;
    }

    /** The folder of an earlier visit; null if there is none, or if the browser wants a click (`ask`) first. */
    static async saved({ ask = false }: { ask?: boolean } = {}): Promise<OllamaFolder | null> {
        const handle = await kept<AskingHandle>(KEPT).catch(() => undefined);
        if (!handle) return null;
        let permission = (await handle.queryPermission?.({ mode: 'read' })) ?? 'granted';
        if (permission === 'prompt' && ask) permission = (await handle.requestPermission?.({ mode: 'read' })) ?? 'denied';
        return permission === 'granted' ? OllamaFolder.from(handle as unknown as Folder) : null;
    }

    /** Whether there is a folder of an earlier visit. */
    static async hasSaved(): Promise<boolean> {
        return (await kept(KEPT).catch(() => undefined)) !== undefined;
    }

    static async forget(): Promise<void> {
        await forget(KEPT);
    }

    static fromFiles(files: Iterable<File>): Promise<OllamaFolder> {
        return OllamaFolder.from(folderOfFiles(files));
    }

    static async fromDrop(data: DataTransfer): Promise<OllamaFolder> {
        const folder = await folderOfDrop(data);
        const store = await OllamaFolder.from(folder);
        if ('queryPermission' in folder) await keep(KEPT, folder).catch(() => undefined);
        return store;
    }

    /** Takes ~/.ollama/models, ~/.ollama, or the folder that holds .ollama. */
    static async from(folder: Folder): Promise<OllamaFolder> {
        for (const path of [[], ['models'], ['.ollama', 'models']]) {
            const root = await descend(folder, path);
            if (root && (await descend(root, ['manifests'])) && (await descend(root, ['blobs']))) return new OllamaFolder(root);
        }
        throw new GemmuleError(
            'NotFound',
            `the folder ${folder.name} has no Ollama models: 'manifests' and 'blobs' are missing. Ollama keeps its models in ~/.ollama/models, ` +
                'or as a service on Linux in /usr/share/ollama/.ollama/models',
        );
    }

    /** What the last `list` or `resolve` could not read, and why: 'manifests/hf.co: …'. */
    get unreadable(): readonly string[] {
        return this.#unreadable;
    }

    /** All models in the folder, sorted by name. A broken one has a `problem`; `unreadable` names the folders that were skipped. */
    async list(): Promise<OllamaModel[]> {
        const names = await this.#names();
        return Promise.all(names.map((name) => this.#read(name)));
    }

    /** One model; throws if it is missing or broken. */
    async resolve(wanted: string): Promise<OllamaModel> {
        const { path, shown } = parseName(wanted);
        const names = await this.#names();
        // Ollama ignores case.
        const same = (name: ModelName) => name.path.join('/').toLowerCase() === path.join('/').toLowerCase();
        const name = names.find((one) => one.path.join('/') === path.join('/')) ?? names.find(same);
        if (!name) {
            const there = names.map((one) => one.shown);
            const list = there.length ? there.slice(0, 8).join(', ') + (there.length > 8 ? ' …' : '') : 'no models';
            const skipped = this.#unreadable.map((one) => `; skipped ${one}`).join('');
            throw new GemmuleError('NotFound', `there is no model '${shown}' in the folder; it has ${list}${skipped}`, { models: there });
        }
        const model = await this.#read(name);
        if (model.problem) throw new GemmuleError('BadModel', `cannot load ${model.name}: ${model.problem}`);
        return model;
    }

    /** The adapters of one model, or of all that have some: sources for `engine.adapters.load`. */
    async adapters(wanted?: string): Promise<readonly OllamaAdapter[]> {
        if (wanted === undefined) return (await this.list()).flatMap(({ adapters }) => adapters);
        const { name, adapters } = await this.resolve(wanted);
        if (!adapters.length) throw new GemmuleError('NotFound', `the model '${name}' has no adapter`);
        return adapters;
    }

    async #names(): Promise<ModelName[]> {
        const names: ModelName[] = [];
        const unreadable: string[] = [];
        const walk = async (folder: Folder, path: string[]): Promise<void> => {
            for await (const [name, child] of folder.entries()) {
                const below = [...path, name];
                if (child.kind === 'file' && validPath(below)) names.push(buildName(below));
                if (child.kind === 'file' || below.length > DEEPEST_FOLDER || name.startsWith('.')) continue;
                // One folder without permission must not hide the other models.
                await walk(child, below).catch((thrown: unknown) => {
                    unreadable.push(`manifests/${below.join('/')}: ${toGemmuleError(thrown).message}`);
                });
            }
        };
        try {
            await walk(await this.#root.getDirectoryHandle('manifests'), []);
        } catch (thrown) {
            throw toGemmuleError(thrown, "cannot read Ollama's folder");
        }
        this.#unreadable = unreadable;
        return names.sort((a, b) => (a.shown < b.shown ? -1 : a.shown > b.shown ? 1 : 0));
    }

    /* Fills in as much as possible, even if something is wrong: lists also show broken models. */
    async #read(name: ModelName): Promise<OllamaModel> {
        const model: OllamaModel = {
            kind: 'ollama', name: name.shown, model: null, digest: '', size: 0, bytes: 0, projector: null, draft: false, adapters: [], problem: '',
        };
        try {
            const manifest = parseManifest(await this.#manifest(name));
            model.bytes = manifest.layers.reduce((sum, layer) => sum + layer.size, 0);
            if (manifest.config) await this.#readConfig(manifest.config, model);
            for (const layer of manifest.layers) await this.#readLayer(layer, model);
            if (!model.model) {
                const tensors = manifest.layers.some((layer) => layer.kind === 'tensor');
                const why = tensors ? 'the model is stored as safetensors, not as GGUF' : 'the manifest names no model layer';
                throw new GemmuleError('NotSupported', why);
            }
        } catch (thrown) {
            model.problem = toGemmuleError(thrown).message;
        }
        return model;
    }

    async #manifest(name: ModelName): Promise<string> {
        const folder = await descend(this.#root, ['manifests', ...name.path.slice(0, -1)]);
        const handle = await folder?.getFileHandle(name.path.at(-1)!);
        if (!handle) throw new GemmuleError('NotFound', `there is no manifests/${name.path.join('/')}`);
        return readText(await handle.getFile(), 'the manifest');
    }

    async #readConfig(layer: Layer, model: OllamaModel): Promise<void> {
        const config = parseObject(await readText(await this.#blob({ ...layer, kind: 'config' }), 'the config layer'));
        const rows = [['renderer', 'renderer'], ['model_family', 'family'], ['model_type', 'sizeLabel'], ['file_type', 'quantisation']] as const;
        for (const [key, field] of rows) {
            const value = config[key];
            if (typeof value === 'string' && value) model[field] = value;
        }
    }

    async #readLayer(layer: Layer, model: OllamaModel): Promise<void> {
        switch (layer.kind) {
            case 'model':
                if (model.model) throw new GemmuleError('NotSupported', 'the manifest names more than one model layer');
                model.digest = layer.blob.slice('sha256-'.length);
                model.size = layer.size;
                model.model = await this.#blob(layer);
                break;
            case 'projector':
                model.projector = await this.#blob(layer);
                break;
            case 'draft':
                model.draft = true;
                break;
            case 'adapter': {
                const count = model.adapters.length + 1;
                const name = count > 1 ? `${model.name} (${count})` : model.name;
                model.adapters = [...model.adapters, { kind: 'ollama-adapter', name, file: await this.#blob(layer), digest: layer.blob.slice('sha256-'.length) }];
                break;
            }
            case 'system':
                model.system = await readText(await this.#blob(layer), 'the system layer');
                break;
            case 'params': {
                const params = await readText(await this.#blob(layer), 'the params layer');
                parseObject(params);
                model.params = params;
                break;
            }
            // templates, licences and the like are not used
        }
    }

    /* The file of a layer. Throws if it is missing or incomplete. */
    async #blob(layer: Layer): Promise<File> {
        const blobs = await this.#root.getDirectoryHandle('blobs');
        let file: File;
        try {
            file = await (await blobs.getFileHandle(layer.blob)).getFile();
        } catch (thrown) {
            const error = toGemmuleError(thrown, `cannot read the ${layer.kind} layer`);
            if (error.name !== 'NotFound') throw error;
            const partial = await hasPartial(blobs, layer.blob);
            throw new GemmuleError(
                'NotFound',
                partial
                    ? `the download of the ${layer.kind} layer is incomplete (blobs/${layer.blob}-partial): 'ollama pull' finishes it`
                    : `the ${layer.kind} layer is missing: blobs/${layer.blob}`,
            );
        }
        if (file.size !== layer.size) {
            const sizes = `has ${file.size} bytes, the manifest says ${layer.size}`;
            throw new GemmuleError('BadModel', `the ${layer.kind} layer ${sizes}: blobs/${layer.blob}`);
        }
        return file;
    }
}

async function descend(folder: Folder, path: string[]): Promise<Folder | null> {
    try {
        for (const name of path) folder = await folder.getDirectoryHandle(name);
        return folder;
    } catch {
        return null;
    }
}

async function hasPartial(blobs: Folder, blob: string): Promise<boolean> {
    for await (const [name] of blobs.entries()) {
        if (name.startsWith(`${blob}-partial`)) return true;
    }
    return false;
}
