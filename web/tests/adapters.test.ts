/* Adapters of the package, in Node on wasm: where they come from, what they change, and what is refused. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { type Adapter, type AdapterChoice, type AdapterSource, type Engine, Gemmule, type Session } from '../src/node.ts';
import { AdapterStore } from '../src/sources/adapter_store.ts';
import { folderOfFiles } from '../src/sources/folder.ts';
import { OllamaFolder } from '../src/sources/ollama.ts';
import { readGguf } from './support/gguf.ts';
import { startServer, type TestServer } from './support/http_server.ts';
import { MemoryFolder, withStorage } from './support/memory_files.ts';
import { DENSE, ROOT, scratch, WASM } from './support/models.ts';

const OPTIONS = { wasmUrl: WASM, backend: 'wasm', threads: 1, precise: true } as const;
const FIXTURES = join(ROOT, 'tests/fixtures');
const LORA = join(FIXTURES, 'tiny-dense-lora');
const PART = join(FIXTURES, 'tiny-dense-adapters/part');
const [WEIGHTS, CONFIG] = ['adapter_model.safetensors', 'adapter_config.json'] as const;
const bytesOf = (folder: string, name: string): Buffer<ArrayBuffer> => readFileSync(join(folder, name));
const fileOf = (folder: string, name: string): File => new File([bytesOf(folder, name)], name);
const expected = readGguf(readFileSync(join(FIXTURES, 'tiny-dense-adapters.expect.gguf')));
const lora = readGguf(readFileSync(join(FIXTURES, 'tiny-dense-lora.expect.gguf')));
const HELLO = [{ role: 'user', content: 'Hello' }] as const;

let engine: Engine;
let server: TestServer;
before(async () => {
    engine = await Gemmule.load(DENSE, OPTIONS);
    server = await startServer();
});
after(async () => {
    await engine.unload();
    await server.close();
});

function fails(name: string, text: RegExp) {
    return (error: { name: string; message: string }) => {
        assert.equal(error.name, name, error.message);
        assert.match(error.message, text);
        return true;
    };
}

function closeTo(got: Float32Array | null, want: Float32Array, limit = 1e-4): void {
    let [difference, size] = [0, 0];
    for (const [i, value] of want.entries()) {
        difference += (got![i]! - value) ** 2;
        size += value ** 2;
    }
    assert.ok(Math.sqrt(difference / size) < limit, `relative error ${Math.sqrt(difference / size)}`);
}

/* The last row of an expectation: the logits of the last token. */
async function expectLogits(session: Session, name: string): Promise<void> {
    const [from, key] = name === 'tiny-dense-lora' ? [lora, 'logits'] : [expected, `logits.${name}`];
    await session.set(from.int32('ids'));
    closeTo(await session.logits(), from.float32(key).slice(-engine.info.vocabulary));
}

async function answer(session: Session, adapters?: AdapterChoice[]): Promise<string> {
    let text = '';
    for await (const piece of session.reply([...HELLO], { maxTokens: 8, sampling: { temperature: 0 }, ...(adapters && { adapters }) })) {
        if (piece.kind === 'content') text += piece.text;
    }
    return text;
}

const withAdapter = async (source: AdapterSource, work: (adapter: Adapter) => Promise<void> | void, name?: string): Promise<void> => {
    const adapter = await engine.adapters.load(source, name ? { name } : {});
    try {
        await work(adapter);
    } finally {
        await adapter.free();
    }
};

// ---- sources ----

