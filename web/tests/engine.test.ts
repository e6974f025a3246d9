/* The package's interface on the real engine (wasm), in Node. */

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { type Engine, Gemmule, type ReplyPiece } from '../src/node.ts';
import { type ChatCompletionChunk, type ChatCompletionParams, type ChatStream, readParams } from '../src/api/chat.ts';
import { splitGguf } from './support/gguf.ts';
import { startServer, type TestServer } from './support/http_server.ts';
import { ADD_CALL, DENSE, ENDLESS, MOE, THINKING, WASM, endlessModel, scratch, scripted } from './support/models.ts';

const OPTIONS = { wasmUrl: WASM, backend: 'wasm', threads: 1 } as const;
const HELLO = [{ role: 'user', content: 'Hello' }] as const;
const PARAMETERS = { type: 'object', properties: { a: { type: 'number' } } };
const TOOLS = [{ type: 'function', function: { name: 'add', description: 'Adds.', parameters: PARAMETERS } }] as const;

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

async function textOf(pieces: AsyncIterable<ReplyPiece>): Promise<string> {
    let text = '';
    for await (const piece of pieces) if (piece.kind === 'content') text += piece.text;
    return text;
}

// ---- loading ----

test('the header alone says whether a model fits', async () => {
    const report = await Gemmule.dryRun(DENSE, OPTIONS);
    assert.deepEqual([report.fits, report.architecture, report.layers, report.backend], [true, 'gemma4', 6, 'wasm']);
    assert.equal(report.fileBytes, readFileSync(DENSE).length);
});

test('models come from paths, blobs, URLs with and without ranges', async () => {
    const bytes = readFileSync(DENSE);
    server.files.set('/m.gguf', { bytes });
    server.files.set('/plain.gguf', { bytes, ranges: false });
    const phases = new Set<string>();
    const sources = [
        new File([bytes], 'm.gguf'), [new Blob([bytes])], `${server.origin}/m.gguf`, `${server.origin}/plain.gguf`,
        `data:;base64,${bytes.toString('base64')}`, new URL(`file://${DENSE}`),
    ];
    for (const source of sources) {
        assert.equal((await Gemmule.dryRun(source, OPTIONS)).name, 'Tiny Dense');
        const own = await Gemmule.load(source, { ...OPTIONS, onProgress: ({ phase }) => phases.add(phase) });
        assert.equal(own.info.digest, engine.info.digest);
        await own.unload();
    }
    for (const phase of ['download', 'header', 'plans', 'weights']) assert.ok(phases.has(phase), phase);
});

test('a split model is loaded by its first part, or by all parts in any order', async () => {
    const parts = splitGguf(readFileSync(DENSE), 3).map((bytes, i) => ({ bytes, name: `tiny-0000${i + 1}-of-00003.gguf` }));
    for (const { bytes, name } of parts) {
        server.files.set(`/${name}`, { bytes });
        writeFileSync(scratch(name), bytes);
    }
    const files = parts.map(({ bytes, name }) => new File([bytes as Buffer<ArrayBuffer>], name)).reverse();
    for (const source of [`${server.origin}/${parts[0]!.name}?download=true`, scratch(parts[0]!.name), files]) {
        await using own = await Gemmule.load(source, OPTIONS);
        const params = { messages: HELLO, seed: 8, max_tokens: 6 };
        const [one, two] = [await own.chat.completions.create(params), await engine.chat.completions.create(params)];
        assert.equal(one.choices[0]!.message.content, two.choices[0]!.message.content);
    }
    await assert.rejects(Gemmule.load(files.slice(1), OPTIONS), fails('NotFound', /tiny-00003-of-00003\.gguf is missing/));
});

