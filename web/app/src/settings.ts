// What the user has set. Small, so it lives in localStorage; a setting that this version does not know is left alone.

import { readAdapters, type AdapterUse } from './conversation.ts';
import { Store } from './store.ts';

export interface SamplingSettings {
    temperature: number | null; // null: the model's own
    top_k: number | null;
    top_p: number | null;
    min_p: number | null;
    repetition_penalty: number | null;
    seed: number | null; // null: another one each time
}

export interface Settings {
    theme: 'system' | 'light' | 'dark';
    system: string;
    sampling: SamplingSettings;
    /** 0: as long as the model's own settings allow and as it fits. */
    maxTokens: number;
    /** 0: an Ollama model's setting, else the model's, at most 8192. */
    context: number;
    kv: 'f16' | 'q8_0' | 'f32';
    backend: 'auto' | 'gpu' | 'wasm';
    powerPreference: 'high-performance' | 'low-power';
    /** GB of the GPU's memory to use; 0: no limit. */
    gpuMemory: number;
    think: boolean;
    tools: boolean;
    /** What happens to a conversation that is longer than the context. */
    overflow: 'leave-out' | 'stop';
    snapshots: boolean;
    sendKey: 'enter' | 'ctrl-enter';
    /** The adapters of new conversations. */
    adapters: AdapterUse[];
    /** The model that was loaded last, to load it again: see models.ts. */
    lastModel: string;
}

export const DEFAULTS: Settings = {
    theme: 'system',
    system: '',
    sampling: { temperature: null, top_k: null, top_p: null, min_p: null, repetition_penalty: null, seed: null },
    maxTokens: 0,
    context: 0,
    kv: 'f16',
    backend: 'auto',
    powerPreference: 'high-performance',
    gpuMemory: 0,
    think: false,
    tools: false,
    overflow: 'leave-out',
    snapshots: true,
    sendKey: 'enter',
    adapters: [],
    lastModel: '',
};

const KEY = 'gemmule.settings';

function load(): Settings {
    try {
        const kept = JSON.parse(localStorage.getItem(KEY) ?? '{}') as Partial<Settings>;
        return { ...DEFAULTS, ...kept, sampling: { ...DEFAULTS.sampling, ...kept.sampling }, adapters: readAdapters(kept.adapters) };
    } catch {
        return DEFAULTS;
    }
}

export const settings = new Store<Settings>(load());

export function changeSettings(change: Partial<Settings>): void {
    settings.set(change);
    try {
        localStorage.setItem(KEY, JSON.stringify(settings.get()));
    } catch {
        // Storage is off: the settings hold until the page is closed.
    }
}

/** Puts the chosen theme on the document; 'system' leaves it to prefers-color-scheme. */
export function applyTheme(): void {
    const { theme } = settings.get();
    if (theme === 'system') delete document.documentElement.dataset['theme'];
    else document.documentElement.dataset['theme'] = theme;
}
