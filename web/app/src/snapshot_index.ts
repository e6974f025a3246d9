// Which keys and values are kept: what a snapshot is called, which one helps a conversation, and which go when it gets too much.
// Pure; snapshots.ts does the files.

export interface SnapshotEntry {
    key: string;
    conversation: string;
    /** The answer behind which it was taken. */
    node: string;
    tokens: number;
    bytes: number;
    /** When it was last written or restored. */
    used: number;
    /** What it can be restored into. */
    fit: string;
}

export const MOST_BYTES = 2_000_000_000;

/** The layout of what CoreSession.save writes; another one is another name. */
export const LAYOUT = 1;

/** What a session must be to take a snapshot: model, type of keys and values, layout. */
export function fitOf(digest: string, kv: string, layout = LAYOUT): string {
    return `${digest.slice(0, 16)}-${kv}-l${layout}`;
}

/** The part of a snapshot's fit that names its adapters; '' for none. */
export function adaptersFit(uses: readonly { key: string; scale: number }[]): string {
    return uses.filter(({ scale }) => scale !== 0).map(({ key, scale }) => `-${key.slice(0, 12)}x${scale}`).sort().join('');
}

export async function snapshotKey(fit: string, tokens: Int32Array): Promise<string> {
    const bytes = new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
    const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes.slice()));
    return `${fit}-${Array.from(hash.subarray(0, 16), (byte) => byte.toString(16).padStart(2, '0')).join('')}`;
}

/** The snapshot that saves most work for the messages shown: the one behind the latest of their answers. */
export function bestFor(entries: SnapshotEntry[], conversation: string, fit: string, shown: string[]): SnapshotEntry | null {
    let best: SnapshotEntry | null = null, at = -1;
    for (const entry of entries) {
        const place = shown.indexOf(entry.node);
        if (entry.conversation !== conversation || entry.fit !== fit || place <= at) continue;
        best = entry;
        at = place;
    }
    return best;
}

/** What must go so that `incoming` more bytes stay within the limit, least recently used first; null: it alone is too big. */
export function evict(entries: SnapshotEntry[], incoming: number, limit = MOST_BYTES): string[] | null {
    if (incoming > limit) return null;
    let total = entries.reduce((sum, entry) => sum + entry.bytes, incoming);
    const gone: string[] = [];
    for (const entry of [...entries].sort((a, b) => a.used - b.used)) {
        if (total <= limit) break;
        gone.push(entry.key);
        total -= entry.bytes;
    }
    return gone;
}

/** A conversation keeps few snapshots: the newest replaces those that lie on the same branch before it. */
export function superseded(entries: SnapshotEntry[], added: SnapshotEntry, shown: string[]): string[] {
    return entries
        .filter((entry) => entry.key !== added.key && entry.conversation === added.conversation && entry.fit === added.fit && shown.includes(entry.node))
        .map((entry) => entry.key);
}
