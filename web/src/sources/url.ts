/* Files on a web server, read by HTTP Range where the server supports that, else as one stream.
 *
 * A download whose connection breaks resumes where it broke, but only if the server gives the file a validator: a strong ETag, or a
 * Last-Modified that is old enough. Without one nobody can tell whether the rest belongs to the same version, so it starts again. */

import type { ByteSource } from '../core/types.ts';
import { GemmuleError, abortedBy, throwIfAborted } from '../core/errors.ts';
import { expandUrl } from './address.ts';
import { checkRange } from './blob.ts';
import { release } from '../core/release.ts';
import { checkMixedContent, watchPolicy, whyUnreachable } from './reach.ts';

export interface UrlOptions {
    /** How many tries without a byte of progress until the download fails. */
    tries?: number;
    /** Milliseconds before the second try; each further one waits twice as long. */
    delay?: number;
    /** Milliseconds without a byte until a connection counts as broken. */
    stall?: number;
    signal?: AbortSignal;
}

/** What a server says about a file. */
export interface RemoteFile {
    url: string;
    /** null: the server does not say. */
    size: number | null;
    /** Two answers with the same validator have the same bytes. A strong ETag, else Last-Modified, else null. */
    validator: string | null;
    ranges: boolean;
}

// ---- one request ----

/* A failure that may pass. */
class Transient extends Error {
    readonly wait: number | null;
    constructor(message: string, wait: number | null = null, cause?: unknown) {
        super(message, { cause });
        this.wait = wait;
    }
}

/* There was no answer at all. */
class Unreachable extends Transient {}

/* The address stands in the middle: it keeps its case where a message becomes a sentence. */
function failure(url: string, why: string, detail?: unknown, cause?: unknown): GemmuleError {
    return new GemmuleError('Network', `cannot load ${url}: ${why}`, detail, { cause });
}

const UNAUTHORISED = [401, 403, 407];

function statusError(url: string, response: Response): Error {
    const { status } = response;
    if (status === 404 || status === 410) {
        return new GemmuleError('NotFound', `cannot load ${url}: the server has no such file (${status})`, { status });
    }
    if (UNAUTHORISED.includes(status)) return failure(url, `the server requires a login or refuses access (${status})`, { status });
    if (status === 408 || status === 425 || status === 429 || status >= 500) {
        const seconds = Number(response.headers.get('retry-after') ?? NaN);
        return new Transient(`the server answered ${status}`, Number.isFinite(seconds) ? Math.min(seconds, 60) * 1000 : null);
    }
    return failure(url, `the server answered ${status}`, { status });
}

/* A response whose connection is closed after `stall` milliseconds without a byte. */
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
        watchPolicy();
        // no-store: the browser's own cache would keep a second copy of the model.
        const request = fetch(url, { ...init, signal, cache: 'no-store' });
        return new Exchange(await watch(request, controller, stall, options.signal, Unreachable), controller, stall);
    }

    /** Yields the body piece by piece. A piece is valid until the next one is requested. */
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

/* Waits for a step of a connection. Every failure is transient, except that the caller's signal aborts. */
async function watch<T>(
    step: Promise<T>, controller: AbortController, stall: number, signal?: AbortSignal, Failure: typeof Transient = Transient,
): Promise<T> {
    let stalled = false;
    const timer = setTimeout(() => {
        stalled = true;
        controller.abort();
    }, stall);
    try {
        return await step;
    } catch (thrown) {
        if (signal?.aborted) throw abortedBy(signal);
        throw new Failure(stalled ? `no data arrived for ${stall / 1000} s` : reasonOf(thrown), null, thrown);
    } finally {
        clearTimeout(timer);
    }
}

