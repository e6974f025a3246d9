// Matrix times many columns with 8-bit activations: y[c, row] = Σ_i W[row, i] · x[c, i]. Products of small integers are summed
// exactly (four at a time, dot4I8Packed), then scaled: Σ (scale·q + offset)·(d·p) = scale·d · Σ q·p + offset · d·Σ p.
//
//   weights  one tile of W, quantised (weights.wgsl), binding 0
//   x        as quantise.wgsl writes it: p in rows of k/16 vec4<u32>, then, from x_scales on (in units of 16 bytes), for each 32
//            values a vec4<f32>: d, d·Σp of the first 16, d·Σp of the last 16, 0; column c is row
//            x_offset + c · x_token_stride; binding 1
//   y        f32, column c at y_offset + c · y_token_stride; first_row is the tile's first row; binding 2
//   run      binding 3, or with EXPERTS groups;  dispatch: tile.wgsl
//
// In workgroup memory a quad is 16 values. SPAN 16: each half of a chunk has its own scale; SPAN 32: one scale per chunk.

#include "weights.wgsl"
#include "tile_product.wgsl"

override x_scales: u32;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<u32>>;

#if SPAN == 16
alias Scales = vec4<f32>; // per half; weights: two scales, two offsets; activations: d, two sums, 0
fn weight_scales(s: vec4<f32>) -> Scales { return s; }
fn column_scales(s: vec4<f32>) -> Scales { return s; }
#else
alias Scales = vec2<f32>; // weights: scale, offset; activations: d, sum
fn weight_scales(s: vec4<f32>) -> Scales { return s.xz; }
fn column_scales(s: vec4<f32>) -> Scales { return vec2<f32>(s.x, s.y + s.z); }
#endif

const quads   = 2u * step_chunks;
const w_items = tile_rows * step_chunks;    // chunks
const x_items = tile_columns * quads;       // quads
const s_items = tile_columns * step_chunks; // chunks with their scales
const w_slots = (w_items + threads - 1u) / threads;
const x_slots = (x_items + threads - 1u) / threads;
const s_slots = (s_items + threads - 1u) / threads;

var<workgroup> w_tile:       array<vec4<u32>, tile_rows * quads>;
var<workgroup> x_tile:       array<vec4<u32>, tile_columns * quads>;
var<workgroup> w_scale_tile: array<Scales, w_items>; // [chunk, row]
var<workgroup> x_scale_tile: array<Scales, s_items>; // [chunk, column]

struct Fetched {
    chunk:    array<u32, w_slots>, // chunk of the weights' tile
    w:        array<RawQuants, w_slots>,
    w_scales: array<vec4<u32>, w_slots>,
    x:        array<vec4<u32>, x_slots>,
    x_scales: array<vec4<u32>, s_slots>,
}

fn fetch(place: Place, first: u32, thread: u32) -> Fetched {
    let chunks = chunks_of_row();
    var next: Fetched;
    for (var i = 0u; i < w_slots; i++) {
        let item = min(thread + i * threads, w_items - 1u);
        let at   = w_row(place, item / step_chunks) * chunks + min(first + item % step_chunks, chunks - 1u);
        next.chunk[i]    = at;
        next.w[i]        = raw_quants(at);
        next.w_scales[i] = raw_scales(at);
    }
    for (var i = 0u; i < x_slots; i++) {
        let item = min(thread + i * threads, x_items - 1u);
        next.x[i] = x[2u * chunks * x_column(place, item / quads) + min(2u * first + item % quads, 2u * chunks - 1u)];
    }
    for (var i = 0u; i < s_slots; i++) {
        let item = min(thread + i * threads, s_items - 1u);
        next.x_scales[i] = x[x_scales + chunks * x_column(place, item / step_chunks) + min(first + item % step_chunks, chunks - 1u)];
    }
    return next;
}

