// What the core speaks: sources of bytes, options, messages, pieces of an answer.
//
// Core, CoreEngine and CoreSession (core.ts) run where they are made, without DOM and without Worker: in the package's worker,
// or inline in Node. Everything here but ByteSource, AbortSignal and callbacks can be cloned into a message.

import type { Verdicts } from './choice.ts';
import type { ThreadHost } from './threads.ts';

/** Where a file's bytes are: a URL, a File, an OPFS entry, memory. */
export interface ByteSource {
    /** For messages. */
    readonly name: string;
    readonly size: number;
    /** Exactly `length` bytes, or a GemmuleError. `into`: memory that they may be put into, at its beginning. */
    read(offset: number, length: number, signal?: AbortSignal, into?: ArrayBuffer): Promise<Uint8Array>;
    close?(): Promise<void>;
}

export type Backend = 'gpu' | 'wasm';
export type KeyValueType = 'f16' | 'f32' | 'q8_0';

export interface CoreOptions {
    wasm: WebAssembly.Module | BufferSource;
    /** navigator.gpu, or Dawn's in Node; null: none. */
    gpu?: GPU | null;
    /** Where threads come from; null: nowhere, as on a page that may not share memory. */
    threads?: ThreadHost | null;
    /** Where `backend: 'auto'` remembers which backend was faster; in memory by default. */
    verdicts?: Verdicts;
}

export interface LoadProgress {
    /** header: metadata is read. check: the GPU computes known results. weights: bytes come in. plans: the engine gets ready.
     * measure: GPU and wasm are compared. */
    phase: 'header' | 'check' | 'weights' | 'plans' | 'measure';
    /** Bytes; steps in the phases check, plans and measure. */
    done: number;
    total: number;
}

export interface EngineOptions {
    /** auto: a hardware GPU or wasm, whichever writes this model faster. gpu: any adapter, also a software one. */
    backend?: 'auto' | Backend;
    /** Whether a software GPU will do; by default only with `backend: 'gpu'`. */
    softwareGpu?: boolean;
    /** f32 activations, keys and values: slower, exact against the reference. */
    precise?: boolean;
    /** Bytes of GPU memory to use; what does not fit is read from the source when it is needed. */
    gpuMemory?: number;
    /** Without a GPU: bytes of weights that WebAssembly may hold, 3 GiB if nothing is said. Where they are more, rows of the per-layer
     * table are read from the source for each token; where that does not help, the model is refused. */
    wasmMemory?: number;
    /** Threads on wasm, where there can be some: as many as the processor is worth if nothing is said; 1: off. */
    threads?: number;
    /** GPU features not to use, such as 'subgroups,dot4,f16'. */
    gpuDisable?: string;
    powerPreference?: GPUPowerPreference;
    /** What the user calls the model, such as 'gemma4:e2b': for messages and for the variant of the chat format. */
    name?: string;
    /** What Ollama's manifest says beside the weights: JSON of the params layer, the system prompt, the renderer. */
    ollama?: { params?: string; system?: string; renderer?: string };
    signal?: AbortSignal;
    onProgress?(progress: LoadProgress): void;
}

/** Whether a model fits, from its header alone. */
export interface FitReport {
    fits: boolean;
    /** A sentence for the user; '' if it fits without reservation. */
    why: string;
    name: string;
    architecture: string;
    layers: number;
    parameters: number;
    fileBytes: number;
    /** On the GPU: weights, plans and keys and values of a usual session; on wasm: bytes of main memory. */
    gpuBytes: number;
    kvBytesPerToken: number;
    /** Of the per-layer table, of which a token needs one row; 0: the model has none. */
    tableBytes: number;
    /** In GPU memory, or on wasm in main memory: else its rows are read from the source for each token, and none is computed ahead. */
    tableKept: boolean;
    backend: Backend;
    notes: string[];
}

export interface EngineInfo {
    name: string;
    architecture: string;
    device: string;
    backend: Backend;
    /** Why this backend: 'requested', what the GPU lacks, or the measured speeds of both. */
    backendReason: string;
    layers: number;
    width: number;
    vocabulary: number;
    /** The most tokens that the model was made for. */
    context: number;
    parameters: number;
    fileBytes: number;
    /** Weight bytes read to decode one token. */
    bytesPerToken: number;
    /** That compute on wasm; 1 with a GPU. */
    threads: number;
    /** What does not fit into GPU memory, and what that costs, or why threads could not be started; '' if all is well. */
    note: string;
    /** Ties a snapshot to the model: 64 hex digits. */
    digest: string;
}

export interface EngineStats {
    wasmBytes: number;
    /** Bytes of all GPU buffers; 0 on wasm. */
    gpuBytes: number;
    /** Dispatches of one decoded token; 0 before the first token, and on wasm. */
    dispatchesPerToken: number;
    /** Seconds that the self-check, bringing the weights in, and making plans have taken so far. */
    checkSeconds: number;
    loadSeconds: number;
    planSeconds: number;
}

export interface DeviceInfo {
    backend: Backend;
    name: string;
    vendor: string;
    driver: string;
    /** A CPU that plays a GPU. */
    software: boolean;
    /** WebGPU features of the adapter; on wasm what the build uses ('simd128'). */
    features: string[];
    limits: Record<string, number>;
}

