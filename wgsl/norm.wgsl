#if SUBGROUPS
enable subgroups;
#endif
// RMS norm: out = a · w / sqrt(mean(a²) + eps), one workgroup per row. With CENTRED a layer norm: the row's mean is subtracted first,
// and with BIAS the vector b is added in the end.
//
//   a    f32, a view: unit i of row r of token t at a_offset + t · a_token_stride + r · a_row_stride + i
//   out  f32 [tokens, rows, n]     w  f32 [n], only with WEIGHT     b  f32 [n]     n and the strides in units (unit.wgsl)
//   dispatch (rows, tokens, 1)     THREADS 32 to 256, a power of two
//
// The row is read twice, or three times with CENTRED: the largest n does not fit in registers, but the second read comes from the cache.

#include "run.wgsl"
#include "unit.wgsl"

override n:              u32;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;
override share:          f32; // 1 / the values of a row
override eps:            f32;
#if EXACT
const threads = min(${THREADS}u, 256u / unit_values); // the sums have 256 lanes
#else
const threads = ${THREADS}u;
#endif

#include "reduce.wgsl"
#include "exact.wgsl"

@group(0) @binding(0) var<storage, read_write> a:   array<unit>;
@group(0) @binding(1) var<storage, read_write> out: array<unit>;
@group(0) @binding(2) var<storage, read>       run: Run;
#if WEIGHT
@group(0) @binding(3) var<storage, read>       w:   array<unit>;
#endif
#if BIAS
@group(0) @binding(4) var<storage, read>       b:   array<unit>;
#endif

#if EXACT
var<workgroup> lanes: array<unit, threads>;

fn lanes_sum(mine: unit, thread: u32) -> f32 {
    lanes[thread] = mine;
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { lanes[thread] += lanes[thread + half]; }
    }
    workgroupBarrier();
#if WIDE
    return (lanes[0].x + lanes[0].z) + (lanes[0].y + lanes[0].w);
#else
    return lanes[0];
#endif
}
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

#if SUBGROUPS
#else
    let subgroup_size = 1u;
#endif

#if CENTRED
#if EXACT
    var values = unit();
    for (var i = thread; i < n; i += threads) { values += a[source + i]; }
    let mean = unit(rounded(lanes_sum(values, thread) * share));
#else
    var values = 0.0;
    for (var i = thread; i < n; i += threads) { values += total(a[source + i]); }
    let mean = unit(workgroup_sum(values, thread, subgroup_size) * share);
#endif
    workgroupBarrier();
#else
    let mean = unit(0.0);
#endif
#if EXACT
    var squares = unit();
    for (var i = thread; i < n; i += threads) {
        let x = a[source + i] - mean;
        squares += rounded_unit(x * x);
    }
    let sum = lanes_sum(squares, thread);
#else
    var squares = 0.0;
    for (var i = thread; i < n; i += threads) { squares += square(a[source + i] - mean); }
    let sum = workgroup_sum(squares, thread, subgroup_size);
#endif

    let scale = inverse_root(rounded(sum * share) + eps);
#if BIAS
    for (var i = thread; i < n; i += threads) { out[to + i] = rounded_unit((a[source + i] - mean) * scale * w[i]) + b[i]; }
#elif WEIGHT
    for (var i = thread; i < n; i += threads) { out[to + i] = (a[source + i] - mean) * scale * w[i]; }
#else
    for (var i = thread; i < n; i += threads) { out[to + i] = a[source + i] * scale; }
#endif
}
