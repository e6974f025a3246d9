/* Starts the worker, and notices when it dies. */

import { GemmuleError, throwIfAborted } from '../core/errors.ts';
import { Connection } from '../worker/connection.ts';
import type { Port, ThreadFailure, ThreadRequest } from '../worker/protocol.ts';

export interface WorkerOptions {
    /** Where worker.js is served, if not beside this module. Same origin. */
    workerUrl?: string | URL;
    /** Where gemmule.wasm is served, if not beside the worker. */
    wasmUrl?: string | URL;
    /** Where gemmule-threads.wasm is served, if not beside gemmule.wasm. */
    wasmThreadsUrl?: string | URL;
    /** Whether the engine is to train, too: loads gemmule-train.wasm and gemmule-train-threads.wasm, which lie beside the other two. */
    training?: boolean;
    signal?: AbortSignal;
}

/** How the API reaches an engine: through a worker in the browser, directly in Node. */
export type Connect = (options: WorkerOptions & { backend?: 'auto' | 'gpu' | 'wasm' }) => Promise<Connection>;

function newWorker(workerUrl: string | undefined): Worker {
    try {
        // Bundlers look for exactly this form.
        return workerUrl === undefined
            ? new Worker(new URL('./worker.js', import.meta.url), { type: 'module' })
            : new Worker(workerUrl, { type: 'module' });
    } catch (thrown) {
        throw new GemmuleError('WorkerDied', `cannot start the worker: ${(thrown as Error).message}`, undefined, { cause: thrown });
    }
}

/* Resolved now: threads start later, when the page's address may have changed. */
function absolute(workerUrl: string | URL): string {
    try {
        return new URL(workerUrl, globalThis.document?.baseURI ?? location.href).href;
    } catch {
        throw new GemmuleError('BadArgument', `workerUrl must be a valid address, found '${workerUrl}'`);
    }
}

const reasonOf = (event: ErrorEvent, workerUrl: string | undefined) => event.message || `cannot load ${workerUrl ?? 'worker.js'}`;

/* Starts and ends the engine's threads (worker/protocol.ts). */
function serveThreads(worker: Worker, threads: Map<number, Worker>, workerUrl: string | undefined, request: ThreadRequest): void {
    if ('end' in request) {
        threads.get(request.end)?.terminate();
        threads.delete(request.end);
        return;
    }
    const failed = (reason: string) => worker.postMessage({ thread: request.start, failed: reason } satisfies ThreadFailure);
    try {
        const thread = newWorker(workerUrl);
        threads.set(request.start, thread);
        thread.onerror = (event) => {
            event.preventDefault(); // the engine reports it
            failed(reasonOf(event, workerUrl));
        };
        thread.postMessage({ line: request.line }, [request.line]);
    } catch (thrown) {
        failed((thrown as Error).message);
    }
}

export async function connectWorker({ workerUrl: given, wasmUrl, wasmThreadsUrl, training, signal }: WorkerOptions): Promise<Connection> {
    throwIfAborted(signal);
    const workerUrl = given === undefined ? undefined : absolute(given);
    const worker = newWorker(workerUrl);
    const threads = new Map<number, Worker>();
    const port: Port = {
        post: (message, transfer) => worker.postMessage(message, transfer),
        onMessage: null,
        close: () => {
            for (const each of [worker, ...threads.values()]) each.terminate();
        },
    };
    const connection = new Connection(port);
    worker.onmessage = ({ data }) => {
        if ('start' in data || 'end' in data) serveThreads(worker, threads, workerUrl, data as ThreadRequest);
        else port.onMessage?.(data);
    };
    worker.onmessageerror = () => connection.close(new GemmuleError('WorkerDied', 'a message from the worker could not be read'));
    worker.onerror = (event) => {
        connection.close(new GemmuleError('WorkerDied', `the worker failed: ${reasonOf(event, workerUrl)}`));
    };
    try {
        const life = navigator.locks ? `gemmule/worker/${crypto.randomUUID?.() ?? Math.random()}` : undefined;
        const held = await connection.call('hello', {
            ...(life ? { life } : {}),
            ...(wasmUrl === undefined ? {} : { wasmUrl: new URL(wasmUrl, location.href).href }),
            ...(training ? { training } : {}),
            ...(wasmThreadsUrl === undefined ? {} : { wasmThreadsUrl: new URL(wasmThreadsUrl, location.href).href }),
        }, { signal });
        if (life && held) watchLife(connection, life);
    } catch (thrown) {
        connection.close();
        throw thrown;
    }
    return connection;
}

/* A worker that just ends (out of memory, close()) fires no event, but it releases the lock that it holds while it lives. */
function watchLife(connection: Connection, life: string): void {
    const died = () => connection.close(new GemmuleError('WorkerDied', 'the worker ended; it may have run out of memory'));
    navigator.locks.request(life, died).catch(() => undefined);
}
