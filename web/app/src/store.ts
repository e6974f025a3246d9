// State that components watch: an object that is replaced, never modified.

import { useLayoutEffect, useState } from 'preact/hooks';

export class Store<T extends object> {
    private state: T;
    private readonly watchers = new Set<() => void>();

    constructor(initial: T) {
        this.state = initial;
    }

    get(): T {
        return this.state;
    }

    set(change: Partial<T>): void {
        this.state = { ...this.state, ...change };
        for (const watcher of [...this.watchers]) watcher();
    }

    watch(watcher: () => void): () => void {
        this.watchers.add(watcher);
        return () => this.watchers.delete(watcher);
    }
}

/** A part of a store's state. The component renders again when that part changes. */
export function useStore<T extends object, S>(store: Store<T>, select: (state: T) => S): S {
    const value = select(store.get());
    const [, draw] = useState({});
    useLayoutEffect(() => {
        let seen = value;
        const look = (): void => {
            const now = select(store.get());
            if (Object.is(now, seen)) return;
            seen = now;
            draw({});
        };
        look(); // it may have changed since the last render
        return store.watch(look);
    });
    return value;
}
