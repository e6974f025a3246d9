// Several processes by MPI: `gemmule train` has the losses of one process with the same global batch, and `gemmule run --prompts` writes the
// same file. Needs the plugin (build/mpi) and OpenMPI.

import {spawnSync} from "node:child_process";
import {existsSync, readFileSync, writeFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {check, clean, dense, equals, folder, has, program, runAll, scripted, show} from "./serve_tools.mjs";

const path = (name) => join(folder, name);
const file = (name, lines) => (writeFileSync(path(name), lines.map((line) => JSON.stringify(line) + "\n").join("")), path(name));
const launch = ["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo", "--bind-to", "none"];
const run = (words, env = clean) => spawnSync(program, words, {env, encoding: "utf8"});
const together = (processes, words, env = clean, path = program) => spawnSync("mpirun", [...launch, "-np", String(processes), path, ...words], {env, encoding: "utf8"});

// ---- training ----

const examples = Array.from({length: 13}, (_, i) => ({prompt: `Question ${i}?`, completion: `Answer ${i * i} is ${"very ".repeat(i % 4)}right.`}));
const teach = (data, out, ...more) => ["train", dense, data, "--out", path(out), "--backend", "cpu", "--threads", "1", "--epochs", "2", "--lr", "2e-3", "--rank", "4",
    "--dropout", "0", "--eval-split", "0.2", "--json", ...more];
const events = (text) => text.trimEnd().split("\n").filter(Boolean).map((line) => JSON.parse(line));

function sameEvents(got, want, name) {
    const kinds = (list, kind) => list.filter((line) => line.event === kind);
    for (const [kind, key] of [["step", "loss"], ["evaluation", "loss"]]) {
        const [mine, theirs] = [kinds(got, kind), kinds(want, kind)];
        check(theirs.length > 1 && mine.length === theirs.length, `${name}: ${mine.length} lines of ${kind}, expected ${theirs.length}`);
        for (const [i, line] of mine.entries())
            check(Math.abs(line[key] - theirs[i][key]) < 2e-5 * theirs[i][key], `${name}, ${kind} ${i + 1}: ${line[key]}, expected ${theirs[i][key]}`);
    }
}

function trains() {
    const data = file("examples.jsonl", examples);
    const one = run(teach(data, "one", "--batch", "4"));
    equals(one.status, 0, `one process: ${one.stderr}`);
    const want = events(one.stdout), losses = want.filter((line) => line.event === "step").map((line) => line.loss);
    check(losses.at(-1) < losses[0] && new Set(losses).size === losses.length, `it learns: ${show(losses)}`);
    const two = together(2, teach(data, "two", "--batch", "2"));
    equals(two.status, 0, `two processes: ${two.stderr}`);
    equals(two.stderr, "", "only the first one prints");
    sameEvents(events(two.stdout), want, "two processes with half the batch");
    const [a, b] = ["one", "two"].map((name) => readFileSync(path(`${name}/adapter_config.json`), "utf8"));
    equals(a, b, "their adapters have the same form");
    check(existsSync(path("two/loss.svg")) && !existsSync(path("two/checkpoint.gguf")), "what is left");
    const other = run(teach(data, "six", "--batch", "1", "--accumulate", "6"));
    const three = together(3, teach(data, "three", "--batch", "1", "--accumulate", "2"));
    equals(three.status, 0, `three processes: ${three.stderr}`);
    sameEvents(events(three.stdout), events(other.stdout), "three processes, of which the last step leaves some without examples");
    const bad = together(2, teach(path("nothing.jsonl"), "bad"));
    equals(bad.status, 2, "no examples");
    has(bad.stderr, "nothing.jsonl", "they are named");
    has(together(2, teach(data, "estimate", "--estimate")).stderr, "without mpirun", "an estimate");
}

// The first process dies when the checkpoint of this step is about to take the place of the one before (tests/die_at_rename.c; the first of all is
// that of step 0), and mpirun ends the other one. A signal sent from here might come too late: a fast machine needs less time to train.
const torn = (step, words) => together(2, words, {...clean, DIE_AT: String(step + 1), GEMMULE_MPI: resolve("build/mpi/libgemmule-mpi.so")}, resolve("build/release/gemmule_fails"));

const steps = (text) => new Map(events(text).filter((line) => line.event === "step").map((line) => [line.step, line.loss]));
const pairs = examples.map(({prompt, completion}, i) => ({prompt, chosen: completion, rejected: `No ${"idea ".repeat(1 + i % 3)}`}));

// As many processes as before: the same bits. Pairs are in batches with others in each epoch, so none may be measured again without the adapter.
function goesOn(name, rows, stops) {
    const data = file(`${name}.jsonl`, rows), settings = ["--batch", "2", "--epochs", "16", "--checkpoint-every", "1"];
    const whole = together(2, teach(data, `${name}-whole`, ...settings));
    equals(whole.status, 0, `${name}, a whole training: ${whole.stderr}`);
    const want = steps(whole.stdout), weights = (folder) => readFileSync(path(`${folder}/adapter_model.safetensors`));
    for (const stop of stops) {
        const out = `${name}-torn${stop}`;
        check(torn(stop, teach(data, out, ...settings)).status !== 0 && existsSync(path(`${out}/checkpoint.gguf`)), `${out} was ended, and left a checkpoint`);
        const rest = together(2, teach(data, out, ...settings, "--resume"));
        equals(rest.status, 0, `${out} goes on: ${rest.stderr}`);
        const got = steps(rest.stdout);
        check(got.size === want.size - stop + 1 && !got.has(stop - 1) && got.has(want.size), `${out} does not begin anew: ${show([...got.keys()])}`);
        for (const [step, loss] of got) if (loss !== want.get(step)) check(false, `${out}, step ${step}: ${loss}, expected ${want.get(step)}`);
        check(weights(out).equals(weights(`${name}-whole`)), `the adapter of ${out} is the same`);
    }
}

// Another number of processes adds up in another order.
function goesOnAlone() {
    const data = file("more.jsonl", examples), settings = ["--batch", "2", "--epochs", "8", "--checkpoint-every", "1"];
    const whole = run(teach(data, "whole", "--accumulate", "2", ...settings));
    equals(whole.status, 0, `a whole training: ${whole.stderr}`);
    check(torn(5, teach(data, "torn", ...settings)).status !== 0 && existsSync(path("torn/checkpoint.gguf")), "it was ended, and left a checkpoint");
    const rest = run(teach(data, "torn", "--accumulate", "2", ...settings, "--resume"));
    equals(rest.status, 0, `one process goes on: ${rest.stderr}`);
    const [want, got] = [steps(whole.stdout), steps(rest.stdout)];
    check(got.size === want.size - 4 && !got.has(4) && got.has(want.size), `it does not begin anew: ${show([...got.keys()])}`);
    for (const [step, loss] of got) check(Math.abs(loss - want.get(step)) < 1e-4 * want.get(step), `step ${step}: ${loss}, expected ${want.get(step)}`);
}

// ---- prompts ----

function answers() {
    const model = scripted("mpi", "Y", "e", "s", ".", "<turn|>");
    const prompts = file("prompts.jsonl", Array.from({length: 23}, (_, i) => ({prompt: `Question ${i}?${i % 5 === 3 ? " long".repeat(200) : ""}`, id: i})));
    const words = (out, ...more) => ["run", model, "--prompts", prompts, "--out", path(out), "--backend", "cpu", "--threads", "1", "--ctx", "120", ...more];
    const one = run(words("one.out"));
    equals(one.status, 1, "one process; some prompts are too long");
    const want = readFileSync(path("one.out"), "utf8");
    check(want.split("\n").length === 24 && want.includes('"error"') && want.includes('"Yes."'), `answers: ${want}`);
    for (const [processes, parallel] of [[2, 4], [3, 1]]) {
        const out = `${processes}.out`, many = together(processes, words(out, "--parallel", String(parallel)));
        equals(many.status, 1, `${processes} processes: ${many.stderr}`);
        equals(many.stderr.match(/4 of 23 prompts have no answer/g)?.length, 1, `how many failed is said once: ${many.stderr}`);
        equals(readFileSync(path(out), "utf8"), want, `${processes} processes`);
    }
    for (const keep of [100, want.length >> 1, want.length]) { // what is there is kept, what failed is asked again
        writeFileSync(path("torn.out"), want.slice(0, keep));
        equals(together(2, words("torn.out")).status, 1, `going on after ${keep} bytes`);
        equals(readFileSync(path("torn.out"), "utf8"), want, `what is there after ${keep} bytes`);
    }
    const bad = together(2, ["run", model, "--prompts", file("bad.jsonl", [{}]), "--out", path("bad.out")]);
    equals(bad.status, 2, "a bad line");
    check(!existsSync(path("bad.out")), "nothing is written");
}

function withoutPlugin() {
    const alone = together(2, ["run", dense, "--prompts", path("prompts.jsonl"), "--out", path("no.out")], {...clean, GEMMULE_MPI: "/nowhere.so"});
    equals(alone.status, 2, "a plugin that is not there");
    has(alone.stderr, "mpirun has started 2 processes, but the plugin for MPI cannot be loaded", "it is said");
    const other = together(2, ["run", dense, "--prompts", path("prompts.jsonl"), "--out", path("no.out")], {...clean, GEMMULE_MPI: "libm.so.6"});
    has(other.stderr, "libm.so.6 is not the plugin of this version", "another library");
    check(!existsSync(path("no.out")), "nothing is written");
}

await runAll(() => {
    trains();
    goesOn("completions", examples, [2, 9, 20]);
    goesOn("pairs", pairs, [2, 9, 20]);
    goesOnAlone();
    answers();
    withoutPlugin();
});
