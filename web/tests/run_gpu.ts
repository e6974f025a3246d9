// Runs a C test program (a WASI command built for wasm) with a GPU: node --experimental-wasm-jspi run_gpu.ts PROGRAM [ARGUMENT…]

import { readFile } from 'node:fs/promises';

import { runProgram } from './browser/program.ts';
import { nodeGpu } from './node_gpu.ts';

const [program, ...args] = process.argv.slice(2);
if (!program) {
    console.error('usage: node --experimental-wasm-jspi run_gpu.ts PROGRAM [ARGUMENT…]');
    process.exit(3);
}
const module = await WebAssembly.compile(await readFile(program));
const status = await runProgram(module, [program, ...args], await nodeGpu(), (text) => process.stdout.write(text));
process.exit(status); // Dawn keeps Node alive
