// The core's types: sources of bytes, options, messages, pieces of an answer.
//
// Core, CoreEngine and CoreSession need neither DOM nor Worker: they run in the package's worker, or inline in Node. Everything here but
// ByteSource, AbortSignal and callbacks can be cloned into a message.

import type { PictureBudget, PictureInput, PlainFrame, PlainPicture, PlainSound, SoundInput, VideoFrameInput, VideoInput } from '../media/types.ts';
import type { Verdicts } from './choice.ts';
import type { ThreadHost } from './threads.ts';

/** Where a file's bytes are: a URL, a File, an OPFS entry, memory. */
export interface ByteSource {
    /** For messages. */
    readonly name: string;
    readonly size: number;
    /** Exactly `length` bytes, or a GemmuleError. `into`: memory to use for them, if the source can. */
    read(offset: number, length: number, signal?: AbortSignal, into?: ArrayBuffer): Promise<Uint8Array>;
    close?(): Promise<void>;
}

export type Backend = 'gpu' | 'wasm';
export type KeyValueType = 'f16' | 'f32' | 'q8_0';

export interface CoreOptions {
    wasm: WebAssembly.Module | BufferSource;
    /** navigator.gpu, or Dawn's in Node; null: none. */
    gpu?: GPU | null;
    /** Starts threads; null: no threads, as on a page that may not share memory. */
    threads?: ThreadHost | null;
    /** Where `backend: 'auto'` remembers which backend was faster; in memory by default. */
    verdicts?: Verdicts;
    /** Where it is remembered which experts a model uses most, if the GPU holds some of them; by default nowhere. */
    profiles?: Profiles;
}

/** Profiles of experts, by model. */
export interface Profiles {
    get(key: string): Promise<Uint8Array | undefined>;
    set(key: string, profile: Uint8Array): Promise<unknown>;
}

export interface LoadProgress {
    /** header: metadata is read. check: the GPU computes known results. weights: bytes come in, and meanwhile shaders compile and the
     * GPU is checked. shaders: the rest of that. plans: the engine gets ready. measure: GPU and wasm are compared. */
    phase: 'header' | 'check' | 'weights' | 'shaders' | 'plans' | 'measure';
    /** Bytes; shaders in the phase shaders; steps in the phases check, plans and measure. */
    done: number;
    total: number;
}

export interface EngineOptions {
    /** auto: a hardware GPU or wasm, whichever writes this model faster. gpu: any adapter, also a software one. */
    backend?: 'auto' | Backend;
    /** Whether a software GPU will do; by default only with `backend: 'gpu'`. */
    softwareGpu?: boolean;
    /** f32 activations, keys and values: slower, and exact compared with the reference. A diffusion model then writes the same text on every backend. */
    precise?: boolean;
    /** Bytes of GPU memory to use. Weights that do not fit are read from the source when they are needed. */
    gpuMemory?: number;
    /** Experts of each layer that the GPU holds at once; they are read when they are used. By default all are there from the beginning, or as
     * many as fit `gpuMemory`. */
    gpuExperts?: number;
    /** On wasm: most bytes of weights, 3 GiB by default. If there are more, the rows of the per-layer table are read from the source for
     * each token; if that is not enough, the model is refused. */
    wasmMemory?: number;
    /** Threads on wasm, where memory can be shared; by default as many as the processor can use. 1: off. */
    threads?: number;
    /** GPU features not to use, such as 'subgroups,dot4,f16'. */
    gpuDisable?: string;
    powerPreference?: GPUPowerPreference;
    /** The user's name for the model, such as 'gemma4:e2b': for messages, and to choose the variant of the chat format. */
    name?: string;
    /** What Ollama's manifest has beside the weights: the params layer as JSON, the system prompt, the renderer. */
    ollama?: { params?: string; system?: string; renderer?: string };
    /** The last source is a file with the model's towers (mmproj), as llama.cpp has them. */
    projector?: boolean;
    signal?: AbortSignal;
    onProgress?(progress: LoadProgress): void;
}

