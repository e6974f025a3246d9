// Queries and results of attention, four values at a time; include after kv.wgsl. `row` is token · heads + head.

#if QUADS
@group(0) @binding(0) var<storage, read_write> queries: array<vec4<f32>>;
fn query_quad(row: u32, quad: u32) -> vec4<f32> { return queries[(q_offset + row * head) / 4u + quad]; }
#else
@group(0) @binding(0) var<storage, read_write> queries: array<f32>;
fn query_quad(row: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { four[i] = queries[q_offset + row * head + 4u * quad + i]; }
    return four;
}
#endif
