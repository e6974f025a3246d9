// Both WGSL compilers read every text that the engine can produce: naga, Firefox's, and Tint, Chromium's. Test programs plan on a host that
// computes nothing (tests/fake_host.c), with every combination of optional features; so texts for GPUs that no test machine has are read,
// too. One of the programs, check_models, also shows that the self-check dispatches whatever a model's plans will.
//
//     node tests/test_shaders.mjs [folder of the build]
//
// naga does not know `enable subgroups;` and wants none: that line is left out. Texts with experimental extensions of Chromium
// are beyond it: they are counted by name, and left to Tint, which runs in Dawn (npm webgpu) on its null backend.

import {spawn} from "node:child_process";
import {mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync} from "node:fs";
import {availableParallelism, tmpdir} from "node:os";
import {createRequire} from "node:module";
import {join} from "node:path";
import {parseWgsl, validate} from "naga-wasm";

const build = process.argv[2] ?? "build/release";
const features = ["subgroups", "dot4", "f16"];
const combinations = Array.from({length: 1 << features.length}, (_, bits) => features.filter((_, i) => bits >> i & 1).join(" "));
combinations.push("subgroups dot4 f16 subgroup_matrix", "subgroups dot4 f16 subgroup_matrix small", "subgroups dot4 f16 old");
const fixtures = ["tiny-dense", "tiny-moe", "tiny-diffusion", "small-dense-Q4_K_M", "small-moe-Q4_K_M"].map((name) => `tests/fixtures/${name}.gguf`);
// The test programs' results are zeros here, so only their normal exit counts.
const programs = [
    {name: "test_ops", args: ["gpu"], ends: /\d+ passed, \d+ failed\n$/},
    {name: "test_gpu_fuse", args: [], ends: /\d+ passed, \d+ failed\n$/},
    {name: "test_gpu_kv", args: [], ends: /\d+ passed, \d+ failed\n$/},
    {name: "test_gpu_sampler", args: [], ends: /\d+ passed, \d+ failed\n$/},
    {name: "plan_models", args: fixtures, ends: /plans\n$/, status: 0},
    {name: "check_models", args: fixtures, ends: / 0 failed\n$/, status: 0},
    {name: "kernels_gpu", args: ["--quick"], ends: /slots of experts[^\n]*\n$/, status: 0},
];
const fewestTexts = 400;

let passed = 0, failed = 0;
function check(good, message) {
    if (good) passed++;
    else {
        failed++;
        console.log(`FAIL ${message}`);
    }
}

// ---- the verdict on one text ----

function problemOf(text) {
    const plain = text.replace(/^enable subgroups;$/m, "");
    let module, info;
    try {
        module = parseWgsl(plain);
        info = validate(module);
        return null;
    } catch (problem) {
        return problem.formatted ?? problem.message;
    } finally {
        info?.free?.();
        module?.free?.();
    }
}

const {create} = createRequire(new URL("../web/package.json", import.meta.url))("webgpu");
const gpu = create(["backend=null", "enable-dawn-features=allow_unsafe_apis"]);
const needed = ["shader-f16", "subgroups", "chromium-experimental-subgroup-matrix"];
// Each combination has a device of its own: Dawn's null backend crashes after about 2,000 modules on one.
const openDevice = () => adapter.requestDevice({requiredFeatures: needed.filter((name) => adapter.features.has(name))});
let adapter = await gpu.requestAdapter(), device = await openDevice();
for (const name of needed) check(adapter.features.has(name), `Dawn's null backend lacks ${name}`);

// What Tint says against a text; null: nothing.
async function tintProblemOf(text) {
    device.pushErrorScope("validation");
    const info = await device.createShaderModule({code: text}).getCompilationInfo();
    const refused = await device.popErrorScope();
    const errors = info.messages.filter((message) => message.type === "error").map((message) => `${message.lineNum}: ${message.message}`);
    return errors.join("\n") || refused?.message || null;
}

const experimental = (text) => /^enable (chromium_experimental_\w+)/m.exec(text)?.[1];
const storageBuffers = (text) => text.match(/^@group.*var<storage/gm)?.length ?? 0;

// ---- the texts ----

