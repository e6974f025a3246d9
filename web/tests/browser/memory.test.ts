// What loading takes: a model of 1 GB, made on the spot, goes to the GPU through the page of a real Chromium, while the memory of its
// processes is watched. A page holds the pieces that are under way, the GPU's process the buffers; SwiftShader's are its own memory.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { after, before, test } from 'node:test';
import type { Browser, Page } from 'playwright-core';
import { ROOT, scratch } from '../support/models.ts';
import { launchChromium } from './browsers.ts';
import { startServer } from './server.ts';
import type { TestServer } from './server.ts';

const PROGRAM = process.env.GEMMULE ?? `${ROOT}/build/gemmule`;
const LAYERS = 8; // of E2B: 1.02 GB
// Beside the buffers. A page without anything has 160 MB in Chromium, most of it the browser's own code; pieces that came lie around until 64 MB or so
// have gathered and its collector runs. The GPU's process begins with 85 MB, and compilers leave as much.
const MOST_PAGE = 400e6;
const MOST_GPU = 400e6;

let server: TestServer, browser: Browser, page: Page;
const model = scratch('large.gguf');
before(async () => {
    execFileSync(PROGRAM, ['synth', 'e2b', model, '--layers', String(LAYERS), '--quiet']);
    assert.ok(statSync(model).size > 1e9);
    server = await startServer({ files: { '/': 'web/tests/browser/blank.html' } });
    browser = await launchChromium();
    page = await browser.newPage();
    await page.goto(`${server.origin}/`);
});
after(async () => {
    await browser?.close();
    await server?.close();
});

/** Watches VmRSS of the browser's processes; the most of any one by type, once it is told to end. */
async function watchMemory(): Promise<() => Record<string, number>> {
    const most: Record<string, number> = {};
    const protocol = await browser.newBrowserCDPSession();
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
    const engine = await Gemmule.load(source, { backend: 'gpu' });
    const { gpuBytes, wasmBytes } = await engine.stats();
    await engine.unload();
    return { gpuBytes, wasmBytes };
})`;

test(`1 GB from a file: neither the page nor the GPU's process holds more than it must`, { timeout: 180_000 }, async () => {
    await page.setContent('<input type="file" id="file">');
    await page.setInputFiles('#file', model);
    const watch = await watchMemory();
    const { gpuBytes, wasmBytes } = (await page.evaluate(`${LOAD}(document.getElementById('file').files[0])`)) as { gpuBytes: number; wasmBytes: number };
    const most = watch();
    console.log(`bytes: buffers ${gpuBytes}, wasm ${wasmBytes}, at most`, most);
    assert.ok(gpuBytes > 1e9 && gpuBytes < 1.2e9, `${gpuBytes} bytes of buffers`);
    assert.ok(wasmBytes <= 128 * 2 ** 20, `${wasmBytes} bytes of wasm memory`);
    assert.ok(most.GPU! > gpuBytes && most.GPU! <= gpuBytes + MOST_GPU, `the GPU's process had ${most.GPU}, of which ${gpuBytes} are buffers`);
    assert.ok(most.renderer! > wasmBytes && most.renderer! <= MOST_PAGE, `a page had ${most.renderer}`);
});
