// The web server of the browser tests. It serves the repository's files with the right types, and by range on request. TypeScript is served
// with its types stripped, so that pages run the sources themselves.

import { createReadStream } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { stripTypeScriptTypes } from 'node:module';
import type { AddressInfo } from 'node:net';
import { extname, join, normalize, resolve } from 'node:path';
import { pipeline } from 'node:stream/promises';

const TYPES: Record<string, string> = {
    '.html': 'text/html; charset=utf-8',
    '.js': 'text/javascript; charset=utf-8',
    '.mjs': 'text/javascript; charset=utf-8',
    '.ts': 'text/javascript; charset=utf-8',
    '.css': 'text/css; charset=utf-8',
    '.json': 'application/json',
    '.map': 'application/json',
    '.webmanifest': 'application/manifest+json',
    '.wasm': 'application/wasm',
    '.svg': 'image/svg+xml',
    '.png': 'image/png',
    '.ico': 'image/x-icon',
    '.txt': 'text/plain; charset=utf-8',
};

export interface ServerOptions {
    /** The folder for "/"; by default the current one. */
    root?: string;
    /** Files at other paths: address → path, relative to the root or absolute. */
    files?: Record<string, string>;
    /** Addresses with a handler of the test. */
    routes?: Record<string, (request: IncomingMessage, response: ServerResponse) => void>;
    /** Headers of every response, such as a Content-Security-Policy. */
    headers?: Record<string, string>;
}

export interface TestServer {
    /** "http://127.0.0.1:PORT", a secure context. */
    origin: string;
    /** Paths requested so far. */
    requests: string[];
    close(): Promise<void>;
}

export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
    const requests: string[] = [];
    const server = createServer((request, response) => {
        const path = decodeURIComponent(new URL(request.url ?? '/', 'http://localhost').pathname);
        requests.push(path);
        for (const [name, value] of Object.entries(options.headers ?? {})) response.setHeader(name, value);
        const route = options.routes?.[path];
        if (route) return route(request, response);
        const root = options.root ?? '.';
        const named = options.files?.[path];
        answer(named ? resolve(root, named) : join(root, normalize(path)), request, response).catch((thrown) => refuse(response, thrown));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return {
        origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
        requests,
        close: () => new Promise((resolve) => (server.close(() => resolve()), server.closeAllConnections())),
    };
}

function refuse(response: ServerResponse, thrown: unknown): void {
    const missing = ['ENOENT', 'ENOTDIR', 'EISDIR'].includes((thrown as { code?: string }).code ?? '');
    if (response.headersSent) return void response.destroy();
    response.writeHead(missing ? 404 : 500, { 'Content-Type': 'text/plain' });
    response.end(missing ? 'not found' : String(thrown));
}

async function answer(path: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method !== 'GET' && request.method !== 'HEAD') {
        response.writeHead(405, { Allow: 'GET, HEAD' });
        return void response.end();
    }
    const about = await stat(path);
    const file = about.isDirectory() ? join(path, 'index.html') : path;
    const type = TYPES[extname(file)] ?? 'application/octet-stream';
    if (file.endsWith('.ts')) {
        response.writeHead(200, { 'Content-Type': type });
        return void response.end(stripTypeScriptTypes(await readFile(file, 'utf8')));
    }
    const { size, mtimeMs } = about.isDirectory() ? await stat(file) : about;
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const first = Number(range?.[1] ?? 0);
    const last = Math.min(range?.[2] ? Number(range[2]) : size - 1, size - 1);
    const headers: Record<string, string | number> = { 'Content-Type': type, 'Accept-Ranges': 'bytes', ETag: `"${size}-${mtimeMs}"` };
    if (range && first > last) {
        response.writeHead(416, { ...headers, 'Content-Range': `bytes */${size}` });
        return void response.end();
    }
    if (range) headers['Content-Range'] = `bytes ${first}-${last}/${size}`;
    response.writeHead(range ? 206 : 200, { ...headers, 'Content-Length': last - first + 1 });
    if (request.method === 'HEAD' || size === 0) return void response.end();
    await pipeline(createReadStream(file, { start: first, end: last }), response);
}
