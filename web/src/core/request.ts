// What crosses to the engine with a call: numbers that are checked, and requests as JSON.

import { GemmuleError } from './errors.ts';
import type { Message, ReplyOptions } from './types.ts';

export function wholeNumber(value: number, what: string, least = 0, most = 0x7fffffff): number {
    if (Number.isInteger(value) && value >= least && value <= most) return value;
    const range = most === 0x7fffffff ? `of at least ${least}` : `from ${least} to ${most}`;
    throw new GemmuleError('BadArgument', `${what} must be a whole number ${range}, found ${value}`);
}

// JSON numbers cannot hold a seed's 64 bits, so it crosses as digits. Object keys are strings, so token ids cross as a list of pairs.
export function requestText(messages: Message[] | null, options: ReplyOptions): string {
    const { signal: _, sampling, resume, ...rest } = options;
    const { seed, logit_bias, ...numbers } = sampling ?? {};
    const random = () => new DataView(crypto.getRandomValues(new Uint8Array(8)).buffer).getBigUint64(0);
    const settings: Record<string, unknown> = { ...numbers, seed: String(seed ?? random()) };
    if (logit_bias) settings['logit_bias'] = Object.entries(logit_bias).map(([id, bias]) => [Number(id), bias]);
    return JSON.stringify({ messages, options: { ...rest, ...(resume ? { resume: [...resume] } : {}), sampling: settings } });
}
