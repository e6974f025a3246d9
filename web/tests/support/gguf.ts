/* Just enough of GGUF to read fixtures, and to split and join files. */

interface Tensor {
    name: string;
    dims: bigint[];
    type: number;
    /** From the start of the file. */
    offset: number;
    bytes: number;
    /** The raw tensor info, up to the offset. */
    info: Buffer;
}

const VALUE_BYTES: Record<number, number> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const TYPE_BYTES: Record<number, number> = { 0: 4, 1: 2, 26: 4, 30: 2 }; // F32, F16, I32, BF16
const ALIGNMENT = 32;
const align = (n: number) => Math.ceil(n / ALIGNMENT) * ALIGNMENT;

class Reader {
    at = 8;
    readonly file: Buffer;

    constructor(file: Buffer) {
        this.file = file;
    }
    u32(): number {
        return this.file.readUInt32LE((this.at += 4) - 4);
    }
    u64(): number {
        return Number(this.file.readBigUInt64LE((this.at += 8) - 8));
    }
    text(): string {
        const length = this.u64();
        return this.file.toString('utf8', this.at, (this.at += length));
    }
    skip(type: number): void {
        if (type === 8) this.text();
        else if (type === 9) {
            const item = this.u32();
            for (let left = this.u64(); left > 0; left--) this.skip(item);
        } else this.at += VALUE_BYTES[type]!;
    }
}

function parse(file: Buffer): { keys: number; metadata: Buffer; tensors: Tensor[] } {
    const r = new Reader(file);
    const [count, keys] = [r.u64(), r.u64()];
    const start = r.at;
    for (let i = 0; i < keys; i++) {
        r.text();
        r.skip(r.u32());
    }
    const metadata = file.subarray(start, r.at);
    const tensors: Tensor[] = [];
    for (let i = 0; i < count; i++) {
        const begin = r.at;
        const name = r.text();
        const dims = Array.from({ length: r.u32() }, () => BigInt(r.u64()));
        const type = r.u32();
        const info = file.subarray(begin, r.at);
        const elements = Number(dims.reduce((a, b) => a * b, 1n));
        tensors.push({ name, dims, type, offset: r.u64(), bytes: elements * (TYPE_BYTES[type] ?? 0), info });
    }
    const data = align(r.at);
    for (const tensor of tensors) tensor.offset += data;
    return { keys, metadata, tensors };
}

export function readGguf(file: Buffer): { offset(name: string): number; int32(name: string): Int32Array; float32(name: string): Float32Array } {
    const { tensors } = parse(file);
    const find = (name: string) => {
        const found = tensors.find((tensor) => tensor.name === name);
        if (!found) throw new Error(`no tensor ${name}`);
        return found;
    };
    const bytes = (name: string) => new Uint8Array(file.subarray(find(name).offset, find(name).offset + find(name).bytes)).buffer;
    return {
        offset: (name) => find(name).offset,
        int32: (name) => new Int32Array(bytes(name)),
        float32: (name) => new Float32Array(bytes(name)),
    };
}

const u32 = (n: number) => Buffer.from(Uint32Array.of(n).buffer);
const u64 = (n: number) => Buffer.from(BigUint64Array.of(BigInt(n)).buffer);
const text = (s: string) => Buffer.concat([u64(s.length), Buffer.from(s)]);
const padded = (b: Buffer) => Buffer.concat([b, Buffer.alloc(align(b.length) - b.length)]);

/** Splits the file's tensors over several parts, as llama.cpp does: all metadata is in the first. */
export function splitGguf(file: Buffer, parts: number): Buffer[] {
    const { keys, metadata, tensors } = parse(file);
    const each = Math.ceil(tensors.length / parts);
    return Array.from({ length: parts }, (_, part) => {
        const mine = tensors.slice(part * each, (part + 1) * each);
        const split = [
            [text('split.no'), u32(4), u32(part)],
            [text('split.count'), u32(4), u32(parts)],
            [text('split.tensors.count'), u32(5), u32(tensors.length)],
        ].map((entry) => Buffer.concat(entry));
        let offset = 0;
        const infos = mine.map((tensor) => {
            const info = Buffer.concat([tensor.info, u64(offset)]);
            offset += align(tensor.bytes);
            return info;
        });
        const head = [Buffer.from('GGUF'), u32(3), u64(mine.length), u64((part ? 0 : keys) + split.length), ...(part ? [] : [metadata]), ...split, ...infos];
        const data = mine.map((tensor) => padded(file.subarray(tensor.offset, tensor.offset + tensor.bytes)));
        return Buffer.concat([padded(Buffer.concat(head)), ...data]);
    });
}

