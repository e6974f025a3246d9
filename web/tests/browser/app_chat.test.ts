// Conversations of the app in Chromium: two tabs, the database of version 1, a full context, drafts and what waits to be sent, models from
// files. On the CPU, with a tiny model that writes noise. Needs build/web.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, beforeEach, describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { gate, makeGate, type Gate } from '../../app/tests/gate.ts';
import { startSite, Visit } from '../../app/tests/site.ts';
import { ADD_CALL, scripted } from '../support/models.ts';
import type { TestServer } from './server.ts';

const composer = '#composer';
const ready = (page: Page): Promise<unknown> => page.waitForSelector('.chip-ready');
const answers = (page: Page, count: number): Promise<unknown> =>
    page.waitForFunction((wanted) => document.querySelectorAll('.answer .message-tools').length === wanted && !document.querySelector('.send.stop'), count);
const questions = (page: Page): Promise<string[]> => page.locator('.question .bubble').allInnerTexts();

async function send(page: Page, text: string): Promise<void> {
    await page.fill(composer, text);
    await page.press(composer, 'Enter');
}

async function ask(page: Page, text: string): Promise<void> {
    const before = await page.locator('.answer .message-tools').count();
    await send(page, text);
    await answers(page, before + 1);
}

/** Settings of the visit, and a reload. By default answers are short. */
async function set(page: Page, settings: object): Promise<void> {
    await page.evaluate((given) => {
        const kept = JSON.parse(localStorage.getItem('gemmule.settings') ?? '{}') as object;
        localStorage.setItem('gemmule.settings', JSON.stringify({ ...kept, context: 0, overflow: 'leave-out', maxTokens: 12, sampling: { seed: 7 }, ...given }));
    }, settings);
    await page.reload();
    await ready(page);
}

/** Drops a file onto the composer. */
async function dropFile(page: Page, name: string, content: Buffer): Promise<void> {
    await page.evaluate(([file, text]) => {
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], file));
        for (const type of ['dragover', 'drop']) document.querySelector('.composer')!.dispatchEvent(new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer: data }));
    }, [name, content.toString('base64')] as const);
}

/** Every row of the database, by table. */
function rows(page: Page): Promise<{ version: number; conversations: Record<string, unknown>[]; messages: Record<string, unknown>[] }> {
    return page.evaluate(() => new Promise((resolve) => {
        const request = indexedDB.open('gemmule-app');
        request.onsuccess = () => {
            const read = request.result.transaction(['conversations', 'messages']);
            const heads = read.objectStore('conversations').getAll(), messages = read.objectStore('messages').getAll();
            read.oncomplete = () => {
                resolve({ version: request.result.version, conversations: heads.result, messages: messages.result });
                request.result.close();
            };
        };
    }));
}

/** Waits for the end of every answer in the database: the page shows an answer's end before that is stored. */
async function stored(page: Page): Promise<void> {
    while ((await rows(page)).messages.some((row) => row['finish'] === 'writing')) await page.waitForTimeout(20);
}

/** Makes the database as version 1 of the app did, with two conversations: one with a branch, and one whose answer was being written. */
async function makeVersion1(page: Page): Promise<void> {
    await page.evaluate(() => new Promise<void>((resolve, reject) => {
        const step = (content: string): object[] => [{ thinking: '', content, calls: [] }];
        const nodes = {
            q1: { id: 'q1', parent: null, created: 1, role: 'user', content: 'An old question' },
            a1: { id: 'a1', parent: 'q1', created: 2, role: 'assistant', steps: step('The first answer'), finish: 'stop' },
            a2: { id: 'a2', parent: 'q1', created: 3, role: 'assistant', steps: step('The second answer'), finish: 'stop' },
        };
        const half = {
            q1: { id: 'q1', parent: null, created: 1, role: 'user', content: 'Interrupted' },
            a1: { id: 'a1', parent: 'q1', created: 2, role: 'assistant', steps: step('Half an'), finish: 'writing' },
        };
        const head = { named: false, created: 1, updated: Date.now(), system: null };
        const request = indexedDB.open('gemmule-app', 1);
        request.onupgradeneeded = () => {
            for (const [name, keyPath] of [['conversations', 'id'], ['snapshots', 'key'], ['benchmarks', 'id']] as const) {
                request.result.createObjectStore(name, { keyPath });
            }
        };
        request.onerror = () => reject(request.error);
        request.onsuccess = () => {
            const write = request.result.transaction('conversations', 'readwrite'), store = write.objectStore('conversations');
            store.put({ ...head, id: 'old', title: 'An old question', system: 'Be brief.', nodes, chosen: { '': 'q1', q1: 'a2' } });
            store.put({ ...head, id: 'half', title: 'Interrupted', nodes: half, chosen: { '': 'q1', q1: 'a1' } });
            write.oncomplete = () => (request.result.close(), resolve());
        };
    }));
}

