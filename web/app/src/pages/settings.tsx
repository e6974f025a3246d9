// Settings: what the model is told, how it samples, context, device, looks, and everything that can be exported or erased.

import type { ComponentChildren, JSX, TargetedEvent } from 'preact';
import { useId, useState } from 'preact/hooks';
import { announce, chat, importConversations, report } from '../chat.ts';
import { exportFile } from '../conversation.ts';
import { eraseEverything } from '../erase.ts';
import { openFiles, saveFile } from '../files.ts';
import { forgetFits, model, reload } from '../models.ts';
import { Dialog } from '../parts/dialog.tsx';
import { changeSettings, DEFAULTS, settings, type SamplingSettings, type Settings } from '../settings.ts';
import { dropAllSnapshots } from '../snapshots.ts';
import { useStore } from '../store.ts';

export function SettingsPage(): JSX.Element {
    const state = useStore(settings, (each) => each);
    return (
        <div class="page">
            <Section title="Answers">
                <Field label="System prompt" hint="What the model is told before every conversation.">
                    {(id) => (
                        <textarea id={id} rows={4} value={state.system} placeholder="For example: Answer briefly and in plain words."
                            onInput={(event) => changeSettings({ system: event.currentTarget.value })} />
                    )}
                </Field>
                <Field label="Longest answer" hint="In tokens. 0: as long as the model's own settings and the context allow.">
                    {(id) => (
                        <NumberInput id={id} value={state.maxTokens} min={0} max={1_000_000} step={1}
                            onChange={(value) => changeSettings({ maxTokens: value ?? 0 })} />
                    )}
                </Field>
                <Choice label="Send with" value={state.sendKey} options={[['enter', 'Enter'], ['ctrl-enter', 'Ctrl+Enter or ⌘+Enter']]}
                    onChange={(sendKey) => changeSettings({ sendKey })} />
            </Section>
            <SamplingSection />
            <Section title="Context">
                <Field label="Size"
                    hint="Tokens that the model sees at once, of your messages and its answers. 0: what an Ollama model is set to, else the model's own, at most 8,192. Memory grows with use.">
                    {(id) => <NumberInput id={id} value={state.context} min={0} max={262_144} step={256} onChange={(value) => changeSettings({ context: value ?? 0 })} />}
                </Field>
                <Choice label="When it is full" value={state.whenFull}
                    options={[['stop', 'Stop and say so'], ['forget', 'Leave out the oldest messages']]}
                    onChange={(whenFull) => changeSettings({ whenFull })} />
                <Choice label="Keys and values"
                    hint="How the computed context is stored. q8_0 takes half the memory of f16 and costs a little accuracy."
                    value={state.kv} options={[['f16', 'f16'], ['q8_0', 'q8_0'], ['f32', 'f32']]} onChange={(kv) => changeSettings({ kv })} />
                <Switch label="Keep computed context"
                    hint="Conversations go on at once after a reload. At most 2 GB; what was not used for longest goes first."
                    value={state.snapshots}
                    onChange={(snapshots) => { changeSettings({ snapshots }); if (!snapshots) void dropAllSnapshots(); }} />
            </Section>
            <DeviceSection />
            <Section title="Looks">
                <Choice label="Theme" value={state.theme} options={[['system', 'As the system'], ['light', 'Light'], ['dark', 'Dark']]}
                    onChange={(theme) => changeSettings({ theme })} />
            </Section>
            <DataSection />
        </div>
    );
}

function SamplingSection(): JSX.Element {
    const sampling = useStore(settings, (each) => each.sampling);
    const defaults = useStore(model, (each) => each.loaded?.samplingDefault);
    const rows: { key: keyof SamplingSettings; label: string; hint: string; min: number; max: number; step: number }[] = [
        { key: 'temperature', label: 'Temperature', hint: 'Higher is more surprising; 0 always takes the likeliest word.', min: 0, max: 5, step: 0.05 },
        { key: 'top_k', label: 'Top k', hint: 'Only the k likeliest tokens; 0: all.', min: 0, max: 1000, step: 1 },
        { key: 'top_p', label: 'Top p', hint: 'Only the likeliest tokens that together reach this share; 1: all.', min: 0, max: 1, step: 0.01 },
        { key: 'min_p', label: 'Min p', hint: 'Only tokens at least this likely beside the likeliest; 0: all.', min: 0, max: 1, step: 0.01 },
        { key: 'repetition_penalty', label: 'Repetition penalty', hint: '1: none.', min: 0.5, max: 2, step: 0.01 },
        { key: 'seed', label: 'Seed', hint: 'The same seed gives the same answer again. Empty: another one each time.', min: 0, max: 2 ** 32 - 1, step: 1 },
    ];
    // The model's own values are 32-bit floats: 0.95 comes as 0.949999988.
    const own = (key: keyof SamplingSettings): string => (key === 'seed' ? 'random' : defaults ? String(Math.round(defaults[key] * 1000) / 1000) : '');
    const changed = Object.values(sampling).some((value) => value !== null);
    return (
        <Section title="Sampling" aside={changed && <button type="button" class="link" onClick={() => changeSettings({ sampling: DEFAULTS.sampling })}>Reset</button>}>
            <p class="quiet">Empty fields are left to the model.</p>
            <div class="field-grid">
                {rows.map(({ key, label, hint, min, max, step }) => (
                    <Field key={key} label={label} hint={hint}>
                        {(id) => <NumberInput id={id} value={sampling[key]} min={min} max={max} step={step} placeholder={own(key)}
                            onChange={(value) => changeSettings({ sampling: { ...settings.get().sampling, [key]: value } })} />}
                    </Field>
                ))}
            </div>
        </Section>
    );
}

