// The app on WebGPU in Chromium (SwiftShader): it answers there, and a lost GPU does not end the conversation. Needs build/web. In
// app_box.test.ts the app passes the self-check; here, where a GPU is opened again and again, there is none.

import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { after, before, describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { MODEL, startSite, Visit } from '../../app/tests/site.ts';
import { ModelCache } from '../../src/sources/opfs.ts';
import { spreadGguf } from '../support/gguf.ts';
import type { TestServer } from './server.ts';

/** A visit to the app with short answers; the model is being loaded. */
async function begin(site: TestServer, maxTokens: number, more: object = {}): Promise<{ visit: Visit; page: Page }> {
    const visit = await Visit.begin({ gpu: true });
    const page = await visit.page();
    await page.goto(`${site.origin}/icon-maskable.svg`); // of the same origin, and no app
    await page.evaluate((given) => localStorage.setItem('gemmule.settings', JSON.stringify(given)), { backend: 'gpu', maxTokens, sampling: { seed: 7 }, ...more });
    await page.goto(site.origin);
    return { visit, page };
}

/** A model by ranges from a server that answers one request when it is told to, and later all of them at once. */
class HesitantModel {
    readonly #bytes: Buffer;
    readonly #waiting: (() => void)[] = [];
    #hesitates = true;

    constructor(bytes: Buffer) {
        this.#bytes = bytes;
    }
    answerOne(): void {
        this.#waiting.shift()?.();
    }
    answerAll(): void {
        this.#hesitates = false;
        for (const answer of this.#waiting.splice(0)) answer();
    }
    readonly route = (request: IncomingMessage, response: ServerResponse): void => {
        const [, from = '0', to = ''] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '') ?? [];
        const part = this.#bytes.subarray(Number(from), to ? Number(to) + 1 : undefined);
        const range = `bytes ${from}-${Number(from) + part.length - 1}/${this.#bytes.length}`;
        this.#waiting.push(() => {
            response.writeHead(206, { 'content-length': part.length, 'accept-ranges': 'bytes', etag: '"one"', 'content-range': range });
            response.end(part);
        });
        if (!this.#hesitates) this.answerOne();
    };
}

/** Waits until so many answers are complete. */
function answered(page: Page, count: number): Promise<unknown> {
    const complete = (wanted: number): boolean => document.querySelectorAll('.answer .stats').length >= wanted && !document.querySelector('.send.stop');
    return page.waitForFunction(complete, count);
}

async function crashGpu(visit: Visit): Promise<void> {
    const client = await visit.context.browser()!.newBrowserCDPSession();
    await client.send('Browser.crashGpuProcess' as never).catch(() => undefined);
    await client.detach();
}

describe('the app on a GPU', { timeout: 3_000_000 }, () => {
    let site: TestServer, visit: Visit, page: Page;
    before(async () => {
        site = await startSite({}, MODEL, { checks: false });
        ({ visit, page } = await begin(site, 48));
        await page.waitForSelector('.chip-ready');
    });
    after(async () => {
        await visit?.end();
        await site?.close();
    });

    const ask = async (text: string): Promise<void> => {
        await page.fill('#composer', text);
        await page.press('#composer', 'Enter');
    };
    const crash = (): Promise<void> => crashGpu(visit);
    const answers = (count: number): Promise<unknown> => answered(page, count);

    test('it answers on the GPU', async () => {
        assert.equal(await page.innerText('.chip-device'), 'GPU');
        await ask('Hello');
        await answers(1);
        assert.deepEqual(visit.foreign, []);
        assert.deepEqual(visit.complaints, []);
    });

    test('the model manager says where the per-layer table is', async () => {
        const site = page.url().split('#')[0];
        const back = page.url();
        for (const [gigabytes, where] of [[0.0043, 'stays in the file'], [0, 'is kept in GPU memory too']] as const) {
            await page.goto(`${site}#/settings`);
            await page.getByLabel('GPU memory limit (GB)').fill(String(gigabytes));
            await page.getByLabel('GPU memory limit (GB)').blur();
            await page.goto(`${site}#/models`);
            await page.getByRole('button', { name: 'Does it fit?' }).first().click();
            await page.waitForSelector(`.fit-yes >> text=The per-layer table (246 KB) ${where}`);
            assert.equal(await page.locator('.fit-yes >> text=Left in the file: 246 kB of tables').count(), gigabytes > 0 ? 1 : 0);
        }
        await page.goto(back);
        await page.waitForSelector('#composer');
    });

    test('the GPU is lost while words come: it comes back, and the answer goes on', async () => {
        await ask('Are you still there?');
        await page.waitForSelector('.live-line .speed');
        await crash();
        await page.waitForSelector('.notice >> text=The GPU was lost');
        await answers(2);
        assert.equal(await page.locator('.box-error').count(), 0);
        await ask('And then?');
        await answers(3);
        assert.equal(await page.locator('.box-error').count(), 0);
    });

    test('no GPU comes back: the CPU goes on with the same conversation', async () => {
        await crash(); // after the second crash on a page there is no adapter
        await page.waitForSelector('.chip-failed');
        await page.goto(`${page.url().split('#')[0]}#/models`);
        await page.getByRole('button', { name: 'Continue on the CPU' }).click();
        await page.waitForSelector('.chip-ready');
        assert.equal(await page.innerText('.chip-device'), 'CPU');
        await page.locator('.row a').first().click();
        await ask('And now?');
        await answers(4);
        assert.equal(await page.locator('.box-error').count(), 0);
    });
});

