/* The built package (web/dist) in Chromium: storage, folders, workers, policies, and a GPU that crashes. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { type BrowserContext, type Page, chromium } from 'playwright-core';
import { firstLayer } from '../support/gguf.ts';
import { checkAdapters } from './adapter_cases.ts';
import { CHROMIUM_FLAGS, launchChromium, PATIENCE, which } from './browsers.ts';
import { checkBox, checkMicrophone, checkOtherPictures, checkPictures, checkRecordedVideo, checkSounds, checkVideos, fakeMicrophone } from './media_cases.ts';
import { type TestServer, startServer } from './server.ts';

declare global {
    interface Window {
        seen: number;
        text: string;
        events: string[];
    }
}

const MODEL = readFileSync('tests/fixtures/tiny-dense.gguf');
const ONE_LAYER = firstLayer(MODEL); // with fewer kernels, which a software GPU compiles for seconds
const POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:";
const UNCHECKED = `${process.env.GEMMULE_WASM ?? 'build/wasm'}/gemmule-unchecked.wasm`;
const BIG = 40_000_000;

/* How the model's server behaves. */
const behaviour = { cutAfter: Infinity, etag: '"one"', gone: false, pause: 0, asked: [] as string[] };

async function serveModel(bytes: Buffer, request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.setMaxListeners(0);
    behaviour.asked.push(request.headers.range ?? '');
    if (behaviour.gone) return void response.writeHead(503).end();
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const start = Number(range?.[1] ?? 0);
    const end = range?.[2] ? Math.min(Number(range[2]) + 1, bytes.length) : bytes.length;
    response.writeHead(range ? 206 : 200, {
        'content-length': end - start, etag: behaviour.etag, ...(range ? { 'content-range': `bytes ${start}-${end - 1}/${bytes.length}` } : {}),
    });
    for (let at = start; at < end; at += 262144) {
        if (at - start >= behaviour.cutAfter) return void response.destroy();
        if (!response.write(bytes.subarray(at, Math.min(at + 262144, end)))) await new Promise((resolve) => response.once('drain', resolve).once('close', resolve));
        if (behaviour.pause) await new Promise((resolve) => setTimeout(resolve, behaviour.pause));
        if (response.destroyed) return;
    }
    response.end();
}

/* A larger model file: tiny-dense followed by other bytes, which a GGUF may have. */
const padded = Buffer.concat([MODEL, createHash('sha512').update('x').digest(), Buffer.alloc(BIG - MODEL.length - 64, 7)]);

let server: TestServer;
let context: BrowserContext;
const profile = mkdtempSync(join(tmpdir(), 'gemmule-package-'));
before(async () => {
    server = await startServer({
        files: { '/model.gguf': 'tests/fixtures/tiny-dense.gguf', '/unchecked.wasm': UNCHECKED, '/unchecked/gemmule-train.wasm': UNCHECKED },
        headers: { 'content-security-policy': POLICY },
        routes: {
            '/': (_, response) => void response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>a page</title>'),
            '/one-layer.gguf': (_, response) => void response.writeHead(200, { 'content-length': ONE_LAYER.length }).end(ONE_LAYER),
            '/big.gguf': (request, response) => void serveModel(padded, request, response),
        },
    });
    const args = [...CHROMIUM_FLAGS, ...fakeMicrophone(profile)];
    context = await chromium.launchPersistentContext(profile, { executablePath: which('chromium'), headless: true, timeout: PATIENCE, args });
});
after(async () => {
    await context?.close();
    await server?.close();
    rmSync(profile, { recursive: true, force: true });
});

interface Visit {
    page: Page;
    complaints: string[];
    /** Runs a script that can use the package's exports. */
    run<T>(script: string): Promise<T>;
}

