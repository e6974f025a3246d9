/* OpenAI's chat completions on an engine. An unsupported parameter throws and is named; none is ignored silently. */

import { GemmuleError, toGemmuleError } from '../core/errors.ts';
import type { Canvas, Message, Part, ReplyOptions, ReplyStats, Sampling, Tool, ToolCall } from '../core/types.ts';
import { dataUrlBlob } from '../media/files.ts';
import type { PictureBudget } from '../media/types.ts';
import type { ReplyPiece, TokenLogprobText } from '../worker/protocol.ts';
import type { AdapterChoice, Adapters } from './adapters.ts';
import type { Engine } from './engine.ts';
import type { Reply, Session } from './session.ts';

// ---- requests ----

export interface ChatTextPart {
    type: 'text';
    text: string;
}

/** A picture: a data: URL or a Blob. Other addresses throw `NotSupported`: nothing is fetched. */
export interface ChatImagePart {
    type: 'image_url';
    image_url: {
        url: string | Blob;
        /** The most tokens: low 70, auto 280, high 1120; by default the model's. */
        detail?: 'low' | 'auto' | 'high';
    };
}

/** A sound: base64 or a Blob. Its format is recognised by its content. */
export interface ChatAudioPart {
    type: 'input_audio';
    input_audio: { data: string | Blob; format?: string };
}

/** A video as its frames, with times in seconds; `detail` as of a picture, by default low. */
export interface ChatVideoPart {
    type: 'video';
    frames: readonly { time: number; image_url: { url: string | Blob } }[];
    detail?: 'low' | 'auto' | 'high';
}

/** Throw `NotSupported`. */
export interface ChatOtherPart {
    type: 'file' | 'video_url';
    [key: string]: unknown;
}

export type ChatContent = string | readonly (ChatTextPart | ChatImagePart | ChatAudioPart | ChatVideoPart | ChatOtherPart)[];

export interface ChatToolCall {
    id: string;
    type: 'function';
    function: {
        name: string;
        /** JSON */
        arguments: string;
    };
}

export type ChatMessage =
    | { role: 'system' | 'developer' | 'user'; content: ChatContent; name?: string }
    | {
          role: 'assistant';
          content?: ChatContent | null;
          /** Thoughts; used only between tool calls of one answer. */
          reasoning_content?: string | null;
          tool_calls?: readonly ChatToolCall[];
          refusal?: string | null;
          name?: string;
      }
    | { role: 'tool'; content: ChatContent; tool_call_id: string };

export interface ChatCompletionParams {
    messages: readonly ChatMessage[];
    /** 'NAME+ADAPTER' names adapters that are loaded, any number of them. An engine has one model, so what comes before is ignored. */
    model?: string;
    stream?: boolean | null;
    /** canvas: of a diffusion model, a chunk for every step with the canvas in its field `gemmule`. */
    stream_options?: { include_usage?: boolean; canvas?: boolean } | null;
    max_tokens?: number | null;
    max_completion_tokens?: number | null;
    stop?: string | readonly string[] | null;
    seed?: number | null;
    temperature?: number | null;
    top_p?: number | null;
    presence_penalty?: number | null;
    frequency_penalty?: number | null;
    logit_bias?: Record<string, number> | null;
    logprobs?: boolean | null;
    top_logprobs?: number | null;
    tools?: readonly Tool[] | null;
    /** 'required' and a named function throw `NotSupported`. */
    tool_choice?: 'none' | 'auto' | 'required' | { type: 'function'; function: { name: string } } | null;
    /** Types other than text throw `NotSupported`. */
    response_format?: { type: string } | null;
    reasoning_effort?: 'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh' | null;
    n?: number | null;
    parallel_tool_calls?: boolean | null;
    user?: string;
    metadata?: unknown;
    // extensions
    /** Diffusion models: how the canvas begins, see {@link ReplyOptions.canvas}. */
    canvas?: string | null;
    /** Diffusion models: the most steps for a block, see {@link ReplyOptions.steps}. */
    steps?: number | null;
    top_k?: number | null;
    min_p?: number | null;
    typical_p?: number | null;
    repetition_penalty?: number | null;
    penalty_window?: number | null;
    /** Adapters that are loaded, with scales; by default those in `model`, else those of the session in the options, else none. */
    adapters?: readonly AdapterChoice[] | null;
    /** Think before answering; the same as a reasoning_effort other than 'none'. */
    think?: boolean | null;
}

