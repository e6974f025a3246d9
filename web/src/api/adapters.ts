/* Adapters (LoRA) of an engine: `engine.adapters`.
 *
 *     const tuned = await engine.adapters.load('https://…/tuned.gguf', { keep: true });
 *     await session.useAdapters([tuned, { adapter: 'polite', scale: 0.5 }]);
 */

import { PEFT_CONFIG, PEFT_WEIGHTS } from '../core/peft.ts';
import { GemmuleError } from '../core/errors.ts';
import type { AdapterFile, AdapterForm, AdapterInfo, AdapterReport } from '../core/types.ts';
import type { AdapterSource } from '../sources/adapter.ts';
import { AdapterStore, type KeptAdapter } from '../sources/adapter_store.ts';
import { askPersistence } from '../sources/persist.ts';
import type { Connection } from '../worker/connection.ts';
import type { AdapterSpec, AdapterUse, Progress } from '../worker/protocol.ts';

export interface AdapterOptions {
    /** By default the name of its folder or file. */
    name?: string;
    signal?: AbortSignal;
    /** Bytes of its files that were read. */
    onProgress?(progress: Progress): void;
}

/** An adapter that an engine has loaded. */
export class Adapter {
    readonly name: string;
    readonly info: AdapterInfo;
    /** Its number in the worker. @internal */
    readonly id: number;
    readonly #owner: Adapters;

    /** @internal */
    constructor(owner: Adapters, id: number, name: string, info: AdapterInfo) {
        this.#owner = owner;
        this.id = id;
        this.name = name;
        this.info = info;
    }

    /** @internal */
    belongsTo(owner: Adapters): boolean {
        return this.#owner === owner;
    }

    /** Its files: one GGUF, or adapter_config.json and adapter_model.safetensors. */
    export(form: AdapterForm): Promise<File[]> {
        return this.#owner.export(this, form);
    }

    /** Lets it go. Sessions that use it keep it until they use others or are closed. */
    free(): Promise<void> {
        return this.#owner.free(this);
    }
}

/** An adapter, or its name; with the factor of its change, which is 1 by default. */
export type AdapterChoice = Adapter | string | { adapter: Adapter | string; scale?: number };

const checkForm = (form: AdapterForm): void => {
    if (form !== 'gguf' && form !== 'peft') throw new GemmuleError('BadArgument', `the form of an adapter must be gguf or peft, found '${String(form)}'`);
};

/* The engine computes with 32-bit numbers. */
function checkScale(name: string, scale: number): void {
    const problem = !Number.isFinite(scale) ? 'must be a number' : !Number.isFinite(Math.fround(scale)) ? 'is out of range (at most 3.4e38)' : '';
    if (problem) throw new GemmuleError('BadArgument', `the scale of the adapter '${name}' ${problem}, found ${String(scale)}`);
}

const fileOf = ({ name, bytes }: AdapterFile): File => new File([bytes], name, { type: name.endsWith('.json') ? 'application/json' : 'application/octet-stream' });

export class Adapters {
    readonly #connection: Connection;
    readonly #specify: (source: AdapterSource) => Promise<AdapterSpec>;
    readonly #loaded = new Map<string, Adapter>();
    readonly #loading = new Set<string>();

    /** @internal */
    constructor(connection: Connection, specify: (source: AdapterSource) => Promise<AdapterSpec>) {
        this.#connection = connection;
        this.#specify = specify;
    }

    /** Loads an adapter; sessions and requests can use it from then on. One that is damaged, or was made for another model, is refused, and
     * the engine continues without it. `keep`: a copy stays in this browser; if that fails, the adapter is not loaded. */
    async load(source: AdapterSource, { keep = false, ...options }: AdapterOptions & { keep?: boolean } = {}): Promise<Adapter> {
        const files = await this.#describe(source, options, keep);
        this.#claim(files.name);
        try {
            const { adapter: id, info } = await this.#connection.call('adapterLoad', { files }, { signal: options.signal, onEvent: options.onProgress });
            if (keep) await this.#store(files, info).catch((thrown: unknown) => this.#forget(id).then(() => Promise.reject(thrown)));
            const adapter = new Adapter(this, id, files.name, info);
            this.#loaded.set(files.name, adapter);
            return adapter;
        } finally {
            this.#loading.delete(files.name);
        }
    }