export interface ToolCall {
    id?: string;
    type?: 'function';
    function: { name: string; arguments: unknown };
}

export interface Tool {
    type: 'function';
    function: { name: string; description?: string; parameters?: unknown };
}

export interface Message {
    role: 'system' | 'user' | 'assistant' | 'tool';
    content: string;
    thinking?: string;
    tool_calls?: ToolCall[];
    tool_name?: string;
    tool_call_id?: string;
}

export interface Sampling {
    /** 0: greedy. */
    temperature: number;
    /** 0: all. */
    top_k: number;
    /** 1: off. */
    top_p: number;
    /** 0: off. */
    min_p: number;
    /** 1: off. */
    typical_p: number;
    /** 1: off; over the last `penalty_window` tokens. */
    repetition_penalty: number;
    presence_penalty: number;
    frequency_penalty: number;
    penalty_window: number;
    /** Same seed and logits: same token on every backend. Without one, a random seed. */
    seed?: number | bigint;
    logit_bias?: Record<number, number>;
}

export interface TokenLogprob {
    token: number;
    /** Natural, of the model's own distribution: before penalties, temperature and cuts. */
    logprob: number;
}

export interface ReplyOptions {
    sampling?: Partial<Sampling>;
    tools?: Tool[];
    think?: boolean;
    /** 0 or none: an Ollama model's `num_predict`, else as many as fit. */
    maxTokens?: number;
    /** Strings that end the answer; not part of it. None: those of an Ollama model. */
    stop?: string[];
    /** With every piece, this many alternatives per token (at most 20); 0: only the chosen one; none: no log-probabilities. */
    logprobs?: number;
    /** What a session held when this same reply broke off, as with a lost GPU: what lies behind the prompt is the answer's beginning, and
     * its pieces come again. */
    resume?: Int32Array;
    signal?: AbortSignal;
}

export type Piece =
    /** logprobs: for each token of the piece the chosen one, then the alternatives. */
    | { kind: 'content' | 'thinking'; text: string; logprobs?: TokenLogprob[][] }
    | { kind: 'tool_call'; name: string; arguments: unknown; json: string }
    | { kind: 'progress'; done: number; total: number };

export interface ReplyStats {
    finish: 'stop' | 'length' | 'tool_calls' | 'cancelled';
    promptTokens: number;
    /** Of the prompt, those that the session already held. */
    cachedTokens: number;
    replyTokens: number;
    promptSeconds: number;
    replySeconds: number;
}

export interface SessionOptions {
    /** Most tokens held; none: an Ollama model's `num_ctx`, else the model's, at most 8192. */
    context?: number;
    /** f16, or f32 on a precise engine. */
    kv?: KeyValueType;
}

// The classes of core.ts, as interfaces: what the worker and the API build on. Keys and values may be on a GPU, so whatever reads or
// copies them is a promise.

export interface CoreLike {
    devices(): Promise<DeviceInfo[]>;
    dryRun(sources: ByteSource[], options?: EngineOptions): Promise<FitReport>;
    /** Several sources: a split GGUF, its first part first. */
    open(sources: ByteSource[], options?: EngineOptions): Promise<CoreEngineLike>;
}

export interface CoreEngineLike {
    readonly info: EngineInfo;
    readonly samplingDefault: Sampling;
    /** Settles when the GPU is lost, with the reason; never for our own close. */
    readonly lost: Promise<string>;
    session(options?: SessionOptions): CoreSessionLike;
    tokenize(text: string, parseSpecial?: boolean): Int32Array;
    /** The bytes of one token, which alone may not be UTF-8. */
    tokenText(id: number): Uint8Array;
    detokenize(ids: Iterable<number>): string;
    render(messages: Message[], options?: ReplyOptions): string;
    selfCheck(): Promise<void>;
    stats(): EngineStats;
    /** Frees its sessions, too. What is under way ends with an error. */
    close(): void;
}

export interface CoreSessionLike {
    readonly context: number;
    tokens(): Int32Array;
    /** Makes the session hold exactly these tokens; what it already holds as a prefix is not computed again. */
    set(ids: Int32Array, signal?: AbortSignal): Promise<void>;
    append(ids: Int32Array, signal?: AbortSignal): Promise<void>;
    /** Forgets all but the first `keep` tokens; returns how many will have to be computed again. */
    rollback(keep: number): number;
    fork(): Promise<CoreSessionLike>;
    save(): Promise<Uint8Array>;
    /** A snapshot that does not fit is refused and changes nothing. */
    restore(bytes: Uint8Array): Promise<void>;
    /** The logits behind the last token: a set or an append leaves them, a reply need not. A copy. */
    logits(): Float32Array | null;
    /** Leaving the loop early, or the signal, cancels: what was written stays in the session, the reply ends with finish 'cancelled'. */
    reply(messages: Message[], options?: ReplyOptions): AsyncGenerator<Piece, ReplyStats>;
    replyTokens(ids: Int32Array, options?: ReplyOptions): AsyncGenerator<Piece, ReplyStats>;
    free(): void;
}
