/* The protocol with a real thread, structured clones and transfers; and the host when a GPU is lost. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { type LoadOptions, makeLoader } from '../src/api/engine.ts';
import type { Session } from '../src/api/session.ts';
import { GemmuleError } from '../src/core/errors.ts';
import { Core } from '../src/core/core.ts';
import type { CoreEngineLike, CoreLike, CoreSessionLike, EngineOptions, Piece, ReplyStats } from '../src/core/types.ts';
import type { DeviceEvent, Message } from '../src/node.ts';
import { FileSource } from '../src/sources/file.ts';
import { Connection, directLine } from '../src/worker/connection.ts';
import { Host } from '../src/worker/host.ts';
import { PROTOCOL, type Port, type SourceSpec } from '../src/worker/protocol.ts';
import { DENSE, ENDLESS, ROOT, WASM, endlessModel } from './support/models.ts';

const HELLO = [{ role: 'user', content: 'Hello' }] as const;
const pathSpec = (path: string): SourceSpec => ({ kind: 'path', path });
const specifyPath = (path: string) => ({ sources: [pathSpec(path)], options: {} });

function fails(name: string, text: RegExp) {
    return (error: { name: string; message: string }) => {
        assert.equal(error.name, name, error.message);
        assert.match(error.message, text);
        return true;
    };
}

// ---- a thread ----

interface Thread {
    worker: Worker;
    port: Port;
    connection: Connection;
}

async function startThread(): Promise<Thread> {
    const worker = new Worker(new URL('./support/thread.ts', import.meta.url));
    const port: Port = {
        post: (message, transfer) => worker.postMessage(message, transfer as ArrayBuffer[]),
        onMessage: null,
        close: () => void worker.terminate(),
    };
    const connection = new Connection(port);
    worker.on('message', (message) => port.onMessage?.(message));
    worker.on('error', (error) => connection.close(new GemmuleError('WorkerDied', error.message)));
    worker.on('exit', () => connection.die(new GemmuleError('WorkerDied', 'the worker ended')));
    await connection.call('hello', { wasmUrl: WASM });
    return { worker, port, connection };
}

test('a whole conversation with a thread', async () => {
    let thread: Thread | null = null;
    const loader = makeLoader(async () => (thread = await startThread()).connection, specifyPath);
    const engine = await loader.load(DENSE);
    const session = await engine.session();
    const reply = session.reply([...HELLO], { maxTokens: 10, sampling: { seed: 4n }, logprobs: 2 });
    let text = '';
    for await (const piece of reply) {
        if (piece.kind !== 'content') continue;
        text += piece.text;
        assert.ok(piece.logprobs!.every((row) => row.length === 3 && row[0]!.bytes instanceof Uint8Array));
    }
    assert.ok(text.length > 0 && (await reply.stats).replyTokens === 10);
    const bytes = await session.save();
    const size = bytes.length;
    const held = await session.tokens();
    await session.rollback(0);
    await session.restore(bytes);
    assert.ok(size > 1000 && bytes.length === 0, 'the snapshot was handed over');
    assert.deepEqual(await session.tokens(), held);
    await assert.rejects(engine.render([{ role: 'wizard' as 'user', content: '' }]), fails('BadArgument', /wizard/));
    await assert.rejects(engine.render([{ role: 'user', content: (() => '') as unknown as string }]), fails('BadArgument', /could not be cloned/));
    await engine.unload();
    assert.ok(thread!.connection.dead);
});

test('an abort reaches a thread that never waits', async () => {
    const loader = makeLoader(async () => (await startThread()).connection, specifyPath);
    const engine = await loader.load(endlessModel(), { context: 1 << 20 });
    const session = await engine.session();
    const reply = session.reply([...HELLO], { sampling: ENDLESS });
    let count = 0;
    for await (const piece of reply) if (piece.kind === 'content' && ++count === 3) break;
    assert.equal((await reply.stats).finish, 'cancelled');
    assert.ok((await session.tokens()).length < 5000);
    await engine.unload();
});

test('several sessions of one engine write at once', async () => {
    const loader = makeLoader(async () => (await startThread()).connection, specifyPath);
    const engine = await loader.load(endlessModel(), { context: 1 << 20 });
    const write = async (max: number) => {
        const session = await engine.session();
        const reply = session.reply([...HELLO], { maxTokens: max, sampling: { seed: 4n } });
        let text = '';
        for await (const piece of reply) if (piece.kind === 'content') text += piece.text;
        await session.close();
        return text;
    };
    const alone = [await write(12), await write(20)];
    const endless = (await engine.session()).reply([...HELLO], { sampling: ENDLESS });
    const pieces = endless[Symbol.asyncIterator]();
    assert.ok(!(await pieces.next()).done);
    // While that one is written, others begin and end, and it goes on.
    assert.deepEqual(await Promise.all([write(12), write(20)]), alone);
    assert.ok(!(await pieces.next()).done);
    endless.stop();
    assert.equal((await endless.stats).finish, 'cancelled');
    await engine.unload();
});

test('a dead worker rejects every promise', async () => {
    for (const end of [(thread: Thread) => void thread.worker.terminate(), (thread: Thread) => thread.worker.postMessage('crash')]) {
        let thread: Thread | null = null;
        const loader = makeLoader(async () => (thread = await startThread()).connection, specifyPath);
        const engine = await loader.load(endlessModel(), { context: 1 << 20 });
        const session = await engine.session();
        const reply = session.reply([...HELLO], { sampling: ENDLESS });
        const waiting = session.save();
        const iterated = (async () => {
            for await (const _ of reply);
        })();
        end(thread!);
        for (const promise of [waiting, iterated, reply.stats, engine.session()]) await assert.rejects(promise, fails('WorkerDied', /ended|crashed/));
        await assert.rejects(engine.tokenize('x'), fails('WorkerDied', /ended|crashed/));
        await engine.unload();
    }
});

test('messages of another version and unknown operations are refused', async () => {
    const { connection, port } = await startThread();
    const answers: { id: number; error?: { name: string; message: string } }[] = [];
    port.onMessage = (message) => answers.push(message as (typeof answers)[number]);
    port.post({ v: PROTOCOL + 1, id: 100, op: 'stats', args: {} }, []);
    port.post({ v: PROTOCOL, id: 101, op: 'constructor', args: {} }, []);
    port.post({ v: PROTOCOL, id: 102, op: 'stats', args: {} }, []);
    while (answers.length < 3) await new Promise((resolve) => setTimeout(resolve, 5));
    const byId = (id: number) => answers.find((answer) => answer.id === id)!.error!;
    assert.deepEqual([byId(100).name, byId(101).name, byId(102).name], ['NotSupported', 'BadArgument', 'BadArgument']);
    assert.match(byId(100).message, /reload the page/);
    connection.close();
});

// ---- a lost GPU ----

/* The real core on wasm, pretending to be a GPU: the test decides when it is lost, and whether it comes back. */
class FragileCore implements CoreLike {
    readonly #core: Core;
    opened: string[] = [];
    /** The errors of the next opens. */
    failures: GemmuleError[] = [];
    /** The device is lost after this many pieces of an answer. */
    loseAfter = Infinity;
    #lose: (reason: string) => void = () => undefined;

