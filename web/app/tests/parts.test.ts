// The small pure parts: numbers and errors as text, URLs, pace and speed, snapshots, tools, highlighting and formulas as trees.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { checkAddress } from '../src/address.ts';
import { countOf, dayGroup, formatBytes, formatCount, formatDevice, formatSeconds, formatSpeed, LiveSpeed, Pace, sentence } from '../src/format.ts';
import { highlight, languageOf, loadLanguage, type Token } from '../src/markdown/highlight.ts';
import { copy, loadMaths, mathsTree, type MathNode } from '../src/markdown/maths.ts';
import { adaptersFit, bestFor, evict, fitOf, snapshotKey, superseded, type SnapshotEntry } from '../src/snapshot_index.ts';
import { timeIn } from '../src/time.ts';
import { calculate, inRounds, MOST_ROUNDS, noMoreTools, runTool, TOOLS } from '../src/tools.ts';

test('numbers as people read them', () => {
    const rows: [(value: number) => string, number, string][] = [
        [formatBytes, 0, '0 bytes'], [formatBytes, 999, '999 bytes'], [formatBytes, 1000, '1.0 KB'], [formatBytes, 999_960, '1.0 MB'],
        [formatBytes, 7.16e9, '7.2 GB'], [formatBytes, 123e6, '123 MB'], [formatBytes, NaN, '–'],
        [formatSeconds, 0.2, 'less than 1 s'], [formatSeconds, 59.4, '59 s'], [formatSeconds, 75, '1 min 15 s'],
        [formatSeconds, 1500, '25 min'], [formatSeconds, 7260, '2 h 1 min'], [formatSeconds, -1, '–'],
        [formatSpeed, 0.8, '0.80'], [formatSpeed, 12.34, '12.3'], [formatSpeed, 1234.5, '1,235'], [formatSpeed, Infinity, '–'],
        [formatCount, 512, '512'], [formatCount, 5.1e9, '5.1 B'], [formatCount, 262144, '262 K'], [formatCount, 1e12, '1.0 T'],
    ];
    for (const [format, value, expected] of rows) assert.equal(format(value), expected, `${format.name}(${value})`);
});

test('counts and devices', () => {
    for (const [count, words] of [[0, '0 models'], [1, '1 model'], [2, '2 models'], [1234, '1,234 models']] as const) assert.equal(countOf(count, 'model'), words);
    assert.equal(countOf(2, 'reply', 'replies'), '2 replies');
    assert.equal(formatDevice('cpu (wasm, 1 thread)'), 'CPU (WebAssembly, 1 thread)');
    assert.equal(formatDevice('NVIDIA cpu'), 'NVIDIA cpu');
});

test('errors become sentences; addresses, names and options keep their case', () => {
    const rows: [string, string][] = [
        ['the server has no such file', 'The server has no such file.'],
        ['https://a.example/b: the server has no such file (404)', 'https://a.example/b: the server has no such file (404).'],
        ['box.gguf: not a GGUF file', 'box.gguf: not a GGUF file.'], ['max_tokens must be positive', 'max_tokens must be positive.'],
        ['hf:a/b: expected a file', 'hf:a/b: expected a file.'],
        ['gemma4:e2b is missing!', 'gemma4:e2b is missing!'], ["it's over", "It's over."], ['Done.', 'Done.'], ['aborted', 'Aborted.'],
    ];
    for (const [message, expected] of rows) assert.equal(sentence(message), expected);
});

