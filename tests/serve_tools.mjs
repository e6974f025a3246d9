// What the tests of `gemmule serve` stand on: servers as real processes on ports of their own, requests with headers that browsers do
// not let a page set, streams that can be left, and something to serve. The program is the first argument, else build/gemmule.

import {execFileSync, spawn} from "node:child_process";
import {createHash} from "node:crypto";
import {mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync} from "node:fs";
import http from "node:http";
import https from "node:https";
import net from "node:net";
import {tmpdir} from "node:os";
import {join, resolve} from "node:path";

export const program = resolve(process.argv[2] ?? "build/gemmule");
export const folder = mkdtempSync(join(tmpdir(), "gemmule-serve-"));
export const dense = resolve("tests/fixtures/tiny-dense.gguf");
export const patience = 120_000; // for a machine that is busy; nothing here takes long

// ---- counting -----------------------------------------------------------------------------------------------------------

let passed = 0, failed = 0;
export function check(good, message) {
    if (good) passed++;
    else {
        failed++;
        console.log(`FAIL ${message}`);
    }
}
export const show = (x) => JSON.stringify(x)?.slice(0, 500);
export const equals = (got, want, message) => check(got === want, `${message}: ${show(got)}, expected ${show(want)}`);
export const has = (text, part, message) => check(String(text).includes(part), `${message}: ${show(text)} lacks ${show(part)}`);

// ---- the server ---------------------------------------------------------------------------------------------------------

export const clean = {...process.env, OLLAMA_MODELS: join(folder, "no-store"), HOME: folder};
for (const name of ["GEMMULE_BOX", "GEMMULE_MODEL"]) delete clean[name];
const running = new Set();

// Starts one and waits for its address.
export async function serve(args = [], env = {}, path = program, more = {}) {
    const backend = args.includes("--backend") ? [] : ["--backend", "cpu"];
    const child = spawn(path, ["serve", "--port", "0", ...backend, ...args], {env: {...clean, ...env}, stdio: ["ignore", "pipe", "pipe"], ...more});
    const server = {child, out: "", log: "", ended: new Promise((done) => child.on("exit", (code, signal) => done(signal ?? code)))};
    running.add(server);
    child.stderr.on("data", (data) => (server.log += data));
    await new Promise((done) => {
        child.stdout.on("data", (data) => {
            server.out += data;
            if (server.out.includes("\n")) done();
        });
        child.on("exit", done);
    });
    server.address = server.out.trim();
    server.port = Number(/:(\d+)\/$/.exec(server.address)?.[1]);
    server.host = `127.0.0.1:${server.port}`;
    server.stop = async (signal = "SIGTERM") => {
        running.delete(server);
        child.kill(signal);
        return server.ended;
    };
    return server;
}

// One request, with any headers.
export function ask(server, path, {method = "GET", headers = {}, body, tls} = {}) {
    return new Promise((done, fail) => {
        const options = {host: "127.0.0.1", port: server.port, path, method, headers, agent: false, setHost: !("Host" in headers), ...tls};
        const call = (tls ? https : http).request(options, (response) => {
            const pieces = [];
            response.on("data", (piece) => pieces.push(piece));
            response.on("error", fail);
            response.on("end", () => {
                const bytes = Buffer.concat(pieces), text = bytes.toString();
                let json;
                try { json = JSON.parse(text); } catch { /* not everything is */ }
                done({status: response.statusCode, headers: response.headers, bytes, text, json});
            });
        });
        call.on("error", fail);
        call.setTimeout(patience, () => call.destroy(new Error(`no answer to ${method} ${path} ${show(headers)}`)));
        if (body !== undefined) call.write(body);
        call.end();
    });
}

// Bytes as they are; what comes back until the server closes, or `enough` of it came.
export function send(port, text, enough = () => false) {
    return new Promise((done) => {
        let got = "";
        const socket = net.connect(port, "127.0.0.1", () => socket.write(text));
        const end = () => {
            socket.destroy();
            done(got);
        };
        socket.on("data", (data) => {
            got += data;
            if (enough(got)) end();
        });
        socket.on("close", end);
        socket.on("error", end);
        socket.setTimeout(patience, end);
    });
}
export const statusOf = (text) => Number(/^HTTP\/1\.[01] (\d+)/.exec(text)?.[1]);
export const complete = (text) => {
    const at = text.indexOf("\r\n\r\n"), length = /content-length: (\d+)/i.exec(text)?.[1];
    return at >= 0 && length !== undefined && text.length >= at + 4 + Number(length);
};

export const chat = (server, request, more = {}) =>
    ask(server, "/v1/chat/completions", {method: "POST", headers: {"Content-Type": "application/json", ...more.headers},
        body: typeof request === "string" ? request : JSON.stringify(request), tls: more.tls});
export const say = (content) => [{role: "user", content}];
export const events = (text) => text.split("\n\n").filter(Boolean).map((event) => event.replace(/^data: /,
    "")).filter((event) => event !== "[DONE]").map((event) => JSON.parse(event));

