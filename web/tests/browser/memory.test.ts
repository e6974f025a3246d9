// What loading takes: a model of 1 GB, made on the spot, goes to the GPU through the page of a real Chromium, while the memory of its
// processes is watched. A page holds the pieces that are under way, the GPU's process the buffers; SwiftShader's are its own memory.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { after, before, test } from 'node:test';
import type { Browser, ElementHandle, Page } from 'puppeteer-core';
import { ROOT, scratch } from '../support/models.ts';
import { launchUnwatchedChromium } from './browsers.ts';
import { startServer } from './server.ts';
import type { TestServer } from './server.ts';

const PROGRAM = process.env.GEMMULE ?? `${ROOT}/build/gemmule`;
const LAYERS = 8; // of E2B: 1.02 GB
// Beside the buffers. A page without anything has 130 MB in Chromium, most of it the browser's own code, and wasm 49; the GPU's process begins
// with 85 MB, and compilers leave as much.
const MOST_PAGE = 300e6;
const MOST_GPU = 300e6;

let server: TestServer, browser: Browser;
const model = scratch('large.gguf');
before(async () => {
    execFileSync(PROGRAM, ['synth', 'e2b', model, '--layers', String(LAYERS), '--quiet']);
    assert.ok(statSync(model).size > 1e9);
    server = await startServer({ files: { '/': 'web/tests/browser/blank.html', '/large.gguf': model } });
    browser = await launchUnwatchedChromium();
});
after(async () => {
    await browser?.close();
    await server?.close();
});

/** Watches VmRSS of the browser's processes; the most of any one by type, once it is told to end. */
async function watchMemory(): Promise<() => Record<string, number>> {
    const most: Record<string, number> = {};
    const protocol = await browser.target().createCDPSession();
    let { processInfo } = await protocol.send('SystemInfo.getProcessInfo');
    const look = async (): Promise<void> => {
        for (const { type, id } of processInfo) {
            try {
                const bytes = 1024 * Number(/^VmRSS:\s*(\d+) kB$/m.exec(readFileSync(`/proc/${id}/status`, 'utf8'))?.[1] ?? 0);
                most[type] = Math.max(most[type] ?? 0, bytes);
            } catch {} // it has ended
        }
        ({ processInfo } = await protocol.send('SystemInfo.getProcessInfo').catch(() => ({ processInfo })));
    };
    const timer = setInterval(() => void look(), 20);
    return () => (clearInterval(timer), most);
}

const LOAD = `(async (source) => {
    const { Gemmule } = await import('/web/dist/index.js');
    const engine = await Gemmule.load(source, { backend: 'gpu', cache: false });
    const { gpuBytes, wasmBytes } = await engine.stats();
    await engine.unload();
    return { gpuBytes, wasmBytes };
})`;

const WAYS: { name: string; source: string; prepare(page: Page): Promise<void> }[] = [
    {
        name: 'a file',
        source: `document.getElementById('file').files[0]`,
        prepare: async (page) => {
            await page.setContent('<input type="file" id="file">');
            await ((await page.$('#file')) as ElementHandle<HTMLInputElement>).uploadFile(model);
        },
    },
    { name: 'an address', source: `'/large.gguf'`, prepare: async () => {} },
];

for (const { name, source, prepare } of WAYS) {
    test(`1 GB from ${name}: neither the page nor the GPU's process holds more than it must`, { timeout: 180_000 }, async () => {
        const page = await browser.newPage();
        await page.goto(`${server.origin}/`);
        await prepare(page);
        const watch = await watchMemory();
        const { gpuBytes, wasmBytes } = (await page.evaluate(`${LOAD}(${source})`)) as { gpuBytes: number; wasmBytes: number };
        const most = watch();
        await page.close();
        console.log(`bytes: buffers ${gpuBytes}, wasm ${wasmBytes}, at most`, most);
        assert.ok(gpuBytes > 1e9 && gpuBytes < 1.2e9, `${gpuBytes} bytes of buffers`);
        assert.ok(wasmBytes <= 128 * 2 ** 20, `${wasmBytes} bytes of wasm memory`);
        assert.ok(most.GPU! > gpuBytes && most.GPU! <= gpuBytes + MOST_GPU, `the GPU's process had ${most.GPU}, of which ${gpuBytes} are buffers`);
        assert.ok(most.renderer! > wasmBytes && most.renderer! <= MOST_PAGE, `a page had ${most.renderer}`);
    });
}
