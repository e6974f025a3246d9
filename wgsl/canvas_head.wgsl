// CANVAS_HEAD (src/graph/graph.h) in chunks of the table's rows. Of each chunk: W·x by a kernel for products (tile.wgsl, CHUNKED), then
// update, then the sums of the expected embedding by canvas_soft.wgsl, with subgroup matrices, or matmul_back.wgsl. Finish comes last.
//
//   KIND update  z = t · softcap(W·x): takes a chunk's scores into each column's state, and replaces them by e^(z − most), or with HALVES
//                writes these as f16; after the last chunk writes the findings: scratch 0, findings 1, run 2, numbers 3, settings 4
//                dispatch (1, columns, 1)
//   KIND finish  the expected embedding, of the sums of all splits: scratch 0, soft 1, run 2
//                dispatch (k / 256, columns, 1)

#include "run.wgsl"
#if KIND == finish
const numbers = array<f32, 5>();
#endif
#include "canvas_chunk.wgsl"

const threads = 256u;

#if KIND == finish
#include "exact.wgsl"
override k:                 u32;
override splits:            u32;
override factor:            f32;
override soft_offset:       u32 = 0u;
override soft_token_stride: u32;

@group(0) @binding(0) var<storage, read_write> scratch: array<f32>;
@group(0) @binding(1) var<storage, read_write> soft:    array<f32>;
@group(0) @binding(2) var<storage, read>       run:     Run;

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let i = group.x * threads + thread;
    let column = group.y;
    if (i >= k || column >= run.tokens) { return; }
    var sum = 0.0;
    for (var split = 0u; split < splits; split++) { sum += scratch[sums_offset + split * sums_split + column * sums_stride + i]; }
    soft[soft_offset + column * soft_token_stride + i] = sum * quotient(factor, scratch[column_state(column) + state_sum]);
}
#else
#include "wide.wgsl"
#include "philox.wgsl"
#include "unit.wgsl"
#include "curves.wgsl"

override cap:         f32 = 0.0; // 0: none
override inverse_cap: f32 = 0.0;

const settings_values = 4u; // the inverse of the temperature, then bits: two words of the key, and the draw
const stream = 0x63616e76u;
const most_noise = 23.0; // no noise is above 22.9

@group(0) @binding(0) var<storage, read_write> scratch:  array<u32>; // of f32, and of pairs of f16
@group(0) @binding(1) var<storage, read_write> findings: array<u32>;
@group(0) @binding(2) var<storage, read>       run:      Run;
@group(0) @binding(3) var<storage, read>       numbers:  array<f32>;
@group(0) @binding(4) var<storage, read_write> settings: array<u32>;

fn read_value(at: u32) -> f32 { return bitcast<f32>(scratch[at]); }
fn write_value(at: u32, value: f32) { scratch[at] = bitcast<u32>(value); }

var<workgroup> values: array<vec2<f32>, threads>; // of the likeliest and of the drawn one; then sums
var<workgroup> ids:    array<vec2<u32>, threads>;

// −ln(−ln(1 − u)), u = (word + ½) / 2^32. Near u = 0, 1 − u would lose its digits.
fn noise(word: u32) -> f32 {
    let nearer = min(word, ~word);
    let u = (rounded(f32(nearer >> 16u) * 65536.0 + f32(nearer & 0xffffu)) + 0.5) * 0x1p-32f; // or 1 − u
    return -logarithm(select(-logarithm(u), log_ratio(quotient(u, 2.0 - u)), nearer == word));
}

// Whether the first is better: larger, or, if they are equal, with a lower id.
fn better(value: f32, id: u32, than: f32, than_id: u32) -> bool { return value > than || (value == than && id < than_id); }

fn merge(thread: u32, other: u32) {
    if (better(values[other].x, ids[other].x, values[thread].x, ids[thread].x)) {
        values[thread].x = values[other].x;
        ids[thread].x = ids[other].x;
    }
    if (better(values[other].y, ids[other].y, values[thread].y, ids[thread].y)) {
        values[thread].y = values[other].y;
        ids[thread].y = ids[other].y;
    }
}

