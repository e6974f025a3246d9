// Builds the package into dist/: the modules and the worker (minified), the engine's four modules, the types,
// and the licences of what others wrote.
//
//     node web/build.mjs [--wasm FILE]
//
// FILE is build/wasm/gemmule.wasm unless given; the others lie beside it. The worker is one file without top-level await and dynamic
// import; the modules share what they have in common in chunks.

import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build } from 'vite';
import { NOTICES, notices } from './notices.ts';

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, '..');
const out = join(here, 'dist');
const given = process.argv.indexOf('--wasm');
const wasm = given > 0 ? resolve(process.argv[given + 1]) : join(root, 'build/wasm/gemmule.wasm');
const MODULES = ['gemmule.wasm', 'gemmule-threads.wasm', 'gemmule-train.wasm', 'gemmule-train-threads.wasm'];
const WORKLET = 'microphone_worklet.js'; // loaded by its address, so it stays a file
const modulePath = (name) => (name === MODULES[0] ? wasm : join(dirname(wasm), name));
const licences = notices(join(root, 'node_modules'));
const MOST_SCRIPT = 190 * 1024; // of which media have 24, adapters 20, and training 26
const MOST_WASM = { raw: 960_000, gzip: 329_000 };
const MOST_TRAINING = { raw: 1_200_000, gzip: 390 * 1024 }; // only pages that train load these

// References to files beside the output, such as new URL('./worker.js', import.meta.url), stay as they are: the user's bundler, or the
// browser, resolves them. Node's threads run the worker's source, which is worker.js here.
const keepUrls = {
    name: 'keep-urls',
    enforce: 'pre',
    transform: (code, id) => (id.includes('/web/src/') ? code.replaceAll(/new URL\((?='\.\/)('\.\/worker\/worker\.ts')?/g, keepUrl) : null),
};
const keepUrl = (_, source) => `new URL(/* @vite-ignore */${source ? "'./worker.js'" : ''}`;
const restoreUrls = {
    name: 'restore-urls',
    generateBundle(_, bundle) {
        for (const file of Object.values(bundle)) {
            if (!file.code) continue;
            file.code = file.code
                .replaceAll(/new URL\(\s*(?:\/\* @vite-ignore \*\/)?\s*[`'"](\.\/[\w.-]+)[`'"]\s*,\s*import\.meta\.url\)/g, 'new URL("$1",import.meta.url)')
                .replaceAll('{type:`module`}', '{type:"module"}');
        }
    },
};
// In Node the engine runs from the worker's file: there is no need to have it twice.
const shareWorker = {
    name: 'share-worker',
    enforce: 'pre',
    resolveId: (source, importer) => (importer?.endsWith('/src/node.ts') && source === './worker/worker.ts' ? { id: './worker.js', external: true } : null),
};

async function bundle(entry, single) {
    await build({
        configFile: false,
        root: here,
        logLevel: 'warn',
        publicDir: false,
        plugins: [keepUrls, shareWorker, restoreUrls, licences.collect()],
        build: {
            outDir: out,
            emptyOutDir: false,
            target: 'es2022',
            minify: true,
            assetsInlineLimit: 0,
            lib: { entry, formats: ['es'], fileName: (_, name) => `${name}.js` },
            rolldownOptions: {
                external: [/^node:/, 'webgpu'],
                output: { ...(single ? { codeSplitting: false } : {}), chunkFileNames: 'chunk-[hash].js', minify: true },
            },
        },
    });
}

function run(command, args) {
    const { status } = spawnSync(command, args, { cwd: here, stdio: 'inherit' });
    if (status !== 0) process.exit(status ?? 1);
}

// What the worker and the page must look like, so that bundlers and policies take them.
function check() {
    const worker = readFileSync(join(out, 'worker.js'), 'utf8');
    const scripts = readdirSync(out).filter((name) => name.endsWith('.js'));
    const forPages = scripts.filter((name) => name !== 'node.js');
    const bytes = forPages.reduce((sum, name) => sum + statSync(join(out, name)).size, 0);
    const pages = scripts.filter((name) => name !== 'worker.js').map((name) => readFileSync(join(out, name), 'utf8')).join('\n');
    const modules = MODULES.map((name) => {
        const content = readFileSync(join(out, name));
        return { name, raw: content.length, gzip: gzipSync(content, { level: 9 }).length };
    });
    const rules = [
        [!/\bimport\s*\(/.test(worker), 'worker.js has a dynamic import'],
        [!/(^|[;}])(import\s*[{*"'`]|export\b[^;]*?\bfrom\s*["'`])/.test(worker), 'worker.js imports another file'],
        ...MODULES.map((name) => [worker.includes(`new URL("./${name}",import.meta.url)`), `worker.js does not name ${name} in the form that bundlers know`]),
        [pages.includes('new Worker(new URL("./worker.js",import.meta.url),{type:"module"})'), 'no module names worker.js in the form that bundlers know'],
        [pages.includes(`new URL("./${WORKLET}",import.meta.url)`), `no module names ${WORKLET} in the form that bundlers know`],
        [readFileSync(join(out, 'node.js'), 'utf8').includes('new URL("./worker.js",import.meta.url)'), 'node.js does not name worker.js'],
        [bytes <= MOST_SCRIPT, `the scripts for pages have ${bytes} bytes, more than ${MOST_SCRIPT}`],
        ...modules.flatMap(({ name, raw, gzip }) => {
            const most = name.includes('-train') ? MOST_TRAINING : MOST_WASM;
            return [
                [raw <= most.raw, `${name} has ${raw} bytes, more than ${most.raw}`],
                [gzip <= most.gzip, `${name} has ${gzip} bytes compressed, more than ${most.gzip}`],
            ];
        }),
    ];
    const broken = rules.filter(([holds]) => !holds);
    for (const [, why] of broken) console.error(`web/dist: ${why}`);
    if (broken.length) process.exit(1);
    const sizes = modules.map(({ name, raw, gzip }) => `${name} of ${raw} bytes (${gzip} compressed)`);
    console.log(`web/dist: ${forPages.length} scripts for pages of ${bytes} bytes, ${sizes.join(', ')}`);
}

for (const path of MODULES.map(modulePath)) {
    if (existsSync(path)) continue;
    console.error(`${path} is missing: cmake --preset wasm && cmake --build --preset wasm`);
    process.exit(1);
}
rmSync(out, { recursive: true, force: true });
await bundle({
    index: join(here, 'src/api/index.ts'), node: join(here, 'src/node.ts'),
    'ai-sdk': join(here, 'src/api/ai_sdk.ts'), 'language-model': join(here, 'src/api/language_model.ts'),
}, false);
await bundle({ worker: join(here, 'src/worker/worker.ts') }, true);
for (const name of MODULES) copyFileSync(modulePath(name), join(out, name));
copyFileSync(join(here, 'src/media', WORKLET), join(out, WORKLET));
writeFileSync(join(out, NOTICES), licences.text(true));
run(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', 'tsconfig.types.json']);
check();
