/* Media that come as files: their bytes, their names for messages, and data: URLs. */

import { GemmuleError } from '../core/errors.ts';
import { decodeDataUrl } from '../sources/blob.ts';

const MOST_BYTES = 64 << 20;

/** 1234567 → "1,234,567" */
export const withCommas = (n: number): string => n.toLocaleString('en-GB');

/** The file's name, or "the picture" or the like. */
export function fileName(blob: Blob, kind: 'picture' | 'sound' | 'video'): string {
    return blob instanceof File && blob.name ? blob.name : `the ${kind}`;
}

/** The bytes of a file, or only the first ones. */
export async function readFile(blob: Blob, what: string, most = MOST_BYTES): Promise<Uint8Array<ArrayBuffer>> {
    if (blob.size === 0) throw new GemmuleError('BadArgument', `${what} is empty`);
    if (blob.size > MOST_BYTES) throw new GemmuleError('NotSupported', `${what} has ${withCommas(blob.size)} bytes: at most ${withCommas(MOST_BYTES)} are supported`);
    try {
        return new Uint8Array(await blob.slice(0, most).arrayBuffer());
    } catch (thrown) {
        // A File is a name, not its bytes.
        throw new GemmuleError('Storage', `cannot read ${what} any more (was it changed or moved?)`, undefined, { cause: thrown });
    }
}

/** The content of a data: URL. Nothing is fetched: any other address is refused. */
export function dataUrlBlob(address: string | URL, what: string): Blob {
    const text = String(address);
    if (!/^data:/i.test(text)) {
        const start = text.length > 40 ? `${text.slice(0, 40)}…` : text;
        throw new GemmuleError('NotSupported', `${what} must be a Blob or a data: URL, found "${start}": nothing is fetched from an address`);
    }
    const { type, bytes } = decodeDataUrl(text);
    return new Blob([bytes], { type });
}