// The likeliest and the drawn id of the chunk and of those before it, in entry 0.
fn find_best(column: u32, thread: u32) {
    let state = column_state(column);
    let at = column * settings_values;
    let key = vec2<u32>(settings[at + 1u], settings[at + 2u]);
    let known = !chunk_is_first();
    var best = vec2<f32>(-3.0e38);
    var best_id = vec2<u32>(0u);
    if (known) {
        best = vec2<f32>(read_value(state + state_most), read_value(state + state_best));
        best_id = vec2<u32>(u32(read_value(state + state_likeliest)), u32(read_value(state + state_drawn)));
    }
    let inverse = bitcast<f32>(settings[at]);
    for (var quad = thread; 4u * quad < chunk_rows(); quad += threads) { // a block of Philox: chunks begin at multiples of 4
        var z = vec4<f32>(-3.0e38);
        for (var i = 0u; i < 4u; i++) {
            let row = 4u * quad + i;
            if (row >= chunk_rows()) { break; }
            let place = column * chunk_stride + row;
            z[i] = read_value(place);
            if (cap > 0.0) { z[i] = cap * precise_tanh(z[i] * inverse_cap); }
            z[i] = rounded(z[i]) * inverse;
            write_value(place, z[i]);
            if (z[i] > best.x) {
                best.x = z[i];
                best_id.x = chunk_id() + row;
            }
        }
        if (max(max(z.x, z.y), max(z.z, z.w)) + most_noise < best.y) { continue; }
        let first = chunk_id() + 4u * quad;
        let words = philox_words(vec4<u32>(first / 4u, settings[at + 3u], 0u, stream), key);
        for (var i = 0u; i < 4u; i++) {
            let score = z[i] + noise(words[i]);
            if (score > best.y) {
                best.y = score;
                best_id.y = first + i;
            }
        }
    }
    values[thread] = best;
    ids[thread] = best_id;
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { merge(thread, thread + half); }
    }
    workgroupBarrier();
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.y;
    if (column >= run.tokens) { return; }
    let state = column_state(column);
    find_best(column, thread);
    let best = values[0];
    let best_id = ids[0];
    storageBarrier();
    workgroupBarrier();
    var sums = vec2<f32>();
#if HALVES
    // two rows of 16 bits each; the last step of the products may go beyond the rows, where they count nothing
    for (var pair = thread; pair < (chunk_rows() + 31u) / 32u * 16u; pair += threads) {
        var two = vec2<f32>();
        for (var i = 0u; i < 2u; i++) {
            let row = 2u * pair + i;
            if (row >= chunk_rows()) { continue; }
            let below = read_value(column * chunk_stride + row) - best.x;
            two[i] = exponential(below);
            sums += vec2<f32>(two[i], two[i] * below);
        }
        scratch[weights_offset + column * (chunk_stride / 2u) + pair] = pack2x16float(two * half_factor);
    }
#else
    for (var row = thread; row < chunk_rows(); row += threads) {
        let below = read_value(column * chunk_stride + row) - best.x;
        let p = exponential(below);
        write_value(column * chunk_stride + row, p);
        sums += vec2<f32>(p, rounded(p * below));
    }
#endif
    values[thread] = sums;
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { values[thread] += values[thread + half]; }
    }
    workgroupBarrier();
    if (thread != 0u) { return; }
    var scale = 0.0;
    var sum = values[0].x;
    var weighted = values[0].y;
    if (!chunk_is_first()) {
        let lower = read_value(state + state_most) - best.x;
        let before = read_value(state + state_sum);
        scale = exponential(lower);
        sum += rounded(scale * before);
        weighted += rounded(scale * (read_value(state + state_weighted) + rounded(before * lower)));
    }
    write_value(state + state_most, best.x);
    write_value(state + state_sum, sum);
    write_value(state + state_weighted, weighted);
    write_value(state + state_scale, scale);
    write_value(state + state_likeliest, f32(best_id.x));
    write_value(state + state_drawn, f32(best_id.y));
    write_value(state + state_best, best.y);
    if (!chunk_is_last()) { return; }
    findings[4u * column] = best_id.x;
    findings[4u * column + 1u] = best_id.y;
    let largest = inverse(sum);
    let entropy = max(logarithm(sum) - rounded(weighted * largest), 0.0); // rounding must not take it below 0
    findings[4u * column + 2u] = bitcast<u32>(select(sum, entropy, sum > 0.0)); // NaN stays NaN
    findings[4u * column + 3u] = bitcast<u32>(largest);
}
#endif
