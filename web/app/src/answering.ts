// Asking and answering. What is sent waits in a queue: this tab writes one answer at a time, and a conversation gets one at a time from
// all tabs together. A message is stored once the model is there and says that it fits; until then it is shown from memory alone.

import { whyUnusable } from './adapters.ts';
import { around, dropFrames, frameOf, keepFrame, withHole, type Gap } from './canvas.ts';
import { announce, change, chat, find, lockOf, newId, onOthers, refresh, report, show, store, tell, watch, type Job, type Writing } from './chat.ts';
import { fitPrompt, whyTooLong } from './context.ts';
import { adapterWords, addRound, messagesOf, newConversation, path, put, withMessage } from './conversation.ts';
import type { AdapterUse, Answer, Attachment, Conversation, Head, ModelMessage, Node, Question, Step } from './conversation.ts';
import { readConversation, writeConversation } from './database.ts';
import { hold, moveDraft, putBack, release } from './drafts.ts';
import { isAbort, isContextFull, isDiffusion, messageOf, type ChatSession, type LoadedModel, type Piece, type ReplyOptions, type ReplyStats } from './engine.ts';
import { LiveSpeed } from './format.ts';
import { attachmentsOf, tokensOf, whyUnreadable, withParts } from './media.ts';
import { model, onUnload, withoutFiles, whenReady } from './models.ts';
import { chatHref, go, route } from './route.ts';
import { closeSession, keepNow, keepSoon, sessionFor } from './sessions.ts';
import { settings } from './settings.ts';
import { inRounds, noMoreTools, runTool, TOOLS } from './tools.ts';

// ---- the queue ----------------------------------------------------------------------------------------------------------------

/** Sends a message in a conversation; '' begins a new one. */
export function send(place: string, content: string, attachments: Attachment[] = []): void {
    if (content.trim() === '' && attachments.length === 0) return;
    submit({ id: newId(), conversation: place || newId(), place, content: content.trim(), attachments, question: null });
}

/** Asks again with other words about the same attachments: a branch beside the question. */
export function edit(conversation: string, question: string, content: string): void {
    const before = find(conversation)?.nodes[question];
    const attachments = before ? attachmentsOf([before]) : [];
    if (content.trim() === '' && attachments.length === 0) return;
    submit({ id: newId(), conversation, place: conversation, content: content.trim(), attachments, question });
}

/** Another answer to the same question: a branch beside the one there is. */
export function regenerate(conversation: string, answer: string): void {
    const question = find(conversation)?.nodes[answer]?.parent;
    if (question) submit({ id: newId(), conversation, place: conversation, content: null, attachments: [], question });
}

/** Writes a part of an answer's text anew, which takes a diffusion model; the rest stays. The result is a branch beside the answer. */
export function rewrite(conversation: string, answer: string, gap: Gap): void {
    const question = find(conversation)?.nodes[answer]?.parent;
    if (question) submit({ id: newId(), conversation, place: conversation, content: null, attachments: [], question, rewrite: { answer, gap } });
}

function submit(job: Job): void {
    if (model.get().phase === 'none') return refuse(job, NO_MODEL);
    if (job.content !== null) hold(job.place, job.id, job.content, job.question === null ? job.attachments : []);
    chat.set({ queue: [...chat.get().queue, job], refusal: null, problem: '' });
    startNext();
}

/** Takes a message out of the queue and puts it back into the draft. */
export function takeBack(job: Job): void {
    chat.set({ queue: chat.get().queue.filter((each) => each !== job) });
    returnToDraft(job);
}

function returnToDraft(job: Job): void {
    if (job.content === null) return;
    release(job.place, job.id);
    putBack(job.place, job.content, job.question === null ? job.attachments : []);
}

interface Running {
    conversation: string;
    abort: AbortController;
    done: Promise<void>;
}
let running: Running | null = null;
let paused = false; // the model is being unloaded

function startNext(): void {
    const { ready, queue, elsewhere } = chat.get();
    if (running || paused || !ready) return;
    const job = queue.find((each) => !(each.conversation in elsewhere));
    if (!job) return;
    chat.set({ queue: queue.filter((each) => each !== job) });
    const mine: Running = (running = { conversation: job.conversation, abort: new AbortController(), done: Promise.resolve() });
    mine.done = runJob(job, mine.abort.signal).catch((error: unknown) => report(messageOf(error).message)).finally(() => {
        running = null;
        startNext();
    });
}

/** Stops the answer that is being written here. The next in the queue follows. */
export async function stop(): Promise<void> {
    running?.abort.abort();
    await running?.done;
}

