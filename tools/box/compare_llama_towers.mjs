// Does llama.cpp read the towers of the two-file export, and what does it see?
//
//     node tools/box/compare_llama_towers.mjs --model box-text.gguf --mmproj box-mmproj.gguf [--cases 8]
//
// node-llama-cpp is built without llama.cpp's towers (mtmd); wllama, llama.cpp in WebAssembly, has them. It runs in Chromium, and is asked about the first
// pictures of tests/box. Pictures are resized there by another filter than Gemma 4's, which a model of this size notices. The audio tower is loaded and its graph
// made, but sounds are not asked about: their mel spectrogram wants threads that wllama does not have, and it waits for them for ever. `tools/setup.sh bench`
// installs it.

import {readFileSync} from "node:fs";
import {parseArgs} from "node:util";
import {chromium, which} from "../../web/tests/browser/browsers.ts";
import {startServer} from "../../web/tests/browser/server.ts";

const {values} = parseArgs({options: {model: {type: "string"}, mmproj: {type: "string"}, cases: {type: "string", default: "8"}}});
if (!values.model || !values.mmproj) {
    console.error("usage: node tools/box/compare_llama_towers.mjs --model box-text.gguf --mmproj box-mmproj.gguf");
    process.exit(3);
}

// The plain part of Gemma 4's chat format; the files have no template. llama.cpp puts <bos> before it, and marks around media.
const TEMPLATE = "{% for m in messages %}{{ '<|turn>' + m.role + '\n' }}{{ m.content }}{{ '<turn|>\n' }}{% endfor %}{{ '<|turn>model\n' }}";

const cases = readFileSync("tests/box/pictures.jsonl", "utf8").trim().split("\n").slice(0, Number(values.cases)).map((line) => {
    const {messages, check, image} = JSON.parse(line);
    return {file: `/tests/box/${image}`, question: messages[0].content.at(-1).text, check};
});

async function inPage({wllama, template, cases}) {
    const said = [], note = (...words) => void said.push(words.join(" "));
    const {Wllama} = await import(`${wllama}/index.js`);
    const engine = new Wllama({default: `${wllama}/wasm/wllama.wasm`}, {logger: {debug: note, log: note, warn: note, error: note}});
    const blobs = await Promise.all(["/model.gguf", "/mmproj.gguf"].map(async (url) => (await fetch(url)).blob()));
    try {
        await engine.loadModel(blobs, {n_ctx: 1024, n_parallel: 1, n_threads: 2, chat_template: template, jinja: true, image_min_tokens: 60, image_max_tokens: 70});
        const answers = [];
        for (const {file, question} of cases) {
            const data = await (await fetch(file)).arrayBuffer();
            const content = [{type: "image", data}, {type: "text", text: question}];
            const reply = await engine.createChatCompletion({messages: [{role: "user", content}], max_tokens: 48, temperature: 0});
            answers.push({text: reply.choices[0].message.content, tokens: reply.usage?.prompt_tokens});
        }
        const sees = engine.supportInputModality("image"), hears = engine.supportInputModality("audio");
        return {sees, hears, answers};
    } catch (error) {
        return {error: String(error), said: said.filter((line) => /error|fail|missing|unable|unknown/i.test(line)).slice(-20)};
    }
}

// Its preprocessing wants a thread, and threads want isolation.
const headers = {"cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp"};
const server = await startServer({headers, files: {"/model.gguf": values.model, "/mmproj.gguf": values.mmproj}});
const browser = await chromium.launch({executablePath: which("chromium"), headless: true, args: ["--no-sandbox"]});
const page = await browser.newPage();
await page.goto(`${server.origin}/web/tests/browser/blank.html`);
const result = await page.evaluate(inPage, {wllama: "/bench/node_modules/@wllama/wllama/esm", template: TEMPLATE, cases});
await browser.close();
await server.close();

if (result.error) {
    console.log(JSON.stringify(result, null, 1));
    process.exit(1);
}
const passes = ({exact, contains, number}, text) => (!exact || exact.includes(text)) && (contains ?? []).every((part) => text.toLowerCase().includes(part.toLowerCase())) &&
    (number === undefined || (text.match(/\d+/g) ?? []).at(-1) === String(number));
const right = result.answers.filter(({text}, i) => passes(cases[i].check, text));
result.answers.forEach(({text, tokens}, i) => console.log(JSON.stringify({file: cases[i].file, question: cases[i].question, prompt: tokens, answer: text})));
console.log(`llama.cpp sees: ${result.sees}, hears: ${result.hears}; ${right.length} of ${cases.length} answers are right`);
