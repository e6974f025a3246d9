/* From what the page says about a file to something that reads its bytes. */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import type { ByteSource } from '../core/types.ts';
import type { Progress, SourceSpec } from '../worker/protocol.ts';
import { BlobSource } from './blob.ts';
import { ModelCache, openFileHandle } from './opfs.ts';
import { fetchIntoCache } from './store.ts';
import { PrefixSource, UrlSource, download, hasStableRanges, probe } from './url.ts';

export interface OpenOptions {
    /** Only the beginning will be read: nothing is downloaded for keeps. */
    headerOnly: boolean;
    signal: AbortSignal;
    onProgress(progress: Progress): void;
}

export async function openSource(spec: SourceSpec, options: OpenOptions): Promise<ByteSource> {
    switch (spec.kind) {
        case 'blob':
            return new BlobSource(spec.blob, spec.name);
        case 'handle':
            return openFileHandle(spec.handle);
        case 'cached':
            return (await ModelCache.open()).read(spec.key);
        case 'url':
            return openUrl(spec, options);
        default:
            throw new GemmuleError('NotSupported', `a source of kind '${spec.kind}' cannot be opened here`);
    }
}

async function openUrl(spec: SourceSpec & { kind: 'url' }, options: OpenOptions): Promise<ByteSource> {
    const { url, sha256, cache } = spec;
    if (cache) {
        try {
            const store = await ModelCache.open();
            const key = ModelCache.key(url, sha256);
            const accept = (beginning: Uint8Array) => checkMagic(url, beginning);
            if (!options.headerOnly) return await fetchIntoCache(store, url, { ...options, accept, ...(sha256 === undefined ? {} : { sha256 }) });
            if ((await store.find(key))?.done) return await store.read(key);
        } catch (thrown) {
            const error = toGemmuleError(thrown);
            // Where there is no storage (a page without https), or no room in it, the model can still be used as it comes in.
            const passable = error.name === 'NotSupported' || (cache === 'if-it-fits' && ['QuotaExceeded', 'Storage', 'Busy'].includes(error.name));
            if (!passable) throw error;
        }
    }
    return openUncached(url, options);
}

/** A file on a server, without keeping it. */
export async function openUncached(url: string, { headerOnly, signal, onProgress }: OpenOptions): Promise<ByteSource> {
    const file = await probe(url, { signal });
    if (hasStableRanges(file)) return new UrlSource(file);
    if (headerOnly) return new PrefixSource(file, { signal });
    const blob = await download(file, { signal }, (done, total) => onProgress({ phase: 'download', done, total }));
    return new BlobSource(blob, file.url);
}

/* Said before gigabytes of something else are stored: an address often leads to a page about the file. */
function checkMagic(url: string, beginning: Uint8Array): void {
    const magic = String.fromCharCode(...beginning.subarray(0, 4));
    if (beginning.length >= 4 && magic !== 'GGUF') {
        const hint = /^\s*</.test(magic) ? ' (it looks like a web page)' : '';
        throw new GemmuleError('BadModel', `${url} is no GGUF file: it begins with ${JSON.stringify(magic)}${hint}`);
    }
}
