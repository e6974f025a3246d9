// OpenAI's API of `gemmule serve`: whole and streamed answers of models that say what they are told, and of the box; sampling, everything that is
// refused, the queue, and clients that leave.
//
//     node tests/test_serve_chat.mjs [PROGRAM]      build/gemmule, or e.g. build/asan/gemmule

import {execFileSync} from "node:child_process";
import {copyFileSync, mkdirSync, readFileSync} from "node:fs";
import {join} from "node:path";
import {ask, chat, check, dense, endless, endlessModel, equals, events, folder, has, open, program, runAll, say, scripted, serve, show, silent,
    until} from "./serve_tools.mjs";

const tools = [{type: "function", function: {name: "add", description: "adds", parameters: {type: "object", properties: {a: {type: "number"}}}}}];

async function answers() {
    const yes = await serve([scripted("think", "<|channel>", "H", "m", "<channel|>", "Y", "e", "s", ".", "<turn|>"), "--threads", "1", "--preload"]);
    const greedy = {model: "think", messages: say("Hello"), temperature: 0};
    const whole = (await chat(yes, greedy)).json, choice = whole.choices[0];
    check(whole.object === "chat.completion" && whole.id.startsWith("chatcmpl-") && whole.model === "think" &&
        Math.abs(whole.created - Date.now() / 1000) < 1000, `the frame: ${show(whole)}`);
    equals(show(choice), '{"index":0,"message":{"role":"assistant","content":"Yes.","refusal":null},"logprobs":null,"finish_reason":"stop"}',
        "a whole answer");
    check(whole.usage.total_tokens === whole.usage.prompt_tokens + whole.usage.completion_tokens && whole.usage.completion_tokens >= 8 &&
        whole.usage.prompt_tokens > 5, `usage: ${show(whole.usage)}`);
    for (const more of [{think: true}, {reasoning_effort: "high"}]) {
        const thought = (await chat(yes, {...greedy, ...more})).json.choices[0].message;
        check(thought.reasoning_content === "Hm" && thought.content === "Yes.", `thinking: ${show(thought)}`);
    }
    const streamed = await chat(yes, {...greedy, think: true, stream: true, stream_options: {include_usage: true}});
    has(streamed.headers["content-type"], "text/event-stream", "a stream's type");
    equals(streamed.headers["cache-control"], "no-store", "a stream is not cached");
    check(streamed.text.endsWith("data: [DONE]\n\n"), "a stream's end");
    const parts = events(streamed.text), join = (key) => parts.map((part) => part.choices[0]?.delta[key] ?? "").join("");
    equals(join("content"), "Yes.", "a stream's content");
    equals(join("reasoning_content"), "Hm", "a stream's thinking");
    equals(parts[0].choices[0].delta.role, "assistant", "a stream's first event");
    check(parts.every((part) => part.object === "chat.completion.chunk" && part.id === parts[0].id), "a stream's events belong together");
    equals(parts.at(-2).choices[0].finish_reason, "stop", "a stream's reason");
    check(parts.at(-1).choices.length === 0 && parts.at(-1).usage.completion_tokens >= 8 && parts.slice(0, -1).every((part) => part.usage === null),
        "a stream's usage");
    const plain = events((await chat(yes, {...greedy, stream: true})).text);
    check(plain.length > 3 && plain.every((part) => !("usage" in part)), "without include_usage there is none");

    for (const [more, content, reason] of [[{stop: "s"}, "Ye", "stop"], [{stop: ["xyz", "es"]}, "Y", "stop"], [{max_tokens: 5}, "Y", "length"],
        [{max_completion_tokens: 6}, "Ye", "length"],
        [{max_tokens: 7, max_completion_tokens: 5}, "Y", "length"], [{stop: null, max_tokens: null, tools: [], n: 1, user: "me",
            response_format: {type: "text"}, tool_choice: "none", store: false}, "Yes.", "stop"]]) {
        const got = (await chat(yes, {...greedy, ...more})).json.choices[0];
        equals(`${got.message.content} ${got.finish_reason}`, `${content} ${reason}`, show(more));
        const pieces = events((await chat(yes, {...greedy, ...more, stream: true})).text);
        equals(`${pieces.map((part) => part.choices[0].delta.content ?? "").join("")} ${pieces.at(-1).choices[0].finish_reason}`,
            `${content} ${reason}`, `${show(more)}, streamed`);
    }
    const probable = (await chat(yes, {...greedy, logprobs: true, top_logprobs: 2})).json.choices[0].logprobs.content;
    check(probable.length >= 4 && probable.every((token) => token.logprob <= 0 && token.top_logprobs.length === 2 &&
        token.top_logprobs[0].token === token.token && token.bytes.length > 0),
        `logprobs: ${show(probable)}`);
    const few = events((await chat(yes, {...greedy, stream: true, logprobs: true})).text).flatMap((part) => part.choices[0].logprobs?.content ?? []);
    check(few.length >= 4 && few.every((token) => token.top_logprobs.length === 0), `streamed logprobs: ${show(few)}`);

    // Where nobody names a backend, a line says which was taken, and why; a named one is taken without a word.
    equals(yes.log, "", "a named backend");
    const auto = await serve([scripted("short", "Y", "<turn|>"), "--threads", "1", "--preload", "--backend", "auto"]);
    check(/^gemmule: opened \S+ on cpu \(\w+, 1 thread\): the model is small \(1\.2 MB\), so the CPU answers before a GPU would be ready\n$/.test(auto.log), `auto says: ${auto.log}`);
    await auto.stop();

    // The same conversation goes on: what was computed is not computed again.
    const later = (await chat(yes, {...greedy, messages: [...say("Hello"), {role: "assistant", content: "Yes."}, ...say("And?")]})).json;
    check(later.usage.prompt_tokens_details.cached_tokens > whole.usage.prompt_tokens / 2, `what is known is reused: ${show(later.usage)}`);
    equals(await yes.stop(), 0, "a stop after answers");

    const caller = await serve([scripted("call", "O", "k", "<|tool_call>", "c", "al", "l", ":", "ad", "d", "{", "a", "<0x3A>", "1", "}",
        "<tool_call|>", "<|tool_response>"), "--threads", "1"]);
    const called = (await chat(caller, {...greedy, model: "call", tools})).json.choices[0], call = called.message.tool_calls[0];
    equals(called.finish_reason, "tool_calls", "a call's reason");
    check(called.message.content === "Ok" && call.type === "function" && call.function.name === "add" && call.function.arguments === '{"a":1}' &&
        call.id.startsWith("call_"), `a call: ${show(called)}`);
    const deltas = events((await chat(caller, {...greedy, model: "call", tools, stream: true})).text);
    const delta = deltas.find((part) => part.choices[0].delta.tool_calls).choices[0].delta.tool_calls[0];
    check(delta.index === 0 && delta.function.name === "add" && JSON.parse(delta.function.arguments).a === 1, `a streamed call: ${show(delta)}`);
    equals(deltas.at(-1).choices[0].finish_reason, "tool_calls", "a streamed call's reason");
    const loop = await chat(caller, {...greedy, model: "call", tools, messages: [...say("1+1?"),
        {role: "assistant", content: null, tool_calls: [call]}, {role: "tool", tool_call_id: call.id, content: "2"}]});
    equals(loop.status, 200, `an answer to a call: ${show(loop.json)}`);
    await caller.stop();
}

