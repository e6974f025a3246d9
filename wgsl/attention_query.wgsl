// Reads attention's queries, four values at a time. Include after declaring head and q_offset. QUADS: head and offsets are
// multiples of 4. `row` is token · heads + head.

#if QUADS
@group(0) @binding(0) var<storage, read_write> queries: array<vec4<f32>>;
fn input_quad(begin: u32, quad: u32) -> vec4<f32> { return queries[begin / 4u + quad]; }
#else
@group(0) @binding(0) var<storage, read_write> queries: array<f32>;
fn input_quad(begin: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { four[i] = queries[begin + 4u * quad + i]; }
    return four;
}
#endif
fn query_quad(row: u32, quad: u32) -> vec4<f32> { return input_quad(q_offset + row * head, quad); }
