// A column that is already in 8 bits, from result_q8.wgsl, norms.wgsl or quantise.wgsl; product.wgsl reads it directly from the buffer.

override x_scales: u32; // where the scales start, in units of 16 bytes
@group(0) @binding(1) var<storage, read_write> x: array<vec4<u32>>;
var<private> x_row: u32; // a row is k/32 chunks

#if FACTORED
// The factor that norms.wgsl or quantise.wgsl put beside the column's scales.
fn factor_behind(row: u32) -> f32 { return bitcast<f32>(x[x_scales + row * (k / 32u)].w); }
#endif

#include "q8_dot.wgsl"

fn column_chunk(chunk: u32) -> Column {
    let at = x_row * (k / 32u) + chunk;
    let s  = bitcast<vec4<f32>>(x[x_scales + at]);
    return Column(x[2u * at], x[2u * at + 1u], s.x, s.yz);
}
