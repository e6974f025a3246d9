// The adapters of a conversation: a button in the composer, and a dialog to choose, import, export and delete them.

import type { JSX } from 'preact';
import { useEffect, useLayoutEffect, useState } from 'preact/hooks';
import {
    adapters, adaptersOf, askAdapterFits, chooseAdapter, exportAdapter, fitOfAdapter, importAdapter, mayBeAdapter, refreshAdapters, removeAdapter, scaleAdapter, sortAdapters,
} from '../adapters.ts';
import { chat } from '../chat.ts';
import { adapterWords, type AdapterUse } from '../conversation.ts';
import { folderOfDrop, messageOf, type Folder, type KeptAdapter } from '../engine.ts';
import { openFiles } from '../files.ts';
import { countOf, formatBytes } from '../format.ts';
import { Icon } from '../icons.tsx';
import { model } from '../models.ts';
import { settings } from '../settings.ts';
import { useStore } from '../store.ts';
import { Dialog } from './dialog.tsx';
import { hasFiles, takeFiles, whileReading } from './drop_files.ts';
import { Problem } from './problem.tsx';

function useAdaptersOf(place: string): AdapterUse[] {
    useStore(settings, (state) => state.adapters);
    return useStore(chat, () => adaptersOf(place));
}

export function AdapterButton({ place }: { place: string }): JSX.Element {
    const [open, setOpen] = useState(false);
    const uses = useAdaptersOf(place);
    const words = uses.length === 0 ? 'Adapters' : uses.length === 1 ? uses[0]!.name : countOf(uses.length, 'adapter');
    const title = uses.length === 0 ? 'Adapters (LoRA): change how the model answers' : `Adapters: ${adapterWords(uses)}`;
    return (
        <>
            <button type="button" class="toggle adapter-toggle" aria-pressed={uses.length > 0} aria-haspopup="dialog" aria-label={title} title={title} onClick={() => setOpen(true)}>
                <Icon name="layers" size={16} /><span>{words}</span>
            </button>
            <AdapterDialog open={open} place={place} onClose={() => setOpen(false)} />
        </>
    );
}

function AdapterDialog({ open, place, onClose }: { open: boolean; place: string; onClose: () => void }): JSX.Element {
    const [over, setOver] = useState(false);
    const loaded = useStore(model, (state) => state.loaded);
    useEffect(() => {
        if (open) void refreshAdapters().then(askAdapterFits);
    }, [open, loaded]);
    const drop = (event: DragEvent): void => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        event.stopPropagation();
        setOver(false);
        void importDrop(place, event.dataTransfer!);
    };
    return (
        <Dialog open={open} title="Adapters" onClose={onClose}>
            <div class={`adapters${over ? ' drop-over' : ''}`} onDrop={drop}
                onDragOver={(event) => { if (hasFiles(event)) { event.preventDefault(); event.stopPropagation(); setOver(true); } }} onDragLeave={() => setOver(false)}>
                <AdapterList place={place} />
            </div>
        </Dialog>
    );
}

function AdapterList({ place }: { place: string }): JSX.Element {
    const state = useStore(adapters, (each) => each);
    const { reading, problem } = state;
    const uses = useAdaptersOf(place);
    const loaded = useStore(model, (state) => state.loaded);
    const usable = (each: KeptAdapter): boolean => each.problem === '' && !fitOfAdapter(state, loaded, each.key);
    const kept = [...state.kept.filter(usable), ...state.kept.filter((each) => !usable(each))];
    const missing = uses.filter(({ key }) => !kept.some((each) => each.key === key));
    useEffect(() => { void askAdapterFits(); }, [state.kept]);
    return (
        <>
            <p class="quiet">
                {kept.length + missing.length === 0
                    ? 'An adapter (LoRA) is a small file that changes how a model answers. Drop a GGUF, a PEFT folder or its two files here, or add them below. They stay in this browser.'
                    : place === '' ? 'Used in new conversations, from the first answer on.' : 'Used in this conversation from the next answer on.'}
            </p>
            <ul class="adapter-list">
                {missing.map((use) => <MissingRow key={use.key} use={use} place={place} />)}
                {kept.map((each) => <AdapterRow key={each.key} adapter={each} place={place} use={uses.find(({ key }) => key === each.key)} />)}
                {reading.map((each, at) => (
                    <li key={`reading ${at}`} class="adapter">
                        <div class="adapter-head"><span class="adapter-name">{each.name}</span></div>
                        <progress aria-label={`Reading ${each.name}`} max={each.total || 1} value={each.total > 0 ? each.done : undefined} />
                    </li>
                ))}
            </ul>
            {problem && <Problem words={problem} />}
            <div class="actions">
                {!matchMedia('(pointer: coarse)').matches && (
                    <button type="button" class="button" disabled={!loaded} onClick={() => void addFolder(place)}><Icon name="folder" size={16} />Add folder</button>
                )}
                <button type="button" class="button primary" disabled={!loaded} title={loaded ? '' : 'Load a model first'} onClick={() => void addFiles(place)}>
                    <Icon name="plus" size={16} />Add files
                </button>
            </div>
        </>
    );
}

