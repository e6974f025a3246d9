// The Teach page: examples, what is in them, a training, and the adapter that comes of it.

import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { formatBytes, formatSeconds } from '../format.ts';
import { Icon } from '../icons.tsx';
import { model } from '../models.ts';
import { hasFiles } from '../parts/drop_files.ts';
import { Examples, importDrop } from '../parts/teach_examples.tsx';
import { DataView } from '../parts/teach_data.tsx';
import { TrainingView } from '../parts/teach_training.tsx';
import { ModelStatus } from '../parts/welcome.tsx';
import { useStore } from '../store.ts';
import {
    changeTeachSettings, deleteTraining, estimate, isBusy, openTraining, readSoon, refreshTrainings, setQuestion, setTeachName, startTraining, teach, usualSettings,
} from '../teach.ts';

export function TeachPage(): JSX.Element {
    const loaded = useStore(model, (state) => state.loaded);
    const phase = useStore(teach, (state) => state.phase);
    const [over, setOver] = useState(false);
    useEffect(() => {
        void refreshTrainings();
        if (!isBusy(teach.get().phase) && !teach.get().report) readSoon();
    }, []);
    const drop = (event: DragEvent): void => {
        if (!hasFiles(event) || isBusy(phase)) return;
        event.preventDefault();
        setOver(false);
        void importDrop(event.dataTransfer!);
    };
    const busy = isBusy(phase);
    return (
        <div class={`page teach${over ? ' teach-over' : ''}`} onDrop={drop} onDragLeave={() => setOver(false)}
            onDragOver={(event) => { if (hasFiles(event) && !busy) { event.preventDefault(); setOver(true); } }}>
            {!busy && phase !== 'done' && <p class="lead">
                Show the model how to answer, and it learns from your examples. What it has learned is an adapter: a small file that you can use in the chat, keep
                and export. Everything stays on this machine.
            </p>}
            {!loaded && !busy && <ModelStatus />}
            {!busy && phase !== 'done' && <Unfinished />}
            {busy || phase === 'done' || phase === 'failed' ? <TrainingView /> : null}
            {!busy && <Step number={1} title="Examples"><Examples /></Step>}
            {!busy && <Step number={2} title="What the model learns from"><DataView /></Step>}
            {!busy && <Step number={3} title="Teach"><Start /></Step>}
        </div>
    );
}

function Step({ number, title, children }: { number: number; title: string; children: ComponentChildren }): JSX.Element {
    return (
        <section class="card-section teach-step" aria-label={title}>
            <h2><span class="teach-number" aria-hidden="true">{number}</span>{title}</h2>
            {children}
        </section>
    );
}

/* Trainings in this browser: interrupted, or finished and not deleted. */
function Unfinished(): JSX.Element | null {
    const trainings = useStore(teach, (state) => state.trainings);
    const loaded = useStore(model, (state) => state.loaded);
    if (trainings.length === 0) return null;
    return (
        <section class="stored teach-unfinished" aria-label="Trainings">
            {trainings.map(({ name, state, model: of, problem, end, adapters }) => {
                const other = loaded !== null && loaded.info.digest !== of.digest;
                const done = state ? Math.round((100 * state.step) / Math.max(1, state.steps)) : 0;
                return (
                    <div key={name} class="card">
                        <div>
                            <p>
                                <strong>{name}</strong>{' '}
                                <span class="quiet">{end === 'complete' ? 'is learned' : state ? `got as far as step ${state.step} of ${state.steps}` : 'has not learned anything yet'}</span>
                            </p>
                            <progress max={100} value={done} aria-label={`Progress of ${name}`} />
                            {(problem !== '' || other) && <p class="quiet">{problem !== '' ? problem : `Load ${of.name} to go on.`}</p>}
                        </div>
                        <div class="actions">
                            {adapters.length > 0 && (
                                <button type="button" class="button" disabled={!loaded || other} onClick={() => void openTraining(name)}>Open</button>
                            )}
                            {end !== 'complete' && (
                                <button type="button" class="button primary" disabled={!loaded || other || problem !== ''} onClick={() => void startTraining(name)}>
                                    <Icon name="play" size={16} />Go on
                                </button>
                            )}
                            <button type="button" class="button danger" aria-label={`Delete the training ${name}`} onClick={() => void deleteTraining(name)}>
                                <Icon name="trash" size={16} />
                            </button>
                        </div>
                    </div>
                );
            })}
        </section>
    );
}

function Start(): JSX.Element {
    const { report, name, estimate: known, reading, question, failure, phase } = useStore(teach, (state) => state);
    const loaded = useStore(model, (state) => state.loaded);
    const words = known === 'asking' ? 'Estimating…' : known ? `About ${formatSeconds(known.seconds)}, ${formatBytes(known.memory)} of memory` : '';
    return (
        <div class="card teach-start">
            <div class="field-grid">
                <label class="field">
                    Name
                    <input type="text" value={name} placeholder="my adapter" maxLength={60} onInput={(event) => setTeachName(event.currentTarget.value)} />
                </label>
                <label class="field">
                    Also ask
                    <input type="text" value={question} maxLength={500} onInput={(event) => setQuestion(event.currentTarget.value)} />
                </label>
            </div>
            <More />
            <div class="actions start">
                <button type="button" class="button primary teach-go" disabled={!report || !loaded || reading} onClick={() => void startTraining()}>
                    <Icon name="cap" />Teach
                </button>
                {words ? <span class="quiet" role="status">{words}</span>
                    : report && <button type="button" class="button" disabled={!loaded} onClick={() => void estimate()}>Estimate time and memory</button>}
                {!report && <span class="quiet">Write or import some examples first.</span>}
            </div>
            {phase === 'failed' && <div class="box-note box-error" role="alert"><p>{failure}</p></div>}
        </div>
    );
}

const FIELDS = [
    { key: 'epochs', label: 'Rounds', hint: 'How often each example is seen', least: 1, most: 1000, step: 1 },
    { key: 'rate', label: 'Learning rate', hint: 'Higher learns faster, and forgets more', least: 1e-6, most: 1, step: 'any' },
    { key: 'rank', label: 'Rank', hint: 'How much an adapter can hold', least: 1, most: 256, step: 1 },
    { key: 'batch', label: 'Examples per step', hint: '', least: 1, most: 256, step: 1 },
    { key: 'maxTokens', label: 'Longest example', hint: 'In tokens; longer ones are cut off', least: 8, most: 131_072, step: 1 },
    { key: 'evalShare', label: 'Kept for evaluation', hint: 'The share that is only tested, not learned', least: 0, most: 0.9, step: 'any' },
] as const;

function More(): JSX.Element {
    const state = useStore(teach, (each) => each);
    const loaded = useStore(model, (each) => each.loaded);
    const usual = usualSettings(state, loaded);
    return (
        <details class="hint teach-more">
            <summary>More settings</summary>
            <div class="field-grid">
                {FIELDS.map(({ key, label, hint, least, most, step }) => (
                    <label key={key} class="field">
                        {label}
                        <input type="number" min={least} max={most} step={step} placeholder={String(usual[key])} value={state.settings[key] ?? ''}
                            onChange={(event) => {
                                const { value } = event.currentTarget, number = Number(value);
                                changeTeachSettings({ [key]: value.trim() === '' || !Number.isFinite(number) ? undefined : Math.min(most, Math.max(least, number)) });
                            }} />
                        {hint !== '' && <span class="quiet hint-line">{hint}</span>}
                    </label>
                ))}
            </div>
        </details>
    );
}
