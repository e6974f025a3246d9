// Takes the screenshots in docs/screenshots of the built app (build/web): `node web/app/screenshots.ts`. The answers are the box's own, except
// for the one with formulas and a program, which it cannot write: that conversation is imported. Those of the canvas are of a tiny model with
// random weights. Pictures in the repository are reduced to a palette, which takes a fifth of the room (`pngquant --nofs 16`, with 24 for those
// of the canvas; then `optipng -o3`).

import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { readGguf } from '../tests/support/gguf.ts';
import { scratch } from '../tests/support/models.ts';
import { makePeft } from '../tests/support/peft.ts';
import { gate, makeGate } from './tests/gate.ts';
import { BOX, fakeOllama, startSite, Visit } from './tests/site.ts';

const FOLDER = process.argv[2] ?? 'docs/screenshots';
const LARGEST = 150_000;

const ANSWER = `Sunlight enters a **raindrop**, bends, is reflected at the back and bends again on its way out. Each colour bends by
a *slightly* different angle, so each reaches your eye from a different height:

| Colour | Wavelength | Angle |
| --- | ---: | ---: |
| Red | 700 nm | 42.4° |
| Violet | 400 nm | 40.6° |

For an index of refraction $n$ light gathers at the angle

$$
\\theta = 4\\arcsin\\frac{s}{n} - 2\\arcsin s \\qquad s = \\sqrt{\\frac{4 - n^2}{3}}
$$

\`\`\`python
from math import asin, degrees, sqrt

def bow(n: float) -> float:
    """The angle of the bow for an index of refraction n."""
    s = sqrt((4 - n * n) / 3)
    return degrees(4 * asin(s / n) - 2 * asin(s))

print(bow(1.331))  # red: 42.4
\`\`\`
`;

const QUESTIONS: [question: string, answer: string][] = [
    ['Plan a weekend of small repairs', 'Saturday: the hinge.'],
    ['Translate a letter to my landlord', 'Dear Ms Weber,'],
    ['Why do cats purr?', 'They move muscles of the larynx.'],
    ['Explain how a rainbow forms, with a little program', ANSWER],
];

function conversations(questions = QUESTIONS): Buffer {
    const list = questions.map(([question, answer], at) => ({
        id: `c${at}`, title: question, named: true, created: Date.now(), updated: Date.now() + at, system: null, chosen: { '': 'q', q: 'a' },
        nodes: {
            q: { id: 'q', parent: null, created: 1, role: 'user', content: question },
            a: {
                id: 'a', parent: 'q', created: 2, role: 'assistant', finish: 'stop',
                steps: [{ thinking: answer === ANSWER ? 'Refraction, then the numbers, then code.' : '', content: answer, calls: [] }],
            },
        },
    }));
    return Buffer.from(JSON.stringify({ format: 'gemmule-conversations', version: 1, exported: '', conversations: list }));
}

async function importAll(page: Page, origin: string, file = conversations(), last = 3): Promise<void> {
    await page.goto(`${origin}/#/settings`);
    const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: 'Import' }).click()]);
    await chooser.setFiles({ name: 'c.json', mimeType: 'application/json', buffer: file });
    await page.waitForSelector(`.row >> nth=${last}`, { state: 'attached' });
}

async function openRainbow(page: Page): Promise<void> {
    await page.evaluate(() => document.querySelector<HTMLAnchorElement>('.row a')!.click());
    await page.waitForSelector('.answer-body > .prose .t-keyword');
    await page.waitForSelector('.answer-body > .prose mfrac');
    await page.evaluate(() => { document.querySelector('.messages')!.scrollTop = 0; });
}

const TALK = ['Who are you?', 'Tell me a story about a fox in a castle with a lantern.', 'How do you say house in Spanish?', 'What is 12 + 30?'];

async function talk(page: Page, origin: string, questions: string[]): Promise<void> {
    await page.goto(`${origin}/#/`);
    for (const [at, question] of questions.entries()) {
        await page.fill('#composer', question);
        await page.press('#composer', 'Enter');
        await page.waitForFunction((count) => document.querySelectorAll('.answer .stats').length === count && !document.querySelector('.send.stop'), at + 1);
    }
}

