// A conversation is a tree: an edited question and a regenerated answer are siblings of what they replace, and `chosen` says
// which child is shown at each fork. All functions are pure: they return a new conversation.

import type { ModelChoice, PictureBudget } from './engine.ts';

export interface ToolUse {
    id: string;
    name: string;
    arguments: unknown;
    /** What the tool said; absent while it runs. */
    result?: string;
}

/** One pass of the model. An answer has several where it called tools in between. */
export interface Step {
    thinking: string;
    content: string;
    calls: ToolUse[];
}

export interface AnswerStats {
    model: string;
    promptTokens: number;
    cachedTokens: number;
    replyTokens: number;
    promptSeconds: number;
    replySeconds: number;
    /** Tokens in the session behind it. */
    held: number;
    /** The adapters that it was written with, in words; absent: none. */
    adapters?: string;
}

/** An adapter of a conversation. */
export interface AdapterUse {
    /** The digest of its content. */
    key: string;
    name: string;
    scale: number;
}

interface NodeBase {
    id: string;
    /** null: the first message. */
    parent: string | null;
    created: number;
}
/** A picture, a sound or a video of a message. Its content is in the database (media.ts). */
export interface Attachment {
    id: string;
    kind: 'image' | 'audio' | 'video';
    name: string;
    /** Media type. */
    type: string;
    /** Bytes. */
    size: number;
    /** Pixels, of a picture or a frame. */
    width?: number;
    height?: number;
    /** Of a sound, and up to the last frame of a video. */
    seconds?: number;
    /** Of a video: the frames, which are its content one after another. Times are in seconds. */
    frames?: { time: number; bytes: number }[];
    /** The most tokens of a picture or a frame; absent: the model's own, and 70 for a frame. */
    budget?: PictureBudget;
    /** In files alone: the content, in base64. */
    data?: string;
}

export interface Question extends NodeBase {
    role: 'user';
    content: string;
    attachments?: Attachment[];
}
export interface Answer extends NodeBase {
    role: 'assistant';
    steps: Step[];
    /** tools: it called tools too many times. error: something broke; the steps are what had been written. */
    finish: 'stop' | 'length' | 'cancelled' | 'full' | 'tools' | 'error' | 'writing';
    error?: string;
    /** So many of the oldest questions, with their answers, were left out of what the model saw. */
    leftOut?: number;
    stats?: AnswerStats;
    /** The model that wrote it, to load it again. Not imported from files: it names places that the app opens. */
    choice?: ModelChoice;
}
export type Node = Question | Answer;

export interface Conversation {
    id: string;
    title: string;
    /** A title of the user's is not replaced by one of ours. */
    named: boolean;
    created: number;
    updated: number;
    /** Replaces the system prompt of the settings. */
    system: string | null;
    /** absent: none. */
    adapters?: AdapterUse[];
    nodes: Record<string, Node>;
    /** Parent id ('' for the first message) → the child that is shown. */
    chosen: Record<string, string>;
}

/** A conversation without its messages, which are stored one by one. */
export type Head = Omit<Conversation, 'nodes'>;

export function headOf({ nodes: _, ...head }: Conversation): Head {
    return head;
}

export function newConversation(id: string, now: number): Conversation {
    return { id, title: '', named: false, created: now, updated: now, system: null, nodes: {}, chosen: {} };
}

/** The messages that are shown, first to last. */
export function path(conversation: Conversation): Node[] {
    const shown: Node[] = [];
    const seen = new Set<string>(); // an imported file may have a ring
    for (let id = conversation.chosen['']; id !== undefined && !seen.has(id); id = conversation.chosen[id]) {
        const node = conversation.nodes[id];
        if (!node) break;
        seen.add(id);
        shown.push(node);
    }
    return shown;
}

/** The ids of the alternatives at every place, by parent ('' for the first message), oldest first. */
export function alternatives(conversation: Conversation): Map<string, string[]> {
    const places = new Map<string, Node[]>();
    for (const node of Object.values(conversation.nodes)) {
        const place = places.get(node.parent ?? '');
        if (place) place.push(node);
        else places.set(node.parent ?? '', [node]);
    }
    return new Map([...places].map(([parent, nodes]) => [parent, nodes.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1)).map((node) => node.id)]));
}

