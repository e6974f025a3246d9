/* The sources that can be loaded, and their description for the worker. */

import { GemmuleError } from '../core/errors.ts';
import { BlobSource, decodeDataUrl } from '../sources/blob.ts';
import type { OllamaModel } from '../sources/ollama.ts';
import { partUrls, sortParts } from '../sources/split.ts';
import { expandUrl } from '../sources/address.ts';
import type { AdapterSpec, CacheMode, SourceSpec, WireEngineOptions } from '../worker/protocol.ts';

/** A model:
 * - an address (https:, http:, blob:, data:, or hf:owner/repo/file); the first part of a split model;
 * - a File or Blob; a list with all parts of a split model;
 * - the handle of a file in the origin's private file system, or of one that the user picked;
 * - an entry of the cache: `{ cached: key }`;
 * - a model from Ollama's folder (`OllamaFolder`). */
export type Source = string | URL | Blob | readonly Blob[] | FileSystemFileHandle | { cached: string } | OllamaModel;

export interface SourceOptions {
    /** true, the default in browsers: downloads are stored in the browser. false: the model is read from the network as needed. */
    cache?: CacheMode;
    /** SHA-256 of the file, or of each part, in hexadecimal. A download with a different hash is refused. */
    sha256?: string | readonly string[];
}

export interface Specified {
    sources: SourceSpec[];
    /** Engine options that come with the source. */
    options: WireEngineOptions;
    /** Adapters that are part of the model. */
    adapters?: AdapterSpec[];
}

function isHandle(source: object): source is FileSystemFileHandle {
    return 'kind' in source && source.kind === 'file' && 'getFile' in source;
}

function isOllama(source: object): source is OllamaModel {
    return 'kind' in source && source.kind === 'ollama';
}

export function specify(source: Source, options: SourceOptions): Specified {
    if (typeof source === 'string' || source instanceof URL) return fromUrl(String(source), options);
    if (source instanceof Blob) return { sources: [blobSpec(source)], options: {} };
    if (Array.isArray(source)) return fromParts(source as readonly Blob[]);
    if (typeof source === 'object' && source !== null) {
        if (isOllama(source)) return fromOllama(source);
        if (isHandle(source)) return { sources: [{ kind: 'handle', handle: source }], options: {} };
        if ('cached' in source) return { sources: [{ kind: 'cached', key: source.cached }], options: {} };
    }
    throw new GemmuleError('BadArgument', 'a source must be an address, a File or Blob, a file handle, { cached: key } or a model from OllamaFolder');
}

function fromUrl(text: string, { cache = true, sha256 }: SourceOptions): Specified {
    if (/^data:/i.test(text)) {
        const { type, bytes } = decodeDataUrl(text);
        return { sources: [{ kind: 'blob', blob: new Blob([bytes], { type }), name: 'data: URL' }], options: {} };
    }
    let url: string;
    try {
        url = new URL(expandUrl(text), globalThis.location?.href).href;
    } catch (thrown) {
        if (thrown instanceof GemmuleError) throw thrown;
        throw new GemmuleError('BadArgument', `'${text}' is not a valid address`);
    }
    const urls = partUrls(url);
    const hashes = sha256 === undefined ? [] : [sha256].flat();
    if (hashes.length && hashes.length !== urls.length) {
        throw new GemmuleError('BadArgument', `the model has ${urls.length} files, got ${hashes.length} SHA-256 hashes`);
    }
    const keeps = url.startsWith('blob:') ? false : cache;
    const sources = urls.map((one, i): SourceSpec => {
        return { kind: 'url', url: one, cache: keeps, ...(hashes[i] === undefined ? {} : { sha256: hashes[i] }) };
    });
    return { sources, options: {} };
}

function blobSpec(blob: Blob, name = new BlobSource(blob).name): SourceSpec {
    return { kind: 'blob', blob, name };
}

function fromParts(blobs: readonly Blob[]): Specified {
    if (!blobs.length) throw new GemmuleError('BadArgument', 'no file given');
    if (blobs.length > 1 && !blobs.every((blob) => blob instanceof File)) {
        throw new GemmuleError('BadArgument', 'the parts of a split model must be Files: their names give the order');
    }
    const files = blobs.length > 1 ? sortParts(blobs as readonly File[]) : blobs;
    return { sources: files.map((file) => blobSpec(file)), options: {} };
}

function fromOllama(model: OllamaModel): Specified {
    if (model.problem || !model.model) throw new GemmuleError('BadModel', `cannot load ${model.name}: ${model.problem || 'its file is missing'}`);
    const { params, system, renderer, projector } = model;
    return {
        adapters: model.adapters.map(({ name, file }) => ({ name, weights: blobSpec(file, name), config: null })),
        sources: [blobSpec(model.model, model.name), ...(projector ? [blobSpec(projector, `${model.name}'s projector`)] : [])],
        options: {
            name: model.name, ...(projector ? { projector: true } : {}),
            ollama: { ...(params ? { params } : {}), ...(system ? { system } : {}), ...(renderer ? { renderer } : {}) },
        },
    };
}
