// The GPU host (web/src/core/gpu_host.ts) on a real WebGPU (SwiftShader is enough), called as src/gpu/host_wasm.c calls it: objects, command
// lists and their replay, read-backs, refusals, late errors, a lost device.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { ERROR_CODES } from '../src/core/errors.ts';
import { openDevice } from '../src/core/gpu_device.ts';
import { GpuHost } from '../src/core/gpu_host.ts';
import { nodeGpu } from './node_gpu.ts';

const gpu = await nodeGpu();
after(() => setImmediate(() => process.exit())); // Dawn keeps Node alive

const { BadArgument, OutOfMemory, DeviceLost } = ERROR_CODES;
const AGAIN = 1;
const OP = { endPass: 1, dispatch: 2, indirect: 3, copy: 4, clear: 5, write: 6, read: 7 };

// y[i] = x[i] * SCALE + ADD
const SCALE_SHADER = `
override SCALE: u32 = 1u; override ADD: u32;
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<storage, read_write> unused: array<u32>;
@compute @workgroup_size(4) fn main(@builtin(global_invocation_id) id: vec3u) { y[id.x] = x[id.x] * SCALE + ADD; }`;

// The engine's side: memory, and calls with data in it.
class Engine {
    readonly host: GpuHost;
    readonly memory = new WebAssembly.Memory({ initial: 16 });
    readonly call: Record<string, (...numbers: number[]) => number>;
    #end = 16;

    constructor(host: GpuHost) {
        this.host = host;
        this.call = host.imports(() => this.memory) as typeof this.call;
        assert.equal(this.call.open!(), 1);
    }

    alloc(bytes: number): number {
        const at = this.#end;
        this.#end += Math.ceil(bytes / 8) * 8;
        const missing = this.#end - this.memory.buffer.byteLength;
        if (missing > 0) this.memory.grow(Math.ceil(missing / 65536));
        return at;
    }

    words(values: readonly number[]): number {
        const at = this.alloc(values.length * 4);
        new Uint32Array(this.memory.buffer, at).set(values);
        return at;
    }

    text(text: string): [number, number] {
        const bytes = new TextEncoder().encode(text);
        const at = this.alloc(bytes.length + 1);
        new Uint8Array(this.memory.buffer).set([...bytes, 0], at);
        return [at, bytes.length];
    }

    told(name: 'problem' | 'why'): { status: number; why: string } {
        const at = this.alloc(400);
        const status = this.call[name]!(at, 400);
        const bytes = new Uint8Array(this.memory.buffer).slice(at, at + 400);
        return { status, why: status ? new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0))) : '' };
    }

    buffer(values: readonly number[], bytes = values.length * 4): number {
        const id = this.call.buffer_new!(bytes);
        assert.notEqual(id, 0);
        if (values.length) assert.equal(this.call.buffer_write!(id, 0, this.words(values), values.length * 4), 0);
        return id;
    }

    pipeline(wgsl: string, constants: Record<string, number>, label = 'scale'): number {
        const entries = Object.entries(constants);
        const at = this.alloc(entries.length * 16);
        for (const [i, [name, value]] of entries.entries()) {
            const [pointer] = this.text(name);
            const view = new DataView(this.memory.buffer);
            view.setUint32(at + 16 * i, pointer, true);
            view.setFloat64(at + 16 * i + 8, value, true);
        }
        return this.call.pipeline_new!(...this.text(label), ...this.text(wgsl), at, entries.length) >>> 0;
    }

    group(pipeline: number, x: number, y: number, bytes = 16): number {
        return this.call.group_new!(pipeline, this.words([0, x, 0, 0, bytes, 0, 1, y, 0, 0, bytes, 0]), 2) >>> 0;
    }

    submit(...records: number[][]): number {
        return this.submitAt(...this.list(...records));
    }

    /** Submits once the list's pipelines are compiled. */
    async run(...records: number[][]): Promise<void> {
        const list = this.list(...records);
        let status;
        while ((status = this.submitAt(...list)) === AGAIN) await this.host.news();
        assert.equal(status, 0, status ? this.told('why').why : '');
    }

    async compiled(): Promise<void> {
        while (this.call.pipelines_pending!()) await this.host.news();
    }

    list(...records: number[][]): [number, number] {
        const words = records.reduce((all, [op, ...rest]) => [...all, op! | (rest.length << 16), ...rest], [1]);
        return [this.words(words), words.length];
    }

    submitAt(at: number, count: number): number {
        return this.call.submit!(at, count);
    }

    async here(ticket: number): Promise<number[]> {
        let bytes: number;
        while ((bytes = this.call.ticket_bytes!(ticket)) < 0) {
            const problem = this.told('problem');
            assert.equal(problem.status, 0, problem.why);
            await this.host.news();
        }
        const at = this.alloc(bytes);
        this.call.ticket_take!(ticket, at);
        const words = [...new Uint32Array(this.memory.buffer.slice(at, at + bytes))];
        this.call.ticket_done!(ticket);
        assert.equal(this.call.ticket_bytes!(ticket), -1);
        return words;
    }

    async read(buffer: number, count: number, offset = 0): Promise<number[]> {
        const ticket = this.call.ticket_new!() >>> 0;
        assert.equal(this.submit([OP.read, buffer, offset, 0, count * 4, 0, ticket]), 0);
        return this.here(ticket);
    }

    async idle(): Promise<void> {
        while (!this.call.idle!()) await this.host.news();
    }
}

