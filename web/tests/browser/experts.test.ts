// The cache of experts in Chromium: however many experts of each layer the GPU holds, the results are those of a GPU that holds them all:
// logits, and for tiny-diffusion the canvas's ids and entropies. Missing experts come from a picked File, from the private file system, or
// from a web server by HTTP Range.
// GEMMULE_LONG=1 adds the small model.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { Browser, Page } from 'playwright-core';
import { launchChromium, PATIENCE } from './browsers.ts';
import type { ExpertsReport, ExpertsTask } from './experts_worker.ts';
import { type TestServer, startServer } from './server.ts';

const UNCHECKED = '/wasm/gemmule-unchecked.wasm';
const MODELS = ['tiny-moe', 'tiny-diffusion', ...(process.env.GEMMULE_LONG === '1' ? ['small-moe-Q4_K_M'] : [])];

let server: TestServer, browser: Browser, page: Page;
before(async () => {
    server = await startServer({
        files: { [UNCHECKED]: `${process.env.GEMMULE_WASM ?? 'build/wasm'}/gemmule-unchecked.wasm`, '/': 'web/tests/browser/blank.html' },
    });
    browser = await launchChromium();
    page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE);
    await page.goto(`${server.origin}/`);
    await page.evaluate(`document.body.innerHTML = '<input type="file">';
        window.worker = new Worker('/web/tests/browser/experts_worker.ts', { type: 'module' })`);
});
after(async () => {
    await browser?.close();
    await server?.close();
});

async function compute(task: Omit<ExpertsTask, 'file' | 'wasm'>): Promise<ExpertsReport> {
    const answer = (await page.evaluate(`new Promise((resolve, reject) => {
        window.worker.onmessage = ({ data }) => resolve(data);
        window.worker.onerror = (event) => reject(new Error(event.message || 'the worker did not start'));
        window.worker.postMessage({ ...${JSON.stringify({ ...task, wasm: UNCHECKED })}, file: document.querySelector('input').files[0] });
    })`)) as ExpertsReport | string;
    if (typeof answer === 'string') throw new Error(answer);
    return answer;
}

for (const model of MODELS) {
    test(`${model}: experts from a File, from the private file system and from a web server`, { timeout: 1_200_000 }, async () => {
        await page.setInputFiles('input', `tests/fixtures/${model}.gguf`);
        const all = await compute({ from: 'file', gpuExperts: 0, copies: false });
        assert.deepEqual([all.source, all.experts, all.gpuExperts, all.reads], ['BlobSource', 8, 8, 0]);
        assert.ok(all.numbers.length > 1000 || model === 'tiny-diffusion');
        let before = 0;
        for (const [from, gpuExperts, copies] of [['url', 3, false], ['file', 2, false], ['opfs', 2, false], ['opfs', 2, true], ['opfs', 3, true], ['opfs', 8, true]] as const) {
            const some = await compute({ from, gpuExperts, copies });
            assert.equal(some.source, { file: 'BlobSource', opfs: 'OpfsSource', url: 'UrlSource' }[from]);
            assert.equal(some.gpuExperts, gpuExperts);
            assert.ok(some.reads > 0);
            if (copies) assert.ok(some.reads < before, `${some.reads} reads with copies in main memory, ${before} without`);
            else before = some.reads;
            assert.equal(some.failure, !copies ? 'Storage: the disk was pulled out' : '');
            assert.deepEqual(some.numbers, all.numbers);
        }
    });
}

test('tiny-diffusion: every step of a block has the same ids and entropies on the CPU and on the GPU', { timeout: 600_000 }, async () => {
    await page.setInputFiles('input', 'tests/fixtures/tiny-diffusion.gguf');
    const task = { from: 'file', gpuExperts: 0, copies: true, steps: 48 } as const;
    const gpu = await compute(task), cpu = await compute({ ...task, backend: 'wasm' });
    assert.equal(gpu.numbers.length, 48 * 32 * 2);
    assert.deepEqual(cpu.numbers, gpu.numbers);
});

test('tiny-diffusion: what was used most is in the slots when the model is opened again', { timeout: 600_000 }, async () => {
    await page.setInputFiles('input', 'tests/fixtures/tiny-diffusion.gguf');
    const first = await compute({ from: 'file', gpuExperts: 7, copies: true, remember: true });
    const second = await compute({ from: 'file', gpuExperts: 7, copies: true, remember: true });
    assert.ok(second.opening > first.opening && second.reads < first.reads, `${first.reads} reads, and ${second.reads} later`);
    assert.deepEqual(second.numbers, first.numbers);
});
