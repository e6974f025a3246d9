// The app on WebGPU in Chromium (SwiftShader): it answers there, and a lost GPU does not end the conversation. Needs build/web.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { startSite, Visit } from '../../app/tests/site.ts';
import type { TestServer } from './server.ts';

/** A visit to the app with short answers; the model is being loaded. */
async function begin(site: TestServer, maxTokens: number): Promise<{ visit: Visit; page: Page }> {
    const visit = await Visit.begin({ gpu: true });
    const page = await visit.page();
    await page.goto(`${site.origin}/icon-maskable.svg`); // of the same origin, and no app
    await page.evaluate((most) => localStorage.setItem('gemmule.settings', JSON.stringify({ maxTokens: most, sampling: { seed: 7 } })), maxTokens);
    await page.goto(site.origin);
    return { visit, page };
}

async function crashGpu(visit: Visit): Promise<void> {
    const client = await visit.context.browser()!.newBrowserCDPSession();
    await client.send('Browser.crashGpuProcess' as never).catch(() => undefined);
    await client.detach();
}

describe('the app on a GPU', { timeout: 600_000 }, () => {
    let site: TestServer, visit: Visit, page: Page;
    before(async () => {
        site = await startSite();
        ({ visit, page } = await begin(site, 48));
        await page.waitForSelector('.chip-ready', { timeout: 180_000 });
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
    const answers = (count: number): Promise<unknown> => page.waitForFunction((wanted) => document.querySelectorAll('.answer .stats').length >= wanted && !document.querySelector('.send.stop'), count, { timeout: 240_000 });

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
        for (const [gigabytes, where] of [[0.0043, 'stays in the file'], [0, 'is in GPU memory, too']] as const) {
            await page.goto(`${site}#/settings`);
            await page.getByLabel('GPU memory, GB').fill(String(gigabytes));
            await page.getByLabel('GPU memory, GB').blur();
            await page.goto(`${site}#/models`);
            await page.getByRole('button', { name: 'Does it fit?' }).first().click();
            await page.waitForSelector(`.fit-yes >> text=Its per-layer table of 246 KB ${where}`);
            assert.equal(await page.locator('.fit-yes >> text=in the file stay 246 kB of tables').count(), gigabytes > 0 ? 1 : 0);
        }
        await page.goto(back);
        await page.waitForSelector('#composer');
    });

    test('the GPU is lost while words come: it comes back, and the answer goes on', async () => {
        await ask('Are you still there?');
        await page.waitForSelector('.live-line .speed');
        await crash();
        await page.waitForSelector('.notice >> text=The GPU was lost', { timeout: 120_000 });
        await answers(2);
        assert.equal(await page.locator('.box-error').count(), 0);
        await ask('And then?');
        await answers(3);
        assert.equal(await page.locator('.box-error').count(), 0);
    });

    test('no GPU comes back: the CPU goes on with the same conversation', async () => {
        await crash(); // after the second crash on a page there is no adapter
        await page.waitForSelector('.chip-failed', { timeout: 120_000 });
        await page.goto(`${page.url().split('#')[0]}#/models`);
        await page.getByRole('button', { name: 'Go on with the CPU' }).click();
        await page.waitForSelector('.chip-ready', { timeout: 120_000 });
        assert.equal(await page.innerText('.chip-device'), 'CPU');
        await page.locator('.row a').first().click();
        await ask('And now?');
        await answers(4);
        assert.equal(await page.locator('.box-error').count(), 0);
    });
});

// A visit of its own for each: after the second crash there is no adapter.
for (const moment of ['while the model is brought there', 'while a question is read']) {
    test(`the app's GPU is lost ${moment}: it answers all the same`, { timeout: 300_000 }, async () => {
        const site = await startSite();
        const { visit, page } = await begin(site, 6);
        try {
            const ask = async (text: string): Promise<void> => {
                await page.fill('#composer', text);
                await page.press('#composer', 'Enter');
            };
            const answers = (count: number): Promise<unknown> => page.waitForFunction((wanted) => document.querySelectorAll('.answer .stats').length >= wanted && !document.querySelector('.send.stop'), count, { timeout: 120_000 });
            if (moment.startsWith('while the model')) {
                await page.waitForFunction(() => /Checking the device|Loading weights/.test(document.body.innerText), null, { timeout: 60_000, polling: 20 });
                await crashGpu(visit);
                await ask('Hello');
            } else {
                await page.waitForSelector('.chip-ready', { timeout: 180_000 });
                await ask('word '.repeat(250));
                await page.waitForSelector('.prompt-progress', { timeout: 60_000 });
                await crashGpu(visit);
                await page.waitForSelector('.notice >> text=The GPU was lost', { timeout: 120_000 });
            }
            await answers(1);
            await ask('And then?');
            await answers(2);
            assert.equal(await page.locator('.box-error').count(), 0);
        } finally {
            await visit.end();
            await site.close();
        }
    });
}
