/* The messages between the page and the worker.
 *
 *     page → worker   { v, id, op, args }
 *     worker → page   { id, event } any number of times, then { id, result } or { id, error }
 *
 * The page chooses ids from 1 on; messages that answer nothing have id 0. GPU objects never cross. Snapshots and token lists are transferred,
 * not copied.
 *
 * The engine's threads are further workers with the same file. The page starts them, because in Firefox a worker that starts another one
 * while the machine is busy may wait forever. Then the engine talks to each thread through a port of its own:
 *
 *     worker → page   { start, line }, { end } with the thread's number
 *     page → thread   { line }
 *     page → worker   { thread, failed } */

import type { WireError } from '../core/errors.ts';
import type {
    AdapterFile, AdapterForm, AdapterInfo, AdapterReport, Backend, CoreTrainingEvent, DataOptions, DataPreview, DataProgress, DataReport,
    DeviceInfo, EngineInfo, EngineStats, FitReport, LoadProgress, Piece, PlainMessage, ReplyOptions, ReplyStats, Sampling,
    SessionOptions, EngineOptions, TrainingEnd, TrainingHistory, TrainingSettings, TrainingState,
} from '../core/types.ts';
import type { CacheEntry, OllamaTexts } from '../sources/opfs.ts';
import type { StoreProgress } from '../sources/store.ts';

/** Page and worker come from the same build, but a cache may serve an old worker. */
export const PROTOCOL = 5;

/** true: downloads are stored in the browser. false: models are read from the network as needed. 'if-it-fits': true, but false if there is no
 * space. */
export type CacheMode = boolean | 'if-it-fits';

/** Where a file is, in a form that fits into a message. */
export type SourceSpec =
    | { kind: 'url'; url: string; sha256?: string; cache: CacheMode }
    | { kind: 'blob'; blob: Blob; name: string }
    | { kind: 'handle'; handle: FileSystemFileHandle }
    | { kind: 'cached'; key: string }
    | { kind: 'path'; path: string };

/** A file to copy into the cache, and under which address. */
export interface CopyArgs {
    blob: Blob;
    name: string;
    url: string;
    sha256?: string;
    ollama?: OllamaTexts;
}

/** An adapter: a GGUF file, or a safetensors file with its adapter_config.json. */
export interface AdapterSpec {
    name: string;
    weights: SourceSpec;
    config: SourceSpec | null;
}

/** While an adapter is loaded: bytes of its files. */
export interface AdapterProgress {
    phase: 'read';
    done: number;
    total: number;
}

/** A loaded adapter, by its number, and what its change is multiplied by. */
export interface AdapterUse {
    adapter: number;
    scale: number;
}

/** Examples to learn from: a file, and the pictures and sounds that it names, by their paths relative to it. */
export interface DataSpec {
    name: string;
    blob: Blob;
    media: { path: string; blob: Blob }[];
}

export interface TrainArgs {
    /** The page's number for it. */
    training: number;
    name: string;
    /** null: goes on with the one of this name that is kept. */
    data: DataSpec | null;
    settings: TrainingSettings;
    /** Whether its state is kept in the browser. */
    store: boolean;
}

/** What happens in a training. history: the losses before it was interrupted. stored: the state after this step is in the browser's
 * storage; not-stored: it is only in memory. lost: the GPU was lost, and the training goes on from this step on a new one. */
export type TrainingEvent =
    | CoreTrainingEvent
    | (TrainingState & { kind: 'paused' | 'resumed' })
    | ({ kind: 'history' } & TrainingHistory)
    | { kind: 'stored'; step: number }
    | { kind: 'not-stored'; step: number; reason: string }
    | { kind: 'lost'; step: number; reason: string };

/** `adapter`: a GGUF file; null: no state was kept. */
export interface TrainingOutcome {
    name: string;
    end: TrainingEnd;
    state: TrainingState;
    history: TrainingHistory;
    adapter: Uint8Array<ArrayBuffer> | null;
    /** Whether it is in the browser's storage. */
    stored: boolean;
}

/** Load options that fit into a message. */
export type WireEngineOptions = Omit<EngineOptions, 'signal' | 'onProgress'>;
export type WireReplyOptions = Omit<ReplyOptions, 'signal'>;

export interface LoadArgs {
    sources: SourceSpec[];
    options: WireEngineOptions;
    /** Adapters that are part of the model, as in Ollama's store: every session uses them. */
    adapters: AdapterSpec[];
    /** What to do when a lost GPU does not come back: continue on wasm, or wait for `recover`. */
    fallback: 'wasm' | 'none';
}

export interface LoadResult {
    info: EngineInfo;
    samplingDefault: Sampling;
}

/** One token of a log-probability list, with its bytes, which alone may not be valid UTF-8. */
export interface TokenLogprobText {
    token: number;
    logprob: number;
    bytes: Uint8Array;
}

/** A piece of an answer. Log-probabilities: for each token, the chosen one and then the alternatives. */
export type ReplyPiece =
    | { kind: 'content' | 'thinking'; text: string; logprobs?: TokenLogprobText[][] }
    | Exclude<Piece, { kind: 'content' | 'thinking' }>;

export type Progress = LoadProgress | StoreProgress | AdapterProgress;

