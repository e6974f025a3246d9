// The engine's threads on WebAssembly (src/base/pool_wasm.c): workers that instantiate the same module on shared memory and wait in it for
// tasks. The core cannot start workers itself: its environment provides them.

import { GemmuleError } from './errors.ts';

/** A worker, seen from the engine. */
export interface ThreadPort {
    post(message: unknown): void;
    onMessage: ((message: unknown) => void) | null;
    /** The worker failed, or ended unexpectedly. */
    onError: ((reason: string) => void) | null;
    /** Ends the worker. */
    close(): void;
}

/** Where threads come from. */
export interface ThreadHost {
    /** Processors to compute on. */
    processors: number;
    /** The module for shared memory, gemmule-threads.wasm or gemmule-train-threads.wasm. */
    compile(): Promise<WebAssembly.Module>;
    start(): ThreadPort;
}

/** The workerData that makes a Node worker a thread. */
export const THREAD = 'gemmule-thread';

/** The modules lie beside each other: for one thread and for several, without training and with it. */
export const besideWasm = (url: string, training = false, threads = true) =>
    url.replace(/[^/\\]*$/, `gemmule${training ? '-train' : ''}${threads ? '-threads' : ''}.wasm`);

type Greeting = { module: WebAssembly.Module; memory: WebAssembly.Memory };
type Task = { pool: number; thread: number; stack: number };
type Answer = { ready: true } | { failed: string };

const FIRST_PAGES = 64; // as the module is linked
const MOST_PAGES = 65536; // 4 GiB; reserves addresses, not memory
const MOST_THREADS = 16; // more only wait for memory
const LONGEST_START = 30_000; // milliseconds

/** How many threads to use. From five processors on, half of them: usually two share a core. */
export function usualThreads(processors: number): number {
    return Math.max(1, Math.min(processors, Math.max(4, Math.floor(processors / 2)), MOST_THREADS));
}

/** The threads of one engine; the engine's own is one of them. */
export class Threads {
    readonly count: number;
    readonly module: WebAssembly.Module;
    readonly memory: WebAssembly.Memory;
    /** A thread died: what it was computing will never be done. */
    onDeath: ((why: GemmuleError) => void) | null = null;
    readonly #ports: ThreadPort[] = [];
    #pool = 0; // its address; 0: none yet
    #stop: ((pool: number) => void) | null = null;
    readonly #processors: number;

    /** Starts all threads, and waits until they are ready. */
    static async start(host: ThreadHost, module: WebAssembly.Module, count: number): Promise<Threads> {
        const threads = new Threads(host, module, count);
        let timer: ReturnType<typeof setTimeout> | undefined;
        try {
            const late = new Promise<never>((_, reject) => (timer = setTimeout(() => reject(died('it did not start')), LONGEST_START)));
            await Promise.race([Promise.all(Array.from({ length: count - 1 }, () => threads.#add(host.start()))), late]);
            return threads;
        } catch (thrown) {
            threads.close();
            throw thrown;
        } finally {
            clearTimeout(timer);
        }
    }

    private constructor(host: ThreadHost, module: WebAssembly.Module, count: number) {
        this.count = count;
        this.module = module;
        this.memory = new WebAssembly.Memory({ initial: FIRST_PAGES, maximum: MOST_PAGES, shared: true });
        this.#processors = host.processors;
    }

    #add(port: ThreadPort): Promise<void> {
        this.#ports.push(port);
        return new Promise((resolve, reject) => {
            port.onError = (reason) => {
                reject(died(reason));
                this.onDeath?.(died(reason));
            };
            port.onMessage = (message) => {
                const answer = message as Answer;
                if ('failed' in answer) port.onError!(answer.failed);
                else resolve();
            };
            port.post({ module: this.module, memory: this.memory } satisfies Greeting);
        });
    }

    /** What src/base/pool_wasm.c imports. */
    imports(): WebAssembly.ModuleImports {
        return {
            processors: () => this.#processors,
            start: (pool: number, thread: number, stack: number): number => {
                this.#pool = pool;
                const port = this.#ports[thread - 1];
                port?.post({ pool, thread, stack } satisfies Task);
                return Number(port !== undefined);
            },
            broken: () => {
                throw died('it crashed, or does not respond');
            },
        };
    }

    /** Connects the instance that owns the pool. */
    attach({ gmw_threads_stop }: { gmw_threads_stop(pool: number): void }): void {
        this.#stop = gmw_threads_stop;
    }

    close(): void {
        if (this.#pool) this.#stop?.(this.#pool);
        for (const port of this.#ports) {
            port.onMessage = port.onError = null;
            port.close();
        }
        this.#ports.length = 0;
    }
}

function died(reason: string): GemmuleError {
    return new GemmuleError('WorkerDied', `a thread of the engine failed: ${reason}`);
}

// ---- within a worker ----

interface ThreadExports {
    __stack_pointer: WebAssembly.Global;
    gmw_thread(pool: number, thread: number): void;
    gmw_thread_died(pool: number): void;
}

/** Handles a worker's messages: it gets ready, then computes until it is terminated. */
export function threadAnswers(post: (answer: unknown) => void): (message: unknown) => void {
    let exports: ThreadExports;
    const answer = (given: Answer) => post(given);
    const failed = (thrown: unknown) => answer({ failed: thrown instanceof Error ? thrown.message : String(thrown) });
    return (message) => {
        const { module, memory, pool, thread, stack } = message as Greeting & Task;
        if (module) {
            WebAssembly.instantiate(module, threadImports(module, memory)).then((instance) => {
                exports = instance.exports as unknown as ThreadExports;
                answer({ ready: true });
            }, failed);
            return;
        }
        try {
            exports.__stack_pointer.value = stack;
            exports.gmw_thread(pool, thread);
        } catch (thrown) {
            exports.gmw_thread_died(pool); // first, because the engine is blocked and receives no messages
            failed(thrown);
        }
    };
}

// Tasks only compute: they call no import.
function threadImports(module: WebAssembly.Module, memory: WebAssembly.Memory): WebAssembly.Imports {
    const imports: WebAssembly.Imports = {};
    for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
        (imports[from] ??= {})[name] = kind === 'memory' ? memory : () => 0;
    }
    return imports;
}
