// Measurements on GPUs, in Node and in browsers: raw data in bench/results.json, shown in bench/RESULTS.md.
//
//   node bench/results.mjs add FILE… [--machine TEXT] [--date YYYY-MM-DD] [--clocks FILE] [--command TEXT]
//   node bench/results.mjs write [--check]
//
// `add` reads the lines of bench/h200.sh and bench/browser (bench.jsonl), or the output of `gemmule bench --json`, which lacks the
// machine, the date, the clocks (a file with nvidia-smi's output) and the command: these are options. A measurement replaces an
// earlier one by the same command on the same machine. `write` makes RESULTS.md: the text of RESULTS.intro.md, then a table of all
// measurements with their commands and, where known, llama.cpp's figures. --check only says whether the file is up to date.
//
// --results FILE and --page FILE replace the files beside this script.

import {existsSync, readFileSync, writeFileSync} from "node:fs";
import {parseArgs} from "node:util";
import {basename} from "node:path";

const beside = (name) => new URL(name, import.meta.url).pathname;
class Wrong extends Error {}

// ---- reading ----

function readStore(path) {
    if (!existsSync(path)) throw new Wrong(`there is no '${path}'`);
    const store = JSON.parse(readFileSync(path, "utf8"));
    if (!Array.isArray(store.results) || typeof store.peers !== "object") throw new Wrong(`${path}: expected "peers" and "results"`);
    return store;
}

// The fields that `gemmule bench --json` must have printed.
function checkResult(result, where) {
    const phase = (name) => result?.[name] && Number.isFinite(result[name].tokens) && Number.isFinite(result[name].tokens_per_second);
    if (typeof result?.model !== "string" || typeof result.device !== "string" || !phase("prefill") || !phase("decode"))
        throw new Wrong(`${where}: this is not the output of gemmule bench --json`);
}

// One object over several lines, or one on each line.
function readObjects(path) {
    const text = readFileSync(path, "utf8");
    try { return [JSON.parse(text)]; } catch { /* then line by line */ }
    return text.split("\n").filter((line) => line.trim()).map((line, i) => {
        try { return JSON.parse(line); } catch (problem) { throw new Wrong(`${path}:${i + 1}: ${problem.message}`); }
    });
}

function guessCommand({model, device, prefill, decode}) {
    const depth = decode.depth ? ` -d ${decode.depth}` : "";
    return `gemmule bench ${basename(model)} --backend ${isGpu(device) ? "gpu" : "cpu"} -p ${prefill.tokens} -n ${decode.tokens}${depth}`;
}

const isGpu = (device) => device.startsWith("gpu");

function add(store, paths, {machine, date, clocks, command}) {
    if (!paths.length) throw new Wrong("add: which files?");
    let count = 0;
    for (const path of paths) {
        for (const object of readObjects(path)) {
            const {result, ...about} = object.result ? object : {result: object};
            checkResult(result, path);
            const record = {
                date: date ?? about.date, machine: machine ?? about.machine,
                clocks: clocks ? readFileSync(clocks, "utf8").trim() : about.clocks ?? "", command: command ?? about.command ?? guessCommand(result),
                result: {...result, model: basename(result.model)}, // where it lay there is nobody's business
            };
            if (!record.machine) throw new Wrong(`${path}: on which machine? Give --machine`);
            if (!/^\d{4}-\d\d-\d\d$/.test(record.date ?? "")) throw new Wrong(`${path}: when? Give --date YYYY-MM-DD`);
            store.results = store.results.filter((old) => old.command !== record.command || old.machine !== record.machine);
            store.results.push(record);
            count++;
        }
    }
    return count;
}

// ---- writing ----

const grouped = (value) => value.toLocaleString("en-GB", {maximumFractionDigits: value < 100 ? 1 : 0});
const modelName = ({model}) => basename(model).replace(/\.gguf$/, "");

// The figures of one run, with llama.cpp's figure for each.
function phases({result}, peers) {
    const peer = isGpu(result.device) ? peers[modelName(result)] ?? {} : {}, list = [];
    if (result.prefill.tokens) list.push({name: `prefill of ${result.prefill.tokens}`, rate: result.prefill.tokens_per_second});
    if (result.decode.tokens)
        list.push({name: result.decode.depth ? `decode at depth ${result.decode.depth}` : "decode", rate: result.decode.tokens_per_second});
    return list.map((phase) => ({...phase, peer: peer[phase.name]}));
}

