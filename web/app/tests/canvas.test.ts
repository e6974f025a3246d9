// What the app keeps of a canvas, texts with holes, and where text that is shown is in its Markdown.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ACCEPTED, around, dropFrames, frameOf, framesOf, keepFrame, OPEN, PINNED, sourceRange, withHole, type Frame } from '../src/canvas.ts';
import { LiveSpeed } from '../src/format.ts';

const frame = (step: number, length = 4, block = 0, most?: number): Frame => frameOf({
    block, step, most_steps: 8, mean_entropy: 0.5, last: false,
    tokens: Array.from({ length }, (_, at) => ({ id: at, text: `t${at}`, entropy: at / 2, accepted: at < 2, pinned: at === 0 })),
}, 1, 30, most);

test('a frame has the tokens, their entropies and how they stand', () => {
    const { texts, entropies, states, step, mostSteps, pass, settled } = frame(3);
    assert.deepEqual([texts, [...entropies], [...states]], [['t0', 't1', 't2', 't3'], [0, 0.5, 1, 1.5], [PINNED, ACCEPTED, OPEN, OPEN]]);
    assert.deepEqual([step, mostSteps, pass, settled], [3, 8, 1, 30]);
    assert.deepEqual(frame(3, 4, 1, 6).texts, ['t0', 't1'], 'the answer has six tokens, four of them in the block before');
    assert.equal(frame(3, 4, 2, 6).states.length, 0);
});

test('frames are kept within bounds: those of older answers go first', () => {
    const steps = (answer: string): number[] => framesOf(answer).map(({ step }) => step);
    for (const step of [1, 2, 3]) keepFrame('old', frame(step), 20);
    for (const step of [1, 2, 3]) keepFrame('new', frame(step), 20);
    assert.deepEqual([steps('old'), steps('new')], [[2, 3], [1, 2, 3]]);
    for (const step of [4, 5, 6]) keepFrame('new', frame(step), 20);
    assert.deepEqual([steps('old'), steps('new')], [[], [2, 3, 4, 5, 6]]);
    keepFrame('large', frame(1, 50), 20);
    assert.deepEqual([steps('new'), steps('large')], [[], [1]], 'the newest frame is always kept');
    dropFrames('large');
    for (const step of [1, 2, 3, 4, 5]) keepFrame('next', frame(step), 20);
    assert.deepEqual([steps('large'), steps('next')], [[], [1, 2, 3, 4, 5]]);
});

test('a text with a hole', () => {
    const rows: [string, number, number, string][] = [
        ['The red fox', 4, 7, 'The [[3]] fox'], ['abc', 0, 3, '[[3]]'], ['a[[b', 4, 4, 'a[[[[]]b[[3]]'], ['x[y]', 2, 3, 'x[[[3]]]'], ['[[[', 3, 3, '[[[[]][[[3]]'],
    ];
    for (const [text, from, to, expected] of rows) assert.equal(withHole(text, { from, to, tokens: 3 }), expected);
    assert.deepEqual(around('The red fox', { from: 4, to: 7, tokens: 1 }), { before: 'The ', after: ' fox' });
});

test('text that is shown is found in its Markdown', () => {
    // shown, and the part of it between brackets; the part of the source that is meant
    const rows: [string, string, string][] = [
        ['The old [fox] and the fox', 'The **old** <fox> and the fox', 'the first of two'],
        ['The old fox and the [fox]', 'The **old** fox and the <fox>', 'the second of two'],
        ['The [old fox] ran', 'The **<old** fox> ran', 'marks inside'],
        ['One.Two [th]ree', '# One.\n\nTwo <th>ree', 'blocks'],
        ['On[e.Tw]o', '# On<e.\n\nTw>o', 'across blocks'],
        ['see [here] now', 'see [<here>](https://a.example/h?now) now', 'a link'],
        ['here is [here]', '[here](https://here.example) is <here>', 'a word that an address has, too'],
        ['say "[A & B]"', 'say "<A &amp; B>"', 'an entity'],
        ['a – b [c] d', 'a -- b <c> d', 'a character that the source does not have'],
    ];
    for (const [marked, wanted, what] of rows) {
        const shown = marked.replace(/[[\]]/g, ''), source = wanted.replace(/[<>]/g, '');
        const { from, to } = sourceRange(source, shown, marked.indexOf('['), marked.indexOf(']') - 1);
        assert.equal(source.slice(from, to), wanted.slice(wanted.indexOf('<') + 1, wanted.indexOf('>')), what);
        assert.equal(from, wanted.indexOf('<'), what);
    }
});

test('the speed of blocks: the end of a block brings its tokens', () => {
    const speed = new LiveSpeed();
    for (let step = 0; step < 4; step++) speed.add(10 + step, 0);
    assert.equal(speed.perSecond, 0);
    speed.add(14, 256);
    assert.equal(speed.perSecond, 64);
});
