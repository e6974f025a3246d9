// The conversations, in memory and in the database, here and in other tabs. Components read `chat`; asking and answering is in answering.ts.
//
// A tab that answers in a conversation holds the conversation's Web Lock until the answer is stored. The others see the answer grow by
// messages, and wait for the lock to learn that it has ended, however it did: a tab that is closed lets go of its locks, too.

import type { Frame, Gap } from './canvas.ts';
import { choose, exportFile, headOf, importFile, stopAnswers, type AdapterUse, type Answer, type Attachment, type Conversation, type Head, type Node } from './conversation.ts';
import { eraseConversation, readConversation, readConversations, writeConversation } from './database.ts';
import { attachedTo, dropDraft } from './drafts.ts';
import { messageOf } from './engine.ts';
import { countOf } from './format.ts';
import { detach, keepContent, withContent } from './media.ts';
import { dropSnapshots } from './snapshots.ts';
import { Store } from './store.ts';

/** The answer that is being written. Its text is here, not in the conversation, so that a new word redraws one message. */
export interface Writing {
    conversation: string;
    answer: Answer;
    /** waiting: the model loads. prompt: the conversation is computed. answer: words come. */
    phase: 'waiting' | 'prompt' | 'answer';
    /** Tokens that are computed. `media`: pictures and sounds that are encoded before. */
    prompt: { done: number; total: number; media?: { done: number; total: number } } | null;
    /** Tokens a second so far; 0 before the second word. */
    speed: number;
    /** A diffusion model's canvas after its last step; null between blocks. */
    canvas: Frame | null;
    /** Only a part of it is new: its thoughts are those of before. */
    rewriting: boolean;
}

/** Something to answer, while it waits for its turn. */
export interface Job {
    id: string;
    conversation: string;
    /** Whose draft it was: the conversation's, or '' for that of a new one. */
    place: string;
    /** null: another answer to a question that is there. */
    content: string | null;
    attachments: Attachment[];
    /** The question that is edited or answered again; null: the message goes to the end. */
    question: string | null;
    /** A part of an answer to the question that is written anew. */
    rewrite?: { answer: string; gap: Gap };
}

/** A message that was not sent, and why. */
export interface Refusal {
    place: string;
    /** The question that was being edited; null: the message is in the draft again. */
    question: string | null;
    content: string;
    why: string;
}

export interface ChatState {
    ready: boolean;
    conversations: Conversation[]; // newest first
    current: string | null;
    writing: Writing | null;
    /** Conversations in which another tab answers, with the answer as far as it is known here. */
    elsewhere: Record<string, Writing | null>;
    queue: Job[];
    refusal: Refusal | null;
    /** Said by the live region. */
    announcement: string;
    /** Something did not work: shown until dismissed. */
    problem: string;
}

export const chat = new Store<ChatState>({
    ready: false, conversations: [], current: null, writing: null, elsewhere: {}, queue: [], refusal: null, announcement: '', problem: '',
});

export const newId = (): string => crypto.randomUUID();
export const find = (id: string | null): Conversation | undefined => chat.get().conversations.find((each) => each.id === id);
/** Says something to screen readers; the same words twice are said twice. */
export const announce = (words: string): void => chat.set({ announcement: chat.get().announcement === words ? `${words}\u00a0` : words });
export const report = (problem: string): void => chat.set({ problem });

/** Resolves when no answer is being written. */
export function whenSilent(): Promise<void> {
    return new Promise((resolve) => {
        const look = (): void => {
            if (chat.get().writing) return;
            unwatch();
            resolve();
        };
        const unwatch = chat.watch(look);
        look();
    });
}

export async function openChats(): Promise<void> {
    try {
        const conversations = await readConversations();
        chat.set({ conversations: sorted(conversations), ready: true });
        for (const each of conversations) if (stopAnswers(each).length > 0) watch(each.id);
    } catch (error) {
        chat.set({ ready: true, problem: `Conversations cannot be saved in this browser. ${messageOf(error).message}` });
    }
    others.onmessage = ({ data }: MessageEvent<News>) => hear(data);
    hooks.free();
}

const sorted = (conversations: Conversation[]): Conversation[] => [...conversations].sort((a, b) => b.updated - a.updated);

/** Shows a conversation as given, in memory only; undefined: it is gone. */
export function show(id: string, conversation: Conversation | undefined): void {
    const { conversations, current } = chat.get();
    const rest = conversations.filter((each) => each.id !== id);
    chat.set({ conversations: sorted(conversation ? [...rest, conversation] : rest), ...(!conversation && current === id && { current: null }) });
}

// ---- other tabs ---------------------------------------------------------------------------------------------------------------

type News =
    | { kind: 'changed'; id: string }
    | { kind: 'growing'; writing: Writing }
    /** Asks the tab that answers to stop. */
    | { kind: 'stop'; id: string };

const others = new BroadcastChannel('gemmule-conversations');
export const tell = (news: News): void => others.postMessage(news);

export const lockOf = (id: string): string => `gemmule-conversation-${id}`;

