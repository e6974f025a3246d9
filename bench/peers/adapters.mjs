// Shows that llama.cpp and gemmule agree about adapters: on the same model, an adapter that gemmule exports gives the same greedy text in
// llama.cpp, and so does a model into which gemmule merged it, in both.
//
//   node bench/peers/adapters.mjs [--gemmule build/gemmule] [--model models/box.gguf] [--adapter DIR] [--tokens 24] [--threads 2]
//
// Without --adapter it makes one with random values. Both programs are given the same tokens. The questions are of kinds that the small
// model knows: where it knows no answer, two tokens may be equally likely, and rounding chooses between them. Ends with 1 if a text
// differs, or if the adapter changes none.

import {execFileSync} from "node:child_process";
import {mkdtempSync, rmSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {parseArgs} from "node:util";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";
import {writeRandomAdapter} from "./random_adapter.mjs";
import {writeTextOnly} from "./text_only.mjs";

const {values: options} = parseArgs({options: {
    gemmule: {type: "string", default: "build/gemmule"}, model: {type: "string", default: "models/box.gguf"},
    adapter: {type: "string"}, tokens: {type: "string", default: "24"}, threads: {type: "string", default: "2"},
}});
const questions = ["Tell me about tea.", "What is a dog?", "Write a short story about rain.", "Who are you?", "Tell me a joke."];
const prompts = questions.map((text) => `<|turn>user\n${text}<turn|>\n<|turn>model\n`);
const folder = mkdtempSync(join(tmpdir(), "adapters-")), lora = options.adapter ?? join(folder, "random");
const gemmule = (...words) => execFileSync(options.gemmule, words, {encoding: "utf8", stdio: ["ignore", "pipe", "inherit"], maxBuffer: 1 << 24});

const writtenByGemmule = (model, prompt, ...more) => JSON.parse(gemmule("run", model, prompt, "--raw", "--temp", "0", "--max", options.tokens,
    "--backend", "cpu", "--threads", options.threads, "--quiet", "--json", ...more)).content;

async function writtenByLlama(llama, modelPath, adapters) {
    const model = await llama.loadModel({modelPath}), texts = [];
    const context = await model.createContext({contextSize: 512, threads: Number(options.threads), sequences: 1,
        ...(adapters && {lora: {adapters: adapters.map((filePath) => ({filePath, scale: 1}))}})});
    const sequence = context.getSequence();
    for (const prompt of prompts) {
        const {ids} = JSON.parse(gemmule("tokenize", modelPath, prompt, "--bos", "--special", "--json")), written = [];
        await sequence.clearHistory();
        for await (const token of sequence.evaluate(ids, {temperature: 0})) {
            if (model.isEogToken(token) || written.push(token) === Number(options.tokens)) break;
        }
        texts.push(JSON.parse(gemmule("tokenize", modelPath, "--decode", written.join(" ") || "0", "--json")).text);
        if (!written.length) texts[texts.length - 1] = "";
    }
    await model.dispose();
    return texts;
}

let failed = 0, changed = 0;
try {
    const model = join(folder, "text.gguf"), exported = join(folder, "exported.gguf"), merged = join(folder, "merged.gguf");
    writeTextOnly(options.model, model);
    if (!options.adapter) writeRandomAdapter(options.gemmule, model, lora, {rank: 8, strength: 0.4});
    gemmule("adapter", "convert", lora, exported);
    gemmule("adapter", "merge", model, lora, merged, "--type", "f32", "--quiet");
    const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
    const there = {plain: await writtenByLlama(llama, model), adapted: await writtenByLlama(llama, model, [exported]),
        merged: await writtenByLlama(llama, merged)};
    prompts.forEach((prompt, i) => {
        const want = writtenByGemmule(model, prompt, "--adapter", lora), plain = writtenByGemmule(model, prompt);
        const rows = {"gemmule, merged": writtenByGemmule(merged, prompt), "llama.cpp, exported": there.adapted[i], "llama.cpp, merged": there.merged[i]};
        changed += want !== plain;
        console.log(`${questions[i]}\n    without: ${JSON.stringify(plain)}${plain === there.plain[i] ? "" : `, llama.cpp ${JSON.stringify(there.plain[i])}`}\n` +
            `    with:    ${JSON.stringify(want)}`);
        for (const [name, text] of Object.entries(rows)) {
            console.log(`    ${name}: ${text === want ? "the same" : JSON.stringify(text)}`);
            failed += text !== want;
        }
    });
    await llama.dispose();
} finally {
    rmSync(folder, {recursive: true, force: true});
}
console.log(`${questions.length} prompts, the adapter changes ${changed} answers, ${failed} differ`);
process.exit(failed || !changed ? 1 : 0);
