// How much this app stores, and of how much.

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
                {formatBytes(state.usage)} of the {formatBytes(state.quota)} that the browser grants,{' '}
                {formatBytes(state.snapshots)} of it computed context of conversations.{' '}
                {state.lasting ? 'The browser keeps it until you delete it.' : 'The browser may clear it when the disk runs short.'}
            </p>
        </div>
    );
}
