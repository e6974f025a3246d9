// The first visit: `gemmule serve` as `make run` starts it, a Chromium with an empty profile, no network, and the model in the box, which
// answers. Needs build/gemmule, build/web and models/box.gguf.

import assert from 'node:assert/strict';
import { spawn, type ChildProcess } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, describe, test } from 'node:test';
import type { Page } from 'playwright-core';
import { BOX, startSite, Visit } from '../../app/tests/site.ts';

const PROGRAM = resolve(process.env['GEMMULE'] ?? 'build/gemmule');

/** The server, as it is found beside the program: no option names the app or the model. */
async function serve(home: string): Promise<{ child: ChildProcess; origin: string }> {
    const { GEMMULE_MODEL: _, ...env } = process.env;
    const child = spawn(PROGRAM, ['serve', '--port', '0', '--backend', 'cpu'], { env: { ...env, HOME: home, OLLAMA_MODELS: join(home, 'no-store') }, stdio: ['ignore', 'pipe', 'inherit'] });
    const origin = await new Promise<string>((found, fail) => {
        child.stdout!.once('data', (line: Buffer) => found(line.toString().trim().replace(/\/$/, '')));
        child.once('exit', (code) => fail(new Error(`gemmule serve ended with ${code}`)));
    });
    return { child, origin };
}

async function stop({ child }: { child: ChildProcess }): Promise<void> {
    const ended = new Promise((done) => child.once('exit', done));
    if (child.exitCode === null && child.signalCode === null && child.kill()) await ended;
}

