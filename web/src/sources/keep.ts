/* A few small values in IndexedDB. Unlike localStorage it can hold a folder's handle and works in workers. */

import { toGemmuleError } from '../core/errors.ts';

const DATABASE = 'gemmule';
const STORE = 'kept';

function database(): Promise<IDBDatabase> {
    return new Promise((resolve, reject) => {
        const request = indexedDB.open(DATABASE, 1);
        request.onupgradeneeded = () => request.result.createObjectStore(STORE);
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(toGemmuleError(request.error, 'cannot open IndexedDB'));
    });
}

async function transact<T>(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
    const open = await database();
    try {
        return await new Promise<T>((resolve, reject) => {
            const transaction = open.transaction(STORE, mode);
            const request = work(transaction.objectStore(STORE));
            transaction.oncomplete = () => resolve(request.result);
            transaction.onabort = transaction.onerror = () => reject(toGemmuleError(transaction.error, 'IndexedDB'));
        });
    } finally {
        open.close();
    }
}

export function keep(key: string, value: unknown): Promise<unknown> {
    return transact('readwrite', (store) => store.put(value, key));
}

/** undefined if nothing was kept. */
export function kept<T>(key: string): Promise<T | undefined> {
    return transact('readonly', (store) => store.get(key) as IDBRequest<T | undefined>);
}

export function forget(key: string): Promise<unknown> {
    return transact('readwrite', (store) => store.delete(key));
}
