// Memory while loading: a generated model of 0.7 GB goes through a page of a real Chromium to the GPU while the test watches the memory of the
// processes. The page holds the pieces in flight; the GPU process holds the buffers, since SwiftShader's buffers are its own memory.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { after, before, test } from 'node:test';
import type { Browser, ElementHandle, Page } from 'puppeteer-core';
import { ROOT, scratch, UNCHECKED_WASM } from '../support/models.ts';
import { launchUnwatchedChromium, PATIENCE } from './browsers.ts';
import { startServer } from './server.ts';
import type { TestServer } from './server.ts';

const PROGRAM = process.env.GEMMULE ?? `${ROOT}/build/gemmule`;
const LAYERS = 5; // of E2B: 0.73 GB
// Limits, apart from the buffers. An empty page has 130 MB in Chromium, mostly the browser's code, and wasm adds 49; 256 to 288 MB were seen while a
// model loads. The GPU process starts with 85 MB, and its shader compilers add 200 for all the kernels that the self-check compiles: 289 to 303 MB
// were seen. A second copy of the model, or of one of its two large tensors, does not fit below these limits.
const MOST_PAGE = 400e6;
const MOST_GPU = 400e6;

let server: TestServer, browser: Browser;
const model = scratch('large.gguf');
before(async () => {
    execFileSync(PROGRAM, ['synth', 'e2b', model, '--layers', String(LAYERS), '--quiet']);
    assert.ok(statSync(model).size > 0.7e9);
    server = await startServer({ files: { '/': 'web/tests/browser/blank.html', '/large.gguf': model, '/unchecked.wasm': UNCHECKED_WASM } });
    browser = await launchUnwatchedChromium();
});
after(async () => {
    await browser?.close();
    await server?.close();
});

/** Watches VmRSS of the browser's processes; at the end returns the maximum for each type. */
async function watchMemory(): Promise<() => Record<string, number>> {
    const most: Record<string, number> = {};
    const protocol = await browser.target().createCDPSession();
    let { processInfo } = await protocol.send('SystemInfo.getProcessInfo');
    const look = async (): Promise<void> => {
        for (const { type, id } of processInfo) {
            try {
                const bytes = 1024 * Number(/^VmRSS:\s*(\d+) kB$/m.exec(readFileSync(`/proc/${id}/status`, 'utf8'))?.[1] ?? 0);
                most[type] = Math.max(most[type] ?? 0, bytes);
            } catch {} // the process has ended
        }
        ({ processInfo } = await protocol.send('SystemInfo.getProcessInfo').catch(() => ({ processInfo })));
    };
    const timer = setInterval(() => void look(), 20);
    return () => (clearInterval(timer), most);
}

const LOAD = `(async (source, options) => {
    const { Gemmule } = await import('/web/dist/index.js');
    const engine = await Gemmule.load(source, { backend: 'gpu', cache: false, ...options });
    const { gpuBytes, wasmBytes } = await engine.stats();
    await engine.unload();
    return { gpuBytes, wasmBytes };
})`;

// The self-check needs no more memory for the one source than for the other, so one of them goes without: a software GPU compiles for long.
const WAYS: { name: string; source: string; options: string; prepare(page: Page): Promise<void> }[] = [
    {
        name: 'a file',
        source: `document.getElementById('file').files[0]`,
        options: '{}',
        prepare: async (page) => {
            await page.setContent('<input type="file" id="file">');
            await ((await page.$('#file')) as ElementHandle<HTMLInputElement>).uploadFile(model);
        },
    },
    { name: 'an address', source: `'/large.gguf'`, options: `{ wasmUrl: '/unchecked.wasm' }`, prepare: async () => {} },
];

for (const { name, source, options, prepare } of WAYS) {
    test(`0.7 GB from ${name}: neither the page nor the GPU process holds more than it needs`, { timeout: 600_000 }, async () => {
        const page = await browser.newPage();
        page.setDefaultTimeout(PATIENCE);
        await page.goto(`${server.origin}/`);
        await prepare(page);
        const watch = await watchMemory();
        const { gpuBytes, wasmBytes } = (await page.evaluate(`${LOAD}(${source}, ${options})`)) as { gpuBytes: number; wasmBytes: number };
        const most = watch();
        await page.close();
        console.log(`bytes: buffers ${gpuBytes}, wasm ${wasmBytes}, at most`, most);
        assert.ok(gpuBytes > 0.7e9 && gpuBytes < 0.9e9, `${gpuBytes} bytes of buffers`);
        assert.ok(wasmBytes <= 128 * 2 ** 20, `${wasmBytes} bytes of wasm memory`);
        assert.ok(most.GPU! > gpuBytes && most.GPU! <= gpuBytes + MOST_GPU, `the GPU's process had ${most.GPU}, of which ${gpuBytes} are buffers`);
        assert.ok(most.renderer! > wasmBytes && most.renderer! <= MOST_PAGE, `a page had ${most.renderer}`);
    });
}
