// A training on the Teach page: how far it is, its loss, answers before and after, and what to do with the adapter.

import type { JSX } from 'preact';
import { formatBytes, formatSeconds, formatSpeed } from '../format.ts';
import { Icon } from '../icons.tsx';
import { chatHref } from '../route.ts';
import { useStore } from '../store.ts';
import { chooseCheckpoint, exportTaught, isBusy, keepAdapter, pauseTraining, resumeTraining, setTeachName, stopTraining, teach, type TeachPhase } from '../teach.ts';
import { LossChart } from './loss_chart.tsx';

const TITLES: Record<TeachPhase, string> = {
    idle: '', preparing: 'Asking the model before it learns', training: 'Learning', paused: 'Paused', stopping: 'Stopping after this step', done: 'Learned', failed: 'Failed',
};

export function TrainingView(): JSX.Element {
    const { phase, state, losses, evaluations, notice, failure, trained } = useStore(teach, (each) => each);
    const steps = state?.steps ?? 0, step = state?.step ?? 0;
    const chart = losses.length > 0 && <LossChart losses={losses} evaluations={evaluations} steps={steps} />;
    return (
        <section class="card-section teach-training" aria-label="Training">
            <div class="card">
                <div class="teach-head">
                    <div>
                        <h2>{TITLES[phase]}{phase === 'training' && <span class="pulse" aria-hidden="true" />}</h2>
                        <p class="quiet">{trained}</p>
                    </div>
                    {isBusy(phase) && <Controls phase={phase} />}
                </div>
                {phase === 'preparing' || (phase === 'training' && steps === 0) ? <progress aria-label="Preparing" />
                    : <progress max={Math.max(1, steps)} value={step} aria-label="Steps of the training" />}
                <Figures />
                {notice !== '' && <p class="box-note">{notice}</p>}
                {phase === 'failed' && <div class="box-note box-error" role="alert"><p>{failure}</p></div>}
                {phase === 'done' ? <TrainingResult /> : chart}
            </div>
            <Samples />
            {phase === 'done' && chart && <div class="card">{chart}</div>}
        </section>
    );
}

function Controls({ phase }: { phase: TeachPhase }): JSX.Element {
    return (
        <div class="actions">
            {phase === 'paused'
                ? <button type="button" class="button" onClick={() => void resumeTraining()}><Icon name="play" size={16} />Go on</button>
                : <button type="button" class="button" disabled={phase !== 'training'} onClick={() => void pauseTraining()}><Icon name="pause" size={16} />Pause</button>}
            <button type="button" class="button" disabled={phase === 'stopping'} onClick={() => void stopTraining()}><Icon name="stop" size={16} />Stop</button>
        </div>
    );
}

function Figures(): JSX.Element | null {
    const { state, phase, stored } = useStore(teach, (each) => each);
    if (!state || state.steps === 0) return null;
    const facts: [string, string][] = [
        ['Step', `${state.step} of ${state.steps}`], ['Round', `${Math.min(state.epoch + 1, state.epochs)} of ${state.epochs}`],
        ['Loss', state.loss === null ? '–' : state.loss.toFixed(3)],
    ];
    if (state.evalLoss !== null) facts.push(['Evaluation', state.evalLoss.toFixed(3)]);
    facts.push(['Speed', `${formatSpeed(state.tokensPerSecond)} tok/s`]);
    if (phase === 'done') facts.push(['Took', formatSeconds(state.seconds)]);
    else facts.push(['Time left', state.secondsLeft === null ? '…' : formatSeconds(state.secondsLeft)]);
    if (state.memory > 0) facts.push(['Memory', formatBytes(state.memory)]);
    if (stored > 0 && phase !== 'done') facts.push(['Kept up to', `step ${stored}`]);
    return <dl class="facts teach-facts">{facts.map(([what, value]) => <div key={what}><dt>{what}</dt><dd>{value}</dd></div>)}</dl>;
}

function Samples(): JSX.Element | null {
    const { samples, phase, answering } = useStore(teach, (state) => state);
    if (samples.length === 0) return null;
    const later = phase === 'done' ? '…' : '';
    return (
        <div class="card teach-samples" aria-busy={answering}>
            <h3>Before and after</h3>
            <ul>
                {samples.map(({ question, wanted, before, after }, at) => (
                    <li key={at}>
                        <p class="teach-question">{question}</p>
                        <div class="teach-answers">
                            <div><span class="quiet">Before</span><p>{before || '…'}</p></div>
                            <div class={after ? 'teach-after' : ''}><span class="quiet">After</span>
                                <p>{after || later || <span class="quiet">{wanted ? `Should become: ${wanted}` : 'Should stay as it is'}</span>}</p></div>
                        </div>
                    </li>
                ))}
            </ul>
        </div>
    );
}

/* What to do with the adapter. */
function TrainingResult(): JSX.Element {
    const { name, kept, trainings, trained, checkpoint } = useStore(teach, (state) => state);
    const checkpoints = trainings.find((each) => each.name === trained)?.adapters ?? [];
    return (
        <div class="teach-result">
            <div class="field-grid">
                <label class="field">Name<input type="text" value={name} maxLength={60} onInput={(event) => setTeachName(event.currentTarget.value)} /></label>
                {checkpoints.length > 1 && (
                    <label class="field">
                        Checkpoint
                        <select value={String(checkpoint || checkpoints.at(-1)!.step)} onChange={(event) => void chooseCheckpoint(Number(event.currentTarget.value))}>
                            {[...checkpoints].reverse().map(({ step, loss, evalLoss }) => (
                                <option key={step} value={String(step)}>
                                    Step {step}{evalLoss !== null ? `, evaluation ${evalLoss.toFixed(3)}` : loss !== null ? `, loss ${loss.toFixed(3)}` : ''}
                                </option>
                            ))}
                        </select>
                    </label>
                )}
            </div>
            <div class="actions start">
                {kept ? (
                    <>
                        <span class="fit fit-yes"><Icon name="check" size={16} />Kept, and used in new conversations</span>
                        <a class="button primary" href={chatHref(null)}>Try it in the chat</a>
                    </>
                ) : <button type="button" class="button primary" onClick={() => void keepAdapter()}><Icon name="check" size={16} />Keep and use</button>}
                <span class="teach-exports">
                    <button type="button" class="button" onClick={() => void exportTaught('gguf')}><Icon name="download" size={16} />GGUF</button>
                    <button type="button" class="button" onClick={() => void exportTaught('peft')}><Icon name="download" size={16} />PEFT</button>
                    <button type="button" class="button" onClick={() => void exportTaught('modelfile')}><Icon name="download" size={16} />Ollama Modelfile</button>
                </span>
            </div>
        </div>
    );
}
