// The package as the app uses it. Only this file knows the package's interface.

import { AdapterStore, copyModel, Gemmule, GemmuleError, ModelCache, OllamaFolder, TrainingStore } from '../../src/api/index.ts';
import type { Adapter, Dataset, Engine, Session, Source, Training } from '../../src/api/index.ts';
import type {
    AdapterForm, AdapterReport, AdapterSource, Backend, CacheEntry, Canvas, DeviceEvent, DeviceInfo, EngineInfo, EngineStats, FitReport, KeptAdapter, Message, OllamaModel,
    Progress, ReplyOptions, ReplyPiece, DatasetOptions, DataPreview, DataReport, DataSource, KeptTraining, ReplyStats, Sampling,
    SessionOptions, TrainingEvent, TrainingOptions, TrainingResult, TrainingSettings, TrainingState,
} from '../../src/api/index.ts';
import {
    Microphone, pictureTokens, soundTokens, videoFrames, type MicrophoneOptions, type PictureBudget, type Samples, type VideoFrameInput,
} from '../../src/api/index.ts';
import { pictureHeader } from '../../src/media/picture.ts';
import { readPictureHeader } from '../../src/media/picture_header.ts';
import { plainSound } from '../../src/media/sound.ts';
import { readSoundHeader, wavSeconds } from '../../src/media/sound_header.ts';
import { folderOfDrop, type Folder } from '../../src/sources/folder.ts';
import type { AdapterUse } from './conversation.ts';
import { formatBytes, sentence } from './format.ts';

export { Microphone, videoFrames };
export { folderOfDrop };
export { TrainingStore };
export type { Dataset, DataPreview, DataReport, DataSource, KeptTraining, Training, TrainingEvent, TrainingOptions, TrainingResult, TrainingSettings, TrainingState };
export type { AdapterForm, AdapterReport, AdapterSource, Folder, KeptAdapter };
export type { Canvas, DeviceEvent, DeviceInfo, EngineStats, FitReport, Message, MicrophoneOptions, PictureBudget, ReplyOptions, ReplyStats, Samples, VideoFrameInput };
export type Piece = ReplyPiece;

/** Whether the model writes by denoising a canvas. */
export const isDiffusion = (loaded: LoadedModel | null): boolean => loaded?.info.architecture === 'diffusion-gemma';

// ---- engines ------------------------------------------------------------------------------------------------------------------

/** Where a model is, in a form that can be stored; of files, models.ts keeps the handles. */
export type ModelSource =
    | { kind: 'url'; url: string }
    | { kind: 'stored'; key: string; ollama?: OllamaParts }
    /** From the local server. Its files are on this machine already, so the browser stores no copy. */
    | { kind: 'server'; url: string; ollama: OllamaParts }
    | { kind: 'folder'; name: string }
    | { kind: 'file'; files: File[] };

interface OllamaParts {
    /** Addresses of adapter layers. */
    adapters?: string[];
    params?: string;
    system?: string;
    renderer?: string;
}

export interface LoadSettings {
    name: string;
    backend: 'auto' | Backend;
    powerPreference: 'high-performance' | 'low-power';
    /** Bytes of the GPU's memory to use. */
    gpuMemory?: number;
    /** Whether it is to be taught, too. */
    training?: boolean;
    signal?: AbortSignal;
    onProgress?(progress: Progress): void;
}

export interface LoadedModel {
    readonly info: EngineInfo;
    readonly samplingDefault: Sampling;
    /** The user's file that it is read from; null if it is no such file, or not one alone. */
    readonly origin: File | OllamaModel | null;
    session(options?: SessionOptions): Promise<ChatSession>;
    readonly adapters: ModelAdapters;
    /** Whether it can be taught. */
    readonly training: boolean;
    dataset(source: DataSource, options?: DatasetOptions): Promise<Dataset>;
    train(options: TrainingOptions): Training;
    /** A short answer without chance in it, with an adapter or without. */
    answer(questions: readonly string[], adapter: File | null, signal: AbortSignal, tell: (at: number, answer: string) => void): Promise<void>;
    tokenize(text: string): Promise<Int32Array>;
    /** Tokens that a conversation takes. */
    countTokens(messages: Message[], options?: ReplyOptions): Promise<number>;
    selfCheck(): Promise<void>;
    stats(): Promise<EngineStats>;
    onDevice(listener: (event: DeviceEvent) => void): void;
    recover(backend: 'auto' | Backend, onProgress: (progress: Progress) => void): Promise<unknown>;
    unload(): Promise<void>;
}