export interface ChatRequestOptions {
    signal?: AbortSignal;
    /** The session to answer in; what it holds is reused. By default all calls share one. */
    session?: Session;
    /** Progress while the prompt is computed, in tokens. */
    onPromptProgress?(done: number, total: number): void;
}

// ---- responses ----

export interface ChatTokenLogprob {
    token: string;
    logprob: number;
    bytes: number[];
}

export interface ChatLogprobs {
    content: (ChatTokenLogprob & { top_logprobs: ChatTokenLogprob[] })[];
}

export interface ChatUsage {
    prompt_tokens: number;
    completion_tokens: number;
    total_tokens: number;
    prompt_tokens_details: { cached_tokens: number };
}

export type ChatFinish = 'stop' | 'length' | 'tool_calls';

export interface ChatCompletion {
    id: string;
    object: 'chat.completion';
    created: number;
    model: string;
    choices: {
        index: 0;
        message: { role: 'assistant'; content: string | null; reasoning_content?: string; tool_calls?: ChatToolCall[]; refusal: null };
        finish_reason: ChatFinish;
        logprobs: ChatLogprobs | null;
    }[];
    usage: ChatUsage;
}

export interface ChatDelta {
    role?: 'assistant';
    content?: string;
    reasoning_content?: string;
    tool_calls?: (ChatToolCall & { index: number })[];
}

export interface ChatCompletionChunk {
    id: string;
    object: 'chat.completion.chunk';
    created: number;
    model: string;
    choices: { index: 0; delta: ChatDelta; finish_reason: ChatFinish | null; logprobs: ChatLogprobs | null }[];
    usage?: ChatUsage | null;
    /** What OpenAI's form has no name for. */
    gemmule?: { canvas: Canvas };
}

/** An answer as it comes. Leaving the loop or `controller.abort()` stops it. A stream stopped by its signal ends without an error. */
export interface ChatStream extends AsyncIterable<ChatCompletionChunk> {
    readonly controller: AbortController;
}

// ---- checking ----

const IGNORED = ['user', 'metadata', 'safety_identifier', 'prompt_cache_key', 'service_tier', 'model', 'store'];
const KNOWN = [
    'adapters', 'messages', 'stream', 'stream_options', 'max_tokens', 'max_completion_tokens', 'stop', 'seed', 'logit_bias', 'logprobs', 'top_logprobs',
    'tools', 'tool_choice', 'response_format', 'reasoning_effort', 'n', 'parallel_tool_calls', 'modalities', 'think', 'canvas', 'steps',
];
/* The lowest and highest value of each. */
const NUMBERS: Record<string, [number, number]> = {
    temperature: [0, 100], top_p: [0, 1], top_k: [0, 1e9], min_p: [0, 1], typical_p: [0, 1], repetition_penalty: [0.01, 100],
    presence_penalty: [-100, 100], frequency_penalty: [-100, 100], penalty_window: [0, 1e9],
};

function bad(message: string): GemmuleError {
    return new GemmuleError('BadArgument', message);
}

function unsupported(feature: string, message = `${feature} is not supported`): GemmuleError {
    return new GemmuleError('NotSupported', message, { feature });
}

function whole(name: string, value: unknown, low: number, high: number): number {
    if (!Number.isInteger(value) || (value as number) < low || (value as number) > high) {
        throw bad(`${name} must be a whole number from ${low} to ${high}, found ${String(value)}`);
    }
    return value as number;
}

function refuseUnknown(params: ChatCompletionParams & { modalities?: unknown }): void {
    for (const [key, value] of Object.entries(params)) {
        if (value == null || KNOWN.includes(key) || IGNORED.includes(key) || key in NUMBERS) continue;
        throw unsupported(key, `'${key}' is not supported`);
    }
    const { n, tool_choice: choice, response_format: format, modalities, parallel_tool_calls: parallel, tools } = params;
    if (n != null && n !== 1) throw unsupported('n', 'n must be 1');
    if (choice != null && choice !== 'auto' && choice !== 'none') {
        throw unsupported('tool_choice', "tool_choice: only 'auto' and 'none' are supported; no call can be forced");
    }
    if (format != null && format.type !== 'text') {
        throw unsupported('response_format', `response_format of type '${format.type}' is not supported, only 'text'`);
    }
    if (parallel === false && tools?.length) {
        throw unsupported('parallel_tool_calls', 'parallel_tool_calls: false is not supported');
    }
    if (modalities != null && !(Array.isArray(modalities) && modalities.every((one) => one === 'text'))) {
        throw unsupported('modalities', "modalities: only 'text' is supported");
    }
}

