/* The cache on files in memory. web/tests/browser tests it in a real browser. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, test } from 'node:test';
import { GemmuleError } from '../src/core/errors.ts';
import { BlobSource } from '../src/sources/blob.ts';
import { ModelCache } from '../src/sources/opfs.ts';
import { type StoreOptions, type StoreProgress, copyIntoCache, fetchIntoCache } from '../src/sources/store.ts';
import { type ServedFile, type TestServer, noise, startServer } from './support/http_server.ts';
import { type Disk, MemoryFolder, disk } from './support/memory_files.ts';

let server: TestServer;
before(async () => (server = await startServer()));
after(() => server.close());

const BYTES = noise(6_000_000);
const HASH = createHash('sha256').update(BYTES).digest('hex');
const QUICK = { delay: 1, tries: 2 };

interface Bench {
    root: MemoryFolder;
    cache: ModelCache;
    url: string;
    key: string;
    path: string;
    disk: Disk;
    meta(): Record<string, unknown>;
}

async function bench(file: Partial<ServedFile> = {}, on = disk()): Promise<Bench> {
    server.files.set('/model.gguf', { bytes: BYTES, ...file });
    server.requests.length = 0;
    const root = new MemoryFolder('', on);
    const url = `${server.origin}/model.gguf`;
    const key = ModelCache.key(url);
    const path = `gemmule/v1/blobs/${key}`;
    const cache = await ModelCache.open(root as unknown as FileSystemDirectoryHandle);
    const meta = () => JSON.parse(new TextDecoder().decode(root.at(`${path}/meta.json`).bytes)) as Record<string, unknown>;
    return { root, cache, url, key, path, disk: on, meta };
}

function fails(name: string, text: RegExp) {
    return (error: { name: string; message: string }) => {
        assert.equal(error.name, name, error.message);
        assert.match(error.message, text);
        return true;
    };
}

/* Starts a download that the user stops after `bytes`. */
async function stopAt({ cache, url }: Bench, bytes: number): Promise<void> {
    const controller = new AbortController();
    const stopped = fetchIntoCache(cache, url, { ...QUICK, signal: controller.signal, onProgress: ({ done }) => done > bytes && controller.abort() });
    await assert.rejects(stopped, fails('Aborted', /stopped/));
}

/* Starts a download that breaks after about `bytes`. */
async function breakOff({ cache, url }: Bench, bytes: number): Promise<void> {
    server.files.get('/model.gguf')!.cuts = [bytes, 0, 0];
    await assert.rejects(fetchIntoCache(cache, url, QUICK), fails('Network', /tried 2 times/));
    server.files.get('/model.gguf')!.cuts = [];
    server.requests.length = 0;
}

test('a stored file is described, and read without the network from then on', async () => {
    const b = await bench();
    const seen: StoreProgress[] = [];
    const source = await fetchIntoCache(b.cache, b.url, { ...QUICK, onProgress: (progress) => seen.push(progress) });
    assert.equal(source.size, BYTES.length);
    assert.deepEqual(await source.read(1_000_000, 100), BYTES.slice(1_000_000, 1_000_100));
    await assert.rejects(source.read(BYTES.length, 1), fails('BadArgument', /do not exist/));
    await source.close!();
    assert.deepEqual(b.meta(), {
        schema: 1, url: b.url, size: BYTES.length, etag: '"one"', sha256: HASH, done: true, stored: BYTES.length, prefix: HASH,
    });
    assert.equal(seen.at(-1)!.done, BYTES.length);
    assert.ok(b.disk.flushes >= 2);
    server.files.delete('/model.gguf');
    server.requests.length = 0;
    const again = await fetchIntoCache(b.cache, b.url, QUICK);
    const twice = await fetchIntoCache(b.cache, b.url, QUICK); // two readers of one file
    assert.deepEqual(await again.read(5, 5), await twice.read(5, 5));
    assert.deepEqual(server.requests, []);
    assert.deepEqual(await b.cache.list(), [
        { key: b.key, url: b.url, size: BYTES.length, stored: BYTES.length, sha256: HASH, done: true, problem: '' },
    ]);
});

test('a broken download resumes where it stopped, after a check of its hash', async () => {
    const b = await bench();
    await breakOff(b, 5_000_000);
    const { stored, prefix, done } = b.meta() as { stored: number; prefix: string; done: boolean };
    assert.ok(stored > 1_000_000 && stored <= 5_000_000 && !done);
    assert.equal(prefix, createHash('sha256').update(BYTES.subarray(0, stored)).digest('hex'));
    const phases = new Set<string>();
    const source = await fetchIntoCache(b.cache, b.url, { ...QUICK, onProgress: ({ phase }) => phases.add(phase) });
    assert.deepEqual([...phases], ['verify', 'download']);
    assert.deepEqual(server.requests, ['GET /model.gguf bytes=0-15', `GET /model.gguf bytes=${stored}-`]);
    assert.deepEqual(await source.read(0, BYTES.length), BYTES);
    assert.equal(b.meta().sha256, HASH);
});