async function visit(from: BrowserContext = context, path = '/', origin = server.origin): Promise<Visit> {
    const page = await from.newPage();
    page.setDefaultTimeout(PATIENCE);
    const complaints: string[] = [];
    page.on('pageerror', (error) => complaints.push(error.message));
    page.on('console', (message) => message.type() === 'error' && !message.location().url.endsWith('/favicon.ico') && complaints.push(message.text()));
    await page.goto(origin + path);
    const run = <T>(script: string) =>
        page.evaluate(`(async () => {
            const { Gemmule, GemmuleError, ModelCache, OllamaFolder, copyModel } = await import('/web/dist/index.js');
            const plain = (error) => ({ name: error.name, message: error.message, detail: error.detail, own: error instanceof GemmuleError });
            const caught = (promise) => promise.then(() => null, plain);
            const nameOf = async (source, options) => { const engine = await Gemmule.load(source, { backend: 'wasm', ...options }); await engine.unload(); return engine.info.name; };
            const textOf = async (reply) => { let text = ''; for await (const piece of reply) if (piece.kind === 'content') text += piece.text; return text; };
            const HELLO = [{ role: 'user', content: 'Hello' }];
            ${script}
        })()`) as Promise<T>;
    return { page, complaints, run };
}

interface Caught {
    name: string;
    message: string;
    detail: Record<string, unknown>;
    own: boolean;
}

// ---- the example ----

test('the example runs under its policy, without special headers', { timeout: 600_000 }, async () => {
    const { page, complaints } = await visit(context, '/web/example/index.html');
    assert.equal(await page.evaluate('crossOriginIsolated'), false);
    await page.setInputFiles('#file', 'tests/fixtures/tiny-dense.gguf');
    await page.waitForFunction(() => document.getElementById('status')!.textContent!.startsWith('Tiny Dense on'));
    await page.click('#ask button');
    await page.waitForFunction(() => document.getElementById('answer')!.textContent!.length > 20);
    assert.deepEqual(complaints, []);
    await page.close();
});

// ---- pictures and sounds ----

test('pictures, sounds, videos and the microphone give the pixels and samples that were made', { timeout: 600_000 }, async () => {
    const { page, complaints } = await visit();
    for (const check of [checkPictures, checkOtherPictures, checkSounds, checkMicrophone, checkVideos, checkRecordedVideo]) await check((script) => page.evaluate(script));
    assert.deepEqual(complaints, []);
    await page.close();
});

test('the model in the box sees and hears, on the CPU and on the GPU', { timeout: 14_000_000 }, async () => {
    const { page, complaints } = await visit();
    const evaluate = (script: string) => page.evaluate(script);
    const answers = (options: object) => checkBox(evaluate, options, process.env['GEMMULE_LONG'] === '1');
    const onCpu = await answers({ backend: 'wasm' });
    assert.deepEqual(await answers({ backend: 'gpu', wasmUrl: '/unchecked.wasm' }), onCpu);
    assert.deepEqual(complaints, []);
    await page.close();
});

// ---- training ----

test('five steps on the GPU have the losses of the CPU', { timeout: 3_000_000 }, async () => {
    const { page, complaints, run } = await visit();
    const model = process.env['GEMMULE_LONG'] === '1' ? 'models/box.gguf' : 'tests/fixtures/two-layers.gguf';
    const { wasm, gpu } = await run<{ wasm: number[]; gpu: number[] }>(`
        const losses = {}, data = Array.from({ length: 6 }, (_, i) => ({ prompt: 'Question ' + i, completion: 'Answer ' + i + '.' }));
        for (const backend of ['wasm', 'gpu']) {
            const engine = await Gemmule.load(await (await fetch('/${model}')).blob(), { backend, training: true, wasmUrl: '/unchecked/gemmule.wasm' });
            losses[backend] = [];
            for await (const event of engine.train({ data, rank: 2, batch: 2, maxSteps: 5, rate: 1e-2, store: false }))
                if (event.kind === 'step') losses[backend].push(event.loss);
            if (engine.info.backend !== backend) throw new Error(engine.info.device);
            await engine.unload();
        }
        return losses;`);
    assert.equal(gpu.length, 5);
    assert.ok(wasm[4]! < wasm[0]!, `it learns: ${wasm.join()}`);
    for (const [step, loss] of gpu.entries()) assert.ok(Math.abs(loss - wasm[step]!) < 1e-3 * wasm[step]!, `step ${step + 1}: ${loss}, on the CPU ${wasm[step]}`);
    assert.deepEqual(complaints, []);
    await page.close();
});

