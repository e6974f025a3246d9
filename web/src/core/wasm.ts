// The engine's WebAssembly module: an instance with its few imports, and access to strings and numbers in its memory.
//
// When memory grows, existing views of it become invalid. Nothing here keeps one; callers must not keep one across an await or a call into
// the module.

import { GemmuleError } from './errors.ts';
import type { Threads } from './threads.ts';

type Pointer = number;

/** The exports of src/wasm. Addresses and lengths are unsigned 32-bit numbers, but JavaScript sees them as signed: use `>>> 0`. */
interface Exports {
    memory: WebAssembly.Memory;
    _initialize(): void;
    gmw_alloc(bytes: number): Pointer;
    gmw_free(data: Pointer): void;
    gmw_context_new(): Pointer;
    gmw_result(context: Pointer): Pointer;
    gmw_result_length(context: Pointer): number;
    gmw_result_drop(context: Pointer): void;
    gmw_load_new(context: Pointer, options: Pointer, length: number, sizes: Pointer, count: number, out: Pointer): number;
    gmw_load_free(load: Pointer): void;
    gmw_load_step(context: Pointer, load: Pointer): number;
    gmw_load_header(context: Pointer, load: Pointer): number;
    gmw_load_progress(load: Pointer, out: Pointer): void;
    gmw_load_take(load: Pointer): Pointer;
    gmw_load_reads(load: Pointer): Pointer;
    gmw_load_file(load: Pointer): Pointer;
    gmw_load_fit(context: Pointer, load: Pointer, maxBinding: number): number;
    gmw_read_next(reads: Pointer, file: Pointer, out: Pointer): number;
    gmw_read_waits(reads: Pointer, ticket: number): number;
    gmw_read_memory(reads: Pointer, ticket: number): Pointer;
    gmw_read_answer(reads: Pointer, ticket: number, status: number, why: Pointer): void;
    gmw_engine_info(context: Pointer, engine: Pointer): number;
    gmw_engine_stats(engine: Pointer, out: Pointer): void;
    gmw_experts_profile(context: Pointer, engine: Pointer): number;
    gmw_experts_know(context: Pointer, engine: Pointer, bytes: Pointer, length: number): number;
    gmw_experts_warm(context: Pointer, engine: Pointer): number;
    gmw_tokenize(context: Pointer, engine: Pointer, text: Pointer, length: number, special: number): number;
    gmw_token_text(context: Pointer, engine: Pointer, id: number): number;
    gmw_check_new(context: Pointer, engine: Pointer, out: Pointer): number;
    gmw_check_step(context: Pointer, check: Pointer): number;
    gmw_check_free(check: Pointer): void;
    gmw_session_new(context: Pointer, engine: Pointer, tokens: number, kv: number, out: Pointer): number;
    gmw_session_free(session: Pointer): void;
    gmw_session_context(session: Pointer): number;
    gmw_session_count(session: Pointer): number;
    gmw_session_ids(session: Pointer): Pointer;
    gmw_session_vocabulary(session: Pointer): number;
    gmw_session_logits(session: Pointer): Pointer;
    gmw_session_dispatches(session: Pointer): number;
    gmw_session_set(context: Pointer, session: Pointer, ids: Pointer, count: number): number;
    gmw_session_append(context: Pointer, session: Pointer, ids: Pointer, count: number): number;
    gmw_session_stop(session: Pointer): void;
    gmw_session_rollback(context: Pointer, session: Pointer, keep: number, out: Pointer): number;
    gmw_session_fork(context: Pointer, session: Pointer, out: Pointer): number;
    gmw_session_adapters(context: Pointer, session: Pointer, adapters: Pointer, scales: Pointer, count: number): number;
    gmw_adapter_read(
        context: Pointer, name: Pointer, weights: Pointer, size: number, config: Pointer, configSize: number, out: Pointer,
    ): number;
    gmw_adapter_drop(content: Pointer): void;
    gmw_adapter_info(context: Pointer, content: Pointer): number;
    gmw_adapter_write(context: Pointer, content: Pointer, file: number): number;
    gmw_adapter_fits(context: Pointer, engine: Pointer, content: Pointer): number;
    gmw_adapter_new(
        context: Pointer, engine: Pointer, name: Pointer, weights: Pointer, size: number, config: Pointer, configSize: number, out: Pointer,
    ): number;
    gmw_adapter_free(adapter: Pointer): void;
    gmw_adapter_content(adapter: Pointer): Pointer;
    gmw_save_new(context: Pointer, session: Pointer, out: Pointer): number;
    gmw_save_step(context: Pointer, save: Pointer): number;
    gmw_save_bytes(save: Pointer): Pointer;
    gmw_save_length(save: Pointer): number;
    gmw_save_free(save: Pointer): void;
    gmw_restore_new(context: Pointer, session: Pointer, data: Pointer, length: number, out: Pointer): number;
    gmw_restore_step(context: Pointer, restore: Pointer): number;
    gmw_restore_free(restore: Pointer): void;
    gmw_render(context: Pointer, engine: Pointer, text: Pointer, length: number): number;
    gmw_reply_new(context: Pointer, session: Pointer, text: Pointer, length: number, ids: Pointer, count: number, out: Pointer): number;
    gmw_reply_next(context: Pointer, reply: Pointer, row: number): number;
    gmw_reply_stats(reply: Pointer, out: Pointer): void;
    gmw_reply_free(reply: Pointer): void;
    /** Only in the module with threads. */
    gmw_threads_stop(pool: Pointer): void;
}