    constructor(core: Core) {
        this.#core = core;
    }

    lose(): void {
        this.#lose('the driver was reset');
    }

    devices = () => this.#core.devices();
    dryRun: CoreLike['dryRun'] = (sources, options) => this.#core.dryRun(sources, options);

    async open(sources: Parameters<CoreLike['open']>[0], options: EngineOptions = {}): Promise<CoreEngineLike> {
        this.opened.push(`${options.softwareGpu === false ? 'hardware ' : ''}${options.backend ?? 'auto'}`);
        const failure = options.backend === 'wasm' ? undefined : this.failures.shift();
        if (failure) throw failure;
        const engine = await this.#core.open(sources, { ...options, backend: 'wasm' });
        const info = { ...engine.info, backend: options.backend === 'wasm' ? ('wasm' as const) : ('gpu' as const) };
        const lost = new Promise<string>((resolve) => (this.#lose = resolve));
        const session = engine.session.bind(engine);
        const fragile = (options: Parameters<typeof session>[0]) => this.#fragile(session(options));
        return new Proxy(engine, {
            get: (target, key) => {
                if (key === 'info') return info;
                if (key === 'lost') return lost;
                if (key === 'session') return fragile;
                const value: unknown = Reflect.get(target, key, target);
                return typeof value === 'function' ? (value as () => void).bind(target) : value;
            },
        }) as CoreEngineLike;
    }

    #fragile(session: CoreSessionLike): CoreSessionLike {
        const breakable = (generator: AsyncGenerator<Piece, ReplyStats>) => this.#breakable(generator);
        return new Proxy(session, {
            get: (target, key) => {
                if (key === 'reply') return (...args: Parameters<CoreSessionLike['reply']>) => breakable(target.reply(...args));
                const value: unknown = Reflect.get(target, key, target);
                return typeof value === 'function' ? (value as () => void).bind(target) : value;
            },
        });
    }

    async *#breakable(generator: AsyncGenerator<Piece, ReplyStats>): AsyncGenerator<Piece, ReplyStats> {
        for (;;) {
            if (this.loseAfter-- <= 0) {
                this.loseAfter = Infinity;
                throw new GemmuleError('DeviceLost', 'the driver was reset');
            }
            const next = await generator.next();
            if (next.done) return next.value;
            yield next.value;
        }
    }
}

