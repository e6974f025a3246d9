// `gemmule check` in a page: compares the logits of a fixture's prompts and their greedy continuation with what the reference
// computed (*.expect.gguf). All engines of a page share one device.

import { Core } from '../../src/core/core.ts';
import type { CoreEngine } from '../../src/core/engine.ts';
import type { CoreAdapter } from '../../src/core/adapter.ts';
import type { ByteSource, EngineOptions, SessionOptions } from '../../src/core/types.ts';
import { pageGpu } from './page_gpu.ts';

export interface CheckOptions extends Pick<EngineOptions, 'backend' | 'precise' | 'gpuDisable' | 'gpuMemory'> {
    kv?: SessionOptions['kv'];
    /** Computes the first prompt also token by token. */
    tokenByToken?: boolean;
    /** Folders of adapters. */
    adapters?: string[];
}

export interface CheckReport {
    device: string;
    /** Relative error by name: of a prompt's last position computed as a batch, of all positions computed one by one, and of the positions
     * that `rows` lists. */
    errors: Record<string, number>;
    /** How many greedy continuations match the reference, and how many there are. */
    greedy: [number, number];
}

// ---- expectations: a GGUF with I32 and F32 tensors ----

type Numbers = Int32Array | Float32Array;

export function readExpectation(file: ArrayBuffer): Map<string, Numbers> {
    const view = new DataView(file);
    const scalars: Record<number, number> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
    let at = 8;
    const u32 = () => view.getUint32((at += 4) - 4, true);
    const u64 = () => Number(view.getBigUint64((at += 8) - 8, true));
    const text = () => {
        const length = u64();
        return new TextDecoder().decode(new Uint8Array(file, (at += length) - length, length));
    };
    const skip = (type: number): void => {
        if (type === 8) text();
        else if (type === 9) {
            const item = u32();
            for (let count = u64(); count > 0; count--) skip(item);
        } else at += scalars[type]!;
    };
    const tensorCount = u64();
    for (let pairs = u64(); pairs > 0; pairs--) {
        text();
        skip(u32());
    }
    const infos = Array.from({ length: tensorCount }, () => {
        const name = text();
        const size = Array.from({ length: u32() }, u64).reduce((product, n) => product * n, 1);
        return { name, size, type: u32(), offset: u64() };
    });
    const data = Math.ceil(at / 32) * 32;
    return new Map(
        infos.map(({ name, size, type, offset }) => {
            const bytes = file.slice(data + offset, data + offset + 4 * size);
            return [name, type === 0 ? new Float32Array(bytes) : new Int32Array(bytes)];
        }),
    );
}

// ---- the check ----

function relativeError(got: ArrayLike<number>, want: ArrayLike<number>): number {
    let difference = 0;
    let size = 0;
    for (let i = 0; i < want.length; i++) {
        difference += (got[i]! - want[i]!) ** 2;
        size += want[i]! ** 2;
    }
    return got.length === want.length ? Math.sqrt(difference / size) : NaN;
}

const MOST_AT_ONCE = 64; // tokens; the plan for more would need further shaders

/** The error of the logits at the positions `rows` of one long prompt, which is computed from each of them to the next. */
async function checkRows(engine: CoreEngine, expected: Map<string, Numbers>): Promise<number> {
    const [ids, rows, logits] = [expected.get('ids') as Int32Array, expected.get('rows') as Int32Array, expected.get('logits') as Float32Array];
    const session = engine.session({ context: ids.length });
    const got = new Float32Array(logits.length);
    let computed = 0;
    for (const [i, row] of rows.entries()) {
        for (let end; computed <= row; computed = end) {
            end = Math.min(computed + MOST_AT_ONCE, row + 1);
            await session.append(ids.subarray(computed, end));
        }
        got.set(session.logits()!, i * engine.info.vocabulary);
    }
    session.free();
    return relativeError(got, logits);
}

/** Names of several adapters, as `gemmule check` knows them. */
const MIXES: Record<string, Record<string, number>> = { base: {}, embedding_head: { embedding: 1, head: 1 }, two: { 'tiny-dense-lora': 0.7, part: -0.3 } };

