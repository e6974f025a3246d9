// Where the GPU's time goes in Node, by its own clock: bench.mjs --profile FILE. The package knows nothing of this: here WebGPU's classes
// (of Dawn for Node) get methods that put each dispatch into a pass of its own, with timestamps.
//
//     const profile = await profiler('web/dist/node.js');      the package, before it opens the GPU
//     profile.start('prefill', 'prompt', 1); …; await profile.end();
//     profile.table(), profile.svg(title)
//
// A kind of dispatch is a kernel with its shape, as its constants have it. Natively, `gemmule bench --profile` also says what share of
// bandwidth and arithmetic a kind reaches.

import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const MOST = 2048; // dispatches of a command list; WebGPU allows twice as many queries in a set

const shape = (c) => {
    if ('k' in c && 'rows' in c) return `${c.k} → ${c.rows}${'all_experts' in c ? `, ${c.used} of ${c.all_experts} experts` : ''}`;
    if ('head' in c) return `${c.heads ?? c.kv_heads} × ${c.head}${c.splits > 1 ? `, ${c.splits} splits` : ''}`;
    if ('n' in c && 'rows' in c) return `${c.rows} × ${c.n}`;
    if ('n' in c && 'rank' in c) return `${c.n}, rank ${c.rank}`;
    return ['rows', 'n', 'k', 'vocabulary'].filter((name) => name in c).map((name) => c[name])[0]?.toString() ?? '';
};