// ---- rows -----------------------------------------------------------------------------------------------------------------------

function AdapterRow({ adapter, place, use }: { adapter: KeptAdapter; place: string; use: AdapterUse | undefined }): JSX.Element {
    const [more, setMore] = useState(false);
    const loaded = useStore(model, (state) => state.loaded);
    const fit = useStore(adapters, (state) => fitOfAdapter(state, loaded, adapter.key));
    const name = adapter.name || 'Unnamed adapter';
    const problem = adapter.problem ? `This copy is damaged: ${adapter.problem}.` : fit ? `Does not fit ${loaded?.info.name ?? 'the model'}. ${fit}` : '';
    return (
        <li class="adapter">
            <div class="adapter-head">
                <label class="adapter-choice">
                    <input type="checkbox" class="switch" checked={use !== undefined} disabled={problem !== '' && !use}
                        onChange={(event) => chooseAdapter(place, adapter, event.currentTarget.checked)} />
                    <span class="adapter-about">
                        <span class="adapter-name" title={name}>{name}</span>
                        <span class="quiet adapter-words">{describe(adapter)}</span>
                    </span>
                </label>
                <button type="button" class="icon-button" aria-label={`Export or delete ${name}`} title="Export or delete" aria-expanded={more} onClick={() => setMore(!more)}>
                    <Icon name="dots" />
                </button>
            </div>
            {use && problem === '' && <Scale place={place} use={use} />}
            {problem && <p class="adapter-problem" role="status"><Icon name="warn" size={16} />{problem}</p>}
            {more && <RowActions adapter={adapter} place={place} name={name} />}
        </li>
    );
}

function describe({ info, bytes }: KeptAdapter): string {
    if (!info) return formatBytes(bytes);
    const made = info.baseModel ? ` · for ${info.baseModel}` : '';
    return `Rank ${info.rank} · ${countOf(info.pairs, 'matrix', 'matrices')} · ${formatBytes(bytes)}${made}`;
}

function RowActions({ adapter, place, name }: { adapter: KeptAdapter; place: string; name: string }): JSX.Element {
    const loaded = useStore(model, (state) => state.loaded);
    const save = (form: 'gguf' | 'peft', words: string): JSX.Element => (
        <button type="button" class="button small" disabled={!loaded} aria-label={`Export ${name} as ${words}`} onClick={() => void exportAdapter(adapter, form)}>
            <Icon name="download" size={16} />{words}
        </button>
    );
    return (
        <div class="adapter-actions">
            {adapter.problem === '' && save('gguf', 'GGUF')}
            {adapter.problem === '' && save('peft', 'PEFT')}
            <button type="button" class="button small danger" aria-label={`Delete ${name}`} onClick={() => void removeAdapter(adapter, place)}>
                <Icon name="trash" size={16} />Delete
            </button>
        </div>
    );
}

const SCALES = { least: 0, most: 2, step: 0.05 }; // of the slider; the field takes any number

