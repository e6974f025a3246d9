#if SUBGROUPS
enable subgroups;
#endif
// Matrix times one column, fused with what comes before and after it; used for decoding.
//
//   s = (x + b · b_weight / rms(b)) · factor with RESIDUAL, otherwise x; written to `sum` with SUM
//   c = s · weight · weight_factor / rms(s) with NORMED, s · the factor behind x with FACTORED, otherwise s    rms(u) = √(mean(u²) + eps)
//   v[row] = Σ_i W[row, i] · c[i]
//   y[row] = GATE none: v[row], or cap · tanh(v[row] / cap) with CAP
//                 pair: gelu(v[row]) · v[rows + row], where W has 2 · rows rows     value: gelu(v[row]) · other[row]
//
//   weights  one tile of W, rows of k (weights.wgsl)     x  f32, from x_offset on     y  from y_offset + first_row on
//   b, b_weight, weight, sum  f32 [k]     other  f32 from other_offset on
//   CORRECTED: v[row] also has what adapters add (corrections.wgsl)
//   Q8_OUT: y is written in 8 bits (result_q8.wgsl)     COLUMN given: x is in 8 bits already (column_given.wgsl)
//   dispatch (row blocks in x, continued in z; each workgroup strides over the blocks by the size of the dispatch; 1 or pairs in y)
//
// EXPERTS: W is [experts, rows, k], and this tile holds `experts` of them, starting with first_expert. There is one column for each
// pair (token, slot) of used · tokens: expert routes[token, slot], with x and y at that token and slot. Pairs of other tiles, and of
// tokens beyond the run's, are skipped.
//
// A workgroup computes the column itself and keeps it in workgroup memory, `segment` chunks of 32 at a time (all of it, if there is
// a norm), as f32 (COLUMN f32, column_f32.wgsl) or in 8 bits (COLUMN q8, column_q8.wgsl). The division by rms(s) comes after the
// rows are summed. `lanes` threads (a power of two) share ROWS rows and take turns with their chunks. Most of the time goes into
// waiting for memory, so everything is requested as early as possible: the first weights before the column is computed, the next
// ones before the current ones are used. We assume that the threads of a subgroup are consecutive.

#include "weights.wgsl"
#include "unit.wgsl"
#include "curves.wgsl"

override k:             u32;
override rows:          u32; // rows of y
override first_row:     u32 = 0u;
override w_first:       u32 = 0u; // row of the tile at which W begins, if it lies joined with others
override lanes:         u32;
override segment:       u32; // chunks; if there are several segments, a multiple of lanes
override x_offset:       u32 = 0u;
override x_token_stride: u32 = 0u;
override y_offset:       u32 = 0u;
override y_token_stride: u32 = 0u;
override other_offset:  u32 = 0u;
override eps:           f32 = 0.0;
override weight_factor: f32 = 1.0;
override cap:           f32 = 1.0;
const threads = ${THREADS}u;
const quads_each = ${QUADS_EACH}u; // quads of a segment that each thread computes

@group(0) @binding(0) var<storage, read>       weights: array<vec4<u32>>;
#if COLUMN == given
#elif VEC4
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
#endif
#if Q8_OUT
#include "result_q8.wgsl"
#else
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
#endif
#if RESIDUAL
@group(0) @binding(${B_AT}) var<storage, read_write> b: array<vec4<f32>>;
@group(0) @binding(${B_WEIGHT_AT}) var<storage, read> b_weight: array<vec4<f32>>;
@group(0) @binding(${NUMBERS_AT}) var<storage, read> numbers: array<f32>; // factor
#endif
#if NORMED
@group(0) @binding(${WEIGHT_AT}) var<storage, read> weight: array<vec4<f32>>;
#endif
#if SUM
@group(0) @binding(${SUM_AT}) var<storage, read_write> sum: array<vec4<f32>>;
#endif
#if GATE == value
@group(0) @binding(${OTHER_AT}) var<storage, read_write> other: array<f32>;
#endif
#if EXPERTS
#include "run.wgsl"
override experts:             u32;
override first_expert:        u32 = 0u;
override used:                u32;
override x_row_stride:        u32 = 0u;
override y_row_stride:        u32 = 0u;
override routes_offset:       u32 = 0u;
override routes_token_stride: u32 = 0u;
@group(0) @binding(${RUN_AT}) var<storage, read> run: Run;
@group(0) @binding(${ROUTES_AT}) var<storage, read_write> routes: array<i32>;
#endif

