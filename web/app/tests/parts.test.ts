// The small pure parts: numbers as text, pace, snapshots' names and eviction, the calculator, colours and formulas as trees.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { dayGroup, formatBytes, formatCount, formatSeconds, formatSpeed, Pace } from '../src/format.ts';
import { highlight, languageOf, loadLanguage, type Token } from '../src/markdown/highlight.ts';
import { copy, loadMaths, mathsTree, type MathNode } from '../src/markdown/maths.ts';
import { bestFor, evict, fitOf, snapshotKey, superseded, type SnapshotEntry } from '../src/snapshot_index.ts';
import { calculate, runTool, TOOLS } from '../src/tools.ts';

test('numbers as people read them', () => {
    const rows: [(value: number) => string, number, string][] = [
        [formatBytes, 0, '0 bytes'], [formatBytes, 999, '999 bytes'], [formatBytes, 1000, '1.0 KB'], [formatBytes, 999_960, '1.0 MB'], [formatBytes, 7.16e9, '7.2 GB'], [formatBytes, 123e6, '123 MB'], [formatBytes, NaN, '–'],
        [formatSeconds, 0.2, 'less than 1 s'], [formatSeconds, 59.4, '59 s'], [formatSeconds, 75, '1 min 15 s'], [formatSeconds, 1500, '25 min'], [formatSeconds, 7260, '2 h 1 min'], [formatSeconds, -1, '–'],
        [formatSpeed, 0.8, '0.80'], [formatSpeed, 12.34, '12.3'], [formatSpeed, 1234.5, '1,235'], [formatSpeed, Infinity, '–'],
        [formatCount, 512, '512'], [formatCount, 5.1e9, '5.1 B'], [formatCount, 262144, '262 K'], [formatCount, 1e12, '1.0 T'],
    ];
    for (const [format, value, expected] of rows) assert.equal(format(value), expected, `${format.name}(${value})`);
});

test('days', () => {
    const now = new Date(2026, 10, 15, 12).getTime(), day = 86_400_000;
    for (const [ago, name] of [[0, 'Today'], [0.4, 'Today'], [0.6, 'Yesterday'], [3, 'Last 7 days'], [20, 'Last 30 days'], [100, 'Older'], [-1, 'Today']] as const) assert.equal(dayGroup(now - ago * day, now), name, String(ago));
});

test('pace: a resume counts only what came since', () => {
    const pace = new Pace();
    pace.update(0, 1000);
    assert.equal(pace.left(2000), null);
    for (let second = 1; second <= 20; second++) pace.update(second, 1000 + second * 10);
    assert.ok(Math.abs(pace.speed - 10) < 0.01);
    assert.ok(Math.abs(pace.left(2000)! - 80) < 1);
    pace.update(21, 0); // it began again
    assert.equal(pace.speed, 0);
});

const entry = (key: string, used: number, bytes: number, more: Partial<SnapshotEntry> = {}): SnapshotEntry => ({ key, conversation: 'c', node: key, tokens: 1, bytes, used, fit: 'f', ...more });

test('snapshots: the key holds model, type, layout and tokens', async () => {
    const tokens = Int32Array.of(1, 2, 3);
    const key = await snapshotKey(fitOf('a'.repeat(64), 'f16'), tokens);
    assert.match(key, /^a{16}-f16-l1-[0-9a-f]{32}$/);
    const others = await Promise.all([
        snapshotKey(fitOf('b'.repeat(64), 'f16'), tokens), snapshotKey(fitOf('a'.repeat(64), 'q8_0'), tokens),
        snapshotKey(fitOf('a'.repeat(64), 'f16', 2), tokens), snapshotKey(fitOf('a'.repeat(64), 'f16'), Int32Array.of(1, 2, 4)),
    ]);
    assert.equal(new Set([key, ...others]).size, 5);
    const part = new Int32Array([0, 1, 2, 3]).subarray(1); // only the view counts, not the buffer behind it
    assert.equal(await snapshotKey(fitOf('a'.repeat(64), 'f16'), part), key);
});

test('snapshots: the least recently used go first', () => {
    const entries = [entry('new', 30, 40), entry('old', 10, 40), entry('middle', 20, 40)];
    assert.deepEqual(evict(entries, 10, 130), []);
    assert.deepEqual(evict(entries, 11, 130), ['old']);
    assert.deepEqual(evict(entries, 60, 130), ['old', 'middle']);
    assert.deepEqual(evict(entries, 130, 130), ['old', 'middle', 'new']);
    assert.equal(evict(entries, 131, 130), null);
    assert.deepEqual(evict([], 1_999_999_999), []);
    assert.equal(evict([], 2_000_000_001), null);
});

