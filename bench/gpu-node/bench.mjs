// Checks and times the matmul kernels of kernels.json (bench/dump_kernels.c) on Dawn for Node (the npm package webgpu).
//
//     node bench.mjs KERNELS.json [--only PATTERN] [--kinds q8,matrix] [--best N] [--check] [--toggles NAME,-NAME…]
//
//   --only     only cases whose name contains PATTERN; several, separated by |
//   --kinds    only variants of these kinds; f32 always runs, since the others are compared with it
//   --best     how many variants of each kind and case to print, fastest first (default 4; 0: all)
//   --check    only check results, without timing
//   --toggles  Dawn toggles in addition to the engine's; -NAME disables one
//
// Names each variant that does not compile or gives wrong results, with the reason, and continues. The exit status is 1 if any
// result was wrong. $WEBGPU_PACKAGE is the path of the package's index.js, if Node does not find it by name.

import { readFileSync } from 'node:fs';

const options = { only: '', kinds: 'f32,q8,matrix', best: '4', toggles: '', check: false };
const files = [];
for (let i = 2; i < process.argv.length; i++) {
    const name = process.argv[i].replace(/^--/, '');
    if (name === 'check') options.check = true;
    else if (process.argv[i] !== name && name in options) options[name] = process.argv[++i] ?? '';
    else files.push(process.argv[i]);
}
if (files.length !== 1) {
    console.error('usage: bench.mjs KERNELS.json [--only PATTERN] [--kinds LIST] [--best N] [--check] [--toggles LIST]');
    process.exit(2);
}
const kernels = JSON.parse(readFileSync(files[0], 'utf8'));
const tolerance = { f32: 1e-5, q8: 2e-2, matrix: 2e-3 };

// ---- the device ----

const { create, globals } = await import(process.env.WEBGPU_PACKAGE ?? 'webgpu');
Object.assign(globalThis, globals);
const toggles = options.toggles.split(',').filter(Boolean);
const on = ['allow_unsafe_apis', 'vulkan_enable_f16_on_nvidia', 'disable_workgroup_init', 'disable_robustness', 'use_vulkan_memory_model',
            ...toggles.filter((t) => !t.startsWith('-'))];
const off = ['timestamp_quantization', ...toggles.filter((t) => t.startsWith('-')).map((t) => t.slice(1))];
const gpu = create([`enable-dawn-features=${on.filter((t) => !off.includes(t))}`, `disable-dawn-features=${off}`]);
const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' });
if (!adapter) {
    console.error('no GPU: VK_ICD_FILENAMES names the file of a Vulkan driver');
    process.exit(1);
}
const features = ['timestamp-query', 'shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'].filter((f) => adapter.features.has(f));
const limits = {};
for (const name of ['maxBufferSize', 'maxStorageBufferBindingSize', 'maxComputeWorkgroupStorageSize', 'maxComputeInvocationsPerWorkgroup'])
    limits[name] = adapter.limits[name];
const device = await adapter.requestDevice({ requiredFeatures: features, requiredLimits: limits });
device.addEventListener('uncapturederror', (event) => console.log(`! ${event.error.message.slice(0, 300)}`));
console.log(`${adapter.info.description || adapter.info.device}; subgroups ${adapter.info.subgroupMinSize} to ${adapter.info.subgroupMaxSize}; ` +
            `${features.join(', ')}; ${limits.maxComputeWorkgroupStorageSize} bytes of workgroup memory`);
let configs = [];
try { configs = [...(adapter.info.subgroupMatrixConfigs ?? [])]; } catch { /* there are none */ }
if (configs.length)
    console.log('matrices: ' + configs.map((c) => `${c.componentType}·→${c.resultComponentType} ${c.M}x${c.N}x${c.K}`).join(', '));

const buffer = (bytes) => device.createBuffer({ size: Math.max(256, Math.ceil(bytes / 256) * 256),
    usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC });

