// Measures the engine in Node: the npm package (web/dist, see web/build.mjs) on Dawn (the npm package webgpu) or on wasm. Prints one
// JSON object with the same fields as `gemmule bench --json`.
//
//     node bench/node/bench.mjs MODEL [--backend gpu|wasm] [--prefill 512] [--decode 128] [--depth 0] [--repeats 3]
//                               [--gpu-disable subgroup_matrix] [--gpu-memory BYTES] [--threads N] [--package web/dist]
//                               [--profile FILE.svg] [--warm 1] [--steps N]
//                               [--mmproj FILE] [--image TOKENS] [--audio SECONDS]
//
// --image and --audio encode a picture of 70, 140, 280, 560 or 1120 tokens, or a sound of up to 30 s: one, and four in a batch. The
// seconds are those of the towers alone, without decoding and prefill. One follows the other, as in a loop that measures only the tower;
// idle_seconds is a single one after a second's pause, in which a GPU lowers its clocks.
//
// A diffusion model writes two blocks behind a prompt of --depth tokens, each in at most --steps steps (default: the model's). The time
// of a block is that of the second, which begins with reading the first. --decode 0 leaves that out.
//
// Each figure is the best of the repeats after so many seconds of warm-up: a GPU that computes larger batches compiles their kernels in
// the meantime. With --profile, one more run times each dispatch (profile.mjs): a
// table goes to stderr, and bars to the file. VK_ICD_FILENAMES names the Vulkan driver if the system does not.

import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import { profiler } from './profile.mjs';

const options = {
    backend: 'gpu', prefill: 512, decode: 128, depth: 0, repeats: 3, warm: 1, 'gpu-disable': '', 'gpu-memory': 0, threads: 0,
    mmproj: '', image: 0, audio: 0, steps: 0, profile: '', package: join(import.meta.dirname, '../../web/dist'),
};
const models = [];
for (let i = 2; i < process.argv.length; i++) {
    const name = process.argv[i].replace(/^--/, '');
    if (name === process.argv[i]) models.push(name);
    else if (!(name in options) || i + 1 === process.argv.length) models.push(name, '?');
    else options[name] = typeof options[name] === 'number' ? Number(process.argv[++i]) : process.argv[++i];
}
if (models.length !== 1 || Object.values(options).some(Number.isNaN)) {
    console.error('usage: bench.mjs MODEL [--backend gpu|wasm] [--prefill N] [--decode N] [--depth N] [--repeats N] [--warm SECONDS] ' +
        '[--steps N] [--gpu-disable LIST] [--gpu-memory BYTES] [--threads N] [--mmproj FILE] [--image TOKENS] [--audio SECONDS] ' +
        '[--package FOLDER] [--profile FILE]');
    process.exit(2);
}

const packaged = join(resolve(options.package), 'node.js');
const profile = options.profile ? await profiler(packaged) : null;
const { Gemmule } = await import(pathToFileURL(packaged).href);
const opened = performance.now();
const engine = await Gemmule.load(models[0], {
    backend: options.backend, gpuDisable: options['gpu-disable'] || undefined, gpuMemory: options['gpu-memory'] || undefined,
    threads: options.threads || undefined, mmproj: options.mmproj || undefined,
});
const openSeconds = (performance.now() - opened) / 1000;
const { prefill, decode, depth, repeats } = options;
const denoises = engine.info.architecture === 'diffusion-gemma';
const room = Math.max(depth + Math.max(prefill, decode + 2), 4 * Math.max(options.image, 25 * options.audio) + 40) + 64 + (denoises ? 3 * 256 : 0);
const session = await engine.session({ context: Math.min(engine.info.context, room) });

// Ordinary tokens, as mixed as text.
const ids = (n) => Int32Array.from({ length: n }, (_, i) => 300 + ((i * 2654435761) >>> 7) % (engine.info.vocabulary - 300));

// A GPU raises its clocks slowly, and lowers them while it waits for kernels to compile.
async function best(what) {
    const begin = performance.now();
    do await what(); while (performance.now() - begin < 1000 * options.warm);
    let least = Infinity;
    for (let i = 0; i < repeats; i++) least = Math.min(least, await what());
    return least;
}

async function prefillSeconds() {
    await session.rollback(0);
    const begin = performance.now();
    await session.append(ids(prefill));
    return (performance.now() - begin) / 1000;
}

// Greedy. An answer that ends early counts with its actual length.
async function decodeSeconds(begin = () => {}) {
    await session.set(ids(Math.max(depth, 1)));
    begin();
    const reply = await session.generate(null, { sampling: { temperature: 0 }, maxTokens: decode });
    for await (const _ of reply) { /* only counted */ }
    const stats = await reply.stats;
    if (!stats.replyTokens) throw new Error('the model ended its answer at once: nothing to measure');
    return stats.replySeconds / stats.replyTokens;
}

