// Rules of the code that a compiler does not check (CONTRIBUTING.md):
//
// - A name says which thing it belongs to. No two files have a static function of the same name, and none has the name of a public
//   function elsewhere. Files that define the same public functions are alternatives (pool.c and pool_wasm.c), which may agree.
// - What a call returns says whether it failed. Nobody tests the status inside an `error *e`, or returns it after a call that returned
//   one itself; it is passed on only when there is no handle (`if (!buffer) return e->status;`).
// - A kernel stores the first value of its counters in workgroup memory, since that memory is not zeroed (disable_workgroup_init); what it does
//   to them later is never a store.
// - A folder of src/ uses only folders to its left in the order of docs/ARCHITECTURE.md.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ENTRIES = /^(main|LLVMFuzzerTestOneInput)$/;
const EXAMPLES = /^examples\//; // programs of their own, which users copy

/* The functions that a file defines: those at the left margin with a body. */
function functionsOf(text) {
    const code = text.replaceAll(/\/\*[^]*?\*\/|\/\/.*|"(?:\\.|[^"\\\n])*"/g, ' ');
    const found = code.matchAll(/^(?!typedef|else|return)([A-Za-z_][\w\s*()"]*?)\b(\w+)\(([^;{}]*)\)\s*\{/gm);
    const all = [...found].map(([, before, name]) => ({ name, own: /^static\b/.test(before) })).filter(({ name }) => !ENTRIES.test(name));
    return { own: all.filter((f) => f.own).map((f) => f.name), shared: all.filter((f) => !f.own).map((f) => f.name) };
}

/* `files`: their texts by path. Returns a line for each name that stands for several functions. */
function clashes(files) {
    const parsed = Object.entries(files).map(([path, text]) => ({ path, ...functionsOf(text) }));
    const holders = new Map();
    for (const file of parsed) for (const name of file.own) holders.set(name, [...(holders.get(name) ?? []), file]);
    const alternatives = (a, b) => a.shared.some((name) => b.shared.includes(name));
    const found = [];
    for (const [name, own] of holders) {
        const others = parsed.filter((file) => file.shared.includes(name));
        if (own.length + others.length < 2 || (!others.length && own.every((file) => file === own[0] || alternatives(file, own[0])))) continue;
        found.push(`${name}: ${[...own, ...others].map((file) => file.path).join(', ')}`);
    }
    return found.sort();
}

const ENDS = ['src/base/base.c', 'src/cli/complain.c', 'src/serve/openai.c', 'src/wasm/context.c']; // where errors are made or leave
const STICKY = [
    /!(?:\w+->)*e->status\b/, // tested
    /\((?:\w+->)*e->status\b/,
    /\be->status\s*(?:&&|\|\||\?|==|!=)/,
    /(?:&&|\|\|) (?:\w+->)*e->status\b/,
    /^ {4}return (?:\w+->)*e->status;/m, // the end of a function whose calls were not tested
    /if \([^;{}]*[(,] ?(?:\w+->)*e\)[^;{}]*\)\s*return (?:\w+->)*e->status;/, // after a call with `e` that was
];

/* Lines where a file reads the status inside an error that it was given. */
function sticky(path, text) {
    const code = text.replaceAll(/\/\*[^]*?\*\/|"(?:\\.|[^"\\\n])*"/g, (skipped) => skipped.replaceAll(/[^\n]/g, ' '));
    return STICKY.flatMap((pattern) => [...code.matchAll(new RegExp(pattern, `g${pattern.flags}`))])
        .map((found) => `${path}:${code.slice(0, found.index).split('\n').length}: tests e->status instead of what a call returned`);
}

/* The folders of docs/ARCHITECTURE.md, with their places: "base < gguf < …, …". */
function folderOrder(architecture) {
    const line = architecture.split('\n').find((text) => /^ {4}base < /.test(text)) ?? '';
    return new Map(line.trim().split(' < ').flatMap((names, place) => names.split(', ').map((name) => [name, place])));
}

/* Includes of a file in src/ from a folder that is not to the left of its own. */
function wrongIncludes(order, path, text) {
    const own = path.split('/')[1];
    return [...text.matchAll(/^#include "(\w+)\/[\w.]+"/gm)].filter(([, folder]) => folder !== own && !(order.get(folder) < order.get(own)))
        .map(([line, folder]) => `${path}: ${line}: ${folder} is not to the left of ${own}`);
}

/* Counters in workgroup memory that nothing stores to in any kernel that includes them. */
function uncleared(kernels) {
    const whole = (name, seen = new Set()) => {
        if (seen.has(name) || !kernels[name]) return '';
        seen.add(name);
        return [kernels[name], ...[...kernels[name].matchAll(/^#include "([\w.]+)"/gm)].map(([, other]) => whole(other, seen))].join('\n');
    };
    const texts = Object.keys(kernels).map((name) => whole(name));
    return Object.entries(kernels).flatMap(([name, text]) => [...text.matchAll(/^var<workgroup>\s+(\w+)\s*:\s*(?:array<)?atomic</gm)]
        .filter(([line, counter]) => !texts.some((all) => all.includes(line) && new RegExp(`atomicStore\\(&${counter}\\b[^,]*, (?![1-9])`).test(all)))
        .map(([, counter]) => `wgsl/${name}: nothing sets '${counter}' before it is read`));
}

// It notices what it is for.
const counter = 'var<workgroup> misses: atomic<u32>;\n';
assert.deepEqual(uncleared({ 'a.wgsl': counter }), ["wgsl/a.wgsl: nothing sets 'misses' before it is read"]);
assert.deepEqual(uncleared({ 'a.wgsl': counter, 'b.wgsl': '#include "a.wgsl"\n#include "c.wgsl"\n', 'c.wgsl': 'atomicStore(&misses, 0u);' }), []);
assert.equal(uncleared({ 'a.wgsl': `${counter}atomicStore(&misses, 1u);` }).length, 1); // a later value, not the first
assert.equal(uncleared({ 'a.wgsl': `${counter}atomicMax(&misses, 1u);`, 'b.wgsl': 'atomicStore(&misses, 0u);' }).length, 1);
const one = 'static int take(int a) {\n    return a;\n}\n';
const two = '/* static void take(void) { */\nstatic bool\ntake(const thing *t,\n     int n) { return n; }\n';
assert.deepEqual(clashes({ 'a.c': one, 'b.c': two }), ['take: a.c, b.c']);
assert.deepEqual(clashes({ 'a.c': one, 'b.c': 'int take(int a) { return a; }\n' }), ['take: a.c, b.c']);
assert.deepEqual(clashes({ 'a.c': `${one}void run(void) {}\n`, 'b.c': `${two}void run(void) {}\n` }), []);
assert.deepEqual(clashes({ 'a.c': one, 'b.c': 'static int give(int a) { return take(a); }\nstatic int take(int a);\n' }), []);
for (const line of ['if (!e->status) f(e);', 'while (n && !r->e->status) n--;', 'return e->status ? 0 : 1;', 'if (f(a, e)) return e->status;'])
    assert.equal(sticky('a.c', `    ${line}`).length, 1, line);
assert.equal(sticky('a.c', 'void f(error *e) {\n    g(e);\n    return e->status;\n}\n').length, 1);
assert.equal(sticky('a.c', '    if (f(a,\n          e) || g(e))\n        return e->status;').length, 1);
for (const line of ['if (!buffer) return e->status;', 'if (n && !b->slot) return e->status;', 'TRY(f(a, e)); /* !e->status */', 'else status = e->status;'])
    assert.equal(sticky('a.c', `    ${line}`).length, 0, line);

const order = folderOrder('text\n    base < graph < cpu, gpu < cli\n');
assert.deepEqual([...order], [['base', 0], ['graph', 1], ['cpu', 2], ['gpu', 2], ['cli', 3]]);
assert.equal(wrongIncludes(order, 'src/cpu/a.c', '#include "base/b.h"\n#include "cpu/a.h"\n#include "x.h"\n#include <cli/x.h>\n').length, 0);
assert.equal(wrongIncludes(order, 'src/cpu/a.c', '#include "gpu/b.h"\n#include "cli/a.h"\n#include "new/a.h"\n').length, 3);

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const paths = execFileSync('git', ['ls-files', '-z', '*.c'], { cwd: root, encoding: 'utf8' }).split('\0').filter((path) => path && !EXAMPLES.test(path));
const files = Object.fromEntries(paths.map((path) => [path, readFileSync(join(root, path), 'utf8')]));
const problems = [...clashes(files), ...paths.filter((path) => /^src\//.test(path) && !ENDS.includes(path)).flatMap((path) => sticky(path, files[path]))];
const folders = folderOrder(readFileSync(join(root, 'docs/ARCHITECTURE.md'), 'utf8'));
const headers = execFileSync('git', ['ls-files', '-z', 'src/*.h'], { cwd: root, encoding: 'utf8' }).split('\0').filter(Boolean);
for (const path of [...headers, ...paths.filter((name) => /^src\//.test(name))])
    problems.push(...wrongIncludes(folders, path, files[path] ?? readFileSync(join(root, path), 'utf8')));
const kernels = execFileSync('git', ['ls-files', '-z', 'wgsl/*.wgsl'], { cwd: root, encoding: 'utf8' }).split('\0').filter(Boolean);
problems.push(...uncleared(Object.fromEntries(kernels.map((path) => [path.slice('wgsl/'.length), readFileSync(join(root, path), 'utf8')]))));
if (paths.length < 150 || kernels.length < 50 || functionsOf(files['src/base/json.c']).own.length < 10) problems.push('few files or functions were found');
for (const problem of problems) console.error(`FAILED: ${problem}`);
console.log(`${paths.length} files, ${problems.length} problems`);
process.exit(problems.length ? 1 : 0);