function readSampling(params: ChatCompletionParams): Partial<Sampling> {
    const sampling: Partial<Sampling> = {};
    for (const [name, [low, high]] of Object.entries(NUMBERS)) {
        const value = params[name as keyof ChatCompletionParams];
        if (value == null) continue;
        if (typeof value !== 'number' || !(value >= low && value <= high)) {
            throw bad(`${name} must be a number from ${low} to ${high}, found ${String(value)}`);
        }
        (sampling as Record<string, number>)[name] = value;
    }
    if (params.seed != null) sampling.seed = BigInt.asUintN(64, BigInt(whole('seed', params.seed, Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER)));
    if (params.logit_bias != null) {
        for (const [token, bias] of Object.entries(params.logit_bias)) {
            if (!/^\d+$/.test(token) || !(bias >= -100 && bias <= 100)) {
                throw bad('logit_bias must have token ids as keys and numbers from -100 to 100');
            }
        }
        sampling.logit_bias = params.logit_bias;
    }
    return sampling;
}

/** Turns the parameters of a completion into those of a reply. */
export function readParams(params: ChatCompletionParams): ReplyOptions {
    refuseUnknown(params);
    const options: ReplyOptions = { sampling: readSampling(params) };
    const { stop, logprobs, top_logprobs: top, tools, reasoning_effort: effort } = params;
    for (const name of ['max_tokens', 'max_completion_tokens'] as const) {
        if (params[name] != null) options.maxTokens = whole(name, params[name], 1, 2 ** 31);
    }
    if (stop != null) {
        options.stop = [stop].flat() as string[];
        if (!options.stop.every((one) => typeof one === 'string' && one)) throw bad('stop must be a non-empty string or a list of non-empty strings');
    }
    if (logprobs != null && typeof logprobs !== 'boolean') throw bad(`logprobs must be true or false, found ${String(logprobs)}`);
    if (top != null && !logprobs) throw bad('top_logprobs needs logprobs: true');
    if (logprobs) options.logprobs = top == null ? 0 : whole('top_logprobs', top, 0, 20);
    if (tools != null && !Array.isArray(tools)) throw bad('tools must be a list');
    if (tools?.length && params.tool_choice !== 'none') options.tools = tools.map(readTool);
    if (params.canvas != null && typeof params.canvas !== 'string') throw bad('canvas must be a text with holes, such as "The [[3]] is"');
    if (params.canvas != null) options.canvas = params.canvas;
    if (params.steps != null) options.steps = whole('steps', params.steps, 1, 1023);
    if (params.stream_options?.canvas) options.wantCanvas = true;
    if (params.think != null || effort != null) options.think = params.think ?? (effort !== 'none' && effort !== 'minimal');
    return options;
}

function readTool(tool: Tool, index: number): Tool {
    if (tool?.type !== 'function') throw unsupported('tools', `tools[${index}] of type '${String(tool?.type)}' is not supported, only 'function'`);
    if (typeof tool.function?.name !== 'string' || !tool.function.name) throw bad(`tools[${index}].function.name must be a string`);
    const { name, description, parameters } = tool.function;
    const described = { name, ...(description === undefined ? {} : { description }) };
    return { type: 'function', function: { ...described, ...(parameters == null ? {} : { parameters }) } };
}

// ---- messages ----

const BUDGETS = { low: 70, auto: 280, high: 1120 } as const;
const OTHERS: Record<string, string> = { video_url: 'videos by address', image_url: 'images', input_audio: 'sounds', file: 'files' };

function readDetail(detail: ChatVideoPart['detail'], where: string): { budget?: PictureBudget } {
    if (detail === undefined) return {};
    if (!Object.hasOwn(BUDGETS, detail)) throw bad(`${where}.detail must be low, auto or high, found '${String(detail)}'`);
    return { budget: BUDGETS[detail] };
}

