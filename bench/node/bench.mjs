// Measures the engine in Node: the npm package (web/dist, see web/build.mjs) on Dawn (the npm package webgpu) or on wasm. Prints one
// JSON object with the same fields as `gemmule bench --json`.
//
//     node bench/node/bench.mjs MODEL [--backend gpu|wasm] [--prefill 512] [--decode 128] [--depth 0] [--repeats 3]
//                               [--gpu-disable subgroup_matrix] [--gpu-memory BYTES] [--threads N] [--package web/dist]
//                               [--profile FILE.svg] [--warm 1]
//
// Each figure is the best of the repeats after so many seconds of warm-up: a GPU that computes larger batches compiles their kernels in
// the meantime. With --profile, one more run times each dispatch (profile.mjs): a
// table goes to stderr, and bars to the file. VK_ICD_FILENAMES names the Vulkan driver if the system does not.

import { writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import { profiler } from './profile.mjs';

const options = {
    backend: 'gpu', prefill: 512, decode: 128, depth: 0, repeats: 3, warm: 1, 'gpu-disable': '', 'gpu-memory': 0, threads: 0,
    profile: '', package: join(import.meta.dirname, '../../web/dist'),
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
        '[--gpu-disable LIST] [--gpu-memory BYTES] [--threads N] [--package FOLDER] [--profile FILE]');
    process.exit(2);
}

const packaged = join(resolve(options.package), 'node.js');
const profile = options.profile ? await profiler(packaged) : null;
const { Gemmule } = await import(pathToFileURL(packaged).href);
const opened = performance.now();
const engine = await Gemmule.load(models[0], {
    backend: options.backend, gpuDisable: options['gpu-disable'] || undefined, gpuMemory: options['gpu-memory'] || undefined,
    threads: options.threads || undefined,
});
const openSeconds = (performance.now() - opened) / 1000;
const { prefill, decode, depth, repeats } = options;
const session = await engine.session({ context: Math.min(engine.info.context, depth + Math.max(prefill, decode + 2) + 64) });

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

const result = { model: models[0], name: engine.info.name, device: engine.info.device, note: engine.info.note, runtime: `Node ${process.versions.node}`, load_seconds: openSeconds };
result.prefill = { tokens: prefill, tokens_per_second: prefill ? prefill / (await best(prefillSeconds)) : 0 };
result.decode = { tokens: decode, depth, tokens_per_second: decode ? 1 / (await best(decodeSeconds)) : 0 };
if (profile && prefill) {
    profile.start('prefill', 'prompt', 1);
    await prefillSeconds();
    await profile.end();
}
if (profile && decode) {
    await decodeSeconds(() => profile.start('decode', 'token', decode));
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