describe('conversations', { timeout: 3_000_000 }, () => {
    let site: TestServer, visit: Visit, page: Page;
    before(async () => {
        site = await startSite({ '/calls.gguf': (_, response) => void response.end(readFileSync(scripted('calls', ...ADD_CALL))) });
        visit = await Visit.begin();
        await visit.context.addInitScript(makeGate);
        page = await visit.page();
    });
    after(async () => {
        await visit?.end();
        await site?.close();
    });
    beforeEach(() => assert.deepEqual(visit.complaints, [], 'complaints of the page'));
    const open = (hash = ''): Promise<unknown> => page.goto(`${site.origin}/#/${hash}`);

    test('the database of version 1 is taken over, message by message', async () => {
        await page.goto(`${site.origin}/icon.svg`); // of the same origin, without the app
        await makeVersion1(page);
        await page.goto(site.origin);
        await ready(page);
        await set(page, {});
        assert.deepEqual((await page.locator('.row-title').allInnerTexts()).sort(), ['An old question', 'Interrupted']);
        await open('chat/old');
        await page.waitForSelector('.answer >> text=The second answer');
        assert.equal(await page.innerText('.answer .branches'), '2/2');
        await page.getByRole('button', { name: 'Previous version' }).click();
        await page.waitForSelector('.answer >> text=The first answer');
        await ask(page, 'A new question');
        await open('chat/half');
        await page.waitForSelector('.answer >> text=Half an');
        assert.match(await page.innerText('.answer'), /Stopped\./);
        const { version, conversations, messages } = await rows(page);
        assert.equal(version, 3);
        assert.deepEqual(conversations.map((head) => [head['id'], head['system'], 'nodes' in head]), [['half', null, false], ['old', 'Be brief.', false]]);
        const of = (id: string): unknown[] => messages.filter((row) => row['conversation'] === id).map((row) => row['content'] ?? row['finish']).sort();
        assert.deepEqual(of('half'), ['Interrupted', 'cancelled']);
        assert.deepEqual([of('old').length, of('old').includes('A new question')], [5, true]);
        const [download] = await Promise.all([page.waitForEvent('download'), (async () => {
            await open('settings');
            await page.getByRole('button', { name: 'Export all conversations' }).click();
        })()]);
        const exported = JSON.parse(readFileSync(await download.path(), 'utf8')) as { conversations: { id: string; nodes: object }[] };
        assert.deepEqual(exported.conversations.map(({ id, nodes }) => [id, Object.keys(nodes).length]).sort(), [['half', 2], ['old', 5]]);
    });

    test('another tab sees the answer grow, sends after it, and no answer is lost', async () => {
        await open();
        await ask(page, 'The beginning');
        const other = await visit.context.newPage();
        await other.goto(page.url());
        await ready(other);
        await answers(other, 1);
        await gate(page, 3);
        await send(page, 'From the first tab');
        const words = (): Promise<string> => other.locator('.answer').last().innerText();
        await other.waitForFunction(() => document.querySelectorAll('.answer[aria-busy=true] .prose').length === 1);
        const early = await words();
        assert.doesNotMatch(early, /nothing to say|Stopped/);
        await send(other, 'From the second tab');
        assert.equal(await other.innerText('.queue .queue-text'), 'From the second tab');
        assert.deepEqual(await questions(other), ['The beginning', 'From the first tab'], 'it waits for its turn');
        await gate(page, 8);
        await other.waitForFunction((before) => (document.querySelector<HTMLElement>('.answer:last-child')?.innerText ?? '') !== before, early);
        assert.doesNotMatch(await words(), /nothing to say|Stopped/);
        await gate(page, 1e9);
        for (const tab of [page, other]) {
            await answers(tab, 3);
            assert.deepEqual(await questions(tab), ['The beginning', 'From the first tab', 'From the second tab']);
        }
        const texts = await page.locator('.answer-body > .prose').allInnerTexts();
        assert.deepEqual(await other.locator('.answer-body > .prose').allInnerTexts(), texts);
        // At the same moment: one of them is first, and the other one follows.
        await Promise.all([page.fill(composer, 'One'), other.fill(composer, 'Two')]);
        await Promise.all([page.press(composer, 'Enter'), other.press(composer, 'Enter')]);
        for (const tab of [page, other]) {
            await answers(tab, 5);
            await tab.reload();
            await answers(tab, 5);
            assert.deepEqual((await questions(tab)).slice(3).sort(), ['One', 'Two']);
        }
        // The second tab has not heard of the latest answer, and goes on behind it all the same.
        await ready(page);
        await ready(other);
        await page.evaluate(() => { BroadcastChannel.prototype.postMessage = () => undefined; });
        await ask(page, 'Unheard');
        await send(other, 'The last one');
        await answers(other, 7);
        assert.deepEqual((await questions(other)).slice(5), ['Unheard', 'The last one']);
        await page.reload();
        await other.close();
    });

    test('a tab that is closed leaves a stopped answer; stop works from the other tab', async () => {
        await open();
        await ready(page);
        await ask(page, 'Shared by two tabs');
        const other = await visit.context.newPage();
        await other.goto(page.url());
        await ready(other);
        await gate(other, 3);
        await send(other, 'This one is closed');
        await page.waitForSelector('.answer[aria-busy=true] .prose');
        await other.close();
        await answers(page, 2);
        assert.match(await page.locator('.answer').last().innerText(), /Stopped\./);
        const third = await visit.context.newPage();
        await third.goto(page.url());
        await ready(third);
        await gate(third, 3);
        await send(third, 'This one is stopped');
        await page.waitForSelector('.answer[aria-busy=true] .prose');
        await page.getByRole('button', { name: 'Stop', exact: true }).click();
        await third.waitForFunction(() => (window as unknown as { gate: Gate }).gate.stops === 1);
        await gate(third, 1e9);
        await answers(page, 3);
        await third.close();
    });

    test('a full context: the oldest messages are left out, and that is said where it is seen', async () => {
        await open('settings');
        await page.getByLabel('Context size').fill('1000000');
        await page.getByLabel('Context size').blur();
        const most = (await page.waitForSelector('text=The loaded model reads at most')).innerText();
        assert.match(await most, /^The loaded model reads at most [\d,]+ tokens at once, so [\d,]+ are used\.$/);
        await open();
        await ask(page, 'It answers all the same');
        assert.equal(await page.locator('.box-error').count(), 0);
        await set(page, { context: 256, maxTokens: 40 });
        await open();
        for (let round = 0; round < 6; round++) await ask(page, `Count the ships of the harbour, number ${round}, one by one`);
        assert.match(await page.locator('.left-out').first().innerText(), /^Earlier messages are left out: the context is full, so the model no longer sees the .*oldest question/);
        assert.equal((await questions(page)).length, 6, 'they stay in the conversation');
        assert.equal(await page.locator('.ending strong').count(), 0, 'nothing failed, and nothing was cut by the context');
    });

    test('the notice of a full context is in sight, and its advice can be followed', async () => {
        const { width, height } = page.viewportSize()!;
        await page.setViewportSize({ width, height: 400 }); // the conversation is longer than the screen
        await open();
        await set(page, { context: 96, maxTokens: 0, sampling: { temperature: 5 }, overflow: 'stop' });
        for (let round = 0; round < 6 && !(await page.locator('.ending strong').count()); round++) await ask(page, `Count the ships of the harbour, number ${round}`);
        const note = page.locator('.ending', { hasText: 'The context is full.' });
        assert.match(await note.innerText(), /reads 96 tokens at once.*let the oldest messages be left out.*raise the context size/s);
        // It scrolls into sight above the composer.
        await page.waitForFunction(() => document.querySelector('.ending:has(strong)')!.getBoundingClientRect().bottom <= document.querySelector('.dock')!.getBoundingClientRect().top);
        await page.setViewportSize({ width, height });
        await set(page, { context: 96, maxTokens: 12 });
        await page.waitForSelector('.answer');
        await ask(page, 'And now?');
        assert.equal(await page.locator('.ending strong').count(), 1, 'left out by default: the conversation goes on');
    });

    test('a message that is too long is refused before it is stored, and later ones work', async () => {
        await set(page, { context: 256 });
        await open();
        await ask(page, 'Short');
        const long = 'many words '.repeat(300).trim();
        await send(page, long);
        const note = await page.waitForSelector('.dock .box-note');
        assert.match(await note.innerText(), /^This message is too long: it has [\d,]{3,} tokens, and at most \d+ fit\. Shorten it, or raise the context size/);
        assert.equal(await page.inputValue(composer), long, 'the text is still there');
        assert.deepEqual(await questions(page), ['Short']);
        assert.equal((await rows(page)).messages.filter((row) => row['content'] === long).length, 0);
        await page.reload();
        assert.equal(await page.inputValue(composer), long, 'also after a reload');
        await ready(page);
        await ask(page, 'Short again');
        // Edited: the box stays open with what was typed.
        await page.hover('.question');
        await page.getByRole('button', { name: 'Edit message' }).first().click();
        await page.getByRole('textbox', { name: 'Edit your message' }).fill(long);
        await page.keyboard.press('Enter');
        await page.waitForSelector('.edit-box .box-note');
        assert.equal(await page.inputValue('.edit-box textarea'), long);
        await page.keyboard.press('Escape');
        assert.deepEqual(await questions(page), ['Short', 'Short again']);
        // In a new conversation: it is not begun.
        const before = await page.locator('.row').count();
        await open();
        await send(page, long);
        await page.waitForSelector('.dock .box-note');
        assert.equal(await page.locator('.row').count(), before);
        await page.fill(composer, '');
    });

    test('drafts survive a reload; what is sent meanwhile waits; text files become text', async () => {
        await set(page, {});
        await open();
        await ask(page, 'With a draft');
        await page.fill(composer, 'Half a thou');
        await page.reload();
        await ready(page);
        assert.equal(await page.inputValue(composer), 'Half a thou');
        await gate(page, 3);
        await send(page, 'The second');
        await page.waitForSelector('.answer[aria-busy=true] .prose');
        await send(page, 'The third');
        await send(page, 'Not this one');
        assert.deepEqual(await page.locator('.queue-text').allInnerTexts(), ['The third', 'Not this one']);
        await page.locator('.queue li', { hasText: 'Not this one' }).getByRole('button').click();
        assert.equal(await page.inputValue(composer), 'Not this one');
        await gate(page, 1e9);
        await answers(page, 3);
        assert.deepEqual(await questions(page), ['With a draft', 'The second', 'The third']);
        // In the edit box Enter sends, and Shift+Enter begins a line.
        await page.fill(composer, '');
        await page.press(composer, 'ArrowUp');
        const box = page.getByRole('textbox', { name: 'Edit your message' });
        await box.fill('One line');
        await box.press('Shift+Enter');
        await box.pressSequentially('two lines');
        await box.press('Enter');
        await answers(page, 3);
        assert.equal((await questions(page)).at(-1), 'One line\ntwo lines');
        await page.fill(composer, 'What does this say?');
        await dropFile(page, 'notes.txt', Buffer.from('Grüße\r\nfrom a file\n'));
        await page.waitForFunction(() => document.querySelector<HTMLTextAreaElement>('#composer')!.value.includes('file'));
        assert.equal(await page.inputValue(composer), 'What does this say?\n\nGrüße\nfrom a file');
        await dropFile(page, 'picture.png', Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 1, 2]));
        await page.waitForSelector('.dock .box-note');
        assert.equal(await page.innerText('.dock .box-note'), 'picture.png is not a picture, a sound, a video or a text file.');
        await page.fill(composer, '');
    });

    /** The composer as it is: the element with the mark of `typeHere`, its text, and the caret in it. */
    const typed = (): Promise<object> => page.evaluate(() => {
        const area = document.querySelector<HTMLTextAreaElement>('#composer')!;
        return { same: area.dataset['mark'] === 'mine', focus: document.activeElement === area, text: area.value, caret: area.selectionStart };
    });

    /** Types a text and puts the caret into it. */
    async function typeHere(text: string, caret: number): Promise<object> {
        await page.fill(composer, text);
        await page.evaluate((at) => {
            const area = document.querySelector<HTMLTextAreaElement>('#composer')!;
            area.dataset['mark'] = 'mine';
            area.setSelectionRange(at, at);
        }, caret);
        const now = { same: true, focus: true, text, caret };
        assert.deepEqual(await typed(), now);
        return now;
    }

    test('what is being typed stays as it is, whatever is drawn meanwhile', async () => {
        await open();
        await set(page, {});
        await open();
        await ask(page, 'Anything');
        const title = await page.innerText('h1');

        // While an answer is written and ends, while another tab has changed the conversation, and while a model is loaded.
        await gate(page, 2);
        await send(page, 'Something else');
        await page.waitForSelector('.answer[aria-busy=true] .prose');
        const half = await typeHere('Half a thought', 6);
        await gate(page, 1e9);
        await answers(page, 2);
        assert.deepEqual(await typed(), half);
        await stored(page);
        await page.evaluate(() => new Promise<void>((done) => {
            const id = location.hash.split('/').at(-1)!, request = indexedDB.open('gemmule-app');
            request.onsuccess = () => {
                const write = request.result.transaction('conversations', 'readwrite'), heads = write.objectStore('conversations'), head = heads.get(id);
                head.onsuccess = () => heads.put({ ...(head.result as object), title: 'Another title', named: true });
                write.oncomplete = () => {
                    new BroadcastChannel('gemmule-conversations').postMessage({ kind: 'changed', id });
                    request.result.close();
                    done();
                };
            };
        }));
        await page.waitForFunction((before) => document.querySelector('h1')!.textContent !== before, title);
        assert.deepEqual(await typed(), half);
        await page.keyboard.type('of ');
        assert.equal(await page.inputValue(composer), 'Half aof  thought');
        await page.reload();
        const whole = await typeHere('Half a thought', 6);
        await ready(page);
        assert.deepEqual(await typed(), whole);
        // What comes before it or behind it leaves the caret at its place.
        await dropFile(page, 'notes.txt', Buffer.from('from a file'));
        await page.waitForFunction(() => document.querySelector<HTMLTextAreaElement>('#composer')!.value.includes('file'));
        assert.deepEqual(await typed(), { ...whole, text: 'Half a thought\n\nfrom a file' });
        await gate(page, 2);
        await send(page, 'First');
        await page.waitForSelector('.answer[aria-busy=true] .prose');
        await send(page, 'Second');
        const third = await typeHere('Third', 2);
        await page.evaluate(() => document.querySelector<HTMLElement>('.queue button')!.click());
        await page.waitForFunction(() => document.querySelector('.queue') === null);
        assert.deepEqual(await typed(), { ...third, text: 'Second\n\nThird', caret: 'Second\n\n'.length + 2 });
        await page.fill(composer, '');
        await gate(page, 1e9);
        await answers(page, 3);
    });

    test('a dialog that is closed lets go of the page at once', async () => {
        await page.locator('.adapter-toggle').click();
        await page.getByRole('dialog', { name: 'Adapters' }).getByRole('button', { name: 'Close' }).waitFor();
        const value = await page.evaluate(async () => {
            document.querySelector<HTMLElement>('dialog[open] [aria-label=Close]')!.click();
            for (let i = 0; i < 20; i++) await null; // until it is drawn, before the next frame
            document.querySelector<HTMLElement>('#composer')!.focus();
            document.execCommand('insertText', false, 'At once');
            return document.querySelector<HTMLTextAreaElement>('#composer')!.value;
        });
        assert.equal(value, 'At once');
        assert.equal(await page.inputValue(composer), 'At once');
        await page.fill(composer, '');
    });

    test('a draft goes with its conversation: when that begins after a wait, and when its first message is refused', async () => {
        await set(page, {});
        await open();
        await gate(page, 2);
        await send(page, 'The one before');
        await page.waitForSelector('.answer[aria-busy=true] .prose');
        await page.locator('.sidebar').getByRole('link', { name: 'New conversation' }).click();
        await page.waitForSelector('.welcome');
        await send(page, 'It waits');
        await page.waitForSelector('.queue');
        const draft = await typeHere('And then?', 3);
        await gate(page, 1e9);
        await page.waitForFunction(() => document.querySelector('.question .bubble')?.textContent === 'It waits');
        assert.deepEqual(await typed(), draft);
        await answers(page, 1);
        assert.deepEqual(await typed(), draft);
        await page.press(composer, 'Enter');
        await answers(page, 2);
        assert.deepEqual(await questions(page), ['It waits', 'And then?']);

        // In one task with what sends it: the refusal comes later.
        await set(page, { adapters: [{ key: 'a'.repeat(64), name: 'gone', scale: 1 }] });
        await open();
        await page.focus(composer);
        await page.evaluate(async () => {
            document.execCommand('insertText', false, 'The first');
            document.querySelector('#composer')!.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true, cancelable: true }));
            for (let i = 0; i < 20; i++) await null;
            document.execCommand('insertText', false, 'The second');
        });
        await page.waitForSelector('.dock [role=alert]');
        assert.match(await page.innerText('.dock [role=alert]'), /The adapter gone is not in this browser/);
        assert.equal(await page.inputValue(composer), 'The first\n\nThe second');
        assert.equal(new URL(page.url()).hash, '#/');
        await page.fill(composer, '');
        await set(page, { adapters: [] });
    });

    test('a number that is being typed stays when the page is drawn again', async () => {
        await open('settings');
        const field = page.getByLabel('Temperature');
        await field.pressSequentially('0.7');
        await page.evaluate(() => document.querySelector<HTMLElement>('.foot-row .segments [aria-label=Dark]')!.click());
        await page.waitForFunction(() => document.documentElement.dataset['theme'] === 'dark');
        assert.equal(await field.inputValue(), '0.7');
        await field.press('Enter');
        await page.reload();
        assert.equal(await field.inputValue(), '0.7');
        await field.fill('99');
        await field.press('Enter');
        await page.waitForFunction(() => [...document.querySelectorAll('input')].some((each) => each.value === '5'));
        await set(page, {});
    });

    test('a message that is sent while a file is read waits for it, also when another conversation is opened', async () => {
        await set(page, {});
        await open();
        await ask(page, 'Before the file');
        await page.evaluate(() => {
            const { arrayBuffer } = Blob.prototype, reads = { begun: false, goOn: () => {} };
            const released = new Promise<void>((resolve) => { reads.goOn = resolve; });
            Object.assign(window, { reads });
            Blob.prototype.arrayBuffer = async function read(this: Blob) {
                if ((this as File).name === 'slow.txt') {
                    reads.begun = true;
                    await released;
                }
                return arrayBuffer.call(this);
            };
        });
        const address = page.url();
        await page.fill(composer, 'What does it say?');
        await dropFile(page, 'slow.txt', Buffer.from('Words of a slow file'));
        await page.waitForFunction(() => (window as unknown as { reads: { begun: boolean } }).reads.begun);
        await page.press(composer, 'Enter');
        assert.deepEqual(await questions(page), ['Before the file']);
        await page.evaluate(() => { location.hash = '#/'; });
        await page.locator('.question').first().waitFor({ state: 'detached' });
        await page.fill(composer, 'Another draft');
        await page.evaluate(() => (window as unknown as { reads: { goOn(): void } }).reads.goOn());
        await page.evaluate((to) => { location.href = to; }, address);
        await answers(page, 2);
        assert.deepEqual(await questions(page), ['Before the file', 'What does it say?\n\nWords of a slow file']);
        await page.evaluate(() => { location.hash = '#/'; });
        await page.locator('.question').first().waitFor({ state: 'detached' });
        assert.equal(await page.inputValue(composer), 'Another draft');
        await page.fill(composer, '');
        await page.reload(); // the files of other tests are read at once
        await ready(page);
    });

    test('a draft keeps its pictures; a model of text alone says so, and the message stays a draft', async () => {
        const tray = page.locator('.tray-item');
        await set(page, {});
        await open();
        await dropFile(page, 'a.png', readFileSync('tests/fixtures/pictures/png-2-8.png'));
        await dropFile(page, 'b.wav', readFileSync('tests/fixtures/sounds/tone-8000.wav'));
        await tray.nth(1).waitFor();
        assert.match(await tray.nth(0).innerText(), /^a\.png\s+\d+ tokens/);
        assert.match(await tray.nth(1).innerText(), /^b\.wav\s+0:00 · 10 tokens/);
        await tray.nth(0).getByRole('combobox').selectOption('1120');
        assert.match(await tray.nth(0).innerText(), /1,\d\d\d tokens/);
        await page.getByRole('button', { name: 'Remove b.wav' }).click();
        await page.fill(composer, 'What is this?');
        await page.reload();
        await ready(page);
        await page.waitForSelector('.tray-item img');
        assert.equal(await tray.getByRole('combobox').inputValue(), '1120');
        await page.press(composer, 'Enter');
        assert.match(await page.innerText('.dock .box-note'), /^Tiny Dense cannot see pictures\. Load a model that can, or send text alone\.$/);
        assert.deepEqual([await tray.count(), await page.inputValue(composer)], [1, 'What is this?']);
        await page.getByRole('button', { name: 'Remove a.png' }).click();
        await page.fill(composer, '');
    });

    test('what waits is a draft again after a reload, once; an edit that waits is no draft', async () => {
        await set(page, {});
        await open();
        await ask(page, 'The first');
        const first = new URL(page.url()).hash.slice(2);
        await gate(page, 3);
        await send(page, 'Slowly');
        await page.waitForSelector('.answer[aria-busy=true] .prose');
        await send(page, 'This waits');
        await page.reload();
        await ready(page);
        assert.equal(await page.inputValue(composer), 'This waits');
        await page.fill(composer, 'This waits no more');
        await page.reload();
        await ready(page);
        assert.equal(await page.inputValue(composer), 'This waits no more');
        await page.fill(composer, '');
        await page.reload();
        await ready(page);
        await gate(page, 3);
        await open();
        await send(page, 'In another conversation');
        await page.waitForSelector('.answer[aria-busy=true] .prose');
        await open(first);
        await page.hover('.question');
        await page.getByRole('button', { name: 'Edit message' }).first().click();
        await page.getByRole('textbox', { name: 'Edit your message' }).fill('The first, edited');
        await page.keyboard.press('Enter');
        await page.waitForSelector('.queue-text');
        assert.equal(await page.inputValue(composer), '');
        await gate(page, 1e9);
        await page.waitForFunction(() => document.querySelector('.question .bubble')?.textContent === 'The first, edited');
        await answers(page, 1);
        assert.equal(await page.inputValue(composer), '');
    });

    test('a question that the disk had no space for is stored with the end of its answer', async () => {
        await set(page, {});
        await open();
        await page.evaluate(() => {
            const { put } = IDBObjectStore.prototype;
            let full = true;
            IDBObjectStore.prototype.put = function fail(this: IDBObjectStore, ...given: [unknown]) {
                const request = put.apply(this, given);
                if (full && this.name === 'messages') queueMicrotask(() => this.transaction.abort());
                full &&= this.name !== 'messages';
                return request;
            };
        });
        await ask(page, 'While the disk is full');
        assert.match(await page.innerText('.notice'), /^The conversation could not be saved\./);
        await page.reload();
        await ready(page);
        assert.deepEqual(await questions(page), ['While the disk is full']);
        assert.equal(await page.locator('.answer .message-tools').count(), 1);
    });

    test('a model that calls tools for ever is stopped, and told why', async () => {
        await set(page, { tools: true, maxTokens: 0, sampling: { temperature: 0 } });
        await open('models');
        await page.getByPlaceholder(/^https:/).fill(`${site.origin}/calls.gguf`);
        await page.getByRole('button', { name: 'Download and load' }).click();
        await page.waitForFunction(() => document.querySelector('.current-model .ready'));
        await open();
        await ask(page, 'Add one');
        assert.equal(await page.innerText('.ending'), 'Stopped after 5 rounds of tool calls.');
        const results = await page.locator('.answer .fold-body').allTextContents();
        assert.equal(results.length, 6);
        for (const result of results.slice(0, 5)) assert.match(result, /There is no tool named 'add'\. The tools are: get_time, calculate\./);
        assert.match(results[5]!, /at most 5 rounds/);
    });
});

