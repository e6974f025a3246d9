/* Examples to learn from, as the package reads them. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Gemmule, GemmuleError } from '../src/node.ts';
import { pngFile, wavFile } from '../src/media/plain_files.ts';
import { specifyData } from '../src/sources/data.ts';
import { folderOfFiles } from '../src/sources/folder.ts';
import { fails } from './core_cases.ts';
import { DENSE, ROOT, WASM } from './support/models.ts';

const OPTIONS = { wasmUrl: WASM, backend: 'wasm', threads: 1, training: true } as const;
const MM = join(ROOT, 'tests/fixtures/tiny-mm.gguf'), MMPROJ = join(ROOT, 'tests/fixtures/tiny-mm.mmproj.gguf');
const pair = (prompt: string, completion: string): object => ({ prompt, completion });
const file = (name: string, content: BlobPart): File => new File([content], name);

test('what is in a list of examples, and how the model sees one', async () => {
    await using engine = await Gemmule.load(DENSE, OPTIONS);
    const told: number[] = [];
    await using data = await engine.dataset([pair('Hi', 'Hello!'), pair('Bye', 'See you.'), pair('Hi', 'Hello!')], {
        onProgress: ({ phase, done, total }) => {
            assert.equal(phase, 'examples');
            told.push(done / total);
        },
    });
    const { report } = data;
    assert.equal(told.at(-1), 1);
    assert.equal(report.form, 'JSONL with prompt and completion');
    assert.deepEqual([report.records, report.examples, report.pairs, report.duplicates, report.duplicateLine, report.duplicateOf], [3, 3, false, 1, 3, 1]);
    assert.equal(report.histogram.reduce((sum, count) => sum + count), 3);
    const { line, sequences: [sequence] } = await data.preview(1);
    assert.equal(line, 2);
    assert.equal(sequence!.parts.map(({ text }) => text).join(''), '<bos><|turn>user\nBye<turn|>\n<|turn>model\nSee you.<turn|>');
    assert.deepEqual(sequence!.parts.filter(({ counts }) => counts).map(({ text }) => text), ['See you.<turn|>']);
    assert.equal(sequence!.tokens, (await engine.tokenize(sequence!.parts.map(({ text }) => text).join(''), { special: true })).length);
    await assert.rejects(data.preview(3), fails('BadArgument', /there is no example 3; there are 3/));
    await data.free();
    await assert.rejects(data.preview(0), fails('BadArgument', /freed/));
});

test('a share is kept for evaluation, and long examples are cut off', async () => {
    await using engine = await Gemmule.load(DENSE, OPTIONS);
    const many = Array.from({ length: 40 }, (_, i) => pair(`Question ${i}`, `Answer ${i} ${'and more '.repeat(i)}`));
    await using data = await engine.dataset(many, { evalShare: 0.25, maxTokens: 64, seed: 3 });
    assert.equal(data.report.evaluation, 10);
    assert(data.report.truncated > 0 && data.report.longest === 64);
});

test('bad lines are named, all that are known', async () => {
    await using engine = await Gemmule.load(DENSE, OPTIONS);
    const text = '{"prompt": "a", "completion": "b"}\n{"prompt": 1}\nno JSON\n';
    const error = (await engine.dataset(file('a.jsonl', text)).catch((thrown: unknown) => thrown)) as GemmuleError;
    assert(error instanceof GemmuleError);
    assert.equal(error.name, 'BadData');
    assert.match(error.message, /a\.jsonl has 2 bad lines/);
    const { problems } = error.detail as { problems: string[] };
    assert.match(problems[0]!, /^line 2: /);
    assert.match(problems[1]!, /^line 3/);
    await assert.rejects(engine.dataset(file('a.jsonl', '')), fails('BadData', /is empty: expected examples/));
    await assert.rejects(engine.dataset([pair('a', 'b')], { evalShare: 1 }), fails('BadArgument', /share kept for evaluation/));
    const stopped = AbortSignal.abort();
    await assert.rejects(engine.dataset([pair('a', 'b')], { signal: stopped }), fails('Aborted', /./));
});

test('CSV and plain text', async () => {
    await using engine = await Gemmule.load(DENSE, OPTIONS);
    await using table = await engine.dataset(file('a.csv', 'prompt,completion\nHi,"Hello, you"\n'));
    assert.equal(table.report.form, 'CSV with prompt and completion');
    await using text = await engine.dataset(file('a.txt', 'Once upon a time.'));
    assert.equal(text.report.form, 'plain text');
});

test('a folder with pictures', async () => {
    await using engine = await Gemmule.load(MM, { ...OPTIONS, mmproj: MMPROJ });
    const example = { messages: [{ role: 'user', content: [{ type: 'image', image: 'seen/a.png' }, { type: 'text', text: 'What?' }] }, { role: 'assistant', content: 'A box.' }] };
    const inFolder = (path: string, content: BlobPart): File => Object.defineProperty(file(path.split('/').at(-1)!, content), 'webkitRelativePath', { value: `top/${path}` });
    const picture = readFileSync(join(ROOT, 'tests/fixtures/tiny-mm.png'));
    const folder = [inFolder('all.jsonl', JSON.stringify(example)), inFolder('seen/a.png', picture), inFolder('unused.png', 'nothing')];
    for (const source of [folder, folderOfFiles(folder)]) {
        assert.deepEqual((await specifyData(source)).media.map(({ path }) => path), ['seen/a.png']);
        await using data = await engine.dataset(source);
        assert.equal(data.report.media, 1);
    }
    await assert.rejects(engine.dataset([folder[0]!]), fails('BadData', /seen\/a\.png is not among the files/));
    await assert.rejects(engine.dataset([folder[1]!, folder[2]!]), fails('NotFound', /no file of examples/));
    await assert.rejects(engine.dataset([file('a.jsonl', '{}'), file('b.csv', '')]), fails('BadArgument', /2 files of examples \(a\.jsonl, b\.csv\)/));
});

test('decoded pictures and sounds become files that the engine reads', async () => {
    await using engine = await Gemmule.load(MM, { ...OPTIONS, mmproj: MMPROJ });
    const pixels = Uint8Array.from({ length: 3 * 100 * 60 }, (_, i) => i % 251);
    const sound = wavFile({ samples: Float32Array.from({ length: 16000 }, (_, i) => Math.sin(i / 20) / 2), sampleRate: 16000 });
    const example = { messages: [
        { role: 'user', content: [{ type: 'image', image: 'a.png' }, { type: 'audio', audio: 'b.wav' }] }, { role: 'assistant', content: 'Yes.' }] };
    const files = [file('x.jsonl', JSON.stringify(example)), file('a.png', await pngFile({ pixels, width: 100, height: 60 })), file('b.wav', sound)];
    await using data = await engine.dataset(files);
    assert.equal(data.report.media, 2);
});

test('without { training: true } the error says how to load the model', async () => {
    await using engine = await Gemmule.load(DENSE, { ...OPTIONS, training: false });
    await assert.rejects(engine.dataset([pair('a', 'b')]), fails('NotSupported', /load the model with \{ training: true \}/));
});
