// How much storage this app uses, and how much it may use.

import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { formatBytes } from '../format.ts';
import { model } from '../models.ts';
import { snapshotBytes } from '../snapshots.ts';
import { useStore } from '../store.ts';

export function StorageMeter(): JSX.Element {
    const [state, setState] = useState<{ usage: number; quota: number; snapshots: number; lasting: boolean } | null>(null);
    const phase = useStore(model, (each) => each.phase);
    useEffect(() => {
        void (async () => {
            const { usage = 0, quota = 0 } = (await navigator.storage?.estimate?.()) ?? {};
            setState({ usage, quota, snapshots: await snapshotBytes(), lasting: (await navigator.storage?.persisted?.()) ?? false });
        })().catch(() => undefined);
    }, [phase]);
    if (!state) return <p class="quiet">{'\u00a0'}</p>;
    return (
        <div class="storage">
            <progress max={state.quota || 1} value={state.usage} aria-label="Storage used" />
            <p class="quiet">
                {formatBytes(state.usage)} of {formatBytes(state.quota)} used, including {formatBytes(state.snapshots)} of saved context.{' '}
                {state.lasting ? 'The browser keeps this data until you delete it.' : 'The browser may delete this data when disk space runs low.'}
            </p>
        </div>
    );
}
