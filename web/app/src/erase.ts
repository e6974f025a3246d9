// "Erase everything": removes whatever the app and the package have stored in this browser.

import { stopAll } from './answering.ts';
import { closeDatabase } from './database.ts';
import { unload } from './models.ts';

/** Starts the app anew. If something cannot be erased, the rest still is; then it rejects with the first reason. */
export async function eraseEverything(): Promise<void> {
    await stopAll();
    await unload().catch(() => undefined);
    closeDatabase();
    const reasons: unknown[] = [];
    for (const erase of [eraseFiles, eraseDatabases, eraseOfflineCopy, eraseSettings]) {
        await erase().catch((reason: unknown) => reasons.push(reason));
    }
    if (reasons.length > 0) throw reasons[0];
    location.replace(location.pathname);
}

async function eraseFiles(): Promise<void> {
    const root = await navigator.storage?.getDirectory?.().catch(() => null);
    if (!root) return;
    const names: string[] = [];
    for await (const name of (root as unknown as { keys(): AsyncIterable<string> }).keys()) names.push(name);
    for (const name of names) await root.removeEntry(name, { recursive: true }).catch(() => undefined);
}

async function eraseDatabases(): Promise<void> {
    for (const { name } of (await globalThis.indexedDB?.databases?.()) ?? []) {
        if (name) await new Promise<void>((resolve, reject) => {
            const request = indexedDB.deleteDatabase(name);
            request.onsuccess = request.onblocked = () => resolve(); // blocked: it goes when the other tab lets go
            request.onerror = () => reject(request.error);
        });
    }
}

async function eraseOfflineCopy(): Promise<void> {
    for (const name of (await globalThis.caches?.keys()) ?? []) await caches.delete(name);
    for (const worker of (await navigator.serviceWorker?.getRegistrations()) ?? []) await worker.unregister();
}

async function eraseSettings(): Promise<void> {
    localStorage.clear();
    sessionStorage.clear();
}
