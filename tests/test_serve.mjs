// `gemmule serve`: starting and stopping, one test for each rule of who may ask, the app, files and models by Range, what is too large or
// malformed, slow clients, TLS and the key. OpenAI's API is tested in test_serve_chat.mjs.
//
//     node tests/test_serve.mjs [PROGRAM]      build/gemmule, or e.g. build/asan/gemmule

import {execFileSync, spawnSync} from "node:child_process";
import {randomBytes} from "node:crypto";
import {chmodSync, closeSync, copyFileSync, ftruncateSync, mkdirSync, openSync, readFileSync, symlinkSync, writeFileSync, writeSync} from "node:fs";
import https from "node:https";
import net from "node:net";
import {join} from "node:path";
import {ask, chat, check, clean, complete, dense, endless, endlessModel, equals, folder, has, makeApp, makeStore, open, patience, program, runAll,
    say, send, serve,
    show, statusOf, until} from "./serve_tools.mjs";

const app = makeApp(), store = makeStore();

async function startAndStop() {
    for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) {
        const server = await serve();
        check(/^http:\/\/127\.0\.0\.1:\d+\/\n$/.test(server.out), `the address is printed, and nothing else: ${show(server.out)}`);
        equals(await server.stop(signal), 0, `${signal} ends it`);
        equals(server.log, "", "stderr is empty");
    }
    const first = await serve();
    const second = spawnSync(program, ["serve", "--port", String(first.port)], {env: clean, encoding: "utf8"});
    equals(second.status, 2, "a port that is taken");
    has(second.stderr, `port ${first.port} on 127.0.0.1 is taken`, "it says so");
    has(second.stderr, "--port", "it says how to choose another");
    equals(second.stdout, "", "no address is printed");
    await first.stop();
    has(spawnSync(program, ["help", "serve"], {encoding: "utf8"}).stdout, "default 14366", "the help names the port");

    // Idle connections, downloads and answers under way do not hold it up.
    const busy = await serve([endlessModel(), "--ctx", String(1 << 20)]);
    const idle = net.connect(busy.port, "127.0.0.1");
    idle.on("error", () => {});
    const stream = open(busy, endless);
    await stream.has('"content":"');
    equals(await busy.stop("SIGINT"), 0, "it ends in the middle of an answer");
    await until(() => stream.over || stream.text.includes("stopping"), "the end of the stream");
    has(stream.text, '"code":"stopping"', "the stream says why it ends");
    idle.destroy();

    for (const [what, status, message, ...args] of [
        ["a model that is not there", 2, "nothing.gguf", "nothing.gguf", "--preload"],
            ["a file that is no model", 2, "package.json", "./package.json", "--preload"],
            ["an app that is not there", 2, "no/app", "--app", "no/app"],
        ["an address in words", 2, "is not an IP address", "--listen", "localhost"],
            ["an origin with a path", 2, "--allow-origin", "--allow-origin", "https://a.example/"],
        ["every origin", 2, "--allow-origin", "--allow-origin", "*"], ["a host with a port", 2, "--host", "--host", "a.example:1"],
        ["too many arguments", 3, "unexpected argument", dense, dense], ["a port that is none", 3, "--port", "--port", "70000"],
        ["half a certificate", 2, "go together", "--tls-cert", "x"], ["a short key", 2, "API key", "--api-key-file", writeKey("short", "abc\n")],
        ["a key file that is not there", 2, "no-key", "--api-key-file", join(folder, "no-key")],
    ]) {
        const refused = spawnSync(program, ["serve", "--port", "0", ...args], {env: clean, encoding: "utf8", timeout: patience});
        equals(refused.status, status, `${what}: exit code; ${refused.stderr}`);
        has(refused.stderr, message, what);
    }
    const late = await serve(["nothing.gguf"]); // without --preload it is only opened when it is used
    const answer = await chat(late, {messages: say("Hi")});
    equals(answer.status, 503, "a model that is not there, later");
    equals(answer.json?.error?.code, "model_unavailable", "a model that is not there, later");
    has(answer.text, "nothing.gguf", "a model that is not there, later");
    await late.stop();
    const unknown = spawnSync(program, ["serve", "--port", "0", "no-such-model"], {env: clean, encoding: "utf8", timeout: patience});
    equals(unknown.status, 2, "a name that is in no store");
}

function writeKey(name, text) {
    const path = join(folder, name);
    writeFileSync(path, text);
    return path;
}

