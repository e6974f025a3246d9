/* Sounds as plain data. The engine decodes WAV itself. The browser decodes everything else, on the page: workers have no decodeAudioData. */

import { GemmuleError } from '../core/errors.ts';
import { dataUrlBlob, fileName, readFile, withCommas as count } from './files.ts';
import { type SoundHeader, readSoundHeader } from './sound_header.ts';
import type { PlainSound, Samples, SoundInput } from './types.ts';

const [LOWEST_RATE, HIGHEST_RATE] = [1000, 768_000]; // Hz, those of src/media/sound.h
const USUAL_RATE = 48_000;

function checkSamples({ samples, sampleRate }: Samples): Samples {
    if (!(samples instanceof Float32Array)) throw new GemmuleError('BadArgument', 'samples must be a Float32Array');
    if (samples.length === 0) throw new GemmuleError('BadArgument', 'the sound has no samples');
    if (!(sampleRate >= LOWEST_RATE && sampleRate <= HIGHEST_RATE)) {
        throw new GemmuleError('BadArgument', `sampleRate must be from ${count(LOWEST_RATE)} to ${count(HIGHEST_RATE)} Hz, found ${String(sampleRate)}`);
    }
    return { samples, sampleRate: Math.round(sampleRate) };
}

/** The mean of all channels. */
export function mixDown(channels: readonly Float32Array[]): Float32Array {
    const [first] = channels as [Float32Array];
    if (channels.length === 1) return first.slice();
    return first.map((_, i) => {
        let sum = 0;
        for (const channel of channels) sum += channel[i]!;
        return sum / channels.length;
    });
}

function fromBuffer(buffer: AudioBuffer): PlainSound {
    const channels = Array.from({ length: buffer.numberOfChannels }, (_, i) => buffer.getChannelData(i));
    return checkSamples({ samples: mixDown(channels), sampleRate: buffer.sampleRate });
}

/* A context at the given rate. Browsers may refuse a rate that is unusually low or high. */
function offlineContext(rate: number): OfflineAudioContext {
    try {
        return new OfflineAudioContext(1, 1, rate || USUAL_RATE);
    } catch {
        return new OfflineAudioContext(1, 1, USUAL_RATE);
    }
}

async function decode(bytes: Uint8Array<ArrayBuffer>, { kind, rate }: SoundHeader, what: string): Promise<PlainSound> {
    if (typeof OfflineAudioContext !== 'function') {
        throw new GemmuleError('NotSupported', `${what}: ${kind} sounds need a browser's decoder; give WAV here, or samples`);
    }
    let buffer: AudioBuffer;
    try {
        buffer = await offlineContext(rate).decodeAudioData(bytes.buffer);
    } catch (thrown) {
        const why = `it is damaged, or this browser does not read such ${kind} files`;
        throw new GemmuleError('BadArgument', `cannot decode ${what}: ${why}`, undefined, { cause: thrown });
    }
    return fromBuffer(buffer);
}

async function fromBlob(blob: Blob): Promise<PlainSound> {
    const what = fileName(blob, 'sound');
    const bytes = await readFile(blob, what);
    const header = readSoundHeader(bytes);
    if (!header) throw new GemmuleError('BadArgument', `${what} is not a sound that can be read: WAV, MP3, Ogg, FLAC or M4A was expected`);
    return header.kind === 'WAV' ? { bytes } : decode(bytes, header, what);
}

/** A sound as the engine takes it. */
export async function plainSound(input: SoundInput): Promise<PlainSound> {
    if (typeof input === 'string' || input instanceof URL) return fromBlob(dataUrlBlob(input, 'a sound'));
    if (input instanceof Blob) return fromBlob(input);
    if (typeof AudioBuffer === 'function' && input instanceof AudioBuffer) return fromBuffer(input);
    if (typeof input === 'object' && input !== null && 'samples' in input) return checkSamples(input as Samples);
    throw new GemmuleError('BadArgument', 'a sound must be a Blob, an AudioBuffer, { samples, sampleRate } or a data: URL');
}
