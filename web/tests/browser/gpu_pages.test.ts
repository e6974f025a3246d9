// The engine on the GPU of real browsers: the op test and the test of mixed sequences (the C programs, on the package's GPU host), the
// fixtures' logits and greedy tokens and towers (both also on the CPU), memory per token, a GPU that is lost, and several sessions at once.
//
// Chromium on SwiftShader has subgroups but no f16; Firefox on lavapipe has f16, no subgroups, and bindings of 128 MiB. A page runs the op
// test's cases with one token, Firefox fewer of them. GEMMULE_LONG=1 (`make test-long`) runs all, on all fixtures,
// and writes ten times as many tokens. The wasm files are those of the wasm preset, or of the folder $GEMMULE_WASM.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import { after, before, test } from 'node:test';

import type { EngineStats } from '../../src/core/types.ts';
import { writeBidir } from '../support/bidir.ts';
import { firstLayer } from '../support/gguf.ts';
import { DENSE, scratch } from '../support/models.ts';
import { launchChromium, launchFirefox, PATIENCE } from './browsers.ts';
import type { CheckReport } from './check.ts';
import type { PageCheck } from './program.ts';
import { startServer } from './server.ts';
import type { TestServer } from './server.ts';
import type { writeTogether } from './writer.ts';

const BUILD = process.env.GEMMULE_WASM ?? 'build/wasm';
const LONG = process.env.GEMMULE_LONG === '1';
const CHECKS: [model: string, ...expectations: string[]][] = [
    ['tiny-dense', 'tiny-dense', 'tiny-dense-long'],
    ['tiny-dense-ollama', 'tiny-dense'],
    ['tiny-moe', 'tiny-moe'],
    ['tiny-moe-split', 'tiny-moe'],
];

/** On the GPU only with GEMMULE_LONG=1: a GPU in software takes long to compile the kernels of further formats. */
const MORE_CHECKS: typeof CHECKS = ['small-dense-Q4_K_M', 'small-moe-Q4_K_M', 'odd-dense', 'odd-moe'].map((name) => [name, name]);

const mostOf = (model: string): number => (model.startsWith('small-') ? 1e-3 : 1e-4);

const ADAPTER_CHECKS: { model: string; expectation: string; lines: number; adapters: string[] }[] = [
    {
        model: 'tiny-dense', expectation: 'tiny-dense-adapters', lines: 6,
        adapters: [...['embedding', 'head', 'part'].map((name) => `tiny-dense-adapters/${name}`), 'tiny-dense-lora'],
    },
    ...['tiny-dense', 'tiny-moe'].map((model) => ({ model, expectation: `${model}-lora`, lines: 1, adapters: [`${model}-lora`] })),
    { model: 'small-dense-Q4_K_M', expectation: 'small-dense-Q4_K_M-lora', lines: 1, adapters: ['small-dense-Q4_K_M-lora'] },
];

