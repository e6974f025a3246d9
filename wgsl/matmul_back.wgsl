// Transposed matrix times columns: y[c, i] = Σ_row W[row, i] · d[c, row], with weights converted to f32, and f32 sums.
//
//   weights  one tile of W (weights.wgsl), binding 0
//   d        f32, column c at x_offset + c · x_token_stride, binding 1; the tile's first row is its value first_row
//   y        f32, column c at y_offset + c · y_token_stride, binding 2
//   run      binding 3, or with EXPERTS groups
//   dispatch (k / 64 rounded up, splits, columns / tile_columns rounded up), and with EXPERTS (k / 64, entries of the list of tiles, 1)
//
// A workgroup computes 64 values of up to 16 · EACH columns. Each step takes 16 rows: two chunks of 32 weights of each, and their part of
// the columns, in quads of columns. A thread has two quads of values of EACH columns: FOURS quads, or with 0 fewer than a quad. Splits
// divide the rows: each takes split_rows of them, and writes its sums y_split_stride after those of the split before it; matmul_sum.wgsl
// adds them.
//
// ONLINE: a chunk of CANVAS_HEAD (canvas_head.wgsl), whose rows `numbers` tell, binding 2. d is its scratch memory: the chunk's
// exponentials, the state of each column, and the sums of each split, sum · (the column's scale) + the new one.
//
// EXPERTS: as in tile.wgsl, the columns of an expert are the pairs that `groups` lists for it.

#include "weights.wgsl"
#include "run.wgsl"
#include "exact.wgsl"

override k:              u32;
override first_row:      u32 = 0u;
override w_first:        u32 = 0u; // row of the tile at which the matrix begins, if it lies joined with others
override x_offset:       u32 = 0u;
override x_token_stride: u32 = 0u;
override y_offset:       u32 = 0u;
override y_token_stride: u32 = 0u;
override y_split_stride: u32 = 0u;
override split_rows:     u32 = 0x10000000u;

const threads = 128u;
const step    = 16u;
const each    = ${EACH}u;
const tile_columns = 16u * each;
const stride = tile_columns / 4u + 1u; // of d_tile

@group(0) @binding(0) var<storage, read>       weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> d:       array<f32>;

#if ONLINE
#include "canvas_chunk.wgsl"
@group(0) @binding(2) var<storage, read>       numbers: array<f32>;
fn d_column(column: u32) -> u32 { return column * chunk_stride; }
#else
fn d_column(column: u32) -> u32 { return x_offset + column * x_token_stride + first_row; }
@group(0) @binding(2) var<storage, read_write> y:       array<f32>;
override rows: u32;
#endif

#if EXPERTS
override all_experts:  u32; // experts of the model; `groups` has one start more
override first_expert: u32 = 0u;
override tile_experts: u32; // experts of the weights' tile
override groups_pairs: u32; // where the pairs begin
@group(0) @binding(3) var<storage, read_write> groups: array<u32>;

var<workgroup> list:  vec4<u32>; // the tile's first pair in `groups`, its columns, the expert's first row in the weights' tile
#else
@group(0) @binding(3) var<storage, read>       run:    Run;
#endif

var<workgroup> w_tile: array<vec4<f32>, step * 16u>;         // [row, quad]
var<workgroup> d_tile: array<vec4<f32>, step * stride>; // [row, quad of columns]

struct Place { first: u32, columns: u32, w: u32 } // the first column, or pair; their number; the first row of the matrix in the tile

fn find_place(group: vec3<u32>, thread: u32) -> Place {
#if EXPERTS
    if (thread == 0u) {
        let entry = groups[all_experts + 1u + group.y];
        let expert = entry & 0xffffu;
        list = vec4<u32>();
        if (expert - first_expert < tile_experts) { // below first_expert, the difference wraps to a large number
            let first = (entry >> 16u) * tile_columns;
            let begin = groups[expert];
            let count = groups[expert + 1u] - begin;
            list = vec4<u32>(groups_pairs + begin + first, min(count - min(first, count), tile_columns), (expert - first_expert) * rows, 0u);
        }
    }
    let mine = workgroupUniformLoad(&list);
    return Place(mine.x, mine.y, mine.z);
#else
    let column = group.z * tile_columns;
#if OUTPUTS
    let count = run.outputs;
#else
    let count = run.tokens;
#endif
#if ONLINE
    return Place(column, min(count - min(column, count), tile_columns), chunk_first());
#else
    return Place(column, min(count - min(column, count), tile_columns), w_first);
#endif
#endif
}

// The number of a column among those of d and y; with experts their rows are contiguous: token · used + slot.
fn column_of(place: Place, c: u32) -> u32 {
#if EXPERTS
    return groups[place.first + c];
#else
    return place.first + c;
#endif
}

fn write_four(to: u32, i: u32, column: u32, four: vec4<f32>) {
#if ONLINE
    for (var j = 0u; j < 4u && i + j < k; j++) {
        if (chunk_is_first()) { d[to + i + j] = four[j]; }
        else { d[to + i + j] = rounded(d[to + i + j] * d[column_state(column) + state_scale]) + four[j]; }
    }
#else
    for (var j = 0u; j < 4u && i + j < k; j++) { y[to + i + j] = four[j]; }
#endif
}

