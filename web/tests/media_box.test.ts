/* Pictures in messages, on the model in the box in wasm: through sessions, chat completions, the AI SDK and the Prompt API's shape. The
 * pictures are PNG, which the engine decodes itself: Node decodes no others. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { generateText } from 'ai';
import { gemmule } from '../src/api/ai_sdk.ts';
import { languageModel } from '../src/api/language_model.ts';
import { type Engine, Gemmule, type Message, type OllamaModel, type Part, type Session } from '../src/node.ts';
import { DENSE, ROOT, WASM } from './support/models.ts';
import { readWav } from './support/wav.ts';

const OPTIONS = { wasmUrl: WASM, backend: 'wasm' } as const;
const GREEDY = { sampling: { temperature: 0 } };

interface Question {
    image: string;
    messages: { content: { text?: string }[] }[];
    check: { exact: string[] };
}
const questions = readFileSync(join(ROOT, 'tests/box/pictures.jsonl'), 'utf8').trim().split('\n').map((line) => JSON.parse(line) as Question)
    .filter(({ image }) => image.endsWith('.png')).slice(0, 4);
const bytesOf = ({ image }: Question) => readFileSync(join(ROOT, 'tests/box', image));
const wordsOf = ({ messages }: Question) => messages[0]!.content.at(-1)!.text!;
const pictureOf = (question: Question): Part => ({ type: 'image', image: new Blob([bytesOf(question)]) });
const asked = (question: Question): Message => ({ role: 'user', content: [pictureOf(question), { type: 'text', text: wordsOf(question) }] });

let box: Engine;
before(async () => {
    box = await Gemmule.load(join(ROOT, 'models/box.gguf'), OPTIONS);
});
after(() => box.unload());

async function answer(session: Session, messages: Message[]) {
    const reply = session.reply(messages, GREEDY);
    let text = '';
    for await (const piece of reply) if (piece.kind === 'content') text += piece.text;
    return { text, stats: await reply.stats };
}

test('pictures are seen, and counted before they are sent', async () => {
    assert.deepEqual([box.info.vision, box.info.pictureBudget], [true, 70]);
    await using session = await box.session();
    for (const question of questions) {
        const { text, stats } = await answer(session, [asked(question)]);
        assert.ok(question.check.exact.includes(text), `${question.image}: ${text}`);
        assert.equal(await box.countTokens([asked(question)]), stats.promptTokens);
        assert.deepEqual([stats.media, stats.mediaEncoded], [1, 1]);
    }
});

test('sounds are heard: files, samples, and input_audio', async () => {
    const heard = readFileSync(join(ROOT, 'tests/box/sounds.jsonl'), 'utf8').trim().split('\n').map((line) => JSON.parse(line) as Question & { task: string; audio: string })
        .filter(({ check }, i, all) => check.exact && all.findIndex(({ task }) => task === all[i]!.task) === i);
    assert.equal(box.info.audio, true);
    assert.ok(heard.length >= 2, 'digits and words');
    for (const question of heard) {
        const file = readFileSync(join(ROOT, 'tests/box', question.audio)), { samples, rate: sampleRate } = readWav(file);
        const part: Part = { type: 'audio', audio: { samples, sampleRate } };
        await using session = await box.session();
        for (const audio of [part, { type: 'audio' as const, audio: new Blob([file]) }]) {
            const messages: Message[] = [{ role: 'user', content: [audio, { type: 'text', text: wordsOf(question) }] }];
            const { text, stats } = await answer(session, messages);
            assert.ok(question.check.exact.includes(text), `${question.audio}: ${text}`);
            assert.equal(await box.countTokens(messages), stats.promptTokens);
        }
        const content = [{ type: 'input_audio' as const, input_audio: { data: file.toString('base64'), format: 'wav' } }, { type: 'text' as const, text: wordsOf(question) }];
        const { choices } = await box.chat.completions.create({ messages: [{ role: 'user', content }], temperature: 0 });
        assert.ok(question.check.exact.includes(choices[0]!.message.content!), choices[0]!.message.content!);
    }
});

test('a second question computes only new tokens, also after the session was saved and restored', async () => {
    await using session = await box.session();
    const first = await answer(session, [asked(questions[0]!)]);
    const messages: Message[] = [asked(questions[0]!), { role: 'assistant', content: first.text }, { role: 'user', content: 'Thank you.' }];
    const snapshot = await session.save();
    const second = await answer(session, messages);
    await using other = await box.session();
    await other.restore(snapshot);
    const restored = await answer(other, messages);
    for (const { stats } of [second, restored]) {
        assert.equal(stats.mediaEncoded, 0);
        assert.ok(stats.cachedTokens >= first.stats.promptTokens, `${stats.cachedTokens} cached of ${first.stats.promptTokens}`);
    }
    assert.equal(restored.text, second.text);
});

test('chat completions take data: URLs and Blobs, and a detail', async () => {
    const [question] = questions as [Question];
    const url = `data:image/png;base64,${bytesOf(question).toString('base64')}`;
    const ask = (image_url: { url: string | Blob; detail?: 'low' | 'high' }) =>
        box.chat.completions.create({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url }, { type: 'text', text: wordsOf(question) }] }], temperature: 0 });
    for (const image of [{ url }, { url: new Blob([bytesOf(question)]), detail: 'low' as const }]) {
        const { choices, usage } = await ask(image);
        assert.ok(question.check.exact.includes(choices[0]!.message.content!), choices[0]!.message.content!);
        assert.ok(usage.prompt_tokens < 100);
    }
    const high = await box.countTokens([{ role: 'user', content: [{ type: 'image', image: url, budget: 1120 }] }]);
    assert.ok(high > 1000 && high < 1200, `${high} tokens`);
    await assert.rejects(ask({ url: 'https://example.com/a.png' }), { name: 'NotSupported', message: /messages\[0\]\.content\[0\]\.image_url\.url must be a Blob or a data: URL/ });
    await assert.rejects(ask({ url, detail: 'best' as 'low' }), { name: 'BadArgument', message: /low, auto or high, found 'best'/ });
});

test('a video is frames with times: seen, counted, and not encoded again', async () => {
    const [question] = questions as [Question];
    const image = new Blob([bytesOf(question)]);
    const about = (...frames: { time: number; image: Blob }[]): Message => ({ role: 'user', content: [{ type: 'video', frames }, { type: 'text', text: wordsOf(question) }] });
    await using session = await box.session();
    const one = await answer(session, [about({ time: 61.9, image })]);
    assert.ok(question.check.exact.includes(one.text), one.text);
    assert.match(await box.render([about({ time: 61.9, image })]), /user\n01:01 <\|video\|>/);
    const two = [about({ time: 0, image }, { time: 2.5, image })];
    const { stats } = await answer(session, two);
    assert.deepEqual([stats.media, stats.mediaEncoded, await box.countTokens(two)], [2, 0, stats.promptTokens]);
    const url = { url: `data:image/png;base64,${bytesOf(question).toString('base64')}` };
    const content = [{ type: 'video' as const, frames: [{ time: 0, image_url: url }] }, { type: 'text' as const, text: wordsOf(question) }];
    const { choices } = await box.chat.completions.create({ messages: [{ role: 'user', content }], temperature: 0 });
    assert.ok(question.check.exact.includes(choices[0]!.message.content!), choices[0]!.message.content!);
    const cases: [Part, string, RegExp][] = [
        [{ type: 'video', frames: [] }, 'BadArgument', /the video has no frames/],
        [{ type: 'video', frames: [{ time: NaN, image }] }, 'BadArgument', /no valid time/],
        [{ type: 'video', frames: 7 as unknown as [] }, 'BadArgument', /must be a list/],
        [{ type: 'video', frames: [{ time: 0, image: new Blob(['hello']) }] }, 'BadArgument', /not a picture that can be read/],
        [{ type: 'video', video: new Blob(['hello']) }, 'NotSupported', /taken in a page/],
    ];
    for (const [part, name, message] of cases) await assert.rejects(answer(session, [{ role: 'user', content: [part] }]), { name, message });
});

test("the AI SDK and the Prompt API's shape take pictures", async () => {
    const [, question] = questions as [Question, Question];
    const { text } = await generateText({
        model: gemmule(box), temperature: 0,
        messages: [{ role: 'user', content: [{ type: 'file', mediaType: 'image/png', data: new Uint8Array(bytesOf(question)) }, { type: 'text', text: wordsOf(question) }] }],
    });
    assert.ok(question.check.exact.includes(text), text);
    const model = languageModel(box);
    assert.equal(await model.availability({ expectedInputs: [{ type: 'image' }] }), 'available');
    const session = await model.create({ temperature: 0, topK: 1, expectedInputs: [{ type: 'image' }] });
    const content = [{ type: 'image' as const, value: new Blob([bytesOf(question)]) }, { type: 'text' as const, value: wordsOf(question) }];
    const said = await session.prompt([{ role: 'user', content }]);
    assert.ok(question.check.exact.includes(said), said);
    session.destroy();
});

test('what cannot be read is an error, and the conversation goes on', async () => {
    await using session = await box.session();
    const [question] = questions as [Question];
    const damaged = bytesOf(question);
    damaged.fill(0, damaged.length / 2);
    const cases: [Message['content'], string, RegExp][] = [
        [[{ type: 'image', image: new Blob([damaged]) }], 'BadModel', /PNG|picture/],
        [[{ type: 'image', image: new Blob(['hello']) }], 'BadArgument', /not a picture that can be read/],
        [[{ type: 'image', image: new Blob([bytesOf(question)]), budget: 100 as 70 }], 'BadArgument', /70, 140, 280, 560, 1120/],
        [[{ type: 'film' } as unknown as Part], 'BadArgument', /text, image, audio or video, found 'film'/],
    ];
    for (const [content, name, message] of cases) await assert.rejects(answer(session, [{ role: 'user', content }]), { name, message });
    const { text } = await answer(session, [asked(question)]);
    assert.ok(question.check.exact.includes(text), text);
});

test('towers may be in a second file, also of a model in an Ollama folder', async () => {
    const [path, mmproj] = ['tiny-mm.gguf', 'tiny-mm.mmproj.gguf'].map((name) => join(ROOT, 'tests/fixtures', name)) as [string, string];
    const message: Message = { role: 'user', content: [{ type: 'image', image: new Blob([readFileSync(join(ROOT, 'tests/fixtures/tiny-mm.png'))]), budget: 70 }] };
    const file = (name: string) => new File([readFileSync(name)], 'x');
    const ollama: OllamaModel = {
        kind: 'ollama', name: 'tiny:mm', model: file(path), projector: file(mmproj), digest: '', size: 0, bytes: 0, draft: false, adapters: [], problem: '',
    };
    const texts: string[] = [];
    for (const [source, more] of [[path, { mmproj }], [ollama, {}]] as const) {
        await using engine = await Gemmule.load(source, { ...OPTIONS, threads: 1, ...more });
        assert.equal(engine.info.vision, true);
        await using session = await engine.session();
        const reply = session.reply([message], { ...GREEDY, maxTokens: 8 });
        let text = '';
        for await (const piece of reply) if (piece.kind === 'content') text += piece.text;
        assert.equal((await reply.stats).mediaEncoded, 1);
        texts.push(text);
    }
    assert.equal(texts[1], texts[0]);
    await using plain = await Gemmule.load(path, { ...OPTIONS, threads: 1 });
    assert.equal(plain.info.vision, false);
    await assert.rejects(Gemmule.load(path, { ...OPTIONS, mmproj: DENSE }).then((engine) => engine.unload()), { name: 'BadArgument', message: /projector .*has no tower/ });
});

test('a model of text alone says so', async () => {
    await using dense = await Gemmule.load(DENSE, { ...OPTIONS, threads: 1 });
    assert.deepEqual([dense.info.vision, dense.info.audio], [false, false]);
    await using session = await dense.session();
    await assert.rejects(answer(session, [asked(questions[0]!)]), { name: 'NotSupported', message: /picture|vision/ });
    assert.equal(await languageModel(dense).availability({ expectedInputs: [{ type: 'image' }] }), 'unavailable');
});
