/* Files on a web server: by HTTP Range where the server does that, else as one stream. Connections that break are taken up where
 * they broke; a file that is another one by then is noticed. */

import type { ByteSource } from '../core/types.ts';
import { GemmuleError, abortedBy, throwIfAborted } from '../core/errors.ts';
import { expandUrl } from './address.ts';
import { checkRange } from './blob.ts';
import { release } from '../core/release.ts';

export interface UrlOptions {
    /** Tries without a byte of progress before giving up. */
    tries?: number;
    /** Milliseconds before the second try; doubled with each further one. */
    delay?: number;
    /** Milliseconds without a byte after which a connection counts as broken. */
    stall?: number;
    signal?: AbortSignal;
}

/** What a server says about a file. */
export interface RemoteFile {
    url: string;
    /** null: the server does not say. */
    size: number | null;
    /** ETag, else Last-Modified, else null. */
    etag: string | null;
    ranges: boolean;
}

// ---- one request ----

/* A failure that a second try may mend. */
class Transient extends Error {
    readonly wait: number | null;
    constructor(message: string, wait: number | null = null, cause?: unknown) {
        super(message, { cause });
        this.wait = wait;
    }
}

const UNAUTHORISED = [401, 403, 407];

function statusError(url: string, response: Response): Error {
    const { status } = response;
    if (status === 404 || status === 410) return new GemmuleError('NotFound', `${url}: the server has no such file (${status})`, { status });
    if (UNAUTHORISED.includes(status)) {
        return new GemmuleError('Network', `${url}: the server does not give the file out without permission (${status})`, { status });
    }
    if (status === 408 || status === 425 || status === 429 || status >= 500) {
        const seconds = Number(response.headers.get('retry-after') ?? NaN);
        return new Transient(`the server answers ${status}`, Number.isFinite(seconds) ? Math.min(seconds, 60) * 1000 : null);
    }
    return new GemmuleError('Network', `${url}: the server answers ${status}`, { status });
}

/* A response, and a watch over it: without a byte for `stall` milliseconds the connection is given up. */
class Exchange {
    readonly response: Response;
    readonly #controller: AbortController;
    readonly #stall: number;

    private constructor(response: Response, controller: AbortController, stall: number) {
        this.response = response;
        this.#controller = controller;
        this.#stall = stall;
    }

    static async open(url: string, init: RequestInit, options: UrlOptions): Promise<Exchange> {
        const controller = new AbortController();
        const stall = options.stall ?? 30_000;
        const signal = options.signal ? AbortSignal.any([options.signal, controller.signal]) : controller.signal;
        // no-store: a model in the browser's own cache would lie there a second time.
        const response = await watch(fetch(url, { ...init, signal, cache: 'no-store' }), controller, stall, options.signal);
        return new Exchange(response, controller, stall);
    }

    /** Hands out the body piece by piece; each is gone when the next one is asked for. */
    async *pieces(signal?: AbortSignal): AsyncGenerator<Uint8Array, void> {
        const reader = this.response.body?.getReader();
        if (!reader) return;
        try {
            for (;;) {
                const { done, value } = await watch(reader.read(), this.#controller, this.#stall, signal);
                if (done) return;
                yield value;
                release(value);
            }
        } finally {
            this.close();
        }
    }

    close(): void {
        this.#controller.abort();
    }
}

/* Waits for a step of a connection. Whatever goes wrong on the way is transient, but not what the caller's signal did. */
async function watch<T>(step: Promise<T>, controller: AbortController, stall: number, signal?: AbortSignal): Promise<T> {
    let stalled = false;
    const timer = setTimeout(() => {
        stalled = true;
        controller.abort();
    }, stall);
    try {
        return await step;
    } catch (thrown) {
        if (signal?.aborted) throw abortedBy(signal);
        const reason = thrown as Error;
        throw new Transient(stalled ? `nothing came for ${stall / 1000} s` : reason.message || String(reason), null, thrown);
    } finally {
        clearTimeout(timer);
    }
}

// ---- tries ----

function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
        const stop = () => {
            clearTimeout(timer);
            reject(abortedBy(signal!));
        };
        const timer = setTimeout(() => {
            signal?.removeEventListener('abort', stop);
            resolve();
        }, milliseconds);
        signal?.addEventListener('abort', stop, { once: true });
    });
}