function table(records, peers) {
    const lines = ["| model | | gemmule, tok/s | llama.cpp, tok/s | ratio | dispatches per token | weights read | command |", "| --- | --- | --- | --- | --- | --- | --- | --- |"];
    const order = ["e2b", "e4b", "12b", "26b", "31b"], rank = (record) => (order.indexOf(modelName(record.result)) + 9) % 9;
    for (const record of records.toSorted((a, b) => rank(a) - rank(b) || a.result.decode.depth - b.result.decode.depth)) {
        for (const {name, rate, peer} of phases(record, peers)) {
            const decode = name.startsWith("decode"), {dispatches_per_token: dispatches, gigabytes_per_second: gigabytes} = record.result;
            lines.push(`| ${modelName(record.result)} | ${name} | ${grouped(rate)} | ${peer ? grouped(peer) : ""} | ${peer ? (rate / peer).toFixed(2) : ""} | ` +
                `${decode && dispatches ? dispatches : ""} | ${decode && gigabytes ? `${grouped(gigabytes)} GB/s` : ""} | \`${record.command}\` |`);
        }
    }
    return lines.join("\n");
}

function loads(records) {
    const best = new Map();
    for (const {result} of records) {
        const name = modelName(result);
        if (result.load_seconds > 0 && !(best.get(name)?.load_seconds <= result.load_seconds)) best.set(name, result);
    }
    const upload = (gpu) => gpu?.upload_seconds > 0
        ? ` (self-check ${gpu.self_check_seconds.toFixed(2)} s, upload ${gpu.upload_seconds.toFixed(2)} s at ${gpu.upload_gigabytes_per_second.toFixed(2)} GB/s)` : "";
    return [...best].map(([model, {load_seconds, gpu}]) => `${model} ${load_seconds.toFixed(2)} s${upload(gpu)}`).join(", ");
}

// ---- in Node and in browsers ----

const round = (value) => value < 10 ? value.toFixed(2) : grouped(value);
const isOwn = ({result}) => result.engine !== "wllama";

// The package's figures, next to the program's on the same machine.
function webTable(records, native) {
    const lines = ["| model | where | | tok/s | native program | ratio | outside GPU memory | command |", "| --- | --- | --- | --- | --- | --- | --- | --- |"];
    for (const record of records) {
        for (const {name, rate} of phases(record, {})) {
            const same = native.filter(({machine, result}) => machine === record.machine && result.model === record.result.model && isGpu(result.device) === isGpu(record.result.device));
            const own = Math.max(0, ...same.flatMap((other) => phases(other, {})).filter((phase) => phase.name === name).map((phase) => phase.rate));
            const {runtime, note, device} = record.result;
            lines.push(`| ${modelName(record.result)} | ${runtime}, ${device} | ${name} | ${grouped(rate)} | ${own ? grouped(own) : ""} | ${own ? (rate / own).toFixed(2) : ""} | ` +
                `${note ?? ""} | \`${record.command}\` |`);
        }
    }
    return lines.join("\n");
}

// Figures for which more is better, and for which less is.
const SIDE_BY_SIDE = [
    {name: () => "load on a first visit, s", of: (r) => r.load_seconds},
    {name: () => "load from the browser's storage, s", of: (r) => r.reload_seconds},
    {name: () => "first token after loading, s", of: (r) => r.first_token_seconds},
    {name: (r) => `prefill of ${r.prefill.tokens}, tok/s`, of: (r) => r.prefill.tokens_per_second, more: true},
    {name: (r) => `decode of ${r.decode.tokens}${r.decode.depth ? ` at depth ${r.decode.depth}` : ""}, tok/s`, of: (r) => r.decode.tokens_per_second, more: true},
    {name: () => "renderer, peak while loading, MB", of: (r) => r.memory.renderer_loading_bytes / 1e6},
    {name: () => "renderer, peak, MB", of: (r) => r.memory.renderer_bytes / 1e6},
    {name: () => "GPU process, peak, MB", of: (r) => r.memory.gpu_bytes / 1e6},
];

// One column per run. gemmule's figures are followed by their ratio to wllama's best.
function peerTable(records) {
    const ordered = records.toSorted((a, b) => isOwn(a) - isOwn(b));
    const title = ({result}) => `${isOwn({result}) ? "gemmule" : ["wllama", result.version].filter(Boolean).join(" ")}, ${result.device}`;
    const lines = [`| | ${ordered.map(title).join(" | ")} |`, `| --- |${" --- |".repeat(ordered.length)}`];
    for (const {name, of, more} of SIDE_BY_SIDE) {
        const values = ordered.map(({result}) => of(result)), theirs = values.filter((value, i) => !isOwn(ordered[i]) && Number.isFinite(value));
        if (!values.some(Number.isFinite)) continue;
        const best = theirs.length ? (more ? Math.max : Math.min)(...theirs) : NaN;
        const cells = values.map((value, i) => {
            if (!Number.isFinite(value)) return "";
            const times = more ? value / best : best / value;
            return round(value) + (isOwn(ordered[i]) && Number.isFinite(times) ? ` (${times.toFixed(2)} ×)` : "");
        });
        lines.push(`| ${name(ordered[0].result)} | ${cells.join(" | ")} |`);
    }
    return lines.join("\n");
}

