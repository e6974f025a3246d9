/* A File or Blob as a source, and a data: URL as a Blob. */

import type { ByteSource } from '../core/types.ts';
import { GemmuleError, throwIfAborted, toGemmuleError } from '../core/errors.ts';
import { release } from '../core/release.ts';

const PIECE = 1 << 20; // bytes of one read,
const AT_ONCE = 4; // and how many are under way: each takes milliseconds

export class BlobSource implements ByteSource {
    readonly name: string;
    readonly size: number;
    readonly #blob: Blob;

    constructor(blob: Blob, name = blob instanceof File ? blob.name : 'blob') {
        this.#blob = blob;
        this.name = name;
        this.size = blob.size;
    }

    async read(offset: number, length: number, signal?: AbortSignal, into = new ArrayBuffer(length)): Promise<Uint8Array> {
        throwIfAborted(signal);
        checkRange(this, offset, length);
        const bytes = new Uint8Array(into, 0, length);
        let next = 0, found = 0;
        const readOn = async () => {
            while (next < length) {
                const at = next, end = Math.min(at + PIECE, length);
                next = end;
                const piece = new Uint8Array(await this.#blob.slice(offset + at, offset + end).arrayBuffer());
                bytes.set(piece, at);
                found += piece.length;
                release(piece);
            }
        };
        try {
            await Promise.all(Array.from({ length: AT_ONCE }, readOn));
        } catch (thrown) {
            // A File is a name, not its bytes: it is unreadable once it changes, moves, or the permission for its folder ends.
            throw toGemmuleError(thrown, `cannot read ${this.name} any more (was it changed or moved?)`);
        }
        throwIfAborted(signal);
        if (found !== length) throw shortRead(this, offset, length, found);
        return bytes;
    }
}

/** The error of a read that got fewer bytes than it wanted. */
export function shortRead(source: ByteSource, offset: number, length: number, found: number): GemmuleError {
    return new GemmuleError('Storage', `cannot read ${source.name}: wanted ${length} bytes at ${offset}, found ${found}`);
}

/** Throws for a read that does not lie within the source. */
export function checkRange(source: ByteSource, offset: number, length: number): void {
    if (Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= 0 && length >= 0 && offset + length <= source.size) return;
    throw new GemmuleError('BadArgument', `cannot read ${source.name}: bytes ${offset} to ${offset + length} of ${source.size} do not exist`);
}

/** The bytes of a data: URL, decoded here because a Content-Security-Policy may forbid fetching it. */
export function decodeDataUrl(url: string): { type: string; bytes: Uint8Array<ArrayBuffer> } {
    const comma = url.indexOf(',');
    if (!/^data:/i.test(url) || comma < 0) throw new GemmuleError('BadArgument', 'not a data: URL with a comma');
    const head = url.slice(5, comma);
    const base64 = /;\s*base64\s*$/i.test(head);
    const type = head.replace(/;\s*base64\s*$/i, '') || 'text/plain;charset=US-ASCII';
    const body = percentDecode(url.slice(comma + 1));
    if (!base64) return { type, bytes: body };
    try {
        const text = atob(new TextDecoder('latin1').decode(body).replace(/[\t\n\f\r ]/g, ''));
        return { type, bytes: Uint8Array.from(text, (letter) => letter.charCodeAt(0)) };
    } catch (thrown) {
        throw new GemmuleError('BadArgument', 'the data: URL is not base64', undefined, { cause: thrown });
    }
}

/* %41 → A; an invalid escape stays as it is. */
function percentDecode(text: string): Uint8Array<ArrayBuffer> {
    const bytes = new TextEncoder().encode(text);
    let length = 0;
    for (let at = 0; at < bytes.length; at++) {
        const escape = bytes[at] === 0x25 ? String.fromCharCode(bytes[at + 1] ?? 0, bytes[at + 2] ?? 0) : '';
        const isEscape = /^[0-9a-f]{2}$/i.test(escape);
        bytes[length++] = isEscape ? parseInt(escape, 16) : bytes[at]!;
        if (isEscape) at += 2;
    }
    return bytes.slice(0, length);
}
