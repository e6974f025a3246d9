// Numbers and times, formatted for reading.

/** 1234567 → '1.2 MB'. Powers of 1000, as disks and downloads count. */
export function formatBytes(bytes: number): string {
    if (!Number.isFinite(bytes) || bytes < 0) return '–';
    const units = ['bytes', 'KB', 'MB', 'GB', 'TB'];
    let value = bytes, unit = 0;
    while (value >= 999.5 && unit < units.length - 1) {
        value /= 1000;
        unit++;
    }
    return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** 75 → '1 min 15 s'. Long times are rounded to minutes. */
export function formatSeconds(seconds: number): string {
    if (!Number.isFinite(seconds) || seconds < 0) return '–';
    if (seconds < 1) return 'less than 1 s';
    if (seconds < 60) return `${Math.round(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 10) return `${minutes} min ${Math.round(seconds % 60)} s`;
    if (minutes < 60) return `${Math.round(seconds / 60)} min`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** 0.8 → '0.80', 12.34 → '12.3', 1234 → '1,234'. */
export function formatSpeed(perSecond: number): string {
    if (!Number.isFinite(perSecond) || perSecond < 0) return '–';
    if (perSecond >= 100) return Math.round(perSecond).toLocaleString('en');
    return perSecond >= 10 ? perSecond.toFixed(1) : perSecond.toFixed(2);
}

/** 2300000000 → '2.3 B'. */
export function formatCount(count: number): string {
    for (const [size, unit] of [[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e3, 'K']] as const) {
        if (count >= size * 0.9995) return `${(count / size).toFixed(count / size >= 99.95 ? 0 : 1)} ${unit}`;
    }
    return String(count);
}

/** '1 model', '2 models'; nouns that take more than an s are given as they are. */
export const countOf = (count: number, noun: string, nouns = `${noun}s`): string => `${count.toLocaleString('en')} ${count === 1 ? noun : nouns}`;

/** The engine's name for a device, for reading: 'cpu (wasm, 2 threads)' → 'CPU (WebAssembly, 2 threads)'. */
export const formatDevice = (device: string): string => device.replace(/^cpu\b/, 'CPU').replace(/\(wasm\b/, '(WebAssembly');

/** An error's message as a sentence. One that starts with an address, a file name or an option keeps its case. */
export function sentence(message: string): string {
    const text = /^[a-z][a-z'’-]*[,;]?(?:\s|$)/.test(message) ? message.charAt(0).toUpperCase() + message.slice(1) : message;
    return /[.!?…]$/.test(text) ? text : `${text}.`;
}

/** The heading of a conversation's group in the list. */
export function dayGroup(when: number, now: number): string {
    const midnight = new Date(now);
    midnight.setHours(0, 0, 0, 0);
    const days = Math.ceil((midnight.getTime() - when) / 86_400_000);
    if (days <= 0) return 'Today';
    if (days === 1) return 'Yesterday';
    if (days <= 7) return 'Last 7 days';
    if (days <= 30) return 'Last 30 days';
    return 'Older';
}

/** Speed and time left of a job that counts bytes or tokens, smoothed over about three seconds. */
export class Pace {
    private last: { at: number; done: number } | null = null;
    private smooth = 0;

    /** Notes what is done at a time in seconds; a resumed job starts above 0. */
    update(at: number, done: number): void {
        if (!this.last || done < this.last.done) {
            this.last = { at, done };
            this.smooth = 0;
            return;
        }
        const span = at - this.last.at;
        if (span < 0.2) return;
        const speed = (done - this.last.done) / span;
        const share = this.smooth === 0 ? 1 : 1 - Math.exp(-span / 3);
        this.smooth += (speed - this.smooth) * share;
        this.last = { at, done };
    }

    get speed(): number {
        return this.smooth;
    }

    /** Seconds left; null while the speed is unknown. */
    left(total: number): number | null {
        return this.last && this.smooth > 0 ? Math.max(0, total - this.last.done) / this.smooth : null;
    }
}

/** Tokens a second while an answer is written, over all its rounds. The time that prompts and tools take does not count. */
export class LiveSpeed {
    private tokens = 0;
    private seconds = 0;
    private first = 0;
    private last = 0;
    private pieces = 0;
    private since = 0; // tokens since the first piece

    /** A piece came, about one token, at a time in seconds. A step of a canvas brings none, and the end of its block all of them. */
    add(at: number, tokens = 1): void {
        if (this.pieces++ === 0) this.first = at;
        else this.since += tokens;
        this.last = at;
    }

    /** A round ended: its exact numbers replace the pieces. Without numbers the pieces are forgotten. */
    endRound(tokens = 0, seconds = 0): void {
        this.tokens += tokens;
        this.seconds += seconds;
        this.pieces = this.since = 0;
    }

    /** 0 until a quarter of a second was measured: pieces may come several at once. */
    get perSecond(): number {
        const seconds = this.seconds + (this.pieces > 1 ? this.last - this.first : 0);
        return seconds >= 0.25 ? (this.tokens + this.since) / seconds : 0;
    }
}
