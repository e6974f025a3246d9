// Measures engines in Chromium: gemmule's package (web/dist) and wllama on the same file, one after the other, each in its own
// browser with an empty profile.
//
//     node bench/browser/bench.mjs MODEL [--engines gemmule-gpu,gemmule-wasm,wllama] [--prefill 512] [--decode 128] [--depth 0] [--repeats 3]
//                                        [--gpu software|native] [--no-cache] [--gpu-memory BYTES] [--machine TEXT] [--out FILE]
//                                        [--dist web/dist] [--wllama FOLDER] [--chromium FILE] [--verbose]
//
// Prints one line of JSON per engine, or appends it to FILE, for `node bench/results.mjs add`: date, machine, command, and as the
// result the fields of `gemmule bench --json` and
//
//     load_seconds, reload_seconds    from the server on the first visit, from the browser's storage on the second (not with --no-cache)
//     first_token_seconds             of the first answer, to a prompt of 32 tokens, including everything that is prepared only then
//     memory                          resident bytes of the renderer and of the GPU process: the peak while loading, and overall
//
// ENGINE@N uses N threads on wasm instead of all. Rates are the best of the repeats after a warm-up, measured in the page from call
// to answer. With small vocabularies only plain ASCII is drawn, and never the end of a turn: all answers have the same length, and
// wllama, which throws on invalid UTF-8, survives random weights.
// --gpu native: the flags with which a headless Chromium uses a real GPU through Vulkan. wllama needs an adapter with shader-f16,
// which Dawn does not offer on NVIDIA's Vulkan driver by default; both engines get the flag for it. `note` says why wllama is not on
// the GPU; wllama-wasm keeps it off.

