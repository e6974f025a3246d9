// The tree of a conversation: branches, what is shown, what the model is told, files.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
    adapterWords, addRound, alternatives, answerText, choose, exportFile, headOf, importFile, matches, messagesOf, newConversation, path, put, stopAnswers,
    titleFrom, withMessage, withoutOldest, type Answer, type Attachment, type Conversation, type Question,
} from '../src/conversation.ts';

const question = (id: string, parent: string | null, created: number, content = id): Question => ({ id, parent, created, role: 'user', content });
const answer = (id: string, parent: string, created: number, content = id): Answer =>
    ({ id, parent, created, role: 'assistant', finish: 'stop', steps: [{ thinking: '', content, calls: [] }] });
const shown = (conversation: Conversation): string => path(conversation).map((node) => node.id).join(' ');

// q1 → a1, a2 (shown) → q2 → b1; and q1 edited: q3
function sample(): Conversation {
    let conversation = newConversation('c', 0);
    for (const node of [question('q1', null, 1), answer('a1', 'q1', 2), answer('a2', 'q1', 3), question('q2', 'a2', 4), answer('b1', 'q2', 5)]) conversation = put(conversation, node);
    return conversation;
}

test('what is added is shown; siblings stay', () => {
    const conversation = sample();
    assert.equal(shown(conversation), 'q1 a2 q2 b1');
    assert.deepEqual(alternatives(conversation).get('q1'), ['a1', 'a2']);
    const edited = put(conversation, question('q3', null, 6));
    assert.equal(shown(edited), 'q3');
    assert.deepEqual(alternatives(edited).get(''), ['q1', 'q3']);
    assert.equal(shown(conversation), 'q1 a2 q2 b1', 'the first one is unchanged');
});

const chosen = (conversation: Conversation, ...ids: string[]): Conversation => ids.reduce((each, id) => choose(each, each.nodes[id]!), conversation);

test('a branch remembers what was shown below it', () => {
    const conversation = put(sample(), question('q3', null, 6));
    assert.equal(shown(chosen(conversation, 'q1')), 'q1 a2 q2 b1');
    assert.equal(shown(chosen(conversation, 'q1', 'a1')), 'q1 a1');
    assert.equal(shown(chosen(conversation, 'q1', 'a1', 'a2')), 'q1 a2 q2 b1');
});

test('replacing a message keeps its place and what is shown', () => {
    const conversation = chosen(sample(), 'a1');
    const replaced = put(conversation, { ...answer('a2', 'q1', 3), finish: 'cancelled' });
    assert.equal(shown(replaced), 'q1 a1');
    assert.equal(Object.keys(replaced.nodes).length, 5);
});

test('heads and messages, stored apart, are the conversation again', () => {
    const { nodes, ...head } = sample();
    assert.deepEqual(headOf(sample()), head);
    const grown = withMessage(head, question('q3', null, 6));
    assert.deepEqual({ ...grown, nodes: { ...nodes, q3: question('q3', null, 6) } }, put(sample(), question('q3', null, 6)));
});

test('answers that nobody writes any more are stopped; others stay', () => {
    const conversation = put(sample(), { ...answer('b2', 'q2', 6, 'half'), finish: 'writing' });
    assert.deepEqual(stopAnswers(conversation), [{ ...answer('b2', 'q2', 6, 'half'), finish: 'cancelled' }]);
    assert.deepEqual(stopAnswers(sample()), []);
});

test('titles come from the first question, unless the user gave one', () => {
    assert.equal(sample().title, 'q1');
    const named = put({ ...newConversation('c', 0), title: 'mine', named: true }, question('q', null, 1, 'other'));
    assert.equal(named.title, 'mine');
    for (const [from, to] of [
        ['  \n# Hello\nmore', 'Hello'],
        ['> quoted', 'quoted'],
        ['a'.repeat(60), `${'a'.repeat(47)}…`],
        ['one two three four five six seven eight nine ten eleven', 'one two three four five six seven eight nine…'],
        ['', ''],
    ] as const) assert.equal(titleFrom(from), to);
});

