// Matrix times many columns: y[c, row] = Σ_i W[row, i] · x[c, i], weights made f32, f32 activations and sums.
//
//   weights  one tile of W (weights.wgsl), binding 0
//   x        f32, column c at x_offset + c · x_token_stride, binding 1
//   y        f32, column c at y_offset + c · y_token_stride; the tile's first row is first_row; binding 2
//   run      binding 3, or with EXPERTS groups;  dispatch: tile.wgsl
//
// Step by step one chunk of 32 weights of each row, and the same of each column, go to workgroup memory, as quads of 4 along
// k. Quad q of row r stands at q xor (r mod 8), so that threads on neighbouring rows read different banks.

#include "weights.wgsl"
#include "tile.wgsl"

#if VEC4
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
#endif

#include "columns.wgsl"

var<workgroup> w_tile: array<vec4<f32>, tile_rows * 8u>;
var<workgroup> x_tile: array<vec4<f32>, tile_columns * 8u>;

fn quad_at(row: u32, quad: u32) -> u32 { return 8u * row + (quad ^ (row & 7u)); }

fn load_tiles(place: Place, chunk: u32, thread: u32) {
    let chunks = (k + 31u) / 32u;
    for (var i = thread; i < 4u * tile_rows; i += threads) {
        let row = i / 4u;
        let two = pair_weights((place.w + min(place.row + row, rows - 1u)) * chunks + chunk, i % 4u);
        w_tile[quad_at(row, i % 4u)]      = two.low;
        w_tile[quad_at(row, i % 4u + 4u)] = two.high;
    }
    for (var i = thread; i < 8u * tile_columns; i += threads) {
        x_tile[quad_at(i / 8u, i % 8u)] = load_quad(x_column(place, i / 8u), 8u * chunk + i % 8u);
    }
}

fn dots(w: vec4<f32>, x0: vec4<f32>, x1: vec4<f32>, x2: vec4<f32>, x3: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot(w, x0), dot(w, x1), dot(w, x2), dot(w, x3));
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let place = find_place(group, thread);
#if EXPERTS
    if (workgroupUniformLoad(&list).y <= place.column) { return; }
#else
    if (place.columns == 0u) { return; }
#endif
    let r = thread % row_threads;
    let c = thread / row_threads;
    var sums0 = vec4<f32>(0.0);
    var sums1 = vec4<f32>(0.0);
    var sums2 = vec4<f32>(0.0);
    var sums3 = vec4<f32>(0.0);

    for (var chunk = 0u; chunk < (k + 31u) / 32u; chunk++) {
        workgroupBarrier();
        load_tiles(place, chunk, thread);
        workgroupBarrier();
        for (var quad = 0u; quad < 8u; quad++) {
            let x0 = x_tile[quad_at(c, quad)];
            let x1 = x_tile[quad_at(c + column_threads, quad)];
            let x2 = x_tile[quad_at(c + 2u * column_threads, quad)];
            let x3 = x_tile[quad_at(c + 3u * column_threads, quad)];
            sums0 += dots(w_tile[quad_at(r, quad)], x0, x1, x2, x3);
#if TILE == 1
#else
            sums1 += dots(w_tile[quad_at(r + row_threads, quad)], x0, x1, x2, x3);
#if TILE == 4
            sums2 += dots(w_tile[quad_at(r + 2u * row_threads, quad)], x0, x1, x2, x3);
            sums3 += dots(w_tile[quad_at(r + 3u * row_threads, quad)], x0, x1, x2, x3);
#endif
#endif
        }
    }

    store(place, r, c, sums0);
#if TILE == 1
#else
    store(place, r + row_threads, c, sums1);
#if TILE == 4
    store(place, r + 2u * row_threads, c, sums2);
    store(place, r + 3u * row_threads, c, sums3);
#endif
#endif
}