async function read(source, bytes) {
    const target = device.createBuffer({ size: bytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(source, 0, target, 0, bytes);
    device.queue.submit([encoder.finish()]);
    await target.mapAsync(GPUMapMode.READ);
    const values = new Float32Array(target.getMappedRange().slice(0));
    target.destroy();
    return values;
}

// ---- data ----

let seed = 1;
const random = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0);

// An f16 between 2^-10 and 2^-7.
const small_half = () => ((5 + (random() >>> 8) % 3) << 10) | (random() >>> 22);
const two_halves = () => small_half() | (small_half() << 16);

// Plane by plane: q are any bits, scales must be numbers.
function random_weights(c) {
    const words = new Uint32Array(c.weight_bytes / 4);
    const { scales, blocks } = c.planes;
    const q_end = c.scales === '0' ? words.length : scales * 4;
    const number = c.type === 'BF16' ? () => ((random() & 0x8000) | 0x3c00 | (random() >>> 23)) : small_half;
    const period = Math.min(q_end, 1 << 18);
    for (let i = 0; i < period; i++) words[i] = c.scales === '0' ? number() | (number() << 16) : random();
    for (let i = period; i < q_end; i += period) words.copyWithin(i, 0, Math.min(period, q_end - i));
    for (let i = q_end; i < words.length; i++) {
        const in_blocks = blocks > scales && i >= blocks * 4;
        const halves = { D: true, DM: true, K4: i % 4 === 0, K3: i % 4 === 3, K6: in_blocks, K2: in_blocks }[c.scales];
        if (halves) words[i] = two_halves();
        else if (c.scales === 'XS' && i % 2) words[i] = (random() >>> 16) | (small_half() << 16);
        else if (c.scales === 'E8') words[i] = 0x78787878 + (random() & 0x03030303);
        else words[i] = random();
    }
    return words;
}

// Columns of very different size: f16 holds none of the second as they are.
function random_columns(c) {
    const x = new Float32Array(c.x_rows * c.k);
    for (let i = 0; i < x.length; i++) {
        const row = Math.floor(i / c.k);
        x[i] = (random() / 0x80000000 - 1) * (row === 1 ? 1e5 : row === 2 ? 1e-5 : 1);
    }
    return x;
}

// The pairs of each expert.
function random_lists(c) {
    const lists = Array.from({ length: c.experts }, () => []);
    for (let token = 0; token < c.tokens; token++) {
        const chosen = new Set();
        while (chosen.size < c.used) chosen.add((random() >>> 8) % c.experts);
        [...chosen].forEach((expert, slot) => lists[expert].push(token * c.used + slot));
    }
    return lists;
}

// As moe.wgsl writes them, for a variant that has so many columns in a tile: [experts + 1] beginnings, the tiles, the pairs.
function groups_of(lists, columns, pairs_at) {
    const begins = [0], tiles = [];
    lists.forEach((list, expert) => {
        begins.push(begins.at(-1) + list.length);
        for (let i = 0; i * columns < list.length; i++) tiles.push(expert | (i << 16));
    });
    while (begins.length + tiles.length < pairs_at) tiles.push(0xffffffff);
    return new Uint32Array([...begins, ...tiles, ...lists.flat()]);
}

// Each variant has its own.
function groups_buffer(variant, lists) {
    if (!lists.length) return undefined;
    const words = groups_of(lists, variant.columns, variant.dispatches.at(-1).constants.groups_pairs), made = buffer(words.byteLength);
    device.queue.writeBuffer(made, 0, words);
    return made;
}

// ---- one case ----

const pipelines = new Map();

function pipeline(d) {
    const key = d.text + JSON.stringify(d.constants);
    if (!pipelines.has(key)) {
        const module = device.createShaderModule({ code: kernels.texts[d.text] });
        pipelines.set(key, device.createComputePipelineAsync({ layout: 'auto', compute: { module, entryPoint: 'main', constants: d.constants } }));
    }
    return pipelines.get(key);
}

async function prepare(variant, buffers) {
    const steps = [];
    for (const d of variant.dispatches) {
        const made = await pipeline(d);
        const entries = d.binds.map((name, binding) => ({ binding, resource: { buffer: buffers[name] } }));
        steps.push({ made, group: device.createBindGroup({ layout: made.getBindGroupLayout(0), entries }), size: d.groups });
    }
    return steps;
}

// Milliseconds on the GPU, by its own clock if it has one.
const clock = !features.includes('timestamp-query') ? null : {
    queries: device.createQuerySet({ type: 'timestamp', count: 2 }),
    times:   device.createBuffer({ size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC }),
    seen:    device.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST }),
};

async function submit(steps, repeats) {
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass(clock ? { timestampWrites: { querySet: clock.queries, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 } } : {});
    for (let i = 0; i < repeats; i++) {
        for (const s of steps) {
            pass.setPipeline(s.made);
            pass.setBindGroup(0, s.group);
            pass.dispatchWorkgroups(...s.size);
        }
    }
    pass.end();
    if (clock) {
        encoder.resolveQuerySet(clock.queries, 0, 2, clock.times, 0);
        encoder.copyBufferToBuffer(clock.times, 0, clock.seen, 0, 16);
    }
    const start = performance.now();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    const wall = performance.now() - start;
    if (!clock) return wall;
    await clock.seen.mapAsync(GPUMapMode.READ);
    const [begin, end] = new BigUint64Array(clock.seen.getMappedRange().slice(0));
    clock.seen.unmap();
    return Number(end - begin) / 1e6;
}

