// A worker in which models compute with some of their experts on the GPU, from a File, from a web server, or from the private file system,
// whose synchronous handles exist only in workers. experts.test.ts tells it what to do.

import { Core } from '../../src/core/core.ts';
import type { CoreEngine } from '../../src/core/engine.ts';
import { GemmuleError } from '../../src/core/errors.ts';
import type { ByteSource, Piece } from '../../src/core/types.ts';
import { BlobSource } from '../../src/sources/blob.ts';
import { keep, kept } from '../../src/sources/keep.ts';
import { openFileHandle } from '../../src/sources/opfs.ts';
import { probe, UrlSource } from '../../src/sources/url.ts';
import { keptGpu } from '../support/kept_gpu.ts';

export interface ExpertsTask {
    file: File;
    wasm: string;
    from: 'file' | 'opfs' | 'url';
    /** How many slots each layer has for experts on the GPU; 0: all experts are there from the beginning. */
    gpuExperts: number;
    /** Copies of experts are kept in main memory; without them, the source fails in the middle. */
    copies: boolean;
    /** Remembers in IndexedDB which experts are used most. */
    remember?: boolean;
    /** The GPU, if it is not named. */
    backend?: 'gpu' | 'wasm';
    /** The most steps of a diffusion model's block: 3, if it is not given. */
    steps?: number;
}

export interface ExpertsReport {
    /** How the source reads. */
    source: string;
    experts: number;
    gpuExperts: number;
    /** While opening, and after that. */
    opening: number;
    reads: number;
    /** The logits of a prompt and of some more tokens; of a diffusion model the tokens and entropies of every step. */
    numbers: number[];
    /** What a source that fails in the middle made of a prompt; '' if it was not tried. */
    failure: string;
}

const gpu = keptGpu(navigator.gpu);
const idsFrom = (first: number, count: number) => Int32Array.from({ length: count }, (_, i) => 300 + ((first + i) * 37) % 200);

/** A copy of the file in the private file system. */
async function opfsSource(file: File): Promise<ByteSource> {
    const handle = await (await navigator.storage.getDirectory()).getFileHandle(file.name, { create: true });
    const writable = await handle.createWritable();
    await writable.write(file);
    await writable.close();
    return openFileHandle(handle);
}

function openSource(file: File, from: ExpertsTask['from']): Promise<ByteSource> | ByteSource {
    if (from === 'opfs') return opfsSource(file);
    if (from === 'file') return new BlobSource(file);
    return probe(new URL(`/tests/fixtures/${file.name}`, location.href).href).then((remote) => new UrlSource(remote));
}

/** Counts reads, and fails on request. */
class Watched implements ByteSource {
    readonly name: string;
    readonly size: number;
    reads = 0;
    failAt = Infinity;
    readonly #inner: ByteSource;

    constructor(inner: ByteSource) {
        this.#inner = inner;
        this.name = inner.name;
        this.size = inner.size;
    }

    async read(offset: number, length: number, signal?: AbortSignal, into?: ArrayBuffer): Promise<Uint8Array> {
        if (++this.reads >= this.failAt) throw new GemmuleError('Storage', 'the disk was pulled out');
        return this.#inner.read(offset, length, signal, into);
    }

    async close(): Promise<void> {
        await this.#inner.close?.();
    }
}

/** What `work` makes of a source whose next read but one fails: an error, after which the conversation goes on as if nothing had happened. */
async function failureOf(source: Watched, work: () => Promise<unknown>): Promise<string> {
    source.failAt = source.reads + 2;
    const failure = await work().then(() => 'none', (thrown: GemmuleError) => `${thrown.name}: ${thrown.message}`);
    source.failAt = Infinity;
    return failure;
}

async function canvasNumbers(engine: CoreEngine, source: Watched, fails: boolean, steps: number): Promise<{ numbers: number[]; failure: string }> {
    const session = engine.session({ context: 128 });
    const write = async () => {
        const numbers: number[] = [];
        const pieces = session.replyTokens(idsFrom(0, 20), { sampling: { seed: 7 }, maxTokens: 32, steps, wantCanvas: true });
        for await (const piece of pieces as AsyncIterable<Piece>) {
            if (piece.kind === 'canvas') for (const { id, entropy } of piece.canvas.tokens) numbers.push(id, entropy);
        }
        return numbers;
    };
    if (fails) await session.set(idsFrom(0, 20)); // so that a step of the canvas fails, not the prompt
    const failure = fails && engine.info.gpuExperts < engine.info.experts ? await failureOf(source, write) : '';
    const numbers = await write();
    session.free();
    return { numbers, failure };
}

async function textNumbers(engine: CoreEngine, source: Watched, fails: boolean): Promise<{ numbers: number[]; failure: string }> {
    const session = engine.session({ context: 128 });
    const numbers: number[] = [];
    let failure = '';
    await session.set(idsFrom(0, 20));
    numbers.push(...session.logits()!);
    if (fails && engine.info.gpuExperts < engine.info.experts) {
        failure = await failureOf(source, async () => session.append(idsFrom(20, 9)));
    }
    for (const [first, count] of [[20, 9], [29, 1], [30, 1]] as const) {
        await session.append(idsFrom(first, count));
        numbers.push(...session.logits()!);
    }
    session.free();
    return { numbers, failure };
}

async function work({ file, wasm, from, gpuExperts, copies, remember, backend = 'gpu', steps = 3 }: ExpertsTask): Promise<ExpertsReport> {
    Object.defineProperty(navigator, 'deviceMemory', { value: copies ? 4 : 0, configurable: true });
    const inner = await openSource(file, from);
    const source = new Watched(inner);
    const profiles = remember ? { get: kept<Uint8Array>, set: keep } : undefined;
    const core = await Core.create({ wasm: await (await fetch(wasm)).arrayBuffer(), gpu, ...(profiles ? { profiles } : {}) });
    const engine = await core.open([source], { backend, precise: true, ...(gpuExperts ? { gpuExperts } : {}) });
    const opened = source.reads;
    const { architecture, experts, gpuExperts: held } = engine.info;
    const found = await (architecture === 'diffusion-gemma' ? canvasNumbers : textNumbers)(engine, source, !copies, steps);
    engine.close();
    await source.close();
    return { source: inner.constructor.name, experts, gpuExperts: held, opening: opened, reads: source.reads - opened, ...found };
}

addEventListener('message', ({ data }: MessageEvent<ExpertsTask>) => {
    work(data).then(postMessage, (thrown: unknown) => postMessage(String(thrown)));
});
