// Adapters that are kept in this browser: which there are, which fit the loaded model, and which a conversation uses.

import { announce, find, setConversationAdapters } from './chat.ts';
import type { AdapterUse } from './conversation.ts';
import { deleteAdapter, listAdapters, messageOf, type AdapterForm, type AdapterSource, type KeptAdapter, type LoadedModel } from './engine.ts';
import { saveBlob } from './files.ts';
import { sentence } from './format.ts';
import { model, whenReady } from './models.ts';
import { changeSettings, settings } from './settings.ts';
import { Store } from './store.ts';

export interface AdaptersState {
    kept: KeptAdapter[];
    /** By model and adapter: '' if it fits, else why not, as a sentence. */
    fits: Record<string, string>;
    /** The adapters that are being read. */
    reading: { name: string; done: number; total: number }[];
    /** Why the last import, export or deletion did not work. */
    problem: string;
}

export const adapters = new Store<AdaptersState>({ kept: [], fits: {}, reading: [], problem: '' });

export async function refreshAdapters(): Promise<void> {
    try {
        adapters.set({ kept: await listAdapters() });
    } catch (error) {
        adapters.set({ kept: [], problem: messageOf(error).message });
    }
}

// ---- choices --------------------------------------------------------------------------------------------------------------------

const NONE: AdapterUse[] = [];

/** The adapters of a conversation; '': of those to come. */
export const adaptersOf = (place: string): AdapterUse[] => (place === '' ? settings.get().adapters : find(place)?.adapters ?? NONE);

export function setAdapters(place: string, uses: AdapterUse[]): void {
    if (place === '') changeSettings({ adapters: uses });
    else setConversationAdapters(place, uses);
}

/** Turns an adapter on or off. One that is on keeps its strength; its name may be a new one. */
export function chooseAdapter(place: string, { key, name }: Pick<KeptAdapter, 'key' | 'name'>, on: boolean): void {
    const uses = adaptersOf(place), there = uses.some((use) => use.key === key);
    if (on) setAdapters(place, there ? uses.map((use) => (use.key === key ? { ...use, name } : use)) : [...uses, { key, name, scale: 1 }]);
    else if (there) setAdapters(place, uses.filter((use) => use.key !== key));
}

export function scaleAdapter(place: string, key: string, scale: number): void {
    setAdapters(place, adaptersOf(place).map((use) => (use.key === key ? { ...use, scale } : use)));
}

// ---- what fits ------------------------------------------------------------------------------------------------------------------

const fitKey = (loaded: LoadedModel, key: string): string => `${loaded.info.digest} ${key}`;

/** '' if it fits, undefined while unknown. */
export const fitOfAdapter = (state: AdaptersState, loaded: LoadedModel | null, key: string): string | undefined =>
    loaded ? state.fits[fitKey(loaded, key)] : undefined;

const asked = new Map<string, { loaded: LoadedModel; fit: Promise<string> }>();

/* Rejects if the engine cannot say it now. That is not remembered: it is nothing about the adapter. */
function askFit(loaded: LoadedModel, key: string): Promise<string> {
    const known = fitOfAdapter(adapters.get(), loaded, key);
    if (known !== undefined) return Promise.resolve(known);
    const id = fitKey(loaded, key), before = asked.get(id);
    if (before?.loaded === loaded) return before.fit;
    const fit = inspectFit(loaded, key).finally(() => {
        if (asked.get(id)?.fit === fit) asked.delete(id);
    });
    asked.set(id, { loaded, fit });
    return fit;
}

async function inspectFit(loaded: LoadedModel, key: string): Promise<string> {
    let fit = '';
    try {
        const { problem } = await loaded.adapters.inspect(key);
        fit = problem && sentence(problem);
    } catch (error) {
        const { kind, message } = messageOf(error);
        if (kind !== 'BadModel' && kind !== 'NotSupported') throw error;
        fit = message;
    }
    adapters.set({ fits: { ...adapters.get().fits, [fitKey(loaded, key)]: fit } });
    return fit;
}

function forgetFits(key: string): void {
    adapters.set({ fits: Object.fromEntries(Object.entries(adapters.get().fits).filter(([id]) => !id.endsWith(` ${key}`))) });
}

/** Asks for all of them, one after another. What cannot be learned now stays unknown. */
export async function askAdapterFits(): Promise<void> {
    for (const { key, problem } of adapters.get().kept) {
        const { loaded } = model.get();
        if (loaded && problem === '') await askFit(loaded, key).catch(() => undefined);
    }
}

