/* The Vercel AI SDK and the Prompt API's shape, on the real engine (wasm). */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { generateText, jsonSchema, streamText, tool } from 'ai';
import { gemmule } from '../src/api/ai_sdk.ts';
import { languageModel, polyfill } from '../src/api/language_model.ts';
import { type Engine, Gemmule } from '../src/node.ts';
import { ADD_CALL, DENSE, THINKING, WASM, endlessModel, scripted } from './support/models.ts';

const OPTIONS = { wasmUrl: WASM, backend: 'wasm', threads: 1 } as const;
const engines: Engine[] = [];
async function load(path: string, options = {}): Promise<Engine> {
    engines.push(await Gemmule.load(path, { ...OPTIONS, ...options }));
    return engines.at(-1)!;
}
let dense: Engine;
let call: Engine;
before(async () => {
    dense = await load(DENSE);
    call = await load(scripted('call', ...ADD_CALL));
});
after(() => Promise.all(engines.map((engine) => engine.unload())));

function fails(name: string, text: RegExp) {
    return (error: { name: string; message: string }) => {
        assert.equal(error.name, name, error.message);
        assert.match(error.message, text);
        return true;
    };
}

const add = tool({
    description: 'Adds one.',
    inputSchema: jsonSchema<{ a: number }>({ type: 'object', properties: { a: { type: 'number' } }, required: ['a'] }),
    execute: async ({ a }) => ({ sum: a + 1 }),
});

// ---- AI SDK ----

test('generateText, with usage and a reason to finish', async () => {
    const wish = { model: gemmule(dense), system: 'Be brief.', prompt: 'Hello', seed: 3, maxOutputTokens: 12 };
    const result = await generateText(wish);
    assert.ok(result.text.length > 0);
    assert.equal(result.finishReason, 'length');
    assert.equal(result.usage.outputTokens, 12);
    assert.ok(result.usage.inputTokens! > 5);
    assert.equal((await generateText(wish)).text, result.text);
    assert.equal(result.response.modelId ?? gemmule(dense).modelId, 'Tiny Dense');
});

test('generateText with a tool: it is called, and its result goes back', async () => {
    const { steps, toolCalls, toolResults } = await generateText({ model: gemmule(call), prompt: 'Hello', temperature: 0, tools: { add } });
    assert.equal(steps.length, 1);
    assert.deepEqual(toolCalls.map(({ toolName, input }) => [toolName, input]), [['add', { a: 1 }]]);
    assert.deepEqual(toolResults.map(({ output }) => output), [{ sum: 2 }]);
    const { steps: two } = await generateText({
        model: gemmule(call), prompt: 'Hello', temperature: 0, tools: { add }, maxOutputTokens: 40, stopWhen: ({ steps: done }) => done.length === 2,
    });
    assert.equal(two.length, 2);
});

test('streamText with a tool', async () => {
    const result = streamText({ model: gemmule(call), prompt: 'Hello', temperature: 0, tools: { add } });
    const types: string[] = [];
    let text = '';
    for await (const part of result.fullStream) {
        types.push(part.type);
        if (part.type === 'text-delta') text += part.text;
        if (part.type === 'error') throw part.error;
    }
    assert.equal(text, 'Ok');
    for (const type of ['text-start', 'text-end', 'tool-input-start', 'tool-call', 'tool-result', 'finish']) assert.ok(types.includes(type), `${type} in ${types}`);
    assert.equal(await result.finishReason, 'tool-calls');
});

test('streamText: thoughts, stopping', async () => {
    const thinking = await load(scripted('think', ...THINKING));
    const thought = await generateText({ model: gemmule(thinking), prompt: 'Hello', temperature: 0, reasoning: 'low' });
    assert.deepEqual([thought.reasoningText, thought.text], ['Hm', 'Yes.']);
    const endless = await load(endlessModel(), { context: 1 << 20 });
    const controller = new AbortController();
    const result = streamText({ model: gemmule(endless), prompt: 'Hello', temperature: 0, abortSignal: controller.signal, onError: () => undefined });
    let count = 0;
    for await (const part of result.fullStream) if (part.type === 'text-delta' && ++count === 3) controller.abort();
    assert.ok(count >= 3 && count < 10_000);
});