async function fragile(options: LoadOptions = {}, model = DENSE) {
    const core = new FragileCore(await Core.create({ wasm: readFileSync(WASM) as Uint8Array<ArrayBuffer>, gpu: null }));
    const events: DeviceEvent[] = [];
    const loader = makeLoader(async () => {
        const [page, worker] = directLine();
        new Host(worker, { core: async () => core, openSource: (spec) => FileSource.open((spec as SourceSpec & { kind: 'path' }).path) });
        return new Connection(page);
    }, specifyPath, undefined, async (folder) => ({ name: basename(String(folder)), ...filesOf(String(folder)) }));
    const load = () => loader.load(model, { ...options, onDeviceLost: (event) => events.push(event) });
    return { core, events, load };
}

const filesOf = (folder: string) => ({ weights: pathSpec(join(folder, 'adapter_model.safetensors')), config: pathSpec(join(folder, 'adapter_config.json')) });
const gone = () => new GemmuleError('NoWebGPU', 'no adapter');

async function answer(session: Session): Promise<[string, ReplyStats]> {
    let text = '';
    const reply = session.reply([...HELLO], { maxTokens: 40, sampling: { seed: 77 } });
    for await (const piece of reply) if (piece.kind === 'content') text += piece.text;
    return [text, await reply.stats];
}

test('an answer continues after its last token when the GPU is lost meanwhile', async () => {
    const { core, events, load } = await fragile();
    const engine = await load();
    const [whole, stats] = await answer(await engine.session());
    for (const after of [0, 1, 7, 20]) {
        events.length = 0;
        core.loseAfter = after;
        const session = await engine.session();
        const [text, again] = await answer(session);
        assert.equal(text, whole, `lost after ${after} pieces`);
        assert.deepEqual([again.replyTokens, again.promptTokens, again.finish], [stats.replyTokens, stats.promptTokens, stats.finish]);
        assert.deepEqual(events.filter(({ type }) => type !== 'restoring').map(({ type }) => type), ['lost', 'restored']);
    }
    await engine.unload();
});

test('a GPU that is lost while idle is restored, with the conversations', async () => {
    const { core, events, load } = await fragile();
    const engine = await load();
    const session = await engine.session();
    const [text] = await answer(session);
    const held = await session.tokens();
    core.failures = [gone(), gone()]; // the browser restarts its GPU process
    core.lose();
    assert.deepEqual(await session.tokens(), held);
    while (!events.some(({ type }) => type === 'restored')) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.deepEqual(core.opened, ['auto', 'hardware gpu', 'hardware gpu', 'hardware gpu']);
    const fork = await session.fork();
    assert.deepEqual(await fork.tokens(), held);
    await fork.rollback(10);
    await fork.append([5, 6]);
    assert.deepEqual([...(await fork.tokens())], [...held.slice(0, 10), 5, 6]);
    assert.equal((await answer(session))[0], text);
    await engine.unload();
});