// ---- storage ----

test('a broken download is resumed, then read without the network', { timeout: 600_000 }, async () => {
    const { page, run } = await visit();
    const url = `${server.origin}/big.gguf`;
    Object.assign(behaviour, { cutAfter: 15_000_000, gone: false, asked: [] });
    const stopped = await run<Caught>(`
        const controller = new AbortController();
        const onProgress = ({ phase, done }) => phase === 'download' && done > 10_000_000 && controller.abort();
        return caught(Gemmule.load('${url}', { backend: 'wasm', signal: controller.signal, onProgress }));`);
    assert.deepEqual([stopped.name, stopped.own], ['Aborted', true]);
    const [part] = await run<{ done: boolean; stored: number; size: number }[]>(`return (await ModelCache.open()).list();`);
    assert.ok(!part!.done && part!.stored > 9_000_000 && part!.stored < BIG && part!.size === BIG, JSON.stringify(part));
    // However much is stored by then, the rest takes two connections.
    Object.assign(behaviour, { cutAfter: Math.ceil((BIG - part!.stored) / 2), asked: [] });
    const loaded = await run<{ phases: string[]; name: string; list: { done: boolean; sha256: string }[] }>(`
        const phases = new Set();
        const engine = await Gemmule.load('${url}', { backend: 'wasm', onProgress: ({ phase }) => phases.add(phase) });
        await engine.unload();
        return { phases: [...phases], name: engine.info.name, list: await (await ModelCache.open()).list() };`);
    assert.deepEqual([loaded.name, loaded.phases.slice(0, 2)], ['Tiny Dense', ['verify', 'download']]);
    assert.equal(loaded.list[0]!.sha256, createHash('sha256').update(padded).digest('hex'));
    assert.match(behaviour.asked[1]!, /^bytes=\d{7,8}-$/, behaviour.asked.join());
    assert.ok(behaviour.asked.length >= 3, 'the server cut the connection once more');
    Object.assign(behaviour, { gone: true, cutAfter: Infinity });
    await page.reload();
    assert.equal(await run(`return nameOf('${url}');`), 'Tiny Dense');
    const names = await run<string[]>(`
        const [{ key }] = await (await ModelCache.open()).list();
        let folder = await navigator.storage.getDirectory();
        for (const name of ['gemmule', 'v1', 'blobs', key]) folder = await folder.getDirectoryHandle(name);
        return Promise.all([nameOf({ cached: key }), nameOf(await folder.getFileHandle('data'))]);`);
    assert.deepEqual(names, ['Tiny Dense', 'Tiny Dense']);
    behaviour.gone = false;
    const webPage = await run<Caught>(`return caught(Gemmule.load('/web/example/index.html', { backend: 'wasm' }));`);
    assert.match(webPage.message, /not a GGUF file: it starts with "<!do" \(it looks like a web page\)/);
    await run(`await (await ModelCache.open()).clear();`);
    assert.deepEqual(await run(`return (await ModelCache.open()).list();`), []);
    await page.close();
});