#if COLUMN == given
#else
#include "clips.wgsl"
#include "columns.wgsl"
#include "reduce.wgsl"
#endif

#include "lanes.wgsl"

#if NORMED
// Σ s²: stored before a barrier that is needed anyway, and added up after it.
var<workgroup> square_sums: array<f32, threads>;
#if SUBGROUPS
fn note_squares(squares: f32, thread: u32, subgroup: u32) { square_sums[thread / subgroup] = subgroupAdd(squares); }
fn squares_of_column(thread: u32, subgroup: u32) -> f32 {
    var total = 0.0;
    for (var i = 0u; i < (threads + subgroup - 1u) / subgroup; i++) { total += square_sums[i]; }
    return total;
}
#else
fn note_squares(squares: f32, thread: u32, subgroup: u32) { square_sums[thread] = squares; }
fn squares_of_column(thread: u32, subgroup: u32) -> f32 { return workgroup_sum(square_sums[thread], thread, subgroup); }
#endif
#endif

// A chunk of a row as it is stored.
#if QUANTISED
struct Raw { quants: RawQuants, scales: vec4<u32> }
fn load_raw(chunk: u32) -> Raw { return Raw(raw_quants(chunk), raw_scales(chunk)); }
#else
struct Raw { chunk: u32 }
fn load_raw(chunk: u32) -> Raw { return Raw(chunk); }
#endif

#if COLUMN == given
#include "column_given.wgsl"
#elif COLUMN == q8
#include "column_q8.wgsl"
#else
#include "column_f32.wgsl"
#endif

#if COLUMN == given
#else
// Each thread computes its quads of the chunks [begin, end). With `keep`, this workgroup writes the sum.
fn make_column(x_at: u32, begin: u32, end: u32, keep: bool, thread: u32, subgroup: u32) {
    let quads = 8u * (end - begin);
    var s: array<vec4<f32>, quads_each>;
    for (var j = 0u; j < quads_each; j++) {
        let i = thread + j * threads;
        s[j] = vec4<f32>(0.0);
        if (i < quads) { s[j] = load_quad(x_at, 8u * begin + i); }
    }
#if NORMED
    var gains: array<vec4<f32>, quads_each>;
    for (var j = 0u; j < quads_each; j++) { gains[j] = weight[min(thread + j * threads, k / 4u - 1u)]; }
#endif
#if RESIDUAL
    let factor = numbers[0];
    var branch: array<vec4<f32>, quads_each>;
    var b_gains: array<vec4<f32>, quads_each>;
    var b_squares = 0.0;
    for (var j = 0u; j < quads_each; j++) {
        let i = thread + j * threads;
        branch[j] = vec4<f32>(0.0);
        if (i < k / 4u) { branch[j] = b[i]; }
        b_gains[j] = b_weight[min(i, k / 4u - 1u)];
    }
    for (var j = 0u; j < quads_each; j++) { b_squares += dot(branch[j], branch[j]); }
    let b_scale = inverseSqrt(workgroup_sum(b_squares, thread, subgroup) / f32(k) + eps);
    for (var j = 0u; j < quads_each; j++) { s[j] = (s[j] + branch[j] * (b_scale * b_gains[j])) * factor; }
#endif
    var squares = 0.0;
    for (var j = 0u; j < quads_each; j++) {
        let i     = thread + j * threads;
        let there = i < quads;
        var c     = s[j];
#if SUM
        if (keep && i < k / 4u) { sum[i] = c; }
#endif
#if NORMED
        squares += dot(c, c);
        c *= gains[j];
#endif
        stage(i, c, there, thread, subgroup);
    }
#if NORMED
    note_squares(squares, thread, subgroup);
#endif
}
#endif

#if GATE == pair
const row_values = ${ROWS}u / 2u; // values of y that each thread computes
#else
const row_values = ${ROWS}u;
#endif
#if CORRECTED
fn corrected_column(c: u32) -> u32 { return 0u; }
#include "corrections.wgsl"
#endif

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup = 1u;
#endif
    let lane   = thread % lanes;
    let chunks = (k + 31u) / 32u;
    var x_at = x_offset;
    var y_at = y_offset + first_row;
    var w_at = w_first; // row of the tile
    var here = true;
