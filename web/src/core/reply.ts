// An answer, piece by piece.

import { ERROR_CODES, GemmuleError, toGemmuleError } from './errors.ts';
import { AGAIN, DONE, type Machine } from './machine.ts';
import { withRequest } from './request.ts';
import type { Canvas, Piece, PlainMessage, ReplyOptions, ReplyStats, TokenLogprob } from './types.ts';

const CANCELLED = ERROR_CODES.Aborted;
const FINISHES: ReplyStats['finish'][] = ['stop', 'stop', 'length', 'tool_calls', 'cancelled'];

type WirePiece =
    | { kind: 'content' | 'thinking' | 'tool_call'; text: string; logprobs?: TokenLogprob[][] }
    | { kind: 'canvas'; text: string; canvas: Canvas }
    | { kind: 'progress'; done: number; total: number; media?: { done: number; total: number } };

export class Reply {
    readonly #machine: Machine;
    readonly #reply: number;

    /** Answers messages, or continues from tokens. */
    constructor(machine: Machine, session: number, messages: readonly PlainMessage[] | null, ids: Int32Array | null, options: ReplyOptions) {
        const { wasm } = machine;
        const start = (tokens: number, count: number) =>
            machine.make((out) =>
                withRequest(wasm, messages, options, (at, length) => wasm.exports.gmw_reply_new(wasm.context, session, at, length, tokens, count, out)),
            );
        this.#machine = machine;
        this.#reply = ids ? wasm.withIds(ids, start) : start(0, 0);
    }

    /** Writes the answer. Frees it at the end, also if the reader stops early. */
    async *pieces({ logprobs, signal }: ReplyOptions): AsyncGenerator<Piece, ReplyStats> {
        const { wasm } = this.#machine;
        const row = logprobs === undefined ? 0 : 1 + logprobs;
        const next = () => wasm.exports.gmw_reply_next(wasm.context, this.#reply, row);
        const stop = () => this.#machine.wake();
        signal?.addEventListener('abort', stop);
        try {
            for (;;) {
                const status = this.#machine.step(next, signal);
                if (status === DONE) return this.#stats();
                if (status === AGAIN) {
                    await this.#machine.rest();
                    continue;
                }
                yield pieceOf(wasm.resultJson<WirePiece>());
                if (this.#machine.breathless) await this.#machine.breathe();
            }
        } catch (thrown) {
            return this.#ended(toGemmuleError(thrown), signal);
        } finally {
            signal?.removeEventListener('abort', stop);
            this.#machine.release(() => wasm.exports.gmw_reply_free(this.#reply));
        }
    }

    // An answer that the caller stopped has statistics, like any other. A full context ends an answer, too: its error carries them.
    #ended(failed: GemmuleError, signal: AbortSignal | undefined): ReplyStats {
        if (failed.name === 'ContextFull') throw new GemmuleError('ContextFull', failed.message, { stats: this.#stats() });
        if (!signal?.aborted || failed.code !== CANCELLED || this.#machine.closed) throw failed;
        return { ...this.#stats(), finish: 'cancelled' };
    }

    #stats(): ReplyStats {
        const { wasm } = this.#machine;
        wasm.exports.gmw_reply_stats(this.#reply, wasm.scratch);
        const [finish, ...numbers] = wasm.numbers(11) as [number, number, number, number, number, number, number, number, number, number, number];
        const [promptTokens, cachedTokens, replyTokens, promptSeconds, replySeconds, media, mediaEncoded, mediaSeconds, blocks, steps] = numbers;
        return {
            finish: FINISHES[finish]!, promptTokens, cachedTokens, replyTokens, promptSeconds, replySeconds, media, mediaEncoded, mediaSeconds, blocks, steps,
        };
    }
}

function pieceOf(wire: WirePiece): Piece {
    if (wire.kind !== 'tool_call') return wire as Piece;
    const { name, arguments: given } = JSON.parse(wire.text) as { name: string; arguments: unknown };
    return { kind: 'tool_call', name, arguments: given, json: wire.text };
}
