// What was typed and attached and not sent yet, by conversation ('' for a new one). It survives a reload. A message that was sent but is not stored
// yet, because it waits for the model or for another answer, is held in this tab's storage: after a reload it is a draft again.

import type { Attachment } from './conversation.ts';
import { Store } from './store.ts';

const PREFIX = 'gemmule.draft.', MEDIA_PREFIX = 'gemmule.draft-media.';

interface Drafts {
    texts: Record<string, string>;
    attachments: Record<string, Attachment[]>;
}
const drafts = new Store<Drafts>({ texts: {}, attachments: {} });
const held = new Map<string, { id: string; text: string; attachments: Attachment[] }[]>();
const stored = new Map<string, Attachment[]>(); // as the page found them

export { drafts };

const join = (...texts: string[]): string => texts.filter((text) => text.trim() !== '').join('\n\n');

export function draftOf(place: string): string {
    const known = drafts.get().texts[place];
    if (known !== undefined) return known;
    try {
        return localStorage.getItem(PREFIX + place) ?? '';
    } catch {
        return ''; // storage is off
    }
}

/** What is attached to the draft: descriptions, whose content is in the database. */
export function attachedTo(place: string): Attachment[] {
    const known = drafts.get().attachments[place] ?? stored.get(place);
    if (known) return known;
    const found = readAttachments(() => localStorage, place);
    stored.set(place, found);
    return found;
}

function readAttachments(storage: () => Storage, place: string): Attachment[] {
    try {
        return JSON.parse(storage().getItem(MEDIA_PREFIX + place) ?? '[]') as Attachment[];
    } catch {
        return [];
    }
}

/** Makes drafts of the messages that this tab held when the page was left. Once, before anything is held anew. */
export function restoreHeld(): void {
    try {
        for (const key of Object.keys(sessionStorage).filter((each) => each.startsWith(PREFIX))) {
            putBack(key.slice(PREFIX.length), sessionStorage.getItem(key) ?? '', []);
            sessionStorage.removeItem(key);
        }
        for (const key of Object.keys(sessionStorage).filter((each) => each.startsWith(MEDIA_PREFIX))) {
            const place = key.slice(MEDIA_PREFIX.length);
            putBack(place, '', readAttachments(() => sessionStorage, place));
            sessionStorage.removeItem(key);
        }
    } catch {
        // Storage is off: nothing was held in it.
    }
}

export function setDraft(place: string, text: string): void {
    drafts.set({ texts: { ...drafts.get().texts, [place]: text } });
    store(() => localStorage, PREFIX + place, text);
}

export function setAttached(place: string, attachments: Attachment[]): void {
    drafts.set({ attachments: { ...drafts.get().attachments, [place]: attachments } });
    store(() => localStorage, MEDIA_PREFIX + place, attachments.length > 0 ? JSON.stringify(attachments) : '');
}

/** Puts what was not sent after all before what has been typed and attached since. */
export function putBack(place: string, text: string, attachments: Attachment[]): void {
    setDraft(place, join(text, draftOf(place)));
    if (attachments.length > 0) setAttached(place, [...attachments, ...attachedTo(place)]);
}

/** A conversation begins, or is taken back: what is being typed goes on there. */
export function moveDraft(from: string, to: string): void {
    const text = draftOf(from), attachments = attachedTo(from);
    if (text === '' && attachments.length === 0) return;
    dropDraft(from);
    putBack(to, text, attachments);
}

export function hold(place: string, id: string, text: string, attachments: Attachment[]): void {
    held.set(place, [...(held.get(place) ?? []), { id, text, attachments }]);
    storeHeld(place);
}

export function release(place: string, id: string): void {
    held.set(place, (held.get(place) ?? []).filter((each) => each.id !== id));
    storeHeld(place);
}

export function dropDraft(place: string): void {
    setDraft(place, '');
    setAttached(place, []);
}

function storeHeld(place: string): void {
    const all = held.get(place) ?? [], attachments = all.flatMap((each) => each.attachments);
    store(() => sessionStorage, PREFIX + place, join(...all.map((each) => each.text)));
    store(() => sessionStorage, MEDIA_PREFIX + place, attachments.length > 0 ? JSON.stringify(attachments) : '');
}

function store(storage: () => Storage, key: string, text: string): void {
    try {
        if (text.trim() === '') storage().removeItem(key);
        else storage().setItem(key, text);
    } catch {
        // No storage, or the text is too long for it: the draft lives until the page is closed.
    }
}