test('an adapter comes from a path, an address, files, a folder, and Ollama; all are the same', async () => {
    const [gguf] = await engine.adapters.export(LORA, 'gguf');
    const bytes = Buffer.from(await gguf!.arrayBuffer());
    for (const name of [WEIGHTS, CONFIG]) server.files.set(`/peft/${name}`, { bytes: bytesOf(LORA, name) });
    server.files.set('/plain/tuned.gguf', { bytes, ranges: false });
    writeFileSync(scratch('tuned.gguf'), bytes);
    const folder = new MemoryFolder('models'), digest = createHash('sha256').update(bytes).digest('hex');
    folder.put(`blobs/sha256-${digest}`, new Uint8Array(bytes));
    folder.put(`blobs/sha256-${'0'.repeat(64)}`, 'model');
    folder.put('manifests/registry.ollama.ai/me/tuned/latest', {
        layers: [['model', '0'.repeat(64), 5], ['adapter', digest, bytes.length]].map(([kind, of, size]) =>
            ({ mediaType: `application/vnd.ollama.image.${kind}`, digest: `sha256:${of}`, size })),
    });
    const ollama = await OllamaFolder.from(folder);
    assert.deepEqual((await ollama.adapters()).map(({ name }) => name), ['me/tuned:latest']);
    await assert.rejects(ollama.adapters('me/other'), fails('NotFound', /no model/));
    const [peft, config] = [fileOf(LORA, WEIGHTS), fileOf(LORA, CONFIG)];
    const rows: [AdapterSource, string][] = [
        [LORA, 'tiny-dense-lora'], [join(LORA, CONFIG), 'tiny-dense-lora'], [scratch('tuned.gguf'), 'tuned'], [new URL(`file://${LORA}`), 'tiny-dense-lora'],
        [`${server.origin}/peft/`, 'peft'], [`${server.origin}/peft/${WEIGHTS}?token=1`, 'peft'], [`${server.origin}/plain/tuned.gguf`, 'tuned'],
        [`data:;base64,${bytes.toString('base64')}`, 'adapter'], [gguf!, 'tiny-dense-lora'], [new Blob([bytes]), 'adapter'],
        [[config, peft, new File(['hello'], 'README.md')], 'adapter'], [{ weights: peft, config: `${server.origin}/peft/${CONFIG}` }, 'adapter'],
        [folderOfFiles([fileOf(LORA, WEIGHTS), fileOf(LORA, CONFIG)].map((file) => Object.defineProperty(file, 'webkitRelativePath', { value: `mine/${file.name}` }))), 'mine'],
        [(await ollama.adapters('me/tuned'))[0]!, 'me/tuned:latest'],
    ];
    const session = await engine.session();
    for (const [source, name] of rows) {
        const seen: { phase: string; done: number; total: number }[] = [];
        const adapter = await engine.adapters.load(source, { onProgress: (progress) => seen.push(progress) });
        assert.equal(adapter.name, name);
        assert.deepEqual([seen.at(-1)!.phase, seen.at(-1)!.done], ['read', seen.at(-1)!.total]);
        await session.useAdapters([adapter]);
        await expectLogits(session, 'tiny-dense-lora');
        await session.useAdapters([]);
        await adapter.free();
    }
    await session.close();
});

test('an adapter says what it is and what it fits', async () => {
    await withAdapter(LORA, ({ info }) => {
        assert.deepEqual([info.name, info.rank > 0, info.layers, info.bytes], ['tiny-dense-lora', true, 6, 4 * info.parameters]);
        assert.match(info.digest, /^[0-9a-f]{64}$/);
        assert.ok(info.targets.includes('attn_q') && info.targets.includes('ffn_down'));
    });
    assert.equal((await engine.adapters.inspect(LORA)).problem, '');
    const { problem, ...about } = await engine.adapters.inspect(join(FIXTURES, 'tiny-moe-lora'));
    assert.match(problem, /blk\./);
    assert.equal(about.name, 'tiny-moe-lora');
    assert.deepEqual(engine.adapters.list(), []);
});

test('a PEFT folder becomes a GGUF and comes back equal; a loaded one can be exported, too', async () => {
    const { digest } = await engine.adapters.inspect(LORA);
    const gguf = await engine.adapters.export(LORA, 'gguf');
    assert.deepEqual(gguf.map(({ name }) => name), ['tiny-dense-lora.gguf']);
    await withAdapter(gguf, async (adapter) => {
        assert.equal(adapter.info.digest, digest);
        const peft = await adapter.export('peft');
        assert.deepEqual(peft.map(({ name }) => name).sort(), [CONFIG, WEIGHTS]);
        assert.equal((await engine.adapters.inspect(peft)).digest, digest);
        await assert.rejects(adapter.export('onnx' as 'gguf'), fails('BadArgument', /gguf or peft, found 'onnx'/));
    });
});

// ---- use ----

test('sessions use one, several with scales, or none; forks keep them', async () => {
    const [first, part] = [await engine.adapters.load(LORA), await engine.adapters.load(PART)];
    const session = await engine.session({ adapters: ['part'] });
    await expectLogits(session, 'part');
    await session.useAdapters([{ adapter: first, scale: 0.7 }, { adapter: 'part', scale: -0.3 }]);
    await expectLogits(session, 'two');
    const fork = await session.fork();
    assert.deepEqual(fork.adapters.map(({ adapter, scale }) => [adapter.name, scale]), [['tiny-dense-lora', 0.7], ['part', -0.3]]);
    await session.useAdapters([]);
    await expectLogits(session, 'base');
    await expectLogits(fork, 'two');
    await part.free();
    await part.free(); // once is enough, twice is no harm
    await expectLogits(fork, 'two'); // it keeps what it uses
    await assert.rejects(session.useAdapters([part]), fails('BadArgument', /'part' was freed/));
    await Promise.all([session.close(), fork.close(), first.free()]);
});