const appPolicy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob:; media-src blob:; connect-src 'self' https:; " +
    "worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async function theApp(server) {
    for (const [path, type] of [["/", "text/html; charset=utf-8"], ["/index.html", "text/html; charset=utf-8"],
        ["/?a=/../b", "text/html; charset=utf-8"],
        ["/assets/app-1a2b.js", "text/javascript; charset=utf-8"], ["/assets/style.css", "text/css; charset=utf-8"],
            ["/gemmule.wasm", "application/wasm"],
        ["/manifest.webmanifest", "application/manifest+json"], ["/icon.svg", "image/svg+xml"], ["/unknown.bin", "application/octet-stream"]]) {
        const {status, headers} = await ask(server, path);
        equals(status, 200, path);
        equals(headers["content-type"], type, path);
        equals(headers["content-security-policy"], appPolicy, path); // scripts too: a worker obeys that of its own
        equals(headers["cross-origin-opener-policy"], "same-origin", path); // isolated, scripts too: else there are no threads
        equals(headers["cross-origin-embedder-policy"], "require-corp", path);
        equals(headers["cache-control"], "no-cache", path);
    }
    const page = await ask(server, "/"), etag = page.headers.etag;
    equals(page.text, "<!doctype html><title>app</title>", "the page");
    const head = await ask(server, "/", {method: "HEAD"});
    equals(head.status, 200, "HEAD");
    equals(head.headers["content-length"], String(page.text.length), "HEAD says the length");
    equals(head.text, "", "HEAD has no body");
    for (const [headers, status] of [[{"If-None-Match": etag}, 304], [{"If-None-Match": `"x", W/${etag}`}, 304], [{"If-None-Match": "*"}, 304],
        [{"If-None-Match": '"x"'}, 200],
        [{"If-Modified-Since": page.headers["last-modified"]}, 304], [{"If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 200],
            [{"If-Modified-Since": "yesterday"}, 200],
        [{"If-None-Match": '"x"', "If-Modified-Since": page.headers["last-modified"]}, 200]]) {
        const answer = await ask(server, "/", {headers});
        equals(answer.status, status, show(headers));
        if (status === 304) equals(answer.text, "", "a 304 has no body");
        equals(answer.headers["cross-origin-embedder-policy"], "require-corp", show(headers)); // of a 304, too: it renews what was kept
    }
    const alone = join(folder, "alone"); // where no app is beside it
    mkdirSync(alone);
    copyFileSync(program, join(alone, "gemmule"));
    const bare = await serve([], {}, join(alone, "gemmule"));
    const none = await ask(bare, "/");
    equals(none.status, 404, "without the app");
    has(none.json?.error?.message, "--app", "it says how to name it");
    await bare.stop();
}

async function traversal(server) {
    const paths = ["/../outside.txt", "/assets/../../outside.txt", "/./index.html", "/assets/./style.css", "//index.html", "/assets//style.css",
        "/%2e%2e/outside.txt",
        "/..%2foutside.txt", "/%2e%2e%2foutside.txt", "/%252e%252e/outside.txt", "/..\\outside.txt", "/..%5coutside.txt",
            "/assets/..%5c..%5coutside.txt", "/....//outside.txt",
        "/link.txt", "/up/outside.txt", "/up/app/index.html", "/.secret", "/.hidden/file.txt", "/assets", "/assets/", "/index.html/",
            "/index.html%00", "/index.html%00.js", "/%69ndex.html",
        "/index.html;x", "/index.html:x", "/~root/x", "/" + "a".repeat(300), "/" + "a/".repeat(600), "/etc/passwd", "/\u00ff\u00fe", "/index.html ",
            "/CON", "/proc/self/environ",
        "/ollama/blobs/", "/ollama/blobs/../../../outside.txt", `/ollama/blobs/sha256-${"0".repeat(64)}`, `/ollama/blobs/sha256-${"A".repeat(64)}`,
            `/ollama/blobs/sha256-${"0".repeat(63)}`,
        `/ollama/blobs/x/${store.path(store.model).slice(14)}`, `/ollama/blobs//${store.path(store.model).slice(14)}`, `${store.path(store.model)}/`,
            `${store.path(store.model)}.`,
        "/ollama/manifests/registry.ollama.ai/library/tiny/latest", store.path(store.stray), store.path(store.params), "/models/",
            "/models/../index.html", "/models/box.gguf/", "/v1", "/v1/models/", "/v1/../index.html"];
    for (const path of paths) {
        const got = await send(server.port, Buffer.from(`GET ${path} HTTP/1.1\r\nHost: ${server.host}\r\nConnection: close\r\n\r\n`, "latin1"));
        check((got === "" || [400, 404].includes(statusOf(got))) && !got.includes("secret") && !got.includes("root:"),
            `GET ${show(path)}: ${show(got.slice(0, 300))}`);
    }
    for (const target of ["index.html", "http://127.0.0.1/", `http://${server.host}/`, "*"]) {
        const got = await send(server.port, `GET ${target} HTTP/1.1\r\nHost: ${server.host}\r\nConnection: close\r\n\r\n`);
        equals(statusOf(got), 400, `GET ${target}`);
    }
}

async function everyAnswer(server) {
    for (const [path, options] of [["/", {}], ["/models", {}], ["/models/box.gguf", {}], ["/v1/models", {}], ["/nothing", {}], ["/", {method: "PUT"}],
        ["/", {method: "OPTIONS"}],
        ["/", {headers: {Host: "evil.example"}}], ["/", {headers: {Origin: "https://evil.example"}}],
            ["/v1/chat/completions", {method: "POST", body: "{}"}]]) {
        const {headers, status} = await ask(server, path, options);
        const what = `${path} ${show(options)} ${status}`;
        equals(headers["x-content-type-options"], "nosniff", what);
        equals(headers["cross-origin-resource-policy"], "same-origin", what);
        equals(headers["referrer-policy"], "no-referrer", what);
        has(headers["content-security-policy"], "frame-ancestors 'none'", what);
        has(headers["content-security-policy"], "default-src 'none'", what);
        equals(headers.vary, "Origin", what);
        check(!("access-control-allow-origin" in headers), `${what}: no CORS without an allowed origin`);
    }
}

async function hosts(server) {
    const status = async (host) => statusOf(await send(server.port,
        `GET / HTTP/1.1\r\n${host === undefined ? "" : `Host: ${host}\r\n`}Connection: close\r\n\r\n`));
    equals(await status(server.host), 200, "our own Host");
    for (const host of ["evil.example", `evil.example:${server.port}`, "127.0.0.1", `127.0.0.1:${server.port + 1}`, `127.0.0.1:0${server.port}`,
        `127.0.0.2:${server.port}`, `127.1:${server.port}`,
        `0.0.0.0:${server.port}`, `[::1]:${server.port}`, `localhost.evil.example:${server.port}`, `${server.host}.evil.example`,
            `localhost.:${server.port}`, "localhost", `${server.host} x`, ""]) {
        check([421, 400].includes(await status(host)), `Host: ${host}: ${await status(host)}, expected 421`);
    }
    equals((await ask(server, "/", {headers: {Host: `evil.example:${server.port}`}})).json?.error?.code, "wrong_host", "DNS rebinding");
    equals((await ask(server, "/models", {headers: {Host: "evil.example"}})).status, 421, "DNS rebinding, models");
    equals(statusOf(await send(server.port, "GET / HTTP/1.0\r\n\r\n")), 421, "no Host in HTTP/1.0");
    equals(await status(undefined), 400, "no Host in HTTP/1.1");
    const twice = await send(server.port, `GET / HTTP/1.1\r\nHost: ${server.host}\r\nHost: evil.example\r\nConnection: close\r\n\r\n`);
    equals(statusOf(twice), 400, "two Hosts");
    for (const [path, method] of [["/", "GET"], ["/assets/app-1a2b.js?x=1&y=%20", "GET"], ["/nothing", "HEAD"], ["/v1/chat/completions", "POST"]]) {
        const moved = await ask(server, path, {method, headers: {Host: `localhost:${server.port}`}});
        equals(moved.status, 308, `localhost${path}`);
        equals(moved.headers.location, `http://${server.host}${path}`, `localhost${path}`);
    }
    equals((await ask(server, "/", {headers: {Host: `LocalHost:${server.port}`}})).status, 308, "names have no case");
    const split = await ask(server, "/x%0d%0aSet-Cookie:%20a=b", {headers: {Host: `localhost:${server.port}`}});
    check(split.status === 308 && !split.headers["set-cookie"], "a redirect cannot be split");
    const named = await serve(["--host", "gemmule.test", "--app", app]);
    equals((await ask(named, "/", {headers: {Host: `gemmule.test:${named.port}`}})).status, 200, "--host");
    equals((await ask(named, "/", {headers: {Host: `gemmule.test:${named.port}`, Origin: `http://gemmule.test:${named.port}`}})).status, 200,
        "--host with its own origin");
    equals((await ask(named, "/", {headers: {Host: `gemmule.test:${named.port}`, Origin: `http://${named.host}`}})).status, 403,
        "--host with another origin of ours");
    await named.stop();
}

async function origins(server) {
    const own = `http://${server.host}`, allowed = "https://friend.example";
    for (const [origin, status] of [[own, 200], [allowed, 200], ["https://friend.example:8443", 403], ["http://friend.example", 403],
        ["https://friend.example.evil.example", 403],
        ["https://evil.example", 403], ["null", 403], ["", 403], ["*", 403], [`https://${server.host}`, 403],
            [`http://localhost:${server.port}`, 403], ["http://127.0.0.1", 403],
        [`${own}.evil.example`, 403], [`${own}/`, 403]]) {
        for (const path of ["/", "/models", "/models/box.gguf", "/v1/models"]) equals((await ask(server, path, {headers: {Origin: origin}})).status,
            status, `Origin ${origin} on ${path}`);
        equals((await chat(server, {messages: say("Hi"), max_tokens: 1}, {headers: {Origin: origin}})).status, status, `POST with Origin ${origin}`);
    }
    const twice = await send(server.port,
        `GET / HTTP/1.1\r\nHost: ${server.host}\r\nOrigin: ${own}\r\nOrigin: https://evil.example\r\nConnection: close\r\n\r\n`);
    equals(statusOf(twice), 400, "two Origins");

    const friendly = await ask(server, "/models", {headers: {Origin: allowed}});
    equals(friendly.headers["access-control-allow-origin"], allowed, "an allowed origin is named, not *");
    equals(friendly.headers.vary, "Origin", "Vary");
    check(!("access-control-allow-credentials" in friendly.headers), "no credentials");
    check(!("access-control-allow-origin" in (await ask(server, "/models", {headers: {Origin: own}})).headers), "our own needs no CORS");
}

async function fetches(server) {
    const allowed = {Origin: "https://friend.example"};
    for (const [site, headers, status] of [["same-origin", {}, 200], ["none", {}, 200], ["cross-site", {}, 403], ["same-site", {}, 403],
        ["something", {}, 403], ["cross-site", allowed, 200],
        ["same-site", allowed, 200], ["cross-site", {Origin: "https://evil.example"}, 403],
            ["cross-site", {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403],
        ["cross-site", {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403], ["same-origin", {Origin: `http://${server.host}`}, 200]]) {
        for (const path of ["/", "/assets/app-1a2b.js", "/models", "/models/box.gguf", store.path(store.model), "/v1/models"]) {
            equals((await ask(server, path, {headers: {"Sec-Fetch-Site": site, ...headers}})).status, status,
                `Sec-Fetch-Site ${site} ${show(headers)} on ${path}`);
        }
        equals((await chat(server, {messages: say("Hi"), max_tokens: 1}, {headers: {"Sec-Fetch-Site": site, ...headers}})).status, status,
            `POST with Sec-Fetch-Site ${site} ${show(headers)}`);
    }
    // A link on another site may lead to a page, and to nothing else.
    const link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"};
    for (const [path, status] of [["/", 200], ["/about.html", 200], ["/assets/app-1a2b.js", 403], ["/models", 403], ["/models/box.gguf", 403],
        ["/v1/models", 403]])
        equals((await ask(server, path, {headers: link})).status, status, `a link to ${path}`);
    equals((await ask(server, "/v1/chat/completions", {method: "POST", headers: {...link, "Content-Type": "application/json"}, body: "{}"})).status,
        403, "a form of another site");
}

async function preflights(server) {
    const preflight = (path, origin, more = {}) =>
        ask(server, path, {method: "OPTIONS", headers: {Origin: origin, "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type", ...more}});
    const good = await preflight("/v1/chat/completions", "https://friend.example",
        {"Sec-Fetch-Site": "cross-site", "Access-Control-Request-Private-Network": "true"});
    equals(good.status, 204, "a preflight of an allowed origin");
    equals(good.headers["access-control-allow-origin"], "https://friend.example", "its origin is named");
    has(good.headers["access-control-allow-methods"], "POST", "its methods");
    has(good.headers["access-control-allow-headers"], "Content-Type", "its headers");
    equals(good.headers["access-control-allow-private-network"], "true", "a server on a private network");
    const bad = await preflight("/v1/chat/completions", "https://evil.example");
    equals(bad.status, 403, "a preflight of another origin");
    check(!Object.keys(bad.headers).some((name) => name.startsWith("access-control")), "it learns nothing");
    const options = await ask(server, "/", {method: "OPTIONS"});
    equals(options.status, 204, "OPTIONS");
    equals(options.headers.allow, "GET, HEAD, OPTIONS", "OPTIONS");
    check(!JSON.stringify([good.headers, bad.headers, options.headers]).includes('"*"'), "no * anywhere");
}

async function methodsAndTypes(server) {
    for (const [path, methods, allow] of [["/", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"], "GET, HEAD, OPTIONS"],
        ["/models", ["POST", "DELETE"], "GET, HEAD, OPTIONS"],
        ["/models/box.gguf", ["PUT"], "GET, HEAD, OPTIONS"], ["/v1/chat/completions", ["GET", "HEAD", "PUT"], "POST, OPTIONS"],
            ["/v1/models", ["POST"], "GET, HEAD, OPTIONS"]]) {
        for (const method of methods) {
            const answer = await ask(server, path, {method});
            equals(answer.status, 405, `${method} ${path}`);
            equals(answer.headers.allow, allow, `${method} ${path}`);
        }
    }
    const body = JSON.stringify({messages: say("Hi"), max_tokens: 1});
    for (const [type, status] of [["application/json", 200], ["application/json; charset=utf-8", 200], ["Application/JSON ;charset=utf-8", 200],
        ["text/plain", 415], ["text/plain; application/json", 415],
        ["application/x-www-form-urlencoded", 415], ["multipart/form-data; boundary=x", 415], ["application/jsonx", 415],
            ["application/json-patch", 415], ["", 415], [undefined, 415]]) {
        const answer = await ask(server, "/v1/chat/completions", {method: "POST", headers: type === undefined ? {} : {"Content-Type": type}, body});
        equals(answer.status, status, `Content-Type ${type}`);
        if (status === 415) {
            equals(answer.json?.error?.type, "invalid_request_error", `Content-Type ${type}`);
            equals(answer.json?.error?.message, "send Content-Type: application/json", `Content-Type ${type}`);
        }
    }
}

async function sizes(server) {
    const head = (more) => `POST /v1/chat/completions HTTP/1.1\r\nHost: ${server.host}\r\nContent-Type: application/json\r\n${more}\r\n`;
    equals(statusOf(await send(server.port, head("Content-Length: 67108865\r\n"), complete)), 413, "a body that says it is too large");
    equals(statusOf(await send(server.port, head("Content-Length: 99999999999999999999999\r\n"), complete)), 413, "a length beyond 64 bits");
    const chunk = `10000\r\n${" ".repeat(0x10000)}\r\n`;
    equals(statusOf(await send(server.port, head("Transfer-Encoding: chunked\r\nConnection: close\r\n") + chunk.repeat(1025) + "0\r\n\r\n", complete)),
        413, "chunks that become too large");
    const large = await chat(server, JSON.stringify({messages: say("x"), max_tokens: 1}).padEnd(4 << 20, " "));
    equals(large.status, 200, "the largest body without pictures");
    const spaces = await chat(server, JSON.stringify({messages: say("x"), max_tokens: 1}).padEnd(5 << 20, " "));
    check(spaces.status === 400 && spaces.text.includes("4 MiB apart from its texts"), `too much apart from its texts: ${spaces.status} ${spaces.text.slice(0, 300)}`);
    const long = await chat(server, {messages: say("x".repeat(5 << 20)), max_tokens: 1});
    check(long.status === 400 && long.text.includes("context_length_exceeded"), `a long text: ${long.status} ${long.text.slice(0, 300)}`);
    check([400, 414, 431].includes(statusOf(await send(server.port, `GET / HTTP/1.1\r\nHost: ${server.host}\r\nX: ${"x".repeat(100_000)}\r\n\r\n`,
        complete))), "a header that is too large");
    check([400, 414, 431].includes(statusOf(await send(server.port, `GET / HTTP/1.1\r\nHost: ${server.host}\r\n${"A: b\r\n".repeat(20_000)}\r\n`,
        complete))), "too many headers");
    check([400, 414, 431].includes(statusOf(await send(server.port, `GET /${"x".repeat(100_000)} HTTP/1.1\r\nHost: ${server.host}\r\n\r\n`,
        complete))), "a path that is too long");
    const hasty = await serve(["--timeout", "3"]); // some of these look like a beginning
    await Promise.all(["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", `GET / HTTP/1.1\r\nHost: ${server.host}\r\nno colon\r\n\r\n`,
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        head("Content-Length: -1\r\n"), head("Content-Length: x\r\n"), head("Transfer-Encoding: chunked\r\n") + "zz\r\n",
            randomBytes(500).toString("latin1") + "\r\n\r\n"].map(async (text) => {
        const got = await send(hasty.port, Buffer.from(text, "latin1"), complete);
        check(!(statusOf(got) < 400), `${show(text)}: ${show(got.slice(0, 100))}`);
    }));
    equals((await ask(hasty, "/models")).status, 200, "it is still there");
    equals(await hasty.stop(), 0, "it ends well");
}

async function ranges(server) {
    const whole = readFileSync(dense), size = whole.length, boxPath = "/models/box.gguf";
    const full = await ask(server, boxPath);
    check(full.status === 200 && full.bytes.equals(whole), "the whole box");
    equals(full.headers["accept-ranges"], "bytes", "Accept-Ranges");
    equals(full.headers["cache-control"], "no-store", "models are not cached twice");
    check(/^"[^"]+"$/.test(full.headers.etag) && full.headers["last-modified"], "ETag and Last-Modified");
    for (const path of [boxPath, store.path(store.model)]) {
        const {etag, "last-modified": modified} = (await ask(server, path, {method: "HEAD"})).headers;
        for (const [range, first, last, more = {}] of [["bytes=0-0", 0, 0], ["bytes=0-99", 0, 99], ["bytes=100-", 100, size - 1],
            ["bytes=-50", size - 50, size - 1], [`bytes=-${size * 2}`, 0, size - 1],
            [`bytes=5-${size * 9}`, 5, size - 1], [`bytes=${size - 1}-`, size - 1, size - 1], ["bytes=7-18446744073709551615", 7, size - 1],
                ["Bytes=3-4 ", 3, 4],
            ["bytes=10-19", 10, 19, {"If-Range": etag}], ["bytes=10-19", 10, 19, {"If-Range": modified}]]) {
            const answer = await ask(server, path, {headers: {Range: range, ...more}});
            equals(answer.status, 206, `${range} ${show(more)}`);
            equals(answer.headers["content-range"], `bytes ${first}-${last}/${size}`, range);
            check(answer.bytes.equals(whole.subarray(first, last + 1)), `${range} of ${path}: the bytes`);
        }
        for (const range of [`bytes=${size}-`, `bytes=${size}-${size + 1}`, "bytes=-0", "bytes=18446744073709551615-"]) {
            const answer = await ask(server, path, {headers: {Range: range}});
            equals(answer.status, 416, range);
            equals(answer.headers["content-range"], `bytes */${size}`, range);
        }
        for (const [range, more = {}] of [["bytes=5-4"], ["bytes=a-b"], ["bytes="], ["bytes=-"], ["items=0-5"], ["bytes=0-1,5-6"],
            ["bytes=99999999999999999999-"], ["bytes=1-2x"],
            ["bytes=0-9", {"If-Range": '"another"'}], ["bytes=0-9", {"If-Range": `W/${etag}`}],
                ["bytes=0-9", {"If-Range": "Thu, 01 Jan 1970 00:00:00 GMT"}]]) {
            const answer = await ask(server, path, {headers: {Range: range, ...more}});
            check(answer.status === 200 && answer.bytes.length === size, `${range} ${show(more)}: ${answer.status}, expected the whole`);
        }
        const head = await ask(server, path, {method: "HEAD", headers: {Range: "bytes=0-9"}});
        check(head.status === 200 && head.headers["content-length"] === String(size) && !head.text, "HEAD has no ranges");
        equals((await ask(server, path, {headers: {"If-None-Match": etag}})).status, 304, "a file that the client has");
    }
    // Beyond what 32 bits hold.
    const far = join(folder, "far.gguf"), file = openSync(far, "w"), at = 5 * 2 ** 30;
    ftruncateSync(file, at);
    writeSync(file, "the end", at - 7);
    closeSync(file);
    const huge = await serve([], {GEMMULE_BOX: far});
    const end = await ask(huge, boxPath, {headers: {Range: `bytes=${at - 7}-`}});
    check(end.status === 206 && end.text === "the end" && end.headers["content-range"] === `bytes ${at - 7}-${at - 1}/${at}`,
        `a range beyond 4 GiB: ${show(end.headers)}`);
    equals((await ask(huge, boxPath, {method: "HEAD"})).headers["content-length"], String(at), "a length beyond 4 GiB");
    // Somebody who leaves in the middle of it is no harm.
    const cut = await send(huge.port, `GET ${boxPath} HTTP/1.1\r\nHost: ${huge.host}\r\n\r\n`, (text) => text.length > 1 << 20);
    check(cut.length > 1 << 20, "a download that is cut off");
    equals(await huge.stop(), 0, "it ends well afterwards");
}

async function models(server) {
    const list = (await ask(server, "/models")).json.models;
    equals(list.map((m) => m.name).join(), "box,broken:latest,tiny:latest,tuned:latest", "the list");
    const [box, broken, tiny, tuned] = list, bytes = readFileSync(dense).length;
    check(box.source === "box" && box.bytes === bytes && box.complete && box.model.url === "/models/box.gguf", `the box: ${show(box)}`);
    check(tuned.complete && tuned.adapters.length === 1 && tuned.adapters[0].url.startsWith("/ollama/blobs/sha256-"), `a model with an adapter: ${show(tuned)}`);
    check(!broken.complete && broken.problem.includes("missing") && broken.model === null, `a model that is not whole: ${show(broken)}`);
    check(tiny.complete && tiny.problem === null && tiny.parameters === "506K" && tiny.quantisation === "F16" && tiny.family === "gemma4" &&
        tiny.renderer === "gemma4-small", `a whole model: ${show(tiny)}`);
    check(tiny.model.digest === store.model.digest && tiny.model.bytes === bytes && tiny.model.url === store.path(store.model),
        `its file: ${show(tiny.model)}`);
    check(tiny.system === "Be kind." && JSON.parse(tiny.params).temperature === 0.5, "its system prompt and parameters");
    equals((await ask(server, tiny.model.url)).headers.etag, `"${store.model.digest.replace(":", "-")}"`, "a blob's ETag is its digest");

    const lonely = join(folder, "lonely"); // where no box is beside it
    mkdirSync(lonely);
    copyFileSync(program, join(lonely, "gemmule"));
    const none = await serve([], {}, join(lonely, "gemmule"));
    equals(show((await ask(none, "/models")).json), '{"models":[],"problem":null}', "nothing at all");
    const missing = await ask(none, "/models/box.gguf");
    equals(missing.status, 404, "no box");
    has(missing.json?.error?.message, "GEMMULE_BOX", "it says how to name one");
    has(missing.json?.error?.message, "../share/gemmule", "it says where it was looked for");
    equals(show((await ask(none, "/v1/models")).json), '{"object":"list","data":[]}', "no model for the engine");
    const refused = await chat(none, {messages: say("Hi")});
    equals(refused.status, 503, "no model for the engine");
    has(refused.json?.error?.message, "gemmule serve MODEL", "it says how to name one");
    await none.stop();

    copyFileSync(dense, join(lonely, "box.gguf"));
    const beside = await serve([], {}, join(lonely, "gemmule"));
    equals((await ask(beside, "/models")).json.models.map((m) => m.name).join(), "box", "a box beside the program");
    equals((await ask(beside, "/models/box.gguf")).bytes.length, bytes, "its file");
    equals((await ask(beside, "/v1/models")).json.data[0].id, "box", "it is the engine's model where there is no other");
    equals((await chat(beside, {model: "box", messages: say("Hi"), max_tokens: 1})).status, 200, "and answers");
    await beside.stop();

    const gone = await serve([], {GEMMULE_BOX: join(folder, "gone.gguf")});
    has((await ask(gone, "/models/box.gguf")).json?.error?.message, "gone.gguf", "a box that is not where GEMMULE_BOX says");
    await gone.stop();

    const named = await serve([], {OLLAMA_MODELS: store.root});
    equals((await ask(named, "/v1/models")).json.data[0].id, "tiny:latest", "the first of the store as the engine's model");
    equals((await chat(named, {model: "tiny:latest", messages: say("Hi"), max_tokens: 1})).status, 200, "it answers");
    await named.stop();
}

// Links in the store lead nowhere, and what cannot be read hides nothing else. The superuser may read everything, so the server is another's then.
async function linksAndLockedFolders() {
    const linked = makeStore("linked");
    linked.steal("weights", "model"), linked.steal("prompt", "system");
    symlinkSync("..", join(linked.root, "manifests/registry.ollama.ai/library/up"));
    symlinkSync("/proc/self/root", join(linked.root, "manifests/registry.ollama.ai/everything"));
    const locked = join(linked.root, "manifests/hf.co"), open = join(folder, "open");
    mkdirSync(open), mkdirSync(locked);
    copyFileSync(program, join(open, "gemmule")), copyFileSync(dense, join(open, "box.gguf"));
    chmodSync(folder, 0o755), chmodSync(locked, 0);
    const server = await serve([], {OLLAMA_MODELS: linked.root}, join(open, "gemmule"), process.getuid() === 0 ? {uid: 65534} : {});
    const {models: list, problem} = (await ask(server, "/models")).json;
    equals(list.map((m) => m.name).join(), "box,broken:latest,prompt:latest,tiny:latest,tuned:latest,weights:latest", "the list beside a folder that cannot be read");
    has(problem, "manifests/hf.co: Permission denied", "it says what cannot be read");
    for (const link of ["library/up", "everything"]) has(problem, `${link}: links in Ollama's store are not followed`, "it says which links it skips");
    for (const name of ["weights:latest", "prompt:latest"]) {
        const {complete, problem: why, model, system} = list.find((m) => m.name === name);
        check(!complete && why.includes("links") && model === null && system === null, `${name}: ${show({complete, why, model, system})}`);
    }
    equals((await ask(server, linked.path(linked.secret))).status, 404, "a blob that is a link is not sent");
    equals((await ask(server, linked.path(linked.model))).status, 200, "a plain one is");
    check(!JSON.stringify(list).includes("secret"), "nothing from outside the store is told");
    equals(await server.stop(), 0, "it ends well");
    chmodSync(locked, 0o755);
}

// More connections than there are places, all of which dawdle: whoever has something to say is heard.
async function crowd() {
    const server = await serve(["--app", app, "--timeout", "600"]);
    const dawdlers = await Promise.all(Array.from({length: 100}, (_, i) => new Promise((done) => {
        const socket = net.connect(server.port, "127.0.0.1", () => done(socket));
        socket.on("error", () => {}), socket.on("close", () => (socket.gone = true)), socket.on("data", () => {});
        if (i % 2) socket.write(`GET / HTTP/1.1\r\nHost: ${server.host}\r\nX: `);
        else socket.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: ${server.host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{`);
    })));
    for (let i = 0; i < 20; i++) equals((await ask(server, "/")).status, 200, "an answer in a crowd of dawdlers");
    await until(() => dawdlers.filter((socket) => socket.gone).length >= 36, "room in the table");
    equals(dawdlers.slice(0, 10).filter((socket) => socket.gone).length, 10, "the oldest made room");
    const [bodies, headers] = [0, 1].map((kind) => dawdlers.filter((_, i) => i % 2 === kind));
    check(bodies.slice(-10).every((socket) => !socket.gone), "the youngest stay");
    await until(() => headers.every((socket) => socket.gone), "the end of headers that do not come, after 5 s of the 600 that a body has");
    check(bodies.slice(-10).every((socket) => !socket.gone), "a body has more time");
    for (const socket of dawdlers) socket.destroy();
    equals(await server.stop(), 0, "it ends well");
}

async function slowClients() {
    const server = await serve(["--timeout", "3", "--app", app]);
    const quiet = send(server.port, "GET / HTTP/1.1\r\n");
    // One byte now and then is not enough.
    const dripped = new Promise((done) => {
        const socket = net.connect(server.port, "127.0.0.1"), text = `GET / HTTP/1.1\r\nHost: ${server.host}\r\nX: ${"x".repeat(10_000)}`;
        let at = 0;
        const drip = setInterval(() => (at < 600 ? socket.write(text[at++]) : socket.destroy()), 200); // for two minutes
        socket.on("error", () => {});
        socket.on("close", () => {
            clearInterval(drip);
            done(at);
        });
        socket.on("data", () => {});
    });
    const body = send(server.port,
        `POST /v1/chat/completions HTTP/1.1\r\nHost: ${server.host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{`);
    equals((await ask(server, "/")).status, 200, "others are answered meanwhile");
    for (const [what, got] of [["a request that does not go on", await quiet], ["a body that does not come", await body]]) {
        check(got === "" || statusOf(got) >= 400, `${what} is closed: ${show(got)}`);
    }
    check((await dripped) < 600, "a client that drips is closed");
    equals((await ask(server, "/")).status, 200, "others are answered afterwards");
    equals(await server.stop(), 0, "it ends well");
}

async function beyondLoopback() {
    const cert = join(folder, "cert.pem"), key = join(folder, "key.pem"), secret = randomBytes(20).toString("hex"),
        keyFile = writeKey("key", `${secret}\n`);
    execFileSync("openssl", ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=gemmule.test",
        "-addext", "subjectAltName=DNS:gemmule.test,IP:127.0.0.1"],
        {stdio: "ignore"});
    for (const [what, ...args] of [["nothing else"], ["a key only", "--api-key-file", keyFile], ["TLS only", "--tls-cert", cert, "--tls-key", key]]) {
        for (const address of ["0.0.0.0", "::"]) {
            const refused = spawnSync(program, ["serve", "--port", "0", "--listen", address, "--host", "gemmule.test", ...args],
                {env: clean, encoding: "utf8", timeout: patience});
            equals(refused.status, 2, `--listen ${address} with ${what}`);
            for (const word of ["other machines", "--tls-cert", "--api-key-file"]) has(refused.stderr, word, `--listen ${address} with ${what}`);
            equals(refused.stdout, "", "no address is printed");
        }
    }
    const whole = ["--tls-cert", cert, "--tls-key", key, "--api-key-file", keyFile, "--app", app];
    const nameless = spawnSync(program, ["serve", "--port", "0", "--listen", "0.0.0.0", ...whole], {env: clean, encoding: "utf8", timeout: patience});
    equals(nameless.status, 2, "every address without a name");
    has(nameless.stderr, "--host", "every address without a name");
    const wrong = spawnSync(program, ["serve", "--port", "0", "--tls-cert", key, "--tls-key", cert],
        {env: clean, encoding: "utf8", timeout: patience});
    equals(wrong.status, 2, "a certificate that is none");
    has(wrong.stderr, `${key}: not a PEM certificate`, "a certificate that is none");
    const otherKey = join(folder, "other.pem");
    execFileSync("openssl", ["genrsa", "-out", otherKey, "2048"], {stdio: "ignore"});
    for (const [file, message] of [[otherKey, `the TLS key ${otherKey} does not belong to the certificate ${cert}`], [cert, `${cert}: not a PEM private key`]]) {
        const refused = spawnSync(program, ["serve", "--port", "0", "--tls-cert", cert, "--tls-key", file], {env: clean, encoding: "utf8", timeout: patience});
        equals(refused.status, 2, message);
        has(refused.stderr, message, "a key that does not fit");
    }

    const server = await serve(["--listen", "0.0.0.0", "--host", "gemmule.test", ...whole, dense, "--threads", "1"]);
    equals(server.address, `https://gemmule.test:${server.port}/`, "the address");
    const tls = {ca: readFileSync(cert), servername: "gemmule.test"}, Host = `gemmule.test:${server.port}`, Authorization = `Bearer ${secret}`;
    equals((await ask(server, "/", {tls, headers: {Host}})).status, 200, "the app needs no key");
    equals((await ask(server, "/", {tls, headers: {Host: server.host}})).status, 421, "Host still counts");
    equals((await ask(server, "/", {tls, headers: {Host: `localhost:${server.port}`}})).status, 421, "localhost is no name of it");
    equals((await ask(server, "/", {tls, headers: {Host, Origin: `http://${Host}`}})).status, 403, "its origin is https");
    for (const path of ["/models", "/models/box.gguf", "/v1/models", store.path(store.model)]) {
        for (const [what, value] of [["no key"], ["a wrong key", `Bearer ${secret.slice(0, -1)}x`], ["half a key", `Bearer ${secret.slice(0, 20)}`],
            ["a longer key", `Bearer ${secret}0`], ["another scheme", `Basic ${secret}`],
            ["an empty key", "Bearer "], ["the key alone", secret]]) {
            const answer = await ask(server, path, {tls, headers: {Host, ...(value && {Authorization: value})}});
            equals(answer.status, 401, `${path} with ${what}`);
            equals(answer.headers["www-authenticate"], "Bearer", `${path} with ${what}`);
        }
    }
    equals((await ask(server, "/v1/models", {tls, headers: {Host, Authorization}})).status, 200, "the key opens");
    equals((await chat(server, {messages: say("Hi")}, {tls, headers: {Host}})).status, 401, "a completion without the key");
    const stream = await chat(server, {messages: say("Hi"), max_tokens: 3, stream: true}, {tls, headers: {Host, Authorization}});
    check(stream.status === 200 && stream.text.endsWith("data: [DONE]\n\n"), "a stream over TLS");
    const file = await ask(server, "/assets/style.css", {tls, headers: {Host, Range: "bytes=1-2"}});
    check(file.status === 206 && file.text === "{}", "a range over TLS");
    check(!(statusOf(await send(server.port, `GET / HTTP/1.1\r\nHost: ${Host}\r\n\r\n`)) < 400), "no plain HTTP on that port");
    await new Promise((done) => { // what is old is refused
        const old = https.request({host: "127.0.0.1", port: server.port, headers: {Host}, ...tls, maxVersion: "TLSv1.1", minVersion: "TLSv1",
            ciphers: "DEFAULT@SECLEVEL=0", agent: false}, () => done(check(false, "TLS 1.1 is refused")));
        old.on("error", () => done(check(true, "")));
        old.end();
    });
    equals(await server.stop(), 0, "it ends well");

    const loopback = await serve(["--listen", "::1"]);
    equals(loopback.address, `http://[::1]:${loopback.port}/`, "::1 is loopback");
    equals(await loopback.stop(), 0, "::1 ends well");
}

await runAll(async () => {
    await startAndStop();
    const box = join(folder, "box.gguf");
    copyFileSync(dense, box);
    const server = await serve([dense, "--app", app, "--allow-origin", "https://friend.example", "--threads", "1"],
        {OLLAMA_MODELS: store.root, GEMMULE_BOX: box});
    for (const test of [theApp, traversal, everyAnswer, hosts, origins, fetches, preflights, methodsAndTypes, sizes, ranges,
        models]) await test(server);
    equals(await server.stop(), 0, `it ends well: ${server.log}`);
    equals(server.log, "", "nothing was printed");
    await slowClients();
    await crowd();
    await linksAndLockedFolders();
    await beyondLoopback();
});
