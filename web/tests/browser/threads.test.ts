/* Threads on wasm in real browsers, with the built package (web/dist): on a page that is cross-origin isolated, and on one that is not. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { launchChromium, launchFirefox, PATIENCE } from './browsers.ts';
import { type TestServer, startServer } from './server.ts';

const POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'";
const ISOLATED = { 'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp' };

/* What Playwright and Puppeteer have in common. */
interface Page {
    setDefaultTimeout(milliseconds: number): void;
    goto(url: string): Promise<unknown>;
    evaluate(expression: string): Promise<unknown>;
    workers(): unknown[];
}
interface Browser {
    newPage(): Promise<Page>;
    close(): Promise<void>;
}

let plain: TestServer, isolated: TestServer;
before(async () => {
    const files = { '/': 'web/tests/browser/blank.html', '/model.gguf': 'tests/fixtures/tiny-dense.gguf' };
    plain = await startServer({ files, headers: { 'content-security-policy': POLICY } });
    isolated = await startServer({ files, headers: { 'content-security-policy': POLICY, ...ISOLATED } });
});
after(async () => {
    await plain?.close();
    await isolated?.close();
});

interface Answer {
    threads: number;
    device: string;
    note: string;
    tokens: number[];
    finish: string;
}

/* Greedy tokens with this many threads, one more answer that is stopped, then the end. */
const script = (threads: number) => `(async () => {
    const { Gemmule } = await import('/web/dist/index.js');
    const engine = await Gemmule.load('/model.gguf', { backend: 'wasm', cache: false, threads: ${threads} });
    const session = await engine.session();
    for await (const _ of session.reply([{ role: 'user', content: 'Hello '.repeat(30) }], { maxTokens: 40, sampling: { temperature: 0 } }));
    const tokens = [...await session.tokens()];
    const controller = new AbortController();
    const reply = session.reply([{ role: 'user', content: 'Hi' }], { sampling: { temperature: 0, logit_bias: { 368: 100 } }, signal: controller.signal });
    let pieces = 0;
    for await (const piece of reply) if (++pieces === 5) controller.abort();
    const { finish } = await reply.stats;
    await engine.unload();
    return { threads: engine.info.threads, device: engine.info.device, note: engine.info.note, tokens, finish };
})()`;

/* Terminates the engine's worker. Its threads end with it, which the test checks at its end. */
const KILLED = `(async () => {
    const { Gemmule } = await import('/web/dist/index.js');
    const Real = Worker, workers = [];
    globalThis.Worker = function (...args) { const worker = new Real(...args); workers.push(worker); return worker; };
    const engine = await Gemmule.load('/model.gguf', { backend: 'wasm', cache: false, threads: 3 });
    globalThis.Worker = Real;
    if (workers.length !== 3) throw new Error(workers.length + ' workers instead of 3');
    workers[0].terminate();
    return engine.session().then(() => 'a session', (error) => error.name);
})()`;

const SECOND_WORKER_IS_MISSING = `{
    const Real = Worker;
    let started = 0;
    globalThis.Worker = function (url, options) { return new Real(++started > 1 ? '/missing.js' : url, options); };
}`;

const BROWSERS: { name: string; launch(): Promise<Browser> }[] = [
    { name: 'Chromium', launch: launchChromium },
    { name: 'Firefox', launch: launchFirefox },
];

for (const { name, launch } of BROWSERS) {
    test(`${name}: two threads give the same answer as one; without isolation there is one`, { timeout: 600_000 }, async () => {
        const browser = await launch();
        try {
            const page = await browser.newPage();
            page.setDefaultTimeout(PATIENCE);
            await page.goto(`${plain.origin}/`);
            assert.equal(await page.evaluate('crossOriginIsolated'), false);
            const alone = (await page.evaluate(script(2))) as Answer;
            assert.deepEqual([alone.threads, alone.note, alone.finish], [1, '', 'cancelled']);
            assert.ok(!plain.requests.some((path) => path.includes('gemmule-threads')));
            await page.goto(`${isolated.origin}/`);
            assert.equal(await page.evaluate('crossOriginIsolated'), true);
            for (const threads of [1, 2, 3]) {
                const answer = (await page.evaluate(script(threads))) as Answer;
                assert.deepEqual([answer.threads, answer.note, answer.finish], [threads, '', 'cancelled']);
                assert.equal(answer.device, `cpu (wasm, ${threads} thread${threads === 1 ? '' : 's'})`);
                assert.deepEqual(answer.tokens, alone.tokens);
            }
            assert.equal(await page.evaluate(KILLED), 'WorkerDied');
            await page.evaluate(SECOND_WORKER_IS_MISSING);
            const without = (await page.evaluate(script(2))) as Answer;
            assert.equal(without.threads, 1);
            assert.match(without.note, /^running on 1 thread instead of 2: .*cannot load .*worker\.js$/);
            assert.deepEqual(without.tokens, alone.tokens);
            for (const end = Date.now() + PATIENCE; page.workers().length; ) {
                assert.ok(Date.now() < end, `${page.workers().length} workers are left`);
                await new Promise((resolve) => setTimeout(resolve, 20));
            }
        } finally {
            await browser.close();
        }
    });
}