/** Adds a message below its parent, or replaces the one with its id; what is added is shown. */
export function put(conversation: Conversation, node: Node): Conversation {
    const changed = node.id in conversation.nodes ? conversation : withMessage(conversation, node);
    return { ...changed, nodes: { ...conversation.nodes, [node.id]: node } };
}

/** The head of a conversation to which a message is added: it is shown, and a first question gives the title. */
export function withMessage<H extends Head>(head: H, node: Node): H {
    return {
        ...head,
        updated: Math.max(head.updated, node.created),
        chosen: { ...head.chosen, [node.parent ?? '']: node.id },
        title: head.title || (node.role === 'user' && !head.named ? titleFrom(node.content) || (node.attachments?.[0]?.name ?? '') : ''),
    };
}

/** Shows the branch that begins with this message. */
export function choose<H extends Head>(head: H, node: Node): H {
    return { ...head, chosen: { ...head.chosen, [node.parent ?? '']: node.id } };
}

/** Answers that are being written are ones that were stopped: the tab that wrote them is gone. */
export function stopAnswers(conversation: Conversation): Node[] {
    return Object.values(conversation.nodes)
        .filter((node): node is Answer => node.role === 'assistant' && node.finish === 'writing')
        .map((answer) => ({ ...answer, finish: 'cancelled' }));
}