export interface ChatSession {
    readonly context: number;
    tokens(): Promise<Int32Array>;
    set(ids: Int32Array, signal?: AbortSignal): Promise<void>;
    rollback(keep: number): Promise<number>;
    /** Adapters that are kept in this browser. They are loaded if need be. */
    useAdapters(uses: readonly AdapterUse[]): Promise<void>;
    reply(messages: Message[], options: ReplyOptions): AsyncGenerator<Piece, ReplyStats>;
    generate(ids: Int32Array, options: ReplyOptions): Promise<AsyncGenerator<Piece, ReplyStats>>;
    save(): Promise<Uint8Array>;
    restore(bytes: Uint8Array): Promise<void>;
    free(): Promise<void>;
}

export async function loadModel(source: ModelSource, settings: LoadSettings): Promise<LoadedModel> {
    const { found, options } = await resolve(source);
    const origin = options.mmproj ? null : originOf(found);
    return wrapEngine(await Gemmule.load(found, { ...settings, ...options }), settings.training === true, origin);
}

function originOf(found: Source): LoadedModel['origin'] {
    if (Array.isArray(found)) return found.length === 1 ? (found[0] as File) : null;
    const model = found as OllamaModel; // or another source, which is of no such kind
    return model.kind === 'ollama' && !model.projector && model.adapters.length === 0 ? model : null;
}

/** Copies a model's file into this browser's storage. */
export async function storeCopy(origin: File | OllamaModel, signal: AbortSignal, onProgress: (progress: Progress) => void): Promise<ModelChoice> {
    return storedModel(await copyModel(origin, { signal, onProgress })).choice;
}

export async function fitOfModel(source: ModelSource, settings: LoadSettings): Promise<FitReport> {
    const { found, options } = await resolve(source);
    return Gemmule.dryRun(found, { ...settings, ...options, cache: false });
}

export function engineDevices(): Promise<DeviceInfo[]> {
    return Gemmule.devices();
}

async function resolve(source: ModelSource): Promise<{ found: Source; options: { cache?: false | 'if-it-fits'; ollama?: OllamaParts; mmproj?: File } }> {
    switch (source.kind) {
        case 'url': return { found: source.url, options: { cache: 'if-it-fits' } };
        case 'stored': return { found: { cached: source.key }, options: source.ollama ? { ollama: source.ollama } : {} };
        case 'server': {
            const adapters = (source.ollama.adapters ?? []).map((url) => new URL(url, document.baseURI).href);
            return { found: new URL(source.url, document.baseURI), options: { cache: false, ollama: { ...source.ollama, adapters } } };
        }
        case 'file': {
            const mmproj = source.files.length > 1 ? source.files.find(({ name }) => /mmproj/i.test(name)) : undefined;
            return { found: source.files.filter((file) => file !== mmproj), options: mmproj ? { mmproj } : {} };
        }
        case 'folder': {
            const folder = folderNow ?? (await OllamaFolder.saved());
            if (!folder) {
                const why = `The browser needs your permission to open the Ollama folder again. Choose ${source.name} on the Models page.`;
                throw new GemmuleError('NotFound', why);
            }
            return { found: await folder.resolve(source.name), options: {} };
        }
    }
}

function wrapEngine(engine: Engine, training: boolean, origin: LoadedModel['origin']): LoadedModel {
    const adapters = wrapAdapters(engine);
    return {
        adapters,
        training,
        origin,
        dataset: (source, options) => engine.dataset(source, options),
        train: (options) => engine.train(options),
        answer: (questions, adapter, signal, tell) => answerAll(engine, questions, adapter, signal, tell),
        get info() {
            return engine.info;
        },
        get samplingDefault() {
            return engine.samplingDefault;
        },
        session: async (options) => wrapSession(await engine.session(options), adapters),
        tokenize: (text) => engine.tokenize(text),
        countTokens: (messages, options) => engine.countTokens(messages, options),
        selfCheck: () => engine.selfCheck(),
        stats: () => engine.stats(),
        onDevice: (listener) => {
            engine.onDeviceLost = listener;
        },
        recover: (backend, onProgress) => engine.recover({ backend, onProgress }),
        unload: () => engine.unload(),
    };
}

