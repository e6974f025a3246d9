/* Messages with pictures, sounds and videos: what callers give becomes plain data, which the worker and the engine take. */

import { GemmuleError } from '../core/errors.ts';
import type { Message, Part, PlainMessage, PlainPart } from '../core/types.ts';
import { plainPicture } from './picture.ts';
import { plainSound } from './sound.ts';
import { readPictureHeader } from './picture_header.ts';
import { wavSeconds } from './sound_header.ts';
import { checkBudget, FRAME_BUDGET, pictureTokens, soundTokens } from './tokens.ts';
import type { PictureBudget, PlainFrame, PlainPicture } from './types.ts';
import { keptFrames } from './video.ts';

const budgetOf = ({ budget }: { budget?: PictureBudget }) => (budget === undefined ? {} : { budget: checkBudget(budget) });

async function plainVideo(part: Part & { type: 'video' }, signal?: AbortSignal): Promise<PlainPart> {
    const frames: PlainFrame[] = [];
    const given = part.frames ?? (await keptFrames(part.video, signal));
    if (!Array.isArray(given)) throw new GemmuleError('BadArgument', 'the frames of a video must be a list of { time, image }');
    for (const { time, image } of given) frames.push({ time, image: await plainPicture(image) });
    return { type: 'video', frames, ...budgetOf(part) };
}

async function plainPart(part: Part, signal?: AbortSignal): Promise<PlainPart> {
    switch (part?.type) {
        case 'text':
            return { type: 'text', text: part.text };
        case 'image':
            return { type: 'image', image: await plainPicture(part.image), ...budgetOf(part) };
        case 'audio':
            return { type: 'audio', audio: await plainSound(part.audio) };
        case 'video':
            return plainVideo(part, signal);
        default:
            throw new GemmuleError('BadArgument', `a part must have the type text, image, audio or video, found '${String((part as { type?: unknown })?.type)}'`);
    }
}

async function decoded(messages: readonly Message[], signal?: AbortSignal): Promise<PlainMessage[]> {
    const plain: PlainMessage[] = [];
    for (const { content, ...rest } of messages) {
        const parts: PlainPart[] = [];
        if (typeof content !== 'string') for (const part of content) parts.push(await plainPart(part, signal));
        plain.push({ ...rest, content: typeof content === 'string' ? content : parts });
    }
    return plain;
}

/** Decodes what the engine does not decode itself. Messages of text alone are there at once. */
export function plainMessages(messages: readonly Message[], signal?: AbortSignal): PlainMessage[] | Promise<PlainMessage[]> {
    const isText = messages.every(({ content }) => !Array.isArray(content));
    return isText ? ([...messages] as PlainMessage[]) : decoded(messages, signal);
}

const tokensOf = (image: PlainPicture, budget: PictureBudget): number => {
    const size = 'bytes' in image ? readPictureHeader(image.bytes) : image;
    return size ? pictureTokens(size.width, size.height, budget) : 0;
};

/** How many tokens more than its placeholders a part has in the prompt: 0 for text. For media that the engine will refuse, any number. */
export function partTokens(part: PlainPart, budget: PictureBudget): number {
    if (part.type === 'text') return 0;
    if (part.type === 'video') return part.frames.reduce((sum, { image }) => sum + tokensOf(image, part.budget ?? FRAME_BUDGET) - 1, 0);
    if (part.type === 'image') return tokensOf(part.image, part.budget ?? budget) - 1;
    const { audio } = part;
    return soundTokens('bytes' in audio ? wavSeconds(audio.bytes) : audio.samples.length / audio.sampleRate) - 1;
}

/** The same messages for rendering, which needs no content of media. */
export function withoutMedia(messages: readonly PlainMessage[]): PlainMessage[] {
    const empty = { bytes: new Uint8Array(0) };
    const stripped = (part: PlainPart): PlainPart => {
        if (part.type === 'text') return part;
        if (part.type === 'video') return { type: 'video', frames: part.frames.map(({ time }) => ({ time, image: empty })) };
        return part.type === 'image' ? { type: 'image', image: empty } : { type: 'audio', audio: empty };
    };
    return messages.map((message) => ({ ...message, content: typeof message.content === 'string' ? message.content : message.content.map(stripped) }));
}