test('an answer and a chat request name their adapters', async () => {
    const tuned = await engine.adapters.load(LORA);
    const session = await engine.session();
    const plain = await answer(session);
    const adapted = await answer(session, [tuned]);
    assert.notEqual(adapted, plain);
    assert.equal(await answer(session), adapted); // the session keeps them
    const long = session.generate(Array.from({ length: session.context + 1 }, () => 2), { adapters: [{ adapter: tuned, scale: 0.5 }] });
    await assert.rejects(long.then(({ stats }) => stats), fails('ContextFull', /./)); // and an answer that fails does not change them
    assert.deepEqual(session.adapters.map(({ scale }) => scale), [1]);
    assert.equal(await answer(session), adapted);
    assert.equal(await answer(session, []), plain);
    const create = async (more: object) => {
        const { model, choices } = await engine.chat.completions.create({ messages: HELLO, temperature: 0, max_tokens: 8, ...more });
        return [model, choices[0]!.message.content];
    };
    assert.deepEqual(await create({ model: 'any+tiny-dense-lora' }), ['Tiny Dense+tiny-dense-lora', adapted]);
    assert.deepEqual(await create({ model: 'any' }), ['Tiny Dense', plain]);
    assert.deepEqual(await create({ adapters: [{ adapter: 'tiny-dense-lora', scale: 1 }] }), ['Tiny Dense+tiny-dense-lora', adapted]);
    assert.deepEqual(await create({ adapters: [{ adapter: tuned, scale: 0 }] }), ['Tiny Dense+tiny-dense-lora', plain]);
    await assert.rejects(create({ model: 'any+other' }), fails('NotFound', /no adapter 'other'; loaded: tiny-dense-lora/));
    await assert.rejects(create({ adapters: 'x' }), fails('BadArgument', /adapters must be a list/));
    await Promise.all([session.close(), tuned.free()]);
});

test('an adapter of another engine, a freed one, and one that is named twice are refused', async () => {
    await using other = await Gemmule.load(DENSE, OPTIONS);
    const theirs = await other.adapters.load(LORA);
    const mine = await engine.adapters.load(LORA);
    const session = await engine.session();
    await assert.rejects(session.useAdapters([theirs]), fails('BadArgument', /'tiny-dense-lora' belongs to another engine/));
    await assert.rejects(engine.adapters.free(theirs), fails('BadArgument', /another engine/));
    await assert.rejects(engine.session({ adapters: [theirs] }), fails('BadArgument', /another engine/));
    await assert.rejects(session.useAdapters([mine, 'tiny-dense-lora']), fails('BadArgument', /named twice/));
    await assert.rejects(session.useAdapters([{ adapter: mine, scale: NaN }]), fails('BadArgument', /scale of the adapter 'tiny-dense-lora' must be a number, found NaN/));
    await assert.rejects(session.useAdapters([{ adapter: mine, scale: 1e39 }]), fails('BadArgument', /scale of the adapter 'tiny-dense-lora' is out of range/));
    await assert.rejects(session.useAdapters([{} as Adapter]), fails('BadArgument', /must be one of engine\.adapters/));
    await assert.rejects(engine.adapters.load(LORA), fails('BadArgument', /called 'tiny-dense-lora' is already loaded/));
    await assert.rejects(engine.adapters.load(PART, { name: 'a+b' }), fails('BadArgument', /must not have a '\+'/));
    await assert.rejects(engine.adapters.keep(PART, { name: 'a+b' }), fails('BadArgument', /must not have a '\+'/));
    await mine.free();
    await assert.rejects(session.useAdapters(['other']), fails('NotFound', /no adapter 'other'; none is loaded/));
    assert.throws(() => session.reply([...HELLO], { adapters: [mine] }), fails('BadArgument', /was freed/));
    await assert.rejects(mine.export('gguf'), fails('BadArgument', /was freed/));
    await session.close();
});

// ---- bad input ----