test('no space: the error has numbers, the part is kept, and the model runs without being stored', { timeout: 600_000 }, async () => {
    const { page, run } = await visit();
    const session = await context.newCDPSession(page);
    const url = `${server.origin}/big.gguf`;
    await session.send('Storage.overrideQuotaForOrigin', { origin: server.origin, quotaSize: 20_000_000 });
    const before = await run<Caught>(`return caught(Gemmule.load('${url}', { backend: 'wasm' }));`);
    assert.equal(before.name, 'QuotaExceeded', before.message);
    const first = before.detail as { size: number; stored: number; needed: number };
    assert.ok(first.size === BIG && first.stored > 10_000_000 && first.stored < 20_000_000 && first.stored + first.needed === BIG, JSON.stringify(first));
    assert.match(before.message, /1\d\.\d MB of 40\.0 MB are stored and kept; 2\d\.\d MB more are needed/);
    await run(`await (await ModelCache.open()).clear();`);
    assert.equal(await run(`return nameOf('${url}', { cache: 'if-it-fits' });`), 'Tiny Dense');
    // Space runs out during the download.
    await session.send('Storage.overrideQuotaForOrigin', { origin: server.origin, quotaSize: 200_000_000 });
    behaviour.pause = 20;
    const under = run<Caught>(`
        window.seen = 0;
        return caught(Gemmule.load('${url}', { backend: 'wasm', onProgress: ({ phase, done }) => { if (phase === 'download') window.seen = done; } }));`);
    await page.waitForFunction(() => window.seen > 3_000_000);
    await session.send('Storage.overrideQuotaForOrigin', { origin: server.origin, quotaSize: 8_000_000 });
    const middle = await under;
    behaviour.pause = 0;
    assert.equal(middle.name, 'QuotaExceeded', middle.message);
    const { stored, needed } = middle.detail as { stored: number; needed: number };
    assert.ok(stored > 1_000_000 && stored + needed === BIG, JSON.stringify(middle.detail));
    await session.send('Storage.overrideQuotaForOrigin', { origin: server.origin });
    behaviour.asked = [];
    assert.equal(await run(`return nameOf('${url}');`), 'Tiny Dense');
    assert.match(behaviour.asked[1]!, /^bytes=[1-9]\d*-$/);
    await run(`await (await ModelCache.open()).clear();`);
    await page.close();
});

test('two tabs: one downloads, the other waits; both read the same file', { timeout: 600_000 }, async () => {
    const [one, two] = [await visit(), await visit()];
    const load = `
        const phases = new Set();
        const engine = await Gemmule.load('${server.origin}/big.gguf', { backend: 'wasm', onProgress: ({ phase }) => phases.add(phase) });
        window.engine = engine;
        return [...phases];`;
    Object.assign(behaviour, { pause: 5, asked: [] });
    const [first, second] = await Promise.all([one.run<string[]>(load), two.run<string[]>(load)]);
    behaviour.pause = 0;
    assert.equal([first, second].filter((phases) => phases.includes('download')).length, 1);
    assert.equal([first, second].filter((phases) => phases.includes('wait')).length, 1);
    assert.equal(behaviour.asked.length, 2);
    const say = `return textOf((await window.engine.session()).reply(HELLO, { maxTokens: 8, sampling: { seed: 1 } }));`;
    assert.equal(await one.run(say), await two.run(say));
    await Promise.all([one.run(`await window.engine.unload();`), two.run(`await window.engine.unload();`)]);
    await one.run(`await (await ModelCache.open()).clear();`);
    await Promise.all([one.page.close(), two.page.close()]);
});

// ---- Ollama's folder ----

test('a file is copied into the cache; a copy that is stopped or has no space leaves nothing there', { timeout: 600_000 }, async () => {
    const { page, run } = await visit();
    const file = `new File([await (await fetch('/big.gguf')).blob()], 'my model.gguf', { lastModified: 1 })`;
    const copied = await run<{ stopped: Caught; left: unknown[]; phases: string[]; entry: { key: string; url: string }; again: string; name: string }>(`
        const file = ${file}, stop = new AbortController(), phases = new Set();
        const stopped = await caught(copyModel(file, { signal: stop.signal, onProgress: () => stop.abort() }));
        const left = await (await ModelCache.open()).list();
        const entry = await copyModel(file, { onProgress: ({ phase }) => phases.add(phase) });
        const { key: again } = await copyModel(file, { onProgress: () => { throw new Error('copied again'); } });
        return { stopped, left, phases: [...phases], entry, again, name: await nameOf({ cached: entry.key }) };`);
    assert.deepEqual([copied.stopped.name, copied.left, copied.phases, copied.name], ['Aborted', [], ['copy'], 'Tiny Dense']);
    assert.deepEqual(copied.entry, {
        key: copied.again, url: `file:///my%20model.gguf?bytes=${BIG}&modified=1`, size: BIG, stored: BIG,
        sha256: createHash('sha256').update(padded).digest('hex'), done: true, problem: '',
    });
    await run(`await (await ModelCache.open()).clear();`);
    const session = await context.newCDPSession(page);
    await session.send('Storage.overrideQuotaForOrigin', { origin: server.origin, quotaSize: 20_000_000 });
    const full = await run<Caught>(`return caught(copyModel(${file}));`);
    await session.send('Storage.overrideQuotaForOrigin', { origin: server.origin });
    assert.deepEqual([full.name, full.detail.needed], ['QuotaExceeded', BIG], full.message);
    assert.match(full.message, /it needs 40\.0 MB, and the browser gives this page 1\d\.\d MB/);
    assert.deepEqual(await run(`return (await ModelCache.open()).list();`), []);
    await page.close();
});

