// A short run of the browser benchmark on a tiny model: bench/results.mjs understands its output. Needs web/dist.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

const BENCH = ['bench/browser/bench.mjs', 'tests/fixtures/tiny-dense.gguf', '--prefill', '16', '--decode', '8', '--repeats', '1'];

test('results.mjs understands what bench/browser measures', { timeout: 600_000 }, () => {
    const folder = mkdtempSync(join(tmpdir(), 'gemmule-bench-'));
    try {
        const [out, results, page] = [join(folder, 'bench.jsonl'), join(folder, 'results.json'), join(folder, 'page.md')];
        execFileSync(process.execPath, [...BENCH, '--engines', 'gemmule-wasm@1', '--machine', 'a test', '--out', out], { encoding: 'utf8' });
        const { result } = JSON.parse(readFileSync(out, 'utf8')) as { result: Record<string, number> & { prefill: object; decode: object; memory: Record<string, number> } };
        assert.partialDeepStrictEqual(result, { engine: 'gemmule', model: 'tiny-dense.gguf', threads: 1, prefill: { tokens: 16 }, decode: { tokens: 8, depth: 0 } });
        for (const name of ['load_seconds', 'reload_seconds', 'first_token_seconds']) assert.ok(result[name]! > 0, name);
        for (const [name, bytes] of Object.entries(result.memory)) assert.ok(bytes > 20e6, `${name}: ${bytes}`);
        writeFileSync(results, JSON.stringify({ peers: {}, results: [] }));
        for (const args of [['add', out], ['write']]) execFileSync(process.execPath, ['bench/results.mjs', ...args, '--results', results, '--page', page]);
        assert.match(readFileSync(page, 'utf8'), /\| tiny-dense \| Chromium [\d.]+, cpu \(wasm, 1 thread\) \| prefill of 16 \|/);
    } finally {
        rmSync(folder, { recursive: true, force: true });
    }
});

test('invalid options are refused', () => {
    for (const [why, ...args] of [
        ['there is no \'llama\'', '--engines', 'llama'], ['one of gemmule must come first', '--engines', 'wllama,gemmule-wasm'], ['--gpu is', '--gpu', 'some'],
        ['takes a whole number', '--repeats', 'many'], ['there is no \'/nowhere\'', '--dist', '/nowhere'],
    ] as const) {
        const { status, stderr } = spawnSync(process.execPath, [...BENCH, '--engines', 'gemmule-wasm', ...args], { encoding: 'utf8' });
        assert.equal(status, 3, stderr);
        assert.ok(stderr.includes(why), stderr);
    }
});