function run({name, args, ends, status}, has, folder) {
    return new Promise((resolve) => {
        let output = "";
        const environment = {...process.env, FAKE_GPU: has, FAKE_GPU_SHADERS: folder};
        const child = spawn(join(build, `shaders_${name}`), args, {env: environment, timeout: 1_200_000});
        for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => output += data);
        child.on("error", (problem) => resolve(`${name} could not be started: ${problem.message}`));
        child.on("close", (code, signal) => {
            const good = signal === null && (status === undefined || code === status) && ends.test(output);
            resolve(good ? null : `${name} with "${has}" ended with ${signal ?? code}:\n${output.slice(-1000)}`);
        });
    });
}

const folder = mkdtempSync(join(tmpdir(), "gemmule-naga-"));
try {
    const jobs = combinations.flatMap((has, i) => programs.map((program) => ({program, has, folder: join(folder, String(i))})));
    combinations.forEach((_, i) => mkdirSync(join(folder, String(i))));
    await Promise.all(Array.from({length: availableParallelism()}, async () => {
        for (let job; (job = jobs.shift());) {
            const problem = await run(job.program, job.has, job.folder);
            check(!problem, problem);
        }
    }));

    // ---- all of them ----

    const verdicts = new Map(), excluded = new Map(), files = new Set();
    for (const [i, has] of combinations.entries()) {
        device.destroy();
        adapter = await gpu.requestAdapter(); // an adapter gives one device
        device = await openDevice();
        const names = readdirSync(join(folder, String(i)));
        check(names.length > 0, `no texts with "${has}"`);
        for (const name of names) {
            const text = readFileSync(join(folder, String(i), name), "utf8"), file = name.replace(/\.[0-9a-f]{12}\.wgsl$/, "");
            files.add(file);
            if (verdicts.has(name) || excluded.has(name)) continue;
            const said = await tintProblemOf(text);
            check(!said, `Tint refuses ${name} with "${has}":\n${said}`);
            if (experimental(text)) {
                excluded.set(name, `${file} (${experimental(text)})`);
                continue;
            }
            const problem = problemOf(text);
            verdicts.set(name, problem);
            check(!problem, `${name} with "${has}":\n${problem}`);
            check(storageBuffers(text) <= 8, `${name}: ${storageBuffers(text)} storage buffers, where a plain GPU has 8`);
            check(!/^enable subgroups;/m.test(text) || has.includes("subgroups"), `${name} uses subgroups that are not there`);
            check(!/^enable f16;/m.test(text) || has.includes("f16"), `${name} uses f16 that is not there`);
        }
    }
    check(excluded.size > 0, "no text with subgroup matrices was read");
    for (const what of new Set(excluded.values())) console.log(`not for naga: ${[...excluded.values()].filter((other) => other === what).length} texts of ${what}`);
    check(verdicts.size >= fewestTexts, `${verdicts.size} different texts were looked at: at least ${fewestTexts} were expected`);
    console.log(`${verdicts.size} different texts of ${files.size} kernels, ${excluded.size} left out`);

    // A kernel that no program here plans was never checked.
    const sources = readdirSync("wgsl").map((file) => ({file, text: readFileSync(join("wgsl", file), "utf8")}));
    const included = new Set(sources.flatMap(({text}) => [...text.matchAll(/^#include "(.*)"/gm)].map((match) => match[1])));
    for (const {file, text} of sources)
        if (/@compute/.test(text) && !included.has(file)) check(files.has(file), `wgsl/${file} was planned by none of the programs`);

    // ---- the check can fail ----

    const right = readFileSync(join(folder, "0", readdirSync(join(folder, "0"))[0]), "utf8");
    check(problemOf(right) === null, "a right text is refused");
    for (const [what, wrong] of [
        ["a name that is not declared", right + "\nfn broken() -> u32 { return not_declared; }\n"],
        ["a type that does not fit", right + "\nfn broken() -> u32 { return 1.5; }\n"],
        ["a text that breaks off", right.slice(0, right.lastIndexOf("}"))],
    ]) {
        check(problemOf(wrong) !== null, `naga accepts ${what}`);
        check(await tintProblemOf(wrong) !== null, `Tint accepts ${what}`);
    }
    const withMatrices = combinations.findIndex((has) => has.includes("small"));
    const matrices = readFileSync(join(folder, String(withMatrices), [...excluded.keys()].at(-1)), "utf8");
    check(await tintProblemOf(matrices) === null, "Tint refuses subgroup matrices");
    const misused = matrices.replace("subgroupMatrixMultiplyAccumulate(", "subgroupMatrixMultiplyAccumulate(1u, ");
    check(misused !== matrices && await tintProblemOf(misused) !== null, "Tint accepts subgroup matrices that are used wrongly");
} finally {
    rmSync(folder, {recursive: true});
}

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
