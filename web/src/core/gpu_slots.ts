// Ids of the GPU host: 2 bits of kind, 12 of generation, 18 of slot. A stale id is recognised because its slot's generation has moved on.
// A slot that has used up its generations retires, so that no stale id ever becomes valid again. 0 is no id.

const SLOT_BITS = 18;
const GENERATION_BITS = 12;
const LAST_SLOT = 2 ** SLOT_BITS - 1;
const LAST_GENERATION = 2 ** GENERATION_BITS - 1;

/** Tickets have the smallest ids: every token has one, and JavaScript allocates memory for numbers from 2^30 on. */
export const KIND = { ticket: 0, buffer: 1, pipeline: 2, group: 3 } as const;

export class Slots<T> {
    readonly #kind: number;
    readonly #things: (T | undefined)[] = [];
    readonly #generations: number[] = [];
    readonly #free: number[] = [];

    constructor(kind: number) {
        this.#kind = kind;
    }

    /** 0: no id is left. */
    add(thing: T): number {
        const slot = this.#free.pop() ?? this.#things.length;
        if (slot > LAST_SLOT) return 0;
        const generation = (this.#generations[slot] ?? 0) + 1;
        this.#generations[slot] = generation;
        this.#things[slot] = thing;
        return this.#id(slot);
    }

    find(id: number): T | undefined {
        const slot = id & LAST_SLOT;
        return slot < this.#things.length && this.#id(slot) === id >>> 0 ? this.#things[slot] : undefined;
    }

    remove(id: number): T | undefined {
        const thing = this.find(id);
        if (thing === undefined) return undefined;
        const slot = id & LAST_SLOT;
        this.#things[slot] = undefined;
        if (this.#generations[slot] !== LAST_GENERATION) this.#free.push(slot);
        return thing;
    }

    /** Removes and returns everything. */
    clear(): T[] {
        const all: T[] = [];
        for (const [slot, thing] of this.#things.entries()) {
            if (thing === undefined) continue;
            all.push(thing);
            this.remove(this.#id(slot));
        }
        return all;
    }

    #id(slot: number): number {
        return ((this.#kind << (SLOT_BITS + GENERATION_BITS)) | (this.#generations[slot]! << SLOT_BITS) | slot) >>> 0;
    }
}
