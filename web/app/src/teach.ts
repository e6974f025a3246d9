// Teaching: the examples, what is in them, and the training that makes an adapter of them.

import { chooseAdapter, refreshAdapters } from './adapters.ts';
import { announce, chat } from './chat.ts';
import { answerText, path, type Conversation } from './conversation.ts';
import { isAbort, messageOf, TrainingStore } from './engine.ts';
import type { Dataset, DataPreview, DataReport, DataSource, KeptAdapter, KeptTraining, LoadedModel, TrainingEvent, TrainingSettings, TrainingState } from './engine.ts';
import { saveBlob } from './files.ts';
import { model, whenTeachable } from './models.ts';
import { Store } from './store.ts';

export interface ExampleRow {
    id: number;
    question: string;
    answer: string;
}

/** A question, how the model should answer it, and how it does. */
export interface SampleAnswer {
    question: string;
    wanted: string;
    before: string;
    after: string;
}

export type TeachPhase = 'idle' | 'preparing' | 'training' | 'paused' | 'stopping' | 'done' | 'failed';

export interface TeachState {
    rows: ExampleRow[];
    /** Instead of the rows: a file of examples, or a folder with one. */
    file: { name: string; source: DataSource } | null;
    name: string;
    settings: TrainingSettings;
    /** Of the current examples; null: not read yet, or there are none. */
    report: DataReport | null;
    reading: boolean;
    problem: string;
    /** Bad lines. */
    problems: string[];
    preview: { index: number; shown: DataPreview } | null;
    /** Seconds and bytes of a training, from short runs; null: not known. */
    estimate: { seconds: number; memory: number } | 'asking' | null;
    phase: TeachPhase;
    state: TrainingState | null;
    losses: number[];
    evaluations: { step: number; loss: number }[];
    /** The step whose state is in the browser's storage. */
    stored: number;
    notice: string;
    failure: string;
    samples: SampleAnswer[];
    answering: boolean;
    /** Another question, to see that other answers stay. */
    question: string;
    trainings: KeptTraining[];
    /** The training whose adapter is shown: its name as it was started with, and the step after which the adapter was taken; 0: the last. */
    trained: string;
    checkpoint: number;
    /** The adapter, kept in this browser. */
    kept: KeptAdapter | null;
}

const KEY = 'gemmule.teach';
let lastRow = 0;
const row = (question = '', answer = ''): ExampleRow => ({ id: ++lastRow, question, answer });

function restored(): Pick<TeachState, 'rows' | 'name' | 'settings' | 'question'> {
    try {
        const { rows, name, settings, question } = JSON.parse(localStorage.getItem(KEY) ?? '{}') as Partial<TeachState>;
        const good = (rows ?? []).filter((each) => typeof each?.question === 'string' && typeof each.answer === 'string');
        return {
            rows: good.length > 0 ? good.map((each) => row(each.question, each.answer)) : [row()], name: typeof name === 'string' ? name : '',
            settings: typeof settings === 'object' && settings !== null ? settings : {}, question: typeof question === 'string' ? question : 'Who are you?',
        };
    } catch {
        return { rows: [row()], name: '', settings: {}, question: 'Who are you?' };
    }
}

export const teach = new Store<TeachState>({
    ...restored(), file: null, report: null, reading: false, problem: '', problems: [], preview: null, estimate: null, phase: 'idle', state: null, losses: [], evaluations: [],
    stored: 0, notice: '', failure: '', samples: [], answering: false, trainings: [], trained: '', checkpoint: 0, kept: null,
});

function save(): void {
    const { rows, name, settings, question } = teach.get();
    try {
        localStorage.setItem(KEY, JSON.stringify({ rows, name, settings, question }));
    } catch {
        // They stay until the page is closed.
    }
}

export const isBusy = (phase: TeachPhase): boolean => phase === 'preparing' || phase === 'training' || phase === 'paused' || phase === 'stopping';

// ---- examples -------------------------------------------------------------------------------------------------------------------

export function setRows(rows: ExampleRow[]): void {
    teach.set({ rows: rows.length > 0 ? rows : [row()], file: null });
    save();
    readSoon();
}

export const changeRow = (id: number, change: Partial<ExampleRow>): void => setRows(teach.get().rows.map((each) => (each.id === id ? { ...each, ...change } : each)));
export const removeRow = (id: number): void => setRows(teach.get().rows.filter((each) => each.id !== id));
export const addRow = (): void => setRows([...teach.get().rows, row()]);

