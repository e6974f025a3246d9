/* Where adapters (LoRA) come from, and their description for the worker: one GGUF file, or the two files of a PEFT folder. */

import { PEFT_CONFIG, PEFT_WEIGHTS } from '../core/peft.ts';
import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import type { AdapterSpec, SourceSpec } from '../worker/protocol.ts';
import { expandUrl } from './address.ts';
import { type KeptAdapter, AdapterStore } from './adapter_store.ts';
import { decodeDataUrl } from './blob.ts';
import type { Folder } from './folder.ts';
import type { OllamaAdapter } from './ollama.ts';

/** An adapter:
 * - an address: of a GGUF file, of adapter_model.safetensors, or, ending with '/', of a PEFT folder; 'hf:owner/repo' is one, too;
 * - a File or Blob with a GGUF; a list with the two files of a PEFT folder;
 * - the handle of a folder, or of a GGUF file;
 * - both files by name: `{ weights, config }`;
 * - one that is kept in this browser: an entry of `engine.adapters.kept()`, or `{ kept: key }`;
 * - one from Ollama's folder (`OllamaFolder.adapters`). */
export type AdapterSource =
    | string | URL | Blob | readonly Blob[] | FileSystemDirectoryHandle | FileSystemFileHandle | Folder
    | { weights: string | URL | Blob; config: string | URL | Blob } | { kept: string } | KeptAdapter | OllamaAdapter;

const isConfig = (name: string): boolean => /(^|\/)adapter_config\.json$/i.test(name);
const isWeights = (name: string): boolean => /\.safetensors$/i.test(name);
const isGguf = (name: string): boolean => /\.gguf$/i.test(name);
const isPickle = (name: string): boolean => /(^|\/)adapter_model\.(bin|pt|pth)$/i.test(name);

const blobSpec = (blob: Blob, name: string): SourceSpec => ({ kind: 'blob', blob, name });
const nameOf = (blob: Blob): string => (blob instanceof File ? blob.name : '');
const missing = (what: string, beside: string): GemmuleError => new GemmuleError('NotFound', `${what} is missing beside ${beside}`);
const pickled = (name: string): GemmuleError =>
    new GemmuleError('NotSupported', `${name} is a PyTorch file. Reading one can run any program, so it is refused: save the adapter as safetensors`);

