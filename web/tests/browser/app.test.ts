// The app in Chromium, end to end, with a real (tiny) model: it writes noise, but it writes. Needs build/web.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, afterEach, before, describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { seriousFindings } from '../../app/tests/axe.ts';
import { breaksOff, fakeOllama, MODEL, startSite, Visit } from '../../app/tests/site.ts';
import type { ServerOptions, TestServer } from './server.ts';

const XSS = JSON.parse(readFileSync('web/app/tests/xss.json', 'utf8')) as string[];
const PAGES = ['', 'models', 'teach', 'benchmark', 'settings', 'about'];

const ready = (page: Page): Promise<unknown> => page.waitForSelector('.chip-ready');
const composer = '#composer';

/** Asks and waits for the whole answer. */
async function ask(page: Page, text: string): Promise<void> {
    const before = await page.locator('.answer').count();
    await page.fill(composer, text);
    await page.press(composer, 'Enter');
    await page.waitForFunction((count) => document.querySelectorAll('.answer').length > count, before);
    await idle(page);
}

const idle = (page: Page): Promise<unknown> => page.waitForSelector('.send:not(.stop)');
const lastAnswer = (page: Page): Promise<string> => page.locator('.answer .answer-body').last().innerText();
const lastText = async (page: Page): Promise<string> => (await page.locator('.answer').last().locator('.prose').allInnerTexts()).join('\n');

/** Short answers that are the same each time. */
async function shortAnswers(page: Page, more: object = {}): Promise<void> {
    await page.evaluate((given) => localStorage.setItem('gemmule.settings', JSON.stringify({ maxTokens: 12, sampling: { seed: 7 }, ...given })), more);
    await page.reload();
    await ready(page);
}

/** The keys of what is kept for a conversation. */
function snapshots(page: Page, conversation: string): Promise<string[]> {
    return page.evaluate((id) => new Promise<string[]>((resolve) => {
        const request = indexedDB.open('gemmule-app');
        request.onsuccess = () => {
            const rows = request.result.transaction('snapshots').objectStore('snapshots').getAll();
            rows.onsuccess = () => resolve((rows.result as { conversation: string; key: string }[]).filter((row) => row.conversation === id).map((row) => row.key));
            request.result.close();
        };
    }), conversation);
}

/** A file with one conversation: `answers` behind questions, and a title. */
function conversationFile(answers: string[], title: string): Buffer {
    const nodes: Record<string, object> = {}, chosen: Record<string, string> = {};
    let parent: string | null = null;
    answers.forEach((content, at) => {
        nodes[`q${at}`] = { id: `q${at}`, parent, created: at * 2, role: 'user', content };
        const calls = [{ id: 'c', name: content, arguments: { content }, result: content }];
        nodes[`a${at}`] = {
            id: `a${at}`, parent: `q${at}`, created: at * 2 + 1, role: 'assistant', finish: 'stop', steps: [{ thinking: content, content, calls }],
        };
        chosen[parent ?? ''] = `q${at}`;
        chosen[`q${at}`] = `a${at}`;
        parent = `a${at}`;
    });
    const conversation = { id: 'x', title, named: true, created: Date.now(), updated: Date.now(), system: null, nodes, chosen };
    return Buffer.from(JSON.stringify({ format: 'gemmule-conversations', version: 1, exported: '', conversations: [conversation] }));
}

async function importFile(page: Page, site: TestServer, file: Buffer): Promise<void> {
    await page.goto(`${site.origin}/#/settings`);
    const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: 'Import' }).click()]);
    await chooser.setFiles({ name: 'conversations.json', mimeType: 'application/json', buffer: file });
}