/** Stops the answer that the user sees: this tab's, else that of another tab in the conversation. */
export function stopShown(): void {
    const { current, elsewhere } = chat.get();
    if (running) void stop();
    else if (current !== null && current in elsewhere) tell({ kind: 'stop', id: current });
}

/** Stops the answer and empties the queue. */
export async function stopAll(): Promise<void> {
    for (const job of chat.get().queue) takeBack(job);
    await stop();
}

onOthers({
    stop: async (id) => {
        for (const job of chat.get().queue) if (job.conversation === id) takeBack(job);
        if (running?.conversation === id) await stop();
    },
    free: startNext,
});

onUnload(async () => {
    paused = true;
    await stop();
    await keepNow();
    await closeSession();
});
model.watch(() => {
    if (!paused || model.get().loaded) return;
    paused = false;
    startNext();
});

// ---- one job ------------------------------------------------------------------------------------------------------------------

const NO_MODEL = 'No model is loaded, so nothing was sent.';

async function runJob(job: Job, signal: AbortSignal): Promise<void> {
    const before = find(job.conversation);
    const answer = new AnswerWriter(job, before);
    if (!answer.begin(before)) return;
    const had = await navigator.locks.request(lockOf(job.conversation), { ifAvailable: true }, async (lock) => {
        if (!lock) return false;
        // Another tab may have added messages that this one has not heard of yet.
        const kept = before && (await readConversation(job.conversation).catch(() => undefined));
        if (!kept || answer.begin(kept)) await answerJob(job, answer, signal);
        return true;
    });
    if (had) return answer.stored === 'kept' ? refresh(job.conversation) : undefined;
    // Another tab was faster: the message goes behind its answer.
    chat.set({ writing: null, queue: [job, ...chat.get().queue] });
    show(job.conversation, before);
    watch(job.conversation);
}

async function answerJob(job: Job, answer: AnswerWriter, signal: AbortSignal): Promise<void> {
    try {
        const loaded = await whenReady(signal);
        const unusable = await whyUnusable(loaded, answer.adapters);
        if (unusable) return refuse(job, unusable, answer);
        const session = await sessionFor(loaded, job.conversation, answer.shown, answer.adapters);
        const problem = whyUnreadable(attachmentsOf(answer.shown), loaded) || (await lengthProblem(loaded, session, answer));
        if (problem) return refuse(job, problem, answer);
        if (job.rewrite) await rewriteAnswer(loaded, session, answer, job.rewrite.gap, signal);
        else {
            await answer.store();
            await writeAnswer(loaded, session, answer, signal);
        }
        void keepSoon(session, answer.node.id);
    } catch (error) {
        if (job.rewrite) return abandon(answer, signal.aborted || isAbort(error) ? '' : messageOf(error).message);
        if (answer.stored === 'no' && !signal.aborted && model.get().phase === 'none') return refuse(job, NO_MODEL, answer);
        if (answer.stored === 'no') await answer.store();
        if (signal.aborted || isAbort(error)) await answer.end('cancelled');
        else if (isContextFull(error)) await answer.end('full');
        else {
            await answer.end('error', messageOf(error).message);
            for (const next of chat.get().queue) takeBack(next);
        }
    }
}

// The message goes back to where it was typed.
function refuse(job: Job, why: string, answer?: AnswerWriter): void {
    answer?.discard();
    const editing = job.content !== null && job.question !== null;
    if (editing) release(job.place, job.id);
    else returnToDraft(job);
    chat.set({ refusal: { place: job.place, question: editing ? job.question : null, content: job.content ?? '', why } });
    announce(why);
}

// What was rewritten so far is not worth keeping: the answer is shown as it was.
function abandon(answer: AnswerWriter, why: string): void {
    answer.discard();
    if (why !== '') report(`The answer was not rewritten. ${why}`);
    else announce(ENDINGS.cancelled);
}

async function rewriteAnswer(loaded: LoadedModel, session: ChatSession, answer: AnswerWriter, gap: Gap, signal: AbortSignal): Promise<void> {
    if (!isDiffusion(loaded)) throw new Error('This takes a diffusion model.');
    const { origin } = answer, text = origin!.steps.at(-1)!.content, { before, after } = around(text, gap);
    const sizes = await Promise.all([before, after].map(async (part) => (await loaded.tokenize(part)).length));
    const earlier = messagesOf([{ ...answer.node, steps: answer.node.steps.slice(0, -1) }], '');
    // Without thoughts: the given text is the answer from its first token on.
    const options = { ...replyOptions(loaded, signal), think: false, canvas: withHole(text, gap), maxTokens: sizes[0]! + gap.tokens + sizes[1]! };
    const stats = await oneStep(session, [...(await promptOf(loaded, session, answer)), ...earlier], options, answer);
    if (stats.finish === 'cancelled') throw new DOMException('stopped', 'AbortError');
    const written = answer.node.steps.at(-1)!.content;
    if (written.length < before.length + after.length || !written.startsWith(before) || !written.endsWith(after)) {
        throw new Error('The model wrote a control token into the gap. Try again.');
    }
    answer.count(loaded, stats);
    await answer.end(origin!.finish === 'error' ? 'stop' : origin!.finish);
}