// ---- models from files --------------------------------------------------------------------------------------------------------

/** Lets the page choose a file: a real handle, of the origin's private file system, that asks for permission as one of the disk does. */
function makePicker(): void {
    const granted = sessionStorage.getItem('permission') ?? 'prompt';
    const handles = FileSystemFileHandle.prototype as unknown as Record<string, () => Promise<string>>;
    handles['queryPermission'] = async () => granted;
    handles['requestPermission'] = async () => 'granted';
    (globalThis as unknown as { showOpenFilePicker: () => Promise<unknown[]> }).showOpenFilePicker = async () => {
        const handle = await (await navigator.storage.getDirectory()).getFileHandle('Mine.gguf', { create: true });
        const stream = await handle.createWritable();
        await stream.write(await (await fetch('mine.gguf')).arrayBuffer());
        await stream.close();
        return [handle];
    };
}

describe('a model from a file', { timeout: 3_000_000 }, () => {
    let site: TestServer, visit: Visit, page: Page;
    before(async () => {
        site = await startSite({ '/mine.gguf': (_, response) => void response.end(readFileSync('tests/fixtures/tiny-moe.gguf')) });
        visit = await Visit.begin();
        page = await visit.page();
    });
    after(async () => {
        await visit?.end();
        await site?.close();
    });
    const boxes = (): number => site.requests.filter((path) => path === '/models/box.gguf').length;
    const chip = (): Promise<string> => page.innerText('.chip-name');

    test('is opened again by a click after a reload; the box does not take its place', async () => {
        await page.goto(site.origin);
        await ready(page);
        await page.evaluate(() => localStorage.setItem('gemmule.settings', JSON.stringify({ maxTokens: 12, sampling: { seed: 7 } })));
        await page.addInitScript(makePicker);
        await page.goto(`${site.origin}/#/models`);
        await page.reload();
        await ready(page);
        await page.getByRole('button', { name: 'Choose file' }).click();
        await page.waitForFunction(() => /Moe/i.test(document.querySelector('.chip-ready .chip-name')?.textContent ?? ''));
        const name = await chip(), before = boxes();
        await page.goto(`${site.origin}/#/`);
        await ask(page, 'Who are you?');
        await stored(page);
        await page.reload();
        await page.waitForSelector('.dock .box-note >> text=Mine is not loaded.');
        assert.equal(await chip(), 'No model');
        assert.equal(boxes(), before, 'the box is not even fetched');
        await send(page, 'Are you there?');
        await page.waitForSelector('.dock >> text=No model is loaded, so nothing was sent.');
        assert.equal(await page.inputValue(composer), 'Are you there?');
        assert.deepEqual(await questions(page), ['Who are you?']);
        await page.getByRole('button', { name: 'Open Mine' }).click();
        await ready(page);
        assert.equal(await chip(), name);
        await page.press(composer, 'Enter');
        await answers(page, 2);
        await stored(page);
        // Where the browser remembers the permission, no click is needed.
        await page.evaluate(() => sessionStorage.setItem('permission', 'granted'));
        await page.reload();
        await ready(page);
        assert.equal(await chip(), name);
        assert.equal(await page.locator('.dock .box-note').count(), 0);
        await page.evaluate(() => sessionStorage.removeItem('permission'));
    });

    test('the user may go on with the box, and is told whose answers these were', async () => {
        await page.reload();
        await page.getByRole('button', { name: 'Use the model in the box' }).click();
        await ready(page);
        const note = page.locator('.dock .box-note');
        assert.match(await note.innerText(), /^The last answer here came from .*moe\. .*dense is loaded now\./i);
        await note.getByRole('button', { name: /^Load/ }).click();
        await page.waitForFunction(() => /Moe/i.test(document.querySelector('.chip-ready .chip-name')?.textContent ?? ''));
        assert.equal(await note.count(), 0);
    });

    test('without handles, the file is chosen again', async () => {
        await page.addInitScript(() => { delete (globalThis as unknown as { showOpenFilePicker?: unknown }).showOpenFilePicker; });
        await page.evaluate(() => new Promise<void>((resolve) => {
            const request = indexedDB.open('gemmule-app');
            request.onsuccess = () => {
                const write = request.result.transaction('files', 'readwrite');
                write.objectStore('files').clear();
                write.oncomplete = () => (request.result.close(), resolve());
            };
        }));
        await page.reload();
        const again = page.getByRole('button', { name: 'Choose the file again' });
        await again.waitFor();
        const [chooser] = await Promise.all([page.waitForEvent('filechooser'), again.click()]);
        await chooser.setFiles('tests/fixtures/tiny-moe.gguf');
        await page.waitForFunction(() => /Moe/i.test(document.querySelector('.chip-ready .chip-name')?.textContent ?? ''));
        assert.deepEqual(visit.complaints, []);
    });
});
