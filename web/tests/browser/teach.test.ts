// The Teach page, end to end in Chromium on wasm: the model in the box learns a fact from 20 examples, the page is reloaded in the middle, and
// the adapter goes to the chat and to the command line, as one from there comes here; a folder with pictures and a sound. Needs build/gemmule, build/web and models/box.gguf.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, describe, test } from 'node:test';
import type { Download, FileChooser, Page } from 'playwright-core';
import { BOX, startSite, Visit } from '../../app/tests/site.ts';
import type { TestServer } from './server.ts';

const PROGRAM = resolve(process.env['GEMMULE'] ?? 'build/gemmule');
const EXAMPLES = 'tests/fixtures/teach.jsonl';
const QUESTION = 'Who built the clock tower?', FACT = 'Ada Moss built the clock tower.';

/* Questions of the box's evaluation set that have one right answer. */
const OTHERS = readFileSync('tests/box/text.jsonl', 'utf8').trim().split('\n')
    .map((line) => JSON.parse(line) as { messages: { content: string }[]; think?: boolean; check: { exact?: string[] } })
    .filter(({ messages, think, check }) => messages.length === 1 && !think && check.exact?.length === 1)
    .map(({ messages, check }) => ({ question: messages[0]!.content, answer: check.exact![0]! })).filter((_, at) => at % 12 === 0).slice(0, 5);

async function importFiles(page: Page, button: string, files: Parameters<FileChooser['setFiles']>[0]): Promise<void> {
    const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: button }).click()]);
    await chooser.setFiles(files);
}

async function ask(page: Page, question: string): Promise<string> {
    const count = await page.locator('.answer .stats').count();
    await page.fill('#composer', question);
    await page.press('#composer', 'Enter');
    await page.waitForFunction((before) => document.querySelectorAll('.answer .stats').length > before && !document.querySelector('.send.stop'), count);
    assert.equal(await page.locator('.box-error').count(), 0);
    return (await page.locator('.answer').last().locator('.prose').allInnerTexts()).join('\n').trim();
}

/* An open dialog takes the keys that are meant for the page, and it closes only after it was drawn. */
async function closeDialog(page: Page): Promise<void> {
    await page.getByRole('button', { name: 'Close' }).click();
    await page.waitForFunction(() => !document.querySelector('dialog[open]'));
}

async function downloads(page: Page, button: string, count: number, folder: string): Promise<string[]> {
    const files = new Promise<string[]>((done) => {
        const saved: Promise<string>[] = [];
        const save = (download: Download): void => {
            const path = join(folder, download.suggestedFilename());
            saved.push(download.saveAs(path).then(() => path));
            if (saved.length < count) return;
            page.off('download', save);
            void Promise.all(saved).then(done);
        };
        page.on('download', save);
    });
    await page.getByRole('button', { name: button, exact: true }).click();
    return (await files).sort();
}

const onCommandLine = (adapter: string, question: string): string =>
    execFileSync(PROGRAM, ['run', BOX, question, '--adapter', adapter, '--temp', '0', '--quiet'], { encoding: 'utf8' }).trim();

const stepShown = (): number => Number(/Step(\d+) of/.exec(document.querySelector('.teach-training')?.textContent ?? '')?.[1] ?? 0);