test('adapters come back with the GPU, also one that was let go while a session used it', async () => {
    const { core, events, load } = await fragile();
    const engine = await load();
    const adapter = await engine.adapters.load(join(ROOT, 'tests/fixtures/tiny-dense-lora'));
    const [plain] = await answer(await engine.session());
    const session = await engine.session({ adapters: [adapter] });
    const [adapted] = await answer(session);
    assert.notEqual(adapted, plain);
    core.loseAfter = 7;
    assert.equal((await answer(session))[0], adapted); // it continues on the new device
    await adapter.free();
    events.length = 0;
    core.lose();
    while (!events.some(({ type }) => type === 'restored')) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal((await answer(session))[0], adapted);
    await session.useAdapters([]);
    assert.equal((await answer(session))[0], plain);
    await engine.unload();
});

test('a reply brings back a conversation with a picture after a lost GPU, also in a fork; its tokens alone do not', async () => {
    const { core, load } = await fragile({}, join(ROOT, 'models/box.gguf'));
    const engine = await load();
    const session = await engine.session();
    const picture = new Blob([readFileSync(join(ROOT, 'tests/box/pictures/05.png'))]);
    const asked: Message[] = [{ role: 'user', content: [{ type: 'image', image: picture }, { type: 'text', text: 'What does the picture show?' }] }];
    const see = async (of: Session) => {
        const reply = of.reply(asked, { sampling: { temperature: 0 } });
        let text = '';
        for await (const piece of reply) if (piece.kind === 'content') text += piece.text;
        return text;
    };
    const seen = await see(session), held = await session.tokens();
    assert.match(seen, /a large green star on the left/);
    core.lose();
    const fork = await session.fork();
    assert.deepEqual(await fork.tokens(), held);
    await assert.rejects(fork.append([5, 6]), fails('BadArgument', /stands for a picture/));
    assert.deepEqual(await fork.tokens(), held);
    assert.equal(await see(fork), seen);
    assert.equal(await see(session), seen);
    await engine.unload();
});

test('if no GPU comes back, the error is NoWebGPU, the conversation is kept, and wasm is offered', async () => {
    const { core, events, load } = await fragile();
    const engine = await load();
    const session = await engine.session();
    const [text] = await answer(session);
    const held = await session.tokens();
    core.failures = Array.from({ length: 5 }, gone);
    core.lose();
    await assert.rejects(answer(session), (error: { name: string; detail: object }) => {
        assert.equal(error.name, 'NoWebGPU');
        assert.deepEqual(error.detail, { conversationKept: true, offers: ['wasm', 'reload'] });
        return true;
    });
    assert.equal(events.at(-1)!.type, 'gone');
    assert.deepEqual(await session.tokens(), held);
    assert.equal((await engine.recover({ backend: 'wasm' })).backend, 'wasm');
    assert.equal((await answer(session))[0], text);
    assert.equal(engine.info.backend, 'wasm');
    await engine.unload();
});

test('with fallback, wasm takes over; a loss while loading is tried again', async () => {
    const { core, load } = await fragile({ fallback: 'wasm' });
    core.failures = [new GemmuleError('DeviceLost', 'lost while loading')];
    const engine = await load();
    assert.deepEqual(core.opened, ['auto', 'auto']);
    const session = await engine.session();
    const [text] = await answer(session);
    core.failures = Array.from({ length: 5 }, gone);
    core.lose();
    assert.equal((await answer(session))[0], text);
    assert.equal(engine.info.backend, 'wasm');
    await engine.unload();
});

test('a first load without a GPU is not a lost GPU', async () => {
    const { core, load } = await fragile();
    core.failures = [gone()];
    await assert.rejects(load(), fails('NoWebGPU', /no adapter/));
    assert.equal(core.opened.length, 1);
});
