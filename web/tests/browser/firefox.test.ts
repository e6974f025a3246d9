/* The built package (web/dist) in Firefox. Its storage has only exclusive handles, so a second reader reads the File. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { checkAdapters } from './adapter_cases.ts';
import { launchFirefox, PATIENCE } from './browsers.ts';
import { checkOtherPictures, checkPictures, checkSounds } from './media_cases.ts';
import { type TestServer, startServer } from './server.ts';

let server: TestServer;
let browser: Awaited<ReturnType<typeof launchFirefox>>;
before(async () => {
    server = await startServer({
        files: { '/model.gguf': 'tests/fixtures/tiny-dense.gguf' },
        routes: { '/': (_, response) => void response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>a page</title>') },
    });
    browser = await launchFirefox();
});
after(async () => {
    await browser?.close();
    await server?.close();
});

test('a model is downloaded once, and read by two tabs', { timeout: 600_000 }, async () => {
    const load = `(async () => {
        const { Gemmule } = await import('/web/dist/index.js');
        window.engine = await Gemmule.load('/model.gguf', { backend: 'wasm' });
        const { choices } = await window.engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hello' }], max_tokens: 8, seed: 4 });
        return choices[0].message.content;
    })()`;
    const [one, two] = [await browser.newPage(), await browser.newPage()];
    const texts: unknown[] = [];
    for (const page of [one, two]) {
        page.setDefaultTimeout(PATIENCE);
        await page.goto(`${server.origin}/`);
        texts.push(await page.evaluate(load));
    }
    assert.ok(String(texts[0]).length > 0);
    assert.equal(texts[1], texts[0]);
    assert.equal(server.requests.filter((path) => path === '/model.gguf').length, 2, 'a probe and a download');
    const entries = await two.evaluate(`(async () => {
        const { ModelCache } = await import('/web/dist/index.js');
        return (await (await ModelCache.open()).list()).map(({ done, stored, size }) => done && stored === size);
    })()`);
    assert.deepEqual(entries, [true]);
});

test('a file is copied into the cache and loaded from there', { timeout: 600_000 }, async () => {
    const page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE);
    await page.goto(`${server.origin}/`);
    const copy = await page.evaluate(`(async () => {
        const { Gemmule, copyModel } = await import('/web/dist/index.js');
        const { key, url, done } = await copyModel(new File([await (await fetch('/model.gguf')).blob()], 'copy.gguf', { lastModified: 1 }));
        const engine = await Gemmule.load({ cached: key }, { backend: 'wasm' });
        await engine.unload();
        return [url.split('?')[0], done, engine.info.name];
    })()`);
    assert.deepEqual(copy, ['file:///copy.gguf', true, 'Tiny Dense']);
});

test('pictures and sounds are decoded as they were made', { timeout: 600_000 }, async () => {
    const page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE);
    await page.goto(`${server.origin}/`);
    for (const check of [checkPictures, checkOtherPictures, checkSounds]) await check((script) => page.evaluate(script));
});

test('adapters are kept, there after a reload, exported and deleted', { timeout: 600_000 }, async () => {
    const page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE);
    await page.goto(`${server.origin}/`);
    await checkAdapters({ evaluate: (script) => page.evaluate(script), reload: () => page.goto(`${server.origin}/?again`) });
});