// A visit of its own for each: after the second crash there is no adapter.
for (const moment of ['while weights are brought there', 'while a question is read']) {
    test(`the app's GPU is lost ${moment}: it answers all the same`, { timeout: 600_000 }, async () => {
        const model = new HesitantModel(spreadGguf(readFileSync(MODEL), 1 << 18));
        const site = await startSite({ '/slow.gguf': model.route }, MODEL, { checks: false });
        const slow = { id: 'server:slow', name: 'slow', source: { kind: 'server', url: '/slow.gguf', ollama: {} } };
        const { visit, page } = await begin(site, 6, moment.startsWith('while weights') ? { lastModel: JSON.stringify(slow) } : {});
        try {
            const ask = async (text: string): Promise<void> => {
                await page.fill('#composer', text);
                await page.press('#composer', 'Enter');
            };
            const answers = (count: number): Promise<unknown> => answered(page, count);
            if (moment.startsWith('while weights')) {
                const some = (): boolean => { // more than the vectors, which come first and stay in memory
                    const bar = document.querySelector<HTMLProgressElement>('.loading progress');
                    return /^Loading weights/.test(document.querySelector('.load-line')?.textContent ?? '') && bar !== null && bar.value > bar.max / 4 && bar.value < bar.max;
                };
                while (!(await page.evaluate(some))) model.answerOne(); // the rest waits until the GPU is lost
                await crashGpu(visit);
                model.answerAll();
                await ask('Hello');
            } else {
                await page.waitForSelector('.chip-ready');
                await ask('word '.repeat(250));
                await page.waitForSelector('.prompt-progress');
                await crashGpu(visit);
                await page.waitForSelector('.notice >> text=The GPU was lost');
            }
            await answers(1);
            await ask('And then?');
            await answers(2);
            assert.equal(await page.locator('.box-error').count(), 0);
            assert.equal(await page.innerText('.chip-device'), 'GPU');
            assert.equal(site.requests.includes('/models/box.gguf'), !moment.startsWith('while weights'), 'no other model takes its place');
        } finally {
            await visit.end();
            await site.close();
        }
    });
}

test('a picked model that does not fit on the GPU is copied into the browser, and opened from there', { timeout: 600_000 }, async () => {
    const path = 'tests/fixtures/tiny-moe.gguf', { size, mtimeMs } = statSync(path);
    const lastModel = JSON.stringify({ id: 'file:tiny-moe.gguf', name: 'tiny-moe', source: { kind: 'file', files: [] } }); // so that the box is not loaded
    const site = await startSite({}, MODEL, { checks: false });
    const { visit, page } = await begin(site, 6, { lastModel, gpuMemory: 0.0031 });
    try {
        await page.evaluate(() => { delete (globalThis as { showOpenFilePicker?: unknown }).showOpenFilePicker; });
        await page.goto(`${site.origin}/#/models`);
        const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: 'Choose file' }).click()]);
        await chooser.setFiles(path);
        const offer = page.getByRole('button', { name: 'Copy into this browser' });
        await offer.waitFor();
        assert.match(await page.innerText('.current-model'), /parts of it are read from its file while it answers/);
        await page.goto(`${site.origin}/#/`);
        await page.getByRole('link', { name: 'A copy' }).click();
        // Another tab is about to store the file, so the copy waits and can be stopped.
        const lock = `gemmule/v1/${ModelCache.key(`file:///tiny-moe.gguf?bytes=${size}&modified=${Math.floor(mtimeMs)}`)}`;
        await page.evaluate((name) => new Promise<void>((held) => {
            const until = new Promise<void>((release) => Object.assign(globalThis, { release }));
            void navigator.locks.request(name, () => (held(), until));
        }), lock);
        await offer.click();
        await page.waitForSelector('.current-model >> text=Waiting for another tab to store this file: tiny-moe');
        await page.locator('.current-model').getByRole('button', { name: 'Stop' }).click();
        await offer.waitFor();
        assert.equal(await page.locator('.stored li').count(), 0);
        await page.evaluate(() => (globalThis as unknown as { release(): void }).release());
        await offer.click();
        const stored = page.locator('.stored li', { hasText: 'tiny-moe' });
        await stored.getByRole('button', { name: 'Loaded' }).waitFor();
        assert.equal(await offer.count(), 0);
        await page.goto(`${site.origin}/#/`);
        await page.fill('#composer', 'Hello');
        await page.press('#composer', 'Enter');
        await answered(page, 1);
        await page.goto(`${site.origin}/#/about`);
        await page.waitForSelector('.facts >> text=Experts found on the GPU');
        await page.goto(`${site.origin}/#/models`);
        await stored.getByRole('button', { name: 'Delete' }).click();
        await stored.waitFor({ state: 'detached' });
        assert.deepEqual(visit.complaints, []);
    } finally {
        await visit.end();
        await site.close();
    }
});
