enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);

// Matrix times many columns with subgroup matrices: y[c, row] = Σ_i W[row, i] · x[c, i], weights and activations f16, sums f32.
//
//   weights  one tile of W (weights.wgsl), binding 0
//   x        as halve.wgsl writes it: rows of f16, each scaled by a power of two whose inverse is in the row's vec4<f32>; these
//            start at x_scales (in units of 16 bytes); column c is row x_offset + c · x_token_stride; binding 1
//   y        f32, column c at y_offset + c · y_token_stride; first_row is the tile's first row; binding 2
//   run      binding 3, or with EXPERTS groups;  dispatch: tile.wgsl
//
// SUBGROUP_ROWS × SUBGROUP_COLUMNS subgroups (all of SUBGROUP threads) each compute BLOCK_ROWS × BLOCK_COLUMNS matrices of
// MATRIX_ROWS × MATRIX_COLUMNS, MATRIX_DEPTH along k at a time. A step takes CHUNKS chunks of 32 through workgroup memory, and
// loads the data for the next step before it computes this one's products.
//
// BACK: transposed weights, y[c, i] = Σ_row W[row, i] · x[c, row]. What is a row above is then a value i of the weights' rows (`rows` is their
// length), and k counts rows of the weights: chunks of them, from x_first on in the columns, which have x_chunks. A step takes 32 · CHUNKS rows
// through workgroup memory, in the order in which x has its values; y's are in the order 0 2 1 3 there.

const subgroups      = ${SUBGROUP_ROWS}u * ${SUBGROUP_COLUMNS}u;
const threads        = ${SUBGROUP}u * subgroups;
const matrix_rows    = ${MATRIX_ROWS}u;
const matrix_columns = ${MATRIX_COLUMNS}u;
const matrix_depth   = ${MATRIX_DEPTH}u;
const part_rows      = ${BLOCK_ROWS}u * matrix_rows; // of one subgroup
const part_columns   = ${BLOCK_COLUMNS}u * matrix_columns;
const tile_rows      = ${SUBGROUP_ROWS}u * part_rows;
const tile_columns   = ${SUBGROUP_COLUMNS}u * part_columns;
const step_chunks    = ${CHUNKS}u;

#include "weights.wgsl"
#include "tile.wgsl"
#include "halves.wgsl"

override x_scales: u32;
#if BACK
override w_chunks: u32;      // of a row of the weights
override x_chunks: u32;      // of a column
override x_first:  u32 = 0u; // the tile's first chunk in the columns
#endif
@group(0) @binding(1) var<storage, read_write> x: array<vec4<u32>>;

// ---- workgroup memory ----

// Each row or column has one unused group of eight f16 at its end, so that 8 rows read at the same time fall into different banks.
const stride  = 4u * step_chunks + 1u;
#if BACK
const w_stride = tile_rows / 8u + 1u; // from row to row of the weights
const x_begin  = 32u * step_chunks * w_stride;
#else
const x_begin = tile_rows * stride;
#endif
const block   = matrix_rows * matrix_columns / 4u; // a matrix of f32
const size    = max(x_begin + tile_columns * stride, subgroups * block);

// Rows of the weights, then the columns; at the end, one matrix of results per subgroup.
var<workgroup> tile: array<vec4<u32>, size>;

#if BACK
const row_items = tile_rows / 8u / item_eights;
const w_items   = 32u * step_chunks * row_items;
#else
const row_items = 4u * step_chunks / item_eights;
const w_items   = tile_rows * row_items;
#endif
const x_items   = tile_columns * 4u * step_chunks;
const w_slots   = (w_items + threads - 1u) / threads;
const x_slots   = (x_items + threads - 1u) / threads;

struct Fetched { w: array<Raw, w_slots>, x: array<vec4<u32>, x_slots> }

fn fetch(place: Place, first: u32, thread: u32) -> Fetched {
    let chunks = chunks_of_row();
    var next: Fetched;
    for (var i = 0u; i < w_slots; i++) {
        let item  = min(thread + i * threads, w_items - 1u);
        let part  = item % row_items * item_eights;
#if BACK
        let slot  = item / row_items;
        let w     = min(32u * first + (slot & ~3u) + (slot & 1u) * 2u + ((slot >> 1u) & 1u), k - 1u);
        let chunk = min(place.row / 32u + part / 4u, w_chunks - 1u);
        next.w[i] = raw_item((place.w + w) * w_chunks + chunk, part % 4u);
#else
        let chunk = min(first + part / 4u, chunks - 1u);
        next.w[i] = raw_item(w_row(place, item / row_items) * chunks + chunk, part % 4u);
#endif
    }
    for (var i = 0u; i < x_slots; i++) {
        let item = min(thread + i * threads, x_items - 1u);
        let part = min(4u * first + item % (4u * step_chunks), 4u * chunks - 1u);
#if BACK
        next.x[i] = x[4u * (x_chunks * x_column(place, item / (4u * step_chunks)) + x_first) + part];
#else
        next.x[i] = x[4u * chunks * x_column(place, item / (4u * step_chunks)) + part];
#endif
    }
    return next;
}