/** Whether a model fits, from its header alone. */
export interface FitReport {
    fits: boolean;
    /** A sentence for the user; '' if the model simply fits. */
    why: string;
    name: string;
    architecture: string;
    layers: number;
    parameters: number;
    fileBytes: number;
    /** GPU memory for weights, plans, and the keys and values of a typical session; on wasm: main memory. */
    gpuBytes: number;
    kvBytesPerToken: number;
    /** Bytes of the per-layer table, of which a token needs one row; 0: the model has none. */
    tableBytes: number;
    /** Whether that table is in memory. If not, each token reads its rows from the source, and no token is computed ahead. */
    tableKept: boolean;
    /** Of the vision and audio towers, which are loaded only when a message has a picture or a sound. */
    towerBytes: number;
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
    /** The longest context that the model supports, in tokens. */
    context: number;
    parameters: number;
    fileBytes: number;
    /** Weight bytes read to decode one token. */
    bytesPerToken: number;
    /** Threads that compute on wasm; 1 on a GPU. */
    threads: number;
    /** What does not fit into GPU memory and what that costs, or why there are no threads; '' if all is well. */
    note: string;
    /** Experts of a layer, and how many of them the GPU holds at once; 0 without experts, or without a GPU. */
    experts: number;
    gpuExperts: number;
    /** Whether it understands pictures, and sounds. */
    vision: boolean;
    audio: boolean;
    /** The most tokens of a picture, unless a message says otherwise. */
    pictureBudget: PictureBudget;
    /** Ties a snapshot to the model: 64 hex digits. */
    digest: string;
}

export interface EngineStats {
    wasmBytes: number;
    /** Bytes of all GPU buffers; 0 on wasm. */
    gpuBytes: number;
    /** Dispatches per decoded token; 0 before the first token, and on wasm. */
    dispatchesPerToken: number;
    /** Seconds that opening took: the self-check and loading weights, side by side, and then the wait for shaders. */
    checkSeconds: number;
    loadSeconds: number;
    shaderSeconds: number;
    /** Seconds spent so far on making plans. */
    planSeconds: number;
    /** If the GPU has slots for some of the experts: the share of uses, from 0 to 1, that found the expert there, and bytes of experts that
     * were brought to the GPU per token, both since loading. Absent otherwise, and before the first token. */
    expertHitRate?: number;
    expertBytesPerToken?: number;
}

export interface DeviceInfo {
    backend: Backend;
    name: string;
    vendor: string;
    driver: string;
    /** Emulated by the CPU. */
    software: boolean;
    /** The adapter's WebGPU features; on wasm those of the build ('simd128'). */
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

/** A part of a message: text, a picture, a sound, or a video. `budget`: the most tokens of a picture, by default the model's, usually 280; of a
 * frame of a video 70. The model sees all `frames` and reads their times; of a `video` it sees 32 frames at equal distances. */
export type Part =
    | { type: 'text'; text: string }
    | { type: 'image'; image: PictureInput; budget?: PictureBudget }
    | { type: 'audio'; audio: SoundInput }
    | { type: 'video'; video: VideoInput; frames?: undefined; budget?: PictureBudget }
    | { type: 'video'; frames: readonly VideoFrameInput[]; budget?: PictureBudget };

/** The same with media as plain data, which can be cloned into a message. */
export type PlainPart =
    | { type: 'text'; text: string }
    | { type: 'image'; image: PlainPicture; budget?: PictureBudget }
    | { type: 'audio'; audio: PlainSound }
    | { type: 'video'; frames: readonly PlainFrame[]; budget?: PictureBudget };

export interface Message {
    role: 'system' | 'user' | 'assistant' | 'tool';
    content: string | readonly Part[];
    thinking?: string;
    tool_calls?: ToolCall[];
    tool_name?: string;
    tool_call_id?: string;
}

export type PlainMessage = Omit<Message, 'content'> & { content: string | readonly PlainPart[] };

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
    /** The same seed and logits give the same token on every backend. Random by default. */
    seed?: number | bigint;
    logit_bias?: Record<number, number>;
}

export interface TokenLogprob {
    token: number;
    /** Natural logarithm, in the model's own distribution: before penalties, temperature and truncation. */
    logprob: number;
}

