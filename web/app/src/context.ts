// What of a conversation fits into the context. Pure: tokens are counted by the caller.

import { withoutOldest, type ModelMessage } from './conversation.ts';

/** Tokens to keep free for an answer, as `gemmule chat` does. */
const roomForAnswer = (context: number): number => Math.min(Math.floor(context / 4), 1024);

/** The longest prompt that is computed at all: an answer of a sentence must still fit. */
const longestPrompt = (context: number): number => context - Math.ceil(context / 16);

const inWords = (count: number): string => count.toLocaleString('en');

/** Leaves out the oldest questions, with their answers, until there is room for an answer. Where it must leave out more than `before`, the
 * number that was left out last time, it leaves half of the context free: the next questions then find their beginning computed. */
export async function fitPrompt(
    messages: ModelMessage[], before: number, context: number, count: (messages: ModelMessage[]) => Promise<number>,
): Promise<{ messages: ModelMessage[]; leftOut: number }> {
    const limit = context - roomForAnswer(context);
    const most = messages.filter((message) => message.role === 'user').length - 1;
    if (most < 1 || (await count(messages)) <= limit) return { messages, leftOut: 0 };
    if (before > 0 && before <= most && (await count(withoutOldest(messages, before))) <= limit) {
        return { messages: withoutOldest(messages, before), leftOut: before };
    }
    let low = Math.min(before + 1, most), high = most;
    while (low < high) {
        const middle = (low + high) >> 1;
        if ((await count(withoutOldest(messages, middle))) <= context / 2) high = middle;
        else low = middle + 1;
    }
    return { messages: withoutOldest(messages, low), leftOut: low };
}

export interface MessageLength {
    /** Tokens of the message. */
    message: number;
    /** Tokens of a prompt with nothing but the message and the system prompt. */
    prompt: number;
    context: number;
    /** The largest context of the model. */
    largest: number;
}

/** Why a message cannot be sent; '' if it can. */
export function whyTooLong({ message, prompt, context, largest }: MessageLength): string {
    const most = longestPrompt(context);
    if (prompt <= most) return '';
    const fits = Math.max(0, most - (prompt - message));
    const advice = context < largest
        ? `Shorten it, or raise the context size in the settings: this model can read ${inWords(largest)} tokens at once.`
        : `Shorten it, or send it in parts. This model reads ${inWords(context)} tokens at once.`;
    return `This message is too long: it has ${inWords(message)} tokens, and at most ${inWords(fits)} fit. ${advice}`;
}

/** Says that a context was asked for that the model does not have; '' if it has. */
export function whyClamped(asked: number, largest: number): string {
    return asked > largest ? `The loaded model reads at most ${inWords(largest)} tokens at once, so ${inWords(largest)} are used.` : '';
}
