// A chunk of an 8-bit column times a chunk of a row. Include after weights.wgsl and the declaration of Raw.

struct Column { low: vec4<u32>, high: vec4<u32>, d: f32, sums: vec2<f32> }

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// Σ (scale·q + offset)·(d·p) = scale·d · Σ q·p + offset · d·Σ p over one chunk; the sums of q·p are exact.
fn quants_dot(q: Packed, s: vec4<f32>, column: Column) -> f32 {
    let low  = dot16(q.low, column.low);
    let high = dot16(q.high, column.high);
#if SPAN == 16
    let product = column.d * (s.x * f32(low) + s.y * f32(high));
#else
    let product = column.d * s.x * f32(low + high);
#endif
#if AFFINE
    return product + dot(s.zw, column.sums);
#else
    return product;
#endif
}

fn chunk_dot(raw: Raw, chunk: u32, column: Column) -> f32 {
    return quants_dot(unpack_quants(raw.quants), with_bias(unpack_scales(raw.scales, chunk)), column);
}
