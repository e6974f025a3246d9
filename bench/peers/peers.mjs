// Compares with llama.cpp: the same file, threads and number of tokens, in one run.
//
//   node bench/peers/peers.mjs --gemmule build/gemmule --model FILE [--threads 2] [--prompt 64,512] [--generate 64]
//                              [--repeats 7] [--bandwidth build/bandwidth] [--lora RANK] [--json]
//
// Both engines compute the prompt at once, with the head for its last token only. Both decode one token at a time and choose the
// likeliest next token, but are fed a random one, because a model with random weights would repeat itself. A round runs llama.cpp,
// then gemmule, for every measurement; llama.cpp's first round is a warm-up, and gemmule warms up in each run. The table has the
// median and the best of the rounds. A ratio is the median of the rounds' ratios, each of two runs next to each other in time: a
// shared machine may be twice as fast for some seconds, and the best runs of the two engines need not fall into the same seconds
// (their ratio is shown, too). With --bandwidth, that program reads memory right after gemmule's decoding in each round, as many
// bytes as decoding read, and the table says how much of that speed decoding uses. With --lora, both use the same adapter with random
// values of this rank, on all seven projections of every layer, which gemmule exported; gemmule also runs without it, in the same rounds.

import {execFile, execFileSync} from "node:child_process";
import {existsSync, mkdtempSync, readFileSync, rmSync, statSync} from "node:fs";
import {cpus, tmpdir} from "node:os";
import {join} from "node:path";
import {parseArgs, promisify} from "node:util";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";
import {writeRandomAdapter} from "./random_adapter.mjs";

const run = promisify(execFile);
const llamaVersion = JSON.parse(readFileSync(new URL("../node_modules/node-llama-cpp/package.json", import.meta.url))).version;
const usage = "usage: node bench/peers/peers.mjs --model FILE [--gemmule PROGRAM] [--threads N] [--prompt N,N] [--generate N] " +
    "[--repeats N] [--bandwidth PROGRAM] [--lora RANK] [--json]";

class Usage extends Error {}

function readOptions() {
    const text = (value) => ({type: "string", ...(value !== undefined && {default: value})});
    let values;
    try {
        ({values} = parseArgs({options: {
            model: text(), gemmule: text(), bandwidth: text(), threads: text("2"), prompt: text("64,512"), generate: text("64"),
            repeats: text("7"), lora: text(), json: {type: "boolean", default: false},
        }}));
    } catch (problem) { throw new Usage(problem.message); }
    const whole = (name, word) => {
        if (!/^[1-9][0-9]{0,6}$/.test(word)) throw new Usage(`--${name} takes a whole number above 0, not '${word}'`);
        return Number(word);
    };
    if (!values.model) throw new Usage("--model is missing");
    for (const name of ["model", "gemmule", "bandwidth"])
        if (values[name] !== undefined && !existsSync(values[name])) throw new Usage(`--${name}: there is no file '${values[name]}'`);
    return {
        ...values,
        threads: whole("threads", values.threads),
        generate: whole("generate", values.generate),
        repeats: whole("repeats", values.repeats),
        lora: values.lora && whole("lora", values.lora),
        prompts: values.prompt.split(",").map((word) => whole("prompt", word)),
    };
}

// Fixed, and spread over the vocabulary after the special tokens at its start.
const tokenAt = (i) => 500 + Math.imul(i + 1, 0x9e3779b1) % 100000 + 100000;

// The adapter as a GGUF, in a folder that is removed at the end.
function makeAdapter({gemmule, model, lora}) {
    if (!gemmule) throw new Usage("--lora needs --gemmule, which exports the adapter");
    const folder = mkdtempSync(join(tmpdir(), "peers-")), file = join(folder, "adapter.gguf");
    process.on("exit", () => rmSync(folder, {recursive: true, force: true}));
    writeRandomAdapter(gemmule, model, join(folder, "adapter"), {rank: lora});
    execFileSync(gemmule, ["adapter", "convert", join(folder, "adapter"), file]);
    return file;
}

