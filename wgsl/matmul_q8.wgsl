// Matrix times many columns with activations in 8 bits: y[c, row] = Σ_i W[row, i] · x[c, i]. Products of small integers are
// summed exactly (four at a time: dot4I8Packed), then scaled: Σ (scale·q + offset)·(d·p) = scale·d · Σ q·p + offset · d·Σ p.
//
//   weights  one tile of W, quantised (weights.wgsl), binding 0
//   x        as quantise.wgsl leaves it: p in rows of k/16 vec4<u32>, then from x_scales on (counted in 16 bytes) for each 32
//            values a vec4<f32>: d, d·Σp of the first 16, d·Σp of the last 16, 0; column c is row
//            x_offset + c · x_token_stride; binding 1
//   y        f32, column c at y_offset + c · y_token_stride; the tile's first row is first_row; binding 2
//   run      binding 3, or with EXPERTS groups;  dispatch: tile.wgsl
//
// A step takes two chunks of 32. In workgroup memory a row has four quads (16 values each); quad q of row r stands at
// q xor (r/2 mod 4), so that threads on neighbouring rows read different banks.

#include "weights.wgsl"
#include "tile.wgsl"

override x_scales: u32;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<u32>>;

#if SPAN == 16
alias Scales = vec4<f32>; // of the halves; weights: two scales, two offsets; activations: d, two sums, 0
#else
alias Scales = vec2<f32>; // weights: scale, offset; activations: d, sum
#endif

var<workgroup> w_tile:       array<vec4<u32>, tile_rows * 4u>;
var<workgroup> x_tile:       array<vec4<u32>, tile_columns * 4u>;
var<workgroup> w_scale_tile: array<Scales, tile_rows * 2u>;
var<workgroup> x_scale_tile: array<Scales, tile_columns * 2u>;

fn quad_at(row: u32, quad: u32) -> u32 { return 4u * row + (quad ^ ((row >> 1u) & 3u)); }

#if SPAN == 16
fn weight_scales(s: vec4<f32>) -> Scales { return s; }
fn column_scales(s: vec4<f32>) -> Scales { return s; }
#else
fn weight_scales(s: vec4<f32>) -> Scales { return s.xz; }
fn column_scales(s: vec4<f32>) -> Scales { return vec2<f32>(s.x, s.y + s.z); }
#endif

// Chunks past the end of a row count as zeros.
fn load_tiles(place: Place, first: u32, thread: u32) {
    let chunks = k / 32u;
    for (var i = thread; i < 2u * tile_rows; i += threads) {
        let row  = i / 2u;
        let part = i % 2u;
        var q = Packed(vec4<u32>(0u), vec4<u32>(0u));
        var s = vec4<f32>(0.0);
        if (first + part < chunks) {
            let at = (place.w + min(place.row + row, rows - 1u)) * chunks + first + part;
            q = chunk_packed(at);
            s = chunk_affine(at);
        }
        w_tile[quad_at(row, 2u * part)]      = q.low;
        w_tile[quad_at(row, 2u * part + 1u)] = q.high;
        w_scale_tile[i] = weight_scales(s);
    }
    // From the other end: the first threads have more to do above.
    for (var i = threads - 1u - thread; i < 2u * tile_columns; i += threads) {
        let column = i / 2u;
        let part   = i % 2u;
        var low  = vec4<u32>(0u);
        var high = vec4<u32>(0u);
        var s    = vec4<f32>(0.0);
        if (first + part < chunks) {
            let at = x_column(place, column) * chunks + first + part;
            low  = x[2u * at];
            high = x[2u * at + 1u];
            s    = bitcast<vec4<f32>>(x[x_scales + at]);
        }
        x_tile[quad_at(column, 2u * part)]      = low;
        x_tile[quad_at(column, 2u * part + 1u)] = high;
        x_scale_tile[i] = column_scales(s);
    }
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

struct Activations { a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32> } // 16 values of each of 4 columns

fn activations(c: u32, quad: u32) -> Activations {
    return Activations(x_tile[quad_at(c, quad)], x_tile[quad_at(c + column_threads, quad)],
                       x_tile[quad_at(c + 2u * column_threads, quad)], x_tile[quad_at(c + 3u * column_threads, quad)]);
}

fn dots(row: u32, quad: u32, v: Activations) -> vec4<i32> {
    let w = w_tile[quad_at(row, quad)];
    return vec4<i32>(dot16(w, v.a), dot16(w, v.b), dot16(w, v.c), dot16(w, v.d));
}

// Scales of 4 columns: d, and the sums.
struct ColumnScales {
    d:   vec4<f32>,
    low: vec4<f32>,
#if SPAN == 16
    high: vec4<f32>,
#endif
}

fn column_scales_of(c: u32, part: u32) -> ColumnScales {
    let a = x_scale_tile[2u * c + part];
    let b = x_scale_tile[2u * (c + column_threads) + part];
    let e = x_scale_tile[2u * (c + 2u * column_threads) + part];
    let f = x_scale_tile[2u * (c + 3u * column_threads) + part];
#if SPAN == 16
    return ColumnScales(vec4<f32>(a.x, b.x, e.x, f.x), vec4<f32>(a.y, b.y, e.y, f.y), vec4<f32>(a.z, b.z, e.z, f.z));
#else
    return ColumnScales(vec4<f32>(a.x, b.x, e.x, f.x), vec4<f32>(a.y, b.y, e.y, f.y));
#endif
}

// 32 weights of one row times 4 columns.
fn chunk_dots(row: u32, part: u32, low: Activations, high: Activations, scales: ColumnScales) -> vec4<f32> {
    let s = w_scale_tile[2u * row + part];
    let a = dots(row, 2u * part, low);
    let b = dots(row, 2u * part + 1u, high);
#if SPAN == 16
    var sum = (s.x * vec4<f32>(a) + s.y * vec4<f32>(b)) * scales.d;
#else
    var sum = (s.x * scales.d) * vec4<f32>(a + b);
#endif
#if AFFINE
#if SPAN == 16
    sum += s.z * scales.low + s.w * scales.high;
#else
    sum += s.y * scales.low;
#endif
#endif
    return sum;
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

    for (var first = 0u; first < k / 32u; first += 2u) {
        workgroupBarrier();
        load_tiles(place, first, thread);
        workgroupBarrier();
        for (var part = 0u; part < 2u; part++) {
            let low    = activations(c, 2u * part);
            let high   = activations(c, 2u * part + 1u);
            let scales = column_scales_of(c, part);
            sums0 += chunk_dots(r, part, low, high, scales);
#if TILE == 1
#else
            sums1 += chunk_dots(r + row_threads, part, low, high, scales);
#if TILE == 4
            sums2 += chunk_dots(r + 2u * row_threads, part, low, high, scales);
            sums3 += chunk_dots(r + 3u * row_threads, part, low, high, scales);
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