// An idle GPU clocks down to a fifth or less and recovers slowly: keep it busy until it gets no faster.
async function warm_up(steps) {
    const start = performance.now();
    let repeats = 1, best = Infinity, improved = start;
    while (performance.now() - improved < 300 && performance.now() - start < 2000) {
        const ms = await submit(steps, repeats);
        if (ms / repeats < 0.98 * best) [best, improved] = [ms / repeats, performance.now()];
        if (ms < 5) repeats = Math.min(2 * repeats, 4096);
    }
}

// Milliseconds of one run of each list of steps: every round repeats each for some milliseconds; the median of the rounds.
async function time(lists) {
    if (!lists.length) return [];
    const rounds = 5, busy = 3;
    await warm_up(lists[0]);
    const repeats = [];
    for (const steps of lists) repeats.push(Math.max(4, Math.min(500, Math.round(busy / ((await submit(steps, 4)) / 4)))));
    const times = lists.map(() => []);
    for (let round = 0; round < rounds; round++) {
        for (const [i, steps] of lists.entries()) times[i].push((await submit(steps, repeats[i])) / repeats[i]);
    }
    return times.map((list) => list.sort((a, b) => a - b)[rounds >> 1]);
}

// The largest relative error of a column.
function difference(got, want, rows) {
    let worst = 0;
    for (let c = 0; c < want.length; c += rows) {
        let error = 0, size = 0;
        for (let r = c; r < c + rows; r++) {
            error += (got[r] - want[r]) ** 2;
            size += want[r] ** 2;
        }
        const relative = Math.sqrt(error / size);
        if (!(relative <= worst)) worst = relative;
    }
    return worst;
}

async function run_case(c) {
    const slots = c.used || 1;
    const y_bytes = c.tokens * slots * c.rows * 4;
    // the run: counts, and room for one record
    const buffers = { weights: buffer(c.weight_bytes), x: buffer(c.x_rows * c.k * 4), quantised: buffer(c.quantised_bytes), y: buffer(y_bytes),
                      partial: buffer(8 * y_bytes), run: buffer(80) };
    device.queue.writeBuffer(buffers.weights, 0, random_weights(c));
    device.queue.writeBuffer(buffers.x, 0, random_columns(c));
    device.queue.writeBuffer(buffers.run, 0, new Uint32Array([c.tokens, c.tokens, 0, 0]));
    const lists = c.used ? random_lists(c) : [];

    const products = c.k * c.rows * c.tokens * slots;
    const results = [], timed = [];
    const variants = c.variants.filter((v) => v.kind === 'f32' || options.kinds.split(',').includes(v.kind));
    await Promise.allSettled(variants.flatMap((v) => v.dispatches).map(pipeline)); // side by side, it is faster
    let want;
    for (const variant of variants) {
        const result = { ...variant, error: NaN, ms: NaN, prepare_ms: 0 };
        try {
            const steps = await prepare(variant, { ...buffers, groups: groups_buffer(variant, lists) });
            const clear = device.createCommandEncoder();
            clear.clearBuffer(buffers.y);
            device.queue.submit([clear.finish()]);
            await submit(steps, 1);
            const got = await read(buffers.y, y_bytes);
            want ??= got;
            result.error = difference(got, want, c.rows);
            if (!options.check && (variant.kind !== 'f32' || options.kinds.includes('f32') || c.variants.length < 2)) {
                const prepares = variant.kind === 'f32' ? 0 : 1;
                timed.push([result, 'ms', steps.slice(prepares)]);
                if (prepares && variant.chosen) timed.push([result, 'prepare_ms', steps.slice(0, 1)]);
            }
        } catch (problem) {
            result.problem = problem.message.trim().split('\n').slice(0, 3).join(' ');
        }
        results.push(result);
    }
    const times = await time(timed.map(([, , steps]) => steps));
    timed.forEach(([result, name], i) => (result[name] = times[i]));
    for (const b of Object.values(buffers)) b.destroy();
    return { ...c, products, results };
}

// ---- reports ----

const wrong = (r) => !r.problem && !(r.error <= tolerance[r.kind]);

