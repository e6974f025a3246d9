// Runs a C test program (a WASI command built for wasm) on the GPU host of the package, in a page or in Node.
//
// Test programs block in gpu_host_wait, which a page cannot do. Only here JSPI suspends them.

import { GpuHost } from '../../src/core/gpu_host.ts';
import { fileCalls, type Files } from './wasi_files.ts';

interface Jspi {
    Suspending: new (call: (...numbers: number[]) => Promise<void>) => () => void;
    promising(call: () => void): () => Promise<void>;
}

class Exit {
    readonly status: number;
    constructor(status: number) {
        this.status = status;
    }
}

const BAD_DESCRIPTOR = 8;
const NOT_IMPLEMENTED = 52;

/** Enough of WASI for a program that reads files and prints: arguments, the clock, standard output. Everything else returns an error. */
function wasi(module: WebAssembly.Module, args: string[], files: Files, print: (text: string) => void, memory: () => WebAssembly.Memory): Record<string, Function> {
    const view = () => new DataView(memory().buffer);
    const decoder = new TextDecoder();
    const encoded = args.map((arg) => new TextEncoder().encode(`${arg}\0`));
    const functions: Record<string, Function> = {
        args_sizes_get(count: number, bytes: number) {
            view().setUint32(count, encoded.length, true);
            view().setUint32(bytes, encoded.reduce((sum, arg) => sum + arg.length, 0), true);
            return 0;
        },
        args_get(pointers: number, bytes: number) {
            for (const [i, arg] of encoded.entries()) {
                view().setUint32(pointers + 4 * i, bytes, true);
                new Uint8Array(memory().buffer).set(arg, bytes);
                bytes += arg.length;
            }
            return 0;
        },
        environ_sizes_get(count: number, bytes: number) {
            view().setUint32(count, 0, true);
            view().setUint32(bytes, 0, true);
            return 0;
        },
        environ_get: () => 0,
        clock_time_get(_id: number, _precision: bigint, out: number) {
            view().setBigUint64(out, BigInt(Math.round(performance.now() * 1e6)), true);
            return 0;
        },
        fd_write(descriptor: number, pieces: number, count: number, written: number) {
            if (descriptor !== 1 && descriptor !== 2) return BAD_DESCRIPTOR;
            let sum = 0;
            for (let i = 0; i < count; i++) {
                const [at, length] = [view().getUint32(pieces + 8 * i, true), view().getUint32(pieces + 8 * i + 4, true)];
                print(decoder.decode(new Uint8Array(memory().buffer).slice(at, at + length), { stream: true }));
                sum += length;
            }
            view().setUint32(written, sum, true);
            return 0;
        },
        ...fileCalls(files, memory),
        proc_exit(status: number) {
            throw new Exit(status);
        },
    };
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
        if (from === 'wasi_snapshot_preview1') functions[name] ??= () => NOT_IMPLEMENTED;
    }
    return functions;
}

/** The program's exit status; what it prints goes to `print`. Without a GPU, only what needs none works. */
export async function runProgram(
    module: WebAssembly.Module,
    args: string[],
    gpu: GPU | null,
    print: (text: string) => void,
    files: Files = new Map(),
): Promise<number> {
    const jspi = WebAssembly as unknown as Partial<Jspi>;
    if (!jspi.Suspending || !jspi.promising) throw new Error('this runtime has no JSPI (Node: --experimental-wasm-jspi)');
    const host = gpu && (await GpuHost.open(gpu));
    let instance: WebAssembly.Instance | null = null;
    const memory = () => instance!.exports.memory as WebAssembly.Memory;
    const wait = async (milliseconds = 0) => {
        let timer: ReturnType<typeof setTimeout> | undefined;
        const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, milliseconds)));
        await Promise.race([host!.news(), late]);
        clearTimeout(timer);
    };
    const none = WebAssembly.Module.imports(module).filter(({ module: from }) => from === 'gpu').map(({ name }) => [name, () => 0]);
    instance = await WebAssembly.instantiate(module, {
        gpu: { ...(host ? host.imports(memory) : Object.fromEntries(none)), wait: new jspi.Suspending(wait) as () => void },
        wasi_snapshot_preview1: wasi(module, args, files, print, memory) as WebAssembly.ModuleImports,
    });
    try {
        await jspi.promising(instance.exports._start as () => void)();
        return 0;
    } catch (thrown) {
        if (thrown instanceof Exit) return thrown.status;
        throw thrown;
    } finally {
        host?.close();
    }
}

/** In a page: fetches, runs, and returns what was printed. */
export async function runInPage(url: string, args: string[]): Promise<{ status: number; output: string }> {
    let output = '';
    const module = await WebAssembly.compileStreaming(fetch(url));
    const { pageGpu } = await import('./page_gpu.ts'); // not in Node
    const status = await runProgram(module, [url, ...args], pageGpu, (text) => (output += text));
    return { status, output };
}

export interface PageCheck {
    /** As on the command line; names of files are paths below the server's root. */
    args: string[];
    /** The files of a folder that is an argument: the frames of a video, or an adapter. */
    files?: string[];
    gpu?: boolean;
}

/** A picture as the package decodes it, as a PNG: the engine for the web leaves JPEG to the browser. */
async function decodedPicture(file: Blob): Promise<Uint8Array> {
    const { plainPicture } = await import('../../src/media/picture.ts');
    const { pixels, width, height } = (await plainPicture(file)) as { pixels: Uint8Array; width: number; height: number };
    const canvas = new OffscreenCanvas(width, height);
    const rgba = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) rgba.data.set([...pixels.subarray(3 * i, 3 * i + 3), 255], 4 * i);
    canvas.getContext('2d')!.putImageData(rgba, 0, 0);
    return new Uint8Array(await (await canvas.convertToBlob({ type: 'image/png' })).arrayBuffer());
}

/** In a page: runs `gemmule check` (tests/check_wasm.c) several times, on the CPU or on the GPU. */
export async function runChecksInPage(url: string, checks: PageCheck[]): Promise<{ status: number; output: string }[]> {
    const module = await WebAssembly.compileStreaming(fetch(url));
    const { pageGpu } = await import('./page_gpu.ts');
    const results = [];
    for (const { args, files: inFolders = [], gpu = false } of checks) {
        const files = new Map<string, Uint8Array>();
        for (const path of [...args.filter((arg) => /\.(gguf|png|jpg|wav)$/.test(arg)), ...inFolders]) {
            const file = await (await fetch(`/${path}`)).blob();
            files.set(path, path.endsWith('.jpg') ? await decodedPicture(file) : new Uint8Array(await file.arrayBuffer()));
        }
        let output = '';
        const status = await runProgram(module, [url, ...args, '--backend', gpu ? 'gpu' : 'cpu'], gpu ? pageGpu : null, (text) => (output += text), files);
        results.push({ status, output });
    }
    return results;
}