test('a source that cannot be loaded says why', async () => {
    writeFileSync(scratch('short.gguf'), readFileSync(DENSE).subarray(0, 50_000));
    writeFileSync(scratch('text.gguf'), 'not a model');
    writeFileSync(scratch('m-00001-of-00002.gguf'), 'x');
    const rows: [unknown, string, RegExp][] = [
        ['/no/such/file.gguf', 'NotFound', /no such file/],
        [scratch('short.gguf'), 'BadModel', /.+/],
        [scratch('text.gguf'), 'BadModel', /.+/],
        [scratch('m-00001-of-00002.gguf'), 'NotFound', /m-00002-of-00002/],
        [`${server.origin}/absent.gguf`, 'NotFound', /404/],
        [new Blob([]), 'BadModel', /.+/],
        [{ kind: 'ollama', name: 'a:b', model: null, problem: 'the model layer is missing', adapters: [] }, 'BadModel', /cannot load a:b: the model layer is missing/],
        [17, 'BadArgument', /a source must be/],
        [[], 'BadArgument', /no file given/],
        ['gemma4:e2b', 'NotFound', /^cannot load gemma4:e2b: there is no such file\. Expected the path of a GGUF file, an address .* or 'box'$/],
    ];
    for (const [source, name, text] of rows) await assert.rejects(Gemmule.load(source as string, OPTIONS), fails(name, text));
    await assert.rejects(Gemmule.load(DENSE, { ...OPTIONS, signal: AbortSignal.abort() }), fails('Aborted', /stopped/));
    await assert.rejects(Gemmule.load(DENSE, { ...OPTIONS, wasmUrl: '/no/such.wasm' }), fails('NotFound', /cannot read the engine/));
    await assert.rejects(Gemmule.load(DENSE, { ...OPTIONS, backend: 'tpu' as 'gpu' }), fails('BadArgument', /backend must be one of auto, gpu, wasm, found tpu/));
    const controller = new AbortController();
    const under = Gemmule.load(DENSE, { ...OPTIONS, signal: controller.signal, onProgress: ({ phase }) => phase === 'weights' && controller.abort() });
    await assert.rejects(under, fails('Aborted', /stopped/));
});

test('an Ollama model brings its parameters and system prompt', async () => {
    const model = {
        kind: 'ollama', name: 'tiny:dense', model: new File([readFileSync(DENSE)], 'sha256-x'), digest: '', size: 0, bytes: 0, projector: null, draft: false,
        adapters: [], problem: '', params: '{"temperature": 0.25, "top_k": 7, "num_ctx": 100, "num_predict": 3}', system: 'Be brief.',
    } as const;
    await using own = await Gemmule.load(model, OPTIONS);
    assert.deepEqual([own.samplingDefault.temperature, own.samplingDefault.top_k], [0.25, 7]);
    assert.match(await own.render([{ role: 'user', content: 'Hi' }]), /Be brief\./);
    const session = await own.session();
    const reply = session.reply([{ role: 'user', content: 'Hi' }], { sampling: { temperature: 0 } });
    for await (const _ of reply);
    assert.deepEqual([session.context, (await reply.stats).replyTokens, (await reply.stats).finish], [100, 3, 'length']);
    assert.equal((await own.session({ context: 200 })).context, 200);
    await assert.rejects(Gemmule.load({ ...model, params: '{"stop": [1]}' }, OPTIONS), fails('BadModel', /stop must be a string or a list of strings, found a number/));
});

test('devices, statistics, self-check', async () => {
    const devices = await Gemmule.devices(OPTIONS);
    assert.equal(devices.at(-1)!.backend, 'wasm');
    assert.deepEqual(await engine.devices(), devices);
    await engine.selfCheck();
    const stats = await engine.stats();
    assert.ok(stats.wasmBytes > 1e6 && stats.gpuBytes === 0);
});

// ---- text ----

test('tokens and back; special tokens only on request', async () => {
    const text = 'Hello there, <turn|> “ünïcode” 🙂';
    assert.equal(await engine.detokenize(await engine.tokenize(text)), text);
    const plain = await engine.tokenize('<turn|>');
    const special = await engine.tokenize('<turn|>', { special: true });
    assert.ok(plain.length > 1 && special.length === 1);
});

