// A gate between the engine and a page of the app.

import type { Page } from 'playwright-core';

export interface Gate {
    /** So many pieces of answers come through; then they wait. */
    open(pieces: number): void;
    /** How often the engine was asked to stop. */
    stops: number;
}
export const gate = (page: Page, pieces: number): Promise<void> => page.evaluate((count) => (window as unknown as { gate: Gate }).gate.open(count), pieces);

/** Puts a gate between the engine and the page, so that a test can look at an answer while it is being written. A piece is a word, or a step
 * of a canvas. For `addInitScript`. */
export function makeGate(): void {
    const line: { piece: boolean; pass: () => void }[] = [];
    let left = 1e9;
    const drain = (): void => {
        while (line.length > 0 && (!line[0]!.piece || left > 0)) {
            if (line[0]!.piece) left--;
            line.shift()!.pass();
        }
    };
    const own = Object.getOwnPropertyDescriptor(Worker.prototype, 'onmessage')!, { postMessage } = Worker.prototype;
    const made: Gate = ((window as unknown as { gate: Gate }).gate = { open: (pieces) => { left = pieces; drain(); }, stops: 0 });
    Worker.prototype.postMessage = function post(this: Worker, ...given: [unknown, never]) {
        if ((given[0] as { op?: string }).op === 'abort') made.stops++;
        return postMessage.apply(this, given);
    };
    Object.defineProperty(Worker.prototype, 'onmessage', {
        ...own,
        set(this: Worker, handler: (event: MessageEvent) => void) {
            own.set!.call(this, (event: MessageEvent<{ event?: { kind?: string } }>) => {
                line.push({ piece: /^(?:content|canvas)$/.test(event.data?.event?.kind ?? ''), pass: () => handler.call(this, event) });
                drain();
            });
        },
    });
}
