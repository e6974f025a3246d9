/* The page's end of the connection: calls return promises, streams return iterators, and all of them end when the worker dies. */

import { GemmuleError, type WireError, abortedBy } from '../core/errors.ts';
import { type Answer, type Args, type DeviceEvent, type Event, type Operation, type Port, PROTOCOL, type Result } from './protocol.ts';

interface Call {
    onEvent?: ((event: never) => void) | undefined;
    resolve(result: unknown): void;
    reject(error: GemmuleError): void;
}

export interface CallOptions<O extends Operation> {
    signal?: AbortSignal | undefined;
    onEvent?: ((event: Event<O>) => void) | undefined;
    transfer?: Transferable[];
}

export class Connection {
    readonly #port: Port;
    readonly #calls = new Map<number, Call>();
    #lastId = 0;
    #dead: GemmuleError | null = null;
    #refused: GemmuleError | null = null;
    /** Called when something happens to the device. */
    onDevice: ((event: DeviceEvent) => void) | null = null;

    constructor(port: Port) {
        this.#port = port;
        port.onMessage = (message) => this.#take(message as Answer);
    }

    /** Why calls are refused; null while the connection works. */
    get dead(): GemmuleError | null {
        return this.#dead;
    }

    call<O extends Operation>(op: O, args: Args<O>, options: CallOptions<O> = {}): Promise<Result<O>> {
        const { signal, onEvent, transfer = [] } = options;
        const refused = this.#dead ?? this.#refused;
        if (refused) return Promise.reject(refused);
        if (signal?.aborted) return Promise.reject(abortedBy(signal));
        const id = ++this.#lastId;
        return new Promise<Result<O>>((resolve, reject) => {
            const stop = () => this.#post('abort', ++this.#lastId, { target: id }, []);
            const settle = () => {
                signal?.removeEventListener('abort', stop);
                this.#calls.delete(id);
            };
            this.#calls.set(id, {
                onEvent,
                resolve: (result) => (settle(), resolve(result as Result<O>)),
                reject: (error) => (settle(), reject(error)),
            });
            signal?.addEventListener('abort', stop, { once: true });
            try {
                this.#post(op, id, args, transfer);
            } catch (thrown) {
                settle();
                reject(new GemmuleError('BadArgument', `cannot send ${op} to the engine: ${(thrown as Error).message}`, undefined, { cause: thrown }));
            }
        });
    }

    /** Starts an operation at once and yields its events one by one. Leaving the loop stops it, and waits until it has stopped.
     * After an abort no event is delivered, not even one that is here already; `whenCut` corrects the result of a stream that
     * lost events this way. Arguments that are still being prepared are sent when they are ready. */
    stream<O extends Operation>(op: O, args: Args<O> | Promise<Args<O>>, { signal: given, whenCut = (whole) => whole }: StreamOptions<O> = {}): Stream<Event<O>, Result<O>> {
        const controller = new AbortController();
        const signal = given ? AbortSignal.any([given, controller.signal]) : controller.signal;
        const events: Event<O>[] = [];
        let wake: (() => void) | null = null;
        let over = false;
        let cut = false;
        const onEvent = (event: Event<O>): void => {
            if (signal.aborted) cut = true;
            else events.push(event);
            wake?.();
        };
        const start = (ready: Args<O>) => this.call(op, ready, { signal, onEvent });
        const result = args instanceof Promise ? args.then(start) : start(args);
        signal.addEventListener('abort', () => {
            cut ||= events.length > 0;
            events.length = 0;
        });
        const outcome = () => result.then((whole) => (cut ? whenCut(whole) : whole));
        const end = () => {
            over = true;
            wake?.();
        };
        result.then(end, end);
        async function* loop(): AsyncGenerator<Event<O>, Result<O>> {
            try {
                for (;;) {
                    while (events.length) yield events.shift()!;
                    if (over) return await outcome();
                    await new Promise<void>((resolve) => (wake = resolve));
                }
            } finally {
                if (!over) {
                    controller.abort();
                    await result.catch(() => undefined);
                }
            }
        }
        return { events: loop(), result: outcome, stop: () => controller.abort() };
    }

    /** Rejects further calls; running ones continue. */
    refuse(error: GemmuleError): void {
        this.#refused ??= error;
    }

    /** Rejects running and further calls. */
    die(error: GemmuleError): void {
        if (this.#dead) return;
        this.#dead = error;
        for (const call of [...this.#calls.values()]) call.reject(error);
    }

    close(error = new GemmuleError('Aborted', 'the engine was unloaded')): void {
        this.die(error);
        this.#port.close();
    }

    #post<O extends Operation>(op: O, id: number, args: Args<O>, transfer: Transferable[]): void {
        if (!this.#dead) this.#port.post({ v: PROTOCOL, id, op, args }, transfer);
    }

    #take(message: Answer): void {
        if (message.id === 0) {
            if ('event' in message) this.onDevice?.(message.event as DeviceEvent);
            else if ('error' in message) this.die(GemmuleError.fromWire(message.error));
            return;
        }
        const call = this.#calls.get(message.id);
        if (!call) return; // the answer to an abort, or to a call that was already rejected
        if ('event' in message) call.onEvent?.(message.event as never);
        else if ('error' in message) call.reject(GemmuleError.fromWire(message.error as WireError));
        else call.resolve(message.result);
    }
}

export interface StreamOptions<O extends Operation> {
    signal?: AbortSignal | undefined;
    whenCut?(whole: Result<O>): Result<O>;
}

export interface Stream<E, R> {
    events: AsyncGenerator<E, R>;
    result(): Promise<R>;
    stop(): void;
}

/** Both ends of a connection within one thread, for Node. Messages arrive later, never during the call that sends them. */
export function directLine(): [Port, Port] {
    const ends: [Port, Port] = [end(() => ends[1]), end(() => ends[0])];
    return ends;
    function end(other: () => Port): Port {
        let open = true;
        return {
            post: (message) => queueMicrotask(() => open && other().onMessage?.(message)),
            onMessage: null,
            close: () => (open = false),
        };
    }
}
