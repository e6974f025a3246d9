/* Node on Dawn (the npm package webgpu), through the package's own entry: the same answer as on wasm. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Gemmule } from '../src/node.ts';
import { softwareDriver } from './node_gpu.ts';
import { DENSE, UNCHECKED_WASM } from './support/models.ts';

process.env['VK_ICD_FILENAMES'] = softwareDriver();

test('the GPU writes the same text as wasm, and saves snapshots', { timeout: 600_000 }, async () => {
    const texts: string[] = [];
    for (const backend of ['wasm', 'gpu'] as const) {
        await using engine = await Gemmule.load(DENSE, { wasmUrl: UNCHECKED_WASM, backend });
        assert.equal(engine.info.backend, backend);
        await using session = await engine.session({ context: 256 });
        let text = '';
        for await (const piece of session.reply([{ role: 'user', content: 'Hello' }], { maxTokens: 6, sampling: { temperature: 0 } })) {
            if (piece.kind === 'content') text += piece.text;
        }
        texts.push(text);
        const held = await session.tokens();
        const bytes = await session.save();
        await session.rollback(0);
        await session.restore(bytes);
        assert.deepEqual(await session.tokens(), held);
    }
    assert.ok(texts[0]!.length > 0);
    assert.equal(texts[1], texts[0]);
});