const isFull = ({ question, answer }: ExampleRow): boolean => question.trim() !== '' && answer.trim() !== '';

function addRows(more: { question: string; answer: string }[]): void {
    const there = teach.get().rows.filter((each) => each.question.trim() !== '' || each.answer.trim() !== '');
    const known = new Set(there.map(({ question, answer }) => `${question}\n${answer}`));
    setRows([...there, ...more.filter(({ question, answer }) => !known.has(`${question}\n${answer}`)).map(({ question, answer }) => row(question, answer))]);
}

/** The questions of a conversation and their answers, each as an example of its own. Those with pictures are left out. */
export function addConversation(conversation: Conversation): number {
    const shown = path(conversation), found: { question: string; answer: string }[] = [];
    shown.forEach((node, at) => {
        const next = shown[at + 1];
        if (node.role !== 'user' || node.attachments?.length || next?.role !== 'assistant' || next.finish !== 'stop') return;
        const answer = answerText(next);
        if (node.content.trim() !== '' && answer.trim() !== '') found.push({ question: node.content, answer });
    });
    addRows(found);
    return found.length;
}

const MOST_ROWS = 200; // of a file that becomes rows

/** Files that were chosen or dropped. A short list of questions and answers becomes rows, which can be changed. */
export async function importExamples(source: DataSource, name: string): Promise<void> {
    if (source instanceof File && source.size < 1e6) {
        const rows = rowsOf(source.name, await source.text());
        if (rows) return addRows(rows);
    }
    teach.set({ file: { name, source } });
    readSoon();
}

function rowsOf(name: string, text: string): { question: string; answer: string }[] | null {
    if (!/\.(jsonl|ndjson)$/i.test(name)) return null;
    try {
        const lines = text.split('\n').filter((line) => line.trim() !== '').map((line) => JSON.parse(line) as Record<string, unknown>);
        const pairs = lines.map(({ prompt, completion, ...rest }) =>
            (typeof prompt === 'string' && typeof completion === 'string' && Object.keys(rest).length === 0 ? { question: prompt, answer: completion } : null));
        return pairs.length > 0 && pairs.length <= MOST_ROWS && pairs.every((pair) => pair !== null) ? pairs : null;
    } catch {
        return null;
    }
}

export function dropFile(): void {
    teach.set({ file: null });
    readSoon();
}

function sourceNow(): DataSource | null {
    const { file, rows } = teach.get();
    if (file) return file.source;
    const full = rows.filter(isFull);
    return full.length > 0 ? full.map(({ question, answer }) => ({ prompt: question, completion: answer })) : null;
}

/** Saves the rows as JSONL. */
export function exportExamples(): void {
    const lines = teach.get().rows.filter(isFull).map(({ question, answer }) => `${JSON.stringify({ prompt: question, completion: answer })}\n`);
    saveBlob('examples.jsonl', new Blob(lines, { type: 'application/jsonl' }));
}

// ---- what is in them ------------------------------------------------------------------------------------------------------------

const SOON = 700; // milliseconds after the last key
let timer: ReturnType<typeof setTimeout> | undefined;
let asked: AbortController | null = null;
let dataset: { loaded: LoadedModel; data: Dataset } | null = null;

export function readSoon(): void {
    clearTimeout(timer);
    asked?.abort();
    teach.set({ estimate: null });
    if (isBusy(teach.get().phase)) return;
    timer = setTimeout(() => void readNow(), SOON);
}

async function readNow(): Promise<void> {
    const source = sourceNow(), stop = (asked = new AbortController());
    if (!source) return teach.set({ report: null, preview: null, problem: '', problems: [], reading: false });
    teach.set({ reading: true });
    try {
        const loaded = await whenTeachable(stop.signal);
        const data = await loaded.dataset(source, { ...dataSettings(), signal: stop.signal });
        await dataset?.data.free().catch(() => undefined);
        dataset = { loaded, data };
        if (stop.signal.aborted) return;
        teach.set({ report: data.report, reading: false, problem: '', problems: [] });
        await showExample(0);
        if (loaded.info.fileBytes < SMALL_MODEL) await estimate(stop.signal);
    } catch (error) {
        if (stop.signal.aborted || isAbort(error)) return;
        const { message } = messageOf(error), { problems = [] } = ((error as { detail?: { problems?: string[] } }).detail ?? {});
        teach.set({ report: null, preview: null, reading: false, problem: message, problems });
    }
}

export async function showExample(index: number): Promise<void> {
    const there = dataset;
    if (!there) return;
    const shown = await there.data.preview(index).catch(() => null);
    if (shown && there === dataset) teach.set({ preview: { index, shown } });
}

