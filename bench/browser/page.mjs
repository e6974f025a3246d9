// The part of the browser benchmark that runs in the page: both engines behind one interface, measured in the same way.
//
//     { device, threads, note(), vocabulary, complete(prompt, { count, avoid }), stats(), close() }
//
// `complete` continues a prompt greedily and returns the times of the first piece and of the end, in milliseconds since the call. A
// prompt is { ids, text }, the same content twice: gemmule takes ids; wllama takes only text and puts <bos> in front.

const since = (begin) => performance.now() - begin;

async function openGemmule({ url, dist, backend, cache, context, gpuMemory, threads }) {
    const { Gemmule } = await import(`${dist}/index.js`);
    const engine = await Gemmule.load(url, { backend, cache, context, threads: threads || navigator.hardwareConcurrency, ...(gpuMemory ? { gpuMemory } : {}) });
    const session = await engine.session();
    return {
        device: engine.info.device,
        threads: engine.info.threads ?? 1,
        note: async () => engine.info.note,
        vocabulary: engine.info.vocabulary,
        async complete({ ids }, { count, avoid }) {
            await session.rollback(0);
            const begin = performance.now();
            const logit_bias = Object.fromEntries(avoid.map((id) => [id, -100]));
            const reply = await session.generate(ids, { maxTokens: count, sampling: { temperature: 0, ...(avoid.length ? { logit_bias } : {}) } });
            let first = 0;
            for await (const piece of reply) if (piece.kind === 'content') first ||= since(begin);
            const { promptTokens, replyTokens } = await reply.stats;
            const all = since(begin);
            return { promptTokens, replyTokens, first: first || all, all };
        },
        engine,
        stats: () => engine.stats(),
        close: () => engine.unload(),
    };
}

async function openWllama({ url, wllama: folder, backend, cache, context, threads }) {
    const { Wllama } = await import(`${folder}/index.js`);
    const said = [];
    const note = (...words) => void said.push(words.join(' '));
    const engine = new Wllama({ default: `${folder}/wasm/wllama.wasm` }, { logger: { debug: note, log: note, warn: note, error: note } });
    try {
        await engine.loadModelFromUrl(url, {
            useCache: cache, n_ctx: context, n_parallel: 1, n_threads: threads || navigator.hardwareConcurrency, ...(backend === 'wasm' ? { n_gpu_layers: 0 } : {}),
        });
    } catch (problem) { throw new Error([problem.message, ...said.slice(-8)].join('\n')); } // why is in its log, if anywhere
    const count = engine.getNumThreads();
    const gpu = wllamaGpu(said.join('\n'));
    return {
        device: gpu || `wasm (${count} ${count === 1 ? 'thread' : 'threads'})`,
        threads: count,
        note: async () => gpu || backend ? '' : whyNoGpu(),
        said,
        vocabulary: engine.getLoadedContextInfo().n_vocab,
        async complete({ text }, { count, avoid }) {
            const begin = performance.now();
            let first = 0;
            let timings = null;
            const stream = await engine.createCompletion({
                prompt: text, max_tokens: count, temperature: 0, stream: true, cache_prompt: false, ignore_eos: true,
                ...(avoid.length ? { logit_bias: avoid.map((id) => [id, false]) } : {}),
            });
            for await (const chunk of stream) {
                if (chunk.choices[0]?.text) first ||= since(begin);
                timings = chunk.timings ?? timings;
            }
            const all = since(begin);
            return { promptTokens: timings.prompt_n, replyTokens: timings.predicted_n, first: first || all, all, own: timings };
        },
        stats: async () => ({}),
        close: () => engine.exit(),
    };
}

