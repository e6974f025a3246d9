// Does llama.cpp read the two-file export, split text into the same tokens, and write the same greedy text?
//
//     node tools/box/compare_llama.mjs --model box-text.gguf [--gemmule build/gemmule] [--set tests/box/text.jsonl] [--prompts 20] [--tokens 40]
//
// The prompts are every so many lines of the set, rendered by gemmule. `tools/setup.sh bench` installs llama.cpp (node-llama-cpp).

import {execFileSync} from "node:child_process";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import {parseArgs} from "node:util";

const {values} = parseArgs({options: {
    model: {type: "string"}, gemmule: {type: "string", default: "build/gemmule"}, set: {type: "string", default: "tests/box/text.jsonl"},
    prompts: {type: "string", default: "20"}, tokens: {type: "string", default: "40"},
}});
if (!values.model) {
    console.error("usage: node tools/box/compare_llama.mjs --model box-text.gguf");
    process.exit(3);
}
const gemmule = (...args) => execFileSync(values.gemmule, args, {encoding: "utf8", maxBuffer: 1 << 26});
const packages = createRequire(new URL("../../bench/package.json", import.meta.url));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(packages.resolve("node-llama-cpp")));

const all = gemmule("eval", values.model, values.set, "--backend", "cpu", "--prompts").trim().split("\n").map((line) => JSON.parse(line));
const prompts = Array.from({length: Number(values.prompts)}, (_, i) => all[Math.floor(i * all.length / Number(values.prompts))]);

const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: values.model});
const context = await model.createContext({contextSize: 2048, threads: 1, sequences: 1});
const sequence = context.getSequence();
// All probabilities, as the model has them: the first is the likeliest.
const likeliest = {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}};
const stops = new Set(["<eos>", "<turn|>", "<|tool_response>"].map((text) => model.tokenize(text, true)[0]));

// The ids of the answer up to a stop token, which gemmule does not print either, and how sure each of them was: the difference of the two best logits.
async function answer(tokens) {
    const out = {ids: [], margins: []};
    await sequence.clearHistory();
    let results = await sequence.controlledEvaluate(tokens.map((token, i) => i < tokens.length - 1 ? token : [token, likeliest]));
    for (;;) {
        const [[token, best], [, second]] = results.at(-1).next.probabilities;
        out.margins.push(Math.log(best / second));
        if (stops.has(token) || out.ids.length === Number(values.tokens)) return out;
        out.ids.push(token);
        results = await sequence.controlledEvaluate([[token, likeliest]]);
    }
}
const decode = (ids) => ids.length ? JSON.parse(gemmule("tokenize", values.model, "--json", "--decode", ids.join(" "))).text : "";
// Where the texts part: by how much llama.cpp preferred its own word there.
function marginAt(written, text) {
    let at = 0;
    while (at < written.ids.length && text.startsWith(decode(written.ids.slice(0, at + 1)))) at++;
    return {word: at, margin: Number(written.margins[at].toFixed(3))};
}

let same = 0;
for (const prompt of prompts) {
    const ours = JSON.parse(gemmule("tokenize", values.model, "--special", "--json", prompt)).ids, theirs = model.tokenize(prompt, true);
    const text = JSON.parse(gemmule("run", values.model, "--backend", "cpu", "--raw", prompt, "--temp", "0", "--max", values.tokens, "--precise", "--json", "--quiet")).content;
    const written = await answer(ours), read = decode(written.ids);
    const equal = ours.length === theirs.length && ours.every((id, i) => id === theirs[i]) && read === text;
    same += equal;
    if (!equal) console.log(JSON.stringify({prompt: prompt.slice(-60), tokens: [ours.length, theirs.length], ...marginAt(written, text), gemmule: text.slice(0, 80), "llama.cpp": read.slice(0, 80)}));
}
await llama.dispose();
console.log(`${same} of ${prompts.length} prompts: the same tokens and the same greedy text`);
process.exit(same === prompts.length ? 0 : 1);
