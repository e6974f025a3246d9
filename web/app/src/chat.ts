// The conversations and the answer that is being written. Components read `chat`; everything that happens is a function here.

import { addRound, choose, importFile, messagesOf, newConversation, path, put, withoutOldest } from './conversation.ts';
import type { Answer, Conversation, ModelMessage, Node, Step } from './conversation.ts';
import { erase, read, readAll, write } from './database.ts';
import { isAbort, isContextFull, messageOf, type ChatSession, type LoadedModel, type Piece, type ReplyOptions, type ReplyStats } from './engine.ts';
import { LiveSpeed } from './format.ts';
import { onUnload, model, whenReady } from './models.ts';
import { settings } from './settings.ts';
import { fitOf } from './snapshot_index.ts';
import { dropSnapshots, keepSnapshot, restoreSnapshot } from './snapshots.ts';
import { Store } from './store.ts';
import { inRounds, noMoreTools, runTool, TOOLS } from './tools.ts';

/** The answer that is being written. Its text is here, not in the conversation, so that a new word redraws one message. */
export interface Writing {
    conversation: string;
    answer: Answer;
    /** waiting: the model loads. prompt: the conversation is computed. answer: words come. */
    phase: 'waiting' | 'prompt' | 'answer';
    prompt: { done: number; total: number } | null;
    /** Tokens a second so far; 0 before the second word. */
    speed: number;
}

export interface ChatState {
    ready: boolean;
    conversations: Conversation[]; // newest first
    current: string | null;
    writing: Writing | null;
    /** Said by the live region. */
    announcement: string;
    /** Something did not work: shown until dismissed. */
    problem: string;
}

export const chat = new Store<ChatState>({ ready: false, conversations: [], current: null, writing: null, announcement: '', problem: '' });

export const newId = (): string => crypto.randomUUID();
export const find = (id: string | null): Conversation | undefined => chat.get().conversations.find((each) => each.id === id);
/** Says something to screen readers; the same words twice are said twice. */
export const announce = (words: string): void => chat.set({ announcement: chat.get().announcement === words ? `${words}\u00a0` : words });
export const report = (problem: string): void => chat.set({ problem });

// ---- keeping them -------------------------------------------------------------------------------------------------------------

const others = new BroadcastChannel('gemmule-conversations'); // the same app in other tabs

export async function openChats(): Promise<void> {
    try {
        const conversations = (await readAll('conversations')).map(endWriting);
        chat.set({ conversations: sorted(conversations), ready: true });
    } catch (error) {
        chat.set({ ready: true, problem: `Conversations cannot be kept in this browser: ${messageOf(error).message}` });
    }
    others.onmessage = ({ data }: MessageEvent<{ id: string }>) => void refresh(data.id);
}

async function refresh(id: string): Promise<void> {
    if (chat.get().writing?.conversation === id) return;
    const kept = await read('conversations', id);
    const rest = chat.get().conversations.filter((each) => each.id !== id);
    chat.set({ conversations: sorted(kept ? [...rest, kept] : rest), ...(!kept && chat.get().current === id && { current: null }) });
}

// An answer that was being written when the page went away is one that was stopped.
function endWriting(conversation: Conversation): Conversation {
    const nodes = Object.fromEntries(Object.entries(conversation.nodes).map(([id, node]): [string, Node] =>
        [id, node.role === 'assistant' && node.finish === 'writing' ? { ...node, finish: 'cancelled' } : node]));
    return { ...conversation, nodes };
}

const sorted = (conversations: Conversation[]): Conversation[] => [...conversations].sort((a, b) => b.updated - a.updated);

function keep(conversation: Conversation): void {
    const rest = chat.get().conversations.filter((each) => each.id !== conversation.id);
    chat.set({ conversations: sorted([...rest, conversation]) });
    void store(conversation);
}

async function store(conversation: Conversation): Promise<void> {
    try {
        await write('conversations', conversation);
        others.postMessage({ id: conversation.id });
    } catch (error) {
        report(`The conversation could not be kept: ${messageOf(error).message}`);
    }
}

export function rename(id: string, title: string): void {
    const conversation = find(id);
    if (conversation && title.trim() !== '') keep({ ...conversation, title: title.trim().slice(0, 200), named: true });
}