/** It says nothing of its device but in its log; '' without one. */
function wllamaGpu(log) {
    const layers = /offloaded ([1-9]\d*\/\d+) layers to GPU/.exec(log);
    const about = /vendor: ([^|]*)\| architecture: ([^|]*)\|.*device_desc: (.*)/.exec(log)?.slice(1).map((word) => word.trim()).filter(Boolean) ?? [];
    return layers ? `gpu (${[...new Set(about)].join(' ')}, ${layers[1]} layers)` : '';
}

/** It takes the GPU without being asked, but only one with half floats. */
async function whyNoGpu() {
    const adapter = await navigator.gpu?.requestAdapter();
    if (!adapter) return 'WebGPU: there is no adapter';
    const name = [adapter.info.vendor, adapter.info.architecture].filter(Boolean).join(' ');
    if (!adapter.features.has('shader-f16')) return `WebGPU: the adapter (${name}) has no shader-f16, which wllama needs`;
    return `WebGPU: wllama did not take the adapter (${name})`;
}

let engine = null;

/** Opens the model; gives seconds and what it runs on. */
export async function open(options) {
    const begin = performance.now();
    engine = await (options.engine === 'wllama' ? openWllama : openGemmule)(options);
    const seconds = since(begin) / 1000;
    const { device, threads, note, vocabulary, said } = engine;
    return { seconds, device, threads, note: await note(), vocabulary, said };
}

export const close = () => engine.close();
export const stats = () => engine.stats();

const TEXT = 'A lighthouse keeper counts the ships at dusk and writes their names into a long grey book; in the morning she reads 27 of them aloud. ';

/** Prompts of so many tokens, <bos> among them; with gemmule only. */
export async function prompts(lengths) {
    const { engine: gemmule } = engine;
    const [bos] = await gemmule.tokenize('<bos>', { special: true });
    const most = Math.max(...lengths);
    const all = await gemmule.tokenize(TEXT.repeat(Math.ceil(most / 16) + 1));
    return Promise.all(lengths.map(async (length) => {
        const ids = Array.from({ length: length - 1 }, (_, i) => all[i % all.length]);
        return { ids: [bos, ...ids], text: await gemmule.detokenize(ids) };
    }));
}

/** Tokens that no answer should have here: ends, and whatever is not plain ASCII; with gemmule only. */
export async function tokensToAvoid() {
    const list = [];
    for (let id = 0; id < engine.vocabulary; id++) {
        const text = await engine.engine.detokenize([id]);
        if (!/^[ -~]+$/.test(text) || /^<.*>$/.test(text)) list.push(id);
    }
    return list;
}

/** Seconds until an answer begins. */
export async function firstToken({ prompt, avoid }) {
    return (await engine.complete(prompt, { count: 2, avoid })).first / 1000;
}

// A GPU raises its clocks slowly, and lowers them while it waits for kernels to compile.
async function warmUp(what) {
    const begin = performance.now();
    do await what(); while (performance.now() - begin < 1000);
}

/** How many tokens the prompt has for this engine; per second of each run, until the first token of the answer is there. */
export async function prefill({ prompt, repeats, avoid }) {
    const result = { tokens: 0, all: [] };
    await warmUp(() => engine.complete(prompt, { count: 1, avoid }));
    for (let i = 0; i < repeats; i++) {
        const { promptTokens, all } = await engine.complete(prompt, { count: 1, avoid });
        result.tokens = promptTokens;
        result.all.push(promptTokens / all * 1000);
    }
    return result;
}

/** Tokens per second of each run, from the first to the last of an answer. */
export async function decode({ prompt, tokens, repeats, avoid }) {
    const result = { tokens: 0, all: [] };
    await warmUp(() => engine.complete(prompt, { count: tokens, avoid }));
    for (let i = 0; i < repeats; i++) {
        const { replyTokens, first, all } = await engine.complete(prompt, { count: tokens, avoid });
        if (replyTokens < 2) throw new Error('the model ended its answer at once: nothing to measure');
        result.tokens = replyTokens;
        result.all.push((replyTokens - 1) / (all - first) * 1000);
    }
    return result;
}
