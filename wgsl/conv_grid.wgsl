// A convolution of 3 × 3 with stride 2 over time and frequency:
//
//   out[t, w, f, o] = Σ_{i, j, c} weight[i, j, c, o] · a[t, 3 · w + i, 2 · f + j − 1, c],  0 beyond the first and the last frequency
//
//   a       f32, a view: value i of row r of token t at a_offset + t · a_token_stride + r · a_row_stride + i; channels fastest
//   weight  f32 [3, 3, channels, outs]     out  f32 [tokens, windows, n], n = frequencies out · outs
//   n and outs in units (unit.wgsl)        dispatch (n / 64 rounded up, windows, tokens)

#include "run.wgsl"
#include "unit.wgsl"

override channels:       u32;
override frequencies:    u32;
override n:              u32;
override outs:           u32;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;

@group(0) @binding(0) var<storage, read_write> a:      array<f32>;
@group(0) @binding(1) var<storage, read_write> out:    array<unit>;
@group(0) @binding(2) var<storage, read>       run:    Run;
@group(0) @binding(3) var<storage, read>       weight: array<unit>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    if (at.x >= n || at.z >= run.tokens) { return; }
    let f = at.x / outs;
    let o = at.x % outs;
    var sum = unit(0.0);
    for (var tap = 0u; tap < 9u; tap++) {
        let column = 2u * f + tap % 3u; // plus 1
        if (column < 1u || column > frequencies) { continue; }
        let source = a_offset + at.z * a_token_stride + (3u * at.y + tap / 3u) * a_row_stride + (column - 1u) * channels;
        let row = tap * channels;
        for (var c = 0u; c < channels; c++) { sum += a[source + c] * weight[(row + c) * outs + o]; }
    }
    out[(at.z * groups.y + at.y) * n + at.x] = sum;
}
