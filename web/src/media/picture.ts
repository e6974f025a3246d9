/* Pictures as plain data. The engine decodes PNG and GIF itself, because a canvas spoils pixels with alpha. The browser decodes JPEG, WebP
 * and AVIF: without colour management, so that pixels are those of the file, and upright, by their EXIF orientation. */

import { GemmuleError } from '../core/errors.ts';
import { dataUrlBlob, fileName, readFile, withCommas as count } from './files.ts';
import { type PictureHeader, readPictureHeader } from './picture_header.ts';
import type { PictureInput, PlainPicture } from './types.ts';

/* Those of src/media/picture.h. */
const MOST_SIDE = 32_768;
const MOST_PIXELS = 100_000_000;
const HEADER_BYTES = 1 << 20; // an EXIF preview may come before the size

function checkSize(width: number, height: number, what: string): void {
    if (width > 0 && height > 0 && width <= MOST_SIDE && height <= MOST_SIDE && width * height <= MOST_PIXELS) return;
    const size = `${what} has ${count(width)} × ${count(height)} pixels`;
    if (width === 0 || height === 0) throw new GemmuleError('BadArgument', size);
    const most = `at most ${count(MOST_PIXELS)} pixels, and ${count(MOST_SIDE)} along a side, are supported`;
    throw new GemmuleError('NotSupported', `${size}: ${most}`);
}

/** Red, green and blue of RGBA. Alpha is dropped, as by Pillow's convert('RGB'). */
export function dropAlpha(rgba: Uint8Array | Uint8ClampedArray): Uint8Array {
    const pixels = rgba.length / 4;
    const rgb = new Uint8Array(3 * pixels);
    for (let i = 0, from = 0, to = 0; i < pixels; i++, from += 4, to += 3) {
        rgb[to] = rgba[from]!;
        rgb[to + 1] = rgba[from + 1]!;
        rgb[to + 2] = rgba[from + 2]!;
    }
    return rgb;
}

function drawn(source: CanvasImageSource, width: number, height: number): PlainPicture {
    checkSize(width, height, 'the picture');
    const context = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true });
    if (!context) throw new GemmuleError('OutOfMemory', `no memory for a canvas of ${count(width)} × ${count(height)} pixels`);
    context.drawImage(source, 0, 0);
    return { pixels: dropAlpha(context.getImageData(0, 0, width, height).data), width, height };
}

// ---- files ----

const REFUSED: Partial<Record<PictureHeader['kind'], string>> = {
    HEIC: 'HEIC pictures are not supported: convert it to JPEG, or take photos as "Most Compatible"',
    BMP: 'BMP pictures are not supported: convert it to PNG',
    TIFF: 'TIFF pictures are not supported: convert it to PNG',
    SVG: 'SVG pictures are not supported: convert it to PNG',
    'JPEG XL': 'JPEG XL pictures are not supported: convert it to PNG or JPEG',
};

/** The kind and size of a picture file, from its first bytes. Throws if it is none, or one that cannot be read. */
export async function pictureHeader(blob: Blob): Promise<PictureHeader> {
    const what = fileName(blob, 'picture');
    const header = readPictureHeader(await readFile(blob, what, HEADER_BYTES));
    if (!header) throw new GemmuleError('BadArgument', `${what} is not a picture that can be read: PNG, GIF, JPEG, WebP or AVIF was expected`);
    const refused = REFUSED[header.kind];
    if (refused) throw new GemmuleError('NotSupported', `${what}: ${refused}`);
    if (header.width === 0 || header.height === 0) throw new GemmuleError('BadArgument', `${what} is a damaged ${header.kind} file: it has no size`);
    checkSize(header.width, header.height, what);
    return header;
}

async function decode(blob: Blob, { kind }: PictureHeader, what: string): Promise<PlainPicture> {
    if (typeof createImageBitmap !== 'function') {
        throw new GemmuleError('NotSupported', `${what}: ${kind} pictures need a browser's decoder; give PNG or GIF here, or pixels`);
    }
    let bitmap: ImageBitmap;
    try {
        bitmap = await createImageBitmap(blob, { colorSpaceConversion: 'none', premultiplyAlpha: 'none' });
    } catch (thrown) {
        const why = kind === 'AVIF' ? 'it is damaged, or this browser does not read AVIF' : `the ${kind} file is damaged`;
        throw new GemmuleError('BadArgument', `cannot decode ${what}: ${why}`, undefined, { cause: thrown });
    }
    try {
        return drawn(bitmap, bitmap.width, bitmap.height);
    } finally {
        bitmap.close();
    }
}

async function fromBlob(blob: Blob): Promise<PlainPicture> {
    const header = await pictureHeader(blob);
    const what = fileName(blob, 'picture');
    if (header.kind === 'PNG' || header.kind === 'GIF') return { bytes: await readFile(blob, what) };
    return decode(blob, header, what);
}

// ---- any input ----

function fromImageData({ data, width, height }: ImageData): PlainPicture {
    checkSize(width, height, 'the picture');
    if (data.length !== 4 * width * height) {
        throw new GemmuleError('BadArgument', `the picture has ${count(data.length)} values: ${count(width)} × ${count(height)} pixels of RGBA were expected`);
    }
    if (data.BYTES_PER_ELEMENT !== 1) throw new GemmuleError('NotSupported', 'an ImageData must have 8 bits per channel');
    return { pixels: dropAlpha(data), width, height };
}

const isA = (name: string, value: unknown): boolean => {
    const type = (globalThis as Record<string, unknown>)[name];
    return typeof type === 'function' && value instanceof type;
};

/** A picture as the engine takes it. */
export async function plainPicture(input: PictureInput): Promise<PlainPicture> {
    if (typeof input === 'string' || input instanceof URL) return fromBlob(dataUrlBlob(input, 'a picture'));
    if (input instanceof Blob) return fromBlob(input);
    if (isA('ImageBitmap', input) || isA('HTMLCanvasElement', input) || isA('OffscreenCanvas', input)) {
        const source = input as ImageBitmap | HTMLCanvasElement | OffscreenCanvas;
        return drawn(source, source.width, source.height);
    }
    if (typeof input === 'object' && input !== null && 'data' in input && 'width' in input && 'height' in input) return fromImageData(input as ImageData);
    throw new GemmuleError('BadArgument', 'a picture must be a Blob, an ImageData, an ImageBitmap, a canvas or a data: URL');
}
