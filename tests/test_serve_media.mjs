// Pictures and sounds through `gemmule serve`, asked by OpenAI's own client and by hand: answers of the model in the box, transcripts in
// every form, forms that are none, and media that are broken, empty, enormous or mislabelled.
//
//     node tests/test_serve_media.mjs [PROGRAM]

import {createReadStream, existsSync, mkdirSync, readFileSync, writeFileSync} from "node:fs";
import {join} from "node:path";
import {crc32} from "node:zlib";
import OpenAI, {toFile} from "openai";
import {ask, chat, check, dense, equals, events, folder, has, open, patience, runAll, say, serve, show, until} from "./serve_tools.mjs";

const base64 = (path) => readFileSync(path).toString("base64");
const wav = (rate, samples, bits = 8, body = Buffer.alloc(samples * bits / 8, bits === 8 ? 128 : 0)) => {
    const head = Buffer.from("RIFF____WAVEfmt ________________________data____", "latin1");
    head.writeUInt32LE(36 + samples * bits / 8, 4), head.writeUInt32LE(16, 16), head.writeUInt16LE(1, 20), head.writeUInt16LE(1, 22);
    head.writeUInt32LE(rate, 24), head.writeUInt32LE(rate * bits / 8, 28), head.writeUInt16LE(bits / 8, 32), head.writeUInt16LE(bits, 34);
    head.write("data", 36), head.writeUInt32LE(samples * bits / 8, 40);
    return Buffer.concat([head.subarray(0, 44), body]);
};
const digits = "Which digits do you hear?", spoken = "tests/box/sounds/00.wav"; // 5 6 7 2

// ---- OpenAI's client ------------------------------------------------------------------------------------------------------

async function officialClient(server) {
    const client = new OpenAI({baseURL: `${server.address}v1`, apiKey: "none", maxRetries: 0, timeout: 10 * patience});
    const shapes = `data:image/jpeg;base64,${base64("tests/box/pictures/00.jpg")}`;
    const seen = "a small green triangle at the top and a large purple circle at the bottom right";
    const look = (url, detail, text = "What is in the picture?") =>
        ({model: "box", temperature: 0, messages: [{role: "user", content: [{type: "image_url", image_url: {url, detail}}, {type: "text", text}]}]});
    has((await client.chat.completions.create(look(shapes))).choices[0].message.content, seen, "the client: a picture");
    const hear = {model: "box", temperature: 0, messages: [{role: "user", content: [
        {type: "input_audio", input_audio: {data: base64(spoken), format: "wav"}}, {type: "text", text: digits}]}]};
    equals((await client.chat.completions.create(hear)).choices[0].message.content, "5 6 7 2.", "the client: a sound");
    for (const [request, answer] of [[look(shapes), seen], [hear, "5 6 7 2."]]) {
        let text = "";
        for await (const chunk of await client.chat.completions.create({...request, stream: true})) text += chunk.choices[0]?.delta.content ?? "";
        has(text, answer, "the client: a stream");
    }

    const tokens = {};
    for (const detail of ["low", "auto", "high"])
        tokens[detail] = (await client.chat.completions.create({...look(shapes, detail), max_tokens: 1})).usage.prompt_tokens;
    check(tokens.low <= tokens.auto && tokens.auto < tokens.high, `more detail takes more tokens: ${show(tokens)}`);
    const fails = async (call, status, word, what) => {
        const problem = await call().then(() => null, (reason) => reason);
        check(problem instanceof OpenAI.APIError && problem.status === status && problem.message.includes(word), `${what}: ${problem}`);
    };
    await fails(() => client.chat.completions.create(look("https://example.org/a.png")), 400, "a remote picture is not fetched", "a remote picture");
    await fails(() => client.chat.completions.create(look(shapes, "ultra")), 400, "low, auto or high", "an unknown detail");
    await fails(() => client.audio.translations.create({model: "box", file: createReadStream(spoken)}), 501, "/v1/audio/translations", "a translation");

    const listen = (more = {}) => client.audio.transcriptions.create({model: "box", file: createReadStream(spoken), prompt: digits, ...more});
    equals((await listen()).text, "5 6 7 2.", "the client: a transcript");
    equals((await listen({language: "en", temperature: 0})).text, "5 6 7 2.", "the client: a transcript of English");
    equals(await listen({response_format: "text"}), "5 6 7 2.\n", "the client: plain text");
    const verbose = await listen({response_format: "verbose_json", timestamp_granularities: ["segment"], language: "en"});
    check(verbose.text === "5 6 7 2." && verbose.language === "en" && Math.abs(verbose.duration - 3.2248) < 0.001 && verbose.segments.length === 1 &&
        verbose.segments[0].start === 0 && verbose.segments[0].end === verbose.duration && verbose.segments[0].text === verbose.text, show(verbose));
    const heard = [];
    for await (const event of await listen({stream: true})) heard.push(event);
    equals(heard.filter((event) => event.type === "transcript.text.delta").map((event) => event.delta).join(""), "5 6 7 2.", "the client: deltas");
    check(heard.at(-1).type === "transcript.text.done" && heard.at(-1).text === "5 6 7 2." && heard.at(-1).usage.input_tokens > 81, show(heard.at(-1)));
    await fails(() => listen({timestamp_granularities: ["word"], response_format: "verbose_json"}), 400, "no times for words", "the times of words");
    await fails(() => listen({model: "whisper-1"}), 404, "whisper-1", "a transcript by another model");
    await fails(async () => listen({file: await toFile(Buffer.alloc(0), "empty.wav")}), 400, "0 bytes", "an empty file");
}

