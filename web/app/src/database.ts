// IndexedDB. A conversation is stored as a head and its messages, one row each, so that two tabs that write into one conversation
// never overwrite each other's messages. Other tables: pictures and sounds of messages, the index of snapshots, results of benchmarks,
// handles of model files.

import { headOf, type Conversation, type Head, type Node } from './conversation.ts';
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

/** A model that was chosen by file, so that it can be opened again. */
export interface ModelFiles {
    /** The choice's id. */
    id: string;
    handles: FileSystemFileHandle[];
}

interface Tables {
    conversations: Head;
    messages: Node & { conversation: string };
    snapshots: SnapshotEntry;
    benchmarks: BenchResult;
    files: ModelFiles;
    media: { id: string; blob: Blob };
}
type Table = keyof Tables;

export const DATABASE = 'gemmule-app';

// ---- versions -----------------------------------------------------------------------------------------------------------------

const VERSION = 3;

// What takes the database from version n to n + 1. Each runs in the one transaction of the upgrade: all of it happens, or nothing.
const UPGRADES: ((database: IDBDatabase, upgrade: IDBTransaction) => void)[] = [
    (database) => {
        database.createObjectStore('conversations', { keyPath: 'id' });
        database.createObjectStore('snapshots', { keyPath: 'key' });
        database.createObjectStore('benchmarks', { keyPath: 'id' });
    },
    // Version 1 had each conversation whole, in one row.
    (database, upgrade) => {
        database.createObjectStore('messages', { keyPath: ['conversation', 'id'] });
        database.createObjectStore('files', { keyPath: 'id' });
        const heads = upgrade.objectStore('conversations'), messages = upgrade.objectStore('messages');
        heads.openCursor().onsuccess = (event) => {
            const cursor = (event.target as IDBRequest<IDBCursorWithValue | null>).result;
            if (!cursor) return;
            const conversation = cursor.value as Conversation;
            for (const node of Object.values(conversation.nodes)) messages.put({ ...node, conversation: conversation.id });
            cursor.update(headOf(conversation));
            cursor.continue();
        };
    },
    (database) => void database.createObjectStore('media', { keyPath: 'id' }),
];

let opened: Promise<IDBDatabase> | null = null;

function open(): Promise<IDBDatabase> {
    if (!globalThis.indexedDB) return Promise.reject(new Error('this browser has no database for web pages'));
    opened ??= new Promise<IDBDatabase>((resolve, reject) => {
        let blocked: ReturnType<typeof setTimeout> | undefined, failed = false;
        const fail = (why: Error): void => {
            failed = true;
            opened = null;
            reject(why);
        };
        const request = indexedDB.open(DATABASE, VERSION);
        request.onupgradeneeded = ({ oldVersion }) => {
            for (const upgrade of UPGRADES.slice(oldVersion)) upgrade(request.result, request.transaction!);
        };
        request.onsuccess = () => {
            clearTimeout(blocked);
            const database = request.result;
            if (failed) return database.close(); // too late: the next call opens it anew
            // Another tab erases everything or has a newer version: let it. The browser may close it, too.
            database.onversionchange = () => {
                database.close();
                opened = null;
            };
            database.onclose = () => { opened = null; };
            resolve(database);
        };
        request.onerror = () => {
            clearTimeout(blocked);
            const newer = request.error?.name === 'VersionError';
            fail(newer ? new Error('another tab has a newer version of the app: reload this one') : request.error ?? new Error('the database did not open'));
        };
        // An older app lets go as soon as its last transaction ends; one that hangs does not.
        request.onblocked = () => {
            blocked = setTimeout(() => fail(new Error('another tab has an older version of the app open: close it and reload')), 10_000);
        };
    });
    return opened;
}

export function closeDatabase(): void {
    void opened?.then((database) => database.close(), () => undefined);
    opened = null;
}

// ---- rows ---------------------------------------------------------------------------------------------------------------------

