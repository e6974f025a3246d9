/* The worker's entry: one file without top-level await or dynamic import, so that every bundler and every browser takes it. */

import { Core } from '../core/core.ts';
import { compileWasm } from './compile.ts';
import { openSource } from '../sources/open.ts';
import { Host } from './host.ts';
import type { Port } from './protocol.ts';

/* What Node runs in its own thread. */
export { Core, Host, openSource };

interface Scope {
    postMessage(message: unknown, transfer: Transferable[]): void;
    onmessage: ((event: MessageEvent) => void) | null;
    close(): void;
}

function start(scope: Scope): void {
    const port: Port = {
        post: (message, transfer) => scope.postMessage(message, transfer),
        onMessage: null,
        close: () => scope.close(),
    };
    new Host(port, {
        core: async (wasmUrl) =>
            Core.create({ wasm: await compileWasm(wasmUrl ?? new URL('./gemmule.wasm', import.meta.url).href), gpu: navigator.gpu ?? null }),
        openSource,
    });
    scope.onmessage = (event) => port.onMessage?.(event.data);
}

if ('DedicatedWorkerGlobalScope' in globalThis) start(globalThis as unknown as Scope);