async function openLlama({model: modelPath, threads, prompts, generate, adapter}) {
    const llama = await getLlama({gpu: false, build: "never", maxThreads: 0, logLevel: LlamaLogLevel.error});
    const model = await llama.loadModel({modelPath});
    const contextSize = Math.max(...prompts, generate + 1) + 8;
    const context = await model.createContext({contextSize, batchSize: Math.max(...prompts), threads, sequences: 1,
        ...(adapter && {lora: {adapters: [{filePath: adapter, scale: 1}]}})});
    const sequence = context.getSequence();
    const likeliest = {generateNext: {token: true, options: {temperature: 0}}};
    const prefill = async (count) => {
        const input = Array.from({length: count}, (_, i) => i < count - 1 ? tokenAt(i) : [tokenAt(i), likeliest]);
        await sequence.clearHistory();
        const start = performance.now();
        await sequence.controlledEvaluate(input);
        return count / (performance.now() - start) * 1000;
    };
    const decode = async (count) => {
        await prefill(1);
        const start = performance.now();
        for (let i = 1; i <= count; i++) await sequence.controlledEvaluate([[tokenAt(i), likeliest]]);
        return count / (performance.now() - start) * 1000;
    };
    return {prefill, decode, close: () => llama.dispose()};
}

function openGemmule({gemmule, model, threads}, adapter) {
    const bench = async (...extra) => {
        const {stdout} = await run(gemmule, ["bench", model, "--backend", "cpu", "--threads", String(threads), "-r", "1", "--json", ...extra,
            ...(adapter ? ["--adapter", adapter] : [])], {maxBuffer: 1 << 20});
        return JSON.parse(stdout);
    };
    return {
        prefill: async (count) => (await bench("-p", String(count), "-n", "0")).prefill.tokens_per_second,
        decode: async (count) => await bench("-p", "0", "-n", String(count)),
    };
}

async function readBandwidth({bandwidth, threads}, bytes) {
    const passes = Math.min(1000, Math.max(12, Math.round(bytes / (1200 * 2 ** 20))));
    const {stdout} = await run(bandwidth, ["--threads", String(threads), "--mib", "1200", "--passes", String(passes), "--json"]);
    return JSON.parse(stdout);
}

const median = (numbers) => {
    const sorted = numbers.toSorted((a, b) => a - b);
    return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
};
const summary = (numbers) => numbers.length ? {best: Math.max(...numbers), median: median(numbers), all: numbers} : null;

async function measure(options, say) {
    const rows = [
        ...options.prompts.map((tokens) => ({name: `prefill ${tokens}`, kind: "prefill", tokens})),
        {name: `decode ${options.generate}`, kind: "decode", tokens: options.generate},
    ].map((row) => ({...row, llama: [], gemmule: [], without: []}));
    const result = {bandwidths: [], details: null};
    const gemmule = options.gemmule ? openGemmule(options, options.adapter) : null;
    const without = options.adapter ? openGemmule(options) : null;
    const llama = await openLlama(options);
    for (const row of rows) await llama[row.kind](row.tokens);
    for (let round = 1; round <= options.repeats; round++) {
        for (const row of rows) {
            say(`round ${round} of ${options.repeats}: ${row.name}`);
            row.llama.push(await llama[row.kind](row.tokens));
            if (!gemmule) continue;
            const got = await gemmule[row.kind](row.tokens);
            if (row.kind === "decode" && (!result.details || got.gigabytes_per_second > result.details.gigabytes_per_second)) result.details = got;
            row.gemmule.push(row.kind === "decode" ? got.decode.tokens_per_second : got);
            const plain = await without?.[row.kind](row.tokens);
            if (plain) row.without.push(row.kind === "decode" ? plain.decode.tokens_per_second : plain);
            if (row.kind === "decode" && options.bandwidth) result.bandwidths.push(await readBandwidth(options, row.tokens * got.bytes_per_token));
        }
    }
    await llama.close();
    result.rows = rows.map(({name, kind, tokens, ...engines}) => {
        const llama = summary(engines.llama), gemmule = summary(engines.gemmule);
        const ratio = gemmule && median(gemmule.all.map((speed, round) => speed / llama.all[round]));
        const kept = engines.without.length ? median(gemmule.all.map((speed, round) => speed / engines.without[round])) : null;
        return {name, kind, tokens, llama, gemmule, ratio, bestRatio: gemmule && gemmule.best / llama.best, kept};
    });
    return result;
}

