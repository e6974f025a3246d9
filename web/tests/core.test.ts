/* The core on WebAssembly alone. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Core } from '../src/core/core.ts';
import type { Piece } from '../src/core/types.ts';
import { coreTests, fails, sourceOf } from './core_cases.ts';
import { DENSE, ROOT, WASM } from './support/models.ts';

coreTests('wasm', async () => null, { backend: 'wasm' });

const core = await Core.create({ wasm: readFileSync(WASM) });

test('without a GPU there is wasm, and asking for a GPU is an error', async () => {
    assert.deepEqual((await core.devices()).map((device) => device.backend), ['wasm']);
    const engine = await core.open([sourceOf(DENSE)], {});
    assert.equal(engine.info.backend, 'wasm');
    engine.close();
    await assert.rejects(core.open([sourceOf(DENSE)], { backend: 'gpu' }), fails('NoWebGPU', /WebGPU is not available/));
    await assert.rejects(core.dryRun([sourceOf(DENSE)], { backend: 'gpu' }), fails('NoWebGPU', /WebGPU is not available/));
    await assert.rejects(Core.create({ wasm: new Uint8Array(8) }), fails('NotSupported', /cannot compile the engine/));
});

test('without an adapter there is wasm', async () => {
    const none = await Core.create({ wasm: readFileSync(WASM), gpu: { requestAdapter: async () => null } as unknown as GPU });
    const engine = await none.open([sourceOf(DENSE)], { backend: 'auto' });
    assert.equal(engine.info.backend, 'wasm');
    engine.close();
    await assert.rejects(none.open([sourceOf(DENSE)], { backend: 'gpu' }), fails('NoWebGPU', /no graphics adapter/));
});

test('a model that does not fit is refused from its header, with the sizes', async () => {
    const source = sourceOf(DENSE);
    await assert.rejects(core.open([source], { wasmMemory: 300_000 }), fails('OutOfMemory', /take 0\.00 GiB of memory .* at most 0\.00 GiB/));
    assert(source.read_bytes < 300_000);
    const report = await core.dryRun([source], { wasmMemory: 300_000 });
    assert.deepEqual([report.fits, report.backend], [false, 'wasm']);
    assert.match(report.why, /per-layer table/);
});

test('if memory is short, rows of the per-layer table are read as needed', async () => {
    const source = sourceOf(DENSE);
    const [all, rows] = [await core.open([sourceOf(DENSE)], {}), await core.open([source], { wasmMemory: 900_000 })];
    const [whole, part] = [await core.dryRun([sourceOf(DENSE)], {}), await core.dryRun([source], { wasmMemory: 900_000 })];
    assert.deepEqual([whole.tableKept, part.tableKept, whole.notes, part.notes.length], [true, false, [], 1]);
    assert(whole.tableBytes > 200_000 && whole.tableBytes === part.tableBytes && whole.gpuBytes - part.gpuBytes === part.tableBytes);
    const [a, b] = [all.session(), rows.session()];
    const ids = Int32Array.from({ length: 200 }, (_, i) => 300 + i);
    const reads = source.reads;
    await Promise.all([a.set(ids), b.set(ids)]);
    assert.deepEqual(b.logits(), a.logits());
    assert.equal(source.reads - reads, ids.length);
    source.read = () => Promise.reject(new Error('the disk is gone'));
    await assert.rejects(b.append(Int32Array.of(20)), fails('Internal', /the disk is gone/));
    assert.deepEqual(b.tokens(), ids);
    all.close();
    rows.close();
});

test('a diffusion model writes blocks, and shows its canvas to those who ask', async () => {
    const engine = await core.open([sourceOf(join(ROOT, 'tests/fixtures/tiny-diffusion.gguf'))], { precise: true });
    const session = engine.session();
    const options = { sampling: { seed: 3 }, maxTokens: 40, steps: 2, canvas: 'The red [[3]] is', wantCanvas: true };
    const pieces: Piece[] = [];
    const reply = session.replyTokens(Int32Array.of(2, 300, 301), options);
    let next = await reply.next();
    for (; !next.done; next = await reply.next()) pieces.push(next.value);
    const canvases = pieces.flatMap((piece) => (piece.kind === 'canvas' ? [piece.canvas] : []));
    assert.deepEqual([next.value.blocks, next.value.steps, next.value.replyTokens], [2, canvases.length, 40]);
    assert.deepEqual(canvases.map(({ block, step, last }) => [block, step, last]), [[0, 1, false], [0, 2, true], [1, 1, false], [1, 2, true]]);
    for (const canvas of canvases) {
        assert.equal(canvas.tokens.length, 32);
        for (const { accepted, pinned, entropy } of canvas.tokens) assert.ok(pinned ? accepted && entropy === 0 : entropy >= 0);
    }
    const pinned = canvases[0]!.tokens.filter((token) => token.pinned);
    assert.equal(pinned.map(({ text }) => text).join(''), 'The red  is');
    assert.match(pieces.map((piece) => (piece.kind === 'content' ? piece.text : '')).join(''), /^The red .* is/s);
    await assert.rejects(session.replyTokens(Int32Array.of(2), { canvas: '[[x]]' }).next(), fails('BadArgument', /neither a hole/));
    engine.close();
});

test('closing engines frees memory, and replies do not use more and more', async () => {
    const engine = await core.open([sourceOf(DENSE)], {});
    const session = engine.session();
    let first = 0;
    for (let i = 0; i < 30; i++) {
        for await (const _ of session.reply([{ role: 'user', content: 'Hello' }], { maxTokens: 20, sampling: { seed: i } }));
        session.rollback(0);
        if (i === 4) first = engine.stats().wasmBytes;
    }
    assert.equal(engine.stats().wasmBytes, first);
    engine.close();
});
