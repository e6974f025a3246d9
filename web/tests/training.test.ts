/* Training in the package: events, pause, stop, going on, and what is kept when something fails. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Gemmule, GemmuleError } from '../src/node.ts';
import type { Engine, Training } from '../src/node.ts';
import { TrainingStore } from '../src/sources/training_store.ts';
import type { TrainingEvent } from '../src/worker/protocol.ts';
import { fails } from './core_cases.ts';
import { MemoryFolder, withStorage } from './support/memory_files.ts';
import { DENSE, MOE, WASM } from './support/models.ts';

const OPTIONS = { wasmUrl: WASM, backend: 'wasm', threads: 1, training: true } as const;
const DATA = Array.from({ length: 6 }, (_, i) => ({ prompt: `Question ${i}`, completion: `Answer ${i}.` }));
const SETTINGS = { name: 'taught', data: DATA, rank: 2, batch: 2, epochs: 2, rate: 1e-2, keepEvery: 2, seed: 7 } as const; // 6 steps

async function eventsOf(training: Training, each: (event: TrainingEvent) => void = () => undefined): Promise<TrainingEvent[]> {
    const events: TrainingEvent[] = [];
    for await (const event of training) {
        events.push(event);
        each(event);
    }
    return events;
}

const lossesOf = (events: TrainingEvent[]): number[] => events.flatMap((event) => (event.kind === 'step' ? [Math.fround(event.loss!)] : []));
const kindsOf = (events: TrainingEvent[], ...kinds: TrainingEvent['kind'][]): number => events.filter(({ kind }) => kinds.includes(kind)).length;

async function uninterrupted(engine: Engine, epochs: number = SETTINGS.epochs): Promise<number[]> {
    return lossesOf(await eventsOf(engine.train({ ...SETTINGS, epochs, store: false })));
}

test('a training has steps, and its result is an adapter that sessions use and that can be exported', async () => {
    await using engine = await Gemmule.load(DENSE, OPTIONS);
    const training = engine.train({ ...SETTINGS, evalShare: 0.34, store: false });
    const events = await eventsOf(training), losses = lossesOf(events);
    const result = await training.result;
    assert.equal(events[0]!.kind, 'data');
    assert.equal(kindsOf(events, 'start'), 1);
    assert.equal(losses.length, result.state.steps);
    assert(kindsOf(events, 'evaluation') >= 2 && result.history.evaluations.length === kindsOf(events, 'evaluation'));
    assert(losses.at(-1)! < losses[0]!, `the loss fell from ${losses[0]} to ${losses.at(-1)}`);
    assert.deepEqual([...result.history.losses], losses);
    assert.deepEqual([result.end, result.name, result.stored], ['complete', 'taught', false]);
    const last = events.findLast((event) => event.kind === 'step')!;
    assert(last.kind === 'step' && last.secondsLeft !== null && last.tokensPerSecond > 0 && last.memory > 0);

    const adapter = await engine.adapters.load(result.adapter!);
    assert.deepEqual([adapter.name, adapter.info.rank], ['taught', 2]);
    const logits = async (adapters: (typeof adapter)[]): Promise<Float32Array> => {
        const session = await engine.session({ adapters });
        await session.set(await engine.tokenize('Question 1'));
        return (await session.logits())!;
    };
    assert.notDeepEqual(await logits([adapter]), await logits([]));
    assert.deepEqual((await adapter.export('peft')).map(({ name }) => name), ['adapter_config.json', 'adapter_model.safetensors']);
});

test('the same settings give the same losses; pausing changes nothing, and answers are written meanwhile', async () => {
    await using engine = await Gemmule.load(DENSE, OPTIONS);
    const expected = await uninterrupted(engine);
    const training = engine.train({ ...SETTINGS, store: false });
    const session = await engine.session();
    const events = await eventsOf(training, (event) => {
        if (event.kind === 'step' && event.step === 2) void training.pause();
        if (event.kind !== 'paused') return;
        void session.set(Int32Array.of(2, 5, 6)).then(() => training.resume());
    });
    assert.deepEqual(lossesOf(events), expected);
    assert.deepEqual([kindsOf(events, 'paused'), kindsOf(events, 'resumed'), (await session.tokens()).length], [1, 1, 3]);
});

test('a training that is stopped has the adapter so far; one that is stopped at once has none', async () => {
    await using engine = await Gemmule.load(DENSE, OPTIONS);
    const training = engine.train({ ...SETTINGS, epochs: 40, store: false });
    await eventsOf(training, (event) => { if (event.kind === 'step' && event.step === 3) void training.stop(); });
    const result = await training.result;
    assert.equal(result.end, 'stopped');
    assert(result.state.step >= 3 && result.state.step < 120 && result.adapter);
    const never = engine.train({ ...SETTINGS, store: false, signal: AbortSignal.abort() });
    await eventsOf(never);
    assert.deepEqual([(await never.result).end, (await never.result).adapter], ['stopped', null]);
});

test('a training that is kept goes on in another engine, with the losses of one that was never interrupted', () =>
    withStorage(async () => {
        const store = await TrainingStore.open();
        let expected: number[];
        {
            await using engine = await Gemmule.load(DENSE, OPTIONS);
            expected = await uninterrupted(engine, 8);
            const training = engine.train({ ...SETTINGS, epochs: 8 });
            await assert.rejects(async () => {
                for await (const event of training) if (event.kind === 'stored' && event.step === 4) await engine.unload(); // as when a tab is closed
            }, fails('Aborted', /./));
        }
        const [kept] = await store.list();
        const at = kept!.state!.step; // a few more steps may have been made
        assert(at >= 4 && at < expected.length, `interrupted after step ${at} of ${expected.length}`);
        assert.deepEqual([kept!.name, kept!.end, kept!.problem, kept!.adapters.at(-1)!.step], ['taught', '', '', at]);
        {
            await using other = await Gemmule.load(MOE, OPTIONS);
            await assert.rejects(other.train({ resume: 'taught' }).result, fails('BadArgument', /belongs to the model Tiny Dense, not to Tiny M/));
            await assert.rejects(other.train({ resume: 'nothing' }).result, fails('NotFound', /no training 'nothing' is kept here/));
        }
        await using engine = await Gemmule.load(DENSE, OPTIONS);
        const training = engine.train({ resume: 'taught' });
        const events = await eventsOf(training);
        const history = events.find((event) => event.kind === 'history');
        assert(history?.kind === 'history');
        assert.deepEqual([...history.losses], expected.slice(0, at));
        assert.deepEqual(lossesOf(events), expected.slice(at));
        assert.deepEqual([...(await training.result).history.losses], expected);
        const [done] = await store.list();
        assert.deepEqual([done!.end, done!.adapters.map(({ step }) => step)], ['complete', [20, 22, 24]]); // the latest
        const file = await store.adapter('taught', 22);
        assert.equal((await engine.adapters.inspect(file)).problem, '');
        await assert.rejects(store.adapter('taught', 3), fails('NotFound', /no adapter after step 3/));
        await store.delete('taught');
        assert.deepEqual(await store.list(), []);
    }));

test('without space the training goes on, and says so', () =>
    withStorage(async (_, on) => {
        await using engine = await Gemmule.load(DENSE, OPTIONS);
        const training = engine.train(SETTINGS);
        const events = await eventsOf(training, (event) => { if (event.kind === 'stored') on.quota = on.used; });
        const refused = events.find((event) => event.kind === 'not-stored');
        assert(refused?.kind === 'not-stored');
        assert.match(refused.reason, /the state after step 2 could not be stored: no space/);
        assert((await training.result).adapter);
        const full = engine.train({ ...SETTINGS, name: 'other' });
        await assert.rejects(full.result, fails('QuotaExceeded', /cannot keep the training 'other'/));
    }));

test('a damaged training is listed with what is wrong, and can be deleted', async () => {
    const root = new MemoryFolder('opfs'), store = await TrainingStore.open(root as unknown as FileSystemDirectoryHandle);
    const data = { name: 'a.jsonl', blob: new Blob(['{}']), media: [{ path: 'a.png', blob: new Blob(['x']) }] };
    await store.create('broken', { name: 'm', digest: '' }, {}, data);
    const [key] = [...(await (await (await root.getDirectoryHandle('gemmule')).getDirectoryHandle('v1')).getDirectoryHandle('trainings')).children.keys()];
    root.put(`gemmule/v1/trainings/${key}/data`, '{"longer": 1}');
    assert.match((await store.find('broken'))!.problem, /copy of the examples has 13 bytes, expected 2/);
    await assert.rejects(store.read('broken'), fails('Storage', /cannot go on: its copy/));
    root.put(`gemmule/v1/trainings/${key}/about.json`, '{"schema": 1}');
    assert.deepEqual(await store.list(), []);
    await store.delete('broken');
    await assert.rejects(store.read('broken'), fails('NotFound', /was it deleted/));
});

test('bad settings and bad examples are refused with a reason', async () => {
    await using engine = await Gemmule.load(DENSE, OPTIONS);
    const refused = async (change: object, ...error: Parameters<typeof fails>): Promise<void> =>
        assert.rejects(engine.train({ ...SETTINGS, store: false, ...change }).result, fails(...error));
    await refused({ rank: 1.5 }, 'BadArgument', /rank must be a whole number/);
    await refused({ targets: 'nothing' }, 'BadArgument', /nothing/);
    await refused({ data: [{ prompt: 1 }] }, 'BadData', /line 1/);
    await refused({ data: [] }, 'BadArgument', /there are no examples/);
    assert.throws(() => engine.train({ ...SETTINGS, name: 'a+b' }), (error) => error instanceof GemmuleError && /must not have/.test(error.message));
});
