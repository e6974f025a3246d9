// For the browser tests of the app: the built app on a server with the headers of `gemmule serve`, and a Chromium with an empty profile
// that reaches nothing else and records every attempt.

import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { chromium, type BrowserContext, type Page } from 'playwright-core';
import { CHROMIUM_FLAGS, PATIENCE, which } from '../../tests/browser/browsers.ts';
import { fakeMicrophone } from '../../tests/browser/media_cases.ts';
import { UNCHECKED_WASM } from '../../tests/support/models.ts';
import { readWav } from '../../tests/support/wav.ts';
import { startServer, type ServerOptions, type TestServer } from '../../tests/browser/server.ts';

const APP = 'build/web';
export const MODEL = 'tests/fixtures/tiny-dense.gguf'; // writes noise, and soon
export const BOX = 'models/box.gguf'; // means what it says

const POLICY = [
    "default-src 'none'", "script-src 'self' 'wasm-unsafe-eval'", "style-src 'self'", "img-src 'self' blob:", 'media-src blob:',
    "connect-src 'self' https:", "worker-src 'self'", "manifest-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
].join('; ');

/** Serves the app, with `model` as the one in the box. Without `checks`, engines on a GPU open without their self-check. */
export function startSite(routes: NonNullable<ServerOptions['routes']> = {}, model = MODEL, { checks = true } = {}): Promise<TestServer> {
    if (!existsSync(join(APP, 'index.html'))) throw new Error(`${APP} is missing: build the app first`);
    const files: Record<string, string> = { '/models/box.gguf': resolve(model) };
    for (const name of checks ? [] : readdirSync(join(APP, 'assets'))) {
        if (/^gemmule-(?!threads|train)[\w-]+\.wasm$/.test(name)) files[`/assets/${name}`] = UNCHECKED_WASM;
    }
    return startServer({
        root: APP, files, routes,
        headers: {
            'content-security-policy': POLICY, 'x-content-type-options': 'nosniff', 'cache-control': 'no-cache',
            'cross-origin-opener-policy': 'same-origin', 'cross-origin-embedder-policy': 'require-corp',
        },
    });
}

/** Serves bytes by range; the first response breaks off after `after` bytes. */
export function breaksOff(bytes: Buffer, after: number): (request: IncomingMessage, response: ServerResponse) => void {
    let broken = false;
    return (request, response) => {
        const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
        const first = Number(range?.[1] ?? 0), last = Math.min(Number(range?.[2] || Infinity), bytes.length - 1);
        const part = bytes.subarray(first, last + 1);
        response.writeHead(range ? 206 : 200, {
            'content-type': 'application/octet-stream', 'content-length': part.length, 'accept-ranges': 'bytes', etag: '"one"',
            ...(range && { 'content-range': `bytes ${first}-${last}/${bytes.length}` }),
        });
        if (broken || part.length <= after) return void response.end(part);
        broken = true;
        response.write(part.subarray(0, after), () => setTimeout(() => response.destroy(), 50));
    };
}

export interface VisitOptions {
    /** WebGPU by SwiftShader; without it there is none. */
    gpu?: boolean;
    phone?: boolean;
    /** A WAV file that the microphone plays. */
    microphone?: string;
}

export class Visit {
    readonly context: BrowserContext;
    /** Hosts that the browser tried to reach. */
    readonly foreign: string[];
    /** Errors on the console of pages, among them breaches of the Content-Security-Policy. */
    readonly complaints: string[] = [];
    private readonly profile: string;
    private readonly sink: Server;

    private constructor(context: BrowserContext, profile: string, sink: Server, foreign: string[]) {
        this.context = context;
        this.profile = profile;
        this.sink = sink;
        this.foreign = foreign;
        context.on('page', (page) => this.listen(page));
        context.pages().forEach((page) => this.listen(page));
    }

