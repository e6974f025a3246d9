// What an empty conversation shows: on the first visit what this is, how far the model is, and what to do next.

import type { JSX } from 'preact';
import { formatBytes, formatSeconds } from '../format.ts';
import { Icon, Logo } from '../icons.tsx';
import { BOX, load, model, recover, server, stopLoading } from '../models.ts';
import { pageHref } from '../route.ts';
import { changeSettings, settings } from '../settings.ts';
import { useStore } from '../store.ts';

const IDEAS = ['Explain how a rainbow forms', 'Write a limerick about a lighthouse', 'Plan a weekend of small repairs', 'Show me quicksort in Python'];

const PHASES: Record<string, string> = {
    wait: 'Another tab is fetching it',
    verify: 'Checking what is stored',
    download: 'Fetching',
    header: 'Reading the header',
    check: 'Checking the device',
    weights: 'Loading weights',
    plans: 'Getting ready',
};

export function Welcome({ missing }: { missing: boolean }): JSX.Element {
    const welcomed = useStore(settings, (state) => state.welcomed);
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
            <ul class="ideas" aria-label="Things to ask">
                {IDEAS.map((idea) => <li key={idea}><button type="button" onClick={() => fill(idea)}>{idea}</button></li>)}
            </ul>
            {isBox && !welcomed && (
                <div class="suggest">
                    <Icon name="folder" size={22} />
                    <p>
                        <strong>Have Ollama?</strong> The model in the box is small so that you can start at once. Open your Ollama folder to use
                        the bigger ones that are already on your disk, without downloading again.
                    </p>
                    <a class="button primary" href={pageHref('models')}>Choose a bigger model</a>
                    <button type="button" class="icon-button" aria-label="Not now" onClick={() => changeSettings({ welcomed: true })}>
                        <Icon name="close" size={16} />
                    </button>
                </div>
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
    const boxNote = useStore(server, (state) => state.boxNote);
    if (phase === 'ready' && loaded) {
        return (
            <div class="model-status">
                <p class="ready">
                    <Icon name="check" size={16} />
                    {loaded.info.name || choice?.name} is ready on {loaded.info.backend === 'gpu' ? 'your GPU' : 'your CPU'}.
                </p>
                {choice?.id === BOX.id && boxNote && <p class="quiet box-remark">{boxNote}</p>}
            </div>
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