// A diffusion model writes blocks of 32 tokens, and who asks sees its canvas.
async function canvases() {
    const server = await serve(["tests/fixtures/tiny-diffusion.gguf", "--threads", "1"]);
    const wish = {messages: say("Hello"), canvas: "The red [[3]] is here, and says so to all of you now", max_tokens: 20, seed: 1};
    const whole = (await chat(server, wish)).json;
    check(/^The red .* is here/s.test(whole.choices[0].message.content), `a canvas with a hole: ${show(whole)}`);
    equals((await ask(server, "/metrics")).text.match(/^gemmule_time_between_tokens_seconds_(sum|count) .*$/gm).join(" "),
        "gemmule_time_between_tokens_seconds_sum 0 gemmule_time_between_tokens_seconds_count 19", "no time passes between the tokens of the first block");
    const parts = events((await chat(server, {...wish, stream: true, stream_options: {canvas: true}})).text);
    const shown = parts.flatMap((part) => part.gemmule?.canvas ?? []);
    check(shown.length > 1 && shown.at(-1).last && shown.every((canvas, i) => canvas.step === i + 1 && canvas.tokens.length === 32),
        `a canvas for every step: ${show(shown.map(({step, last}) => [step, last]))}`);
    check(shown.every(({tokens}) => tokens[0].pinned && tokens[0].accepted && tokens[0].text === shown[0].tokens[0].text), "pinned text stays");
    const text = parts.map((part) => part.choices[0]?.delta.content ?? "").join("");
    check(/^The red .* is here/s.test(text), `the pinned text, streamed: ${text}`);
    check(events((await chat(server, {...wish, stream: true})).text).every((part) => !("gemmule" in part)), "without asking there is no canvas");
    const hasty = events((await chat(server, {...wish, steps: 2, stream: true, stream_options: {canvas: true}})).text);
    equals(show(hasty.flatMap((part) => part.gemmule?.canvas ?? []).map(({step, last}) => [step, last])), "[[1,false],[2,true]]", "at most two steps");
    for (const [more, param] of [[{steps: 0}, "steps"], [{steps: 1.5}, "steps"], [{steps: 2000}, "steps"], [{canvas: 7}, "canvas"], [{canvas: "[[x]]"}, "canvas"], [{logprobs: true}, null]]) {
        const refused = await chat(server, {...wish, ...more});
        check(refused.status === 400 && refused.json.error.param === param, `${show(more)}: ${refused.text}`);
    }
    equals(await server.stop(), 0, "a diffusion model's server ends well");
}

