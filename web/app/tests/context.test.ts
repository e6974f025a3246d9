// What fits into the context: which messages are left out, which are refused, and what is said about it.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fitPrompt, whyClamped, whyTooLong } from '../src/context.ts';
import type { ModelMessage } from '../src/conversation.ts';

/** A system prompt of 10 tokens, then exchanges of 10 + 30 tokens, and a question of 10. */
const talk = (exchanges: number): ModelMessage[] => [
    { role: 'system', content: 's'.repeat(10) },
    ...Array.from({ length: exchanges }, (): ModelMessage[] => [{ role: 'user', content: 'q'.repeat(10) }, { role: 'assistant', content: 'a'.repeat(30) }]).flat(),
    { role: 'user', content: 'n'.repeat(10) },
];

const count = async (messages: ModelMessage[]): Promise<number> => messages.reduce((sum, { content }) => sum + content.length, 0);

test('the oldest are left out when there is no room for an answer, and then half is free', async () => {
    for (const [exchanges, before, context, leftOut] of [
        [0, 0, 100, 0], // one question is never left out
        [3, 0, 1000, 0],
        [3, 2, 1000, 0], // the context has been raised since: all is seen again
        [10, 0, 400, 6], // 420 tokens; 180 after it
        [20, 16, 400, 16], // what was left out last time is still enough
        [25, 16, 400, 21], // no longer: then more goes at once
        [20, 0, 20, 20], // nothing but the question, as small as the context is
    ] as const) {
        const fitted = await fitPrompt(talk(exchanges), before, context, count);
        assert.equal(fitted.leftOut, leftOut, `${exchanges} exchanges, ${before} left out before, a context of ${context}`);
        assert.equal(fitted.messages[0]!.role, 'system');
        assert.equal(fitted.messages.at(-1)!.content, 'n'.repeat(10));
        assert.equal(fitted.messages.length, talk(exchanges).length - 2 * leftOut);
    }
});

test('a message that cannot be answered is refused, with advice that this model can follow', () => {
    assert.equal(whyTooLong({ message: 100, prompt: 120, context: 2048, largest: 2048 }), '');
    assert.equal(whyTooLong({ message: 1900, prompt: 1920, context: 2048, largest: 2048 }), '');
    assert.equal(whyTooLong({ message: 5011, prompt: 5031, context: 2048, largest: 2048 }),
        'This message is too long: it has 5,011 tokens, and at most 1,900 fit. Shorten it, or send it in parts. This model reads 2,048 tokens at once.');
    assert.match(whyTooLong({ message: 9000, prompt: 9020, context: 8192, largest: 131072 }), /raise the context size in the settings: this model can read 131,072 tokens/);
    assert.match(whyTooLong({ message: 10, prompt: 3000, context: 2048, largest: 2048 }), /at most 0 fit/);
});

test('a context above that of the model is clamped, and says so', () => {
    assert.equal(whyClamped(0, 2048), '');
    assert.equal(whyClamped(2048, 2048), '');
    assert.equal(whyClamped(65536, 2048), 'The loaded model reads at most 2,048 tokens at once, so 2,048 are used.');
});