async function writeAnswer(loaded: LoadedModel, session: ChatSession, answer: AnswerWriter, signal: AbortSignal): Promise<void> {
    let messages = await promptOf(loaded, session, answer);
    const write = async (): Promise<ReplyStats> => {
        const stats = await oneStep(session, messages, replyOptions(loaded, signal), answer);
        answer.count(loaded, stats);
        return stats;
    };
    const runTools = (allowed: boolean): void => {
        answer.runTools(allowed ? runTool : noMoreTools);
        if (!allowed) return;
        messages = [...messages, ...messagesOf([{ ...answer.node, steps: answer.node.steps.slice(-1) }], '')];
        answer.addStep();
    };
    const { last, cut } = await inRounds(write, ({ finish }) => finish !== 'cancelled' && answer.node.steps.at(-1)!.calls.length > 0, runTools);
    const full = last.finish === 'length' && last.promptTokens + last.replyTokens >= session.context - 1;
    await answer.end(cut ? 'tools' : full ? 'full' : last.finish === 'tool_calls' ? 'stop' : last.finish);
}

async function oneStep(session: ChatSession, messages: ModelMessage[], options: ReplyOptions, answer: AnswerWriter): Promise<ReplyStats> {
    const pieces = session.reply(await withParts(messages), options);
    answer.most = options.maxTokens;
    for (;;) {
        const next = await pieces.next();
        if (next.done) return next.value;
        answer.add(next.value);
    }
}

function replyOptions(loaded: LoadedModel, signal: AbortSignal): ReplyOptions {
    const { sampling, maxTokens } = settings.get();
    const set = Object.fromEntries(Object.entries(sampling).filter(([, value]) => value !== null));
    return {
        sampling: { ...set, seed: sampling.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]! }, signal,
        ...promptOptions(),
        ...(maxTokens > 0 && { maxTokens }),
        ...(isDiffusion(loaded) && { wantCanvas: true }),
    };
}

function promptOptions(): ReplyOptions {
    const { think, tools } = settings.get();
    return { think, ...(tools && { tools: TOOLS }) };
}

// ---- the prompt ---------------------------------------------------------------------------------------------------------------

const systemOf = (conversation: Conversation): string => conversation.system ?? settings.get().system;

const mediaTokens = (loaded: LoadedModel, attachments: Attachment[] = []): number =>
    attachments.reduce((sum, attachment) => sum + tokensOf(attachment, loaded), 0);

// Media are counted by their description: their content need not be read for it.
async function countTokens(loaded: LoadedModel, messages: ModelMessage[]): Promise<number> {
    const texts = messages.map(({ attachments: _, ...message }) => message);
    return (await loaded.countTokens(texts, promptOptions())) + mediaTokens(loaded, messages.flatMap(({ attachments = [] }) => attachments));
}

async function lengthProblem(loaded: LoadedModel, session: ChatSession, answer: AnswerWriter): Promise<string> {
    const question = answer.shown.at(-1);
    if (question?.role !== 'user') return '';
    const prompt = await countTokens(loaded, messagesOf([question], systemOf(answer.conversation)));
    const message = (await loaded.tokenize(messagesOf([question], '')[0]!.content)).length + mediaTokens(loaded, question.attachments);
    return whyTooLong({ message, prompt, context: session.context, largest: loaded.info.context });
}

async function promptOf(loaded: LoadedModel, session: ChatSession, answer: AnswerWriter): Promise<ModelMessage[]> {
    const messages = messagesOf(answer.shown, systemOf(answer.conversation));
    if (settings.get().overflow === 'stop') return messages;
    const before = answer.shown.findLast((node): node is Answer => node.role === 'assistant')?.leftOut ?? 0;
    const fitted = await fitPrompt(messages, before, session.context, (some) => countTokens(loaded, some));
    answer.leaveOut(fitted.leftOut, before);
    return fitted.messages;
}