    /* Two adapters with one name could not be told apart in requests. */
    #claim(name: string): void {
        if (this.#loaded.has(name) || this.#loading.has(name)) {
            throw new GemmuleError('BadArgument', `an adapter called '${name}' is already loaded: free it first, or give this one another name`);
        }
        this.#loading.add(name);
    }

    /** The loaded adapters. */
    list(): Adapter[] {
        return [...this.#loaded.values()];
    }

    get(name: string): Adapter | undefined {
        return this.#loaded.get(name);
    }

    async free(which: Adapter | string): Promise<void> {
        if (typeof which !== 'string' && !which.belongsTo(this)) throw foreign(which);
        const adapter = typeof which === 'string' ? this.#named(which) : which;
        if (this.#loaded.get(adapter.name) !== adapter) return;
        this.#loaded.delete(adapter.name);
        await this.#forget(adapter.id);
    }

    async #forget(id: number): Promise<void> {
        if (!this.#connection.dead) await this.#connection.call('adapterFree', { adapter: id });
    }

    /** What an adapter is, and whether it fits the loaded model (`problem`), without loading it. */
    async inspect(source: AdapterSource, options: AdapterOptions = {}): Promise<AdapterReport> {
        const files = await this.#describe(source, options, false);
        return this.#connection.call('adapterInspect', { files }, { signal: options.signal, onEvent: options.onProgress });
    }

    /** The files of an adapter, loaded or not: one GGUF, or adapter_config.json and adapter_model.safetensors. */
    async export(which: Adapter | AdapterSource, form: AdapterForm, options: AdapterOptions = {}): Promise<File[]> {
        checkForm(form);
        if (which instanceof Adapter) {
            this.#check(which);
            return (await this.#connection.call('adapterExport', { adapter: which.id, form }, { signal: options.signal })).map(fileOf);
        }
        const files = await this.#describe(which, options, false);
        return (await this.#connection.call('adapterConvert', { files, form }, { signal: options.signal, onEvent: options.onProgress })).map(fileOf);
    }

    // ---- kept in this browser ----

    /** Keeps a copy of an adapter in this browser, also of one that does not fit the loaded model. */
    async keep(source: AdapterSource, options: AdapterOptions = {}): Promise<KeptAdapter> {
        const files = await this.#describe(source, options, true);
        const { problem: _, ...info } = await this.#connection.call('adapterInspect', { files }, { signal: options.signal, onEvent: options.onProgress });
        return this.#store(files, info);
    }

    async kept(): Promise<KeptAdapter[]> {
        return (await AdapterStore.open()).list();
    }

    /** Deletes the copy in this browser. One that is loaded stays loaded. */
    async delete(kept: KeptAdapter | string): Promise<void> {
        await (await AdapterStore.open()).delete(typeof kept === 'string' ? kept : kept.key);
    }

    async #store({ name, weights, config }: AdapterSpec, info: AdapterInfo): Promise<KeptAdapter> {
        void askPersistence();
        const files = config ? [{ name: PEFT_WEIGHTS, spec: weights }, { name: PEFT_CONFIG, spec: config }] : [{ name: 'adapter.gguf', spec: weights }];
        const blobs = files.map(({ name: called, spec }) => {
            if (spec.kind !== 'blob') throw new GemmuleError('NotSupported', `cannot keep the adapter '${name}' here`);
            return { name: called, blob: spec.blob };
        });
        return (await AdapterStore.open()).add(name, info, blobs);
    }

    /* What is to be kept is downloaded first, and once. */
    async #describe(source: AdapterSource, { name, signal, onProgress }: AdapterOptions, keep: boolean): Promise<AdapterSpec> {
        if (name !== undefined && (typeof name !== 'string' || name.trim() === '')) throw new GemmuleError('BadArgument', 'the name of an adapter must be a text');
        if (name?.includes('+')) throw new GemmuleError('BadArgument', `the adapter's name '${name}' must not have a '+': requests name MODEL+ADAPTER`);
        const found = await this.#specify(source);
        const files = { ...found, name: name ?? found.name };
        if (!keep || (files.weights.kind === 'blob' && files.config?.kind !== 'url')) return files;
        const [weights, config] = (await this.#connection.call('adapterRead', { files }, { signal, onEvent: onProgress })).map(fileOf);
        return { name: files.name, weights: { kind: 'blob', blob: weights!, name: weights!.name }, config: config ? { kind: 'blob', blob: config, name: config.name } : null };
    }

    // ---- choices ----

    #named(name: string): Adapter {
        const adapter = this.#loaded.get(name);
        if (adapter) return adapter;
        const there = [...this.#loaded.keys()];
        const others = there.length === 0 ? 'none is loaded' : `loaded: ${there.join(', ')}`;
        throw new GemmuleError('NotFound', `there is no adapter '${name}'; ${others}`, { adapters: there });
    }

    #check(adapter: Adapter): void {
        if (!adapter.belongsTo(this)) throw foreign(adapter);
        if (this.#loaded.get(adapter.name) !== adapter) throw new GemmuleError('BadArgument', `the adapter '${adapter.name}' was freed`);
    }

    /** The adapters for a session. Throws unless each belongs to this engine, is still loaded, and comes once. @internal */
    resolve(choices: readonly AdapterChoice[]): { adapter: Adapter; scale: number }[] {
        if (!Array.isArray(choices)) throw new GemmuleError('BadArgument', 'adapters must be a list');
        const seen = new Set<Adapter>();
        return (choices as readonly AdapterChoice[]).map((choice) => {
            const { adapter: which, scale = 1 } = typeof choice === 'string' || choice instanceof Adapter ? { adapter: choice } : choice ?? {};
            const adapter = typeof which === 'string' ? this.#named(which) : which;
            if (!(adapter instanceof Adapter)) throw new GemmuleError('BadArgument', 'an adapter must be one of engine.adapters, or its name');
            this.#check(adapter);
            checkScale(adapter.name, scale);
            if (seen.has(adapter)) throw new GemmuleError('BadArgument', `the adapter '${adapter.name}' is named twice: name it once, with the sum of the scales`);
            seen.add(adapter);
            return { adapter, scale };
        });
    }
}

const foreign = (adapter: Adapter): GemmuleError => new GemmuleError('BadArgument', `the adapter '${adapter.name}' belongs to another engine: load it on this one`);

/** @internal */
export const wireAdapters = (choices: readonly { adapter: Adapter; scale: number }[]): AdapterUse[] =>
    choices.map(({ adapter, scale }) => ({ adapter: adapter.id, scale }));
