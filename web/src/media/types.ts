/* Pictures, sounds and videos: what a caller may give, and the plain data that goes to the engine. */

/** Soft tokens that a picture may cost at most. */
export const PICTURE_BUDGETS = [70, 140, 280, 560, 1120] as const;
export type PictureBudget = (typeof PICTURE_BUDGETS)[number];

/** A picture: a file's content (PNG, GIF, JPEG, WebP, and AVIF where the browser reads it), pixels, or a data: URL. */
export type PictureInput = Blob | ImageData | ImageBitmap | HTMLCanvasElement | OffscreenCanvas | string | URL;

/** Samples from -1 to 1, of one channel. */
export interface Samples {
    samples: Float32Array;
    /** In Hz. */
    sampleRate: number;
}

/** A sound: a file's content (WAV, and what the browser decodes: MP3, Ogg, FLAC, M4A), decoded sound, samples, or a data: URL. */
export type SoundInput = Blob | AudioBuffer | Samples | string | URL;

/** A video that the browser can play: a file's content, or an element, which is paused meanwhile. Only in a page. */
export type VideoInput = Blob | HTMLVideoElement;

/** A frame of a video. */
export interface VideoFrameInput {
    /** In seconds from the start. */
    time: number;
    image: PictureInput;
}

/** The bytes of a PNG or GIF, which the engine decodes itself, or RGB pixels, 3 bytes each. */
export type PlainPicture = { bytes: Uint8Array } | { pixels: Uint8Array; width: number; height: number };

/** The bytes of a WAV, or the samples of one channel. */
export type PlainSound = { bytes: Uint8Array } | Samples;

export interface PlainFrame {
    time: number;
    image: PlainPicture;
}
