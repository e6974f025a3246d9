import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { ERROR_CODES, GemmuleError, abortedBy, errorName, toGemmuleError } from '../src/core/errors.ts';

/* The name in C → the name here. */
const PAIRS: Record<string, keyof typeof ERROR_CODES> = {
    GM_BAD_FILE: 'BadModel', GM_UNSUPPORTED: 'NotSupported', GM_BAD_ARGUMENT: 'BadArgument', GM_NOT_FOUND: 'NotFound', GM_IO: 'Storage',
    GM_NO_MEMORY: 'OutOfMemory', GM_DEVICE_LOST: 'DeviceLost', GM_CONTEXT_FULL: 'ContextFull', GM_NO_DEVICE: 'NoWebGPU',
    GM_CANCELLED: 'Aborted', GM_BUSY: 'Busy',
};

test('every error code of gemmule.h is here with the same number', () => {
    const header = readFileSync(new URL('../../include/gemmule.h', import.meta.url), 'utf8');
    const body = /typedef enum \{([^}]*)\} gm_status;/.exec(header)![1]!;
    const codes = [...body.matchAll(/(GM_\w+) = (\d+)/g)].map((row) => [row[1]!, Number(row[2])] as const);
    assert.ok(codes.length > 10);
    for (const [name, code] of codes) {
        if (['GM_OK', 'GM_AGAIN', 'GM_DONE'].includes(name)) continue; // not errors
        assert.ok(PAIRS[name], `${name} has no name here`);
        assert.equal(ERROR_CODES[PAIRS[name]!], code, name);
    }
    const ours = Object.values(ERROR_CODES).filter((code) => code < 100);
    assert.equal(ours.length, codes.length - 3);
});

test('no number is used twice', () => {
    const numbers = Object.values(ERROR_CODES);
    assert.equal(new Set(numbers).size, numbers.length);
});

test('errors survive the way through a message', () => {
    const error = new GemmuleError('QuotaExceeded', 'full', { needed: 5 });
    const back = GemmuleError.fromWire(structuredClone(error.toWire()));
    assert.ok(back instanceof GemmuleError && back instanceof Error);
    assert.deepEqual([back.name, back.code, back.message, back.detail], ['QuotaExceeded', 100, 'full', { needed: 5 }]);
    assert.equal(GemmuleError.fromCode(21, 'gone').name, 'DeviceLost');
    assert.equal(GemmuleError.fromCode(77, 'odd').name, 'Internal');
    assert.equal(errorName(77), 'Internal');
});

test('errors of the platform get a name', () => {
    const rows: [unknown, string][] = [
        [new DOMException('x', 'AbortError'), 'Aborted'],
        [new DOMException('x', 'QuotaExceededError'), 'QuotaExceeded'],
        [new DOMException('x', 'NotFoundError'), 'NotFound'],
        [new DOMException('x', 'NoModificationAllowedError'), 'Busy'],
        [new RangeError('Array buffer allocation failed'), 'OutOfMemory'],
        [new RangeError('offset is out of bounds'), 'Internal'],
        ['text', 'Internal'],
        [null, 'Internal'],
    ];
    for (const [thrown, name] of rows) assert.equal(toGemmuleError(thrown).name, name);
    const own = new GemmuleError('Busy', 'x');
    assert.equal(toGemmuleError(own, 'context'), own);
    assert.equal(abortedBy(AbortSignal.abort()).name, 'Aborted');
    assert.equal(abortedBy(AbortSignal.abort(own)), own);
});
