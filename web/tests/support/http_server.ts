/* A small web server that misbehaves on request: no ranges, cut connections, a file that changes. */

import { type IncomingMessage, type ServerResponse, createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface ServedFile {
    bytes: Uint8Array;
    etag?: string | null;
    /** false: Range is ignored. */
    ranges?: boolean;
    /** false: no Content-Length. */
    length?: boolean;
    /** Bytes after which the next responses are cut, one number per response. */
    cuts?: number[];
    /** Another version of the file, served once a response was cut. */
    next?: Uint8Array;
    /** Status codes for the next responses. */
    statuses?: number[];
    /** Changes the headers of a response. */
    headers?(headers: Record<string, string>, request: IncomingMessage): void;
    /** Milliseconds between pieces of 64 KiB. */
    pause?: number;
    /** Never answers. */
    silent?: boolean;
}

export interface TestServer {
    origin: string;
    files: Map<string, ServedFile>;
    /** "GET /file bytes=0-15" and so on. */
    requests: string[];
    close(): Promise<void>;
}

async function respond(file: ServedFile, request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.setMaxListeners(0);
    const { bytes, etag = '"one"', ranges = true, length = true } = file;
    const status = file.statuses?.shift();
    if (status !== undefined && status !== 200) {
        response.writeHead(status, status === 429 ? { 'retry-after': '0' } : {}).end();
        return;
    }
    const found = ranges ? /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '') : null;
    const start = found ? Number(found[1]) : 0;
    const end = found?.[2] ? Math.min(Number(found[2]) + 1, bytes.length) : bytes.length;
    if (found && start >= bytes.length) {
        response.writeHead(416, { 'content-range': `bytes */${bytes.length}` }).end();
        return;
    }
    const headers: Record<string, string> = { 'content-type': 'application/octet-stream' };
    if (etag !== null) headers.etag = etag;
    if (length) headers['content-length'] = String(end - start);
    if (found) headers['content-range'] = `bytes ${start}-${end - 1}/${bytes.length}`;
    file.headers?.(headers, request);
    response.writeHead(found ? 206 : 200, headers);
    if (request.method === 'HEAD') {
        response.end();
        return;
    }
    const cut = file.cuts?.length && end - start > 16 ? file.cuts.shift()! : Infinity; // never cuts a probe
    for (let at = start; at < end; at += 65536) {
        const piece = bytes.subarray(at, Math.min(at + 65536, end, start + cut));
        if (piece.length && !response.write(piece)) await new Promise((resolve) => response.once('drain', resolve).once('close', resolve));
        if (at + 65536 >= start + cut) {
            response.destroy();
            file.bytes = file.next ?? file.bytes;
            return;
        }
        if (file.pause) await new Promise((resolve) => setTimeout(resolve, file.pause));
        if (response.destroyed) return;
    }
    response.end();
}

export async function startServer(): Promise<TestServer> {
    const files = new Map<string, ServedFile>();
    const requests: string[] = [];
    const server = createServer((request, response) => {
        const path = new URL(request.url ?? '/', 'http://x').pathname;
        requests.push(`${request.method} ${path} ${request.headers.range ?? ''}`.trim());
        const file = files.get(path);
        if (file?.silent) return;
        if (file) void respond(file, request, response);
        else response.writeHead(404).end();
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return {
        origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
        files,
        requests,
        close: () => new Promise((resolve) => {
            server.closeAllConnections();
            server.close(() => resolve());
        }),
    };
}

/** Pseudo-random bytes. */
export function noise(length: number, seed = 1): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(length);
    for (let i = 0, x = seed; i < length; i++) {
        x = (Math.imul(x, 1664525) + 1013904223) | 0;
        bytes[i] = x >>> 24;
    }
    return bytes;
}
