import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { folderOfDrop, folderOfFiles } from '../src/sources/folder.ts';
import { OllamaFolder, parseName } from '../src/sources/ollama.ts';
import { noise } from './support/http_server.ts';
import { MemoryFolder } from './support/memory_files.ts';

const MODEL = noise(5000);
const PREFIX = 'application/vnd.ollama.image.';

function fails(name: string, text: RegExp) {
    return (error: { name: string; message: string }) => {
        assert.equal(error.name, name, error.message);
        assert.match(error.message, text);
        return true;
    };
}

/* Adds layers to a store: each becomes a blob and an entry of the manifest. */
class Store {
    readonly folder = new MemoryFolder('models');

    constructor() {
        this.folder.put('blobs/.keep', '');
        this.folder.put('manifests/.keep', '');
    }

    layer(kind: string, content: Uint8Array<ArrayBuffer> | string): { mediaType: string; digest: string; size: number } {
        const bytes = typeof content === 'string' ? new TextEncoder().encode(content) : content;
        const digest = createHash('sha256').update(bytes).digest('hex');
        this.folder.put(`blobs/sha256-${digest}`, bytes);
        return { mediaType: PREFIX + kind, digest: `sha256:${digest}`, size: bytes.length };
    }

    model(path: string, layers: unknown[], config?: unknown): void {
        this.folder.put(`manifests/${path}`, { schemaVersion: 2, config, layers });
    }
}

function usual(): Store {
    const store = new Store();
    const about = JSON.stringify({ model_family: 'gemma4', model_type: '5.1B', file_type: 'Q4_K_M', renderer: 'gemma4' });
    const config = { ...store.layer('config', about), mediaType: 'application/vnd.docker.container.image.v1+json' };
    store.model('registry.ollama.ai/library/gemma4/e2b', [
        store.layer('model', MODEL), store.layer('template', 'x'), store.layer('license', 'MIT'), store.layer('system', 'Be brief.'),
        store.layer('params', '{"temperature": 0.5}'), store.layer('projector', 'tower'),
    ], config);
    store.model('hf.co/user/repo/Q4_K_M', [store.layer('model', noise(100, 5))]);
    store.model('registry.ollama.ai/me/tuned/latest', [store.layer('model', MODEL), store.layer('adapter', 'low rank')]);
    return store;
}

test('names as Ollama reads them', () => {
    const rows: [string, string, string][] = [
        ['gemma4', 'registry.ollama.ai/library/gemma4/latest', 'gemma4:latest'],
        ['gemma4:e2b', 'registry.ollama.ai/library/gemma4/e2b', 'gemma4:e2b'],
        ['me/tuned', 'registry.ollama.ai/me/tuned/latest', 'me/tuned:latest'],
        ['hf.co/user/repo:Q4_K_M', 'hf.co/user/repo/Q4_K_M', 'hf.co/user/repo:Q4_K_M'],
        ['localhost:5000/a/b', 'localhost:5000/a/b/latest', 'localhost:5000/a/b:latest'],
    ];
    for (const [name, path, shown] of rows) assert.deepEqual(parseName(name), { path: path.split('/'), shown });
    for (const name of ['', '..', '../x', 'a//b', 'a/../b', '.hidden', 'a b', 'a:', 'a/b/c/d/e/f/g/h', 'x:y/z', '-a', 'a\\b']) {
        assert.throws(() => parseName(name), fails('BadArgument', /is not a model name/), name);
    }
});

test('all models in the folder are listed, with their details', async () => {
    const folder = await OllamaFolder.from(usual().folder);
    const models = await folder.list();
    assert.deepEqual(models.map((model) => model.name), ['gemma4:e2b', 'hf.co/user/repo:Q4_K_M', 'me/tuned:latest']);
    const [gemma, , tuned] = models;
    assert.deepEqual(
        { ...gemma, model: null, projector: null },
        {
            kind: 'ollama', name: 'gemma4:e2b', model: null, digest: createHash('sha256').update(MODEL).digest('hex'), size: MODEL.length,
            bytes: MODEL.length + 1 + 3 + 9 + 20 + 5, projector: null, draft: false, adapters: [], problem: '', system: 'Be brief.',
            params: '{"temperature": 0.5}', renderer: 'gemma4', family: 'gemma4', sizeLabel: '5.1B', quantisation: 'Q4_K_M',
        },
    );
    assert.deepEqual(new Uint8Array(await gemma!.model!.arrayBuffer()), MODEL);
    assert.equal(await gemma!.projector!.text(), 'tower');
    const { adapters: [tuning], projector } = tuned!;
    assert.deepEqual([tuning!.name, await tuning!.file.text(), projector], ['me/tuned:latest', 'low rank', null]);
});

