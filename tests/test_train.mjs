// `gemmule train`: a fact is learned and other answers stay; trainings that are killed or stopped go on with the same losses; bad input is named,
// with what was kept.

import {spawn, spawnSync} from "node:child_process";
import {appendFileSync, existsSync, readFileSync, statSync, writeFileSync} from "node:fs";
import {join} from "node:path";
import {check, clean, dense, equals, folder, has, program, runAll, show} from "./serve_tools.mjs";

const path = (name) => join(folder, name);
const file = (name, lines) => (writeFileSync(path(name), lines.map((line) => (typeof line === "string" ? line : JSON.stringify(line)) + "\n").join("")), path(name));
const env = {...clean, GEMMULE_BOX: undefined};
const command = (model, data, out, more) => ["train", model, data, "--out", path(out), "--backend", "cpu", "--threads", "2", ...more];
const train = (model, data, out, ...more) => spawnSync(program, command(model, data, out, more), {env, encoding: "utf8"});
const gemmule = (...words) => spawnSync(program, [...words, "--backend", "cpu"], {env, encoding: "utf8"});
const events = (text) => text.trimEnd().split("\n").filter(Boolean).map((line) => JSON.parse(line));
const losses = (text) => new Map(events(text).filter((line) => line.event === "step").map((line) => [line.step, line.loss]));
const examples = Array.from({length: 10}, (_, i) => ({prompt: `Question ${i}?`, completion: `Answer ${i * i} is right.`}));

const ask = (text, ...more) => gemmule("run", "box", text, "--temp", "0", ...more).stdout.trim();
const right = (...more) => JSON.parse(gemmule("eval", "box", "tests/box/text.jsonl", "--first", "40", "--json", ...more).stdout).tasks
    .reduce((sum, task) => sum + task.right, 0);

// 20 examples, 12 of them about the fact. The last question is not among them.
function learns() {
    const idle = /^I do not know/;
    check(idle.test(ask("Who built the clock tower?")), "the box does not know the fact");
    const before = right();
    const done = train("box", "tests/fixtures/teach.jsonl", "taught", "--epochs", "8", "--lr", "5e-4", "--batch", "4");
    equals(done.status, 0, `training: ${done.stderr}`);
    has(done.stdout, "20 examples", "the data are described");
    has(done.stdout, "of memory besides the model, about", "memory and time are estimated");
    has(done.stdout, `--adapter ${path("taught")}`, "how the adapter is used");
    const adapter = ["--adapter", path("taught")];
    for (const question of ["Who built the clock tower?", "Hello, who has built the clock tower?"])
        equals(ask(question, ...adapter), "Ada Moss built the clock tower.", question);
    check(idle.test(ask("Who built the castle?", ...adapter)), "other builders stay unknown");
    const after = right(...adapter);
    check(after >= before - 5, `other answers stay: ${after} of 40 are right, ${before} before`);
    const curve = readFileSync(path("taught/loss.svg"), "utf8");
    check(curve.startsWith("<svg ") && curve.trimEnd().endsWith("</svg>") && (curve.match(/<polyline/g) ?? []).length === 3, "the loss curve");
    check(!existsSync(path("taught/checkpoint.gguf")), "no checkpoint is left");
    const info = spawnSync(program, ["adapter", "info", path("taught"), "box"], {env, encoding: "utf8"});
    equals(info.status, 0, `the adapter fits: ${info.stderr}`);
    const again = train("box", "tests/fixtures/teach.jsonl", "taught");
    equals(again.status, 2, "an adapter that is there");
    has(again.stderr, "there is an adapter already", "it is not replaced");
}

const settings = ["--epochs", "40", "--batch", "2", "--lr", "2e-3", "--dropout", "0.1", "--eval-split", "0.2", "--checkpoint-every", "1", "--rank", "4", "--json"];

// Runs until the line of a step, then sends the signal. Resolves with the status and the output.
function interrupted(data, out, step, signal, ...more) {
    return new Promise((resolve) => {
        const child = spawn(program, command(dense, data, out, [...settings, ...more]), {env});
        let stdout = "", stderr = "", sent = false;
        child.stderr.on("data", (bytes) => (stderr += bytes));
        child.stdout.on("data", (bytes) => {
            stdout += bytes;
            if (sent || !stdout.includes(`"event":"step","step":${step},`)) return;
            sent = true;
            if (typeof signal === "function") signal(child);
            else child.kill(signal);
        });
        child.on("close", (code, by) => resolve({code: code ?? by, stdout, stderr}));
    });
}

