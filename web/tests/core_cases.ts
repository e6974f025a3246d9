/* Tests of the core for every backend: core.test.ts (wasm) and core_gpu.test.ts (Dawn) run them. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import type { CoreAdapter } from '../src/core/adapter.ts';
import { Core } from '../src/core/core.ts';
import type { CoreEngine } from '../src/core/engine.ts';
import { GemmuleError } from '../src/core/errors.ts';
import type { ByteSource, EngineOptions, Piece, ReplyOptions, ReplyStats } from '../src/core/types.ts';
import { readGguf, splitGguf } from './support/gguf.ts';
import { ADD_CALL, DENSE, ROOT, THINKING, UNCHECKED_WASM, WASM, scripted } from './support/models.ts';

const GREEDY = { temperature: 0 };
const ENDLESS = { temperature: 0, logit_bias: { 300: 100 } }; // "4", until the context is full
const HELLO = [{ role: 'user', content: 'Hello' }] as const;

/** A file as a source whose reads complete later, some out of order. */
class TestSource implements ByteSource {
    readonly name = 'test.gguf';
    readonly size: number;
    readonly bytes: Uint8Array;
    reads = 0;
    read_bytes = 0;

    constructor(bytes: Uint8Array, size = bytes.length) {
        this.bytes = bytes;
        this.size = size;
    }

    async read(offset: number, length: number): Promise<Uint8Array> {
        this.reads++;
        this.read_bytes += length;
        for (let turns = this.reads % 3; turns > 0; turns--) await new Promise((resolve) => setImmediate(resolve));
        return this.bytes.slice(offset, offset + length);
    }
}

const sourceOf = (path: string) => new TestSource(readFileSync(path));

async function collect(reply: AsyncGenerator<Piece, ReplyStats>): Promise<{ pieces: Piece[]; text: string; thinking: string; stats: ReplyStats }> {
    const pieces: Piece[] = [];
    for (;;) {
        const { value, done } = await reply.next();
        if (done) {
            const all = (kind: string) => pieces.map((piece) => (piece.kind === kind && 'text' in piece ? piece.text : '')).join('');
            return { pieces, text: all('content'), thinking: all('thinking'), stats: value };
        }
        pieces.push(value);
    }
}

function fails(name: string, text: RegExp) {
    return (thrown: unknown) => {
        assert(thrown instanceof GemmuleError, String(thrown));
        assert.equal(thrown.name, name, thrown.message);
        assert.match(thrown.message, text);
        return true;
    };
}

function closeTo(found: Float32Array | null, expected: Float32Array, most: number): void {
    assert(found);
    assert.equal(found.length, expected.length);
    let [largest, error] = [0, 0];
    expected.forEach((value, i) => {
        largest = Math.max(largest, Math.abs(value));
        error = Math.max(error, Math.abs(value - found[i]!));
    });
    assert(error <= most * largest, `off by ${error} of ${largest}`);
}