// ---- sessions ----

test('append, roll back, fork, save, restore', async () => {
    await using session = await engine.session({ context: 256 });
    assert.equal(session.context, 256);
    const ids = await engine.tokenize('Once upon a time there was');
    await session.set(ids);
    const logits = (await session.logits())!;
    assert.equal(logits.length, engine.info.vocabulary);
    await session.append(' a model');
    const all = await session.tokens();
    assert.ok(all.length > ids.length);
    await assert.rejects(session.append([1.5]), fails('BadArgument', /32-bit whole numbers, found 1.5/));
    await assert.rejects(engine.detokenize([NaN]), fails('BadArgument', /found NaN/));
    await assert.rejects(engine.tokenize(5 as unknown as string), fails('BadArgument', /must be a string/));
    const fork = await session.fork();
    const bytes = await session.save();
    assert.equal(await session.rollback(ids.length), 0);
    assert.deepEqual(await session.tokens(), ids);
    assert.deepEqual(await fork.tokens(), all);
    await session.set(ids);
    const again = (await session.logits())!;
    assert.ok(again.every((logit, i) => Math.abs(logit - logits[i]!) < 1e-3), 'a token alone and in a batch: the same but for rounding');
    const copy = bytes.slice();
    await session.restore(bytes);
    assert.deepEqual(await session.tokens(), all);
    const broken = copy.slice();
    broken[broken.length >> 1]! ^= 255;
    await assert.rejects(session.restore(broken.subarray(0, 1000)), (error: Error) => error.name === 'BadModel');
    assert.deepEqual(await session.tokens(), all);
    await using other = await Gemmule.load(MOE, OPTIONS);
    const foreign = await other.session();
    await assert.rejects(foreign.restore(copy), (error: Error) => ['BadArgument', 'BadModel'].includes(error.name));
    await fork.close();
    await assert.rejects(fork.tokens(), fails('BadArgument', /was it closed/));
});

test('generate continues from tokens; the same seed gives the same answer', async () => {
    await using session = await engine.session();
    const ids = await engine.tokenize('Once upon');
    const options = { maxTokens: 24, sampling: { seed: 9 } };
    const reply = await session.generate(ids, options);
    const text = await textOf(reply);
    const stats = await reply.stats;
    assert.deepEqual([stats.finish, stats.replyTokens, stats.promptTokens], ['length', 24, ids.length]);
    assert.equal(await textOf(await session.generate([...ids], options)), text);
    assert.notEqual(await textOf(await session.generate(ids, { ...options, sampling: { seed: 10 } })), text);
    const more = await session.generate(null, { maxTokens: 2 });
    await textOf(more);
    assert.equal((await more.stats).promptTokens, ids.length + 24);
});

test('leaving the loop stops the answer; what was written stays, and the next call continues from there', async () => {
    await using long = await Gemmule.load(endlessModel(), { ...OPTIONS, context: 100_000 });
    const session = await long.session();
    const reply = session.reply([...HELLO], { sampling: ENDLESS });
    let count = 0;
    for await (const piece of reply) if (piece.kind === 'content' && ++count === 5) break;
    const stats = await reply.stats;
    assert.equal(stats.finish, 'cancelled');
    const held = await session.tokens();
    assert.ok(held.length >= stats.promptTokens + 5 && held.length < 2000, `${held.length} tokens`);
    const again = await session.generate(held, { maxTokens: 1 });
    await textOf(again);
    assert.ok((await again.stats).cachedTokens >= held.length - 1);
    const controller = new AbortController();
    const signalled = session.reply([...HELLO], { sampling: ENDLESS, signal: controller.signal });
    for await (const piece of signalled) if (piece.kind === 'content') controller.abort();
    assert.equal((await signalled.stats).finish, 'cancelled');
    const stopped = session.reply([...HELLO], { sampling: ENDLESS });
    stopped.stop();
    await assert.doesNotReject(stopped.stats.catch((error: Error) => assert.equal(error.name, 'Aborted')));
});