function report(c) {
    console.log(`${c.name}: ${c.type} ${c.k} → ${c.rows}${c.used ? `, ${c.used} of ${c.experts} experts` : ''}, ${c.tokens} columns, × ${c.times}`);
    const said = new Set();
    for (const r of c.results.filter((r) => r.problem || wrong(r))) {
        const text = r.problem ?? `wrong: relative error ${r.error.toExponential(1)}`;
        if (!said.has(text)) console.log(`  ! ${r.name}: ${text.slice(0, 400)}`);
        said.add(text);
    }
    for (const kind of ['f32', 'q8', 'matrix']) {
        const all = c.results.filter((r) => r.kind === kind && !r.problem).sort((a, b) => (options.check ? b.error - a.error : a.ms - b.ms));
        const count = Number(options.best) || all.length;
        for (const [i, r] of all.entries()) {
            if (i >= count && !r.chosen) continue;
            const speed = options.check || !(r.ms > 0) ? '' : `${(r.ms * 1e3).toFixed(1).padStart(8)} µs ${(c.products / r.ms / 1e9).toFixed(1).padStart(6)} TMAC/s  `;
            const prepared = r.prepare_ms ? ` (and ${(r.prepare_ms * 1e3).toFixed(1)} µs to prepare)` : '';
            console.log(`  ${speed}${r.error.toExponential(1)}  ${r.name}${r.chosen ? ' = the engine\'s choice' : ''}${prepared}`);
        }
    }
}

// How often a batch prepares activations for it: q, k and v share them, and so do gate and up.
const prepares = (c) => (/^[kv] /.test(c.name) ? 0 : /^gate/.test(c.name) ? c.times / 2 : c.times);

function sum(cases, title) {
    if (!cases.length || options.check) return;
    for (const kind of ['q8', 'matrix']) {
        for (const [word, chosen] of [['fastest', false], ['the engine\'s choices', true]]) {
            let ms = 0, all = true;
            for (const c of cases) {
                const good = c.results.filter((r) => !r.problem && !wrong(r) && r.ms > 0);
                const of_kind = good.filter((r) => r.kind === kind);
                const some = of_kind.length ? of_kind : good.filter((r) => r.kind === 'f32' && kind === 'q8' && c.type === 'BF16');
                const usable = some.filter((r) => !chosen || r.chosen);
                if (!usable.length) all = false;
                else ms += Math.min(...usable.map((r) => r.ms)) * c.times;
                const first = of_kind.find((r) => r.prepare_ms);
                if (first) ms += first.prepare_ms * prepares(c);
            }
            if (all) console.log(`${title}, ${kind}, ${word}: ${ms.toFixed(2)} ms a batch = ${(cases[0].tokens / ms * 1e3).toFixed(0)} tok/s`);
        }
    }
}

// The time of a batch's products if all were cut the same way, with the best number of splits for each.
function rank(cases, title) {
    if (!cases.length || options.check) return;
    for (const kind of ['q8', 'matrix']) {
        const ways = new Map();
        const having = cases.filter((c) => c.variants.some((v) => v.kind === kind));
        for (const c of having) {
            const best = new Map();
            for (const r of c.results.filter((r) => r.kind === kind && !r.problem && !wrong(r) && r.ms > 0)) {
                const way = r.name.replace(/, splits.*/, '');
                best.set(way, Math.min(best.get(way) ?? Infinity, r.ms));
            }
            for (const [way, ms] of best) {
                const sum = ways.get(way) ?? { ms: 0, cases: 0 };
                ways.set(way, { ms: sum.ms + ms * c.times, cases: sum.cases + 1 });
            }
        }
        const whole = [...ways].filter(([, sum]) => sum.cases === having.length).sort((a, b) => a[1].ms - b[1].ms);
        for (const [way, sum] of whole) console.log(`${title}, all cut as ${way}: ${sum.ms.toFixed(2)} ms a batch`);
    }
}

const wanted = options.only.split('|');
const done = [];
for (const c of kernels.cases.filter((c) => wanted.some((w) => c.name.includes(w)))) {
    done.push(await run_case(c));
    report(done.at(-1));
}
for (const [cases, title] of [[done.filter((c) => !c.used), 'products of E2B'], [done.filter((c) => c.used), 'experts of 26B-A4B']]) {
    const some = options.only ? ` (${cases.length} kinds of them)` : '';
    rank(cases, title + some);
    sum(cases, title + some);
}
const all = done.flatMap((c) => c.results);
const count = (kind, of) => all.filter((r) => r.kind === kind).filter(of).length;
for (const kind of ['f32', 'q8', 'matrix'])
    console.log(`${kind}: ${count(kind, (r) => !r.problem && !wrong(r))} right, ${count(kind, wrong)} wrong, ${count(kind, (r) => r.problem)} did not run`);
process.exit(all.some(wrong) ? 1 : 0);