async function withEngine(body: (engine: Engine) => Promise<void>): Promise<void> {
    const engine = new Engine(await GpuHost.open(gpu));
    try {
        await body(engine);
        await engine.idle();
        const problem = engine.told('problem');
        assert.equal(problem.status, 0, problem.why);
    } finally {
        engine.host.close();
    }
}

test('the description has real limits, and fits', () =>
    withEngine(async (e) => {
        const at = e.alloc(4096);
        const length = e.call.describe!(at, 4096);
        const d = JSON.parse(new TextDecoder().decode(new Uint8Array(e.memory.buffer).slice(at, at + length)));
        assert.deepEqual(d, e.host.description);
        assert.ok(d.name && d.max_buffer >= 256 * 2 ** 20 && d.max_binding >= 128 * 2 ** 20 && d.max_binding <= d.max_buffer);
        assert.ok(d.max_storage_buffers >= 8 && d.max_invocations >= 256 && d.max_workgroups >= 65535 && d.max_workgroup_bytes >= 16384);
        assert.equal(d.subgroups, d.subgroup_min > 0);
        assert.equal(d.dot4, true);
        assert.equal(d.software, true);
    }));

test('write, copy, clear, read back', () =>
    withEngine(async (e) => {
        const a = e.buffer([1, 2, 3, 4, 5, 6]);
        const b = e.buffer([], 24);
        assert.deepEqual(await e.read(b, 6), [0, 0, 0, 0, 0, 0]);
        assert.equal(e.submit([OP.copy, a, 8, 0, b, 4, 0, 12, 0], [OP.clear, a, 0, 0, 8, 0]), 0);
        assert.deepEqual(await e.read(b, 6), [0, 3, 4, 5, 0, 0]);
        assert.deepEqual(await e.read(a, 3, 4), [0, 3, 4]);
        assert.equal(e.call.buffer_free!(a), 24);
        assert.equal(e.call.buffer_free!(a), 0);
    }));