// ---- the answer while it grows ------------------------------------------------------------------------------------------------

const newStep = (): Step => ({ thinking: '', content: '', calls: [] });
const STORE_EVERY = 2000, TELL_EVERY = 150; // milliseconds

/** Redraws once a frame, tells other tabs several times a second, and stores what there is every other second. */
class AnswerWriter {
    node: Answer;
    conversation: Conversation;
    /** no: it is in memory alone. kept: it is in the database. failed: the database did not take it. */
    stored: 'no' | 'kept' | 'failed' = 'no';
    /** The answer of which a part is written anew. It is not stored before its end. */
    readonly origin: Answer | null;
    /** Tokens of a round; undefined: as many as fit. */
    most: number | undefined;
    private question: Question | null = null;
    private readonly job: Job;
    private before: Conversation | undefined;
    private readonly fresh: Conversation;
    private frame = 0;
    private storedAt = performance.now();
    private toldAt = 0;
    private telling: ReturnType<typeof setTimeout> | undefined;
    private readonly speed = new LiveSpeed();
    private writing: Omit<Writing, 'answer'>;

    constructor(job: Job, before: Conversation | undefined) {
        this.job = job;
        this.before = before;
        this.fresh = { ...newConversation(job.conversation, Date.now()), ...(settings.get().adapters.length > 0 && { adapters: settings.get().adapters }) };
        this.conversation = before ?? this.fresh;
        const origin = job.rewrite && before?.nodes[job.rewrite.answer];
        this.origin = origin?.role === 'assistant' ? origin : null;
        const steps = this.origin ? [...this.origin.steps.slice(0, -1), { ...this.origin.steps.at(-1)!, content: '' }] : [newStep()];
        this.node = { id: newId(), parent: '', created: Date.now(), role: 'assistant', steps, finish: 'writing' };
        this.writing = { conversation: job.conversation, phase: 'waiting', prompt: null, speed: 0, canvas: null, rewriting: this.origin !== null };
    }

    /** Shows question and answer at their place in the conversation, in memory. False: the question that they belong to is gone. */
    begin(base: Conversation = this.conversation): boolean {
        const { content, question } = this.job;
        const beside = question === null ? undefined : base.nodes[question];
        if ((question !== null && !beside) || (this.job.rewrite && !this.origin)) return false;
        if (content !== null) {
            const parent = beside ? beside.parent : (path(base).at(-1)?.id ?? null);
            const { attachments } = this.job;
            this.question = {
                id: this.question?.id ?? newId(), parent, created: this.node.created, role: 'user', content, ...(attachments.length > 0 && { attachments }),
            };
        }
        this.node = { ...this.node, parent: this.question?.id ?? question };
        if (this.before) this.before = base;
        this.conversation = this.nodes().reduce(put, base);
        const begun = chat.get().writing !== null;
        show(this.conversation.id, this.conversation);
        chat.set({ writing: { ...this.writing, answer: this.node } });
        if (this.job.place === '' && chat.get().current === null) {
            moveDraft('', this.conversation.id);
            chat.set({ current: this.conversation.id });
            if (route.get().page === 'chat') go(chatHref(this.conversation.id));
        }
        if (!begun) announce('Working on an answer.');
        return true;
    }

    private nodes(): Node[] {
        return this.question ? [this.question, this.node] : [this.node];
    }

    /** The head with question and answer. */
    private readonly grow = (head: Head): Head => this.nodes().reduce((grown: Head, node) => withMessage(grown, node), head);

    /** The conversation, if it begins with this question. */
    private get begun(): Conversation | undefined {
        return this.before ? undefined : this.fresh;
    }

    get adapters(): AdapterUse[] {
        return this.conversation.adapters ?? [];
    }

    /** What is before the answer. */
    get shown(): Node[] {
        return path(this.conversation).slice(0, -1);
    }

    /** Takes question and answer away again: they are stored nowhere. */
    discard(): void {
        const { id } = this.conversation, { current } = chat.get();
        if (this.frame !== 0) cancelAnimationFrame(this.frame);
        dropFrames(this.node.id);
        chat.set({ writing: null });
        if (!this.before) moveDraft(id, '');
        show(id, this.before);
        if (!this.before && current === id && route.get().page === 'chat') go(chatHref(null));
    }

    async store(): Promise<void> {
        this.writing = { ...this.writing, phase: 'prompt' };
        const kept = await store(this.conversation.id, this.grow, this.nodes(), this.begun);
        this.stored = kept ? 'kept' : 'failed';
        release(this.job.place, this.job.id);
        this.draw({});
    }