// ---- forms ----------------------------------------------------------------------------------------------------------------

const part = (name, value, more = "") => Buffer.concat([Buffer.from(`--x\r\nContent-Disposition: form-data; name="${name}"${more}\r\n\r\n`),
    Buffer.from(value), Buffer.from("\r\n")]);
const sound = (bytes = readFileSync(spoken)) => part("file", bytes, "; filename=\"a;b.wav\"\r\nContent-Type: audio/wav");
const fields = (more) => Object.entries(more).map(([name, value]) => part(name, value));
const post = (server, body, headers = {}) => ask(server, "/v1/audio/transcriptions",
    {method: "POST", headers: {"Content-Type": "multipart/form-data; boundary=x", ...headers}, body});
const transcribe = (server, more = {}, bytes = undefined, headers = {}) =>
    post(server, Buffer.concat([sound(bytes), ...fields({prompt: digits, ...more}), Buffer.from("--x--\r\n")]), headers);

async function forms(server) {
    for (const [format, type, text] of [
        ["text", "text/plain; charset=utf-8", "5 6 7 2.\n"],
        ["srt", "application/x-subrip; charset=utf-8", "1\n00:00:00,000 --> 00:00:03,224\n5 6 7 2.\n\n"],
        ["vtt", "text/vtt; charset=utf-8", "WEBVTT\n\n00:00:00.000 --> 00:00:03.224\n5 6 7 2.\n\n"],
    ]) {
        const answer = await transcribe(server, {response_format: format});
        equals(answer.text, text, `a transcript as ${format}`);
        equals(answer.headers["content-type"], type, `the type of ${format}`);
    }
    // The preamble, the quoted boundary and the order of fields are the client's.
    const odd = await post(server, Buffer.concat([Buffer.from("preamble\r\n"), ...fields({prompt: digits, model: "box"}), sound(), Buffer.from("--x--")]),
        {"Content-Type": "Multipart/Form-Data; charset=utf-8; boundary=\"x\""});
    equals(odd.json?.text, "5 6 7 2.", `an unusual form: ${odd.text}`);

    const end = Buffer.from("--x--\r\n"), whole = Buffer.concat([sound(), end]);
    for (const [what, body, status, code, param, word] of [
        ["no body", "", 400, "invalid_form", null, "boundary"], ["no boundary", "hello", 400, "invalid_form", null, "does not contain its boundary"],
        ["cut off", whole.subarray(0, 20_000), 400, "invalid_form", null, "cut off"], ["no field", end, 400, "invalid_value", "file", "'file'"],
        ["no headers", "--x\r\n\r\nabc\r\n--x--", 400, "invalid_form", null, "headers"], ["nothing between", "--x\r\n--x--", 400, "invalid_form", null, "field 1"],
        ["no name", "--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--", 400, "invalid_form", null, "no name"],
        ["text after a boundary", "--xyz\r\n", 400, "invalid_form", null, "line break"],
        ["long headers", `--x\r\nA: ${"a".repeat(5000)}\r\n\r\n\r\n--x--`, 400, "invalid_form", null, "4096"],
        ["many fields", Buffer.concat([...Array(33).fill(part("prompt", "a")), end]), 400, "invalid_form", null, "more than 32 fields"],
    ]) {
        const answer = await post(server, body), error = answer.json?.error;
        check(answer.status === status && error?.code === code && error.param === param, `a form with ${what}: ${answer.status} ${answer.text}`);
        has(error?.message, word, `a form with ${what}`);
    }
    for (const [more, code, word] of [
        [{frobnicate: "1"}, "unsupported", "'frobnicate'"], [{"include[]": "logprobs"}, "unsupported", "include[]"],
        [{response_format: "diarized_json"}, "unsupported", "diarized_json"], [{language: "English"}, "invalid_value", "ISO 639"],
        [{language: "e"}, "invalid_value", "ISO 639"], [{temperature: "hot"}, "invalid_value", "from 0 to 1"], [{temperature: "2"}, "invalid_value", "from 0 to 1"],
        [{stream: "yes"}, "invalid_value", "true or false"], [{"timestamp_granularities[]": "word"}, "unsupported", "segment"],
        [{"timestamp_granularities[]": "segment"}, "invalid_value", "verbose_json"], [{stream: "true", response_format: "srt"}, "unsupported", "json or text"],
        [{chunking_strategy: "{}"}, "unsupported", "auto"], [{file: "again"}, "invalid_value", "the field 'file' twice"], [{prompt: "a\0b"}, "invalid_value", "NUL"],
    ]) {
        const answer = await transcribe(server, more), error = answer.json?.error;
        check(answer.status === 400 && error?.code === code && error.param, `${show(more)}: ${answer.status} ${answer.text}`);
        has(error?.message, word, show(more));
    }
    equals((await post(server, whole, {"Content-Type": "application/json"})).status, 415, "a form as JSON");
    equals((await post(server, whole, {"Content-Type": "multipart/form-data"})).status, 415, "a form without a boundary");
    equals((await ask(server, "/v1/audio/transcriptions")).status, 405, "GET of a transcript");
    equals((await transcribe(server, {}, undefined, {Origin: "https://example.org"})).json?.error?.code, "foreign_origin", "a form of a foreign page");
    equals((await transcribe(server, {}, undefined, {"Sec-Fetch-Site": "cross-site"})).json?.error?.code, "cross_site", "a form of another site");
    equals((await transcribe(server, {}, undefined, {Host: "example.org"})).status, 421, "a form for another host");
    equals((await transcribe(server, {}, Buffer.alloc(65 << 20))).status, 413, "65 MiB");
}

