// What the matmul kernels share: which rows and columns a workgroup computes, and where those columns lie.
//
// A tile has TILE_ROWS rows and TILE_COLUMNS columns. Of 256 threads, COLUMN_THREADS times ROW_THREADS, each computes TILE rows
// (ROW_THREADS apart) of 4 columns (COLUMN_THREADS apart), so that neighbours read and write neighbouring rows.
//
//   dispatch (row tiles, 1, column tiles), and with EXPERTS (row tiles, experts of the weight tile, column tiles)
//
// EXPERTS: the columns of an expert are the pairs (token · used + slot) that `groups` lists for it: [experts + 1] places where
// each expert's list begins, then the lists. How many there are is known only here: column tiles that an expert does not
// fill return.

#include "run.wgsl"

override k:              u32;
override rows:           u32;
override first_row:      u32 = 0u;
override x_offset:       u32 = 0u;
override x_token_stride: u32 = 0u;
override y_offset:       u32 = 0u;
override y_token_stride: u32 = 0u;

const threads        = 256u;
const column_threads = ${COLUMN_THREADS}u;
const row_threads    = threads / column_threads;
const tile_rows      = row_threads * ${TILE}u;
const tile_columns   = column_threads * 4u;

@group(0) @binding(0) var<storage, read>       weights: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

#if EXPERTS
override all_experts:   u32; // of the model: the length of the lists' beginnings, less one
override first_expert:  u32 = 0u;
override used:          u32;
override x_row_stride:  u32 = 0u;
override y_row_stride:  u32 = 0u;
override groups_offset: u32 = 0u;
@group(0) @binding(3) var<storage, read_write> groups: array<u32>;

var<workgroup> list:  vec2<u32>; // the expert's: begin, length
var<workgroup> pairs: array<u32, tile_columns>;
#else
@group(0) @binding(3) var<storage, read>       run: Run;
#endif

// First row and column; how many columns there are from there on; the expert's first row in the weights' tile.
struct Place { row: u32, column: u32, columns: u32, w: u32 }

// Uniform over the workgroup; columns is 0 where there is nothing to do.
fn find_place(group: vec3<u32>, thread: u32) -> Place {
    let row    = group.x * tile_rows;
    let column = group.z * tile_columns;
#if EXPERTS
    if (thread == 0u) {
        let at = groups_offset + first_expert + group.y;
        list = vec2<u32>(groups[at], groups[at + 1u] - groups[at]);
    }
    let mine = workgroupUniformLoad(&list);
    let left = mine.y - min(column, mine.y);
    if (thread < min(left, tile_columns)) { pairs[thread] = groups[groups_offset + all_experts + 1u + mine.x + column + thread]; }
    workgroupBarrier();
    return Place(row, column, left, group.y * rows);
#else
#if OUTPUTS
    let count = run.outputs;
#else
    let count = run.tokens;
#endif
    return Place(row, column, count - min(column, count), 0u);
#endif
}

// Where column c of the tile lies in x and y; c beyond the columns that there are gives the last of them.
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
    return y_offset + (pairs[c] / used) * y_token_stride + (pairs[c] % used) * y_row_stride;
#else
    return y_offset + (place.column + c) * y_token_stride;
#endif
}

// One row of a thread's sums: 4 columns.
fn store(place: Place, row: u32, c: u32, sums: vec4<f32>) {
    if (place.row + row >= rows) { return; }
    for (var j = 0u; j < 4u; j++) {
        let column = c + j * column_threads;
        if (column < place.columns) { y[y_column(place, column) + first_row + place.row + row] = sums[j]; }
    }
}