const hooks = {
    stop: (_id: string): Promise<void> => Promise.resolve(),
    free: (): void => undefined,
};
/** What answering.ts does when it is asked to stop in a conversation, and when one becomes free to be answered in. */
export function onOthers(work: typeof hooks): void {
    Object.assign(hooks, work);
}

function hear(news: News): void {
    if (news.kind === 'changed') void refresh(news.id);
    else if (news.kind === 'stop') void hooks.stop(news.id);
    else if (chat.get().writing?.conversation !== news.writing.conversation) {
        const { conversation } = news.writing;
        if (!find(conversation)) void refresh(conversation);
        watch(conversation);
        chat.set({ elsewhere: { ...chat.get().elsewhere, [conversation]: news.writing } });
    }
}

/** Reads a conversation again. The one that is being answered here is newer in memory. */
export async function refresh(id: string): Promise<void> {
    const own = (): boolean => chat.get().writing?.conversation === id;
    if (own()) return;
    const kept = await readConversation(id).catch(() => find(id));
    if (own()) return;
    show(id, kept);
    if (kept && stopAnswers(kept).length > 0) watch(id);
}

const watched = new Set<string>();

/** Another tab answers in this conversation: waits until it has let go. */
export function watch(id: string): void {
    if (watched.has(id)) return;
    watched.add(id);
    chat.set({ elsewhere: { ...chat.get().elsewhere, [id]: chat.get().elsewhere[id] ?? null } });
    const ended = navigator.locks.request(lockOf(id), { mode: 'shared' }, () => endAnswers(id)).catch(() => undefined);
    void ended.then(() => {
        watched.delete(id);
        const { [id]: _, ...elsewhere } = chat.get().elsewhere;
        chat.set({ elsewhere });
        hooks.free();
    });
}

// Nobody answers in the conversation any more. An answer without an end is that of a tab that was closed.
async function endAnswers(id: string): Promise<void> {
    const kept = await readConversation(id);
    const stopped = kept ? stopAnswers(kept) : [];
    if (stopped.length > 0) await writeConversation(id, stopped, (head) => head);
    show(id, kept && { ...kept, nodes: { ...kept.nodes, ...byId(stopped) } });
}

const byId = (nodes: Node[]): Record<string, Node> => Object.fromEntries(nodes.map((node) => [node.id, node]));

// ---- changes ------------------------------------------------------------------------------------------------------------------

/** Changes a conversation here and in the database, where its head is changed as it stands there. `added`: it is a new one. Whether the
 * database took it. */
export async function change(id: string, how: (head: Head) => Head, messages: Node[] = [], added?: Conversation): Promise<boolean> {
    const conversation = find(id) ?? added;
    if (conversation) show(id, { ...how(headOf(conversation)), nodes: { ...conversation.nodes, ...byId(messages) } });
    return store(id, how, messages, added);
}

/** The same in the database alone; whether that worked. */
export async function store(id: string, how: (head: Head) => Head, messages: Node[], added?: Conversation): Promise<boolean> {
    try {
        await writeConversation(id, messages, (head) => (head ? how(head) : added && how(headOf(added))));
        tell({ kind: 'changed', id });
        return true;
    } catch (error) {
        report(`The conversation could not be saved. ${messageOf(error).message}`);
        return false;
    }
}

export function rename(id: string, title: string): void {
    if (title.trim() !== '') void change(id, (head) => ({ ...head, title: title.trim().slice(0, 200), named: true }));
}

export function setSystem(id: string, system: string | null): void {
    void change(id, (head) => ({ ...head, system }));
}

export function setConversationAdapters(id: string, adapters: AdapterUse[]): void {
    void change(id, (head) => ({ ...head, adapters }));
}

export function showBranch(id: string, node: string): void {
    const chosen = find(id)?.nodes[node];
    if (chosen) void change(id, (head) => choose(head, chosen));
}

export async function removeConversation(id: string): Promise<void> {
    tell({ kind: 'stop', id });
    await hooks.stop(id);
    show(id, undefined);
    for (const attachment of attachedTo(id)) void detach(attachment);
    dropDraft(id);
    try {
        await eraseConversation(id);
        await dropSnapshots(id);
    } catch (error) {
        report(`The conversation could not be removed from the database. ${messageOf(error).message}`);
        await refresh(id);
    }
    tell({ kind: 'changed', id });
}

/** The text of a file with these conversations, their pictures and sounds included. */
export async function exportConversations(conversations: Conversation[], now: Date): Promise<string> {
    const whole: Conversation[] = [];
    for (const each of conversations) whole.push(await withContent(each));
    return JSON.stringify(exportFile(whole, now), null, 1);
}

/** Returns how many there were; rejects if some could not be saved. */
export async function importConversations(text: string): Promise<number> {
    const imported = await Promise.all(importFile(text, newId).map(keepContent));
    const stored = await Promise.all(imported.map((each) => change(each.id, (head) => head, Object.values(each.nodes), each)));
    const count = stored.filter((each) => each).length;
    if (count < imported.length) throw new Error(`The browser saved ${count} of ${countOf(imported.length, 'conversation')}.`);
    return count;
}