export interface ReplyOptions {
    sampling?: Partial<Sampling>;
    tools?: Tool[];
    think?: boolean;
    /** By default (or 0) an Ollama model's `num_predict`, else as many as fit. */
    maxTokens?: number;
    /** Strings that end the answer and are not part of it; by default those of an Ollama model. */
    stop?: string[];
    /** Log-probabilities with this many alternatives per token (at most 20). 0: only of the chosen token. Default: none. */
    logprobs?: number;
    /** The tokens that a session held when this same reply was interrupted, as by a lost GPU. Those after the prompt are the beginning of
     * the answer; its text comes again. */
    resume?: Int32Array;
    /** Diffusion models: how the canvas of the answer begins. Text stays as it is, `[[12]]` is a hole of 12 tokens, `[[=text]]` is text to start
     * from, which the model may change, and `[[[[]]` stands for `[[`. In text to start from, `\]` stands for `]` and `\\` for `\`. Behind all
     * this the model writes on. */
    canvas?: string;
    /** Diffusion models: a piece of kind `canvas` for every step. */
    wantCanvas?: boolean;
    /** Diffusion models: the most steps for a block; by default as many as the model's file says. */
    steps?: number;
    signal?: AbortSignal;
}

/** The canvas of a diffusion model after a step. It writes blocks of tokens, and denoises each in steps; the likeliest tokens after the last
 * step are the block. */
export interface Canvas {
    /** From 0 on. */
    block: number;
    /** From 1 on; the block may be done before `most_steps`. */
    step: number;
    most_steps: number;
    /** In nats, of the positions that are not pinned. */
    mean_entropy: number;
    /** The last one of its block. */
    last: boolean;
    /** accepted: the model keeps this position for now; pinned: it was given and never changes. */
    tokens: { id: number; text: string; entropy: number; accepted: boolean; pinned: boolean }[];
}

export type Piece =
    /** logprobs: for each token of the piece, the chosen one and then the alternatives. */
    | { kind: 'content' | 'thinking'; text: string; logprobs?: TokenLogprob[][] }
    | { kind: 'tool_call'; name: string; arguments: unknown; json: string }
    /** Its text is that of the likeliest tokens. */
    | { kind: 'canvas'; text: string; canvas: Canvas }
    /** Tokens of the prompt. `media`: pictures, frames and sounds, which are encoded before. */
    | { kind: 'progress'; done: number; total: number; media?: { done: number; total: number } };

export interface ReplyStats {
    finish: 'stop' | 'length' | 'tool_calls' | 'cancelled';
    promptTokens: number;
    /** Tokens of the prompt that the session already held. */
    cachedTokens: number;
    replyTokens: number;
    promptSeconds: number;
    replySeconds: number;
    /** Pictures, frames of videos, and sounds of the prompt. */
    media: number;
    /** Of these, those that had to be encoded: the session did not hold them. */
    mediaEncoded: number;
    /** Of promptSeconds, what encoding them took. */
    mediaSeconds: number;
    /** Blocks and steps of a diffusion model's answer. */
    blocks: number;
    steps: number;
}

export interface SessionOptions {
    /** Most tokens held; by default an Ollama model's `num_ctx`, else the model's, at most 8192. */
    context?: number;
    /** f16, or f32 on a precise engine. */
    kv?: KeyValueType;
}

// ---- adapters ----

/** An adapter (LoRA): what its file says. */
export interface AdapterInfo {
    /** As the caller calls it, or as its folder or file is called. */
    name: string;
    /** The model that it was made for, by its own words; '': it does not say. */
    baseModel: string;
    /** Identifies the content, whatever the name and the form of the file: 64 hex digits. */
    digest: string;
    /** How many matrices of the model it corrects, in how many layers, and which: 'attn_q', 'ffn_down', 'token_embd', … */
    pairs: number;
    layers: number;
    targets: string[];
    /** The highest of its ranks. */
    rank: number;
    parameters: number;
    /** In memory, as f32. */
    bytes: number;
}

/** gguf: one file, as llama.cpp has it. peft: adapter_config.json and adapter_model.safetensors. */
export type AdapterForm = 'gguf' | 'peft';

/** The bytes of an adapter: a GGUF file, or a safetensors file and its adapter_config.json. */
export interface AdapterBytes {
    weights: Uint8Array;
    config: Uint8Array | null;
}

export interface AdapterFile {
    name: string;
    bytes: Uint8Array<ArrayBuffer>;
}

/** Whether it fits the loaded model: '' or why not. */
export type AdapterReport = AdapterInfo & { problem: string };

export interface CoreAdapterLike {
    readonly info: AdapterInfo;
    export(form: AdapterForm): AdapterFile[];
    /** Sessions that use it keep it until they change theirs or are freed. */
    free(): void;
}

// ---- examples to learn from ----

/** A file with its path, relative to the data's folder. */
export interface DataFile {
    path: string;
    bytes: Uint8Array;
}