async function shoot(page: Page, name: string, clip?: { x: number; y: number; width: number; height: number }): Promise<void> {
    await page.waitForTimeout(400);
    const path = join(FOLDER, `${name}.png`);
    await page.screenshot({ path, ...(clip && { clip }) });
    const { size } = statSync(path);
    if (size > LARGEST) throw new Error(`${path} has ${size} bytes, more than ${LARGEST}`);
    console.log(path, size);
}

async function desktop(origin: string): Promise<void> {
    const visit = await Visit.begin();
    const page = await visit.page();
    await page.emulateMedia({ colorScheme: 'light' });
    await page.goto(origin);
    await page.waitForSelector('.chip-ready');
    await shoot(page, 'first-visit');
    await page.emulateMedia({ colorScheme: 'dark' });
    await shoot(page, 'first-visit-dark');
    await page.emulateMedia({ colorScheme: 'light' });
    await talk(page, origin, TALK);
    await shoot(page, 'chat');
    await importAll(page, origin);
    await openRainbow(page);
    await page.emulateMedia({ colorScheme: 'dark' });
    await shoot(page, 'chat-dark');
    await page.emulateMedia({ colorScheme: 'light' });
    await page.goto(`${origin}/#/models`);
    await fakeOllama(page, { model_type: '8.9M', file_type: 'Q8_0' });
    await page.getByRole('button', { name: 'Choose folder' }).click();
    await page.waitForSelector('.choice .fit-yes');
    await page.evaluate(() => { document.querySelector('main')!.scrollTop = 0; });
    await shoot(page, 'models');
    await visit.end();
}

async function dropFile(page: Page, name: string, path: string, type = ''): Promise<void> {
    const data = await page.evaluateHandle(([file, text, kind]) => {
        const given = new DataTransfer();
        given.items.add(new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], file, { type: kind }));
        return given;
    }, [name, readFileSync(path).toString('base64'), type] as const);
    await page.dispatchEvent('.chat', 'drop', { dataTransfer: data });
    await page.waitForSelector('.tray-item img');
}

/** A picture with its answer, and another one that is about to be sent. */
async function pictures(origin: string, phone: boolean): Promise<void> {
    const visit = await Visit.begin({ phone });
    const page = await visit.page();
    await page.emulateMedia({ colorScheme: 'light' });
    await page.goto(origin);
    await page.waitForSelector('.chip-ready');
    await dropFile(page, 'shapes.png', 'tests/box/pictures/05.png');
    await page.fill('#composer', 'What is in the picture?');
    await page.press('#composer', 'Enter');
    await page.waitForFunction(() => document.querySelector('.answer .stats') && !document.querySelector('.send.stop'));
    await dropFile(page, 'number.jpg', NUMBER);
    await page.fill('#composer', 'Which number is this?');
    await shoot(page, phone ? 'phone-picture' : 'picture');
    await page.emulateMedia({ colorScheme: 'dark' });
    if (!phone) await shoot(page, 'picture-dark');
    await visit.end();
}

/** A video with its answer, and another one that is about to be sent. */
async function videos(origin: string): Promise<void> {
    const visit = await Visit.begin();
    const page = await visit.page();
    await page.emulateMedia({ colorScheme: 'light' });
    await page.goto(origin);
    await page.waitForSelector('.chip-ready');
    await dropFile(page, 'shapes.webm', 'tests/fixtures/shapes.webm', 'video/webm');
    await page.fill('#composer', 'What is in the picture?');
    await page.press('#composer', 'Enter');
    await page.waitForFunction(() => document.querySelector('.answer .stats') && !document.querySelector('.send.stop'));
    await dropFile(page, 'colours.webm', 'tests/fixtures/colours.webm', 'video/webm');
    await page.fill('#composer', 'Which colours follow each other?');
    await shoot(page, 'video');
    await visit.end();
}

