/* Which backend `auto` opens on a machine with a hardware GPU, tested with fake engines. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Contest, type Verdict, openFaster } from '../src/core/choice.ts';
import { GemmuleError } from '../src/core/errors.ts';
import type { GpuDescription } from '../src/core/gpu_device.ts';
import type { Backend, ByteSource, CoreEngineLike, EngineOptions } from '../src/core/types.ts';
import { fails } from './core_cases.ts';

interface Machine {
    /** Tokens per second, or why the backend cannot open the model. */
    gpu: number | GemmuleError;
    wasm: number | GemmuleError;
    bytes?: number;
    adapter?: string;
    header?: string;
    options?: EngineOptions;
}

/* A machine with given speeds, and a record of what happens on it. */
class Pretence {
    readonly opened: Backend[] = [];
    readonly closed: Backend[] = [];
    measured = 0;
    readonly known = new Map<string, Verdict>();

    contest({ gpu, wasm, bytes = 1000, adapter = 'Acme One', header = 'GGUF', options = {} }: Machine): Contest<CoreEngineLike> {
        const speeds = { gpu, wasm };
        const source: ByteSource = { name: 'model', size: bytes, read: async (_, length) => new TextEncoder().encode(header.padEnd(length).slice(0, length)) };
        return {
            sources: [source], options, threads: 4, gpu: { name: adapter } as GpuDescription,
            verdicts: { get: async (key) => this.known.get(key), set: async (key, verdict) => this.known.set(key, verdict) },
            open: async (backend) => {
                const speed = speeds[backend];
                if (speed instanceof GemmuleError) throw speed;
                this.opened.push(backend);
                return { info: { backend, backendReason: '' }, close: () => this.closed.push(backend) } as unknown as CoreEngineLike;
            },
            measure: async (engine) => (this.measured++, speeds[engine.info.backend] as number),
        };
    }

    async open(machine: Machine): Promise<{ backend: Backend; backendReason: string }> {
        return (await openFaster(this.contest(machine))).info;
    }
}

const refused = (name: 'NoWebGPU' | 'OutOfMemory' | 'BadModel' | 'Aborted') => new GemmuleError(name, `${name} by the test`);

test('the faster backend stays open, the other one is closed, and the next time only the faster one is opened', async () => {
    for (const [gpu, wasm, winner] of [[2, 400, 'wasm'], [300, 60, 'gpu'], [100, 110, 'gpu'], [100, 0, 'gpu']] as const) {
        const pretence = new Pretence();
        const { backend, backendReason } = await pretence.open({ gpu, wasm });
        assert.equal(backend, winner);
        assert.equal(backendReason, `measured with this model: ${gpu} tokens per second on the GPU, ${wasm} on wasm`);
        assert.deepEqual([pretence.opened, pretence.closed], [['gpu', 'wasm'], [winner === 'gpu' ? 'wasm' : 'gpu']]);
        assert.deepEqual(await pretence.open({ gpu, wasm }), { backend, backendReason });
        assert.deepEqual([pretence.opened.slice(2), pretence.measured], [[winner], 2]);
    }
});

test('another GPU, another model and other options are measured again', async () => {
    const pretence = new Pretence();
    const one: Machine = { gpu: 2, wasm: 400 };
    const others: Machine[] = [one, { ...one, adapter: 'Acme Two' }, { ...one, header: 'GGUF of another' }, { ...one, bytes: 1001 }, { ...one, options: { precise: true } }];
    for (const [i, machine] of others.entries()) {
        await pretence.open(machine);
        await pretence.open(machine);
        assert.equal(pretence.measured, 2 * (i + 1));
    }
});

test('a large model goes to the GPU without a trial', async () => {
    const pretence = new Pretence();
    assert.equal((await pretence.open({ gpu: 2, wasm: 400, bytes: 3e9 })).backend, 'gpu');
    assert.deepEqual([pretence.opened, pretence.measured], [['gpu'], 0]);
});

test('if one backend refuses, the other one is used; if both do, the error is that of the GPU', async () => {
    const pretence = new Pretence();
    for (const name of ['NoWebGPU', 'OutOfMemory'] as const) {
        assert.deepEqual(await pretence.open({ gpu: refused(name), wasm: 1 }), {
            backend: 'wasm', backendReason: `the GPU cannot run this model: ${name} by the test`,
        });
    }
    assert.deepEqual(await pretence.open({ gpu: 5, wasm: refused('OutOfMemory') }), {
        backend: 'gpu', backendReason: 'wasm cannot run this model: OutOfMemory by the test',
    });
    await assert.rejects(pretence.open({ gpu: refused('NoWebGPU'), wasm: refused('OutOfMemory') }), fails('NoWebGPU', /by the test/));
    await assert.rejects(pretence.open({ gpu: refused('BadModel'), wasm: 1 }), fails('BadModel', /by the test/));
});

test('a caller who gives up during the trial leaves nothing open', async () => {
    for (const at of [1, 2]) {
        const pretence = new Pretence();
        const stop = new AbortController();
        const contest = pretence.contest({ gpu: 2, wasm: 400, options: { signal: stop.signal } });
        let calls = 0;
        contest.measure = async () => {
            if (++calls === at) throw refused('Aborted');
            return 1;
        };
        await assert.rejects(openFaster(contest), fails('Aborted', /by the test/));
        assert.deepEqual(pretence.closed.toSorted(), pretence.opened.toSorted());
        assert.equal(pretence.known.size, 0);
    }
});
