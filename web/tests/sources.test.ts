import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, test } from 'node:test';
import { expandUrl } from '../src/sources/address.ts';
import { BlobSource, decodeDataUrl } from '../src/sources/blob.ts';
import { Sha256 } from '../src/core/sha256.ts';
import { openUncached } from '../src/sources/open.ts';
import { partNames, partUrls, sortParts } from '../src/sources/split.ts';
import { PrefixSource, UrlSource, download, probe, stream } from '../src/sources/url.ts';
import { type ServedFile, type TestServer, noise, startServer } from './support/http_server.ts';

let server: TestServer;
before(async () => (server = await startServer()));
after(() => server.close());

const QUICK = { delay: 1, tries: 3 };
const BYTES = noise(3_000_000);

function serve(name: string, file: Partial<ServedFile> = {}): string {
    server.files.set(`/${name}`, { bytes: BYTES, ...file });
    server.requests.length = 0;
    return `${server.origin}/${name}`;
}

function fails(name: string, text: RegExp) {
    return (error: { name: string; message: string }) => {
        assert.equal(error.name, name, error.message);
        assert.match(error.message, text);
        return true;
    };
}

async function collect(url: string, offset = 0): Promise<Buffer> {
    const pieces: Uint8Array[] = [];
    const sink = { write: (bytes: Uint8Array) => void pieces.push(bytes.slice()), restart: () => void (pieces.length = 0) };
    await stream(await probe(url, QUICK), offset, sink, QUICK);
    return Buffer.concat(pieces);
}

const never = (): never => assert.fail('a restart');

/* Files without anything that says whether they are still the same. */
const ago = (seconds: number) => new Date(Date.now() - 1000 * seconds).toUTCString();
const modified = (text: string): Partial<ServedFile> => ({ etag: null, headers: (headers) => (headers['last-modified'] = text) });
const NO_VALIDATOR: [string, Partial<ServedFile>][] = [
    ['neither ETag nor Last-Modified', { etag: null }],
    ['a weak ETag', { etag: 'W/"one"' }],
    ['a file written just now', modified(ago(5))],
    ['a Last-Modified that is no date', modified('yesterday')],
];

// ---- hash, names, blobs ----

test('SHA-256 agrees with OpenSSL for all lengths around a block, however the input is cut', () => {
    for (let length = 0; length < 200; length++) {
        const bytes = BYTES.subarray(0, length);
        const hash = new Sha256();
        for (let at = 0; at < length; at += 37) hash.update(bytes.subarray(at, at + 37));
        const wanted = createHash('sha256').update(bytes).digest('hex');
        assert.equal(hash.hex(), wanted);
        assert.equal(hash.hex(), wanted, 'asking changes nothing');
    }
    const long = new Sha256().update(BYTES);
    long.hex();
    assert.equal(long.update(BYTES).hex(), createHash('sha256').update(BYTES).update(BYTES).digest('hex'));
});

test('names of split models', () => {
    assert.deepEqual(partNames('m.gguf'), ['m.gguf']);
    assert.deepEqual(partNames('a/m-00001-of-00003.gguf'), ['a/m-00001-of-00003.gguf', 'a/m-00002-of-00003.gguf', 'a/m-00003-of-00003.gguf']);
    assert.deepEqual(partUrls('https://h/m-00001-of-00002.gguf?download=true'), [
        'https://h/m-00001-of-00002.gguf?download=true', 'https://h/m-00002-of-00002.gguf?download=true',
    ]);
    assert.throws(() => partNames('m-00002-of-00003.gguf'), fails('BadArgument', /Give the first one, m-00001-of-00003\.gguf/));
    assert.throws(() => partNames('m-00004-of-00003.gguf'), fails('BadArgument', /no part 4 of 3/));
    const file = (name: string) => ({ name });
    assert.deepEqual(sortParts([file('m-00002-of-00002.gguf'), file('m-00001-of-00002.gguf')]).map((f) => f.name), [
        'm-00001-of-00002.gguf', 'm-00002-of-00002.gguf',
    ]);
    assert.throws(() => sortParts([file('m-00001-of-00003.gguf'), file('m-00003-of-00003.gguf')]), fails('NotFound', /m-00002-of-00003\.gguf is missing/));
    assert.throws(() => sortParts([file('m-00001-of-00002.gguf'), file('n-00002-of-00002.gguf')]), fails('BadArgument', /not a part of the same model/));
    assert.throws(() => sortParts([file('m-00001-of-00002.gguf'), file('m-00001-of-00002.gguf')]), fails('NotFound', /m-00002/));
    assert.throws(() => sortParts([file('m-00001-of-00002.gguf')]), fails('NotFound', /2 parts, got 1/));
});