/** The microphone while it records. */
async function record(origin: string, phone: boolean): Promise<void> {
    const visit = await Visit.begin({ phone, microphone: 'tests/box/sounds/05.wav' });
    const page = await visit.page();
    await page.emulateMedia({ colorScheme: phone ? 'dark' : 'light' });
    await page.goto(origin);
    await page.waitForSelector('.chip-ready');
    await page.getByRole('button', { name: 'Add pictures' }).click();
    await page.getByRole('menuitem', { name: 'Record a sound' }).click();
    await page.waitForFunction(() => (document.querySelector<HTMLMeterElement>('.level')?.value ?? 0) > 60);
    const path = join(FOLDER, `${phone ? 'phone-recording-dark' : 'recording'}.png`);
    await page.screenshot({ path }); // at once: the words are soon over
    console.log(path, statSync(path).size);
    await visit.end();
}

const LAYERS = [0, 1, 2, 4, 5].map((layer) => ({ module: `layers.${layer}.self_attn.q_proj`, in: 256, out: 256 })); // of the box
const ADAPTERS = { 'storyteller-v2': { rank: 16, seed: 3 }, 'short-answers': { rank: 8, seed: 4, base: 'box' } };

/** Gives adapters to the page, as folders that are dropped there. */
async function dropAdapters(page: Page): Promise<void> {
    const moe = ['adapter_model.safetensors', 'adapter_config.json'].map((name) => readFileSync(`tests/fixtures/tiny-moe-lora/${name}`));
    const made = Object.entries(ADAPTERS).map(([name, options]): [string, Buffer, Buffer] => {
        const { weights, config } = makePeft(LAYERS, { size: 0.01, ...options });
        return [name, weights, config];
    });
    for (const [name, weights, config] of [...made, ['for-another-model', ...moe] as [string, Buffer, Buffer]]) {
        await page.evaluate(async ([folder, ...files]) => {
            const handle = await (await navigator.storage.getDirectory()).getDirectoryHandle(folder!, { create: true });
            for (const [at, called] of ['adapter_model.safetensors', 'adapter_config.json'].entries()) {
                const stream = await (await handle.getFileHandle(called, { create: true })).createWritable();
                await stream.write(Uint8Array.from(atob(files[at]!), (letter) => letter.charCodeAt(0)));
                await stream.close();
            }
            const item = { kind: 'file', webkitGetAsEntry: () => ({ isDirectory: true }), getAsFileSystemHandle: async () => handle };
            const event = new DragEvent('drop', { bubbles: true, cancelable: true });
            Object.defineProperty(event, 'dataTransfer', { value: { types: ['Files'], items: [item], files: [] } });
            document.querySelector('.chat')!.dispatchEvent(event);
        }, [name, weights.toString('base64'), config.toString('base64')]);
        await page.waitForFunction((called) => new RegExp(`^${called} was imported`).test(document.querySelector('[aria-live=polite]')?.textContent ?? ''), name);
    }
}

/** Adapters: the picker with one in use, one that is off, and one that does not fit. */
async function adapters(origin: string, phone: boolean): Promise<void> {
    const visit = await Visit.begin({ phone });
    const page = await visit.page();
    await page.emulateMedia({ colorScheme: phone ? 'dark' : 'light' });
    await page.goto(origin);
    await page.waitForSelector('.chip-ready');
    await dropAdapters(page);
    await talk(page, origin, ['Who are you?']);
    await page.locator('.adapter-toggle').click();
    await page.getByText('Does not fit').waitFor();
    await page.getByRole('checkbox', { name: /short-answers/ }).uncheck();
    await page.getByRole('slider', { name: /storyteller/ }).fill('0.7');
    await shoot(page, phone ? 'phone-adapters-dark' : 'adapters');
    await visit.end();
}

