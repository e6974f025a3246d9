// bench/results.mjs: turns measurements into the page and refuses anything else. The page in the tree must be up to date.

import {execFileSync, spawnSync} from "node:child_process";
import {existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";

let passed = 0, failed = 0;
function check(good, message) {
    if (good) passed++;
    else {
        failed++;
        console.log(`FAIL ${message}`);
    }
}

const folder = mkdtempSync(join(tmpdir(), "gemmule-results-"));
const results = join(folder, "results.json"), page = join(folder, "page.md");
const peers = {
    about: "measured separately on a day in May", e2b: {"prefill of 512": 12900, decode: 319, "decode at depth 4096": 298}, "26b": {decode: 210},
};
writeFileSync(results, JSON.stringify({peers, results: []}));
const run = (...args) => spawnSync(process.execPath, ["bench/results.mjs", ...args, "--results", results, "--page", page], {encoding: "utf8"});
const file = (name, content) => {
    writeFileSync(join(folder, name), content);
    return join(folder, name);
};
const raw = (model, prefill, decode, depth, device = "gpu (Some GPU)") => ({
    model: `/somewhere/${model}.gguf`, device, threads: 2, prefill: {tokens: 512, seconds: 1, tokens_per_second: prefill},
    decode: {tokens: 64, depth, seconds: 1, tokens_per_second: decode}, bytes_per_token: 1, gigabytes_per_second: 940.5, dispatches_per_token: 315,
    load_seconds: 1.5, peak_memory_bytes: 1, private_memory_bytes: 1,
});

try {
    // It accepts the program's own output.
    const bench = ["bench", "tests/fixtures/tiny-dense.gguf", "--backend", "cpu", "-p", "8", "-n", "4", "-r", "1", "--threads", "1", "--json"];
    const printed = file("printed.json", execFileSync("build/gemmule", bench, {encoding: "utf8"}));
    const own = run("add", printed, "--machine", "a test machine", "--date", "2026-01-02");
    check(own.status === 0, `the output of gemmule bench is refused: ${own.stderr}`);

    const record = {date: "2026-01-03", machine: "a server", clocks: "SM 1980 MHz", command: "gemmule bench e2b.gguf", result: raw("e2b", 25800, 638, 0)};
    const lines = file("lines.jsonl", `${JSON.stringify(record)}\n${JSON.stringify({...record, command: "deep", result: raw("e2b", 100, 149, 4096)})}\n`);
    check(run("add", lines).status === 0, "lines of records are refused");
    check(run("add", lines).status === 0, "the same lines again are refused");
    check(JSON.parse(readFileSync(results, "utf8")).results.length === 3, "a measurement by the same command does not replace the old one");
    const smi = file("smi.txt", "Clocks\n  SM: 1755 MHz\n");
    check(run("add", file("26b.json", JSON.stringify(raw("26b", 4340, 420, 0), null, 2)), "--machine", "a server", "--date", "2026-01-03", "--clocks", smi,
        "--command", "by hand").status === 0, "an object over several lines is refused");

    check(run("write").status === 0 && existsSync(page), "no page is written");
    const text = readFileSync(page, "utf8");
    for (const line of [
        "| e2b | prefill of 512 | 25,800 | 12,900 | 2.00 |", "| e2b | decode | 638 | 319 | 2.00 | 315 |", "| e2b | decode at depth 4096 | 149 | 298 | 0.50 |",
        "| 26b | decode | 420 | 210 | 2.00 |", "`gemmule bench e2b.gguf`", "`by hand`", "### a server, 2026-01-03", "### a test machine, 2026-01-02",
        "SM 1980 MHz", "SM: 1755 MHz", "e2b 1.50 s", "measured separately on a day in May", "## CPU, compared with llama.cpp",
    ]) check(text.includes(line), `the page lacks "${line}"`);
    // In browsers: compared with wllama if it ran on the same file, otherwise with the program.
    const inPage = (engine, device, load, rate, more = {}) => ({
        ...raw("box", 100 * rate, rate, 0, device), engine, runtime: "Chromium 1", load_seconds: load, first_token_seconds: load / 2,
        memory: {renderer_loading_bytes: 2e8, renderer_bytes: 3e8, gpu_bytes: 1e8}, ...more,
    });
    const page2 = [
        {command: "theirs", result: inPage("wllama", "wasm (1 thread)", 3, 50, {version: "3.8"})}, {command: "theirs twice", result: inPage("wllama", "wasm (2 threads)", 4, 60)},
        {command: "ours", result: inPage("gemmule", "cpu (wasm, 2 threads)", 1.5, 240)},
        {command: "large", result: {...raw("e2b", 12900, 319, 0), runtime: "Node 24", note: "left in the file: 1 GB of tables"}},
    ].map((each) => JSON.stringify({...record, ...each})).join("\n");
    check(run("add", file("pages.jsonl", page2)).status === 0 && run("write").status === 0, "lines of a browser are refused");
    const web = readFileSync(page, "utf8");
    for (const line of [
        "## In the browser, compared with wllama", "| | wllama 3.8, wasm (1 thread) | wllama, wasm (2 threads) | gemmule, cpu (wasm, 2 threads) |",
        "| load on a first visit, s | 3.00 | 4.00 | 1.50 (2.00 ×) |", "| decode of 64, tok/s | 50 | 60 | 240 (4.00 ×) |", "| renderer, peak, MB | 300 | 300 | 300 (1.00 ×) |",
        "| e2b | Node 24, gpu (Some GPU) | decode | 319 | 638 | 0.50 | left in the file: 1 GB of tables | `large` |",
    ]) check(web.includes(line), `the page lacks "${line}"`);
    check(!web.includes("browser's storage"), "a row without figures is shown");
    check(!/tiny-dense.*\| (319|12,900) \|/.test(text), "a CPU's line has the figure of another machine's GPU beside it");
    check(run("write", "--check").status === 0, "--check does not accept what was just written");
    writeFileSync(page, web + "more\n");
    check(run("write", "--check").status === 1, "--check accepts a page that was changed by hand");

    const before = readFileSync(results, "utf8");
    for (const [what, status, ...args] of [
        ["no verb", 3], ["an unknown verb", 3, "remove"], ["no files", 3, "add"], ["a file that is not there", 3, "add", join(folder, "nothing.json")],
        ["no JSON", 3, "add", file("bad.json", "hello\n"), "--machine", "m", "--date", "2026-01-01"],
        ["another JSON", 3, "add", file("other.json", "{\"model\": 1}"), "--machine", "m", "--date", "2026-01-01"],
        ["no machine", 3, "add", printed, "--date", "2026-01-01"], ["no date", 3, "add", printed, "--machine", "m"],
        ["a date in words", 3, "add", printed, "--machine", "m", "--date", "today"],
    ]) {
        const {status: got, stderr} = run(...args);
        check(got === status && stderr.startsWith("results: "), `${what}: ended with ${got}: ${stderr}`);
    }
    check(readFileSync(results, "utf8") === before, "a refusal changed the results");

    const tree = spawnSync(process.execPath, ["bench/results.mjs", "write", "--check"], {encoding: "utf8"});
    check(tree.status === 0, tree.stdout + tree.stderr);
} finally {
    rmSync(folder, {recursive: true});
}

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