test('what the provider cannot do is said', async () => {
    const model = gemmule(dense);
    const image = { role: 'user' as const, content: [{ type: 'file' as const, mediaType: 'image/png', data: new Uint8Array([137, 80, 78, 71]) }] };
    await assert.rejects(generateText({ model, messages: [image], maxRetries: 0 }), fails('BadArgument', /not a picture that can be read/));
    const film = { role: 'user' as const, content: [{ type: 'file' as const, mediaType: 'video/mp4', data: new Uint8Array([0]) }] };
    await assert.rejects(generateText({ model, messages: [film], maxRetries: 0 }), fails('NotSupported', /a file of type video\/mp4/));
    await assert.rejects(generateText({ model, prompt: 'x', tools: { add }, toolChoice: 'required', maxRetries: 0 }), fails('NotSupported', /toolChoice/));
});

// ---- Prompt API ----

test('prompts of one session know each other; a clone goes its own way', async () => {
    const factory = languageModel(dense);
    assert.equal(await factory.availability(), 'available');
    assert.equal(await factory.availability({ expectedInputs: [{ type: 'image' }] }), 'unavailable');
    const session = await factory.create({ initialPrompts: [{ role: 'system', content: 'Be brief.' }], temperature: 0, topK: 5 });
    assert.deepEqual([session.temperature, session.topK], [0, 5]);
    const start = session.contextUsage;
    assert.ok(start > 3 && session.contextWindow > 1000);
    const controller = new AbortController();
    const long = session.promptStreaming('Hello', { signal: controller.signal });
    const reader = long.getReader();
    const first = await reader.read();
    assert.equal(typeof first.value, 'string');
    await reader.cancel();
    assert.ok((await session.measureContextUsage('Hello there')) > 1);
    await session.append([{ role: 'user', content: 'A fact.' }, { role: 'assistant', content: 'Noted.' }]);
    assert.ok(session.contextUsage > start);
    const copy = await session.clone();
    assert.equal(copy.contextUsage, session.contextUsage);
    session.destroy();
    await assert.rejects(session.prompt('x'), fails('Aborted', /destroyed/));
    await assert.rejects(copy.prompt('x', { responseConstraint: {} }), fails('NotSupported', /responseConstraint/));
    await assert.rejects(copy.prompt([{ role: 'user', content: [{ type: 'image', value: 1 }] }]), fails('BadArgument', /a picture must be a Blob/));
    await assert.rejects(copy.prompt('x', { signal: AbortSignal.abort() }), fails('Aborted', /stopped/));
    copy.destroy();
});

test('a whole prompt, and tools that run', async () => {
    const brief = await load(scripted('brief', 'Y', 'e', 's', '.', '<turn|>'));
    const session = await languageModel(brief).create({ temperature: 0 });
    assert.equal(await session.prompt('Really?'), 'Yes.');
    const usage = session.contextUsage;
    assert.equal(await session.prompt('Sure?'), 'Yes.');
    assert.ok(session.contextUsage > usage);
    let given: unknown = null;
    const tools = [{ name: 'add', description: 'Adds.', inputSchema: { type: 'object' }, execute: async (args: unknown) => {
        given = args;
        throw new Error('enough');
    } }];
    const calling = await languageModel(call).create({ temperature: 0, tools });
    await assert.rejects(calling.prompt('Hello'), /enough/);
    assert.deepEqual(given, { a: 1 });
});

test('the oldest turns are dropped when the context is full', async () => {
    const brief = await load(scripted('brief2', 'Y', 'e', 's', '.', '<turn|>'), { context: 128 });
    const session = await languageModel(brief).create({ temperature: 0, initialPrompts: [{ role: 'system', content: 'Be brief.' }] });
    let overflows = 0;
    session.addEventListener('contextoverflow', () => overflows++);
    for (let i = 0; i < 8; i++) assert.equal(await session.prompt(`Question number ${i}, is it so?`), 'Yes.');
    assert.ok(overflows > 0 && session.contextUsage <= 128);
    await assert.rejects(session.prompt('word '.repeat(300)), fails('QuotaExceeded', /does not fit/));
});

interface NativeModel {
    availability?(): Promise<string>;
    create?(options: object): Promise<object>;
}
const scope = globalThis as { LanguageModel?: NativeModel };

