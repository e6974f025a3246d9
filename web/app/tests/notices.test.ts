// Every package in the bundle has its licence in notices.txt. Builds the app in memory; needs build/wasm.

import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { build, type Rolldown } from 'vite';
import { NOTICES, noticesText, packageFolder, packageNotice } from '../../notices.ts';

function asset(output: Rolldown.RolldownOutput['output'], name: string): string {
    const file = output.find((each) => each.fileName === name);
    assert.ok(file?.type === 'asset', `the build wrote no ${name}`);
    return String(file.source);
}

test('every bundled package has its notice', async () => {
    const { output } = (await build({ configFile: 'web/app/vite.config.ts', logLevel: 'silent', build: { write: false } })) as Rolldown.RolldownOutput;
    const notices = asset(output, NOTICES);
    const modules = output.flatMap((each) => (each.type === 'chunk' ? each.moduleIds : []));
    const packages = new Set(modules.flatMap((id) => /\/node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(id)?.[1] ?? []));
    assert.deepEqual([...packages].sort(), ['highlight.js', 'preact', 'temml'], 'what the app is known to carry');
    for (const name of packages) {
        const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8')) as { version: string };
        assert.ok(notices.includes(`\n${name} ${version}\n`), name);
        assert.ok(notices.includes(readFileSync(`node_modules/${name}/LICENSE`, 'utf8').trim()), `${name}'s licence`);
    }
    for (const name of ['vite', 'rolldown', 'wasi-libc']) assert.match(notices, new RegExp(`^${name}\\b`, 'm'), 'helpers of the bundler, the C library');
    assert.match(notices, /Rich Felker/); // of musl, inside wasi-libc
    assert.match(asset(output, 'sw.js'), /"\.\/notices\.txt"/, 'readable without a network');
});

test('a module belongs to the package that it is in', () => {
    const rows: [string, string | null][] = [
        ['/x/web/app/src/main.tsx', null],
        ['/x/node_modules/preact/dist/preact.mjs', '/x/node_modules/preact'],
        ['/x/node_modules/@scope/name/a/b.js?query', '/x/node_modules/@scope/name'],
        ['/x/node_modules/outer/node_modules/inner/a.js', '/x/node_modules/outer/node_modules/inner'],
        ['\0vite/preload-helper.js', '/x/node_modules/vite'],
    ];
    for (const [id, folder] of rows) assert.equal(packageFolder(id, '/x/node_modules'), folder, id);
});

test('a package without a licence fails the build', () => {
    const folder = mkdtempSync(join(tmpdir(), 'gemmule-notices-'));
    try {
        assert.throws(() => packageNotice(join(folder, 'missing')), /found no package\.json/);
        mkdirSync(join(folder, 'bare'));
        writeFileSync(join(folder, 'bare/package.json'), '{"name": "bare", "version": "1.2.3"}');
        assert.throws(() => packageNotice(join(folder, 'bare')), /bare is in the bundle, but .* has no licence file/);
        writeFileSync(join(folder, 'bare/LICENCE.txt'), '\n');
        assert.throws(() => packageNotice(join(folder, 'bare')), /no licence file/, 'an empty one');
        writeFileSync(join(folder, 'bare/LICENCE.txt'), 'Do as you like.\n');
        assert.deepEqual(packageNotice(join(folder, 'bare')), { name: 'bare 1.2.3', text: 'Do as you like.' });
    } finally {
        rmSync(folder, { recursive: true });
    }
    assert.match(noticesText([{ name: 'b', text: 'B' }, { name: 'a', text: 'A' }]), /\na\n-+\n\nA\n\n-+\nb\n-+\n\nB\n$/);
});
