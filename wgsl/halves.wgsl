// Weights as f16, by eights, for subgroup matrices. The including file includes weights.wgsl and enables f16.
//
// Quantised weights become f16 two at a time: q in the mantissa of 1024 gives 1024 + q, and two bytes of a word that are 16 bits
// apart form a pair. Hence the order 0 2 1 3 of each four values along k. Weights are scaled up by w_factor, so that the scales of
// small weights are not subnormal; weights up to 1000 fit.

struct Halves { a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32> } // 32 values

#if QUANTISED
const w_factor    = 64.0;
const item_eights = 4u; // an item is one chunk

struct Raw { chunk: u32, q: RawQuants, s: vec4<u32> }

fn raw_item(chunk: u32, part: u32) -> Raw { return Raw(chunk, raw_quants(chunk), raw_scales(chunk)); }

#if SIGNED
const flip = 0x80808080u;
const base = 1152.0h;
#else
const flip = 0u;
const base = 1024.0h + ${BIAS}.0h;
#endif

fn pair(bytes: u32, s: vec2<f16>) -> u32 {
    let q = bitcast<vec2<f16>>(bytes | 0x64006400u) - vec2<f16>(base);
#if BIAS
    return bitcast<u32>(q * s.x);
#elif AFFINE
    return bitcast<u32>(q * s.x + s.y);
#else
    return bitcast<u32>(q * s.x);
#endif
}

fn eight(first: u32, second: u32, s: vec2<f16>) -> vec4<u32> {
    let a = first ^ flip;
    let b = second ^ flip;
    return vec4<u32>(pair(a & 0x00ff00ffu, s), pair((a >> 8u) & 0x00ff00ffu, s),
                     pair(b & 0x00ff00ffu, s), pair((b >> 8u) & 0x00ff00ffu, s));
}

fn halves(raw: Raw) -> Halves {
    let q = unpack_quants(raw.q);
    let s = vec4<f16>(unpack_scales(raw.s, raw.chunk) * w_factor);
    return Halves(eight(q.low.x, q.low.y, s.xz), eight(q.low.z, q.low.w, s.xz),
                  eight(q.high.x, q.high.y, s.yw), eight(q.high.z, q.high.w, s.yw));
}
#else
const w_factor    = 1.0;
const item_eights = 1u;

alias Raw = vec4<u32>;

fn raw_item(chunk: u32, part: u32) -> Raw { return weights[4u * chunk + part]; }

// Puts two pairs of adjacent values into the order 0 2 1 3.
fn two_pairs(first: u32, second: u32) -> vec2<u32> {
#if WEIGHT == BF16
    let a = two_numbers(first);
    let b = two_numbers(second);
    return vec2<u32>(pack2x16float(vec2<f32>(a.x, b.x)), pack2x16float(vec2<f32>(a.y, b.y)));
#else
    return vec2<u32>((first & 0xffffu) | (second << 16u), (first >> 16u) | (second & 0xffff0000u));
#endif
}

fn halves(raw: Raw) -> vec4<u32> { return vec4<u32>(two_pairs(raw.x, raw.y), two_pairs(raw.z, raw.w)); }
#endif