// ---- long sounds ----------------------------------------------------------------------------------------------------------

async function longSounds(server) {
    const one = readFileSync(spoken).subarray(44), two = Buffer.concat(Array(10).fill(one));
    const pieces = (await transcribe(server, {response_format: "verbose_json"}, wav(16_000, two.length, 8, two))).json?.segments;
    check(pieces?.length === 2 && pieces[0].end === pieces[1].start && pieces[0].end > 25 && pieces[0].end <= 30 && pieces[1].end > 32,
        `a sound of 32 s in two pieces: ${show(pieces)}`);
    const subtitles = (await transcribe(server, {response_format: "srt"}, wav(16_000, two.length, 8, two))).text;
    check(/^1\n00:00:00,000 --> (00:00:2\d,\d{3})\n[^\n]+\n\n2\n\1 --> 00:00:32,\d{3}\n[^\n]+\n\n$/.test(subtitles), show(subtitles));
    const full = await chat(server, {messages: [{role: "user", content: [
        {type: "input_audio", input_audio: {data: wav(8000, 8000 * 600).toString("base64"), format: "wav"}}]}]});
    equals(full.json?.error?.code, "context_length_exceeded", `ten minutes in a chat: ${full.text}`);

    // Three hours, in pieces. The client hears the first and leaves, and the rest is not computed.
    const form = new FormData(), leaving = new AbortController();
    form.append("file", new Blob([wav(1000, 3 * 3600 * 1000)]), "three-hours.wav");
    form.append("stream", "true");
    const stream = await fetch(`${server.address}v1/audio/transcriptions`, {method: "POST", body: form, signal: leaving.signal});
    equals(stream.status, 200, "three hours");
    const reader = stream.body.getReader();
    const {value} = await reader.read();
    check(events(Buffer.from(value).toString())[0]?.type === "transcript.text.delta", `the first words of three hours: ${Buffer.from(value)}`);
    leaving.abort();
    equals((await transcribe(server)).json?.text, "5 6 7 2.", "the next sound after a client that left");
}