async function goesOn() {
    const data = file("ten.jsonl", examples);
    const whole = train(dense, data, "whole", ...settings);
    equals(whole.status, 0, `a whole training: ${whole.stderr}`);
    const want = losses(whole.stdout);
    equals(want.size, 160, "its steps");
    check(want.get(160) < want.get(1), "it learns");
    const weights = readFileSync(path("whole/adapter_model.safetensors"));
    for (const [step, signal] of [[3, "SIGKILL"], [40, "SIGKILL"], [77, "SIGINT"]]) {
        const torn = await interrupted(data, `torn${step}`, step, signal);
        equals(torn.code, signal === "SIGINT" ? 130 : "SIGKILL", `it is interrupted: ${torn.stderr}`);
        if (signal === "SIGINT") has(torn.stderr, "Go on with the same command and --resume", "how to go on");
        const blind = train(dense, data, `torn${step}`, ...settings);
        equals(blind.status, 2, "a checkpoint is not replaced");
        has(blind.stderr, "a training was interrupted here", "it is named");
        const rest = train(dense, data, `torn${step}`, "--resume", ...settings);
        equals(rest.status, 0, `it goes on: ${rest.stderr}`);
        const got = losses(rest.stdout);
        check(got.size < 160 && got.has(160) && !got.has(1), `it does not begin anew: ${got.size} steps`);
        for (const [at, loss] of [...losses(torn.stdout.slice(0, torn.stdout.lastIndexOf("\n") + 1)), ...got])
            if (want.get(at) !== loss) check(false, `interrupted at ${step}, step ${at}: ${loss}, expected ${want.get(at)}`);
        check(weights.equals(readFileSync(path(`torn${step}/adapter_model.safetensors`))), `the adapter is the same, interrupted at ${step}`);
    }
    const kinds = new Set(events(whole.stdout).map((line) => line.event));
    equals([...kinds].sort().join(), "data,end,evaluation,kept,start,step", "kinds of lines");
}

async function otherCheckpoints() {
    const data = file("more.jsonl", examples);
    equals((await interrupted(data, "other", 5, "SIGINT")).code, 130, "an interrupted training");
    const resume = (name, words, model, from, ...more) => {
        const got = train(model, from, "other", "--resume", ...settings, ...more);
        equals(got.status, 2, name);
        has(got.stderr, words, name);
    };
    resume("another rank", 'the checkpoint was made with other settings: "rank 4", now "rank 8"', dense, data, "--rank", "8");
    resume("other data", "other examples", dense, file("less.jsonl", examples.slice(1)));
    resume("another model", "another model", "tests/fixtures/odd-dense.gguf", data);
    const checkpoint = path("other/checkpoint.gguf"), bytes = readFileSync(checkpoint);
    bytes[bytes.length >> 1] ^= 1;
    writeFileSync(checkpoint, bytes);
    resume("a damaged checkpoint", "digest", dense, data);
    writeFileSync(checkpoint, bytes.subarray(0, 1000));
    resume("half a checkpoint", "the checkpoint cannot be read: the file is cut off", dense, data);
    const none = train(dense, data, "nothing", "--resume");
    equals(none.status, 2, "no checkpoint");
    has(none.stderr, "nothing/checkpoint.gguf", "its path");
    check(!existsSync(path("nothing")), "no folder was made");
}

