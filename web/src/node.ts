/* gemmule for Node: the same interface, with the engine in this thread, on Dawn (the npm package `webgpu`, if it is installed) or on
 * wasm. Models may also come from files. */

import { existsSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import type { WorkerOptions } from './api/connect.ts';
import { type Loader, type LoadOptions, makeLoader } from './api/engine.ts';
import { type Source, type SourceOptions, type Specified, specify } from './api/source.ts';
import { PEFT_CONFIG, PEFT_WEIGHTS } from './core/peft.ts';
import type { Verdict } from './core/choice.ts';
import { GemmuleError } from './core/errors.ts';
import { THREAD, type ThreadHost, type ThreadPort, besideWasm } from './core/threads.ts';
import { type AdapterSource, adapterName, specifyAdapter } from './sources/adapter.ts';
import { FileSource } from './sources/file.ts';
import { partNames } from './sources/split.ts';
import { Connection, directLine } from './worker/connection.ts';
import type { AdapterSpec, SourceSpec } from './worker/protocol.ts';
import { Core, Host, openSource } from './worker/worker.ts';

/** Dawn's toggles: f16 on NVIDIA's GPUs, exact times, and no checks that protect a browser from its pages. */
const DAWN = [
    'enable-dawn-features=allow_unsafe_apis,vulkan_enable_f16_on_nvidia,disable_workgroup_init,disable_robustness,use_vulkan_memory_model',
    'disable-dawn-features=timestamp_quantization',
];

interface Dawn {
    create(options: string[]): GPU;
    globals: object;
}

let dawn: Promise<GPU | null> | null = null;

/* One instance for the whole process; null if the package is not installed. */
function dawnGpu(): Promise<GPU | null> {
    dawn ??= (import('webgpu') as Promise<Dawn>).then(
        ({ create, globals }) => {
            Object.assign(globalThis, globals);
            return create(DAWN);
        },
        () => null,
    );
    return dawn;
}

async function readWasm(place: string | URL): Promise<Uint8Array<ArrayBuffer>> {
    const path = /^file:/.test(String(place)) ? fileURLToPath(place) : String(place);
    try {
        return new Uint8Array(await readFile(path));
    } catch (thrown) {
        throw new GemmuleError('NotFound', `cannot read the engine: ${(thrown as Error).message}`, undefined, { cause: thrown });
    }
}

/* Starts a thread from the worker's file, as in a browser. It does not keep the process alive. */
function startThread(): ThreadPort {
    const worker = new Worker(new URL('./worker/worker.ts', import.meta.url), { workerData: THREAD });
    const port: ThreadPort = { post: (message) => worker.postMessage(message), onMessage: null, onError: null, close: () => void worker.terminate() };
    worker.on('message', (message) => {
        worker.unref();
        port.onMessage?.(message);
    });
    worker.on('error', (error) => port.onError?.(error instanceof Error ? error.message : String(error)));
    worker.on('exit', () => port.onError?.('it ended unexpectedly'));
    return port;
}

/* Where the two modules are. */
function modulePlaces({ wasmUrl, wasmThreadsUrl, training = false }: WorkerOptions): { wasm: string; threads: string } {
    const wasm = String(wasmUrl ?? new URL('./gemmule.wasm', import.meta.url));
    const threads = String(wasmThreadsUrl ?? besideWasm(wasm));
    return training ? { wasm: besideWasm(wasm, true, false), threads: besideWasm(threads, true) } : { wasm, threads };
}

function threadHost(place: string): ThreadHost {
    return { processors: availableParallelism(), compile: async () => WebAssembly.compile(await readWasm(place)), start: startThread };
}

/* Remembers for the life of the process which backend was faster, and which experts were used most. */
const verdicts = new Map<string, Verdict>();
const profiles = new Map<string, Uint8Array>();

async function connect(options: WorkerOptions & Pick<LoadOptions, 'backend'>): Promise<Connection> {
    const [page, worker] = directLine();
    const places = modulePlaces(options);
    new Host(worker, {
        core: async () =>
            Core.create({
                wasm: await readWasm(places.wasm),
                gpu: options.backend === 'wasm' ? null : await dawnGpu(),
                threads: threadHost(places.threads),
                verdicts: { get: async (key) => verdicts.get(key), set: async (key, verdict) => verdicts.set(key, verdict) },
                profiles: { get: async (key) => profiles.get(key), set: async (key, profile) => profiles.set(key, profile) },
            }),
        openSource: (spec, options) => (spec.kind === 'path' ? FileSource.open(spec.path) : openSource(spec, options)),
    });
    return new Connection(page);
}

const here = dirname(fileURLToPath(import.meta.url));
const BOX_PLACES = [join(here, 'box.gguf'), join(here, '../../models/box.gguf')]; // beside the package, or in a checkout

/* The model in the box: where $GEMMULE_BOX says, else the package's or the checkout's. */
function findBox(): string {
    const set = process.env['GEMMULE_BOX'];
    if (set) return set;
    const found = BOX_PLACES.find((path) => existsSync(path));
    if (found) return found;
    const why = `the model in the box is not here: GEMMULE_BOX is not set, and there is no file at ${BOX_PLACES.join(' or ')}`;
    throw new GemmuleError('NotFound', `${why}. Give the path or the address of a model instead`);
}

/* A text without a scheme is a path. Node has no storage for downloads: addresses are read from the network as needed. */
function specifyNode(source: Source, options: SourceOptions): Specified {
    const text = source instanceof URL ? source.href : source;
    if (typeof text !== 'string' || /^(https?|data|blob|hf):/i.test(text)) return specify(source, { cache: false, ...options });
    const path = /^file:/i.test(text) ? fileURLToPath(text) : text === 'box' && !existsSync(text) ? findBox() : text;
    return { sources: partNames(path).map((part) => ({ kind: 'path', path: part })), options: {} };
}

/* An adapter at a path: a GGUF file, a PEFT folder, or one of the two files in one. */
async function specifyNodeAdapter(source: AdapterSource): Promise<AdapterSpec> {
    const text = source instanceof URL ? source.href : source;
    if (typeof text !== 'string' || /^(https?|data|blob|hf):/i.test(text)) return specifyAdapter(source);
    const path = /^file:/i.test(text) ? fileURLToPath(text) : text;
    const isFolder = await stat(path).then((about) => about.isDirectory(), () => false);
    const folder = isFolder ? path : PEFT_FILES.includes(basename(path)) ? dirname(path) : null;
    const spec = (file: string): SourceSpec => ({ kind: 'path', path: file });
    if (folder === null) return { name: adapterName(path), weights: spec(path), config: null };
    const missing = PEFT_FILES.filter((name) => !existsSync(join(folder, name)));
    if (missing.length === 1) throw new GemmuleError('NotFound', `${folder}: ${missing[0]} is missing beside ${PEFT_FILES.find((name) => name !== missing[0])}`);
    if (missing.length) throw new GemmuleError('NotFound', `${folder}: no adapter: a PEFT folder has ${PEFT_CONFIG} and ${PEFT_WEIGHTS}`);
    return { name: adapterName(resolve(folder)), weights: spec(join(folder, PEFT_WEIGHTS)), config: spec(join(folder, PEFT_CONFIG)) };
}

const PEFT_FILES = [PEFT_WEIGHTS, PEFT_CONFIG];

/** Loads models: `Gemmule.load(source, options)`, where the source may also be a path, or 'box': the model in the box. */
export const Gemmule: Loader<Source> = makeLoader<Source>(connect, specifyNode, undefined, specifyNodeAdapter);

export type * from './api/index.ts';
export { Adapter, Adapters } from './api/adapters.ts';
export { Dataset } from './api/dataset.ts';
export { Engine } from './api/engine.ts';
export { Reply, Session } from './api/session.ts';
export { Training } from './api/training.ts';
export { ERROR_CODES, GemmuleError } from './core/errors.ts';
