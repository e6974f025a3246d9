// Dropout: out[t, r, i] = a · scale, or 0 where the random word i of row t · rows + r is less than `below` (src/graph/graph.h).
// A key of ones: out = a.
//
//   a    f32, a view: value i of row r of entry t at a_offset + t · a_token_stride + r · a_row_stride + i     out  f32 [entries, rows, n]
//   key  u32 [2]     numbers  f32: the stream's number     dispatch (n / 256 rounded up, rows, entries): a thread has four values

#include "run.wgsl"
#include "wide.wgsl"
#include "philox.wgsl"

override n:              u32;
override rows:           u32;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;
override below:          u32;
override scale:          f32;

@group(0) @binding(0) var<storage, read_write> a:   array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read>       run: Run;
@group(0) @binding(3) var<storage, read_write> key: array<u32>;
@group(0) @binding(4) var<storage, read>       numbers: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (4u * at.x >= n || at.z >= ${COUNT}) { return; }
    let row = at.z * rows + at.y;
    let source = a_offset + at.z * a_token_stride + at.y * a_row_stride;
    let words = philox_words(vec4<u32>(at.x, row, u32(numbers[0]), 0u), vec2<u32>(key[0], key[1]));
    let all = (key[0] & key[1]) == 0xffffffffu;
    for (var i = 0u; i < 4u && 4u * at.x + i < n; i++) {
        let x = a[source + 4u * at.x + i];
        out[row * n + 4u * at.x + i] = select(select(x * scale, 0.0, words[i] < below), x, all);
    }
}