/* `gemmule check` on models that see and hear. `least`: the error of what is not exact. */
const fixture = (name: string) => `tests/fixtures/${name}`;
const towers = (name: string) => ['--mmproj', fixture(`${name}.mmproj.gguf`)];
const [PNG, WAV] = [['--image', fixture('tiny-mm.png')], ['--audio', fixture('tiny-mm.wav')]];
const [GIVEN, FROM_FILE, FROM_JPEG] = ['1e-4', '2e-3', '2e-2'].map((most) => ['--precise', '--tolerance', most]) as [string[], string[], string[]];
const VIDEO = ['--video', fixture('tiny-mm-video')];
const FRAMES = Array.from({ length: 7 }, (_, i) => fixture(`tiny-mm-video/frame-${i}.png`));
const checkOf = (model: string, expectation: string, lines: number, ...options: string[][]) => ({
    args: [model.includes('/') ? model : fixture(`${model}.gguf`), fixture(`${expectation}.expect.gguf`), ...options.flat()], lines,
});
const MEDIA_CHECKS: (PageCheck & { lines: number; least?: number; onGpu?: boolean })[] = [
    { ...checkOf('tiny-mm', 'tiny-mm', 5, towers('tiny-mm'), GIVEN), onGpu: true },
    checkOf('tiny-mm', 'tiny-mm', 5, towers('tiny-mm'), PNG, WAV, FROM_FILE),
    { ...checkOf('tiny-mm', 'tiny-mm', 5, towers('tiny-mm'), ['--image', 'scratch/tiny-mm.jpg'], WAV, FROM_JPEG), least: 1e-3 },
    checkOf('tiny-mm-ollama', 'tiny-mm', 5, GIVEN),
    { ...checkOf('tiny-mm-bidir', 'tiny-mm-bidir', 5, towers('tiny-mm-bidir'), PNG, FROM_FILE), onGpu: true },
    checkOf('scratch/tiny-mm-bidir-ollama.gguf', 'tiny-mm-bidir', 5, PNG, ['--audio', 'scratch/tiny-mm-bidir.wav'], FROM_FILE),
    { ...checkOf('tiny-unified', 'tiny-unified', 6, towers('tiny-unified'), WAV, GIVEN), onGpu: true },
    checkOf('tiny-unified', 'tiny-unified', 6, towers('tiny-unified'), PNG, WAV, FROM_FILE),
    { ...checkOf('tiny-mm', 'tiny-mm-video', 6, towers('tiny-mm'), VIDEO, FROM_FILE), files: FRAMES, onGpu: true },
    { ...checkOf('tiny-diffusion', 'tiny-diffusion', 4, GIVEN), onGpu: true },
    { ...checkOf('tiny-diffusion', 'tiny-diffusion-image', 5, towers('tiny-diffusion'), PNG, FROM_FILE), onGpu: true },
];

/* Loss, gradients and steps of training. */
const trainCheck = (model: string, lines: number, expectation = `${model}-lora`) => ({
    ...checkOf(model, expectation, lines, ['--adapter', fixture(`${model}-lora`), '--precise', '--tolerance', '1e-3']),
    files: ['adapter_config.json', 'adapter_model.safetensors'].map((file) => fixture(`${model}-lora/${file}`)),
});
const TRAIN_CHECKS = [
    trainCheck('tiny-dense', 75), trainCheck('tiny-moe', 43), trainCheck('tiny-dense', 5, 'tiny-dense-long'), trainCheck('small-dense-Q4_K_M', 10),
];

// Chromium passes the self-check in the tests of the package and of the app.
const [CHECKED, UNCHECKED] = ['/wasm/gemmule.wasm', '/wasm/gemmule-unchecked.wasm'];

/** Bytes: V8's, and those of the objects around it. */
interface Heap {
    script: number;
    embedder: number;
}

interface Allocations {
    selfSize: number;
    children: Allocations[];
}
const sampledBytes = ({ selfSize, children }: Allocations): number => children.reduce((sum, child) => sum + sampledBytes(child), selfSize);

// What Playwright and Puppeteer have in common.
interface Page {
    setDefaultTimeout(milliseconds: number): void;
    goto(url: string): Promise<unknown>;
    evaluate(expression: string): Promise<unknown>;
    close(): Promise<void>;
}
interface Browser {
    newPage(): Promise<Page>;
    close(): Promise<void>;
}

const BROWSERS: { name: string; launch(): Promise<Browser>; ops: string[]; features: string[]; without: string[] }[] = [
    { name: 'Chromium', launch: launchChromium, ops: [' 1 ×'], features: ['subgroups', 'dot4'], without: ['f16'] },
    { name: 'Firefox', launch: launchFirefox, ops: ['attention F16 5 · 1 ×', 'exact gpu: add, scale, geglu', 'exact gpu: canvas head Q6_K'], features: ['f16', 'dot4'], without: ['subgroups'] },
];

let server: TestServer;
before(async () => {
    const programs = ['gemmule.wasm', 'gemmule-unchecked.wasm', 'test_ops.wasm', 'test_records.wasm', 'check_wasm.wasm'];
    const files = Object.fromEntries(programs.map((name) => [`/wasm/${name}`, `${BUILD}/${name}`]));
    const [oneLayer, jpeg] = [scratch('one-layer.gguf'), scratch('tiny-mm.jpg')];
    writeFileSync(oneLayer, firstLayer(readFileSync(DENSE)));
    const { ollama, sound } = writeBidir(dirname(jpeg));
    const save = `from PIL import Image; Image.open('tests/fixtures/tiny-mm.png').convert('RGB').save('${jpeg}', quality=100, subsampling=0)`;
    execFileSync('/usr/bin/python3', ['-c', save]);
    const made = Object.fromEntries([ollama, sound, jpeg].map((path) => [`/scratch/${basename(path)}`, path]));
    server = await startServer({ files: { ...files, ...made, '/': 'web/tests/browser/blank.html', '/one-layer.gguf': oneLayer } });
});
after(async () => {
    for (const name of opened.keys()) await closeBrowser(name);
    await server.close();
});

