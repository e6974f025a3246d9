// Computes one value from one or two: out[t, r, i] = f(a[t, r, i], b[t, r, i]).
//
//   KIND add      a + b
//        mul      a · b
//        clamp    a, but at least numbers[0] and at most numbers[1]
//        scale    a · factor
//        geglu    gelu(a) · b,  gelu(x) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
//        gate     a · sigmoid(b) = a / (1 + e^(−b)); the exponent is capped at 80, where that is almost 0
//        softcap  factor · tanh(a / factor)
//        select   the mean of a over `count` tokens from rows[t] on: the tokens whose outputs are wanted
//        sum      Σ_t a[t, r, i]: one token comes out; SUMMED is how many come in
//        place    a, as part of longer rows: out[t, r, first + i], of `width` units
//
//   a, b  f32, views: unit i of row r of token t at offset + t · token_stride + r · row_stride + i
//   out   f32 [tokens, rows, n]     n, offsets and strides in units (unit.wgsl)
//   SHARED: a and b are views of one value, which is bound once     VECTOR: b is a weight vector, the same for every row
//   dispatch (n / 256 rounded up, rows, tokens)

#include "run.wgsl"
#include "unit.wgsl"

override n:              u32;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;
override b_offset:       u32 = 0u;
override b_row_stride:   u32 = 0u;
override b_token_stride: u32 = 0u;
override factor:         f32 = 1.0;
override inverse_factor: f32 = 1.0; // 1 / factor
override count:          u32 = 1u;
override share:          f32 = 1.0; // 1 / count
override width:          u32 = 0u;
override first:          u32 = 0u;

@group(0) @binding(0) var<storage, read_write> a:    array<unit>;
@group(0) @binding(1) var<storage, read_write> out:  array<unit>;
@group(0) @binding(2) var<storage, read>       run:  Run;
#if KIND == select
@group(0) @binding(3) var<storage, read>       rows: array<u32>;
#elif KIND == clamp
@group(0) @binding(3) var<storage, read>       numbers: array<f32>;
#elif VECTOR
@group(0) @binding(3) var<storage, read>       b:    array<unit>;
#elif TWO
@group(0) @binding(3) var<storage, read_write> b:    array<unit>;
#endif

#include "curves.wgsl"

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = at.x;
    let row = at.y;
    let token = at.z;
    if (i >= n || token >= ${COUNT}) { return; }
#if KIND == sum
    var x = a[a_offset + row * a_row_stride + i];
    for (var t = 1u; t < ${SUMMED}; t++) { x += a[a_offset + t * a_token_stride + row * a_row_stride + i]; }
#elif KIND == select
    let first = a_offset + rows[token] * a_token_stride + row * a_row_stride + i;
    var x = a[first];
    for (var t = 1u; t < count; t++) { x += a[first + t * a_token_stride]; }
    x *= share;
#else
    let x = a[a_offset + token * a_token_stride + row * a_row_stride + i];
#endif
#if TWO
    let y_at = b_offset + token * b_token_stride + row * b_row_stride + i;
#if SHARED
    let y = a[y_at];
#else
    let y = b[y_at];
#endif
#endif
#if KIND == place
    let to = (token * groups.y + row) * width + first + i;
#else
    let to = (token * groups.y + row) * n + i;
#endif
#if KIND == add
    out[to] = x + y;
#elif KIND == mul
    out[to] = x * y;
#elif KIND == clamp
    out[to] = min(max(x, unit(numbers[0])), unit(numbers[1]));
#elif KIND == scale
    out[to] = x * factor;
#elif KIND == geglu
    out[to] = gelu(x) * y;
#elif KIND == gate
    out[to] = x / (1.0 + exp(min(-y, unit(80.0))));
#elif KIND == softcap
    out[to] = factor * precise_tanh(x * inverse_factor);
#else
    out[to] = x;
#endif
}