test('answers of one session take turns, beside those of others; one that is stopped while it waits ends at once', async () => {
    await using long = await Gemmule.load(endlessModel(), { ...OPTIONS, context: 100_000 });
    const [one, two] = await Promise.all([long.session(), long.session()]);
    const first = one.reply([...HELLO], { sampling: ENDLESS });
    const waiting = new AbortController();
    const second = one.reply([...HELLO], { signal: waiting.signal });
    const third = one.reply([...HELLO], { maxTokens: 3 });
    waiting.abort();
    await assert.rejects(second.stats, fails('Aborted', /stopped/));
    let over = false;
    void third.stats.then(() => (over = true));
    assert.equal((await two.reply([...HELLO], { maxTokens: 3 }).stats).replyTokens, 3);
    assert.equal(over, false);
    first.stop();
    assert.equal((await third.stats).replyTokens, 3);
    assert.equal((await first.stats).finish, 'cancelled');
});

test('unload rejects running and later calls', async () => {
    const long = await Gemmule.load(endlessModel(), { ...OPTIONS, context: 100_000 });
    const session = await long.session();
    const reply = session.reply([...HELLO], { sampling: ENDLESS });
    await new Promise((resolve) => setTimeout(resolve, 20));
    const asked = assert.rejects(long.chat.completions.create({ messages: HELLO }), fails('Aborted', /unloaded|stopped/));
    const unloading = long.unload();
    await assert.rejects(session.tokens(), fails('Aborted', /unloaded/));
    await Promise.all([asked, unloading]);
    await reply.stats.then((stats) => assert.equal(stats.finish, 'cancelled'), (error: Error) => assert.equal(error.name, 'Aborted'));
    await assert.rejects(long.tokenize('x'), fails('Aborted', /unloaded/));
    await long.unload();
});

// ---- chat completions ----

async function chunksOf(stream: ChatStream): Promise<ChatCompletionChunk[]> {
    const chunks: ChatCompletionChunk[] = [];
    for await (const chunk of stream) chunks.push(chunk);
    return chunks;
}

test('whole and streamed answers are the same', async () => {
    const params: ChatCompletionParams = { messages: HELLO, seed: -5, max_tokens: 30 };
    const whole = await engine.chat.completions.create({ ...params, stream: false });
    const chunks = await chunksOf(await engine.chat.completions.create({ ...params, stream: true, stream_options: { include_usage: true } }));
    const { choices: [choice], usage } = whole;
    assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''), choice!.message.content);
    assert.deepEqual(chunks[0]!.choices[0]!.delta, { role: 'assistant', content: '' });
    assert.equal(chunks.at(-2)!.choices[0]!.finish_reason, 'length');
    assert.deepEqual([whole.object, choice!.finish_reason], ['chat.completion', 'length']);
    assert.deepEqual([usage.completion_tokens, usage.total_tokens], [30, usage.prompt_tokens + 30]);
    assert.deepEqual(chunks.at(-1)!.choices, []);
    assert.equal(chunks.at(-1)!.usage!.completion_tokens, 30);
    assert.ok(chunks.at(-1)!.usage!.prompt_tokens_details.cached_tokens > 0);
    assert.ok(chunks.every((chunk) => chunk.object === 'chat.completion.chunk' && chunk.id === chunks[0]!.id && chunk.model === 'Tiny Dense'));
    assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
    const bare = await chunksOf(await engine.chat.completions.create({ ...params, stream: true }));
    assert.ok(bare.every((chunk) => !('usage' in chunk)));
});

