// The loaded model, and the ones that could be loaded. There is one engine at a time: loading a model unloads the one before.

import { read, write } from './database.ts';
import { askServer, fitOfModel, isAbort, loadModel, messageOf, savedFolder, storeCopy } from './engine.ts';
import type { DeviceEvent, FitReport, FoundModels, LoadedModel, LoadSettings, ModelChoice } from './engine.ts';
import { filesOf, pickFiles } from './files.ts';
import { Pace } from './format.ts';
import { changeSettings, settings } from './settings.ts';
import { Store } from './store.ts';

export interface LoadingProgress {
    phase: string;
    done: number;
    total: number;
    /** Bytes per second; 0 while unknown. */
    speed: number;
    /** Seconds; null while unknown. */
    left: number | null;
}

export interface Failure {
    kind: string;
    message: string;
}

export interface ModelState {
    phase: 'none' | 'loading' | 'ready' | 'failed';
    choice: ModelChoice | null;
    progress: LoadingProgress | null;
    loaded: LoadedModel | null;
    failure: Failure | null;
    /** The GPU is lost for good; this model can continue on another device. */
    stranded: LoadedModel | null;
    /** The model of the last visit, which opens again only after a click. No other model takes its place unasked. */
    wanted: WantedModel | null;
    /** A sentence about something that is not a failure. */
    notice: string;
}

export interface WantedModel {
    choice: ModelChoice;
    /** The browser has kept a handle and asks for permission. If not, the user must choose the file again. */
    kept: boolean;
}

const NOTHING: ModelState = { phase: 'none', choice: null, progress: null, loaded: null, failure: null, stranded: null, wanted: null, notice: '' };

export const model = new Store<ModelState>(NOTHING);

export const BOX: ModelChoice = { id: 'box', name: 'The model in the box', source: { kind: 'url', url: new URL('models/box.gguf', document.baseURI).href } };

let training = false; // whether models are loaded so that they can be taught: a larger engine, and only from the Teach page on
let loading: AbortController | null = null;
let queue: Promise<unknown> = Promise.resolve();
const beforeUnload = new Set<() => Promise<void>>();

/** Work to do before the engine closes, such as saving what sessions hold. */
export function onUnload(work: () => Promise<void>): void {
    beforeUnload.add(work);
}

/** Unloads the current model and loads another. Resolves when it is ready or has failed; the store says which. */
export function load(choice: ModelChoice): Promise<void> {
    loading?.abort();
    const stop = (loading = new AbortController());
    const work = queue.then(() => (stop.signal.aborted ? undefined : loadNow(choice, stop)));
    queue = work.catch(() => undefined);
    return work;
}

/** The user's settings for the device. */
function device(): Pick<LoadSettings, 'backend' | 'powerPreference' | 'gpuMemory'> {
    const { backend, powerPreference, gpuMemory } = settings.get();
    return { backend, powerPreference, ...(gpuMemory > 0 ? { gpuMemory: Math.round(gpuMemory * 1e9) } : {}) };
}

async function loadNow(choice: ModelChoice, stop: AbortController): Promise<void> {
    await unloadNow('loading');
    model.set({ ...NOTHING, phase: 'loading', choice });
    const pace = { phase: '', now: new Pace() };
    try {
        const loaded = await loadModel(choice.source, {
            name: choice.name, ...device(), training, signal: stop.signal,
            onProgress: (progress) => {
                if (!stop.signal.aborted) model.set({ progress: paced(pace, progress) });
            },
        });
        if (stop.signal.aborted) {
            await loaded.unload();
            return;
        }
        loaded.onDevice((event) => deviceChanged(loaded, event));
        model.set({ phase: 'ready', loaded, progress: null });
        changeSettings({ lastModel: JSON.stringify(withoutFiles(choice)) });
    } catch (error) {
        if (loading !== stop) return; // another load has taken its place and reports its own progress
        if (isAbort(error)) model.set({ phase: 'none', choice: null, progress: null });
        else model.set({ phase: 'failed', progress: null, failure: messageOf(error) });
    } finally {
        if (loading === stop) loading = null;
    }
}

// Each phase has its own pace: the speed of hashing says nothing about the download that follows.
function paced(pace: { phase: string; now: Pace }, { phase, done, total }: { phase: string; done: number; total: number }): LoadingProgress {
    if (pace.phase !== phase) Object.assign(pace, { phase, now: new Pace() });
    pace.now.update(performance.now() / 1000, done);
    return { phase, done, total, speed: pace.now.speed, left: pace.now.left(total) };
}

