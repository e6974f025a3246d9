// Recording: one at a time, as a sound for a message or to be written down by the model.

import { attach } from './media.ts';
import { Microphone, messageOf, type LoadedModel, type Samples } from './engine.ts';
import { attachedTo, draftOf, setAttached, setDraft } from './drafts.ts';
import { chat } from './chat.ts';
import { Store } from './store.ts';

/** What becomes of the recording: it is attached to the message, or its words are put into it. */
export type Purpose = 'attach' | 'dictate';

interface Recording {
    /** null: none. starting: the browser asks for the microphone. writing: the model writes down what was said. */
    phase: 'starting' | 'running' | 'writing' | null;
    purpose: Purpose;
    /** The draft that it belongs to. */
    place: string;
    level: number;
    seconds: number;
}

export const recording = new Store<Recording>({ phase: null, purpose: 'attach', place: '', level: 0, seconds: 0 });

const LONGEST = { attach: 600, dictate: 30 }; // seconds
let microphone: Microphone | null = null;
let abort = new AbortController();

const refuse = (place: string, why: string): void => chat.set({ refusal: { place, question: null, content: '', why } });

export async function startRecording(place: string, purpose: Purpose, loaded: LoadedModel | null): Promise<void> {
    if (recording.get().phase !== null) return;
    abort = new AbortController();
    const { signal } = abort;
    recording.set({ phase: 'starting', purpose, place, level: 0, seconds: 0 });
    try {
        microphone = await Microphone.start({
            signal, mostSeconds: LONGEST[purpose],
            onLevel: (level, seconds) => recording.set({ level, seconds }),
            onEnd: () => void finishRecording(loaded),
        });
        if (signal.aborted) return;
        recording.set({ phase: 'running' });
    } catch (error) {
        if (signal.aborted) return;
        recording.set({ phase: null });
        refuse(place, messageOf(error).message);
    }
}

export function cancelRecording(): void {
    abort.abort();
    void microphone?.cancel();
    microphone = null;
    recording.set({ phase: null });
}

/** Ends the recording and uses it. */
export async function finishRecording(loaded: LoadedModel | null): Promise<void> {
    const { place, purpose, phase } = recording.get();
    const { signal } = abort;
    if (phase !== 'running' || !microphone) return;
    try {
        const stopping = microphone.stop();
        microphone = null;
        const samples = await stopping;
        const sound = wavFile(purpose === 'attach' ? samples : withoutSilence(samples));
        if (purpose === 'attach') {
            const attachment = await attach(sound, sound.name);
            if (attachment) setAttached(place, [...attachedTo(place), attachment]);
        } else {
            recording.set({ phase: 'writing' });
            const words = await writeDown(loaded, sound, signal);
            if (words !== '') setDraft(place, [draftOf(place).trimEnd(), words].filter((text) => text !== '').join(' '));
        }
    } catch (error) {
        if (!signal.aborted) refuse(place, messageOf(error).message);
    }
    if (!signal.aborted) recording.set({ phase: null });
    document.getElementById('composer')?.focus();
}

const DICTATION = 'Transcribe this.';
const MOST_WORDS = 256; // tokens; nobody says more in LONGEST.dictate seconds

/** What is said in a recording. In a session of its own: the conversation stays as it is. */
async function writeDown(loaded: LoadedModel | null, sound: File, signal: AbortSignal): Promise<string> {
    if (!loaded) throw new Error('No model is loaded.');
    const session = await loaded.session({ context: Math.min(2048, loaded.info.context) });
    try {
        const message = { role: 'user' as const, content: [{ type: 'audio' as const, audio: sound }, { type: 'text' as const, text: DICTATION }] };
        let words = '';
        for await (const piece of session.reply([message], { sampling: { temperature: 0 }, maxTokens: MOST_WORDS, signal })) if (piece.kind === 'content') words += piece.text;
        return words.trim();
    } finally {
        await session.free().catch(() => undefined);
    }
}

const FRAME = 0.02, MARGIN = 0.1, QUIET = 0.05; // seconds, seconds, and a share of the loudest frame

/** Without the silence before and after the words: small models hear things in it, and it costs tokens. */
export function withoutSilence({ samples, sampleRate }: Samples): Samples {
    const frame = Math.round(FRAME * sampleRate), margin = Math.round(MARGIN * sampleRate);
    const loud = Array.from({ length: Math.ceil(samples.length / frame) }, (_, i) =>
        Math.sqrt(samples.subarray(i * frame, (i + 1) * frame).reduce((sum, value) => sum + value * value, 0) / frame));
    const least = QUIET * Math.max(...loud);
    const first = loud.findIndex((level) => level > least), last = loud.findLastIndex((level) => level > least);
    if (first < 0) return { samples, sampleRate };
    return { samples: samples.slice(Math.max(0, first * frame - margin), (last + 1) * frame + margin), sampleRate };
}

/** Samples as a WAV file of 16 bits, which every browser plays. */
function wavFile({ samples, sampleRate }: Samples): File {
    const file = new DataView(new ArrayBuffer(44 + 2 * samples.length));
    const text = (at: number, letters: string): void => [...letters].forEach((letter, i) => file.setUint8(at + i, letter.charCodeAt(0)));
    text(0, 'RIFF');
    text(8, 'WAVEfmt ');
    text(36, 'data');
    for (const [at, value] of [[4, file.byteLength - 8], [16, 16], [24, sampleRate], [28, 2 * sampleRate], [40, 2 * samples.length]] as const) file.setUint32(at, value, true);
    for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]] as const) file.setUint16(at, value, true);
    samples.forEach((value, i) => file.setInt16(44 + 2 * i, Math.max(-32768, Math.min(32767, Math.round(value * 32768))), true));
    return new File([file.buffer as ArrayBuffer], 'Recording.wav', { type: 'audio/wav' });
}