/** A title of a few words from the first question. */
export function titleFrom(question: string): string {
    const line = question.split('\n').map((each) => each.replace(/^[#>*\-\s`]+/, '').trim()).find((each) => each !== '') ?? '';
    if (line.length <= 48) return line;
    const cut = line.slice(0, 48);
    return `${cut.slice(0, cut.lastIndexOf(' ') > 24 ? cut.lastIndexOf(' ') : 47).trimEnd()}…`;
}

/** What the answer says, without thinking and tools. */
export function answerText(answer: Answer): string {
    return answer.steps.map((step) => step.content).filter((content) => content !== '').join('\n\n');
}

/** The numbers of an answer after one more round: tokens and seconds add up, the prompt is the last one. */
export function addRound(before: AnswerStats | undefined, round: Omit<AnswerStats, 'model' | 'held' | 'adapters'>, model: string): AnswerStats {
    const computed = round.promptTokens - round.cachedTokens + (before ? before.promptTokens - before.cachedTokens : 0);
    return {
        model,
        promptTokens: round.promptTokens,
        cachedTokens: Math.max(0, round.promptTokens - computed),
        replyTokens: round.replyTokens + (before?.replyTokens ?? 0),
        promptSeconds: round.promptSeconds + (before?.promptSeconds ?? 0),
        replySeconds: round.replySeconds + (before?.replySeconds ?? 0),
        held: round.promptTokens + round.replyTokens,
    };
}

/** Whether every word of the query is in the title or in a message. */
export function matches(conversation: Conversation, query: string): boolean {
    const words = query.toLowerCase().split(/\s+/).filter((word) => word !== '');
    if (words.length === 0) return true;
    const texts = Object.values(conversation.nodes).map((node) => (node.role === 'user' ? node.content : answerText(node)));
    const all = [conversation.title, ...texts].join('\n').toLowerCase();
    return words.every((word) => all.includes(word));
}

// ---- messages for the model -------------------------------------------------------------------------------------------------

export interface ModelMessage {
    role: 'system' | 'user' | 'assistant' | 'tool';
    content: string;
    attachments?: Attachment[];
    thinking?: string;
    tool_calls?: { id: string; type: 'function'; function: { name: string; arguments: unknown } }[];
    tool_name?: string;
    tool_call_id?: string;
}

// The engine takes no zero characters, but a model may write one, and a file may hold one.
const withoutZeros = (text: string): string => text.replaceAll('\0', '\ufffd');

export function messagesOf(nodes: Node[], system: string): ModelMessage[] {
    const messages: ModelMessage[] = system.trim() === '' ? [] : [{ role: 'system', content: withoutZeros(system) }];
    for (const node of nodes) {
        if (node.role === 'user') messages.push({ role: 'user', content: withoutZeros(node.content), ...(node.attachments?.length && { attachments: node.attachments }) });
        else messages.push(...node.steps.flatMap(stepMessages));
    }
    return messages;
}

function stepMessages(step: Step): ModelMessage[] {
    if (step.content === '' && step.calls.length === 0 && step.thinking === '') return [];
    const message: ModelMessage = { role: 'assistant', content: withoutZeros(step.content) };
    if (step.thinking !== '') message.thinking = withoutZeros(step.thinking);
    if (step.calls.length === 0) return [message];
    message.tool_calls = step.calls.map(({ id, name, arguments: given }) => ({ id, type: 'function', function: { name, arguments: given } }));
    const results = step.calls.map(({ id, name, result }): ModelMessage => ({ role: 'tool', content: result ?? '', tool_name: name, tool_call_id: id }));
    return [message, ...results];
}

/** Leaves out the oldest questions and what answered them; the system prompt and the newest question stay. */
export function withoutOldest(messages: ModelMessage[], exchanges: number): ModelMessage[] {
    const questions = messages.flatMap((message, at) => (message.role === 'user' ? [at] : []));
    const first = questions[0], kept = questions[Math.min(exchanges, questions.length - 1)];
    return first === undefined || kept === undefined ? messages : [...messages.slice(0, first), ...messages.slice(kept)];
}

// ---- files ------------------------------------------------------------------------------------------------------------------

export interface ExportFile {
    format: 'gemmule-conversations';
    version: 1;
    exported: string;
    conversations: Conversation[];
}

export function exportFile(conversations: Conversation[], now: Date): ExportFile {
    return { format: 'gemmule-conversations', version: 1, exported: now.toISOString(), conversations };
}

/** The conversations of a file; an Error that says what is wrong where it is not one of ours. Everything is rebuilt field by field. */
export function importFile(text: string, newId: () => string): Conversation[] {
    let data: unknown;
    try {
        data = JSON.parse(text);
    } catch {
        throw new Error('This is not a JSON file.');
    }
    const file = data as Partial<ExportFile> | null;
    if (file?.format !== 'gemmule-conversations' || !Array.isArray(file.conversations)) {
        throw new Error('This is not a file of gemmule conversations: "format" should be "gemmule-conversations".');
    }
    if (file.version !== 1) throw new Error(`The file has version ${String(file.version)}; this app reads version 1.`);
    return file.conversations.map((each) => readConversation(each, newId));
}

export const BUDGETS: readonly PictureBudget[] = [70, 140, 280, 560, 1120];

const text = (value: unknown): string => (typeof value === 'string' ? value : '');
const count = (value: unknown): number => (typeof value === 'number' && Number.isFinite(value) ? value : 0);

function readConversation(value: unknown, newId: () => string): Conversation {
    const from = (value ?? {}) as Record<string, unknown>;
    const ids = new Map<string, string>(); // fresh ids: an import never overwrites
    const given = Object.values((from['nodes'] ?? {}) as Record<string, unknown>) as Record<string, unknown>[];
    for (const node of given) ids.set(text(node?.['id']), newId());
    const nodes: Record<string, Node> = {};
    for (const each of given) {
        const node = readNode(each, ids);
        if (node) nodes[node.id] = node;
    }
    const chosen: Record<string, string> = {};
    for (const [parent, child] of Object.entries((from['chosen'] ?? {}) as Record<string, unknown>)) {
        const to = ids.get(text(child)), at = parent === '' ? '' : ids.get(parent);
        if (to && at !== undefined && nodes[to] && (nodes[to].parent ?? '') === at) chosen[at] = to;
    }
    const created = count(from['created']), adapters = readAdapters(from['adapters']);
    return {
        ...(adapters.length > 0 && { adapters }),
        id: newId(), title: text(from['title']).slice(0, 200), named: from['named'] === true, created,
        updated: count(from['updated']) || created, system: typeof from['system'] === 'string' ? from['system'] : null, nodes, chosen,
    };
}

const MOST_ADAPTERS = 16; // of a conversation

/* Those that are not in this browser can be imported later: they are found again by their content. */
export function readAdapters(value: unknown): AdapterUse[] {
    const rows = (Array.isArray(value) ? value : []) as (Record<string, unknown> | null)[];
    const read = rows.map((from) => ({ key: text(from?.['key']), name: text(from?.['name']).slice(0, 200), scale: count(from?.['scale']) }));
    return read.filter(({ key }, at) => /^[0-9a-f]{64}$/.test(key) && read.findIndex((each) => each.key === key) === at).slice(0, MOST_ADAPTERS);
}

/** 'pirate × 0.5, brief'. */
export function adapterWords(uses: readonly AdapterUse[]): string {
    return uses.map(({ name, scale }) => (scale === 1 ? name : `${name} × ${scale}`)).join(', ');
}

function readNode(from: Record<string, unknown>, ids: Map<string, string>): Node | null {
    const id = ids.get(text(from?.['id']));
    const parent = from?.['parent'] === null ? null : ids.get(text(from?.['parent']));
    if (!id || parent === undefined || parent === id) return null;
    const base = { id, parent, created: count(from['created']) };
    if (from['role'] === 'user') {
        const attachments = (Array.isArray(from['attachments']) ? from['attachments'] : []).flatMap(readAttachment);
        return { ...base, role: 'user', content: text(from['content']), ...(attachments.length > 0 && { attachments }) };
    }
    if (from['role'] !== 'assistant' || !Array.isArray(from['steps'])) return null;
    const steps = (from['steps'] as Record<string, unknown>[]).map((step): Step => ({
        thinking: text(step?.['thinking']),
        content: text(step?.['content']),
        calls: (Array.isArray(step?.['calls']) ? (step['calls'] as Record<string, unknown>[]) : []).map((call) => ({
            id: text(call?.['id']), name: text(call?.['name']), arguments: call?.['arguments'] ?? {}, result: text(call?.['result']),
        })),
    }));
    const finish = from['finish'] === 'writing' ? 'cancelled' // exported while it was being written
        : (['stop', 'length', 'cancelled', 'full', 'tools', 'error'] as const).find((each) => each === from['finish']) ?? 'stop';
    const error = text(from['error']), stats = readStats(from['stats']), leftOut = count(from['leftOut']);
    return { ...base, role: 'assistant', steps, finish, ...(error && { error }), ...(leftOut > 0 && { leftOut }), ...(stats && { stats }) };
}

/* What describes the content is read from the content itself, when that is kept. */
function readAttachment(value: unknown): Attachment[] {
    const from = (value ?? {}) as Record<string, unknown>;
    const kind = (['image', 'audio', 'video'] as const).find((each) => each === from['kind']);
    if (!kind || text(from['data']) === '') return [];
    const budget = BUDGETS.find((each) => each === from['budget']);
    return [{
        id: '', kind, name: text(from['name']).slice(0, 200), type: text(from['type']).slice(0, 100), size: 0, data: text(from['data']), ...(budget && { budget }),
        ...(kind === 'video' && { frames: readFrames(from['frames']) }),
    }];
}

function readFrames(value: unknown): NonNullable<Attachment['frames']> {
    return (Array.isArray(value) ? (value as Record<string, unknown>[]) : []).map((frame) => ({ time: count(frame?.['time']), bytes: count(frame?.['bytes']) }));
}

function readStats(value: unknown): AnswerStats | undefined {
    if (typeof value !== 'object' || value === null) return undefined;
    const from = value as Record<string, unknown>;
    const adapters = text(from['adapters']);
    return {
        ...(adapters && { adapters }),
        model: text(from['model']), promptTokens: count(from['promptTokens']), cachedTokens: count(from['cachedTokens']), replyTokens: count(from['replyTokens']),
        promptSeconds: count(from['promptSeconds']), replySeconds: count(from['replySeconds']), held: count(from['held']),
    };
}
