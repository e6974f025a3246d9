// Keys and values of conversations in the origin's private file system, so that a conversation goes on without computing its
// beginning again. The database has the index, the folder `snapshots` of the app one file for each key.

import { erase, readAll, write } from './database.ts';
import type { ChatSession } from './engine.ts';
import { bestFor, evict, snapshotKey, superseded, type SnapshotEntry } from './snapshot_index.ts';

async function folder(): Promise<FileSystemDirectoryHandle> {
    const root = await navigator.storage.getDirectory();
    const ours = await root.getDirectoryHandle('gemmule-app', { create: true });
    return ours.getDirectoryHandle('snapshots', { create: true });
}

async function drop(keys: string[]): Promise<void> {
    if (keys.length === 0) return;
    const files = await folder();
    for (const key of keys) {
        await files.removeEntry(key).catch(() => undefined); // gone already: fine
        await erase('snapshots', key);
    }
}

/** Keeps what the session holds behind the answer `node`. Failing (no space, no file system) costs only time later: false. */
export async function keepSnapshot(session: ChatSession, conversation: string, node: string, fit: string, shown: string[]): Promise<boolean> {
    try {
        const tokens = await session.tokens();
        const key = await snapshotKey(fit, tokens);
        const entries = await readAll('snapshots');
        const bytes = await session.save();
        const entry: SnapshotEntry = { key, conversation, node, tokens: tokens.length, bytes: bytes.byteLength, used: Date.now(), fit };
        const old = superseded(entries, entry, shown);
        const gone = evict(entries.filter((each) => each.key !== key && !old.includes(each.key)), entry.bytes);
        if (!gone) return false;
        await drop([...old, ...gone]);
        const file = await (await folder()).getFileHandle(key, { create: true });
        const stream = await file.createWritable(); // written beside and renamed by the browser: never half a file
        await stream.write(bytes as Uint8Array<ArrayBuffer>);
        await stream.close();
        await write('snapshots', entry);
        return true;
    } catch (error) {
        console.warn('snapshot not kept:', error);
        return false;
    }
}

/** Brings back the best snapshot for the messages shown; the number of tokens it saves, 0 for none. */
export async function restoreSnapshot(session: ChatSession, conversation: string, fit: string, shown: string[]): Promise<number> {
    const entry = bestFor(await readAll('snapshots'), conversation, fit, shown);
    if (!entry) return 0;
    try {
        const file = await (await folder()).getFileHandle(entry.key).then((handle) => handle.getFile());
        if (file.size !== entry.bytes) throw new Error(`expected ${entry.bytes} bytes, found ${file.size}`);
        await session.restore(new Uint8Array(await file.arrayBuffer()));
        if ((await snapshotKey(fit, await session.tokens())) !== entry.key) throw new Error('it holds other tokens than its name says');
        await write('snapshots', { ...entry, used: Date.now() });
        return entry.tokens;
    } catch (error) {
        console.warn('snapshot not usable, removed:', error);
        await drop([entry.key]);
        return 0;
    }
}

export async function dropSnapshots(conversation: string): Promise<void> {
    const entries = await readAll('snapshots').catch(() => []);
    await drop(entries.filter((entry) => entry.conversation === conversation).map((entry) => entry.key));
}

export async function dropAllSnapshots(): Promise<void> {
    await drop((await readAll('snapshots')).map((entry) => entry.key));
}

export async function snapshotBytes(): Promise<number> {
    return (await readAll('snapshots').catch(() => [])).reduce((sum, entry) => sum + entry.bytes, 0);
}