// A model that means what it says.
async function theBox() {
    const server = await serve(["box", "--threads", "1"]), sum = {messages: say("What is 12 + 30?")};
    equals((await chat(server, sum)).json?.choices[0].message.content, "12 + 30 = 42.", "the box adds");
    const streamed = events((await chat(server, {...sum, stream: true})).text);
    equals(streamed.map((part) => part.choices[0].delta.content ?? "").join(""), "12 + 30 = 42.", "the box adds, streamed");
    const thought = (await chat(server, {...sum, think: true})).json.choices[0].message;
    check(thought.reasoning_content.includes("Ones: 2 + 0 = 2") && thought.content.includes("42"), `the box thinks first: ${show(thought)}`);
    const weather = {name: "weather", description: "The weather in a city",
        parameters: {type: "object", properties: {city: {type: "string", description: "The city"}}, required: ["city"]}};
    const asked = {messages: say("What is the weather in London?"), tools: [{type: "function", function: weather}]};
    const {message, finish_reason} = (await chat(server, asked)).json.choices[0], [call] = message.tool_calls ?? [];
    equals(`${finish_reason} ${call?.function.name} ${call?.function.arguments}`, 'tool_calls weather {"city":"London"}', "the box calls a tool");
    const result = {role: "tool", tool_call_id: call?.id, content: JSON.stringify({temperature: 17, condition: "rainy"})};
    const told = (await chat(server, {...asked, messages: [...asked.messages, message, result]})).json?.choices[0].message.content;
    has(told, "17", "the box answers from the tool's result");
    // What is cached changes the low bits of log-probabilities, as gemmule.h says, and nothing else does.
    const likely = async () => (await chat(server, {...sum, temperature: 0, logprobs: true})).json.choices[0].logprobs.content.map((token) => token.logprob);
    await chat(server, {messages: say("Another topic."), max_tokens: 1});
    const [fresh, cached, again] = [await likely(), await likely(), await likely()];
    equals(show(again), show(cached), "the same part of the prompt is cached: the same log-probabilities");
    check(fresh.length === cached.length && fresh.every((value, i) => Math.abs(value - cached[i]) < 0.01), `log-probabilities: ${show([fresh, cached])}`);
    equals(await server.stop(), 0, "a stop after the box");
}

async function sampling(server) {
    const text = async (more) => (await chat(server, {messages: [{role: "developer",
        content: [{type: "text", text: "Be"},
        {type: "text", text: " odd"}]}, ...say("Hi")], max_tokens: 12, ...more})).json?.choices?.[0]?.message?.content;
    equals(await text({seed: 7}), await text({seed: 7}), "the same seed, the same text");
    check(new Set([await text({seed: 1}), await text({seed: 2}), await text({seed: 3})]).size > 1, "other seeds, other texts");
    equals(await text({seed: -7}), await text({seed: -7}), "a negative seed");
    equals(await text({temperature: 0}), await text({temperature: 0, seed: 5}), "greedy");
    equals(await text({top_k: 1}), await text({temperature: 0}), "top_k 1 is greedy");
    check((await text({logit_bias: {20: 100}, temperature: 0})) !== (await text({temperature: 0})), "a bias");
    equals(await text({top_k: 1.0, penalty_window: 1e1}), await text({temperature: 0}), "whole numbers may be written as 1.0 and 1e1");
    check(typeof (await text({top_p: 0.5, min_p: 0.1, typical_p: 0.9, presence_penalty: 1, frequency_penalty: -1, repetition_penalty: 1.1,
        penalty_window: 10})) === "string", "all of them");
}