test('a stored part that does not match its description starts again', async () => {
    type Spoil = (b: Bench) => void;
    const rows: [string, Spoil][] = [
        ['another ETag', () => (server.files.get('/model.gguf')!.etag = '"two"')],
        ['a flipped bit', (b) => (b.root.at(`${b.path}/data`).bytes[12345]! ^= 1)],
        ['fewer bytes than noted', (b) => (b.root.at(`${b.path}/data`).bytes = b.root.at(`${b.path}/data`).bytes.slice(0, 1000))],
        ['a description that does not parse', (b) => (b.root.at(`${b.path}/meta.json`).bytes = new TextEncoder().encode('{"schema": 1, "ur'))],
        ['a description of something else', (b) => (b.root.at(`${b.path}/meta.json`).bytes = new TextEncoder().encode('[1, 2]'))],
        ['a hash that is none', (b) => (b.root.at(`${b.path}/meta.json`).bytes = new TextEncoder().encode(JSON.stringify({ ...b.meta(), sha256: '../..' })))],
        ['a size that is none', (b) => (b.root.at(`${b.path}/meta.json`).bytes = new TextEncoder().encode(JSON.stringify({ ...b.meta(), stored: -5 })))],
    ];
    for (const [name, spoil] of rows) {
        const b = await bench();
        await breakOff(b, 3_000_000);
        spoil(b);
        const source = await fetchIntoCache(b.cache, b.url, QUICK);
        assert.equal(server.requests.at(-1), 'GET /model.gguf', name);
        assert.deepEqual(await source.read(0, BYTES.length), BYTES, name);
        assert.equal(b.meta().sha256, HASH, name);
    }
});

test('a part without a validator is not resumed: the server may have another version by now', async () => {
    const other = noise(BYTES.length, 2);
    const written = (seconds: number): Partial<ServedFile> => ({
        etag: null, headers: (headers) => (headers['last-modified'] = new Date(Date.now() - 1000 * seconds).toUTCString()),
    });
    for (const file of [{ etag: null }, { etag: 'W/"one"' }, written(5)]) {
        const b = await bench({ ...file, pause: 1 });
        await stopAt(b, 2_000_000);
        assert.ok((b.meta() as { stored: number }).stored > 2_000_000, 'there is a part');
        Object.assign(server.files.get('/model.gguf')!, { bytes: other, pause: 0 });
        const source = await fetchIntoCache(b.cache, b.url, QUICK);
        assert.equal(server.requests.at(-1), 'GET /model.gguf');
        assert.ok(Buffer.from(await source.read(0, other.length)).equals(other));
        assert.equal(b.meta().sha256, createHash('sha256').update(other).digest('hex'));
    }
    const stamp = 'Tue, 02 Jan 2024 03:04:05 GMT';
    const settled = await bench({ etag: null, headers: (headers) => (headers['last-modified'] = stamp) });
    await breakOff(settled, 3_000_000);
    const rest = await fetchIntoCache(settled.cache, settled.url, QUICK);
    assert.ok(Buffer.from(await rest.read(0, BYTES.length)).equals(BYTES));
    assert.match(server.requests.at(-1)!, /bytes=\d+-$/);
});

test('a connection that breaks during a download without a validator starts it again', async () => {
    const other = noise(BYTES.length, 2);
    const b = await bench({ etag: null, next: other, cuts: [3_000_000] });
    const source = await fetchIntoCache(b.cache, b.url, QUICK);
    assert.ok(Buffer.from(await source.read(0, other.length)).equals(other));
    assert.equal(b.meta().sha256, createHash('sha256').update(other).digest('hex'));
});

test('bytes after the last note are not trusted', async () => {
    const b = await bench();
    await breakOff(b, 3_000_000);
    const { stored } = b.meta() as { stored: number };
    const data = b.root.at(`${b.path}/data`);
    data.bytes = new Uint8Array([...data.bytes.subarray(0, stored), ...new Uint8Array(100_000)]); // as after a crash
    const source = await fetchIntoCache(b.cache, b.url, QUICK);
    assert.equal(server.requests.at(-1), `GET /model.gguf bytes=${stored}-`);
    assert.deepEqual(await source.read(0, BYTES.length), BYTES);
});

test('an abort keeps what has arrived', async () => {
    const b = await bench({ pause: 1 });
    await stopAt(b, 2_000_000);
    const { stored } = b.meta() as { stored: number };
    assert.ok(stored > 2_000_000 && stored < BYTES.length);
    server.files.get('/model.gguf')!.pause = 0;
    assert.deepEqual(await (await fetchIntoCache(b.cache, b.url, QUICK)).read(0, BYTES.length), BYTES);
});

