/* Why a server cannot be reached. A browser tells scripts only "Failed to fetch", whatever the reason. */

import { GemmuleError } from '../core/errors.ts';

/* What the page's policy has blocked: origins. */
const blocked = new Set<string>();
let watching = false;

/** Notes what the page's policy blocks from now on. */
export function watchPolicy(): void {
    if (watching || typeof globalThis.addEventListener !== 'function') return;
    watching = true;
    globalThis.addEventListener('securitypolicyviolation', (event) => {
        const { blockedURI, effectiveDirective } = event as SecurityPolicyViolationEvent;
        if (effectiveDirective === 'connect-src' && URL.canParse(blockedURI)) blocked.add(new URL(blockedURI).origin);
    });
}

const LOCAL = /^(localhost|.*\.localhost|127(\.\d+){3}|\[::1\])$/;

/** Throws for an http: address on an https: page: no browser loads it, but for one on the user's own machine. */
export function checkMixedContent(url: string): void {
    const { protocol, hostname } = new URL(url, globalThis.location?.href);
    if (protocol !== 'http:' || globalThis.location?.protocol !== 'https:' || LOCAL.test(hostname)) return;
    const why = 'browsers block http: addresses on https: pages. Use an https: address, or download the file and open it from disk';
    throw new GemmuleError('Network', `cannot load ${url}: ${why}`, { blocked: 'mixed-content' });
}

/** A sentence about a request that got no answer. */
export async function whyUnreachable(url: string, reason: string): Promise<string> {
    if (typeof globalThis.location === 'undefined') return `the server cannot be reached (${reason})`; // Node
    await new Promise((resolve) => setTimeout(resolve, 20)); // the event comes behind the failure
    const { origin, protocol } = new URL(url, globalThis.location.href);
    if (blocked.has(origin)) {
        const instead = protocol === 'http:' ? 'Use an https: address, or download the file and open it from disk' : 'It must allow this server in connect-src';
        return `the Content-Security-Policy of this page forbids it. ${instead}`;
    }
    if (globalThis.navigator?.onLine === false) return 'this device is offline';
    const foreign = origin === globalThis.location.origin ? '' : ', and does it allow requests from other sites (CORS)';
    return `the server cannot be reached (${reason}). Is the address right, is the server running${foreign}?`;
}
