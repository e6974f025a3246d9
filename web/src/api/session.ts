/* One conversation on an engine, also token by token. */

import type { Message, PlainMessage, ReplyOptions, ReplyStats } from '../core/types.ts';
import { GemmuleError } from '../core/errors.ts';
import { plainMessages } from '../media/parts.ts';
import type { Connection, Stream } from '../worker/connection.ts';
import type { AdapterUse, ReplyPiece, WireReplyOptions } from '../worker/protocol.ts';
import { type Adapter, type AdapterChoice, type Adapters, wireAdapters } from './adapters.ts';

/** An answer as it is written. It starts at once. Leaving the `for await`, `stop` or the signal end it: no further piece is delivered,
 * and what was written stays in the session. */
export class Reply implements AsyncIterable<ReplyPiece> {
    readonly #stream: Stream<ReplyPiece, ReplyStats>;

    /** @internal */
    constructor(stream: Stream<ReplyPiece, ReplyStats>) {
        this.#stream = stream;
    }

    /** Settles when the answer is over; `finish` is 'cancelled' if it was stopped. */
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

/** Options as they are sent: without the signal. */
export function wireOptions(options: SessionReplyOptions): WireReplyOptions {
    const { signal: _, adapters: __, ...wire } = options;
    return wire;
}

const wireUses = (uses: Parameters<typeof wireAdapters>[0] | undefined): { adapters?: AdapterUse[] } => (uses ? { adapters: wireAdapters(uses) } : {});

/** Token ids. Throws for a number that is not one. */
export function tokenIds(ids: Iterable<number>): Int32Array {
    return Int32Array.from(ids, (id) => {
        if (id === (id | 0)) return id;
        throw new GemmuleError('BadArgument', `token ids must be 32-bit whole numbers, found ${String(id)}`);
    });
}

/** Options of an answer. */
export interface SessionReplyOptions extends ReplyOptions {
    /** The adapters that the session uses from this answer on; by default those that it has. */
    adapters?: readonly AdapterChoice[] | undefined;
}

/** A conversation: its tokens, and their keys and values. All calls on an engine take turns. */
export class Session {
    readonly #connection: Connection;
    readonly #id: number;
    readonly #known: Adapters;
    #adapters: readonly { adapter: Adapter; scale: number }[];
    /** The most tokens it can hold. */
    readonly context: number;

    /** @internal */
    constructor(connection: Connection, id: number, context: number, known: Adapters, adapters: readonly { adapter: Adapter; scale: number }[]) {
        this.#connection = connection;
        this.#id = id;
        this.context = context;
        this.#known = known;
        this.#adapters = adapters;
    }

    /** The adapters that it uses. Those of an answer are here when the answer is over; those of one that fails never are. */
    get adapters(): readonly { adapter: Adapter; scale: number }[] {
        return this.#adapters;
    }

    /** Uses these adapters, each times its scale, and no others; `[]`: none. The tokens that it holds are computed again when they are
     * needed; nothing is loaded. */
    async useAdapters(choices: readonly AdapterChoice[]): Promise<void> {
        const uses = this.#known.resolve(choices);
        await this.#connection.call('useAdapters', { session: this.#id, adapters: wireAdapters(uses) });
        this.#adapters = uses;
    }

    /* The adapters of an answer become the session's. If it fails, the worker, too, goes back to those before. */
    #replyWith(uses: ReturnType<Adapters['resolve']> | undefined, stream: Stream<ReplyPiece, ReplyStats>): Reply {
        if (uses) stream.result().then(() => (this.#adapters = uses), () => undefined);
        return new Reply(stream);
    }

    /** The tokens it holds. */
    tokens(): Promise<Int32Array> {
        return this.#connection.call('tokens', { session: this.#id });
    }

    /** Answers a conversation in Gemma's chat format. What the session already holds of it is not computed again. */
    reply(messages: readonly Message[], options: SessionReplyOptions = {}): Reply {
        const uses = options.adapters && this.#known.resolve(options.adapters);
        const plain = plainMessages(messages, options.signal);
        const args = (ready: PlainMessage[]) => ({ session: this.#id, messages: ready, options: wireOptions(options), ...wireUses(uses) });
        return this.#replyWith(uses, this.#connection.stream('reply', plain instanceof Promise ? plain.then(args) : args(plain), { signal: options.signal, whenCut }));
    }

    /** Continues from these tokens, by default from those of the session. There is no chat format, and thoughts and tool calls are not
     * recognised. */
    async generate(ids?: Int32Array | readonly number[] | null, options: SessionReplyOptions = {}): Promise<Reply> {
        const from = ids ? tokenIds(ids) : await this.tokens();
        if (!from.length) throw new GemmuleError('BadArgument', 'there are no tokens to continue from');
        const uses = options.adapters && this.#known.resolve(options.adapters);
        const args = { session: this.#id, ids: from, options: wireOptions(options), ...wireUses(uses) };
        return this.#replyWith(uses, this.#connection.stream('replyTokens', args, { signal: options.signal, whenCut }));
    }

    /** Makes the session hold exactly these tokens. A common prefix is not computed again. */
    async set(ids: Int32Array | readonly number[], { signal }: { signal?: AbortSignal } = {}): Promise<void> {
        await this.#connection.call('set', { session: this.#id, ids: tokenIds(ids) }, { signal });
    }

    /** Computes further tokens or text after those held. Special tokens in text are treated as plain text. */
    async append(more: Int32Array | readonly number[] | string, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
        const ids = typeof more === 'string'
            ? await this.#connection.call('tokenize', { text: more, special: false }, { signal })
            : tokenIds(more);
        await this.#connection.call('append', { session: this.#id, ids }, { signal });
    }

    /** Forgets all but the first `keep` tokens. Returns how many must be computed again. */
    rollback(keep: number): Promise<number> {
        return this.#connection.call('rollback', { session: this.#id, keep });
    }

    /** A second session with the same content, independent from then on. */
    async fork(): Promise<Session> {
        const { session, context } = await this.#connection.call('fork', { session: this.#id });
        return new Session(this.#connection, session, context, this.#known, this.#adapters);
    }

    /** A snapshot, to be restored on an engine with the same model (`info.digest`) and `kv` type. */
    save(): Promise<Uint8Array> {
        return this.#connection.call('save', { session: this.#id });
    }

    /** Replaces the content by a snapshot. One that does not fit is refused and changes nothing. The bytes are transferred to the worker:
     * the array is empty afterwards. */
    async restore(bytes: Uint8Array): Promise<void> {
        const whole = bytes.byteLength === bytes.buffer.byteLength ? bytes : bytes.slice();
        await this.#connection.call('restore', { session: this.#id, bytes: whole }, { transfer: [whole.buffer as ArrayBuffer] });
    }

    /** The logits after the last token. Available after `set` and `append`, not always after an answer. */
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