const picture = (url, detail) => ({role: "user", content: [{type: "image_url", image_url: {url, detail}}, {type: "text", text: "What is in the picture?"}]});

async function pictures() {
    const server = await serve(["box", "--threads", "1"]), file = readFileSync("tests/box/pictures/00.jpg").toString("base64");
    const seen = picture(`data:image/jpeg;base64,${file}`), first = (await chat(server, {messages: [seen], temperature: 0})).json;
    has(first?.choices[0].message.content, "a small green triangle at the top and a large purple circle at the bottom right", "the box sees a picture");
    const next = (await chat(server, {messages: [seen, first.choices[0].message, ...say("What is at the top?")], temperature: 0})).json;
    check(next.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens, `a second question: ${show(next.usage)}`);
    const spoken = {type: "input_audio", input_audio: {data: readFileSync("tests/box/sounds/00.wav").toString("base64"), format: "wav"}};
    const heard = {messages: [{role: "user", content: [spoken, {type: "text", text: "Which digits do you hear?"}]}], temperature: 0};
    has((await chat(server, heard)).json?.choices[0].message.content, "5 6 7 2", "the box hears a sound");
    const ollama = {messages: [{role: "user", content: "What is in the picture?", images: [file]}], temperature: 0};
    has((await chat(server, ollama)).json?.choices[0].message.content, "a small green triangle", "a picture in Ollama's form");
    const film = (frames) => ({messages: [{role: "user", content: [{type: "video", frames}, {type: "text", text: "What is in the picture?"}]}], temperature: 0});
    const filmed = await chat(server, film([{time: 0, image_url: {url: `data:image/jpeg;base64,${file}`}}]));
    has(filmed.json?.choices[0].message.content, "a small green triangle at the top", "the box sees a video of one frame");
    equals(filmed.json?.usage.prompt_tokens, 86, "a frame has its time before it");
    const escaped = await chat(server, JSON.stringify(film([{time: 61, image_url: `data:image/jpeg;base64,${file}`}])).replaceAll("/", "\\/"));
    has(escaped.json?.choices[0].message.content, "a small green triangle at the top", "base64 with JSON's escapes");
    const order = await chat(server, film([{time: 9, image_url: file}, {time: 2, image_url: file}]));
    check(order.status === 400 && order.json.error.message.includes("frame 2 is at 2 s, after 9 s"), `frames in disorder: ${order.text}`);
    const remote = await chat(server, {messages: [{role: "user", content: [{type: "video_url", video_url: {url: "https://example.org/a.mp4"}}]}]});
    check(remote.status >= 400 && remote.json.error.message.includes("send a video as frames"), `a remote video: ${remote.text}`);
    const broken = await chat(server, {messages: [picture(`data:image/jpeg;base64,${file.slice(0, 400)}`)]});
    check(broken.status === 400 && broken.json.error.code === "invalid_value" && broken.json.error.message.includes("JPEG"), `a damaged picture: ${broken.text}`);
    has((await chat(server, {messages: say("What is 12 + 30?")})).json?.choices[0].message.content, "42", "the server goes on after it");
    equals(await server.stop(), 0, "a stop after pictures");
}