test('a list is submitted again with other words to write, other tickets, other commands', () =>
    withEngine(async (e) => {
        const [x, y] = [e.buffer([], 16), e.buffer([], 16)];
        const twice = e.pipeline(SCALE_SHADER, { SCALE: 2, ADD: 1 });
        const thrice = e.pipeline(SCALE_SHADER, { SCALE: 3, ADD: 0 });
        const [forth, other] = [e.group(twice, x, y), e.group(thrice, x, y)];
        const tickets: number[] = [];
        await e.compiled();
        const [at, count] = e.list([OP.write, x, 0, 0, 0, 0, 0, 0], [OP.dispatch, twice, forth, 1, 1, 1], [OP.read, y, 0, 0, 16, 0, 0]);
        const again = (first: number) => {
            const words = new Uint32Array(e.memory.buffer, at, count);
            const ticket = e.call.ticket_new!() >>> 0;
            words.set([first, first + 1, first + 2, first + 3], 5);
            words[count - 1] = ticket;
            assert.equal(e.submitAt(at, count), 0);
            tickets.push(ticket);
        };
        for (let i = 0; i < 5; i++) again(10 * i);
        e.memory.grow(1); // detaches the buffer that the host saw
        again(1000);
        const words = new Uint32Array(e.memory.buffer, at, count);
        words[10] = thrice;
        words[11] = other;
        again(7);
        const got = [];
        for (const ticket of tickets) got.push((await e.here(ticket))[1]);
        assert.deepEqual(got, [3, 23, 43, 63, 83, 2003, 24]);
    }));

test('the same text and constants give the same pipeline, which is compiled once', () =>
    withEngine(async (e) => {
        const first = e.pipeline(SCALE_SHADER, { SCALE: 5, ADD: 0 });
        assert.equal(e.pipeline(SCALE_SHADER, { SCALE: 5, ADD: 0 }), first);
        assert.notEqual(e.pipeline(SCALE_SHADER, { SCALE: 6, ADD: 0 }), first);
        assert.equal(e.call.pipelines!(), 2);
        await e.compiled();
        assert.equal(e.pipeline(SCALE_SHADER, { SCALE: 5, ADD: 0 }), first);
        assert.equal(e.call.pipelines!(), 2);
    }));

test('invalid lists are refused and change nothing', () =>
    withEngine(async (e) => {
        const [x, y, dead] = [e.buffer([], 64), e.buffer([], 64), e.buffer([], 64)];
        const pipeline = e.pipeline(SCALE_SHADER, { ADD: 0 });
        const other = e.pipeline(SCALE_SHADER, { ADD: 1 });
        const [group, doomed] = [e.group(pipeline, x, y), e.group(pipeline, x, dead)];
        const [ticket, used] = [e.call.ticket_new!() >>> 0, e.call.ticket_new!() >>> 0];
        await e.compiled();
        e.call.buffer_free!(dead);
        e.call.ticket_done!(used);
        const rows: Record<string, number[][]> = {
            'op 0': [[0]],
            'an op too high': [[8]],
            'too short': [[OP.dispatch, pipeline, group, 1, 1]],
            'too long': [[OP.dispatch, pipeline, group, 1, 1, 1, 1]],
            'no pipeline': [[OP.dispatch, 0, group, 1, 1, 1]],
            'no group': [[OP.dispatch, pipeline, 0, 1, 1, 1]],
            'a buffer as group': [[OP.dispatch, pipeline, x, 1, 1, 1]],
            'a group of another pipeline': [[OP.dispatch, other, group, 1, 1, 1]],
            'a group with a dead buffer': [[OP.dispatch, pipeline, doomed, 1, 1, 1]],
            'indirect behind the end': [[OP.indirect, pipeline, group, x, 56, 0]],
            'copy into itself': [[OP.copy, x, 0, 0, x, 32, 0, 16, 0]],
            'copy from behind the end': [[OP.copy, x, 60, 0, y, 0, 0, 8, 0]],
            'copy far behind the end': [[OP.copy, x, 0xfffffffc, 0xffffffff, y, 0, 0, 8, 0]],
            'copy to a dead buffer': [[OP.copy, x, 0, 0, dead, 0, 0, 8, 0]],
            'clear of 2 bytes': [[OP.clear, x, 0, 0, 2, 0]],
            'clear of nothing': [[OP.clear, x, 0, 0, 0, 0]],
            'write of nothing': [[OP.write, x, 0, 0]],
            'write behind the end': [[OP.write, x, 60, 0, 1, 2]],
            'read without ticket': [[OP.read, x, 0, 0, 16, 0, 0]],
            'read with an old ticket': [[OP.read, x, 0, 0, 16, 0, used]],
            'two reads with one ticket': [[OP.read, x, 0, 0, 16, 0, ticket], [OP.read, x, 0, 0, 16, 0, ticket]],
            'good, then bad': [[OP.write, x, 0, 0, 77], [OP.clear, dead, 0, 0, 4, 0]],
        };
        for (const [name, records] of Object.entries(rows)) {
            assert.equal(e.submit(...records), BadArgument, name);
            assert.ok(e.told('why').why, name);
        }
        assert.equal(e.submitAt(e.words([2]), 1), BadArgument);
        assert.equal(e.submitAt(e.words([]), 0), BadArgument);
        assert.equal(e.submitAt(e.words([1, OP.dispatch | (5 << 16), pipeline]), 3), BadArgument);
        assert.equal(e.submit([OP.read, x, 0, 0, 16, 0, ticket]), 0);
        assert.deepEqual(await e.here(ticket), [0, 0, 0, 0]);
    }));

