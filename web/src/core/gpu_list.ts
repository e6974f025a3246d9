// Command lists (src/gpu/host.h), parsed once and replayed. A plan is submitted for every token, and between two submits only the words of
// its writes and the tickets of its read-backs change. A replay looks nothing up and allocates only what WebGPU itself allocates.

import type { HostPipeline } from './gpu_shaders.ts';

export interface HostBuffer {
    buffer: GPUBuffer;
    bytes: number;
    dead: boolean;
}

export interface HostGroup {
    /** null until a list uses it: only a compiled pipeline knows its layout. */
    group: GPUBindGroup | null;
    pipeline: HostPipeline;
    entries: GPUBindGroupEntry[];
    buffers: HostBuffer[];
}

export interface Things {
    buffer(id: number): HostBuffer | undefined;
    pipeline(id: number): HostPipeline | undefined;
    group(id: number): HostGroup | undefined;
    /** The group's bind group; its pipeline is compiled. */
    bind(group: HostGroup): GPUBindGroup;
}

/** Words of the list itself that go into a buffer before the list runs. */
export interface ListWrite {
    target: GPUBuffer;
    offset: number;
    /** The words' position in the list, and their size in bytes. */
    at: number;
    bytes: number;
}

export interface ListRead {
    source: GPUBuffer;
    offset: number;
    bytes: number;
    /** The ticket's position in the list. */
    at: number;
    /** The buffer that receives this submit's read-back. */
    staging: GPUBuffer | null;
}

const VERSION = 1;
const OP = { endPass: 1, dispatch: 2, indirect: 3, copy: 4, clear: 5, write: 6, read: 7 } as const;
const LENGTHS = [-1, 0, 5, 5, 8, 5, 3, 6]; // words of each op; the words of a write follow

// One shape for all steps keeps the loop over them fast. null: unchanged in this pass.
interface Step {
    op: number;
    pipeline: GPUComputePipeline | null;
    group: GPUBindGroup | null;
    source: GPUBuffer | null;
    target: GPUBuffer | null;
    read: ListRead | null;
    x: number;
    y: number;
    z: number;
}

const STEP: Step = { op: 0, pipeline: null, group: null, source: null, target: null, read: null, x: 0, y: 0, z: 0 };

const hex = (id: number) => `0x${(id >>> 0).toString(16)}`;

class Refusal extends Error {}
class Compiling extends Error {}

export class CommandList {
    readonly writes: ListWrite[] = [];
    readonly reads: ListRead[] = [];
    /** Bytes of all writes. */
    written = 0;
    #steps: Step[] = [];
    #words: Uint32Array;
    #fixed: number[] = []; // pairs [from, to): words that a replay must find unchanged

    private constructor(words: Uint32Array) {
        this.#words = words;
    }

    /** The list in `count` words from `start`, or why it is invalid; null: one of its pipelines still compiles. */
    static read(words: Uint32Array, start: number, count: number, things: Things): CommandList | string | null {
        const list = new CommandList(words.slice(start, start + count));
        try {
            list.#read(things);
        } catch (thrown) {
            if (thrown instanceof Compiling) return null;
            if (thrown instanceof Refusal) return thrown.message;
            throw thrown;
        }
        return list;
    }

    /** Whether these words are this list, apart from the words to write and the tickets. */
    same(words: Uint32Array, start: number, count: number): boolean {
        const mine = this.#words;
        const fixed = this.#fixed;
        if (count !== mine.length) return false;
        for (let part = 0; part < fixed.length; part += 2) {
            const end = fixed[part + 1]!;
            for (let i = fixed[part]!; i < end; i++) if (words[start + i] !== mine[i]) return false;
        }
        return true;
    }