/** How examples are read. */
export interface DataOptions {
    /** Longer examples are cut off; by default 2048. */
    maxTokens?: number;
    /** The share that is kept for evaluation, from 0 to less than 1. */
    evalShare?: number;
    /** Chooses these. */
    seed?: number;
}

/** What is in a file of examples. */
export interface DataReport {
    /** 'JSONL with messages'. */
    form: string;
    /** Pairs of a better and a worse answer. */
    pairs: boolean;
    /** Lines, rows, or pieces of text. */
    records: number;
    /** A conversation is several if the model sees it differently for each answer. */
    examples: number;
    tokens: number;
    /** Tokens whose prediction is learned. */
    counted: number;
    /** Tokens of the shortest and of the longest example. */
    shortest: number;
    longest: number;
    /** Examples that are cut off, and those of which nothing that counts is left; the line of the first of these. */
    truncated: number;
    leftOut: number;
    leftOutLine: number;
    /** Records that are equal to an earlier one, and the lines of the first of them. */
    duplicates: number;
    duplicateLine: number;
    duplicateOf: number;
    /** Pictures and sounds. */
    media: number;
    /** Of the examples, those that are kept for evaluation. */
    evaluation: number;
    /** Examples of up to 32, 64, 128 … tokens; the last one: more. */
    histogram: number[];
}

/** An example as the model sees it: of a pair, the better answer and then the worse one. */
export interface DataPreview {
    line: number;
    evaluation: boolean;
    sequences: { parts: { text: string; counts: boolean }[]; tokens: number; counted: number; truncated: boolean }[];
}

/** While examples are read: bytes. */
export interface DataProgress {
    phase: 'examples';
    done: number;
    total: number;
}

// ---- training ----

/** How to train. What is not given has a good default. */
export interface TrainingSettings extends DataOptions {
    /** Of the adapter; by default 16. */
    rank?: number;
    /** By default twice the rank. */
    alpha?: number;
    rslora?: boolean;
    /** 'q,k,v,o,gate,up,down' by default. */
    targets?: string;
    /** '0-5,9'; by default all. */
    layers?: string;
    /** 'completions', or 'dpo' for preference pairs; by default what the examples are for. */
    loss?: 'completions' | 'dpo';
    /** Of dpo; by default 0.1. */
    beta?: number;
    /** By default 3. */
    epochs?: number;
    maxSteps?: number;
    /** Examples that are computed together, by default 8; and batches per step, by default 1. */
    batch?: number;
    accumulate?: number;
    /** The highest learning rate; by default 2e-4. */
    rate?: number;
    schedule?: 'constant' | 'linear' | 'cosine';
    /** Steps, or below 1 the share of all; by default 0.05. */
    warmup?: number;
    decay?: number;
    /** The most norm of all gradients; by default 1. */
    clip?: number;
    dropout?: number;
    /** How much faster B learns than A. */
    loraPlus?: number;
    /** Steps between evaluations; by default an epoch. */
    evalEvery?: number;
    /** Evaluations without a better one, after which training ends with the best adapter. */
    patience?: number;
    /** Steps after which the state is kept; by default 50. */
    keepEvery?: number;
    /** The most bytes for activations. */
    memory?: number;
}

/** How far a training is. null: not known, or there is none. */
export interface TrainingState {
    step: number;
    steps: number;
    /** From 0 on. */
    epoch: number;
    epochs: number;
    /** Of the last step: the mean over its tokens that count. */
    loss: number | null;
    evalLoss: number | null;
    perplexity: number | null;
    bestEvalLoss: number | null;
    /** Of dpo: the share of pairs of which the better is preferred. */
    accuracy: number | null;
    /** The learning rate. */
    rate: number;
    /** Of all gradients, before they were clipped. */
    norm: number | null;
    tokensPerSecond: number;
    seconds: number;
    secondsLeft: number | null;
    /** Learned from. */
    tokens: number;
    /** Bytes that the training takes. */
    memory: number;
    /** The step of the state that was kept last. */
    keptStep: number;
}

/** data: the examples are read. start: the device was measured, so memory and time are known. kept: the state after this step can be
 * saved. */
export type CoreTrainingEvent = TrainingState & { kind: 'data' | 'start' | 'step' | 'evaluation' | 'kept' };

/** complete: all epochs or steps. patience: evaluations did not get better. stopped: by the caller. */
export type TrainingEnd = 'complete' | 'patience' | 'stopped';

