// The GPU as the engine sees it (src/gpu/host.h), on WebGPU: answers the imports of src/gpu/host_wasm.c.
//
// Nothing blocks. What WebGPU reports later (a buffer without memory, a shader that does not compile, a lost device) is kept until the
// engine asks, and news() settles whenever there is something new for the engine to see.

import { ERROR_CODES, GemmuleError } from './errors.ts';
import { describeAdapter, findAdapter, openDevice } from './gpu_device.ts';
import type { GpuDescription, GpuOptions } from './gpu_device.ts';
import { CommandList } from './gpu_list.ts';
import type { HostBuffer, HostGroup } from './gpu_list.ts';
import { GpuQueue, LITTLE_IN_FLIGHT, MOST_IN_FLIGHT } from './gpu_queue.ts';
import { Shaders } from './gpu_shaders.ts';
import type { HostPipeline } from './gpu_shaders.ts';
import { KIND, Slots } from './gpu_slots.ts';
import { Tickets } from './gpu_tickets.ts';

export type { GpuDescription, GpuOptions } from './gpu_device.ts';

const OK = 0;
const AGAIN = 1;
const { BadArgument, NotSupported, OutOfMemory, DeviceLost, Busy } = ERROR_CODES;

const USAGE = 0x80 | 0x100 | 0x4 | 0x8; // storage, indirect, copy source, copy destination
const UNIFORM_BYTES = 1 << 20; // GPU_UNIFORM_BYTES of src/gpu/host.h
const UNIFORM = 0x40;
const PIECE = 2 ** 20; // bytes of one step of a large write: small enough for the GPU process to reuse its memory
const SCOPED = 2 ** 20; // bytes; a larger buffer counts as made once WebGPU has confirmed its memory
const MOST_LISTS = 256;
const LOSS_MILLISECONDS = 100;

// Functions of the import module "gpu". Ids, addresses and lengths are i32; sizes and offsets are doubles.
export type GpuImports = Record<string, (...numbers: number[]) => number | void>;

const hex = (id: number) => `0x${(id >>> 0).toString(16)}`;
const oneLine = (text: string) => text.replace(/[\s\p{Cc}]+/gu, ' ').trim();

/** The imports without a GPU: every call says that there is none. */
export function noGpuImports(): GpuImports {
    const names = ['open', 'close', 'describe', 'problem', 'why', 'buffer_new', 'buffer_free', 'buffer_write', 'source_new', 'source_free', 'source_write', 'pipeline_new'];
    names.push('pipelines', 'pipelines_pending', 'group_new', 'group_free', 'submit', 'ticket_new', 'ticket_bytes', 'ticket_take', 'ticket_done', 'idle', 'submitted', 'passed', 'wait');
    return Object.fromEntries(names.map((name) => [name, () => 0]));
}

/** One device. It is opened before the engine asks for it, and serves one engine. */
export class GpuHost {
    readonly description: GpuDescription;
    /** Settles with the reason when the device is lost; never for our own close. */
    readonly lost: Promise<string>;
    /** Called whenever news() would settle. It saves a promise for every token. */
    onNews: (() => void) | null = null;

    readonly #device: GPUDevice;
    readonly #queue: GpuQueue;
    #memory: (() => WebAssembly.Memory) | null = null;
    #bytes = new Uint8Array(0); // a view of the engine's memory, checked on every call
    #words = new Uint32Array(0);

    readonly #buffers = new Slots<HostBuffer>(KIND.buffer);
    readonly #sources = new Slots<Uint8Array>(KIND.buffer); // used only in calls for sources
    readonly #pipelines = new Slots<HostPipeline>(KIND.pipeline);
    readonly #groups = new Slots<HostGroup>(KIND.group);
    readonly #things = {
        buffer: (id: number) => this.#buffers.find(id),
        pipeline: (id: number) => this.#pipelines.find(id),
        group: (id: number) => this.#groups.find(id),
        bind: (group: HostGroup) => (group.group ??= this.#bind(group)),
    };
    readonly #tickets: Tickets;
    #shaders: Shaders;
    #idOfPipeline = new Map<HostPipeline, number>();
    #lists = new Map<number, CommandList>(); // by address
    #deaths = 0; // how many objects were freed; a list parsed before the last one is parsed again
    #listsReadAt = 0;

