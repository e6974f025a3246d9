// What crosses to the engine with a call: numbers that are checked, and requests as JSON.

import { GemmuleError } from './errors.ts';
import type { PlainPicture } from '../media/types.ts';
import type { PlainMessage, PlainPart, ReplyOptions } from './types.ts';
import type { Wasm } from './wasm.ts';

export function wholeNumber(value: number, what: string, least = 0, most = 0x7fffffff): number {
    if (Number.isInteger(value) && value >= least && value <= most) return value;
    const range = most === 0x7fffffff ? `of at least ${least}` : `from ${least} to ${most}`;
    throw new GemmuleError('BadArgument', `${what} must be a whole number ${range}, found ${value}`);
}

/* Copies media into the module's memory for the time of one call. JSON names them by address. */
class Media {
    readonly #wasm: Wasm;
    readonly #places: number[] = [];

    constructor(wasm: Wasm) {
        this.#wasm = wasm;
    }

    part(part: PlainPart): unknown {
        if (part.type === 'text') return part;
        if (part.type === 'image') return { type: 'image', ...this.#picture(part.image), budget: part.budget };
        if (part.type === 'video') return { ...part, frames: part.frames.map(({ time, image }) => ({ time, ...this.#picture(image) })) };
        const { audio } = part;
        if ('bytes' in audio) return { type: 'audio', ...this.#copy(audio.bytes) };
        const { samples, sampleRate: rate } = audio;
        return { type: 'audio', ...this.#copy(new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength)), rate };
    }

    #picture(image: PlainPicture): object {
        if ('bytes' in image) return this.#copy(image.bytes);
        return { ...this.#copy(image.pixels), width: image.width, height: image.height };
    }

    #copy(bytes: Uint8Array): { data: number; size: number } {
        const data = this.#wasm.alloc(Math.max(bytes.length, 1));
        this.#places.push(data);
        this.#wasm.put(data, bytes);
        return { data, size: bytes.length };
    }

    free(): void {
        for (const place of this.#places) this.#wasm.free(place);
    }
}

/** Calls with a request as text in the module's memory, where its media are, too, until the call returns. */
export function withRequest<T>(wasm: Wasm, messages: readonly PlainMessage[] | null, options: ReplyOptions, call: (at: number, length: number) => T): T {
    const media = new Media(wasm);
    try {
        const given = messages?.map(({ content, ...rest }) => ({ ...rest, content: typeof content === 'string' ? content : content?.map((part) => media.part(part)) }));
        return wasm.withText(requestText(given ?? null, options), call);
    } finally {
        media.free();
    }
}

// JSON numbers cannot hold a seed's 64 bits, so it crosses as digits. Object keys are strings, so token ids cross as a list of pairs.
function requestText(messages: unknown[] | null, options: ReplyOptions): string {
    const { signal: _, sampling, resume, ...rest } = options;
    const { seed, logit_bias, ...numbers } = sampling ?? {};
    const random = () => new DataView(crypto.getRandomValues(new Uint8Array(8)).buffer).getBigUint64(0);
    const settings: Record<string, unknown> = { ...numbers, seed: String(seed ?? random()) };
    if (logit_bias) settings['logit_bias'] = Object.entries(logit_bias).map(([id, bias]) => [Number(id), bias]);
    return JSON.stringify({ messages, options: { ...rest, ...(resume ? { resume: [...resume] } : {}), sampling: settings } });
}
