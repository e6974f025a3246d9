// The C tests of the GPU, built for wasm, on the package's GPU host and Dawn for Node.
//
// A software GPU takes minutes for all cases, and they also run natively: this runs some of every kind. GEMMULE_LONG=1 (`make test-long`) runs all. The wasm
// files are those of the wasm preset, or of the folder $GEMMULE_WASM.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { test } from 'node:test';

import { softwareDriver } from './node_gpu.ts';

const BUILD = process.env.GEMMULE_WASM ?? 'build/wasm';
const ALL = process.env.GEMMULE_LONG === '1';

// The programs block, which needs a flag in Node.
function run(program: string, args: string[], runner = 'web/tests/run_gpu.ts'): Promise<{ status: number | null; output: string }> {
    const flags = ['--experimental-wasm-jspi', '--disable-warning=ExperimentalWarning'];
    const child = spawn(process.execPath, [...flags, runner, `${BUILD}/${program}.wasm`, ...args], {
        env: { ...process.env, VK_ICD_FILENAMES: softwareDriver() },
    });
    let output = '';
    child.stdout.on('data', (text) => (output += text));
    child.stderr.on('data', (text) => (output += text));
    return new Promise((resolve) => child.on('close', (status) => resolve({ status, output })));
}

// Arguments for some cases, and for all of them.
const PROGRAMS: [string, string[], string[]][] = [
    ['test_ops', ['gpu', '', 'Q8_0 5 ×'], ['gpu', '', '']],
    ['test_ops', ['gpu', 'subgroups,dot4,f16', 'attention F16 5 · 2 ×'], ['gpu', 'subgroups,dot4,f16', '']],
    ['test_gpu_sampler', ['top-k'], []],
    ['test_gpu_fuse', ['', 'halves'], ['', '']], // the others read files, which wasm cannot open
];

for (const [program, some, all] of PROGRAMS) {
    test(`${program} ${some.join(' ')}`, async () => {
        const { status, output } = await run(program, ALL ? all : some);
        const [, passed] = /(\d+) passed, 0 failed\s*$/.exec(output) ?? [];
        assert.equal(status, 0, output.slice(-4000));
        assert.ok(Number(passed) >= 4, output.slice(-4000));
    });
}

test('an unknown feature and a missing GPU are reported', async () => {
    const wrong = await run('test_ops', ['gpu', 'dot4,warp']);
    assert.equal(wrong.status, 1);
    assert.match(wrong.output, /'warp' is not a GPU feature/);
    const none = await run('test_ops', ['gpu'], 'tests/run_wasi.mjs');
    assert.equal(none.status, 1);
    assert.match(none.output, /there is no WebGPU here/);
});
