/* SHA-256, piece by piece: WebCrypto needs everything in memory at once, and exists only in secure contexts.
 * Variables are named as in FIPS 180-4. */

const K = roots(64, 1 / 3);
const START = roots(8, 1 / 2);

/* The first 32 bits of the fractional parts of the (square or cube) roots of the first `count` primes. A double carries 53
 * bits, of which the roots' whole parts take at most 5: enough. */
function roots(count: number, exponent: number): Int32Array {
    const out = new Int32Array(count);
    for (let n = 0, candidate = 2; n < count; candidate++) {
        let prime = true;
        for (let d = 2; d * d <= candidate && prime; d++) prime = candidate % d !== 0;
        if (!prime) continue;
        const root = candidate ** exponent;
        out[n++] = ((root - Math.floor(root)) * 2 ** 32) | 0;
    }
    return out;
}

export class Sha256 {
    readonly #state = START.slice();
    readonly #schedule = new Int32Array(64);
    readonly #block = new Uint8Array(64);
    #filled = 0;
    #length = 0;

    update(bytes: Uint8Array): this {
        let at = 0;
        this.#length += bytes.length;
        if (this.#filled) {
            at = Math.min(64 - this.#filled, bytes.length);
            this.#block.set(bytes.subarray(0, at), this.#filled);
            this.#filled += at;
            if (this.#filled < 64) return this;
            this.#compress(this.#block, 0);
            this.#filled = 0;
        }
        for (; at + 64 <= bytes.length; at += 64) this.#compress(bytes, at);
        this.#block.set(bytes.subarray(at));
        this.#filled = bytes.length - at;
        return this;
    }

    /** The digest so far, in hexadecimal. More bytes may follow. */
    hex(): string {
        const copy = new Sha256();
        copy.#state.set(this.#state);
        copy.#block.set(this.#block);
        copy.#filled = this.#filled;
        copy.#length = this.#length;
        return copy.#end();
    }

    reset(): void {
        this.#state.set(START);
        this.#filled = this.#length = 0;
    }

    #end(): string {
        const length = this.#length;
        const padding = new Uint8Array(this.#filled < 56 ? 64 - this.#filled : 128 - this.#filled);
        const tail = new DataView(padding.buffer, padding.length - 8);
        padding[0] = 0x80;
        tail.setUint32(0, Math.floor(length / 2 ** 29));
        tail.setUint32(4, (length << 3) >>> 0);
        this.update(padding);
        return Array.from(this.#state, (word) => (word >>> 0).toString(16).padStart(8, '0')).join('');
    }

    #compress(bytes: Uint8Array, at: number): void {
        const w = this.#schedule;
        const s = this.#state;
        for (let t = 0; t < 16; t++, at += 4) {
            w[t] = (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
        }
        for (let t = 16; t < 64; t++) {
            const x = w[t - 15]!;
            const y = w[t - 2]!;
            const sigma0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
            const sigma1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
            w[t] = (w[t - 16]! + sigma0 + w[t - 7]! + sigma1) | 0;
        }
        let a = s[0]!;
        let b = s[1]!;
        let c = s[2]!;
        let d = s[3]!;
        let e = s[4]!;
        let f = s[5]!;
        let g = s[6]!;
        let h = s[7]!;
        for (let t = 0; t < 64; t++) {
            const sum1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
            const t1 = (h + sum1 + ((e & f) ^ (~e & g)) + K[t]! + w[t]!) | 0;
            const sum0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
            const t2 = (sum0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
            h = g;
            g = f;
            f = e;
            e = (d + t1) | 0;
            d = c;
            c = b;
            b = a;
            a = (t1 + t2) | 0;
        }
        s[0] = (s[0]! + a) | 0;
        s[1] = (s[1]! + b) | 0;
        s[2] = (s[2]! + c) | 0;
        s[3] = (s[3]! + d) | 0;
        s[4] = (s[4]! + e) | 0;
        s[5] = (s[5]! + f) | 0;
        s[6] = (s[6]! + g) | 0;
        s[7] = (s[7]! + h) | 0;
    }
}

/** The digest of a short text. */
export function sha256Text(text: string): string {
    return new Sha256().update(new TextEncoder().encode(text)).hex();
}
