// What the self-check runs on this machine's GPU, through Node and Dawn (the npm package webgpu), and whether it notices a broken shader.
//
//     node bench/node/self_check.mjs MODEL [--label matmul_matrix.wgsl --from TEXT --to TEXT] [--tokens 300] [--package web/dist]
//
// Opens the model on the GPU, computes a prompt of so many tokens and a short answer, and prints one JSON object: the seconds of the
// self-check; for each kernel how many shader texts it dispatched; and `unchecked`, the kernels that prompt and answer dispatched and the
// self-check did not. With --from, this piece of a shader's text becomes --to on its way to the compiler: then the model must be
// refused, and `refused` says why. Exit status 1: something is unchecked, or a broken shader passes.
// On a GPU in software the self-check is shorter: there, plans for 4, 64 and 256 tokens are unchecked.

import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
        label: { type: 'string', default: '' }, from: { type: 'string' }, to: { type: 'string', default: '' },
        tokens: { type: 'string', default: '300' }, package: { type: 'string', default: join(import.meta.dirname, '../../web/dist') },
    },
});
if (positionals.length !== 1) {
    console.error('usage: self_check.mjs MODEL [--label FILE --from TEXT --to TEXT] [--tokens N] [--package FOLDER]');
    process.exit(2);
}
const entry = join(resolve(values.package), 'node.js');
const { globals } = await import(pathToFileURL(createRequire(entry).resolve('webgpu')).href);

// ---- what passes by ----

const text = new Map(), dispatched = new Set(); // module or pipeline → kernel and text; texts that ran
let broken = 0;

function watch(type, name, around) {
    const real = globals[type].prototype[name];
    globals[type].prototype[name] = function (...args) { return around.call(this, real, ...args); };
}
watch('GPUDevice', 'createShaderModule', function (real, descriptor) {
    let { code, label = '' } = descriptor;
    if (values.from && label.includes(values.label) && code.includes(values.from)) {
        code = code.replaceAll(values.from, values.to);
        broken++;
    }
    const module = real.call(this, { ...descriptor, code });
    text.set(module, { label, code });
    return module;
});
watch('GPUDevice', 'createComputePipeline', function (real, descriptor) {
    const pipeline = real.call(this, descriptor);
    text.set(pipeline, text.get(descriptor.compute.module));
    return pipeline;
});
watch('GPUDevice', 'createComputePipelineAsync', async function (real, descriptor) {
    const pipeline = await real.call(this, descriptor);
    text.set(pipeline, text.get(descriptor.compute.module));
    return pipeline;
});
watch('GPUComputePassEncoder', 'setPipeline', function (real, pipeline) {
    dispatched.add(text.get(pipeline));
    return real.call(this, pipeline);
});

// ---- the model ----

const nameOf = ({ label, code }) => label || /^\/\/ *(\S+)/.exec(code)?.[1] || code.slice(0, 40);
const keysOf = (all) => new Map([...all].map((one) => [one.code, nameOf(one)]));
const { Gemmule } = await import(pathToFileURL(entry).href);
let engine;
try {
    engine = await Gemmule.load(positionals[0], { backend: 'gpu' });
} catch (problem) {
    console.log(JSON.stringify({ broken, refused: problem.message }));
    process.exit(broken ? 0 : 1);
}
const checked = keysOf(dispatched), kernels = {};
for (const name of checked.values()) kernels[name] = (kernels[name] ?? 0) + 1;
const { checkSeconds } = await engine.stats();
dispatched.clear();
const session = await engine.session({ context: Math.min(engine.info.context, Number(values.tokens) + 64) });
await session.append(Int32Array.from({ length: Number(values.tokens) }, (_, i) => 300 + ((i * 2654435761) >>> 7) % (engine.info.vocabulary - 300)));
const reply = await session.generate(null, { sampling: { temperature: 0 }, maxTokens: 4 });
for await (const _ of reply) { /* only computed */ }
const unchecked = [...keysOf(dispatched)].filter(([code, name]) => !checked.has(code)).map(([, name]) => name);
const [{ features }] = await engine.devices();
console.log(JSON.stringify({ model: positionals[0], device: engine.info.device, features, check_seconds: checkSeconds, broken, kernels, unchecked }, null, 1));
process.exit(unchecked.length || broken ? 1 : 0);
