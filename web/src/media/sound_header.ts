/* The kind of a sound and its sampling rate, from the first bytes of its file. Browsers decode to the rate that they are asked for, so
 * asking for the file's own rate keeps them from resampling: the engine does that. */

import { Bytes, boxes, findBox } from './bytes.ts';

export type SoundKind = 'WAV' | 'MP3' | 'Ogg' | 'FLAC' | 'M4A' | 'AAC' | 'WebM';

export interface SoundHeader {
    kind: SoundKind;
    /** In Hz; 0 if the header does not say. */
    rate: number;
}

/* ID3v2 comes before MP3, AAC and even FLAC. Its length has 7 bits per byte. */
function afterTags(bytes: Bytes): number {
    let at = 0;
    while (bytes.starts('ID3', at)) {
        const length = [6, 7, 8, 9].reduce((sum, i) => sum * 128 + (bytes.u8(at + i) & 0x7f), 0);
        at += 10 + length + (bytes.u8(at + 5) & 0x10 ? 10 : 0); // with a footer
    }
    return at;
}

const flacRate = (bytes: Bytes, streamInfo: number): number => bytes.big(streamInfo + 10, 3) >>> 4;

const MPEG_RATES = [44100, 48000, 32000];
/* kbit/s by index: MPEG 1 and MPEG 2, layers 1, 2 and 3. */
const MPEG_SPEEDS = {
    first: [
        [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448], [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
        [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
    ],
    second: [
        [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256], [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
        [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
    ],
} as const;

interface MpegFrame {
    rate: number;
    length: number;
}

function mpegFrame(bytes: Bytes, at: number): MpegFrame | null {
    const head = bytes.big(at, 4);
    const version = (head >>> 19) & 3; // 0: MPEG 2.5, 2: MPEG 2, 3: MPEG 1
    const layer = 4 - ((head >>> 17) & 3);
    const speed = (head >>> 12) & 15;
    const rateIndex = (head >>> 10) & 3;
    if (head >>> 21 !== 0x7ff || version === 1 || layer === 4 || rateIndex === 3 || speed === 0 || speed === 15) return null;
    const rate = MPEG_RATES[rateIndex]! / (version === 3 ? 1 : version === 2 ? 2 : 4);
    const bits = MPEG_SPEEDS[version === 3 ? 'first' : 'second'][layer - 1]![speed - 1]! * 1000;
    const padding = (head >>> 9) & 1;
    if (layer === 1) return { rate, length: (Math.floor((12 * bits) / rate) + padding) * 4 };
    const samples = layer === 3 && version !== 3 ? 72 : 144; // per frame, divided by 8
    return { rate, length: Math.floor((samples * bits) / rate) + padding };
}

/* Two frames in a row: eleven set bits alone also occur by chance. */
function mpegRate(bytes: Bytes, start: number): number {
    for (let at = start; at + 4 <= Math.min(bytes.length, start + 8192); at++) {
        const frame = mpegFrame(bytes, at);
        if (!frame) continue;
        const next = at + frame.length;
        if (next === bytes.length || mpegFrame(bytes, next)?.rate === frame.rate) return frame.rate;
    }
    return 0;
}

const AAC_RATES = [96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350];

const isAdts = (bytes: Bytes, at: number): boolean => bytes.u8(at) === 0xff && (bytes.u8(at + 1) & 0xf6) === 0xf0;

function oggRate(bytes: Bytes): number {
    const packet = 27 + bytes.u8(26); // after the page's table of segments
    if (bytes.starts('\x01vorbis', packet)) return bytes.little(packet + 12, 4);
    if (bytes.starts('OpusHead', packet)) return 48000; // Opus always decodes to this
    if (bytes.starts('\x7fFLAC', packet)) return flacRate(bytes, packet + 17);
    if (bytes.starts('Speex   ', packet)) return bytes.little(packet + 36, 4);
    return 0;
}

/* From the sample entry of the first track that has sound. Its rate is 0 above 65,535 Hz; then the track's time unit counts. */
function mp4Rate(bytes: Bytes): number {
    const moov = findBox(bytes, 'moov');
    for (const trak of moov ? boxes(bytes, moov.start, moov.end) : []) {
        const within = (path: string) => findBox(bytes, path, trak.start, trak.end);
        const handler = trak.type === 'trak' ? within('mdia/hdlr') : null;
        if (!handler || !bytes.starts('soun', handler.start + 8)) continue;
        const entry = within('mdia/minf/stbl/stsd');
        const time = within('mdia/mdhd');
        const rate = entry ? bytes.big(entry.start + 8 + 8 + 24, 2) : 0;
        if (rate || !time) return rate;
        return bytes.big(time.start + (bytes.u8(time.start) === 1 ? 20 : 12), 4);
    }
    return 0;
}

/** The length of a WAV file; 0 if its header does not say. */
export function wavSeconds(data: Uint8Array): number {
    const bytes = new Bytes(data);
    let perSecond = 0;
    for (let at = 12; at + 8 <= bytes.length; at += 8 + bytes.little(at + 4, 4) + (bytes.little(at + 4, 4) & 1)) {
        if (bytes.starts('fmt ', at)) perSecond = bytes.little(at + 16, 4);
        if (bytes.starts('data', at)) return perSecond ? Math.min(bytes.little(at + 4, 4), bytes.length - at - 8) / perSecond : 0;
    }
    return 0;
}

/** null: not a sound of a known kind. */
export function readSoundHeader(data: Uint8Array): SoundHeader | null {
    const bytes = new Bytes(data);
    if (/^(RIFF|RF64|BW64)$/.test(bytes.text(0, 4)) && bytes.starts('WAVE', 8)) {
        return { kind: 'WAV', rate: bytes.starts('fmt ', 12) ? bytes.little(24, 4) : 0 };
    }
    if (bytes.starts('OggS')) return { kind: 'Ogg', rate: oggRate(bytes) };
    if (bytes.starts('\x1a\x45\xdf\xa3')) return { kind: 'WebM', rate: 0 };
    if (bytes.starts('ftyp', 4)) return { kind: 'M4A', rate: mp4Rate(bytes) };
    const start = afterTags(bytes);
    if (bytes.starts('fLaC', start)) return { kind: 'FLAC', rate: flacRate(bytes, start + 8) };
    if (isAdts(bytes, start)) return { kind: 'AAC', rate: AAC_RATES[(bytes.u8(start + 2) >>> 2) & 15] ?? 0 };
    const rate = mpegRate(bytes, start);
    return rate || start > 0 ? { kind: 'MP3', rate } : null;
}
