/* The worker's side in a Node thread, like worker.ts in the browser. */

import { readFileSync } from 'node:fs';
import { parentPort } from 'node:worker_threads';
import { Core } from '../../src/core/core.ts';
import { FileSource } from '../../src/sources/file.ts';
import { openSource } from '../../src/sources/open.ts';
import { Host } from '../../src/worker/host.ts';
import type { Port } from '../../src/worker/protocol.ts';

const port: Port = { post: (message, transfer) => parentPort!.postMessage(message, transfer as ArrayBuffer[]), onMessage: null, close: () => parentPort!.close() };
new Host(port, {
    core: async ({ wasmUrl }) => Core.create({ wasm: readFileSync(wasmUrl!) as Uint8Array<ArrayBuffer>, gpu: null }),
    openSource: (spec, options) => (spec.kind === 'path' ? FileSource.open(spec.path) : openSource(spec, options)),
});
parentPort!.on('message', (message: unknown) => {
    if (message === 'crash') throw new Error('crashed as asked');
    port.onMessage?.(message);
});