test('search finds every word, in titles and messages', () => {
    const conversation = put(sample(), answer('x', 'q2', 9, 'The *Lighthouse* keeper'));
    for (const [query, found] of [['lighthouse', true], ['KEEPER light', true], ['keeper whale', false], ['', true], ['q1', true]] as const) {
        assert.equal(matches(conversation, query), found, query);
    }
});

test('messages: system first, tool calls with their results', () => {
    const withTool: Answer = {
        ...answer('t', 'q', 2), steps: [
            { thinking: 'hm', content: '', calls: [{ id: '1', name: 'calculate', arguments: { expression: '1+1' }, result: '{"value":2}' }] },
            { thinking: '', content: 'Two.', calls: [] },
        ],
    };
    assert.deepEqual(messagesOf([question('q', null, 1, 'Sum?'), withTool], 'Be brief.'), [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'Sum?' },
        { role: 'assistant', content: '', thinking: 'hm', tool_calls: [{ id: '1', type: 'function', function: { name: 'calculate', arguments: { expression: '1+1' } } }] },
        { role: 'tool', content: '{"value":2}', tool_name: 'calculate', tool_call_id: '1' },
        { role: 'assistant', content: 'Two.' },
    ]);
    assert.equal(answerText(withTool), 'Two.');
    assert.deepEqual(messagesOf([], '  '), []);
    const zeros = messagesOf([question('q', null, 1, 'a\0b'), answer('a', 'q', 2, '\0c')], 'd\0');
    assert.equal(zeros.map(({ content }) => content).join(' '), 'd\ufffd a\ufffdb \ufffdc', 'zeros would be refused, and with them every later question');
});

test('leaving out the oldest keeps the system prompt and the newest question', () => {
    const messages = messagesOf(path(sample()), 'S');
    const contents = (count: number): string => withoutOldest(messages, count).map((message) => message.content).join(' ');
    assert.equal(contents(0), 'S q1 a2 q2 b1');
    assert.equal(contents(1), 'S q2 b1');
    assert.equal(contents(9), 'S q2 b1');
    assert.deepEqual(withoutOldest([], 1), []);
});

test('export and import give the same tree with new ids', () => {
    let count = 0;
    const stats = { model: 'm', promptTokens: 5, cachedTokens: 2, replyTokens: 3, promptSeconds: 0.5, replySeconds: 0.25, held: 8 };
    const choice = { id: 'url:x', name: 'x', source: { kind: 'url', url: 'https://elsewhere.example/x.gguf' } } as const;
    const given = put(sample(), { ...answer('b1', 'q2', 5), stats, leftOut: 2, choice });
    const [read] = importFile(JSON.stringify(exportFile([given], new Date(0))), () => `n${count++}`);
    assert.equal(read!.title, 'q1');
    assert.equal(path(read!).map((node) => (node.role === 'user' ? node.content : answerText(node))).join(' '), 'q1 a2 q2 b1');
    assert.equal(Object.keys(read!.nodes).length, 5);
    const last = path(read!).at(-1) as Answer;
    assert.deepEqual([last.stats, last.leftOut, last.choice], [stats, 2, undefined], 'a file names no model to load');
    assert.ok(Object.keys(read!.nodes).every((id) => id.startsWith('n')));
});

test('attachments: they come to the model with their message, give a title, and are read from files with their content alone', () => {
    const attachment = { id: 'm', kind: 'image', name: 'a.png', type: 'image/png', size: 3, width: 9, height: 9, budget: 560 } as const;
    const asked = (attachments: unknown[]): Question => ({ ...question('q', null, 1, ''), attachments: attachments as Attachment[] });
    const given = put(newConversation('c', 0), asked([attachment]));
    assert.equal(given.title, 'a.png');
    assert.deepEqual(messagesOf(path(given), ''), [{ role: 'user', content: '', attachments: [attachment] }]);
    const file = put(newConversation('c', 0), asked([
        attachment, null, { kind: 'film', data: 'AAEC' }, { ...attachment, data: 'AAEC', budget: 7, evil: true }, { ...attachment, kind: 'audio', name: 5, data: 'AAEC' },
    ]));
    const [read] = importFile(JSON.stringify(exportFile([file], new Date(0))), () => 'n');
    assert.deepEqual((path(read!)[0] as Question).attachments, [
        { id: '', kind: 'image', name: 'a.png', type: 'image/png', size: 0, data: 'AAEC' },
        { id: '', kind: 'audio', name: '', type: 'image/png', size: 0, data: 'AAEC', budget: 560 },
    ]);
});

