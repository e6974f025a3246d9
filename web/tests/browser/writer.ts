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

/** A draw: the token, and how far apart the two likeliest ones were. */
export interface Draw {
    token: number;
    margin: number;
}

/** An answer of a session of its own; each `which` has its own prompt, settings and length. */
async function writeOne(which: number): Promise<Draw[]> {
    const own = engine!.session({ context: 512 });
    const sampling = which % 2 ? { temperature: 0.8, top_k: 1, seed: which } : { temperature: 0 };
    const pieces = own.replyTokens(Int32Array.of(2, 5 + which, 6, 7), { sampling, maxTokens: 16 + 4 * which, logprobs: 2 });
    const draws: Draw[] = [];
    for await (const piece of pieces) {
        const rows = 'logprobs' in piece && piece.logprobs ? piece.logprobs : [];
        for (const [drawn, first, second] of rows) draws.push({ token: drawn!.token, margin: first!.logprob - second!.logprob });
    }
    own.free();
    return draws;
}

/** Three answers, each alone and all at once, and how many lists each way submitted. Until shaders are compiled, sessions write alone: so
 * this is repeated until an attempt asked for no more of them. */
export async function writeTogether(): Promise<{ alone: Draw[][]; together: Draw[][]; submits: [alone: number, together: number] }> {
    const [queue, device] = [GPUQueue.prototype, GPUDevice.prototype], [submit, compile] = [queue.submit, device.createComputePipelineAsync];
    let [submits, pending, asked] = [0, 0, 0];
    queue.submit = function (lists) {
        submits++;
        return submit.call(this, lists);
    };
    device.createComputePipelineAsync = function (descriptor) {
        asked++;
        pending++;
        return compile.call(this, descriptor).finally(() => pending--);
    };
    try {
        const alone: Draw[][] = [];
        for (const which of [0, 1, 2]) alone.push(await writeOne(which));
        for (const end = performance.now() + 300_000; ; ) {
            while (pending && performance.now() < end) await new Promise((resolve) => setTimeout(resolve, 20));
            const before = asked;
            submits = 0;
            for (const which of [0, 1, 2]) alone[which] = await writeOne(which);
            const one = submits;
            const together = await Promise.all([0, 1, 2].map(writeOne));
            if ((asked === before && !pending) || performance.now() > end) return { alone, together, submits: [one, submits - one] };
        }
    } finally {
        [queue.submit, device.createComputePipelineAsync] = [submit, compile];
    }
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
