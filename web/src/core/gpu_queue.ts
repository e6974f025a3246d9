// The device's queue, and how far the GPU has come with it.

import type { CommandList } from './gpu_list.ts';
import type { Tickets } from './gpu_tickets.ts';

export const MOST_IN_FLIGHT = 64 * 2 ** 20; // bytes of writes
/** The same for writes that are not urgent. Bytes in flight lie in memory twice: in the browser's process and in the GPU's. */
export const LITTLE_IN_FLIGHT = 8 * 2 ** 20;
const BYTES_PER_FENCE = 2 * 2 ** 20; // room comes back in steps of this size
const MOST_FENCES = 32;

export class GpuQueue {
    readonly #device: GPUDevice;
    readonly #queue: GPUQueue;
    readonly #tickets: Tickets;
    readonly #happened: () => void;
    #batch: GPUCommandBuffer[] = [];
    #work = 0; // number of writes and submits
    #workFenced = 0;
    #workDone = 0;
    #fences = 0;
    #written = 0; // bytes since the last fence
    #inFlight = 0; // bytes written that have not arrived yet, as far as we know

    constructor(device: GPUDevice, tickets: Tickets, happened: () => void) {
        this.#device = device;
        this.#queue = device.queue;
        this.#tickets = tickets;
        this.#happened = happened;
    }

    hasRoom(bytes: number, most = MOST_IN_FLIGHT): boolean {
        return this.#inFlight + bytes <= most;
    }

    write(buffer: GPUBuffer, offset: number, data: ArrayBufferLike, at: number, bytes: number): void {
        this.#inFlight += bytes;
        this.#queue.writeBuffer(buffer, offset, data as ArrayBuffer, at, bytes);
        this.#countWork(bytes);
    }

    /** Submits a list whose tickets are claimed. `words` is the engine's memory. Runs for every token: no iterators. */
    submit(list: CommandList, words: Uint32Array, start: number): void {
        const { writes, reads } = list;
        this.#inFlight += list.written;
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

    /** Numbers what has been submitted so far. */
    get submitted(): number {
        return this.#work;
    }

    /** Whether all of that has run, whatever came later. If not, there will be news when it has. */
    passed(submitted: number): boolean {
        this.fence();
        return this.#workDone >= submitted;
    }

    /** Asks the queue to report when it gets here. */
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

    #countWork(written: number): void {
        this.#work++;
        this.#written += written;
        if (this.#written >= BYTES_PER_FENCE) this.fence();
    }
}
