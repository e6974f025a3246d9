// The canvas of a diffusion model in the app, in Chromium on the CPU: it settles, the slider goes back through its steps, it can be stopped,
// and a part of an answer can be rewritten. The tiny model writes noise. Needs build/web.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, afterEach, before, describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { seriousFindings } from '../../app/tests/axe.ts';
import { gate, makeGate } from '../../app/tests/gate.ts';
import { startSite, Visit } from '../../app/tests/site.ts';
import type { TestServer } from './server.ts';

const MODEL = 'tests/fixtures/tiny-diffusion.gguf';
const LENGTH = 32, STEPS = 48; // of its blocks
const STORY = 'The **old** fox went to the castle. It was cold [1], and the fox slept.';

const ready = (page: Page): Promise<unknown> => page.waitForSelector('.chip-ready');
const idle = (page: Page): Promise<unknown> => page.waitForFunction(() => document.querySelector('.message-tools') && !document.querySelector('.send.stop'));
const canvasSays = (page: Page, words: string): Promise<unknown> =>
    page.waitForFunction((begin) => document.querySelector('.canvas-words')?.textContent?.startsWith(begin), words);
const tokens = (page: Page): Promise<string[]> => page.locator('.canvas .token').allTextContents();
const prose = async (page: Page): Promise<string> => (await page.locator('.answer-body > .prose').allTextContents()).join('\n');
const slider = (page: Page) => page.getByRole('slider', { name: 'Steps of the canvas' });

async function send(page: Page, text: string): Promise<void> {
    await page.fill('#composer', text);
    await page.press('#composer', 'Enter');
}

function setSeed(page: Page, seed: number): Promise<void> {
    return page.evaluate((given) => localStorage.setItem('gemmule.settings', JSON.stringify({ maxTokens: 64, sampling: { seed: given } })), seed);
}

/** Selects the `which`th occurrence of a word in the answer, as a mouse would. */
async function select(page: Page, word: string, which: number): Promise<void> {
    await page.evaluate(([wanted, skip]) => {
        const walker = document.createTreeWalker(document.querySelector('.answer-body > .prose')!, NodeFilter.SHOW_TEXT);
        for (let left = skip; walker.nextNode();) {
            const node = walker.currentNode as Text;
            for (let at = node.data.indexOf(wanted); at >= 0; at = node.data.indexOf(wanted, at + 1)) {
                if (left-- === 0) return getSelection()!.setBaseAndExtent(node, at, node, at + wanted.length);
            }
        }
        throw new Error(`${wanted} is not in the answer`);
    }, [word, which] as const);
}

function story(): Buffer {
    const nodes = {
        q: { id: 'q', parent: null, created: 1, role: 'user', content: 'Tell me a story' },
        a: { id: 'a', parent: 'q', created: 2, role: 'assistant', finish: 'stop', steps: [{ thinking: '', content: STORY, calls: [] }] },
    };
    const conversation = { id: 'x', title: 'A story', named: true, created: 1, updated: Date.now(), system: null, nodes, chosen: { '': 'q', q: 'a' } };
    return Buffer.from(JSON.stringify({ format: 'gemmule-conversations', version: 1, exported: '', conversations: [conversation] }));
}

interface Exported {
    conversations: { title: string; nodes: Record<string, { role: string; created: number; steps?: { content: string }[] } & Record<string, unknown>> }[];
}

