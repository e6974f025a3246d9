/* Models and the engine for tests. A missing file fails the test. */

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
/** From the folder $GEMMULE_WASM, by default the build of the wasm preset. */
const BUILD = process.env['GEMMULE_WASM'] ?? join(ROOT, 'build/wasm');
export const WASM = join(BUILD, 'gemmule.wasm');
/** Opens engines on a GPU without the self-check, which takes most of the time on a software GPU: for tests of other things. */
export const UNCHECKED_WASM = join(BUILD, 'gemmule-unchecked.wasm');
export const DENSE = join(ROOT, 'tests/fixtures/tiny-dense.gguf');
export const TWO_LAYERS = join(ROOT, 'tests/fixtures/two-layers.gguf');
export const MOE = join(ROOT, 'tests/fixtures/tiny-moe.gguf');

const folder = mkdtempSync(join(tmpdir(), 'gemmule-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));

/** A path for a file that is removed when the test ends. */
export function scratch(name: string): string {
    return join(folder, name);
}

/** A model that, at temperature 0, says these pieces and nothing else. */
export function scripted(name: string, ...pieces: string[]): string {
    const path = scratch(`${name}.gguf`);
    execFileSync(process.execPath, [join(ROOT, 'tests/scripted_model.mjs'), path, ...pieces]);
    return path;
}

export const ADD_CALL = ['O', 'k', '<|tool_call>', 'c', 'al', 'l', ':', 'ad', 'd', '{', 'a', '<0x3A>', '1', '}', '<tool_call|>', '<|tool_response>'];
export const THINKING = ['<|channel>', 'H', 'm', '<channel|>', 'Y', 'e', 's', '.', '<turn|>'];

/** tiny-dense with room for a million tokens: with ENDLESS it writes until somebody stops it. */
export function endlessModel(): string {
    const bytes = readFileSync(DENSE);
    const key = Buffer.from('gemma4.context_length');
    const at = bytes.indexOf(key) + key.length;
    if (bytes.readUInt32LE(at) !== 4) throw new Error('context_length is no u32');
    bytes.writeUInt32LE(1 << 20, at + 4);
    const path = scratch('endless.gguf');
    writeFileSync(path, bytes);
    return path;
}

/** Token 368 is an x. */
export const ENDLESS = { temperature: 0, logit_bias: { 368: 100 } };
