#if SUBGROUPS
enable subgroups;
#endif
// A residual sum and its norm, one workgroup per token:
//
//   s = (a + b · b_weight / rms(b)) · factor → sum
//   out = s · weight · weight_factor / rms(s), only with NORMED     rms(u) = √(mean(u²) + eps)
//
//   a, b, sum, out  f32 [tokens, n]     b_weight, weight  f32 [n]     n in units (unit.wgsl)
//   dispatch (1, tokens, 1)
//
// Each thread reads back only the units of the sum that it wrote.

#include "run.wgsl"
#include "unit.wgsl"

override n:             u32;
override eps:           f32;
override weight_factor: f32 = 1.0;
const threads = 256u;

#include "reduce.wgsl"

@group(0) @binding(0) var<storage, read_write> a:        array<unit>;
@group(0) @binding(1) var<storage, read_write> b:        array<unit>;
@group(0) @binding(2) var<storage, read>       b_weight: array<unit>;
@group(0) @binding(3) var<storage, read_write> sum:      array<unit>;
@group(0) @binding(4) var<storage, read>       run:      Run;
@group(0) @binding(5) var<storage, read>       numbers:  array<f32>; // factor
#if NORMED
@group(0) @binding(6) var<storage, read_write> out:      array<unit>;
@group(0) @binding(7) var<storage, read>       weight:   array<unit>;
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
    for (var i = thread; i < n; i += threads) { squares += square(b[row + i]); }
    let scale = inverseSqrt(workgroup_sum(squares, thread, subgroup) / f32(n * unit_values) + eps);

    squares = 0.0;
    for (var i = thread; i < n; i += threads) {
        let s = (a[row + i] + b[row + i] * (scale * b_weight[i])) * numbers[0];
        sum[row + i] = s;
        squares += square(s);
    }
#if NORMED
    workgroupBarrier();
    let out_scale = weight_factor * inverseSqrt(workgroup_sum(squares, thread, subgroup) / f32(n * unit_values) + eps);
    for (var i = thread; i < n; i += threads) { out[row + i] = sum[row + i] * out_scale * weight[i]; }
#endif
}