test('snapshots: the one behind the latest answer that is shown', () => {
    const entries = [entry('a', 1, 1), entry('b', 1, 1), entry('x', 1, 1), entry('b2', 1, 1, { node: 'b', fit: 'other' }), entry('c2', 1, 1, { node: 'd', conversation: 'other' })];
    assert.equal(bestFor(entries, 'c', 'f', ['q', 'a', 'q2', 'b', 'd'])?.key, 'b');
    assert.equal(bestFor(entries, 'c', 'f', ['q', 'a'])?.key, 'a');
    assert.equal(bestFor(entries, 'c', 'f', ['q']), null);
    assert.equal(bestFor(entries, 'c', 'g', ['a']), null);
    assert.deepEqual(superseded(entries, entry('d', 2, 1), ['q', 'a', 'q2', 'b', 'q3', 'd']), ['a', 'b']);
});

test('the calculator', () => {
    const rows: [string, number][] = [
        ['1+2*3', 7], ['(1+2)*3', 9], ['2^3^2', 512], ['-2^2', -4], ['2^-1', 0.5], ['10 % 4', 2], ['sqrt(16) + abs(-3)', 7], ['max(1, 2, 3)', 3], ['pi', Math.PI], ['1.5e3', 1500], ['--1', 1], ['.5*2', 1],
    ];
    for (const [expression, value] of rows) assert.equal(calculate(expression), value, expression);
    for (const wrong of ['', '1+', '(1', '1 2', 'alert(1)', 'constructor', '__proto__(1)', '1;2', 'sqrt 4', '1'.repeat(1001)]) assert.throws(() => calculate(wrong), Error, wrong);
});

test('tools answer, and say what is wrong', () => {
    assert.equal(runTool('calculate', { expression: '6*7' }), '{"value":42}');
    assert.match(runTool('calculate', null), /error/);
    assert.match(runTool('toString', {}), /no tool/);
    assert.match(runTool('current_time', {}), /zone/);
    for (const { function: { name } } of TOOLS) assert.doesNotMatch(runTool(name, { expression: '1' }), /error/);
});

test('colours: a tree of words whose text is the code', async () => {
    assert.equal(languageOf('PY'), 'python');
    assert.equal(languageOf('constructor'), '');
    assert.equal(highlight('x', 'python'), null, 'not loaded yet');
    const text = (tokens: Token[]): string => tokens.map((token) => (typeof token === 'string' ? token : text(token.children))).join('');
    for (const [language, code, scope] of [['python', 'def f(x): return "<b>" # &amp;', 'keyword'], ['xml', '<p onclick="x()">&lt;</p><script>let a = 1</script>', 'tag'], ['json', '{"a": [1, true]}', 'attr'], ['php', '<?php echo 1; ?>', 'keyword']] as const) {
        await loadLanguage(language);
        const tokens = highlight(code, language)!;
        assert.equal(text(tokens), code, language);
        assert.match(JSON.stringify(tokens), new RegExp(`"scope":"${scope}"`), language);
    }
});

test('formulas: MathML of known elements and attributes only', async () => {
    assert.equal(mathsTree('x', false), null, 'not loaded yet');
    await loadMaths();
    const names = new Set<string>(), attributes = new Set<string>();
    const walk = (node: MathNode): void => {
        if (typeof node === 'string') return;
        names.add(node.name);
        for (const [key, value] of Object.entries(node.attributes)) {
            attributes.add(key);
            assert.doesNotMatch(value, /[:"'<>]|url/i);
        }
        for (const value of Object.values(node.styles)) assert.match(value, /^[\w. ]+$/);
        node.children.forEach(walk);
    };
    for (const tex of ['\\frac{a}{b}', '\\sqrt[3]{x}', '\\sum_{i=0}^n i^2', '\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}', '\\color{red}{x}', '\\boxed{x}', '\\text{a < b}']) {
        const tree = mathsTree(tex, true);
        assert.ok(tree && typeof tree !== 'string' && tree.name === 'math', tex);
        walk(tree);
    }
    const corpus = (JSON.parse(readFileSync(new URL('xss.json', import.meta.url), 'utf8')) as string[]).filter((text) => text.includes('$'));
    for (const text of corpus) {
        const tree = mathsTree(text.replaceAll('$', ''), true);
        if (tree) walk(tree);
    }
    for (const bad of ['a', 'script', 'img', 'annotation-xml', 'maction', 'style']) assert.ok(!names.has(bad), bad);
    for (const bad of ['href', 'src', 'style', 'onclick', 'id']) assert.ok(!attributes.has(bad), bad);
    assert.deepEqual(copy({ type: 'script', attributes: { src: 'x' }, children: [{ text: 'a' }] }), { name: 'mrow', attributes: {}, styles: {}, className: '', children: ['a'] });
    assert.match(JSON.stringify(mathsTree('\\begin{pmatrix}1&2\\end{pmatrix}', true)), /"styles":\{"padding[^}]*5\.9776pt/);
    assert.equal(mathsTree('\\frac{', false), null);
});