describe('the app', { timeout: 3_000_000 }, () => {
    const routes: NonNullable<ServerOptions['routes']> = {};
    let site: TestServer, visit: Visit, page: Page, remembered = '';
    before(async () => {
        site = await startSite(routes);
        visit = await Visit.begin();
        page = await visit.page();
    });
    after(async () => {
        await visit?.end();
        await site?.close();
    });
    afterEach(() => {
        assert.deepEqual(visit.foreign, [], 'requests to other hosts');
        assert.deepEqual(visit.complaints, [], 'complaints of the page');
    });

    test('first visit: says what it is, loads the box, answers, stops', async () => {
        await page.goto(site.origin);
        assert.match(await page.innerText('.welcome'), /Nothing you type and nothing it answers leaves this machine/);
        // At once: the question waits for the model.
        await page.fill(composer, 'Tell me a long story');
        await page.press(composer, 'Enter');
        await page.waitForFunction(() => (document.querySelector('.answer .prose')?.textContent ?? '').length > 0);
        assert.match(await page.innerText('.chip'), /Tiny Dense/);
        assert.equal(await page.locator('.row').count(), 1);
        assert.equal(await page.innerText('h1'), 'Tell me a long story');
        await page.goto(`${site.origin}/#/`);
        assert.match(await page.innerText('.box-remark'), /Load a bigger one/);
        await page.locator('.send.stop').click({ timeout: 500 }).catch(() => undefined); // it may be over already
        await idle(page);
    });

    test('stop, by the button and by Escape; the speed stands beside the words', async () => {
        const stops = [() => page.getByRole('button', { name: 'Stop', exact: true }).click({ timeout: 2000 }).catch(() => undefined), () => page.keyboard.press('Escape')];
        for (const stop of stops) {
            // Noise may end at any word: until an answer is long enough to be stopped.
            for (let tries = 0; ; tries++) {
                assert.ok(tries < 20, 'no long answer in twenty');
                await page.goto(`${site.origin}/#/`);
                await page.fill(composer, `Tell me a long story, number ${tries}`);
                await page.press(composer, 'Enter');
                const speed = await page.waitForSelector('.live-line .speed, .answer .message-tools'); // an empty answer has no numbers
                if ((await speed.getAttribute('class'))?.includes('message-tools')) continue;
                await stop();
                await idle(page);
                if (/Stopped\./.test(await lastAnswer(page))) break;
            }
        }
    });

    test('edit and regenerate make branches that can be walked', async () => {
        await shortAnswers(page, { sampling: {} });
        await page.goto(`${site.origin}/#/`);
        await ask(page, 'First words');
        const first = await lastText(page);
        await page.getByRole('button', { name: 'Another answer' }).click();
        await page.waitForSelector('.answer .branches');
        await idle(page);
        assert.equal(await page.innerText('.answer .branches'), '2/2');
        await page.locator('.answer').getByRole('button', { name: 'Previous version' }).click();
        assert.equal(await lastText(page), first);
        await page.hover('.question');
        await page.getByRole('button', { name: 'Edit message' }).click();
        await page.getByRole('textbox', { name: 'Edit your message' }).fill('Other words');
        await page.locator('.edit-box').getByRole('button', { name: 'Send' }).click();
        await idle(page);
        assert.equal(await page.innerText('.question .bubble'), 'Other words');
        assert.equal(await page.innerText('.question .branches'), '2/2');
        await page.locator('.question').getByRole('button', { name: 'Previous version' }).click();
        assert.equal(await page.innerText('.question .bubble'), 'First words');
        assert.equal(await page.innerText('.answer .branches'), '1/2');
        // In an empty box the arrow edits the last message.
        await page.press(composer, 'ArrowUp');
        await page.waitForSelector('.edit-box');
        await page.keyboard.press('Escape');
        await page.waitForSelector('.edit-box', { state: 'detached' });
    });

    test('a conversation survives a reload, and its keys and values with it', async () => {
        await shortAnswers(page);
        await page.goto(`${site.origin}/#/`);
        await ask(page, 'Remember the number seven, and the sea, and the ship');
        const address = page.url(), before = await lastText(page);
        remembered = address.split('/').at(-1)!;
        while ((await snapshots(page, remembered)).length === 0) await page.waitForTimeout(100);
        await page.reload();
        await ready(page);
        assert.equal(page.url(), address);
        assert.equal(await lastText(page), before);
        await ask(page, 'Go on');
        const title = (await page.locator('.answer .stats').last().getAttribute('title')) ?? '';
        const [, prompt, cached] = /Prompt: (\d+) tokens, (\d+) cached/.exec(title) ?? [];
        assert.ok(Number(cached) > Number(prompt) / 2, title);
        assert.match((await page.getAttribute('.meter', 'aria-label')) ?? '', /\d+ of [\d,]+ tokens of context used/);
    });

    test('a second tab sees what the first one writes', async () => {
        const other = await visit.context.newPage();
        await other.goto(`${site.origin}/#/settings`);
        await other.waitForSelector('.row');
        const count = await other.locator('.row').count();
        await page.goto(`${site.origin}/#/`);
        await ask(page, 'Seen from elsewhere');
        await other.waitForFunction((before) => document.querySelectorAll('.row').length > before, count);
        await other.close();
    });

    test('an adapter: dropped, kept over a reload, scaled, exported, deleted, imported again; one that does not fit says so', async () => {
        const LORA = 'tests/fixtures/tiny-dense-lora';
        const files = (...names: string[]) => names.map((name) => ({ name, mimeType: '', buffer: readFileSync(`${LORA}/${name}`) }));
        const pressed = (on: boolean) => page.waitForSelector(`.adapter-toggle[aria-pressed="${on}"]`);
        const dialog = page.getByRole('dialog', { name: 'Adapters' });
        const open = () => page.locator('.adapter-toggle').click();
        const close = () => dialog.getByRole('button', { name: 'Close' }).click();
        const gone = async (): Promise<void> => { // its row goes after the switch: the list is read again in between
            await pressed(false);
            await dialog.locator('.adapter').waitFor({ state: 'detached' });
        };
        let versions = 1;
        const again = async (): Promise<string> => {
            versions++;
            await page.getByRole('button', { name: 'Another answer' }).click();
            await page.waitForFunction((count) => document.querySelector('.answer .branches')?.textContent === `${count}/${count}` &&
                document.querySelector('.answer .stats') && document.querySelector('.send:not(.stop)'), versions);
            return lastText(page);
        };
        const choose = async (button: string, given: Parameters<import('playwright-core').FileChooser['setFiles']>[0]): Promise<void> => {
            const [chooser] = await Promise.all([page.waitForEvent('filechooser'), dialog.getByRole('button', { name: button }).click()]);
            await chooser.setFiles(given);
        };
        await shortAnswers(page, { sampling: { temperature: 0 } });
        await page.goto(`${site.origin}/#/`);
        await ask(page, 'Hello');
        const plain = await lastText(page);

        // Its two files, dropped onto the conversation.
        const data = await page.evaluateHandle((given) => {
            const dropped = new DataTransfer();
            for (const [name, text] of given) dropped.items.add(new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], name));
            return dropped;
        }, files('adapter_model.safetensors', 'adapter_config.json').map(({ name, buffer }) => [name, buffer.toString('base64')] as const));
        await page.dispatchEvent('.chat', 'drop', { dataTransfer: data });
        await pressed(true);
        const adapted = await again();
        assert.notEqual(adapted, plain);
        assert.match(await page.locator('.answer .stats').innerText(), /adapter$/);
        await page.reload();
        await ready(page);
        await pressed(true);
        assert.equal(await again(), adapted, 'the conversation remembers it');

        // At strength 0 it changes nothing.
        await open();
        assert.match(await dialog.innerText(), /Rank 4 · 36 matrices/);
        assert.deepEqual(await seriousFindings(page), []);
        await dialog.getByRole('spinbutton').fill('0');
        await dialog.getByRole('spinbutton').press('Enter');
        await close();
        assert.equal(await again(), plain);

        // Out in both forms, and in again.
        await open();
        await dialog.getByRole('button', { name: /^Export or delete/ }).click();
        const downloads: import('playwright-core').Download[] = [];
        const take = (download: import('playwright-core').Download): void => void downloads.push(download);
        page.on('download', take);
        await dialog.getByRole('button', { name: /as GGUF$/ }).click();
        await dialog.getByRole('button', { name: /as PEFT$/ }).click();
        while (downloads.length < 3) await page.waitForTimeout(20);
        page.off('download', take);
        const exported = await Promise.all(downloads.map(async (download) =>
            ({ name: download.suggestedFilename(), mimeType: '', buffer: readFileSync(await download.path()) })));
        assert.deepEqual(exported.map(({ name }) => name).sort(), ['adapter.gguf', 'adapter_config.json', 'adapter_model.safetensors']);
        await dialog.getByRole('button', { name: /^Delete/ }).click();
        await gone();
        await choose('Add files', exported.filter(({ name }) => name.endsWith('.gguf')));
        await pressed(true);
        await close();
        assert.equal(await again(), adapted);
        await open();
        await dialog.getByRole('button', { name: /^Export or delete/ }).click();
        await dialog.getByRole('button', { name: /^Delete/ }).click();
        await gone();
        await choose('Add files', exported.filter(({ name }) => !name.endsWith('.gguf')));
        await pressed(true);
        await close();
        assert.equal(await again(), adapted);
        await open();
        await dialog.getByRole('spinbutton').fill('0.5');
        await dialog.getByRole('spinbutton').press('Enter');
        await close();

        // A folder that is dropped gives the adapter its name. Its strength stays.
        await page.evaluate(async (given) => {
            const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('mine', { create: true });
            for (const [name, text] of given) {
                const stream = await (await folder.getFileHandle(name, { create: true })).createWritable();
                await stream.write(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
                await stream.close();
            }
            const item = { kind: 'file', webkitGetAsEntry: () => ({ isDirectory: true }), getAsFileSystemHandle: async () => folder };
            const event = new DragEvent('drop', { bubbles: true, cancelable: true });
            Object.defineProperty(event, 'dataTransfer', { value: { types: ['Files'], items: [item], files: [] } });
            document.querySelector('.chat')!.dispatchEvent(event);
        }, files('adapter_model.safetensors', 'adapter_config.json').map(({ name, buffer }) => [name, buffer.toString('base64')] as const));
        await page.locator('.adapter-toggle').filter({ hasText: 'mine' }).waitFor();

        // What cannot be used.
        await open();
        assert.equal(await dialog.getByRole('spinbutton').inputValue(), '0.5');
        await choose('Add files', files('adapter_config.json'));
        await dialog.getByRole('alert').filter({ hasText: 'adapter_model.safetensors is missing beside adapter_config.json' }).waitFor();
        await choose('Add folder', 'tests/fixtures/tiny-moe-lora');
        const other = dialog.locator('.adapter').filter({ hasText: 'tiny-moe-lora' });
        await other.getByText(/Does not fit Tiny Dense\./).waitFor();
        assert.equal(await other.getByRole('checkbox').isDisabled(), true);
        await other.getByRole('button', { name: /^Export or delete/ }).click();
        await other.getByRole('button', { name: /^Delete/ }).click();
        await other.waitFor({ state: 'detached' });

        // A conversation whose adapter is gone does not answer without it.
        await page.evaluate(async () => {
            const root = await navigator.storage.getDirectory();
            const kept = await (await (await root.getDirectoryHandle('gemmule')).getDirectoryHandle('v1')).getDirectoryHandle('adapters');
            for await (const name of (kept as unknown as { keys(): AsyncIterable<string> }).keys()) await kept.removeEntry(name, { recursive: true });
        });
        await close();
        await page.fill(composer, 'And now?');
        await page.press(composer, 'Enter');
        await page.locator('.dock-note').filter({ hasText: 'The adapter mine is not in this browser.' }).waitFor();
        assert.equal(await page.inputValue(composer), 'And now?');
        await open();
        await dialog.getByRole('button', { name: 'Remove mine' }).click();
        await close();
        await pressed(false);
        await page.fill(composer, '');
    });

    test('search, rename, export, delete', async () => {
        await page.fill('#search', 'number ship');
        await page.waitForFunction(() => document.querySelectorAll('.row').length === 1);
        await page.hover('.row');
        const menu = async (item: string): Promise<void> => {
            await page.locator('.row .row-menu button').first().click();
            await page.getByRole('menuitem', { name: item }).click();
        };
        await menu('Rename');
        await page.getByRole('textbox', { name: 'Title' }).fill('The ship <b>and</b> the sea');
        await page.getByRole('button', { name: 'Rename' }).click();
        await page.waitForFunction(() => document.querySelector('.row-title')?.textContent === 'The ship <b>and</b> the sea');
        const [download] = await Promise.all([page.waitForEvent('download'), menu('Export')]);
        const exported = JSON.parse(readFileSync(await download.path(), 'utf8')) as { format: string; conversations: { title: string }[] };
        assert.equal(exported.format, 'gemmule-conversations');
        assert.equal(exported.conversations[0]?.title, 'The ship <b>and</b> the sea');
        const [kept] = await snapshots(page, remembered);
        const exists = (): Promise<boolean> => page.evaluate(async (name) => {
            const root = await navigator.storage.getDirectory();
            const folder = await (await root.getDirectoryHandle('gemmule-app')).getDirectoryHandle('snapshots');
            return folder.getFileHandle(name).then(() => true, () => false);
        }, kept!);
        assert.equal(await exists(), true);
        await menu('Delete');
        await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
        await page.waitForFunction(() => document.querySelectorAll('.row').length === 0);
        await page.fill('#search', '');
        while ((await snapshots(page, remembered)).length > 0) await page.waitForTimeout(50);
        assert.equal(await exists(), false, 'its snapshot goes with it');
    });

    test('the XSS corpus in questions, answers, thoughts, tools and titles is only text', async () => {
        for (const title of [XSS[0]!, XSS[1]!, '"><img src=https://evil.example/t onerror=window.hacked=1>']) {
            await importFile(page, site, conversationFile(XSS, title));
            await page.locator('.row-title').filter({ hasText: title }).first().click();
            await page.waitForFunction((count) => document.querySelectorAll('.answer').length === count, XSS.length);
        }
        await page.evaluate(() => document.querySelectorAll('details').forEach((fold) => { fold.open = true; }));
        await page.waitForTimeout(500);
        const found = await page.evaluate((dangerous) => ({
            hacked: (window as unknown as { hacked?: unknown }).hacked,
            scripts: document.querySelectorAll(dangerous).length,
            handlers: [...document.querySelectorAll('.messages *')].filter((element) => [...element.attributes].some(({ name, value }) =>
                name.startsWith('on') || name === 'srcdoc' || (name === 'style' && (!element.closest('math') || /url|:\/\//.test(value))))).length,
            links: [...document.querySelectorAll<HTMLAnchorElement>('.messages a')]
                .filter((link) => !/^(?:https?|mailto):/.test(link.protocol) || link.rel !== 'noopener noreferrer' || link.target !== '_blank')
                .filter((link) => link.origin !== location.origin).length,
        }), ['script', 'iframe', 'img', 'style', 'link', 'form', 'object', 'video', 'base', 'meta'].map((name) => `.messages ${name}`).join());
        assert.deepEqual(found, { hacked: undefined, scripts: 0, handlers: 0, links: 0 });
    });

    test('code gets colours and formulas become MathML, both loaded when met', async () => {
        await importFile(page, site, conversationFile(['```python\ndef f(): return 1\n```\n\n$$\\frac{a}{b}$$\n\n| a | b |\n|---|---|\n| 1 | 2 |'], 'Rich'));
        await page.getByRole('link', { name: 'Rich' }).first().click();
        await page.waitForSelector('.answer-body > .prose .t-keyword');
        await page.waitForSelector('.answer-body > .prose math mfrac');
        assert.equal(await page.locator('.answer > .answer-body > .prose table td').count(), 2);
    });

    test('models: what fits, an address whose connection breaks and goes on, a broken file, delete', async () => {
        await shortAnswers(page);
        const whole = readFileSync(MODEL);
        routes['/files/other.gguf'] = breaksOff(whole, 100_000);
        routes['/files/broken.gguf'] = (_, response) => void response.end(Buffer.concat([whole.subarray(0, 64), Buffer.alloc(2000, 0xff)]));
        await page.goto(`${site.origin}/#/models`);
        await page.getByRole('button', { name: 'Does it fit?' }).first().click();
        await page.waitForSelector('.fit-yes');
        const loadAddress = async (address: string): Promise<void> => {
            await page.getByRole('textbox', { name: 'URL of a GGUF file' }).fill(address);
            await page.getByRole('button', { name: 'Download and load' }).click();
        };
        await loadAddress(`${site.origin}/files/other.gguf`);
        await page.waitForSelector('.stored >> text=other');
        await ready(page);
        assert.ok(site.requests.filter((path) => path === '/files/other.gguf').length > 1, 'it was asked for the rest');
        await loadAddress(`${site.origin}/files/broken.gguf`);
        await page.waitForSelector('.current-model .box-error');
        const beside = await page.locator('form.choice .choice-status').innerText(); // beside the button that was pressed, too
        assert.ok((await page.innerText('.current-model .box-error')).includes(beside) && beside.length > 10, beside);
        await page.getByRole('button', { name: 'Delete other' }).click();
        await page.waitForSelector('.stored >> text=other', { state: 'detached' });
        await page.locator('.stored li', { hasText: 'box' }).getByRole('button', { name: 'Load' }).click();
        await ready(page);
    });

    test('models: a URL that this page may not load is refused while it is typed', async () => {
        await page.goto(`${site.origin}/#/models`);
        const field = page.getByRole('textbox', { name: 'URL of a GGUF file' }), button = page.getByRole('button', { name: 'Download and load' });
        await field.fill('http://models.example/m.gguf');
        assert.match(await page.innerText('form.choice'), /This page can load https:\/\/ URLs only, not http:\/\//);
        assert.equal(await button.isDisabled(), true);
        assert.equal(await field.getAttribute('aria-invalid'), 'true');
        await page.getByRole('button', { name: 'Use https://models.example/m.gguf' }).click();
        assert.equal(await field.inputValue(), 'https://models.example/m.gguf');
        assert.equal(await button.isDisabled(), false);
        await field.fill('');
    });

    test('import says how it went beside the button, and only there; pages open at their top', async () => {
        await importFile(page, site, Buffer.from('{"format": "other"}'));
        await page.waitForSelector('.card .fit-no >> text=conversations.json could not be imported.');
        assert.equal(await page.locator('.notice').count(), 0);
        await page.evaluate(() => { document.querySelector('main')!.scrollTop = 9999; });
        await page.goto(`${site.origin}/#/models`);
        await page.waitForSelector('.current-model');
        const main = await page.evaluate(() => {
            const { scrollTop, scrollHeight, clientHeight } = document.querySelector('main')!;
            return { scrollTop, long: scrollHeight > clientHeight + 100 };
        });
        assert.deepEqual(main, { scrollTop: 0, long: true });
        assert.equal(await page.getByText('could not be imported').count(), 0);
        await importFile(page, site, conversationFile(['One'], 'One'));
        await page.waitForSelector('.card .fit-yes >> text=1 conversation imported.');
    });

    test('models: a folder of Ollama, opened again at the next visit', async () => {
        await page.goto(`${site.origin}/#/models`);
        await fakeOllama(page);
        await page.evaluate(async () => {
            const root = await (globalThis as unknown as { showDirectoryPicker: () => Promise<FileSystemDirectoryHandle> }).showDirectoryPicker();
            await (await root.getDirectoryHandle('manifests')).getDirectoryHandle('locked', { create: true });
            const handles = FileSystemDirectoryHandle.prototype as unknown as { entries: (this: FileSystemHandle) => unknown };
            const { entries } = handles;
            handles.entries = function read() {
                if (this.name === 'locked') throw new DOMException('permission denied', 'NotReadableError');
                return entries.call(this);
            };
        });
        await page.getByRole('button', { name: 'Choose folder' }).click();
        const card = page.locator('.choice', { hasText: 'gemma4:tiny' });
        await card.waitFor();
        assert.equal(await page.innerText('.folder .fit-no'), 'Skipped manifests/locked: permission denied.');
        await card.getByRole('button', { name: 'Load' }).click();
        await card.getByRole('button', { name: 'Loaded' }).waitFor();
        await page.reload();
        await ready(page);
        await page.locator('.choice', { hasText: 'gemma4:tiny' }).getByRole('button', { name: 'Loaded' }).waitFor();
    });

    test('self-check, licence notices and benchmark', async () => {
        await page.goto(`${site.origin}/#/about`);
        await page.getByRole('button', { name: 'Check this device' }).click();
        await page.waitForSelector('.fit-yes');
        const notices = await page.getByRole('link', { name: 'licence notices' }).evaluate(async (link) => (await fetch((link as HTMLAnchorElement).href)).text());
        assert.match(notices, /^highlight\.js \d/m, 'the licences of the libraries in the app');
        await page.goto(`${site.origin}/#/benchmark`);
        await page.getByRole('button', { name: 'Run benchmark' }).click();
        await page.waitForSelector('.chart .chart-bar');
        assert.equal(await page.locator('.chart').count(), 2);
        assert.equal(await page.locator('table.plain tbody tr').count(), 1);
    });

    test('axe finds nothing serious, on every page in both themes', async () => {
        await page.goto(`${site.origin}/#/`);
        const answer = [
            '# Title', 'Text with `code`, [a link](https://a.example) and a list:', '- a\n- b', '```js\nlet a = "b"; // c\n```', '$$x^2$$',
            '| a | b |\n|---|--:|\n| 1 | 2 |', '> quote',
        ];
        await importFile(page, site, conversationFile([answer.join('\n\n')], 'For axe'));
        await page.getByRole('link', { name: 'For axe' }).first().click();
        const chat = new URL(page.url()).hash;
        for (const colorScheme of ['light', 'dark'] as const) {
            await page.emulateMedia({ colorScheme });
            for (const hash of [chat, ...PAGES.map((name) => `#/${name}`)]) {
                await page.goto(`${site.origin}/${hash}`);
                await page.waitForTimeout(300);
                assert.deepEqual(await seriousFindings(page), [], `${hash} ${colorScheme}`);
            }
        }
        await page.emulateMedia({ colorScheme: 'light' });
        const background = (): Promise<string> => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
        await page.getByRole('button', { name: 'Dark', exact: true }).click();
        assert.equal(await background(), 'rgb(19, 21, 20)');
        await page.getByRole('button', { name: 'Match system' }).click();
        assert.equal(await background(), 'rgb(251, 251, 250)');
        await page.goto(`${site.origin}/#/about`);
        await page.locator('h1').click();
        await page.keyboard.press('?');
        await page.waitForSelector('dialog[open] .shortcuts');
        assert.deepEqual(await seriousFindings(page), [], 'shortcuts');
        await page.keyboard.press('Escape');
    });

    test('"Erase everything" leaves nothing', async () => {
        await page.goto(`${site.origin}/#/settings`);
        await page.evaluate(() => navigator.storage.getDirectory().then((root) => root.getDirectoryHandle('mark', { create: true })));
        await page.getByRole('button', { name: 'Erase everything' }).first().click();
        await page.getByRole('dialog').getByRole('button', { name: 'Erase everything' }).click();
        await page.waitForSelector('.box-remark'); // as on the first visit
        await ready(page);
        assert.equal(await page.locator('.row').count(), 0);
        const left = await page.evaluate(async () => {
            const files: string[] = [];
            for await (const name of ((await navigator.storage.getDirectory()) as unknown as { keys(): AsyncIterable<string> }).keys()) files.push(name);
            return { files: files.filter((name) => name !== 'gemmule'), settings: Object.keys(localStorage).length };
        });
        assert.deepEqual(left, { files: [], settings: 1 }); // the box is fetched again, and remembered as loaded
    });

    test('without a network it starts again and answers', async () => {
        await shortAnswers(page);
        await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
        await site.close();
        await page.reload();
        await ready(page);
        await page.goto(`${site.origin}/#/`);
        await ask(page, 'Still there?');
        assert.equal(await page.locator('.answer').count(), 1);
        assert.equal(await page.locator('.box-error').count(), 0);
    });
});

describe('the app without space', { timeout: 3_000_000 }, () => {
    test('it answers without keeping the model', async () => {
        const site = await startSite(), visit = await Visit.begin();
        try {
            const page = await visit.page();
            const client = await visit.context.newCDPSession(page);
            await client.send('Storage.overrideQuotaForOrigin', { origin: site.origin, quotaSize: 200_000 });
            await page.goto(site.origin);
            await ready(page);
            await page.evaluate(() => localStorage.setItem('gemmule.settings', JSON.stringify({ maxTokens: 12, sampling: { seed: 7 } })));
            await page.reload();
            await ready(page);
            await ask(page, 'Is there room?');
            assert.equal(await page.locator('.answer').count(), 1);
            assert.equal(await page.locator('.answer .box-error').count(), 0);
            await page.goto(`${site.origin}/#/models`);
            await page.waitForSelector('.storage');
            assert.equal(await page.locator('.stored li', { hasText: 'box' }).getByRole('button', { name: 'Load' }).count(), 0);
            assert.deepEqual(visit.complaints, []);
        } finally {
            await visit.end();
            await site.close();
        }
    });
});

describe('the app without a database', { timeout: 3_000_000 }, () => {
    test('what cannot be deleted says so beside its button', async () => {
        const site = await startSite(), visit = await Visit.begin();
        try {
            const page = await visit.page();
            await page.addInitScript(() => {
                const blocked = (): never => { throw new DOMException('the browser blocks storage', 'SecurityError'); };
                Object.defineProperty(globalThis, 'indexedDB', { value: { open: blocked, databases: async () => blocked() } });
            });
            await page.goto(`${site.origin}/#/benchmark`);
            await ready(page);
            await page.getByRole('button', { name: 'Run benchmark' }).click();
            await page.getByRole('button', { name: /^Delete the result/ }).click();
            await page.getByRole('alert').getByText('The result could not be deleted. The browser blocks storage.').waitFor();
            await page.goto(`${site.origin}/#/settings`);
            await page.getByRole('switch', { name: 'Save processed context' }).click();
            await page.getByRole('alert').getByText('The saved context could not be deleted. The browser blocks storage.').waitFor();
            await page.getByRole('button', { name: 'Erase everything' }).click();
            await page.getByRole('dialog').getByRole('button', { name: 'Erase everything' }).click();
            await page.getByRole('dialog').getByRole('alert').getByText('Not everything could be erased. The browser blocks storage.').waitFor();
            assert.equal(await page.evaluate(() => localStorage.length), 0, 'the rest is erased all the same');
            assert.deepEqual(visit.complaints, []);
        } finally {
            await visit.end();
            await site.close();
        }
    });
});

describe('the app on a phone', { timeout: 3_000_000 }, () => {
    test('no page scrolls sideways; the list is a drawer', async () => {
        const site = await startSite(), visit = await Visit.begin({ phone: true });
        try {
            const page = await visit.page();
            await page.goto(site.origin);
            await ready(page);
            await shortAnswers(page);
            await ask(page, `A${'very'.repeat(60)}long word, and https://example.org/${'path'.repeat(40)}`);
            const chat = new URL(page.url()).hash;
            await page.goto(`${site.origin}/#/benchmark`);
            await page.getByRole('button', { name: 'Run benchmark' }).click();
            await page.waitForSelector('table.plain'); // wider than the screen: scrolls by itself
            const { width } = page.viewportSize()!;
            for (const hash of [chat, ...PAGES.map((name) => `#/${name}`)]) {
                await page.goto(`${site.origin}/${hash}`);
                await page.waitForTimeout(300);
                // Beside the screen, not the document: a phone makes the document as wide as what is in it.
                const over = await page.evaluate((screen) => [document.documentElement, document.querySelector('main')!, ...document.querySelectorAll('.messages')]
                    .map((element) => Math.max(element.scrollWidth - element.clientWidth, element.clientWidth - screen)), width);
                assert.ok(over.every((each) => each <= 0), `${hash} is ${over} wider than the screen`);
                assert.deepEqual(await seriousFindings(page), [], hash);
            }
            assert.equal(await page.locator('.sidebar').isVisible(), false);
            await page.getByRole('button', { name: 'Open conversation list' }).click();
            await page.locator('.row a').first().click();
            await page.waitForFunction(() => !document.querySelector('.app')!.classList.contains('drawer-open'));
            assert.deepEqual(visit.foreign, []);
            assert.deepEqual(visit.complaints, []);
        } finally {
            await visit.end();
            await site.close();
        }
    });
});
