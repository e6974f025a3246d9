// Writes attention's results, four values at a time. `row` is token · heads + head. QUADS: head is a multiple of 4.

#if QUADS
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
fn write_quad(row: u32, quad: u32, four: vec4<f32>) { out[row * (head / 4u) + quad] = four; }
#else
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
fn write_quad(row: u32, quad: u32, four: vec4<f32>) {
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { out[row * head + 4u * quad + i] = four[i]; }
}
#endif