function DeviceSection(): JSX.Element {
    const { backend, powerPreference, gpuMemory } = useStore(settings, (each) => each);
    const loaded = useStore(model, (each) => each.phase === 'ready');
    const [changed, setChanged] = useState(false);
    const change = (what: Partial<Settings>): void => {
        changeSettings(what);
        forgetFits();
        setChanged(true);
    };
    return (
        <Section title="Device">
            <Choice label="Compute on" hint="The GPU by WebGPU is much faster. The CPU works everywhere, with small models." value={backend}
                options={[['auto', 'Best there is'], ['gpu', 'GPU'], ['wasm', 'CPU']]} onChange={(value) => change({ backend: value })} />
            <Choice label="If there are two GPUs" value={powerPreference}
                options={[['high-performance', 'The fast one'], ['low-power', 'The thrifty one']]}
                onChange={(value) => change({ powerPreference: value })} />
            <Field label="GPU memory, GB"
                hint="What does not fit is read from the file for each token, which is slower: of Gemma 4 E2B and E4B first their large table. 0: no limit.">
                {(id) => <NumberInput id={id} value={gpuMemory} min={0} max={1024} step={0.5} onChange={(value) => change({ gpuMemory: value ?? 0 })} />}
            </Field>
            {changed && loaded && (
                <p class="box-note">
                    This counts from the next loading on.{' '}
                    <button type="button" class="link" onClick={() => { setChanged(false); void reload(); }}>Load the model again now</button>
                </p>
            )}
        </Section>
    );
}

function DataSection(): JSX.Element {
    const [asking, setAsking] = useState(false);
    const count = useStore(chat, (state) => state.conversations.length);
    const bring = async (): Promise<void> => {
        const [file] = await openFiles('.json,application/json');
        if (!file) return;
        try {
            const added = importConversations(await file.text());
            announce(`${added} conversations imported.`);
        } catch (error) {
            report(`${file.name} could not be imported. ${error instanceof Error ? error.message : String(error)}`);
        }
    };
    const saveAll = (): void => {
        const now = new Date();
        saveFile(`gemmule-${now.toISOString().slice(0, 10)}.json`, JSON.stringify(exportFile(chat.get().conversations, now), null, 1));
    };
    return (
        <Section title="Your data">
            <p class="quiet">Conversations are kept in this browser, on this machine, and nowhere else.</p>
            <div class="actions start">
                <button type="button" class="button" disabled={count === 0}
                    onClick={saveAll}>
                    Export all conversations
                </button>
                <button type="button" class="button" onClick={() => void bring()}>Import</button>
                <button type="button" class="button danger" onClick={() => setAsking(true)}>Erase everything</button>
            </div>
            <Dialog open={asking} title="Erase everything?" onClose={() => setAsking(false)}>
                <p>
                    All conversations, stored models, computed context, settings and the offline copy of this app are removed from this browser.
                    This cannot be undone. Files of Ollama are not touched.
                </p>
                <div class="actions">
                    <button type="button" class="button" onClick={() => setAsking(false)}>Keep everything</button>
                    <button type="button" class="button danger" onClick={() => void eraseEverything()}>Erase everything</button>
                </div>
            </Dialog>
        </Section>
    );
}

// ---- fields -------------------------------------------------------------------------------------------------------------------

function Section({ title, aside, children }: { title: string; aside?: ComponentChildren; children: ComponentChildren }): JSX.Element {
    return (
        <section class="card-section">
            <div class="section-head"><h2>{title}</h2>{aside}</div>
            <div class="card form">{children}</div>
        </section>
    );
}

function Field({ label, hint, children }: { label: string; hint?: string; children: (id: string) => JSX.Element }): JSX.Element {
    const id = useId();
    return (
        <div class="field">
            <label for={id}>{label}</label>
            {children(id)}
            {hint && <p class="quiet hint-line">{hint}</p>}
        </div>
    );
}

interface NumberProps {
    id: string;
    value: number | null;
    min: number;
    max: number;
    step: number;
    placeholder?: string;
    onChange: (value: number | null) => void;
}

function NumberInput({ id, value, min, max, step, placeholder, onChange }: NumberProps): JSX.Element {
    const commit = (event: TargetedEvent<HTMLInputElement>): void => {
        const typed = event.currentTarget.valueAsNumber;
        onChange(Number.isNaN(typed) ? null : Math.min(max, Math.max(min, step === 1 ? Math.round(typed) : typed)));
    };
    return (
        <input id={id} type="number" inputMode="decimal" min={min} max={max} step={step} placeholder={placeholder} value={value ?? ''}
            onChange={commit} />
    );
}

interface ChoiceProps<T> {
    label: string;
    hint?: string;
    value: T;
    options: [T, string][];
    onChange: (value: T) => void;
}

function Choice<T extends string>({ label, hint, value, options, onChange }: ChoiceProps<T>): JSX.Element {
    return (
        <Field label={label} hint={hint}>
            {(id) => (
                <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value as T)}>
                    {options.map(([each, words]) => <option key={each} value={each}>{words}</option>)}
                </select>
            )}
        </Field>
    );
}

function Switch({ label, hint, value, onChange }: { label: string; hint: string; value: boolean; onChange: (value: boolean) => void }): JSX.Element {
    const id = useId();
    return (
        <div class="field switch-field">
            <div><label for={id}>{label}</label><p class="quiet hint-line">{hint}</p></div>
            <input id={id} type="checkbox" role="switch" class="switch" checked={value} onChange={(event) => onChange(event.currentTarget.checked)} />
        </div>
    );
}