async function refusals(server) {
    const good = {messages: say("Hi"), max_tokens: 1};
    const image = {role: "user", content: [{type: "text", text: "What is this?"},
        {type: "image_url", image_url: {url: "data:image/png;base64,AAAA"}}]};
    for (const [request, status, code, param, word] of [
        ["", 400, "invalid_json", null, "JSON"], ["{", 400, "invalid_json", null, "JSON"], ["[]", 400, "invalid_value", null, "object"],
            ["null", 400, "invalid_value", null, "object"],
        ["[".repeat(5000), 400, "invalid_json", null, "JSON"], [JSON.stringify(good) + "x", 400, "invalid_json", null, "JSON"],
        [{}, 400, "invalid_value", "messages", "messages"], [{messages: []}, 400, "invalid_value", "messages", "at least one"],
            [{messages: {}}, 400, "invalid_value", "messages", "list"],
        [{messages: [{role: "robot", content: "x"}]}, 400, "invalid_value", "messages", "role"],
            [{messages: [{role: "user", content: 5}]}, 400, "invalid_value", "messages", "content"],
        [{messages: say("a\0b")}, 400, "invalid_value", "messages[0]", "NUL"], [{messages: [image]}, 400, "unsupported", null, "no vision tower"],
        [{messages: [picture("https://example.org/a.png")]}, 400, "unsupported", "messages[0]", "remote picture is not fetched"],
        [{messages: [picture("data:image/png;base64,A*")]}, 400, "invalid_value", "messages[0]", "messages[0].content[0]: the base64"],
        [{messages: [picture("data:image/png,x")]}, 400, "invalid_value", "messages[0]", "data URL in base64"],
        [{messages: [picture("data:image/png;base64,AAAA", "fine")]}, 400, "invalid_value", "messages[0]", "low, auto or high"],
       
        [{messages: [{role: "user", content: [{type: "input_audio", input_audio: {}}]}]}, 400, "invalid_value", "messages[0]", "the sound has no data"],
        [{messages: [{role: "user", content: [{type: "file", file: {}}]}]}, 400, "invalid_value", "messages", "type"],
        [{messages: [{role: "assistant", content: "x", function_call: {}}]}, 400, "unsupported", "messages[0]", "function_call"],
        [{...good, response_format: {type: "json_schema", json_schema: {}}}, 400, "unsupported", "response_format", "json_schema"],
        [{...good, response_format: {type: "json_object"}}, 400, "unsupported", "response_format", "json_object"],
            [{...good, n: 2}, 400, "unsupported", "n", "n must be 1"],
        [{...good, n: 1.5}, 400, "unsupported", "n", "n must be 1"], [{...good, top_k: 0.5}, 400, "invalid_value", "top_k", "a whole number from 0 to 2147483647, not 0.5"],
            [{...good, penalty_window: 1.5}, 400, "invalid_value", "penalty_window", "whole"],
        [{...good, logprobs: true, top_logprobs: 1.5}, 400, "invalid_value", "top_logprobs", "whole"],
            [{...good, max_completion_tokens: 1.5}, 400, "invalid_value", "max_completion_tokens", "whole"], [{...good, seed: 1.5}, 400, "invalid_value", "seed", "whole"],
            [{...good, repetition_penalty: 0}, 400, "invalid_value", "repetition_penalty", "from 0.01 to 100"],
        [{...good, tools: [{type: "custom", custom: {}, function: {name: "x"}}]}, 400, "unsupported", "tools", "custom"],
            [{...good, tools: [{type: "function"}]}, 400, "invalid_value", "tools", "function"],
        [{...good, tools, tool_choice: "required"}, 400, "unsupported", "tool_choice", "forced"],
            [{...good, tools, tool_choice: {type: "function"}}, 400, "unsupported", "tool_choice", "auto"],
        [{...good, tools, parallel_tool_calls: false}, 400, "unsupported", "parallel_tool_calls", "must be true"],
            [{...good, modalities: ["text", "audio"]}, 400, "unsupported", "modalities", "audio"],
        [{...good, audio: {}}, 400, "unsupported", "audio", "audio"], [{...good, functions: []}, 400, "unsupported", "functions", "functions"],
            [{...good, store: true}, 400, "unsupported", "store", "stores nothing"],
        [{...good, frobnicate: 1}, 400, "unsupported", "frobnicate", "frobnicate"],
            [{...good, temperature: -1}, 400, "invalid_value", "temperature", "from 0"],
        [{...good, temperature: "hot"}, 400, "invalid_value", "temperature", "hot"],
            [{...good, top_p: 2}, 400, "invalid_value", "top_p", "from 0 to 1"],
            [{...good, max_tokens: 0}, 400, "invalid_value", "max_tokens", "whole"],
        [{...good, max_tokens: 1.5}, 400, "invalid_value", "max_tokens", "whole"], [{...good, seed: "x"}, 400, "invalid_value", "seed", "whole"],
            [{...good, stop: 5}, 400, "invalid_value", "stop", "string"],
        [{...good, stop: ["a", ""]}, 400, "invalid_value", "stop", "string"],
            [{...good, stop: Array(100).fill("a")}, 400, "invalid_value", null, "stop"],
            [{...good, stream: "yes"}, 400, "invalid_value", "stream", "true or false"],
        [{...good, stream_options: {include_usage: true}}, 400, "invalid_value", "stream_options", "stream"],
            [{...good, top_logprobs: 3}, 400, "invalid_value", "top_logprobs", "logprobs"],
        [{...good, logprobs: true, top_logprobs: 21}, 400, "invalid_value", "top_logprobs", "20"],
            [{...good, steps: 3}, 400, "unsupported", null, "this model has no canvas"],
            [{...good, logit_bias: {x: 1}}, 400, "invalid_value", "logit_bias", "token ids"],
        [{...good, logit_bias: {"1.5": 1}}, 400, "invalid_value", "logit_bias", "token ids"],
            [{...good, logit_bias: {99999999: 1}}, 400, "invalid_value", null, "99999999"],
        [{...good, reasoning_effort: "huge"}, 400, "invalid_value", "reasoning_effort", "low"],
            [{...good, model: "gpt-9"}, 404, "model_not_found", "model", "gpt-9"],
        [{messages: say("word ".repeat(20_000))}, 400, "context_length_exceeded", null, "context"],
            [{messages: say("word ".repeat(20_000)), stream: true}, 400, "context_length_exceeded", null, "context"],
    ]) {
        const answer = await chat(server, request), error = answer.json?.error;
        const what = show(request).slice(0, 120);
        equals(answer.status, status, `${what}: ${show(error)}`);
        check(error?.code === code && error.param === param && error.type === "invalid_request_error",
            `${what}: ${show(error)}, expected ${code} of ${param}`);
        has(error?.message, word, what);
    }
    const broken = await ask(server, "/v1/chat/completions", {method: "POST", headers: {"Content-Type": "application/json"},
        body: Buffer.from('{"messages":[{"role":"user","content":"\xff"}]}', "latin1")});
    equals(broken.json?.error?.code, "invalid_json", "a body that is not UTF-8");
    equals((await chat(server, good)).status, 200, "it still answers");
}