test('bindings and writes that do not fit are refused', () =>
    withEngine(async (e) => {
        const [x, y] = [e.buffer([], 64), e.buffer([], 64)];
        const pipeline = e.pipeline(SCALE_SHADER, { ADD: 0 });
        assert.equal(e.group(pipeline, x, 0), 0);
        assert.equal(e.group(pipeline, x, pipeline), 0);
        assert.equal(e.group(x, x, y), 0);
        assert.equal(e.group(pipeline, x, y, 68), 0);
        for (const [offset, bytes] of [[2, 4], [0, 3], [64, 4], [0, 68], [2 ** 53, 4]] as const) {
            assert.equal(e.call.buffer_write!(x, offset, 16, bytes), BadArgument, `${offset} ${bytes}`);
        }
        for (const [offset, bytes] of [[2, 4], [64, 1], [0, 65]] as const) {
            assert.throws(() => e.host.writeBuffer(x, offset, new Uint8Array(bytes)), { code: BadArgument });
        }
        assert.equal(e.call.buffer_write!(y + 1, 0, 16, 4), BadArgument);
        assert.match(e.told('why').why, /does not exist/);
    }));

test('a source keeps what tickets brought, and writes parts of it', () =>
    withEngine(async (e) => {
        const [x, y] = [e.buffer([1, 2, 3, 4]), e.buffer([0, 0, 0, 0])];
        const tickets = [e.call.ticket_new!() >>> 0, e.call.ticket_new!() >>> 0];
        await e.run([OP.read, x, 8, 0, 8, 0, tickets[0]!], [OP.read, x, 0, 0, 8, 0, tickets[1]!]);
        for (const ticket of tickets) while (e.call.ticket_bytes!(ticket) === -1) await e.host.news();
        const source = e.call.source_new!(e.words(tickets), 2) as number;
        assert.notEqual(source, 0);
        for (const ticket of tickets) e.call.ticket_done!(ticket);
        await e.run([OP.write, x, 0, 0, 9, 9, 9, 9]);
        assert.equal(e.call.source_write!(source, 0, y, 0, 12), 0);
        assert.equal(e.call.source_write!(source, 8, x, 12, 4), 0);
        assert.deepEqual(await e.read(y, 4), [3, 4, 1, 0]);
        assert.deepEqual(await e.read(x, 4), [9, 9, 9, 1]);
        assert.equal(e.call.source_write!(source, 8, y, 0, 12), BadArgument);
        assert.match(e.told('why').why, /12 bytes at 8 of source 0x[0-9a-f]+, which has 16/);
        assert.equal(e.call.source_write!(source, 0, y, 8, 12), BadArgument);
        e.call.source_free!(source);
        assert.equal(e.call.source_write!(source, 0, y, 0, 4), BadArgument);
    }));

