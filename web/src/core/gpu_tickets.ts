// Read-backs from the GPU: a ticket for each, and mappable buffers that are used in turn. After the first few nothing new is allocated.

import { KIND, Slots } from './gpu_slots.ts';

const USAGE_MAP_READ_COPY_DST = 0x1 | 0x8;
const MODE_READ = 0x1;
const SMALLEST = 256;
const LARGEST_KEPT = 16 * 2 ** 20; // bytes; a larger staging buffer is freed after its read-back

type State = 'new' | 'flying' | 'here' | 'taken' | 'failed';

interface Ticket {
    id: number;
    state: State;
    /** Nobody waits for it. */
    dropped: boolean;
    bytes: number;
    staging: Staging | null;
    /** How many verdicts about buffers must arrive before the result counts. */
    verdicts: number;
}

interface Staging {
    buffer: GPUBuffer;
    bytes: number;
    busy: boolean;
    ticket: Ticket | null;
    // Made once, so that mapping allocates no closures.
    arrived(): void;
    failed(reason: unknown): void;
}

export interface TicketOwner {
    makeBuffer(bytes: number, usage: number): GPUBuffer;
    happened(): void;
    readFailed(reason: string): void;
}

export class Tickets {
    readonly #owner: TicketOwner;
    readonly #tickets = new Slots<Ticket>(KIND.ticket);
    readonly #unused: Ticket[] = [];
    #staging: Staging[] = [];

    constructor(owner: TicketOwner) {
        this.#owner = owner;
    }

    add(): number {
        const ticket = this.#unused.pop() ?? { id: 0, state: 'new', dropped: false, bytes: 0, staging: null, verdicts: 0 };
        ticket.state = 'new';
        ticket.dropped = false;
        ticket.id = this.#tickets.add(ticket);
        return ticket.id;
    }

    /** Claims a ticket for a read-back; false if it is not free. */
    claim(id: number, bytes: number, verdicts: number): boolean {
        const ticket = this.#tickets.find(id);
        if (!ticket || ticket.state !== 'new' || ticket.dropped) return false;
        ticket.state = 'flying';
        ticket.bytes = bytes;
        ticket.verdicts = verdicts;
        return true;
    }

    /** Gives a claimed ticket back. */
    unclaim(id: number): void {
        const ticket = this.#tickets.find(id);
        if (ticket) ticket.state = 'new';
    }

    /** The buffer that a claimed ticket's copy goes to. */
    stage(id: number): GPUBuffer {
        const ticket = this.#tickets.find(id)!;
        const staging = this.#takeStaging(ticket.bytes);
        staging.ticket = ticket;
        ticket.staging = staging;
        return staging.buffer;
    }

    /** Starts reading; called after the submit that has the copy. */
    map(id: number): void {
        const ticket = this.#tickets.find(id)!;
        const staging = ticket.staging!;
        staging.buffer.mapAsync(MODE_READ, 0, ticket.bytes).then(staging.arrived, staging.failed);
    }

    /** The number of bytes once they are here and count, else -1. */
    bytes(id: number, verdicts: number): number {
        const ticket = this.#tickets.find(id);
        if (!ticket || ticket.dropped || ticket.verdicts > verdicts) return -1;
        return ticket.state === 'here' || ticket.state === 'taken' ? ticket.bytes : -1;
    }

    /** What a ticket brought, which stays mapped. */
    mapped(id: number): Uint8Array {
        const ticket = this.#tickets.find(id);
        return ticket?.state === 'here' ? new Uint8Array(ticket.staging!.buffer.getMappedRange(0, ticket.bytes)) : new Uint8Array(0);
    }

    take(id: number, out: Uint8Array, at: number): void {
        const ticket = this.#tickets.find(id);
        if (!ticket || ticket.state !== 'here') return;
        out.set(new Uint8Array(ticket.staging!.buffer.getMappedRange(0, ticket.bytes)), at);
        this.#giveBack(ticket);
        ticket.state = 'taken';
    }

    done(id: number): void {
        const ticket = this.#tickets.find(id);
        if (!ticket || ticket.dropped) return;
        if (ticket.state === 'flying') {
            ticket.dropped = true;
            return;
        }
        if (ticket.state === 'here') this.#giveBack(ticket);
        this.#remove(ticket);
    }

    close(): void {
        for (const staging of this.#staging) {
            staging.ticket = null;
            staging.buffer.destroy();
        }
        this.#staging = [];
        this.#tickets.clear();
    }

    // ---- staging buffers ----

    #takeStaging(bytes: number): Staging {
        for (let i = 0; i < this.#staging.length; i++) { // runs for every token: no iterator
            const staging = this.#staging[i]!;
            if (staging.busy || staging.bytes < bytes || staging.bytes / 4 > bytes + SMALLEST) continue;
            staging.busy = true;
            return staging;
        }
        let size = SMALLEST;
        while (size < bytes && size < LARGEST_KEPT) size *= 2;
        return this.#makeStaging(Math.max(size, bytes));
    }

    #makeStaging(bytes: number): Staging {
        const staging: Staging = {
            buffer: this.#owner.makeBuffer(bytes, USAGE_MAP_READ_COPY_DST),
            bytes,
            busy: true,
            ticket: null,
            arrived: () => this.#arrived(staging),
            failed: (reason) => this.#failed(staging, reason),
        };
        this.#staging.push(staging);
        return staging;
    }

    #arrived(staging: Staging): void {
        const ticket = staging.ticket;
        if (!ticket) return; // closed in the meantime
        ticket.state = 'here';
        if (ticket.dropped) {
            this.#giveBack(ticket);
            this.#remove(ticket);
        }
        this.#owner.happened();
    }

    #failed(staging: Staging, reason: unknown): void {
        const ticket = staging.ticket;
        if (!ticket) return;
        staging.ticket = null;
        this.#forget(staging);
        ticket.staging = null;
        ticket.state = 'failed';
        if (ticket.dropped) this.#remove(ticket);
        this.#owner.readFailed(reason instanceof Error ? reason.message : String(reason));
    }

    #giveBack(ticket: Ticket): void {
        const staging = ticket.staging!;
        ticket.staging = null;
        staging.ticket = null;
        staging.busy = false;
        if (staging.bytes > LARGEST_KEPT) this.#forget(staging);
        else staging.buffer.unmap();
    }

    #forget(staging: Staging): void {
        staging.buffer.destroy();
        this.#staging.splice(this.#staging.indexOf(staging), 1);
    }

    #remove(ticket: Ticket): void {
        this.#tickets.remove(ticket.id);
        this.#unused.push(ticket);
    }
}