const ANSWER_TOKENS = 80;

async function answerAll(engine: Engine, questions: readonly string[], adapter: File | null, signal: AbortSignal, tell: (at: number, answer: string) => void): Promise<void> {
    const taught = adapter && (await engine.adapters.load(adapter, { name: `taught ${crypto.randomUUID()}` }));
    const session = await engine.session({ context: 2048, adapters: taught ? [taught] : [] });
    try {
        for (const [at, content] of questions.entries()) {
            let answer = '';
            for await (const piece of session.reply([{ role: 'user', content }], { sampling: { temperature: 0 }, maxTokens: ANSWER_TOKENS, signal })) {
                if (piece.kind === 'content') tell(at, (answer += piece.text));
            }
            tell(at, answer);
        }
    } finally {
        await session.close();
        await taught?.free();
    }
}

function wrapSession(session: Session, adapters: ReturnType<typeof wrapAdapters>): ChatSession {
    return {
        context: session.context,
        tokens: () => session.tokens(),
        set: (ids, signal) => session.set(ids, signal ? { signal } : {}),
        rollback: (keep) => session.rollback(keep),
        useAdapters: async (uses) => {
            const loaded: { adapter: Adapter; scale: number }[] = [];
            for (const { key, scale } of uses) loaded.push({ adapter: await adapters.loaded(key), scale });
            await session.useAdapters(loaded);
        },
        reply: (messages, options) => session.reply(messages, options)[Symbol.asyncIterator](),
        generate: async (ids, options) => (await session.generate(ids, options))[Symbol.asyncIterator](),
        save: () => session.save(),
        restore: (bytes) => session.restore(bytes),
        free: () => session.close(),
    };
}

// ---- adapters -----------------------------------------------------------------------------------------------------------------

/** Adapters and the loaded model. Adapters are known by the digest of their content. */
export interface ModelAdapters {
    /** What an adapter is, and why it does not fit (`problem`). Rejects for one that cannot be read. */
    inspect(key: string): Promise<AdapterReport>;
    /** Keeps a copy in this browser, also of one that does not fit. */
    keep(source: AdapterSource, name: string | undefined, onProgress: (done: number, total: number) => void): Promise<KeptAdapter>;
    export(key: string, form: AdapterForm): Promise<File[]>;
    /** The same of one that is not kept. */
    exportFile(adapter: File, name: string, form: AdapterForm): Promise<File[]>;
    /** Makes room: the adapter is loaded again when it is used. */
    free(key: string): Promise<void>;
}

export const listAdapters = async (): Promise<KeptAdapter[]> => (await AdapterStore.open()).list();
export const deleteAdapter = async (key: string): Promise<void> => (await AdapterStore.open()).delete(key);

function wrapAdapters(engine: Engine): ModelAdapters & { loaded(key: string): Promise<Adapter> } {
    const loading = new Map<string, Promise<Adapter>>();
    const names = new Set<string>(); // of those that are being loaded
    const load = async (key: string): Promise<Adapter> => {
        const kept = await (await AdapterStore.open()).find(key);
        const plain = kept?.name || key, name = names.has(plain) || engine.adapters.get(plain) ? `${plain} (${key.slice(0, 6)})` : plain;
        names.add(name);
        return engine.adapters.load({ kept: key }, { name }).finally(() => names.delete(name));
    };
    return {
        loaded: (key) => {
            const there = loading.get(key) ?? load(key);
            loading.set(key, there);
            there.catch(() => loading.delete(key));
            return there;
        },
        inspect: (key) => engine.adapters.inspect({ kept: key }),
        keep: (source, name, onProgress) =>
            engine.adapters.keep(source, { ...(name === undefined ? {} : { name }), onProgress: ({ done, total }) => onProgress(done, total) }),
        export: (key, form) => engine.adapters.export({ kept: key }, form),
        exportFile: (adapter, name, form) => engine.adapters.export(adapter, form, { name }),
        free: async (key) => {
            const there = loading.get(key);
            loading.delete(key);
            await there?.then((adapter) => adapter.free(), () => undefined);
        },
    };
}