/** The name of an adapter after its folder or file. '+' separates adapters in the names of models. */
export function adapterName(path: string): string {
    const parts = path.split(/[?#]/)[0]!.split(/[\\/]/).filter((part) => part !== '' && !isConfig(part) && part !== PEFT_WEIGHTS);
    let last = parts.at(-1) ?? '';
    try {
        last = decodeURIComponent(last);
    } catch {
        // it stays as it is
    }
    return last.replace(/\.(gguf|safetensors)$/i, '').replaceAll('+', '-').trim() || 'adapter';
}

/** Describes an adapter for the worker. */
export async function specifyAdapter(source: AdapterSource): Promise<AdapterSpec> {
    if (typeof source === 'string' || source instanceof URL) return fromUrl(String(source));
    if (source instanceof Blob) return fromBlobs([source]);
    if (Array.isArray(source)) return fromBlobs(source as readonly Blob[]);
    if (typeof source === 'object' && source !== null) {
        if ('kind' in source) {
            if (source.kind === 'directory') return fromFolder(source as unknown as Folder);
            if (source.kind === 'file') return fromBlobs([await fileOf(source)]);
            if (source.kind === 'ollama-adapter') return { name: source.name.replaceAll('+', '-'), weights: blobSpec(source.file, source.name), config: null };
            if (source.kind === 'kept-adapter') return fromKept(source.key);
        }
        if ('kept' in source) return fromKept(source.kept);
        if ('weights' in source && 'config' in source) return fromPair(source.weights, source.config);
    }
    throw new GemmuleError('BadArgument',
        'an adapter must be an address, a File or Blob, the two files of a PEFT folder, a handle, { weights, config }, { kept: key } or one from OllamaFolder');
}

async function fileOf(handle: { getFile(): Promise<File> }): Promise<File> {
    try {
        return await handle.getFile();
    } catch (thrown) {
        throw toGemmuleError(thrown, 'cannot read the adapter');
    }
}

// ---- addresses ----

function urlSpec(text: string): SourceSpec {
    if (/^data:/i.test(text)) {
        const { type, bytes } = decodeDataUrl(text);
        return blobSpec(new Blob([bytes], { type }), 'data: URL');
    }
    try {
        return { kind: 'url', url: new URL(expandUrl(text), globalThis.location?.href).href, cache: false };
    } catch (thrown) {
        if (thrown instanceof GemmuleError) throw thrown;
        throw new GemmuleError('BadArgument', `'${text}' is not a valid address`);
    }
}

/* The same address with another file. Queries stay: they may have a token. */
function beside(text: string, file: string): string {
    const [path = '', ...rest] = text.split(/(?=[?#])/);
    return path.replace(/[^/]*$/, file) + rest.join('');
}

function fromUrl(text: string): AdapterSpec {
    if (/^data:/i.test(text)) return { name: 'adapter', weights: urlSpec(text), config: null };
    const given = /^hf:[^/]+\/[^/]+\/?$/.test(text) ? `${text.replace(/\/$/, '')}/` : text;
    const path = given.split(/[?#]/)[0]!;
    if (isPickle(path)) throw pickled(adapterFile(path));
    const name = adapterName(path);
    const pair = path.endsWith('/') || isConfig(path) ? [PEFT_WEIGHTS, PEFT_CONFIG] as const : isWeights(path) ? [adapterFile(path), PEFT_CONFIG] as const : null;
    if (!pair) return { name, weights: urlSpec(given), config: null };
    return { name, weights: urlSpec(beside(given, pair[0])), config: urlSpec(beside(given, pair[1])) };
}

/** An adapter layer of Ollama's store, by its address: a GGUF. */
export function adapterLayer(address: string | URL): AdapterSpec {
    return { name: adapterName(String(address)), weights: urlSpec(String(address)), config: null };
}

const adapterFile = (path: string): string => path.split('/').at(-1)!;

// ---- files ----

function fromPair(weights: string | URL | Blob, config: string | URL | Blob): AdapterSpec {
    const spec = (one: string | URL | Blob, name: string): SourceSpec => (one instanceof Blob ? blobSpec(one, nameOf(one) || name) : urlSpec(String(one)));
    const path = weights instanceof Blob ? pathOf(weights) : String(weights);
    return { name: adapterName(path), weights: spec(weights, PEFT_WEIGHTS), config: spec(config, PEFT_CONFIG) };
}

/* With the folder that a file was chosen with, if any. */
const pathOf = (blob: Blob): string => (blob instanceof File ? blob.webkitRelativePath || blob.name : '');

/* Other files of a folder, such as its README, are left alone. */
function fromBlobs(blobs: readonly Blob[]): AdapterSpec {
    if (!blobs.length) throw new GemmuleError('BadArgument', 'no file of an adapter given');
    const weights = blobs.filter((blob) => isWeights(nameOf(blob)));
    const config = blobs.find((blob) => isConfig(nameOf(blob)));
    const ggufs = blobs.filter((blob) => isGguf(nameOf(blob)));
    if (weights.length > 1 || ggufs.length > 1 || (weights.length && ggufs.length)) {
        const names = [...weights, ...ggufs].map(nameOf).join(', ');
        throw new GemmuleError('BadArgument', `these are several adapters: ${names}; give one at a time`);
    }
    if (weights[0]) {
        if (!config) throw missing(PEFT_CONFIG, nameOf(weights[0]));
        return fromPair(weights[0], config);
    }
    if (ggufs[0]) return { name: adapterName(pathOf(ggufs[0])), weights: blobSpec(ggufs[0], nameOf(ggufs[0])), config: null };
    const pickle = blobs.find((blob) => isPickle(nameOf(blob)));
    if (pickle) throw pickled(nameOf(pickle));
    if (config) throw missing(PEFT_WEIGHTS, PEFT_CONFIG);
    if (blobs.length > 1) throw noAdapter('the files are');
    return { name: adapterName(pathOf(blobs[0]!)), weights: blobSpec(blobs[0]!, nameOf(blobs[0]!) || 'blob'), config: null };
}

const noAdapter = (what: string): GemmuleError =>
    new GemmuleError('NotFound', `${what} no adapter: an adapter is one .gguf file, or ${PEFT_CONFIG} and ${PEFT_WEIGHTS}`);

async function fromFolder(folder: Folder): Promise<AdapterSpec> {
    const files: File[] = [];
    try {
        for await (const [name, entry] of folder.entries()) {
            if (entry.kind === 'file' && (isConfig(name) || isWeights(name) || isGguf(name) || isPickle(name))) files.push(await entry.getFile());
        }
    } catch (thrown) {
        throw toGemmuleError(thrown, `cannot read the folder ${folder.name}`);
    }
    if (!files.length) throw noAdapter(`the folder ${folder.name} has`);
    const spec = fromBlobs(files);
    return spec.config ? { ...spec, name: adapterName(folder.name) } : spec;
}

async function fromKept(key: string): Promise<AdapterSpec> {
    const store = await AdapterStore.open();
    const { name, files } = await store.read(key);
    return { ...fromBlobs(files), name: name.replaceAll('+', '-') };
}
