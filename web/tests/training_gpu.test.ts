/* Training on WebGPU in Node (Dawn, on a software GPU): the device is really lost in the middle, and the training goes on with another. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { makeLoader } from '../src/api/engine.ts';
import { Core } from '../src/core/core.ts';
import { FileSource } from '../src/sources/file.ts';
import { Connection, directLine } from '../src/worker/connection.ts';
import { Host } from '../src/worker/host.ts';
import type { SourceSpec } from '../src/worker/protocol.ts';
import { nodeGpu } from './node_gpu.ts';
import { keptGpu } from './support/kept_gpu.ts';
import { TWO_LAYERS, UNCHECKED_WASM } from './support/models.ts';

const gpu = keptGpu(await nodeGpu());
after(() => {
    gpu.close();
    setImmediate(() => process.exit()); // Dawn keeps Node alive
});

const loader = makeLoader(async () => {
    const [page, worker] = directLine();
    const core = await Core.create({ wasm: readFileSync(UNCHECKED_WASM), gpu });
    new Host(worker, { core: async () => core, openSource: (spec) => FileSource.open((spec as SourceSpec & { kind: 'path' }).path) });
    return new Connection(page);
}, (path: string) => ({ sources: [{ kind: 'path', path }] as SourceSpec[], options: {} }));

const SETTINGS = {
    data: Array.from({ length: 6 }, (_, i) => ({ prompt: `Question ${i}`, completion: `Answer ${i}.` })),
    rank: 2, batch: 2, maxSteps: 5, rate: 1e-2, keepEvery: 1, store: false,
};

/* The events, in order: "step 1", "lost 1", … The devices are destroyed after a step. */
async function train(backend: 'wasm' | 'gpu', loseAfter = 0): Promise<{ seen: string[]; losses: Map<number, number>; history: number[] }> {
    await using engine = await loader.load(TWO_LAYERS, { backend });
    const training = engine.train(SETTINGS), seen: string[] = [], losses = new Map<number, number>();
    for await (const event of training) {
        if (event.kind === 'lost') seen.push(`lost ${event.step}`);
        if (event.kind !== 'step') continue;
        seen.push(`step ${event.step}`);
        losses.set(event.step, event.loss!);
        if (event.step === loseAfter) gpu.close();
        if (event.step === loseAfter) loseAfter = 0;
    }
    const result = await training.result;
    assert.equal(result.end, 'complete');
    assert(result.adapter && result.adapter.size > 1000);
    return { seen, losses, history: [...result.history.losses] };
}

test('a device that is lost in the middle: the training goes on from the last state, with the losses of the CPU', async () => {
    const expected = await train('wasm'), found = await train('gpu', 3);
    assert.deepEqual(expected.seen, ['step 1', 'step 2', 'step 3', 'step 4', 'step 5']);
    const at = found.seen.findIndex((event) => event.startsWith('lost')), from = Number(found.seen[at]?.slice(5));
    assert(at >= 3 && from >= 1 && from <= at, `it was lost once: ${found.seen.join(', ')}`);
    assert.deepEqual(found.seen.slice(at + 1), Array.from({ length: 5 - from }, (_, i) => `step ${from + 1 + i}`));
    assert.equal(found.history.length, 5);
    for (const [i, loss] of expected.history.entries()) {
        for (const each of [found.history[i]!, found.losses.get(i + 1)!])
            assert(Math.abs(each - loss) < 1e-3 * loss, `step ${i + 1}: ${each}, on the CPU ${loss}`);
    }
});
