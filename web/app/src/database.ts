// IndexedDB: conversations, the index of snapshots, results of benchmarks.

import type { Conversation } from './conversation.ts';
import type { SnapshotEntry } from './snapshot_index.ts';

export interface BenchResult {
    id: string;
    when: number;
    model: string;
    device: string;
    parameters: number;
    /** Tokens a second for a prompt of n tokens. */
    prefill: { tokens: number; speed: number }[];
    /** Tokens a second behind a prompt of n tokens. */
    decode: { depth: number; speed: number }[];
}

interface Tables {
    conversations: Conversation;
    snapshots: SnapshotEntry;
    benchmarks: BenchResult;
}
const KEYS: Record<keyof Tables, string> = { conversations: 'id', snapshots: 'key', benchmarks: 'id' };
export const DATABASE = 'gemmule-app';

let opened: Promise<IDBDatabase> | null = null;

function open(): Promise<IDBDatabase> {
    opened ??= new Promise<IDBDatabase>((resolve, reject) => {
        const request = indexedDB.open(DATABASE, 1);
        request.onupgradeneeded = () => {
            for (const [name, keyPath] of Object.entries(KEYS)) request.result.createObjectStore(name, { keyPath });
        };
        request.onsuccess = () => {
            // Another tab erases everything or has a newer version: let it.
            request.result.onversionchange = () => closeDatabase();
            resolve(request.result);
        };
        request.onerror = () => {
            opened = null;
            reject(request.error ?? new Error('the database did not open'));
        };
        request.onblocked = () => reject(new Error('another tab holds an older version of the app open: close it and reload'));
    });
    return opened;
}

export function closeDatabase(): void {
    void opened?.then((database) => database.close(), () => undefined);
    opened = null;
}

async function run<T>(table: keyof Tables, mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
    const database = await open();
    return new Promise((resolve, reject) => {
        const transaction = database.transaction(table, mode);
        const request = work(transaction.objectStore(table));
        transaction.oncomplete = () => resolve(request.result);
        transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request.error ?? new Error('the database refused'));
    });
}

export const readAll = <N extends keyof Tables>(table: N): Promise<Tables[N][]> => run(table, 'readonly', (store) => store.getAll());
export const read = <N extends keyof Tables>(table: N, key: string): Promise<Tables[N] | undefined> => run(table, 'readonly', (store) => store.get(key));
export const write = <N extends keyof Tables>(table: N, row: Tables[N]): Promise<unknown> => run(table, 'readwrite', (store) => store.put(row));
export const erase = (table: keyof Tables, key: string): Promise<unknown> => run(table, 'readwrite', (store) => store.delete(key));
