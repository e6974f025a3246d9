/* Asks the browser once not to delete the cache when space is short. */

import { keep, kept } from './keep.ts';

const ASKED = 'persistence-asked';

export async function askPersistence(): Promise<void> {
    try {
        const { storage } = navigator;
        if (!storage?.persist || (await storage.persisted()) || (await kept(ASKED))) return;
        await keep(ASKED, true);
        await storage.persist();
    } catch {
        // Downloads work without it.
    }
}