fn write_column(place: Place, group: vec3<u32>, c: u32, quad: u32, first: vec4<f32>, second: vec4<f32>) {
    if (c >= place.columns) { return; }
#if ONLINE
    let to = sums_offset + column_of(place, c) * sums_stride + group.y * sums_split;
#else
    let to = y_offset + column_of(place, c) * y_token_stride + group.y * y_split_stride;
#endif
    write_four(to, 64u * group.x + 4u * quad, place.first + c, first);
    write_four(to, 64u * group.x + 32u + 4u * quad, place.first + c, second);
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let place = find_place(group, thread);
    if (place.columns == 0u) { return; }
#if ONLINE
    let rows = chunk_rows();
#endif
    let chunks = (k + 31u) / 32u;
    let quad = thread % 8u;
    let at = thread / 8u * each;
#if EXPERTS
    let begin = 0u;
    let end = rows;
#else
    let begin = min(group.y * split_rows, rows);
    let end = min(begin + split_rows, rows);
#endif

#if FOURS
    // both quads of each column; named, so that the compiler keeps them in registers
    var a0 = vec4<f32>();
    var a1 = vec4<f32>();
    var a2 = vec4<f32>();
    var a3 = vec4<f32>();
    var a4 = vec4<f32>();
    var a5 = vec4<f32>();
    var a6 = vec4<f32>();
    var a7 = vec4<f32>();
#if FOURS == 2
    var b0 = vec4<f32>();
    var b1 = vec4<f32>();
    var b2 = vec4<f32>();
    var b3 = vec4<f32>();
    var b4 = vec4<f32>();
    var b5 = vec4<f32>();
    var b6 = vec4<f32>();
    var b7 = vec4<f32>();
#endif
#else
    var sums: array<vec4<f32>, 2 * ${EACH}>;
#endif
    let w_row = thread / 8u;
    let w_chunk = min(2u * group.x + thread / 4u % 2u, chunks - 1u);
    let w_at = w_row * 16u + thread / 4u % 2u * 8u + thread % 4u;
    let d_row = thread % 16u;
    for (var row = begin; row < end; row += step) {
        let four = pair_weights((place.w + min(row + w_row, rows - 1u)) * chunks + w_chunk, thread % 4u);
        w_tile[w_at] = four.low;
        w_tile[w_at + 4u] = four.high;
        for (var q = thread / 16u; q < tile_columns / 4u; q += threads / 16u) {
            var four = vec4<f32>();
            for (var i = 0u; i < 4u; i++) {
                if (4u * q + i < place.columns && row + d_row < end) {
                    four[i] = d[d_column(column_of(place, 4u * q + i)) + row + d_row];
                }
            }
            d_tile[d_row * stride + q] = four;
        }
        workgroupBarrier();
        for (var r = 0u; r < step; r++) {
            let first = w_tile[r * 16u + quad];
            let second = w_tile[r * 16u + 8u + quad];
#if FOURS
            let four = d_tile[r * stride + at / 4u];
            a0 += rounded_four(first * four.x);
            a1 += rounded_four(second * four.x);
            a2 += rounded_four(first * four.y);
            a3 += rounded_four(second * four.y);
            a4 += rounded_four(first * four.z);
            a5 += rounded_four(second * four.z);
            a6 += rounded_four(first * four.w);
            a7 += rounded_four(second * four.w);
#if FOURS == 2
            let more = d_tile[r * stride + at / 4u + 1u];
            b0 += rounded_four(first * more.x);
            b1 += rounded_four(second * more.x);
            b2 += rounded_four(first * more.y);
            b3 += rounded_four(second * more.y);
            b4 += rounded_four(first * more.z);
            b5 += rounded_four(second * more.z);
            b6 += rounded_four(first * more.w);
            b7 += rounded_four(second * more.w);
#endif
#else
            for (var c = 0u; c < each; c++) {
                let value = d_tile[r * stride + (at + c) / 4u][(at + c) % 4u];
                sums[2u * c]      += first * value;
                sums[2u * c + 1u] += second * value;
            }
#endif
        }
        workgroupBarrier();
    }

#if FOURS
    write_column(place, group, at + 0u, quad, a0, a1);
    write_column(place, group, at + 1u, quad, a2, a3);
    write_column(place, group, at + 2u, quad, a4, a5);
    write_column(place, group, at + 3u, quad, a6, a7);
#if FOURS == 2
    write_column(place, group, at + 4u, quad, b0, b1);
    write_column(place, group, at + 5u, quad, b2, b3);
    write_column(place, group, at + 6u, quad, b4, b5);
    write_column(place, group, at + 7u, quad, b6, b7);
#endif
#else
    for (var c = 0u; c < each; c++) { write_column(place, group, at + c, quad, sums[2u * c], sums[2u * c + 1u]); }
#endif
}