test('blobs return exactly the requested bytes', async () => {
    const source = new BlobSource(new File([BYTES], 'm.gguf'));
    assert.equal(source.name, 'm.gguf');
    assert.deepEqual(await source.read(1000, 50), BYTES.slice(1000, 1050));
    const memory = new ArrayBuffer(2_500_000);
    const long = await source.read(3, 2_200_000, undefined, memory);
    assert.equal(long.buffer, memory);
    assert.deepEqual(long, BYTES.slice(3, 2_200_003));
    for (const [offset, length] of [[BYTES.length - 1, 2], [-1, 1], [0.5, 1], [0, NaN]] as const) {
        await assert.rejects(source.read(offset, length), fails('BadArgument', /do not exist/));
    }
    await assert.rejects(source.read(0, 1, AbortSignal.abort()), fails('Aborted', /stopped/));
});

test('data: URLs are decoded without fetch', () => {
    const text = (url: string) => new TextDecoder().decode(decodeDataUrl(url).bytes);
    assert.equal(text('data:,a%20b'), 'a b');
    assert.equal(text('data:text/plain;base64,aGVs%62G8='), 'hello');
    assert.equal(text('data:text/plain;charset=utf-8;base64, aGVs\nbG8'), 'hello');
    assert.equal(text('data:,100%'), '100%');
    assert.equal(decodeDataUrl('data:image/png;base64,AAEC').type, 'image/png');
    assert.deepEqual([...decodeDataUrl('data:;base64,AP/+').bytes], [0, 255, 254]);
    for (const url of ['data:nothing', 'https://x', 'data:;base64,%%%']) assert.throws(() => decodeDataUrl(url), fails('BadArgument', /data: URL/));
});

test('short forms of addresses', () => {
    assert.equal(expandUrl('hf:google/gemma-4/a b/m.gguf'), 'https://huggingface.co/google/gemma-4/resolve/main/a%20b/m.gguf');
    assert.equal(expandUrl('hf:o/r@v1.0/m.gguf'), 'https://huggingface.co/o/r/resolve/v1.0/m.gguf');
    assert.equal(expandUrl('https://x/m.gguf'), 'https://x/m.gguf');
    assert.throws(() => expandUrl('hf:only/repo'), fails('BadArgument', /hf:owner\/repo\/file/));
});

// ---- HTTP ----

test('a probe learns size, validator and ranges', async () => {
    const rows: [Partial<ServedFile>, object][] = [
        [{}, { size: BYTES.length, validator: '"one"', ranges: true }],
        [{ ranges: false }, { size: BYTES.length, validator: '"one"', ranges: false }],
        [{ ranges: false, length: false }, { size: null, validator: '"one"', ranges: false }],
        // Headers that a server of another origin does not expose.
        [{ headers: (headers) => delete headers['content-range'] }, { size: BYTES.length, validator: '"one"', ranges: true }],
        [modified('Tue, 02 Jan 2024 03:04:05 GMT'), { size: BYTES.length, validator: 'Tue, 02 Jan 2024 03:04:05 GMT', ranges: true }],
        [{ ranges: false, headers: (headers) => (headers['content-encoding'] = 'x-odd') }, { size: null, validator: '"one"', ranges: false }],
        ...NO_VALIDATOR.map(([, file]): [Partial<ServedFile>, object] => [file, { size: BYTES.length, validator: null, ranges: true }]),
    ];
    for (const [file, wanted] of rows) {
        const url = serve('probe', file);
        assert.deepEqual(await probe(url, QUICK), { url, ...wanted });
    }
    await assert.rejects(probe(`${server.origin}/nothing`, QUICK), fails('NotFound', /404/));
    await assert.rejects(probe(serve('probe', { statuses: [403] }), QUICK), fails('Network', /refuses access \(403\)/));
    await assert.rejects(probe(serve('probe', { bytes: new Uint8Array(0) }), QUICK), fails('BadModel', /empty/));
    await assert.rejects(probe('ftp://x/y', QUICK), fails('BadArgument', /https:/));
});

test('a server that cannot be reached fails at once, and the address keeps its case', async () => {
    const patient = { delay: 600_000, signal: AbortSignal.timeout(120_000) };
    const gone = await startServer();
    await gone.close();
    const url = `${gone.origin}/Model.gguf`;
    await assert.rejects(probe(url, patient), fails('Network', new RegExp(`^cannot load ${url}: the server cannot be reached \\(.*ECONNREFUSED`)));
    await assert.rejects(probe(serve('mute', { silent: true }), { ...patient, stall: 20 }), fails('Network', /no data arrived for 0.02 s/));
});

