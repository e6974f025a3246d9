// One conversation: its tokens, its keys and values in the engine, and the answer being written.

import { CoreAdapter } from './adapter.ts';
import { GemmuleError, toGemmuleError } from './errors.ts';
import type { Machine } from './machine.ts';
import { Reply } from './reply.ts';
import { wholeNumber } from './request.ts';
import type { CoreAdapterLike, CoreSessionLike, Piece, PlainMessage, ReplyOptions, ReplyStats } from './types.ts';

/** What a session needs of its engine. */
interface SessionOwner {
    adopt(session: number): CoreSession;
    gone(): void;
    /** An answer has ended. */
    replied(): void;
}

/** One call at a time: a second one throws Busy. */
export class CoreSession implements CoreSessionLike {
    readonly context: number;
    readonly #machine: Machine;
    readonly #session: number;
    readonly #owner: SessionOwner;
    #free = false;
    #busy = false;

    constructor(machine: Machine, session: number, owner: SessionOwner) {
        this.#machine = machine;
        this.#session = session;
        this.#owner = owner;
        this.context = machine.wasm.exports.gmw_session_context(session);
    }

    #check(): void {
        this.#machine.check();
        if (this.#free) throw new GemmuleError('BadArgument', 'the session was freed');
    }

    #checkIdle(): void {
        this.#check();
        if (this.#busy) throw new GemmuleError('Busy', 'the session is busy with another call');
    }

    /** Of the plan for one token, on a GPU. */
    get dispatches(): number {
        return this.#machine.wasm.exports.gmw_session_dispatches(this.#session);
    }

    tokens(): Int32Array {
        const { wasm } = this.#machine;
        this.#check();
        const at = wasm.exports.gmw_session_ids(this.#session) >>> 0;
        return new Int32Array(wasm.view(at, 4 * wasm.exports.gmw_session_count(this.#session)).slice().buffer);
    }

    logits(): Float32Array | null {
        const { wasm } = this.#machine;
        this.#check();
        const at = wasm.exports.gmw_session_logits(this.#session) >>> 0;
        return at ? new Float32Array(wasm.view(at, 4 * wasm.exports.gmw_session_vocabulary(this.#session)).slice().buffer) : null;
    }

    rollback(keep: number): number {
        const { context, exports } = this.#machine.wasm;
        this.#checkIdle();
        const count = wholeNumber(keep, 'tokens to keep');
        return this.#machine.make((out) => exports.gmw_session_rollback(context, this.#session, count, out));
    }

    useAdapters(adapters: readonly CoreAdapterLike[], scales: readonly number[] = adapters.map(() => 1)): void {
        const { wasm } = this.#machine;
        this.#checkIdle();
        if (scales.length !== adapters.length)
            throw new GemmuleError('BadArgument', `there must be a scale for each adapter: ${adapters.length} adapters, ${scales.length} scales`);
        const pointers = new Uint8Array(CoreAdapter.pointers(this.#machine, adapters).buffer);
        const factors = new Uint8Array(Float32Array.from(scales).buffer);
        this.#machine.call(wasm.with(pointers, (at) => wasm.with(factors, (beside) =>
            this.#machine.guard(() => wasm.exports.gmw_session_adapters(wasm.context, this.#session, at, beside, adapters.length)))));
    }

    set(ids: Int32Array, signal?: AbortSignal): Promise<void> {
        return this.#compute(ids, this.#machine.wasm.exports.gmw_session_set, signal);
    }

    append(ids: Int32Array, signal?: AbortSignal): Promise<void> {
        return this.#compute(ids, this.#machine.wasm.exports.gmw_session_append, signal);
    }

    #compute(ids: Int32Array, call: (context: number, session: number, ids: number, count: number) => number, signal?: AbortSignal): Promise<void> {
        const bytes = new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength);
        return this.#alone(() =>
            this.#withCopy(bytes, async (copy) => {
                await this.#machine.drive(() => call(this.#machine.wasm.context, this.#session, copy, ids.length), signal);
            }),
        );
    }

    async fork(): Promise<CoreSession> {
        const { context, exports } = this.#machine.wasm;
        this.#checkIdle();
        return this.#owner.adopt(this.#machine.make((out) => exports.gmw_session_fork(context, this.#session, out)));
    }

    save(): Promise<Uint8Array> {
        const { wasm } = this.#machine;
        const { context, exports } = wasm;
        return this.#alone(() => {
            const save = this.#machine.make((out) => exports.gmw_save_new(context, this.#session, out));
            const bytes = () => wasm.view(exports.gmw_save_bytes(save), exports.gmw_save_length(save)).slice();
            return this.#machine.finish(save, exports.gmw_save_step, exports.gmw_save_free, bytes);
        });
    }

    restore(bytes: Uint8Array): Promise<void> {
        const { context, exports } = this.#machine.wasm;
        return this.#alone(() =>
            this.#withCopy(bytes, (copy) => {
                const restore = this.#machine.make((out) => exports.gmw_restore_new(context, this.#session, copy, bytes.length, out));
                return this.#machine.finish(restore, exports.gmw_restore_step, exports.gmw_restore_free, () => {});
            }),
        );
    }

    reply(messages: readonly PlainMessage[], options: ReplyOptions = {}): AsyncGenerator<Piece, ReplyStats> {
        return this.#reply(messages, null, options);
    }

    replyTokens(ids: Int32Array, options: ReplyOptions = {}): AsyncGenerator<Piece, ReplyStats> {
        return this.#reply(null, ids, options);
    }

    async *#reply(messages: readonly PlainMessage[] | null, ids: Int32Array | null, options: ReplyOptions): AsyncGenerator<Piece, ReplyStats> {
        this.#begin();
        try {
            return yield* new Reply(this.#machine, this.#session, messages, ids, options).pieces(options);
        } catch (thrown) {
            throw toGemmuleError(thrown);
        } finally {
            this.#owner.replied();
            this.#end();
        }
    }

    /** Frees the session; during a call, at the end of the call. */
    free(): void {
        if (this.#free) return;
        this.#free = true;
        if (!this.#busy) this.#reallyFree();
    }

    #reallyFree(): void {
        this.#machine.release(() => this.#machine.wasm.exports.gmw_session_free(this.#session));
        this.#owner.gone();
    }

    // ---- one call at a time ----

    #begin(): void {
        this.#checkIdle();
        this.#busy = true;
    }

    #end(): void {
        this.#busy = false;
        if (this.#free) this.#reallyFree();
    }

    // A call that is aborted halfway also ends in the engine; what was computed stays.
    async #alone<T>(work: () => Promise<T>): Promise<T> {
        this.#begin();
        try {
            return await work();
        } catch (thrown) {
            this.#machine.release(() => this.#machine.wasm.exports.gmw_session_stop(this.#session));
            throw thrown;
        } finally {
            this.#end();
        }
    }

    // The engine reads the bytes until the work ends.
    async #withCopy<T>(bytes: Uint8Array, work: (copy: number) => Promise<T>): Promise<T> {
        const { wasm } = this.#machine;
        const copy = wasm.alloc(bytes.length);
        try {
            wasm.put(copy, bytes);
            return await work(copy);
        } finally {
            this.#machine.release(() => wasm.free(copy));
        }
    }
}
