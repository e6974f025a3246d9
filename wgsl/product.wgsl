#if SUBGROUPS
enable subgroups;
#endif
// Matrix times one column, with what stands before and behind it: for decoding.
//
//   s = (x + b · b_weight / rms(b)) · factor with RESIDUAL, otherwise x; written to `sum` with SUM
//   c = s · weight · weight_factor / rms(s) with NORMED, otherwise s            rms(u) = √(mean(u²) + eps)
//   v[row] = Σ_i W[row, i] · c[i], f32 activations and sums
//   y[row] = GATE none: v[row], or cap · tanh(v[row] / cap) with CAP
//                 pair: gelu(v[row]) · v[rows + row], where W has twice `rows`     value: gelu(v[row]) · other[row]
//
//   weights  one tile of W, rows of k (weights.wgsl)     x  f32, from x_offset on     y  from y_offset on, and first_row
//   b, b_weight, weight, sum  f32 [k]     other  f32 from other_offset on
//   dispatch (row blocks in x, going on in z, and each workgroup goes on in steps of the dispatch; 1 or pairs in y)
//
// EXPERTS: W is [experts, rows, k], of which this tile holds `experts` from first_expert on; one column for each pair
// (token, slot) of used · tokens: expert routes[token, slot], x at token and slot, y likewise. Pairs of other tiles and of
// tokens that are not there are left alone.
//
// A workgroup makes the column itself, `segment` chunks of 32 at a time, in workgroup memory: quad i of chunk c lies at
// i xor (c mod 8), so that threads with neighbouring chunks do not meet in one bank. What divides by rms(s) waits until the rows
// are summed. `lanes` threads (a power of two) share ROWS rows and go over their chunks side by side. A chunk is scaled after it is
// summed: Σ (scale·q + offset)·c = scale · Σ q·c + offset · Σ c. The threads of a subgroup are taken to be neighbours.

#include "weights.wgsl"
#include "unit.wgsl"
#include "curves.wgsl"

override k:             u32;
override rows:          u32; // of y
override first_row:     u32 = 0u;
override lanes:         u32;
override segment:       u32; // chunks
override x_offset:       u32 = 0u;
override x_token_stride: u32 = 0u;
override y_offset:       u32 = 0u;
override y_token_stride: u32 = 0u;
override other_offset:  u32 = 0u;
override eps:           f32 = 0.0;
override factor:        f32 = 1.0;
override weight_factor: f32 = 1.0;
override cap:           f32 = 1.0;
const threads = ${THREADS}u;

@group(0) @binding(0) var<storage, read>       weights: array<vec4<u32>>;
#if VEC4
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
#endif
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
#if RESIDUAL
@group(0) @binding(${B_AT}) var<storage, read_write> b: array<vec4<f32>>;
@group(0) @binding(${B_WEIGHT_AT}) var<storage, read> b_weight: array<vec4<f32>>;
#endif
#if NORMED
@group(0) @binding(${WEIGHT_AT}) var<storage, read> weight: array<vec4<f32>>;
#endif
#if SUM
@group(0) @binding(${SUM_AT}) var<storage, read_write> sum: array<vec4<f32>>;
#endif
#if GATE == value
@group(0) @binding(${OTHER_AT}) var<storage, read_write> other: array<f32>;
#endif
#if EXPERTS
#include "run.wgsl"
override experts:             u32;
override first_expert:        u32 = 0u;
override used:                u32;
override x_row_stride:        u32 = 0u;
override y_row_stride:        u32 = 0u;
override routes_offset:       u32 = 0u;
override routes_token_stride: u32 = 0u;
@group(0) @binding(${RUN_AT}) var<storage, read> run: Run;
@group(0) @binding(${ROUTES_AT}) var<storage, read_write> routes: array<i32>;
#endif

#include "columns.wgsl"
#include "reduce.wgsl"

override staged_quads: u32 = 8u * segment;
var<workgroup> staged:  array<vec4<f32>, staged_quads>;
var<workgroup> partial: array<vec4<f32>, threads>;

fn staged_at(quad: u32) -> u32 { return (quad & 0xfffffff8u) | ((quad ^ (quad >> 3u)) & 7u); }

fn staged_chunk(chunk: u32) -> Quads {
    let at   = 8u * chunk;
    let turn = chunk & 7u;
    return Quads(staged[at + turn], staged[at + (turn ^ 1u)], staged[at + (turn ^ 2u)], staged[at + (turn ^ 3u)],
                 staged[at + (turn ^ 4u)], staged[at + (turn ^ 5u)], staged[at + (turn ^ 6u)], staged[at + (turn ^ 7u)]);
}

// Σ q·c of the two halves of a chunk.
fn dot_halves(w: Quads, v: Quads) -> vec2<f32> {
    return vec2<f32>(dot(w.a, v.a) + dot(w.b, v.b) + dot(w.c, v.c) + dot(w.d, v.d),
                     dot(w.e, v.e) + dot(w.f, v.f) + dot(w.g, v.g) + dot(w.h, v.h));
}

// A chunk of a row times the column's chunk v, whose halves add up to v_sums.
fn row_dot(chunk: u32, v: Quads, v_sums: vec2<f32>) -> f32 {
    let both = dot_halves(chunk_quads(chunk), v);
#if QUANTISED == 0
    return both.x + both.y;
#elif AFFINE
    return dot(chunk_affine(chunk), vec4<f32>(both, v_sums));
#else
    return dot(chunk_affine(chunk).xy, both);
#endif
}