test('a model is found by name, whatever its case', async () => {
    const folder = await OllamaFolder.from(usual().folder);
    assert.equal((await folder.resolve('Gemma4:E2B')).name, 'gemma4:e2b');
    await assert.rejects(folder.resolve('gemma4:31b'), fails('NotFound', /no model 'gemma4:31b' in the folder; it has gemma4:e2b, hf\.co/));
    await assert.rejects(folder.resolve('../../etc/passwd'), fails('BadArgument', /not a model name/));
});

test('the models folder, its parent or its grandparent can be given', async () => {
    const { folder } = usual();
    const above = new MemoryFolder('.ollama');
    above.children.set('models', folder);
    const home = new MemoryFolder('me');
    home.children.set('.ollama', above);
    for (const root of [folder, above, home]) assert.equal((await (await OllamaFolder.from(root)).list()).length, 3);
    await assert.rejects(OllamaFolder.from(new MemoryFolder('Pictures')), fails('NotFound', /the folder Pictures has no Ollama models.*\/usr\/share\/ollama/));
});

test('a folder that cannot be read is named, and the others are listed', async () => {
    const { folder } = usual();
    const locked = await (await folder.getDirectoryHandle('manifests')).getDirectoryHandle('hf.co');
    locked.entries = () => {
        throw new DOMException('permission denied', 'NotReadableError');
    };
    const store = await OllamaFolder.from(folder);
    assert.deepEqual((await store.list()).map(({ name }) => name), ['gemma4:e2b', 'me/tuned:latest']);
    assert.deepEqual(store.unreadable, ['manifests/hf.co: permission denied']);
    assert.equal((await store.resolve('gemma4:e2b')).size, MODEL.length);
    await assert.rejects(store.resolve('hf.co/user/repo:Q4_K_M'), fails('NotFound', /gemma4:e2b, me\/tuned:latest; skipped manifests\/hf\.co: permission denied$/));
});

