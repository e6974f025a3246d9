/* Fetches and compiles the engine. */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';

export async function compileWasm(url: string): Promise<WebAssembly.Module> {
    let response: Response;
    try {
        response = await fetch(url);
    } catch (thrown) {
        throw new GemmuleError('Network', `cannot load the engine from ${url}: ${(thrown as Error).message}`, undefined, { cause: thrown });
    }
    if (!response.ok) throw new GemmuleError('Network', `cannot load the engine from ${url}: the server answered ${response.status}`);
    try {
        // Streaming compilation needs the right media type, which not every server sends.
        const streams = /^application\/wasm\b/i.test(response.headers.get('content-type') ?? '');
        return streams ? await WebAssembly.compileStreaming(response) : await WebAssembly.compile(await response.arrayBuffer());
    } catch (thrown) {
        const error = toGemmuleError(thrown, `cannot compile ${url}`);
        if ((thrown as Error).name !== 'CompileError') throw error;
        const policy = /unsafe-eval|content security policy/i.test(error.message);
        const why = policy
            ? "the page's Content-Security-Policy must have 'wasm-unsafe-eval' in script-src"
            : 'is it gemmule.wasm, and does this browser support WebAssembly SIMD?';
        throw new GemmuleError('NotSupported', `${error.message} (${why})`, undefined, { cause: thrown });
    }
}