test('a list whose pipelines still compile is answered with "again", and nothing of it happens', () =>
    withEngine(async (e) => {
        const many = 40; // more than compile at once
        const [x, y] = [e.buffer([1, 2, 3, 4]), e.buffer([], 16)];
        const pipelines = Array.from({ length: many }, (_, i) => e.pipeline(SCALE_SHADER, { SCALE: 2, ADD: i }));
        const groups = pipelines.map((pipeline) => e.group(pipeline, x, y));
        assert.equal(e.call.pipelines_pending!(), many);
        const ticket = e.call.ticket_new!() >>> 0;
        const records = [[OP.write, x, 0, 0, 7], [OP.dispatch, pipelines[many - 1]!, groups[many - 1]!, 1, 1, 1], [OP.read, y, 0, 0, 16, 0, ticket]];
        assert.equal(e.submit(...records), AGAIN);
        assert.deepEqual(await e.read(x, 4), [1, 2, 3, 4]);
        await e.run(...records);
        assert.deepEqual(await e.here(ticket), [14 + many - 1, 4 + many - 1, 6 + many - 1, 8 + many - 1]);
        await e.run([OP.dispatch, pipelines[0]!, groups[0]!, 1, 1, 1]);
        assert.deepEqual(await e.read(y, 4), [14, 4, 6, 8]);
        await e.compiled(); // those between the first and the last may still be compiling
        assert.equal(e.call.pipelines_pending!(), 0);
    }));

test('a shader that does not compile is reported with line and column; lists with it are refused', () =>
    withEngine(async (e) => {
        const [x, y] = [e.buffer([], 16), e.buffer([], 16)];
        const rows: [string, string, Record<string, number>, RegExp][] = [
            ['syntax', '@compute @workgroup_size(1)\nfn main() {\n    let x = ;\n}\n', {}, /^syntax:3:/],
            ['name', '@compute @workgroup_size(1)\nfn main() { let x = nothing; }\n', {}, /^name:2:/],
            ['entry', 'fn other() {}\n', {}, /entry/],
            ['constant', '@compute @workgroup_size(1) fn main() {}\n', { NOTHING: 1 }, /constant/],
        ];
        for (const [label, wgsl, constants, expected] of rows) {
            const pipeline = e.pipeline(wgsl, constants, label);
            const group = e.call.group_new!(pipeline, 0, 0) >>> 0;
            assert.equal(e.submit([OP.dispatch, pipeline, group, 1, 1, 1]), AGAIN);
            let problem;
            while ((problem = e.told('problem')).status === 0) await e.host.news();
            assert.equal(problem.status, BadArgument);
            assert.match(problem.why, expected);
            await e.compiled();
            assert.equal(e.submit([OP.dispatch, pipeline, group, 1, 1, 1]), BadArgument);
            assert.equal(e.told('why').why, problem.why);
            assert.equal(e.told('problem').status, 0);
        }
        const fine = e.pipeline(SCALE_SHADER, { ADD: 3 });
        await e.run([OP.dispatch, fine, e.group(fine, x, y), 1, 1, 1]);
        assert.deepEqual(await e.read(y, 4), [3, 3, 3, 3]);
    }));

test('a command that only the GPU refuses is reported once', () =>
    withEngine(async (e) => {
        const [x, y] = [e.buffer([], 16), e.buffer([], 16)];
        const pipeline = e.pipeline(SCALE_SHADER, { ADD: 0 });
        const group = e.group(pipeline, x, y);
        await e.run([OP.dispatch, pipeline, group, 70000, 1, 1]);
        let problem;
        while ((problem = e.told('problem')).status === 0) await e.host.news();
        assert.equal(problem.status, BadArgument);
        await e.idle();
        e.told('problem'); // from the submit of the refused command
        assert.equal(e.told('problem').status, 0);
    }));

test('passed() tells of what was submitted up to a number, whatever came later', () =>
    withEngine(async (e) => {
        const [x, y] = [e.buffer([1, 2, 3, 4]), e.buffer([], 16)];
        const pipeline = e.pipeline(SCALE_SHADER, { ADD: 0 });
        const group = e.group(pipeline, x, y);
        const none = e.call.submitted!() as number;
        await e.run([OP.dispatch, pipeline, group, 1, 1, 1]);
        const one = e.call.submitted!() as number;
        assert.ok(one > none);
        assert.equal(e.submit([OP.dispatch, pipeline, group, 1, 1, 1]), 0);
        assert.equal(e.call.passed!(0), 1);
        assert.equal(e.call.passed!(1e9), 0);
        while (!e.call.passed!(one)) await e.host.news();
        assert.equal(e.call.passed!(none), 1);
        await e.idle();
        assert.equal(e.call.passed!(e.call.submitted!() as number), 1);
    }));

