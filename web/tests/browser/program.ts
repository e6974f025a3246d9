// Runs a C test program (a WASI command built for wasm) on the GPU host of the package, in a page or in Node.
//
// Test programs block in gpu_host_wait, which a page cannot do. Only here JSPI suspends them.

import { GpuHost } from '../../src/core/gpu_host.ts';

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

/** Enough of WASI for a program that prints: arguments, the clock, standard output. Everything else returns an error. */
function wasi(module: WebAssembly.Module, args: string[], print: (text: string) => void, memory: () => WebAssembly.Memory): Record<string, Function> {
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
        fd_prestat_get: () => BAD_DESCRIPTOR,
        fd_fdstat_get(descriptor: number, out: number) {
            if (descriptor > 2) return BAD_DESCRIPTOR;
            new Uint8Array(memory().buffer).fill(0, out, out + 24);
            view().setUint8(out, 2); // a character device
            return 0;
        },
        proc_exit(status: number) {
            throw new Exit(status);
        },
    };
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
        if (from === 'wasi_snapshot_preview1') functions[name] ??= () => NOT_IMPLEMENTED;
    }
    return functions;
}

/** The program's exit status; what it prints goes to `print`. */
export async function runProgram(module: WebAssembly.Module, args: string[], gpu: GPU, print: (text: string) => void): Promise<number> {
    const jspi = WebAssembly as unknown as Partial<Jspi>;
    if (!jspi.Suspending || !jspi.promising) throw new Error('this runtime has no JSPI (Node: --experimental-wasm-jspi)');
    const host = await GpuHost.open(gpu);
    let instance: WebAssembly.Instance | null = null;
    const memory = () => instance!.exports.memory as WebAssembly.Memory;
    const wait = async (milliseconds = 0) => {
        let timer: ReturnType<typeof setTimeout> | undefined;
        const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, milliseconds)));
        await Promise.race([host.news(), late]);
        clearTimeout(timer);
    };
    instance = await WebAssembly.instantiate(module, {
        gpu: { ...host.imports(memory), wait: new jspi.Suspending(wait) as () => void },
        wasi_snapshot_preview1: wasi(module, args, print, memory) as WebAssembly.ModuleImports,
    });
    try {
        await jspi.promising(instance.exports._start as () => void)();
        return 0;
    } catch (thrown) {
        if (thrown instanceof Exit) return thrown.status;
        throw thrown;
    } finally {
        host.close();
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