test('only polyfill changes the global scope; an engine is loaded when it is first needed', async () => {
    assert.equal(scope.LanguageModel, undefined);
    let loads = 0;
    const seen: number[] = [];
    const done = polyfill(async (onProgress) => {
        loads++;
        onProgress(0.5);
        return dense;
    });
    const { availability, create } = scope.LanguageModel! as Required<NativeModel>; // at once
    assert.equal(await done, true);
    assert.equal(await availability(), 'downloadable');
    const monitor = (target: EventTarget) => target.addEventListener('downloadprogress', (event) => seen.push((event as Event & { loaded: number }).loaded));
    await Promise.all([create({ monitor }), create({})]);
    assert.deepEqual([loads, seen], [1, [0.5]]);
    assert.equal(await availability(), 'available');
    assert.equal(await polyfill(dense), false);
    delete scope.LanguageModel;
});

test("polyfill keeps a browser's own LanguageModel that works, and replaces one that does not", async () => {
    const unsupported = async () => {
        throw new DOMException('not here', 'NotSupportedError');
    };
    const rows: [NativeModel, boolean][] = [
        [{ availability: async () => 'available' }, false],
        [{ availability: async () => 'downloadable' }, false],
        [{ availability: async () => 'downloading' }, false],
        [{ availability: async () => 'unavailable' }, true],
        [{ availability: unsupported }, true],
        [{}, true],
    ];
    for (const [native, replaced] of rows) {
        Object.defineProperty(globalThis, 'LanguageModel', { value: native, writable: false, configurable: true });
        assert.equal(await polyfill(dense), replaced);
        assert.equal(scope.LanguageModel !== native, replaced);
        if (replaced) assert.equal(await scope.LanguageModel!.availability!(), 'available');
        assert.equal(await polyfill(dense, { force: true }), true);
        assert.notEqual(scope.LanguageModel, native);
        delete scope.LanguageModel;
    }
});

// ---- abort ----

const pause = () => new Promise((resolve) => setTimeout(resolve, 50)); // meanwhile the engine continues writing

/* Reads two chunks, aborts, and counts the chunks that follow. */
async function chunksAfterAbort(chunks: AsyncIterable<unknown>, controller: AbortController): Promise<number> {
    let [before, behind] = [0, 0];
    try {
        for await (const _ of chunks) {
            if (controller.signal.aborted) behind++;
            else if (++before === 2) {
                await pause();
                controller.abort();
            }
        }
    } catch {
        // some forms end with an error
    }
    assert.ok(controller.signal.aborted, 'the answer is too short for this test');
    return behind;
}

test('after an abort no form of the API delivers another chunk', async () => {
    const model = await Gemmule.load(scripted('long', ...'abcdefghijklmnopqrstuvwxyz'.split('')), OPTIONS);
    const session = await model.session();
    const native = await languageModel(model).create();
    const prompt = [{ role: 'user' as const, content: [{ type: 'text' as const, text: 'Hello' }] }];
    const forms: [string, (signal: AbortSignal) => Promise<AsyncIterable<unknown>> | AsyncIterable<unknown>][] = [
        ['session', (signal) => session.reply([{ role: 'user', content: 'Hello' }], { signal, sampling: { temperature: 0 } })],
        ['chat', (signal) => model.chat.completions.create({ messages: [{ role: 'user', content: 'Hello' }], stream: true, temperature: 0, stream_options: { include_usage: true } }, { signal })],
        ['language model', (signal) => native.promptStreaming('Hello', { signal }) as unknown as AsyncIterable<unknown>],
    ];
    for (const [name, open] of forms) {
        const controller = new AbortController();
        assert.equal(await chunksAfterAbort(await open(controller.signal), controller), 0, name);
    }
    const controller = new AbortController();
    const { stream } = await gemmule(model).doStream({ prompt, temperature: 0, abortSignal: controller.signal });
    const types: string[] = [];
    for await (const part of stream as unknown as AsyncIterable<{ type: string }>) {
        if (controller.signal.aborted) types.push(part.type);
        else if (part.type === 'text-delta') {
            await pause();
            controller.abort();
        }
    }
    assert.deepEqual(types, ['error']);
    const stopped = session.reply([{ role: 'user', content: 'Hello' }], { sampling: { temperature: 0 } });
    const pieces = stopped[Symbol.asyncIterator]();
    await pieces.next();
    await pause();
    stopped.stop();
    const { done, value } = await pieces.next();
    assert.deepEqual([done, (value as { finish: string }).finish, (await stopped.stats).finish], [true, 'cancelled', 'cancelled']);
    await model.unload();
});
