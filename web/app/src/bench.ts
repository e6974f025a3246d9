// Measures how fast the loaded model reads prompts of several lengths, and how fast it writes after each. A diffusion model writes a block.

import { write, type BenchResult } from './database.ts';
import { isDiffusion, type ChatSession, type LoadedModel, type ReplyOptions } from './engine.ts';

export const LENGTHS = [32, 128, 512, 1024];
const DECODED = 48;
const LARGEST_CANVAS = 1024;

const TEXT = 'A lighthouse keeper counts the ships at dusk and writes their names into a long grey book. ';

export interface BenchProgress {
    done: number;
    total: number;
    doing: string;
}

export async function runBenchmark(loaded: LoadedModel, name: string, signal: AbortSignal, onProgress: (progress: BenchProgress) => void): Promise<BenchResult> {
    const most = Math.min(loaded.info.context, 8192);
    const blocks = isDiffusion(loaded), room = blocks ? LARGEST_CANVAS : DECODED;
    const lengths = LENGTHS.filter((length) => length + room + 1 < most);
    const longest = lengths.at(-1) ?? 0;
    const sample = await loaded.tokenize(TEXT.repeat(Math.ceil(longest / 8) + 4));
    if (sample.length === 0) throw new Error('the tokenizer returned no tokens');
    const prompt = Int32Array.from({ length: longest }, (_, at) => sample[at % sample.length]!);
    const { device, parameters } = loaded.info;
    const result: BenchResult = { id: crypto.randomUUID(), when: Date.now(), model: name, device, parameters, prefill: [], decode: [] };
    const total = 1 + lengths.length * 2;
    let done = 0;
    const tell = (doing: string): void => onProgress({ done: done++, total, doing });
    const session = await loaded.session({ context: Math.min(most, longest + room + 8) });
    const options: ReplyOptions = { signal, ...(blocks && { wantCanvas: true }) };
    try {
        tell('Warming up'); // the first run builds plans and shaders
        await session.set(prompt.subarray(0, lengths[0]), signal);
        await decode(session, prompt.subarray(0, lengths[0]), blocks ? 1 : 4, options);
        for (const length of lengths) {
            tell(`Reading ${length} tokens`);
            result.prefill.push({ tokens: length, speed: await prefill(session, prompt.slice(0, length), signal) });
            tell(`Writing after ${length} tokens`);
            result.decode.push({ depth: length, speed: await decode(session, prompt.slice(0, length), blocks ? 1 : DECODED, options) });
        }
        await write('benchmarks', result).catch(() => undefined);
        return result;
    } finally {
        await session.free().catch(() => undefined);
    }
}

// The better of two runs: the first one at a length builds its plan, and on a small machine other work may interfere.
async function prefill(session: ChatSession, prompt: Int32Array, signal: AbortSignal): Promise<number> {
    let best = Infinity;
    for (let round = 0; round < 2; round++) {
        await session.rollback(0);
        const began = performance.now();
        await session.set(prompt, signal);
        best = Math.min(best, performance.now() - began);
    }
    return prompt.length / (best / 1000);
}

// Tokens per second, by the engine's own clock. If the model ends its turn early it starts another one, so that the number never rests on
// three tokens. A block of a canvas counts as a whole, wherever the turn ends in it.
async function decode(session: ChatSession, prompt: Int32Array, wanted: number, options: ReplyOptions): Promise<number> {
    let tokens = 0, seconds = 0;
    for (let seed = 1; tokens < wanted && seed <= wanted; seed++) {
        const written = await generate(session, prompt, { ...options, maxTokens: wanted - tokens, sampling: { seed } });
        options.signal?.throwIfAborted();
        tokens += written.tokens;
        seconds += written.seconds;
    }
    return seconds > 0 ? tokens / seconds : 0;
}

async function generate(session: ChatSession, prompt: Int32Array, options: ReplyOptions): Promise<{ tokens: number; seconds: number }> {
    const pieces = await session.generate(prompt, options);
    for (let block = 0;;) {
        const next = await pieces.next();
        if (!next.done) block = next.value.kind === 'canvas' ? next.value.canvas.tokens.length : block;
        else return { tokens: block ? block * next.value.blocks : next.value.replyTokens, seconds: next.value.replySeconds };
    }
}
