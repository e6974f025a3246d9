// An engine that stays open in a page and writes on request, for tests that watch the page from outside.

import { Core } from '../../src/core/core.ts';
import type { CoreEngine } from '../../src/core/engine.ts';
import type { CoreSession } from '../../src/core/session.ts';
import type { EngineStats } from '../../src/core/types.ts';
import { memorySource } from './check.ts';
import { pageGpu } from './page_gpu.ts';

let engine: CoreEngine | null = null;
let session: CoreSession | null = null;

/** Closes the previous one. */
export async function open(wasm: string, model: string): Promise<void> {
    engine?.close();
    session = null;
    const bytes = async (url: string) => (await fetch(url)).arrayBuffer();
    const core = await Core.create({ wasm: await bytes(wasm), gpu: pageGpu });
    engine = await core.open([memorySource(model, new Uint8Array(await bytes(model)))], { backend: 'gpu' });
}

async function reply(session: CoreSession, most: number): Promise<number> {
    const pieces = session.replyTokens(new Int32Array([2, 5, 6, 7]), { sampling: { temperature: 0, logit_bias: { 368: 100 } }, maxTokens: most });
    for (let first = true; ; first = false) {
        const next = await pieces.next();
        if (next.done) return next.value.replyTokens;
        if (first) document.title = 'writing';
    }
}

/** Writes this many tokens, in several replies of one session. */
export async function write(tokens: number): Promise<EngineStats> {
    session ??= engine!.session({ context: 512 });
    for (let left = tokens; left > 0; ) left -= Math.max(1, await reply(session, Math.min(left, 400)));
    return engine!.stats();
}

/** The error that ends the answer, and the reason that `engine.lost` gives. */
export async function writeUntilLost(): Promise<{ name: string; message: string; lost: string }> {
    document.title = 'opened';
    try {
        for (;;) await write(400);
    } catch (thrown) {
        const { name, message } = thrown as Error;
        const lost = await Promise.race([engine!.lost, new Promise<string>((resolve) => setTimeout(resolve, 120_000, 'never'))]);
        engine!.close();
        return { name, message, lost };
    }
}
