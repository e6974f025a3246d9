/* Reading file headers. Beyond the end everything reads as 0, so a parser of a truncated file comes to an end without checks at every step. */

export class Bytes {
    readonly length: number;
    readonly #data: Uint8Array;

    constructor(data: Uint8Array) {
        this.#data = data;
        this.length = data.length;
    }

    u8(at: number): number {
        return this.#data[at] ?? 0;
    }

    /** `count` bytes, the most significant first. */
    big(at: number, count: number): number {
        let value = 0;
        for (let i = 0; i < count; i++) value = value * 256 + this.u8(at + i);
        return value;
    }

    /** `count` bytes, the least significant first. */
    little(at: number, count: number): number {
        let value = 0;
        for (let i = count - 1; i >= 0; i--) value = value * 256 + this.u8(at + i);
        return value;
    }

    text(at: number, count: number): string {
        return String.fromCharCode(...this.#data.subarray(at, at + count));
    }

    starts(text: string, at = 0): boolean {
        for (let i = 0; i < text.length; i++) {
            if (this.u8(at + i) !== text.charCodeAt(i)) return false;
        }
        return at + text.length <= this.length;
    }
}

export interface Box {
    type: string;
    /** The content, without the box's own header. */
    start: number;
    end: number;
}

/** The boxes of an MP4, HEIC or AVIF file between two places. */
export function* boxes(bytes: Bytes, start: number, end: number): Generator<Box> {
    for (let at = start; at + 8 <= end; ) {
        const short = bytes.big(at, 4);
        const header = short === 1 ? 16 : 8;
        const size = short === 0 ? end - at : short === 1 ? bytes.big(at + 8, 8) : short;
        if (size < header) return;
        yield { type: bytes.text(at + 4, 4), start: at + header, end: Math.min(at + size, end) };
        at += size;
    }
}

/** The first box at the end of a path of types; null if there is none. A step "meta+4" skips 4 bytes at the start of that box. */
export function findBox(bytes: Bytes, path: string, start = 0, end = bytes.length): Box | null {
    const [first, ...rest] = path.split('/') as [string, ...string[]];
    const [type, skip = '0'] = first.split('+') as [string, string?];
    for (const box of boxes(bytes, start, end)) {
        if (box.type !== type) continue;
        const found = rest.length ? findBox(bytes, rest.join('/'), box.start + Number(skip), box.end) : box;
        if (found) return found;
    }
    return null;
}
