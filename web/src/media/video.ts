/* Videos: frames with their times. A page seeks in a video and draws what it shows; frames are chosen by time, because browsers do not tell
 * a video's rate. */

import { GemmuleError, throwIfAborted } from '../core/errors.ts';
import { fileName } from './files.ts';
import type { VideoFrameInput, VideoInput } from './types.ts';

/* Those of src/media/video.h. */
const FRAMES = 32;
const MOST_FRAMES = 512;
const RATE = 24;
const MOST_SIDE = 768; // a frame of 70 tokens has fewer pixels than 768 · 768

export interface VideoOptions {
    /** By default 32, and at most 24 per second. */
    frames?: number;
    signal?: AbortSignal;
    onProgress?(done: number, total: number): void;
}

/* Does something, and waits for an event that follows. */
async function after(video: HTMLVideoElement, event: string, what: string, signal: AbortSignal | undefined, start: () => void): Promise<void> {
    throwIfAborted(signal);
    return new Promise((resolve, reject) => {
        const over = new AbortController();
        const on = (target: EventTarget | undefined, name: string, end: () => void) =>
            target?.addEventListener(name, () => (over.abort(), end()), { signal: over.signal });
        on(video, event, resolve);
        on(video, 'error', () => reject(new GemmuleError('BadArgument', `${what} is not a video that this browser can play`, undefined, { cause: video.error })));
        on(signal, 'abort', () => reject(new GemmuleError('Aborted', 'stopped by the caller')));
        start();
    });
}

/* Waits for a picture that is shown from now on. "seeked" comes earlier: until then a canvas gets the picture before it, or none. A hidden
 * page shows nothing, and a browser need not show the same picture twice. */
function nextPicture(video: HTMLVideoElement): Promise<void> {
    const since = performance.now();
    return new Promise((resolve) => {
        const late = setTimeout(resolve, document.hidden ? 300 : 3000);
        const look: VideoFrameRequestCallback = (_, { presentationTime }) => {
            if (presentationTime < since) return void video.requestVideoFrameCallback(look);
            clearTimeout(late);
            resolve();
        };
        video.requestVideoFrameCallback?.(look);
    });
}

/* A recording does not say how long it is before it was played to the end. */
async function durationOf(video: HTMLVideoElement, seek: (time: number) => Promise<void>, what: string): Promise<number> {
    if (video.duration === Infinity) await seek(1e9);
    if (Number.isFinite(video.duration) && video.duration > 0) return video.duration;
    throw new GemmuleError('NotSupported', `${what} has no end: only a whole video can be looked at`);
}

function picture(video: HTMLVideoElement, canvas: OffscreenCanvasRenderingContext2D, what: string): ImageData {
    const { width, height } = canvas.canvas;
    let drawn: ImageData;
    try {
        canvas.clearRect(0, 0, width, height);
        canvas.drawImage(video, 0, 0, width, height);
        drawn = canvas.getImageData(0, 0, width, height);
    } catch (thrown) {
        throw new GemmuleError('NotSupported', `cannot read the pictures of ${what}: it comes from another site`, undefined, { cause: thrown });
    }
    if (drawn.data.some((value) => value !== 0)) return drawn;
    throw new GemmuleError('NotSupported', `this browser does not show the pictures of ${what}`);
}

async function take(video: HTMLVideoElement, what: string, { frames = FRAMES, signal, onProgress }: VideoOptions): Promise<VideoFrameInput[]> {
    if (!(frames >= 1 && frames <= MOST_FRAMES)) throw new GemmuleError('BadArgument', `a video has 1 to ${MOST_FRAMES} frames, not ${frames}`);
    const move = async (time: number) => {
        const shown = nextPicture(video);
        await after(video, 'seeked', what, signal, () => (video.currentTime = time));
        await shown;
    };
    const seek = async (time: number) => {
        if (video.currentTime === time) await move(time + video.duration / 2); // where it is, it would show no picture
        await move(time);
    };
    const { videoWidth, videoHeight } = video;
    if (!videoWidth || !videoHeight) throw new GemmuleError('BadArgument', `${what} has no pictures, only sound`, { onlySound: true });
    const duration = await durationOf(video, seek, what);
    const total = Math.max(1, Math.min(Math.floor(frames), Math.floor(duration * RATE)));
    const scale = Math.min(1, MOST_SIDE / Math.max(videoWidth, videoHeight));
    const canvas = new OffscreenCanvas(Math.max(1, Math.round(videoWidth * scale)), Math.max(1, Math.round(videoHeight * scale)));
    const context = canvas.getContext('2d', { willReadFrequently: true })!;
    context.imageSmoothingQuality = 'high';
    const taken: VideoFrameInput[] = [];
    for (let i = total - 1; i >= 0; i--) { // the first one last, since a video begins there
        const time = (i * duration) / total;
        await seek(time);
        taken.unshift({ time, image: picture(video, context, what) });
        onProgress?.(total - i, total);
    }
    return taken;
}

async function fromElement(video: HTMLVideoElement, options: VideoOptions): Promise<VideoFrameInput[]> {
    const { currentTime, paused } = video;
    if (video.readyState < HTMLMediaElement.HAVE_METADATA) throw new GemmuleError('BadArgument', 'the video element has no video yet: wait for loadedmetadata');
    if (video.srcObject) throw new GemmuleError('NotSupported', 'the video is a live stream: only a whole video can be looked at');
    video.pause();
    try {
        return await take(video, 'the video', options);
    } finally {
        video.currentTime = currentTime;
        if (!paused) video.play().catch(() => undefined);
    }
}

async function fromFile(blob: Blob, options: VideoOptions): Promise<VideoFrameInput[]> {
    const video = document.createElement('video');
    const what = fileName(blob, 'video');
    const address = URL.createObjectURL(blob);
    video.muted = true;
    video.preload = 'auto';
    try {
        await after(video, 'loadeddata', what, options.signal, () => (video.src = address));
        return await take(video, what, options);
    } finally {
        video.removeAttribute('src');
        video.load();
        URL.revokeObjectURL(address);
    }
}

/** Pictures of a video at equal distances, with their times: the frames of a part `{ type: 'video', frames }`. Only in a page. */
export async function videoFrames(input: VideoInput, options: VideoOptions = {}): Promise<VideoFrameInput[]> {
    throwIfAborted(options.signal);
    if (typeof document === 'undefined') {
        throw new GemmuleError('NotSupported', "the frames of a video are taken in a page: give them here, as { type: 'video', frames: [{ time, image }] }");
    }
    if (input instanceof HTMLVideoElement) return fromElement(input, options);
    if (input instanceof Blob) return fromFile(input, options);
    throw new GemmuleError('BadArgument', 'a video must be a Blob or a <video> element');
}

const kept = new WeakMap<Blob, VideoFrameInput[]>();

/** The same for a part of a message. The next question about the same Blob has the same frames at once. */
export async function keptFrames(input: VideoInput, signal?: AbortSignal): Promise<VideoFrameInput[]> {
    if (!(input instanceof Blob)) return videoFrames(input, { signal });
    const frames = kept.get(input) ?? (await videoFrames(input, { signal }));
    kept.set(input, frames);
    return frames;
}