const opened = new Map<string, { browser: Browser; page: Page }>();
const closeBrowser = async (name: string): Promise<void> => {
    await opened.get(name)?.browser.close();
    opened.delete(name);
};

/** The browser's page, which stays open for the next test, so that shaders are compiled once. */
async function pageOf({ name, launch }: { name: string; launch(): Promise<Browser> }): Promise<Page> {
    if (!opened.has(name)) {
        const browser = await launch(), page = await browser.newPage();
        page.setDefaultTimeout(PATIENCE);
        opened.set(name, { browser, page });
        await page.goto(`${server.origin}/`);
    }
    return opened.get(name)!.page;
}

const call = (page: Page, module: string, name: string, ...args: unknown[]) =>
    page.evaluate(`import('/web/tests/browser/${module}').then((module) => module.${name}(${args.map((arg) => JSON.stringify(arg)).join()}))`);

for (const kind of BROWSERS) {
    const { name, ops, features, without } = kind;
    test(`${name}: the GPU has the expected features`, async () => {
        const page = await pageOf(kind);
        const seen = (await page.evaluate(
            `import('/web/src/core/gpu_host.ts').then(({ GpuHost }) => GpuHost.describe(navigator.gpu))`,
        )) as Record<string, unknown>;
        for (const feature of features) assert.equal(seen[feature], true, feature);
        for (const feature of without) assert.equal(seen[feature], false, feature);
        assert.equal(seen.software, true);
    });

    test(`${name}: the op test, and sequences in one run`, async () => {
        const page = await pageOf(kind);
        const cases = LONG ? [''] : ops;
        for (const [program, ...args] of [...cases.map((words) => ['test_ops.wasm', 'gpu', '', words]), ['test_records.wasm', 'gpu']]) {
            const ended = await call(page, 'program.ts', 'runInPage', `/wasm/${program}`, args);
            const { status, output } = ended as { status: number; output: string };
            const [, passed, failed] = /(\d+) passed, (\d+) failed\s*$/.exec(output) ?? [];
            console.log(`${program}: ${passed} passed, ${failed} failed`);
            assert.equal(status, 0, output.slice(0, 4000));
            assert.ok(Number(passed) >= (program === 'test_ops.wasm' && !LONG ? 2 : 4));
        }
    });

    for (const [model, ...names] of LONG ? [...CHECKS, ...MORE_CHECKS] : CHECKS) {
        test(`${name}: check ${model} with ${names.join(', ')}`, async () => {
            const expectations = names.map((name) => `/tests/fixtures/${name}.expect.gguf`);
            const [page, file] = [await pageOf(kind), `/tests/fixtures/${model}.gguf`];
            const options = { precise: true, tokenByToken: model === names[0] };
            const wasm = LONG || (name === 'Firefox' && model === names[0]) ? CHECKED : UNCHECKED;
            const report = (await call(page, 'check.ts', 'checkInPage', wasm, file, expectations, options)) as CheckReport;
            const errors = Object.entries(report.errors);
            assert.equal(errors.length, (options.tokenByToken ? 2 : 1) + names.length); // two prompts, and one with rows
            for (const [what, error] of errors) assert.ok(error < mostOf(model), `${what}: relative error ${error}`);
            assert.deepEqual(report.greedy, model.startsWith('small-') ? [0, 0] : [2, 2]);
        });
    }

    test(`${name}: check adapters`, async () => {
        const page = await pageOf(kind);
        for (const { model, expectation, lines, adapters } of ADAPTER_CHECKS) {
            const [file, expected] = [`/tests/fixtures/${model}.gguf`, [`/tests/fixtures/${expectation}.expect.gguf`]];
            // Firefox's software GPU takes long to compile the kernels of further formats.
            for (const backend of name === 'Firefox' && model.startsWith('small-') ? ['wasm'] : ['wasm', 'gpu']) {
                const options = { precise: true, backend, adapters: adapters.map((name) => `/tests/fixtures/${name}`) };
                const report = (await call(page, 'check.ts', 'checkInPage', UNCHECKED, file, expected, options)) as CheckReport;
                assert.equal(Object.keys(report.errors).length, lines);
                for (const [what, error] of Object.entries(report.errors)) assert.ok(error < 1e-4, `${expectation} on ${backend}, ${what}: relative error ${error}`);
            }
        }
    });

    test(`${name}: check towers, pictures, sounds and videos`, async () => {
        const checks = MEDIA_CHECKS.flatMap((check) => [check, ...(name === 'Chromium' && check.onGpu ? [{ ...check, gpu: true }] : [])]);
        const reports = (await call(await pageOf(kind), 'program.ts', 'runChecksInPage', '/wasm/check_wasm.wasm', checks)) as { status: number; output: string }[];
        for (const [i, { status, output }] of reports.entries()) {
            const { args, lines, least = 0, gpu = false } = checks[i]!;
            const errors = [...output.matchAll(/^[a-z0-9._]+ (\d\.\d+e[+-]\d+)$/gm)].map(([, error]) => Number(error));
            assert.equal(status, 0, `${args.join(' ')}:\n${output}`);
            assert.equal(errors.length, lines, output);
            assert.match(output, gpu ? /^ran on the GPU$/m : /^ran on the CPU$/m);
            assert.ok(Math.max(...errors) > least, 'a JPEG is not the PNG');
        }
    });

    test(`${name}: check training`, async () => {
        const checks: (PageCheck & { lines: number })[] = [...TRAIN_CHECKS, ...(name === 'Chromium' ? TRAIN_CHECKS.slice(0, LONG ? undefined : 1).map((check) => ({ ...check, gpu: true })) : [])];
        const reports = (await call(await pageOf(kind), 'program.ts', 'runChecksInPage', '/wasm/check_wasm.wasm', checks)) as { status: number; output: string }[];
        for (const [i, { status, output }] of reports.entries()) {
            const { args, lines, gpu = false } = checks[i]!;
            assert.equal(status, 0, `${args.join(' ')}:\n${output}`);
            assert.equal(output.match(/^(logits|loss|grad\.\S+|adamw_losses) \d\.\d+e[+-]\d+$/gm)?.length, lines, output);
            assert.match(output, gpu ? /^ran on the GPU$/m : /^ran on the CPU$/m);
        }
    });

    test(`${name}: the fixtures on wasm`, async () => {
        const page = await pageOf(kind);
        for (const [model, ...names] of [...CHECKS, ...MORE_CHECKS]) {
            const expectations = names.map((name) => `/tests/fixtures/${name}.expect.gguf`);
            const options = { backend: 'wasm', precise: true };
            const report = (await call(page, 'check.ts', 'checkInPage', CHECKED, `/tests/fixtures/${model}.gguf`, expectations, options)) as CheckReport;
            const errors = Object.entries(report.errors);
            assert.equal(errors.length, 1 + names.length, model);
            for (const [what, error] of errors) assert.ok(error < mostOf(model), `${model}, ${what}: relative error ${error}`);
            assert.equal(report.greedy[0], report.greedy[1], model);
            assert.match(report.device, /^cpu \(wasm/);
        }
    });
    test(`${name} closes`, () => closeBrowser(name));
}

test('Chromium: tokens use no memory, a crashed GPU process is a lost device, and several sessions write at once', { timeout: 600_000 }, async () => {
    const [ROUND, STAYS] = LONG ? [3000, 16] : [400, 48];
    const [SIX, ONE] = ['/tests/fixtures/tiny-dense.gguf', '/one-layer.gguf']; // layers
    const browser = await launchChromium();
    try {
        const page = await browser.newPage();
        page.setDefaultTimeout(PATIENCE);
        await page.goto(`${server.origin}/`);
        const writer = (name: string, ...args: unknown[]) => call(page, 'writer.ts', name, ...args);
        const write = (tokens: number) => writer('write', tokens) as Promise<EngineStats>;
        const protocol = await page.context().newCDPSession(page);
        const heap = async (): Promise<Heap> => {
            const { usedSize, embedderHeapUsedSize = 0 } = (await protocol.send('Runtime.getHeapUsage')) as { usedSize: number; embedderHeapUsedSize?: number };
            return { script: usedSize, embedder: embedderHeapUsedSize };
        };
        const collected = async () => {
            for (let i = 0; i < 2; i++) await protocol.send('HeapProfiler.collectGarbage');
            return heap();
        };
        /* JavaScript bytes allocated per token, whether collected since or not. */
        const writeSampled = async (tokens: number): Promise<[EngineStats, number]> => {
            const everything = { samplingInterval: 128, includeObjectsCollectedByMajorGC: true, includeObjectsCollectedByMinorGC: true };
            await protocol.send('HeapProfiler.startSampling', everything);
            const stats = await write(tokens);
            const { profile } = await protocol.send('HeapProfiler.stopSampling');
            return [stats, sampledBytes(profile.head) / tokens];
        };
        /* Bytes per token after the first ones: those that stay, and those allocated. The heap also grows now and then by tens of KB that
         * no token has to do with, and the first tokens compile scripts: the least of several rounds counts. */
        const growth = async (model: string, rounds: number, round: number): Promise<Heap & { made: number; first: EngineStats; last: EngineStats }> => {
            await writer('open', UNCHECKED, model);
            const first = await write(40);
            let [before, last, least] = [await collected(), first, { script: Infinity, embedder: Infinity, made: Infinity }];
            for (let i = 0; i < rounds; i++) {
                const [stats, made] = await writeSampled(round);
                const after = await collected();
                const [script, embedder] = [(after.script - before.script) / round, (after.embedder - before.embedder) / round];
                least = { script: Math.min(least.script, script), embedder: Math.min(least.embedder, embedder), made: Math.min(least.made, made) };
                [before, last] = [after, stats];
            }
            return { ...least, first, last };
        };
        const six = await growth(SIX, 2, 400);
        const one = await growth(ONE, 3, ROUND);
        console.log('bytes a token that stay:', one.script, one.embedder, 'with more dispatches:', six.script, six.embedder);
        console.log('bytes of script that a token makes:', one.made, 'with more dispatches:', six.made);
        assert.ok(one.script < STAYS && one.embedder < STAYS, 'flat');
        assert.ok(six.last.dispatchesPerToken > 3 * one.last.dispatchesPerToken && six.script < 1024 && six.embedder < 4096);
        assert.ok(one.made > 100 && one.made <= (LONG ? 1024 : 1152), 'little to collect');
        assert.ok(six.made <= one.made + 256, 'however many dispatches a token takes; one that takes longer is looked for more often');
        assert.equal(one.last.wasmBytes, one.first.wasmBytes);
        assert.ok(one.last.gpuBytes - one.first.gpuBytes < 1024); // not even a byte per token; a plan may have been added

        const ended = writer('writeUntilLost') as Promise<{ name: string; message: string; lost: string }>;
        await Promise.race([ended, page.waitForFunction(`document.title === 'writing'`)]);
        const session = await browser.newBrowserCDPSession();
        await session.send('Browser.crashGpuProcess' as never).catch(() => {}); // never answers
        const report = await ended;
        assert.equal(report.name, 'DeviceLost', report.message);
        assert.match(report.lost, /lost/);
        await writer('open', UNCHECKED, ONE);
        assert.ok(((await writer('write', 20)) as EngineStats).dispatchesPerToken > 0);

        // Several sessions at once: in one list for all of them, and with the tokens of each alone, up to where two are as good as equally likely.
        const { alone, together, submits } = (await writer('writeTogether')) as Awaited<ReturnType<typeof writeTogether>>;
        alone.forEach((draws, which) => {
            const close = draws.findIndex(({ margin }) => margin < 0.02), sure = close < 0 ? draws.length : close;
            assert.ok(draws.length > 0);
            assert.deepEqual(together[which]!.slice(0, sure).map(({ token }) => token), draws.slice(0, sure).map(({ token }) => token));
        });
        assert.ok(submits[1] < 0.8 * submits[0], `${submits[1]} lists, ${submits[0]} alone`);
    } finally {
        await browser.close();
    }
});
