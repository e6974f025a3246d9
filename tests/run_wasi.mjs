// Runs a WASI program (a test built for wasm) with the current directory as its root: node run_wasi.mjs PROGRAM [ARGUMENT…]

import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const [program, ...args] = process.argv.slice(2);
if (!program) {
    console.error('usage: node run_wasi.mjs PROGRAM [ARGUMENT…]');
    process.exit(3);
}
const wasi = new WASI({ version: 'preview1', args: [program, ...args], preopens: { '.': '.' }, returnOnExit: true });
const { instance } = await WebAssembly.instantiate(await readFile(program), wasi.getImportObject());
process.exitCode = wasi.start(instance);