/* Node says only "fetch failed"; the cause has the reason. */
function reasonOf(thrown: unknown): string {
    const { message, cause } = thrown as { message?: string; cause?: { message?: string; code?: string } };
    return cause?.message || cause?.code || message || String(thrown);
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

/* Repeats `step` while it fails in ways that may pass. A step that calls `progress` has all its tries again. */
async function withTries<T>(url: string, options: UrlOptions, step: (progress: () => void) => Promise<T>): Promise<T> {
    const tries = options.tries ?? 6;
    for (let failed = 0; ; ) {
        throwIfAborted(options.signal);
        try {
            return await step(() => (failed = 0));
        } catch (thrown) {
            if (!(thrown instanceof Transient)) throw thrown;
            if (++failed >= tries) {
                throw failure(url, `${thrown.message} (tried ${failed} times)`, undefined, thrown);
            }
            const wait = thrown.wait ?? (options.delay ?? 500) * 2 ** (failed - 1) * (0.75 + Math.random() / 2);
            await sleep(Math.min(wait, 60_000), options.signal);
        }
    }
}

// ---- what the server says ----

const SETTLED = 60_000; // milliseconds; a file written just now may change again within the second that Last-Modified counts in

/* A weak ETag promises the same meaning, not the same bytes. The bytes of a blob: address never change. */
function validatorOf(url: string, response: Response): string | null {
    if (/^blob:/i.test(url)) return url;
    const etag = response.headers.get('etag');
    if (etag && !/^W\//i.test(etag)) return etag;
    const modified = response.headers.get('last-modified');
    const date = response.headers.get('date');
    const age = (date === null ? Date.now() : Date.parse(date)) - Date.parse(modified ?? '');
    return age >= SETTLED ? modified : null;
}

/* The length of an unencoded body. If the server compresses, the length says nothing about the file. */
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

/** Asks for the first bytes to learn the size, the validator, and whether ranges work. A server that cannot be reached fails at
 * once; what it calls temporary itself (429, 503) is tried again. */
export async function probe(address: string, options: UrlOptions = {}): Promise<RemoteFile> {
    const url = expandUrl(address);
    if (!/^(https?|blob):/i.test(new URL(url, globalThis.location?.href ?? 'file:///').protocol)) {
        throw new GemmuleError('BadArgument', `cannot load '${address}': expected an address with https:, http: or hf:`);
    }
    checkMixedContent(url);
    return withTries(url, options, async () => {
        try {
            return await probeOnce(url, options);
        } catch (thrown) {
            if (!(thrown instanceof Unreachable)) throw thrown;
            throw failure(url, await whyUnreachable(url, thrown.message), undefined, thrown);
        }
    });
}

async function probeOnce(url: string, options: UrlOptions): Promise<RemoteFile> {
    const exchange = await Exchange.open(url, { headers: { range: 'bytes=0-15' } }, options);
    const { response } = exchange;
    exchange.close();
    if (response.status === 416) throw new GemmuleError('BadModel', `cannot load ${url}: the file is empty`);
    if (!response.ok) throw statusError(url, response);
    const validator = validatorOf(url, response);
    if (response.status !== 206) return { url, size: bodyLength(response), validator, ranges: false };
    const size = contentRange(response)?.total ?? (await sizeByHead(url, options));
    return { url, size, validator, ranges: size !== null };
}

async function sizeByHead(url: string, options: UrlOptions): Promise<number | null> {
    const exchange = await Exchange.open(url, { method: 'HEAD' }, options);
    exchange.close();
    return exchange.response.ok ? bodyLength(exchange.response) : null;
}

function changed(file: RemoteFile, what: string): GemmuleError {
    return failure(file.url, `it changed on the server in the meantime: ${what}`, { changed: true });
}

/* Opens the bytes from `start` on, and checks that they belong to the file that was probed. */
async function openRange(file: RemoteFile, start: number, end: number | null, options: UrlOptions): Promise<Exchange> {
    const headers: Record<string, string> = {};
    if (start > 0 || end !== null) headers.range = `bytes=${start}-${end === null ? '' : end - 1}`;
    const exchange = await Exchange.open(file.url, { headers }, options);
    try {
        const { response } = exchange;
        if (response.status === 416) throw changed(file, `it had ${file.size} bytes, now it ends before byte ${start}`);
        if (!response.ok) throw statusError(file.url, response);
        const validator = validatorOf(file.url, response);
        if (file.validator !== null && validator !== file.validator) {
            throw changed(file, `its validator was ${file.validator} and is ${validator ?? 'missing'}`);
        }
        const range = contentRange(response);
        const total = response.status === 206 ? range?.total : bodyLength(response);
        if (total != null && file.size !== null && total !== file.size) throw changed(file, `it had ${file.size} bytes and has ${total}`);
        if (headers.range && response.status !== 206) throw changed(file, 'the server no longer answers HTTP Range');
        if (range && range.start !== start) {
            throw failure(file.url, `the server was asked for the bytes from ${start} on and sent those from ${range.start} on`);
        }
        return exchange;
    } catch (thrown) {
        exchange.close();
        throw thrown;
    }
}

// ---- streaming ----

/** Where a stream goes. */
export interface Sink {
    write(bytes: Uint8Array): void | Promise<void>;
    /** Discards everything written: the file comes again from its beginning. */
    restart(): void | Promise<void>;
}

/** Streams the file from `offset` on into `sink`, in order. Returns the file's size. After a break a server without ranges sends
 * everything again, and what is there already is skipped; a file without a validator starts again. */
export async function stream(file: RemoteFile, offset: number, sink: Sink, options: UrlOptions = {}): Promise<number> {
    let at = offset;
    let furthest = offset;
    let broken = false;
    return withTries(file.url, options, async (progress) => {
        if (broken && file.validator === null && at > 0) {
            await sink.restart();
            at = 0;
        }
        broken = true;
        if (at === file.size) return at;
        const exchange = await openRange(file, file.ranges ? at : 0, null, options);
        let skip = file.ranges ? 0 : at;
        for await (const piece of exchange.pieces(options.signal)) {
            throwIfAborted(options.signal);
            const skipped = Math.min(skip, piece.length);
            skip -= skipped;
            if (skipped === piece.length) continue;
            const bytes = piece.subarray(skipped);
            if (file.size !== null && at + bytes.length > file.size) throw changed(file, `it had ${file.size} bytes and now has more`);
            await sink.write(bytes);
            at += bytes.length;
            if (at <= furthest) continue;
            furthest = at;
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

/** Whether a file can be read by ranges over time without mixing two versions of it. */
export function hasStableRanges(file: RemoteFile): boolean {
    return file.ranges && file.size !== null && file.validator !== null;
}

/** A file read by ranges, without a copy. Small reads near the front are the header's: they are served from blocks read ahead. */
export class UrlSource implements ByteSource {
    readonly name: string;
    readonly size: number;
    readonly #file: RemoteFile;
    readonly #options: UrlOptions;
    readonly #blocks = new Map<number, Promise<Uint8Array>>();

    constructor(file: RemoteFile, options: UrlOptions = {}) {
        if (!hasStableRanges(file)) {
            throw new GemmuleError('NotSupported', `cannot read ${file.url} in parts: the server lacks HTTP Range, ETag or Last-Modified`);
        }
        this.#file = file;
        this.#options = options;
        this.name = file.url;
        this.size = file.size!;
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

    /* Takes no signal: several reads may wait for the same block. */
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
                    throw failure(this.name, `the server was asked for ${length} bytes at ${offset} and sent more`);
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

/** Downloads a file in one stream and keeps it as a Blob, which the browser may put on disk. */
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
    const write = (bytes: Uint8Array) => {
        for (let at = 0; at < bytes.length; ) {
            const some = bytes.subarray(at, at + BLOB - waiting);
            gathered.set(some, waiting);
            waiting += some.length;
            at += some.length;
            if (waiting === BLOB) lay();
        }
        done += bytes.length;
        onProgress?.(done, file.size ?? 0);
    };
    const restart = () => {
        blobs.length = waiting = done = 0;
    };
    await stream(file, 0, { write, restart }, options);
    lay();
    return new Blob(blobs);
}

const LONGEST_PREFIX = 256 << 20;

/** The beginning of a file, for its header: streamed only as far as it is read. */
export class PrefixSource implements ByteSource {
    readonly name: string;
    readonly size: number;
    readonly #controller = new AbortController();
    readonly #whole: Promise<number>;
    #pieces: Uint8Array[] = [];
    #length = 0;
    #wanted = 0;
    #given = false; // some bytes were read by a caller
    #wake: (() => void) | null = null; // of the reader
    #pull: (() => void) | null = null; // of the stream

    constructor(file: RemoteFile, options: UrlOptions = {}) {
        if (file.size === null) {
            throw new GemmuleError('NotSupported', `cannot read ${file.url} in parts: the server reports no size and lacks HTTP Range`);
        }
        this.name = file.url;
        this.size = file.size;
        const signals = [this.#controller.signal, ...(options.signal ? [options.signal] : [])];
        const sink = { write: (bytes: Uint8Array) => this.#take(bytes), restart: () => this.#restart(file.url) };
        this.#whole = stream(file, 0, sink, { ...options, signal: AbortSignal.any(signals) });
        this.#whole.catch(() => undefined).finally(() => this.#wake?.());
    }

    async read(offset: number, length: number, signal?: AbortSignal): Promise<Uint8Array> {
        checkRange(this, offset, length);
        const end = offset + length;
        if (end > LONGEST_PREFIX) {
            throw new GemmuleError('NotSupported', `cannot read byte ${end} of ${this.name}: the server lacks HTTP Range`);
        }
        this.#wanted = Math.max(this.#wanted, end);
        this.#pull?.();
        while (this.#length < end) {
            throwIfAborted(signal);
            await Promise.race([this.#whole, new Promise<void>((resolve) => (this.#wake = resolve))]);
        }
        if (this.#pieces.length > 1) this.#pieces = [join(this.#pieces, this.#length)];
        this.#given = true;
        return this.#pieces[0]?.slice(offset, end) ?? new Uint8Array(0);
    }

    async close(): Promise<void> {
        this.#controller.abort();
        this.#pull?.();
    }

    #restart(url: string): void {
        if (this.#given) throw failure(url, 'the connection broke, and without ETag or Last-Modified it cannot be resumed');
        this.#pieces = [];
        this.#length = 0;
    }

    /* Streams no further than somebody reads: the rest of the model is not downloaded. */
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
