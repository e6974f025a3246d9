// Shared by the matmul kernels: which rows and columns a workgroup computes, where those columns are, and which part of k it
// covers.
//
//   dispatch (row tiles, splits, column tiles), and with EXPERTS (row tiles, entries of the list of tiles, 1)
//
// Splits divide k: each takes split_chunks chunks of 32, and writes its sums y_split_stride after those of the split before it;
// matmul_sum.wgsl adds them.
//
// EXPERTS: the columns of an expert are the pairs (token · used + slot) that `groups` lists for it (moe.wgsl, KIND group). Only the GPU knows
// how many pairs an expert has, so `groups` also lists the tiles. The dispatch covers the most there can be; workgroups past the last
// tile return, and so do those whose expert is not in this tile of the weights.
//
// BACK: an expert has k rows (matmul_matrix.wgsl).
// CHUNKED: the rows are those of a chunk of CANVAS_HEAD (canvas_chunk.wgsl), and the results of its first row go to the column's start.
//
// The including file declares the constants tile_rows, tile_columns and threads.

#include "run.wgsl"
#include "clips.wgsl"

override k:              u32;
override rows:           u32;
override first_row:      u32 = 0u;
override w_first:        u32 = 0u; // row of the tile at which the matrix begins, if it lies joined with others
override x_offset:       u32 = 0u;
override x_token_stride: u32 = 0u;
override y_offset:       u32 = 0u;
override y_token_stride: u32 = 0u;
override y_split_stride: u32 = 0u;
override split_chunks:   u32 = 0x10000000u;

@group(0) @binding(0) var<storage, read>       weights: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

#if EXPERTS
override all_experts:   u32; // experts of the model; `groups` has one start more
override first_expert:  u32 = 0u;
override tile_experts:  u32; // experts of the weights' tile
override used:          u32;
override x_row_stride:  u32 = 0u;
override y_row_stride:  u32 = 0u;
override groups_offset: u32 = 0u;
override groups_pairs:  u32; // where the pairs begin
@group(0) @binding(3) var<storage, read_write> groups: array<u32>;

var<workgroup> list:  vec4<u32>; // the expert's pairs: start, number; the tile's first column; the expert's number in the weights' tile
var<workgroup> pairs: array<u32, tile_columns>;
#else
@group(0) @binding(3) var<storage, read>       run: Run;
#endif

#if CHUNKED
@group(0) @binding(4) var<storage, read>       numbers: array<f32>;
#include "canvas_chunk.wgsl"
fn row_count() -> u32 { return chunk_rows(); }
#else
fn row_count() -> u32 { return rows; }
#endif

fn chunks_of_row() -> u32 { return (k + 31u) / 32u; }

// First row and column; the number of columns from there on; the expert's first row in the weights' tile; where the split's
// sums start.
struct Place { row: u32, column: u32, columns: u32, w: u32, y: u32 }

// Uniform over the workgroup; columns is 0 if there is nothing to do.
fn find_place(group: vec3<u32>, thread: u32) -> Place {
    let row    = group.x * tile_rows;
#if EXPERTS
    if (thread == 0u) {
        let entry = groups[groups_offset + all_experts + 1u + group.y];
        let expert = entry & 0xffffu;
        list = vec4<u32>();
        if (expert - first_expert < tile_experts) { // below first_expert, the difference wraps to a large number
            let begin = groups[groups_offset + expert];
            list = vec4<u32>(begin, groups[groups_offset + expert + 1u] - begin, (entry >> 16u) * tile_columns, expert - first_expert);
        }
    }
    let mine = workgroupUniformLoad(&list);
    let left = mine.y - min(mine.z, mine.y);
    for (var i = thread; i < min(left, tile_columns); i += threads) { pairs[i] = groups[groups_offset + groups_pairs + mine.x + mine.z + i]; }
    workgroupBarrier();
#if BACK
    return Place(row, mine.z, left, mine.w * k, y_offset);
#else
    return Place(row, mine.z, left, mine.w * rows, y_offset);
#endif
#else
    let column = group.z * tile_columns;
#if OUTPUTS
    let count = run.outputs;
#else
    let count = run.tokens;
#endif
#if CHUNKED
    return Place(row, column, select(0u, count - min(column, count), row < row_count()), chunk_first(), y_offset);
#else
    return Place(row, column, count - min(column, count), w_first, y_offset + group.y * y_split_stride);
#endif
#endif
}

#if EXPERTS
// Whether there is nothing to do; uniform, also for a compiler.
fn no_columns() -> bool {
    let mine = workgroupUniformLoad(&list);
    return mine.y <= mine.z;
}
#endif

// The workgroup's chunks of k: the first, and one past the last.
fn find_chunks(group: vec3<u32>) -> vec2<u32> {
#if EXPERTS
    return vec2<u32>(0u, chunks_of_row());
#else
    return min(vec2<u32>(group.y * split_chunks, (group.y + 1u) * split_chunks), vec2<u32>(chunks_of_row()));
#endif
}

// Row r of the tile in the weights; past the last row, the last row.
fn w_row(place: Place, r: u32) -> u32 { return place.w + min(place.row + r, row_count() - 1u); }

// Where column c of the tile is in x and y; past the last column, the last column.
fn x_column(place: Place, c: u32) -> u32 {
    let i = min(c, place.columns - 1u);
#if EXPERTS
    return x_offset + (pairs[i] / used) * x_token_stride + (pairs[i] % used) * x_row_stride;
#else
    return x_offset + (place.column + i) * x_token_stride;
#endif
}

fn y_column(place: Place, c: u32) -> u32 {
#if EXPERTS
    return place.y + (pairs[c] / used) * y_token_stride + (pairs[c] % used) * y_row_stride;
#else
    return place.y + (place.column + c) * y_token_stride;
#endif
}

fn store(place: Place, row: u32, column: u32, sum: f32) {
    if (place.row + row >= row_count() || column >= place.columns) { return; }
#if CHUNKED
    let to = place.row + row;
#else
    let to = first_row + place.row + row;
#endif
    y[y_column(place, column) + to] = clip_result(to, sum);
}