/** The logits of the last token with the adapters that their names tell: `logits.NAME`, or all of them. */
async function checkAdapters(engine: CoreEngine, expected: Map<string, Numbers>, adapters: Map<string, CoreAdapter>, report: CheckReport): Promise<void> {
    const session = engine.session({ context: 256 });
    for (const [key, logits] of expected) {
        if (!key.startsWith('logits')) continue;
        const name = key.slice('logits.'.length);
        const mix = MIXES[name] ?? Object.fromEntries((name ? [name] : [...adapters.keys()]).map((one) => [one, 1]));
        session.useAdapters(Object.keys(mix).map((one) => adapters.get(one)!), Object.values(mix));
        await session.set(expected.get('ids') as Int32Array);
        report.errors[key] = relativeError(session.logits()!, logits.subarray(logits.length - engine.info.vocabulary));
    }
    session.free();
}

export async function check(core: Core, model: ByteSource, expectations: ArrayBuffer[], options: CheckOptions = {}): Promise<CheckReport> {
    const { kv, tokenByToken = false, adapters: folders = [], ...engineOptions } = options;
    const engine = await core.open([model], { backend: 'gpu', ...engineOptions });
    const report: CheckReport = { device: engine.info.device, errors: {}, greedy: [0, 0] };
    const adapters = new Map<string, CoreAdapter>();
    for (const folder of folders) {
        const [weights, config] = await Promise.all(['adapter_model.safetensors', 'adapter_config.json'].map((name) => bytesOf(`${folder}/${name}`)));
        const name = folder.split('/').at(-1)!;
        adapters.set(name, engine.adapter(name, { weights: new Uint8Array(weights!), config: new Uint8Array(config!) }));
    }
    for (const file of expectations) {
        const expected = readExpectation(file);
        if (folders.length) await checkAdapters(engine, expected, adapters, report);
        else if (expected.has('rows')) report.errors['rows'] = await checkRows(engine, expected);
        else await checkPrompts(engine, expected, kv ? { context: 256, kv } : { context: 256 }, tokenByToken, report);
    }
    engine.close();
    return report;
}

async function checkPrompts(
    engine: CoreEngine,
    expected: Map<string, Numbers>,
    options: SessionOptions,
    tokenByToken: boolean,
    report: CheckReport,
): Promise<void> {
    const width = engine.info.vocabulary;
    for (let prompt = 0; expected.has(`ids.${prompt}`); prompt++) {
        const ids = expected.get(`ids.${prompt}`) as Int32Array;
        const logits = expected.get(`logits.${prompt}`) as Float32Array;
        const session = engine.session(options);
        await session.set(ids);
        report.errors[`prompt ${prompt}`] = relativeError(session.logits()!, logits.subarray(logits.length - width));

        if (prompt === 0 && tokenByToken) {
            const got = new Float32Array(logits.length);
            session.rollback(0);
            for (let i = 0; i < ids.length; i++) {
                await session.append(ids.subarray(i, i + 1));
                got.set(session.logits()!, i * width);
            }
            report.errors['prompt 0, token by token'] = relativeError(got, logits);
        }

        const greedy = expected.get(`greedy.${prompt}`) as Int32Array | undefined;
        if (greedy) {
            for await (const _ of session.replyTokens(ids, { sampling: { temperature: 0 }, maxTokens: greedy.length })) void _;
            const wrote = session.tokens().subarray(ids.length, ids.length + greedy.length);
            report.greedy[0] += wrote.every((id, i) => id === greedy[i]) ? 1 : 0;
            report.greedy[1]++;
        }
        session.free();
    }
}

export function memorySource(name: string, bytes: Uint8Array): ByteSource {
    return { name, size: bytes.length, read: async (offset, length) => bytes.slice(offset, offset + length) };
}

const bytesOf = async (url: string): Promise<ArrayBuffer> => (await fetch(url)).arrayBuffer();

/** In a page: fetches engine, model and expectations, and compares. */
export async function checkInPage(wasm: string, model: string, expectations: string[], options: CheckOptions = {}): Promise<CheckReport> {
    const core = await Core.create({ wasm: await bytesOf(wasm), gpu: pageGpu });
    return check(core, memorySource(model, new Uint8Array(await bytesOf(model))), await Promise.all(expectations.map(bytesOf)), options);
}