#if EXPERTS
    let token = group.y / used;
    let slot  = group.y % used;
    here = token < run.tokens;
    if (here) {
        let expert = u32(routes[routes_offset + token * routes_token_stride + slot]) - first_expert; // smaller ids wrap to large ones
        here = expert < experts;
#if GATE == pair
        w_at = select(0u, expert * 2u * rows, here);
#else
        w_at = select(0u, expert * rows, here);
#endif
    }
    x_at += token * x_token_stride + slot * x_row_stride;
    y_at += token * y_token_stride + slot * y_row_stride;
#endif
#if COLUMN == given
    x_row = x_at;
#endif
    let mine = group.x + group.z * groups.x;

    let block_rows = threads / lanes * row_values;
    let blocks = (rows + block_rows - 1u) / block_rows;
#if FACTORED
    let scale = factor_behind(x_at);
#else
    var scale = 1.0;
#endif
#if CORRECTED
    let mask = slots_of_columns(0u);
#endif
    for (var block = mine; block < blocks; block += groups.x * groups.z) {
        let first = block * block_rows + thread / lanes * row_values;
        // Threads past the last row read the last row.
        let row0 = (w_at + min(first, rows - 1u)) * chunks;
#if GATE == pair
        let next = rows * chunks;
#if ROWS == 2
        let row1 = row0 + next;
#else
        let row1 = (w_at + min(first + 1u, rows - 1u)) * chunks;
        let row2 = row0 + next;
        let row3 = row1 + next;
#endif
#else
        let row1 = (w_at + min(first + 1u, rows - 1u)) * chunks;
#if ROWS == 4
        let row2 = (w_at + min(first + 2u, rows - 1u)) * chunks;
        let row3 = (w_at + min(first + 3u, rows - 1u)) * chunks;
#endif
#endif
        var at = lane;
        let start = min(lane, chunks - 1u);
        var raw0 = load_raw(row0 + start);
        var raw1 = load_raw(row1 + start);
#if ROWS == 4
        var raw2 = load_raw(row2 + start);
        var raw3 = load_raw(row3 + start);
#endif

#if CORRECTED
        let early = early_corrections(mask, 0u, first, lane);
#endif
        var sums = vec4<f32>(0.0);
        for (var begin = 0u; begin < chunks; begin += segment) {
            let end = min(begin + segment, chunks);
#if COLUMN == given
#else
            if (block == mine || chunks > segment) {
                if (begin > 0u || block != mine) { workgroupBarrier(); }
                make_column(x_at, begin, end, mine == 0u && block == 0u && group.y == 0u, thread, subgroup);
                workgroupBarrier();
            }
#endif
            for (; at < end && here; at += lanes) {
                let column = column_chunk(at - begin);
                let now0 = raw0;
                let now1 = raw1;
#if ROWS == 4
                let now2 = raw2;
                let now3 = raw3;
#endif
                if (at + lanes < chunks) {
                    raw0 = load_raw(row0 + at + lanes);
                    raw1 = load_raw(row1 + at + lanes);
#if ROWS == 4
                    raw2 = load_raw(row2 + at + lanes);
                    raw3 = load_raw(row3 + at + lanes);
#endif
                }
                sums.x += chunk_dot(now0, row0 + at, column);
                sums.y += chunk_dot(now1, row1 + at, column);
#if ROWS == 4
                sums.z += chunk_dot(now2, row2 + at, column);
                sums.w += chunk_dot(now3, row3 + at, column);
#endif
            }
        }
#if NORMED
        if (block == mine) { scale = weight_factor * inverseSqrt(squares_of_column(thread, subgroup) / f32(k) + eps); }
#endif
#if CORRECTED
        let total = reduce(sums * scale + corrections(early, 0u, first, lane).c0, thread, subgroup);
#else
        let total = reduce(sums, thread, subgroup) * scale;
#endif
#if Q8_OUT
        workgroupBarrier();
        if (lane == 0u) {
            for (var r = 0u; r < row_values; r++) {
                results[thread / lanes * row_values + r] = gelu(total[r]) * total[row_values + r];
            }
        }
        workgroupBarrier();
        if (here) { write_results(y_at, block * block_rows, block_rows, thread); }
#else
        if (lane == 0u && here) {
            let left = min(row_values, rows - min(first, rows));
            for (var r = 0u; r < left; r++) {
#if GATE == pair
                y[y_at + first + r] = gelu(total[r]) * total[row_values + r];
#elif GATE == value
                y[y_at + first + r] = gelu(total[r]) * other[other_offset + first + r];
#elif CAP
                y[y_at + first + r] = cap * precise_tanh(total[r] / cap);
#else
                y[y_at + first + r] = total[r];
#endif
            }
        }
#endif
    }
}
