// Many requests at once: answers are those of each alone, clients that break off disturb nobody, /metrics adds up, memory stays flat.
//
//     node tests/test_serve_storm.mjs [PROGRAM [long | short] [gpu]]
//
// 200 requests from 8 clients; with `long`, 2,000 from 32; with `short`, 60, as on a GPU. Answers that a GPU writes together are the same
// as alone but for rounding, which decides nothing here: see chooseRequests.

import {readFileSync} from "node:fs";
import {resolve} from "node:path";
import {ask, chat, check, dense, endless, endlessModel, equals, events, has, open, runAll, say, serve, show, until} from "./serve_tools.mjs";

const [long, short, gpu] = ["long", "short", "gpu"].map((word) => process.argv.slice(3).includes(word));
const requests = long ? 2000 : short || gpu ? 60 : 200, clients = long ? 32 : 8, distinct = gpu && !long ? 10 : 40;
const model = gpu ? resolve("tests/fixtures/two-layers.gguf") : dense; // a GPU in software is slow

// The values of /metrics by name, with labels as they are written.
async function metrics(server) {
    const answer = await ask(server, "/metrics");
    equals(answer.status, 200, "/metrics");
    has(answer.headers["content-type"], "text/plain; version=0.0.4", "the form of /metrics");
    const lines = answer.text.trimEnd().split("\n");
    check(lines.every((line) => /^(# (HELP|TYPE) gemmule_\w+ .+|gemmule_\w+(\{[^}]*\})? [-+.e\d]+)$/.test(line)), `each line is a value or a comment: ${show(answer.text)}`);
    return Object.fromEntries(lines.filter((line) => !line.startsWith("#")).map((line) => [line.slice(0, line.lastIndexOf(" ")),
        Number(line.slice(line.lastIndexOf(" ") + 1))]));
}

const chats = (numbers, status) => numbers[`gemmule_requests_total{route="/v1/chat/completions",status="${status}"}`] ?? 0;

// ---- several at once ------------------------------------------------------------------------------------------------------

async function atOnce() {
    const server = await serve([endlessModel(), "--threads", "1", "--parallel", "3", "--queue", "4", "--ctx", "4096"]);
    equals((await ask(server, "/health")).json.status, "ok", "/health");
    const streams = [open(server, endless), open(server, endless), open(server, endless)];
    for (const stream of streams) await stream.has('"content":"L');
    check(streams.every((stream) => !stream.over), "three are answered at once");
    const waiter = open(server, {...endless, max_tokens: 2});
    await until(async () => (await metrics(server)).gemmule_requests_waiting === 1, "the fourth in the queue");
    equals((await metrics(server)).gemmule_requests_running, 3, "three run");
    const health = (await ask(server, "/health")).json;
    check(health.running === 3 && health.waiting === 1, `/health while it works: ${show(health)}`);
    equals(waiter.text, "", "the fourth waits");
    streams[1].leave();
    await until(() => waiter.over, "the fourth, when one has left");
    equals(waiter.status, 200, "the fourth is answered");
    for (const stream of [streams[0], streams[2]]) {
        const before = stream.text.length;
        await until(() => stream.text.length > before, "the others to go on");
        stream.leave();
    }
    await until(async () => (await metrics(server)).gemmule_requests_running === 0, "the end of all");
    const numbers = await metrics(server);
    equals(numbers.gemmule_requests_cut_off_total, 3, "three were cut off");
    check(numbers.gemmule_cache_tokens > 0 && numbers.gemmule_cache_tokens <= numbers.gemmule_cache_capacity_tokens, `the cache: ${show(numbers)}`);
    equals(await server.stop(), 0, "it ends well");
}

// ---- the storm --------------------------------------------------------------------------------------------------------------

// Requests that are answered without a close call. How much of a prompt is cached decides which kernels compute it, and so the low bits
// of its logits; where the two best tokens are nearly as likely, that would decide between them.
async function chooseRequests(alone) {
    const chosen = [];
    for (let i = 0; chosen.length < distinct; i++) {
        const system = i % 4 ? [] : [{role: "system", content: "You answer briefly, and you never ask back. ".repeat(4)}];
        const request = {messages: [...system, ...say(`Question ${i}: what is ${i * 7} and ${"more ".repeat(i % 5)}?`)], temperature: 0,
            max_tokens: 4 + i % 13};
        const answer = (await chat(alone, {...request, logprobs: true, top_logprobs: 2})).json;
        const sure = answer.choices[0].logprobs.content.every(({top_logprobs: [first, second]}) => first.logprob - second.logprob > 0.05);
        if (sure) chosen.push({request, text: answer.choices[0].message.content, usage: answer.usage, reason: answer.choices[0].finish_reason});
        if (i > 5000) throw new Error("no sure answers");
    }
    return chosen;
}

const privateKilobytes = (server) => Number(/^RssAnon:\s+(\d+)/m.exec(readFileSync(`/proc/${server.child.pid}/status`, "utf8"))[1]);

async function storm() {
    const server = await serve([model, "--threads", "2", "--parallel", "8", "--queue", "60", "--ctx", "512", ...(gpu ? ["--backend", "gpu"] : [])]);
    const known = await chooseRequests(server);
    const before = await metrics(server);
    const tally = {whole: 0, cut: 0, bad: 0, tokens: 0, prompt: 0};
    let next = 0, half = 0;

    // Reads a stream to its end, or leaves it when its headers are there.
    async function streamed({request, text, reason}, leave) {
        const stream = open(server, {...request, stream: true, stream_options: {include_usage: true}, ...(leave ? {max_tokens: 400, logit_bias: {100: 100}} : {})});
        await until(() => stream.status || stream.problem, "a stream's headers");
        equals(stream.status, 200, `a stream: ${stream.problem}`);
        if (leave) {
            await stream.has('"content"');
            stream.leave();
            tally.cut++;
            return;
        }
        await until(() => stream.over, "a stream's end");
        const parts = events(stream.text);
        equals(parts.map((part) => part.choices[0]?.delta.content ?? "").join(""), text, `a streamed answer to ${show(request)}`);
        equals(parts.find((part) => part.choices[0]?.finish_reason)?.choices[0].finish_reason, reason, "why it ended");
        count(parts.at(-1).usage);
    }
    function count(usage) {
        tally.whole++;
        tally.tokens += usage.completion_tokens;
        tally.prompt += usage.prompt_tokens;
    }
    async function whole({request, text, usage}) {
        const answer = await chat(server, request);
        equals(answer.status, 200, `an answer: ${show(answer.text)}`);
        equals(answer.json.choices[0].message.content, text, `the answer to ${show(request)}`);
        equals(answer.json.usage.completion_tokens, usage.completion_tokens, "its length");
        count(answer.json.usage);
    }
    async function client() {
        while (next < requests) {
            const i = next++, wanted = known[i * 17 % distinct];
            if (i === requests / 2) half = privateKilobytes(server);
            if (i % 20 === 7) {
                equals((await chat(server, {...wanted.request, temperature: -1})).status, 400, "a request with a mistake");
                tally.bad++;
            } else if (i % 3) await whole(wanted);
            else await streamed(wanted, i % 9 === 0);
        }
    }
    await Promise.all(Array.from({length: clients}, client));

    const idle = async () => {
        const numbers = await metrics(server);
        return numbers.gemmule_requests_running === 0 && chats(numbers, 200) - chats(before, 200) === tally.whole + tally.cut;
    };
    await until(idle, "the server to be idle");
    const numbers = await metrics(server);
    const counted = (name) => numbers[name] - (before[name] ?? 0); // in the storm
    equals(tally.whole + tally.cut + tally.bad, requests, "all were sent");
    equals(chats(numbers, 400), tally.bad, "requests with mistakes");
    equals(numbers.gemmule_requests_waiting, 0, "nobody waits");
    equals(numbers.gemmule_parallel, 8, "how many at once");
    const first = counted("gemmule_time_to_first_token_seconds_count"), others = counted("gemmule_time_between_tokens_seconds_count");
    equals(first + others, counted("gemmule_reply_tokens_total"), "every token is a first one or a later one");
    equals(counted('gemmule_time_between_tokens_seconds_bucket{le="+Inf"}'), others, "the last bucket has all");
    check(first >= tally.whole && first <= tally.whole + tally.cut, `${first} first tokens of ${tally.whole} answers and ${tally.cut} parts of some`);
    const written = counted("gemmule_reply_tokens_total"), read = counted("gemmule_prompt_tokens_total");
    check(written >= tally.tokens, `${written} tokens, of which ${tally.tokens} were counted`);
    check(read >= tally.prompt, `${read} tokens in, of which ${tally.prompt} were counted`);
    check(numbers.gemmule_prompt_tokens_cached_total > 0 && numbers.gemmule_prompt_tokens_cached_total < numbers.gemmule_prompt_tokens_total, "some of the prompts were cached");
    const end = privateKilobytes(server);
    const more = gpu ? 65_536 : 4096; // shaders that are compiled late count, too
    check(short || (gpu && !long) || end < half + more, `private memory: ${half} kB after half of the requests, ${end} kB at the end`);
    equals(await server.stop(), 0, `it ends well: ${server.log}`);
}

// ---- experts -----------------------------------------------------------------------------------------------------------------

async function experts() {
    const server = await serve([resolve("tests/fixtures/tiny-moe.gguf"), "--backend", "gpu", "--gpu-experts", "2", "--ctx", "256"]);
    equals((await chat(server, {messages: [{role: "user", content: "Hello"}], max_tokens: 4})).status, 200, "an answer");
    const counted = async () => (await metrics(server)).gemmule_expert_uses_total > 0;
    await until(counted, "the uses of experts");
    const {gemmule_expert_uses_total: uses, gemmule_expert_misses_total: misses, gemmule_expert_bytes_total: bytes} = await metrics(server);
    check(misses > 0 && misses <= uses && bytes > 0, `the cache of experts: ${uses} uses, ${misses} misses, ${bytes} bytes`);
    equals(await server.stop(), 0, `it ends well: ${server.log}`);
}

await runAll(async () => {
    if (gpu) await experts();
    else await atOnce();
    await storm();
});
