/* The interface of the browsers' Prompt API on a gemmule engine. Only polyfill() changes the global scope. */

import { GemmuleError, abortedBy } from '../core/errors.ts';
import type { Message, Part, ReplyOptions, Sampling, Tool } from '../core/types.ts';
import type { PictureInput, SoundInput } from '../media/types.ts';
import type { Engine } from './engine.ts';
import type { Reply, Session } from './session.ts';

export type LanguageModelRole = 'system' | 'user' | 'assistant';

export interface LanguageModelMessage {
    role: LanguageModelRole;
    content: string | readonly { type: 'text' | 'image' | 'audio'; value: unknown }[];
    /** On a last message of the assistant: the answer must begin with it. Throws NotSupported. */
    prefix?: boolean;
}

export type LanguageModelPrompt = string | readonly LanguageModelMessage[];

export interface LanguageModelTool {
    name: string;
    description: string;
    inputSchema: object;
    execute(...args: unknown[]): Promise<string> | string;
}

export interface LanguageModelCreateOptions {
    initialPrompts?: readonly LanguageModelMessage[];
    temperature?: number;
    topK?: number;
    tools?: readonly LanguageModelTool[];
    expectedInputs?: readonly { type: string; languages?: readonly string[] }[];
    expectedOutputs?: readonly { type: string; languages?: readonly string[] }[];
    signal?: AbortSignal;
    monitor?(monitor: EventTarget): void;
}

export interface LanguageModelPromptOptions {
    signal?: AbortSignal;
    /** Throws NotSupported. */
    responseConstraint?: unknown;
}

export type LanguageModelAvailability = 'unavailable' | 'downloadable' | 'downloading' | 'available';

/** The interface of the global `LanguageModel`. */
export interface LanguageModelFactory {
    availability(options?: LanguageModelCreateOptions): Promise<LanguageModelAvailability>;
    create(options?: LanguageModelCreateOptions): Promise<LanguageModelSession>;
}

/** An engine, or a function that loads one when it is first needed. */
export type EngineGiver = Engine | ((onProgress: (loaded: number) => void) => Promise<Engine>);

const MOST_ROUNDS = 16; // rounds of tool calls in one answer

// ---- checking ----

/* Without an engine it is not known yet what the model understands. */
function refuseTypes(wishes: LanguageModelCreateOptions, engine: Engine | null): void {
    const inputs = ['text', ...(engine?.info.vision ?? true ? ['image'] : []), ...(engine?.info.audio ?? true ? ['audio'] : [])];
    const check = (list: typeof wishes.expectedInputs, known: string[]) => {
        for (const { type } of list ?? []) {
            if (known.includes(type) || (type.startsWith('tool-') && wishes.tools?.length)) continue;
            throw new GemmuleError('NotSupported', `the type ${type} is not supported, only ${known.join(' and ')}`, { feature: type });
        }
    };
    check(wishes.expectedInputs, inputs);
    check(wishes.expectedOutputs, ['text']);
}

function readPart({ type, value }: { type: string; value: unknown }): Part {
    if (type === 'text' && typeof value === 'string') return { type, text: value };
    const media = value instanceof ArrayBuffer || ArrayBuffer.isView(value) ? new Blob([value as ArrayBuffer]) : value;
    if (type === 'image') return { type, image: media as PictureInput };
    if (type === 'audio') return { type, audio: media as SoundInput };
    throw new GemmuleError('NotSupported', `parts of type ${type} are not supported`, { feature: type });
}

function readMessage({ role, content, prefix }: LanguageModelMessage): Message {
    if (!['system', 'user', 'assistant'].includes(role)) {
        throw new GemmuleError('BadArgument', `role must be system, user or assistant, found '${String(role)}'`);
    }
    if (prefix) throw new GemmuleError('NotSupported', 'prefix is not supported', { feature: 'prefix' });
    if (typeof content === 'string') return { role, content };
    const parts = content.map(readPart);
    if (parts.every((part) => part.type === 'text')) return { role, content: parts.map(({ text }) => text).join('') };
    if (role !== 'user') throw new GemmuleError('NotSupported', `only user prompts can have pictures and sounds, found role '${role}'`);
    return { role, content: parts };
}

function readPrompt(prompt: LanguageModelPrompt): Message[] {
    if (typeof prompt === 'string') return [{ role: 'user', content: prompt }];
    const messages = prompt.map(readMessage);
    if (messages.some((message, i) => message.role === 'system' && i > 0)) {
        throw new GemmuleError('BadArgument', 'a system message must come first');
    }
    return messages;
}

// ---- a session ----

interface Wishes {
    sampling: Partial<Sampling>;
    tools: readonly LanguageModelTool[];
}

/** A conversation in the form of the Prompt API. */
export class LanguageModelSession extends EventTarget {
    readonly #engine: Engine;
    readonly #session: Session;
    readonly #wishes: Wishes;
    /** How many messages are never dropped: the initial prompts. */
    readonly #fixed: number;
    #messages: Message[];
    #usage = 0;
    #destroyed = false;
    #last: Promise<unknown> = Promise.resolve();
    readonly #end = new AbortController();
    oncontextoverflow: ((event: Event) => void) | null = null;