function deviceChanged(loaded: LoadedModel, event: DeviceEvent): void {
    if (model.get().loaded !== loaded) return;
    switch (event.type) {
        case 'lost':
            model.set({ notice: `The GPU was lost (${event.reason || 'the browser gave no reason'}). Restarting it.` });
            break;
        case 'restored':
            model.set({ notice: 'The GPU was lost and has been restored. Your conversation continues where it left off.' });
            break;
        case 'gone':
            model.set({ phase: 'failed', loaded: null, stranded: loaded, notice: '', failure: { kind: 'DeviceLost', message: messageOf(event.error).message } });
            break;
        case 'restoring':
            break;
    }
}

/** After the GPU is lost for good: continues with the same model and conversation on another device. */
export async function recover(backend: 'auto' | 'wasm'): Promise<void> {
    const { stranded } = model.get();
    if (!stranded) return;
    const pace = { phase: '', now: new Pace() };
    model.set({ phase: 'loading', failure: null, progress: null });
    try {
        await stranded.recover(backend, (progress) => model.set({ progress: paced(pace, progress) }));
        model.set({ phase: 'ready', loaded: stranded, stranded: null, progress: null });
    } catch (error) {
        model.set({ phase: 'failed', progress: null, failure: messageOf(error) });
    }
}

export function stopLoading(): void {
    loading?.abort();
}

export function unload(): Promise<void> {
    loading?.abort();
    const work = queue.then(() => unloadNow('none'));
    queue = work.catch(() => undefined);
    return work.then(() => model.set(NOTHING));
}

async function unloadNow(next: 'loading' | 'none'): Promise<void> {
    const loaded = model.get().loaded ?? model.get().stranded;
    if (!loaded) return;
    for (const work of beforeUnload) await work().catch(() => undefined);
    model.set({ loaded: null, stranded: null, phase: next });
    await loaded.unload().catch(() => undefined);
}

/** At the start: loads the model of the last visit, or else the box. */
export async function loadAtStart(): Promise<void> {
    const choice = rememberedChoice() ?? BOX;
    model.set({ phase: 'loading', choice });
    const way = await wayTo(choice, false);
    if (way.closed) return model.set({ ...NOTHING, wanted: { choice, kept: way.kept } });
    await load(way.choice);
    if (model.get().phase === 'failed' && choice.id !== BOX.id) {
        const failure = model.get().failure;
        await load(BOX);
        if (model.get().phase === 'ready') model.set({ notice: `${choice.name} could not be loaded. ${failure?.message ?? ''} The model in the box is loaded instead.` });
    }
}

function rememberedChoice(): ModelChoice | null {
    try {
        const choice = JSON.parse(settings.get().lastModel) as ModelChoice;
        return choice.id === BOX.id ? BOX : typeof choice.name === 'string' && typeof choice.source?.kind === 'string' ? choice : null;
    } catch {
        return null;
    }
}

// ---- files of earlier visits --------------------------------------------------------------------------------------------------

/** A choice without its files, which can be stored. */
export function withoutFiles(choice: ModelChoice): ModelChoice {
    return choice.source.kind === 'file' ? { ...choice, source: { kind: 'file', files: [] } } : choice;
}

type Way = { closed: false; choice: ModelChoice } | { closed: true; kept: boolean };

// Files and folders of an earlier visit need permission again, and the browser asks for it only after a click.
async function wayTo(choice: ModelChoice, ask: boolean): Promise<Way> {
    try {
        if (choice.source.kind === 'folder') {
            const { known, found } = await savedFolder(ask);
            return found ? { closed: false, choice } : { closed: true, kept: known };
        }
        if (choice.source.kind !== 'file') return { closed: false, choice };
        const kept = await read('files', choice.id);
        const files = kept && (await filesOf(kept.handles, ask));
        return files ? { closed: false, choice: { ...choice, source: { kind: 'file', files } } } : { closed: true, kept: kept !== undefined };
    } catch (error) {
        console.warn(`${choice.name} cannot be opened again:`, error); // moved or deleted, most likely
        return { closed: true, kept: false };
    }
}

/** After a click: loads a model of an earlier visit, asking the browser or the user for its file. Rejects if that cannot be asked for. */
export async function loadAgain(choice: ModelChoice): Promise<void> {
    const way = await wayTo(choice, true);
    if (!way.closed) return load(way.choice);
    const { wanted } = model.get();
    if (way.kept) return; // the user said no
    if (wanted) model.set({ wanted: { choice, kept: false } });
    if (choice.source.kind === 'file') return loadFile();
    throw new Error('Choose the Ollama folder again on the Models page.');
}