// ---- pictures and sounds ------------------------------------------------------------------------------------------------------

const HEADER_BYTES = 4096; // enough to tell what a file is

export interface MediaAbout {
    kind: 'image' | 'audio' | 'video';
    width?: number;
    height?: number;
    seconds?: number;
    frames?: readonly unknown[];
}

/** What a file is, if it is a picture or a sound; null if it is neither. Rejects for one that cannot be read. */
export async function describeMedia(file: Blob): Promise<Omit<MediaAbout, 'frames'> | null> {
    const head = new Uint8Array(await file.slice(0, HEADER_BYTES).arrayBuffer());
    const isText = file.type === 'image/svg+xml'; // its text says more than the picture would
    if (!isText && (readPictureHeader(head) || file.type.startsWith('image/'))) {
        const { width, height } = await pictureHeader(file);
        return { kind: 'image', width, height };
    }
    if (!readSoundHeader(head) && !file.type.startsWith('audio/')) return null;
    const sound = await plainSound(file);
    const seconds = 'bytes' in sound ? wavSeconds(sound.bytes) : sound.samples.length / sound.sampleRate;
    return { kind: 'audio', seconds };
}

const TIME_TOKENS = 7; // before each frame: "00:42 "

/** Tokens of a picture, a sound or a video. */
export function mediaTokens({ kind, width = 1, height = 1, seconds = 0, frames = [] }: MediaAbout, budget: PictureBudget): number {
    if (kind === 'video') return frames.length * (pictureTokens(width, height, budget) + TIME_TOKENS);
    return kind === 'image' ? pictureTokens(width, height, budget) : soundTokens(seconds);
}

// ---- errors -------------------------------------------------------------------------------------------------------------------

export const isAbort = (error: unknown): boolean => (error as { name?: string } | null)?.name === 'Aborted' || (error as { name?: string } | null)?.name === 'AbortError';
export const isOnlySound = (error: unknown): boolean => error instanceof GemmuleError && (error.detail as { onlySound?: boolean } | undefined)?.onlySound === true;
export const isContextFull = (error: unknown): boolean => error instanceof GemmuleError && error.name === 'ContextFull';

/** An error's kind, and its message as a sentence. */
export function messageOf(error: unknown): { kind: string; message: string } {
    const { name = '', message = String(error) } = (error ?? {}) as { name?: string; message?: string };
    return { kind: name, message: sentence(message) };
}

// ---- models that could be loaded ----------------------------------------------------------------------------------------------

/** A model, and how to open it again. */
export interface ModelChoice {
    /** Tells choices apart. */
    id: string;
    name: string;
    source: ModelSource;
}
export interface FolderModel {
    choice: ModelChoice;
    words: string;
    problem: string;
}
/** The models of a folder or of the server. `problem`: what could not be read, as a sentence; '' if all could. */
export interface FoundModels {
    models: FolderModel[];
    problem: string;
}
export interface StoredModel {
    key: string;
    url: string;
    choice: ModelChoice;
    stored: number;
    size: number | null;
    done: boolean;
    problem: string;
}

let folderNow: OllamaFolder | null = null;

export const canPickFolder = (): boolean => OllamaFolder.canPick();
export const pickFolder = (): Promise<FoundModels> => OllamaFolder.pick().then(listFolder);
export const folderFromFiles = (files: File[]): Promise<FoundModels> => OllamaFolder.fromFiles(files).then(listFolder);
export const folderFromDrop = (data: DataTransfer): Promise<FoundModels> => OllamaFolder.fromDrop(data).then(listFolder);

