// An empty conversation: what this is, the state of the model, and things to ask. Also the state of the model for other pages.

import type { JSX } from 'preact';
import { setDraft } from '../drafts.ts';
import { formatBytes, formatSeconds } from '../format.ts';
import { Icon, Logo } from '../icons.tsx';
import { BOX, load, model, recover, stopLoading, wantsCopy, type ModelState } from '../models.ts';
import { pageHref, route } from '../route.ts';
import { useStore } from '../store.ts';
import { WantedNote } from './model_notice.tsx';

const IDEAS = ['Explain how a rainbow forms', 'Write a limerick about a lighthouse', 'Plan a weekend of small repairs', 'Show me quicksort in Python'];
// What the model in the box can do.
const SMALL_IDEAS = [
    'Tell me a story about a fox in a castle with a lantern.', 'Who are you?', 'What is 12 + 30?', 'How do you say house in Spanish?', 'Tell me a joke.',
];

const PHASES: Record<string, string> = {
    wait: 'Waiting for another tab to store this file',
    verify: 'Verifying the stored file',
    download: 'Downloading',
    copy: 'Copying into this browser',
    header: 'Reading the file header',
    check: 'Checking the device',
    weights: 'Loading weights',
    shaders: 'Preparing the GPU',
    plans: 'Preparing',
    measure: 'Comparing GPU and CPU',
};

export function Welcome({ missing }: { missing: boolean }): JSX.Element {
    const isBox = useStore(model, (state) => state.choice?.id === BOX.id);
    const isSlow = useStore(model, ({ loaded }) => loaded !== null && wantsCopy(loaded));
    return (
        <div class="welcome">
            <Logo size={56} />
            <h2>{missing ? 'This conversation is not stored on this machine' : 'What’s on your mind?'}</h2>
            <p class="lead">
                gemmule runs Gemma 4 right here in your browser, on your own hardware. Nothing you type and nothing it answers leaves this
                machine.
            </p>
            <ModelStatus />
            <ul class={`ideas${isBox ? ' small-ideas' : ''}`} aria-label="Things to ask">
                {(isBox ? SMALL_IDEAS : IDEAS).map((idea) => <li key={idea}><button type="button" onClick={() => fill(idea)}>{idea}</button></li>)}
            </ul>
            {isSlow && (
                <p class="box-remark">
                    Parts of this model are read from its file while it answers. <a href={pageHref('models')}>A copy</a> in this browser’s
                    storage is faster to read.
                </p>
            )}
            {isBox && (
                <p class="box-remark">
                    This is the small model in the box. <a href={pageHref('models')}>Load a bigger one</a> from Ollama or elsewhere.
                </p>
            )}
        </div>
    );
}

function fill(text: string): void {
    setDraft('', text);
    document.getElementById('composer')?.focus();
}

export function ModelStatus(): JSX.Element {
    const { phase, choice, progress, loaded, failure, stranded, wanted } = useStore(model, (state) => state);
    const elsewhere = useStore(route, (state) => state.page !== 'models');
    if (phase === 'ready' && loaded) {
        return (
            <p class="model-status ready">
                <Icon name="check" size={16} />
                {(choice?.id === BOX.id ? choice.name : loaded.info.name) || choice?.name} is ready on {loaded.info.backend === 'gpu' ? 'your GPU' : 'your CPU'}.
            </p>
        );
    }
    if (phase === 'loading') {
        return <div class="model-status loading"><LoadProgress progress={progress} name={choice?.name} /></div>;
    }
    if (phase === 'failed') {
        return (
            <div class="model-status box-note box-error" role="alert">
                <p>
                    <strong>{stranded ? 'The GPU is no longer available.' : `${choice?.name ?? 'The model'} could not be loaded.`}</strong> {failure?.message}
                    {stranded && ' Your conversations are safe.'}
                </p>
                <div class="actions">
                    {stranded && <button type="button" class="button" onClick={() => void recover('auto')}>Try the GPU again</button>}
                    {stranded && <button type="button" class="button primary" onClick={() => void recover('wasm')}>Continue on the CPU</button>}
                    {!stranded && choice && <button type="button" class="button" onClick={() => void load(choice)}>Try again</button>}
                    {!stranded && elsewhere && <a class="button primary" href={pageHref('models')}>Choose a model</a>}
                </div>
            </div>
        );
    }
    if (wanted) return <WantedNote wanted={wanted} />;
    return <p class="model-status">{elsewhere ? <a class="button primary" href={pageHref('models')}>Choose a model</a> : 'No model is loaded.'}</p>;
}

/** Progress and failure of a load, beside the button that started it: `is` picks the models of that button. */
export function ChoiceStatus({ is }: { is: (id: string) => boolean }): JSX.Element | null {
    const state = useStore(model, (each) => (each.choice && is(each.choice.id) ? each : null));
    if (state?.phase === 'loading') return <div class="choice-status"><LoadProgress progress={state.progress} /></div>;
    if (state?.phase !== 'failed' || state.stranded) return null;
    return <p class="choice-status fit fit-no"><Icon name="warn" size={16} />{state.failure?.message}</p>;
}

interface ShownProgress {
    progress: ModelState['progress'];
    name?: string | undefined;
    label?: string;
    onStop?: () => void;
}

export function LoadProgress({ progress, name, label = 'Loading the model', onStop = stopLoading }: ShownProgress): JSX.Element {
    const known = progress !== null && progress.total > 0;
    const bytes = progress !== null && ['download', 'copy', 'weights', 'verify'].includes(progress.phase);
    const phase = PHASES[progress?.phase ?? 'header'] ?? 'Loading';
    return (
        <>
            <div class="load-line">
                <span>{name ? `${phase}: ${name}` : phase}</span>
                <button type="button" class="link" onClick={onStop}>Stop</button>
            </div>
            {known ? <progress max={progress.total} value={progress.done} aria-label={label} /> : <progress aria-label={label} />}
            <p class="quiet">
                {bytes && known ? `${formatBytes(progress.done)} of ${formatBytes(progress.total)}` : '\u00a0'}
                {progress?.phase === 'shaders' && known ? `${progress.done} of ${progress.total} shaders` : ''}
                {bytes && progress && progress.speed > 0 ? ` · ${formatBytes(progress.speed)}/s` : ''}
                {bytes && progress?.left != null && progress.left > 1 ? ` · ${formatSeconds(progress.left)} left` : ''}
            </p>
        </>
    );
}
