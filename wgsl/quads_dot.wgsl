// A chunk of an f32 column times a chunk of a row. Include after weights.wgsl and columns.wgsl. Scaling comes after summing:
// Σ (scale·q + offset)·c = scale · Σ q·c + offset · Σ c.

struct Column { v: Quads, sums: vec2<f32> } // a chunk, and the sums of its halves

#if QUANTISED
fn scaled_dot(w: Quads, s: vec4<f32>, column: Column) -> f32 {
    let both = dot_halves(w, column.v);
#if AFFINE
    return dot(s, vec4<f32>(both, column.sums));
#else
    return dot(s.xy, both);
#endif
}
#else
fn plain_dot(w: Quads, column: Column) -> f32 {
    let both = dot_halves(w, column.v);
    return both.x + both.y;
}
#endif
