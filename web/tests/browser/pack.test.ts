/* The package as npm would publish it, used in a new Vite project (dev, build, preview), a plain page with an import map, a TypeScript project,
 * and Node. Needs web/dist. */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { build, createServer, preview } from 'vite';
import { type Browser, chromium } from 'playwright-core';
import { PATIENCE, which } from './browsers.ts';
import { startServer } from './server.ts';

const MAIN = `
import { Gemmule } from 'gemmule';
const engine = await Gemmule.load('/model.gguf', { backend: 'wasm', threads: 2 });
const { choices } = await engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hello' }], max_tokens: 8, seed: 1 });
document.title = 'done: ' + engine.info.name + ': ' + choices[0].finish_reason + ', ' + engine.info.threads + (engine.info.note || ' threads');
`;
const ISOLATED = { 'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp' };
const HEADERS = [[{}, 1], [ISOLATED, 2]] as const; // and the number of threads they allow
const wantedWith = (threads: number) => `done: Tiny Dense: length, ${threads} threads`;

const project = mkdtempSync(join(tmpdir(), 'gemmule-project-'));
const packed = join(project, 'node_modules/gemmule');
let browser: Browser;

before(async () => {
    const [{ filename, files }] = JSON.parse(
        execFileSync('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', project], { cwd: 'web', encoding: 'utf8' }),
    ) as [{ filename: string; files: { path: string }[] }];
    const paths = files.map(({ path }) => path);
    const modules = ['gemmule', 'gemmule-threads', 'gemmule-train', 'gemmule-train-threads'].map((name) => `${name}.wasm`);
    const wanted = ['index.js', 'worker.js', 'microphone_worklet.js', 'node.js', ...modules, 'notices.txt'].map((name) => `dist/${name}`);
    for (const path of ['README.md', 'LICENSE', 'package.json', ...wanted]) {
        assert.ok(paths.includes(path), `${path} is not in the package`);
    }
    assert.deepEqual(paths.filter((path) => !/^(dist\/|README\.md|LICENSE|package\.json)/.test(path)), []);
    mkdirSync(packed, { recursive: true });
    execFileSync('tar', ['xzf', join(project, filename), '-C', packed, '--strip-components=1']);
    mkdirSync(join(project, 'public'));
    copyFileSync('tests/fixtures/tiny-dense.gguf', join(project, 'public/model.gguf'));
    writeFileSync(join(project, 'package.json'), '{ "name": "fresh", "private": true, "type": "module" }');
    writeFileSync(join(project, 'index.html'), '<!doctype html><title>waiting</title><link rel="icon" href="data:,"><script type="module" src="/main.js"></script>');
    writeFileSync(join(project, 'main.js'), MAIN);
    browser = await chromium.launch({ executablePath: which('chromium'), headless: true, timeout: PATIENCE, args: ['--no-sandbox'] });
});
after(async () => {
    await browser?.close();
    rmSync(project, { recursive: true, force: true });
});

async function answers(url: string, threads: number): Promise<void> {
    const page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE);
    const complaints: string[] = [];
    page.on('pageerror', (error) => complaints.push(error.message));
    page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()));
    try {
        await page.goto(url);
        await page.waitForFunction((wanted) => document.title === wanted, wantedWith(threads)).catch(async (thrown: Error) => {
            throw new Error(`${await page.title()}: ${complaints.join('; ') || thrown.message}`);
        });
        assert.deepEqual(complaints, []);
    } finally {
        await page.close();
    }
}

test('it carries the notices of the C library in its WebAssembly', () => {
    assert.match(readFileSync(join(packed, 'dist/notices.txt'), 'utf8'), /^wasi-libc$[^]*Rich Felker/m);
});

test('a new Vite project runs it in dev', { timeout: 600_000 }, async () => {
    for (const [headers, threads] of HEADERS) {
        const server = await createServer({ root: project, logLevel: 'error', server: { port: 0, host: '127.0.0.1', headers } });
        try {
            await server.listen();
            await answers(server.resolvedUrls!.local[0]!, threads);
        } finally {
            await server.close();
        }
    }
});

test('it builds, and the result runs in preview', { timeout: 600_000 }, async () => {
    await build({ root: project, logLevel: 'error' });
    for (const [headers, threads] of HEADERS) {
        const server = await preview({ root: project, logLevel: 'error', preview: { port: 0, host: '127.0.0.1', headers } });
        try {
            await answers(server.resolvedUrls!.local[0]!, threads);
        } finally {
            await server.close();
        }
    }
});