/** Examples, what is in them, and a training. */
async function teach(origin: string, phone: boolean): Promise<void> {
    const visit = await Visit.begin({ phone });
    const page = await visit.page();
    const light = phone ? 'dark' : 'light', dark = phone ? 'light' : 'dark', name = phone ? 'phone-teach' : 'teach';
    await page.emulateMedia({ colorScheme: light });
    await page.goto(`${origin}/#/teach`);
    await page.waitForSelector('.chip-ready');
    const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: 'Import' }).click()]);
    await chooser.setFiles('tests/fixtures/teach.jsonl');
    await page.waitForSelector('.teach-preview mark', { timeout: 120_000 });
    await page.getByLabel('Name').fill('clock tower');
    await page.evaluate(() => { document.querySelector('main')!.scrollTop = 0; });
    await shoot(page, name);
    await page.emulateMedia({ colorScheme: dark });
    if (!phone) await shoot(page, `${name}-dark`);
    await page.emulateMedia({ colorScheme: light });
    await page.getByText('More settings').click();
    await page.getByLabel('Rounds').fill('14');
    await page.getByLabel('Kept for evaluation').fill('0.2');
    await page.getByLabel('Kept for evaluation').blur();
    await page.getByText(/^About \d/).waitFor({ timeout: 300_000 });
    await page.getByRole('button', { name: 'Teach', exact: true }).click();
    await page.waitForFunction(() => Number(/Step(\d+) of/.exec(document.querySelector('.teach-training')?.textContent ?? '')?.[1]) >= 24, null, { timeout: 300_000 });
    await page.emulateMedia({ colorScheme: dark });
    await page.evaluate(() => { document.querySelector('main')!.scrollTop = 0; });
    await shoot(page, `${name}-training`);
    await page.waitForSelector('.teach-result', { timeout: 600_000 });
    await page.waitForFunction(() => [...document.querySelectorAll('.teach-answers > div:last-child p')].every((each) => !/^…?$/.test(each.textContent!)), null, { timeout: 300_000 });
    await page.emulateMedia({ colorScheme: light });
    await page.evaluate(() => { document.querySelector('main')!.scrollTop = 0; });
    await shoot(page, `${name}-done`);
    await visit.end();
}

const WORDS = 'the of or to is a and in at that this for any you are by under as not an with such be it on our may all if from other';

/** tiny-diffusion with a larger canvas and only these words: its weights are random, but its noise can be read. The other tokens have an
 * embedding of zeros, which is never the likeliest one. */
function wordModel(): string {
    const file = readFileSync('tests/fixtures/tiny-diffusion.gguf'), { offset } = readGguf(file);
    const after = (key: string, skip: number): number => file.indexOf(key) + key.length + skip;
    const words = new Set(WORDS.split(' ').map((word) => `${word}\u2581`)), width = 64;
    for (let id = 0, at = after('tokenizer.ggml.tokens', 16); id < 640; id++) {
        const length = file.readUInt32LE(at), row = offset('token_embd.weight') + 2 * width * id;
        if (!words.has(file.toString('utf8', at + 8, at + 8 + length))) file.fill(0, row, row + 2 * width);
        at += 8 + length;
    }
    for (let at = offset('output_norm.weight'), left = width; left > 0; left--, at += 4) file.writeFloatLE(4 * file.readFloatLE(at), at); // surer
    file.writeUInt32LE(120, after('diffusion.canvas_length', 4));
    file.writeUInt32LE(24, after('diffusion.eb_max_steps', 4));
    writeFileSync(scratch('tiny-diffusion.gguf'), file);
    return scratch('tiny-diffusion.gguf');
}

const SUNSET = `The sun goes down behind the hills, and the sky turns **red and gold**. The birds are quiet now. A boat comes home with its
lamp lit, and someone on the shore waves to it.`;

