// Builds the app into build/web: `vite build --config web/app/vite.config.ts`. Prints the size of a first load.

import { createHash } from 'node:crypto';
import { copyFileSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { gzipSync } from 'node:zlib';
import { defineConfig, transformWithOxc, type Plugin } from 'vite';
import { NOTICES, notices } from '../notices.ts';

const here = import.meta.dirname;
const root = resolve(here, '../..');
const { version } = JSON.parse(readFileSync(resolve(here, '../package.json'), 'utf8')) as { version: string };

const MOST_FIRST_LOAD = 500_000; // bytes, compressed, without a model

// Not part of a first load: whatever no static import or URL of the entry leads to, the engine with threads, which only browsers
// without WebGPU request, and the one that trains.
const LATER = /gemmule-(?:threads|train|train-threads)-[^/]*\.wasm$/;

function serviceWorker(): Plugin {
    return {
        name: 'service-worker',
        apply: 'build',
        async generateBundle(_, bundle) {
            const first = new Set<string>();
            const follow = (name: string): void => {
                const file = bundle[name];
                if (!file || first.has(name)) return;
                first.add(name);
                if (file.type !== 'chunk') return;
                file.imports.forEach(follow);
                file.viteMetadata?.importedCss.forEach(follow);
                file.viteMetadata?.importedAssets.forEach(follow);
            };
            for (const [name, file] of Object.entries(bundle)) {
                if (file.type === 'chunk' ? file.isEntry : /\.(?:wasm|css|html)$|worker-[^/]*\.js$/.test(name) && !LATER.test(name) || name === NOTICES) follow(name);
            }
            const contents = [...first].sort().map((name) => {
                const file = bundle[name]!;
                return { name, bytes: Buffer.from(file.type === 'chunk' ? file.code : file.source) };
            });
            for (const name of readdirSync(join(here, 'public'))) contents.push({ name, bytes: readFileSync(join(here, 'public', name)) });
            const digest = createHash('sha256');
            for (const { name, bytes } of contents) digest.update(name).update(bytes);
            const names = ['./', ...contents.filter(({ name }) => name !== 'index.html').map(({ name }) => `./${name}`)];
            const head = `const VERSION = ${JSON.stringify(digest.digest('hex').slice(0, 16))};\nconst FILES = ${JSON.stringify(names)};\n`;
            const { code } = await transformWithOxc(readFileSync(join(here, 'src/sw.ts'), 'utf8'), 'sw.ts', { target: 'es2022' });
            this.emitFile({ type: 'asset', fileName: 'sw.js', source: head + code });
            report(contents);
        },
    };
    function report(contents: { name: string; bytes: Buffer }[]): void {
        let sum = 0;
        const lines = contents.map(({ name, bytes }) => {
            const size = gzipSync(bytes, { level: 9 }).length;
            sum += size;
            return `  ${String(size).padStart(8)}  ${name}`;
        });
        console.log(`first load, gzip bytes:\n${lines.join('\n')}\n  ${String(sum).padStart(8)}  together, of ${MOST_FIRST_LOAD} allowed`);
        if (sum > MOST_FIRST_LOAD) throw new Error(`the first load is ${sum} bytes compressed, more than ${MOST_FIRST_LOAD}`);
    }
}

// Copies the model in the box beside the app, for servers that have only the app's files. It is not part of a first load.
function box(): Plugin {
    const file = resolve(root, 'models/box.gguf');
    return {
        name: 'box',
        apply: 'build',
        writeBundle({ dir }) {
            mkdirSync(join(dir!, 'models'), { recursive: true });
            copyFileSync(file, join(dir!, 'models/box.gguf'));
        },
    };
}

// The built package finds its worker and its wasm beside itself, by literals that bundlers recognise. The app is built from the package's
// sources, so the literals are changed to point there.
function packageSources(): Plugin {
    const literals = [
        { file: resolve(here, '../src/api/connect.ts'), from: "'./worker.js'", to: "'../worker/worker.ts'" },
        ...['gemmule.wasm', 'gemmule-threads.wasm', 'gemmule-train.wasm', 'gemmule-train-threads.wasm'].map((name) => (
            { file: resolve(here, '../src/worker/worker.ts'), from: `'./${name}'`, to: `'../../../build/wasm/${name}'` })),
    ];
    const transform = (code: string, id: string): string | null => {
        const here = literals.filter(({ file }) => id.split('?')[0] === file);
        const missing = here.find(({ from }) => !code.includes(from));
        if (missing) throw new Error(`${id}: expected the literal ${missing.from}`);
        return here.length ? here.reduce((text, { from, to }) => text.replace(from, to), code) : null;
    };
    return { name: 'package-sources', enforce: 'pre', transform };
}

const licences = notices(resolve(root, 'node_modules'));

export default defineConfig({
    root: here,
    base: './',
    define: { __VERSION__: JSON.stringify(version) },
    oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
    worker: { format: 'es', plugins: () => [packageSources(), licences.collect()] },
    build: {
        outDir: resolve(root, 'build/web'),
        emptyOutDir: true,
        target: 'es2022',
        cssTarget: ['chrome123', 'firefox120', 'safari17.5'], // light-dark(); WebGPU came later to all of them but the first
        assetsInlineLimit: 0,
        modulePreload: { polyfill: false },
        chunkSizeWarningLimit: 700,
    },
    plugins: [packageSources(), licences.write(), serviceWorker(), box()],
});