    /** The commands; null if there are only writes. */
    encode(device: GPUDevice): GPUCommandBuffer | null {
        if (this.#steps.length === 0) return null;
        const encoder = device.createCommandEncoder();
        let pass: GPUComputePassEncoder | null = null;
        for (let i = 0; i < this.#steps.length; i++) { // runs for every token: no iterator
            const step = this.#steps[i]!;
            if (step.op === OP.dispatch || step.op === OP.indirect) {
                pass ??= encoder.beginComputePass();
                if (step.pipeline !== null) pass.setPipeline(step.pipeline);
                if (step.group !== null) pass.setBindGroup(0, step.group);
                if (step.op === OP.dispatch) pass.dispatchWorkgroups(step.x, step.y, step.z);
                else pass.dispatchWorkgroupsIndirect(step.source!, step.x);
                continue;
            }
            pass?.end();
            pass = null;
            if (step.op === OP.copy) encoder.copyBufferToBuffer(step.source!, step.x, step.target!, step.y, step.z);
            else if (step.op === OP.clear) encoder.clearBuffer(step.target!, step.x, step.y);
            else if (step.op === OP.read) encoder.copyBufferToBuffer(step.source!, step.x, step.read!.staging!, 0, step.y);
        }
        pass?.end();
        return encoder.finish();
    }

    // ---- parsing ----

    #read(things: Things): void {
        const words = this.#words;
        if (words[0] !== VERSION) throw new Refusal(`a command list has version ${words[0] ?? 0}, expected ${VERSION}`);
        const inPass = { pipeline: null as GPUComputePipeline | null, group: null as GPUBindGroup | null };
        let fixedFrom = 0;
        for (let at = 1; at < words.length; ) {
            const op = words[at]! & 0xffff;
            const length = words[at]! >>> 16;
            const expected = LENGTHS[op] ?? -1;
            if (expected < 0) throw new Refusal(`a command list has ${op} at word ${at}, which is not a command`);
            const fits = at + length < words.length && (op === OP.write ? length > expected : length === expected);
            if (!fits) {
                const left = words.length - at - 1;
                throw new Refusal(`a command list has ${length} words for command ${op} at word ${at}, with ${left} left`);
            }
            if (op === OP.dispatch || op === OP.indirect) this.#readDispatch(op, at + 1, things, inPass);
            else inPass.pipeline = inPass.group = null;
            if (op === OP.endPass) this.#steps.push({ ...STEP, op });
            else if (op === OP.copy) this.#readCopy(at + 1, things);
            else if (op === OP.clear) {
                const target = this.#range(things, at + 1, at + 2, this.#number(at + 4), 'clears');
                this.#steps.push({ ...STEP, op, target: target.buffer, x: this.#number(at + 2), y: this.#number(at + 4) });
            } else if (op === OP.write) this.#readWrite(at + 1, length, things);
            else if (op === OP.read) this.#readRead(at + 1, things);
            const next = at + 1 + length;
            if (op === OP.write || op === OP.read) {
                const varies = op === OP.write ? at + 4 : at + 6;
                this.#fixed.push(fixedFrom, varies);
                fixedFrom = next;
            }
            at = next;
        }
        this.#fixed.push(fixedFrom, words.length);
    }

    #readDispatch(op: number, at: number, things: Things, inPass: { pipeline: GPUComputePipeline | null; group: GPUBindGroup | null }): void {
        const words = this.#words;
        const pipeline = things.pipeline(words[at]!);
        const group = things.group(words[at + 1]!);
        if (!pipeline) throw new Refusal(`a command list runs pipeline ${hex(words[at]!)}, which does not exist`);
        if (!group) throw new Refusal(`a command list binds group ${hex(words[at + 1]!)}, which does not exist`);
        if (group.pipeline !== pipeline) throw new Refusal(`a command list binds a group of ${group.pipeline.label} to ${pipeline.label}`);
        if (group.buffers.some((b) => b.dead)) {
            throw new Refusal(`a command list binds group ${hex(words[at + 1]!)}, one of whose GPU buffers does not exist`);
        }
        if (pipeline.failed !== null) throw new Refusal(pipeline.failed);
        if (pipeline.made === null) throw new Compiling();
        const bound = things.bind(group);
        const step: Step = {
            ...STEP,
            op,
            pipeline: pipeline.made === inPass.pipeline ? null : pipeline.made,
            group: bound === inPass.group ? null : bound,
        };
        if (op === OP.indirect) {
            step.source = this.#range(things, at + 2, at + 3, 12, 'dispatches by').buffer;
            step.x = this.#number(at + 3);
        } else {
            [step.x, step.y, step.z] = [words[at + 2]!, words[at + 3]!, words[at + 4]!];
        }
        this.#steps.push(step);
        inPass.pipeline = pipeline.made;
        inPass.group = bound;
    }

    #readCopy(at: number, things: Things): void {
        const [x, y, z] = [this.#number(at + 1), this.#number(at + 4), this.#number(at + 6)];
        const source = this.#range(things, at, at + 1, z, 'copies from').buffer;
        const target = this.#range(things, at + 3, at + 4, z, 'copies to').buffer;
        if (source === target) throw new Refusal(`a command list copies GPU buffer ${hex(this.#words[at]!)} into itself`);
        this.#steps.push({ ...STEP, op: OP.copy, source, target, x, y, z });
    }

    #readWrite(at: number, length: number, things: Things): void {
        const bytes = (length - 3) * 4;
        const target = this.#range(things, at, at + 1, bytes, 'writes').buffer;
        this.writes.push({ target, offset: this.#number(at + 1), at: at + 3, bytes });
        this.written += bytes;
    }

    #readRead(at: number, things: Things): void {
        const [offset, bytes] = [this.#number(at + 1), this.#number(at + 3)];
        const source = this.#range(things, at, at + 1, bytes, 'reads').buffer;
        const read: ListRead = { source, offset, bytes, at: at + 5, staging: null };
        this.reads.push(read);
        this.#steps.push({ ...STEP, op: OP.read, source, read, x: offset, y: bytes });
    }

    #number(at: number): number {
        return this.#words[at]! + this.#words[at + 1]! * 2 ** 32;
    }

    #range(things: Things, at: number, offsetAt: number, bytes: number, what: string): HostBuffer {
        const buffer = things.buffer(this.#words[at]!);
        const offset = this.#number(offsetAt);
        if (!buffer) throw new Refusal(`a command list ${what} GPU buffer ${hex(this.#words[at]!)}, which does not exist`);
        if (offset % 4 || bytes % 4 || !bytes || offset + bytes > buffer.bytes) {
            throw new Refusal(`a command list ${what} ${bytes} bytes at ${offset} of a GPU buffer of ${buffer.bytes}`);
        }
        return buffer;
    }
}
