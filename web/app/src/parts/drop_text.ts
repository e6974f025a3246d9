// Text files that are dropped onto a conversation become part of the message.

import { chat } from '../chat.ts';
import { draftOf, setDraft } from '../drafts.ts';
import { formatBytes } from '../format.ts';

const MOST_BYTES = 4_000_000;

/** Whether files are being dragged; text that is dragged is the browser's own business. */
export const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes('Files') ?? false;

/** Puts the text of files behind the draft; says which are not text. */
export async function takeFiles(place: string, files: File[]): Promise<void> {
    const read = await Promise.all(files.map(readText));
    const texts = read.flatMap((each) => ('text' in each ? [each.text] : []));
    const problems = read.flatMap((each) => ('problem' in each ? [each.problem] : []));
    if (texts.length > 0) setDraft(place, [draftOf(place), ...texts].filter((text) => text.trim() !== '').join('\n\n'));
    if (problems.length > 0) chat.set({ refusal: { place, question: null, content: '', why: problems.join(' ') } });
    document.getElementById('composer')?.focus();
}

async function readText(file: File): Promise<{ text: string } | { problem: string }> {
    if (/\.gguf$/i.test(file.name)) return { problem: `${file.name} is a model: choose it on the Models page.` };
    if (file.size > MOST_BYTES) return { problem: `${file.name} is too large: ${formatBytes(file.size)}, and at most ${formatBytes(MOST_BYTES)} can be read.` };
    try {
        const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
        return text.includes('\0') ? { problem: `${file.name} is not a text file.` } : { text: text.replaceAll('\r\n', '\n').trimEnd() };
    } catch (error) {
        return { problem: error instanceof TypeError ? `${file.name} is not a text file.` : `${file.name} could not be read.` };
    }
}