/** Those of the modules for training. */
export interface TrainingExports {
    gmw_data_new(): Pointer;
    gmw_data_add(context: Pointer, data: Pointer, path: Pointer, bytes: Pointer, size: number): number;
    gmw_data_free(data: Pointer): void;
    gmw_dataset_new(context: Pointer, engine: Pointer, data: Pointer, options: Pointer, length: number, out: Pointer): number;
    gmw_dataset_scan(context: Pointer, dataset: Pointer): number;
    gmw_dataset_progress(dataset: Pointer, out: Pointer): void;
    gmw_dataset_problems(context: Pointer, dataset: Pointer): number;
    gmw_dataset_info(context: Pointer, dataset: Pointer): number;
    gmw_dataset_preview(context: Pointer, engine: Pointer, dataset: Pointer, index: number): number;
    gmw_dataset_free(dataset: Pointer): void;
    gmw_training_new(
        context: Pointer, engine: Pointer, data: Pointer, options: Pointer, length: number, checkpoint: Pointer, checkpointSize: number, out: Pointer,
    ): number;
    gmw_training_next(context: Pointer, training: Pointer, out: Pointer): number;
    gmw_training_stop(training: Pointer): void;
    gmw_training_checkpoint(context: Pointer, training: Pointer, out: Pointer, size: Pointer): number;
    gmw_training_adapter(context: Pointer, training: Pointer, out: Pointer, size: Pointer): number;
    gmw_training_losses(training: Pointer, losses: Pointer): number;
    gmw_training_evaluations(training: Pointer, losses: Pointer, steps: Pointer): number;
    gmw_training_free(training: Pointer): void;
}

const decoder = new TextDecoder();
const SCRATCH = 192; // bytes for results beside the status

// What the C library needs from its system: a clock. There are no files, and printed text is dropped.
function systemImports(memory: () => WebAssembly.Memory): WebAssembly.ModuleImports {
    const NO_SUCH_FILE = 8;
    let words = new Uint32Array(0);
    return {
        // Called several times for every token: two halves avoid BigInt.
        clock_time_get(_clock: number, _precision: bigint, out: number): number {
            const nanoseconds = Math.round(performance.now() * 1e6);
            const { buffer } = memory();
            if (words.buffer !== buffer) words = new Uint32Array(buffer);
            words[out >>> 2] = nanoseconds % 2 ** 32;
            words[(out >>> 2) + 1] = nanoseconds / 2 ** 32;
            return 0;
        },
        fd_close: () => NO_SUCH_FILE,
        fd_seek: () => NO_SUCH_FILE,
        fd_write: () => NO_SUCH_FILE,
    };
}