/** The losses of all steps, from step 1 on, and of the evaluations, each after a step. */
export interface TrainingHistory {
    losses: Float32Array<ArrayBuffer>;
    evaluations: { step: number; loss: number }[];
}

export interface CoreTrainingLike {
    readonly state: TrainingState;
    /** The next event, or how the training ended. */
    next(): Promise<CoreTrainingEvent | TrainingEnd>;
    /** Ends soon, after the current step. */
    stop(): void;
    /** Of the state that was kept last: what a training goes on from, and the adapter as a GGUF file. */
    checkpoint(): Uint8Array<ArrayBuffer>;
    adapter(): Uint8Array<ArrayBuffer>;
    history(): TrainingHistory;
    free(): void;
}

export interface CoreDatasetLike {
    readonly report: DataReport;
    preview(index: number): DataPreview;
    free(): void;
}

// The core's classes (core.ts, engine.ts, session.ts) as interfaces, for the worker and the API. Keys and values may be on a GPU, so
// reading or copying them is asynchronous.

export interface CoreLike {
    devices(): Promise<DeviceInfo[]>;
    dryRun(sources: ByteSource[], options?: EngineOptions): Promise<FitReport>;
    /** Several sources are the parts of a split GGUF, in order. */
    open(sources: ByteSource[], options?: EngineOptions): Promise<CoreEngineLike>;
}

export interface CoreEngineLike {
    readonly info: EngineInfo;
    readonly samplingDefault: Sampling;
    /** Settles with the reason when the GPU is lost; never for our own close. */
    readonly lost: Promise<string>;
    session(options?: SessionOptions): CoreSessionLike;
    /** Reads an adapter and makes it ready for sessions. */
    adapter(name: string, bytes: AdapterBytes): CoreAdapterLike;
    /** Reads an adapter and lets it go again: what it is, and whether it fits; or its files in another form. */
    inspectAdapter(name: string, bytes: AdapterBytes): AdapterReport;
    convertAdapter(name: string, bytes: AdapterBytes, form: AdapterForm): AdapterFile[];
    /** Reads examples to learn from. The first file has them; the others are the pictures and sounds that they name. */
    dataset(files: readonly DataFile[], options?: DataOptions, signal?: AbortSignal, onProgress?: (progress: DataProgress) => void): Promise<CoreDatasetLike>;
    /** Starts a training, or goes on from a checkpoint. */
    train(files: readonly DataFile[], settings: TrainingSettings & { name?: string }, checkpoint?: Uint8Array | null): CoreTrainingLike;
    tokenize(text: string, parseSpecial?: boolean): Int32Array;
    /** The bytes of one token, which alone may not be UTF-8. */
    tokenText(id: number): Uint8Array;
    detokenize(ids: Iterable<number>): string;
    render(messages: readonly PlainMessage[], options?: ReplyOptions): string;
    selfCheck(): Promise<void>;
    stats(): EngineStats;
    /** Also frees its sessions. Running calls end with an error. */
    close(): void;
}

export interface CoreSessionLike {
    readonly context: number;
    tokens(): Int32Array;
    /** Makes the session hold exactly these tokens. A common prefix is not computed again. */
    set(ids: Int32Array, signal?: AbortSignal): Promise<void>;
    append(ids: Int32Array, signal?: AbortSignal): Promise<void>;
    /** Forgets all but the first `keep` tokens. Returns how many must be computed again. */
    rollback(keep: number): number;
    /** Makes the session use these adapters, each times its scale, and no others. The tokens that it holds are computed again. */
    useAdapters(adapters: readonly CoreAdapterLike[], scales?: readonly number[]): void;
    fork(): Promise<CoreSessionLike>;
    save(): Promise<Uint8Array>;
    /** A snapshot that does not fit is refused and changes nothing. */
    restore(bytes: Uint8Array): Promise<void>;
    /** A copy of the logits after the last token. Available after `set` and `append`, not always after a reply. */
    logits(): Float32Array | null;
    /** Leaving the loop or the signal cancels the reply: `finish` is 'cancelled', and what was written stays in the session. */
    reply(messages: readonly PlainMessage[], options?: ReplyOptions): AsyncGenerator<Piece, ReplyStats>;
    replyTokens(ids: Int32Array, options?: ReplyOptions): AsyncGenerator<Piece, ReplyStats>;
    free(): void;
}