test("Ollama's folder is picked, remembered, and found again after a reload", { timeout: 600_000 }, async () => {
    const { page, run } = await visit();
    const digest = createHash('sha256').update(MODEL).digest('hex');
    // A real directory handle, of the private file system, with the files of Ollama.
    const pick = `
        const root = await navigator.storage.getDirectory();
        window.showDirectoryPicker = async () => (await root.getDirectoryHandle('.ollama', { create: true }));`;
    await run(`${pick}
        const write = async (path, content) => {
            const names = path.split('/');
            let folder = root;
            for (const name of names.slice(0, -1)) folder = await folder.getDirectoryHandle(name, { create: true });
            const stream = await (await folder.getFileHandle(names.at(-1), { create: true })).createWritable();
            await stream.write(content);
            await stream.close();
        };
        const model = await (await fetch('/model.gguf')).blob();
        const layer = { mediaType: 'application/vnd.ollama.image.model', digest: 'sha256:${digest}', size: model.size };
        await write('.ollama/models/blobs/sha256-${digest}', model);
        const system = { mediaType: 'application/vnd.ollama.image.system', digest: 'sha256:' + 'b'.repeat(64), size: 9 };
        await write('.ollama/models/blobs/sha256-' + 'b'.repeat(64), 'Be brief.');
        await write('.ollama/models/manifests/registry.ollama.ai/library/gemma4/tiny', JSON.stringify({ layers: [layer, system] }));
        const lost = { ...layer, digest: 'sha256:' + 'a'.repeat(64) };
        await write('.ollama/models/manifests/registry.ollama.ai/library/gemma4/lost', JSON.stringify({ layers: [lost] }));`);
    const first = await run<{ name: string; problem: string }[]>(`${pick}
        return (await (await OllamaFolder.pick()).list()).map(({ name, problem }) => ({ name, problem }));`);
    assert.deepEqual(first.map(({ name }) => name), ['gemma4:lost', 'gemma4:tiny']);
    assert.match(first[0]!.problem, /the model layer is missing/);
    await page.reload();
    const info = await run<{ name: string; text: string; key: string; ollama: unknown }>(`
        if (!(await OllamaFolder.hasSaved())) throw new Error('the folder was not kept');
        const folder = await OllamaFolder.saved({ ask: true });
        const engine = await Gemmule.load(await folder.resolve('gemma4:tiny'), { backend: 'wasm' });
        const text = await textOf((await engine.session()).reply(HELLO, { maxTokens: 8 }));
        await engine.unload();
        const { key, ollama } = await copyModel(await folder.resolve('gemma4:tiny'));
        await (await ModelCache.open()).clear();
        await OllamaFolder.forget();
        return { name: engine.info.name, text, key, ollama };`);
    assert.deepEqual([info.name, info.key, info.ollama], ['Tiny Dense', digest, { system: 'Be brief.' }]);
    assert.ok(info.text.length > 0);
    assert.equal(await run(`return OllamaFolder.saved();`), null);
    await page.close();
});

test('adapters are kept, there after a reload, exported and deleted', { timeout: 600_000 }, async () => {
    const { page, complaints } = await visit();
    await checkAdapters(page);
    assert.deepEqual(complaints.filter((text) => !/404/.test(text)), []);
    await page.close();
});

// ---- the worker ----

