#if SUBGROUPS
enable subgroups;
#endif
// Gradients that are computed row by row (src/graph/graph.h has the formulas).
//
//   KIND geglu    out[t, r] = gelu'(a) · b · c                          dispatch (n / 256 rounded up, rows, entries)
//        scatter  out[t] = Σ of a[o] over the outputs o of token t      the same
//        sum      out[t] = Σ_r a[t, r]                                  the same; rows is 1
//        weigh    out[t, e] = weight_e · a[t]; routes as in moe.wgsl    the same
//        norm     out[t, r] = s · (w · c − a · s² · mean(w · c · a)), s = 1/sqrt(mean(a²) + eps); w only with WEIGHT
//        dot      out[t, r] = a[t, r] · c[t, r or 0]                    norm and dot: dispatch (rows, entries, 1)
//
//   a, b, c  f32, views: unit i of row r of entry t at offset + t · token_stride + r · row_stride + i     SHARED: a and b are one value
//   out      f32 [entries, rows, n]     n, offsets and strides in units (unit.wgsl)

#include "run.wgsl"
#include "unit.wgsl"

override n:              u32;
override rows:           u32 = 1u;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;
override b_offset:       u32 = 0u;
override b_row_stride:   u32 = 0u;
override b_token_stride: u32 = 0u;
override c_offset:       u32 = 0u;
override c_row_stride:   u32 = 0u;
override c_token_stride: u32 = 0u;
override eps:            f32 = 0.0;
const threads = 256u;

@group(0) @binding(0) var<storage, read_write> a:   array<unit>;
#if KIND == dot
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
#else
@group(0) @binding(1) var<storage, read_write> out: array<unit>;
#endif
@group(0) @binding(2) var<storage, read>       run: Run;
#if KIND == scatter
@group(0) @binding(3) var<storage, read>       outputs: array<u32>; // ascending
#elif KIND == weigh
@group(0) @binding(3) var<storage, read_write> routes: array<u32>;
#elif KIND == geglu
@group(0) @binding(3) var<storage, read_write> c:   array<unit>;
#if SHARED
#else
@group(0) @binding(4) var<storage, read_write> b:   array<unit>;
#endif
#elif KIND == dot
@group(0) @binding(3) var<storage, read_write> c:   array<unit>;
#elif KIND == norm
@group(0) @binding(3) var<storage, read_write> c:   array<unit>;
#if WEIGHT
@group(0) @binding(4) var<storage, read>       w:   array<unit>;
#endif
#endif

#if BY_ROW
#include "reduce.wgsl"

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup_size: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup_size = 1u;
#endif
    if (group.y >= ${COUNT}) { return; }
    let x = a_offset + group.y * a_token_stride + group.x * a_row_stride;
    let d = c_offset + group.y * c_token_stride + group.x * c_row_stride;
    var products = 0.0;
#if KIND == dot
    for (var i = thread; i < n; i += threads) { products += total(a[x + i] * c[d + i]); }
    let sum = workgroup_sum(products, thread, subgroup_size);
    if (thread == 0u) { out[group.y * rows + group.x] = sum; }
#else
    var squares = 0.0;
    for (var i = thread; i < n; i += threads) {
        squares += square(a[x + i]);
#if WEIGHT
        products += total(w[i] * c[d + i] * a[x + i]);
#else
        products += total(c[d + i] * a[x + i]);
#endif
    }
    let scale = inverseSqrt(workgroup_sum(squares, thread, subgroup_size) / f32(n * unit_values) + eps);
    workgroupBarrier();
    let less = workgroup_sum(products, thread, subgroup_size) / f32(n * unit_values) * scale * scale;
    let y = (group.y * rows + group.x) * n;
    for (var i = thread; i < n; i += threads) {
#if WEIGHT
        out[y + i] = scale * (w[i] * c[d + i] - a[x + i] * less);
#else
        out[y + i] = scale * (c[d + i] - a[x + i] * less);
#endif
    }
#endif
}
#else
#if KIND == geglu
// gelu(x) = x·σ, σ = 1 / (1 + e^(−2u)), u = √(2/π)·(x + 0.044715 x³): the slope is σ + x · 2σ(1 − σ) · u'
fn gelu_slope(x: unit) -> unit {
    let u = 0.7978845608 * x * (1.0 + 0.044715 * x * x);
    let s = 1.0 / (1.0 + exp(clamp(-2.0 * u, unit(-80.0), unit(80.0))));
    return s + x * 2.0 * s * (1.0 - s) * 0.7978845608 * (1.0 + 0.134145 * x * x);
}
#endif

@compute @workgroup_size(threads)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let i = at.x;
    let row = at.y;
    let entry = at.z;
    if (i >= n || entry >= ${COUNT}) { return; }
    let x = a_offset + entry * a_token_stride + row * a_row_stride + i;
#if KIND == geglu
    let other = b_offset + entry * b_token_stride + row * b_row_stride + i;
#if SHARED
    let up = a[other];
#else
    let up = b[other];
#endif
    out[(entry * rows + row) * n + i] = gelu_slope(a[x]) * up * c[c_offset + entry * c_token_stride + row * c_row_stride + i];
#elif KIND == scatter
    var low = 0u;
    var high = run.outputs;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (outputs[middle] < entry) { low = middle + 1u; } else { high = middle; }
    }
    var sum = unit();
    for (; low < run.outputs && outputs[low] == entry; low++) { sum += a[a_offset + low * a_token_stride + row * a_row_stride + i]; }
    out[(entry * rows + row) * n + i] = sum;
#elif KIND == sum
    var sum = unit();
    for (var r = 0u; r < rows; r++) { sum += a[x + r * a_row_stride]; }
    out[entry * n + i] = sum;
#else
    let weight = bitcast<f32>(routes[entry * 2u * rows + rows + row]);
    out[(entry * rows + row) * n + i] = weight * a[x];
#endif
}
#endif
