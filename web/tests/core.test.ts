/* The core on WebAssembly alone. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Core } from '../src/core/core.ts';
import { coreTests, fails, sourceOf } from './core_cases.ts';
import { DENSE, WASM } from './support/models.ts';

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
