// Memory given back at once. What a browser reads comes in memory of its own each time, which lies around until a collector comes: for a page that
// reads gigabytes these are hundreds of megabytes. (Streams that fill memory that they are given would do without, but those of Blobs stall in
// Chromium, and not every browser has them.)

let nowhere: MessagePort | null = null;

/** Nobody may use these bytes any more. Only what owns the whole of its memory goes. */
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
        // Memory that the platform keeps for itself, as Node does.
    }
}
