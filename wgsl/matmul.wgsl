// Matrix times many columns: y[c, row] = Σ_i W[row, i] · x[c, i], with weights converted to f32, and f32 activations and sums.
//
//   weights  one tile of W (weights.wgsl), binding 0
//   x        f32, column c at x_offset + c · x_token_stride, binding 1
//   y        f32, column c at y_offset + c · y_token_stride; first_row is the tile's first row; binding 2
//   run      binding 3, or with EXPERTS groups;  dispatch: tile.wgsl
//
// Each step loads a chunk of 32 weights of each row, and the same part of each column, into workgroup memory, as quads of 4
// along k. COLUMNS is 4, CHUNKS 1.

#include "weights.wgsl"
#include "tile_product.wgsl"
#include "exact.wgsl"

#if VEC4
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
#endif

#include "columns.wgsl"

const quads   = 8u; // per chunk
const w_items = 4u * tile_rows;    // quads p and p + 4
const x_items = 8u * tile_columns; // quads
const w_slots = (w_items + threads - 1u) / threads;
const x_slots = (x_items + threads - 1u) / threads;

var<workgroup> w_tile: array<vec4<f32>, tile_rows * quads>;
var<workgroup> x_tile: array<vec4<f32>, tile_columns * quads>;

struct Fetched { w: array<Pair, w_slots>, x: array<vec4<f32>, x_slots> }

fn fetch(place: Place, first: u32, thread: u32) -> Fetched {
    let chunk = min(first, chunks_of_row() - 1u);
    var next: Fetched;
    for (var i = 0u; i < w_slots; i++) {
        let item = min(thread + i * threads, w_items - 1u);
        next.w[i] = pair_weights(w_row(place, item / 4u) * chunks_of_row() + chunk, item % 4u);
    }
    for (var i = 0u; i < x_slots; i++) {
        let item = min(thread + i * threads, x_items - 1u);
        next.x[i] = load_quad(x_column(place, item / quads), quads * chunk + item % quads);
    }
    return next;
}

fn keep(next: Fetched, first: u32, thread: u32) {
    for (var i = 0u; i < w_slots; i++) {
        let item = thread + i * threads;
        if (item >= w_items) { break; }
        w_tile[quad_at(item / 4u, item % 4u)]      = next.w[i].low;
        w_tile[quad_at(item / 4u, item % 4u + 4u)] = next.w[i].high;
    }
    for (var i = 0u; i < x_slots; i++) {
        let item = thread + i * threads;
        if (item < x_items) { x_tile[quad_at(item / quads, item % quads)] = next.x[i]; }
    }
}

const parts = quads;

struct Columns { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn columns_at(c: u32, quad: u32) -> Columns {
    return Columns(x_tile[quad_at(c, quad)], x_tile[quad_at(c + column_threads, quad)],
                   x_tile[quad_at(c + 2u * column_threads, quad)], x_tile[quad_at(c + 3u * column_threads, quad)]);
}

fn row_dots(row: u32, quad: u32, v: Columns) -> Sums {
    let w = w_tile[quad_at(row, quad)];
#if EXACT
    return Sums(rounded_four(w * v.a), rounded_four(w * v.b), rounded_four(w * v.c), rounded_four(w * v.d));
#else
    return Sums(dot(w, v.a), dot(w, v.b), dot(w, v.c), dot(w, v.d));
#endif
}