test('a plain page with an import map loads it', { timeout: 600_000 }, async () => {
    const map = '{ "imports": { "gemmule": "/node_modules/gemmule/dist/index.js" } }';
    const head = '<!doctype html><title>waiting</title><link rel="icon" href="data:,">';
    writeFileSync(join(project, 'plain.html'), `${head}<script type="importmap">${map}</script><script type="module">${MAIN}</script>`);
    const server = await startServer({ root: project, files: { '/model.gguf': resolve('tests/fixtures/tiny-dense.gguf') } });
    try {
        await answers(`${server.origin}/plain.html`, 1);
    } finally {
        await server.close();
    }
});

test('its types are complete without other packages', { timeout: 600_000 }, () => {
    writeFileSync(join(project, 'use.ts'), `
import { type Engine, Gemmule, GemmuleError, OllamaFolder, type ReplyPiece } from 'gemmule';
import { languageModel } from 'gemmule/language-model';
export async function use(file: File): Promise<string> {
    const engine: Engine = await Gemmule.load(file, { context: 4096, kv: 'q8_0', onProgress: ({ phase, done }) => console.log(phase, done) });
    const stream = await engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hi' }], stream: true });
    for await (const chunk of stream) console.log(chunk.choices[0]?.delta.content);
    const whole = await engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hi' }] });
    const pieces: ReplyPiece[] = [];
    for await (const piece of (await engine.session()).reply([{ role: 'user', content: 'Hi' }])) pieces.push(piece);
    // @ts-expect-error there is no such backend
    await Gemmule.load(file, { backend: 'abacus' }).catch((error: unknown) => error instanceof GemmuleError);
    await (await OllamaFolder.pick()).resolve('gemma4:e2b');
    const session = await languageModel(engine).create();
    return whole.choices[0]!.message.content ?? session.prompt('Hi');
}
`);
    writeFileSync(join(project, 'tsconfig.json'), JSON.stringify({
        compilerOptions: {
            target: 'ES2022', module: 'ESNext', moduleResolution: 'bundler', lib: ['ES2023', 'ESNext.Disposable', 'DOM'], types: [], strict: true, noEmit: true,
        },
        files: ['use.ts'],
    }));
    execFileSync(process.execPath, [resolve('node_modules/typescript/bin/tsc'), '-p', project], { stdio: ['ignore', 'inherit', 'inherit'] });
});

test('Node finds its own entry', { timeout: 600_000 }, () => {
    writeFileSync(join(project, 'node.mjs'), `
import { Gemmule, GemmuleError } from 'gemmule';
const engine = await Gemmule.load(process.argv[2], { backend: 'wasm', threads: 2 });
const { usage } = await engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hello' }], max_tokens: 3 });
const missing = await Gemmule.load('/no/such.gguf', { backend: 'wasm' }).catch((error) => error);
console.log(engine.info.name, engine.info.threads, usage.completion_tokens, missing instanceof GemmuleError, missing.name);
await engine.unload();
`);
    const out = execFileSync(process.execPath, [join(project, 'node.mjs'), resolve('tests/fixtures/tiny-dense.gguf')], { encoding: 'utf8' });
    assert.equal(out, 'Tiny Dense 2 3 true NotFound\n');
});

test('it contains the provider for the AI SDK', { timeout: 600_000 }, () => {
    symlinkSync(resolve('web/node_modules/ai'), join(project, 'node_modules/ai'));
    writeFileSync(join(project, 'sdk.mjs'), `
import { generateText } from 'ai';
import { Gemmule } from 'gemmule';
import { gemmule } from 'gemmule/ai-sdk';
const engine = await Gemmule.load(process.argv[2], { backend: 'wasm' });
const { usage } = await generateText({ model: gemmule(engine), prompt: 'Hello', maxOutputTokens: 4 });
console.log(usage.outputTokens);
await engine.unload();
`);
    const out = execFileSync(process.execPath, [join(project, 'sdk.mjs'), resolve('tests/fixtures/tiny-dense.gguf')], { encoding: 'utf8' });
    assert.equal(out, '4\n');
    assert.ok(readFileSync(join(packed, 'dist/types/api/ai_sdk.d.ts'), 'utf8').includes("from '@ai-sdk/provider'"));
});