test('when the worker just ends, everything is rejected', { timeout: 600_000 }, async () => {
    const { page, run } = await visit();
    const [dead, missing, other] = await run<Caught[]>(`
        const Real = window.Worker;
        let worker;
        window.Worker = class extends Real { constructor(...args) { super(...args); worker = this; } };
        const engine = await Gemmule.load('/model.gguf', { backend: 'wasm' });
        window.Worker = Real;
        const waiting = engine.session().then(async (session) => { worker.terminate(); return session.save(); });
        const dead = await caught(waiting);
        const missing = await caught(Gemmule.load('/model.gguf', { workerUrl: '/nothing.js' }));
        return [dead, missing, await caught(Gemmule.load('/model.gguf', { wasmUrl: '/nothing.wasm' }))];`);
    assert.deepEqual([dead!.name, dead!.own], ['WorkerDied', true]);
    assert.equal(missing!.name, 'WorkerDied');
    assert.match(other!.message, /nothing\.wasm.*404/);
    await page.close();
});

test("an address that the page's policy forbids is reported and not tried again", { timeout: 600_000 }, async () => {
    const { page, run } = await visit();
    const tried: string[] = [];
    page.on('console', (message) => /Content Security Policy/.test(message.text()) && tried.push(message.text()));
    const refusals = await run<Caught[]>(`
        const load = (url) => caught(Gemmule.load(url, { backend: 'wasm' }));
        return [await load('http://Models.example/A.gguf'), await load('https://models.example/A.gguf')];`);
    assert.deepEqual(refusals.map(({ name, message }) => [name, message]), [
        ['Network', 'cannot load http://models.example/A.gguf: the Content-Security-Policy of this page forbids it. Use an https: address, or download the file and open it from disk'],
        ['Network', 'cannot load https://models.example/A.gguf: the Content-Security-Policy of this page forbids it. It must allow this server in connect-src'],
    ]);
    assert.ok(tried.length <= 4, tried.join('\n')); // Chromium says it twice
    await page.close();
});

// ---- without WebGPU ----

test('without an adapter or without navigator.gpu there is wasm', { timeout: 600_000 }, async () => {
    const rules = '--host-resolver-rules=MAP plain.example 127.0.0.1';
    await using browser = await chromium.launch({ executablePath: which('chromium'), headless: true, timeout: PATIENCE, args: ['--no-sandbox', rules] });
    const fresh = await browser.newContext();
    const script = `
        const has = 'gpu' in navigator;
        const engine = await Gemmule.load('/model.gguf', { onProgress() {} });
        const text = await textOf((await engine.session()).reply(HELLO, { maxTokens: 5 }));
        const devices = await engine.devices();
        await engine.unload();
        const refused = await caught(Gemmule.load('/model.gguf', { backend: 'gpu' }));
        return { has, backend: engine.info.backend, text, devices: devices.map(({ backend }) => backend), refused };`;
    interface Seen {
        has: boolean;
        backend: string;
        text: string;
        devices: string[];
        refused: Caught;
    }
    // A page without https, not on localhost, is not a secure context: no WebGPU, no file storage, no locks.
    const port = new URL(server.origin).port;
    for (const [origin, has] of [[server.origin, true], [`http://plain.example:${port}`, false]] as const) {
        const { page, run, complaints } = await visit(fresh, '/', origin);
        const seen = await run<Seen>(script);
        assert.deepEqual([seen.has, seen.backend, seen.devices, seen.refused.name], [has, 'wasm', ['wasm'], 'NoWebGPU']);
        assert.ok(seen.text.length > 0);
        assert.deepEqual(complaints, []);
        await page.close();
    }
});

// ---- a GPU that crashes ----