/** Returns a function for further tests: the precise engine of a fixture, which stays open, because a software GPU takes seconds to open one. */
export function coreTests(name: string, gpu: () => Promise<GPU | null>, base: EngineOptions): (path: string) => Promise<CoreEngine> {
    const onGpu = base.backend === 'gpu';
    let core: Core;
    let exact: CoreEngine; // tiny-dense, precise
    const engines = new Map<string, CoreEngine>();
    const engineOf = async (path: string): Promise<CoreEngine> => {
        if (!engines.has(path)) engines.set(path, await core.open([sourceOf(path)], { ...base, precise: true }));
        return engines.get(path)!;
    };
    before(async () => {
        core = await Core.create({ wasm: readFileSync(onGpu ? UNCHECKED_WASM : WASM), gpu: await gpu() });
        exact = await engineOf(DENSE);
    });
    after(() => engines.forEach((engine) => engine.close()));

    const open = (bytes: Uint8Array | string, options: EngineOptions = {}) =>
        core.open([typeof bytes === 'string' ? sourceOf(bytes) : new TestSource(bytes)], { ...base, ...options });

    // ---- results ----

    // test_gpu_check.c and browser/gpu_pages.test.ts have the rest on the GPU.
    for (const what of ['tiny-dense', 'tiny-moe', ...(onGpu ? [] : ['tiny-dense-ollama', 'tiny-moe-split'])]) {
        test(`${name}: ${what} computes what other programs expect`, async () => {
            const expected = readGguf(readFileSync(join(ROOT, `tests/fixtures/${what.replace(/-(ollama|split)$/, '')}.expect.gguf`)));
            const engine = await engineOf(join(ROOT, `tests/fixtures/${what}.gguf`));
            const session = engine.session();
            for (const prompt of [0, 1]) {
                const ids = expected.int32(`ids.${prompt}`);
                const logits = expected.float32(`logits.${prompt}`);
                const n = engine.info.vocabulary;
                for (const count of [ids.length, 7, 1]) {
                    await session.set(ids.slice(0, count));
                    closeTo(session.logits(), logits.slice((count - 1) * n, count * n), 1e-4);
                }
                const greedy = expected.int32(`greedy.${prompt}`);
                const { stats } = await collect(session.replyTokens(ids, { sampling: GREEDY, maxTokens: greedy.length }));
                assert.deepEqual(session.tokens(), Int32Array.from([...ids, ...greedy]));
                assert.deepEqual([stats.promptTokens, stats.replyTokens, stats.finish], [ids.length, greedy.length, 'length']);
            }
            session.free();
        });
    }

    if (!onGpu) test(`${name}: adapters compute what other programs expect`, async () => {
        const bytesOf = (path: string) => {
            const [weights, config] = ['adapter_model.safetensors', 'adapter_config.json'].map((file) => readFileSync(join(ROOT, 'tests/fixtures', path, file)));
            return { weights: weights!, config: config! };
        };
        const expected = readGguf(readFileSync(join(ROOT, 'tests/fixtures/tiny-dense-adapters.expect.gguf')));
        const [lora, part] = ['tiny-dense-lora', 'tiny-dense-adapters/part'].map((path) => exact.adapter(path, bytesOf(path)));
        const session = exact.session();
        await session.set(expected.int32('ids'));
        closeTo(session.logits(), expected.float32('logits.base').slice(-640), 1e-4);
        session.useAdapters([lora!, part!], [0.7, -0.3]);
        await session.set(expected.int32('ids'));
        closeTo(session.logits(), expected.float32('logits.two').slice(-640), 1e-4);
        session.useAdapters([part!]);
        await session.set(expected.int32('ids'));
        closeTo(session.logits(), expected.float32('logits.part').slice(-640), 1e-4);
        // Each must belong to the session's engine, be there, and come once.
        const other = await open(DENSE, { precise: true });
        const theirs = other.adapter('theirs', bytesOf('tiny-dense-lora'));
        assert.throws(() => session.useAdapters([theirs]), fails('BadArgument', /'theirs' belongs to another engine/));
        assert.throws(() => session.useAdapters([lora!, part!, lora!]), fails('BadArgument', /'tiny-dense-lora' is named twice/));
        assert.throws(() => session.useAdapters([lora!], [1, 2]), fails('BadArgument', /a scale for each adapter: 1 adapters, 2 scales/));
        assert.throws(() => session.useAdapters([{ ...lora! } as CoreAdapter]), fails('BadArgument', /adapter 0 is not one that an engine has loaded/));
        other.close();
        theirs.free(); // after its engine: no harm
        const gone = exact.adapter('gone', bytesOf('tiny-dense-lora'));
        gone.free();
        gone.free();
        assert.throws(() => session.useAdapters([gone]), fails('BadArgument', /'gone' was freed/));
        assert.throws(() => gone.export('gguf'), fails('BadArgument', /'gone' was freed/));
        await session.set(expected.int32('ids')); // it uses what it used before
        closeTo(session.logits(), expected.float32('logits.part').slice(-640), 1e-4);
        assert.throws(() => exact.adapter('text', { weights: new TextEncoder().encode('no adapter'), config: null }), GemmuleError);
        session.free();
        lora!.free();
        part!.free();
    });

    if (!onGpu) test(`${name}: tiny-dense computes 700 tokens as other programs do`, async () => {
        const expected = readGguf(readFileSync(join(ROOT, 'tests/fixtures/tiny-dense-long.expect.gguf')));
        const [ids, rows, logits] = [expected.int32('ids'), expected.int32('rows'), expected.float32('logits')];
        const session = exact.session();
        for (const [i, row] of rows.entries()) {
            await session.set(ids.slice(0, row + 1));
            closeTo(session.logits(), logits.slice(i * 640, (i + 1) * 640), 1e-4);
        }
        session.free();
    });

    test(`${name}: an engine says what it is`, () => {
        const { info } = exact;
        assert.deepEqual([info.name, info.architecture, info.backend, info.layers, info.vocabulary], ['Tiny Dense', 'gemma4', base.backend, 6, 640]);
        assert.match(info.digest, /^[0-9a-f]{64}$/);
        assert.match(info.device, onGpu ? /^gpu \(.+, precise\)$/ : /^cpu \(wasm, 1 thread, precise\)$/);
        assert.equal(exact.samplingDefault.top_p, 0.95);
        const stats = exact.stats();
        assert(stats.wasmBytes > 1e6 && stats.wasmBytes < 100e6);
        assert.equal(stats.gpuBytes > 0, onGpu);
    });

    test(`${name}: text becomes tokens and text again`, () => {
        const text = 'Café naïve 東京 🙂\n\n  two spaces';
        assert.equal(exact.detokenize(exact.tokenize(text)), text);
        assert.equal(exact.tokenize('<|turn>', true).length, 1);
        assert(exact.tokenize('<|turn>').length > 1);
        assert.equal(exact.tokenize('').length, 0);
        assert.throws(() => exact.tokenText(640), fails('BadArgument', /640 is not in the vocabulary/));
        assert.equal(exact.render([...HELLO]), '<bos><|turn>user\nHello<turn|>\n<|turn>model\n');
        assert.throws(() => exact.render([{ role: 'nobody' as 'user', content: '' }]), fails('BadArgument', /role must be/));
    });

    // ---- sessions ----

    test(`${name}: sessions are saved, restored, forked and rolled back`, async () => {
        const ids = Int32Array.from({ length: 40 }, (_, i) => 300 + i);
        const session = exact.session({ context: 256 });
        assert.equal(session.context, 256);
        await session.set(ids);
        const logits = session.logits()!;
        const snapshot = await session.save();
        const twin = await session.fork();
        assert.equal(session.rollback(30), 0);
        await session.append(Int32Array.of(20, 21));
        assert.deepEqual(session.tokens(), Int32Array.from([...ids.slice(0, 30), 20, 21]));
        assert.deepEqual(twin.tokens(), ids);
        assert.deepEqual(twin.logits(), logits);
        await session.restore(snapshot);
        assert.deepEqual(session.tokens(), ids);
        assert.deepEqual(session.logits(), logits);
        const next = Int32Array.of(77, 78, 79);
        await Promise.all([session.append(next), twin.append(next)]);
        closeTo(session.logits(), twin.logits()!, 1e-5);
        const fresh = exact.session();
        await fresh.restore(snapshot);
        await fresh.append(next);
        closeTo(fresh.logits(), twin.logits()!, 1e-5);

        await assert.rejects(session.restore(snapshot.slice(0, 5000)), fails('BadModel', /cut off|ends/));
        await assert.rejects(exact.session({ kv: 'f16' }).restore(snapshot), fails('BadModel', /keys and values in F32/));
        assert.deepEqual(session.tokens(), Int32Array.from([...ids, ...next]));
        assert.throws(() => session.rollback(1000), fails('BadArgument', /cannot keep 1000 tokens/));
        await assert.rejects(session.set(Int32Array.of(9999)), fails('BadArgument', /9999/));
        await assert.rejects(session.append(new Int32Array(300).fill(300)), fails('ContextFull', / of 256 tokens are in use/));
        assert.throws(() => exact.session({ context: 1e6 }), fails('BadArgument', /supports at most 4096/));
        for (const each of [session, twin, fresh]) each.free();
        await assert.rejects(session.set(ids), fails('BadArgument', /freed/));
    });

    test(`${name}: one call at a time on a session, several sessions take turns`, async () => {
        const [a, b] = [exact.session(), exact.session()];
        const ids = Int32Array.from({ length: 300 }, (_, i) => 300 + (i % 200));
        const first = a.set(ids);
        await assert.rejects(a.set(ids), fails('Busy', /busy with another call/));
        await Promise.all([first, b.set(ids)]);
        // b takes over the keys and values that a has computed so far, so their batches differ, and with them the last bits.
        const [one, other] = [a.logits()!, b.logits()!];
        assert(one.every((logit, i) => Math.abs(logit - other[i]!) < 1e-4));
        a.free();
        b.free();
    });

    // ---- replies ----

    const replyOf = async (path: string, options: ReplyOptions) => {
        const engine = await open(path);
        const session = engine.session();
        const result = await collect(session.reply([...HELLO], { sampling: GREEDY, ...options }));
        engine.close();
        return result;
    };

    // Parsing the text is the same on every backend. A software GPU takes seconds to open a model, so it runs only one of the two.
    if (!onGpu) test(`${name}: thinking is told from content`, async () => {
        const { text, thinking, stats } = await replyOf(scripted(`core-thinking-${name}`, ...THINKING), { think: true });
        assert.deepEqual([thinking, text, stats.finish], ['Hm', 'Yes.', 'stop']);
    });

    test(`${name}: tools are called`, async () => {
        const tools = [{ type: 'function' as const, function: { name: 'add', parameters: { type: 'object', properties: { a: { type: 'number' } } } } }];
        const { pieces, text, stats } = await replyOf(scripted(`core-tools-${name}`, ...ADD_CALL), { tools });
        const call = pieces.find((piece) => piece.kind === 'tool_call');
        assert.deepEqual(call, { kind: 'tool_call', name: 'add', arguments: { a: 1 }, json: '{"name":"add","arguments":{"a":1}}' });
        assert.deepEqual([text, stats.finish], ['Ok', 'tool_calls']);
    });

    test(`${name}: seeds, biases, stop strings and log-probabilities`, async () => {
        const session = exact.session();
        const options: ReplyOptions = { sampling: { seed: 2n ** 63n + 5n }, maxTokens: 12 };
        const [one, two, other] = [
            await collect(session.reply([...HELLO], options)),
            await collect(session.reply([...HELLO], options)),
            await collect(session.reply([...HELLO], { ...options, sampling: { seed: 1 } })),
        ];
        assert.equal(one.text, two.text);
        assert.notEqual(one.text, other.text);
        assert(two.stats.cachedTokens > 0);

        const biased = await collect(session.reply([...HELLO], { sampling: { ...GREEDY, logit_bias: { 300: 100 } }, maxTokens: 3, logprobs: 2 }));
        const rows = biased.pieces.flatMap((piece) => ('logprobs' in piece && piece.logprobs ? piece.logprobs : []));
        assert.deepEqual(rows.map((row) => [row.length, row[0]!.token]), [[3, 300], [3, 300], [3, 300]]);
        assert(rows.every((row) => row[1]!.logprob >= row[2]!.logprob && row[0]!.logprob < 0));

        const whole = await collect(session.reply([...HELLO], { sampling: GREEDY, maxTokens: 16 }));
        const end = whole.text.slice(8, 11);
        const stopped = await collect(session.reply([...HELLO], { sampling: GREEDY, maxTokens: 16, stop: [end] }));
        assert.equal(stopped.text, whole.text.slice(0, whole.text.indexOf(end)));
        assert.equal(stopped.stats.finish, 'stop');

        await assert.rejects(collect(session.reply([...HELLO], { sampling: { temperature: -1 } })), fails('BadArgument', /temperature/));
        await assert.rejects(collect(session.reply([...HELLO], { sampling: { seed: -1 } })), fails('BadArgument', /seed/));
        await assert.rejects(collect(session.reply([...HELLO], { logprobs: 21 })), fails('BadArgument', /at most 20/));
        await assert.rejects(collect(session.reply([])), fails('BadArgument', /at least one message/));
        session.free();
    });

    test(`${name}: a reply stops on its signal or when the loop is left, and the session can be used again`, async () => {
        const session = exact.session();
        const stop = new AbortController();
        const reply = session.reply([...HELLO], { sampling: ENDLESS, signal: stop.signal });
        const pieces: Piece[] = [];
        let stats: ReplyStats;
        for (;;) {
            const { value, done } = await reply.next();
            if (done) {
                stats = value;
                break;
            }
            if (pieces.push(value) === 5) stop.abort();
        }
        assert.equal(stats.finish, 'cancelled');
        assert.equal(pieces.length, 5, 'none came after the abort');
        assert(session.tokens().length >= stats.promptTokens + 4);

        let left = 0;
        for await (const piece of session.reply([...HELLO], { sampling: ENDLESS })) {
            if (piece.kind === 'content' && ++left === 3) break;
        }
        const again = await collect(session.reply([...HELLO], { sampling: GREEDY, maxTokens: 4 }));
        assert.equal(again.stats.replyTokens, 4);
        assert(again.stats.cachedTokens > 0);

        const early = new AbortController();
        early.abort();
        const none = await collect(session.reply([...HELLO], { signal: early.signal }));
        assert.equal(none.stats.finish, 'cancelled');
        await assert.rejects(session.set(Int32Array.of(2, 3), early.signal), fails('Aborted', /stopped by the caller/));
        await session.set(Int32Array.of(2, 3));
        session.free();
    });

    const checkClosing = async (engine: CoreEngine): Promise<void> => {
        const reply = engine.session().reply([...HELLO], { sampling: ENDLESS });
        await reply.next();
        engine.close();
        engine.close();
        await assert.rejects(async () => {
            for (;;) if ((await reply.next()).done) return;
        }, fails('Aborted', /closed/));
        assert.throws(() => engine.session(), fails('Aborted', /closed/));
    };

    // ---- opening ----

    test(`${name}: the header tells how much memory a model needs`, async () => {
        const source = sourceOf(DENSE);
        const report = await core.dryRun([source], base);
        assert.deepEqual([report.fits, report.why, report.name, report.layers, report.backend], [true, '', 'Tiny Dense', 6, base.backend]);
        assert(report.gpuBytes > 500_000 && report.kvBytesPerToken > 0 && report.fileBytes === source.size);
        assert(source.read_bytes < 300_000);
    });

    test(`${name}: a split model is opened from its parts, and closing an engine ends running calls`, async () => {
        const parts = splitGguf(readFileSync(DENSE), 3);
        const engine = await core.open(parts.map((bytes) => new TestSource(bytes)), { ...base, precise: true });
        const [whole, split] = [exact.session(), engine.session()];
        const ids = Int32Array.of(2, 300, 301, 302);
        await Promise.all([whole.set(ids), split.set(ids)]);
        assert.deepEqual(split.logits(), whole.logits());
        await checkClosing(engine);
        whole.free();
        await assert.rejects(core.open([new TestSource(parts[0]!)], base), fails('BadArgument', /split into 3 parts/));
        await assert.rejects(core.open([], base), fails('BadArgument', /at least one source/));
    });

    test(`${name}: the error of a failing source is passed on`, async () => {
        class Failing extends TestSource {
            readonly failure: () => Promise<Uint8Array>;
            readonly at: number;
            constructor(at: number, failure: () => Promise<Uint8Array>) {
                super(readFileSync(DENSE));
                this.at = at;
                this.failure = failure;
            }
            override read(offset: number, length: number): Promise<Uint8Array> {
                return this.reads + 1 === this.at ? this.failure() : super.read(offset, length);
            }
        }
        for (const at of [1, 2, 40]) {
            const network = new GemmuleError('Network', 'the server went away', { status: 503 });
            await assert.rejects(core.open([new Failing(at, () => Promise.reject(network))], base), (thrown) => thrown === network);
            await assert.rejects(
                core.open([new Failing(at, () => Promise.reject(new Error('a surprise')))], base),
                fails('Internal', /test\.gguf: a surprise/),
            );
            await assert.rejects(core.open([new Failing(at, async () => new Uint8Array(3))], base), fails('Storage', /wanted \d+ bytes at \d+, found 3/));
        }
    });

    test(`${name}: opening can be aborted`, async () => {
        for (const after of [0, 1, 30]) {
            const stop = new AbortController();
            const source = sourceOf(DENSE);
            const read = source.read.bind(source);
            source.read = (offset, length) => {
                if (source.reads === after) stop.abort();
                return read(offset, length);
            };
            await assert.rejects(core.open([source], { ...base, signal: stop.signal }), fails('Aborted', /stopped/));
        }
    });

    test(`${name}: inconsistent, truncated and damaged files are refused`, async () => {
        const file = readFileSync(DENSE);
        const header = Buffer.from(file);
        header.writeUInt32LE(99, 4);
        await assert.rejects(open(header), fails('NotSupported', /version is 99/));
        await assert.rejects(open(file.subarray(0, file.length - 1000)), fails('BadModel', /cut off/));
        await assert.rejects(open(file.subarray(0, 20_000)), fails('BadModel', /ends inside/));
        await assert.rejects(open(Buffer.from('<!DOCTYPE html><html>not here</html>')), fails('BadModel', /a web page/));
        await assert.rejects(open(new Uint8Array(0)), fails('BadModel', /ends inside/));
        await assert.rejects(open(file.subarray(0, 1000)), fails('BadModel', /only 984 bytes follow/));
        await assert.rejects(core.open([new TestSource(file.subarray(0, 500_000), file.length)], base), fails('Storage', /wanted \d+ bytes/));
        await assert.rejects(core.open([new TestSource(file, NaN)], base), fails('BadArgument', /cannot be read/));

        const poisoned = Buffer.from(file);
        poisoned.writeUInt16LE(0x7e00, readGguf(file).offset('blk.1.ffn_up.weight') + 2 * 70);
        const damage = fails('BadModel', /tensor 'blk\.1\.ffn_up\.weight' \(F16\) holds NaN or an infinity in block 70:/);
        if (onGpu) await assert.rejects(open(poisoned), damage);
        else {
            const engine = await open(poisoned);
            await assert.rejects(engine.session().set(Int32Array.of(2, 300, 301)), damage);
            engine.close();
        }
    });
    return engineOf;
}

export { closeTo, fails, sourceOf };
