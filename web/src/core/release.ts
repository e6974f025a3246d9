// Frees memory at once. Every read in a browser allocates a new buffer, which stays until the garbage collector runs: hundreds of megabytes on
// a page that reads gigabytes. (Byte streams that fill a given buffer would avoid that, but those of Blobs stall in Chromium, and not every
// browser has them.)

let nowhere: MessagePort | null = null;

/** Frees the bytes, which nobody may use afterwards. An array that is part of a larger buffer stays. */
export function release({ buffer, byteLength }: Uint8Array): void {
    if (byteLength !== buffer.byteLength) return;
    if (!nowhere) {
        const { port1, port2 } = new MessageChannel();
        port2.close();
        nowhere = port1;
    }
    try {
        nowhere.postMessage(null, [buffer as ArrayBuffer]);
    } catch {
        // Memory that cannot be transferred, as Node's pool.
    }
}