/** Asks for a model's file, or all parts of a split model, and loads it. */
export async function loadFile(): Promise<void> {
    const { files, handles } = await pickFiles();
    const first = files[0]?.name;
    if (first === undefined) return;
    const choice: ModelChoice = { id: `file:${first}`, name: first.replace(/\.gguf$/i, ''), source: { kind: 'file', files } };
    if (handles.length > 0) await write('files', { id: choice.id, handles }).catch(() => undefined);
    await load(choice);
}

/** Loads the same model again, after a change of settings that it depends on. */
export function reload(): Promise<void> {
    const { choice } = model.get();
    return choice ? load(choice) : Promise.resolve();
}

/** The loaded model, so that it can be taught. It is loaded again for this, once. */
export async function whenTeachable(signal: AbortSignal): Promise<LoadedModel> {
    training = true;
    const loaded = await whenReady(signal);
    if (loaded.training) return loaded;
    await reload();
    return whenReady(signal);
}

export function whenReady(signal: AbortSignal): Promise<LoadedModel> {
    return new Promise((resolve, reject) => {
        const look = (): void => {
            const { phase, loaded, failure } = model.get();
            if (loaded) resolve(loaded);
            else if (signal.aborted) reject(signal.reason);
            else if (phase === 'failed') reject(new Error(failure?.message ?? 'the model could not be loaded'));
            else if (phase === 'none') reject(new Error('No model is loaded. Choose one on the Models page.'));
            else return;
            unwatch();
        };
        const unwatch = model.watch(look);
        signal.addEventListener('abort', look, { once: true });
        look();
    });
}

// ---- copies of files ------------------------------------------------------------------------------------------------------------

/** The copy that is being made of a file, and why the last one failed. */
export const copying = new Store<{ name: string; progress: LoadingProgress | null; problem: string }>({ name: '', progress: null, problem: '' });

let copyStop = new AbortController();

/** Whether experts are read from the user's file while the loaded model answers. From a copy in this browser's storage they come sooner. */
export const wantsCopy = ({ info, origin }: LoadedModel): boolean => origin !== null && info.gpuExperts > 0 && info.gpuExperts < info.experts;

/** Copies the loaded model's file into this browser's storage, and opens the copy if the model is still loaded then. `idle`: when it may be. */
export async function copyLoaded(idle: () => Promise<unknown>): Promise<void> {
    const { loaded, choice } = model.get();
    if (!loaded?.origin || copying.get().progress) return;
    const pace = { phase: '', now: new Pace() };
    copyStop = new AbortController();
    const name = choice?.name ?? loaded.info.name;
    copying.set({ name, progress: paced(pace, { phase: 'copy', done: 0, total: loaded.info.fileBytes }), problem: '' });
    try {
        const copy = await storeCopy(loaded.origin, copyStop.signal, (progress) => copying.set({ progress: paced(pace, progress) }));
        copying.set({ progress: null });
        await idle();
        if (model.get().loaded === loaded) await load(copy);
    } catch (error) {
        copying.set({ progress: null, problem: isAbort(error) ? '' : messageOf(error).message });
    }
}

export function stopCopying(): void {
    copyStop.abort();
}

// ---- the local server ---------------------------------------------------------------------------------------------------------

export const server = new Store<FoundModels>({ models: [], problem: '' });

/** Asks `gemmule serve` for its models. Other servers have none, which is fine. */
export async function lookAtServer(): Promise<void> {
    try {
        server.set(await askServer());
    } catch {
        // Another server, or no network.
    }
}

// ---- what fits --------------------------------------------------------------------------------------------------------------

export const fits = new Store<{ reports: Record<string, FitReport | Failure | 'asking'> }>({ reports: {} });

export async function askFit(choice: ModelChoice): Promise<void> {
    if (fits.get().reports[choice.id] !== undefined) return;
    const say = (report: FitReport | Failure | 'asking'): void => fits.set({ reports: { ...fits.get().reports, [choice.id]: report } });
    say('asking');
    await fitOfModel(choice.source, { name: choice.name, ...device() }).then(say, (error: unknown) => say(messageOf(error)));
}

/** Forgets all reports, after a change of settings. */
export function forgetFits(): void {
    fits.set({ reports: {} });
}

/** Asks for several models, one after another. Headers of files on this machine are read quickly. */
export async function askFits(choices: ModelChoice[]): Promise<void> {
    for (const choice of choices.slice(0, 24)) await askFit(choice);
}