describe('the canvas', { timeout: 1_000_000 }, () => {
    let site: TestServer, visit: Visit, page: Page;
    before(async () => {
        site = await startSite({}, MODEL);
        visit = await Visit.begin();
        await visit.context.addInitScript(makeGate);
        page = await visit.page();
        await page.goto(site.origin);
        await ready(page);
        await setSeed(page, 1);
        await page.reload();
        await ready(page);
    });
    after(async () => {
        await visit?.end();
        await site?.close();
    });
    afterEach(() => assert.deepEqual(visit.complaints, [], 'complaints of the page'));

    async function importAndOpen(title: string, file: Buffer): Promise<void> {
        const before = await page.locator('.row').count();
        await page.goto(`${site.origin}/#/settings`);
        const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: 'Import' }).click()]);
        await chooser.setFiles({ name: 'c.json', mimeType: 'application/json', buffer: file });
        await page.waitForFunction((count) => document.querySelectorAll('.row').length > count, before);
        await page.locator('.row a', { hasText: title }).click();
        await page.waitForSelector('.answer-body > .prose');
    }

    async function exported(): Promise<Exported> {
        await page.goto(`${site.origin}/#/settings`);
        const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export all conversations' }).click()]);
        return JSON.parse(readFileSync(await download.path(), 'utf8')) as Exported;
    }

    test('it settles block by block, here and in another tab, and the slider goes back', async () => {
        await gate(page, 3);
        await send(page, 'Hello');
        await canvasSays(page, `Step 3 of at most ${STEPS} · mean entropy `);
        const third = await tokens(page);
        assert.equal(third.length, LENGTH);
        const firm = await page.locator('.canvas .token.firm').count();
        assert.match(await page.innerText('.canvas-words'), new RegExp(`${firm} of ${LENGTH} tokens firm$`));
        assert.ok(firm < LENGTH && (await page.locator('.canvas .token[class*=faint]').count()) === LENGTH - firm);
        assert.equal(await page.locator('.answer [aria-live]:not([aria-live=off])').count(), 0);
        assert.equal(await page.getAttribute('.canvas', 'aria-hidden'), 'true');
        const duration = (): Promise<string> => page.evaluate(() => getComputedStyle(document.querySelector('.canvas .token')!).transitionDuration);
        assert.notEqual(await duration(), '0s');
        await page.emulateMedia({ reducedMotion: 'reduce' });
        assert.equal(await duration(), '0s');
        await page.emulateMedia({ reducedMotion: 'no-preference' });

        const other = await visit.context.newPage();
        await other.goto(page.url());
        await gate(page, STEPS - 3 + 1 + 2);
        await canvasSays(page, `Block 2, step 2 of at most ${STEPS}`);
        const settled = await prose(page), second = await tokens(page);
        assert.ok(settled.length > 0);
        await canvasSays(other, 'Block 2, step 2');
        assert.deepEqual([await prose(other), await tokens(other)], [settled, second]);
        await other.close();
        await gate(page, 5);
        await canvasSays(page, 'Block 2, step 7');
        assert.equal(await prose(page), settled, 'a block that is written stays');
        assert.notDeepEqual(await tokens(page), second);
        await gate(page, 1e9);
        await idle(page);
        const whole = await prose(page);
        assert.ok(whole.startsWith(settled.trimEnd()) && whole.length > settled.length);
        assert.equal(await page.locator('.canvas').count(), 0);

        assert.equal(await slider(page).getAttribute('max'), String(2 * STEPS));
        await slider(page).fill('2');
        assert.match(await page.innerText('.canvas-words'), /^Step 3 of at most/);
        assert.deepEqual(await tokens(page), third);
        await slider(page).fill(String(STEPS + 1));
        assert.deepEqual([await prose(page), await tokens(page)], [settled, second]);
        await slider(page).press('Home');
        assert.match((await slider(page).getAttribute('aria-valuetext'))!, /^Step 1 of at most 48 · mean entropy \d/);
        await slider(page).press('End');
        assert.equal(await prose(page), whole);
        assert.deepEqual(await seriousFindings(page), []);
        await slider(page).press('ArrowLeft');
        await page.getByRole('button', { name: 'Play the steps' }).click();
        await page.waitForFunction((wanted) => document.querySelector('.answer-body > .prose')?.textContent === wanted, whole);
    });

    test('it can be stopped in the middle of a block', async () => {
        await page.goto(`${site.origin}/#/`);
        await page.waitForSelector('.welcome');
        await page.emulateMedia({ reducedMotion: 'reduce' }); // the last step is shown, too, if a little later
        await gate(page, 5);
        await send(page, 'Stop here');
        await canvasSays(page, 'Step 5 of');
        await page.emulateMedia({ reducedMotion: 'no-preference' });
        await page.keyboard.press('Escape');
        await gate(page, 1e9);
        await idle(page);
        assert.match(await page.innerText('.answer-body'), /^Stopped\./);
        assert.equal(await page.locator('.canvas').count(), 0);
        assert.ok(Number(await slider(page).getAttribute('max')) >= 5);
        await slider(page).fill('4');
        assert.equal((await tokens(page)).length, LENGTH);
        await send(page, 'And go on');
        await page.waitForFunction(() => document.querySelectorAll('.answer .message-tools').length === 2 && !document.querySelector('.send.stop'));
        assert.notEqual(await page.locator('.answer').last().locator('.prose').textContent(), '');
    });

    test('a selection is rewritten, and the rest stays', async () => {
        await importAndOpen('A story', story());
        assert.equal(await slider(page).count(), 0, 'its steps are not known');
        await select(page, 'fox', 1);
        await page.locator('.rewrite-pill').click();
        assert.equal(await page.innerText('.rewrite-part mark'), 'fox');
        const at = STORY.lastIndexOf('fox');
        assert.deepEqual(await page.locator('.rewrite-box textarea').evaluate((box: HTMLTextAreaElement) => [box.selectionStart, box.selectionEnd]), [at, at + 3]);
        const length = page.getByRole('spinbutton', { name: 'New length' });
        await page.waitForFunction(() => document.querySelector<HTMLInputElement>('.rewrite-length input')?.value === '3'); // f, o, x
        await length.fill('0');
        assert.ok(await page.getByRole('button', { name: 'Rewrite', exact: true }).isDisabled());
        await length.fill('4');
        assert.deepEqual(await seriousFindings(page), []);

        await gate(page, 3); // the first block, which stays as it is, and two steps
        await page.getByRole('button', { name: 'Rewrite', exact: true }).click();
        await canvasSays(page, 'Block 2, step 2 of');
        assert.ok((await page.locator('.canvas .token.pinned').count()) > LENGTH / 4);
        assert.equal(await page.locator('.canvas .token.gap').count(), (await tokens(page)).length - (await page.locator('.canvas .token.pinned').count()));
        await page.getByRole('button', { name: 'Stop', exact: true }).click();
        await gate(page, 1e9);
        await idle(page);
        assert.equal(await page.locator('.branches').count(), 0, 'what was stopped leaves the answer as it was');
        assert.match(await prose(page), /^The old fox went to the castle/);

        await page.getByRole('button', { name: 'Rewrite a part' }).click();
        await page.locator('.rewrite-box textarea').evaluate((box: HTMLTextAreaElement, place) => box.setSelectionRange(place, place + 2), at);
        await page.locator('.rewrite-box textarea').press('Shift+ArrowRight');
        await page.waitForFunction(() => document.querySelector('.rewrite-part mark')?.textContent === 'fox');
        await page.waitForFunction(() => document.querySelector<HTMLInputElement>('.rewrite-length input')?.value === '3');
        await length.fill('4');
        await page.getByRole('button', { name: 'Rewrite', exact: true }).click();
        await page.waitForFunction(() => document.querySelector('.branches')?.textContent === '2/2' && !document.querySelector('.send.stop'));
        assert.ok((await slider(page).count()) === 1);
        await slider(page).fill('0');
        const shown = (await page.locator('.canvas .token.pinned').allTextContents()).join('');
        assert.ok((STORY.slice(0, at) + STORY.slice(at + 3)).endsWith(shown), shown);
        let gaps = 0;
        for (let last = Number(await slider(page).getAttribute('max')) - 1, seen = -1; last >= 0; last--) { // one step of each block
            await slider(page).fill(String(last));
            const block = Number(/^Block (\d+)/.exec(await page.innerText('.canvas-words'))?.[1] ?? 1);
            if (block !== seen) gaps += await page.locator('.canvas .token.gap').count();
            seen = block;
        }
        assert.equal(gaps, 4, 'what would follow the answer is not shown');
        const file = await exported();
        const conversation = file.conversations.find(({ title }) => title === 'A story')!;
        const answers = Object.values(conversation.nodes).filter(({ role }) => role === 'assistant').sort((a, b) => a.created - b.created);
        const [first, second] = answers.map(({ steps }) => steps![0]!.content);
        assert.equal(first, STORY);
        assert.ok(second!.startsWith(STORY.slice(0, at)) && second!.endsWith(STORY.slice(at + 3)) && second !== STORY, second);
        assert.deepEqual(Object.keys(answers[1]!).filter((key) => /canvas|frame/i.test(key)), []);
        assert.equal(answers[1]!['finish'], 'stop');

        await importAndOpen('A copy', Buffer.from(JSON.stringify({ ...file, conversations: [{ ...conversation, title: 'A copy' }] })));
        assert.equal(await page.innerText('.branches'), '2/2');
        assert.equal(await slider(page).count(), 0);
    });

    test('the benchmark counts whole blocks', async () => {
        await page.goto(`${site.origin}/#/benchmark`);
        await page.getByRole('button', { name: 'Run benchmark' }).click();
        await page.waitForSelector('.chart-bar, .box-error');
        assert.equal(await page.locator('.box-error').count(), 0);
    });
});