test('a lack of memory for a buffer is reported before any result computed with it arrives', () =>
    withEngine(async (e) => {
        const size = e.host.description.max_buffer; // SwiftShader promises this much and does not have it
        const large = e.call.buffer_new!(size);
        assert.notEqual(large, 0);
        const ticket = e.call.ticket_new!() >>> 0;
        assert.equal(e.submit([OP.read, large, 0, 0, 16, 0, ticket]), 0);
        assert.equal(e.call.idle!(), 0);
        let problem;
        while ((problem = e.told('problem')).status === 0) {
            assert.equal(e.call.ticket_bytes!(ticket), -1);
            await e.host.news();
        }
        assert.equal(problem.status, OutOfMemory);
        assert.match(problem.why, new RegExp(String(size)));
        e.call.ticket_done!(ticket);
        e.call.buffer_free!(large);
        await e.idle();
        e.told('problem'); // a consequence
        assert.deepEqual(await e.read(e.buffer([1, 2, 3, 4]), 4), [1, 2, 3, 4]);
    }));

test('at most 64 MiB of writes are in flight, and news makes room', () =>
    withEngine(async (e) => {
        const piece = 8 * 2 ** 20;
        const buffer = e.buffer([], piece);
        const data = e.alloc(piece);
        let again = 0;
        for (let i = 1; i <= 24; i++) {
            new Uint32Array(e.memory.buffer)[data >> 2] = i;
            let status;
            while ((status = e.call.buffer_write!(buffer, 0, data, piece)) === AGAIN) {
                again++;
                await e.host.news();
            }
            assert.equal(status, 0);
        }
        assert.ok(again > 0);
        assert.deepEqual(await e.read(buffer, 1), [24]);
        assert.equal(e.call.buffer_write!(buffer, 0, data, 64 * 2 ** 20 + 4), BadArgument);

        const big = e.buffer([], 80 * 2 ** 20);
        const bytes = new Uint8Array(80 * 2 ** 20 - 1).fill(7);
        bytes[bytes.length - 1] = 9;
        const written = e.host.writeBuffer(big, 0, bytes);
        assert.ok(written instanceof Promise);
        await written;
        assert.deepEqual(await e.read(big, 2, bytes.length - 7), [0x07070707, 0x00090707]);
    }));

test('read-backs answer in any order, some are dropped', () =>
    withEngine(async (e) => {
        const [x, y] = [e.buffer([], 16), e.buffer([], 16)];
        const more = e.pipeline(SCALE_SHADER, { ADD: 1 });
        const group = e.group(more, x, y);
        const tickets: number[] = [];
        await e.compiled();
        for (let i = 0; i < 40; i++) {
            const ticket = e.call.ticket_new!() >>> 0;
            tickets.push(ticket);
            const read = [OP.read, x, 0, 0, 4 * (1 + (i % 4)), 0, ticket];
            assert.equal(e.submit([OP.dispatch, more, group, 1, 1, 1], [OP.copy, y, 0, 0, x, 0, 0, 16, 0], read), 0);
            if (i % 5 === 4) e.call.ticket_done!(ticket);
        }
        for (let i = 39; i >= 0; i--) {
            if (i % 5 === 4) assert.equal(e.call.ticket_bytes!(tickets[i]!), -1);
            else assert.deepEqual(await e.here(tickets[i]!), new Array(1 + (i % 4)).fill(i + 1));
        }
    }));