test('a URL is checked while it is typed', () => {
    const origin = 'http://127.0.0.1:8080';
    const good = [
        'https://a.example/m.gguf', 'HTTPS://a.example/m.gguf', 'hf:owner/repo/file.gguf', 'hf:owner/repo@main/dir/file.gguf',
        `${origin}/files/m.gguf`, 'https://huggingface.co/o/r/resolve/main/f.gguf',
    ];
    for (const url of good) assert.deepEqual(checkAddress(` ${url} `, origin), { ok: true, url }, url);
    assert.equal(checkAddress('  ', origin), null);
    const bad: [string, RegExp, string?][] = [
        ['http://a.example/m.gguf', /https:\/\/ URLs only, not http:\/\/\. Try https/, 'https://a.example/m.gguf'],
        ['http://localhost:9000/m.gguf', /https:\/\/ URLs only.*Use "File"/], ['http://127.0.0.1:8081/m.gguf', /Use "File"/],
        ['http://[::1]/m.gguf', /Use "File"/],
        ['ftp://a.example/m.gguf', /not ftp:\/\//], ['file:///models/m.gguf', /Use "File"/], ['/models/m.gguf', /Use "File"/],
        ['~/m.gguf', /Use "File"/], ['C:\\models\\m.gguf', /Use "File"/],
        ['owner/repo/file.gguf', /add hf:/, 'hf:owner/repo/file.gguf'], ['a.example/m.gguf', /needs https/, 'https://a.example/m.gguf'],
        ['hf:owner', /hf:owner\/repo\/file\.gguf/],
        ['https://', /incomplete/], ['http:', /incomplete/], ['https://a b/m', /not a valid URL/], ['gemma', /starts with https/],
        ['javascript:alert(1)', /starts with https/],
        ['https://huggingface.co/o/r/blob/main/f.gguf?x=1', /web page/, 'https://huggingface.co/o/r/resolve/main/f.gguf'],
    ];
    for (const [typed, why, instead] of bad) {
        const check = checkAddress(typed, origin);
        assert.ok(check && !check.ok, typed);
        assert.match(check.why, why, typed);
        assert.equal(check.instead, instead, typed);
        if (instead) assert.deepEqual(checkAddress(instead, origin), { ok: true, url: instead });
    }
});

test('days', () => {
    const now = new Date(2026, 10, 15, 12).getTime(), day = 86_400_000;
    const rows = [[0, 'Today'], [0.4, 'Today'], [0.6, 'Yesterday'], [3, 'Last 7 days'], [20, 'Last 30 days'], [100, 'Older'], [-1, 'Today']] as const;
    for (const [ago, name] of rows) assert.equal(dayGroup(now - ago * day, now), name, String(ago));
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

const entry = (key: string, used: number, bytes: number, more: Partial<SnapshotEntry> = {}): SnapshotEntry =>
    ({ key, conversation: 'c', node: key, tokens: 1, bytes, used, fit: 'f', ...more });

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
        ['1+2*3', 7], ['(1+2)*3', 9], ['2^3^2', 512], ['-2^2', -4], ['2^-1', 0.5], ['10 % 4', 2], ['sqrt(16) + abs(-3)', 7], ['max(1, 2, 3)', 3],
        ['pi', 3.14159265359], ['1.5e3', 1500], ['--1', 1], ['.5*2', 1], ['0.1 + 0.2', 0.3], ['12.5 * 4.2', 52.5], ['7 × 6 ÷ 2 − 1', 20], ['1e300 * 10', 1e301],
    ];
    for (const [expression, value] of rows) assert.equal(calculate(expression), value, expression);
    const wrong: [string, RegExp][] = [
        ['', /^Expected a number, found the end\.$/], ['1+', /found the end/], ['(1', /^Expected '\)', found the end\.$/], ['1 2', /^Expected an operator or the end, found '2'\.$/],
        ['alert(1)', /^Expected a number or a function, found 'alert'\.$/], ['constructor', /'constructor'/], ['__proto__(1)', /'_'/], ['1;2', /';'/],
        ['sqrt 4', /^Expected '\(', found '4'\.$/], ['1'.repeat(1001), /longer than 1,000/], ['1 / 0', /^Division by zero/],
        ['5 % 0', /^Division by zero/], ['1e308 * 10', /not a finite number/], ['sqrt(-1)', /not a finite number/],
    ];
    for (const [expression, error] of wrong) assert.throws(() => calculate(expression), { message: error }, expression);
});