// When the steps of a diffusion model's blocks ended. `more` has options of the answer.
async function canvasEnds(blocks, more = {}, begin = () => {}) {
    await session.set(ids(Math.max(depth, 1)));
    begin();
    const stop = new AbortController(), ends = [];
    const reply = await session.generate(null, { steps: options.steps || undefined, wantCanvas: true, signal: stop.signal, ...more });
    for await (const piece of reply) {
        if (piece.kind !== 'canvas') continue;
        ends.push({ ...piece.canvas, seconds: performance.now() / 1000 });
        if (ends.filter((canvas) => canvas.last).length === blocks) stop.abort();
    }
    return ends;
}

// Of a step of the second block, on average (two are under way at once), and from the end of the first block to that of the second.
async function blockSeconds() {
    const ends = await canvasEnds(2), [first, second] = ends.filter((canvas) => canvas.last);
    if (!second) throw new Error('the model ended its answer in the first block: nothing to measure');
    const started = ends[ends.indexOf(first) + 1];
    return { step: (second.seconds - started.seconds) / Math.max(second.step - started.step, 1), block: second.seconds - first.seconds, steps: second.step, length: second.tokens.length };
}

async function diffusion() {
    let least = null;
    for (let i = 0; i <= repeats; i++) { // the first warms up
        const now = await blockSeconds();
        if (i) least = least ? { ...now, step: Math.min(least.step, now.step), block: Math.min(least.block, now.block) } : now;
    }
    return {
        block_tokens: least.length, depth: Math.max(depth, 1), steps_per_block: least.steps, step_seconds: least.step, block_seconds: least.block,
        tokens_per_second: least.length / least.block,
    };
}

// Pixels of noise. Every picture is another, so that no session holds it already; making one costs the GPU no pause.
function picture(tokens) {
    const short = Math.max(...Array.from({ length: Math.floor(Math.sqrt(tokens)) }, (_, i) => i + 1).filter((side) => tokens % side === 0));
    const [width, height] = [48 * tokens / short, 48 * short];
    const data = new Uint8ClampedArray(randomBytes(4 * width * height).buffer);
    let number = 0;
    return () => {
        new DataView(data.buffer).setUint32(0, number++);
        return { type: 'image', image: { data: data.slice(), width, height }, budget: tokens };
    };
}

function sound(seconds) {
    const samples = Float32Array.from({ length: 16000 * seconds }, () => Math.random() - 0.5);
    let number = 0;
    return () => {
        samples[0] = (number++ % 1000) / 1000;
        return { type: 'audio', audio: { samples: samples.slice(), sampleRate: 16000 } };
    };
}

async function mediaSeconds(parts) {
    await session.rollback(0);
    const reply = session.reply([{ role: 'user', content: parts }], { sampling: { temperature: 0 }, maxTokens: 1 });
    for await (const _ of reply) { /* only counted */ }
    return (await reply.stats).mediaSeconds;
}

async function medium(make) {
    const of = (count) => () => mediaSeconds(Array.from({ length: count }, make));
    const first = await of(1)(), one = await best(of(1)), four = await best(of(4));
    await new Promise((resolve) => setTimeout(resolve, 1000));
    return { first_seconds: first, seconds: one, batch_of_4_seconds: four, idle_seconds: await of(1)() };
}

const result = { model: models[0], name: engine.info.name, device: engine.info.device, note: engine.info.note, runtime: `Node ${process.versions.node}`, load_seconds: openSeconds };
result.prefill = { tokens: prefill, tokens_per_second: prefill ? prefill / (await best(prefillSeconds)) : 0 };
if (denoises && decode) result.diffusion = await diffusion();
else result.decode = { tokens: decode, depth, tokens_per_second: decode ? 1 / (await best(decodeSeconds)) : 0 };
const newPicture = options.image && picture(options.image), newSound = options.audio && sound(options.audio);
if (newPicture) result.image = await medium(newPicture);
if (newSound) result.audio = { length_seconds: options.audio, ...await medium(newSound) };
if (profile && prefill) {
    profile.start('prefill', 'prompt', 1);
    await prefillSeconds();
    await profile.end();
}
if (profile && decode && denoises) {
    const maxTokens = result.diffusion.block_tokens; // one block, which is not read
    const steps = await canvasEnds(Infinity, { maxTokens }, () => profile.start('diffusion', 'step', 1));
    await profile.end(steps.length);
} else if (profile && decode) {
    await decodeSeconds(() => profile.start('decode', 'token', decode));
    await profile.end();
}
const media = [newPicture && ['image', 'picture', newPicture], newSound && ['audio', 'sound', newSound]];
for (const [name, unit, make] of profile ? media.filter(Boolean) : []) {
    await mediaSeconds([make()]); // clocks are high
    profile.start(name, unit, 1);
    await mediaSeconds([make()]);
    await profile.end();
}
if (profile) {
    console.error(profile.table());
    writeFileSync(options.profile, profile.svg(`${models[0]} on ${engine.info.device} in Node`));
    result.profile = profile.report();
}
const [{ features }] = await engine.devices();
const stats = await engine.stats();
console.log(JSON.stringify({ ...result, features, ...stats }));
await engine.unload();
process.exit(0); // Dawn keeps the process alive
