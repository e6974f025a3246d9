// Copies a GGUF model without the towers that are in its file: llama.cpp refuses a file with tensors that it does not read.

import {readFileSync, writeFileSync} from "node:fs";

const sizes = [1, 1, 2, 2, 4, 4, 4, 1, null, null, 8, 8, 8]; // of the metadata types; 8 is a string, 9 an array
const isOfTower = (name) => /^(v|a|mm)\./.test(name);

export function writeTextOnly(from, to) {
    const file = readFileSync(from);
    let at = 24;
    const u32 = () => file.readUInt32LE((at += 4) - 4), u64 = () => Number(file.readBigUInt64LE((at += 8) - 8));
    const string = () => { const length = u64(); at += length; return file.toString("utf8", at - length, at); };
    const skip = (type) => {
        if (type === 8) string();
        else if (type === 9) for (let item = u32(), left = u64(); left > 0; left--) skip(item);
        else at += sizes[type];
    };
    const tensorCount = Number(file.readBigUInt64LE(8)), keyCount = Number(file.readBigUInt64LE(16));
    let alignment = 32;
    for (let i = 0; i < keyCount; i++) {
        const key = string(), type = u32();
        if (key === "general.alignment") alignment = file.readUInt32LE(at);
        skip(type);
    }
    const metadata = file.subarray(24, at), padded = (n) => Math.ceil(n / alignment) * alignment;
    const tensors = Array.from({length: tensorCount}, () => {
        const begin = at, name = string(), dimensions = u32();
        at += 8 * dimensions + 4;
        return {name, info: file.subarray(begin, at), offset: u64()};
    });
    const start = padded(at), byOffset = tensors.toSorted((a, b) => a.offset - b.offset);
    byOffset.forEach((tensor, i) => { tensor.data = file.subarray(start + tensor.offset, i + 1 < tensorCount ? start + byOffset[i + 1].offset : file.length); });
    const kept = byOffset.filter(({name}) => !isOfTower(name)), infos = [], data = [];
    let end = 0;
    for (const tensor of kept) {
        const offset = Buffer.alloc(8), piece = Buffer.alloc(padded(tensor.data.length));
        offset.writeBigUInt64LE(BigInt(end));
        tensor.data.copy(piece);
        infos.push(tensor.info, offset);
        data.push(piece);
        end += piece.length;
    }
    const head = Buffer.concat([file.subarray(0, 24), metadata, ...infos]), room = Buffer.alloc(padded(head.length));
    head.copy(room);
    room.writeBigUInt64LE(BigInt(kept.length), 8);
    writeFileSync(to, Buffer.concat([room, ...data]));
}