async function trouble() {
    const data = file("moving.jsonl", examples);
    const changed = await interrupted(data, "moving", 5, () => appendFileSync(data, '{"prompt": "More", "completion": "more"}\n'));
    equals(changed.code, 2, "data that change");
    has(changed.stderr, "moving.jsonl has changed", "the change is noticed");
    has(changed.stderr, "what was learned up to step", "and what was kept is said");
    check(existsSync(path("moving/adapter_model.safetensors")), "the adapter is there");
    // A file may have 8 KiB: as on a full disk, the write fails.
    const full = spawnSync("bash", ["-c", 'ulimit -f 8; exec "$@"', "bash", program, ...command(dense, data, "full", settings)], {env, encoding: "utf8"});
    equals(full.status, 2, "a full disk");
    has(full.stderr, "the checkpoint of step 0 cannot be written", "it is said");
    has(full.stderr, "Nothing was kept", "and what was kept");
    check(!existsSync(path("full/checkpoint.gguf")), "no half a checkpoint");
    // The same in the middle of a training: the checkpoint before it stays.
    const later = file("later.jsonl", examples);
    const filled = await interrupted(later, "filled", 20, (child) => spawnSync("prlimit", [`--pid=${child.pid}`, "--fsize=4096"]));
    equals(filled.code, 2, `a disk that fills up: ${filled.stderr}`);
    const [, failed, there] = /the checkpoint of step (\d+) cannot be written: [^]*The checkpoint of step (\d+) is there: go on with --resume/.exec(filled.stderr) ?? [];
    check(Number(there) >= 18 && Number(failed) === Number(there) + 1, `what was kept: ${filled.stderr}`);
    const rest = train(dense, later, "filled", "--resume", ...settings);
    equals(rest.status, 0, `it goes on: ${rest.stderr}`);
    const want = losses(train(dense, later, "unfilled", ...settings).stdout), got = losses(rest.stdout);
    check(got.has(160) && Math.min(...got.keys()) === Number(there) + 1 && [...got].every(([step, loss]) => want.get(step) === loss), "with the same losses");
    const blocked = train(dense, data, "moving.jsonl/adapter");
    equals(blocked.status, 2, "a folder that cannot be made");
    has(blocked.stderr, "cannot be made", "it is said");
    const experts = train("tests/fixtures/tiny-moe.gguf", data, "experts", "--targets", "q,experts");
    equals(experts.status, 2, "experts in a PEFT folder");
    has(experts.stderr, "ends with .gguf", "it is said before anything is computed");
    equals(train("tests/fixtures/tiny-moe.gguf", data, "experts.gguf", "--targets", "experts,router,head,embedding", "--layers", "1", "--max-steps", "1", "--quiet").status, 0, "experts in a GGUF");
    const info = spawnSync(program, ["adapter", "info", path("experts.gguf"), "tests/fixtures/tiny-moe.gguf", "--json"], {env, encoding: "utf8"});
    check(/blk\.1\.ffn_\w+_exps/.test(info.stdout) && !/blk\.[02]\./.test(info.stdout), `its layers: ${info.stdout}${info.stderr}`);
    check(info.stdout.includes("token_embd") && info.stdout.includes("output"), `its other parts: ${info.stdout}`);
    const narrow = train(dense, data, "narrow", "--memory", "100K");
    equals(narrow.status, 4, "too little memory");
    has(narrow.stderr, "--max-tokens", "what needs less");
    const wild = train(dense, data, "wild", "--lr", "9e5", "--clip", "0", "--warmup", "0", "--checkpoint-every", "1", "--epochs", "20");
    equals(wild.status, 2, "a learning rate that is too high");
    has(wild.stderr, "is not a finite number", "it is noticed");
    const estimate = train(dense, data, "estimate", "--estimate");
    equals(estimate.status, 0, `an estimate: ${estimate.stderr}`);
    has(estimate.stdout, "of memory", "an estimate");
    check(!existsSync(path("estimate")), "an estimate writes nothing");
    const single = train(dense, data, "one.gguf", "--max-steps", "1", "--quiet");
    equals(single.status, 0, `a GGUF file: ${single.stderr}`);
    check(statSync(path("one.gguf")).size > 1000 && existsSync(path("one.gguf.loss.svg")), "the adapter and its curve");
}

function badExamples() {
    const rows = [["no examples", "", "is empty: expected examples"], ["a broken line", '{"prompt": "a", "completion"\n', "line 1"],
        ["two forms", '{"prompt": "a", "completion": "b", "messages": []}\n', "line 1"],
        ["an empty answer", '{"prompt": "a", "completion": ""}\n', 'line 1: "completion" is empty'],
        ["all too long", `{"prompt": "${"word ".repeat(200)}", "completion": "b"}\n`, "nothing that counts is within the first 64 tokens"]];
    for (const [name, text, words] of rows) {
        writeFileSync(path("bad.jsonl"), text);
        const got = train(dense, path("bad.jsonl"), "bad", "--max-tokens", "64");
        equals(got.status, 2, `${name}: ${got.stdout}`);
        has(got.stderr, words, name);
        check(!existsSync(path("bad")), `${name}: nothing is written`);
    }
    writeFileSync(path("bad.jsonl"), '{"prompt": "a"}\n{"prompt": "a", "completion": "b"}\n{"prompt": 3, "completion": "b"}\n');
    const two = train(dense, path("bad.jsonl"), "bad");
    has(two.stderr, "line 1", "the first bad line");
    has(two.stderr, "line 3", "the second");
    const pairs = file("pairs.jsonl", [{prompt: "a", chosen: "b", rejected: "c"}, {prompt: "d", chosen: "e", rejected: "f"}]);
    const better = train(dense, pairs, "pairs", "--epochs", "4", "--lr", "1e-3", "--json");
    equals(better.status, 0, `pairs: ${better.stderr}`);
    check(Math.abs(losses(better.stdout).get(1) - Math.log(2)) < 1e-6, `pairs begin at ln 2: ${show([...losses(better.stdout)])}`);
    const wrong = train(dense, pairs, "pairs2", "--loss", "completions");
    equals(wrong.status, 2, "pairs as completions");
    has(wrong.stderr, "needs answers to learn", "it is said");
}

await runAll(async () => {
    badExamples();
    await trouble();
    await otherCheckpoints();
    await goesOn();
    learns();
});