/* Repeats `step` while it fails in ways that may pass. A step that got further (it says so by `progress`) has all its tries again. */
async function withTries<T>(url: string, options: UrlOptions, step: (progress: () => void) => Promise<T>): Promise<T> {
    const tries = options.tries ?? 6;
    for (let failed = 0; ; ) {
        throwIfAborted(options.signal);
        try {
            return await step(() => (failed = 0));
        } catch (thrown) {
            if (!(thrown instanceof Transient)) throw thrown;
            if (++failed >= tries) {
                throw new GemmuleError('Network', `${url}: ${thrown.message} (${failed} tries)`, undefined, { cause: thrown });
            }
            const wait = thrown.wait ?? (options.delay ?? 500) * 2 ** (failed - 1) * (0.75 + Math.random() / 2);
            await sleep(Math.min(wait, 60_000), options.signal);
        }
    }
}

// ---- what the server says ----

function validator(response: Response): string | null {
    return response.headers.get('etag') ?? response.headers.get('last-modified');
}

/* The length of an unencoded body. Where the server compresses, the length says nothing about the file. */
function bodyLength(response: Response): number | null {
    const length = response.headers.get('content-length');
    if (length === null || !/^\d+$/.test(length) || (response.headers.get('content-encoding') ?? 'identity') !== 'identity') return null;
    return Number(length);
}

interface ContentRange {
    start: number;
    end: number;
    total: number | null;
}

/* "bytes 0-15/1234"; null where there is none, or where the server does not let scripts of other origins see it. */
function contentRange(response: Response): ContentRange | null {
    const found = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(response.headers.get('content-range') ?? '');
    if (!found) return null;
    return { start: Number(found[1]), end: Number(found[2]) + 1, total: found[3] === '*' ? null : Number(found[3]) };
}

/** Asks for the first bytes: that tells size, validator, and whether ranges work. */
export async function probe(address: string, options: UrlOptions = {}): Promise<RemoteFile> {
    const url = expandUrl(address);
    if (!/^(https?|blob):/i.test(new URL(url, globalThis.location?.href ?? 'file:///').protocol)) {
        throw new GemmuleError('BadArgument', `'${address}' is no address that can be loaded: expected https:, http: or hf:`);
    }
    return withTries(url, options, async () => {
        const exchange = await Exchange.open(url, { headers: { range: 'bytes=0-15' } }, options);
        const { response } = exchange;
        exchange.close();
        if (response.status === 416) throw new GemmuleError('BadModel', `${url}: the file is empty`);
        if (!response.ok) throw statusError(url, response);
        const etag = validator(response);
        if (response.status !== 206) return { url, size: bodyLength(response), etag, ranges: false };
        const size = contentRange(response)?.total ?? (await sizeByHead(url, options));
        return { url, size, etag, ranges: size !== null };
    });
}

async function sizeByHead(url: string, options: UrlOptions): Promise<number | null> {
    const exchange = await Exchange.open(url, { method: 'HEAD' }, options);
    exchange.close();
    return exchange.response.ok ? bodyLength(exchange.response) : null;
}

function changed(file: RemoteFile, what: string): GemmuleError {
    return new GemmuleError('Network', `${file.url} has changed on the server while it was being read: ${what}`, { changed: true });
}

/* Opens the bytes from `start` on, and checks that they are those of the file that was probed. */
async function openRange(file: RemoteFile, start: number, end: number | null, options: UrlOptions): Promise<Exchange> {
    const headers: Record<string, string> = {};
    if (start > 0 || end !== null) headers.range = `bytes=${start}-${end === null ? '' : end - 1}`;
    const exchange = await Exchange.open(file.url, { headers }, options);
    try {
        const { response } = exchange;
        if (response.status === 416) throw changed(file, `it had ${file.size} bytes, now it ends before byte ${start}`);
        if (!response.ok) throw statusError(file.url, response);
        const etag = validator(response);
        if (file.etag !== null && etag !== null && etag !== file.etag) throw changed(file, `its ETag was ${file.etag} and is ${etag}`);
        const range = contentRange(response);
        if (range?.total != null && file.size !== null && range.total !== file.size) {
            throw changed(file, `it had ${file.size} bytes and has ${range.total}`);
        }
        if (headers.range && response.status !== 206) throw changed(file, 'ranges worked and no longer do');
        if (range && range.start !== start) {
            throw new GemmuleError('Network', `${file.url}: bytes from ${start} on were asked for, the server sent those from ${range.start} on`);
        }
        return exchange;
    } catch (thrown) {
        exchange.close();
        throw thrown;
    }
}