test('stop strings, log-probabilities, bias', async () => {
    const params = { messages: HELLO, seed: 3, max_tokens: 30 };
    const whole = (await engine.chat.completions.create(params)).choices[0]!.message.content!;
    const stop = whole.slice(8, 11);
    const cut = (await engine.chat.completions.create({ ...params, stop: ['nowhere', stop] })).choices[0]!;
    assert.equal(cut.message.content, whole.slice(0, whole.indexOf(stop)));
    assert.equal(cut.finish_reason, 'stop');
    const { logprobs } = (await engine.chat.completions.create({ ...params, max_tokens: 6, logprobs: true, top_logprobs: 3 })).choices[0]!;
    assert.ok(logprobs!.content.length >= 5);
    for (const { token, logprob, bytes, top_logprobs: top } of logprobs!.content) {
        assert.equal(new TextDecoder().decode(new Uint8Array(bytes)), token);
        assert.ok(logprob <= 0 && top.length === 3 && top[0]!.logprob >= top[1]!.logprob);
    }
    const none = (await engine.chat.completions.create({ ...params, max_tokens: 3, logprobs: true })).choices[0]!;
    assert.deepEqual(none.logprobs!.content[0]!.top_logprobs, []);
    assert.equal((await engine.chat.completions.create({ ...params, max_tokens: 3 })).choices[0]!.logprobs, null);
    const id = (await engine.tokenize('x'))[0]!;
    const biased = await engine.chat.completions.create({ ...params, temperature: 0, max_tokens: 4, logit_bias: { [id]: 100 } });
    assert.equal(biased.choices[0]!.message.content, 'xxxx');
});

test('tool calls have the form of OpenAI, and so do their results', async () => {
    await using own = await Gemmule.load(scripted('call', ...ADD_CALL), OPTIONS);
    const params = { messages: HELLO, tools: TOOLS, temperature: 0 };
    const whole = (await own.chat.completions.create(params)).choices[0]!;
    const [call] = whole.message.tool_calls!;
    assert.equal(whole.finish_reason, 'tool_calls');
    assert.equal(whole.message.content, 'Ok');
    assert.deepEqual([call!.type, call!.function], ['function', { name: 'add', arguments: '{"a":1}' }]);
    assert.match(call!.id, /^call_/);
    const chunks = await chunksOf(await own.chat.completions.create({ ...params, stream: true }));
    const delta = chunks.find((chunk) => chunk.choices[0]?.delta.tool_calls)!.choices[0]!.delta.tool_calls![0]!;
    assert.deepEqual([delta.index, delta.function], [0, { name: 'add', arguments: '{"a":1}' }]);
    assert.equal(chunks.at(-1)!.choices[0]!.finish_reason, 'tool_calls');
    const prompt = await own.render([
        { role: 'user', content: 'Hello' },
        { role: 'assistant', content: '', tool_calls: [{ id: 'c1', type: 'function', function: { name: 'add', arguments: { a: 1 } } }] },
        { role: 'tool', content: '2', tool_call_id: 'c1', tool_name: 'add' },
    ]);
    assert.match(prompt, /add/);
    const answered: ChatCompletionParams['messages'] = [
        ...HELLO, { role: 'assistant', content: null, tool_calls: [call!] }, { role: 'tool', content: '2', tool_call_id: call!.id },
    ];
    await own.chat.completions.create({ ...params, max_tokens: 2, messages: answered });
    assert.deepEqual(readParams(params).tools, TOOLS);
    assert.equal(readParams({ ...params, tool_choice: 'none' }).tools, undefined);
});

test('thoughts are separate from the answer', async () => {
    await using own = await Gemmule.load(scripted('think', ...THINKING), OPTIONS);
    const { message, finish_reason: finish } = (await own.chat.completions.create({ messages: HELLO, temperature: 0, reasoning_effort: 'low' })).choices[0]!;
    assert.deepEqual([message.content, message.reasoning_content, finish], ['Yes.', 'Hm', 'stop']);
});

