/* The kind and the size of a picture, from the first bytes of its file. */

import { Bytes, boxes, findBox } from './bytes.ts';

export type PictureKind = 'PNG' | 'GIF' | 'JPEG' | 'WebP' | 'AVIF' | 'HEIC' | 'BMP' | 'TIFF' | 'SVG' | 'JPEG XL';

export interface PictureHeader {
    kind: PictureKind;
    /** As stored, before the EXIF orientation turns it; 0 if the header does not say. */
    width: number;
    height: number;
}

interface Size {
    width: number;
    height: number;
}

const UNKNOWN: Size = { width: 0, height: 0 };

/* The markers before the first frame header (SOF0 to SOF15, of which C4, C8 and CC are other things). */
function jpegSize(bytes: Bytes): Size {
    for (let at = 2; at + 4 <= bytes.length; ) {
        if (bytes.u8(at) !== 0xff) return UNKNOWN;
        const marker = bytes.u8(at + 1);
        if (marker === 0xff) at += 1; // padding
        else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) {
            return { height: bytes.big(at + 5, 2), width: bytes.big(at + 7, 2) };
        } else if (marker === 0x01 || (marker >= 0xd0 && marker <= 0xd8)) at += 2; // without a length
        else at += 2 + Math.max(bytes.big(at + 2, 2), 2);
    }
    return UNKNOWN;
}

function webpSize(bytes: Bytes): Size {
    if (bytes.starts('VP8X', 12)) return { width: bytes.little(24, 3) + 1, height: bytes.little(27, 3) + 1 };
    if (bytes.starts('VP8 ', 12)) return { width: bytes.little(26, 2) & 0x3fff, height: bytes.little(28, 2) & 0x3fff };
    if (!bytes.starts('VP8L', 12)) return UNKNOWN;
    const word = bytes.little(21, 4);
    return { width: (word & 0x3fff) + 1, height: ((word >>> 14) & 0x3fff) + 1 };
}

/* AVIF and HEIC are ISO files. Their picture may consist of tiles, so the largest size of all items counts. */
function isoHeader(bytes: Bytes): PictureHeader | null {
    const ftyp = findBox(bytes, 'ftyp');
    if (!ftyp) return null;
    const brands: string[] = [bytes.text(ftyp.start, 4)];
    for (let at = ftyp.start + 8; at + 4 <= ftyp.end; at += 4) brands.push(bytes.text(at, 4));
    const isAvif = brands.some((brand) => brand === 'avif' || brand === 'avis');
    if (!isAvif && !brands.some((brand) => /^(hei[cxms]|hev[cxms]|mif1|msf1)$/.test(brand))) return null;
    const size = { ...UNKNOWN };
    const properties = findBox(bytes, 'meta+4/iprp/ipco');
    for (const box of properties ? boxes(bytes, properties.start, properties.end) : []) {
        if (box.type !== 'ispe') continue;
        size.width = Math.max(size.width, bytes.big(box.start + 4, 4));
        size.height = Math.max(size.height, bytes.big(box.start + 8, 4));
    }
    return { kind: isAvif ? 'AVIF' : 'HEIC', ...size };
}

/** null: not a picture of a known kind. */
export function readPictureHeader(data: Uint8Array): PictureHeader | null {
    const bytes = new Bytes(data);
    if (bytes.starts('\x89PNG\r\n\x1a\n')) return { kind: 'PNG', width: bytes.big(16, 4), height: bytes.big(20, 4) };
    if (bytes.starts('GIF87a') || bytes.starts('GIF89a')) return { kind: 'GIF', width: bytes.little(6, 2), height: bytes.little(8, 2) };
    if (bytes.starts('\xff\xd8\xff')) return { kind: 'JPEG', ...jpegSize(bytes) };
    if (bytes.starts('RIFF') && bytes.starts('WEBP', 8)) return { kind: 'WebP', ...webpSize(bytes) };
    if (bytes.starts('ftyp', 4)) return isoHeader(bytes);
    if (bytes.starts('BM') && bytes.little(6, 4) === 0) return { kind: 'BMP', ...UNKNOWN };
    if (bytes.starts('II*\0') || bytes.starts('MM\0*')) return { kind: 'TIFF', ...UNKNOWN };
    if (bytes.starts('\xff\x0a') || bytes.starts('\0\0\0\x0cJXL ')) return { kind: 'JPEG XL', ...UNKNOWN };
    if (/^\s*(<\?xml[^>]*>\s*)?(<!--[^]*?-->\s*)*(<!DOCTYPE svg[^>]*>\s*)?<svg[\s>]/i.test(bytes.text(0, 1024))) return { kind: 'SVG', ...UNKNOWN };
    return null;
}