/** What happens to the device while an engine is loaded. */
export type DeviceEvent =
    | { type: 'lost'; reason: string }
    | { type: 'restoring'; progress: Progress }
    | { type: 'restored'; info: EngineInfo }
    /** No device came back. Conversations are kept; `recover({ backend: 'wasm' })` continues with them. */
    | { type: 'gone'; error: WireError };

/** Where the engine's two modules are, for one thread and for several; by default beside the worker. With `training` those that can
 * train, which lie beside them. */
export interface WasmUrls {
    wasmUrl?: string;
    wasmThreadsUrl?: string;
    training?: boolean;
}

interface SessionRef {
    session: number;
}

/** Every operation: its arguments, its result, and its events. */
export interface Operations {
    /** `life`: a lock to hold for as long as the worker lives. Returns whether it is held. */
    hello: { args: { life?: string } & WasmUrls; result: boolean; event: never };
    devices: { args: object; result: DeviceInfo[]; event: never };
    dryRun: { args: LoadArgs; result: FitReport; event: Progress };
    copy: { args: CopyArgs; result: CacheEntry; event: Progress };
    load: { args: LoadArgs; result: LoadResult; event: Progress };
    recover: { args: { backend?: 'auto' | Backend }; result: LoadResult; event: Progress };
    unload: { args: object; result: null; event: never };
    tokenize: { args: { text: string; special: boolean }; result: Int32Array; event: never };
    detokenize: { args: { ids: Int32Array }; result: string; event: never };
    render: { args: { messages: PlainMessage[]; options: WireReplyOptions }; result: string; event: never };
    selfCheck: { args: object; result: null; event: never };
    stats: { args: object; result: EngineStats; event: never };
    adapterLoad: { args: { files: AdapterSpec }; result: { adapter: number; info: AdapterInfo }; event: Progress };
    /** The bytes of its files, for a copy. */
    adapterRead: { args: { files: AdapterSpec }; result: AdapterFile[]; event: Progress };
    adapterInspect: { args: { files: AdapterSpec }; result: AdapterReport; event: Progress };
    adapterConvert: { args: { files: AdapterSpec; form: AdapterForm }; result: AdapterFile[]; event: Progress };
    adapterExport: { args: { adapter: number; form: AdapterForm }; result: AdapterFile[]; event: never };
    adapterFree: { args: { adapter: number }; result: null; event: never };
    /** Reads examples to learn from. */
    dataOpen: { args: { data: DataSpec; options: DataOptions }; result: { dataset: number; report: DataReport }; event: DataProgress };
    dataPreview: { args: { dataset: number; index: number }; result: DataPreview; event: never };
    train: { args: TrainArgs; result: TrainingOutcome; event: TrainingEvent };
    trainControl: { args: { training: number; action: 'pause' | 'resume' | 'stop' }; result: null; event: never };
    dataFree: { args: { dataset: number }; result: null; event: never };
    useAdapters: { args: SessionRef & { adapters: AdapterUse[] }; result: null; event: never };
    open: { args: { options: SessionOptions; adapters: AdapterUse[] }; result: { session: number; context: number }; event: never };
    close: { args: SessionRef; result: null; event: never };
    tokens: { args: SessionRef; result: Int32Array; event: never };
    set: { args: SessionRef & { ids: Int32Array }; result: null; event: never };
    append: { args: SessionRef & { ids: Int32Array }; result: null; event: never };
    rollback: { args: SessionRef & { keep: number }; result: number; event: never };
    fork: { args: SessionRef; result: { session: number; context: number }; event: never };
    save: { args: SessionRef; result: Uint8Array; event: never };
    restore: { args: SessionRef & { bytes: Uint8Array }; result: null; event: never };
    logits: { args: SessionRef; result: Float32Array | null; event: never };
    /** `adapters`: those that the session uses from now on; absent: those that it has. */
    reply: { args: SessionRef & { messages: PlainMessage[]; options: WireReplyOptions; adapters?: AdapterUse[] | undefined }; result: ReplyStats; event: ReplyPiece };
    replyTokens: { args: SessionRef & { ids: Int32Array; options: WireReplyOptions; adapters?: AdapterUse[] | undefined }; result: ReplyStats; event: ReplyPiece };
    /** Answers at once; the aborted operation gives its own answer. */
    abort: { args: { target: number }; result: null; event: never };
}

export type Operation = keyof Operations;
export type Args<O extends Operation> = Operations[O]['args'];
export type Result<O extends Operation> = Operations[O]['result'];
export type Event<O extends Operation> = Operations[O]['event'];

export interface Request<O extends Operation = Operation> {
    v: number;
    id: number;
    op: O;
    args: Args<O>;
}

export type Answer =
    | { id: number; event: unknown }
    | { id: number; result: unknown }
    | { id: number; error: WireError };

export type ThreadRequest = { start: number; line: MessagePort } | { end: number };
export interface ThreadFailure {
    thread: number;
    failed: string;
}

/** One end of the connection: a Worker, a MessagePort, or a direct link within one thread. */
export interface Port {
    post(message: unknown, transfer: Transferable[]): void;
    onMessage: ((message: unknown) => void) | null;
    /** Ends the other side, if possible. */
    close(): void;
}