export async function profiler(user) {
    const { globals } = await import(pathToFileURL(createRequire(user).resolve('webgpu')).href); // the same one that the package finds
    const { GPUDevice, GPUQueue } = globals;
    const names = new WeakMap(); // of pipelines
    const phases = new Map();
    let phase = null, waiting = [], arriving = [];

    const makePipeline = GPUDevice.prototype.createComputePipelineAsync;
    GPUDevice.prototype.createComputePipelineAsync = async function (descriptor) {
        const pipeline = await makePipeline.call(this, descriptor);
        names.set(pipeline, { kernel: (descriptor.label ?? '?').replace('.wgsl', ''), what: shape(descriptor.compute.constants ?? {}) });
        return pipeline;
    };

    // A command encoder that times. It has the methods that web/src/core/gpu_list.ts calls.
    class Timed {
        constructor(device, encoder) {
            [this.device, this.encoder, this.dispatched] = [device, encoder, []];
            this.set = device.createQuerySet({ type: 'timestamp', count: 2 * MOST });
        }
        beginComputePass() {
            let pipeline, group;
            const pass = (dispatch) => {
                const at = 2 * this.dispatched.length;
                const writes = { querySet: this.set, beginningOfPassWriteIndex: at, endOfPassWriteIndex: at + 1 };
                const real = this.encoder.beginComputePass(at < 2 * MOST ? { timestampWrites: writes } : undefined);
                if (at < 2 * MOST) this.dispatched.push(names.get(pipeline) ?? { kernel: '?', what: '' });
                real.setPipeline(pipeline);
                real.setBindGroup(0, group);
                dispatch(real);
                real.end();
            };
            return {
                setPipeline: (other) => { pipeline = other; },
                setBindGroup: (_, other) => { group = other; },
                dispatchWorkgroups: (x, y, z) => pass((real) => real.dispatchWorkgroups(x, y, z)),
                dispatchWorkgroupsIndirect: (buffer, offset) => pass((real) => real.dispatchWorkgroupsIndirect(buffer, offset)),
                end: () => {},
            };
        }
        copyBufferToBuffer(...args) { this.encoder.copyBufferToBuffer(...args); }
        clearBuffer(...args) { this.encoder.clearBuffer(...args); }
        finish() {
            const n = this.dispatched.length, size = 16 * n;
            if (n) {
                const times = this.device.createBuffer({ size, usage: 0x200 | 0x4 }), seen = this.device.createBuffer({ size, usage: 0x1 | 0x8 });
                this.encoder.resolveQuerySet(this.set, 0, 2 * n, times, 0);
                this.encoder.copyBufferToBuffer(times, 0, seen, 0, size);
                waiting.push({ rows: phase, dispatched: this.dispatched, set: this.set, times, seen });
            }
            return this.encoder.finish();
        }
    }

    const makeEncoder = GPUDevice.prototype.createCommandEncoder;
    GPUDevice.prototype.createCommandEncoder = function (descriptor) {
        const encoder = makeEncoder.call(this, descriptor);
        return phase ? new Timed(this, encoder) : encoder;
    };

    let end = 0n; // of the last dispatch: a pass may seem to begin while the one before it still runs
    async function arrive({ rows, dispatched, set, times, seen }) {
        await seen.mapAsync(1);
        const words = new BigUint64Array(seen.getMappedRange().slice(0));
        for (const [i, { kernel, what }] of dispatched.entries()) {
            const from = words[2 * i] > end ? words[2 * i] : end, to = words[2 * i + 1] > from ? words[2 * i + 1] : from;
            const row = rows.get(`${kernel} ${what}`) ?? { kernel, what, count: 0, seconds: 0 };
            row.count++;
            row.seconds += Number(to - from) * 1e-9;
            rows.set(`${kernel} ${what}`, row);
            end = to;
        }
        for (const thing of [set, times, seen]) thing.destroy();
    }

    const submit = GPUQueue.prototype.submit;
    GPUQueue.prototype.submit = function (commands) {
        submit.call(this, commands);
        for (const list of waiting) arriving.push(arriving.at(-1)?.then(() => arrive(list)) ?? arrive(list)); // in order
        waiting = [];
    };

    const sorted = ({ rows, units }) => {
        const all = [...rows.values()].sort((a, b) => b.seconds - a.seconds);
        return { all, units, seconds: all.reduce((sum, row) => sum + row.seconds, 0), dispatches: all.reduce((sum, row) => sum + row.count, 0) };
    };

    return {
        /** Times what is submitted from now on; `units` is what the figures are divided by, of the kind `unit`. */
        start(name, unit, units) {
            phase = new Map();
            phases.set(name, { rows: phase, unit, units });
        },
        /** `units`: how many they were after all, if it was not known at the start. */
        async end(units) {
            for (const p of phases.values()) if (p.rows === phase) p.units = units ?? p.units;
            phase = null;
            await Promise.all(arriving);
            arriving = [];
        },
        table() {
            const lines = [];
            for (const [name, p] of phases) {
                const { all, units, seconds, dispatches } = sorted(p);
                lines.push('', `${name}: ${(dispatches / units).toFixed(0)} dispatches, ${(seconds * 1e3 / units).toFixed(3)} ms per ${p.unit} on the GPU`);
                lines.push('   share   µs each    count  kernel                what');
                for (const r of all) {
                    const share = (100 * r.seconds / seconds).toFixed(1).padStart(6), each = (r.seconds * 1e6 / r.count).toFixed(2).padStart(9);
                    lines.push(`${share} % ${each} ${(r.count / units).toFixed(0).padStart(8)}  ${r.kernel.padEnd(21)} ${r.what}`);
                }
            }
            return lines.join('\n');
        },
        report: () => Object.fromEntries([...phases].map(([name, p]) => {
            const { all, seconds, dispatches } = sorted(p);
            const kinds = all.map((r) => ({ what: r.what, kernel: r.kernel, count: r.count, microseconds: r.seconds * 1e6, share: r.seconds / seconds }));
            return [name, { dispatches, microseconds: seconds * 1e6, kinds }];
        })),
        /** Bars as long as each kind's share of the time. */
        svg(title) {
            const text = (s) => s.replaceAll('&', '&amp;').replaceAll('<', '&lt;'), parts = [];
            let y = 44;
            for (const [name, p] of phases) {
                const { all, units, seconds, dispatches } = sorted(p);
                parts.push(`<text class="head" x="16" y="${y + 28}">${name}: ${(dispatches / units).toFixed(0)} dispatches, ` +
                    `${(seconds * 1e3 / units).toFixed(3)} ms per ${p.unit}</text>`);
                y += 44;
                for (const r of all) {
                    const length = 300 * r.seconds / all[0].seconds;
                    parts.push(`<text x="422" y="${y + 14}" text-anchor="end">${text(r.what)} <tspan class="note">${text(r.kernel)}</tspan></text>`,
                        `<rect class="time" x="430" y="${y + 3}" width="${length.toFixed(1)}" height="14"/>`,
                        `<text class="note" x="${(436 + length).toFixed(1)}" y="${y + 14}">${(100 * r.seconds / seconds).toFixed(1)} % · ` +
                        `${(r.seconds * 1e6 / r.count).toFixed(1)} µs × ${(r.count / units).toFixed(0)}</text>`);
                    y += 20;
                }
            }
            return `<svg xmlns="http://www.w3.org/2000/svg" width="960" height="${y + 16}" viewBox="0 0 960 ${y + 16}">\n` +
                '<style>text { font: 12px sans-serif; fill: #222 } .title { font-size: 16px; font-weight: bold }\n' +
                '.head { font-size: 14px; font-weight: bold } .note { fill: #555 } .time { fill: #9cc3e6 }</style>\n' +
                `<rect width="100%" height="100%" fill="#fff"/>\n<text class="title" x="16" y="28">${text(title)}</text>\n${parts.join('\n')}\n</svg>\n`;
        },
    };
}