const readUrl = (url: unknown, where: string): Blob => (url instanceof Blob ? url : dataUrlBlob(String(url), `${where}.image_url.url`));

function readImage({ image_url: image }: ChatImagePart, where: string): Part {
    return { type: 'image', image: readUrl(image?.url, where), ...readDetail(image?.detail, `${where}.image_url`) };
}

function readVideo({ frames, detail }: ChatVideoPart, where: string): Part {
    if (!Array.isArray(frames)) throw bad(`${where}.frames must be a list of { time, image_url }`);
    const read = (frames as ChatVideoPart['frames']).map((frame, i) => ({ time: frame?.time, image: readUrl(frame?.image_url?.url, `${where}.frames[${i}]`) }));
    return { type: 'video', frames: read, ...(detail === 'auto' ? {} : readDetail(detail, where)) };
}

function readAudio({ input_audio: audio }: ChatAudioPart, where: string): Part {
    const data = audio?.data;
    if (data instanceof Blob) return { type: 'audio', audio: data };
    if (typeof data !== 'string') throw bad(`${where}.input_audio.data must be base64 or a Blob`);
    return { type: 'audio', audio: dataUrlBlob(/^data:/i.test(data) ? data : `data:;base64,${data}`, `${where}.input_audio.data`) };
}

function readPart(part: Exclude<ChatContent, string>[number], where: string, message: string): Part {
    if (part?.type === 'text' && typeof part.text === 'string') return { type: 'text', text: part.text };
    if ((part as { type?: string })?.type === 'refusal') return { type: 'text', text: String((part as { refusal?: unknown }).refusal ?? '') };
    if (part?.type === 'image_url') return readImage(part, where);
    if (part?.type === 'input_audio') return readAudio(part, where);
    if (part?.type === 'video') return readVideo(part, where);
    const type = String((part as { type?: unknown })?.type);
    throw unsupported(type, OTHERS[type] ? `${message}: ${OTHERS[type]} (${type}) are not supported` : `${where}: '${type}' is not supported`);
}

/* Text alone is joined. */
function readContent(content: ChatContent | null | undefined, where: string): string | Part[] {
    if (content == null) return '';
    if (typeof content === 'string') return content;
    if (!Array.isArray(content)) throw bad(`${where}.content must be a string or a list of parts`);
    const parts = content.map((part, i) => readPart(part, `${where}.content[${i}]`, where));
    return parts.every((part) => part.type === 'text') ? parts.map(({ text }) => text).join('') : parts;
}

function readText(content: ChatContent | null | undefined, where: string, role: string): string {
    const read = readContent(content, where);
    if (typeof read === 'string') return read;
    throw unsupported('media', `${where}: only user messages can have pictures and sounds, found role '${role}'`);
}

function readCall(call: ChatToolCall, where: string): ToolCall {
    if (typeof call?.function?.name !== 'string') throw bad(`${where}.function.name must be a string`);
    let parsed: unknown;
    try {
        parsed = JSON.parse(call.function.arguments || '{}');
    } catch {
        throw bad(`${where}.function.arguments must be JSON`);
    }
    return { id: call.id, type: 'function', function: { name: call.function.name, arguments: parsed } };
}

export function readMessages(messages: readonly ChatMessage[]): Message[] {
    if (!Array.isArray(messages) || !messages.length) throw bad('messages must be a list with at least one message');
    const names = new Map<string, string>(); // a tool message names only the call's id
    return (messages as readonly ChatMessage[]).map((message, i): Message => {
        const where = `messages[${i}]`;
        switch (message?.role) {
            case 'system':
            case 'developer':
                return { role: 'system', content: readText(message.content, where, 'system') };
            case 'user':
                return { role: 'user', content: readContent(message.content, where) };
            case 'assistant': {
                const calls = message.tool_calls?.map((call, j) => readCall(call, `${where}.tool_calls[${j}]`)) ?? [];
                for (const call of calls) if (call.id) names.set(call.id, call.function.name);
                return {
                    role: 'assistant', content: readText(message.content, where, 'assistant'),
                    ...(message.reasoning_content ? { thinking: message.reasoning_content } : {}), ...(calls.length ? { tool_calls: calls } : {}),
                };
            }
            case 'tool': {
                if (typeof message.tool_call_id !== 'string') throw bad(`${where}.tool_call_id must be a string`);
                const name = names.get(message.tool_call_id);
                const content = readText(message.content, where, 'tool');
                return { role: 'tool', content, tool_call_id: message.tool_call_id, ...(name ? { tool_name: name } : {}) };
            }
            default:
                throw bad(`${where}.role must be system, developer, user, assistant or tool, found '${(message as { role?: string })?.role}'`);
        }
    });
}