test('an engine has the GPU for itself and leaves nothing behind', () =>
    withEngine(async (e) => {
        const x = e.buffer([1, 2, 3, 4]);
        const ticket = e.call.ticket_new!() >>> 0;
        assert.equal(e.call.open!(), 0);
        assert.match(e.told('why').why, /one engine/);
        for (let i = 0; i < 40; i++) e.pipeline(SCALE_SHADER, { ADD: i });
        assert.equal(e.submit([OP.read, x, 0, 0, 16, 0, ticket]), 0);
        e.call.close!();
        assert.equal(e.call.pipelines_pending!(), 0);
        assert.equal(e.call.open!(), 1);
        assert.equal(e.call.buffer_free!(x), 0);
        assert.equal(e.call.ticket_bytes!(ticket), -1);
        assert.deepEqual(await e.read(e.buffer([9]), 1), [9]);
    }));

test('a lost device is reported and everything after it refused; our own close is not a loss', async () => {
    const { device, description } = await openDevice(gpu);
    const e = new Engine(new GpuHost(device, description));
    const x = e.buffer([1, 2, 3, 4]);
    const ticket = e.call.ticket_new!() >>> 0;
    assert.equal(e.submit([OP.read, x, 0, 0, 16, 0, ticket]), 0);
    device.destroy(); // behind the host's back
    assert.match(await e.host.lost, /lost/);
    await e.host.news();
    for (let i = 0; i < 2; i++) assert.equal(e.told('problem').status, DeviceLost);
    assert.equal(e.call.ticket_bytes!(ticket), -1);
    assert.equal(e.call.idle!(), 1);
    assert.equal(e.submit([OP.clear, x, 0, 0, 4, 0]), DeviceLost);
    assert.equal(e.call.buffer_write!(x, 0, 16, 4), DeviceLost);
    assert.throws(() => e.host.writeBuffer(x, 0, new Uint8Array(4)), { code: DeviceLost });
    assert.equal(e.call.buffer_new!(16), 0);
    assert.equal(e.told('why').status, DeviceLost);
    e.host.close();

    const other = new Engine(await GpuHost.open(gpu));
    let lost = false;
    void other.host.lost.then(() => (lost = true));
    other.buffer([1]);
    other.host.close();
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.equal(lost, false);
    assert.equal(other.told('problem').status, 0);
});

test('a replay allocates nothing, however long the list is', () =>
    withEngine(async (e) => {
        setFlagsFromString('--expose-gc');
        const collect = runInNewContext('gc') as () => void;
        const [x, y] = [e.buffer([], 16), e.buffer([], 16)];
        const more = e.pipeline(SCALE_SHADER, { ADD: 1 });
        const [forth, back] = [e.group(more, x, y), e.group(more, y, x)];
        const out = e.alloc(64);
        await e.compiled();
        for (const [dispatches, submits] of [[4, 160], [100, 80]] as const) {
            const records = Array.from({ length: dispatches }, (_, i) => [OP.dispatch, more, i % 2 ? back : forth, 1, 1, 1]);
            const [at, count] = e.list([OP.write, y, 12, 0, 0], ...records, [OP.read, x, 0, 0, 8, 0, 0]);
            const run = async (times: number) => {
                for (let i = 0; i < times; i++) {
                    const ticket = e.call.ticket_new!() >>> 0;
                    const words = new Uint32Array(e.memory.buffer, at, count);
                    words[5] = i;
                    words[count - 1] = ticket;
                    assert.equal(e.submitAt(at, count), 0);
                    while (e.call.ticket_bytes!(ticket) < 0) await e.host.news();
                    e.call.ticket_take!(ticket, out);
                    e.call.ticket_done!(ticket);
                }
            };
            const heap = async () => {
                // WebGPU frees its objects a turn after they became garbage: until three turns in a row freed nothing.
                for (let [least, turns] = [Infinity, 0]; ; ) {
                    collect();
                    await new Promise((resolve) => setTimeout(resolve, 10));
                    const used = process.memoryUsage().heapUsed;
                    turns = used < least ? 0 : turns + 1;
                    least = Math.min(least, used);
                    if (turns === 3) return least;
                }
            };
            await run(submits / 4);
            const before = await heap();
            await run(submits);
            const growth = ((await heap()) - before) / submits;
            assert.ok(growth < 512, `${growth} bytes a submit with ${dispatches} dispatches`);
        }
    }));
