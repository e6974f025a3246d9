/* Messages with pictures and sounds: what callers give becomes plain data, which the worker and the engine take. */

import { GemmuleError } from '../core/errors.ts';
import type { Message, Part, PlainMessage, PlainPart } from '../core/types.ts';
import { plainPicture } from './picture.ts';
import { plainSound } from './sound.ts';
import { readPictureHeader } from './picture_header.ts';
import { wavSeconds } from './sound_header.ts';
import { checkBudget, pictureTokens, soundTokens } from './tokens.ts';
import type { PictureBudget } from './types.ts';

async function plainPart(part: Part): Promise<PlainPart> {
    switch (part?.type) {
        case 'text':
            return { type: 'text', text: part.text };
        case 'image':
            return { type: 'image', image: await plainPicture(part.image), ...(part.budget === undefined ? {} : { budget: checkBudget(part.budget) }) };
        case 'audio':
            return { type: 'audio', audio: await plainSound(part.audio) };
        default:
            throw new GemmuleError('BadArgument', `a part must have the type text, image or audio, found '${String((part as { type?: unknown })?.type)}'`);
    }
}

async function decoded(messages: readonly Message[]): Promise<PlainMessage[]> {
    const plain: PlainMessage[] = [];
    for (const { content, ...rest } of messages) {
        const parts: PlainPart[] = [];
        if (typeof content !== 'string') for (const part of content) parts.push(await plainPart(part));
        plain.push({ ...rest, content: typeof content === 'string' ? content : parts });
    }
    return plain;
}

/** Decodes what the engine does not decode itself. Messages of text alone are there at once. */
export function plainMessages(messages: readonly Message[]): PlainMessage[] | Promise<PlainMessage[]> {
    const isText = messages.every(({ content }) => !Array.isArray(content));
    return isText ? ([...messages] as PlainMessage[]) : decoded(messages);
}

/** The tokens of a picture or sound in the prompt; 0 for text, and for media that the engine will refuse. */
export function partTokens(part: PlainPart, budget: PictureBudget): number {
    if (part.type === 'text') return 0;
    if (part.type === 'audio') {
        const { audio } = part;
        return soundTokens('bytes' in audio ? wavSeconds(audio.bytes) : audio.samples.length / audio.sampleRate);
    }
    const size = 'bytes' in part.image ? readPictureHeader(part.image.bytes) : part.image;
    return size ? pictureTokens(size.width, size.height, part.budget ?? budget) : 0;
}

/** The same messages for rendering, which needs no content of media. */
export function withoutMedia(messages: readonly PlainMessage[]): PlainMessage[] {
    const empty = { bytes: new Uint8Array(0) };
    return messages.map((message) => ({
        ...message,
        content: typeof message.content === 'string' ? message.content : message.content.map((part): PlainPart => {
            if (part.type === 'text') return part;
            return part.type === 'image' ? { type: 'image', image: empty } : { type: 'audio', audio: empty };
        }),
    }));
}
