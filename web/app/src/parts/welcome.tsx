// What an empty conversation shows: on the first visit what this is, how far the model is, and what to do next.

import type { JSX } from 'preact';
import { formatBytes, formatSeconds } from '../format.ts';
import { Icon, Logo } from '../icons.tsx';
import { BOX, load, model, recover, stopLoading } from '../models.ts';
import { pageHref } from '../route.ts';
import { useStore } from '../store.ts';

const IDEAS = ['Explain how a rainbow forms', 'Write a limerick about a lighthouse', 'Plan a weekend of small repairs', 'Show me quicksort in Python'];
// What the model in the box was made for.
const SMALL_IDEAS = [
    'Tell me a story about a fox in a castle with a lantern.', 'Who are you?', 'What is 12 + 30?', 'How do you say house in Spanish?', 'Tell me a joke.',
];

const PHASES: Record<string, string> = {
    wait: 'Another tab is fetching it',
    verify: 'Checking what is stored',
    download: 'Fetching',
    header: 'Reading the header',
    check: 'Checking the device',
    weights: 'Loading weights',
    plans: 'Getting ready',
    measure: 'Comparing GPU and CPU',
};

export function Welcome({ missing }: { missing: boolean }): JSX.Element {
    const isBox = useStore(model, (state) => state.choice?.id === BOX.id);
    return (
        <div class="welcome">
            <Logo size={56} />
            <h2>{missing ? 'This conversation is not on this machine' : 'What is on your mind?'}</h2>
            <p class="lead">
                gemmule runs Gemma 4 right here in your browser, on your own hardware. Nothing you type and nothing it answers leaves this
                machine.
            </p>
            <ModelStatus />
            <ul class={`ideas${isBox ? ' small-ideas' : ''}`} aria-label="Things to ask">
                {(isBox ? SMALL_IDEAS : IDEAS).map((idea) => <li key={idea}><button type="button" onClick={() => fill(idea)}>{idea}</button></li>)}
            </ul>
            {isBox && (
                <p class="box-remark">
                    This is the small model in the box. <a href={pageHref('models')}>Load a big one</a>, from Ollama or elsewhere.
                </p>
            )}
        </div>
    );
}

function fill(text: string): void {
    const box = document.getElementById('composer') as HTMLTextAreaElement | null;
    if (!box) return;
    box.value = text;
    box.dispatchEvent(new InputEvent('input', { bubbles: true }));
    box.focus();
}

export function ModelStatus(): JSX.Element {
    const { phase, choice, progress, loaded, failure, stranded } = useStore(model, (state) => state);
    if (phase === 'ready' && loaded) {
        return (
            <p class="model-status ready">
                <Icon name="check" size={16} />
                {(choice?.id === BOX.id ? choice.name : loaded.info.name) || choice?.name} is ready on {loaded.info.backend === 'gpu' ? 'your GPU' : 'your CPU'}.
            </p>
        );
    }
    if (phase === 'loading') {
        const known = progress !== null && progress.total > 0;
        const bytes = progress?.phase === 'download' || progress?.phase === 'weights' || progress?.phase === 'verify';
        return (
            <div class="model-status loading">
                <div class="load-line"><span>{PHASES[progress?.phase ?? 'header'] ?? 'Loading'}: {choice?.name}</span>
                    <button type="button" class="link" onClick={stopLoading}>Stop</button></div>
                {known ? <progress max={progress.total} value={progress.done} aria-label="Loading the model" /> : <progress aria-label="Loading the model" />}
                <p class="quiet">
                    {bytes && known ? `${formatBytes(progress.done)} of ${formatBytes(progress.total)}` : '\u00a0'}
                    {bytes && progress && progress.speed > 0 ? ` · ${formatBytes(progress.speed)}/s` : ''}
                    {bytes && progress?.left != null && progress.left > 1 ? ` · ${formatSeconds(progress.left)} left` : ''}
                </p>
            </div>
        );
    }
    if (phase === 'failed') {
        return (
            <div class="model-status box-note box-error" role="alert">
                <p>
                    <strong>{stranded ? 'The GPU is gone.' : `${choice?.name ?? 'The model'} could not be loaded.`}</strong> {failure?.message}
                    {stranded && ' Your conversations are kept.'}
                </p>
                <div class="actions">
                    {stranded && <button type="button" class="button" onClick={() => void recover('auto')}>Try the GPU again</button>}
                    {stranded && <button type="button" class="button primary" onClick={() => void recover('wasm')}>Go on with the CPU</button>}
                    {!stranded && choice && <button type="button" class="button" onClick={() => void load(choice)}>Try again</button>}
                    {!stranded && <a class="button primary" href={pageHref('models')}>Choose a model</a>}
                </div>
            </div>
        );
    }
    return <p class="model-status"><a class="button primary" href={pageHref('models')}>Choose a model</a></p>;
}