test('an https: page says at once that browsers block http: addresses', async () => {
    const page = (href: string) => Object.defineProperty(globalThis, 'location', { value: new URL(href), configurable: true });
    try {
        page('https://gemmule.example/');
        const blocked = /^cannot load http:\/\/models\.example\/m\.gguf: browsers block http: addresses on https: pages/;
        await assert.rejects(probe('http://models.example/m.gguf', QUICK), fails('Network', blocked));
        assert.equal((await probe(serve('mixed'), QUICK)).size, BYTES.length); // the user's own machine
        page('http://gemmule.example/');
        assert.equal((await probe(serve('mixed').replace('127.0.0.1', 'localhost'), QUICK)).size, BYTES.length);
    } finally {
        Reflect.deleteProperty(globalThis, 'location');
    }
});

test('temporary failures are tried again, others are not', async () => {
    assert.equal((await probe(serve('again', { statuses: [503, 429] }), QUICK)).size, BYTES.length);
    assert.equal(server.requests.length, 3);
    await assert.rejects(probe(serve('again', { statuses: [500, 500, 500] }), QUICK), fails('Network', /answered 500 \(tried 3 times\)/));
    await assert.rejects(probe(serve('again', { statuses: [400] }), QUICK), fails('Network', /answered 400/));
    assert.equal(server.requests.length, 1);
});

test('reads by range, with small ones near the front served from blocks', async () => {
    const source = new UrlSource(await probe(serve('range'), QUICK), QUICK);
    server.requests.length = 0;
    assert.deepEqual(await source.read(4, 100), BYTES.slice(4, 104));
    assert.deepEqual(await source.read(200_000, 4000), BYTES.slice(200_000, 204_000));
    assert.deepEqual(await source.read((1 << 20) - 10, 20), BYTES.slice((1 << 20) - 10, (1 << 20) + 10));
    assert.deepEqual(server.requests, ['GET /range bytes=0-1048575', 'GET /range bytes=1048576-2097151']);
    assert.deepEqual(await source.read(500_000, 2_000_000), BYTES.slice(500_000, 2_500_000));
    assert.equal(server.requests.at(-1), 'GET /range bytes=500000-2499999');
    assert.deepEqual(await source.read(BYTES.length - 5, 5), BYTES.slice(-5));
    assert.deepEqual(await source.read(7, 0), new Uint8Array(0));
    await assert.rejects(source.read(BYTES.length, 1), fails('BadArgument', /do not exist/));
});

test('a read over cut connections resumes where it broke', async () => {
    const source = new UrlSource(await probe(serve('cut', { cuts: [100_000, 300_000, 200_000] }), QUICK), QUICK);
    server.requests.length = 0;
    assert.deepEqual(await source.read(0, 2_000_000), BYTES.slice(0, 2_000_000));
    assert.equal(server.requests.length, 4);
    assert.match(server.requests[1]!, /bytes=\d{4,6}-1999999$/);
});

test('a file that changes while it is read is noticed', async () => {
    for (const change of [{ etag: '"two"' }, { etag: null }, { bytes: noise(2_999_999) }, { ranges: false }, { bytes: noise(10) }]) {
        const source = new UrlSource(await probe(serve('change'), QUICK), QUICK);
        Object.assign(server.files.get('/change')!, change);
        await assert.rejects(source.read(1_000_000, 500_000), fails('Network', /it changed on the server/));
    }
});

test('a file without a validator is never put together from two versions', async () => {
    const next = noise(BYTES.length, 2);
    for (const [name, file] of NO_VALIDATOR) {
        for (const ranges of [true, false]) {
            const changing = () => serve('splice', { ...file, ranges, next, cuts: [...(ranges ? [] : [Infinity]), 1_000_000] });
            assert.ok((await collect(changing())).equals(next), name);
            const blob = await download(await probe(changing(), QUICK), QUICK);
            assert.ok(Buffer.from(await blob.arrayBuffer()).equals(next), name);
        }
        const remote = await probe(serve('splice', file), QUICK);
        assert.throws(() => new UrlSource(remote), fails('NotSupported', /ETag or Last-Modified/), name);
        const source = await openUncached(serve('splice', file), { headerOnly: false, signal: new AbortController().signal, onProgress: () => undefined });
        Object.assign(server.files.get('/splice')!, { bytes: next });
        assert.ok(Buffer.from(await source.read(0, BYTES.length)).equals(BYTES), name);
    }
    // Breaking at the same place again and again is not progress.
    await assert.rejects(collect(serve('splice', { etag: null, cuts: Array(9).fill(500_000) })), fails('Network', /tried 3 times/));
});