/** The same model in a larger file: its tensors start this many bytes apart. */
export function spreadGguf(file: Buffer, step: number): Buffer {
    const { keys, metadata, tensors } = parse(file);
    const infos = tensors.map(({ info }, i) => Buffer.concat([info, u64(i * step)]));
    const head = padded(Buffer.concat([file.subarray(0, 8), u64(tensors.length), u64(keys), metadata, ...infos]));
    const whole = Buffer.alloc(head.length + tensors.length * step);
    head.copy(whole);
    tensors.forEach(({ offset, bytes }, i) => file.copy(whole, head.length + i * step, offset, offset + bytes));
    return whole;
}

/* llama.cpp's names of tensors that Ollama calls otherwise. */
const OLLAMA_NAMES: [RegExp, string][] = [
    [/^(a\.blk\.\d+)\.ln2\./, '$1.layer_pre_norm.'],
    [/^(a\.blk\.\d+)\.attn_post_norm\./, '$1.ln2.'],
    [/^(a\.blk\.\d+)\.attn_pre_norm\./, '$1.ln1.'],
    [/^(a\.blk\.\d+)\.attn_k_rel\./, '$1.linear_pos.'],
    [/^a\.pre_encode\.out\./, 'mm.a.fc.'],
    [/^a\.input_projection\./, 'a.pre_encode.out.'],
];

/** A model and its projector (mmproj) as one file, as Ollama has them. The projector's bounds of linear layers keep their names. */
export function ollamaGguf(model: Buffer, projector: Buffer): Buffer {
    const r = new Reader(projector);
    r.u64();
    const entries: Buffer[] = [];
    for (let keys = r.u64(); keys > 0; keys--) {
        const name = r.text(), begin = r.at;
        r.skip(r.u32());
        const own = name.replace(/^clip\.(vision|audio)\./, 'gemma4.$1.');
        if (own !== name && !name.endsWith('projector_type')) entries.push(Buffer.concat([text(own), projector.subarray(begin, r.at)]));
    }
    const { keys, metadata, tensors } = parse(model);
    const towers = parse(projector).tensors.map((tensor) => {
        const [from, to] = OLLAMA_NAMES.find(([pattern]) => pattern.test(tensor.name)) ?? [/^/, ''];
        return { ...tensor, info: Buffer.concat([text(tensor.name.replace(from, to)), tensor.info.subarray(8 + tensor.name.length)]) };
    });
    const all = [...tensors.map((tensor) => ({ ...tensor, file: model })), ...towers.map((tensor) => ({ ...tensor, file: projector }))];
    let offset = 0;
    const infos = all.map(({ info, bytes }) => Buffer.concat([info, u64((offset += align(bytes)) - align(bytes))]));
    const head = [model.subarray(0, 8), u64(all.length), u64(keys + entries.length), metadata, ...entries, ...infos];
    const data = all.map(({ file, offset, bytes }) => padded(file.subarray(offset, offset + bytes)));
    return Buffer.concat([padded(Buffer.concat(head)), ...data]);
}

const ARRAY = 9;

/** The model with only its first layer and no per-layer embeddings: the fewest dispatches that a token can have. */
export function firstLayer(file: Buffer): Buffer {
    const r = new Reader(file);
    const [count, keys] = [r.u64(), r.u64()];
    const entries: Buffer[] = [];
    for (let i = 0; i < keys; i++) {
        const begin = r.at;
        const name = r.text();
        const [typeAt, type] = [r.at, r.u32()];
        r.skip(type);
        let entry = Buffer.from(file.subarray(begin, r.at));
        const value = typeAt - begin + 4;
        if (name === 'gemma4.block_count') entry.writeUInt32LE(1, value);
        if (name === 'gemma4.attention.shared_kv_layers') entry.writeUInt32LE(0, value);
        if (/feed_forward_length|sliding_window_pattern/.test(name) && type === ARRAY) {
            entry.writeBigUInt64LE(1n, value + 4);
            entry = entry.subarray(0, value + 12 + VALUE_BYTES[entry.readUInt32LE(value)]!);
        }
        if (name !== 'gemma4.embedding_length_per_layer_input') entries.push(entry);
    }
    const kept = parse(file).tensors.filter(({ name }) => !/^per_layer|^blk\.[1-9]|\.(inp_gate|proj|post_norm)\./.test(name));
    if (kept.length === count) throw new Error('this model has one layer already');
    const offsets: number[] = [];
    let end = 0;
    for (const { bytes } of kept) end = offsets[offsets.push(end) - 1]! + align(bytes);
    const u64 = (n: number) => Buffer.from(BigUint64Array.of(BigInt(n)).buffer);
    const head = Buffer.concat([file.subarray(0, 8), u64(kept.length), u64(entries.length), ...entries, ...kept.flatMap(({ info }, i) => [info, u64(offsets[i]!)])]);
    const whole = Buffer.alloc(align(head.length) + end);
    head.copy(whole);
    kept.forEach(({ offset, bytes }, i) => file.copy(whole, align(head.length) + offsets[i]!, offset, offset + bytes));
    return whole;
}
