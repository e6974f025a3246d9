/* `Gemmule.load('box')` in Node. */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { Gemmule } from '../src/node.ts';
import { DENSE, ROOT, WASM } from './support/models.ts';

const OPTIONS = { wasmUrl: WASM, backend: 'wasm', threads: 1 } as const;

test("'box' is the model in the box of this checkout, or the one that GEMMULE_BOX names", async () => {
    await using box = await Gemmule.load('box', OPTIONS);
    assert.match(box.info.name, /box/i);
    process.env['GEMMULE_BOX'] = DENSE;
    try {
        assert.equal((await Gemmule.dryRun('box', OPTIONS)).name, 'Tiny Dense');
    } finally {
        delete process.env['GEMMULE_BOX'];
    }
});

test('without a box the error lists the places searched', () => {
    const folder = mkdtempSync(join(tmpdir(), 'gemmule-nobox-'));
    try {
        cpSync(join(ROOT, 'web/src'), join(folder, 'web/src'), { recursive: true });
        const script = `
            const { Gemmule } = await import(${JSON.stringify(join(folder, 'web/src/node.ts'))});
            const error = await Gemmule.load('box', { backend: 'wasm' }).catch((error) => error);
            console.log(JSON.stringify([error.name, error.message]));`;
        const env = { ...process.env, GEMMULE_BOX: '' };
        const output = execFileSync(process.execPath, ['--input-type=module', '-e', script], { cwd: folder, encoding: 'utf8', env });
        const [name, message] = JSON.parse(output) as [string, string];
        assert.equal(name, 'NotFound');
        const places = `${folder}/web/src/box.gguf or ${folder}/models/box.gguf`;
        assert.ok(message.startsWith(`the model in the box is not here: GEMMULE_BOX is not set, and there is no file at ${places}. `), message);
    } finally {
        rmSync(folder, { recursive: true, force: true });
    }
});