export function setSystem(id: string, system: string | null): void {
    const conversation = find(id);
    if (conversation) keep({ ...conversation, system });
}

export async function removeConversation(id: string): Promise<void> {
    if (chat.get().writing?.conversation === id) await stop();
    if (live?.conversation === id) live.node = null; // nothing of it is to be kept any more
    const { conversations, current } = chat.get();
    chat.set({ conversations: conversations.filter((each) => each.id !== id), current: current === id ? null : current });
    await erase('conversations', id);
    await dropSnapshots(id);
    others.postMessage({ id });
}

export function importConversations(text: string): number {
    const imported = importFile(text, newId);
    for (const conversation of imported) keep(conversation);
    return imported.length;
}

export function showBranch(id: string, node: string): void {
    const conversation = find(id);
    if (conversation) keep(choose(conversation, node));
}

// ---- asking -------------------------------------------------------------------------------------------------------------------

/** Sends a question in the current conversation, or in a new one; the id of the conversation. */
export function send(content: string): string | null {
    if (chat.get().writing || content.trim() === '') return null;
    const now = Date.now();
    const conversation = find(chat.get().current) ?? newConversation(newId(), now);
    const parent = path(conversation).at(-1)?.id ?? null;
    ask(conversation, parent, content, now);
    return conversation.id;
}

/** Asks again with other words: a branch beside the question. */
export function edit(id: string, question: string, content: string): void {
    const conversation = find(id), node = conversation?.nodes[question];
    if (!conversation || !node || chat.get().writing || content.trim() === '') return;
    ask(conversation, node.parent, content, Date.now());
}

function ask(conversation: Conversation, parent: string | null, content: string, now: number): void {
    const question: Node = { id: newId(), parent, created: now, role: 'user', content: content.trim() };
    begin(put(conversation, question), question.id);
}

/** Another answer to the same question: a branch beside the one there is. */
export function regenerate(id: string, answer: string): void {
    const conversation = find(id), node = conversation?.nodes[answer];
    if (!conversation || !node?.parent || chat.get().writing) return;
    begin(conversation, node.parent);
}

function begin(conversation: Conversation, question: string): void {
    const answer: Answer = { id: newId(), parent: question, created: Date.now(), role: 'assistant', steps: [newStep()], finish: 'writing' };
    const begun = put(conversation, answer);
    keep(begun);
    chat.set({ current: conversation.id, writing: { conversation: conversation.id, answer, phase: 'waiting', prompt: null, speed: 0 }, problem: '' });
    announce('Working on an answer.');
    const stopper = (running = { abort: new AbortController(), done: Promise.resolve() });
    stopper.done = answerNow(begun, answer, stopper.abort.signal).finally(() => {
        if (running === stopper) running = null;
    });
}

const newStep = (): Step => ({ thinking: '', content: '', calls: [] });

let running: { abort: AbortController; done: Promise<void> } | null = null;

export async function stop(): Promise<void> {
    running?.abort.abort();
    await running?.done;
}

// ---- answering ----------------------------------------------------------------------------------------------------------------

async function answerNow(conversation: Conversation, begun: Answer, signal: AbortSignal): Promise<void> {
    const draft = new Draft(conversation, begun);
    try {
        const loaded = await whenReady(signal);
        const shown = path(conversation).slice(0, -1);
        const session = await sessionFor(loaded, conversation.id, shown);
        const system = conversation.system ?? settings.get().system;
        let messages = await fitting(loaded, session, messagesOf(shown, system), draft);
        const write = async (): Promise<ReplyStats> => {
            const stats = await oneStep(session, messages, replyOptions(signal), draft);
            draft.count(loaded, stats);
            return stats;
        };
        const runTools = (allowed: boolean): void => {
            draft.runTools(allowed ? runTool : noMoreTools);
            if (!allowed) return;
            messages = [...messages, ...messagesOf([{ ...draft.answer, steps: draft.answer.steps.slice(-1) }], '')];
            draft.addStep();
        };
        const { last, cut } = await inRounds(write, ({ finish }) => finish !== 'cancelled' && draft.answer.steps.at(-1)!.calls.length > 0, runTools);
        const full = last.finish === 'length' && last.promptTokens + last.replyTokens >= session.context - 1;
        draft.end(cut ? 'tools' : full ? 'full' : last.finish === 'tool_calls' ? 'stop' : last.finish);
        if (live?.session === session) live.node = begun.id;
        void keepSoon();
    } catch (error) {
        if (signal.aborted || isAbort(error)) draft.end('cancelled');
        else if (isContextFull(error)) draft.end('full');
        else draft.end('error', messageOf(error).message);
    }
}

