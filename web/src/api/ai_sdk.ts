/* A provider for Vercel's AI SDK: `streamText({ model: gemmule(engine), … })`. Only types come from the SDK. */

import type {
    LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4Content, LanguageModelV4FilePart, LanguageModelV4FinishReason, LanguageModelV4FunctionTool,
    LanguageModelV4GenerateResult, LanguageModelV4Message, LanguageModelV4StreamPart, LanguageModelV4StreamResult,
    LanguageModelV4ToolResultOutput, LanguageModelV4Usage, SharedV4Warning,
} from '@ai-sdk/provider';
import { GemmuleError } from '../core/errors.ts';
import type { Message, Part, ReplyOptions, ReplyStats, Sampling, Tool } from '../core/types.ts';
import { dataUrlBlob } from '../media/files.ts';
import type { ReplyPiece } from '../worker/protocol.ts';
import { toolCall } from './chat.ts';
import type { Engine } from './engine.ts';
import type { Session } from './session.ts';

function unsupported(feature: string): GemmuleError {
    return new GemmuleError('NotSupported', `${feature} is not supported`, { feature });
}

// ---- prompts ----

function toolOutput(output: LanguageModelV4ToolResultOutput): string {
    switch (output.type) {
        case 'text':
        case 'error-text':
            return output.value;
        case 'json':
        case 'error-json':
            return JSON.stringify(output.value);
        case 'execution-denied':
            return output.reason ?? 'the user denied this call';
        case 'content':
            return output.value.map((part) => {
                if (part.type !== 'text') throw unsupported(`a tool result of type ${part.type}`);
                return part.text;
            }).join('');
    }
}

function readFile({ mediaType, data }: LanguageModelV4FilePart): Part {
    const kind = mediaType.split('/')[0];
    if (kind !== 'image' && kind !== 'audio') throw unsupported(`a file of type ${mediaType}`);
    if (data.type !== 'data' && data.type !== 'url') throw unsupported(`a file given as ${data.type}`);
    const blob = data.type === 'url' ? dataUrlBlob(data.url, `a file of type ${mediaType}`)
        : typeof data.data === 'string' ? dataUrlBlob(`data:;base64,${data.data}`, 'a file') : new Blob([data.data as Uint8Array<ArrayBuffer>]);
    return kind === 'image' ? { type: 'image', image: blob } : { type: 'audio', audio: blob };
}

function readMessage(message: LanguageModelV4Message): Message[] {
    switch (message.role) {
        case 'system':
            return [{ role: 'system', content: message.content }];
        case 'user':
            return [{ role: 'user', content: readUser(message.content) }];
        case 'assistant': {
            const out: Message & { content: string } = { role: 'assistant', content: '' };
            for (const part of message.content) {
                if (part.type === 'text') out.content += part.text;
                else if (part.type === 'reasoning') out.thinking = (out.thinking ?? '') + part.text;
                else if (part.type === 'tool-call') {
                    (out.tool_calls ??= []).push({ id: part.toolCallId, type: 'function', function: { name: part.toolName, arguments: part.input } });
                } else throw unsupported(`an assistant part of type ${part.type}`);
            }
            return [out];
        }
        case 'tool':
            return message.content.map((part): Message => {
                if (part.type !== 'tool-result') throw unsupported(`a tool part of type ${part.type}`);
                return { role: 'tool', content: toolOutput(part.output), tool_name: part.toolName, tool_call_id: part.toolCallId };
            });
    }
}

function readUser(content: Extract<LanguageModelV4Message, { role: 'user' }>['content']): string | Part[] {
    const parts = content.map((part): Part => (part.type === 'text' ? { type: 'text', text: part.text } : readFile(part)));
    return parts.every((part) => part.type === 'text') ? parts.map(({ text }) => text).join('') : parts;
}

// ---- options ----

function readTools(options: LanguageModelV4CallOptions): Tool[] {
    const { tools = [], toolChoice = { type: 'auto' } } = options;
    if (toolChoice.type === 'required' || toolChoice.type === 'tool') throw unsupported(`toolChoice '${toolChoice.type}'`);
    if (toolChoice.type === 'none') return [];
    return tools.map((tool): Tool => {
        if (tool.type !== 'function') throw unsupported(`the provider's tool ${tool.id}`);
        const { name, description, inputSchema } = tool as LanguageModelV4FunctionTool;
        return { type: 'function', function: { name, ...(description === undefined ? {} : { description }), parameters: inputSchema } };
    });
}

const SAMPLING = {
    temperature: 'temperature', topP: 'top_p', topK: 'top_k', presencePenalty: 'presence_penalty', frequencyPenalty: 'frequency_penalty',
    seed: 'seed',
} as const;

function readOptions(options: LanguageModelV4CallOptions): { reply: ReplyOptions; warnings: SharedV4Warning[] } {
    if (options.responseFormat && options.responseFormat.type !== 'text') throw unsupported(`responseFormat '${options.responseFormat.type}'`);
    const sampling: Partial<Sampling> = {};
    for (const [theirs, ours] of Object.entries(SAMPLING)) {
        const value = options[theirs as keyof typeof SAMPLING];
        if (value != null) sampling[ours as (typeof SAMPLING)[keyof typeof SAMPLING]] = value;
    }
    const reply: ReplyOptions = { sampling };
    const tools = readTools(options);
    if (tools.length) reply.tools = tools;
    if (options.maxOutputTokens != null) reply.maxTokens = options.maxOutputTokens;
    if (options.stopSequences?.length) reply.stop = options.stopSequences;
    if (options.reasoning && options.reasoning !== 'provider-default') reply.think = options.reasoning !== 'none' && options.reasoning !== 'minimal';
    if (options.abortSignal) reply.signal = options.abortSignal;
    return { reply, warnings: [] };
}