test('the GPU crashes during an answer, which continues; when no GPU comes back, wasm takes over', { timeout: 600_000 }, async () => {
    await using browser = await launchChromium();
    const { page, run } = await visit(await browser.newContext());
    const client = await browser.newBrowserCDPSession();
    const crash = () => client.send('Browser.crashGpuProcess' as never).catch(() => undefined);
    await run(`
        window.events = [];
        window.engine = await Gemmule.load('/one-layer.gguf', { backend: 'gpu', context: 1024, onDeviceLost: (event) => window.events.push(event.type) });
        window.session = await window.engine.session();`);
    const say = (tokens: number) => `
        window.text = '';
        const reply = window.session.reply(HELLO, { maxTokens: ${tokens}, sampling: { seed: 21 } });
        for await (const piece of reply) if (piece.kind === 'content') window.text += piece.text;
        return { text: window.text, stats: await reply.stats };`;
    interface Said {
        text: string;
        stats: { replyTokens: number; finish: string };
    }
    const whole = await run<Said>(say(200)); // long enough to crash in the middle of it
    await run(`await window.session.rollback(0);`);
    const under = run<Said>(say(200));
    await page.waitForFunction(() => window.text.length > 15, null, { polling: 20 });
    await crash();
    const again = await under;
    await page.waitForFunction(() => window.events.includes('restored'));
    const kinds = await page.evaluate('window.events.filter((type) => type !== "restoring").join()');
    assert.equal(kinds, 'lost,restored');
    assert.deepEqual([again.stats.replyTokens, again.stats.finish], [whole.stats.replyTokens, whole.stats.finish]);
    assert.equal(again.text.slice(0, 15), whole.text.slice(0, 15));
    const held = await run<number[]>(`return [...(await window.session.tokens())];`);
    // After the second crash a page gets no adapter.
    await crash();
    await page.waitForFunction(() => window.events.at(-1) === 'gone' || window.events.filter((type) => type === 'restored').length > 1);
    if ((await page.evaluate('window.events.at(-1)')) !== 'gone') {
        await crash();
        await page.waitForFunction(() => window.events.at(-1) === 'gone');
    }
    const refused = await run<Caught>(`return caught(textOf(window.session.reply(HELLO, { maxTokens: 5 })));`);
    assert.equal(refused.name, 'NoWebGPU', refused.message);
    assert.deepEqual(refused.detail, { conversationKept: true, offers: ['wasm', 'reload'] });
    assert.deepEqual(await run(`return [...(await window.session.tokens())];`), held);
    const rest = await run<{ backend: string; text: string; cached: number }>(`
        const { backend } = await window.engine.recover({ backend: 'wasm' });
        const reply = await window.session.generate(null, { maxTokens: 5 });
        const text = await textOf(reply);
        return { backend, text, cached: (await reply.stats).promptTokens };`);
    assert.deepEqual([rest.backend, rest.cached], ['wasm', held.length]);
});

test('the GPU crashes while the model loads, and again while a prompt is computed: the answer still comes', { timeout: 600_000 }, async () => {
    await using browser = await launchChromium();
    const { page, run } = await visit(await browser.newContext());
    const client = await browser.newBrowserCDPSession();
    const crash = () => client.send('Browser.crashGpuProcess' as never).catch(() => undefined);
    const loading = run<string>(`
        window.events = [];
        window.seen = 0;
        window.engine = await Gemmule.load('/one-layer.gguf', {
            backend: 'gpu', fallback: 'wasm', cache: false, onProgress: ({ phase }) => { window.seen ||= Number(['check', 'weights', 'shaders'].includes(phase)); },
            onDeviceLost: (event) => window.events.push(event.type),
        });
        return window.engine.info.backend;`);
    await page.waitForFunction(() => window.seen > 0, null, { polling: 20 });
    await crash();
    assert.ok(['gpu', 'wasm'].includes(await loading));
    const saying = run<{ finish: string; replyTokens: number; promptTokens: number }>(`
        window.seen = 0;
        const session = await window.engine.session({ context: 4096 });
        const reply = session.reply([{ role: 'user', content: 'word '.repeat(900) }], { maxTokens: 6 });
        for await (const piece of reply) window.seen++;
        return reply.stats;`);
    await page.waitForFunction(() => window.seen > 0, null, { polling: 10 });
    await crash();
    const { finish, replyTokens, promptTokens } = await saying;
    assert.ok(promptTokens > 900);
    assert.deepEqual([finish, replyTokens], ['length', 6]);
});