// ---- streaming ----

/** Streams the file from `offset` on into `take`, which is called with each piece in order. Returns the file's size.
 * A server without ranges sends everything again after a break; what is there already is skipped. */
export async function stream(
    file: RemoteFile, offset: number, take: (bytes: Uint8Array) => void | Promise<void>, options: UrlOptions = {},
): Promise<number> {
    let at = offset;
    return withTries(file.url, options, async (progress) => {
        if (at === file.size) return at;
        const exchange = await openRange(file, file.ranges ? at : 0, null, options);
        let skip = file.ranges ? 0 : at;
        for await (const piece of exchange.pieces(options.signal)) {
            throwIfAborted(options.signal);
            const skipped = Math.min(skip, piece.length);
            skip -= skipped;
            if (skipped === piece.length) continue;
            const bytes = piece.subarray(skipped);
            if (file.size !== null && at + bytes.length > file.size) {
                throw changed(file, `it had ${file.size} bytes and sends more`);
            }
            await take(bytes);
            at += bytes.length;
            progress();
        }
        if (skip > 0) throw changed(file, `it ends after ${at - skip} bytes`);
        if (file.size !== null && at < file.size) throw new Transient(`the connection broke after ${at} of ${file.size} bytes`);
        return at;
    });
}

// ---- random access ----

const READ_AHEAD = 1 << 20;
const HEADER_ZONE = 64 << 20; // metadata with a vocabulary of 262,144 words takes about 15 MB
const BLOCKS_KEPT = 4;

/** A file read by ranges, without a copy. Small reads near the front are the header's: they are served from blocks read ahead. */
export class UrlSource implements ByteSource {
    readonly name: string;
    readonly size: number;
    readonly #file: RemoteFile;
    readonly #options: UrlOptions;
    readonly #blocks = new Map<number, Promise<Uint8Array>>();

    constructor(file: RemoteFile, options: UrlOptions = {}) {
        if (!file.ranges || file.size === null) throw new GemmuleError('NotSupported', `${file.url}: the server does not do HTTP Range`);
        this.#file = file;
        this.#options = options;
        this.name = file.url;
        this.size = file.size;
    }

    async read(offset: number, length: number, signal?: AbortSignal, into?: ArrayBuffer): Promise<Uint8Array> {
        checkRange(this, offset, length);
        throwIfAborted(signal);
        if (length === 0) return new Uint8Array(0);
        if (length > READ_AHEAD / 4 || offset + length > HEADER_ZONE) return this.#fetch(offset, length, signal, into);
        const out = new Uint8Array(length);
        for (let at = 0; at < length; ) {
            const index = Math.floor((offset + at) / READ_AHEAD);
            const block = await this.#block(index);
            throwIfAborted(signal);
            const from = offset + at - index * READ_AHEAD;
            const piece = block.subarray(from, from + length - at);
            out.set(piece, at);
            at += piece.length;
        }
        return out;
    }

