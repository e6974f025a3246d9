/* The microphone: records samples at the device's own rate, without the browser's processing, which changes levels by a factor of two. */

import { GemmuleError, throwIfAborted } from '../core/errors.ts';
import type { Samples } from './types.ts';

export interface MicrophoneOptions {
    /** Of `navigator.mediaDevices.enumerateDevices()`; by default the one that the user chose in the browser. */
    deviceId?: string;
    /** Called about 20 times per second with the level from 0 to 1 (the loudest sample since the last call) and the seconds recorded. */
    onLevel?(level: number, seconds: number): void;
    /** Called once when the recording ends by itself: the device is gone, or `mostSeconds` are over. Call `stop` for the samples. */
    onEnd?(): void;
    /** By default an hour. */
    mostSeconds?: number;
    /** Where microphone_worklet.js is; by default beside the package's script. */
    workletUrl?: string | URL;
    signal?: AbortSignal;
}

const REFUSALS: Record<string, [ConstructorParameters<typeof GemmuleError>[0], string]> = {
    NotAllowedError: ['NotSupported', 'microphone access is blocked: allow it for this site in the browser'],
    SecurityError: ['NotSupported', 'this page may not use the microphone'],
    NotFoundError: ['NotFound', 'there is no microphone'],
    OverconstrainedError: ['NotFound', 'there is no such microphone'],
    NotReadableError: ['Busy', 'the microphone cannot be opened: another program may be using it'],
};

async function openStream(deviceId: string | undefined): Promise<MediaStream> {
    if (!globalThis.navigator?.mediaDevices?.getUserMedia || typeof AudioWorkletNode !== 'function') {
        throw new GemmuleError('NotSupported', 'there is no access to a microphone here: a page in a secure context (https, or localhost) is needed');
    }
    const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false, ...(deviceId ? { deviceId: { exact: deviceId } } : {}) };
    try {
        return await navigator.mediaDevices.getUserMedia({ audio });
    } catch (thrown) {
        const { name, message } = thrown as Error;
        const [kind, why] = REFUSALS[name] ?? ['NotSupported', `cannot open the microphone: ${message}`];
        throw new GemmuleError(kind, why, undefined, { cause: thrown });
    }
}

const endTracks = (stream: MediaStream) => stream.getTracks().forEach((track) => track.stop());

/** A recording that is under way. */
export class Microphone {
    readonly sampleRate: number;
    readonly #context: AudioContext;
    readonly #stream: MediaStream;
    readonly #node: AudioWorkletNode;
    readonly #blocks: Float32Array[] = [];
    readonly #options: MicrophoneOptions;
    #count = 0;
    #flushed: (() => void) | null = null;
    #closed = false;
    #over = false;

    /** Asks for the microphone and starts recording. */
    static async start(options: MicrophoneOptions = {}): Promise<Microphone> {
        throwIfAborted(options.signal);
        const stream = await openStream(options.deviceId);
        let context: AudioContext | null = null;
        try {
            // Firefox does not tell the rate, and runs the context at that of the device by itself.
            const rate = stream.getAudioTracks()[0]?.getSettings().sampleRate;
            context = new AudioContext(rate ? { sampleRate: rate } : {});
            await context.audioWorklet.addModule(options.workletUrl ?? new URL('./microphone_worklet.js', import.meta.url));
            await context.resume();
            throwIfAborted(options.signal);
            return new Microphone(context, stream, options);
        } catch (thrown) {
            endTracks(stream);
            await context?.close();
            if (thrown instanceof GemmuleError) throw thrown;
            throw new GemmuleError('NotSupported', `cannot record: ${(thrown as Error).message}`, undefined, { cause: thrown });
        }
    }

    private constructor(context: AudioContext, stream: MediaStream, options: MicrophoneOptions) {
        this.sampleRate = context.sampleRate;
        this.#context = context;
        this.#stream = stream;
        this.#options = options;
        this.#node = new AudioWorkletNode(context, 'gemmule-microphone', { numberOfOutputs: 0 });
        this.#node.port.onmessage = ({ data }) => (data ? this.#take(data as Float32Array) : this.#flushed?.());
        context.createMediaStreamSource(stream).connect(this.#node);
        stream.getAudioTracks()[0]?.addEventListener('ended', () => this.#endByItself());
        options.signal?.addEventListener('abort', () => void this.cancel(), { once: true });
    }

    /** Recorded so far. */
    get seconds(): number {
        return this.#count / this.sampleRate;
    }

    #take(block: Float32Array): void {
        if (this.#closed) return;
        this.#blocks.push(block);
        this.#count += block.length;
        this.#options.onLevel?.(Math.min(block.reduce((most, value) => Math.max(most, Math.abs(value)), 0), 1), this.seconds);
        if (this.seconds >= (this.#options.mostSeconds ?? 3600)) this.#endByItself();
    }

    #endByItself(): void {
        if (this.#closed || this.#over) return;
        this.#over = true;
        this.#options.onEnd?.();
    }

    /** Ends the recording and gives back what was recorded. Throws if that is nothing. */
    async stop(): Promise<Samples> {
        if (this.#closed) throw new GemmuleError('BadArgument', 'the recording is over');
        const flushed = new Promise<void>((resolve) => (this.#flushed = resolve));
        this.#node.port.postMessage(null);
        await flushed;
        await this.cancel();
        if (!this.#count) throw new GemmuleError('BadArgument', 'nothing was recorded');
        const samples = new Float32Array(this.#count);
        let at = 0;
        for (const block of this.#blocks) {
            samples.set(block, at);
            at += block.length;
        }
        return { samples, sampleRate: this.sampleRate };
    }

    /** Ends the recording and drops it. */
    async cancel(): Promise<void> {
        if (this.#closed) return;
        this.#closed = true;
        endTracks(this.#stream);
        this.#node.disconnect();
        await this.#context.close();
    }
}
