// The Settings page: system prompt, sampling, context, device, appearance, and the user's data.

import type { ComponentChildren, JSX, TargetedEvent } from 'preact';
import { useId, useLayoutEffect, useState } from 'preact/hooks';
import { announce, chat, exportConversations, importConversations, report } from '../chat.ts';
import { whyClamped } from '../context.ts';
import { messageOf } from '../engine.ts';
import { eraseEverything } from '../erase.ts';
import { openFiles, saveFile } from '../files.ts';
import { countOf, sentence } from '../format.ts';
import { Icon } from '../icons.tsx';
import { forgetFits, model, reload } from '../models.ts';
import { Dialog } from '../parts/dialog.tsx';
import { Problem } from '../parts/problem.tsx';
import { ChoiceStatus } from '../parts/welcome.tsx';
import { changeSettings, DEFAULTS, settings, type SamplingSettings, type Settings } from '../settings.ts';
import { dropAllSnapshots } from '../snapshots.ts';
import { useStore } from '../store.ts';

export function SettingsPage(): JSX.Element {
    const state = useStore(settings, (each) => each);
    const clamped = useStore(model, ({ loaded }) => (loaded ? whyClamped(state.context, loaded.info.context) : ''));
    return (
        <div class="page">
            <Section title="Answers">
                <Field label="System prompt" hint="Instructions that the model gets at the start of every conversation.">
                    {(id) => (
                        <textarea id={id} rows={4} value={state.system} placeholder="For example: Answer briefly and in plain words."
                            onInput={(event) => changeSettings({ system: event.currentTarget.value })} />
                    )}
                </Field>
                <Field label="Maximum answer length" hint="In tokens. 0 leaves it to the model and the context.">
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
                <Field label="Context size"
                    hint="How many tokens of a conversation the model sees at once. 0 uses the model's setting, up to 8,192. A longer context needs more memory.">
                    {(id) => <NumberInput id={id} value={state.context} min={0} max={262_144} step={256} onChange={(value) => changeSettings({ context: value ?? 0 })} />}
                </Field>
                {clamped && <p class="box-note">{clamped}</p>}
                <Choice label="When the context is full" value={state.overflow}
                    options={[['leave-out', 'Leave out the oldest messages'], ['stop', 'Stop and show a message']]}
                    onChange={(overflow) => changeSettings({ overflow })} />
                <Choice label="Context cache"
                    hint="Precision of the cached keys and values. q8_0 needs half the memory of f16 and is slightly less accurate."
                    value={state.kv} options={[['f16', 'f16'], ['q8_0', 'q8_0'], ['f32', 'f32']]} onChange={(kv) => changeSettings({ kv })} />
                <SnapshotSwitch />
            </Section>
            <DeviceSection />
            <Section title="Appearance">
                <Choice label="Theme" value={state.theme} options={[['system', 'Match system'], ['light', 'Light'], ['dark', 'Dark']]}
                    onChange={(theme) => changeSettings({ theme })} />
            </Section>
            <DataSection />
        </div>
    );
}

function SnapshotSwitch(): JSX.Element {
    const value = useStore(settings, (each) => each.snapshots);
    const [problem, setProblem] = useState('');
    const change = (snapshots: boolean): void => {
        changeSettings({ snapshots });
        setProblem('');
        if (!snapshots) dropAllSnapshots().catch((error) => setProblem(`The saved context could not be deleted. ${messageOf(error).message}`));
    };
    return (
        <>
            <Switch label="Save processed context"
                hint="Conversations continue at once after a reload. Uses up to 2 GB; the least recently used are removed first."
                value={value} onChange={change} />
            {problem && <Problem words={problem} />}
        </>
    );
}