async function oneStep(session: ChatSession, messages: ModelMessage[], options: ReplyOptions, draft: Draft): Promise<ReplyStats> {
    const pieces = session.reply(messages, options);
    for (;;) {
        const next = await pieces.next();
        if (next.done) return next.value;
        draft.add(next.value);
    }
}

function replyOptions(signal: AbortSignal): ReplyOptions {
    const { sampling, maxTokens, think, tools } = settings.get();
    const set = Object.fromEntries(Object.entries(sampling).filter(([, value]) => value !== null));
    return {
        sampling: { ...set, seed: sampling.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]! },
        think, signal,
        ...(maxTokens > 0 && { maxTokens }),
        ...(tools && { tools: TOOLS }),
    };
}

// Where the user has chosen so, leaves out the oldest exchanges until a quarter of the context is free for the answer.
async function fitting(loaded: LoadedModel, session: ChatSession, messages: ModelMessage[], draft: Draft): Promise<ModelMessage[]> {
    if (settings.get().whenFull !== 'forget') return messages;
    const { think, tools } = settings.get();
    for (let left = 0; ; left++) {
        const tokens = await loaded.countTokens(messages, { think, ...(tools && { tools: TOOLS }) });
        const shorter = tokens > session.context * 0.75 ? withoutOldest(messages) : null;
        if (!shorter) {
            draft.leaveOut(left);
            return messages;
        }
        messages = shorter;
    }
}

/** The answer while it grows: redraws once a frame, keeps what there is every other second. */
class Draft {
    answer: Answer;
    private readonly conversation: string;
    private frame = 0;
    private kept = performance.now();
    private readonly speed = new LiveSpeed();
    private readonly change: Partial<Writing> = {};

    constructor(conversation: Conversation, answer: Answer) {
        this.conversation = conversation.id;
        this.answer = answer;
    }

    add(piece: Piece): void {
        const now = performance.now();
        const step = this.answer.steps.at(-1)!;
        if (piece.kind === 'progress') {
            Object.assign(this.change, { phase: 'prompt', prompt: { done: piece.done, total: piece.total } });
            this.speed.endRound();
        } else {
            this.speed.add(now / 1000);
            this.change.phase = 'answer';
            this.change.speed = this.speed.perSecond;
            if (piece.kind === 'tool_call') this.replaceStep({ ...step, calls: [...step.calls, { id: newId(), name: piece.name, arguments: piece.arguments }] });
            else if (piece.kind === 'thinking') this.replaceStep({ ...step, thinking: step.thinking + piece.text });
            else this.replaceStep({ ...step, content: step.content + piece.text });
        }
        this.drawSoon();
        if (now - this.kept > 2000) {
            this.kept = now;
            const conversation = find(this.conversation);
            if (conversation) void write('conversations', put(conversation, this.answer)).catch(() => undefined);
        }
    }

    addStep(): void {
        this.answer = { ...this.answer, steps: [...this.answer.steps, newStep()] };
    }

    /** Gives every call of the last step its result. */
    runTools(run: (name: string, given: unknown) => string): void {
        const step = this.answer.steps.at(-1)!;
        this.replaceStep({ ...step, calls: step.calls.map((call) => ({ ...call, result: run(call.name, call.arguments) })) });
        this.drawSoon();
    }

    leaveOut(leftOut: number): void {
        if (leftOut > 0) this.answer = { ...this.answer, leftOut };
    }

    /** Adds the numbers of one round. */
    count(loaded: LoadedModel, stats: ReplyStats): void {
        this.speed.endRound(stats.replyTokens, stats.replySeconds);
        this.answer = { ...this.answer, stats: addRound(this.answer.stats, stats, loaded.info.name || (model.get().choice?.name ?? '')) };
    }

