/* The worker's entry. One file without top-level await or dynamic import works with every bundler and browser. */

import { Core } from '../core/core.ts';
import { THREAD, type ThreadHost, type ThreadPort, besideWasm, threadAnswers } from '../core/threads.ts';
import { compileWasm } from './compile.ts';
import { keep, kept } from '../sources/keep.ts';
import { openSource } from '../sources/open.ts';
import { Host } from './host.ts';
import type { Port, ThreadFailure, ThreadRequest, WasmUrls } from './protocol.ts';

/* Node runs these in its own thread. */
export { Core, Host, openSource };

interface Scope {
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
    const threads = new PageThreads(scope);
    new Host(port, {
        core: async (given) => {
            const urls = moduleUrls(given);
            return Core.create({
                wasm: await compileWasm(urls.wasm),
                gpu: navigator.gpu ?? null,
                threads: threadHost(threads, urls.threads),
                verdicts: { get: kept, set: keep },
                profiles: { get: kept, set: keep },
            });
        },
        openSource,
    });
    scope.onmessage = ({ data }) => {
        if ('line' in data) startAsThread(scope, data.line as MessagePort);
        else if ('thread' in data) threads.fail(data as ThreadFailure);
        else port.onMessage?.(data);
    };
}

function moduleUrls({ wasmUrl, wasmThreadsUrl, training }: WasmUrls): { wasm: string; threads: string } {
    // Bundlers look for exactly this form.
    if (!training) {
        return {
            wasm: wasmUrl ?? new URL('./gemmule.wasm', import.meta.url).href,
            threads: wasmThreadsUrl ?? (wasmUrl ? besideWasm(wasmUrl) : new URL('./gemmule-threads.wasm', import.meta.url).href),
        };
    }
    const threadsBeside = wasmThreadsUrl ?? wasmUrl;
    return {
        wasm: wasmUrl ? besideWasm(wasmUrl, true, false) : new URL('./gemmule-train.wasm', import.meta.url).href,
        threads: threadsBeside ? besideWasm(threadsBeside, true) : new URL('./gemmule-train-threads.wasm', import.meta.url).href,
    };
}

// ---- threads ----

function threadHost(threads: PageThreads, wasmUrl: string): ThreadHost | null {
    if (!globalThis.crossOriginIsolated) return null;
    return {
        processors: navigator.hardwareConcurrency ?? 1,
        compile: () => compileWasm(wasmUrl),
        start: () => threads.start(),
    };
}

/* Threads that the page starts and ends (protocol.ts). */
class PageThreads {
    readonly #scope: Scope;
    readonly #ports = new Map<number, ThreadPort>();
    #last = 0;

    constructor(scope: Scope) {
        this.#scope = scope;
    }

    start(): ThreadPort {
        const number = ++this.#last;
        const { port1: line, port2: theirs } = new MessageChannel();
        const port: ThreadPort = {
            post: (message) => line.postMessage(message),
            onMessage: null,
            onError: null,
            close: () => {
                this.#ports.delete(number);
                line.close();
                this.#scope.postMessage({ end: number } satisfies ThreadRequest, []);
            },
        };
        line.onmessage = (event) => port.onMessage?.(event.data);
        this.#ports.set(number, port);
        this.#scope.postMessage({ start: number, line: theirs } satisfies ThreadRequest, [theirs]);
        return port;
    }

    fail({ thread, failed }: ThreadFailure): void {
        this.#ports.get(thread)?.onError?.(failed);
    }
}

function startAsThread(scope: Scope, line: MessagePort): void {
    const answers = threadAnswers((answer) => line.postMessage(answer));
    scope.onmessage = null;
    line.onmessage = (event) => answers(event.data);
}

/* Part of node:worker_threads, which a file for browsers cannot import. */
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
    start(globalThis as unknown as Scope);
} else {
    const thread = (globalThis as { process?: NodeProcess }).process?.getBuiltinModule?.('node:worker_threads');
    if (thread) startAsNodeThread(thread);
}
