// The sampler's arithmetic: logits in units of 2^-16, weights in units of 2^-31, sums in 64 bits (wide.wgsl). It matches the
// engine's C code bit for bit. Include after `settings` and `row`.

const never = -0x7fffffff - 1; // −infinity: cannot be drawn
const limit = 0x40000000;      // logits are clamped to ±2^30

// round(logit · 65536), ties to even, clamped; takes the logit's bits.
fn fixed_from_bits(bits: u32) -> i32 {
    if (bits == 0xff800000u) { return never; }
    let size = i32(round(bitcast<f32>(min(bits & 0x7fffffffu, 0x46800000u)) * 65536.0));
    return select(size, -size, (bits >> 31u) == 1u);
}

fn wide_from(x: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(x), select(0u, 0xffffffffu, x < 0)); }

// Clamps a signed 64-bit number.
fn fixed_clamp(x: vec2<u32>) -> i32 {
    let negative = (x.y >> 31u) == 1u;
    let size = select(x, wide_subtract(vec2<u32>(), x), vec2<bool>(negative));
    let clamped = select(bitcast<i32>(size.x), limit, size.y != 0u || size.x > u32(limit));
    return select(clamped, -clamped, negative);
}

// x · factor / 2^24, halves rounded away from zero, clamped.
fn fixed_scale(x: i32, factor: u32) -> i32 {
    let size = wide_shift_right(wide_add(wide_product(u32(abs(x)), factor), vec2<u32>(1u << 23u, 0u)), 24u);
    return fixed_clamp(select(size, wide_subtract(vec2<u32>(), size), vec2<bool>(x < 0)));
}

// 2^31 · exp(−distance / temperature); `scale` is the temperature's (factor, shift).
fn weight_of(distance: u32, scale: vec2<u32>) -> u32 {
    let exponent = wide_shift_right(wide_product(distance, scale.x), scale.y);
    if (exponent.y != 0u || exponent.x >= 32u << 17u) { return 0u; }
    let whole = exponent.x >> 17u;
    let index = (exponent.x >> 9u) & 255u;
    let high = settings[row].exponents[index];
    let value = high - (((high - settings[row].exponents[index + 1u]) * (exponent.x & 511u) + 256u) >> 9u);
    if (whole == 0u) { return value; }
    return (value + (1u << (whole - 1u))) >> whole;
}

// Whether (key, id) is at a border or before it.
fn not_behind(key: u32, id: u32, border: vec2<u32>) -> bool { return key < border.x || (key == border.x && id <= border.y); }

// The border that comes first.
fn nearer(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, vec2<bool>(a.x < b.x || (a.x == b.x && a.y < b.y))); }

// share / 2^32 of the sum, rounded up, and at least 1.
fn share_of(share: u32, sum: vec2<u32>) -> vec2<u32> {
    let low = wide_product(sum.x, share);
    let part = wide_add(wide_product(sum.y, share), vec2<u32>(low.y, 0u));
    let rounded = wide_add(part, vec2<u32>(select(0u, 1u, low.x != 0u), 0u));
    return select(rounded, vec2<u32>(1u, 0u), vec2<bool>((rounded.x | rounded.y) == 0u));
}

// a · b / 2^64, rounded down.
fn wide_multiply_high(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let middle = wide_add(wide_product(a.y, b.x), vec2<u32>(wide_product(a.x, b.x).y, 0u));
    let cross = wide_add(wide_product(a.x, b.y), vec2<u32>(middle.x, 0u));
    return wide_add(wide_add(wide_product(a.y, b.y), vec2<u32>(middle.y, 0u)), vec2<u32>(cross.y, 0u));
}

// a / b, rounded down, bit by bit. The quotient must fit in 32 bits, and b must be below 2^63.
fn wide_quotient(a: vec2<u32>, b: vec2<u32>) -> u32 {
    var left = vec2<u32>();
    var quotient = 0u;
    for (var i = 0u; i < 64u; i++) {
        let bit = wide_shift_right(a, 63u - i).x & 1u;
        left = vec2<u32>((left.x << 1u) | bit, (left.y << 1u) | (left.x >> 31u));
        quotient = quotient << 1u;
        if (!wide_less(left, b)) {
            left = wide_subtract(left, b);
            quotient |= 1u;
        }
    }
    return quotient;
}

#include "philox.wgsl"

// The first two of its four words as a 64-bit number, first word on top.
fn philox(position: vec2<u32>, seed: vec2<u32>) -> vec2<u32> { return philox_words(vec4<u32>(position, 0u, 0u), seed).yx; }