test('no space: the error has numbers, and the part is kept until there is space', async () => {
    const b = await bench({}, disk(4_000_000));
    await assert.rejects(fetchIntoCache(b.cache, b.url, QUICK), (error: { name: string; detail: Record<string, number> }) => {
        assert.equal(error.name, 'QuotaExceeded');
        const { size, stored, needed } = error.detail;
        assert.equal(size, BYTES.length);
        assert.ok(stored! > 3_000_000 && stored! < 4_000_000);
        assert.equal(needed, size! - stored!);
        return true;
    });
    b.disk.quota = Infinity;
    assert.deepEqual(await (await fetchIntoCache(b.cache, b.url, QUICK)).read(0, BYTES.length), BYTES);
    assert.match(server.requests.at(-1)!, /bytes=3\d{6}-/);
});

test('a write that returns anything but the length is a failure', async () => {
    for (const short of [0, 10, 1e9]) {
        const b = await bench();
        await breakOff(b, 1_000_000);
        const { stored } = b.meta() as { stored: number };
        b.disk.shortWrites = [NaN, short];
        b.disk.shortWrites[0] = JSON.stringify({ ...b.meta() }).length; // the write of meta.json succeeds
        await assert.rejects(fetchIntoCache(b.cache, b.url, QUICK), fails('Storage', new RegExp(`the browser wrote ${short} of \\d+ bytes at ${stored}`)));
        assert.equal(b.meta().done, false);
        assert.deepEqual(await (await fetchIntoCache(b.cache, b.url, QUICK)).read(0, BYTES.length), BYTES);
    }
});

test('a known SHA-256 is the key, and a file with a different one is refused', async () => {
    const b = await bench();
    const source = await fetchIntoCache(b.cache, b.url, { ...QUICK, sha256: HASH });
    await source.close!();
    assert.deepEqual((await b.cache.list()).map(({ key, done }) => [key, done]), [[HASH, true]]);
    const wrong = 'ab'.repeat(32);
    await assert.rejects(fetchIntoCache(b.cache, b.url, { ...QUICK, sha256: wrong }), fails('BadModel', new RegExp(`is ${HASH}, expected ${wrong}`)));
    await assert.rejects(b.cache.read(wrong), fails('NotFound', /has no file/));
    await assert.rejects(fetchIntoCache(b.cache, b.url, { sha256: '../../x' }), fails('BadArgument', /sha256 must be 64/));
});

test('a newer schema is left alone', async () => {
    const b = await bench();
    const text = JSON.stringify({ schema: 7, url: b.url, layout: 'other' });
    b.root.put(`${b.path}/meta.json`, text);
    await assert.rejects(fetchIntoCache(b.cache, b.url, QUICK), fails('Storage', /a newer version of gemmule wrote it \(schema 7, this version knows 1\)/));
    assert.match((await b.cache.list())[0]!.problem, /newer/);
    assert.equal(new TextDecoder().decode(b.root.at(`${b.path}/meta.json`).bytes), text);
});

test('a complete file of the wrong length is reported, and downloaded again', async () => {
    const b = await bench();
    await (await fetchIntoCache(b.cache, b.url, QUICK)).close!();
    const data = b.root.at(`${b.path}/data`);
    data.bytes = data.bytes.slice(0, -1);
    assert.match((await b.cache.list())[0]!.problem, /bytes, expected/);
    await assert.rejects(b.cache.read(b.key), fails('Storage', /bytes, expected/));
    assert.deepEqual(await (await fetchIntoCache(b.cache, b.url, QUICK)).read(0, BYTES.length), BYTES);
});

test('two at once: one writes, the other waits and reads', async () => {
    const b = await bench({ pause: 1 });
    const phases: string[] = [];
    const [one, two] = await Promise.all([
        fetchIntoCache(b.cache, b.url, QUICK), fetchIntoCache(b.cache, b.url, { ...QUICK, onProgress: ({ phase }) => phases.push(phase) }),
    ]);
    assert.deepEqual(phases, ['wait']);
    assert.equal(server.requests.length, 2);
    assert.deepEqual(await one.read(7, 7), await two.read(7, 7));
});

test('a file that is being written cannot be deleted; deleting a missing one is no error', async () => {
    const b = await bench({ pause: 1 });
    let under: ReturnType<typeof fetchIntoCache>;
    await new Promise<void>((begun) => (under = fetchIntoCache(b.cache, b.url, { ...QUICK, onProgress: ({ done }) => done > 0 && begun() })));
    await assert.rejects(b.cache.delete(b.key), fails('Busy', /being written/));
    await (await under!).close!();
    await b.cache.delete(b.key);
    await b.cache.delete(b.key);
    await assert.rejects(b.cache.delete('../x'), fails('BadArgument', /not a key/));
    assert.deepEqual(await b.cache.list(), []);
    await assert.rejects(b.cache.read(b.key), fails('NotFound', /has no file/));
});

