// Files that are dropped, pasted or chosen: pictures, sounds and videos are attached to the message, text becomes part of it.

import { send } from '../answering.ts';
import { chat } from '../chat.ts';
import { attachedTo, draftOf, setAttached, setDraft } from '../drafts.ts';
import type { Attachment } from '../conversation.ts';
import { messageOf } from '../engine.ts';
import { formatBytes } from '../format.ts';
import { attach, attachVideo } from '../media.ts';
import { Store } from '../store.ts';

const MOST_BYTES = 4_000_000;

/** Whether files are being dragged; text that is dragged is the browser's own business. */
export const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes('Files') ?? false;

/** How many times files are being read at a place, and whether its message is to be sent then: sent at once, it would go without them. */
export const reading = new Store<{ places: Record<string, number>; later: Record<string, boolean> }>({ places: {}, later: {} });

const countReading = (place: string, more: number): void => {
    const { places } = reading.get();
    reading.set({ places: { ...places, [place]: (places[place] ?? 0) + more } });
};

const setLater = (place: string, later: boolean): void => reading.set({ later: { ...reading.get().later, [place]: later } });

/** Sends what was typed and attached at a place, once its files are read. */
export function sendDraft(place: string): void {
    if (chat.get().refusal?.place === place) chat.set({ refusal: null });
    if (reading.get().places[place]) return setLater(place, true);
    const text = draftOf(place);
    const attached = attachedTo(place);
    if (text.trim() === '' && attached.length === 0) return;
    setDraft(place, '');
    setAttached(place, []);
    send(place, text, attached);
}

type Taken = { attachment: Attachment | null } | { text: string } | { problem: string };

/** Attaches pictures, sounds and videos, and puts the text of other files behind the draft; says which can be neither. */
export async function takeFiles(place: string, files: File[]): Promise<void> {
    if (files.length === 0) return;
    await whileReading(place, () => addFiles(place, files));
    document.getElementById('composer')?.focus();
}

/** Holds the message of a place back meanwhile. False: what was dropped cannot be used, so that a message that waits is not sent. */
export async function whileReading(place: string, work: () => Promise<boolean>): Promise<void> {
    countReading(place, 1);
    try {
        if (!await work()) setLater(place, false);
    } finally {
        countReading(place, -1);
    }
    const { places, later } = reading.get();
    if (later[place] && !places[place]) {
        setLater(place, false);
        sendDraft(place);
    }
}

/** False: one of them was refused or taken back, so that the message is not what was to be sent. */
async function addFiles(place: string, files: File[]): Promise<boolean> {
    const read = await Promise.all(files.map((file) => readFile(place, file)));
    const attachments = read.flatMap((each) => ('attachment' in each && each.attachment ? [each.attachment] : []));
    if (attachments.length > 0) setAttached(place, [...attachedTo(place), ...attachments]);
    const texts = read.flatMap((each) => ('text' in each ? [each.text] : []));
    const problems = read.flatMap((each) => ('problem' in each ? [each.problem] : []));
    if (texts.length > 0) setDraft(place, [draftOf(place), ...texts].filter((text) => text.trim() !== '').join('\n\n'));
    if (problems.length > 0) chat.set({ refusal: { place, question: null, content: '', why: problems.join(' ') } });
    return attachments.length + texts.length === files.length;
}

async function readFile(place: string, file: File): Promise<Taken> {
    try {
        if (file.type.startsWith('video/')) return { attachment: await attachVideo(place, file, file.name || 'Video') };
        const attachment = await attach(file, file.name || (file.type.startsWith('audio/') ? 'Sound' : 'Picture'));
        return attachment ? { attachment } : await readText(file);
    } catch (error) {
        return { problem: messageOf(error).message };
    }
}

async function readText(file: File): Promise<{ text: string } | { problem: string }> {
    if (/\.gguf$/i.test(file.name)) return { problem: `${file.name} is a model or an adapter: choose it on the Models page, or under Adapters.` };
    if (file.size > MOST_BYTES) return { problem: `${file.name} is too large: ${formatBytes(file.size)}, and at most ${formatBytes(MOST_BYTES)} can be read.` };
    try {
        const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
        return text.includes('\0') ? { problem: `${file.name} is not a picture, a sound, a video or a text file.` } : { text: text.replaceAll('\r\n', '\n').trimEnd() };
    } catch (error) {
        return { problem: error instanceof TypeError ? `${file.name} is not a picture, a sound, a video or a text file.` : `${file.name} could not be read.` };
    }
}