    /** @internal */
    constructor(engine: Engine, session: Session, wishes: Wishes, messages: Message[], fixed: number, usage: number) {
        super();
        this.#engine = engine;
        this.#session = session;
        this.#wishes = wishes;
        this.#messages = messages;
        this.#fixed = fixed;
        this.#usage = usage;
    }

    /** The tokens of the conversation; contextWindow is the most it can hold. */
    get contextUsage(): number {
        return this.#usage;
    }

    get contextWindow(): number {
        return this.#session.context;
    }

    get temperature(): number {
        return this.#wishes.sampling.temperature ?? this.#engine.samplingDefault.temperature;
    }

    get topK(): number {
        return this.#wishes.sampling.top_k ?? this.#engine.samplingDefault.top_k;
    }

    /** Answers a prompt. */
    async prompt(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<string> {
        let text = '';
        for await (const piece of this.#answer(input, options)) text += piece;
        return text;
    }

    /** Answers a prompt, piece by piece. */
    promptStreaming(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): ReadableStream<string> {
        const pieces = this.#answer(input, options);
        return new ReadableStream<string>({
            async pull(controller) {
                try {
                    const { done, value } = await pieces.next();
                    if (done) controller.close();
                    else controller.enqueue(value);
                } catch (thrown) {
                    controller.error(thrown);
                }
            },
            async cancel() {
                await pieces.return();
            },
        }, { highWaterMark: 0 }); // reads nothing ahead, so that nothing is left to deliver after an abort
    }

    /** Adds to the conversation without an answer. */
    async append(input: LanguageModelPrompt, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
        this.#alive(signal);
        const messages = readPrompt(input);
        await this.#inTurn(async () => {
            await this.#makeRoom(messages);
            this.#messages.push(...messages);
            this.#usage = await this.#count(this.#messages);
        });
    }

