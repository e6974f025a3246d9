// A column that comes in 8 bits, as result_q8.wgsl or quantise.wgsl leave it, for product.wgsl: read where it lies.

override x_scales: u32; // where the scales begin, counted in 16 bytes
@group(0) @binding(1) var<storage, read_write> x: array<vec4<u32>>;
var<private> x_row: u32; // of k/32 chunks

#include "q8_dot.wgsl"

fn column_chunk(chunk: u32) -> Column {
    let at = x_row * (k / 32u) + chunk;
    let s  = bitcast<vec4<f32>>(x[x_scales + at]);
    return Column(x[2u * at], x[2u * at + 1u], s.x, s.yz);
}