test('import refuses what is not ours and survives what is broken', () => {
    for (const text of ['', '{', '[]', '{}', 'null', '{"format":"other","conversations":[]}', '{"format":"gemmule-conversations","version":2,"conversations":[]}']) {
        assert.throws(() => importFile(text, () => 'x'), Error, text);
    }
    let count = 0;
    const id = (): string => `n${count++}`;
    const broken = {
        format: 'gemmule-conversations', version: 1, conversations: [
            null, 7, {},
            {
                nodes: {
                    a: null, b: 3, c: { id: 'c', parent: 'missing', role: 'user' }, d: { id: 'd', parent: 'd', role: 'user' },
                    e: { id: 'e', parent: null, role: 'assistant' },
                },
            },
            {
                title: 5, chosen: { '': 'x', x: 'x' },
                nodes: {
                    x: { id: 'x', parent: null, role: 'user', content: {}, created: 'now' },
                    y: { id: 'y', parent: 'x', role: 'assistant', steps: [null, { calls: [null, 3] }], finish: 'evil' },
                },
            },
        ],
    };
    const read = importFile(JSON.stringify(broken), id);
    assert.equal(read.length, 5);
    for (const conversation of read) path(conversation);
    const last = read.at(-1)!;
    assert.deepEqual(path(last).map((node) => node.role), ['user']);
    assert.deepEqual(Object.values(last.nodes).map((node) => (node.role === 'assistant' ? node.finish : '')), ['', 'stop']);
});

test('a ring in the tree ends', () => {
    const conversation = { ...sample(), chosen: { '': 'q1', q1: 'a1', a1: 'q1' } };
    assert.equal(shown(conversation), 'q1 a1');
});

test('the numbers of an answer add up over its rounds', () => {
    const first = addRound(undefined, { promptTokens: 100, cachedTokens: 60, replyTokens: 20, promptSeconds: 1, replySeconds: 2 }, 'm');
    assert.deepEqual(first, { model: 'm', promptTokens: 100, cachedTokens: 60, replyTokens: 20, promptSeconds: 1, replySeconds: 2, held: 120 });
    const second = addRound(first, { promptTokens: 130, cachedTokens: 120, replyTokens: 10, promptSeconds: 0.5, replySeconds: 1 }, 'm');
    // 40 + 10 tokens of prompts were computed; 30 were written in 3 s.
    assert.deepEqual(second, { model: 'm', promptTokens: 130, cachedTokens: 80, replyTokens: 30, promptSeconds: 1.5, replySeconds: 3, held: 140 });
});

test('adapters go through a file; what is none is left out', () => {
    const use = (letter: string, scale: number) => ({ key: letter.repeat(64), name: letter, scale });
    const given = { ...sample(), adapters: [use('a', 0.5), use('b', 1)] };
    let count = 0;
    const id = () => `n${count++}`;
    assert.deepEqual(importFile(JSON.stringify(exportFile([given], new Date(0))), id)[0]!.adapters, given.adapters);
    assert.equal(adapterWords(given.adapters), 'a × 0.5, b');
    const broken = { ...given, adapters: [null, 7, { key: '../x', name: 'x', scale: 1 }, use('c', NaN), use('c', 1)] } as unknown as Conversation;
    assert.deepEqual(importFile(JSON.stringify(exportFile([broken], new Date(0))), id)[0]!.adapters, [use('c', 0)]);
    assert.equal('adapters' in importFile(JSON.stringify(exportFile([sample()], new Date(0))), id)[0]!, false);
});
