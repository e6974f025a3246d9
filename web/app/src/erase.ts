// "Erase everything": removes whatever the app and the package have stored in this browser.

import { stopAll } from './answering.ts';
import { closeDatabase } from './database.ts';
import { unload } from './models.ts';

export async function eraseEverything(): Promise<void> {
    await stopAll();
    await unload().catch(() => undefined);
    closeDatabase();
    const root = await navigator.storage?.getDirectory?.().catch(() => null);
    if (root) {
        const names: string[] = [];
        for await (const name of (root as unknown as { keys(): AsyncIterable<string> }).keys()) names.push(name);
        for (const name of names) await root.removeEntry(name, { recursive: true }).catch(() => undefined);
    }
    for (const { name } of (await indexedDB.databases?.()) ?? []) {
        if (name) await new Promise<void>((resolve) => {
            const request = indexedDB.deleteDatabase(name);
            request.onsuccess = request.onerror = request.onblocked = () => resolve();
        });
    }
    for (const name of (await globalThis.caches?.keys()) ?? []) await caches.delete(name);
    for (const worker of (await navigator.serviceWorker?.getRegistrations()) ?? []) await worker.unregister();
    localStorage.clear();
    sessionStorage.clear();
    location.replace(location.pathname);
}
