/* The error class of the package, and the table of its names and codes.
 *
 * Codes below 100 are those of gm_status in include/gemmule.h; the others exist only here. Codes are part of the interface and are never
 * reused. */

export const ERROR_CODES = {
    BadModel: 10, // GM_BAD_FILE: the file contradicts itself or is cut off
    NotSupported: 11, // GM_UNSUPPORTED: well-formed, but this build cannot do it
    BadArgument: 12, // GM_BAD_ARGUMENT
    NotFound: 13, // GM_NOT_FOUND
    Storage: 14, // GM_IO: reading or writing failed
    OutOfMemory: 20, // GM_NO_MEMORY
    DeviceLost: 21, // GM_DEVICE_LOST
    ContextFull: 22, // GM_CONTEXT_FULL
    NoWebGPU: 23, // GM_NO_DEVICE
    Aborted: 30, // GM_CANCELLED
    Busy: 31, // GM_BUSY
    QuotaExceeded: 100, // the browser gives this site no more storage
    Network: 101, // the server, or the connection to it
    WorkerDied: 102, // the worker ended, or could not be started
    BadData: 103, // the examples to learn from; `detail.problems` lists bad lines
    Internal: 199, // a bug in gemmule
} as const;

export type ErrorName = keyof typeof ERROR_CODES;

const NAMES = new Map<number, ErrorName>((Object.keys(ERROR_CODES) as ErrorName[]).map((name) => [ERROR_CODES[name], name]));

/** The name for a code of this table; `Internal` for an unknown one. */
export function errorName(code: number): ErrorName {
    return NAMES.get(code) ?? 'Internal';
}

/** An error as it crosses from the worker to the page. */
export interface WireError {
    name: ErrorName;
    code: number;
    message: string;
    detail?: unknown;
}

/** Every function of the package throws this. `name` is the kind, `message` a sentence that a user can act on, `detail` the data behind it,
 * if any. */
export class GemmuleError extends Error {
    override readonly name: ErrorName;
    readonly code: number;
    readonly detail: unknown;

    constructor(name: ErrorName, message: string, detail?: unknown, options?: { cause?: unknown }) {
        super(message, options);
        this.name = name;
        this.code = ERROR_CODES[name];
        this.detail = detail;
    }

    static fromCode(code: number, message: string, detail?: unknown): GemmuleError {
        return NAMES.has(code)
            ? new GemmuleError(errorName(code), message, detail)
            : new GemmuleError('Internal', `${message} (unknown status ${code})`, detail);
    }

    static fromWire(wire: WireError): GemmuleError {
        return new GemmuleError(wire.name in ERROR_CODES ? wire.name : 'Internal', wire.message, wire.detail);
    }

    toWire(): WireError {
        const wire: WireError = { name: this.name, code: this.code, message: this.message };
        if (this.detail !== undefined) wire.detail = this.detail;
        return wire;
    }
}

// Errors of the platform, by name.
const PLATFORM: Record<string, ErrorName> = {
    AbortError: 'Aborted',
    TimeoutError: 'Aborted',
    QuotaExceededError: 'QuotaExceeded',
    NotFoundError: 'NotFound',
    NotReadableError: 'Storage',
    NotAllowedError: 'Storage',
    SecurityError: 'Storage',
    InvalidStateError: 'Storage',
    NoModificationAllowedError: 'Busy',
    DataCloneError: 'BadArgument',
};

/* True also for an error of another copy of this module: the worker's file has its own. */
function isGemmuleError(thrown: unknown): thrown is GemmuleError {
    const { name, code } = (thrown ?? {}) as { name?: string; code?: unknown };
    return thrown instanceof Error && name !== undefined && Object.hasOwn(ERROR_CODES, name) && ERROR_CODES[name as ErrorName] === code;
}

/** Turns any thrown value into a GemmuleError, unless it is one. `context` says what failed. */
export function toGemmuleError(thrown: unknown, context = ''): GemmuleError {
    if (isGemmuleError(thrown)) return thrown;
    const { name = '', message = String(thrown) } = (thrown ?? {}) as { name?: string; message?: string };
    const text = context ? `${context}: ${message}` : message;
    if (name === 'RangeError' && /allocat|memory/i.test(message)) {
        return new GemmuleError('OutOfMemory', text, undefined, { cause: thrown });
    }
    return new GemmuleError(PLATFORM[name] ?? 'Internal', text, undefined, { cause: thrown });
}

/** Throws `Aborted` if the signal is aborted. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
    if (signal?.aborted) throw abortedBy(signal);
}

/** The error for an aborted signal: its reason if that is a GemmuleError. */
export function abortedBy(signal: AbortSignal): GemmuleError {
    const reason: unknown = signal.reason;
    return isGemmuleError(reason)
        ? reason
        : new GemmuleError('Aborted', 'stopped by the caller', undefined, { cause: reason });
}
