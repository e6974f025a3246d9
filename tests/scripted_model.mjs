// Writes a model with a scripted answer: tiny-dense with its layers silenced, and a head in which each token predicts the next one.
// With it, thoughts, tool calls and ends of turns can be tested from end to end.
//
//     node tests/scripted_model.mjs OUT.gguf PIECE…
//
// The pieces are entries of tiny-dense's vocabulary (▁ for a space, <0x0A> for a byte). None may occur twice, because a token can
// have only one successor. They follow the newline (<0x0A>) that ends every prompt; greedy decoding (--temp 0) produces exactly these.

import { readFileSync, writeFileSync } from 'node:fs';

const [out, ...pieces] = process.argv.slice(2);
const file = readFileSync(new URL('fixtures/tiny-dense.gguf', import.meta.url));
const align = (n) => (n + 31) & ~31;

// ---- reading: offsets of metadata and infos ----

let at = 8;
const u32 = () => file.readUInt32LE((at += 4) - 4);
const u64 = () => Number(file.readBigUInt64LE((at += 8) - 8));
const string = () => {
    const length = u64();
    return file.toString('utf8', at, (at += length));
};
const sizes = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const value = (type) => {
    if (type === 8) return string();
    if (type === 9) {
        const item = u32(), count = u64();
        return Array.from({ length: count }, () => value(item));
    }
    at += sizes[type];
    return null;
};

const tensorCount = u64(), keyCount = u64();
const metadataStart = at;
let vocabulary;
for (let i = 0; i < keyCount; i++) {
    const key = string(), found = value(u32());
    if (key === 'tokenizer.ggml.tokens') vocabulary = found;
}
const metadata = file.subarray(metadataStart, at);
const tensors = [];
for (let i = 0; i < tensorCount; i++) {
    const name = string(), dims = u32();
    const shape = Array.from({ length: dims }, u64);
    tensors.push({ name, shape, type: u32(), offset: u64() });
}
const dataStart = align(at);
for (const t of tensors) {
    const bytes = t.shape.reduce((a, b) => a * b) * (t.type === 0 ? 4 : 2); // F32 or F16
    t.data = Buffer.from(file.subarray(dataStart + t.offset, dataStart + t.offset + bytes));
}

// ---- the script ----

const ids = ['<0x0A>', ...pieces].map((piece) => {
    const id = vocabulary.indexOf(piece);
    if (id < 0) throw new Error(`'${piece}' is not in the vocabulary`);
    return id;
});
if (new Set(ids).size !== ids.length) throw new Error('a piece stands in the script twice');

const half = (bits) => {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (2 ** -14 * fraction) / 1024);
};
const [width, count] = tensors.find((t) => t.name === 'token_embd.weight').shape;
const embeddings = tensors.find((t) => t.name === 'token_embd.weight').data;
const head = new Float32Array(width * count);
for (let i = 0; i + 1 < ids.length; i++) {
    const row = Array.from({ length: width }, (_, k) => half(embeddings.readUInt16LE(2 * (ids[i] * width + k))));
    const length = Math.hypot(...row);
    row.forEach((x, k) => (head[ids[i + 1] * width + k] = (10 * x) / length));
}
const floats = (list) => Buffer.from(Float32Array.from(list).buffer);
for (const t of tensors) {
    const n = t.shape.reduce((a, b) => a * b);
    if (/post_(attention|ffw)_norm|post_norm/.test(t.name)) t.data = floats(Array(n).fill(0)); // a layer adds nothing
    if (/layer_output_scale|^output_norm/.test(t.name)) t.data = floats(Array(n).fill(1));
}
tensors.push({ name: 'output.weight', shape: [width, count], type: 0, data: Buffer.from(head.buffer) });

// ---- writing ----

const bytes32 = (n) => Buffer.from(Uint32Array.of(n).buffer), bytes64 = (n) => Buffer.from(BigUint64Array.of(BigInt(n)).buffer);
const padded = (b) => Buffer.concat([b, Buffer.alloc(align(b.length) - b.length)]);
const infos = [];
let offset = 0;
for (const t of tensors) {
    infos.push(bytes64(Buffer.byteLength(t.name)), Buffer.from(t.name), bytes32(t.shape.length), ...t.shape.map(bytes64), bytes32(t.type),
        bytes64(offset));
    offset += align(t.data.length);
}
const start = Buffer.concat([Buffer.from('GGUF'), bytes32(3), bytes64(tensors.length), bytes64(keyCount), metadata, ...infos]);
writeFileSync(out, Buffer.concat([padded(start), ...tensors.map((t) => padded(t.data))]));