// What OpenAI has and we lack, what nobody has, and single models by name.
async function endpoints() {
    const path = join(folder, "hf.co:5000"), name = "hf.co:5000/user/a model:Q4";
    mkdirSync(join(path, "user"), {recursive: true});
    copyFileSync(dense, join(path, "user/a model:Q4"));
    const server = await serve([name, "--threads", "1"], {}, undefined, {cwd: folder});
    equals((await ask(server, "/v1/models")).json.data[0].id, name, "a name with slashes, colons and a space");
    const one = (await ask(server, `/v1/models/${encodeURIComponent(name)}`)).json;
    check(one.id === name && one.object === "model" && one.owned_by === "gemmule" && one.created > 0, `a model by its name: ${show(one)}`);
    for (const written of [name.replace(" ", "%20"), name.replace(" ", "%20").replaceAll("/", "%2f"), encodeURI(name)])
        equals((await ask(server, `/v1/models/${written}`)).json.id, name, `/v1/models/${written}`);
    equals((await ask(server, `/v1/models/${encodeURIComponent(name)}`, {method: "HEAD"})).status, 200, "HEAD of a model");
    equals((await ask(server, `/v1/models/${encodeURIComponent(name)}`, {method: "DELETE"})).status, 405, "a model cannot be deleted");

    const body = JSON.stringify({model: name, input: "Hi"}), headers = {"Content-Type": "application/json"};
    for (const [method, path, status, code, word] of [
        ["POST", "/v1/embeddings", 501, "not_implemented", "/v1/embeddings"], ["POST", "/v1/completions", 501, "not_implemented", "/v1/completions"],
        ["POST", "/v1/responses", 501, "not_implemented", "/v1/responses"], ["GET", "/v1/responses/resp_1", 501, "not_implemented", "/v1/responses/resp_1"],
        ["POST", "/v1/images/generations", 501, "not_implemented", "/v1/images/generations"], ["POST", "/v1/audio/speech", 501, "not_implemented", "/v1/audio/speech"],
        ["POST", "/v1/moderations", 501, "not_implemented", "/v1/moderations"], ["GET", "/v1/files", 501, "not_implemented", "/v1/files"],
        ["DELETE", "/v1/files/x", 501, "not_implemented", "/v1/files/x"], ["GET", "/v1/chat/completions/x", 501, "not_implemented", "/v1/chat/completions/x"],
        ["POST", "/v1/nothing", 404, "unknown_url", "POST /v1/nothing"], ["GET", "/v1/nothing", 404, "unknown_url", "GET /v1/nothing"],
        ["PUT", "/v1/embeddingsx", 404, "unknown_url", "/v1/embeddingsx"], ["GET", "/v1", 404, "unknown_url", "/v1/models"],
        ["GET", "/v1/", 404, "unknown_url", "/v1/models"], ["GET", "/v1/%ff%00", 404, "unknown_url", "%ff%00"],
        ["GET", "/v1/models/", 404, "model_not_found", "''"], ["GET", "/v1/models/gpt-9", 404, "model_not_found", "'gpt-9'"],
        ["GET", "/v1/models/%ff", 404, "model_not_found", name], ["GET", `/v1/models/${encodeURIComponent(name)}%00x`, 404, "model_not_found", name],
    ]) {
        const answer = await ask(server, path, method === "POST" ? {method, headers, body} : {method});
        equals(answer.status, status, `${method} ${path}`);
        check(answer.json?.error?.code === code && answer.json.error.param !== undefined && answer.json.error.type, `${method} ${path}: ${show(answer.text)}`);
        has(answer.json?.error?.message, word, `${method} ${path}`);
        if (status === 501) equals(answer.headers["x-should-retry"], "false", `${method} ${path}: no retries`);
    }
    equals(await server.stop(), 0, "it ends well");
}

