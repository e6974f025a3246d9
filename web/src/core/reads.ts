// Answers the engine's reads (src/gguf/reads.h) from sources of bytes: into its memory, or straight into a GPU buffer, so that weights never
// pass through WebAssembly.

import { GemmuleError, toGemmuleError } from './errors.ts';
import type { GpuHost } from './gpu_host.ts';
import { release } from './release.ts';
import type { ByteSource } from './types.ts';
import type { Wasm } from './wasm.ts';

const STORAGE = 14; // gm_status GM_IO
const LONGEST_WHY = 399; // bytes of a message that passes through the engine
const MOST_SPARE = 16 << 20; // bytes; the engine's reads in flight need as much

interface Order {
    ticket: number;
    source: ByteSource;
    offset: number;
    length: number;
    /** 0: memory. */
    buffer: number;
    at: number;
}

export class Reads {
    readonly #wasm: Wasm;
    readonly #gpu: GpuHost | null;
    readonly #sources: ByteSource[];
    readonly #reads: number;
    readonly #file: number;
    readonly #answered: () => void;
    readonly #abort = new AbortController();
    #writes: Promise<void> = Promise.resolve(); // the GPU writes so far, one after another
    #failed: GemmuleError | null = null;
    // Memory to reuse, the largest first. The garbage collector would free it too late.
    #spare: ArrayBuffer[] = [];
    underWay = 0;

    constructor(wasm: Wasm, gpu: GpuHost | null, sources: ByteSource[], reads: number, file: number, answered: () => void) {
        this.#wasm = wasm;
        this.#gpu = gpu;
        this.#sources = sources;
        this.#reads = reads;
        this.#file = file;
        this.#answered = answered;
    }

    /** Starts all reads that the engine has ordered since the last call. */
    start(): void {
        for (let order = this.#next(); order; order = this.#next()) {
            this.underWay++;
            void this.#answer(order);
        }
    }

    close(): void {
        this.#abort.abort(new GemmuleError('Aborted', 'the engine was closed'));
    }

    /** The error of the read that failed with this message, if one did. */
    errorFor(message: string): GemmuleError | null {
        return this.#failed && this.#failed.message.startsWith(message) && message ? this.#failed : null;
    }

    #next(): Order | null {
        const wasm = this.#wasm;
        const ticket = wasm.exports.gmw_read_next(this.#reads, this.#file, wasm.scratch) >>> 0;
        if (!ticket) return null;
        const [part, offset, length, buffer, at] = wasm.numbers(5) as [number, number, number, number, number];
        return { ticket, source: this.#sources[part]!, offset, length, buffer, at };
    }

    #waits(ticket: number): boolean {
        return !this.#abort.signal.aborted && this.#wasm.exports.gmw_read_waits(this.#reads, ticket) !== 0;
    }

    async #answer(order: Order): Promise<void> {
        const into = this.#take(order.length);
        try {
            const bytes = await this.#read(order, into);
            if (order.buffer) await this.#toGpu(order, bytes);
            else this.#toMemory(order, bytes);
            this.#keep(into);
            if (this.#waits(order.ticket)) this.#wasm.exports.gmw_read_answer(this.#reads, order.ticket, 0, 0);
        } catch (thrown) {
            this.#fail(order, toGemmuleError(thrown, order.source.name));
        }
        this.underWay--;
        this.#answered();
    }

    #take(length: number): ArrayBuffer {
        const smallest = this.#spare.findLastIndex((one) => one.byteLength >= length);
        return smallest < 0 ? new ArrayBuffer(length) : this.#spare.splice(smallest, 1)[0]!;
    }

    #keep(memory: ArrayBuffer): void {
        this.#spare.push(memory);
        this.#spare.sort((one, other) => other.byteLength - one.byteLength);
        while (this.#spare.reduce((sum, one) => sum + one.byteLength, 0) > MOST_SPARE) release(new Uint8Array(this.#spare.pop()!));
    }

    async #read({ source, offset, length }: Order, into: ArrayBuffer): Promise<Uint8Array> {
        const bytes = await source.read(offset, length, this.#abort.signal, into);
        if (bytes.length === length) return bytes;
        throw new GemmuleError('Storage', `cannot read ${source.name}: wanted ${length} bytes at ${offset}, found ${bytes.length}`);
    }

    // The engine may have given up in the meantime; then its memory is gone.
    #toMemory({ ticket }: Order, bytes: Uint8Array): void {
        if (this.#waits(ticket)) this.#wasm.put(this.#wasm.exports.gmw_read_memory(this.#reads, ticket), bytes);
    }

    // In order: a late write of an abandoned read must not follow a write of the read that took its place.
    #toGpu({ ticket, buffer, at }: Order, bytes: Uint8Array): Promise<void> {
        const written = this.#writes.then(async () => {
            if (this.#waits(ticket)) await this.#gpu!.writeBuffer(buffer, at, bytes as Uint8Array<ArrayBuffer>);
        });
        this.#writes = written.catch(() => {});
        return written;
    }

    #fail({ ticket }: Order, failed: GemmuleError): void {
        if (!this.#waits(ticket)) return;
        this.#failed = failed;
        this.#wasm.withText(failed.message.slice(0, LONGEST_WHY), (why) =>
            this.#wasm.exports.gmw_read_answer(this.#reads, ticket, failed.code || STORAGE, why),
        );
    }
}
