/* Pictures and sounds that the browser has decoded, as files that the engine reads. */

import type { Samples } from './types.ts';

const CRCS = Uint32Array.from({ length: 256 }, (_, n) => {
    for (let bit = 0; bit < 8; bit++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
    return n;
});

function crc(bytes: Uint8Array): number {
    let value = -1;
    for (const byte of bytes) value = CRCS[(value ^ byte) & 255]! ^ (value >>> 8);
    return ~value >>> 0;
}

function chunk(name: string, content: Uint8Array): Uint8Array<ArrayBuffer> {
    const out = new Uint8Array(content.length + 12), view = new DataView(out.buffer);
    view.setUint32(0, content.length);
    out.set([...name].map((letter) => letter.charCodeAt(0)), 4);
    out.set(content, 8);
    view.setUint32(out.length - 4, crc(out.subarray(4, out.length - 4)));
    return out;
}

/** A PNG with these pixels of RGB. */
export async function pngFile({ pixels, width, height }: { pixels: Uint8Array; width: number; height: number }): Promise<Blob> {
    const rows = new Uint8Array(height * (3 * width + 1)); // each begins with its filter, 0: none
    for (let y = 0; y < height; y++) rows.set(pixels.subarray(y * 3 * width, (y + 1) * 3 * width), y * (3 * width + 1) + 1);
    const packed = await new Response(new Blob([rows]).stream().pipeThrough(new CompressionStream('deflate'))).arrayBuffer();
    const header = new Uint8Array(13), view = new DataView(header.buffer);
    view.setUint32(0, width);
    view.setUint32(4, height);
    header.set([8, 2], 8); // 8 bits, RGB
    const signature = Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a);
    return new Blob([signature, chunk('IHDR', header), chunk('IDAT', new Uint8Array(packed)), chunk('IEND', new Uint8Array())], { type: 'image/png' });
}

/** A WAV of 32-bit floats with these samples. */
export function wavFile({ samples, sampleRate }: Samples): Blob {
    const header = new DataView(new ArrayBuffer(44));
    const name = (at: number, letters: string): void => [...letters].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
    name(0, 'RIFF');
    header.setUint32(4, 36 + 4 * samples.length, true);
    name(8, 'WAVEfmt ');
    header.setUint32(16, 16, true);
    header.setUint16(20, 3, true); // floats
    header.setUint16(22, 1, true);
    header.setUint32(24, sampleRate, true);
    header.setUint32(28, 4 * sampleRate, true);
    header.setUint16(32, 4, true);
    header.setUint16(34, 32, true);
    name(36, 'data');
    header.setUint32(40, 4 * samples.length, true);
    return new Blob([header.buffer, samples as Float32Array<ArrayBuffer>], { type: 'audio/wav' });
}
