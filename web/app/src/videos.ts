// Videos: their frames are taken when they are attached, and are all that is kept of them. The frames are JPEG files, one after another in one Blob.

import type { Attachment } from './conversation.ts';
import { isAbort, videoFrames, type VideoFrameInput } from './engine.ts';
import { contextSize } from './sessions.ts';
import { Store } from './store.ts';

export const FRAME_BUDGET = 70;
const MOST_FRAMES = 32;
const FRAME_TOKENS = 80; // about, with the time before it
const QUALITY = 0.9;

/** A video whose frames are being taken. */
export interface Taking {
    id: string;
    place: string;
    name: string;
    done: number;
    total: number;
    stop: AbortController;
}

export const taking = new Store<{ videos: Taking[] }>({ videos: [] });

const change = (id: string, to: Partial<Taking>): void =>
    taking.set({ videos: taking.get().videos.map((each) => (each.id === id ? { ...each, ...to } : each)) });

/** As many frames as fit into half of the context, but 32 at most. */
const framesThatFit = (): number => Math.max(1, Math.min(MOST_FRAMES, Math.floor(contextSize() / 2 / FRAME_TOKENS)));

export interface Film {
    blob: Blob;
    width: number;
    height: number;
    seconds: number;
    frames: NonNullable<Attachment['frames']>;
}

async function packed(taken: VideoFrameInput[]): Promise<Film> {
    const { width, height } = taken[0]!.image as ImageData;
    const canvas = new OffscreenCanvas(width, height);
    const pictures: Blob[] = [];
    for (const { image } of taken) {
        canvas.getContext('2d')!.putImageData(image as ImageData, 0, 0);
        pictures.push(await canvas.convertToBlob({ type: 'image/jpeg', quality: QUALITY }));
    }
    const frames = taken.map(({ time }, i) => ({ time, bytes: pictures[i]!.size }));
    return { blob: new Blob(pictures), width, height, seconds: taken.at(-1)!.time, frames };
}

/** The frames of a video file, with progress in the tray of the place; null if the user stopped it. */
export async function takeVideo(place: string, file: Blob, name: string): Promise<Film | null> {
    const id = crypto.randomUUID(), stop = new AbortController();
    taking.set({ videos: [...taking.get().videos, { id, place, name, done: 0, total: 0, stop }] });
    try {
        return await packed(await videoFrames(file, { frames: framesThatFit(), signal: stop.signal, onProgress: (done, total) => change(id, { done, total }) }));
    } catch (error) {
        if (isAbort(error)) return null;
        throw error;
    } finally {
        taking.set({ videos: taking.get().videos.filter((each) => each.id !== id) });
    }
}

/** The pictures of a video that was kept. */
export function framesOf({ frames = [] }: Attachment, blob: Blob): { time: number; image: Blob }[] {
    let at = 0;
    return frames.map(({ time, bytes }) => ({ time, image: blob.slice(at, (at += bytes), 'image/jpeg') }));
}