test('a broken entry has a problem, and the others are listed', async () => {
    const good = 'sha256:' + createHash('sha256').update(MODEL).digest('hex');
    const missing = 'sha256:' + 'a'.repeat(64);
    const layer = (digest: string, size: unknown = MODEL.length, kind = 'model') => ({ mediaType: PREFIX + kind, digest, size });
    const rows: [unknown, RegExp][] = [
        [{ layers: [layer(missing)] }, /the model layer is missing: blobs\/sha256-aaaa/],
        [{ layers: [layer('sha256:' + 'b'.repeat(64))] }, /incomplete \(blobs\/sha256-b+-partial\): 'ollama pull'/],
        [{ layers: [layer(good, 4999)] }, /has 5000 bytes, the manifest says 4999/],
        [{ layers: [layer('sha256:../../../../etc/passwd')] }, /layer 1: the digest must be sha256: and 64 .* found 'sha256:\.\.\//],
        [{ layers: [layer('sha256:' + 'A'.repeat(64))] }, /the digest must be sha256:/],
        [{ layers: [layer(good, -1)] }, /size must be a whole number/],
        [{ layers: [layer(good, '5000')] }, /size must be a whole number/],
        [{ layers: [layer(good, 1e300)] }, /size must be a whole number/],
        [{ layers: [null] }, /found 'undefined'/],
        [{ layers: {} }, /has no list of layers/],
        [{ layers: [layer(good), layer(good)] }, /more than one model layer/],
        [{ layers: [layer(missing, 5, 'tensor')] }, /safetensors/],
        [{ layers: [] }, /names no model layer/],
        ['{"layers": [', /not JSON/],
        ['[]', /expected a JSON object/],
        [new Uint8Array([0xff, 0xfe]), /not UTF-8/],
        ['x'.repeat((4 << 20) + 1), /larger than 4 MiB/],
    ];
    const store = usual();
    store.folder.put(`blobs/sha256-${'b'.repeat(64)}-partial-3`, '');
    rows.forEach(([content], i) => store.folder.put(`manifests/registry.ollama.ai/library/bad/t${String(i).padStart(2, '0')}`, content as string));
    store.folder.put('manifests/short/path', '{}');
    store.folder.put('manifests/a/b/c/d/e/f/g/h/i', '{}');
    store.folder.put('manifests/registry.ollama.ai/library/.hidden/x', '{}');
    const folder = await OllamaFolder.from(store.folder);
    const models = await folder.list();
    assert.equal(models.length, rows.length + 3);
    rows.forEach(([, wanted], i) => assert.match(models.find(({ name }) => name === `bad:t${String(i).padStart(2, '0')}`)!.problem, wanted));
    await assert.rejects(folder.resolve('bad:t00'), fails('BadModel', /bad:t00: the model layer is missing/));
});

test('params and config are read with suspicion', async () => {
    const store = new Store();
    store.model('registry.ollama.ai/library/a/x', [store.layer('model', MODEL), store.layer('params', '[1]')]);
    store.model('registry.ollama.ai/library/b/x', [store.layer('model', MODEL), store.layer('params', '{')]);
    store.model('registry.ollama.ai/library/c/x', [store.layer('model', MODEL)], store.layer('config', JSON.stringify({ renderer: 5, model_family: ['x'] })));
    const [a, b, c] = await (await OllamaFolder.from(store.folder)).list();
    assert.match(a!.problem, /expected a JSON object/);
    assert.match(b!.problem, /not JSON/);
    assert.deepEqual([c!.problem, c!.renderer, c!.family], ['', undefined, undefined]);
});

test('files of <input webkitdirectory> make the same folder', async () => {
    const files: File[] = [];
    const walk = async (folder: MemoryFolder, path: string): Promise<void> => {
        for await (const [name, child] of folder.entries()) {
            if (child instanceof MemoryFolder) await walk(child, `${path}/${name}`);
            else files.push(Object.defineProperty(await child.getFile(), 'webkitRelativePath', { value: `${path}/${name}` }));
        }
    };
    await walk(usual().folder, 'models');
    const folder = await OllamaFolder.fromFiles(files);
    assert.equal((await folder.list()).length, 3);
    assert.equal((await folder.resolve('gemma4:e2b')).size, MODEL.length);
    assert.throws(() => folderOfFiles([]), fails('BadArgument', /empty/));
});

/* The older interface of dropped folders, over a folder in memory. */
function droppedEntry(name: string, node: MemoryFolder | { getFile(): Promise<File> }): object {
    type Taker = (value: unknown) => void;
    if (!(node instanceof MemoryFolder)) return { name, isDirectory: false, file: (take: Taker, fail: Taker) => void node.getFile().then(take, fail) };
    const child = (path: string, wanted: boolean, take: Taker, fail: Taker) => {
        const found = node.children.get(path);
        if (found && found instanceof MemoryFolder === wanted) take(droppedEntry(path, found));
        else fail(new DOMException('no', 'NotFoundError'));
    };
    return {
        name, isDirectory: true,
        getFile: (path: string, _: object, take: Taker, fail: Taker) => child(path, false, take, fail),
        getDirectory: (path: string, _: object, take: Taker, fail: Taker) => child(path, true, take, fail),
        createReader: () => {
            const left = [...node.children].map(([path, below]) => droppedEntry(path, below));
            return { readEntries: (take: Taker) => take(left.splice(0, 2)) }; // a few at a time, at last none
        },
    };
}

test('a dropped folder, by its handle or by the older interface', async () => {
    const { folder } = usual();
    const drop = (item: object) => ({ items: [{ kind: 'string' }, { kind: 'file', ...item }] }) as unknown as DataTransfer;
    const old = drop({ webkitGetAsEntry: () => droppedEntry('models', folder) });
    const fresh = drop({ webkitGetAsEntry: () => null, getAsFileSystemHandle: async () => folder });
    for (const data of [old, fresh]) {
        const store = await OllamaFolder.from(await folderOfDrop(data));
        assert.deepEqual((await store.list()).map(({ name, problem }) => name + problem), ['gemma4:e2b', 'hf.co/user/repo:Q4_K_M', 'me/tuned:latest']);
        assert.deepEqual(new Uint8Array(await (await store.resolve('gemma4:e2b')).model!.arrayBuffer()), MODEL);
    }
    await assert.rejects(folderOfDrop(drop({ webkitGetAsEntry: () => ({ isDirectory: false }) })), fails('BadArgument', /not a folder/));
});
