// The product of a tile, by threads that keep their sums in registers. ROW_THREADS × COLUMN_THREADS threads each compute ROWS rows
// (ROW_THREADS apart) of COLUMNS columns (COLUMN_THREADS apart). 32 adjacent threads cover 8 rows × 4 columns of threads, so that
// they read little from workgroup memory at a time, and from different banks.
//
// A step takes CHUNKS chunks of 32 along k through workgroup memory. The next step's data is loaded before the products of this one
// and stored after them, so that loads and products overlap. The including file declares
//
//     struct Fetched                                      what one thread loads for a step
//     fn fetch(place, first_chunk, thread) -> Fetched     chunks past the end repeat the last one
//     fn keep(fetched, first_chunk, thread)               stores to workgroup memory; chunks past the end count as zeros
//     const parts                                         parts of a step
//     struct Columns
//     fn columns_at(c, part) -> Columns                   the thread's columns c + i · column_threads
//     fn row_dots(row, part, columns) -> Sums             one row times these columns

const row_threads    = ${ROW_THREADS}u;
const column_threads = ${COLUMN_THREADS}u;
const threads        = row_threads * column_threads;
const tile_rows      = row_threads * ${ROWS}u;
const tile_columns   = column_threads * ${COLUMNS}u;
const step_chunks    = ${CHUNKS}u;

#include "tile.wgsl"

#if COLUMNS == 8
alias Sums = mat2x4<f32>;
fn store_four(place: Place, row: u32, column: u32, four: vec4<f32>) {
#elif EXACT
alias Sums = mat4x4<f32>; // four lanes for each column
fn store_sums(place: Place, row: u32, column: u32, lanes: Sums) {
    let sums = transpose(lanes);
    let four = (sums[0] + sums[2]) + (sums[1] + sums[3]);
#else
alias Sums = vec4<f32>;
fn store_sums(place: Place, row: u32, column: u32, four: Sums) {
#endif
    store(place, row, column, four.x);
    store(place, row, column + column_threads, four.y);
    store(place, row, column + 2u * column_threads, four.z);
    store(place, row, column + 3u * column_threads, four.w);
}
#if COLUMNS == 8
fn store_sums(place: Place, row: u32, column: u32, sums: Sums) {
    store_four(place, row, column, sums[0]);
    store_four(place, row, column + 4u * column_threads, sums[1]);
}
#endif

// The quads of a row are contiguous. Their order depends on the row, so that 8 adjacent rows read different banks.
fn quad_at(row: u32, quad: u32) -> u32 { return quads * row + (quad ^ ((row / (8u / quads)) & (quads - 1u))); }

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let place = find_place(group, thread);
#if EXPERTS
    if (no_columns()) { return; }
#else
    if (place.columns == 0u) { return; }
#endif
    let block = thread / 32u;
    let r = thread % 8u + 8u * (block % (row_threads / 8u));
    let c = thread / 8u % 4u + 4u * (block / (row_threads / 8u));
    var sums0 = Sums();
    var sums1 = Sums();
    var sums2 = Sums();
    var sums3 = Sums();
    var sums4 = Sums();
    var sums5 = Sums();
    var sums6 = Sums();
    var sums7 = Sums();

    let chunks = find_chunks(group);
    var next = fetch(place, chunks.x, thread);
    for (var chunk = chunks.x; chunk < chunks.y; chunk += step_chunks) {
        workgroupBarrier();
        keep(next, chunk, thread);
        workgroupBarrier();
        next = fetch(place, chunk + step_chunks, thread);
        for (var part = 0u; part < parts; part++) {
            let v = columns_at(c, part);
            sums0 += row_dots(r, part, v);
#if ROWS == 1
#else
            sums1 += row_dots(r + row_threads, part, v);
#if ROWS == 2
#else
            sums2 += row_dots(r + 2u * row_threads, part, v);
            sums3 += row_dots(r + 3u * row_threads, part, v);
#if ROWS == 8
            sums4 += row_dots(r + 4u * row_threads, part, v);
            sums5 += row_dots(r + 5u * row_threads, part, v);
            sums6 += row_dots(r + 6u * row_threads, part, v);
            sums7 += row_dots(r + 7u * row_threads, part, v);
#endif
#endif
#endif
        }
    }

    store_sums(place, r, c, sums0);
#if ROWS == 1
#else
    store_sums(place, r + row_threads, c, sums1);
#if ROWS == 2
#else
    store_sums(place, r + 2u * row_threads, c, sums2);
    store_sums(place, r + 3u * row_threads, c, sums3);
#if ROWS == 8
    store_sums(place, r + 4u * row_threads, c, sums4);
    store_sums(place, r + 5u * row_threads, c, sums5);
    store_sums(place, r + 6u * row_threads, c, sums6);
    store_sums(place, r + 7u * row_threads, c, sums7);
#endif
#endif
#endif
}