// `work` asks for what it needs and returns how to read the result once all of it is done.
async function transact<T>(tables: Table[], mode: IDBTransactionMode, work: (transaction: IDBTransaction) => () => T): Promise<T> {
    const database = await open();
    return new Promise((resolve, reject) => {
        const transaction = database.transaction(tables, mode);
        const result = work(transaction);
        transaction.oncomplete = () => resolve(result());
        transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error('the database refused'));
    });
}

function run<T>(table: Table, mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
    return transact([table], mode, (transaction) => {
        const request = work(transaction.objectStore(table));
        return () => request.result;
    });
}

type PlainTable = Exclude<Table, 'conversations' | 'messages'>;
export const readAll = <N extends PlainTable>(table: N): Promise<Tables[N][]> => run(table, 'readonly', (store) => store.getAll());
export const read = <N extends PlainTable>(table: N, key: string): Promise<Tables[N] | undefined> => run(table, 'readonly', (store) => store.get(key));
export const write = <N extends PlainTable>(table: N, row: Tables[N]): Promise<unknown> => run(table, 'readwrite', (store) => store.put(row));
export const erase = (table: PlainTable, key: string): Promise<unknown> => run(table, 'readwrite', (store) => store.delete(key));

// ---- conversations ------------------------------------------------------------------------------------------------------------

const BOTH: Table[] = ['conversations', 'messages'];
const messagesOf = (id: string): IDBKeyRange => IDBKeyRange.bound([id], [id, []]); // arrays sort behind strings

function assemble(heads: Head[], rows: Tables['messages'][]): Conversation[] {
    const all = new Map(heads.map((head): [string, Conversation] => [head.id, { ...head, nodes: {} }]));
    for (const { conversation, ...node } of rows) {
        const owner = all.get(conversation);
        if (owner) owner.nodes[node.id] = node as Node;
    }
    return [...all.values()];
}

export function readConversations(): Promise<Conversation[]> {
    return transact(BOTH, 'readonly', (transaction) => {
        const heads = transaction.objectStore('conversations').getAll() as IDBRequest<Head[]>;
        const rows = transaction.objectStore('messages').getAll() as IDBRequest<Tables['messages'][]>;
        return () => assemble(heads.result, rows.result);
    });
}

export function readConversation(id: string): Promise<Conversation | undefined> {
    return transact(BOTH, 'readonly', (transaction) => {
        const head = transaction.objectStore('conversations').get(id) as IDBRequest<Head | undefined>;
        const rows = transaction.objectStore('messages').getAll(messagesOf(id)) as IDBRequest<Tables['messages'][]>;
        return () => (head.result ? assemble([head.result], rows.result)[0] : undefined);
    });
}

/** Changes the head as it stands in the database, and stores messages, in one transaction. `change` gets undefined for a conversation
 * that is not there (another tab may have deleted it), and returns undefined to leave everything as it is. */
export function writeConversation(id: string, messages: Node[], change: (head: Head | undefined) => Head | undefined): Promise<void> {
    return transact(BOTH, 'readwrite', (transaction) => {
        const heads = transaction.objectStore('conversations'), rows = transaction.objectStore('messages');
        const found = heads.get(id) as IDBRequest<Head | undefined>;
        found.onsuccess = () => {
            const head = change(found.result);
            if (!head) return;
            heads.put(head);
            for (const node of messages) rows.put({ ...node, conversation: id });
        };
        return () => undefined;
    });
}

/** With its pictures and sounds, which belong to no other conversation. */
export function eraseConversation(id: string): Promise<void> {
    return transact([...BOTH, 'media'], 'readwrite', (transaction) => {
        const messages = transaction.objectStore('messages'), media = transaction.objectStore('media');
        const rows = messages.getAll(messagesOf(id)) as IDBRequest<Tables['messages'][]>;
        rows.onsuccess = () => {
            for (const row of rows.result) if (row.role === 'user') for (const attachment of row.attachments ?? []) media.delete(attachment.id);
            messages.delete(messagesOf(id));
        };
        transaction.objectStore('conversations').delete(id);
        return () => undefined;
    });
}
