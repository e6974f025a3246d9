// CANVAS_HEAD (src/graph/graph.h) in chunks of the table's rows. Of each chunk: scores, then update, then matmul_back.wgsl, which adds to the
// expected embedding.
//
//   KIND scores  z = t · softcap(W·x) of a chunk's rows: weights binding 0, x 1, scratch 2, run 3, numbers 4, settings 5
//                dispatch (chunk's rows / 64, 1, columns / 32)
//   KIND update  takes a chunk's scores into each column's state, and replaces them by e^(z − most); after the last chunk writes the
//                findings: scratch 0, findings 1, run 2, numbers 3, settings 4
//                dispatch (1, columns, 1)

#include "run.wgsl"
#include "canvas_chunk.wgsl"

const settings_values = 4u; // the inverse of the temperature, then bits: two words of the key, and the draw
const stream = 0x63616e76u;

#if KIND == scores
#include "weights.wgsl"
#include "unit.wgsl"
#include "curves.wgsl"

override k:              u32;
override x_offset:       u32 = 0u;
override x_token_stride: u32;
override cap:            f32 = 0.0; // 0: none

const threads = 128u;
const tile_rows = 64u;
const tile_columns = 32u;
const stride = 9u; // quads of a chunk, and one so that rows lie in different banks

@group(0) @binding(0) var<storage, read>       weights:  array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> x:        array<f32>;
@group(0) @binding(2) var<storage, read_write> scratch:  array<f32>;
@group(0) @binding(3) var<storage, read>       run:      Run;
@group(0) @binding(4) var<storage, read>       numbers:  array<f32>;
@group(0) @binding(5) var<storage, read_write> settings: array<f32>;

var<workgroup> w_tile: array<vec4<f32>, tile_rows * stride>;
var<workgroup> x_tile: array<vec4<f32>, tile_columns * stride>;

// Four values of a column from `at` on; beyond its end there are zeros.
fn x_quad(column: u32, at: u32) -> vec4<f32> {
    var four = vec4<f32>();
    if (column < run.tokens) {
        for (var i = 0u; i < 4u && at + i < k; i++) { four[i] = x[x_offset + column * x_token_stride + at + i]; }
    }
    return four;
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let rows = chunk_rows();
    let first = group.x * tile_rows;
    let column = group.z * tile_columns;
    if (first >= rows || column >= run.tokens) { return; }
    let chunks = (k + 31u) / 32u;
    let my_row = thread % 16u;
    let my_column = thread / 16u * 4u;
    var sums: array<vec4<f32>, 4>; // [row][column]
    for (var chunk = 0u; chunk < chunks; chunk++) {
        for (var i = thread; i < tile_rows * 4u; i += threads) {
            let row = i / 4u;
            let pair = pair_weights((chunk_first() + min(first + row, rows - 1u)) * chunks + chunk, i % 4u);
            w_tile[row * stride + i % 4u] = pair.low;
            w_tile[row * stride + i % 4u + 4u] = pair.high;
        }
        for (var i = thread; i < tile_columns * 8u; i += threads) {
            x_tile[i / 8u * stride + i % 8u] = x_quad(column + i / 8u, 32u * chunk + 4u * (i % 8u));
        }
        workgroupBarrier();
        for (var quad = 0u; quad < 8u; quad++) {
            let a = x_tile[(my_column + 0u) * stride + quad];
            let b = x_tile[(my_column + 1u) * stride + quad];
            let c = x_tile[(my_column + 2u) * stride + quad];
            let d = x_tile[(my_column + 3u) * stride + quad];
            for (var i = 0u; i < 4u; i++) {
                let w = w_tile[(my_row + 16u * i) * stride + quad];
                sums[i] += vec4<f32>(dot(w, a), dot(w, b), dot(w, c), dot(w, d));
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let row = first + my_row + 16u * i;
        for (var j = 0u; j < 4u && row < rows && column + my_column + j < run.tokens; j++) {
            let c = column + my_column + j;
            var z = sums[i][j];
            if (cap > 0.0) { z = cap * precise_tanh(z / cap); }
            scratch[c * chunk_stride + row] = z * settings[c * settings_values];
        }
    }
}
#else
#include "wide.wgsl"
#include "philox.wgsl"

const threads = 256u;
const most_noise = 23.0; // no noise is above 22.9

@group(0) @binding(0) var<storage, read_write> scratch:  array<f32>;
@group(0) @binding(1) var<storage, read_write> findings: array<u32>;
@group(0) @binding(2) var<storage, read>       run:      Run;
@group(0) @binding(3) var<storage, read>       numbers:  array<f32>;
@group(0) @binding(4) var<storage, read_write> settings: array<u32>;

var<workgroup> values: array<vec2<f32>, threads>; // of the likeliest and of the drawn one; then sums
var<workgroup> ids:    array<vec2<u32>, threads>;

// −ln(−ln(1 − u)), u = (word + ½) / 2^32. `log` is not exact near 1, so −ln(1 − u) is a series for small u: 2·atanh(s), s = u / (2 − u).
fn noise(word: u32) -> f32 {
    let u = (f32(word) + 0.5) / 4294967296.0;
    let rest = (f32(~word) + 0.5) / 4294967296.0; // 1 − u
    let s = u / (2.0 - u);
    let q = s * s;
    let series = 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q / 13.0))))));
    return -log(select(-log(rest), series, u < 0.5));
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
        best = vec2<f32>(scratch[state + state_most], scratch[state + state_best]);
        best_id = vec2<u32>(u32(scratch[state + state_likeliest]), u32(scratch[state + state_drawn]));
    }
    for (var row = thread; row < chunk_rows(); row += threads) {
        let z = scratch[column * chunk_stride + row];
        let id = chunk_id() + row;
        if (z > best.x) {
            best.x = z;
            best_id.x = id;
        }
        if (z + most_noise < best.y) { continue; }
        let words = philox_words(vec4<u32>(id / 4u, settings[at + 3u], 0u, stream), key);
        let score = z + noise(words[id % 4u]);
        if (score > best.y) {
            best.y = score;
            best_id.y = id;
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
    workgroupBarrier();
    var sums = vec2<f32>();
    for (var row = thread; row < chunk_rows(); row += threads) {
        let below = scratch[column * chunk_stride + row] - best.x;
        let p = exp(below);
        scratch[column * chunk_stride + row] = p;
        sums += vec2<f32>(p, p * below);
    }
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
        let lower = scratch[state + state_most] - best.x;
        let before = scratch[state + state_sum];
        scale = exp(lower);
        sum += scale * before;
        weighted += scale * (scratch[state + state_weighted] + before * lower);
    }
    scratch[state + state_most] = best.x;
    scratch[state + state_sum] = sum;
    scratch[state + state_weighted] = weighted;
    scratch[state + state_scale] = scale;
    scratch[state + state_likeliest] = f32(best_id.x);
    scratch[state + state_drawn] = f32(best_id.y);
    scratch[state + state_best] = best.y;
    if (!chunk_is_last()) { return; }
    findings[4u * column] = best_id.x;
    findings[4u * column + 1u] = best_id.y;
    findings[4u * column + 2u] = bitcast<u32>(max(log(sum) - weighted / sum, 0.0));
    findings[4u * column + 3u] = bitcast<u32>(1.0 / sum);
}
#endif