test('unsupported and wrong parameters are named', async () => {
    const rows: [object, string, RegExp][] = [
        [{ response_format: { type: 'json_object' } }, 'NotSupported', /response_format of type 'json_object'/],
        [{ messages: [{ role: 'user', content: [{ type: 'video_url' }] }] }, 'NotSupported', /videos by address \(video_url\) are not supported/],
        [{ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:,' } }] }] }, 'BadArgument', /is empty/],
        [{ messages: [{ role: 'user', content: [{ type: 'input_audio' }] }] }, 'BadArgument', /input_audio\.data must be base64/],
        [{ messages: [{ role: 'system', content: [{ type: 'image_url', image_url: { url: 'data:,' } }] }] }, 'NotSupported', /only user messages/],
        [{ messages: [{ role: 'user', content: [{ type: 'hologram' }] }] }, 'NotSupported', /hologram/],
        [{ tool_choice: 'required' }, 'NotSupported', /tool_choice/],
        [{ n: 2 }, 'NotSupported', /^n must be 1$/],
        [{ adapter: 'x' }, 'NotSupported', /'adapter'/],
        [{ functions: [] }, 'NotSupported', /'functions'/],
        [{ tools: [{ type: 'web_search' }] }, 'NotSupported', /web_search/],
        [{ messages: [] }, 'BadArgument', /at least one/],
        [{ messages: [{ role: 'wizard', content: '' }] }, 'BadArgument', /found 'wizard'/],
        [{ messages: [{ role: 'tool', content: '' }] }, 'BadArgument', /tool_call_id/],
        [{ temperature: -1 }, 'BadArgument', /temperature must be a number from 0/],
        [{ temperature: 'hot' }, 'BadArgument', /found hot/],
        [{ max_tokens: 1.5 }, 'BadArgument', /max_tokens/],
        [{ top_logprobs: 2 }, 'BadArgument', /logprobs: true/],
        [{ logprobs: true, top_logprobs: 21 }, 'BadArgument', /0 to 20/],
        [{ logprobs: 5 }, 'BadArgument', /logprobs must be true or false/],
        [{ tools: 'add' }, 'BadArgument', /tools must be a list/],
        [{ stop: [''] }, 'BadArgument', /stop/],
        [{ logit_bias: { a: 1 } }, 'BadArgument', /logit_bias/],
        [{ stream_options: {} }, 'BadArgument', /stream: true/],
        [{ messages: [{ role: 'assistant', content: '', tool_calls: [{ function: { name: 'f', arguments: '{' } }] }] }, 'BadArgument', /must be JSON/],
    ];
    for (const [params, name, text] of rows) {
        const all = { messages: HELLO, max_tokens: 1, ...params } as ChatCompletionParams;
        await assert.rejects(engine.chat.completions.create(all), fails(name, text), JSON.stringify(params));
    }
    await engine.chat.completions.create({
        messages: [{ role: 'developer', content: [{ type: 'text', text: 'Be' }, { type: 'text', text: ' brief' }] }, ...HELLO], max_tokens: 1, user: 'me', n: 1,
        response_format: { type: 'text' }, model: 'any', tool_choice: 'auto',
    });
});

test('when stopped, a stream ends without an error, and a whole answer rejects with what there was', async () => {
    await using long = await Gemmule.load(endlessModel(), { ...OPTIONS, context: 100_000 });
    const params = { messages: HELLO, ...ENDLESS };
    const stream = await long.chat.completions.create({ ...params, stream: true });
    let count = 0;
    for await (const chunk of stream) if (chunk.choices[0]?.delta.content && ++count === 4) stream.controller.abort();
    assert.ok(count >= 4);
    const left = await long.chat.completions.create({ ...params, stream: true });
    for await (const chunk of left) if (chunk.choices[0]?.delta.content) break;
    // A whole answer does not say when it has begun: a slow machine gets more time until there is something.
    let partial = '';
    for (let patience = 60; partial === ''; patience *= 2) {
        assert.ok(patience < 120_000, 'no word in a minute');
        const whole = long.chat.completions.create(params, { signal: AbortSignal.timeout(patience) });
        await assert.rejects(whole, (error: { name: string; detail: { partial: { content: string } } }) => {
            assert.equal(error.name, 'Aborted');
            partial = error.detail.partial.content;
            return true;
        });
    }
    const done = await long.chat.completions.create({ messages: HELLO, max_tokens: 2 });
    assert.equal(done.usage.completion_tokens, 2);
});

test('a full context ends an answer with length, and refuses a prompt that does not fit', async () => {
    await using small = await Gemmule.load(DENSE, { ...OPTIONS, context: 48 });
    const { choices, usage } = await small.chat.completions.create({ messages: HELLO, ...ENDLESS });
    assert.equal(choices[0]!.finish_reason, 'length');
    assert.ok(usage.total_tokens <= 48 && usage.total_tokens >= 46, `${usage.total_tokens}`);
    await assert.rejects(small.chat.completions.create({ messages: [{ role: 'user', content: 'many words '.repeat(50) }] }), fails('ContextFull', /the context holds 48/));
});

test('progress of the prompt is reported', async () => {
    const session = await engine.session({ context: 4096 });
    const seen: [number, number][] = [];
    const params: ChatCompletionParams = { messages: [{ role: 'user', content: 'word '.repeat(600) }], max_tokens: 1 };
    await engine.chat.completions.create(params, { session, onPromptProgress: (done, total) => seen.push([done, total]) });
    assert.ok(seen.length > 0 && seen.every(([done, total]) => done <= total && total > 600));
    await session.close();
});

test('chat completions of a diffusion model: a canvas to begin with, and a chunk for every step', async () => {
    // Exact: a prompt that is partly computed again would otherwise change the text.
    await using diffusion = await Gemmule.load('tests/fixtures/tiny-diffusion.gguf', { ...OPTIONS, precise: true });
    const params = { messages: HELLO, canvas: 'The red [[3]] is', seed: 3, max_tokens: 32 } as const;
    const chunks: ChatCompletionChunk[] = [];
    const stream = await diffusion.chat.completions.create({ ...params, stream: true, stream_options: { canvas: true } });
    for await (const chunk of stream) chunks.push(chunk);
    const canvases = chunks.flatMap(({ gemmule }) => (gemmule ? [gemmule.canvas] : []));
    assert.ok(canvases.length > 0);
    assert.deepEqual(canvases.map(({ block, step, last }) => [block, step, last]), canvases.map((_, i) => [0, i + 1, i === canvases.length - 1]));
    for (const { tokens } of canvases) assert.equal(tokens.map(({ pinned, text }) => (pinned ? text : '')).join(''), 'The red  is');
    const text = chunks.map(({ choices: [choice] }) => choice?.delta.content ?? '').join('');
    assert.match(text, /^The red .* is/s);
    const { choices: [whole] } = await diffusion.chat.completions.create(params);
    assert.deepEqual([whole!.message.content, whole!.finish_reason], [text, chunks.at(-1)!.choices[0]!.finish_reason]);
    for (const [canvas, why] of [[7, /canvas must be a text with holes/], ['[[x]]', /neither a hole/]] as const) {
        const asked = diffusion.chat.completions.create({ messages: HELLO, canvas: canvas as string });
        await assert.rejects(asked, fails('BadArgument', why));
    }
    const hasty = await diffusion.chat.completions.create({ ...params, steps: 2, stream: true, stream_options: { canvas: true } });
    const steps: number[] = [];
    for await (const { gemmule } of hasty) if (gemmule) steps.push(gemmule.canvas.step);
    assert.deepEqual(steps, [1, 2]);
    await assert.rejects(diffusion.chat.completions.create({ ...params, steps: 0 }), fails('BadArgument', /steps must be a whole number from 1 to 1023, found 0/));
    await assert.rejects(engine.chat.completions.create(params), fails('NotSupported', /has no canvas/));
    await assert.rejects(engine.chat.completions.create({ messages: HELLO, steps: 2 }), fails('NotSupported', /has no canvas/));
});