// ---- answers ----

function randomId(prefix: string): string {
    return prefix + Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function toolCall(piece: ReplyPiece & { kind: 'tool_call' }): ChatToolCall {
    return { id: randomId('call_'), type: 'function', function: { name: piece.name, arguments: JSON.stringify(piece.arguments) } };
}

function logprobsOf(rows: TokenLogprobText[][] | undefined): ChatLogprobs | null {
    if (!rows) return null;
    const one = ({ logprob, bytes }: TokenLogprobText): ChatTokenLogprob => ({ token: new TextDecoder().decode(bytes), logprob, bytes: [...bytes] });
    return { content: rows.map(([chosen, ...others]) => ({ ...one(chosen!), top_logprobs: others.map(one) })) };
}

function usageOf(stats: ReplyStats): ChatUsage {
    return {
        prompt_tokens: stats.promptTokens, completion_tokens: stats.replyTokens, total_tokens: stats.promptTokens + stats.replyTokens,
        prompt_tokens_details: { cached_tokens: stats.cachedTokens },
    };
}

function finishOf(stats: ReplyStats): ChatFinish | null {
    return stats.finish === 'cancelled' ? null : stats.finish;
}

export class Completions {
    readonly #engine: Engine;
    #shared: Promise<Session> | null = null;

    /** @internal */
    constructor(engine: Engine) {
        this.#engine = engine;
    }

    /** Answers a conversation, in one piece or as a stream. */
    create(params: ChatCompletionParams & { stream: true }, options?: ChatRequestOptions): Promise<ChatStream>;
    create(params: ChatCompletionParams & { stream?: false | null }, options?: ChatRequestOptions): Promise<ChatCompletion>;
    create(params: ChatCompletionParams, options?: ChatRequestOptions): Promise<ChatCompletion | ChatStream>;
    async create(params: ChatCompletionParams, options: ChatRequestOptions = {}): Promise<ChatCompletion | ChatStream> {
        if (params.stream_options != null && !params.stream) throw bad('stream_options needs stream: true');
        const messages = readMessages(params.messages);
        const wishes = readParams(params);
        const controller = new AbortController();
        const signal = options.signal ? AbortSignal.any([options.signal, controller.signal]) : controller.signal;
        const adapters = this.#adapters(params) ?? (options.session ? undefined : []);
        const session = options.session ?? (await this.#session());
        const reply = session.reply(messages, { ...wishes, ...(adapters ? { adapters } : {}), signal });
        const model = [this.#engine.info.name, ...(adapters ?? session.adapters).map(({ adapter }) => adapter.name)].join('+');
        const head = { id: randomId('chatcmpl-'), created: Math.floor(Date.now() / 1000), model };
        if (!params.stream) return this.#whole(reply, head, options);
        const chunks = streamChunks(reply, head, params.stream_options?.include_usage ?? false, signal, options);
        return { controller, [Symbol.asyncIterator]: () => chunks };
    }

    /* The adapters that a request names; undefined: it names none. */
    #adapters({ adapters, model }: ChatCompletionParams): ReturnType<Adapters['resolve']> | undefined {
        if (adapters != null) return this.#engine.adapters.resolve(adapters);
        const names = typeof model === 'string' && model !== this.#engine.info.name ? model.split('+').slice(1) : [];
        return names.length ? this.#engine.adapters.resolve(names) : undefined;
    }

    #session(): Promise<Session> {
        this.#shared ??= this.#engine.session();
        this.#shared.catch(() => (this.#shared = null));
        return this.#shared;
    }

    async #whole(reply: Reply, head: Head, options: ChatRequestOptions): Promise<ChatCompletion> {
        const answer = new Answer();
        const pieces = withProgress(reply, options);
        let next = await pieces.next();
        for (; !next.done; next = await pieces.next()) answer.add(next.value);
        const stats = next.value;
        const finish = finishOf(stats);
        if (!finish) throw new GemmuleError('Aborted', 'stopped by the caller', { partial: answer.message() });
        return {
            ...head, object: 'chat.completion',
            choices: [{ index: 0, message: answer.message(), finish_reason: finish, logprobs: answer.logprobs() }],
            usage: usageOf(stats),
        };
    }
}