test('without ranges, and without a known size', async () => {
    const b = await bench({ ranges: false, length: false, etag: null });
    assert.deepEqual(await (await fetchIntoCache(b.cache, b.url, QUICK)).read(0, BYTES.length), BYTES);
    assert.deepEqual([b.meta().size, b.meta().etag], [BYTES.length, null]);
});

test('a refused or missing file leaves nothing behind', async () => {
    const b = await bench();
    const accept = () => {
        throw new GemmuleError('BadModel', 'a web page');
    };
    await assert.rejects(fetchIntoCache(b.cache, b.url, { ...QUICK, accept }), fails('BadModel', /a web page/));
    await assert.rejects(fetchIntoCache(b.cache, `${server.origin}/absent.gguf`, QUICK), fails('NotFound', /404/));
    assert.deepEqual(await b.cache.list(), []);
});

// ---- copies of files ----

const FILE_URL = 'file:///model.gguf?bytes=20000000&modified=1';
const FILE_BYTES = noise(20_000_000);
const FILE_HASH = createHash('sha256').update(FILE_BYTES).digest('hex');
const copyOf = ({ cache }: Bench, options: StoreOptions = {}, bytes = FILE_BYTES): Promise<string> =>
    copyIntoCache(cache, FILE_URL, new BlobSource(new Blob([bytes]), 'model.gguf'), options);

test('a file is copied once, and read from the cache', async () => {
    const b = await bench();
    const seen: StoreProgress[] = [];
    const ollama = { system: 'Be brief.' };
    const file = new BlobSource(new Blob([FILE_BYTES]));
    const key = await copyIntoCache(b.cache, FILE_URL, file, { ollama, onProgress: (progress) => seen.push(progress) });
    const source = await b.cache.read(key);
    assert.ok(Buffer.from(await source.read(0, FILE_BYTES.length)).equals(FILE_BYTES));
    await source.close!();
    assert.deepEqual(await b.cache.list(), [
        { key, url: FILE_URL, size: FILE_BYTES.length, stored: FILE_BYTES.length, sha256: FILE_HASH, done: true, problem: '', ollama },
    ]);
    assert.deepEqual(seen.map(({ phase, done }) => [phase, done]), [0, 8 << 20, 16 << 20, FILE_BYTES.length].map((done) => ['copy', done]));
    assert.equal(await copyOf(b, { onProgress: () => assert.fail('copied again') }), key);
});

test('a copy that is stopped, refused or fails leaves nothing behind', async () => {
    const stop = new AbortController();
    const unreadable = new Blob([FILE_BYTES]);
    unreadable.slice = () => assert.fail('moved');
    const rows: [string, RegExp, (b: Bench) => Promise<string>][] = [
        ['Aborted', /stopped/, (b) => copyOf(b, { signal: stop.signal, onProgress: ({ done }) => done > 0 && stop.abort() })],
        ['Storage', /the browser wrote 10 of/, (b) => copyOf(b, { onProgress: () => (b.disk.shortWrites = [10]) })],
        ['BadModel', /its SHA-256 is/, (b) => copyOf(b, { sha256: '0'.repeat(64) })],
        ['BadModel', /not a model/, (b) => copyOf(b, { accept: () => { throw new GemmuleError('BadModel', 'not a model'); } })],
        ['Internal', /cannot read model.gguf any more/, ({ cache }) => copyIntoCache(cache, FILE_URL, new BlobSource(unreadable, 'model.gguf'))],
    ];
    for (const [name, text, copy] of rows) {
        const b = await bench();
        await assert.rejects(copy(b), fails(name, text));
        assert.deepEqual(await b.cache.list(), []);
    }
});

test('too little space for a copy: it does not begin, and the error has numbers', async () => {
    const b = await bench({}, disk(4_000_000));
    const failure = await copyOf(b, { onProgress: () => assert.fail('it began') }).catch((error: unknown) => error as GemmuleError);
    assert.ok(failure instanceof GemmuleError);
    const { needed, free } = failure.detail as { needed: number; free: number };
    assert.deepEqual([failure.name, needed], ['QuotaExceeded', FILE_BYTES.length]);
    assert.ok(free > 3_950_000 && free <= 4_000_000, `${free} bytes are free`);
    assert.equal(failure.message, 'cannot copy the file: it needs 20.0 MB, and the browser gives this page 4.0 MB. Nothing was stored');
    assert.deepEqual(await b.cache.list(), []);
});
