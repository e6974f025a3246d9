/* WAV files for tests: one channel of 8 or 16 bits. */

import assert from 'node:assert/strict';

export interface Wav {
    samples: Float32Array;
    rate: number;
}

export function readWav(file: Buffer): Wav {
    const start = file.indexOf('data') + 8, bits = file.readUInt16LE(34);
    assert.ok(file.readUInt16LE(22) === 1 && (bits === 8 || bits === 16), 'one channel of 8 or 16 bits');
    const count = file.readUInt32LE(start - 4) / (bits / 8);
    const sample = (i: number) => (bits === 8 ? (file.readUInt8(start + i) - 128) / 128 : file.readInt16LE(start + 2 * i) / 32_768);
    return { samples: Float32Array.from({ length: count }, (_, i) => sample(i)), rate: file.readUInt32LE(24) };
}

/** With 16 bits. */
export function writeWav({ samples, rate }: Wav): Buffer {
    const file = Buffer.alloc(44 + 2 * samples.length);
    file.write('RIFF', 0, 'latin1');
    file.writeUInt32LE(file.length - 8, 4);
    file.write('WAVEfmt ', 8, 'latin1');
    for (const [at, value] of [[16, 16], [24, rate], [28, 2 * rate], [40, 2 * samples.length]] as const) file.writeUInt32LE(value, at);
    for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]] as const) file.writeUInt16LE(value, at);
    file.write('data', 36, 'latin1');
    samples.forEach((value, i) => file.writeInt16LE(Math.max(-32_768, Math.min(32_767, Math.round(value * 32_768))), 44 + 2 * i));
    return file;
}
