// Matrix times many columns, with weights converted to f32, and f32 activations and sums: y[c, row] = Σ_i W[row, i] · x[c, i].
//
//   weights  one tile of W (weights.wgsl), binding 0
//   x        f32, column c at x_offset + c · x_token_stride, binding 1
//   y        f32, column c at y_offset + c · y_token_stride; first_row is the tile's first row; binding 2
//   run      binding 3;  dispatch: tile.wgsl
//
// ROW_THREADS × COLUMN_THREADS threads each keep a block of 8 rows (ROW_THREADS apart) × 8 columns (COLUMN_THREADS apart) in registers,
// so that 16 reads from workgroup memory feed 256 products. A step takes 16 values along k through workgroup memory; the next step's are
// requested before the products of this one. DOUBLE: they are then kept in a second place, so that a step has one barrier, not two.

const row_threads    = ${ROW_THREADS}u;
const column_threads = ${COLUMN_THREADS}u;
const threads        = row_threads * column_threads;
const tile_rows      = 8u * row_threads;
const tile_columns   = 8u * column_threads;

#include "weights.wgsl"
#include "tile.wgsl"

#if VEC4
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
#endif

#include "columns.wgsl"

const quads = 4u; // of a step
const w_stride = tile_rows + 1u; // odd, so that the quads of a row lie in different banks
const x_stride = tile_columns + 1u;
#if DOUBLE
const places = 2u;
#else
const places = 1u;
#endif
var<workgroup> w_tile: array<vec4<f32>, places * quads * w_stride>; // [place, quad, row]
var<workgroup> x_tile: array<vec4<f32>, places * quads * x_stride>; // [place, quad, column]

// ---- loading ----

#if QUANTISED
const row_items = 1u; // an item is a chunk, of which a step keeps a half
struct Raw { q: RawQuants, s: vec4<u32>, chunk: u32 }
#else
#if LOW == 32
const row_items = 4u; // an item is 16 bytes: a quad, or two
#else
const row_items = 2u;
#endif
alias Raw = vec4<u32>;
#endif
const w_slots = tile_rows * row_items / threads;
const x_slots = tile_columns * quads / threads;

struct Fetched { w: array<Raw, w_slots>, x: array<vec4<f32>, x_slots>, half: u32 }

// Step s has half s % 2 of chunk s / 2. Steps past the end repeat the last.
fn fetch(place: Place, step: u32, thread: u32) -> Fetched {
    let s = min(step, 2u * chunks_of_row() - 1u);
    var next: Fetched;
    next.half = s % 2u;
    for (var i = 0u; i < w_slots; i++) {
        let item = thread + i * threads;
        let row = w_row(place, item / row_items) * chunks_of_row();
#if QUANTISED
        next.w[i] = Raw(raw_quants(row + s / 2u), raw_scales(row + s / 2u), row + s / 2u);
#else
        next.w[i] = weights[(2u * row + s) * row_items + item % row_items];
#endif
    }
    for (var i = 0u; i < x_slots; i++) {
        let item = thread + i * threads;
        next.x[i] = load_quad(x_column(place, item / quads), quads * s + item % quads);
    }
    return next;
}

fn keep(next: Fetched, to: u32, thread: u32) {
    for (var i = 0u; i < w_slots; i++) {
        let item = thread + i * threads;
        let row = item / row_items;
        let w = next.w[i];
#if QUANTISED
        let both = unpack_quants(w.q);
        let s = with_bias(unpack_scales(w.s, w.chunk));
        let q = select(both.low, both.high, next.half == 1u);
        let scale = select(s.x, s.y, next.half == 1u);
        let offset = select(s.z, s.w, next.half == 1u);
        let at = to * quads * w_stride + row;
        w_tile[at] = q_values(q.x) * scale + offset;
        w_tile[at + w_stride] = q_values(q.y) * scale + offset;
        w_tile[at + 2u * w_stride] = q_values(q.z) * scale + offset;
        w_tile[at + 3u * w_stride] = q_values(q.w) * scale + offset;
#elif LOW == 32
        w_tile[(to * quads + item % row_items) * w_stride + row] = bitcast<vec4<f32>>(w);
#else
        let at = (to * quads + item % row_items * 2u) * w_stride + row;
        w_tile[at] = vec4<f32>(two_numbers(w.x), two_numbers(w.y));
        w_tile[at + w_stride] = vec4<f32>(two_numbers(w.z), two_numbers(w.w));
#endif
    }
    for (var i = 0u; i < x_slots; i++) {
        let item = thread + i * threads;
        x_tile[(to * quads + item % quads) * x_stride + item / quads] = next.x[i];
    }
}

// ---- products ----