    add(piece: Piece): void {
        const now = performance.now();
        const step = this.node.steps.at(-1)!;
        if (piece.kind === 'progress') {
            this.speed.endRound();
            this.draw({ phase: 'prompt', prompt: { done: piece.done, total: piece.total, ...(piece.media && { media: piece.media }) } });
        } else if (piece.kind === 'canvas') {
            const canvas = frameOf(piece.canvas, this.node.steps.length - 1, step.content.length, this.most);
            keepFrame(this.node.id, canvas);
            this.speed.add(now / 1000, 0);
            this.draw({ phase: 'answer', canvas });
        } else {
            this.speed.add(now / 1000, this.writing.canvas?.texts.length);
            if (piece.kind === 'tool_call') this.replaceStep({ ...step, calls: [...step.calls, { id: newId(), name: piece.name, arguments: piece.arguments }] });
            else if (piece.kind === 'thinking') this.replaceStep({ ...step, thinking: step.thinking + piece.text });
            else this.replaceStep({ ...step, content: step.content + piece.text });
            this.draw({ phase: 'answer', speed: this.speed.perSecond, canvas: null });
        }
        if (now - this.storedAt > STORE_EVERY && this.stored !== 'no') {
            this.storedAt = now;
            void writeConversation(this.conversation.id, [this.node], (head) => head).catch(() => undefined);
        }
    }

    addStep(): void {
        this.node = { ...this.node, steps: [...this.node.steps, newStep()] };
    }

    /** Gives every call of the last step its result. */
    runTools(run: (name: string, given: unknown) => string): void {
        const step = this.node.steps.at(-1)!;
        this.replaceStep({ ...step, calls: step.calls.map((call) => ({ ...call, result: run(call.name, call.arguments) })) });
        this.draw({});
    }

    leaveOut(leftOut: number, before: number): void {
        if (leftOut > 0) this.node = { ...this.node, leftOut };
        if (leftOut > before) announce('Earlier messages are left out.');
    }

    /** Adds the numbers of one round. */
    count(loaded: LoadedModel, stats: ReplyStats): void {
        const { choice } = model.get();
        this.speed.endRound(stats.replyTokens, stats.replySeconds);
        this.node = {
            ...this.node,
            ...(choice && { choice: withoutFiles(choice) }),
            stats: {
                ...addRound(this.node.stats, stats, loaded.info.name || (choice?.name ?? '')),
                ...(this.adapters.length > 0 && { adapters: adapterWords(this.adapters) }),
            },
        };
    }

    /** Resolves when the end is stored: the conversation's lock is held until then. */
    async end(finish: Answer['finish'], error?: string): Promise<void> {
        if (this.frame !== 0) cancelAnimationFrame(this.frame);
        this.node = { ...this.node, finish, ...(error !== undefined && { error }) };
        chat.set({ writing: null });
        announce(ENDINGS[finish]);
        const updated = Date.now();
        if (this.stored === 'kept') await change(this.conversation.id, (head) => ({ ...head, updated }), [this.node]);
        // The disk was full when the question came: there may be space now.
        else await change(this.conversation.id, (head) => ({ ...this.grow(head), updated }), this.nodes(), this.begun);
    }

    private replaceStep(step: Step): void {
        this.node = { ...this.node, steps: [...this.node.steps.slice(0, -1), step] };
    }

    // Not by frames, of which a hidden tab has none; and by a timer only for what comes last, because it is slow there.
    private tellOthers(): void {
        const wait = this.toldAt + TELL_EVERY - performance.now();
        clearTimeout(this.telling);
        if (this.stored !== 'kept' || this.node.finish !== 'writing') return;
        if (wait > 0) {
            this.telling = setTimeout(() => this.tellOthers(), wait);
            return;
        }
        this.toldAt = performance.now();
        tell({ kind: 'growing', writing: { ...this.writing, answer: this.node } });
    }

    private draw(news: Partial<Writing>): void {
        this.writing = { ...this.writing, ...news };
        this.tellOthers();
        if (this.frame !== 0) return;
        this.frame = requestAnimationFrame(() => {
            this.frame = 0;
            if (chat.get().writing?.answer.id === this.node.id) chat.set({ writing: { ...this.writing, answer: this.node } });
        });
    }
}

const ENDINGS: Record<Answer['finish'], string> = {
    stop: 'The answer is complete.',
    length: 'The answer reached its maximum length.',
    cancelled: 'Stopped.',
    full: 'The context is full.',
    tools: 'Stopped after too many tool calls.',
    error: 'The answer failed.',
    writing: '',
};