fn keep(next: Fetched, first: u32, thread: u32) {
    let chunks = chunks_of_row();
    for (var i = 0u; i < w_slots; i++) {
        let item = thread + i * threads;
        if (w_items % threads != 0u && item >= w_items) { break; }
        let row  = item / step_chunks;
        let part = item % step_chunks;
        let q    = unpack_quants(next.w[i]);
        let s    = unpack_scales(next.w_scales[i], next.chunk[i]);
        w_tile[quad_at(row, 2u * part)]      = q.low;
        w_tile[quad_at(row, 2u * part + 1u)] = q.high;
        w_scale_tile[part * tile_rows + row] = weight_scales(with_bias(s));
    }
    for (var i = 0u; i < x_slots; i++) {
        let item = thread + i * threads;
        if (x_items % threads != 0u && item >= x_items) { break; }
        x_tile[quad_at(item / quads, item % quads)] = next.x[i];
    }
    for (var i = 0u; i < s_slots; i++) {
        let item = thread + i * threads;
        if (s_items % threads != 0u && item >= s_items) { break; }
        let part = item % step_chunks;
        let s    = select(vec4<f32>(0.0), bitcast<vec4<f32>>(next.x_scales[i]), first + part < chunks);
        x_scale_tile[part * tile_columns + item / step_chunks] = column_scales(s);
    }
}

const parts = step_chunks;

struct Activations { a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32> } // 16 values of each of 4 columns

fn activations(c: u32, quad: u32) -> Activations {
    return Activations(x_tile[quad_at(c, quad)], x_tile[quad_at(c + column_threads, quad)],
                       x_tile[quad_at(c + 2u * column_threads, quad)], x_tile[quad_at(c + 3u * column_threads, quad)]);
}

// A chunk of 4 columns: its halves, d, and the sums.
struct Four {
    low:  Activations,
    high: Activations,
    d:    vec4<f32>,
    sum:  vec4<f32>,
#if SPAN == 16
    sum_high: vec4<f32>,
#endif
}

fn four_at(c: u32, part: u32) -> Four {
    let a = x_scale_tile[part * tile_columns + c];
    let b = x_scale_tile[part * tile_columns + c + column_threads];
    let e = x_scale_tile[part * tile_columns + c + 2u * column_threads];
    let f = x_scale_tile[part * tile_columns + c + 3u * column_threads];
    return Four(activations(c, 2u * part), activations(c, 2u * part + 1u),
#if SPAN == 16
                vec4<f32>(a.x, b.x, e.x, f.x), vec4<f32>(a.y, b.y, e.y, f.y), vec4<f32>(a.z, b.z, e.z, f.z));
#else
                vec4<f32>(a.x, b.x, e.x, f.x), vec4<f32>(a.y, b.y, e.y, f.y));
#endif
}

// One sum after another: this matches a dot-product instruction with an accumulator.
fn dot16(a: vec4<u32>, b: vec4<u32>, sum: i32) -> i32 {
    return dot4I8Packed(a.w, b.w) + (dot4I8Packed(a.z, b.z) + (dot4I8Packed(a.y, b.y) + (dot4I8Packed(a.x, b.x) + sum)));
}

fn dots(w: vec4<u32>, v: Activations, sums: vec4<i32>) -> vec4<i32> {
    return vec4<i32>(dot16(w, v.a, sums.x), dot16(w, v.b, sums.y), dot16(w, v.c, sums.z), dot16(w, v.d, sums.w));
}

fn four_dots(low: vec4<u32>, high: vec4<u32>, s: Scales, v: Four) -> vec4<f32> {
#if SPAN == 16
    let a = vec4<f32>(dots(low, v.low, vec4<i32>(0)));
    let b = vec4<f32>(dots(high, v.high, vec4<i32>(0)));
    var sum = (s.x * a + s.y * b) * v.d;
#if AFFINE
    sum += s.z * v.sum + s.w * v.sum_high;
#endif
#else
    var sum = (s.x * v.d) * vec4<f32>(dots(high, v.high, dots(low, v.low, vec4<i32>(0))));
#if AFFINE
    sum += s.y * v.sum;
#endif
#endif
    return sum;
}

#if COLUMNS == 8
struct Columns { a: Four, b: Four }

fn columns_at(c: u32, part: u32) -> Columns { return Columns(four_at(c, part), four_at(c + 4u * column_threads, part)); }

fn row_dots(row: u32, part: u32, v: Columns) -> Sums {
    let low  = w_tile[quad_at(row, 2u * part)];
    let high = w_tile[quad_at(row, 2u * part + 1u)];
    let s    = w_scale_tile[part * tile_rows + row];
    return Sums(four_dots(low, high, s, v.a), four_dots(low, high, s, v.b));
}
#else
alias Columns = Four;

fn columns_at(c: u32, part: u32) -> Columns { return four_at(c, part); }

fn row_dots(row: u32, part: u32, v: Columns) -> Sums {
    return four_dots(w_tile[quad_at(row, 2u * part)], w_tile[quad_at(row, 2u * part + 1u)], w_scale_tile[part * tile_rows + row], v);
}
#endif