/** Begins a training, which measures the device: its time and memory. */
export async function estimate(signal?: AbortSignal): Promise<void> {
    const source = sourceNow();
    if (!source || teach.get().estimate === 'asking' || isBusy(teach.get().phase)) return;
    teach.set({ estimate: 'asking' });
    try {
        const loaded = await whenTeachable(signal ?? new AbortController().signal);
        const trial = loaded.train({ data: source, ...settingsNow(), name: 'estimate', store: false, ...(signal ? { signal } : {}) });
        for await (const event of trial) {
            if (event.kind !== 'start' && event.kind !== 'step') continue;
            if (teach.get().estimate === 'asking') teach.set({ estimate: { seconds: event.secondsLeft ?? 0, memory: event.memory } });
            await trial.stop();
        }
    } catch (error) {
        if (!isAbort(error) && !signal?.aborted) teach.set({ problem: messageOf(error).message });
    } finally {
        if (teach.get().estimate === 'asking') teach.set({ estimate: null });
    }
}

// ---- settings -------------------------------------------------------------------------------------------------------------------

const SMALL_MODEL = 256e6; // bytes of its file: the estimate takes a moment
const FEW = 40; // examples, of which none is kept for evaluation
const USUAL_STEPS = 50;

/** What suits these examples and this model; the user's settings replace it. */
export function usualSettings({ report }: Pick<TeachState, 'report'>, loaded: LoadedModel | null): Required<Pick<TrainingSettings, 'epochs' | 'batch' | 'rate' | 'rank' | 'evalShare' | 'maxTokens'>> {
    const examples = report?.examples ?? 0, batch = 4;
    const perEpoch = Math.max(1, Math.ceil(examples / batch));
    return {
        epochs: Math.max(3, Math.min(30, Math.ceil(USUAL_STEPS / perEpoch))), batch, rank: 16, maxTokens: 1024,
        rate: (loaded?.info.parameters ?? 1e9) < 1e8 ? 5e-4 : 2e-4, evalShare: examples >= FEW ? 0.1 : 0,
    };
}

function dataSettings(): Pick<TrainingSettings, 'maxTokens' | 'evalShare'> {
    const state = teach.get(), usual = usualSettings(state, model.get().loaded), { maxTokens = usual.maxTokens, evalShare = usual.evalShare } = state.settings;
    return { maxTokens, evalShare };
}

/** Everything that a training is started with. */
function settingsNow(): TrainingSettings {
    const state = teach.get(), all = { ...usualSettings(state, model.get().loaded), ...state.settings };
    const steps = Math.ceil(((state.report?.examples ?? 1) * all.epochs) / all.batch);
    return { ...all, keepEvery: Math.max(1, Math.min(50, Math.ceil(steps / 8))) };
}

export function changeTeachSettings(change: Partial<TrainingSettings>): void {
    const settings = { ...teach.get().settings, ...change };
    for (const key of Object.keys(settings) as (keyof TrainingSettings)[]) if (settings[key] === undefined) delete settings[key];
    teach.set({ settings });
    save();
    readSoon();
}

export function setTeachName(name: string): void {
    teach.set({ name });
    save();
}

export function setQuestion(question: string): void {
    teach.set({ question });
    save();
}

// ---- training -------------------------------------------------------------------------------------------------------------------

interface Current {
    loaded: LoadedModel;
    training: ReturnType<LoadedModel['train']>;
    stop: AbortController;
}
let current: Current | null = null;

export async function refreshTrainings(): Promise<void> {
    if (!TrainingStore.possible) return;
    teach.set({ trainings: await (await TrainingStore.open()).list().catch(() => []) });
}

export async function deleteTraining(name: string): Promise<void> {
    try {
        await (await TrainingStore.open()).delete(name);
    } catch (error) {
        teach.set({ notice: messageOf(error).message });
    }
    await refreshTrainings();
}

const trainingName = (name: string): string => name.trim().replaceAll(/[+/\\]/g, '-') || 'my adapter';