function describe(options) {
    return {
        date: new Date().toISOString(),
        machine: `${cpus()[0]?.model.trim() ?? "unknown"}, ${cpus().length} CPUs`,
        threads: options.threads,
        model: options.model,
        bytes: statSync(options.model).size,
        llama: `llama.cpp in node-llama-cpp ${llamaVersion}`,
        command: ["node", ...process.argv.slice(1)].join(" "),
    };
}

function table(about, {rows, bandwidths, details}) {
    const number = (value) => value == null ? "–" : value.toFixed(2);
    const lines = [["tokens per second", "llama.cpp", "(best)", "gemmule", "(best)", "ratio", "(of the best)"]];
    for (const row of rows)
        lines.push([row.name, number(row.llama.median), number(row.llama.best), number(row.gemmule?.median), number(row.gemmule?.best),
            number(row.ratio), number(row.bestRatio)]);
    const widths = lines[0].map((_, column) => Math.max(...lines.map((line) => line[column].length)));
    const text = lines.map((line) => line.map((word, column) => column ? word.padStart(widths[column]) : word.padEnd(widths[column])).join("  "));
    text.unshift(`${about.machine}, ${about.threads} threads, ${about.date}`, `${about.model} (${(about.bytes / 1e9).toFixed(2)} GB), ${about.llama}`, about.command, "");
    if (rows.some(({kept}) => kept))
        text.push("", `gemmule's speed with the adapter, divided by that without: ${rows.map(({name, kept}) => `${name} ${kept.toFixed(3)}`).join(", ")}`);
    if (details)
        text.push("", `gemmule reads ${(details.bytes_per_token / 1e9).toFixed(3)} GB per token: ${details.gigabytes_per_second.toFixed(2)} GB/s at best; ` +
            `memory ${(details.peak_memory_bytes / 1e6).toFixed(0)} MB at most`);
    if (bandwidths.length) {
        const decode = rows.find(({kind}) => kind === "decode");
        const sustained = summary(bandwidths.map((b) => b.sustained)), pass = Math.max(...bandwidths.map((b) => b.gigabytes_per_second));
        const share = (tokensPerSecond, speed) => tokensPerSecond * details.bytes_per_token / 1e9 / speed;
        const percent = (part) => `${(100 * part).toFixed(0)} %`;
        text.push(`the machine reads ${sustained.median.toFixed(2)} GB/s over seconds (median of the rounds; best ${sustained.best.toFixed(2)}, best pass of 1.26 GB ${pass.toFixed(2)}): ` +
            `decoding uses ${percent(median(decode.gemmule.all.map((speed, round) => share(speed, sustained.all[round]))))} of it ` +
            `(median of the rounds; of the best ${percent(share(decode.gemmule.best, sustained.best))}, of the best pass ${percent(share(decode.gemmule.best, pass))})`);
    }
    return text.join("\n");
}

try {
    const options = readOptions();
    const say = (line) => { if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${line}`); };
    const about = describe(options);
    if (options.lora) options.adapter = makeAdapter(options);
    const result = await measure(options, say);
    if (process.stderr.isTTY) process.stderr.write("\r\x1b[K");
    console.log(options.json ? JSON.stringify({...about, ...result}) : table(about, result));
    process.exit(0);
} catch (problem) {
    console.error(problem instanceof Usage ? `peers: ${problem.message}\n${usage}` : `peers: ${problem.stderr || problem.message}`);
    process.exit(problem instanceof Usage ? 3 : 1);
}