    end(finish: Answer['finish'], error?: string): void {
        if (this.frame !== 0) cancelAnimationFrame(this.frame);
        this.answer = { ...this.answer, finish, ...(error !== undefined && { error }) };
        chat.set({ writing: null });
        const conversation = find(this.conversation);
        if (conversation) keep({ ...put(conversation, this.answer), updated: Date.now() });
        announce(ENDINGS[finish]);
    }

    private replaceStep(step: Step): void {
        this.answer = { ...this.answer, steps: [...this.answer.steps.slice(0, -1), step] };
    }

    private drawSoon(): void {
        if (this.frame !== 0) return;
        const draw = (): void => {
            this.frame = 0;
            const { writing } = chat.get();
            if (writing?.answer.id === this.answer.id) chat.set({ writing: { ...writing, ...this.change, answer: this.answer } });
        };
        // A hidden tab gets no frames, and needs none: it is drawn when it is looked at.
        this.frame = requestAnimationFrame(draw);
    }
}

const ENDINGS: Record<Answer['finish'], string> = {
    stop: 'The answer is complete.',
    length: 'The answer was cut at its longest length.',
    cancelled: 'Stopped.',
    full: 'The context is full.',
    tools: 'Stopped after too many tool calls.',
    error: 'The answer failed.',
    writing: '',
};

// ---- sessions -----------------------------------------------------------------------------------------------------------------

// One session lives, for the conversation that was answered last; others come back from their snapshots. `node` is the answer
// behind which it stands and has not been kept yet.
let live: { loaded: LoadedModel; session: ChatSession; conversation: string; fit: string; context: number; node: string | null } | null = null;
let keeping: Promise<unknown> = Promise.resolve();

async function sessionFor(loaded: LoadedModel, conversation: string, shown: Node[]): Promise<ChatSession> {
    await keepNow();
    const { context, kv, snapshots } = settings.get();
    const fit = fitOf(loaded.info.digest, kv);
    if (live && (live.loaded !== loaded || live.fit !== fit || live.context !== context)) {
        await live.session.free().catch(() => undefined);
        live = null;
    }
    if (!live) live = { loaded, session: await loaded.session({ kv, ...(context > 0 && { context }) }), conversation: '', fit, context, node: null };
    if (live.conversation !== conversation) {
        live.conversation = conversation;
        if (snapshots) await restoreSnapshot(live.session, conversation, fit, shown.map((node) => node.id)).catch(() => 0);
    }
    return live.session;
}

// Reading the keys and values back takes the GPU a moment: not while the user may be about to ask again.
async function keepSoon(): Promise<void> {
    const answer = live?.node;
    await new Promise((resolve) => setTimeout(resolve, 1500));
    if (live?.node === answer && !chat.get().writing) await keepNow();
}

/** Keeps the live session's keys and values if they have not been kept. */
export function keepNow(): Promise<unknown> {
    keeping = keeping.then(async () => {
        if (!live?.node || !settings.get().snapshots) return;
        const { session, conversation, node, fit } = live;
        live.node = null;
        const kept = find(conversation);
        if (kept) await keepSnapshot(session, conversation, node, fit, path(kept).map((each) => each.id));
    });
    return keeping;
}

onUnload(async () => {
    await stop();
    await keepNow();
    await live?.session.free().catch(() => undefined);
    live = null;
});

// ---- the context meter -----------------------------------------------------------------------------------------------------------

/** Tokens of the conversation as shown, by the last answer that counted them. */
export function usedTokens(conversation: Conversation | undefined): number {
    const last = conversation && path(conversation).findLast((node): node is Answer => node.role === 'assistant' && node.stats !== undefined);
    return last?.stats?.held ?? 0;
}

/** The most tokens that a conversation may have: the session's, the settings' or the model's. */
export function contextSize(): number {
    const { loaded } = model.get();
    if (live && live.loaded === loaded && live.context === settings.get().context) return live.session.context;
    const set = settings.get().context;
    const most = loaded?.info.context ?? 8192;
    return Math.min(set > 0 ? set : 8192, most);
}
