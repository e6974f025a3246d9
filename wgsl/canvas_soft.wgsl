enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);

// A chunk of CANVAS_HEAD's expected embedding, with subgroup matrices: sums[c, i] = scale[c] · sums[c, i] + Σ_row p[c, row] · W[row, i]
// of each split of the chunk's rows; p and weights f16, sums f32.
//
//   weights  one tile of W (weights.wgsl), binding 0
//   scratch  as in canvas_chunk.wgsl, binding 1
//   run      binding 2;  numbers binding 3
//   dispatch (k / tile_values rounded up, splits, columns / tile_columns rounded up)
//
// 2 × 2 subgroups each compute 4 × 4 matrices: rows are the canvas's columns, columns the embedding's values.
// A step takes 32 rows of the table. The data of the next step is loaded before the products of this one.

const subgroups      = 4u;
const threads        = ${SUBGROUP}u * subgroups;
const matrix_rows    = ${MATRIX_ROWS}u;
const matrix_columns = ${MATRIX_COLUMNS}u;
const matrix_depth   = ${MATRIX_DEPTH}u;
const tile_columns   = 8u * matrix_rows;
const tile_values    = 8u * matrix_columns;
const step           = 32u;

override k:          u32;
override split_rows: u32; // a multiple of 32

@group(0) @binding(0) var<storage, read>       weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> scratch: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read>       run:     Run;
@group(0) @binding(3) var<storage, read>       numbers: array<f32>;

#include "weights.wgsl"
#include "halves.wgsl"
#include "run.wgsl"
#include "canvas_chunk.wgsl"

// ---- workgroup memory ----

// p by columns, then the weights by rows, each with one unused group of eight at its end, for other banks; at the end, one matrix of
// results per subgroup.
const p_stride = step / 8u + 1u;
const w_stride = tile_values / 8u + 1u;
const w_begin  = tile_columns * p_stride;
const block    = matrix_rows * matrix_columns / 4u;
const size     = max(w_begin + step * w_stride, subgroups * block);

var<workgroup> tile: array<vec4<u32>, size>;

const p_items   = tile_columns * (step / 8u);
const row_items = tile_values / 8u / item_eights;
const w_items   = step * row_items;
const p_slots   = (p_items + threads - 1u) / threads;
const w_slots   = (w_items + threads - 1u) / threads;

struct Fetched { p: array<vec4<u32>, p_slots>, w: array<Raw, w_slots> }

// Past the last column and the last value, the last ones; rows past the chunk's have zeros in p.
fn fetch(group: vec3<u32>, row: u32, end: u32, thread: u32) -> Fetched {
    let chunks = (k + 31u) / 32u;
    var next: Fetched;
    for (var i = 0u; i < p_slots; i++) {
        let item   = min(thread + i * threads, p_items - 1u);
        let column = min(group.z * tile_columns + item / (step / 8u), run.tokens - 1u);
        let at     = min(row, end - step) + item % (step / 8u) * 8u;
        next.p[i] = scratch[(weights_offset + (column * chunk_stride + at) / 2u) / 4u];
    }
    for (var i = 0u; i < w_slots; i++) {
        let item = min(thread + i * threads, w_items - 1u);
        let part = item % row_items * item_eights;
        let here = chunk_first() + min(row + item / row_items, chunk_rows() - 1u);
        next.w[i] = raw_item(here * chunks + min(group.x * (tile_values / 32u) + part / 4u, chunks - 1u), part % 4u);
    }
    return next;
}

fn keep(next: Fetched, thread: u32) {
    for (var i = 0u; i < p_slots; i++) {
        let item = thread + i * threads;
        if (p_items % threads != 0u && item >= p_items) { break; }
        tile[item / (step / 8u) * p_stride + item % (step / 8u)] = next.p[i];
    }
    for (var i = 0u; i < w_slots; i++) {
        let item = thread + i * threads;
        if (w_items % threads != 0u && item >= w_items) { break; }
        let at = w_begin + item / row_items * w_stride + item % row_items * item_eights;
        let h  = halves(next.w[i]);
#if QUANTISED
        tile[at]      = h.a;
        tile[at + 1u] = h.b;
        tile[at + 2u] = h.c;
        tile[at + 3u] = h.d;
#else
        tile[at] = h;
#endif
    }
}

// ---- products ----

alias Left   = subgroup_matrix_left<f16, ${MATRIX_DEPTH}, ${MATRIX_ROWS}>;
alias Right  = subgroup_matrix_right<f16, ${MATRIX_COLUMNS}, ${MATRIX_DEPTH}>;
alias Result = subgroup_matrix_result<f32, ${MATRIX_COLUMNS}, ${MATRIX_ROWS}>;