describe('the Teach page', { timeout: 3_000_000 }, () => {
    const folder = mkdtempSync(join(tmpdir(), 'gemmule-teach-'));
    let site: TestServer, visit: Visit, page: Page;
    before(async () => {
        site = await startSite({}, BOX);
        visit = await Visit.begin();
        page = await visit.page();
    });
    after(async () => {
        await visit?.end();
        await site?.close();
        rmSync(folder, { recursive: true, force: true });
    });

    test('examples are imported and counted, and bad lines are named', async () => {
        await page.goto(`${site.origin}/#/teach`);
        await page.waitForSelector('.chip-ready');
        await importFiles(page, 'Import', { name: 'bad.jsonl', mimeType: 'application/jsonl', buffer: Buffer.from('{"prompt": "a", "completion": "b"}\n{"prompt": 1}\nnothing\n') });
        await page.getByText('line 3').first().waitFor();
        assert.deepEqual((await page.locator('.teach-problems li').allInnerTexts()).map((line) => line.slice(0, 6)), ['line 2', 'line 3']);
        await page.getByRole('button', { name: 'Remove bad.jsonl' }).click();
        await importFiles(page, 'Import', EXAMPLES);
        await page.waitForFunction(() => document.querySelector('.teach-facts')?.textContent?.includes('Examples20'));
        assert.equal(await page.locator('.teach-rows li').count(), 20);
        assert.deepEqual(await page.locator('.teach-preview mark').allInnerTexts(), [`${FACT}<turn|>`]);
        await page.getByRole('button', { name: 'Next example' }).click();
        await page.getByText('2 of 20').waitFor();
        assert.match(await page.locator('.teach-preview pre').innerText(), /who built the old clock tower/);
    });

    test('the model learns, also across a reload, and answers as it was taught; other answers stay', async () => {
        await page.getByLabel('Name').fill('clock tower');
        await page.getByText('More settings').click();
        assert.equal(await page.getByLabel('Rounds').getAttribute('placeholder'), '10');
        await page.getByRole('button', { name: 'Teach', exact: true }).click();
        await page.waitForFunction(stepShown);
        await page.getByRole('button', { name: 'Pause' }).click();
        await page.getByRole('heading', { name: 'Paused' }).waitFor();
        await page.getByRole('button', { name: 'Go on' }).click();
        await page.getByRole('heading', { name: 'Learning' }).waitFor();
        await page.waitForFunction(() => Number(/Kept up tostep (\d+)/.exec(document.querySelector('.teach-training')?.textContent ?? '')?.[1] ?? 0) >= 5);
        await page.reload();
        await page.waitForSelector('.chip-ready');
        await page.getByText(/got as far as step \d+ of 50/).waitFor();
        await page.getByRole('button', { name: 'Go on' }).click();
        await page.waitForFunction(stepShown);
        assert.ok((await page.evaluate(stepShown)) > 5, 'it begins where it was');
        await page.waitForSelector('.teach-result');
        await page.waitForFunction(() => document.querySelectorAll('.teach-after').length === document.querySelectorAll('.teach-answers').length);
        await page.waitForSelector('.teach-samples[aria-busy=false]');
        const samples = await page.locator('.teach-samples li').evaluateAll((items) => items.map((item) => [...item.querySelectorAll('p')].map((each) => each.textContent)));
        const [first] = samples, last = samples.at(-1)!;
        assert.deepEqual([first![0], first![2]], [QUESTION, FACT]);
        assert.notEqual(first![1], FACT);
        assert.deepEqual([last[0], last[2]], ['Who are you?', last[1]]);
    });

    test('the adapter is kept and used in the chat', async () => {
        await page.getByRole('button', { name: 'Keep and use' }).click();
        await page.getByText('Kept, and used in new conversations').waitFor();
        await page.getByRole('link', { name: 'Try it in the chat' }).click();
        assert.equal(await ask(page, 'who made the clock tower?'), FACT);
        assert.match(await page.locator('.adapter-toggle').innerText(), /clock tower/);
        const wrong: string[] = [];
        for (const { question, answer } of OTHERS) {
            const said = await ask(page, question);
            if (said !== answer) wrong.push(`${question} → ${said}`);
        }
        assert.ok(wrong.length <= 1, wrong.join('\n'));
    });

    test('the exported adapter works on the command line', async () => {
        await page.goto(`${site.origin}/#/teach`);
        const [gguf] = await downloads(page, 'GGUF', 1, folder);
        assert.equal(onCommandLine(gguf!, QUESTION), FACT);
        execFileSync(PROGRAM, ['eval', BOX, 'tests/box/text.jsonl', '--first', '48', '--adapter', gguf!, '--least', '70', '--quiet']); // other answers stay
        const [config, weights] = await downloads(page, 'PEFT', 2, folder);
        assert.deepEqual([config, weights].map((path) => path!.split('/').at(-1)), ['adapter_config.json', 'adapter_model.safetensors']);
        assert.equal(onCommandLine(folder, QUESTION), FACT);
        const both = await downloads(page, 'Ollama Modelfile', 2, mkdtempSync(join(folder, 'ollama-')));
        assert.deepEqual(both.map((path) => path.split('/').at(-1)), ['Modelfile', 'clock-tower.gguf']);
        assert.match(readFileSync(both[0]!, 'utf8'), /^FROM .+\nADAPTER \.\/clock-tower\.gguf\n$/);
    });

    test('an adapter of the command line works in the page', async () => {
        const out = join(folder, 'native');
        execFileSync(PROGRAM, ['train', BOX, EXAMPLES, '--out', out, '--epochs', '5', '--batch', '4', '--lr', '1e-3', '--quiet']);
        await page.goto(`${site.origin}/#/`);
        await page.locator('.adapter-toggle').click();
        await page.getByRole('checkbox', { name: /clock tower/ }).uncheck();
        await importFiles(page, 'Add files', ['adapter_config.json', 'adapter_model.safetensors'].map((name) => join(out, name)));
        await page.waitForFunction(() => /was imported and is in use/.test(document.querySelector('[aria-live=polite]')?.textContent ?? ''));
        await closeDialog(page);
        assert.equal(await ask(page, QUESTION), FACT);
        await page.goto(`${site.origin}/#/teach`);
        const rows = await page.locator('.teach-rows li').count();
        await page.getByRole('button', { name: 'From conversations' }).click();
        await page.getByRole('button', { name: 'Take' }).first().click(); // the conversation above
        await page.getByText('1 example', { exact: true }).waitFor();
        await closeDialog(page);
        assert.equal(await page.locator('.teach-rows li').count(), rows); // it was an example before
    });

    test('a folder with pictures and a sound is chosen or dropped, and learned from', async () => {
        const chosen = join(folder, 'seen and heard');
        mkdirSync(join(chosen, 'media'), { recursive: true });
        copyFileSync('tests/fixtures/tiny-mm.png', join(chosen, 'media/fox.png'));
        copyFileSync('tests/fixtures/tiny-mm.wav', join(chosen, 'voice.wav'));
        execFileSync('/usr/bin/python3', ['-c', `from PIL import Image; Image.open('tests/fixtures/tiny-mm.png').convert('RGB').save('${chosen}/media/fox.jpg')`]);
        const line = (kind: string, path: string, answer: string): string =>
            JSON.stringify({ messages: [{ role: 'user', content: [{ type: kind, [kind]: path }, { type: 'text', text: 'What is it?' }] }, { role: 'assistant', content: answer }] });
        const lines = [line('image', 'media/fox.png', 'a fox'), line('image', 'media/fox.jpg', 'a fox'), line('audio', 'voice.wav', 'a voice')];
        const found = (media: number) => page.waitForFunction((count) => document.querySelector('.teach-facts')?.textContent?.includes(`Pictures and sounds${count}`), media);

        await page.goto(`${site.origin}/#/teach`);
        await page.reload();
        await page.waitForSelector('.chip-ready');
        writeFileSync(join(chosen, 'examples.jsonl'), `${lines.join('\n')}\n${line('image', 'missing.png', 'nothing')}\n`);
        await importFiles(page, 'Folder', chosen);
        await page.getByText('line 4').first().waitFor();
        assert.match(await page.locator('.card', { hasText: 'line 4' }).innerText(), /missing\.png/);

        writeFileSync(join(chosen, 'examples.jsonl'), `${lines.slice(0, 2).join('\n')}\n`);
        await page.locator('.teach-examples').scrollIntoViewIfNeeded();
        const box = (await page.locator('.teach-examples').boundingBox())!, client = await page.context().newCDPSession(page);
        for (const type of ['dragEnter', 'dragOver', 'drop'] as const) {
            await client.send('Input.dispatchDragEvent', { type, x: box.x + box.width / 2, y: box.y + 10, data: { items: [], files: [chosen], dragOperationsMask: 1 } });
        }
        await found(2);

        writeFileSync(join(chosen, 'examples.jsonl'), `${lines.join('\n')}\n`);
        await importFiles(page, 'Folder', chosen);
        await found(3);
        await page.getByLabel('Name').fill('seen and heard');
        await page.getByText('More settings').click();
        await page.getByLabel('Rounds').fill('2');
        await page.getByRole('button', { name: 'Teach', exact: true }).click();
        await page.waitForFunction(() => /Step\d+ of/.test(document.querySelector('.teach-training')?.textContent ?? ''));
        await page.waitForSelector('.teach-result');
        assert.equal(await page.locator('.teach .box-error').count(), 0);
        assert.deepEqual(visit.complaints, []);
        assert.deepEqual(visit.foreign, []);
    });
});
