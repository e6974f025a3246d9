/* The worker's entry: one file without top-level await or dynamic import, so that every bundler and every browser takes it. */

import { Core } from '../core/core.ts';
import { THREAD, type ThreadHost, type ThreadPort, besideWasm, threadAnswers } from '../core/threads.ts';
import { compileWasm } from './compile.ts';
import { openSource } from '../sources/open.ts';
import { Host } from './host.ts';
import type { Port } from './protocol.ts';

/* What Node runs in its own thread. */
export { Core, Host, openSource };

interface Scope {
    name: string;
    postMessage(message: unknown, transfer: Transferable[]): void;
    onmessage: ((event: MessageEvent) => void) | null;
    close(): void;
}

function start(scope: Scope): void {
    const port: Port = {
        post: (message, transfer) => scope.postMessage(message, transfer),
        onMessage: null,
        close: () => scope.close(),
    };
    new Host(port, {
        core: async ({ wasmUrl, wasmThreadsUrl = wasmUrl && besideWasm(wasmUrl) }) =>
            Core.create({
                wasm: await compileWasm(wasmUrl ?? new URL('./gemmule.wasm', import.meta.url).href),
                gpu: navigator.gpu ?? null,
                threads: threadHost(wasmThreadsUrl),
            }),
        openSource,
    });
    scope.onmessage = (event) => port.onMessage?.(event.data);
}

// ---- threads ----

function threadHost(wasmUrl: string | undefined): ThreadHost | null {
    if (!globalThis.crossOriginIsolated || !('Worker' in globalThis)) return null;
    return {
        processors: navigator.hardwareConcurrency ?? 1,
        compile: () => compileWasm(wasmUrl ?? new URL('./gemmule-threads.wasm', import.meta.url).href),
        start: startThread,
    };
}

/* A thread runs this same file, by its own address: nobody needs to find another one. */
function startThread(): ThreadPort {
    const worker = new Worker(location.href, { type: 'module', name: THREAD });
    const port: ThreadPort = {
        post: (message) => worker.postMessage(message),
        onMessage: null,
        onError: null,
        // Mostly the page now ends this worker, and its threads with it. Chromium never ends one whose own workers are just being ended.
        close: () => void setTimeout(() => worker.terminate(), 1000),
    };
    worker.onmessage = (event) => port.onMessage?.(event.data);
    worker.onerror = (event) => {
        event.preventDefault(); // else it counts as an error of this worker
        port.onError?.(event.message || `${location.href} could not be loaded`);
    };
    return port;
}

function startAsThread(scope: Scope): void {
    const answers = threadAnswers((answer) => scope.postMessage(answer, []));
    scope.onmessage = (event) => answers(event.data);
}

/* Of Node's module node:worker_threads, which a file for browsers cannot import. */
interface NodeThread {
    workerData: unknown;
    parentPort: { on(event: 'message', listener: (message: unknown) => void): void; postMessage(message: unknown): void };
}
interface NodeProcess {
    getBuiltinModule?(name: string): NodeThread;
}

function startAsNodeThread({ workerData, parentPort }: NodeThread): void {
    if (workerData === THREAD) parentPort.on('message', threadAnswers((answer) => parentPort.postMessage(answer)));
}

if ('DedicatedWorkerGlobalScope' in globalThis) {
    const scope = globalThis as unknown as Scope;
    if (scope.name === THREAD) startAsThread(scope);
    else start(scope);
} else {
    const thread = (globalThis as { process?: NodeProcess }).process?.getBuiltinModule?.('node:worker_threads');
    if (thread) startAsNodeThread(thread);
}
