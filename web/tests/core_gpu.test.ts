/* The core on WebGPU: Dawn for Node, on a software GPU. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { Core } from '../src/core/core.ts';
import { closeTo, coreTests, fails, sourceOf } from './core_cases.ts';
import { nodeGpu } from './node_gpu.ts';
import { keptGpu } from './support/kept_gpu.ts';
import { DENSE, MOE, UNCHECKED_WASM, WASM } from './support/models.ts';

const gpu = keptGpu(await nodeGpu());
const engineOf = coreTests('gpu', async () => gpu, { backend: 'gpu' });
after(() => {
    gpu.close();
    setImmediate(() => process.exit()); // Dawn keeps Node alive
});

test('weights that do not fit into GPU memory are read from the source when they are needed', async () => {
    const core = await Core.create({ wasm: readFileSync(UNCHECKED_WASM), gpu });
    const little = await core.dryRun([sourceOf(DENSE)], { backend: 'gpu', precise: true, gpuMemory: 5_700_000 });
    assert.match(little.notes[0]!, /^left in the file: 246 kB of tables \(rows are read for each token\)/);
    const limits = [
        { path: DENSE, gpuMemory: 4_900_000, stays: /tables .* layers .* head / },
        { path: MOE, gpuMemory: 4_400_000, stays: /experts .* layers / },
    ];
    const ids = Int32Array.from({ length: 20 }, (_, i) => 300 + i);
    for (const { path, gpuMemory, stays } of limits) {
        const source = sourceOf(path);
        const [all, part] = [await engineOf(path), await core.open([source], { backend: 'gpu', precise: true, gpuMemory })];
        assert.match(part.info.note, stays);
        const fits = [await core.dryRun([source], { backend: 'gpu', precise: true }), await core.dryRun([source], { backend: 'gpu', precise: true, gpuMemory })];
        assert.deepEqual(fits.map(({ notes }) => notes), [[], [part.info.note]]);
        assert.deepEqual(fits.map(({ tableBytes, tableKept }) => [tableBytes > 0, tableKept]), path === DENSE ? [[true, true], [true, false]] : [[false, true], [false, true]]);
        const [a, b] = [all.session({ context: 256 }), part.session({ context: 256 })];
        const reads = source.reads;
        await Promise.all([a.set(ids), b.set(ids)]);
        closeTo(b.logits(), a.logits()!, 1e-5);
        assert(source.reads > reads + 3);
        assert(part.stats().gpuBytes <= gpuMemory);

        const stop = new AbortController(); // in the middle of a tile, or of its rows
        const append = b.append(Int32Array.of(20, 21), stop.signal);
        stop.abort();
        await assert.rejects(append, { name: 'Aborted' });
        await Promise.all([a.append(Int32Array.of(22)), b.append(Int32Array.of(22))]);
        closeTo(b.logits(), a.logits()!, 1e-5);
        a.free();
        part.close();
    }
});

test('experts in slots: the logits of a GPU that has all of them from the beginning', async () => {
    const core = await Core.create({ wasm: readFileSync(UNCHECKED_WASM), gpu });
    const ids = Int32Array.from({ length: 20 }, (_, i) => 300 + i);
    const all = (await engineOf(MOE)).session({ context: 256 });
    await all.set(ids);
    assert.equal((await engineOf(MOE)).stats().expertHitRate, undefined);
    for (const gpuExperts of [2, 3, 8]) {
        const source = sourceOf(MOE);
        const engine = await core.open([source], { backend: 'gpu', precise: true, gpuExperts });
        assert.deepEqual([engine.info.experts, engine.info.gpuExperts], [8, gpuExperts]);
        let reads = source.reads;
        for (const again of [false, true]) {
            const session = engine.session({ context: 256 });
            await session.set(ids);
            closeTo(session.logits(), all.logits()!, 1e-5);
            if (!again) assert(source.reads > reads);
            else if (gpuExperts === 8) assert.equal(source.reads, reads); // with a slot for each, none is read twice
            reads = source.reads;
            session.free();
        }
        const { expertHitRate: hits = -1, expertBytesPerToken: bytes = -1 } = engine.stats();
        assert.ok(hits >= (gpuExperts === 8 ? 0.5 : 0) && hits < 1 && bytes > 0, `${hits} of the uses, ${bytes} bytes`); // the second round misses none
        engine.close();
    }
    all.free();
});

test('the self-check of a canvas needs no shader that only training has', async () => {
    const core = await Core.create({ wasm: readFileSync(WASM), gpu });
    const stop = new AbortController(); // before it takes long: when shaders are compiled, all of them were found
    const onProgress = ({ phase, done }: { phase: string; done: number }): void => { if (phase === 'shaders' && done > 0) stop.abort(); };
    await assert.rejects(core.open([sourceOf('tests/fixtures/tiny-diffusion.gguf')], { backend: 'gpu', onProgress, signal: stop.signal }), { name: 'Aborted' });
});

test('the adapter and its features are reported', async () => {
    const core = await Core.create({ wasm: readFileSync(WASM), gpu });
    const [device, wasm] = await core.devices();
    assert.deepEqual([device!.backend, device!.software, wasm!.backend], ['gpu', true, 'wasm']);
    assert(device!.limits['max_buffer']! > 1e8);
});

/* The software GPU under another name: what a hardware GPU looks like to the package. */
function asHardware(software: GPU): GPU {
    const requestAdapter = async () => {
        const adapter = (await software.requestAdapter())!;
        const info = { vendor: 'acme', architecture: '', device: '', description: 'Acme One', isFallbackAdapter: false };
        const { features, limits } = adapter;
        return { info, features, limits, requestDevice: (wanted: GPUDeviceDescriptor) => adapter.requestDevice(wanted) };
    };
    return { requestAdapter, wgslLanguageFeatures: software.wgslLanguageFeatures } as unknown as GPU;
}

test('a software GPU is used on request only', async () => {
    const core = await Core.create({ wasm: readFileSync(WASM), gpu });
    const { info } = await core.open([sourceOf(DENSE)]);
    assert.equal(info.backend, 'wasm');
    assert.match(info.backendReason, /^the only GPU is .*SwiftShader.*, which is software/);
    assert.equal((await core.dryRun([sourceOf(DENSE)])).backend, 'wasm');
    await assert.rejects(core.open([sourceOf(DENSE)], { backend: 'gpu', softwareGpu: false }), fails('NoWebGPU', /which is software/));
});

test('a hardware GPU and wasm write a few tokens each, and the faster one is remembered', async () => {
    const core = await Core.create({ wasm: readFileSync(WASM), gpu: asHardware(gpu) });
    const phases = new Set<string>();
    let shaders = 0;
    const first = await core.open([sourceOf(DENSE)], {
        onProgress: ({ phase, done, total }) => {
            phases.add(phase);
            assert(done <= total, `${phase}: ${done} of ${total}`);
            if (phase === 'shaders') shaders = total;
        },
    });
    assert(phases.has('measure') && shaders > 50, `${shaders} shaders`);
    assert.match(first.info.backendReason, /^measured with this model: [1-9]\d* tokens per second on the GPU, [1-9]\d* on wasm$/);
    phases.clear();
    const second = await core.open([sourceOf(DENSE)], { onProgress: ({ phase }) => phases.add(phase) });
    assert(!phases.has('measure'));
    assert.deepEqual([second.info.backend, second.info.backendReason], [first.info.backend, first.info.backendReason]);
    first.close();
    second.close();
});