function Scale({ place, use: { key, name, scale } }: { place: string; use: AdapterUse }): JSX.Element {
    const [shown, setShown] = useState(String(scale)); // what is being typed, too: it must survive when the page is drawn again
    useLayoutEffect(() => setShown(String(scale)), [scale]);
    const set = (text: string): void => {
        const value = Number(text);
        if (text.trim() !== '' && Number.isFinite(value)) scaleAdapter(place, key, value);
        else setShown(String(scale));
    };
    return (
        <div class="adapter-scale">
            <span class="quiet">Strength</span>
            <input type="range" min={SCALES.least} max={SCALES.most} step={SCALES.step} value={shown} aria-label={`Strength of ${name}`}
                onInput={(event) => setShown(event.currentTarget.value)} onChange={(event) => set(event.currentTarget.value)} />
            <input type="number" step={SCALES.step} value={shown} aria-label={`Strength of ${name}, as a number`}
                onInput={(event) => setShown(event.currentTarget.value)} onChange={(event) => set(event.currentTarget.value)} />
        </div>
    );
}

function MissingRow({ use, place }: { use: AdapterUse; place: string }): JSX.Element {
    return (
        <li class="adapter">
            <div class="adapter-head">
                <span class="adapter-about">
                    <span class="adapter-name">{use.name}</span>
                    <span class="adapter-problem"><Icon name="warn" size={16} />Not in this browser. Import it again, or remove it here.</span>
                </span>
                <button type="button" class="icon-button" aria-label={`Remove ${use.name}`} title="Remove" onClick={() => chooseAdapter(place, use, false)}>
                    <Icon name="close" size={16} />
                </button>
            </div>
        </li>
    );
}

// ---- importing ------------------------------------------------------------------------------------------------------------------

async function addFiles(place: string): Promise<void> {
    await importFiles(place, await openFiles('.gguf,.safetensors,.json', { several: true }));
}

async function addFolder(place: string): Promise<void> {
    await importFiles(place, await openFiles('', { folder: true }));
}

/** Files that were chosen as adapters. What is none says so. */
async function importFiles(place: string, files: File[]): Promise<void> {
    if (files.length === 0) return;
    const { found, others } = await sortAdapters(files);
    for (const { name, source } of found) await importAdapter(place, source, name);
    if (found.length === 0) adapters.set({ problem: `${others[0]!.name} is not an adapter. An adapter is a .gguf file, or adapter_config.json and adapter_model.safetensors together.` });
}

const hasFolder = (data: DataTransfer): boolean => [...data.items].some((item) => item.webkitGetAsEntry?.()?.isDirectory);

async function importFolder(place: string, folder: Promise<Folder>): Promise<string> {
    try {
        const found = await folder;
        return await importAdapter(place, found, found.name);
    } catch (error) {
        return messageOf(error).message;
    }
}

/* Onto the dialog. `data` is empty after the event, so it is read before anything is awaited. */
async function importDrop(place: string, data: DataTransfer): Promise<void> {
    if (!hasFolder(data)) return importFiles(place, [...data.files]);
    const problem = await importFolder(place, folderOfDrop(data));
    if (problem !== '') adapters.set({ problem });
}

/** Onto the conversation: adapters are imported, other files belong to the message. A message that is sent meanwhile waits for both. */
export function takeDrop(place: string, data: DataTransfer): void {
    if (hasFolder(data)) {
        const folder = folderOfDrop(data);
        return void whileReading(place, async () => tellProblems(place, [await importFolder(place, folder)]));
    }
    const files = [...data.files], maybe = files.filter(mayBeAdapter);
    void takeFiles(place, files.filter((file) => !mayBeAdapter(file)));
    if (maybe.length > 0) void whileReading(place, () => takeAdapters(place, maybe));
}

async function takeAdapters(place: string, files: File[]): Promise<boolean> {
    const { found, others } = await sortAdapters(files), problems: string[] = [];
    for (const { name, source } of found) problems.push(await importAdapter(place, source, name));
    const good = tellProblems(place, problems);
    await takeFiles(place, others);
    return good;
}

function tellProblems(place: string, problems: string[]): boolean {
    const why = problems.filter((problem) => problem !== '').join(' ');
    if (why !== '') chat.set({ refusal: { place, question: null, content: '', why } });
    return why === '';
}
