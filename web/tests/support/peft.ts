/* Makes adapters: a PEFT folder's two files with small random matrices. */

export interface PeftTarget {
    /** Below the model: 'layers.0.mlp.down_proj'. */
    module: string;
    in: number;
    out: number;
}

/* Values between −size and size, the same each time. */
function noise(count: number, size: number, seed: number): Float32Array {
    let state = seed >>> 0 || 1;
    return Float32Array.from({ length: count }, () => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return (state / 2 ** 31 - 1) * size;
    });
}

export function makePeft(targets: PeftTarget[], { rank = 8, alpha = 16, size = 0.02, seed = 1, base = null as string | null } = {}): { config: Buffer; weights: Buffer } {
    const header: Record<string, object> = {}, parts: Buffer[] = [];
    let at = 0;
    for (const [i, { module, in: columns, out }] of targets.entries()) {
        for (const [half, shape] of [['A', [rank, columns]], ['B', [out, rank]]] as const) {
            const values = noise(shape[0] * shape[1], size, seed * 1000 + 2 * i + (half === 'A' ? 0 : 1));
            header[`base_model.model.model.${module}.lora_${half}.weight`] = { dtype: 'F32', shape, data_offsets: [at, (at += values.byteLength)] };
            parts.push(Buffer.from(values.buffer));
        }
    }
    const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    const names = [...new Set(targets.map(({ module }) => module.split('.').at(-1)!))];
    const config = { peft_type: 'LORA', r: rank, lora_alpha: alpha, target_modules: names, bias: 'none', base_model_name_or_path: base };
    return { config: Buffer.from(JSON.stringify(config)), weights: Buffer.concat([length, text, ...parts]) };
}
