#if SUBGROUPS
enable subgroups;
#endif
// Adds the outputs of a layer's dense part and of its experts, one workgroup per token:
//
//   e = Σ_slot weight_slot · experts[slot]
//   out = a · a_weight / rms(a) + e · weight / rms(e)     rms(u) = √(mean(u²) + eps)
//
//   a, out  f32 [tokens, n]     experts  f32 [tokens, used, n]     a_weight, weight  f32 [n]     n in units (unit.wgsl)
//   routes  u32 [tokens, 2 · used]: ids, then the bits of the weights     dispatch (1, tokens, 1)
//
// `out` holds the sum over the experts in between; each thread reads back only the units that it wrote.

#include "run.wgsl"
#include "unit.wgsl"

override n:    u32;
override used: u32;
override eps:  f32;
const threads = 256u;

#include "reduce.wgsl"

@group(0) @binding(0) var<storage, read_write> a:        array<unit>;
@group(0) @binding(1) var<storage, read_write> experts:  array<unit>;
@group(0) @binding(2) var<storage, read_write> routes:   array<u32>;
@group(0) @binding(3) var<storage, read>       a_weight: array<unit>;
@group(0) @binding(4) var<storage, read>       weight:   array<unit>;
@group(0) @binding(5) var<storage, read_write> out:      array<unit>;
@group(0) @binding(6) var<storage, read>       run:      Run;

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
    let token = group.y;
    if (token >= run.tokens) { return; }
    var a_squares = 0.0;
    var squares = 0.0;
    for (var i = thread; i < n; i += threads) {
        var e = unit();
        for (var slot = 0u; slot < used; slot++) {
            e += bitcast<f32>(routes[(2u * token + 1u) * used + slot]) * experts[(token * used + slot) * n + i];
        }
        out[token * n + i] = e;
        squares += square(e);
        a_squares += square(a[token * n + i]);
    }
    let a_scale = inverseSqrt(workgroup_sum(a_squares, thread, subgroup) / f32(n * unit_values) + eps);
    workgroupBarrier();
    let scale = inverseSqrt(workgroup_sum(squares, thread, subgroup) / f32(n * unit_values) + eps);
    for (var i = thread; i < n; i += threads) {
        let at = token * n + i;
        out[at] = a[at] * (a_scale * a_weight[i]) + out[at] * (scale * weight[i]);
    }
}
