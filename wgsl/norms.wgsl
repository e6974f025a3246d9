#if SUBGROUPS
enable subgroups;
#endif
// A residual sum and its norm, or only a norm, one workgroup per token:
//
//   s = (a + b · b_weight / rms(b)) · factor → sum with RESIDUAL, otherwise a
//   out = s · weight · f, f = weight_factor / rms(s), only with NORMED     rms(u) = √(mean(u²) + eps)
//   FACTORED: out = s · weight, followed by f: a row has four values more
//
//   a, b, sum, out  f32 [tokens, n]     b_weight, weight  f32 [n]     n in units (unit.wgsl)
//   with Q8_OUT: out, or s without NORMED, in 8 bits for the products that read it, as quantise.wgsl writes it; out_scales is in words
//   dispatch (1, tokens, 1)     THREADS: as many as in product.wgsl, so that it adds in the same order
//
// Each thread uses only the units of the sum that it wrote; past the last one, a thread that quantises reads that again and drops it.

#include "run.wgsl"
#include "unit.wgsl"

override n:             u32;
override eps:           f32;
override weight_factor: f32 = 1.0;
const threads = ${THREADS}u;

#include "reduce.wgsl"

@group(0) @binding(0) var<storage, read_write> a:        array<unit>;
@group(0) @binding(1) var<storage, read>       run:      Run;
#if RESIDUAL
@group(0) @binding(2) var<storage, read_write> b:        array<unit>;
@group(0) @binding(3) var<storage, read>       b_weight: array<unit>;
@group(0) @binding(4) var<storage, read_write> sum:      array<unit>;
@group(0) @binding(5) var<storage, read>       numbers:  array<f32>; // factor
fn sum_at(i: u32) -> unit { return sum[i]; }
#else
fn sum_at(i: u32) -> unit { return a[i]; }
#endif
#if Q8_OUT
@group(0) @binding(${OUT_AT}) var<storage, read_write> out: array<u32>;
#elif NORMED
@group(0) @binding(${OUT_AT}) var<storage, read_write> out: array<unit>;
#endif
#if NORMED
@group(0) @binding(${WEIGHT_AT}) var<storage, read> weight: array<unit>;
#endif

#if Q8_OUT
override out_scales: u32;
var<workgroup> largest: array<f32, threads>;
var<workgroup> totals:  array<i32, threads>;

fn total_of_half(i: u32) -> f32 { return f32(totals[i] + totals[i + 1u] + totals[i + 2u] + totals[i + 3u]); }

// Writes unit i of a row, if there is one, in 8 bits. Eight threads share the 32 values of a scale. Every thread must call this.
fn put_q8(row: u32, i: u32, v: unit, factor: f32, thread: u32) {
    let top = max(abs(v.xy), abs(v.zw));
    largest[thread] = max(top.x, top.y);
    workgroupBarrier();
    let first = thread & 0xfffffff8u;
    var most = 0.0;
    for (var at = first; at < first + 8u; at++) { most = max(most, largest[at]); }
    let d       = select(0.0, most / 127.0, most / 127.0 > 1e-35);
    let inverse = select(0.0, 1.0 / d, d > 0.0);
    let p       = vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
    let bytes   = vec4<u32>(p) & vec4<u32>(255u);
    totals[thread] = p.x + p.y + p.z + p.w;
    workgroupBarrier();
    if (i >= n) { return; }
    out[row + i] = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
    if (thread == first) {
        let to = out_scales + (row + i) / 2u; // four words for eight units
        out[to]      = bitcast<u32>(d);
        out[to + 1u] = bitcast<u32>(d * total_of_half(thread));
        out[to + 2u] = bitcast<u32>(d * total_of_half(thread + 4u));
        out[to + 3u] = bitcast<u32>(factor);
    }
}
#endif

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup = 1u;
#endif
    if (group.y >= ${COUNT}) { return; }
    let row = group.y * n;
    var squares = 0.0;
#if RESIDUAL
    for (var i = thread; i < n; i += threads) { squares += square(b[row + i]); }
    let scale = inverseSqrt(workgroup_sum(squares, thread, subgroup) / f32(n * unit_values) + eps);

    squares = 0.0;
    for (var i = thread; i < n; i += threads) {
        let s = (a[row + i] + b[row + i] * (scale * b_weight[i])) * numbers[0];
        sum[row + i] = s;
        squares += square(s);
    }
    workgroupBarrier();
#else
    for (var i = thread; i < n; i += threads) { squares += square(a[row + i]); }
#endif
#if NORMED
    let factor = weight_factor * inverseSqrt(workgroup_sum(squares, thread, subgroup) / f32(n * unit_values) + eps);
#if Q8_OUT
    for (var first = 0u; first < n; first += threads) {
        let i = min(first + thread, n - 1u);
#if FACTORED
        put_q8(row, first + thread, sum_at(row + i) * weight[i], factor, thread);
#else
        put_q8(row, first + thread, sum_at(row + i) * factor * weight[i], 1.0, thread);
#endif
    }
#elif FACTORED
    let to = group.y * (n + 1u);
    for (var i = thread; i < n; i += threads) { out[to + i] = sum_at(row + i) * weight[i]; }
    if (thread == 0u) { out[to + n] = unit(factor); }
#else
    for (var i = thread; i < n; i += threads) { out[row + i] = sum_at(row + i) * factor * weight[i]; }
#endif
#elif Q8_OUT
    for (var first = 0u; first < n; first += threads) {
        put_q8(row, first + thread, sum_at(row + min(first + thread, n - 1u)), 1.0, thread);
    }
#endif
}