/** One instance: an engine and everything that belongs to it. Its memory is freed with the last reference. */
export class Wasm {
    readonly exports: Exports;
    readonly context: Pointer;
    /** Memory for results beside the status. */
    readonly scratch: Pointer;

    /** `gpu` makes the GPU imports, given access to the memory. With threads, `module` is the one for shared memory. */
    static async create(
        module: WebAssembly.Module,
        gpu: (memory: () => WebAssembly.Memory) => WebAssembly.ModuleImports,
        threads: Threads | null = null,
    ): Promise<Wasm> {
        let exports: Exports | null = null;
        const memory = () => exports!.memory;
        const imports: WebAssembly.Imports = { wasi_snapshot_preview1: systemImports(memory), gpu: gpu(memory) };
        if (threads) Object.assign(imports, { env: { memory: threads.memory }, threads: threads.imports() });
        const instance = await WebAssembly.instantiate(module, imports);
        exports = instance.exports as unknown as Exports;
        exports._initialize();
        threads?.attach(exports);
        return new Wasm(exports);
    }

    private constructor(exports: Exports) {
        this.exports = exports;
        this.context = exports.gmw_context_new() >>> 0;
        this.scratch = this.alloc(SCRATCH);
    }

    get bytes(): number {
        return this.exports.memory.buffer.byteLength;
    }

    get training(): TrainingExports {
        if ('gmw_data_new' in this.exports) return this.exports as unknown as TrainingExports;
        throw new GemmuleError('NotSupported', 'this engine cannot train: load the model with { training: true }');
    }

    alloc(bytes: number): Pointer {
        const data = this.exports.gmw_alloc(bytes) >>> 0;
        if (!data) throw new GemmuleError('OutOfMemory', `out of memory: ${bytes} more bytes are needed, ${this.bytes} are in use`);
        return data;
    }

    free(data: Pointer): void {
        this.exports.gmw_free(data);
    }

    /** Bytes at an address, to be used at once. The memory may be shared: copy what goes to a decoder or into a message. */
    view(at: Pointer, length: number): Uint8Array {
        return new Uint8Array(this.exports.memory.buffer, at >>> 0, length);
    }

    put(at: Pointer, bytes: ArrayLike<number>): void {
        this.view(at, bytes.length).set(bytes);
    }

    /** Calls with a copy of the bytes in the module's memory, then frees it. */
    with<T>(bytes: Uint8Array, call: (at: Pointer, length: number) => T): T {
        const at = this.alloc(bytes.length + 1);
        try {
            this.put(at, bytes);
            this.view(at + bytes.length, 1)[0] = 0;
            return call(at, bytes.length);
        } finally {
            this.free(at);
        }
    }

    withText<T>(text: string, call: (at: Pointer, length: number) => T): T {
        return this.with(new TextEncoder().encode(text), call);
    }

    withIds<T>(ids: Int32Array, call: (at: Pointer, count: number) => T): T {
        return this.with(new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength), (at) => call(at, ids.length));
    }

    /** The pointer that a call wrote into `scratch`. */
    pointer(): Pointer {
        return new DataView(this.exports.memory.buffer).getUint32(this.scratch, true);
    }

    /** The numbers that a call wrote into `scratch`. */
    numbers(count: number): number[] {
        return Array.from(new Float64Array(this.exports.memory.buffer, this.scratch, count));
    }

    #result(): Uint8Array {
        const { gmw_result, gmw_result_length } = this.exports;
        return this.view(gmw_result(this.context), gmw_result_length(this.context));
    }

    resultBytes(): Uint8Array<ArrayBuffer> {
        return this.#result().slice() as Uint8Array<ArrayBuffer>;
    }

    resultText(): string {
        const bytes = this.#result();
        return decoder.decode(bytes.buffer instanceof ArrayBuffer ? bytes : bytes.slice());
    }

    resultJson<T>(): T {
        return JSON.parse(this.resultText()) as T;
    }
}
