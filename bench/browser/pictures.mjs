// How long a picture takes until the answer begins, in Chromium on WebAssembly: gemmule's package and wllama, which has llama.cpp's towers, on
// the same two files, in turn.
//
//     node bench/browser/pictures.mjs MODEL MMPROJ [--tokens 280] [--repeats 3] [--threads 2] [--dist web/dist] [--wllama FOLDER]
//
// Prints a line of JSON: the seconds of each run, and how many tokens the prompts have. Each run has a picture of its own, so nothing is
// cached. MODEL may be `gemmule synth e2b MODEL --layers 2 --towers`: then nearly all the time is the tower's.

import { join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { chromium, which } from '../../web/tests/browser/browsers.ts';
import { startServer } from '../../web/tests/browser/server.ts';

const root = resolve(import.meta.dirname, '../..');
const text = (value) => ({ type: 'string', default: value });
const { values, positionals } = parseArgs({
    options: { tokens: text('280'), repeats: text('3'), threads: text('2'), dist: text(join(root, 'web/dist')), wllama: text(join(root, 'bench/node_modules/@wllama/wllama/esm')) },
    allowPositionals: true,
});
if (positionals.length !== 2) {
    console.error('usage: node bench/browser/pictures.mjs MODEL MMPROJ [OPTIONS]: its first lines say which there are');
    process.exit(3);
}

// The plain part of Gemma 4's chat format, for files without a template. llama.cpp puts <bos> before it, and marks around pictures.
const TEMPLATE = "{% for m in messages %}{{ '<|turn>' + m.role + '\n' }}{{ m.content }}{{ '<turn|>\n' }}{% endfor %}{{ '<|turn>model\n' }}";

/** Opens both engines in the page, and measures them in turn. */
async function inPage({ dist, wllama, template, tokens, repeats, threads }) {
    const said = [], note = (...words) => void said.push(words.join(' '));
    const [{ Gemmule }, { Wllama }] = await Promise.all([import(`${dist}/index.js`), import(`${wllama}/index.js`)]);
    const ours = await Gemmule.load('/model.gguf', { mmproj: '/mmproj.gguf', backend: 'wasm', cache: false, context: 2048, threads });
    const theirs = new Wllama({ default: `${wllama}/wasm/wllama.wasm` }, { logger: { debug: note, log: note, warn: note, error: note } });
    try {
        await theirs.loadModel([...document.querySelector('input').files], { // files on disk: Chromium does not hold Blobs of 1.5 GB
            n_ctx: 2048, n_parallel: 1, n_threads: threads, n_gpu_layers: 0, chat_template: template, jinja: true, image_min_tokens: tokens, image_max_tokens: tokens,
        });
    } catch (error) { throw new Error([String(error), ...said.slice(-12)].join('\n')); }

    /** Squares of random colours, 768 x 768. */
    const picture = async () => {
        const canvas = new OffscreenCanvas(768, 768), pen = canvas.getContext('2d');
        for (let at = 0; at < 256; at++) {
            pen.fillStyle = `#${Math.floor(Math.random() * 0x1000000).toString(16).padStart(6, '0')}`;
            pen.fillRect((at % 16) * 48, (at >> 4) * 48, 48, 48);
        }
        return canvas.convertToBlob({ type: 'image/png' });
    };
    const question = { type: 'text', text: 'What is this?' };
    const engines = {
        async gemmule(image) {
            const session = await ours.session();
            const reply = session.reply([{ role: 'user', content: [{ type: 'image', image, budget: tokens }, question] }], { maxTokens: 1, sampling: { temperature: 0 } });
            for await (const piece of reply) void piece;
            const { promptTokens } = await reply.stats;
            await session.close();
            return promptTokens;
        },
        async wllama(image) {
            const content = [{ type: 'image', data: await image.arrayBuffer() }, question];
            const reply = await theirs.createChatCompletion({ messages: [{ role: 'user', content }], max_tokens: 1, temperature: 0, cache_prompt: false });
            return reply.usage?.prompt_tokens;
        },
    };
    const result = { gemmule: { seconds: [], tokens: 0, threads: ours.info.threads ?? 1 }, wllama: { seconds: [], tokens: 0, threads: theirs.getNumThreads() } };
    for (let round = 0; round < repeats; round++) {
        for (const [name, ask] of Object.entries(engines)) {
            const image = await picture(), began = performance.now();
            result[name].tokens = await ask(image);
            result[name].seconds.push(Math.round(performance.now() - began) / 1000);
        }
    }
    return result;
}

const headers = { 'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp' }; // for threads
const server = await startServer({ headers, files: { '/model.gguf': positionals[0], '/mmproj.gguf': positionals[1] } });
const browser = await chromium.launch({ executablePath: which('chromium'), headless: true, args: ['--no-sandbox', '--disable-dev-shm-usage'] });
try {
    const page = await browser.newPage();
    await page.goto(`${server.origin}/web/tests/browser/blank.html`);
    await page.evaluate(() => void (document.body.innerHTML = '<input type="file" multiple>'));
    await page.setInputFiles('input', positionals);
    const served = (folder) => `/${relative(root, resolve(folder))}`;
    const options = { dist: served(values.dist), wllama: served(values.wllama), template: TEMPLATE, tokens: +values.tokens, repeats: +values.repeats, threads: +values.threads };
    console.log(JSON.stringify({ tokens: options.tokens, ...(await page.evaluate(inPage, options)) }));
} finally {
    await browser.close();
    await server.close();
}
