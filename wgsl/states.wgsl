#if SUBGROUPS
enable subgroups;
#endif
// Parameters of adapters and their states, which are f32 vectors (src/graph/graph.h has the formulas).
//
//   KIND gradient  state[e, r, i] += factor · Σ p[t, u, slot · rank + r] · q[t, u or 0, i] over the entries t and their rows u, in a fixed order;
//                  ROUTED: over those that routes send to expert e     dispatch (n / 32 rounded up, rank / 8 rounded up, experts)
//                  A workgroup has 32 values and 8 ranks; eighths of it add every 8th row each, and their sums are added in order
//        look_up   state[id, r] += factor · Σ p[t, slot · rank + r] over the tokens with this id; the first of them adds all
//                  dispatch (rank / 64 rounded up, entries, 1)
//        squares   out[0] = Σ state², plus before[0] with MORE           dispatch (1, 1, 1)
//        adamw     a step on parameters[slot · n + i]; the gradient becomes 0. If squares[0] is not finite, nothing changes
//                  dispatch (n / 256 rounded up, 1, 1)
//
//   OF_TOKENS: gradient or look_up     p, q f32, views: value i of row u of entry t at offset + t · token_stride + u · row_stride + i     rates as ADAMW_RATE … say

#include "run.wgsl"

override n:      u32 = 0u;
override rank:   u32 = 0u;
override slot:   u32 = 0u;
override rows:   u32 = 1u; // of p, for each entry
override factor: f32 = 1.0;
override rate:   f32 = 1.0;
override p_offset:       u32 = 0u;
override p_row_stride:   u32 = 0u;
override p_token_stride: u32 = 0u;
override q_offset:       u32 = 0u;
override q_row_stride:   u32 = 0u; // 0: all rows of an entry have the same q
override q_token_stride: u32 = 0u;

#if OF_TOKENS
@group(0) @binding(0) var<storage, read_write> p:      array<f32>;
@group(0) @binding(1) var<storage, read_write> state:  array<f32>;
@group(0) @binding(2) var<storage, read>       run:    Run;
#endif
#if KIND == gradient
@group(0) @binding(3) var<storage, read_write> q:      array<f32>;
#if ROUTED
@group(0) @binding(4) var<storage, read_write> routes: array<u32>;
#endif

const lanes  = 32u;
const parts  = 8u;
const ranks  = 8u;
const step   = 128u; // rows at a time, as many that their loads overlap

var<workgroup> p_tile: array<vec4<f32>, step * 2u>;              // [row, ranks / 4]
var<workgroup> others: array<vec4<f32>, lanes * parts * 2u>;     // [part, ranks / 4, lane]

fn p_four(row: u32, at: u32, first: u32) -> vec4<f32> {
    var four = vec4<f32>();
    if (row >= ${COUNT} * rows) { return four; }
    let begin = p_offset + row / rows * p_token_stride + row % rows * p_row_stride + slot * rank;
    for (var r = 0u; r < 4u; r++) { four[r] = p[begin + min(first + 4u * at + r, rank - 1u)]; }
    return four;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % lanes;
    let part = thread / lanes;
    let i = group.x * lanes + lane;
    let first = group.y * ranks;
    let end = ${COUNT} * rows;
    var low = vec4<f32>();
    var high = vec4<f32>();
    for (var base = 0u; base < end; base += step) {
        if (thread < 2u * step) { p_tile[thread] = p_four(base + thread / 2u, thread % 2u, first); }
        workgroupBarrier();
        for (var j = part; j < step && base + j < end; j += parts) {
            let t = (base + j) / rows;
            let u = (base + j) % rows;
#if ROUTED
            if (routes[t * 2u * rows + u] != group.z) { continue; }
#endif
            if (i < n) {
                let value = q[q_offset + t * q_token_stride + u * q_row_stride + i];
                low += p_tile[2u * j] * value;
                high += p_tile[2u * j + 1u] * value;
            }
        }
        workgroupBarrier();
    }
    others[part * 2u * lanes + lane] = low;
    others[(part * 2u + 1u) * lanes + lane] = high;
    workgroupBarrier();
    // A thread ends one rank of one value.
    var sum = 0.0;
    for (var other = 0u; other < parts; other++) { sum += others[(other * 2u + part / 4u) * lanes + lane][part % 4u]; }
    if (i < n && first + part < rank) { state[(group.z * rank + first + part) * n + i] += factor * sum; }
}
#elif KIND == look_up
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let r = at.x;
    if (r >= rank || at.y >= ${COUNT}) { return; }
    let id = run.records[at.y].id;
    if (id >= n) { return; } // a soft token
    for (var t = 0u; t < at.y; t++) {
        if (run.records[t].id == id) { return; }
    }
    var sum = 0.0;
    for (var t = at.y; t < ${COUNT}; t++) {
        if (run.records[t].id == id) { sum += p[p_offset + t * p_token_stride + slot * rank + r]; }
    }
    state[id * rank + r] += factor * sum;
}
#elif KIND == squares
const threads = 256u;
#include "reduce.wgsl"
#include "unit.wgsl"

@group(0) @binding(0) var<storage, read_write> state:  array<unit>; // n of them
@group(0) @binding(1) var<storage, read_write> out:    array<f32>;
#if MORE
@group(0) @binding(2) var<storage, read_write> before: array<f32>;
#endif

@compute @workgroup_size(threads)
fn main(
#if SUBGROUPS
        @builtin(subgroup_size) subgroup_size: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup_size = 1u;
#endif
    // four loads are under way at a time
    var sums = vec4<f32>();
    for (var i = thread; i < n; i += 4u * threads) {
        let a = square(state[i]);
        let b = square(state[min(i + threads, n - 1u)]);
        let c = square(state[min(i + 2u * threads, n - 1u)]);
        let d = square(state[min(i + 3u * threads, n - 1u)]);
        sums += select(vec4<f32>(), vec4<f32>(a, b, c, d), vec4<u32>(i) + vec4<u32>(0u, threads, 2u * threads, 3u * threads) < vec4<u32>(n));
    }
    var sum = workgroup_sum((sums.x + sums.y) + (sums.z + sums.w), thread, subgroup_size);
#if MORE
    sum += before[0];
#endif
    if (thread == 0u) { out[0] = sum; }
}
#else
@group(0) @binding(0) var<storage, read_write> parameters: array<f32>;
@group(0) @binding(1) var<storage, read_write> gradient:   array<f32>;
@group(0) @binding(2) var<storage, read_write> mean:       array<f32>;
@group(0) @binding(3) var<storage, read_write> square:     array<f32>;
@group(0) @binding(4) var<storage, read_write> rates:      array<f32>;
@group(0) @binding(5) var<storage, read_write> squares:    array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let i = at.x;
    if (i >= n) { return; }
    if ((bitcast<u32>(squares[0]) & 0x7f800000u) == 0x7f800000u) { return; } // infinite or NaN
    let norm = sqrt(squares[0]);
    var g = gradient[i];
    if (rates[7] > 0.0 && norm > rates[7]) { g *= rates[7] / norm; }
    let m = rates[1] * mean[i] + (1.0 - rates[1]) * g;
    let v = rates[2] * square[i] + (1.0 - rates[2]) * g * g;
    mean[i] = m;
    square[i] = v;
    gradient[i] = 0.0;
    let old = parameters[slot * n + i];
    parameters[slot * n + i] = old - rates[0] * rate * (rates[4] * old + factor * m * rates[5] / (sqrt(v * rates[6]) + rates[3]));
}
#endif