// ---- answers ----

function usageOf({ promptTokens, cachedTokens, replyTokens }: ReplyStats): LanguageModelV4Usage {
    return {
        inputTokens: { total: promptTokens, noCache: promptTokens - cachedTokens, cacheRead: cachedTokens, cacheWrite: undefined },
        outputTokens: { total: replyTokens, text: undefined, reasoning: undefined },
    };
}

function finishOf({ finish }: ReplyStats): LanguageModelV4FinishReason {
    const unified = ({ stop: 'stop', length: 'length', tool_calls: 'tool-calls', cancelled: 'interrupted' } as const)[finish];
    return { unified, raw: finish };
}

/* Turns pieces into parts: text and reasoning are enclosed by a start and an end part. */
class Parts {
    #open: { type: 'text' | 'reasoning'; id: string } | null = null;
    #count = 0;

    *of(piece: ReplyPiece): Generator<LanguageModelV4StreamPart> {
        if (piece.kind === 'progress' || piece.kind === 'canvas') return;
        if (piece.kind === 'tool_call') {
            yield* this.end();
            const { id, function: { name, arguments: input } } = toolCall(piece);
            yield { type: 'tool-input-start', id, toolName: name };
            yield { type: 'tool-input-delta', id, delta: input };
            yield { type: 'tool-input-end', id };
            yield { type: 'tool-call', toolCallId: id, toolName: name, input };
            return;
        }
        const type = piece.kind === 'content' ? 'text' : 'reasoning';
        if (this.#open?.type !== type) {
            yield* this.end();
            this.#open = { type, id: String(this.#count++) };
            yield { type: `${type}-start`, id: this.#open.id };
        }
        yield { type: `${type}-delta`, id: this.#open.id, delta: piece.text };
    }

    *end(): Generator<LanguageModelV4StreamPart> {
        if (this.#open) yield { type: `${this.#open.type}-end`, id: this.#open.id };
        this.#open = null;
    }
}

class GemmuleLanguageModel implements LanguageModelV4 {
    readonly specificationVersion = 'v4';
    readonly provider = 'gemmule';
    readonly modelId: string;
    readonly supportedUrls = {};
    readonly #engine: Engine;
    #session: Promise<Session> | null = null;

    constructor(engine: Engine) {
        this.#engine = engine;
        this.modelId = engine.info.name;
    }

    async doGenerate(options: LanguageModelV4CallOptions): Promise<LanguageModelV4GenerateResult> {
        const { stream } = await this.doStream(options);
        const content: LanguageModelV4Content[] = [];
        let end: (LanguageModelV4StreamPart & { type: 'finish' }) | null = null;
        let warnings: SharedV4Warning[] = [];
        for await (const part of stream as unknown as AsyncIterable<LanguageModelV4StreamPart>) {
            const last = content.at(-1);
            if (part.type === 'text-start') content.push({ type: 'text', text: '' });
            else if (part.type === 'reasoning-start') content.push({ type: 'reasoning', text: '' });
            else if (part.type === 'text-delta' && last?.type === 'text') last.text += part.delta;
            else if (part.type === 'reasoning-delta' && last?.type === 'reasoning') last.text += part.delta;
            else if (part.type === 'tool-call') content.push(part);
            else if (part.type === 'stream-start') warnings = part.warnings;
            else if (part.type === 'error') throw part.error;
            else if (part.type === 'finish') end = part;
        }
        if (!end) throw new GemmuleError('Internal', 'the answer ended without a finish part');
        return { content, finishReason: end.finishReason, usage: end.usage, warnings };
    }

    async doStream(options: LanguageModelV4CallOptions): Promise<LanguageModelV4StreamResult> {
        const { reply: wishes, warnings } = readOptions(options);
        const messages = options.prompt.flatMap(readMessage);
        const reply = (await this.#own()).reply(messages, wishes);
        async function* parts(): AsyncGenerator<LanguageModelV4StreamPart> {
            const open = new Parts();
            yield { type: 'stream-start', warnings };
            try {
                for await (const piece of reply) {
                    for (const part of open.of(piece)) {
                        options.abortSignal?.throwIfAborted();
                        yield part;
                    }
                }
                const stats = await reply.stats;
                options.abortSignal?.throwIfAborted();
                yield* open.end();
                yield { type: 'finish', usage: usageOf(stats), finishReason: finishOf(stats) };
            } catch (error) {
                yield { type: 'error', error };
            }
        }
        const iterator = parts();
        return {
            stream: new ReadableStream<LanguageModelV4StreamPart>({
                async pull(controller) {
                    const { done, value } = await iterator.next();
                    if (done) controller.close();
                    else controller.enqueue(value);
                },
                async cancel() {
                    reply.stop();
                    await iterator.return(undefined);
                },
            }, { highWaterMark: 0 }), // reads nothing ahead, so that nothing is left to deliver after an abort
        };
    }

    #own(): Promise<Session> {
        this.#session ??= this.#engine.session();
        this.#session.catch(() => (this.#session = null));
        return this.#session;
    }
}

/** A model for `generateText`, `streamText` and the like. */
export function gemmule(engine: Engine): LanguageModelV4 {
    return new GemmuleLanguageModel(engine);
}
