// An instance of the engine's module, and the loop that drives it.
//
// The WebAssembly engine never blocks and never calls out. A call that returns "again" is repeated when bytes it asked for arrive, when the
// GPU has news, or after other events had their turn. Each engine has its own instance, so closing it frees all of its memory.

import { GemmuleError, throwIfAborted } from './errors.ts';
import { type GpuHost, noGpuImports } from './gpu_host.ts';
import type { Reads } from './reads.ts';
import type { Threads } from './threads.ts';
import { Wasm } from './wasm.ts';

/* What a call into the module returns, if it is no error (errors.ts). */
export const OK = 0;
export const AGAIN = 1;
export const DONE = 2;

const BREATH_MILLISECONDS = 10; // a small model writes tokens without ever waiting; let messages in this often, so that it can be stopped
const BUSY_MILLISECONDS = 30; // a call that took longer was computing, not waiting: repeat it at once

// Lets other events run, without the 4 ms that a timer costs.
const immediate = (globalThis as { setImmediate?: (call: () => void) => unknown }).setImmediate;
let channel: MessageChannel | null = null;
const waiting: (() => void)[] = [];
function letOthers(): Promise<void> {
    if (immediate) return new Promise((resolve) => void immediate(resolve));
    if (!channel) {
        channel = new MessageChannel();
        channel.port1.onmessage = () => waiting.shift()?.();
    }
    return new Promise((resolve) => {
        waiting.push(resolve);
        channel!.port2.postMessage(0);
    });
}

/** An instance and what drives it: its sources, its GPU, its threads. */
export class Machine {
    readonly wasm: Wasm;
    readonly gpu: GpuHost | null;
    readonly threads: Threads | null;
    reads: Reads | null = null;
    note = ''; // for the engine's info
    #closed: GemmuleError | null = null;
    // Counts of events, now and at the start of the last call; when that call began, and how long it took.
    #events = 0;
    #eventsBefore = 0;
    #began = 0;
    #took = 0;
    #rests = false; // whether rest() ran since the last call
    #breath = performance.now(); // when other events last had their turn
    // Settles when something happens. Allocated only when needed: every token comes through here.
    #sleep: Promise<void> | null = null;
    #awake: (() => void) | null = null;
    readonly #fallAsleep = (resolve: () => void) => void (this.#awake = resolve);

    static async create(module: WebAssembly.Module, gpu: GpuHost | null, threads: Threads | null = null): Promise<Machine> {
        const imports = (memory: () => WebAssembly.Memory) => (gpu ? gpu.imports(memory) : noGpuImports());
        const wasm = await Wasm.create(module, imports as (memory: () => WebAssembly.Memory) => WebAssembly.ModuleImports, threads);
        return new Machine(wasm, gpu, threads);
    }

    private constructor(wasm: Wasm, gpu: GpuHost | null, threads: Threads | null) {
        this.wasm = wasm;
        this.gpu = gpu;
        this.threads = threads;
        if (threads) threads.onDeath = (why) => this.close(why);
        if (gpu) gpu.onNews = () => this.wake();
    }

    get closed(): boolean {
        return this.#closed !== null;
    }

    /** Something happened that a call may be waiting for. */
    wake(): void {
        const awake = this.#awake;
        this.#events++;
        this.#sleep = this.#awake = null;
        awake?.();
    }

    close(why: GemmuleError): void {
        if (this.#closed) return;
        this.#closed = why;
        this.reads?.close();
        this.gpu?.close();
        this.threads?.close();
        this.wake();
    }

    check(): void {
        if (this.#closed) throw this.#closed;
    }

    /** The error for a status. If a read failed, its own error says more than what passed through the engine. */
    error(status: number): GemmuleError {
        const message = this.wasm.resultText();
        return this.reads?.errorFor(message) ?? GemmuleError.fromCode(status, message);
    }

    /** Checks the status of a call that completes at once. */
    call(status: number): void {
        if (status !== OK) throw this.error(status);
    }

    /** Calls a function that writes the address of what it made, or a number, to `out`. Returns what it wrote. */
    make(call: (out: number) => number): number {
        this.call(call(this.wasm.scratch));
        return this.wasm.pointer();
    }

    /** Frees something in the instance, unless the instance itself is gone. */
    release(free: () => void): void {
        if (this.#closed) return;
        free();
        this.wake(); // another call may have waited for this
    }

    /** Drives a job to its end, takes its result, and frees it. */
    async finish<T>(job: number, step: (context: number, job: number) => number, free: (job: number) => void, take: () => T): Promise<T> {
        try {
            await this.drive(() => step(this.wasm.context, job));
            return take();
        } finally {
            this.release(() => free(job));
        }
    }

    /** Repeats a call until it is done. Returns its last status, which is neither "again" nor an error. */
    async drive(call: () => number, signal?: AbortSignal): Promise<number> {
        const stop = () => this.wake();
        signal?.addEventListener('abort', stop);
        try {
            for (;;) {
                const status = this.step(call, signal);
                if (status !== AGAIN) return status;
                await this.rest();
            }
        } finally {
            signal?.removeEventListener('abort', stop);
        }
    }

    /** Calls once. Returns the status; throws for an error. */
    step(call: () => number, signal?: AbortSignal): number {
        this.check();
        throwIfAborted(signal);
        const start = performance.now();
        if (this.#rests) this.#breath = start;
        this.#rests = false;
        this.#began = start;
        this.#eventsBefore = this.#events;
        const status = this.guard(call);
        if (status === OK || status === DONE) return status;
        if (status !== AGAIN) throw this.error(status);
        this.reads?.start();
        this.#took = performance.now() - start;
        return AGAIN;
    }

    /** After a trap, or the death of a thread, the instance cannot continue. */
    guard<T>(call: () => T): T {
        try {
            return call();
        } catch (thrown) {
            if (thrown instanceof GemmuleError && thrown.name === 'WorkerDied') this.close(thrown);
            if (thrown instanceof WebAssembly.RuntimeError) {
                this.close(new GemmuleError('Internal', `the engine crashed: ${thrown.message}`, undefined, { cause: thrown }));
                this.check();
            }
            throw thrown;
        }
    }

    /** After a step that returned "again": waits until something happens, or lets other events run. */
    rest(): Promise<void> {
        this.#rests = true;
        const waits = this.#events === this.#eventsBefore && (this.gpu ? !this.gpu.gone : this.reads?.underWay);
        if (this.#took > BUSY_MILLISECONDS || !waits) return letOthers();
        return (this.#sleep ??= new Promise(this.#fallAsleep));
    }

    /** Whether other events have waited for too long. */
    get breathless(): boolean {
        return this.#began - this.#breath > BREATH_MILLISECONDS;
    }

    breathe(): Promise<void> {
        this.#rests = true;
        return letOthers();
    }
}