test('a header without a validator is read from one version only', async () => {
    const next = noise(BYTES.length, 2);
    const broken = async (first: number) => {
        const source = new PrefixSource(await probe(serve('head', { etag: null, next, cuts: [200_000] }), QUICK), QUICK);
        if (first) await source.read(0, first);
        return source.read(250_000, 100_000);
    };
    assert.deepEqual(await broken(0), next.slice(250_000, 350_000));
    await assert.rejects(broken(1000), fails('Network', /cannot be resumed/));
});

test('a range other than the requested one is refused', async () => {
    const wrong = (headers: Record<string, string>) => {
        if (!headers['content-range']?.startsWith('bytes 0-15/')) headers['content-range'] = `bytes 7-1000006/${BYTES.length}`;
    };
    const source = new UrlSource(await probe(serve('wrong', { headers: wrong }), QUICK), QUICK);
    await assert.rejects(source.read(1000, 1_000_000), fails('Network', /was asked for the bytes from 1000 on and sent those from 7 on/));
});

test('streams arrive complete over cut connections, with and without ranges', async () => {
    for (const file of [{}, { ranges: false }, { ranges: false, length: false }]) {
        assert.ok((await collect(serve('stream', file))).equals(BYTES));
        const url = serve('stream', { ...file, cuts: [...('ranges' in file ? [Infinity] : []), 300_000, 900_000] }); // without ranges the probe is a whole response
        assert.ok((await collect(url)).equals(BYTES), JSON.stringify(file));
        assert.equal(server.requests.length, 4);
    }
    assert.ok((await collect(serve('stream'), 1_234_567)).equals(BYTES.subarray(1_234_567)));
    assert.equal(server.requests.at(-1), 'GET /stream bytes=1234567-');
    await assert.rejects(collect(serve('stream', { cuts: [0, 0, 0] })), fails('Network', /tried 3 times/));
});

test('a stream that grows is refused', async () => {
    const url = serve('grow', { ranges: false });
    const sink = { write: () => undefined, restart: never };
    const grown = { ...(await probe(url, QUICK)), size: 1000 };
    await assert.rejects(stream(grown, 0, sink, QUICK), fails('Network', /had 1000 bytes and has 3000000/));
    server.files.get('/grow')!.length = false; // the server does not say
    await assert.rejects(stream(grown, 0, sink, QUICK), fails('Network', /had 1000 bytes and now has more/));
});

test('signals stop downloads and waits', async () => {
    const slow = await probe(serve('slow', { pause: 20 }), QUICK);
    const controller = new AbortController();
    let got = 0;
    const write = (bytes: Uint8Array) => {
        if ((got += bytes.length) > 200_000) controller.abort();
    };
    const under = stream(slow, 0, { write, restart: never }, { signal: controller.signal });
    await assert.rejects(under, fails('Aborted', /stopped/));
    assert.ok(got < 1_000_000);
    const waiting = probe(serve('slow', { statuses: [503, 503, 503] }), { delay: 60_000, signal: AbortSignal.timeout(30) });
    await assert.rejects(waiting, fails('Aborted', /stopped/));
});

test('a download without ranges becomes a blob', async () => {
    const seen: number[] = [];
    const blob = await download(await probe(serve('blob', { ranges: false, cuts: [1_000_000] }), QUICK), QUICK, (done) => seen.push(done));
    assert.ok(Buffer.from(await blob.arrayBuffer()).equals(BYTES));
    assert.equal(seen.at(-1), BYTES.length);
    assert.ok(seen.every((done, i) => i === 0 || done > seen[i - 1]!));
});

test('the header of a file without ranges is read no further than needed', async () => {
    const url = serve('prefix', { ranges: false, bytes: noise(20_000_000), pause: 1 });
    const whole = server.files.get('/prefix')!.bytes;
    const source = new PrefixSource(await probe(url, QUICK), QUICK);
    assert.deepEqual(await source.read(100, 50), whole.slice(100, 150));
    assert.deepEqual(await source.read(300_000, 200_000), whole.slice(300_000, 500_000));
    assert.deepEqual(await source.read(5, 10), whole.slice(5, 15));
    await source.close();
    await assert.rejects(source.read(10_000_000, 1), fails('Aborted', /stopped/));
    assert.throws(() => new PrefixSource({ url, size: null, validator: null, ranges: false }), fails('NotSupported', /size/));
});
