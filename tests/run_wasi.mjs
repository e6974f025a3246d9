// Runs a WASI program (a test built for wasm) with the current directory as its root: node run_wasi.mjs PROGRAM [ARGUMENT…]
// There is no GPU here; web/tests/run_gpu.ts has one.

import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const [program, ...args] = process.argv.slice(2);
if (!program) {
    console.error('usage: node run_wasi.mjs PROGRAM [ARGUMENT…]');
    process.exit(3);
}
const wasi = new WASI({ version: 'preview1', args: [program, ...args], preopens: { '.': '.' }, returnOnExit: true });
const module = await WebAssembly.compile(await readFile(program));
const gpu = {};
for (const { module: from, name } of WebAssembly.Module.imports(module)) if (from === 'gpu') gpu[name] = () => 0; // none
const instance = await WebAssembly.instantiate(module, { ...wasi.getImportObject(), gpu });
process.exitCode = wasi.start(instance);
