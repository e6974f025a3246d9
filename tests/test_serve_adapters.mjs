// Requests with different adapters, of text and of the vision tower, with and without pictures, from clients of which some break off: every
// answer that is read to its end is the one that the same request gets alone.
//
//     node tests/test_serve_adapters.mjs [PROGRAM]

import {readFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {writeRandomAdapter} from "../bench/peers/random_adapter.mjs";
import {ask, chat, check, equals, folder, open, program, runAll, serve, show, until} from "./serve_tools.mjs";

const model = resolve("tests/fixtures/tiny-mm-ollama.gguf");
const picture = {type: "image_url", image_url: {url: `data:image/png;base64,${readFileSync("tests/fixtures/tiny-mm.png").toString("base64")}`}};
const adapters = {one: {seed: 1, rank: 3}, two: {seed: 2, rank: 17}, sees: {seed: 3, rank: 5, vision: true, strength: 1}};
const names = ["", "+one", "+two", "+sees", "+one+sees", "+two+one"].map((name) => `tiny-mm-ollama${name}`);

const question = (i) => ({model: names[i % names.length], temperature: 0, max_tokens: 5 + i % 4, messages: [{role: "user", content: [...((i / names.length & 1) ? [picture] : []),
    {type: "text", text: `What is ${i}?${" More?".repeat(i % 7)}`}]}]});

// Of the requests those that are answered without a close call: rounding, which depends on what is cached, decides nothing then.
async function chosenRequests(server, count) {
    const chosen = [];
    for (let i = 0; chosen.length < count; i++) {
        const answer = await chat(server, {...question(i), logprobs: true, top_logprobs: 2});
        equals(answer.status, 200, `alone: ${show(answer.text)}`);
        const [{message, logprobs}] = answer.json.choices;
        if (logprobs.content.every(({top_logprobs: [first, second]}) => first.logprob - second.logprob > 0.02)) chosen.push([question(i), message.content]);
        if (i > 2000) throw new Error("no sure answers");
    }
    return chosen;
}

await runAll(async () => {
    const given = Object.entries(adapters).flatMap(([name, options]) => {
        writeRandomAdapter(program, model, join(folder, name), options);
        return ["--adapter", join(folder, name)];
    });
    const server = await serve([model, "--threads", "2", "--parallel", "6", "--queue", "60", "--ctx", "400", ...given]);
    const known = await chosenRequests(server, 24);
    const used = new Set(known.map(([request]) => `${request.model} ${request.messages[0].content.length}`));
    check(used.size > 8, `kinds of requests: ${show([...used])}`);
    let next = 0, left = 0;
    await Promise.all(Array.from({length: 16}, async () => {
        for (let i = next++; i < 160; i = next++) {
            const [request, text] = known[i * 7 % known.length];
            if (i % 3 === 1) { // leaves at once, while its picture is encoded or its prompt computed, or after the first words
                const stream = open(server, {...request, stream: true, max_tokens: 200, logit_bias: {100: 100}});
                if (i % 2) await until(() => stream.text.includes('"content"') || stream.problem || stream.over, "a stream");
                stream.leave();
                left++;
                continue;
            }
            const answer = await chat(server, request);
            equals(answer.json?.choices?.[0].message.content ?? show(answer.text), text, `${request.model}, ${request.messages[0].content.length} parts`);
        }
    }));
    check(left > 40, "some have left");
    await until(async () => (await ask(server, "/health")).json.running === 0, "the server to be idle");
    equals(await server.stop(), 0, `it ends well: ${server.log}`);
});