// Chunks past the end count as zeros.
fn keep(next: Fetched, first: u32, thread: u32) {
    for (var i = 0u; i < w_slots; i++) {
        let item = thread + i * threads;
        if (w_items % threads != 0u && item >= w_items) { break; }
#if BACK
        let at = item / row_items * w_stride + item % row_items * item_eights;
#else
        let at = item / row_items * stride + item % row_items * item_eights;
#endif
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
    for (var i = 0u; i < x_slots; i++) {
        let item = thread + i * threads;
        if (x_items % threads != 0u && item >= x_items) { break; }
        let part = item % (4u * step_chunks);
        let here = step_chunks == 1u || first + part / 4u < chunks_of_row();
        tile[x_begin + item / (4u * step_chunks) * stride + part] = select(vec4<u32>(0u), next.x[i], here);
    }
}

// ---- products ----

alias Left   = subgroup_matrix_left<f16, ${MATRIX_DEPTH}, ${MATRIX_ROWS}>;
alias Right  = subgroup_matrix_right<f16, ${MATRIX_COLUMNS}, ${MATRIX_DEPTH}>;
alias Result = subgroup_matrix_result<f32, ${MATRIX_COLUMNS}, ${MATRIX_ROWS}>;

// Writes the results of one matrix to y. Workgroup memory holds them column by column.
fn put(place: Place, subgroup: u32, lane: u32, row: u32, column: u32, results: Result) {
    workgroupBarrier();
    subgroupMatrixStore<col_major>(&tile, subgroup * block, results, matrix_rows / 4u);
    workgroupBarrier();
    for (var i = lane; i < block; i += ${SUBGROUP}u) {
        let c = column + i / (matrix_rows / 4u);
        let r = row + i % (matrix_rows / 4u) * 4u;
        if (c < place.columns) {
            let scale = bitcast<f32>(x[x_scales + x_column(place, c)].x) / w_factor;
            let four  = bitcast<vec4<f32>>(tile[subgroup * block + i]) * scale;
            store(place, r, c, four.x);
#if BACK
            store(place, r + 1u, c, four.z);
            store(place, r + 2u, c, four.y);
#else
            store(place, r + 1u, c, four.y);
            store(place, r + 2u, c, four.z);
#endif
            store(place, r + 3u, c, four.w);
        }
    }
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
    let place = find_place(group, thread);
#if EXPERTS
    if (no_columns()) { return; }
#else
    if (place.columns == 0u) { return; }
#endif
    let row    = subgroup % ${SUBGROUP_ROWS}u * part_rows;
    let column = subgroup / ${SUBGROUP_ROWS}u * part_columns;
    var m00: Result;
    var m10: Result;
#if BLOCK_ROWS == 4
    var m20: Result;
    var m30: Result;
#endif
#if BLOCK_COLUMNS == 1
#else
    var m01: Result;
    var m11: Result;
#if BLOCK_ROWS == 4
    var m21: Result;
    var m31: Result;
#endif
#if BLOCK_COLUMNS == 4
    var m02: Result;
    var m12: Result;
#if BLOCK_ROWS == 4
    var m22: Result;
    var m32: Result;
#endif
    var m03: Result;
    var m13: Result;
#if BLOCK_ROWS == 4
    var m23: Result;
    var m33: Result;
#endif
#endif
#endif

    let chunks = find_chunks(group);
    var next = fetch(place, chunks.x, thread);
    for (var chunk = chunks.x; chunk < chunks.y; chunk += step_chunks) {
        workgroupBarrier();
        keep(next, chunk, thread);
        workgroupBarrier();
        next = fetch(place, chunk + step_chunks, thread);
        for (var depth = 0u; depth < 32u * step_chunks; depth += matrix_depth) {
            let x_at  = x_begin + column * stride + depth / 8u;
#if BACK
            let w_at  = depth * w_stride + row / 8u;
            let left0 = subgroupMatrixLoad<Left, col_major>(&tile, w_at, w_stride);
            let left1 = subgroupMatrixLoad<Left, col_major>(&tile, w_at + matrix_rows / 8u, w_stride);
#if BLOCK_ROWS == 4
            let left2 = subgroupMatrixLoad<Left, col_major>(&tile, w_at + 2u * matrix_rows / 8u, w_stride);
            let left3 = subgroupMatrixLoad<Left, col_major>(&tile, w_at + 3u * matrix_rows / 8u, w_stride);
#endif
#else
            let w_at  = row * stride + depth / 8u;
            let left0 = subgroupMatrixLoad<Left, row_major>(&tile, w_at, stride);
            let left1 = subgroupMatrixLoad<Left, row_major>(&tile, w_at + matrix_rows * stride, stride);
#if BLOCK_ROWS == 4
            let left2 = subgroupMatrixLoad<Left, row_major>(&tile, w_at + 2u * matrix_rows * stride, stride);
            let left3 = subgroupMatrixLoad<Left, row_major>(&tile, w_at + 3u * matrix_rows * stride, stride);
#endif
#endif
            let right0 = subgroupMatrixLoad<Right, col_major>(&tile, x_at, stride);
            m00 = subgroupMatrixMultiplyAccumulate(left0, right0, m00);
            m10 = subgroupMatrixMultiplyAccumulate(left1, right0, m10);
#if BLOCK_ROWS == 4
            m20 = subgroupMatrixMultiplyAccumulate(left2, right0, m20);
            m30 = subgroupMatrixMultiplyAccumulate(left3, right0, m30);
#endif
#if BLOCK_COLUMNS == 1
#else
            let right1 = subgroupMatrixLoad<Right, col_major>(&tile, x_at + matrix_columns * stride, stride);
            m01 = subgroupMatrixMultiplyAccumulate(left0, right1, m01);
            m11 = subgroupMatrixMultiplyAccumulate(left1, right1, m11);
#if BLOCK_ROWS == 4
            m21 = subgroupMatrixMultiplyAccumulate(left2, right1, m21);
            m31 = subgroupMatrixMultiplyAccumulate(left3, right1, m31);
#endif
#if BLOCK_COLUMNS == 4
            let right2 = subgroupMatrixLoad<Right, col_major>(&tile, x_at + 2u * matrix_columns * stride, stride);
            m02 = subgroupMatrixMultiplyAccumulate(left0, right2, m02);
            m12 = subgroupMatrixMultiplyAccumulate(left1, right2, m12);
#if BLOCK_ROWS == 4
            m22 = subgroupMatrixMultiplyAccumulate(left2, right2, m22);
            m32 = subgroupMatrixMultiplyAccumulate(left3, right2, m32);
#endif
            let right3 = subgroupMatrixLoad<Right, col_major>(&tile, x_at + 3u * matrix_columns * stride, stride);
            m03 = subgroupMatrixMultiplyAccumulate(left0, right3, m03);
            m13 = subgroupMatrixMultiplyAccumulate(left1, right3, m13);
#if BLOCK_ROWS == 4
            m23 = subgroupMatrixMultiplyAccumulate(left2, right3, m23);
            m33 = subgroupMatrixMultiplyAccumulate(left3, right3, m33);
#endif
#endif
#endif
        }
    }

    put(place, subgroup, lane, row, column, m00);
    put(place, subgroup, lane, row + matrix_rows, column, m10);
#if BLOCK_ROWS == 4
    put(place, subgroup, lane, row + 2u * matrix_rows, column, m20);
    put(place, subgroup, lane, row + 3u * matrix_rows, column, m30);
#endif
#if BLOCK_COLUMNS == 1
#else
    put(place, subgroup, lane, row, column + matrix_columns, m01);
    put(place, subgroup, lane, row + matrix_rows, column + matrix_columns, m11);
#if BLOCK_ROWS == 4
    put(place, subgroup, lane, row + 2u * matrix_rows, column + matrix_columns, m21);
    put(place, subgroup, lane, row + 3u * matrix_rows, column + matrix_columns, m31);
#endif
#if BLOCK_COLUMNS == 4
    put(place, subgroup, lane, row, column + 2u * matrix_columns, m02);
    put(place, subgroup, lane, row + matrix_rows, column + 2u * matrix_columns, m12);
#if BLOCK_ROWS == 4
    put(place, subgroup, lane, row + 2u * matrix_rows, column + 2u * matrix_columns, m22);
    put(place, subgroup, lane, row + 3u * matrix_rows, column + 2u * matrix_columns, m32);
#endif
    put(place, subgroup, lane, row, column + 3u * matrix_columns, m03);
    put(place, subgroup, lane, row + matrix_rows, column + 3u * matrix_columns, m13);
#if BLOCK_ROWS == 4
    put(place, subgroup, lane, row + 2u * matrix_rows, column + 3u * matrix_columns, m23);
    put(place, subgroup, lane, row + 3u * matrix_rows, column + 3u * matrix_columns, m33);
#endif
#endif
#endif
}
