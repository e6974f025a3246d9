// The device's queue: writes and lists go to the GPU in the order in which they came, also while a list waits for its pipelines to be compiled;
// and how far the GPU has come.

import type { CommandList } from './gpu_list.ts';
import type { Tickets } from './gpu_tickets.ts';

export const MOST_IN_FLIGHT = 64 * 2 ** 20; // bytes of writes
/** Of writes that have time. What is in flight lies in the browser's memory twice: on its way to the GPU's process, and there. */
export const LITTLE_IN_FLIGHT = 8 * 2 ** 20;
const BYTES_PER_FENCE = 2 * 2 ** 20; // so that room comes back in pieces
const MOST_FENCES = 32;

// What keeps its place while a pipeline is compiled.
interface Later {
    /** To be written. */
    bytes: number;
    ready(): boolean;
    run(): void;
}

const always = () => true;

export class GpuQueue {
    readonly #device: GPUDevice;
    readonly #queue: GPUQueue;
    readonly #tickets: Tickets;
    readonly #happened: () => void;
    #later: Later[] = [];
    #batch: GPUCommandBuffer[] = [];
    #work = 0; // counts writes and submits
    #workFenced = 0;
    #workDone = 0;
    #fences = 0;
    #written = 0; // since the last fence
    #inFlight = 0; // bytes written, or waiting to be, that are not known to have arrived

    constructor(device: GPUDevice, tickets: Tickets, happened: () => void) {
        this.#device = device;
        this.#queue = device.queue;
        this.#tickets = tickets;
        this.#happened = happened;
    }

    /** Whether something waits for a pipeline. */
    get waits(): boolean {
        return this.#later.length > 0;
    }

    hasRoom(bytes: number, most = MOST_IN_FLIGHT): boolean {
        return this.#inFlight + bytes <= most;
    }

    /** While something waits the bytes are copied. */
    write(buffer: GPUBuffer, offset: number, data: ArrayBufferLike, at: number, bytes: number): void {
        this.#inFlight += bytes;
        if (!this.waits) return this.#write(buffer, offset, data, at, bytes);
        const copy = data.slice(at, at + bytes);
        this.#later.push({ bytes, ready: always, run: () => this.#write(buffer, offset, copy, 0, bytes) });
    }

    /** A list whose tickets are claimed; its words change from submit to submit. */
    submit(list: CommandList, words: Uint32Array, start: number, count: number): void {
        this.#inFlight += list.written;
        if (!this.waits && list.ready()) return this.#run(list, words, start);
        const copy = words.slice(start, start + count);
        this.#later.push({ bytes: list.written, ready: () => list.ready(), run: () => this.#run(list, copy, 0) });
    }

    destroy(buffer: GPUBuffer): void {
        if (this.waits) this.#later.push({ bytes: 0, ready: always, run: () => buffer.destroy() });
        else buffer.destroy();
    }

    /** Runs what can run. */
    drain(): void {
        while (this.#later[0]?.ready()) this.#later.shift()!.run();
    }

    /** What waits will never run. */
    drop(): void {
        for (const { bytes } of this.#later) this.#inFlight -= bytes;
        this.#later = [];
    }

    /** Whether everything so far has run; if not, it will be news when it has. */
    idle(): boolean {
        this.fence();
        return !this.waits && this.#workDone === this.#work;
    }

    /** Has the queue tell when it comes here. */
    fence(): void {
        if (this.#workFenced === this.#work || this.#fences === MOST_FENCES) return;
        const work = this.#work;
        const written = this.#written;
        const passed = () => {
            this.#fences--;
            this.#workDone = Math.max(this.#workDone, work);
            this.#inFlight -= written;
            this.#happened();
        };
        this.#workFenced = work;
        this.#written = 0;
        this.#fences++;
        this.#queue.onSubmittedWorkDone().then(passed, passed);
    }

    #write(buffer: GPUBuffer, offset: number, data: ArrayBufferLike, at: number, bytes: number): void {
        this.#queue.writeBuffer(buffer, offset, data as ArrayBuffer, at, bytes);
        this.#countWork(bytes);
    }

    // The words are those of the engine, or a copy of them. For every token, so without iterators.
    #run(list: CommandList, words: Uint32Array, start: number): void {
        const { writes, reads } = list;
        if (list.broken() !== null) { // which is a problem of its own
            this.#inFlight -= list.written;
            for (const read of reads) this.#tickets.fail(words[start + read.at]!);
            return;
        }
        for (let i = 0; i < writes.length; i++) {
            const write = writes[i]!;
            const at = words.byteOffset + (start + write.at) * 4;
            this.#queue.writeBuffer(write.target, write.offset, words.buffer as ArrayBuffer, at, write.bytes);
        }
        for (let i = 0; i < reads.length; i++) reads[i]!.staging = this.#tickets.stage(words[start + reads[i]!.at]!);
        const commands = list.encode(this.#device);
        if (commands) {
            this.#batch[0] = commands;
            this.#queue.submit(this.#batch);
        }
        for (let i = 0; i < reads.length; i++) this.#tickets.map(words[start + reads[i]!.at]!);
        this.#countWork(list.written);
    }

    #countWork(written: number): void {
        this.#work++;
        this.#written += written;
        if (this.#written >= BYTES_PER_FENCE) this.fence();
    }
}