const config = JSON.parse(bytesOf(LORA, CONFIG).toString()) as Record<string, unknown>;
const changed = (change: object): File => new File([JSON.stringify({ ...config, ...change })], CONFIG);
const weights = bytesOf(LORA, WEIGHTS);
const withHeader = (length: bigint): File => {
    const bytes = Buffer.from(weights);
    bytes.writeBigUInt64LE(length);
    return new File([bytes], WEIGHTS);
};
const withNan = (): File => {
    const bytes = Buffer.from(weights);
    bytes.fill(0xff, bytes.length - 4);
    return new File([bytes], WEIGHTS);
};

test('what cannot be used is refused by name, and the engine continues', async () => {
    const [good, goodConfig] = [fileOf(LORA, WEIGHTS), fileOf(LORA, CONFIG)];
    mkdirSync(scratch('half'), { recursive: true });
    mkdirSync(scratch('empty'), { recursive: true });
    writeFileSync(scratch('half/adapter_config.json'), '{}');
    const rows: [unknown, string, RegExp][] = [
        [[good], 'NotFound', /adapter_config\.json is missing beside adapter_model\.safetensors/],
        [[goodConfig], 'NotFound', /adapter_model\.safetensors is missing beside adapter_config\.json/],
        [scratch('half'), 'NotFound', /adapter_model\.safetensors is missing beside adapter_config\.json/],
        [scratch('empty'), 'NotFound', /no adapter: a PEFT folder has/],
        ['/no/such.gguf', 'NotFound', /no such file/],
        [`${server.origin}/absent/`, 'NotFound', /404/],
        [[new File(['x'], 'adapter_model.bin'), goodConfig], 'NotSupported', /adapter_model\.bin is a PyTorch file\. Reading one can run any program/],
        [[good, new File(['x'], 'other.safetensors'), goodConfig], 'BadArgument', /several adapters: adapter_model\.safetensors, other\.safetensors/],
        [[new File(['x'], 'a.txt'), new File(['x'], 'b.txt')], 'NotFound', /no adapter: an adapter is one \.gguf file/],
        [[], 'BadArgument', /no file/],
        [17, 'BadArgument', /an adapter must be/],
        [{ kept: 'a'.repeat(64) }, 'NotSupported', /no file storage/],
        [new File(['not an adapter'], 'a.gguf'), 'BadModel', /'a' cannot be used: .*starts with/],
        [new File([readFileSync(DENSE)], 'model.gguf'), 'NotSupported', /'model' cannot be used: not an adapter/],
        [[new File([weights.subarray(0, 5000)], WEIGHTS), goodConfig], 'BadModel', /cannot be used/],
        [[withHeader(1n << 60n), goodConfig], 'BadModel', /header/],
        [[withNan(), goodConfig], 'BadModel', /not a number|NaN|not finite/],
        [[good, changed({ r: 0 })], 'BadModel', /\br\b.*0/],
        [[good, changed({ r: 3 })], 'BadModel', /rank|\br\b/],
        [[good, changed({ use_dora: true })], 'NotSupported', /DoRA/],
        [[good, new File(['{'], CONFIG)], 'BadModel', /adapter_config\.json|JSON/],
        [join(FIXTURES, 'tiny-moe-lora'), 'BadArgument', /'tiny-moe-lora' cannot be used: .*blk\./],
    ];
    for (const [source, name, text] of rows) {
        await assert.rejects(engine.adapters.load(source as string), fails(name, text), String(text));
    }
    await assert.rejects(engine.adapters.load(LORA, { signal: AbortSignal.abort() }), fails('Aborted', /stopped/));
    assert.deepEqual(engine.adapters.list(), []);
    const session = await engine.session();
    await expectLogits(session, 'base');
    await session.close();
});

// ---- models with adapters of their own ----

test("an Ollama model's adapter layers are part of it", async () => {
    const [gguf] = await engine.adapters.export(LORA, 'gguf');
    const layer = { kind: 'ollama-adapter', name: 'tuned:latest', file: gguf!, digest: '' } as const;
    const model = {
        kind: 'ollama', name: 'tuned:latest', model: new File([readFileSync(DENSE)], 'sha256-x'), digest: '', size: 0, bytes: 0, projector: null, draft: false,
        adapters: [layer], problem: '',
    } as const;
    await using own = await Gemmule.load(model, OPTIONS);
    const session = await own.session();
    await expectLogits(session, 'tiny-dense-lora');
    await own.adapters.load(PART);
    await session.useAdapters(['part']);
    await session.useAdapters([]);
    await expectLogits(session, 'tiny-dense-lora');
    // By addresses, as a server gives them.
    server.files.set('/layer', { bytes: Buffer.from(await gguf!.arrayBuffer()) });
    await using served = await Gemmule.load(DENSE, { ...OPTIONS, ollama: { adapters: [`${server.origin}/layer`] } });
    await expectLogits(await served.session(), 'tiny-dense-lora');
    const broken = { ...model, adapters: [{ ...layer, file: new File(['x'], 'y') }] };
    await assert.rejects(Gemmule.load(broken, OPTIONS), fails('BadModel', /the adapter 'tuned:latest' cannot be used/));
});

