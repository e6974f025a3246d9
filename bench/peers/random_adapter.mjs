// A LoRA adapter with random values for a model, as a PEFT folder: what the comparison with llama.cpp adapts, and a test of the server.

import {execFileSync} from "node:child_process";
import {mkdirSync, writeFileSync} from "node:fs";
import {join} from "node:path";

const modules = {
    attn_q: "self_attn.q_proj", attn_k: "self_attn.k_proj", attn_v: "self_attn.v_proj", attn_output: "self_attn.o_proj",
    ffn_gate: "mlp.gate_proj", ffn_up: "mlp.up_proj", ffn_down: "mlp.down_proj",
};

// Uniform from -1 to 1, the same on every machine.
function* randomNumbers(state) {
    for (;;) {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        yield state / 2 ** 31 - 1;
    }
}

// All seven projections of every layer that has them, of the text model or of the vision tower. A and B have values up to about 1 / sqrt(columns), so that the change is `strength`
// times as large as x, whatever the width.
export function writeRandomAdapter(gemmule, model, folder, {rank = 16, strength = 0.3, seed = 1, vision = false} = {}) {
    const {tensors} = JSON.parse(execFileSync(gemmule, ["inspect", model, "--json", "--tensors"], {maxBuffer: 1 << 26}));
    const header = {__metadata__: {format: "pt"}}, pieces = [], next = randomNumbers(seed);
    let at = 0;
    for (const {name, shape} of tensors) {
        const [, layer, kind] = (vision ? /^v\.blk\.(\d+)\.(\w+)\.weight$/ : /^blk\.(\d+)\.(\w+)\.weight$/).exec(name) ?? [];
        const module = modules[kind === "attn_out" ? "attn_output" : kind];
        if (!module) continue;
        const [columns, rows] = shape, path = `base_model.model.model.${vision ? `vision_tower.encoder.layers.${layer}.${module}.linear` : `layers.${layer}.${module}`}`;
        for (const [half, height, width] of [["A", rank, columns], ["B", rows, rank]]) {
            const values = Float32Array.from({length: height * width}, () => next.next().value * Math.sqrt(3 / width) * (half === "B" ? strength : 1));
            header[`${path}.lora_${half}.weight`] = {dtype: "F32", shape: [height, width], data_offsets: [at, at + values.byteLength]};
            pieces.push(Buffer.from(values.buffer));
            at += values.byteLength;
        }
    }
    const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    mkdirSync(folder, {recursive: true});
    writeFileSync(join(folder, "adapter_model.safetensors"), Buffer.concat([length, text, ...pieces]));
    writeFileSync(join(folder, "adapter_config.json"), JSON.stringify({peft_type: "LORA", r: rank, lora_alpha: rank}));
}
