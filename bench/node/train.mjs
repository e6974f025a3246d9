// Measures training in Node: the npm package (web/dist, see web/build.mjs) on Dawn (the npm package webgpu). Prints one JSON object; the rows
// of `train` have the fields of `gemmule bench --train --json`.
//
//     node bench/node/train.mjs MODEL [--tokens 512,2048] [--repeats 3] [--gpu-disable subgroup_matrix] [--gpu-memory BYTES]
//                               [--package web/dist] [--profile FILE.svg]
//
// A step of N tokens has sequences of 512 tokens of random text, or one of N; rank 16 on all seven projections. Each figure is the best of
// the repeats after two steps. With --profile, one more step of the last number times each dispatch (profile.mjs): a table goes to stderr,
// and bars to the file.

import { writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import { profiler } from './profile.mjs';

const options = { tokens: '512,2048', repeats: 3, 'gpu-disable': '', 'gpu-memory': 0, profile: '', package: join(import.meta.dirname, '../../web/dist') };
const models = [];
for (let i = 2; i < process.argv.length; i++) {
    const name = process.argv[i].replace(/^--/, '');
    if (name === process.argv[i]) models.push(name);
    else if (!(name in options) || i + 1 === process.argv.length) models.push(name, '?');
    else options[name] = typeof options[name] === 'number' ? Number(process.argv[++i]) : process.argv[++i];
}
const counts = options.tokens.split(',').map(Number);
if (models.length !== 1 || !counts.every((n) => Number.isInteger(n) && n >= 8) || Number.isNaN(options.repeats) || Number.isNaN(options['gpu-memory'])) {
    console.error('usage: train.mjs MODEL [--tokens LIST] [--repeats N] [--gpu-disable LIST] [--gpu-memory BYTES] [--package FOLDER] [--profile FILE]');
    process.exit(2);
}

const packaged = join(resolve(options.package), 'node.js');
const profile = options.profile ? await profiler(packaged) : null;
const { Gemmule } = await import(pathToFileURL(packaged).href);
const engine = await Gemmule.load(models[0], {
    backend: 'gpu', training: true, gpuDisable: options['gpu-disable'] || undefined, gpuMemory: options['gpu-memory'] || undefined,
});

// Random tokens as text, which are as many again when they are read, or more: examples are cut off at their length.
const text = (seed, tokens) => engine.detokenize(Int32Array.from({ length: 2 * tokens }, (_, i) => {
    const mixed = Math.imul(seed * 65537 + i, 2654435761) >>> 7;
    return 300 + mixed % (engine.info.vocabulary - 300);
}));

const WARM = 2;

async function measure(tokens, profiled) {
    const length = Math.min(tokens, 512), batch = Math.round(tokens / length), steps = WARM + options.repeats + (profiled ? 1 : 0);
    const data = [];
    for (let i = 0; i < steps * batch; i++) data.push({ text: await text(i, length) });
    const training = engine.train({
        data, name: 'bench', store: false, rank: 16, maxTokens: length, batch, maxSteps: steps, epochs: 1, keepEvery: steps + 1, schedule: 'constant', warmup: -1,
    });
    const row = { tokens: 0, seconds: Infinity };
    let begin = performance.now(), seen = 0;
    for await (const event of training) {
        if (event.kind !== 'step') continue;
        const seconds = (performance.now() - begin) / 1000, counted = event.tokens - seen;
        seen = event.tokens;
        if (event.step === 1) row.first_seconds = seconds;
        if (event.step > WARM && event.step <= WARM + options.repeats) {
            row.tokens = counted;
            row.seconds = Math.min(row.seconds, seconds);
        }
        if (profiled && event.step === WARM + options.repeats) profile.start('train', 'step', 1);
        if (event.step === steps && profiled) await profile.end();
        row.memory_bytes = event.memory;
        row.loss = event.loss;
        if (event.step === WARM) row.gpu_bytes = (await engine.stats()).gpuBytes;
        begin = performance.now();
    }
    await training.result;
    row.tokens_per_second = row.tokens / row.seconds;
    return row;
}

const result = { model: models[0], name: engine.info.name, device: engine.info.device, note: engine.info.note, runtime: `Node ${process.versions.node}`, train: [] };
for (const [i, tokens] of counts.entries()) result.train.push(await measure(tokens, profile && i + 1 === counts.length));
if (profile) {
    console.error(profile.table());
    writeFileSync(options.profile, profile.svg(`${models[0]} on ${engine.info.device} in Node`));
    result.profile = profile.report();
}
const [{ features }] = await engine.devices();
console.log(JSON.stringify({ ...result, features }));
await engine.unload();
process.exit(0); // Dawn keeps the process alive