/** Notes what the page says of its loading, which may be over before a test looks. */
function noteLoading(): void {
    const seen: string[] = ((window as unknown as { loading: string[] }).loading = []);
    new MutationObserver(() => {
        const line = document.querySelector('.model-status.loading progress') && document.querySelector('.model-status.loading')?.textContent;
        if (line && seen.at(-1) !== line) seen.push(line);
    }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
}

function says(answer: string, ...words: string[]): void {
    for (const word of words) assert.ok(answer.includes(word), `'${answer}' should have '${word}'`);
}

async function ask(page: Page, question: string): Promise<string> {
    const before = await page.locator('.answer .stats').count();
    await page.fill('#composer', question);
    await page.press('#composer', 'Enter');
    return answerBehind(page, before);
}

async function askByIdea(page: Page, idea: string): Promise<string> {
    await page.getByRole('button', { name: idea }).click();
    await page.press('#composer', 'Enter');
    return answerBehind(page, 0);
}

async function answerBehind(page: Page, before: number): Promise<string> {
    await page.waitForFunction((count) => document.querySelectorAll('.answer .stats').length > count && !document.querySelector('.send.stop'), before);
    assert.equal(await page.locator('.box-error').count(), 0);
    return (await page.locator('.answer').last().locator('.prose').allInnerTexts()).join('\n');
}

describe('the first visit', { timeout: 3_000_000 }, () => {
    const home = mkdtempSync(join(tmpdir(), 'gemmule-box-'));
    let server: Awaited<ReturnType<typeof serve>>, visit: Visit, page: Page;
    before(async () => {
        server = await serve(home);
        visit = await Visit.begin();
        page = await visit.page();
        await page.addInitScript(noteLoading);
    });
    after(async () => {
        await visit?.end();
        if (server) await stop(server);
        rmSync(home, { recursive: true, force: true });
    });

    test('the box is loaded without asking, says what it is, and answers', async () => {
        await page.goto(server.origin);
        await page.waitForSelector('.chip-ready');
        const loading = await page.evaluate(() => (window as unknown as { loading: string[] }).loading);
        assert.ok(loading.some((line) => line.includes('The model in the box')), `it says how far it is: ${loading.join(' | ')}`);
        assert.match(await page.innerText('.model-status'), /^The model in the box is ready on your CPU/);
        assert.match(await page.innerText('.box-remark'), /small model in the box.*Load a bigger one/s);
        says(await askByIdea(page, 'What is 12 + 30?'), '42');
        assert.deepEqual(visit.foreign, [], 'requests to other hosts');
        assert.deepEqual(visit.complaints, [], 'complaints of the page');
    });

    test('what it offers to be asked, it can do', async () => {
        const parts: Record<string, string[]> = { 'Tell me a story': ['fox', 'castle', 'lantern'], 'Who are you': ['small model in the box'], 'in Spanish': ['casa'] };
        await page.goto(`${server.origin}/#/`);
        const ideas = await page.locator('.ideas button').allInnerTexts();
        assert.equal(ideas.length, 5);
        for (const [idea, words] of Object.entries(parts)) {
            await page.goto(`${server.origin}/#/`);
            await page.waitForSelector('.ideas');
            says(await ask(page, ideas.find((each) => each.includes(idea))!), ...words);
        }
    });

    test('it calls the tools that the app offers', async () => {
        await page.goto(`${server.origin}/#/`);
        await page.getByRole('button', { name: 'Tools', exact: true }).click();
        await ask(page, 'What time is it in Paris?');
        await page.locator('.answer .fold summary').first().click();
        assert.match(await page.locator('.answer .fold').first().innerText(), /get_time.*"city": "Paris".*"time":"\d\d:\d\d".*"timezone":"Europe\/Paris"/s);
        const turns: [string, RegExp][] = [
            ['What time is it?', /^It is \d\d:\d\d\.$/], ['And in Rome?', /^It is \d\d:\d\d in Rome\.$/], ['2.5 + 1.25', /= 3\.75\.$/],
            ['How are you?', /^I am fine/], ['What is 12 + 30?', /= 42\.$/], ['and 7 + 8?', /= 15\.$/],
        ];
        for (const [question, answer] of turns) assert.match(await ask(page, question), answer, question);
        await page.getByRole('button', { name: 'Tools', exact: true }).click();
        assert.deepEqual(visit.complaints, [], 'complaints of the page');
    });

    test('a picture that is dropped is seen, stays in the conversation, and is exported and imported with it', async () => {
        const [question] = readFileSync('tests/box/pictures.jsonl', 'utf8').trim().split('\n').map((line) => JSON.parse(line) as { image: string; check: { exact: string[] } });
        const picture = page.locator('.question .attachment-picture img');
        const seen = (): Promise<unknown> => page.waitForFunction(() => {
            const pictures = document.querySelectorAll<HTMLImageElement>('.question .attachment-picture img');
            return pictures.length === 1 && pictures[0]!.naturalWidth > 0;
        });
        await page.goto(`${server.origin}/#/`);
        const content = readFileSync(join('tests/box', question!.image)).toString('base64');
        const data = await page.evaluateHandle((text) => {
            const given = new DataTransfer();
            given.items.add(new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], 'shapes.jpg', { type: 'image/jpeg' }));
            return given;
        }, content);
        await page.dispatchEvent('.chat', 'drop', { dataTransfer: data });
        assert.match(await page.innerText('.tray-item'), /^shapes\.jpg\s+65 tokens/);
        const answer = await ask(page, 'What is in the picture?');
        assert.ok(question!.check.exact.includes(answer), answer);
        await ask(page, 'Thank you.');
        const stats = page.locator('.answer .stats');
        const [, cached] = /, (\d+) cached/.exec((await stats.nth(1).getAttribute('title'))!)!;
        assert.ok(Number(cached) > 65, `the picture is not computed again: ${cached} tokens cached`);
        await page.reload();
        await seen();
        await page.goto(`${server.origin}/#/settings`);
        const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export all' }).click()]);
        const file = await download.path();
        const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: 'Import' }).click()]);
        await chooser.setFiles({ name: 'c.json', mimeType: 'application/json', buffer: readFileSync(file) });
        await page.getByText(/conversations? imported/).first().waitFor();
        const both = page.locator('.row', { hasText: 'What is in the picture?' });
        assert.equal(await both.count(), 2);
        for (const at of [0, 1]) {
            await page.goto(`${server.origin}/#/settings`);
            await picture.waitFor({ state: 'detached' }); // else the conversation before could be taken for this one
            await both.nth(at).locator('a').click();
            await seen();
        }
        assert.deepEqual(visit.complaints, [], 'complaints of the page');
    });

    test('a video that is dropped is seen by its frames, which stay in the conversation, and are exported and imported with it', async () => {
        const drop = async (name: string): Promise<void> => {
            const content = readFileSync(join('tests/fixtures', name)).toString('base64');
            const data = await page.evaluateHandle(([file, text]) => {
                const given = new DataTransfer();
                given.items.add(new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], file, { type: 'video/webm' }));
                return given;
            }, [name, content] as const);
            await page.dispatchEvent('.chat', 'drop', { dataTransfer: data });
        };
        const seen = (): Promise<unknown> => page.waitForFunction(() => (document.querySelector<HTMLImageElement>('.question .attachment-video img')?.naturalWidth ?? 0) > 0);
        await page.goto(`${server.origin}/#/`);
        await page.evaluate(() => {
            const told: string[] = ((window as unknown as { told: string[] }).told = []);
            const look = (): void => void told.push(document.querySelector('.tray-item:has(progress) .tray-cost')?.textContent ?? '');
            new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
        });
        await drop('colours.webm');
        await page.getByRole('button', { name: 'Remove colours.webm' }).waitFor();
        const [, count, tokens] = /^colours\.webm\s+(\d+) frames · ([\d,]+) tokens/.exec(await page.innerText('.tray-item'))!;
        assert.ok(Number(count) > 4 && Number(count) <= 32 && Number(tokens!.replace(',', '')) > 60 * Number(count), `${count} frames, ${tokens} tokens`);
        const told = await page.evaluate(() => (window as unknown as { told: string[] }).told);
        assert.ok(told.includes(`Frame 2 of ${count}`), `it says how far it is: ${[...new Set(told)].join(' | ')}`);
        await page.getByRole('button', { name: 'Remove colours.webm' }).click();
        await drop('shapes.webm'); // the question waits for its frames
        says(await ask(page, 'What is in the picture?'), 'small green triangle', 'large purple circle');
        await ask(page, 'Thank you.');
        const [, cached] = /, (\d+) cached/.exec((await page.locator('.answer .stats').nth(1).getAttribute('title'))!)!;
        assert.ok(Number(cached) > 65, `the frame is not computed again: ${cached} tokens cached`);
        await page.reload();
        await seen();
        await page.getByRole('button', { name: 'Show the frames of shapes.webm' }).click();
        await page.locator('.attachment-frames li img').waitFor();
        await page.keyboard.press('Escape');
        await page.goto(`${server.origin}/#/settings`);
        const exported = async (): Promise<string> => {
            const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export all' }).click()]);
            return readFileSync(await download.path(), 'utf8');
        };
        const films = (text: string): string[] => (JSON.parse(text, (key, value: { kind?: string; data?: string; frames?: unknown[] }) =>
            (key !== '' && value?.kind === 'video' ? (found.push(`${value.frames!.length} ${value.data}`), value) : value)), found.splice(0));
        const found: string[] = [], text = await exported(), [film] = films(text);
        assert.match(film!, /^1 \/9j\//, 'a frame that is a JPEG');
        const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.getByRole('button', { name: 'Import' }).click()]);
        await chooser.setFiles({ name: 'c.json', mimeType: 'application/json', buffer: Buffer.from(text) });
        await page.waitForFunction(() => [...document.querySelectorAll('.row')].filter((row) => row.textContent!.includes('What is in the picture?')).length >= 6);
        assert.deepEqual(films(await exported()), [film, film]);
        await page.goto(`${server.origin}/#/`);
        const broken = await page.evaluateHandle(() => {
            const given = new DataTransfer();
            given.items.add(new File(['hello'], 'broken.mp4', { type: 'video/mp4' }));
            return given;
        });
        await page.dispatchEvent('.chat', 'drop', { dataTransfer: broken });
        await page.getByText('broken.mp4 is not a video that this browser can play').waitFor();
        assert.deepEqual(visit.complaints, [], 'complaints of the page');
    });

    test('without the server it starts again and answers', async () => {
        await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
        await stop(server);
        await page.goto(`${server.origin}/#/`);
        await page.reload();
        await page.waitForSelector('.chip-ready');
        says(await ask(page, 'What is 12 + 30?'), '42');
        assert.deepEqual(visit.foreign, []);
    });
});

