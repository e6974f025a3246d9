// A convolution over the tokens of a span, for each value on its own: out[t, i] = Σ_k weight[k, i] · a[t − taps + 1 + k, i], 0 before
// the span.
//
//   a       f32, a view: unit i of token t at a_offset + t · a_token_stride + i
//   weight  f32 [taps, n]     out  f32 [tokens, n]     n, offset and stride in units (unit.wgsl)
//   dispatch (n / 64 rounded up, tokens, 1)

#include "run.wgsl"
#include "unit.wgsl"

override n:              u32;
override taps:           u32;
override a_offset:       u32;
override a_token_stride: u32;

@group(0) @binding(0) var<storage, read_write> a:      array<unit>;
@group(0) @binding(1) var<storage, read_write> out:    array<unit>;
@group(0) @binding(2) var<storage, read>       run:    Run;
@group(0) @binding(3) var<storage, read>       weight: array<unit>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let i = at.x;
    let token = at.y;
    if (i >= n || token >= run.tokens) { return; }
    let before = token - run.records[token].span_first;
    var sum = unit(0.0);
    for (var back = 0u; back < min(taps, before + 1u); back++) {
        sum += weight[(taps - 1u - back) * n + i] * a[a_offset + (token - back) * a_token_stride + i];
    }
    out[token * n + i] = sum;
}