    /* Without the caller's signal: others may be waiting for the same block. */
    #block(index: number): Promise<Uint8Array> {
        const there = this.#blocks.get(index);
        if (there) return there;
        const start = index * READ_AHEAD;
        const block = this.#fetch(start, Math.min(READ_AHEAD, this.size - start));
        this.#blocks.set(index, block);
        block.catch(() => this.#blocks.delete(index));
        if (this.#blocks.size > BLOCKS_KEPT) this.#blocks.delete(this.#blocks.keys().next().value!);
        return block;
    }

    async #fetch(offset: number, length: number, signal?: AbortSignal, into = new ArrayBuffer(length)): Promise<Uint8Array> {
        const bytes = new Uint8Array(into, 0, length);
        const signals = [signal, this.#options.signal].filter((one) => one !== undefined);
        const options = signals.length ? { ...this.#options, signal: AbortSignal.any(signals) } : this.#options;
        let at = 0;
        await withTries(this.name, options, async (progress) => {
            const exchange = await openRange(this.#file, offset + at, offset + length, options);
            for await (const piece of exchange.pieces(options.signal)) {
                if (at + piece.length > length) {
                    throw new GemmuleError('Network', `${this.name}: ${length} bytes were asked for at ${offset}, the server sent more`);
                }
                bytes.set(piece, at);
                at += piece.length;
                progress();
            }
            if (at < length) throw new Transient(`the connection broke after ${at} of ${length} bytes at ${offset}`);
        });
        return bytes;
    }
}

const BLOB = 16 << 20;

/** A file from a server without ranges, taken in one stream and kept as a Blob, which the browser may lay on disk. */
export async function download(
    file: RemoteFile, options: UrlOptions = {}, onProgress?: (done: number, total: number) => void,
): Promise<Blob> {
    const blobs: Blob[] = [];
    const gathered = new Uint8Array(BLOB);
    let waiting = 0;
    let done = 0;
    const lay = () => {
        blobs.push(new Blob([gathered.subarray(0, waiting)]));
        waiting = 0;
    };
    await stream(file, 0, (bytes) => {
        for (let at = 0; at < bytes.length; ) {
            const some = bytes.subarray(at, at + BLOB - waiting);
            gathered.set(some, waiting);
            waiting += some.length;
            at += some.length;
            if (waiting === BLOB) lay();
        }
        done += bytes.length;
        onProgress?.(done, file.size ?? 0);
    }, options);
    lay();
    return new Blob(blobs);
}

const LONGEST_PREFIX = 256 << 20;

/** The beginning of a file from a server without ranges: read as far as somebody asks, then given up. Enough for a header. */
export class PrefixSource implements ByteSource {
    readonly name: string;
    readonly size: number;
    readonly #controller = new AbortController();
    readonly #whole: Promise<number>;
    #pieces: Uint8Array[] = [];
    #length = 0;
    #wanted = 0;
    #wake: (() => void) | null = null; // of the reader
    #pull: (() => void) | null = null; // of the stream

    constructor(file: RemoteFile, options: UrlOptions = {}) {
        if (file.size === null) {
            throw new GemmuleError('NotSupported', `${file.url}: the server says neither the file's size nor does it do HTTP Range`);
        }
        this.name = file.url;
        this.size = file.size;
        const signals = [this.#controller.signal, ...(options.signal ? [options.signal] : [])];
        this.#whole = stream(file, 0, (bytes) => this.#take(bytes), { ...options, signal: AbortSignal.any(signals) });
        this.#whole.catch(() => undefined).finally(() => this.#wake?.());
    }

    async read(offset: number, length: number, signal?: AbortSignal): Promise<Uint8Array> {
        checkRange(this, offset, length);
        const end = offset + length;
        if (end > LONGEST_PREFIX) {
            throw new GemmuleError('NotSupported', `${this.name}: the server does not do HTTP Range, and byte ${end} is far into the file`);
        }
        this.#wanted = Math.max(this.#wanted, end);
        this.#pull?.();
        while (this.#length < end) {
            throwIfAborted(signal);
            await Promise.race([this.#whole, new Promise<void>((resolve) => (this.#wake = resolve))]);
        }
        if (this.#pieces.length > 1) this.#pieces = [join(this.#pieces, this.#length)];
        return this.#pieces[0]?.slice(offset, end) ?? new Uint8Array(0);
    }

    async close(): Promise<void> {
        this.#controller.abort();
        this.#pull?.();
    }

    /* Reads no further than was asked for: the rest of the model stays where it is. */
    async #take(bytes: Uint8Array): Promise<void> {
        this.#pieces.push(bytes.slice());
        this.#length += bytes.length;
        this.#wake?.();
        while (this.#length >= this.#wanted && !this.#controller.signal.aborted) {
            await new Promise<void>((resolve) => (this.#pull = resolve));
        }
    }
}

function join(pieces: Uint8Array[], length: number): Uint8Array {
    const whole = new Uint8Array(length);
    let at = 0;
    for (const piece of pieces) {
        whole.set(piece, at);
        at += piece.length;
    }
    return whole;
}
