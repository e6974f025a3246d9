// `gemmule run --prompts`: answers come in the order of the prompts, as each alone; a run that was stopped goes on; bad lines are named.

import {spawn, spawnSync} from "node:child_process";
import {existsSync, readFileSync, writeFileSync} from "node:fs";
import {join} from "node:path";
import {check, clean, dense, endlessModel, equals, folder, has, program, runAll, scripted, show, until} from "./serve_tools.mjs";

const path = (name) => join(folder, name);
const file = (name, lines) => (writeFileSync(path(name), lines.map((line) => (typeof line === "string" ? line : JSON.stringify(line)) + "\n").join("")), path(name));
const lines = (name) => readFileSync(path(name), "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
const command = (model, prompts, out, more) => ["run", model, "--prompts", prompts, "--out", path(out), "--backend", "cpu", "--threads", "1", ...more];
const run = (model, prompts, out, ...more) => spawnSync(program, command(model, prompts, out, more), {env: clean, encoding: "utf8"});

// The first prompts of a run begin in sessions that hold nothing, so every bit is as alone.
function asAlone() {
    const prompts = [{prompt: "One", max_tokens: 12}, {prompt: "Two, please", temperature: 0, max_tokens: 9, id: "b"},
        {messages: [{role: "system", content: "Be kind."}, {role: "user", content: "Three"}], seed: 5, max_tokens: 14},
        {prompt: "Four", temperature: 1.5, top_k: 0, repetition_penalty: 1.2, max_tokens: 10, id: {nested: [4]}}];
    const together = run(dense, file("four.jsonl", ["", ...prompts]), "four.out", "--seed", "3");
    equals(together.status, 0, `four at once: ${together.stderr}`);
    equals(together.stdout + together.stderr, "", "nothing is printed");
    const got = lines("four.out");
    equals(show(got.map((line) => line.line)), "[2,3,4,5]", "answers carry the numbers of their lines");
    equals(show(got.map((line) => line.id ?? null)), '[null,"b",null,{"nested":[4]}]', "ids are repeated");
    prompts.forEach((prompt, i) => {
        const alone = run(dense, file(`alone${i}.jsonl`, [...Array(i + 1).fill(""), prompt]), `alone${i}.out`, "--seed", "3", "--parallel", "1");
        equals(alone.status, 0, `alone: ${alone.stderr}`);
        equals(show(got[i]), show(lines(`alone${i}.out`)[0]), `prompt ${i + 1} is answered as alone`);
        check(got[i].usage.completion_tokens > 0 && got[i].finish_reason, `usage: ${show(got[i])}`);
    });
}

function goingOn() {
    const model = scripted("yes", "Y", "e", "s", ".", "<turn|>");
    const prompts = file("many.jsonl", Array.from({length: 30}, (_, i) => ({prompt: `Question ${i}?`, id: i})));
    equals(run(model, prompts, "whole.out", "--parallel", "5").status, 0, "a whole run");
    const whole = readFileSync(path("whole.out"), "utf8");
    check(lines("whole.out").every((line, i) => line.line === i + 1 && line.id === i && line.content === "Yes."), `in order: ${show(whole)}`);
    for (const keep of [0, 100, whole.indexOf("\n") + 1, whole.length >> 1, whole.length - 1, whole.length]) {
        writeFileSync(path("torn.out"), whole.slice(0, keep));
        const again = run(model, prompts, "torn.out");
        equals(again.status, 0, `a run that goes on after ${keep} bytes: ${again.stderr}`);
        equals(readFileSync(path("torn.out"), "utf8"), whole, `what is there after ${keep} bytes`);
    }
    const other = run(model, file("other.jsonl", ["", {prompt: "Hi"}]), "whole.out");
    equals(other.status, 2, "an output of other prompts");
    has(other.stderr, "line 1 of", "the line that is not an answer is named");
    equals(readFileSync(path("whole.out"), "utf8"), whole, "it stays as it is");
}

function mistakes() {
    const broken = [{prompt: "fine"}, "{", {}, {prompt: 3}, {prompt: "a", messages: []}, {prompt: "x", temperature: -1}, "[1]"];
    const bad = run(dense, file("bad.jsonl", broken), "bad.out");
    equals(bad.status, 2, "bad lines");
    for (const part of ["line 2: ", 'line 3: expected either "prompt" or "messages"', 'line 4: "prompt" must be a string, not a number', "line 5: ",
        "line 6: temperature", "line 7: expected a JSON object", "6 bad lines"])
        has(bad.stderr, part, "bad lines are named");
    check(!existsSync(path("bad.out")), "nothing was answered");
    equals(run(dense, file("none.jsonl", [""]), "none.out").status, 2, "no prompts");
    equals(run(dense, path("missing.jsonl"), "none.out").status, 2, "a file that is not there");
    const full = run(scripted("short", "Y", "<turn|>"), file("full.jsonl", [{prompt: "Hi"}, {prompt: "long ".repeat(200)}, {prompt: "Hi again"}]), "full.out", "--ctx", "120");
    equals(full.status, 1, `a prompt that does not fit: ${full.stderr}`);
    has(full.stderr, "1 of 3 prompts", "how many failed");
    const answers = lines("full.out");
    check(answers[0].content === "Y" && answers[2].content === "Y" && answers[1].error.includes("context holds 120"), `the others are answered: ${show(answers)}`);
    const again = run(scripted("short", "Y", "<turn|>"), path("full.jsonl"), "full.out", "--ctx", "120");
    equals(again.status, 1, "what failed is asked again, and fails again");
    equals(show(lines("full.out")), show(answers), "the file stays as it is");
    const larger = run(scripted("other", "N", "o", "<turn|>"), path("full.jsonl"), "full.out", "--ctx", "2000");
    equals(larger.status, 0, `with a larger context: ${larger.stderr}`);
    equals(show(lines("full.out").map(({line, content, error}) => [line, content, error ?? null])), '[[1,"Y",null],[2,"No",null],[3,"Y",null]]', "only the error is replaced");
    const many = file("many.jsonl", Array.from({length: 40}, (_, i) => ({prompt: i % 10 ? "long ".repeat(40) : "Hi"}))); // more than are begun at a time
    equals(run(scripted("short", "Y", "<turn|>"), many, "many.out", "--ctx", "40", "--parallel", "2").status, 1, "most prompts do not fit");
    equals(run(scripted("other", "N", "o", "<turn|>"), many, "many.out", "--ctx", "200", "--parallel", "2").status, 0, "now all fit");
    equals(show(lines("many.out").map(({line, content}) => [line, content])), show(Array.from({length: 40}, (_, i) => [i + 1, i % 10 ? "No" : "Y"])),
        "each error is replaced in its place");
    for (const [more, word] of [[["--json"], "--prompts can be combined"], [["--stop", "x"], "--prompts can be combined"]])
        has(spawnSync(program, command(dense, "x", "y", more), {env: clean, encoding: "utf8"}).stderr, word, `with ${more}`);
    has(spawnSync(program, ["run", dense, "--prompts", "x"], {env: clean, encoding: "utf8"}).stderr, "must be used together", "without --out");
    has(spawnSync(program, ["run", dense, "Hi", "--parallel", "2"], {env: clean, encoding: "utf8"}).stderr, "--parallel needs --prompts", "without --prompts");
}

async function stopped() {
    const prompts = file("endless.jsonl", [{prompt: "a", max_tokens: 2}, {prompt: "b", max_tokens: 2}, {prompt: "c", logit_bias: {100: 100}}, {prompt: "d", max_tokens: 2}]);
    const child = spawn(program, command(endlessModel(), prompts, "endless.out", ["--ctx", String(1 << 20)]), {env: clean, stdio: ["ignore", "pipe", "pipe"]});
    let said = "";
    child.stderr.on("data", (data) => (said += data));
    const ended = new Promise((done) => child.on("exit", (code, signal) => done(signal ?? code)));
    await until(() => existsSync(path("endless.out")) && readFileSync(path("endless.out"), "utf8").split("\n").length === 3, "two answers");
    child.kill("SIGINT");
    equals(await ended, 130, "Ctrl-C");
    has(said, "2 of 4 answers; run the command again to continue", "what is there");
    equals(show(lines("endless.out").map((line) => line.line)), "[1,2]", "whole lines");
}

// A line says how its canvas begins and how many steps a block may take.
function diffusion() {
    const model = "tests/fixtures/tiny-diffusion.gguf", wish = {prompt: "Hi", canvas: "The red [[3]] is", max_tokens: 20, seed: 1};
    const done = run(model, file("canvas.jsonl", [{...wish, steps: 1}, wish]), "canvas.out");
    equals(done.status, 0, `a diffusion model: ${done.stderr}`);
    const [hasty, whole] = lines("canvas.out");
    check(hasty.content.startsWith("The red ") && whole.content.startsWith("The red ") && hasty.content !== whole.content, `steps: ${show([hasty, whole])}`);
    has(run(model, file("steps.jsonl", [{...wish, steps: 0}]), "steps.out").stderr, "line 1: steps must be a whole number from 1 to 1023, not 0", "no steps");
    has(run(model, file("steps.jsonl", [wish, {...wish, canvas: "a [[3"}]), "steps.out").stderr, "line 2: [[ at byte 2 of the canvas", "no end of a hole");
    run(dense, file("steps.jsonl", [{prompt: "Hi", steps: 2}]), "steps.out");
    has(lines("steps.out")[0].error, "this model has no canvas", "steps for another model");
}

await runAll(async () => {
    asAlone();
    diffusion();
    goingOn();
    mistakes();
    await stopped();
});