/** The folder of an earlier visit: whether there is one, and its models if it may be read. `ask` needs a click. */
export async function savedFolder(ask: boolean): Promise<{ known: boolean; found: FoundModels | null }> {
    const known = await OllamaFolder.hasSaved();
    const folder = folderNow ?? (known ? await OllamaFolder.saved({ ask }) : null);
    return { known, found: folder ? await listFolder(folder) : null };
}

async function listFolder(folder: OllamaFolder): Promise<FoundModels> {
    const models = await folder.list();
    folderNow = folder;
    return { models: models.map(folderModel), problem: folder.unreadable.length > 0 ? sentence(`skipped ${folder.unreadable.join('; ')}`) : '' };
}

function folderModel(model: OllamaModel): FolderModel {
    return {
        choice: { id: `folder:${model.name}`, name: model.name, source: { kind: 'folder', name: model.name } },
        words: describe(model.bytes, model.sizeLabel, model.quantisation, model.family),
        problem: folderProblem(model),
    };
}

function folderProblem(model: OllamaModel): string {
    if (model.problem) return sentence(model.problem);
    return notOurs(model.family);
}

const notOurs = (family: string | null | undefined): string => (family && !/^(?:gemma4|diffusion-?gemma)/.test(family) ? `This is a ${family} model; gemmule runs Gemma 4.` : '');
const describe = (bytes: number, ...words: (string | null | undefined)[]): string => [...words.filter((word) => word), formatBytes(bytes)].join(' · ');

/** The models of `gemmule serve`, if it serves this page; none elsewhere. */
export async function askServer(): Promise<FoundModels> {
    const response = await fetch(new URL('models', document.baseURI), { headers: { accept: 'application/json' } });
    if (!response.ok || !/json/.test(response.headers.get('content-type') ?? '')) return { models: [], problem: '' };
    const { models = [], problem } = (await response.json()) as { models?: Record<string, unknown>[]; problem?: string | null };
    return { models: models.filter((model) => model['source'] === 'ollama').map(serverModel), problem: problem ? sentence(problem) : '' };
}

function serverModel(model: Record<string, unknown>): FolderModel {
    const text = (key: string): string | undefined => (typeof model[key] === 'string' ? model[key] : undefined);
    const name = text('name') ?? '', file = model['model'] as { url?: unknown } | null;
    const ollama: OllamaParts = {};
    for (const key of ['params', 'system', 'renderer'] as const) if (text(key) !== undefined) ollama[key] = text(key)!;
    const layers = (Array.isArray(model['adapters']) ? model['adapters'] : []) as ({ url?: unknown } | null)[];
    const adapters = layers.flatMap((layer) => (typeof layer?.url === 'string' ? [layer.url] : []));
    if (adapters.length > 0) ollama.adapters = adapters;
    const url = typeof file?.url === 'string' ? file.url : '';
    return {
        choice: { id: `server:${name}`, name, source: { kind: 'server', url, ollama } },
        words: describe(Number(model['bytes']) || 0, text('parameters'), text('quantisation'), text('family')),
        problem: text('problem') ? sentence(text('problem')!) : url === '' ? 'The model file is missing.' : notOurs(text('family')),
    };
}

export async function listStored(): Promise<StoredModel[]> {
    return (await (await ModelCache.open()).list()).map(storedModel);
}

function storedModel({ key, url, stored, size, done, problem, ollama }: CacheEntry): StoredModel {
    const name = url ? nameOfUrl(url) : key.slice(0, 12);
    // A complete file opens without its server; an incomplete one downloads the rest.
    const source: ModelSource = done ? { kind: 'stored', key, ...(ollama ? { ollama } : {}) } : { kind: 'url', url };
    const why = problem || (!done && url.startsWith('file:') ? 'this copy of a file is not complete' : '');
    return { key, url, choice: { id: `stored:${key}`, name, source }, stored, size, done, problem: why && sentence(why) };
}

export async function deleteStored(key: string): Promise<void> {
    await (await ModelCache.open()).delete(key);
}

/** The last part of a URL, without its extension. */
export function nameOfUrl(url: string): string {
    const last = url.split(/[?#]/)[0]!.split('/').filter((part) => part !== '').at(-1) ?? url;
    try {
        return decodeURIComponent(last).replace(/\.gguf$/i, '');
    } catch {
        return last;
    }
}