export class Chat {
    readonly completions: Completions;

    /** @internal */
    constructor(engine: Engine) {
        this.completions = new Completions(engine);
    }
}

interface Head {
    id: string;
    created: number;
    model: string;
}

/* Collects the pieces of an answer. */
class Answer {
    #content = '';
    #thinking = '';
    readonly #calls: ChatToolCall[] = [];
    #rows: TokenLogprobText[][] | null = null;

    add(piece: ReplyPiece): void {
        if (piece.kind === 'tool_call') this.#calls.push(toolCall(piece));
        else if (piece.kind === 'thinking') this.#thinking += piece.text;
        else if (piece.kind === 'content') {
            this.#content += piece.text;
            if (piece.logprobs) (this.#rows ??= []).push(...piece.logprobs);
        }
    }

    message(): ChatCompletion['choices'][number]['message'] {
        return {
            role: 'assistant', content: this.#calls.length && !this.#content ? null : this.#content, refusal: null,
            ...(this.#thinking ? { reasoning_content: this.#thinking } : {}), ...(this.#calls.length ? { tool_calls: this.#calls } : {}),
        };
    }

    logprobs(): ChatLogprobs | null {
        return this.#rows && logprobsOf(this.#rows);
    }
}

/* Yields the pieces without progress, and returns the statistics. An answer that fills the context ends with 'length'. */
async function* withProgress(reply: Reply, options: ChatRequestOptions): AsyncGenerator<Exclude<ReplyPiece, { kind: 'progress' }>, ReplyStats> {
    try {
        for await (const piece of reply) {
            if (piece.kind === 'progress') options.onPromptProgress?.(piece.done, piece.total);
            else yield piece;
        }
        return await reply.stats;
    } catch (thrown) {
        const { name, detail } = thrown as { name?: string; detail?: { stats?: ReplyStats } };
        if (name !== 'ContextFull' || !detail?.stats?.replyTokens) throw thrown;
        return { ...detail.stats, finish: 'length' };
    }
}

async function* streamChunks(
    reply: Reply, head: Head, includeUsage: boolean, signal: AbortSignal, options: ChatRequestOptions,
): AsyncGenerator<ChatCompletionChunk> {
    const chunk = (delta: ChatDelta, finish: ChatFinish | null = null, logprobs: ChatLogprobs | null = null): ChatCompletionChunk => ({
        ...head, object: 'chat.completion.chunk', choices: [{ index: 0, delta, finish_reason: finish, logprobs }],
        ...(includeUsage ? { usage: null } : {}),
    });
    let calls = 0;
    try {
        if (signal.aborted) return;
        yield chunk({ role: 'assistant', content: '' });
        const pieces = withProgress(reply, options);
        let next = await pieces.next();
        for (; !next.done; next = await pieces.next()) {
            const piece = next.value;
            if (piece.kind === 'tool_call') yield chunk({ tool_calls: [{ index: calls++, ...toolCall(piece) }] });
            else if (piece.kind === 'thinking') yield chunk({ reasoning_content: piece.text });
            else if (piece.kind === 'canvas') yield { ...chunk({}), gemmule: { canvas: piece.canvas } };
            else yield chunk({ content: piece.text }, null, logprobsOf(piece.logprobs));
        }
        const stats = next.value;
        const finish = finishOf(stats);
        if (!finish || signal.aborted) return;
        yield chunk({}, finish);
        if (includeUsage && !signal.aborted) yield { ...head, object: 'chat.completion.chunk', choices: [], usage: usageOf(stats) };
    } catch (thrown) {
        if (toGemmuleError(thrown).name === 'Aborted' && signal.aborted) return;
        throw thrown;
    } finally {
        reply.stop(); // in case the loop was left early
        await reply.stats.catch(() => undefined);
    }
}
