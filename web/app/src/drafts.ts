// What was typed and not sent yet, by conversation ('' for a new one). It survives a reload. A message that was sent but is not stored
// yet, because it waits for the model or for another answer, is held in this tab's storage: after a reload it is a draft again.

import { Store } from './store.ts';

const PREFIX = 'gemmule.draft.';

const drafts = new Store<{ texts: Record<string, string> }>({ texts: {} });
const held = new Map<string, { id: string; text: string }[]>();

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

/** Makes drafts of the messages that this tab held when the page was left. Once, before anything is held anew. */
export function restoreHeld(): void {
    try {
        for (const key of Object.keys(sessionStorage).filter((each) => each.startsWith(PREFIX))) {
            putBack(key.slice(PREFIX.length), sessionStorage.getItem(key) ?? '');
            sessionStorage.removeItem(key);
        }
    } catch {
        // Storage is off: nothing was held in it.
    }
}

export function setDraft(place: string, text: string): void {
    drafts.set({ texts: { ...drafts.get().texts, [place]: text } });
    store(() => localStorage, place, text);
}

/** Puts a text that was not sent after all before what has been typed since. */
export function putBack(place: string, text: string): void {
    setDraft(place, join(text, draftOf(place)));
}

export function hold(place: string, id: string, text: string): void {
    held.set(place, [...(held.get(place) ?? []), { id, text }]);
    storeHeld(place);
}

export function release(place: string, id: string): void {
    held.set(place, (held.get(place) ?? []).filter((each) => each.id !== id));
    storeHeld(place);
}

export function dropDraft(place: string): void {
    setDraft(place, '');
}

function storeHeld(place: string): void {
    store(() => sessionStorage, place, join(...(held.get(place) ?? []).map((each) => each.text)));
}

function store(storage: () => Storage, place: string, text: string): void {
    try {
        if (text.trim() === '') storage().removeItem(PREFIX + place);
        else storage().setItem(PREFIX + place, text);
    } catch {
        // No storage, or the text is too long for it: the draft lives until the page is closed.
    }
}
