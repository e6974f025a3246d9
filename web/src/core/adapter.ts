// Adapters of an engine, and adapters that are only read: to describe them, or to write them in another form.

import { GemmuleError } from './errors.ts';
import type { Machine } from './machine.ts';
import { PEFT_CONFIG, PEFT_WEIGHTS } from './peft.ts';
import type { AdapterBytes, AdapterFile, AdapterForm, AdapterInfo, AdapterReport, CoreAdapterLike } from './types.ts';

const NO_CONFIG = new Uint8Array();

/* Calls with copies of the name and of both files in the module's memory. */
function withFiles<T>(machine: Machine, name: string, { weights, config }: AdapterBytes, call: (...where: [number, number, number, number, number]) => T): T {
    const { wasm } = machine;
    machine.check();
    return wasm.withText(name, (called) => wasm.with(weights, (at, size) => wasm.with(config ?? NO_CONFIG, (beside, configSize) =>
        machine.guard(() => call(called, at, size, beside, configSize)))));
}

function infoOf(machine: Machine, content: number): AdapterInfo {
    const { wasm } = machine;
    machine.call(wasm.exports.gmw_adapter_info(wasm.context, content));
    return wasm.resultJson<AdapterInfo>();
}

const FILE_NUMBERS = { gguf: 0, safetensors: 1, config: 2 } as const; // of src/wasm/adapters.c

function filesOf(machine: Machine, content: number, name: string, form: AdapterForm): AdapterFile[] {
    const { wasm } = machine;
    const write = (file: keyof typeof FILE_NUMBERS): Uint8Array<ArrayBuffer> => {
        try {
            machine.call(machine.guard(() => wasm.exports.gmw_adapter_write(wasm.context, content, FILE_NUMBERS[file])));
            return wasm.resultBytes();
        } finally {
            machine.release(() => wasm.exports.gmw_result_drop(wasm.context));
        }
    };
    if (form === 'gguf') return [{ name: `${name}.gguf`, bytes: write('gguf') }];
    if (form !== 'peft') throw new GemmuleError('BadArgument', `the form of an adapter must be gguf or peft, found '${String(form)}'`);
    return [{ name: PEFT_CONFIG, bytes: write('config') }, { name: PEFT_WEIGHTS, bytes: write('safetensors') }];
}

/* An adapter that no engine has: read, used, and freed. */
function withContent<T>(machine: Machine, name: string, bytes: AdapterBytes, use: (content: number) => T): T {
    const { exports, context } = machine.wasm;
    const content = withFiles(machine, name, bytes, (...files) => machine.make((out) => exports.gmw_adapter_read(context, ...files, out)));
    try {
        return use(content);
    } finally {
        machine.release(() => exports.gmw_adapter_drop(content));
    }
}

export function inspectAdapter(machine: Machine, engine: number, name: string, bytes: AdapterBytes): AdapterReport {
    const { wasm } = machine;
    return withContent(machine, name, bytes, (content) => {
        const info = infoOf(machine, content);
        const fits = wasm.exports.gmw_adapter_fits(wasm.context, engine, content) === 0;
        return { ...info, problem: fits ? '' : wasm.resultText() };
    });
}

export function convertAdapter(machine: Machine, name: string, bytes: AdapterBytes, form: AdapterForm): AdapterFile[] {
    return withContent(machine, name, bytes, (content) => filesOf(machine, content, name, form));
}

/** An adapter that an engine holds. */
export class CoreAdapter implements CoreAdapterLike {
    readonly info: AdapterInfo;
    readonly #machine: Machine;
    readonly #pointer: number;
    #freed = false;

    static load(machine: Machine, engine: number, name: string, bytes: AdapterBytes): CoreAdapter {
        const { exports, context } = machine.wasm;
        return new CoreAdapter(machine, withFiles(machine, name, bytes, (...files) =>
            machine.make((out) => exports.gmw_adapter_new(context, engine, ...files, out))));
    }

    private constructor(machine: Machine, pointer: number) {
        this.#machine = machine;
        this.#pointer = pointer;
        this.info = infoOf(machine, this.#content());
    }

    #content(): number {
        return this.#machine.wasm.exports.gmw_adapter_content(this.#pointer) >>> 0;
    }

    #check(): void {
        this.#machine.check();
        if (this.#freed) throw new GemmuleError('BadArgument', `the adapter '${this.info.name}' was freed`);
    }

    export(form: AdapterForm): AdapterFile[] {
        this.#check();
        return filesOf(this.#machine, this.#content(), this.info.name, form);
    }

    free(): void {
        if (this.#freed) return;
        this.#freed = true;
        this.#machine.release(() => this.#machine.wasm.exports.gmw_adapter_free(this.#pointer));
    }

    /** The addresses of a session's adapters. Throws unless each belongs to the session's engine, is not freed, and comes once. */
    static pointers(machine: Machine, adapters: readonly CoreAdapterLike[]): Uint32Array {
        return Uint32Array.from(adapters, (adapter, at) => {
            if (!(adapter instanceof CoreAdapter)) throw new GemmuleError('BadArgument', `adapter ${at} is not one that an engine has loaded`);
            const called = `the adapter '${adapter.info.name}'`;
            if (adapter.#machine !== machine) throw new GemmuleError('BadArgument', `${called} belongs to another engine: load it on this one`);
            adapter.#check();
            if (adapters.indexOf(adapter) !== at) throw new GemmuleError('BadArgument', `${called} is named twice: name it once, with the sum of the scales`);
            return adapter.#pointer;
        });
    }
}
