/* The model in the box: the program on CPU and GPU and the engine in wasm write the same words, and answers to questions that its training
 * never saw are right often enough. GEMMULE_LONG=1 (`make test-long`) asks all of them. Needs build/gemmule and models/box.gguf. */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { test } from 'node:test';
import { Gemmule, type Message } from '../src/node.ts';
import { ROOT, WASM, scratch } from './support/models.ts';

const PROGRAM = process.env['GEMMULE'] ?? join(ROOT, 'build/gemmule');
const BOX = join(ROOT, 'models/box.gguf');
const SET = join(ROOT, 'tests/box/text.jsonl');
const TALKS = join(ROOT, 'tests/box/talks.jsonl');
const LONG = process.env['GEMMULE_LONG'] === '1';

interface Question {
    task: string;
    messages: Message[];
    tools?: unknown;
    think?: boolean;
}
interface Row {
    task: string;
    asked: number;
    right: number;
    ended: number;
}

/** One short question of each of these tasks. */
function someQuestions(): Question[] {
    const all = readFileSync(SET, 'utf8').trim().split('\n').map((line) => JSON.parse(line) as Question);
    return ['arithmetic', 'opposites', 'translating'].map((task) => {
        const found = all.find((question) => question.task === task && question.messages.length === 1 && !question.think && !question.tools);
        assert.ok(found, `no plain question about ${task}`);
        return found;
    });
}

function evaluate(...args: string[]): string {
    const env = { ...process.env, GEMMULE_BOX: BOX };
    return execFileSync(PROGRAM, ['eval', 'box', '--backend', 'cpu', ...args], { env, encoding: 'utf8', maxBuffer: 1 << 26, stdio: ['ignore', 'pipe', 'ignore'] });
}

/** The program's answers: `--show` prints the wrong ones, and here all are wrong. A line "task: question", then the answer after four spaces. */
function answersOf(questions: Question[], ...args: string[]): string[] {
    const set = scratch('some.jsonl');
    writeFileSync(set, questions.map((question) => `${JSON.stringify({ ...question, check: { exact: [''] } })}\n`).join(''));
    const shown = evaluate(set, '--show', ...args);
    return questions.map(({ task, messages }) => {
        const head = `${task}: ${String(messages[0]!.content)}\n    `, at = shown.indexOf(head);
        assert.ok(at >= 0, `${shown} lacks ${head}`);
        return shown.slice(at + head.length).split('\n')[0]!;
    });
}

async function wasmAnswers(questions: Question[]): Promise<string[]> {
    const engine = await Gemmule.load(BOX, { wasmUrl: WASM, backend: 'wasm' });
    const answers: string[] = [];
    for (const { messages } of questions) {
        const session = await engine.session();
        let text = '';
        for await (const piece of session.reply(messages, { sampling: { temperature: 0 } })) if (piece.kind === 'content') text += piece.text;
        answers.push(text);
        await session.close();
    }
    await engine.unload();
    return answers;
}

function swiftShader(): string {
    const files = execFileSync('dpkg', ['-L', 'chromium', 'chromium-common'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    return files.split('\n').find((file) => file.endsWith('vk_swiftshader_icd.json')) ?? '';
}

// The difference is the rounding to 8 bits: an f16 export differs by 5e-7 (docs/BOX.md).
test('its logits match those that transformers computed before the export', () => {
    const checked = execFileSync(PROGRAM, ['check', BOX, join(ROOT, 'tests/box.expect.gguf'), '--backend', 'cpu', '--precise', '--tolerance', '8e-3'], { encoding: 'utf8' });
    assert.match(checked, /^logits\.3 /m);
});

test('CPU, wasm and GPU write the same text', async () => {
    const questions = someQuestions(), cpu = answersOf(questions);
    process.env['VK_ICD_FILENAMES'] ??= swiftShader();
    assert.deepEqual(await wasmAnswers(questions), cpu, 'wasm');
    const few = LONG ? questions : questions.slice(0, 1); // these features are only slower in software
    assert.deepEqual(answersOf(few, '--backend', 'gpu', '--gpu-disable', 'subgroups,dot4,f16'), cpu.slice(0, few.length), 'gpu');
});

test('held-out questions are answered as well as the model card says', () => {
    const judged = ['arithmetic', 'tools', 'second sums', 'tool talks'];
    const set = scratch('held-out.jsonl');
    const lines = readFileSync(SET, 'utf8').trim().split('\n');
    writeFileSync(set, lines.filter((line) => LONG || judged.includes((JSON.parse(line) as Question).task)).join('\n') + '\n');
    const { tasks, asked, ended } = JSON.parse(evaluate(set, '--json')) as { tasks: Row[]; asked: number; ended: number };
    for (const task of judged) {
        const row = tasks.find((each) => each.task === task);
        assert.ok(row && row.right >= 0.95 * row.asked, `${task}: ${row?.right} of ${row?.asked}`);
    }
    assert.ok(ended >= 0.98 * asked, `${ended} of ${asked} answers end by themselves`);
});

test('in conversations of 20 turns its answers are words, and none of them is a terminal command', () => {
    const { tasks, wrong } = JSON.parse(evaluate(TALKS, '--json')) as { tasks: Row[]; wrong: { question: string; answer: string }[] };
    const { asked, right } = tasks[0]!;
    assert.equal(asked, 280);
    assert.ok(right >= 0.95 * asked, `${right} of ${asked}: ${JSON.stringify(wrong)}`);
    const advice = answersOf(['How do I load a bigger model?', 'Who was Mozart?'].map((content) => ({ task: 'advice', messages: [{ role: 'user', content }] })));
    for (const text of advice) assert.match(text, /[Oo]pen Models and pick a bigger one/);
});

// A GPU in software takes most of an hour for all of them; `test_media gpu` asks some.
if (LONG) {
    test('the program sees and hears the same on the GPU as on the CPU', () => {
        const set = scratch('media.jsonl');
        const beside = (name?: string) => name && relative(dirname(set), join(ROOT, 'tests/box', name));
        const asked = ['pictures', 'sounds'].flatMap((name) => readFileSync(join(ROOT, `tests/box/${name}.jsonl`), 'utf8').trim().split('\n'))
            .map((line) => JSON.parse(line) as Question & { image?: string; audio?: string })
            .map((question) => ({ ...question, check: { exact: [''] }, image: beside(question.image), audio: beside(question.audio) })); // `--json` lists the wrong ones
        writeFileSync(set, asked.map((question) => `${JSON.stringify(question)}\n`).join(''));
        process.env['VK_ICD_FILENAMES'] ??= swiftShader();
        const [cpu, gpu] = ['cpu', 'gpu'].map((backend) => (JSON.parse(evaluate(set, '--json', '--backend', backend)) as { wrong: { answer: string }[] }).wrong.map(({ answer }) => answer));
        assert.equal(cpu!.length, 120);
        assert.deepEqual(gpu, cpu);
    });
}