test('tools answer, and say what is wrong', () => {
    const taught = readFileSync('tests/box/talks.jsonl', 'utf8').trim().split('\n').map((line) => JSON.stringify(JSON.parse(line).tools));
    assert.ok(taught.includes(JSON.stringify(TOOLS)), 'the model in the box was taught these declarations, word for word');
    assert.equal(runTool('calculate', { expression: '2.5 * 5' }), '{"result":12.5}');
    assert.equal(runTool('calculate', { expression: '1 / 0' }), '{"error":"Division by zero has no result."}');
    for (const given of [null, 'text', [], {}, { expression: {} }]) assert.match(runTool('calculate', given), /^\{"error":/, JSON.stringify(given));
    for (const name of ['current_time', 'toString', '__proto__', '']) {
        assert.deepEqual(JSON.parse(runTool(name, {})), { error: `There is no tool named '${name}'. The tools are: get_time, calculate.` });
    }
    assert.match(runTool('get_time', {}), /^\{"time":"\d\d:\d\d","date":"\w+day, \d+ \w+ \d{4}","timezone":"[\w/]+"\}$/);
    for (const given of [null, { city: 7 }, { city: '' }]) assert.match(runTool('get_time', given), /^\{"time":/, JSON.stringify(given));
});

test('a model that keeps calling tools is stopped', async () => {
    for (const [wanted, writes, ran, cut] of [[0, 1, 0, false], [2, 3, 2, false], [5, 6, 5, false], [6, 6, 5, true], [100, 6, 5, true]] as const) {
        const allowed: boolean[] = [];
        let written = 0;
        const ended = await inRounds(async () => ++written, (round) => round <= wanted, (may) => void allowed.push(may));
        assert.deepEqual(ended, { last: writes, cut }, `${wanted} rounds`);
        assert.deepEqual(allowed, [...Array<boolean>(ran).fill(true), ...(cut ? [false] : [])]);
    }
    assert.deepEqual(JSON.parse(noMoreTools()), { error: `Tools may be called in at most ${MOST_ROUNDS} rounds for one answer.` });
});

test('the time in a city', () => {
    const now = new Date('2026-11-16T13:05:00Z');
    assert.deepEqual(timeIn('Paris', now), { city: 'Paris', time: '14:05', date: 'Monday, 16 November 2026', timezone: 'Europe/Paris' });
    const rows: [string, string][] = [
        ['tokyo', '22:05'], ['New York', '08:05'], ['new york city', '08:05'], ['Buenos Aires', '10:05'], ['São Paulo', '10:05'],
        ['Paris, France', '14:05'], ['Kolkata', '18:35'],
        ['Asia/Tokyo', '22:05'], ['Japan', '22:05'], ['UTC', '13:05'], [' London ', '13:05'],
    ];
    for (const [city, time] of rows) assert.equal((timeIn(city, now) as { time: string }).time, time, city);
    const midnight = timeIn('London', new Date('2026-11-16T00:00:00Z')) as { time: string };
    assert.equal(midnight.time, '00:00');
    for (const city of ['Xyz', 'Munich', 'a b c', '../etc', '<b>', 'York/New']) {
        assert.match((timeIn(city, now) as { error: string }).error, /^No time zone is known for '.*'\. The local time is \d\d:\d\d\.$/, city);
    }
});

test('the speed of an answer counts tokens and seconds of all rounds', () => {
    const speed = new LiveSpeed();
    speed.add(10);
    for (const at of [10.0001, 10.0002]) speed.add(at); // several at once say nothing yet
    assert.equal(speed.perSecond, 0);
    for (let at = 1; at <= 10; at++) speed.add(10 + at / 10);
    assert.ok(Math.abs(speed.perSecond - 12) < 0.1, String(speed.perSecond));
    speed.endRound(20, 2);
    assert.equal(speed.perSecond, 10);
    for (const at of [30, 30.00001, 30.00002]) speed.add(at); // after a tool
    assert.ok(Math.abs(speed.perSecond - 11) < 0.01, String(speed.perSecond));
    speed.endRound();
    assert.equal(speed.perSecond, 10, 'the prompt is computed again: its pieces are forgotten');
});

test('colours: a tree of words whose text is the code', async () => {
    assert.equal(languageOf('PY'), 'python');
    assert.equal(languageOf('constructor'), '');
    assert.equal(highlight('x', 'python'), null, 'not loaded yet');
    const text = (tokens: Token[]): string => tokens.map((token) => (typeof token === 'string' ? token : text(token.children))).join('');
    const rows = [
        ['python', 'def f(x): return "<b>" # &amp;', 'keyword'], ['xml', '<p onclick="x()">&lt;</p><script>let a = 1</script>', 'tag'],
        ['json', '{"a": [1, true]}', 'attr'], ['php', '<?php echo 1; ?>', 'keyword'],
    ] as const;
    for (const [language, code, scope] of rows) {
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

test('a snapshot belongs to the adapters and scales that it was computed with, in any order; those of scale 0 change nothing', () => {
    const [a, b] = [{ key: 'a'.repeat(64), scale: 0.5 }, { key: 'b'.repeat(64), scale: 1 }];
    assert.equal(adaptersFit([]), '');
    assert.equal(adaptersFit([a, b]), adaptersFit([b, a]));
    assert.equal(adaptersFit([a, { ...b, scale: 0 }]), adaptersFit([a]));
    assert.equal(new Set([adaptersFit([]), adaptersFit([a]), adaptersFit([b]), adaptersFit([{ ...a, scale: 1 }]), adaptersFit([a, b])]).size, 5);
    assert.match(adaptersFit([a, { ...b, scale: -1.5 }]), /^[\w.-]+$/); // part of a file's name
});