import { execFileSync } from 'node:child_process';
import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { cpus, tmpdir, totalmem } from 'node:os';
import { basename, join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { chromium } from '../../web/tests/browser/chromium.ts';
import { startServer } from '../../web/tests/browser/server.ts';
import { memoryOf } from './processes.mjs';

const ENGINES = ['gemmule-gpu', 'gemmule-wasm', 'wllama', 'wllama-wasm'];
const SMALL_VOCABULARY = 16384;
const FLAGS = {
    common: ['--no-sandbox', '--enable-unsafe-webgpu', '--disable-dev-shm-usage'],
    software: ['--enable-dawn-features=disable_workgroup_init'], // which SwiftShader does at great cost
    native: ['--disable-gpu-sandbox', '--ignore-gpu-blocklist', '--use-vulkan=native', '--enable-features=Vulkan', '--use-gl=angle', '--use-angle=vulkan',
        '--disable-vulkan-surface', '--disable-gpu-compositing', '--enable-dawn-features=vulkan_enable_f16_on_nvidia'],
};
const here = import.meta.dirname;
const text = (value) => ({ type: 'string', ...(value === undefined ? {} : { default: value }) });
const OPTIONS = {
    engines: text('gemmule-gpu,gemmule-wasm,wllama'), prefill: text('512'), decode: text('128'), depth: text('0'), repeats: text('3'), gpu: text('software'),
    'no-cache': { type: 'boolean', default: false }, 'gpu-memory': text('0'), machine: text(), out: text(), dist: text(join(here, '../../web/dist')),
    wllama: text(join(here, '../node_modules/@wllama/wllama/esm')), chromium: text(), verbose: { type: 'boolean', default: false },
};

class Wrong extends Error {}

function readOptions() {
    let given;
    try {
        given = parseArgs({ options: OPTIONS, allowPositionals: true });
    } catch (problem) { throw new Wrong(problem.message); }
    const { values, positionals } = given;
    const whole = (name) => {
        if (!/^\d{1,15}$/.test(values[name])) throw new Wrong(`--${name} takes a whole number, not '${values[name]}'`);
        return Number(values[name]);
    };
    if (positionals.length !== 1) throw new Wrong('usage: bench.mjs MODEL [OPTIONS]: its first lines say which there are');
    const engines = values.engines.split(',');
    const unknown = engines.find((engine) => !ENGINES.includes(engine.replace(/@\d+$/, '')));
    if (unknown !== undefined) throw new Wrong(`--engines: there is no '${unknown}', but ${ENGINES.join(', ')}`);
    if (engines[0].startsWith('wllama')) throw new Wrong('--engines: wllama takes text, and gemmule makes it: one of gemmule must come first');
    if (!(values.gpu in FLAGS)) throw new Wrong(`--gpu is software or native, not '${values.gpu}'`);
    for (const path of [positionals[0], values.dist, ...(values.engines.includes('wllama') ? [values.wllama] : [])]) {
        if (!existsSync(path)) throw new Wrong(`there is no '${path}'`);
    }
    return {
        ...values, model: resolve(positionals[0]), engines, prefill: whole('prefill'), decode: whole('decode'), depth: whole('depth'),
        repeats: Math.max(1, whole('repeats')), gpuMemory: whole('gpu-memory'),
    };
}

const say = (options, line) => { if (options.verbose || process.stderr.isTTY) process.stderr.write(`bench: ${line}\n`); };

/** Calls a function of page.mjs. */
const call = (page, name, options) =>
    page.evaluate(({ name, options }) => import('/bench/page.mjs').then((module) => module[name](options)), { name, options: options ?? null });

async function measure(engine, options, origin, shared) {
    const profile = mkdtempSync(join(tmpdir(), 'gemmule-bench-'));
    const context = await chromium.launchPersistentContext(profile, {
        executablePath: options.chromium ?? execFileSync('which', ['chromium'], { encoding: 'utf8' }).trim(), headless: true,
        args: [...FLAGS.common, ...FLAGS[options.gpu]],
    });
    try {
        const visit = async () => {
            const page = await context.newPage();
            if (options.verbose) page.on('console', (message) => say(options, message.text()));
            await page.goto(`${origin}/`);
            return page;
        };
        const { prefill, decode, depth, repeats } = options;
        const room = Math.max(prefill, depth + decode) + 64;
        const [, name, backend, threads] = /^(\w+)-?(\w+)?@?(\d+)?$/.exec(engine);
        const setup = {
            engine: name, backend, url: `${origin}/model/${basename(options.model)}`, dist: '/dist', wllama: '/wllama', cache: !options['no-cache'], context: room,
            gpuMemory: options.gpuMemory, threads: Number(threads ?? 0),
        };
        let page = await visit();
        const opened = await call(page, 'open', setup);
        const loading = memoryOf(profile);
        say(options, `${engine} on ${opened.device}: open after ${opened.seconds.toFixed(2)} s`);
        if (options.verbose) for (const line of opened.said ?? []) say(options, line.trimEnd());
        let reload;
        if (setup.cache) { // the same once more, in a page that has nothing but the browser's storage
            await call(page, 'close');
            await page.close();
            page = await visit();
            reload = await call(page, 'open', setup);
        }
        if (name === 'gemmule') {
            shared.prompts ??= await call(page, 'prompts', [32, Math.max(prefill, 2), Math.max(depth, 2)]);
            shared.avoid ??= opened.vocabulary <= SMALL_VOCABULARY ? await call(page, 'tokensToAvoid') : [];
        }
        const { avoid, prompts: [short, long, before] } = shared;
        const best = ({ tokens, all }) => ({ tokens, tokens_per_second: Math.max(...all), all });
        const first = await call(page, 'firstToken', { prompt: short, avoid });
        const prefills = best(await call(page, 'prefill', { prompt: long, repeats, avoid }));
        const decodes = best(await call(page, 'decode', { prompt: before, tokens: decode, repeats, avoid }));
        const all = memoryOf(profile);
        const stats = await call(page, 'stats');
        await call(page, 'close');
        return {
            engine: name, model: basename(options.model), device: opened.device, threads: opened.threads, runtime: `Chromium ${context.browser()?.version() ?? ''}`.trim(),
            note: opened.note, prefill: prefills, decode: { ...decodes, depth },
            load_seconds: opened.seconds, ...(reload ? { reload_seconds: reload.seconds } : {}), first_token_seconds: first,
            memory: {
                renderer_loading_bytes: loading.renderer, gpu_loading_bytes: loading.gpu,
                renderer_bytes: Math.max(loading.renderer, all.renderer), gpu_bytes: Math.max(loading.gpu, all.gpu),
            },
            ...stats,
        };
    } finally {
        await context.close();
        rmSync(profile, { recursive: true, force: true });
    }
}

function describeMachine() {
    return `${cpus()[0]?.model.trim() ?? 'unknown'}, ${cpus().length} CPUs, ${(totalmem() / 2 ** 30).toFixed(0)} GiB`;
}

function commandOf(engine, { model, prefill, decode, depth, repeats, gpu, gpuMemory, 'no-cache': noCache }) {
    return ['bench/browser/bench.mjs', basename(model), '--engines', engine, '--gpu', gpu, '--prefill', prefill, '--decode', decode, '--depth', depth,
        '--repeats', repeats, ...(noCache ? ['--no-cache'] : []), ...(gpuMemory ? ['--gpu-memory', gpuMemory] : [])].join(' ');
}

async function main() {
    const options = readOptions();
    const version = (folder) => JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')).version;
    // Cross-origin isolated, so that both can use threads.
    const headers = { 'Cross-Origin-Opener-Policy': 'same-origin', 'Cross-Origin-Embedder-Policy': 'require-corp' };
    const prefixes = { '/dist/': options.dist, '/wllama/': options.wllama, '/bench/': here };
    const server = await startServer({
        root: '/', headers,
        files: new Proxy({ [`/model/${basename(options.model)}`]: options.model }, {
            get: (files, path) => files[path] ?? Object.entries(prefixes).filter(([prefix]) => String(path).startsWith(prefix))
                .map(([prefix, folder]) => join(resolve(folder), String(path).slice(prefix.length)))[0],
        }),
        routes: { '/': (_, response) => response.writeHead(200, { 'Content-Type': 'text/html' }).end('<!doctype html><title>bench</title>') },
    });
    const shared = {};
    let failed = 0;
    for (const engine of options.engines) {
        try {
            const result = await measure(engine, options, server.origin, shared);
            if (result.engine === 'wllama') result.version = version(join(options.wllama, existsSync(join(options.wllama, 'package.json')) ? '' : '..'));
            const line = JSON.stringify({
                date: new Date().toISOString().slice(0, 10), machine: options.machine ?? describeMachine(), clocks: '', command: commandOf(engine, options), result,
            });
            if (options.out) appendFileSync(options.out, `${line}\n`);
            console.log(line);
        } catch (problem) {
            failed++;
            console.error(`bench: ${engine}: ${problem.message}`);
        }
    }
    await server.close();
    return failed ? 1 : 0;
}

try {
    process.exit(await main());
} catch (problem) {
    if (!(problem instanceof Wrong)) throw problem;
    console.error(`bench: ${problem.message}`);
    process.exit(3);
}