const short = {messages: say("Hi"), max_tokens: 2, temperature: 0};

// While one is being answered, with room for one that waits: of two more one waits, and one is sent away.
async function fill(server) {
    const pair = [open(server, short), open(server, short)];
    await until(() => pair.some((stream) => stream.over), "a full queue");
    const [refused, waiter] = pair[0].over ? pair : pair.toReversed();
    equals(refused.status, 429, `a full queue: ${show(refused.text)}`);
    return {refused, waiter};
}

async function queueAndLeaving() {
    const server = await serve([endlessModel(), "--threads", "1", "--parallel", "1", "--queue", "1", "--ctx", String(1 << 20), "--verbose"]);
    const long = {messages: say("a b c d ".repeat(60_000)), max_tokens: 1};
    // Opens a request and waits until it is the one being answered.
    const start = async (request) => {
        const answered = () => server.log.split("answering").length, before = answered(), stream = open(server, request);
        await until(() => answered() > before, "its turn");
        return stream;
    };

    for (const [what, request, sign] of [
        ["a stream", endless, '"content":"L'], ["tokens that have no text", silent, '"role":"assistant"'],
            ["a long prompt", {...long, stream: true}, '"role":"assistant"'], ["a long prompt without a stream", long],
    ]) {
        const first = await start(request);
        if (sign) await first.has(sign);
        const {refused, waiter} = await fill(server);
        const problem = JSON.parse(refused.text).error;
        check(problem.code === "queue_full" && problem.type === "rate_limit_error" && Number(refused.headers["retry-after"]) > 0,
            `${what}: ${show(problem)}`);
        check(!first.over && !waiter.over, `${what}: one is answered, one waits`);
        first.leave();
        await until(() => waiter.over, `the next one after ${what}`);
        equals(waiter.status, 200, `leaving ${what} cancels it, and the next is answered`);
    }

    // Who leaves while waiting frees the place.
    const first = await start(endless);
    const {waiter} = await fill(server), cutOff = () => server.log.split("cut off").length, before = cutOff();
    waiter.leave();
    await until(() => cutOff() > before, "the end of the one that waited");
    const next = await fill(server);
    first.leave();
    await until(() => next.waiter.over, "the one that took the place");
    equals(next.waiter.status, 200, "the place of one that left while waiting is free");

    // The place is free at once, also while the engine's thread is busy with a step and does not look.
    const busy = await start(long), queue = await fill(server);
    const mark = cutOff();
    queue.waiter.leave();
    const newcomer = open(server, {...endless, stream: false, max_tokens: 1});
    await until(() => newcomer.status || cutOff() > mark, "the newcomer to be refused, or to wait");
    busy.leave();
    await until(() => newcomer.over, "the newcomer's answer");
    equals(newcomer.status, 200, "nobody is refused while one of those waiting has left");

    has(server.log, "POST /v1/chat/completions 200\n", "--verbose tells of requests");
    has(server.log, "cut off", "--verbose tells of those that left");
    equals(await server.stop(), 0, "it ends well");
}