// Adds one matrix to the split's sums. Each four values are in the order 0 2 1 3.
fn put(group: vec3<u32>, subgroup: u32, lane: u32, row: u32, value: u32, results: Result) {
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&tile, subgroup * block, results, matrix_columns / 4u);
    workgroupBarrier();
    for (var i = lane; i < block; i += ${SUBGROUP}u) {
        let column = group.z * tile_columns + row + i / (matrix_columns / 4u);
        let at     = group.x * tile_values + value + i % (matrix_columns / 4u) * 4u;
        if (column < run.tokens && at < k) {
            var four = bitcast<vec4<f32>>(tile[subgroup * block + i]).xzyw / (half_factor * w_factor);
            let to   = (sums_offset + group.y * sums_split + column * sums_stride + at) / 4u;
            if (!chunk_is_first()) {
                let state = scratch[column_state(column) / 4u];
                four += bitcast<vec4<f32>>(scratch[to]) * bitcast<f32>(state[state_scale]);
            }
            scratch[to] = bitcast<vec4<u32>>(four);
        }
    }
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
    if (group.z * tile_columns >= run.tokens) { return; }
    let row   = subgroup % 2u * 4u * matrix_rows;
    let value = subgroup / 2u * 4u * matrix_columns;
    var m00: Result;
    var m01: Result;
    var m02: Result;
    var m03: Result;
    var m10: Result;
    var m11: Result;
    var m12: Result;
    var m13: Result;
    var m20: Result;
    var m21: Result;
    var m22: Result;
    var m23: Result;
    var m30: Result;
    var m31: Result;
    var m32: Result;
    var m33: Result;
    let all   = (chunk_rows() + step - 1u) / step * step;
    let begin = min(group.y * split_rows, all);
    let end   = min(begin + split_rows, all);
    if (begin < end) {
        var next = fetch(group, begin, end, thread);
        for (var at = begin; at < end; at += step) {
            workgroupBarrier();
            keep(next, thread);
            workgroupBarrier();
            next = fetch(group, at + step, end, thread);
            for (var depth = 0u; depth < step; depth += matrix_depth) {
                let p_at = row * p_stride + depth / 8u;
                let w_at = w_begin + depth * w_stride + value / 8u;
                let left0 = subgroupMatrixLoad<Left, row_major>(&tile, p_at, p_stride);
                let left1 = subgroupMatrixLoad<Left, row_major>(&tile, p_at + 1u * matrix_rows * p_stride, p_stride);
                let left2 = subgroupMatrixLoad<Left, row_major>(&tile, p_at + 2u * matrix_rows * p_stride, p_stride);
                let left3 = subgroupMatrixLoad<Left, row_major>(&tile, p_at + 3u * matrix_rows * p_stride, p_stride);
                let right0 = subgroupMatrixLoad<Right, row_major>(&tile, w_at, w_stride);
                m00 = subgroupMatrixMultiplyAccumulate(left0, right0, m00);
                m10 = subgroupMatrixMultiplyAccumulate(left1, right0, m10);
                m20 = subgroupMatrixMultiplyAccumulate(left2, right0, m20);
                m30 = subgroupMatrixMultiplyAccumulate(left3, right0, m30);
                let right1 = subgroupMatrixLoad<Right, row_major>(&tile, w_at + 1u * matrix_columns / 8u, w_stride);
                m01 = subgroupMatrixMultiplyAccumulate(left0, right1, m01);
                m11 = subgroupMatrixMultiplyAccumulate(left1, right1, m11);
                m21 = subgroupMatrixMultiplyAccumulate(left2, right1, m21);
                m31 = subgroupMatrixMultiplyAccumulate(left3, right1, m31);
                let right2 = subgroupMatrixLoad<Right, row_major>(&tile, w_at + 2u * matrix_columns / 8u, w_stride);
                m02 = subgroupMatrixMultiplyAccumulate(left0, right2, m02);
                m12 = subgroupMatrixMultiplyAccumulate(left1, right2, m12);
                m22 = subgroupMatrixMultiplyAccumulate(left2, right2, m22);
                m32 = subgroupMatrixMultiplyAccumulate(left3, right2, m32);
                let right3 = subgroupMatrixLoad<Right, row_major>(&tile, w_at + 3u * matrix_columns / 8u, w_stride);
                m03 = subgroupMatrixMultiplyAccumulate(left0, right3, m03);
                m13 = subgroupMatrixMultiplyAccumulate(left1, right3, m13);
                m23 = subgroupMatrixMultiplyAccumulate(left2, right3, m23);
                m33 = subgroupMatrixMultiplyAccumulate(left3, right3, m33);
            }
        }
    }
    put(group, subgroup, lane, row + 0u * matrix_rows, value + 0u * matrix_columns, m00);
    put(group, subgroup, lane, row + 0u * matrix_rows, value + 1u * matrix_columns, m01);
    put(group, subgroup, lane, row + 0u * matrix_rows, value + 2u * matrix_columns, m02);
    put(group, subgroup, lane, row + 0u * matrix_rows, value + 3u * matrix_columns, m03);
    put(group, subgroup, lane, row + 1u * matrix_rows, value + 0u * matrix_columns, m10);
    put(group, subgroup, lane, row + 1u * matrix_rows, value + 1u * matrix_columns, m11);
    put(group, subgroup, lane, row + 1u * matrix_rows, value + 2u * matrix_columns, m12);
    put(group, subgroup, lane, row + 1u * matrix_rows, value + 3u * matrix_columns, m13);
    put(group, subgroup, lane, row + 2u * matrix_rows, value + 0u * matrix_columns, m20);
    put(group, subgroup, lane, row + 2u * matrix_rows, value + 1u * matrix_columns, m21);
    put(group, subgroup, lane, row + 2u * matrix_rows, value + 2u * matrix_columns, m22);
    put(group, subgroup, lane, row + 2u * matrix_rows, value + 3u * matrix_columns, m23);
    put(group, subgroup, lane, row + 3u * matrix_rows, value + 0u * matrix_columns, m30);
    put(group, subgroup, lane, row + 3u * matrix_rows, value + 1u * matrix_columns, m31);
    put(group, subgroup, lane, row + 3u * matrix_rows, value + 2u * matrix_columns, m32);
    put(group, subgroup, lane, row + 3u * matrix_rows, value + 3u * matrix_columns, m33);
}