/** Trains, or goes on with a training of this browser. */
export async function startTraining(resume?: string): Promise<void> {
    if (isBusy(teach.get().phase)) return;
    clearTimeout(timer);
    asked?.abort();
    const source = sourceNow(), stop = new AbortController(), name = resume ?? trainingName(teach.get().name);
    if (!resume && !source) return;
    teach.set({ phase: 'preparing', name, trained: name, checkpoint: 0, state: null, losses: [], evaluations: [], stored: 0, notice: '', failure: '', kept: null, estimate: null, samples: [] });
    const awake = keepAwake();
    try {
        const loaded = await whenTeachable(stop.signal);
        await answerBefore(loaded, stop.signal);
        const training = loaded.train(resume ? { resume } : { data: source!, name, ...settingsNow() });
        current = { loaded, training, stop };
        if (teach.get().phase === 'preparing') teach.set({ phase: 'training' });
        for await (const event of training) follow(event);
        await finish(loaded, await training.result, stop.signal);
    } catch (error) {
        if (!stop.signal.aborted) teach.set({ phase: 'failed', failure: messageOf(error).message });
        else teach.set({ phase: 'idle' });
    } finally {
        current = null;
        await awake();
        await refreshTrainings();
    }
}

function follow(event: TrainingEvent): void {
    const { losses, evaluations, phase } = teach.get();
    switch (event.kind) {
        case 'history': return teach.set({ losses: [...event.losses], evaluations: event.evaluations });
        case 'stored': return teach.set({ stored: event.step });
        case 'not-stored': return teach.set({ notice: `${event.reason}. The training goes on, but it would not survive a reload.` });
        case 'lost': return teach.set({ notice: `The GPU was lost (${event.reason}). The training goes on after step ${event.step}.`, losses: losses.slice(0, event.step) });
        case 'paused': return teach.set({ state: event, phase: phase === 'stopping' ? phase : 'paused' });
        case 'resumed': return teach.set({ state: event, phase: phase === 'stopping' ? phase : 'training' });
        case 'step': return teach.set({ state: event, losses: event.loss === null ? losses : [...losses.slice(0, event.step - 1), event.loss] });
        case 'evaluation': return teach.set({ state: event, evaluations: event.evalLoss === null ? evaluations : [...evaluations, { step: event.step, loss: event.evalLoss }] });
        default: return teach.set({ state: event });
    }
}

async function finish(loaded: LoadedModel, result: Awaited<Current['training']['result']>, signal: AbortSignal): Promise<void> {
    const end = result.end === 'stopped' ? `Stopped after step ${result.state.step}.` : result.end === 'patience' ? 'Ended early: evaluations did not get better.' : '';
    if (!result.adapter) return teach.set({ phase: 'idle', notice: 'The training was stopped before it had learned anything.' });
    teach.set({ phase: 'done', state: result.state, losses: [...result.history.losses], notice: teach.get().notice || end });
    announce('The training is finished.');
    taught = result.adapter;
    await answerAfter(loaded, result.adapter, signal);
}

/** The adapter of the last training; a user may choose an earlier one. */
let taught: File | null = null;

/** Shows a training of this browser, with its last adapter. */
export async function openTraining(name: string): Promise<void> {
    const signal = new AbortController().signal;
    try {
        const store = await TrainingStore.open(), kept = await store.find(name);
        taught = await store.adapter(name);
        teach.set({ phase: 'done', name, trained: name, checkpoint: 0, state: kept?.state ?? null, losses: [], evaluations: [], samples: [], kept: null, notice: '', failure: '', estimate: null });
        const loaded = await whenTeachable(signal);
        await answerBefore(loaded, signal);
        await answerAfter(loaded, taught, signal);
    } catch (error) {
        teach.set({ notice: messageOf(error).message });
    }
}

export async function chooseCheckpoint(step: number): Promise<void> {
    const { loaded } = model.get(), { trained } = teach.get();
    try {
        taught = await (await TrainingStore.open()).adapter(trained, step);
        teach.set({ checkpoint: step, kept: null });
        if (loaded) await answerAfter(loaded, taught, new AbortController().signal);
    } catch (error) {
        teach.set({ notice: messageOf(error).message });
    }
}

export async function pauseTraining(): Promise<void> {
    await current?.training.pause();
}

export async function resumeTraining(): Promise<void> {
    await current?.training.resume();
}

export async function stopTraining(): Promise<void> {
    teach.set({ phase: 'stopping' });
    if (current) await current.training.stop();
}

// ---- sample answers -------------------------------------------------------------------------------------------------------------

const SAMPLES = 3;

