/* Threads on wasm in Node: they give the same answers as one thread, and all of them end. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { Core } from '../src/core/core.ts';
import type { CoreEngine } from '../src/core/engine.ts';
import { THREAD, type ThreadHost, type ThreadPort, besideWasm, usualThreads } from '../src/core/threads.ts';
import { Gemmule } from '../src/node.ts';
import { fails, sourceOf } from './core_cases.ts';
import { DENSE, ENDLESS, MOE, WASM, endlessModel } from './support/models.ts';

const PROMPT = Int32Array.from({ length: 200 }, (_, i) => 300 + ((i * 37) % 300));

/* Starts workers as the package does in Node, but within the test's reach. */
const alive = new Set<Worker>();

function startThread(change: (message: object) => object = (message) => message): ThreadPort {
    const worker = new Worker(new URL('../src/worker/worker.ts', import.meta.url), { workerData: THREAD });
    const port: ThreadPort = { post: (message) => worker.postMessage(change(message as object)), onMessage: null, onError: null, close: () => void worker.terminate() };
    alive.add(worker);
    worker.on('message', (message) => port.onMessage?.(message));
    worker.on('error', (error) => port.onError?.(String(error)));
    worker.on('exit', () => {
        alive.delete(worker);
        port.onError?.('it ended');
    });
    return port;
}

const module = await WebAssembly.compile(readFileSync(besideWasm(WASM)));
const host: ThreadHost = { processors: 2, compile: async () => module, start: () => startThread() };
const coreWith = (threads: ThreadHost | null) => Core.create({ wasm: readFileSync(WASM), threads });

async function ended(): Promise<void> {
    await Promise.all([...alive].map((worker) => once(worker, 'exit')));
    assert.equal(alive.size, 0);
}

/* The logits of a prompt, and the tokens that follow it. */
async function answer(engine: CoreEngine): Promise<{ logits: Float32Array | null; tokens: Int32Array }> {
    const session = engine.session();
    await session.set(PROMPT);
    const logits = session.logits();
    for await (const _ of session.replyTokens(PROMPT, { sampling: { temperature: 0 }, maxTokens: 40 }));
    return { logits, tokens: session.tokens() };
}

test('two and three threads answer as one does, and end with the engine', async () => {
    const core = await coreWith(host);
    for (const path of [DENSE, MOE]) {
        const one = await core.open([sourceOf(path)], { threads: 1 });
        const expected = await answer(one);
        assert.deepEqual([one.info.threads, alive.size], [1, 0]);
        one.close();
        for (const threads of [2, 3]) {
            const engine = await core.open([sourceOf(path)], { threads });
            assert.deepEqual([engine.info.threads, engine.info.note, alive.size], [threads, '', threads - 1]);
            assert.equal(engine.info.device, `cpu (wasm, ${threads} threads)`);
            assert.deepEqual(await answer(engine), expected);
            const session = engine.session();
            await session.set(PROMPT);
            const snapshot = await session.save();
            await session.restore(snapshot);
            assert.deepEqual(session.tokens(), PROMPT);
            engine.close();
            await ended();
        }
    }
});

test('the default number of threads fits the processor; without shared memory it is one', async () => {
    assert.deepEqual([1, 2, 4, 6, 8, 16, 128].map(usualThreads), [1, 2, 4, 4, 4, 8, 16]);
    const core = await coreWith(host);
    const engine = await core.open([sourceOf(DENSE)]);
    assert.equal(engine.info.threads, 2);
    engine.close();
    assert.deepEqual((await core.devices())[0]!.features, ['simd128', 'threads']);
    await assert.rejects(core.open([sourceOf(DENSE)], { threads: 0 }), fails('BadArgument', /threads must be a whole number from 1 to 64, found 0/));
    await assert.rejects(core.open([sourceOf(DENSE)], { threads: 65 }), fails('BadArgument', /found 65/));
    const alone = await coreWith(null);
    const single = await alone.open([sourceOf(DENSE)], { threads: 4 });
    assert.deepEqual([single.info.threads, single.info.note], [1, '']);
    assert.deepEqual((await alone.devices())[0]!.features, ['simd128']);
    single.close();
    await ended();
});

test('if threads cannot start, one computes, and the note says why', async () => {
    const hosts: [ThreadHost, RegExp][] = [
        [{ ...host, compile: () => Promise.reject(new Error('no such file')) }, /^running on 1 thread instead of 2: no such file$/],
        [{ ...host, start: () => startThread((message) => ({ ...message, memory: null })) }, /^running on 1 thread instead of 2: a thread of the engine failed: .*memory/],
    ];
    for (const [broken, why] of hosts) {
        const engine = await (await coreWith(broken)).open([sourceOf(DENSE)]);
        assert.equal(engine.info.threads, 1);
        assert.match(engine.info.note, why);
        assert.ok((await answer(engine)).tokens.length > PROMPT.length);
        engine.close();
        await ended();
    }
});

test('a model that cannot be opened leaves no threads behind', async () => {
    const core = await coreWith(host);
    await assert.rejects(core.open([sourceOf(WASM)]), fails('BadModel', /GGUF/));
    await assert.rejects(core.open([]), fails('BadArgument', /at least one source/));
    await ended();
});

test('after an answer is stopped the session can be used again', async () => {
    const engine = await (await coreWith(host)).open([sourceOf(endlessModel())]);
    const session = engine.session({ context: 4096 });
    const controller = new AbortController();
    let pieces = 0;
    const reply = session.replyTokens(PROMPT, { sampling: ENDLESS, signal: controller.signal });
    for (;;) {
        const { done, value } = await reply.next();
        if (++pieces === 20) controller.abort();
        if (!done) continue;
        assert.equal(value.finish, 'cancelled');
        break;
    }
    assert.ok(session.tokens().length > PROMPT.length);
    await session.append(Int32Array.of(300));
    assert.ok(session.logits());
    engine.close();
    await ended();
});

test('a thread that dies ends the engine with an error', async () => {
    // During a run: without a stack it traps in its first task.
    const broken = await coreWith({ ...host, start: () => startThread((message) => ('stack' in message ? { ...message, stack: 16 } : message)) });
    const first = await broken.open([sourceOf(endlessModel())]);
    const session = first.session({ context: 1 << 16 });
    const write = async () => {
        for await (const _ of session.replyTokens(PROMPT, { sampling: ENDLESS }));
    };
    const why = fails('WorkerDied', /^a thread of the engine failed: it crashed, or does not respond$/);
    await assert.rejects(write, why);
    assert.throws(() => first.session(), why);
    await ended();
    // While the engine is idle.
    const second = await (await coreWith(host)).open([sourceOf(DENSE)]);
    const [worker] = alive;
    await worker!.terminate();
    assert.throws(() => second.session(), fails('WorkerDied', /it ended/));
    await ended();
});

test("the package's own threads", async () => {
    const texts = [];
    for (const threads of [1, 2]) {
        const engine = await Gemmule.load(DENSE, { wasmUrl: WASM, backend: 'wasm', threads });
        assert.deepEqual([engine.info.threads, engine.info.note], [threads, '']);
        const { choices } = await engine.chat.completions.create({ messages: [{ role: 'user', content: 'Hello' }], max_tokens: 20, temperature: 0 });
        texts.push(choices[0]!.message.content);
        await engine.unload();
    }
    assert.equal(texts[0], texts[1]);
});
