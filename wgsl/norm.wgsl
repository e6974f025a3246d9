#if SUBGROUPS
enable subgroups;
#endif
// RMS norm: out = a · w / sqrt(mean(a²) + eps), one workgroup per row.
//
//   a    f32, a view: unit i of row r of token t at a_offset + t · a_token_stride + r · a_row_stride + i
//   out  f32 [tokens, rows, n]     w  f32 [n], only with WEIGHT     n and the strides in units (unit.wgsl)
//   dispatch (rows, tokens, 1)     THREADS 32 to 256, a power of two
//
// The row is read twice: the largest n does not fit in registers, but the second read comes from the cache.

#include "run.wgsl"
#include "unit.wgsl"

override n:              u32;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;
override eps:            f32;
const threads = ${THREADS}u;

#include "reduce.wgsl"

@group(0) @binding(0) var<storage, read_write> a:   array<unit>;
@group(0) @binding(1) var<storage, read_write> out: array<unit>;
@group(0) @binding(2) var<storage, read>       run: Run;
#if WEIGHT
@group(0) @binding(3) var<storage, read>       w:   array<unit>;
#endif

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup_size: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
    if (group.y >= ${COUNT}) { return; }
    let source = a_offset + group.y * a_token_stride + group.x * a_row_stride;
    let to   = (group.y * groups.x + group.x) * n;

    var squares = 0.0;
    for (var i = thread; i < n; i += threads) { squares += square(a[source + i]); }
#if SUBGROUPS
    let sum = workgroup_sum(squares, thread, subgroup_size);
#else
    let sum = workgroup_sum(squares, thread, 1u);
#endif

    let scale = inverseSqrt(sum / f32(n * unit_values) + eps);
#if WEIGHT
    for (var i = thread; i < n; i += threads) { out[to + i] = a[source + i] * scale * w[i]; }
#else
    for (var i = thread; i < n; i += threads) { out[to + i] = a[source + i] * scale; }
#endif
}