/** Why a conversation cannot be answered with its adapters; '' if it can. */
export async function whyUnusable(loaded: LoadedModel, uses: AdapterUse[]): Promise<string> {
    if (uses.length === 0) return '';
    await refreshAdapters();
    for (const { key, name } of uses) {
        const kept = adapters.get().kept.find((each) => each.key === key);
        if (!kept) return `The adapter ${name} is not in this browser. Import it again, or turn it off under Adapters.`;
        const why = kept.problem ? sentence(kept.problem) : await askFit(loaded, key);
        if (why) return `The adapter ${name} cannot be used with ${loaded.info.name}. ${why} Turn it off under Adapters.`;
    }
    return '';
}

// ---- files ----------------------------------------------------------------------------------------------------------------------

/** Keeps an adapter in this browser. If it fits the loaded model, the conversation uses it from now on; otherwise returns why not. */
export async function importAdapter(place: string, source: AdapterSource, name: string): Promise<string> {
    const row = { name, done: 0, total: 0 };
    adapters.set({ reading: [...adapters.get().reading, row], problem: '' });
    try {
        const loaded = await whenReady(new AbortController().signal);
        const called = isPair(source) ? freeName() : undefined;
        const kept = await loaded.adapters.keep(source, called, (done, total) => {
            Object.assign(row, { done, total });
            adapters.set({ reading: [...adapters.get().reading] });
        });
        await refreshAdapters();
        const why = await askFit(loaded, kept.key);
        if (why) return tell(`${kept.name} was imported, but it does not fit ${loaded.info.name}. ${why}`);
        chooseAdapter(place, kept, true);
        announce(`${kept.name} was imported and is in use.`);
        return '';
    } catch (error) {
        adapters.set({ problem: messageOf(error).message });
        return tell(messageOf(error).message);
    } finally {
        adapters.set({ reading: adapters.get().reading.filter((each) => each !== row) });
    }
}

/* Two files that were given without their folder have no name of their own. */
const isPair = (source: AdapterSource): boolean => Array.isArray(source) && (source as readonly File[]).every((file) => !file.webkitRelativePath);

function freeName(): string {
    const taken = adapters.get().kept.map(({ name }) => name);
    let count = 1;
    while (taken.includes(count > 1 ? `adapter ${count}` : 'adapter')) count++;
    return count > 1 ? `adapter ${count}` : 'adapter';
}

const tell = (words: string): string => {
    announce(words);
    return words;
};

export async function removeAdapter({ key, name }: KeptAdapter, place: string): Promise<void> {
    adapters.set({ problem: '' });
    try {
        await deleteAdapter(key);
        for (const where of [place, '']) chooseAdapter(where, { key, name }, false); // '': new conversations do not begin with it either
        forgetFits(key);
        await model.get().loaded?.adapters.free(key);
        announce(`${name || 'The adapter'} deleted.`);
    } catch (error) {
        adapters.set({ problem: messageOf(error).message });
    }
    await refreshAdapters();
}

/** Saves an adapter as a GGUF, or as the two files of a PEFT folder. */
export async function exportAdapter({ key }: KeptAdapter, form: AdapterForm): Promise<void> {
    adapters.set({ problem: '' });
    try {
        const loaded = await whenReady(new AbortController().signal);
        for (const file of await loaded.adapters.export(key, form)) saveBlob(file.name, file);
    } catch (error) {
        adapters.set({ problem: messageOf(error).message });
    }
}

// ---- what is dropped or chosen --------------------------------------------------------------------------------------------------

const HEADER = 1 << 20; // bytes in which a GGUF says what it is

/** A GGUF that says that it is an adapter: a model would have to be read whole to learn that it is none. */
async function isGgufAdapter(file: File): Promise<boolean> {
    if (!/\.gguf$/i.test(file.name)) return false;
    return new TextDecoder('latin1').decode(await file.slice(0, HEADER).arrayBuffer()).includes('adapter.type');
}

const isPeft = ({ name }: File): boolean => /\.safetensors$|^adapter_config\.json$|^adapter_model\.\w+$/i.test(name);

/** By its name; a GGUF may also be a model. */
export const mayBeAdapter = (file: File): boolean => /\.gguf$/i.test(file.name) || isPeft(file);

/** The adapters among some files, and the other files. A PEFT adapter is two files. */
export async function sortAdapters(files: File[]): Promise<{ found: { name: string; source: AdapterSource }[]; others: File[] }> {
    const ggufs: File[] = [];
    for (const file of files) if (await isGgufAdapter(file)) ggufs.push(file);
    const peft = files.filter(isPeft);
    return {
        found: [
            ...ggufs.map((file) => ({ name: file.name, source: file })),
            ...(peft.length > 0 ? [{ name: peft[0]!.name, source: peft.length === 1 ? [peft[0]!] : peft }] : []),
        ],
        others: files.filter((file) => !ggufs.includes(file) && !peft.includes(file)),
    };
}