// ---- bad media ------------------------------------------------------------------------------------------------------------

async function badMedia(server) {
    const png = readFileSync("tests/fixtures/tiny-mm.png"), jpeg = readFileSync("tests/box/pictures/00.jpg"), clip = readFileSync(spoken);
    const wide = Buffer.from(png);
    const none = Buffer.from(png);
    wide.writeUInt32BE(40_000, 16), wide.writeUInt32BE(40_000, 20), none.writeUInt32BE(0, 16);
    for (const changed of [wide, none]) changed.writeUInt32BE(crc32(changed.subarray(12, 29)), 29); // of the first chunk
    const endless = Buffer.from(clip);
    endless.writeUInt32LE(0xfffffff0, 40);
    const image = (bytes, type = "image/png") => ({type: "image_url", image_url: {url: `data:${type};base64,${bytes.toString("base64")}`}});
    const audio = (bytes, format = "wav") => ({type: "input_audio", input_audio: {data: bytes.toString("base64"), format}});
    for (const [what, media, word] of [
        ["a PNG that is cut off", image(png.subarray(0, 500)), "cut off"], ["a JPEG that is cut off", image(jpeg.subarray(0, 900), "image/jpeg"), "cut off"],
        ["a picture of no width", image(none), "0 x "], ["a picture of 40,000 by 40,000 pixels", image(wide), "40000"],
        ["text called PNG", image(Buffer.from("hello, world")), "not a picture"], ["a sound called PNG", image(clip), "it is a WAV sound"],
        ["a picture called WAV", audio(png), "PNG"], ["a sound of no samples", audio(wav(16_000, 0)), "no samples"],
        ["a sound of 100 samples", audio(wav(16_000, 100)), "too short"], ["a sound that is cut off", audio(clip.subarray(0, 5000)), "cut off"],
        ["a sound that claims 4 GB", audio(endless), "cut off"], ["a sound of no data", audio(Buffer.alloc(0)), "no data"],
    ]) {
        const answer = await chat(server, {messages: [{role: "user", content: [media, {type: "text", text: "What is it?"}]}]});
        check(answer.status === 400 && /invalid_value|unsupported/.test(answer.json?.error?.code), `${what}: ${answer.status} ${answer.text}`);
        has(answer.json?.error?.message, word, what);
    }
    for (const [what, bytes, word] of [
        ["a picture", png, "PNG"], ["no samples", wav(16_000, 0), "no samples"], ["100 samples", wav(16_000, 100), "too short"],
        ["a sound that is cut off", clip.subarray(0, 5000), "cut off"], ["text", Buffer.from("hello, world"), "not a sound"],
    ]) {
        const answer = await transcribe(server, {}, bytes);
        check(answer.status === 400 && answer.json?.error?.code === "invalid_value", `a transcript of ${what}: ${answer.status} ${answer.text}`);
        has(answer.json?.error?.message, word, `a transcript of ${what}`);
    }
    // Mislabelled, but a picture; and an animation, of which the first frame counts.
    const right = await chat(server, {temperature: 0, messages: [{role: "user", content: [image(jpeg, "image/png"), {type: "text", text: "What is in the picture?"}]}]});
    has(right.json?.choices[0].message.content, "a small green triangle", `a JPEG called PNG: ${right.text}`);
    for (const [file, type] of [["webp-animated.webp", "image/webp"], ["gif-animated.gif", "image/gif"]]) {
        const moving = await chat(server, {max_tokens: 2, messages: [{role: "user", content: [image(readFileSync(`tests/fixtures/pictures/${file}`), type)]}]});
        equals(moving.status, 200, `${file}: ${moving.text}`);
    }
    has((await chat(server, {messages: say("What is 12 + 30?")})).json?.choices[0].message.content, "42", "the server goes on after all of it");
}

