// Reads columns of f32 activations, x, as quads of 4 and chunks of 32; values past k are zeros. VEC4: k is a multiple of 4, and
// columns start at multiples of 4 elements. The including file declares x (array<vec4<f32>> or array<f32>), k and Quads,
// and includes clips.wgsl. FACTORED: k is a multiple of 4, and a factor follows each column.

fn load_quad(column: u32, quad: u32) -> vec4<f32> {
    if (k % 32u != 0u && 4u * quad >= k) { return vec4<f32>(0.0); }
#if VEC4
    return clip_four(x[column / 4u + quad]);
#else
    let at = column + 4u * quad;
    if (k % 4u == 0u || 4u * quad + 3u < k) { return clip_four(vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u])); }
    var v = vec4<f32>(clip_one(x[at]), 0.0, 0.0, 0.0);
    if (4u * quad + 1u < k) { v.y = clip_one(x[at + 1u]); }
    if (4u * quad + 2u < k) { v.z = clip_one(x[at + 2u]); }
    return v;
#endif
}

#if FACTORED
// The factor behind a column (norms.wgsl).
fn factor_behind(column: u32) -> f32 {
#if VEC4
    return x[(column + k) / 4u].x;
#else
    return x[column + k];
#endif
}
#endif

fn load_chunk(column: u32, chunk: u32) -> Quads {
    let q = 8u * chunk;
    return Quads(load_quad(column, q), load_quad(column, q + 1u), load_quad(column, q + 2u), load_quad(column, q + 3u),
                 load_quad(column, q + 4u), load_quad(column, q + 5u), load_quad(column, q + 6u), load_quad(column, q + 7u));
}

// The sums of the chunk's two halves.
fn half_sums(v: Quads) -> vec2<f32> {
    let low  = v.a + v.b + v.c + v.d;
    let high = v.e + v.f + v.g + v.h;
    return vec2<f32>(low.x + low.y + low.z + low.w, high.x + high.y + high.z + high.w);
}

// Σ w·v for each half of a chunk.
fn dot_halves(w: Quads, v: Quads) -> vec2<f32> {
    return vec2<f32>(dot(w.a, v.a) + dot(w.b, v.b) + dot(w.c, v.c) + dot(w.d, v.d),
                     dot(w.e, v.e) + dot(w.f, v.f) + dot(w.g, v.g) + dot(w.h, v.h));
}
