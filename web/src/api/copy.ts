/* Copies models from the user's files into the cache. */

import { GemmuleError } from '../core/errors.ts';
import type { OllamaModel } from '../sources/ollama.ts';
import type { CacheEntry } from '../sources/opfs.ts';
import { askPersistence } from '../sources/persist.ts';
import type { Progress } from '../worker/protocol.ts';
import { type WorkerOptions, connectWorker } from './connect.ts';
import { specify } from './source.ts';

export interface CopyOptions extends WorkerOptions {
    onProgress?(progress: Progress): void;
}

/** Copies a model from a picked file or from Ollama's folder into the cache, and returns the entry: load it as `{ cached: entry.key }`, with
 * the option `ollama: entry.ollama` if that is there. Reads from the cache take microseconds, those from a File milliseconds: this matters for
 * a model that does not fit on the GPU. A file that was copied before is not copied again. Nothing is left of a copy that fails or is stopped.
 * Throws `QuotaExceeded` if the browser has too little space. */
export async function copyModel(source: Blob | OllamaModel, options: CopyOptions = {}): Promise<CacheEntry> {
    const { sources, options: { ollama }, adapters = [] } = specify(source, {});
    const [spec] = sources;
    if (spec?.kind !== 'blob' || sources.length > 1 || adapters.length) {
        throw new GemmuleError('NotSupported', 'only a model in one file can be copied, without a projector or adapters');
    }
    const { blob, name } = spec;
    const modified = blob instanceof File ? blob.lastModified : Date.now(); // nothing tells one Blob from another
    const url = `file:///${encodeURIComponent(name)}?bytes=${blob.size}&modified=${modified}`;
    const sha256 = 'digest' in source ? source.digest : undefined;
    void askPersistence();
    const connection = await connectWorker(options);
    try {
        const args = { blob, name, url, ...(sha256 ? { sha256 } : {}), ...(ollama ? { ollama } : {}) };
        return await connection.call('copy', args, { signal: options.signal, onEvent: options.onProgress });
    } finally {
        connection.close();
    }
}