// Adapters are models, NAME+ADAPTER. Many requests with different ones at once get the answers that each gets alone.
async function adapters() {
    const fixtures = "tests/fixtures", lora = `${fixtures}/tiny-dense-lora`;
    for (const name of ["half", "minus"]) execFileSync(program, ["adapter", "convert", lora, join(folder, `${name}.gguf`)]);
    const given = [lora, `${join(folder, "half.gguf")}=0.5`, `${join(folder, "minus.gguf")}=-1`, `${fixtures}/tiny-dense-adapters/part`,
        `${fixtures}/tiny-dense-adapters/head`, `${fixtures}/tiny-moe-lora`].flatMap((path) => ["--adapter", path]);
    const server = await serve([dense, "--threads", "1", "--parallel", "6", "--queue", "60", ...given]);
    const names = ["tiny-dense", ...["tiny-dense-lora", "half", "minus", "part", "head", "half+part"].map((name) => `tiny-dense+${name}`)];
    const request = (model, i) => ({model, messages: say(`Tell me about ${["tea", "rain", "a dog"][i % 3]}.`), temperature: 0, max_tokens: 8});
    const text = (answer) => answer.json?.choices?.[0].message.content ?? show(answer.text);

    const alone = new Map();
    for (let i = 0; i < 3 * names.length; i++) {
        const model = names[i % names.length], answer = await chat(server, request(model, i));
        alone.set(`${model} ${i % 3}`, text(answer));
        equals(answer.json?.model, model, "an answer names its model");
    }
    check(new Set(alone.values()).size > names.length, `adapters change answers: ${show([...alone])}`);
    let next = 0, wrong = 0;
    await Promise.all(Array.from({length: 50}, async () => {
        for (let i = next++; i < 100; i = next++) {
            const model = names[i % names.length], got = text(await chat(server, request(model, i)));
            if (got !== alone.get(`${model} ${i % 3}`)) wrong++;
        }
    }));
    equals(wrong, 0, "100 requests with different adapters at once");

    const list = (await ask(server, "/v1/models")).json.data.map((model) => model.id);
    check(list.length === 7 && list[0] === "tiny-dense" && list.includes("tiny-dense+part"), `/v1/models: ${show(list)}`);
    equals((await ask(server, "/v1/models/tiny-dense+half")).json?.id, "tiny-dense+half", "a model with an adapter");
    const unknown = await chat(server, request("tiny-dense+no", 0)), unfit = await chat(server, request("tiny-dense+tiny-moe-lora", 0));
    check(unknown.status === 404 && unknown.text.includes("and its adapters"), `an unknown adapter: ${unknown.text}`);
    // not the request's fault: the server was given this adapter
    check(unfit.status === 503 && unfit.json?.error.code === "model_unavailable" && unfit.text.includes("made for another model"),
        `another model's adapter: ${unfit.status} ${unfit.text}`);
    has(server.log, "the adapter 'tiny-moe-lora' cannot be used", "a notice");
    equals(await server.stop(), 0, "it ends well");

    const small = await serve([dense, "--threads", "1", "--parallel", "1", "--ctx", "2048", "--adapter", lora]), long = "tea and rain ".repeat(150);
    let prompts = 0;
    for (const model of ["tiny-dense+tiny-dense-lora", "tiny-dense"]) {
        const {usage} = (await chat(small, {model, messages: say(long), temperature: 0, max_tokens: 2})).json;
        check(usage?.prompt_tokens > 300, `a long prompt: ${show(usage)}`);
        prompts += usage?.prompt_tokens;
    }
    const held = Number(/^gemmule_cache_tokens (\d+)$/m.exec((await ask(small, "/metrics")).text)?.[1]);
    check(held >= prompts, `a request with other adapters leaves what the one before computed: ${held} of ${prompts} tokens`);
    equals(await small.stop(), 0, "it ends well");
    const twice = await serve([dense, "--adapter", lora, "--adapter", lora]);
    has(twice.log, "two adapters have the name 'tiny-dense-lora'", "names must differ");
}

await runAll(async () => {
    const server = await serve([dense, "--threads", "1"]);
    await sampling(server);
    await refusals(server);
    equals(await server.stop(), 0, `it ends well: ${server.log}`);
    equals(server.log, "", "nothing was printed");
    await endpoints();
    await answers();
    await adapters();
    await canvases();
    await theBox();
    await pictures();
    await queueAndLeaving();
});