    static async begin({ gpu = false, phone = false, microphone }: VisitOptions = {}): Promise<Visit> {
        const foreign: string[] = [];
        const sink = await startSink(foreign);
        const profile = mkdtempSync(join(tmpdir(), 'gemmule-app-'));
        const context = await chromium.launchPersistentContext(profile, {
            executablePath: which('chromium'),
            headless: true,
            timeout: PATIENCE,
            viewport: phone ? { width: 360, height: 740 } : { width: 1280, height: 820 },
            ...(phone && { isMobile: true, hasTouch: true }),
            args: [
                ...(gpu ? CHROMIUM_FLAGS : ['--no-sandbox']), ...(microphone ? fakeMicrophone(profile, readWav(readFileSync(microphone))) : []),
                `--proxy-server=http://127.0.0.1:${(sink.address() as AddressInfo).port}`,
            ],
        });
        context.setDefaultTimeout(PATIENCE);
        return new Visit(context, profile, sink, foreign);
    }

    async page(): Promise<Page> {
        const page = this.context.pages()[0] ?? (await this.context.newPage());
        const slower = Number(process.env['GEMMULE_SLOWER'] ?? 1); // shows tests that look before the page has changed
        if (slower > 1) await (await this.context.newCDPSession(page)).send('Emulation.setCPUThrottlingRate', { rate: slower });
        return page;
    }

    private listen(page: Page): void {
        page.on('pageerror', (error) => this.complaints.push(`error: ${error.message}`));
        page.on('console', (message) => {
            if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) this.complaints.push(message.text());
        });
        page.on('request', (request) => {
            const { protocol, hostname } = new URL(request.url());
            if (/^http/.test(protocol) && hostname !== '127.0.0.1') this.foreign.push(request.url());
        });
    }

    async end(): Promise<void> {
        await this.context.close();
        await new Promise<void>((done) => (this.sink.close(() => done()), this.sink.closeAllConnections()));
        rmSync(this.profile, { recursive: true, force: true });
    }
}

// Every request beyond 127.0.0.1, also from workers, goes to a proxy that only records it. Chromium makes some of its own.
async function startSink(foreign: string[]): Promise<Server> {
    const note = ({ url = '' }: IncomingMessage): void => {
        if (!/^(?:https?:\/\/)?[\w.-]*\.(?:google|googleapis|gvt1|gstatic)\.com\b/.test(url)) foreign.push(url);
    };
    const sink = createServer((request, response) => {
        note(request);
        response.writeHead(502).end();
    });
    sink.on('connect', (request: IncomingMessage, socket: Socket) => {
        note(request);
        socket.on('error', () => undefined); // Chromium may break off; nobody else listens to this socket
        socket.end('HTTP/1.1 502 no\r\n\r\n');
    });
    await new Promise<void>((done) => sink.listen(0, '127.0.0.1', done));
    return sink;
}

/** Gives the page an Ollama folder to pick: a real directory handle from the origin's private file system, in place of the dialog. */
export async function fakeOllama(page: Page, labels = { model_type: '506K', file_type: 'F16' }): Promise<void> {
    await page.evaluate(async (given) => {
        const bytes = await (await fetch('models/box.gguf')).arrayBuffer();
        const digest = [...new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
        const root = await (await navigator.storage.getDirectory()).getDirectoryHandle('their-ollama', { create: true });
        const write = async (path: string[], data: BufferSource | string): Promise<void> => {
            let folder = root;
            for (const name of path.slice(0, -1)) folder = await folder.getDirectoryHandle(name, { create: true });
            const stream = await (await folder.getFileHandle(path.at(-1)!, { create: true })).createWritable();
            await stream.write(data);
            await stream.close();
        };
        const config = JSON.stringify({ model_family: 'gemma4', ...given });
        const configDigest = [...new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(config)))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
        await write(['blobs', `sha256-${digest}`], bytes);
        await write(['blobs', `sha256-${configDigest}`], config);
        const layer = (kind: string, of: string, size: number): object => ({ mediaType: `application/vnd.ollama.image.${kind}`, digest: `sha256:${of}`, size });
        await write(['manifests', 'registry.ollama.ai', 'library', 'gemma4', 'tiny'], JSON.stringify({
            schemaVersion: 2, mediaType: 'application/vnd.docker.distribution.manifest.v2+json',
            config: { mediaType: 'application/vnd.docker.container.image.v1+json', digest: `sha256:${configDigest}`, size: config.length },
            layers: [layer('model', digest, bytes.byteLength)],
        }));
        (globalThis as unknown as { showDirectoryPicker: () => Promise<unknown> }).showDirectoryPicker = async () => root;
    }, labels);
}