// sum + w.x a + w.y b + w.z c + w.w d, in this order, so that each step is one instruction.
fn weighted(sum: vec4<f32>, w: vec4<f32>, m: mat4x4<f32>) -> vec4<f32> {
    return (((sum + w.x * m[0]) + w.y * m[1]) + w.z * m[2]) + w.w * m[3];
}

// A quad of four columns: component i of column c of the result is value c of column i.
fn four_columns(at: u32) -> mat4x4<f32> {
    return transpose(mat4x4<f32>(x_tile[at], x_tile[at + column_threads], x_tile[at + 2u * column_threads], x_tile[at + 3u * column_threads]));
}

fn store_four(place: Place, row: u32, column: u32, four: vec4<f32>) {
    store(place, row, column, four.x);
    store(place, row, column + column_threads, four.y);
    store(place, row, column + 2u * column_threads, four.z);
    store(place, row, column + 3u * column_threads, four.w);
}

fn store_row(place: Place, row: u32, column: u32, first: vec4<f32>, second: vec4<f32>) {
    store_four(place, row, column, first);
    store_four(place, row, column + 4u * column_threads, second);
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let place = find_place(group, thread);
    if (place.columns == 0u) { return; }
    // 32 adjacent threads cover 8 rows × 4 columns of threads
    let part = thread / 32u;
    let r = thread % 8u + 8u * (part % (row_threads / 8u));
    let c = thread / 8u % 4u + 4u * (part / (row_threads / 8u));
    // sums of row i with the first four columns (a) and the others (b); named, so that the compiler keeps them in registers
    var a0 = vec4<f32>();
    var a1 = vec4<f32>();
    var a2 = vec4<f32>();
    var a3 = vec4<f32>();
    var a4 = vec4<f32>();
    var a5 = vec4<f32>();
    var a6 = vec4<f32>();
    var a7 = vec4<f32>();
    var b0 = vec4<f32>();
    var b1 = vec4<f32>();
    var b2 = vec4<f32>();
    var b3 = vec4<f32>();
    var b4 = vec4<f32>();
    var b5 = vec4<f32>();
    var b6 = vec4<f32>();
    var b7 = vec4<f32>();

    let chunks = find_chunks(group);
    var next = fetch(place, 2u * chunks.x, thread);
#if DOUBLE
    keep(next, 0u, thread); // the first step is even
    workgroupBarrier();
#endif
    for (var step = 2u * chunks.x; step < 2u * chunks.y; step++) {
#if DOUBLE
        let first_quad = step % 2u * quads;
#else
        const first_quad = 0u;
        workgroupBarrier();
        keep(next, 0u, thread);
        workgroupBarrier();
#endif
        next = fetch(place, step + 1u, thread);
        for (var quad = first_quad; quad < first_quad + quads; quad++) {
            let first = four_columns(quad * x_stride + c);
            let second = four_columns(quad * x_stride + c + 4u * column_threads);
            let at = quad * w_stride + r;
            let w0 = w_tile[at];
            a0 = weighted(a0, w0, first);
            b0 = weighted(b0, w0, second);
            let w1 = w_tile[at + row_threads];
            a1 = weighted(a1, w1, first);
            b1 = weighted(b1, w1, second);
            let w2 = w_tile[at + 2u * row_threads];
            a2 = weighted(a2, w2, first);
            b2 = weighted(b2, w2, second);
            let w3 = w_tile[at + 3u * row_threads];
            a3 = weighted(a3, w3, first);
            b3 = weighted(b3, w3, second);
            let w4 = w_tile[at + 4u * row_threads];
            a4 = weighted(a4, w4, first);
            b4 = weighted(b4, w4, second);
            let w5 = w_tile[at + 5u * row_threads];
            a5 = weighted(a5, w5, first);
            b5 = weighted(b5, w5, second);
            let w6 = w_tile[at + 6u * row_threads];
            a6 = weighted(a6, w6, first);
            b6 = weighted(b6, w6, second);
            let w7 = w_tile[at + 7u * row_threads];
            a7 = weighted(a7, w7, first);
            b7 = weighted(b7, w7, second);
        }
#if DOUBLE
        keep(next, 1u - step % 2u, thread); // nobody has read that since the last barrier
        workgroupBarrier();
#endif
    }

    store_row(place, r, c, a0, b0);
    store_row(place, r + row_threads, c, a1, b1);
    store_row(place, r + 2u * row_threads, c, a2, b2);
    store_row(place, r + 3u * row_threads, c, a3, b3);
    store_row(place, r + 4u * row_threads, c, a4, b4);
    store_row(place, r + 5u * row_threads, c, a5, b5);
    store_row(place, r + 6u * row_threads, c, a6, b6);
    store_row(place, r + 7u * row_threads, c, a7, b7);
}