// A stream that can be left: `next` gives the text so far once it has `part`.
export function open(server, request) {
    const stream = {text: "", status: 0, over: false};
    const call = http.request({host: "127.0.0.1", port: server.port, path: "/v1/chat/completions", method: "POST", agent: false,
        headers: {"Content-Type": "application/json"}}, (response) => {
        stream.status = response.statusCode;
        stream.headers = response.headers;
        response.on("data", (data) => (stream.text += data));
        response.on("end", () => (stream.over = true));
        response.on("error", () => {});
    });
    call.on("error", (problem) => (stream.problem = problem));
    call.end(JSON.stringify(request));
    stream.has = async (part) => {
        await until(() => stream.text.includes(part) || stream.problem || stream.over, `${show(part)} in a stream`);
        if (!stream.text.includes(part)) throw new Error(`a stream ends without ${show(part)}: ${stream.problem ?? show(stream.text)}`);
    };
    stream.leave = () => call.destroy();
    return stream;
}
export async function until(condition, what) {
    const end = Date.now() + patience;
    while (!(await condition())) {
        if (Date.now() > end) throw new Error(`waited in vain for ${what}`);
        await new Promise((done) => setTimeout(done, 10));
    }
}

// ---- what is served -----------------------------------------------------------------------------------------------------

export const scripted = (name, ...pieces) => {
    const path = join(folder, `${name}.gguf`);
    execFileSync(process.execPath, ["tests/scripted_model.mjs", path, ...pieces]);
    return path;
};

// tiny-dense with room for a million tokens: with a bias on one token it writes until somebody stops it.
export function endlessModel() {
    const bytes = readFileSync(dense), key = Buffer.from("gemma4.context_length");
    const at = bytes.indexOf(key) + key.length;
    if (bytes.readUInt32LE(at) !== 4) throw new Error("context_length is no u32");
    bytes.writeUInt32LE(1 << 20, at + 4);
    const path = join(folder, "endless.gguf");
    writeFileSync(path, bytes);
    return path;
}
export const endless = {messages: say("Go"), stream: true, temperature: 0, logit_bias: {100: 100}}; // an L
export const silent = {...endless, logit_bias: {20: 100}}; // a token that has no text

export function makeApp() {
    const app = join(folder, "app");
    mkdirSync(join(app, "assets"), {recursive: true});
    mkdirSync(join(app, ".hidden"));
    writeFileSync(join(app, "index.html"), "<!doctype html><title>app</title>");
    writeFileSync(join(app, "about.html"), "<!doctype html><title>about</title>");
    for (const [name, text] of [["assets/app-1a2b.js", "export {};"], ["assets/style.css", "a{}"], ["gemmule.wasm", "\0asm"],
        ["manifest.webmanifest", "{}"],
        ["icon.svg", "<svg/>"], ["unknown.bin", "?"], [".secret", "no"], [".hidden/file.txt", "no"]]) writeFileSync(join(app, name), text);
    writeFileSync(join(folder, "outside.txt"), "secret");
    symlinkSync("../outside.txt", join(app, "link.txt"));
    symlinkSync("..", join(app, "up"));
    return app;
}

// A store with a whole model, one that is not finished, and a blob that nobody names.
export function makeStore(name = "store") {
    const root = join(folder, name), names = {};
    mkdirSync(join(root, "blobs"), {recursive: true});
    const blob = (content) => {
        const digest = createHash("sha256").update(content).digest("hex");
        writeFileSync(join(root, "blobs", `sha256-${digest}`), content);
        return {digest: `sha256:${digest}`, size: content.length};
    };
    const layer = (kind, of) => ({mediaType: `application/vnd.ollama.image.${kind}`, ...of});
    const manifest = (path, config, layers) => {
        const file = join(root, "manifests/registry.ollama.ai/library", path);
        mkdirSync(join(file, ".."), {recursive: true});
        writeFileSync(file, JSON.stringify({config: layer("config", config), layers}));
    };
    const config = blob(Buffer.from('{"model_family":"gemma4","model_type":"506K","file_type":"F16","renderer":"gemma4-small"}'));
    const params = blob(Buffer.from('{"temperature":0.5}')), system = blob(Buffer.from("Be kind."));
    names.model = blob(readFileSync(dense)), names.params = params;
    names.stray = blob(Buffer.from("nobody names me"));
    manifest("tiny/latest", config, [layer("model", names.model), layer("params", params), layer("system", system)]);
    manifest("tuned/latest", config, [layer("model", names.model), layer("adapter", names.model)]);
    manifest("broken/latest", config, [layer("model", {digest: `sha256:${"ab".repeat(32)}`, size: 10})]);
    // A model whose layer is a link to a file outside the store.
    const secret = join(folder, "outside.txt"), link = {digest: `sha256:${"cd".repeat(32)}`, size: 6};
    const steal = (model, kind) => {
        writeFileSync(secret, "secret");
        rmSync(join(root, "blobs", link.digest.replace(":", "-")), {force: true});
        symlinkSync(secret, join(root, "blobs", link.digest.replace(":", "-")));
        manifest(`${model}/latest`, config, [layer(kind, link)]);
    };
    return {root, ...names, steal, secret: link, path: (of) => `/ollama/blobs/${of.digest.replace(":", "-")}`};
}

// ---- running ------------------------------------------------------------------------------------------------------------

// Runs the tests, ends what they left running, says how it went.
export async function runAll(tests) {
    try {
        await tests();
    } catch (problem) {
        failed++;
        console.log(`FAIL ${problem.stack}`);
    } finally {
        for (const server of running) {
            if (server.log) console.log(server.log.slice(-3000));
            server.child.kill("SIGKILL");
        }
        rmSync(folder, {recursive: true});
    }
    console.log(`${passed} passed, ${failed} failed`);
    process.exit(failed ? 1 : 0);
}
