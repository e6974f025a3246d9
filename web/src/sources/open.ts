/* Opens the source of bytes that the page describes. */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import type { ByteSource } from '../core/types.ts';
import type { CopyArgs, Progress, SourceSpec } from '../worker/protocol.ts';
import { BlobSource } from './blob.ts';
import { type CacheEntry, ModelCache, openFileHandle } from './opfs.ts';
import { copyIntoCache, fetchIntoCache } from './store.ts';
import { PrefixSource, UrlSource, download, hasStableRanges, probe } from './url.ts';

export interface OpenOptions {
    /** Only the header will be read: nothing is stored. */
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
            throw new GemmuleError('NotSupported', `cannot open a source of kind '${spec.kind}' here`);
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
            // Without storage (a page without https) or without room in it, the model can still be read from the network.
            const canGoOn = error.name === 'NotSupported' || (cache === 'if-it-fits' && ['QuotaExceeded', 'Storage', 'Busy'].includes(error.name));
            if (!canGoOn) throw error;
        }
    }
    return openUncached(url, options);
}

/** Copies a file of this machine into the cache. */
export async function copyFile({ blob, name, url, ...more }: CopyArgs, options: Omit<OpenOptions, 'headerOnly'>): Promise<CacheEntry> {
    const cache = await ModelCache.open();
    const accept = (beginning: Uint8Array) => checkMagic(name, beginning);
    const key = await copyIntoCache(cache, url, new BlobSource(blob, name), { ...more, ...options, accept });
    return (await cache.find(key))!;
}

/** A file on a server, without storing it. */
export async function openUncached(url: string, { headerOnly, signal, onProgress }: OpenOptions): Promise<ByteSource> {
    const file = await probe(url, { signal });
    if (hasStableRanges(file)) return new UrlSource(file);
    if (headerOnly) return new PrefixSource(file, { signal });
    const blob = await download(file, { signal }, (done, total) => onProgress({ phase: 'download', done, total }));
    return new BlobSource(blob, file.url);
}

/* Checked before gigabytes of something else are stored: an address often leads to a page about the file. */
function checkMagic(url: string, beginning: Uint8Array): void {
    const magic = String.fromCharCode(...beginning.subarray(0, 4));
    if (beginning.length >= 4 && magic !== 'GGUF') {
        const hint = /^\s*</.test(magic) ? ' (it looks like a web page)' : '';
        throw new GemmuleError('BadModel', `cannot load ${url}: not a GGUF file: it starts with ${JSON.stringify(magic)}${hint}`);
    }
}