    #verdictsAsked = 0;
    #verdictsCome = 0;

    #engineHasIt = false;
    #closing = false;
    #lostWhy: string | null = null;
    #problem = { status: OK as number, why: '' };
    #refusal = { status: OK as number, why: '' };
    #unseen = false;
    #next: { promise: Promise<void>; settle: () => void } | null = null;

    /** A new device of the fastest adapter, or NoWebGPU. */
    static async open(gpu: GPU, options: GpuOptions = {}): Promise<GpuHost> {
        const { device, description } = await openDevice(gpu, options);
        return new GpuHost(device, description);
    }

    /** Describes the adapter without opening a device; null: no adapter. */
    static async describe(gpu: GPU | null | undefined, options: GpuOptions = {}): Promise<GpuDescription | null> {
        const adapter = await findAdapter(gpu, options);
        return gpu && adapter ? describeAdapter(gpu, adapter) : null;
    }

    constructor(device: GPUDevice, description: GpuDescription) {
        this.#device = device;
        this.description = description;
        this.#shaders = this.#newShaders();
        this.#tickets = new Tickets({
            makeBuffer: (bytes, usage) => this.#makeBuffer(bytes, usage),
            happened: () => this.#happened(),
            readFailed: (reason) => void this.#failedUnlessLost(NotSupported, `reading back from the GPU failed: ${reason}`),
        });
        this.#queue = new GpuQueue(device, this.#tickets, () => this.#happened());
        device.addEventListener('uncapturederror', (event) => this.#onError((event as GPUUncapturedErrorEvent).error));
        this.lost = new Promise((resolve) => {
            void device.lost.then((info) => {
                if (this.#closing) return;
                this.#lostWhy = oneLine(`the GPU was lost: ${info.message || 'no reason given'}`);
                this.#happened();
                resolve(this.#lostWhy);
            });
        });
    }

    /** Settles when a read-back arrives, the queue advances, a pipeline is ready, or something fails. */
    async news(): Promise<void> {
        if (!this.#unseen && this.#lostWhy === null) await this.#change();
        this.#unseen = false;
    }

    /** Whether the device is lost: what the engine waits for will never come. */
    get gone(): boolean {
        return this.#lostWhy !== null;
    }

    /** Writes in order with the engine's own writes and lists; a promise while there is no room. Bytes behind the last whole word are
     * filled up with zeros. */
    writeBuffer(id: number, offset: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> | void {
        if (this.#checkWrite(id, offset, Math.ceil(bytes.length / 4) * 4) !== OK) throw this.#refusalError();
        if (bytes.length <= PIECE && this.#queue.hasRoom(bytes.length, LITTLE_IN_FLIGHT)) return this.#writeNow(id, offset, bytes);
        return this.#writeSoon(id, offset, bytes);
    }

    /** Destroys the device and everything on it. */
    close(): void {
        if (this.#closing) return;
        this.#closing = true;
        this.#dropAll();
        this.#device.destroy();
        this.#happened();
    }

    /** The import module "gpu" for one instance. `memory` is called when the engine makes its first call. */
    imports(memory: () => WebAssembly.Memory): GpuImports {
        this.#memory = memory;
        return {
            open: () => this.#open(),
            close: () => this.#dropAll(),
            describe: (out, capacity) => this.#describe(out!, capacity!),
            problem: (out, capacity) => this.#tellProblem(out!, capacity!),
            why: (out, capacity) => this.#putText(out!, capacity!, this.#refusal.why, this.#refusal.status),
            buffer_new: (bytes) => this.#bufferNew(bytes!),
            buffer_free: (id) => this.#bufferFree(id!),
            buffer_write: (id, offset, data, bytes) => this.#bufferWrite(id!, offset!, data! >>> 0, bytes!),
            source_new: (tickets, count) => this.#sourceNew(tickets! >>> 2, count!),
            source_free: (id) => void this.#sources.remove(id!),
            source_write: (id, first, buffer, offset, bytes) => this.#sourceWrite(id!, first!, buffer!, offset!, bytes!),
            pipeline_new: (label, labelLength, text, length, constants, count) =>
                this.#pipelineNew(this.#text(label!, labelLength!), this.#text(text!, length!), this.#constants(constants!, count!)),
            pipelines: () => this.#shaders.count,
            pipelines_pending: () => this.#shaders.pending,
            group_new: (pipeline, bindings, count) => this.#groupNew(pipeline!, bindings!, count!),
            group_free: (id) => this.#groupFree(id!),
            submit: (words, count) => this.#submit(words! >>> 0, count!),
            ticket_new: () => this.#tickets.add(),
            ticket_bytes: (id) => (this.#lostWhy !== null ? -1 : this.#tickets.bytes(id!, this.#verdictsCome)),
            ticket_take: (id, out) => this.#ticketTake(id!, out! >>> 0),
            ticket_done: (id) => this.#tickets.done(id!),
            idle: () => (this.#passed(this.#queue.submitted) ? 1 : 0),
            submitted: () => this.#queue.submitted,
            passed: (submitted) => (this.#passed(submitted!) ? 1 : 0),
            wait: () => {}, // a page cannot block: whoever drives the engine awaits news()
        };
    }

    // ---- memory ----

    // Growing detaches the memory's old buffer.
    #look(): void {
        const { buffer } = this.#memory!();
        if (this.#bytes.buffer === buffer) return;
        this.#bytes = new Uint8Array(buffer);
        this.#words = new Uint32Array(buffer, 0, buffer.byteLength >>> 2);
    }

    #text(at: number, length: number): string {
        this.#look();
        return new TextDecoder().decode(this.#bytes.slice(at >>> 0, (at >>> 0) + length));
    }

    // Truncates to the capacity at a whole character, and ends with a zero.
    #putText(at: number, capacity: number, text: string, status: number): number {
        this.#look();
        const out = this.#bytes.subarray(at >>> 0, (at >>> 0) + capacity - 1);
        const { written } = new TextEncoder().encodeInto(text, out);
        this.#bytes[(at >>> 0) + written] = 0;
        return status;
    }

    #describe(at: number, capacity: number): number {
        this.#look();
        const text = new TextEncoder().encode(JSON.stringify(this.description));
        if (text.length <= capacity) this.#bytes.set(text, at >>> 0);
        return text.length;
    }

    #constants(at: number, count: number): Record<string, number> {
        this.#look();
        const view = new DataView(this.#bytes.buffer);
        const constants: Record<string, number> = {};
        for (let i = 0; i < count; i++) {
            const entry = (at >>> 0) + 16 * i;
            const name = view.getUint32(entry, true);
            constants[this.#text(name, this.#bytes.indexOf(0, name) - name)] = view.getFloat64(entry + 8, true);
        }
        return constants;
    }

    // ---- what happened ----

    #change(): Promise<void> {
        if (!this.#next) {
            let settle = () => {};
            const promise = new Promise<void>((resolve) => (settle = resolve));
            this.#next = { promise, settle };
        }
        return this.#next.promise;
    }

    #happened(): void {
        this.#unseen = true;
        const next = this.#next;
        this.#next = null;
        next?.settle();
        this.onNews?.();
    }

    #onError(error: GPUError): void {
        const memory = error.constructor.name === 'GPUOutOfMemoryError';
        if (memory) this.#failed(OutOfMemory, `the GPU ran out of memory: ${error.message}`);
        else this.#failed(error.constructor.name === 'GPUInternalError' ? NotSupported : BadArgument, `the GPU refused a command: ${error.message}`);
    }

    // The first problem is the cause of the others. Only a lack of memory, reported late, takes its place.
    #failed(status: number, why: string): void {
        if (this.#closing || this.#lostWhy !== null) return;
        if (this.#problem.status === OK || (status === OutOfMemory && this.#problem.status !== OutOfMemory)) {
            this.#problem = { status, why: oneLine(why) };
        }
        this.#happened();
    }

    // A failure caused by a lost device may be reported before the loss itself.
    async #failedUnlessLost(status: number, why: string): Promise<void> {
        let timer: ReturnType<typeof setTimeout> | undefined;
        const soon = new Promise<void>((resolve) => (timer = setTimeout(resolve, LOSS_MILLISECONDS)));
        await Promise.race([this.lost, soon]);
        clearTimeout(timer);
        this.#failed(status, why);
    }

    #tellProblem(at: number, capacity: number): number {
        if (this.#lostWhy !== null) return this.#putText(at, capacity, this.#lostWhy, DeviceLost);
        const { status, why } = this.#problem;
        const judged = this.#verdictsCome === this.#verdictsAsked; // else a lack of memory may be the cause
        if (status === OK || (status !== OutOfMemory && !judged)) return OK;
        this.#problem = { status: OK, why: '' };
        return this.#putText(at, capacity, why, status);
    }

    #refuse(status: number, why: string): number {
        this.#refusal = { status, why };
        return status;
    }

    #refuseLost(): boolean {
        if (this.#lostWhy !== null) this.#refuse(DeviceLost, this.#lostWhy);
        return this.#lostWhy !== null;
    }

    #refusalError(): GemmuleError {
        return GemmuleError.fromCode(this.#refusal.status, this.#refusal.why);
    }

    // ---- open and close ----

    #open(): number {
        if (this.#engineHasIt) this.#refuse(Busy, 'the GPU is already open: it serves one engine at a time');
        if (this.#engineHasIt || this.#refuseLost()) return 0;
        this.#engineHasIt = true;
        return 1;
    }

    #dropAll(): void {
        for (const thing of this.#buffers.clear()) {
            thing.dead = true;
            thing.buffer.destroy();
        }
        this.#sources.clear();
        this.#pipelines.clear();
        this.#groups.clear();
        this.#tickets.close();
        this.#lists.clear();
        this.#idOfPipeline.clear();
        this.#shaders.close();
        this.#shaders = this.#newShaders();
        this.#problem = { status: OK, why: '' };
        this.#engineHasIt = false;
    }

    // ---- buffers ----

    // A large buffer gets an error scope of its own. Until its verdict arrives, nothing computed with it counts.
    #makeBuffer(size: number, usage: number): GPUBuffer {
        if (size < SCOPED) return this.#device.createBuffer({ size, usage });
        this.#device.pushErrorScope('out-of-memory');
        const buffer = this.#device.createBuffer({ size, usage });
        this.#verdictsAsked++;
        const verdict = (error: GPUError | null) => {
            this.#verdictsCome++;
            if (error) this.#failed(OutOfMemory, `the GPU has no memory for a buffer of ${size} bytes: ${error.message}`);
            else this.#happened();
        };
        this.#device.popErrorScope().then(verdict, () => verdict(null)); // rejected: the device is lost, which is reported elsewhere
        return buffer;
    }

    #bufferNew(bytes: number): number {
        if (this.#refuseLost()) return 0;
        let buffer: GPUBuffer;
        try {
            buffer = this.#makeBuffer(bytes, bytes <= UNIFORM_BYTES ? USAGE | UNIFORM : USAGE);
        } catch (thrown) {
            this.#refuse(OutOfMemory, `a GPU buffer of ${bytes} bytes: ${oneLine(String(thrown))}`);
            return 0;
        }
        const id = this.#buffers.add({ buffer, bytes, dead: false });
        if (!id) this.#refuse(OutOfMemory, 'too many GPU buffers');
        return id;
    }

    #bufferFree(id: number): number {
        const thing = this.#buffers.remove(id);
        if (!thing) return 0;
        thing.dead = true;
        this.#deaths++;
        thing.buffer.destroy();
        return thing.bytes;
    }

    // A copy of what tickets brought, outside of the engine's memory, which is limited to 4 GiB.
    #sourceNew(at: number, count: number): number {
        this.#look();
        const parts = Array.from(this.#words.subarray(at, at + count), (id) => this.#tickets.mapped(id));
        const bytes = parts.reduce((sum, part) => sum + part.length, 0);
        try {
            const all = new Uint8Array(bytes);
            parts.reduce((to, part) => (all.set(part, to), to + part.length), 0);
            return this.#sources.add(all);
        } catch {
            this.#refuse(OutOfMemory, `no memory for a copy of ${bytes} bytes`);
            return 0;
        }
    }

    #sourceWrite(id: number, first: number, buffer: number, offset: number, bytes: number): number {
        const from = this.#sources.find(id);
        const status = this.#checkWrite(buffer, offset, bytes);
        if (status !== OK) return status;
        if (!from || first + bytes > from.length) return this.#refuse(BadArgument, `${bytes} bytes at ${first} of source ${hex(id)}, which has ${from?.length ?? 0}`);
        return this.#writeRange(buffer, offset, from.buffer, first, bytes);
    }

    #checkWrite(id: number, offset: number, bytes: number): number {
        const thing = this.#buffers.find(id);
        if (this.#refuseLost()) return DeviceLost;
        if (!thing) return this.#refuse(BadArgument, `write to GPU buffer ${hex(id)}, which does not exist`);
        if (offset % 4 || bytes % 4 || offset + bytes > thing.bytes) {
            return this.#refuse(BadArgument, `write of ${bytes} bytes at ${offset} to a GPU buffer of ${thing.bytes}`);
        }
        return OK;
    }

    #bufferWrite(id: number, offset: number, data: number, bytes: number): number {
        const status = this.#checkWrite(id, offset, bytes);
        this.#look();
        return status !== OK || bytes === 0 ? status : this.#writeRange(id, offset, this.#bytes.buffer, data, bytes);
    }

    #writeRange(id: number, offset: number, from: ArrayBufferLike, first: number, bytes: number): number {
        if (bytes > MOST_IN_FLIGHT) return this.#refuse(BadArgument, `write of ${bytes} bytes at once to a GPU buffer: at most ${MOST_IN_FLIGHT}`);
        if (!this.#queue.hasRoom(bytes)) {
            this.#queue.fence();
            return AGAIN;
        }
        this.#queue.write(this.#buffers.find(id)!.buffer, offset, from, first, bytes);
        return OK;
    }

    #writeNow(id: number, offset: number, bytes: Uint8Array<ArrayBuffer>): void {
        const { buffer } = this.#buffers.find(id)!;
        const whole = bytes.length & ~3;
        if (whole) this.#queue.write(buffer, offset, bytes.buffer, bytes.byteOffset, whole);
        if (whole === bytes.length) return;
        const tail = new Uint8Array(4);
        tail.set(bytes.subarray(whole));
        this.#queue.write(buffer, offset + whole, tail.buffer, 0, 4);
    }

    async #writeSoon(id: number, offset: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
        for (let at = 0; at < bytes.length; at += PIECE) {
            const piece = bytes.subarray(at, at + PIECE);
            while (!this.#queue.hasRoom(piece.length, LITTLE_IN_FLIGHT)) {
                if (this.#closing || this.#refuseLost()) break;
                this.#queue.fence();
                await this.#change();
            }
            if (this.#closing) throw new GemmuleError('Aborted', 'the GPU was closed');
            if (this.#checkWrite(id, offset + at, Math.ceil(piece.length / 4) * 4) !== OK) throw this.#refusalError();
            this.#writeNow(id, offset + at, piece);
        }
    }

    // ---- pipelines and bind groups ----

    #newShaders(): Shaders {
        return new Shaders(this.#device, {
            happened: () => this.#happened(),
            pipelineFailed: (internal, reason) => this.#failedUnlessLost(internal ? NotSupported : BadArgument, reason),
        });
    }

    #pipelineNew(label: string, wgsl: string, constants: Record<string, number>): number {
        if (this.#refuseLost()) return 0;
        try {
            const pipeline = this.#shaders.pipeline(label, wgsl, constants);
            const known = this.#idOfPipeline.get(pipeline);
            if (known) return known;
            const id = this.#pipelines.add(pipeline);
            if (id) this.#idOfPipeline.set(pipeline, id);
            else this.#refuse(OutOfMemory, 'too many pipelines');
            return id;
        } catch (thrown) {
            this.#refuse(BadArgument, `shader ${label}: ${oneLine(String(thrown))}`);
            return 0;
        }
    }

    #bind({ pipeline, entries }: HostGroup): GPUBindGroup {
        return this.#device.createBindGroup({ label: pipeline.label, layout: pipeline.made!.getBindGroupLayout(0), entries });
    }

    #groupNew(pipelineId: number, at: number, count: number): number {
        const pipeline = this.#pipelines.find(pipelineId);
        const entries: GPUBindGroupEntry[] = [];
        const buffers: HostBuffer[] = [];
        if (this.#refuseLost()) return 0;
        this.#look();
        for (let i = 0, word = at >>> 2; pipeline && i < count; i++, word += 6) {
            const [binding, id] = [this.#words[word]!, this.#words[word + 1]!];
            const offset = this.#words[word + 2]! + this.#words[word + 3]! * 2 ** 32;
            const size = this.#words[word + 4]! + this.#words[word + 5]! * 2 ** 32;
            const thing = this.#buffers.find(id);
            if (!thing || offset + size > thing.bytes) {
                const wrong = thing ? `takes ${size} bytes at ${offset} of a GPU buffer of ${thing.bytes}` : `names GPU buffer ${hex(id)}, which does not exist`;
                this.#refuse(BadArgument, `binding ${binding} ${wrong}`);
                return 0;
            }
            entries.push({ binding, resource: { buffer: thing.buffer, offset, size } });
            buffers.push(thing);
        }
        if (!pipeline) this.#refuse(BadArgument, `bindings for pipeline ${hex(pipelineId)}, which does not exist`);
        if (!pipeline) return 0;
        const id = this.#groups.add({ group: null, pipeline, entries, buffers });
        if (!id) this.#refuse(OutOfMemory, 'too many bind groups');
        return id;
    }

    #groupFree(id: number): void {
        if (this.#groups.remove(id)) this.#deaths++;
    }

    // ---- lists ----

    // A status: it is refused, or one of its pipelines still compiles.
    #listAt(start: number, count: number): CommandList | number {
        if (this.#listsReadAt !== this.#deaths || this.#lists.size > MOST_LISTS) this.#lists.clear();
        this.#listsReadAt = this.#deaths;
        const known = this.#lists.get(start);
        if (known?.same(this.#words, start, count)) return known;
        const list = CommandList.read(this.#words, start, count, this.#things);
        if (list === null) return AGAIN;
        if (typeof list === 'string') return this.#refuse(BadArgument, oneLine(list));
        this.#lists.set(start, list);
        return list;
    }

    #submit(address: number, count: number): number {
        if (this.#refuseLost()) return DeviceLost;
        this.#look();
        const start = address >>> 2;
        const list = this.#listAt(start, count);
        if (typeof list === 'number') return list;
        if (!this.#claimTickets(list, start)) return this.#refusal.status;
        this.#queue.submit(list, this.#words, start);
        return OK;
    }

    #claimTickets(list: CommandList, start: number): boolean {
        for (let i = 0; i < list.reads.length; i++) {
            const read = list.reads[i]!;
            const ticket = this.#words[start + read.at]!;
            if (this.#tickets.claim(ticket, read.bytes, this.#verdictsAsked)) continue;
            for (let j = 0; j < i; j++) this.#tickets.unclaim(this.#words[start + list.reads[j]!.at]!);
            this.#refuse(BadArgument, `a command list reads into ticket ${hex(ticket)}, which is not valid or already in use`);
            return false;
        }
        return true;
    }

    #ticketTake(id: number, out: number): void {
        this.#look();
        if (this.#tickets.bytes(id, this.#verdictsCome) >= 0) this.#tickets.take(id, this.#bytes, out);
    }

    #passed(submitted: number): boolean {
        if (this.#lostWhy !== null) return true;
        return this.#queue.passed(submitted) && this.#verdictsCome === this.#verdictsAsked;
    }
}