    /** How many tokens a prompt would take. */
    async measureContextUsage(input: LanguageModelPrompt, options: LanguageModelPromptOptions = {}): Promise<number> {
        this.#alive(options.signal);
        return (await this.#count([...this.#messages, ...readPrompt(input)])) - (await this.#count(this.#messages));
    }

    /** A second conversation that starts with the content of this one. */
    async clone({ signal }: { signal?: AbortSignal } = {}): Promise<LanguageModelSession> {
        this.#alive(signal);
        const copy = await this.#session.fork();
        return new LanguageModelSession(this.#engine, copy, this.#wishes, [...this.#messages], this.#fixed, this.#usage);
    }

    destroy(): void {
        if (this.#destroyed) return;
        this.#destroyed = true;
        this.#end.abort(new GemmuleError('Aborted', 'the session was destroyed'));
        this.#session.close().catch(() => undefined);
    }

    #alive(signal?: AbortSignal): void {
        if (this.#destroyed) throw new GemmuleError('Aborted', 'the session was destroyed');
        if (signal?.aborted) throw abortedBy(signal);
    }

    /* A session answers its prompts one after another, since each depends on the answers before it. */
    #inTurn<T>(work: () => Promise<T>): Promise<T> {
        const turn = this.#last.then(work);
        this.#last = turn.catch(() => undefined);
        return turn;
    }

    async #count(messages: Message[]): Promise<number> {
        if (!messages.length) return 0;
        return this.#engine.countTokens(messages, this.#options());
    }

    /* Drops the oldest turns to make room for a new one. The initial prompts stay. */
    async #makeRoom(more: Message[]): Promise<void> {
        const room = this.#session.context;
        let dropped = false;
        while ((await this.#count([...this.#messages, ...more])) >= room) {
            const next = this.#messages.findIndex((message, i) => i > this.#fixed && message.role === 'user');
            const end = next < 0 ? this.#messages.length : next;
            if (end <= this.#fixed) {
                const requested = await this.#count(more);
                throw new GemmuleError('QuotaExceeded', `the prompt does not fit into the context of ${room} tokens`, { requested, quota: room });
            }
            this.#messages.splice(this.#fixed, end - this.#fixed);
            dropped = true;
        }
        if (!dropped) return;
        const event = new Event('contextoverflow');
        this.dispatchEvent(event);
        this.oncontextoverflow?.(event);
    }

    #options(): ReplyOptions {
        const tools = this.#wishes.tools.map(({ name, description, inputSchema: parameters }): Tool => {
            return { type: 'function', function: { name, description, parameters } };
        });
        return { sampling: this.#wishes.sampling, ...(tools.length ? { tools } : {}) };
    }

    async *#answer(input: LanguageModelPrompt, { signal, responseConstraint }: LanguageModelPromptOptions): AsyncGenerator<string, void> {
        this.#alive(signal);
        if (responseConstraint != null) {
            throw new GemmuleError('NotSupported', 'responseConstraint is not supported', { feature: 'responseConstraint' });
        }
        const messages = readPrompt(input);
        const all = signal ? AbortSignal.any([signal, this.#end.signal]) : this.#end.signal;
        let free!: () => void;
        const before = this.#last;
        this.#last = new Promise<void>((resolve) => (free = resolve));
        try {
            await before;
            await this.#makeRoom(messages);
            const talk = [...this.#messages, ...messages];
            for (let round = 0; ; round++) {
                const turn = new Turn();
                yield* turn.read(this.#session.reply(talk, { ...this.#options(), signal: all }));
                if (turn.cancelled) throw abortedBy(all);
                talk.push(turn.message());
                if (!turn.calls.length) break;
                if (round === MOST_ROUNDS) throw new GemmuleError('BadModel', `the model called tools ${MOST_ROUNDS} times without an answer`);
                for (const call of turn.calls) talk.push(await this.#callTool(call));
            }
            this.#messages = talk;
            this.#usage = (await this.#session.tokens()).length;
        } finally {
            free();
        }
    }

    async #callTool(call: { name: string; arguments: unknown }): Promise<Message> {
        const tool = this.#wishes.tools.find(({ name }) => name === call.name);
        const content = tool ? String(await tool.execute(call.arguments)) : `there is no tool '${call.name}'`;
        return { role: 'tool', content, tool_name: call.name };
    }
}

/* One answer of the model with its tool calls. */
class Turn {
    readonly calls: { name: string; arguments: unknown }[] = [];
    cancelled = false;
    #text = '';

    async *read(reply: Reply): AsyncGenerator<string, void> {
        for await (const piece of reply) {
            if (piece.kind === 'tool_call') this.calls.push({ name: piece.name, arguments: piece.arguments });
            if (piece.kind !== 'content') continue;
            this.#text += piece.text;
            yield piece.text;
        }
        this.cancelled = (await reply.stats).finish === 'cancelled';
    }

    message(): Message {
        const calls = this.calls.map(({ name, arguments: given }) => ({ type: 'function' as const, function: { name, arguments: given } }));
        return { role: 'assistant', content: this.#text, ...(calls.length ? { tool_calls: calls } : {}) };
    }
}

// ---- the factory ----

function isEngine(giver: EngineGiver): giver is Engine {
    return typeof giver !== 'function';
}

/** `LanguageModel` on an engine, or on one that is loaded with the first session. */
export function languageModel(giver: EngineGiver): LanguageModelFactory {
    let loading: Promise<Engine> | null = isEngine(giver) ? Promise.resolve(giver) : null;
    let loaded = isEngine(giver);
    function engine(onProgress: (loaded: number) => void): Promise<Engine> {
        if (loading) return loading;
        loading = (giver as (onProgress: (loaded: number) => void) => Promise<Engine>)(onProgress);
        loading.then(() => (loaded = true), () => (loading = null));
        return loading;
    }
    return {
        async availability(options = {}) {
            try {
                refuseTypes(options, isEngine(giver) ? giver : null);
            } catch {
                return 'unavailable';
            }
            return loaded ? 'available' : loading ? 'downloading' : 'downloadable';
        },
        async create(options = {}) {
            refuseTypes(options, null);
            if (options.signal?.aborted) throw abortedBy(options.signal);
            const messages = readPrompt(options.initialPrompts ?? []);
            const monitor = new EventTarget();
            options.monitor?.(monitor);
            const own = await engine((part) => monitor.dispatchEvent(Object.assign(new Event('downloadprogress'), { loaded: part, total: 1 })));
            if (options.signal?.aborted) throw abortedBy(options.signal);
            refuseTypes(options, own);
            const session = await own.session();
            const sampling: Partial<Sampling> = {
                ...(options.temperature === undefined ? {} : { temperature: options.temperature }),
                ...(options.topK === undefined ? {} : { top_k: options.topK }),
            };
            const made = new LanguageModelSession(own, session, { sampling, tools: options.tools ?? [] }, [], messages.length, 0);
            if (messages.length) await made.append(options.initialPrompts!);
            return made;
        },
    };
}

/** Makes `LanguageModel` global, unless the browser has one that works or can download its model; `force` replaces that, too.
 * Resolves with whether it did. Where the browser has none, the global is there at once. */
export async function polyfill(giver: EngineGiver, { force = false }: { force?: boolean } = {}): Promise<boolean> {
    const scope = globalThis as { LanguageModel?: Partial<LanguageModelFactory> };
    if (!force && scope.LanguageModel !== undefined && (await isUsable(scope.LanguageModel))) return false;
    Object.defineProperty(scope, 'LanguageModel', { value: languageModel(giver), writable: true, configurable: true });
    return true;
}

/* Chromium has the interface on machines where it never becomes available. */
async function isUsable(native: Partial<LanguageModelFactory>): Promise<boolean> {
    try {
        return (await native.availability!()) !== 'unavailable';
    } catch {
        return false;
    }
}
