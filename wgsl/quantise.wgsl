// Activations in 8 bits: per 32 values d = max|x| / 127, p = round(x / d); for the matmul that follows also d · Σ p of each 16.
//
//   x    f32, row r (of `per` for each token) of token t at x_offset + t · x_token_stride + r · x_row_stride, k values, k a
//        multiple of 32
//   out  row t · per + r: k/16 vec4<u32> with p in bytes; from out_scales on (counted in 16 bytes) for each 32 values a
//        vec4<f32>: d, d·Σp of the first 16, d·Σp of the last 16, 0
//   dispatch (chunks of a row / 64, rows), one thread for each 32 values; rows of tokens that are not there are left alone

#include "run.wgsl"

override k:              u32;
override per:            u32 = 1u;
override x_offset:       u32 = 0u;
override x_token_stride: u32;
override x_row_stride:   u32 = 0u;
override out_scales:     u32;

#if VEC4
@group(0) @binding(0) var<storage, read_write> x: array<vec4<f32>>;
#else
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
#endif
@group(0) @binding(1) var<storage, read_write> out: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read>       run: Run;

struct Quads { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32> }

#include "columns.wgsl"

fn most(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> { return max(abs(a), abs(b)); }

fn rounded(v: vec4<f32>, inverse: f32) -> vec4<i32> {
    return vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
}

fn packed(p: vec4<i32>) -> u32 {
    let b = vec4<u32>(p) & vec4<u32>(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

fn total(p: vec4<i32>) -> f32 { return f32(p.x + p.y + p.z + p.w); }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let chunk = id.x;
    let row   = id.y;
    let token = row / per;
#if OUTPUTS
    let count = run.outputs;
#else
    let count = run.tokens;
#endif
    if (chunk >= k / 32u || token >= count) { return; }

    let v    = load_chunk(x_offset + token * x_token_stride + (row % per) * x_row_stride, chunk);
    let top  = max(max(most(v.a, v.b), most(v.c, v.d)), max(most(v.e, v.f), most(v.g, v.h)));
    let d    = max(max(top.x, top.y), max(top.z, top.w)) / 127.0;
    let some = d > 1e-35;
    let inverse = select(0.0, 1.0 / d, some);
    let scale   = select(0.0, d, some);

    let a = rounded(v.a, inverse);
    let b = rounded(v.b, inverse);
    let c = rounded(v.c, inverse);
    let e = rounded(v.d, inverse);
    let f = rounded(v.e, inverse);
    let g = rounded(v.f, inverse);
    let h = rounded(v.g, inverse);
    let i = rounded(v.h, inverse);
    let at = row * (k / 32u) + chunk;
    out[2u * at]         = vec4<u32>(packed(a), packed(b), packed(c), packed(e));
    out[2u * at + 1u]    = vec4<u32>(packed(f), packed(g), packed(h), packed(i));
    out[out_scales + at] = bitcast<vec4<u32>>(vec4<f32>(scale, scale * total(a + b + c + e), scale * total(f + g + h + i), 0.0));
}