describe('the microphone and the camera', { timeout: 3_000_000 }, () => {
    const [said] = readFileSync('tests/box/sounds.jsonl', 'utf8').trim().split('\n').map((line) => JSON.parse(line) as { task: string; audio: string; check: { exact: string[] } })
        .filter(({ task }) => task === 'spoken words');
    let site: Awaited<ReturnType<typeof startSite>>, visit: Visit, page: Page;
    before(async () => {
        site = await startSite({}, BOX);
        visit = await Visit.begin({ microphone: join('tests/box', said!.audio) });
        page = await visit.page();
        await page.goto(site.origin);
        await page.waitForSelector('.chip-ready');
    });
    after(async () => {
        await visit?.end();
        await site?.close();
    });
    /** Records until the words are over: the meter showed them, and shows silence again. */
    const words = (): Promise<unknown> => page.waitForFunction(() => {
        const state = window as unknown as { heard?: number };
        const level = document.querySelector<HTMLMeterElement>('.level')?.value ?? 0;
        if (level > 40) state.heard = performance.now();
        return state.heard !== undefined && performance.now() - state.heard > 700;
    });

    test('what is dictated is written into the draft', async () => {
        await page.getByRole('button', { name: 'Dictate' }).click();
        await words();
        await page.getByRole('button', { name: 'Transcribe the recording' }).click();
        await page.waitForFunction(() => document.querySelector<HTMLTextAreaElement>('#composer')!.value !== '');
        const text = await page.inputValue('#composer');
        assert.ok(said!.check.exact.includes(text), `${text} should be one of ${said!.check.exact.join(' | ')}`);
        await page.fill('#composer', '');
        assert.deepEqual(visit.complaints, []);
    });

    test('a photo is taken with the camera, which is off again afterwards', async () => {
        await page.evaluate(() => { // keeps the streams that the page opens
            const { mediaDevices } = navigator, open = mediaDevices.getUserMedia.bind(mediaDevices);
            const streams: MediaStream[] = ((window as unknown as { streams: MediaStream[] }).streams = []);
            mediaDevices.getUserMedia = async (wanted) => (streams.push(await open(wanted)), streams.at(-1)!);
        });
        await page.getByRole('button', { name: 'Add pictures' }).click();
        await page.getByRole('menuitem', { name: 'Take a photo' }).click();
        await page.getByRole('button', { name: 'Take photo' }).click(); // when there is something to see
        await page.locator('.tray-item', { hasText: /^Photo\.jpg\s*\d+ tokens/ }).waitFor();
        const seen = await page.waitForFunction(() => {
            const image = document.querySelector<HTMLImageElement>('.tray-item img');
            if (!image?.naturalWidth) return null;
            const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight), context = canvas.getContext('2d')!;
            context.drawImage(image, 0, 0);
            return { width: canvas.width, lit: context.getImageData(0, 0, canvas.width, canvas.height).data.some((value, i) => i % 4 !== 3 && value > 64) };
        });
        const { width, lit } = (await seen.jsonValue())!;
        assert.ok(width >= 320 && lit, `a picture of ${width} pixels, lit: ${lit}`);
        assert.ok(await page.evaluate(() => (window as unknown as { streams: MediaStream[] }).streams.flatMap((each) => each.getTracks()).every(({ readyState }) => readyState === 'ended')));
        assert.equal(await page.locator('dialog[open]').count(), 0);
        assert.deepEqual(visit.complaints, []);
    });
});

describe('the first visit, on WebGPU', { timeout: 3_000_000 }, () => {
    test('a software GPU is left alone until the settings ask for the GPU; the box answers there', async () => {
        const site = await startSite({}, BOX), visit = await Visit.begin({ gpu: true });
        try {
            const page = await visit.page();
            await page.goto(site.origin);
            await page.waitForSelector('.chip-ready');
            assert.match(await page.innerText('.model-status'), /^The model in the box is ready on your CPU/);
            await page.evaluate(() => localStorage.setItem('gemmule.settings', JSON.stringify({ backend: 'gpu' })));
            await page.reload();
            await page.waitForSelector('.chip-ready');
            assert.match(await page.innerText('.model-status'), /^The model in the box is ready on your GPU/);
            says(await askByIdea(page, 'What is 12 + 30?'), '42');
            assert.deepEqual(visit.foreign, []);
            assert.deepEqual(visit.complaints, []);
        } finally {
            await visit.end();
            await site.close();
        }
    });
});
