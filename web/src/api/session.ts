/* One conversation on an engine, token by token if need be. */

import type { Message, ReplyOptions, ReplyStats } from '../core/types.ts';
import { GemmuleError } from '../core/errors.ts';
import type { Connection, Stream } from '../worker/connection.ts';
import type { ReplyPiece, WireReplyOptions } from '../worker/protocol.ts';

/** An answer as it is written. It starts at once. Leaving the `for await`, `stop` or the signal end it: no further piece is delivered,
 * and what was written stays in the session. */
export class Reply implements AsyncIterable<ReplyPiece> {
    readonly #stream: Stream<ReplyPiece, ReplyStats>;

    /** @internal */
    constructor(stream: Stream<ReplyPiece, ReplyStats>) {
        this.#stream = stream;
    }

    /** Settles when the answer is over: `finish` is 'cancelled' where it was stopped. */
    get stats(): Promise<ReplyStats> {
        return this.#stream.result();
    }

    stop(): void {
        this.#stream.stop();
    }

    [Symbol.asyncIterator](): AsyncGenerator<ReplyPiece, ReplyStats> {
        return this.#stream.events;
    }
}

/* The engine may have finished an answer that its reader cut short. */
const whenCut = (stats: ReplyStats): ReplyStats => ({ ...stats, finish: 'cancelled' });

/** Options as they cross: without the signal. */
export function wireOptions(options: ReplyOptions): WireReplyOptions {
    const { signal: _, ...wire } = options;
    return wire;
}

/** Numbers as the ids of tokens: what is none is refused, not rounded. */
export function tokenIds(ids: Iterable<number>): Int32Array {
    return Int32Array.from(ids, (id) => {
        if (id === (id | 0)) return id;
        throw new GemmuleError('BadArgument', `ids of tokens must be whole numbers of 32 bits, found ${String(id)}`);
    });
}

/** A conversation: the tokens seen so far and their keys and values. Calls take turns with all others on the engine. */
export class Session {
    readonly #connection: Connection;
    readonly #id: number;
    /** The most tokens that it can hold. */
    readonly context: number;

    /** @internal */
    constructor(connection: Connection, id: number, context: number) {
        this.#connection = connection;
        this.#id = id;
        this.context = context;
    }

    /** What it holds. */
    tokens(): Promise<Int32Array> {
        return this.#connection.call('tokens', { session: this.#id });
    }

    /** Answers a conversation in Gemma's chat format. What the session already holds of it is not computed again. */
    reply(messages: readonly Message[], options: ReplyOptions = {}): Reply {
        const args = { session: this.#id, messages: [...messages], options: wireOptions(options) };
        return new Reply(this.#connection.stream('reply', args, { signal: options.signal, whenCut }));
    }

    /** Goes on from these tokens, without the chat format and without reading thoughts or calls out of the text; by default from what
     * the session holds. */
    async generate(ids?: Int32Array | readonly number[] | null, options: ReplyOptions = {}): Promise<Reply> {
        const from = ids ? tokenIds(ids) : await this.tokens();
        if (!from.length) throw new GemmuleError('BadArgument', 'there are no tokens to go on from');
        const args = { session: this.#id, ids: from, options: wireOptions(options) };
        return new Reply(this.#connection.stream('replyTokens', args, { signal: options.signal, whenCut }));
    }

    /** Makes the session hold exactly these tokens; a common beginning is not computed again. */
    async set(ids: Int32Array | readonly number[], { signal }: { signal?: AbortSignal } = {}): Promise<void> {
        await this.#connection.call('set', { session: this.#id, ids: tokenIds(ids) }, { signal });
    }

    /** Computes further tokens, or further text, behind those held. Special tokens in text are only text. */
    async append(more: Int32Array | readonly number[] | string, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
        const ids = typeof more === 'string'
            ? await this.#connection.call('tokenize', { text: more, special: false }, { signal })
            : tokenIds(more);
        await this.#connection.call('append', { session: this.#id, ids }, { signal });
    }

    /** Forgets all but the first `keep` tokens. Returns how many will have to be computed again. */
    rollback(keep: number): Promise<number> {
        return this.#connection.call('rollback', { session: this.#id, keep });
    }

    /** A second session that holds the same and goes its own way. */
    async fork(): Promise<Session> {
        const { session, context } = await this.#connection.call('fork', { session: this.#id });
        return new Session(this.#connection, session, context);
    }

    /** Everything that it holds, to be restored on an engine with the same model (`info.digest`) and type of keys and values. */
    save(): Promise<Uint8Array> {
        return this.#connection.call('save', { session: this.#id });
    }

    /** Replaces what is held by a snapshot; one that does not fit is refused and changes nothing. The bytes are handed over to the
     * worker: the array is empty afterwards. */
    async restore(bytes: Uint8Array): Promise<void> {
        const whole = bytes.byteLength === bytes.buffer.byteLength ? bytes : bytes.slice();
        await this.#connection.call('restore', { session: this.#id, bytes: whole }, { transfer: [whole.buffer as ArrayBuffer] });
    }

    /** The logits behind the last token: `set` and `append` leave them, an answer need not. */
    logits(): Promise<Float32Array | null> {
        return this.#connection.call('logits', { session: this.#id });
    }

    /** Frees its memory. */
    async close(): Promise<void> {
        if (!this.#connection.dead) await this.#connection.call('close', { session: this.#id });
    }

    [Symbol.asyncDispose](): Promise<void> {
        return this.close();
    }
}
