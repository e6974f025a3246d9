#if SUBGROUPS
enable subgroups;
#endif
// Matrix times a few columns, fused with what comes after it; used when several sequences decode together, and for short prompts.
//
//   v[c, row] = Σ_i W[row, i] · x[c, i], times the factor behind the column with FACTORED: the weights are read once for COLUMNS columns
//   y[c, row] = GATE none: v[c, row], or cap · tanh(v[c, row] / cap) with CAP
//                          (clipped as clips.wgsl says)
//                    pair: gelu(v[c, row]) · v[c, rows + row], where W has 2 · rows rows     value: gelu(v[c, row]) · other[c, row]
//
//   CORRECTED: v also has what adapters add (corrections.wgsl)
//
//   weights  one tile of W, rows of k (weights.wgsl)     y  column c from y_offset + c · y_token_stride + first_row on
//   x        COLUMN given: in 8 bits, column c is row c (column_given.wgsl)
//            COLUMN f32: column c from x_offset + c · x_token_stride on
//   other    column c from other_offset + c · other_token_stride on     Q8_OUT: y is written in 8 bits (result_q8.wgsl)
//   dispatch (blocks of COLUMNS columns in x, so that those which read the same weights run together; row blocks in y, continued in z)
//
// `lanes` threads (a power of two) share four rows and take turns with their chunks, as many as in product.wgsl, so that a column is
// summed in the same order as alone. A thread unpacks a chunk of its rows once, and
// multiplies it with that chunk of COLUMNS columns (1, 2 or 4), which it finds in the cache. The next weights are requested before the
// current ones are used. The sums have names, since an array of them costs up to a third of the speed on NVIDIA's compiler. We assume that
// the threads of a subgroup are consecutive.

#include "weights.wgsl"
#include "unit.wgsl"
#include "curves.wgsl"

override k:                  u32;
override rows:               u32; // rows of y
override first_row:          u32 = 0u;
override w_first:            u32 = 0u; // row of the tile at which W begins, if it lies joined with others
override lanes:              u32;
override columns:            u32;
override x_offset:           u32 = 0u;
override x_token_stride:     u32 = 0u;
override y_offset:           u32 = 0u;
override y_token_stride:     u32 = 0u;
override other_offset:       u32 = 0u;
override other_token_stride: u32 = 0u;
override cap:                f32 = 1.0;
const threads = ${THREADS}u;
#if GATE == pair
const row_values = 2u; // values of a column of y that each thread computes
#else
const row_values = 4u;
#endif

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
#if GATE == value
@group(0) @binding(${OTHER_AT}) var<storage, read_write> other: array<f32>;
#endif

#include "clips.wgsl"
#include "lanes.wgsl"
#if CORRECTED
fn corrected_column(c: u32) -> u32 { return min(c, columns - 1u); }
#include "corrections.wgsl"
#endif

// A chunk of a row: as it is stored, and unpacked.
#if QUANTISED
struct Raw { quants: RawQuants, scales: vec4<u32> }
fn load_raw(chunk: u32) -> Raw { return Raw(raw_quants(chunk), raw_scales(chunk)); }
#else
struct Raw { chunk: u32 }
fn load_raw(chunk: u32) -> Raw { return Raw(chunk); }
#endif

#if COLUMN == given
#include "column_given.wgsl"
struct Chunk { q: Packed, s: vec4<f32> }
fn unpack_chunk(raw: Raw, chunk: u32) -> Chunk {
    return Chunk(unpack_quants(raw.quants), with_bias(unpack_scales(raw.scales, chunk)));
}
fn chunk_times(w: Chunk, column: Column) -> f32 { return quants_dot(w.q, w.s, column); }
fn column_of(c: u32, chunk: u32) -> Column {
    x_row = min(c, columns - 1u);
    return column_chunk(chunk);
}
#else
#include "columns.wgsl"
#include "quads_dot.wgsl"
#if QUANTISED
struct Chunk { v: Quads, s: vec4<f32> }
fn unpack_chunk(raw: Raw, chunk: u32) -> Chunk {
    return Chunk(unpacked_quads(unpack_quants(raw.quants)), with_bias(unpack_scales(raw.scales, chunk)));
}
fn chunk_times(w: Chunk, column: Column) -> f32 { return scaled_dot(w.v, w.s, column); }
#else
struct Chunk { v: Quads }
fn unpack_chunk(raw: Raw, chunk: u32) -> Chunk { return Chunk(chunk_quads(raw.chunk)); }
fn chunk_times(w: Chunk, column: Column) -> f32 { return plain_dot(w.v, column); }
#endif
fn column_of(c: u32, chunk: u32) -> Column {
    let v = load_chunk(x_offset + min(c, columns - 1u) * x_token_stride, chunk);
    return Column(v, half_sums(v));
}
#endif

fn factor_of(c: u32) -> f32 {
#if FACTORED
#if COLUMN == given
    return factor_behind(min(c, columns - 1u));
#else
    return factor_behind(x_offset + min(c, columns - 1u) * x_token_stride);
#endif
#else
    return 1.0;
#endif
}