// Sums over the lanes; lane 0 gets the result.
fn reduce(sums: vec4<f32>, thread: u32, subgroup: u32) -> vec4<f32> {
    var total = sums;
    let width = min(lanes, subgroup);
#if SUBGROUPS
    for (var step = 1u; step < width; step *= 2u) { total += subgroupShuffleXor(total, step); }
#endif
    if (width < lanes) {
        workgroupBarrier();
        partial[thread] = total;
        for (var half = lanes / 2u; half >= width; half /= 2u) {
            workgroupBarrier();
            if (thread % lanes < half) { partial[thread] += partial[thread + half]; }
        }
        total = partial[thread];
    }
    return total;
}

#if GATE == pair
const row_values = ${ROWS}u / 2u; // of y, that a thread makes
#else
const row_values = ${ROWS}u;
#endif

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup = 1u;
#endif
    let lane   = thread % lanes;
    let chunks = (k + 31u) / 32u;
    var x_at = x_offset;
    var y_at = y_offset + first_row;
    var w_at = 0u; // row of the tile
    var here = true;
#if EXPERTS
    let token = group.y / used;
    let slot  = group.y % used;
    here = token < run.tokens;
    if (here) {
        let expert = u32(routes[routes_offset + token * routes_token_stride + slot]) - first_expert; // wraps around below it
        here = expert < experts;
#if GATE == pair
        w_at = expert * 2u * rows;
#else
        w_at = expert * rows;
#endif
    }
    x_at += token * x_token_stride + slot * x_row_stride;
    y_at += token * y_token_stride + slot * y_row_stride;
#endif
    let mine = group.x + group.z * groups.x;

#if RESIDUAL
    var b_squares = 0.0;
    for (var i = thread; i < k / 4u; i += threads) { b_squares += dot(b[i], b[i]); }
    let b_scale = inverseSqrt(workgroup_sum(b_squares, thread, subgroup) / f32(k) + eps);
    workgroupBarrier();
#endif

    var scale = 1.0;
    let block_rows = threads / lanes * row_values;
    let blocks = (rows + block_rows - 1u) / block_rows;
    for (var block = mine; block < blocks; block += groups.x * groups.z) {
        let first = block * block_rows + thread / lanes * row_values;
        // Rows past the end read the last one.
#if GATE == pair
        let row0 = (w_at + min(first, rows - 1u)) * chunks;
        let next = rows * chunks;
#if ROWS == 2
        let row1 = row0 + next;
#else
        let row1 = (w_at + min(first + 1u, rows - 1u)) * chunks;
        let row2 = row0 + next;
        let row3 = row1 + next;
#endif
#else
        let row0 = (w_at + min(first, rows - 1u)) * chunks;
        let row1 = (w_at + min(first + 1u, rows - 1u)) * chunks;
#if ROWS == 4
        let row2 = (w_at + min(first + 2u, rows - 1u)) * chunks;
        let row3 = (w_at + min(first + 3u, rows - 1u)) * chunks;
#endif
#endif
        var sums = vec4<f32>(0.0);
        var squares = 0.0;
        for (var begin = 0u; begin < chunks; begin += segment) {
            let here_chunks = min(segment, chunks - begin);
            if (block == mine || chunks > segment) {
                workgroupBarrier();
                for (var i = thread; i < 8u * here_chunks; i += threads) {
                    let at = 8u * begin + i;
                    var s = load_quad(x_at, at);
#if RESIDUAL
                    s = (s + b[at] * (b_scale * b_weight[at])) * factor;
#endif
#if SUM
                    if (mine == 0u && block == 0u && group.y == 0u) { sum[at] = s; }
#endif
#if NORMED
                    squares += dot(s, s);
                    s *= weight[at];
#endif
                    staged[staged_at(i)] = s;
                }
                workgroupBarrier();
            }
            if (here) {
                for (var chunk = lane; chunk < here_chunks; chunk += lanes) {
                    let v      = staged_chunk(chunk);
                    let v_sums = half_sums(v);
                    let at     = begin + chunk;
                    sums.x += row_dot(row0 + at, v, v_sums);
                    sums.y += row_dot(row1 + at, v, v_sums);
#if ROWS == 4
                    sums.z += row_dot(row2 + at, v, v_sums);
                    sums.w += row_dot(row3 + at, v, v_sums);
#endif
                }
            }
        }
#if NORMED
        if (block == mine) { scale = weight_factor * inverseSqrt(workgroup_sum(squares, thread, subgroup) / f32(k) + eps); }
#endif
        let total = reduce(sums, thread, subgroup) * scale;
        if (lane == 0u && here) {
            let left = min(row_values, rows - min(first, rows));
            for (var r = 0u; r < left; r++) {
#if GATE == pair
                y[y_at + first + r] = gelu(total[r]) * total[row_values + r];
#elif GATE == value
                y[y_at + first + r] = gelu(total[r]) * other[other_offset + first + r];
#elif CAP
                y[y_at + first + r] = cap * precise_tanh(total[r] / cap);
#else
                y[y_at + first + r] = total[r];
#endif
            }
        }
    }
}
