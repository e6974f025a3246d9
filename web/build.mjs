// Builds the package into dist/: the modules and the worker (minified), gemmule.wasm, and the types.
//
//     node web/build.mjs [--wasm FILE]
//
// FILE is build/wasm/gemmule.wasm unless given. The worker is one file without top-level await and dynamic import; the modules share
// what they have in common in chunks.

import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, '..');
const out = join(here, 'dist');
const given = process.argv.indexOf('--wasm');
const wasm = given > 0 ? resolve(process.argv[given + 1]) : join(root, 'build/wasm/gemmule.wasm');
const MOST_SCRIPT = 120 * 1024;

// References to files beside the output, such as new URL('./worker.js', import.meta.url), stay as they are: the user's bundler, or the
// browser, resolves them.
const keepUrls = {
    name: 'keep-urls',
    enforce: 'pre',
    transform: (code, id) => (id.includes('/web/src/') ? code.replaceAll(/new URL\((?='\.\/)/g, 'new URL(/* @vite-ignore */') : null),
};
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
        plugins: [keepUrls, shareWorker, restoreUrls],
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
    const bytes = scripts.reduce((sum, name) => sum + statSync(join(out, name)).size, 0);
    const pages = scripts.filter((name) => name !== 'worker.js').map((name) => readFileSync(join(out, name), 'utf8')).join('\n');
    const rules = [
        [!/\bimport\s*\(/.test(worker), 'worker.js has a dynamic import'],
        [!/(^|[;}])(import\s*[{*"'`]|export\b[^;]*?\bfrom\s*["'`])/.test(worker), 'worker.js imports another file'],
        [worker.includes('new URL("./gemmule.wasm",import.meta.url)'), 'worker.js does not name gemmule.wasm in the form that bundlers know'],
        [pages.includes('new Worker(new URL("./worker.js",import.meta.url),{type:"module"})'), 'no module names worker.js in the form that bundlers know'],
        [bytes <= MOST_SCRIPT, `the scripts have ${bytes} bytes, more than ${MOST_SCRIPT}`],
    ];
    const broken = rules.filter(([holds]) => !holds);
    for (const [, why] of broken) console.error(`web/dist: ${why}`);
    if (broken.length) process.exit(1);
    console.log(`web/dist: ${scripts.length} scripts of ${bytes} bytes, gemmule.wasm of ${statSync(join(out, 'gemmule.wasm')).size} bytes`);
}

if (!existsSync(wasm)) {
    console.error(`${wasm} is missing: cmake --preset wasm && cmake --build --preset wasm`);
    process.exit(1);
}
rmSync(out, { recursive: true, force: true });
await bundle({
    index: join(here, 'src/api/index.ts'), node: join(here, 'src/node.ts'),
    'ai-sdk': join(here, 'src/api/ai_sdk.ts'), 'language-model': join(here, 'src/api/language_model.ts'),
}, false);
await bundle({ worker: join(here, 'src/worker/worker.ts') }, true);
copyFileSync(wasm, join(out, 'gemmule.wasm'));
run(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', 'tsconfig.types.json']);
check();