// ---- kept ----

test('kept adapters are listed, read and deleted; a damaged one says so', async () => {
    const root = new MemoryFolder('opfs');
    const store = await AdapterStore.open(root as unknown as FileSystemDirectoryHandle);
    const { problem: _, ...info } = await engine.adapters.inspect(LORA);
    const files = [{ name: WEIGHTS, blob: fileOf(LORA, WEIGHTS) }, { name: CONFIG, blob: fileOf(LORA, CONFIG) }];
    const kept = await store.add('Mine', info, files);
    assert.deepEqual([kept.name, kept.form, kept.bytes, kept.problem, kept.info], ['Mine', 'peft', files[0]!.blob.size + files[1]!.blob.size, '', info]);
    await store.add('Again', info, files); // the same content
    assert.deepEqual((await store.list()).map(({ name, key }) => [name, key]), [['Again', info.digest]]);
    assert.equal((await engine.adapters.inspect((await store.read(info.digest)).files)).digest, info.digest);
    const folder = `gemmule/v1/adapters/${info.digest}`;
    root.put(`${folder}/${CONFIG}`, 'short');
    root.put(`gemmule/v1/adapters/${'b'.repeat(64)}/adapter.gguf`, 'x');
    assert.deepEqual((await store.list()).map(({ problem }) => problem.replace(/\d+ bytes, expected \d+/, 'N')), ['it is incomplete', 'adapter_config.json has N']);
    await assert.rejects(store.read(info.digest), fails('Storage', /Again: adapter_config\.json has 5 bytes/));
    for (const { key } of await store.list()) await store.delete(key);
    assert.deepEqual(await store.list(), []);
    await assert.rejects(store.read(info.digest), fails('NotFound', /was it deleted/));
    await assert.rejects(store.delete('../x'), fails('BadArgument', /not the key of an adapter/));
    await assert.rejects(engine.adapters.kept(), fails('NotSupported', /no file storage/));
});

test('an adapter that is kept again from its own copy stays; so does one that cannot be renamed', () => withStorage(async (_, on) => {
    const files = [fileOf(LORA, WEIGHTS), fileOf(LORA, CONFIG)];
    const { key, bytes } = await engine.adapters.keep(files, { name: 'first' });
    const kept = async () => (await engine.adapters.kept()).map(({ name, bytes: size, problem }) => [name, size, problem]);
    await engine.adapters.keep({ kept: key }, { name: 'second' });
    assert.deepEqual(await kept(), [['second', bytes, '']]);
    const adapter = await engine.adapters.load({ kept: key }, { keep: true });
    await adapter.free();
    assert.deepEqual(await kept(), [['second', bytes, '']]);
    on.quota = on.used;
    await assert.rejects(engine.adapters.keep({ kept: key }, { name: 'a name that is longer' }), fails('QuotaExceeded', /cannot keep the adapter 'a name that is longer'/));
    assert.deepEqual(await kept(), [['second', bytes, '']]);
    assert.equal((await engine.adapters.inspect({ kept: key })).digest, key);
}));

test('an adapter that cannot be kept is not loaded, and what an interrupted copy left is replaced', () => withStorage(async (root, on) => {
    const files = [fileOf(LORA, WEIGHTS), fileOf(LORA, CONFIG)];
    on.quota = 100;
    await assert.rejects(engine.adapters.load(files, { name: 'large', keep: true }), fails('QuotaExceeded', /cannot keep the adapter 'large'/));
    assert.deepEqual(engine.adapters.list(), []);
    assert.deepEqual(await engine.adapters.kept(), []);
    on.quota = Infinity;
    const { digest } = await engine.adapters.inspect(files);
    root.put(`gemmule/v1/adapters/${digest}/adapter.gguf`, 'half of it');
    assert.deepEqual((await engine.adapters.kept()).map(({ problem }) => problem), ['it is incomplete']);
    await (await engine.adapters.load(files, { name: 'large', keep: true })).free();
    assert.deepEqual((await engine.adapters.kept()).map(({ name, problem }) => [name, problem]), [['large', '']]);
}));
