// The service worker: stores the app's own files, so that the app starts offline. The package stores models itself.
//
// The build puts VERSION and FILES before this text: a digest of all files, and the files of a first load. Other files (maths, the
// highlighter and its languages) are stored when they are first requested; their names contain a digest of their content.

declare const VERSION: string;
declare const FILES: string[];

// The parts of a service worker's scope that are used here: TypeScript cannot have the types of pages and workers in one program.
interface Waiting extends Event {
    waitUntil(work: Promise<unknown>): void;
}
interface Fetching extends Event {
    request: Request;
    respondWith(response: Promise<Response>): void;
}
interface Scope {
    registration: { scope: string };
    clients: { claim(): Promise<void> };
    skipWaiting(): Promise<void>;
    addEventListener(type: 'install' | 'activate', listener: (event: Waiting) => void): void;
    addEventListener(type: 'fetch', listener: (event: Fetching) => void): void;
}

const worker = globalThis as unknown as Scope;
const CACHE = `gemmule-app-${VERSION}`;

worker.addEventListener('install', (event) => {
    const keep = async (): Promise<void> => {
        const cache = await caches.open(CACHE);
        await cache.addAll(FILES.map((file) => new Request(file, { cache: 'no-cache' })));
        await worker.skipWaiting(); // file names contain digests, so an open page keeps the version that it has loaded
    };
    event.waitUntil(keep());
});

worker.addEventListener('activate', (event) => {
    const clean = async (): Promise<void> => {
        for (const name of await caches.keys()) if (name.startsWith('gemmule-app-') && name !== CACHE) await caches.delete(name);
        await worker.clients.claim();
    };
    event.waitUntil(clean());
});

worker.addEventListener('fetch', (event) => {
    const { request } = event;
    const url = new URL(request.url);
    const scope = new URL(worker.registration.scope);
    if (request.method !== 'GET' || url.origin !== scope.origin || !url.pathname.startsWith(scope.pathname) || request.headers.has('range')) return;
    const path = url.pathname.slice(scope.pathname.length);
    if (request.mode === 'navigate' && (path === '' || path === 'index.html')) event.respondWith(answer('./', request));
    else if (path.startsWith('assets/') || FILES.includes(`./${path}`)) event.respondWith(answer(request, request));
});

// Stored files come first: one version of the app is one set of files.
async function answer(key: Request | string, request: Request): Promise<Response> {
    const cache = await caches.open(CACHE);
    const kept = await cache.match(key, { ignoreVary: true });
    if (kept) return kept;
    const response = await fetch(request);
    if (response.ok && response.type === 'basic') await cache.put(key, response.clone());
    return response;
}
