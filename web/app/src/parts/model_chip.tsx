// The loaded model, in the corner of every page; its progress while it loads.

import type { JSX } from 'preact';
import { Icon } from '../icons.tsx';
import { model } from '../models.ts';
import { pageHref } from '../route.ts';
import { useStore } from '../store.ts';

export function ModelChip(): JSX.Element {
    const { phase, choice, progress, loaded } = useStore(model, (state) => state);
    const share = progress && progress.total > 0 ? Math.min(1, progress.done / progress.total) : 0;
    const name = loaded?.info.name || choice?.name || 'No model';
    const state = phase === 'loading' ? `loading, ${Math.round(share * 100)} %` : phase === 'failed' ? 'failed to load' : phase === 'ready' ? 'ready' : 'choose one';
    return (
        <a class={`chip chip-${phase}`} href={pageHref('models')} title={`${name}: ${state}`}>
            <span class="chip-dot" />
            <span class="chip-name">{phase === 'loading' ? `Loading ${Math.round(share * 100)} %` : phase === 'failed' ? 'Loading failed' : name}</span>
            <span class="visually-hidden">, {state}. Models</span>
            {loaded && <span class="chip-device">{loaded.info.backend === 'gpu' ? 'GPU' : 'CPU'}</span>}
            <Icon name="down" size={14} />
        </a>
    );
}