function groupBy(records, key) {
    const groups = new Map();
    for (const record of records) groups.set(key(record), [...groups.get(key(record)) ?? [], record]);
    return groups;
}

const place = ({machine, date}) => `${machine}, ${date}`;

function webParts(web, native) {
    const parts = [], pairs = groupBy(web, (record) => `${modelName(record.result)}: ${place(record)}`);
    const compared = (record) => pairs.get(`${modelName(record.result)}: ${place(record)}`).some((other) => !isOwn(other));
    const alone = groupBy(web.filter((record) => !compared(record)), place);
    if (alone.size) parts.push("## In Node and in the browser");
    for (const [key, records] of alone) parts.push(`### ${key}`, webTable(records, native));
    const sides = [...pairs].filter(([, records]) => compared(records[0]));
    if (sides.length) parts.push("## In the browser, compared with wllama", "The same file in the same Chromium, each engine in its own browser with an empty profile, measured in the page " +
        "(`make bench-browser`; see [bench/browser](browser/bench.mjs)). × says how many times better than wllama: faster, sooner, or with less memory.");
    for (const [key, records] of sides)
        parts.push(`### ${key}`, `${records[0].result.runtime}.`, peerTable(records), records.map(({command}) => `\`${command}\``).join(", ") + ".");
    return parts;
}

// Breaks lines of prose at blanks, also in code, where Markdown allows it.
const wrapped = (text) => text.replaceAll(/(?=.{131})(.{1,130}) /g, "$1\n");

function page(store, intro) {
    const native = store.results.filter(({result}) => !result.runtime), web = store.results.filter(({result}) => result.runtime);
    const groups = groupBy(native, place);
    const parts = [intro.trim(), "## GPU, measured by `gemmule bench --json`"];
    if (!groups.size) parts.push("No results yet: `bench/h200.sh` measures, `node bench/results.mjs add` adds the results.");
    for (const [key, records] of groups) {
        parts.push(`### ${key}`, table(records, store.peers));
        const clocks = [...new Set(records.map((record) => record.clocks).filter(Boolean))];
        if (loads(records)) parts.push(`Time to open the model, from the page cache to the GPU: ${loads(records)}.`);
        if (clocks.length) parts.push(`Clocks while measuring: ${clocks.map((text) => text.replaceAll("\n", "; ")).join("; ")}.`);
    }
    parts.push(`The models are from \`gemmule synth\` (Q4_K_M, random weights). llama.cpp's figures: ${store.peers.about}. Each figure is the best run of its ` +
        "command.", ...webParts(web, native), "`node bench/results.mjs write` makes this page from `results.json` and `RESULTS.intro.md`.");
    return parts.map((part) => /^[|#]/.test(part) ? part : wrapped(part)).join("\n\n") + "\n";
}

// ---- the program ----

const usage = "usage: node bench/results.mjs add FILE… [--machine TEXT] [--date YYYY-MM-DD] [--clocks FILE] [--command TEXT] | write [--check]";

function main() {
    const text = {type: "string"};
    const {values, positionals: [verb, ...paths]} = parseArgs({allowPositionals: true, options: {
        machine: text, date: text, clocks: text, command: text, check: {type: "boolean"},
        results: {...text, default: beside("results.json")}, page: {...text, default: beside("RESULTS.md")},
    }});
    if (verb !== "add" && verb !== "write") throw new Wrong(usage);
    const store = readStore(values.results);
    if (verb === "add") {
        const count = add(store, paths, values);
        writeFileSync(values.results, JSON.stringify(store, null, 1) + "\n");
        console.log(`${count} measurements added: ${store.results.length} in ${values.results}`);
        return 0;
    }
    const made = page(store, readFileSync(beside("RESULTS.intro.md"), "utf8"));
    if (!values.check) {
        writeFileSync(values.page, made);
        return 0;
    }
    const same = existsSync(values.page) && readFileSync(values.page, "utf8") === made;
    if (!same) console.log(`${values.page} is not what results.json and RESULTS.intro.md make: node bench/results.mjs write`);
    return same ? 0 : 1;
}

try {
    process.exitCode = main();
} catch (problem) {
    if (!(problem instanceof Wrong) && !problem.code) throw problem;
    console.error(`results: ${problem.message}`);
    process.exitCode = 3;
}