function SamplingSection(): JSX.Element {
    const sampling = useStore(settings, (each) => each.sampling);
    const defaults = useStore(model, (each) => each.loaded?.samplingDefault);
    const rows: { key: keyof SamplingSettings; label: string; hint: string; min: number; max: number; step: number }[] = [
        { key: 'temperature', label: 'Temperature', hint: 'Higher values give more varied answers; 0 always picks the most likely token.', min: 0, max: 5, step: 0.05 },
        { key: 'top_k', label: 'Top k', hint: 'Considers only the k most likely tokens; 0 considers all.', min: 0, max: 1000, step: 1 },
        { key: 'top_p', label: 'Top p', hint: 'Considers only the most likely tokens that together reach this probability; 1 considers all.', min: 0, max: 1, step: 0.01 },
        { key: 'min_p', label: 'Min p', hint: 'Ignores tokens below this fraction of the highest probability; 0 considers all.', min: 0, max: 1, step: 0.01 },
        { key: 'repetition_penalty', label: 'Repetition penalty', hint: 'Values above 1 discourage repetition; 1 turns this off.', min: 0.5, max: 2, step: 0.01 },
        { key: 'seed', label: 'Seed', hint: 'The same seed gives the same answer. Leave empty for a different one each time.', min: 0, max: 2 ** 32 - 1, step: 1 },
    ];
    // The model's defaults are 32-bit floats: 0.95 arrives as 0.949999988.
    const own = (key: keyof SamplingSettings): string => (key === 'seed' ? 'random' : defaults ? String(Math.round(defaults[key] * 1000) / 1000) : '');
    const changed = Object.values(sampling).some((value) => value !== null);
    return (
        <Section title="Sampling" aside={changed && <button type="button" class="link" onClick={() => changeSettings({ sampling: DEFAULTS.sampling })}>Reset</button>}>
            <p class="quiet">Empty fields use the model's defaults.</p>
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
    const [reloaded, setReloaded] = useState(false);
    const change = (what: Partial<Settings>): void => {
        changeSettings(what);
        forgetFits();
        setChanged(true);
    };
    return (
        <Section title="Device">
            <Choice label="Compute on" hint="The GPU is usually much faster. The CPU works everywhere and suits small models." value={backend}
                options={[['auto', 'Automatic'], ['gpu', 'GPU'], ['wasm', 'CPU']]} onChange={(value) => change({ backend: value })} />
            <Choice label="If there are several GPUs" value={powerPreference}
                options={[['high-performance', 'High performance'], ['low-power', 'Power-saving']]}
                onChange={(value) => change({ powerPreference: value })} />
            <Field label="GPU memory limit (GB)"
                hint="Weights beyond the limit come from the file or from main memory when they are needed, which is slower. 0 means no limit.">
                {(id) => <NumberInput id={id} value={gpuMemory} min={0} max={1024} step={0.5} onChange={(value) => change({ gpuMemory: value ?? 0 })} />}
            </Field>
            {changed && loaded && (
                <p class="box-note">
                    Applies when the model is loaded again.{' '}
                    <button type="button" class="link" onClick={() => { setChanged(false); setReloaded(true); void reload(); }}>Reload the model now</button>
                </p>
            )}
            {reloaded && <ChoiceStatus is={() => true} />}
        </Section>
    );
}

function DataSection(): JSX.Element {
    const [asking, setAsking] = useState(false);
    const [left, setLeft] = useState('');
    const [imported, setImported] = useState<{ good: boolean; words: string } | null>(null);
    const count = useStore(chat, (state) => state.conversations.length);
    const bring = async (): Promise<void> => {
        const [file] = await openFiles('.json,application/json');
        if (!file) return;
        try {
            const words = `${countOf(await importConversations(await file.text()), 'conversation')} imported.`;
            setImported({ good: true, words });
            announce(words);
        } catch (error) {
            setImported({ good: false, words: `${file.name} could not be imported. ${sentence(error instanceof Error ? error.message : String(error))}` });
        }
    };
    const eraseAll = (): void => {
        setLeft('');
        eraseEverything().catch((error) => setLeft(`Not everything could be erased. ${messageOf(error).message}`));
    };
    const saveAll = (): void => {
        const now = new Date();
        const save = (text: string): void => saveFile(`gemmule-${now.toISOString().slice(0, 10)}.json`, text);
        exportConversations(chat.get().conversations, now).then(save, (error: unknown) => report(messageOf(error).message));
    };
    return (
        <Section title="Your data">
            <p class="quiet">Your conversations are stored in this browser, on this machine, and nowhere else.</p>
            <div class="actions start">
                <button type="button" class="button" disabled={count === 0}
                    onClick={saveAll}>
                    Export all conversations
                </button>
                <button type="button" class="button" onClick={() => void bring()}>Import</button>
                <button type="button" class="button danger" onClick={() => { setLeft(''); setAsking(true); }}>Erase everything</button>
            </div>
            {imported && (
                <p class={`fit ${imported.good ? 'fit-yes' : 'fit-no'}`} role={imported.good ? undefined : 'alert'}>
                    <Icon name={imported.good ? 'check' : 'warn'} size={16} />{imported.words}
                </p>
            )}
            <Dialog open={asking} title="Erase everything?" onClose={() => setAsking(false)}>
                <p>
                    This removes all conversations, stored models, saved context, settings and the offline copy of this app from this browser.
                    It cannot be undone. Ollama's files are not touched.
                </p>
                <div class="actions">
                    <button type="button" class="button" onClick={() => setAsking(false)}>Cancel</button>
                    <button type="button" class="button danger" onClick={eraseAll}>Erase everything</button>
                </div>
                {left && <Problem words={left} />}
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
    const [shown, setShown] = useState(''); // what is being typed, too: it must survive when the page is drawn again
    const show = (): void => setShown(value === null ? '' : String(value));
    useLayoutEffect(show, [value]);
    const commit = (event: TargetedEvent<HTMLInputElement>): void => {
        const typed = event.currentTarget.valueAsNumber;
        onChange(Number.isNaN(typed) ? null : Math.min(max, Math.max(min, step === 1 ? Math.round(typed) : typed)));
        show(); // if the value is what it was, nothing else does
    };
    return (
        <input id={id} type="number" inputMode="decimal" min={min} max={max} step={step} placeholder={placeholder} value={shown}
            onInput={(event) => setShown(event.currentTarget.value)} onChange={commit} />
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
