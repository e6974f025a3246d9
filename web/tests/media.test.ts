/* Pictures and sounds before they reach the engine: headers, limits, refusals, and their cost in tokens. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { plainPicture } from '../src/media/picture.ts';
import { type PictureHeader, readPictureHeader } from '../src/media/picture_header.ts';
import { plainSound } from '../src/media/sound.ts';
import { readSoundHeader } from '../src/media/sound_header.ts';
import { pictureTokens, soundTokens } from '../src/media/tokens.ts';
import type { PictureBudget, PictureInput, SoundInput } from '../src/media/types.ts';

// ---- files made by hand ----

type Piece = string | number[];
const join = (...pieces: Piece[]): Uint8Array<ArrayBuffer> =>
    Uint8Array.from(pieces.flatMap((piece) => (typeof piece === 'string' ? [...piece].map((letter) => letter.charCodeAt(0)) : piece)));
const big = (n: number, count: number) => Array.from({ length: count }, (_, i) => Math.floor(n / 256 ** (count - 1 - i)) % 256);
const little = (n: number, count: number) => big(n, count).reverse();
const zeros = (count: number) => new Array<number>(count).fill(0);
const box = (type: string, ...content: Piece[]): number[] => {
    const inside = [...join(...content)];
    return [...join(big(inside.length + 8, 4), type, inside)];
};

const png = (width: number, height: number) => join('\x89PNG\r\n\x1a\n', big(13, 4), 'IHDR', big(width, 4), big(height, 4), [8, 2, 0, 0, 0]);
const jpeg = (width: number, height: number) =>
    join([0xff, 0xd8, 0xff, 0xe0], big(6, 2), 'JFIF', [0xff, 0xff, 0xc4], big(3, 2), [9, 0xff, 0xc2], big(11, 2), [8], big(height, 2), big(width, 2));
const ispe = (width: number, height: number) => box('ispe', zeros(4), big(width, 4), big(height, 4));
const iso = (brands: string, ...sizes: [number, number][]) =>
    join(box('ftyp', brands.slice(0, 4), zeros(4), brands.slice(4)), box('meta', zeros(4), box('iprp', box('ipco', ...sizes.map((size) => ispe(...size))))));
const webp = (chunk: string, content: number[]) => join('RIFF', little(100, 4), 'WEBP', chunk, little(content.length, 4), content);

test('picture headers: kind and size', () => {
    const cases: [Uint8Array, PictureHeader | null][] = [
        [png(640, 480), { kind: 'PNG', width: 640, height: 480 }],
        [join('GIF89a', little(17, 2), little(300, 2)), { kind: 'GIF', width: 17, height: 300 }],
        [jpeg(4032, 3024), { kind: 'JPEG', width: 4032, height: 3024 }],
        [join([0xff, 0xd8, 0xff, 0xe1], big(60_000, 2)), { kind: 'JPEG', width: 0, height: 0 }], // cut off
        [webp('VP8 ', [0, 0, 0, 0x9d, 1, 0x2a, ...little(0x4000 + 320, 2), ...little(200, 2)]), { kind: 'WebP', width: 320, height: 200 }],
        [webp('VP8L', [0x2f, ...little(((200 - 1) << 14) | (320 - 1), 4)]), { kind: 'WebP', width: 320, height: 200 }],
        [webp('VP8X', [...zeros(4), ...little(40_000 - 1, 3), ...little(2, 3)]), { kind: 'WebP', width: 40_000, height: 3 }],
        [iso('avifmif1', [64, 64], [3000, 2000]), { kind: 'AVIF', width: 3000, height: 2000 }],
        [iso('heicmif1', [512, 512]), { kind: 'HEIC', width: 512, height: 512 }],
        [iso('isommp42'), null], // a film
        [join('BM', zeros(30)), { kind: 'BMP', width: 0, height: 0 }],
        [join('II*\0', zeros(30)), { kind: 'TIFF', width: 0, height: 0 }],
        [join('<?xml version="1.0"?>\n<!-- a <b> --><svg xmlns="http://www.w3.org/2000/svg">'), { kind: 'SVG', width: 0, height: 0 }],
        [join('hello'), null],
        [join(), null],
    ];
    for (const [bytes, expected] of cases) assert.deepEqual(readPictureHeader(bytes), expected);
});

test('no picture header makes its parser throw or run on', () => {
    for (const whole of [png(1, 1), jpeg(9, 9), iso('avif', [5, 5]), webp('VP8X', zeros(10))]) {
        for (let length = 0; length < whole.length; length++) {
            readPictureHeader(whole.subarray(0, length));
            readPictureHeader(whole.map((byte, i) => (i === length ? 255 - byte : byte)));
        }
    }
});

test('sound headers: kind and rate', () => {
    const mp4 = (entryRate: number, timescale: number) =>
        join(box('ftyp', 'M4A ', zeros(4)), box('moov', box('trak', box('mdia', box('hdlr', zeros(8), 'vide'))),
            box('trak', box('mdia', box('mdhd', zeros(12), big(timescale, 4)), box('hdlr', zeros(8), 'soun'),
                box('minf', box('stbl', box('stsd', zeros(8), box('mp4a', zeros(24), big(entryRate, 2), zeros(2)))))))));
    const made: [Uint8Array, string, number][] = [
        [mp4(44_100, 1000), 'M4A', 44_100],
        [mp4(0, 96_000), 'M4A', 96_000],
        [join('ID3', [4, 0, 0, 0, 0, 1, 2], zeros(130), [0xff, 0xf1, 0x5c]), 'AAC', 22_050],
        [join([0x1a, 0x45, 0xdf, 0xa3]), 'WebM', 0],
        [join('ID3', [4, 0, 0, 0, 0, 0, 3], zeros(3)), 'MP3', 0], // tags and nothing else
    ];
    const files = ['mp3:22050', 'flac:32000', 'ogg:16000', 'opus:48000', 'wav:8000'].map((name): [Uint8Array, string, number] => {
        const [type, rate] = name.split(':') as [string, string];
        const kind = ({ mp3: 'MP3', flac: 'FLAC', wav: 'WAV' } as Record<string, string>)[type] ?? 'Ogg';
        return [readFileSync(`tests/fixtures/sounds/tone-${rate}.${type}`), kind, Number(rate)];
    });
    for (const [bytes, kind, rate] of [...made, ...files]) assert.deepEqual(readSoundHeader(bytes), { kind, rate });
    const stereo = readFileSync('tests/fixtures/sounds/tone-44100-stereo.mp3');
    const tagged = Buffer.concat([join('ID3', [3, 0, 0, 0, 0, 0, 5], zeros(5), [0xff, 0xfb]), stereo]); // and a false start
    for (const bytes of [stereo, tagged]) assert.deepEqual(readSoundHeader(bytes), { kind: 'MP3', rate: 44_100 });
    for (const other of [png(1, 1), join('hello'), join(), join(zeros(100), [0xff, 0xfb, 0x90])]) assert.equal(readSoundHeader(other), null);
});

test('what cannot be read is refused with its name and the reason', async () => {
    const file = (bytes: Uint8Array<ArrayBuffer>, name = 'a.bin') => new File([bytes], name);
    const pictures: [unknown, string, RegExp][] = [
        [file(iso('heicmif1', [64, 64]), 'IMG_1.HEIC'), 'NotSupported', /^IMG_1\.HEIC: HEIC pictures are not supported/],
        [file(png(40_000, 40_000)), 'NotSupported', /^a\.bin has 40,000 × 40,000 pixels: at most 100,000,000 pixels/],
        [file(jpeg(12_000, 12_000)), 'NotSupported', /12,000 × 12,000/],
        [file(png(0, 5)), 'BadArgument', /damaged PNG file/],
        [file(join()), 'BadArgument', /^a\.bin is empty/],
        [file(join('hello')), 'BadArgument', /not a picture that can be read: PNG, GIF, JPEG, WebP or AVIF/],
        [new Blob([jpeg(8, 8)]), 'NotSupported', /^the picture: JPEG pictures need a browser's decoder/], // this is Node
        ['https://example.com/a.png', 'NotSupported', /must be a Blob or a data: URL, found "https:\/\/example\.com\/a\.png"/],
        [{ data: new Uint8ClampedArray(8), width: 4, height: 4 }, 'BadArgument', /has 8 values: 4 × 4 pixels/],
        [42, 'BadArgument', /a picture must be a Blob/],
    ];
    for (const [input, name, message] of pictures) await assert.rejects(plainPicture(input as PictureInput), { name, message });
    const sounds: [unknown, string, RegExp][] = [
        [file(join('hello')), 'BadArgument', /not a sound that can be read: WAV, MP3/],
        [file(join()), 'BadArgument', /is empty/],
        [{ samples: new Float32Array(0), sampleRate: 16_000 }, 'BadArgument', /no samples/],
        [{ samples: new Float32Array(9), sampleRate: 1 }, 'BadArgument', /sampleRate must be from 1,000 to 768,000 Hz, found 1/],
        [{ samples: [1, 2], sampleRate: 16_000 }, 'BadArgument', /Float32Array/],
        ['http://example.com/a.wav', 'NotSupported', /nothing is fetched/],
        [new File([readFileSync('tests/fixtures/sounds/tone-32000.flac')], 'a.flac'), 'NotSupported', /^a\.flac: FLAC sounds need a browser's decoder/],
        [null, 'BadArgument', /a sound must be a Blob/],
    ];
    for (const [input, name, message] of sounds) await assert.rejects(plainSound(input as SoundInput), { name, message });
});

test('what the engine decodes passes as bytes, and pixels lose their alpha', async () => {
    const bytes = png(3, 2);
    assert.deepEqual(await plainPicture(new Blob([bytes])), { bytes });
    assert.deepEqual(await plainPicture(`data:image/png;base64,${Buffer.from(bytes).toString('base64')}`), { bytes });
    const wav = new Uint8Array(readFileSync('tests/fixtures/sounds/tone-8000.wav'));
    assert.deepEqual(await plainSound(new Blob([wav])), { bytes: wav });
    const pixels = await plainPicture({ data: Uint8ClampedArray.of(1, 2, 3, 0, 4, 5, 6, 255), width: 2, height: 1 } as ImageData);
    assert.deepEqual(pixels, { pixels: Uint8Array.of(1, 2, 3, 4, 5, 6), width: 2, height: 1 });
});

test('tokens of pictures and sounds', () => {
    const pictures: [number, number, PictureBudget, number][] = [
        [224, 224, 280, 256], [1920, 1080, 280, 264], [640, 480, 280, 266], [10_000, 10, 70, 70], [10, 10_000, 280, 280], [300, 1, 280, 280],
    ];
    for (const [width, height, budget, soft] of pictures) assert.equal(pictureTokens(width, height, budget), soft + 2, `${width} × ${height}`);
    assert.throws(() => pictureTokens(1, 1, 100 as PictureBudget), { name: 'BadArgument', message: /70, 140, 280, 560, 1120/ });
    assert.deepEqual([30, 1, 60].map(soundTokens), [750 + 2, 25 + 2, 1500 + 2]);
});
