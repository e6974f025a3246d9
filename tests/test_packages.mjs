// npm packages are installed where they are needed: the root's lock file, which `make run` installs, has nothing that only tests or
// benchmarks use; every imported package is listed in a package.json above the importing file; lock files have no download addresses.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { dirname } from 'node:path';
import { test } from 'node:test';

const FOLDERS = ['.', 'web', 'tests', 'bench'];
const json = (path) => JSON.parse(readFileSync(path, 'utf8'));
const manifests = new Map(FOLDERS.map((folder) => [folder, json(`${folder}/package.json`)]));
const locks = new Map(FOLDERS.map((folder) => [folder, json(`${folder}/package-lock.json`).packages]));
const listed = (folder) => {
    const { dependencies = {}, devDependencies = {} } = manifests.get(folder) ?? {};
    return { ...dependencies, ...devDependencies };
};
const lockedAs = (folder, name) => locks.get(folder)[`node_modules/${name}`]?.version;

// The packages that only tests, documentation and benchmarks use: most of the bytes.
const NOT_FOR_RUN = new Set(['web', 'tests', 'bench'].flatMap((folder) => Object.keys(listed(folder))));

// The packages that a file imports, including types, and imports at the beginning of a line in templates and comments.
const IMPORT = /(?:^\s*(?:import|export|\})[^'"`;]*?\bfrom\s*|^\s*import\s*|\bimport\(\s*)['"]([^'"]+)['"]/gm;
const packageOf = (specifier) => specifier.split('/').slice(0, specifier.startsWith('@') ? 2 : 1).join('/');
function importsOf(file) {
    const found = [...readFileSync(file, 'utf8').matchAll(IMPORT)].map(([, specifier]) => specifier);
    return new Set(found.filter((name) => !/^[./]|^node:|^virtual:/.test(name) && !builtinModules.includes(name)).map(packageOf));
}
const OWN = 'gemmule'; // the examples import the package itself

// The folders above a file that have packages, nearest first, as Node looks for them.
function foldersAbove(file) {
    const above = [];
    for (let folder = dirname(file); ; folder = dirname(folder)) {
        if (manifests.has(folder)) above.push(folder);
        if (folder === '.') return above;
    }
}

const tracked = execFileSync('git', ['ls-files', '-co', '--exclude-standard', '*.mjs', '*.js', '*.ts', '*.tsx'], { encoding: 'utf8' });
const files = tracked.trim().split('\n');

test('every import is listed in a package.json above its file', () => {
    assert.ok(files.length > 100, `only ${files.length} files`);
    const seen = new Set();
    const unlisted = [];
    for (const file of files) {
        for (const name of importsOf(file)) {
            seen.add(name);
            if (name !== OWN && !foldersAbove(file).some((folder) => name in listed(folder))) unlisted.push(`${file}: ${name}`);
        }
    }
    assert.deepEqual(unlisted, []);
    for (const name of ['vite', 'preact', 'playwright-core', 'naga-wasm', 'node-llama-cpp', '@ai-sdk/provider', 'highlight.js']) {
        assert.ok(seen.has(name), `no file imports ${name}: does the search work?`);
    }
});

test('what make run builds imports only packages of the root', () => {
    const built = files.filter((file) => /^web\/(?:build\.mjs|src\/|app\/(?:src\/|vite\.config\.ts))/.test(file));
    assert.ok(built.length > 50, `only ${built.length} files`);
    const optional = Object.keys(manifests.get('web').peerDependenciesMeta); // looked for at run time, by users who have them
    for (const file of built) {
        for (const name of importsOf(file)) assert.ok(name in listed('.') || optional.includes(name), `${file} imports ${name}`);
    }
    assert.ok('@ai-sdk/provider' in listed('.'), 'the types of the npm package need @ai-sdk/provider');
});

test('make run installs no package for tests', () => {
    assert.ok(NOT_FOR_RUN.size > 8);
    assert.deepEqual([...NOT_FOR_RUN].filter((name) => lockedAs('.', name)), []);
    assert.deepEqual(Object.keys(manifests.get('.').dependencies), ['bun-webgpu-linux-x64'], 'make installs these alone');
});

test('lock files agree with package.json and each other, and name no addresses', () => {
    for (const folder of FOLDERS) {
        for (const [name, version] of Object.entries(listed(folder))) assert.equal(lockedAs(folder, name), version, `${folder}: ${name}`);
        for (const [path, { resolved, version }] of Object.entries(locks.get(folder))) {
            assert.equal(resolved, undefined, `${folder}: ${path} has an address`);
            const name = path.replace(/^node_modules\//, '');
            for (const other of FOLDERS) {
                if (name in listed(other)) assert.equal(version, listed(other)[name], `${folder} and ${other}: ${name}`);
            }
        }
    }
});