// What y is in one row of column c; `v` and `second` are of a gate's two halves.
fn result_of(c: u32, row: u32, v: f32, second: f32) -> f32 {
#if GATE == pair
    return gelu(v) * second;
#elif GATE == value
    return gelu(v) * other[other_offset + min(c, columns - 1u) * other_token_stride + min(row, rows - 1u)];
#elif CAP
    return cap * precise_tanh(v / cap);
#else
    return clip_result(first_row + row, v);
#endif
}

// Writes the rows from `first` on of one column, and what comes after them. Every thread must call this.
fn put_column(c: u32, total: vec4<f32>, first: u32, block_first: u32, thread: u32) {
#if Q8_OUT
    workgroupBarrier();
    if (thread % lanes == 0u) {
        for (var r = 0u; r < row_values; r++) {
            results[thread / lanes * row_values + r] = result_of(c, first + r, total[r], total[(row_values + r) & 3u]);
        }
    }
    workgroupBarrier();
    if (c < columns) { write_results(c, block_first, threads / lanes * row_values, thread); }
#else
    if (thread % lanes != 0u || c >= columns) { return; }
    let left = min(row_values, rows - min(first, rows));
    for (var r = 0u; r < left; r++) {
        y[y_offset + c * y_token_stride + first_row + first + r] = result_of(c, first + r, total[r], total[(row_values + r) & 3u]);
    }
#endif
}

struct Rows { w0: Chunk, w1: Chunk, w2: Chunk, w3: Chunk }
fn rows_times(w: Rows, column: Column) -> vec4<f32> {
    return vec4<f32>(chunk_times(w.w0, column), chunk_times(w.w1, column), chunk_times(w.w2, column), chunk_times(w.w3, column));
}

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
    let block_first = (group.y + group.z * groups.y) * (threads / lanes * row_values);
    let first       = block_first + thread / lanes * row_values;

    // Threads past the last row read the last row.
    let row0 = (w_first + min(first, rows - 1u)) * chunks;
    let row1 = (w_first + min(first + 1u, rows - 1u)) * chunks;
#if GATE == pair
    let row2 = row0 + rows * chunks;
    let row3 = row1 + rows * chunks;
#else
    let row2 = (w_first + min(first + 2u, rows - 1u)) * chunks;
    let row3 = (w_first + min(first + 3u, rows - 1u)) * chunks;
#endif
    let start = min(lane, chunks - 1u);
    var raw0 = load_raw(row0 + start);
    var raw1 = load_raw(row1 + start);
    var raw2 = load_raw(row2 + start);
    var raw3 = load_raw(row3 + start);
    let c = group.x * ${COLUMNS}u;
    var factors = vec4<f32>(factor_of(c), factor_of(c + 1u), factor_of(c + 2u), factor_of(c + 3u)); // requested early, too
#if CORRECTED
    let early = early_corrections(slots_of_columns(c), c, first, lane);
#endif
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var at = lane; at < chunks; at += lanes) {
        let w = Rows(unpack_chunk(raw0, row0 + at), unpack_chunk(raw1, row1 + at), unpack_chunk(raw2, row2 + at), unpack_chunk(raw3, row3 + at));
        if (at + lanes < chunks) {
            raw0 = load_raw(row0 + at + lanes);
            raw1 = load_raw(row1 + at + lanes);
            raw2 = load_raw(row2 + at + lanes);
            raw3 = load_raw(row3 + at + lanes);
        }
        let x0 = column_of(c, at);
#if COLUMNS == 1
        sum0 += rows_times(w, x0);
#elif COLUMNS == 2
        let x1 = column_of(c + 1u, at);
        sum0 += rows_times(w, x0);
        sum1 += rows_times(w, x1);
#else
        let x1 = column_of(c + 1u, at);
        let x2 = column_of(c + 2u, at);
        let x3 = column_of(c + 3u, at);
        sum0 += rows_times(w, x0);
        sum1 += rows_times(w, x1);
        sum2 += rows_times(w, x2);
        sum3 += rows_times(w, x3);
#endif
    }
#if CORRECTED
    let fix = corrections(early, c, first, lane);
    sum0 = sum0 * factors.x + fix.c0;
    sum1 = sum1 * factors.y + fix.c1;
    sum2 = sum2 * factors.z + fix.c2;
    sum3 = sum3 * factors.w + fix.c3;
    factors = vec4<f32>(1.0); // they are in the sums; in a `let`, naga would refuse a component of this constant (wgpu issue 7793)
#endif
    put_column(c, reduce(sum0, thread, subgroup) * factors.x, first, block_first, thread);
#if COLUMNS == 1
#else
    put_column(c + 1u, reduce(sum1, thread, subgroup) * factors.y, first, block_first, thread);
#endif
#if COLUMNS == 4
    put_column(c + 2u, reduce(sum2, thread, subgroup) * factors.z, first, block_first, thread);
    put_column(c + 3u, reduce(sum3, thread, subgroup) * factors.w, first, block_first, thread);
#endif
}