/** A diffusion model: the canvas as it settles, the slider back through its steps, and rewriting. */
async function canvas(origin: string): Promise<void> {
    const visit = await Visit.begin();
    await visit.context.addInitScript(makeGate);
    await visit.context.addInitScript(() => { delete (globalThis as unknown as { showOpenFilePicker?: unknown }).showOpenFilePicker; });
    const page = await visit.page(), part = { x: 380, y: 56, width: 800, height: 300 };
    const step = (begin: string): Promise<unknown> => page.waitForFunction((words) => document.querySelector('.canvas-words')?.textContent?.startsWith(words), begin);
    await page.emulateMedia({ colorScheme: 'light' });
    await page.goto(origin);
    await page.evaluate(() => localStorage.setItem('gemmule.settings', JSON.stringify({ maxTokens: 120, sampling: { seed: 5 } })));
    await page.goto(`${origin}/#/models`);
    await page.reload();
    await page.waitForSelector('.chip-ready');
    const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: 'Choose file' }).click()]);
    await chooser.setFiles(wordModel());
    await page.waitForFunction(() => /diffusion/.test(document.querySelector('.chip-ready .chip-name')?.textContent ?? ''));
    await page.goto(`${origin}/#/`);
    await gate(page, 3);
    await page.fill('#composer', 'What may I do with this program?');
    await page.press('#composer', 'Enter');
    await step('Step 3 ');
    await page.waitForTimeout(1000); // until what has settled no longer lights up
    await shoot(page, 'canvas-1', part);
    await gate(page, 15);
    await step('Step 18 ');
    await page.waitForTimeout(1000);
    await shoot(page, 'canvas-2', part);
    await gate(page, 1e9);
    await page.waitForFunction(() => document.querySelector('.answer .stats') && !document.querySelector('.send.stop'));
    await page.getByRole('slider', { name: 'Steps of the canvas' }).fill('10');
    await page.mouse.move(0, 0);
    await page.emulateMedia({ colorScheme: 'dark' });
    await shoot(page, 'canvas-3', part);
    await page.emulateMedia({ colorScheme: 'light' });
    await importAll(page, origin, conversations([['Describe an evening by the sea', SUNSET]]), 1);
    await page.evaluate(() => document.querySelector<HTMLAnchorElement>('.row a')!.click());
    const words = 'The birds are quiet now.';
    await page.waitForSelector(`text=${words}`);
    await page.evaluate((wanted) => {
        const walker = document.createTreeWalker(document.querySelector('.answer-body > .prose')!, NodeFilter.SHOW_TEXT);
        while (!(walker.nextNode() as Text).data.includes(wanted));
        const node = walker.currentNode as Text, at = node.data.indexOf(wanted);
        getSelection()!.setBaseAndExtent(node, at, node, at + wanted.length);
    }, words);
    await page.locator('.rewrite-pill').click();
    await page.waitForFunction(() => Number(document.querySelector<HTMLInputElement>('.rewrite-length input')?.value) > 1);
    await shoot(page, 'canvas-4', { ...part, height: 540 });
    await gate(page, 9);
    await page.getByRole('button', { name: 'Rewrite', exact: true }).click();
    await step('Step 9 ');
    await page.waitForTimeout(1000);
    await shoot(page, 'canvas-5', part);
    await gate(page, 1e9);
    await visit.end();
}

async function benchmark(origin: string): Promise<void> {
    const visit = await Visit.begin();
    const page = await visit.page();
    await page.emulateMedia({ colorScheme: 'dark' });
    await page.goto(`${origin}/#/benchmark`);
    await page.waitForSelector('.chip-ready');
    await page.getByRole('button', { name: 'Run benchmark' }).click();
    await page.waitForSelector('.chart-bar', { timeout: 120_000 });
    await shoot(page, 'benchmark-dark');
    await visit.end();
}

async function phone(origin: string): Promise<void> {
    const visit = await Visit.begin({ phone: true });
    const page = await visit.page();
    await page.goto(origin);
    await page.waitForSelector('.chip-ready');
    await talk(page, origin, TALK.slice(0, 2));
    await shoot(page, 'phone');
    await visit.end();
}

const NUMBER = join('tests/box', readFileSync('tests/box/pictures.jsonl', 'utf8').trim().split('\n').map((line) => JSON.parse(line) as { task: string; image: string })
    .find(({ task }) => task === 'numbers read')!.image);

/* All of them, or those that are named behind the folder. */
const STEPS: Record<string, (origin: string) => Promise<void>> = {
    desktop, benchmark, phone, videos, canvas,
    pictures: (origin) => pictures(origin, false), 'phone-pictures': (origin) => pictures(origin, true),
    teach: (origin) => teach(origin, false), 'phone-teach': (origin) => teach(origin, true),
    adapters: (origin) => adapters(origin, false), 'phone-adapters': (origin) => adapters(origin, true),
    recording: (origin) => record(origin, false), 'phone-recording': (origin) => record(origin, true),
};

mkdirSync(FOLDER, { recursive: true });
const site = await startSite({}, BOX);
for (const [name, step] of Object.entries(STEPS)) if (process.argv.length < 4 || process.argv.includes(name, 3)) await step(site.origin);
await site.close();