// ---- sounds that ffmpeg decodes -------------------------------------------------------------------------------------------

// The program is a stand-in, which waits for a file: meanwhile others are answered, and it ends with its client.
async function foreignSounds() {
    const tools = join(folder, "tools"), [started, go] = [join(tools, "started"), join(tools, "go")];
    mkdirSync(tools);
    const script = ["#!/bin/sh", `echo $$ >>${started}`, "! grep -q broken /dev/fd/3 || { echo broken >&2; exit 1; }",
        `until [ -e ${go} ]; do sleep 0.02; done`, `exec cat ${spoken} >&4`, ""];
    writeFileSync(join(tools, "ffmpeg"), script.join("\n"), {mode: 0o755});
    const server = await serve(["box", "--threads", "2", "--parallel", "4"], {PATH: `${tools}:${process.env.PATH}`});
    const m4a = Buffer.from("\0\0\0\x18ftypM4A \0\0\0\0M4A mp42", "latin1");
    const request = {temperature: 0, messages: [{role: "user", content: [
        {type: "input_audio", input_audio: {data: m4a.toString("base64"), format: "m4a"}}, {type: "text", text: digits}]}]};
    const programs = () => (existsSync(started) ? readFileSync(started, "utf8").trim().split("\n").map(Number) : []);
    const lives = (id) => { try { return process.kill(id, 0); } catch { return false; } };
    const asked = [chat(server, request), transcribe(server, {}, m4a)];
    await until(() => programs().length === 2, "two programs");
    const left = open(server, {...request, stream: true});
    await until(() => programs().length === 3, "a third one");
    has((await chat(server, {messages: say("What is 12 + 30?")})).json?.choices[0].message.content, "42", "an answer while ffmpeg runs");
    equals(programs().filter(lives).length, 3, "all of them still run");
    left.leave();
    await until(() => programs().filter(lives).length === 2, "the end of the third, whose client has left");
    writeFileSync(go, "");
    const [answer, transcript] = await Promise.all(asked);
    equals(answer.json?.choices[0].message.content, "5 6 7 2.", `an M4A in a chat: ${answer.text}`);
    equals(transcript.json?.text, "5 6 7 2.", `a transcript of an M4A: ${transcript.text}`);

    // Headers are sent when the reply has begun: what ffmpeg or the prompt's length prevents gets a status, also in a stream.
    const long = structuredClone(request);
    long.messages[0].content[1].text = "12 + 30 ".repeat(20_000);
    for (const [what, refused, word] of [
        ["a long prompt with an M4A", await chat(server, {...long, stream: true}), "the context holds"],
        ["a broken M4A", await transcribe(server, {stream: "true"}, Buffer.concat([m4a, Buffer.from("broken")])), "ffmpeg cannot decode"],
    ]) {
        equals(refused.status, 400, `${what}, streamed: ${refused.text}`);
        has(refused.json?.error?.message, word, `${what}, streamed`);
    }
    equals(await server.stop(), 0, `it ends well: ${server.log}`);
}

await runAll(async () => {
    const server = await serve(["box", "--threads", "2"]);
    await officialClient(server);
    await forms(server);
    await badMedia(server);
    await longSounds(server);
    equals(await server.stop(), 0, `it ends well: ${server.log}`);
    await foreignSounds();

    const deaf = await serve([dense, "--threads", "1"]);
    const answer = await transcribe(deaf, {prompt: "Hi"});
    check(answer.status === 400 && answer.json?.error?.code === "unsupported", `a model that cannot hear: ${answer.status} ${answer.text}`);
    has(answer.json?.error?.message, "no audio tower", "a model that cannot hear");
    equals((await chat(deaf, {messages: say("Hi"), max_tokens: 1})).status, 200, "it still answers");
    equals(await deaf.stop(), 0, "it ends well");
});
