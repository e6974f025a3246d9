/* Adapters of the built package in a page: loaded from an address and kept, there after a reload, read from a directory handle and from
 * Ollama's folder, exported, deleted. On wasm; the model is at /model.gguf, the fixtures are below the server's root. */

import assert from 'node:assert/strict';

interface AdapterPage {
    evaluate(script: string): Promise<unknown>;
    reload(): Promise<unknown>;
}

const START = `
    const { Gemmule, OllamaFolder } = await import('/web/dist/index.js');
    const engine = await Gemmule.load('/model.gguf', { backend: 'wasm', cache: false });
    const answer = async (...adapters) => {
        const { choices } = await engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hello' }], max_tokens: 8, temperature: 0, adapters });
        return choices[0].message.content;
    };
    const caught = (promise) => promise.then(() => '', (error) => error.name + ': ' + error.message);
    const write = async (path, content) => {
        const names = path.split('/');
        let folder = await navigator.storage.getDirectory();
        for (const name of names.slice(0, -1)) folder = await folder.getDirectoryHandle(name, { create: true });
        const stream = await (await folder.getFileHandle(names.at(-1), { create: true })).createWritable();
        await stream.write(content);
        await stream.close();
        return folder;
    };`;

/** Keeps an adapter, and says what it changes. */
const FIRST = `(async () => {${START}
    const progress = [];
    const adapter = await engine.adapters.load('/tests/fixtures/tiny-dense-lora/', { keep: true, onProgress: ({ done, total }) => progress.push(done / total) });
    const plain = await answer(), adapted = await answer('tiny-dense-lora');
    const gguf = await adapter.export('gguf');
    const wrong = await caught(engine.adapters.load('/tests/fixtures/tiny-moe-lora/'));
    const missing = await caught(engine.adapters.load('/tests/fixtures/no-such-adapter/'));
    await engine.adapters.keep('/tests/fixtures/tiny-moe-lora/');
    await engine.unload();
    return { plain, adapted, last: progress.at(-1), files: gguf.map(({ name }) => name), wrong, missing };
})()`;

/** After a reload: the kept adapter, its export from a folder and from Ollama's, and nothing after it was deleted. */
const SECOND = `(async () => {${START}
    const kept = await engine.adapters.kept();
    const [fits, other] = [kept.find(({ name }) => name === 'tiny-dense-lora'), kept.find(({ name }) => name === 'tiny-moe-lora')];
    await engine.adapters.load(fits);
    const answers = [await answer('tiny-dense-lora'), await answer({ adapter: 'tiny-dense-lora', scale: 0 })];
    const { problem } = await engine.adapters.inspect({ kept: other.key });
    const [config, weights] = await engine.adapters.export({ kept: fits.key }, 'peft');
    await write('mine/' + config.name, config);
    await engine.adapters.load(await write('mine/' + weights.name, weights));
    answers.push(await answer('mine'));
    const [gguf] = await engine.adapters.export(fits, 'gguf');
    const digest = [...new Uint8Array(await crypto.subtle.digest('SHA-256', await gguf.arrayBuffer()))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
    const layer = (kind, of, size) => ({ mediaType: 'application/vnd.ollama.image.' + kind, digest: 'sha256:' + of, size });
    await write('ollama/blobs/sha256-' + digest, gguf);
    await write('ollama/blobs/sha256-' + '0'.repeat(64), 'model');
    await write('ollama/manifests/registry.ollama.ai/me/tuned/latest', JSON.stringify({ layers: [layer('model', '0'.repeat(64), 5), layer('adapter', digest, gguf.size)] }));
    const folder = await OllamaFolder.from(await (await navigator.storage.getDirectory()).getDirectoryHandle('ollama'));
    await engine.adapters.load((await folder.adapters('me/tuned'))[0], { name: 'tuned' });
    answers.push(await answer('tuned'));
    for (const each of kept) await engine.adapters.delete(each);
    const left = (await engine.adapters.kept()).length;
    const gone = await caught(engine.adapters.load({ kept: fits.key }, { name: 'gone' }));
    await engine.unload();
    return { names: kept.map(({ name, form }) => name + ' ' + form), rank: fits.info.rank, answers, problem, left, gone };
})()`;

export async function checkAdapters(page: AdapterPage): Promise<void> {
    const first = (await page.evaluate(FIRST)) as Record<'plain' | 'adapted' | 'wrong' | 'missing', string> & { last: number; files: string[] };
    assert.notEqual(first.adapted, first.plain);
    assert.deepEqual([first.last, first.files], [1, ['tiny-dense-lora.gguf']]);
    assert.match(first.wrong, /^BadArgument: the adapter 'tiny-moe-lora' cannot be used: /);
    assert.match(first.missing, /^NotFound: the adapter 'no-such-adapter' cannot be used: .*404/);
    await page.reload();
    const second = (await page.evaluate(SECOND)) as { names: string[]; rank: number; answers: string[]; problem: string; left: number; gone: string };
    assert.deepEqual(second.names, ['tiny-dense-lora peft', 'tiny-moe-lora peft']);
    assert.deepEqual(second.answers, [first.adapted, first.plain, first.adapted, first.adapted]);
    assert.ok(second.rank > 0);
    assert.match(second.problem, /blk\./);
    assert.equal(second.left, 0);
    assert.match(second.gone, /^NotFound: no adapter .* is kept here; was it deleted\?/);
}