/* Questions of examples at equal distances, and the user's own. */
function sampleQuestions(): Pick<SampleAnswer, 'question' | 'wanted'>[] {
    const { file, rows, preview, question } = teach.get(), full = rows.filter(isFull), chosen: Pick<SampleAnswer, 'question' | 'wanted'>[] = [];
    const parts = file ? preview?.shown.sequences[0]?.parts ?? [] : [];
    const asked = /<\|turn>user\n([\s\S]*?)<turn\|>/.exec(parts.filter(({ counts }) => !counts).map(({ text }) => text).join(''))?.[1];
    if (asked) chosen.push({ question: asked, wanted: (parts.find(({ counts }) => counts)?.text ?? '').replace(/<turn\|>\s*$/, '') });
    const count = Math.min(SAMPLES, full.length);
    if (!file) for (let i = 0; i < count; i++) {
        const { question: one, answer } = full[Math.floor((i * full.length) / count)]!;
        if (!chosen.some((each) => each.question === one)) chosen.push({ question: one, wanted: answer });
    }
    if (question.trim() !== '' && !chosen.some((each) => each.question === question)) chosen.push({ question, wanted: '' });
    return chosen;
}

async function answerBefore(loaded: LoadedModel, signal: AbortSignal): Promise<void> {
    const samples = sampleQuestions().map((each) => ({ ...each, before: '', after: '' }));
    teach.set({ samples });
    await answerInto(loaded, 'before', null, signal);
}

const answerAfter = (loaded: LoadedModel, adapter: File, signal: AbortSignal): Promise<void> => {
    teach.set({ samples: teach.get().samples.map((each) => ({ ...each, after: '' })) });
    return answerInto(loaded, 'after', adapter, signal);
};

async function answerInto(loaded: LoadedModel, side: 'before' | 'after', adapter: File | null, signal: AbortSignal): Promise<void> {
    teach.set({ answering: true });
    try {
        await loaded.answer(teach.get().samples.map(({ question }) => question), adapter, signal, (at, answer) => {
            teach.set({ samples: teach.get().samples.map((each, i) => (i === at ? { ...each, [side]: answer.trim() } : each)) });
        });
    } finally {
        teach.set({ answering: false });
    }
}

// ---- the adapter ----------------------------------------------------------------------------------------------------------------

/** Keeps the adapter in this browser; new conversations use it. */
export async function keepAdapter(): Promise<void> {
    const { loaded } = model.get(), name = trainingName(teach.get().name);
    if (!loaded || !taught) return;
    try {
        const kept = await loaded.adapters.keep(taught, name, () => undefined);
        await refreshAdapters();
        chooseAdapter('', kept, true);
        teach.set({ kept, name, notice: '' });
        announce(`${name} is kept, and new conversations use it.`);
    } catch (error) {
        teach.set({ notice: `${messageOf(error).message} Export the adapter, so that it is not lost.` });
    }
}

/** Saves the adapter: as a GGUF, as the two files of a PEFT folder, or as a GGUF with a Modelfile for Ollama. */
export async function exportTaught(form: 'gguf' | 'peft' | 'modelfile'): Promise<void> {
    const { loaded, choice } = model.get(), name = trainingName(teach.get().name), file = `${name.replaceAll(/[^\w.-]+/g, '-')}.gguf`;
    if (!loaded || !taught) return;
    try {
        if (form === 'peft') for (const each of await loaded.adapters.exportFile(taught, name, 'peft')) saveBlob(each.name, each);
        else saveBlob(file, taught);
        if (form === 'modelfile') saveBlob('Modelfile', new Blob([`FROM ${choice?.name ?? loaded.info.name}\nADAPTER ./${file}\n`], { type: 'application/octet-stream' }));
    } catch (error) {
        teach.set({ notice: messageOf(error).message });
    }
}

// ---- the screen -----------------------------------------------------------------------------------------------------------------

interface WakeLock {
    release(): Promise<void>;
}

/* Keeps the screen on while the page is seen. The training itself runs in the engine's worker, which goes on in a hidden tab. */
function keepAwake(): () => Promise<void> {
    let lock: WakeLock | null = null, over = false;
    const ask = async (): Promise<void> => {
        const { wakeLock } = navigator as Navigator & { wakeLock?: { request(type: 'screen'): Promise<WakeLock> } };
        if (document.visibilityState !== 'visible' || !wakeLock || over) return;
        lock = await wakeLock.request('screen').catch(() => null);
        if (over) await lock?.release().catch(() => undefined);
    };
    document.addEventListener('visibilitychange', ask);
    void ask();
    return async () => {
        over = true;
        document.removeEventListener('visibilitychange', ask);
        await lock?.release().catch(() => undefined);
    };
}

/** Conversations that have something to learn from. */
export const usableConversations = (): Conversation[] => chat.get().conversations.filter((each) => path(each).some((node) => node.role === 'assistant'));
