// Arithmetic that gives the same bits as the CPU, if EXACT; src/cpu/exact.h has the same functions. Otherwise what the
// GPU has of its own. Include with run.wgsl, or with EXPERTS where `groups` is bound.
//
// This needs sums, differences and products of f32 that are rounded to nearest, in the order that is written here. Compilers change it: they
// fuse a product with a sum, and they move constants, as (x + y) + 1 → (x + 1) + y. So an intermediate result is `rounded` before something is
// added to it, and before a constant is multiplied with it.

#if EXACT
// 0, which no compiler knows.
fn unknown_zero() -> u32 {
#if EXPERTS
    return groups[0] >> 31u;
#else
    return run.tokens >> 31u;
#endif
}
fn rounded(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ unknown_zero()); }
fn rounded_four(x: vec4<f32>) -> vec4<f32> { return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) ^ vec4<u32>(unknown_zero())); }

fn inverse(x: f32) -> f32 {
    var y = bitcast<f32>(0x7ef311c7u - bitcast<u32>(x));
    for (var i = 0; i < 4; i++) { y = rounded(y * (2.0 - rounded(x * y))); }
    return y;
}
fn quotient(a: f32, b: f32) -> f32 { return rounded(a * inverse(b)); }

fn inverse_root(x: f32) -> f32 {
    var y = bitcast<f32>(0x5f3759dfu - (bitcast<u32>(x) >> 1u));
    for (var i = 0; i < 4; i++) { y = rounded(y * (1.5 - rounded(rounded(rounded(0.5 * x) * y) * y))); }
    return y;
}

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn exponential(given: f32) -> f32 {
    let x = min(given, 80.0);
    let n = floor(rounded(x * 1.44269504) + 0.5);
    let r = rounded(rounded(x - rounded(n * 0.693359375)) - rounded(n * -2.12194440e-4));
    var p = rounded(1.9875691500e-4 * r) + 1.3981999507e-3;
    p = rounded(p * r) + 8.3334519073e-3;
    p = rounded(p * r) + 4.1665795894e-2;
    p = rounded(p * r) + 1.6666665459e-1;
    p = rounded(p * r) + 5.0000001201e-1;
    p = rounded(rounded(p * rounded(r * r)) + r) + 1.0;
    let power = bitcast<f32>(bitcast<u32>(p) + (bitcast<u32>(i32(n)) << 23u));
    return select(select(power, 0.0, x < -70.0), given, is_nan(given));
}

fn logarithm(x: f32) -> f32 {
    var exponent = i32(bitcast<u32>(x) >> 23u) - 127;
    var m = bitcast<f32>((bitcast<u32>(x) & 0x7fffffu) | 0x3f800000u);
    if (m > 1.41421356) {
        m *= 0.5;
        exponent++;
    }
    return rounded(rounded(f32(exponent) * 0.693147181) + log_ratio(rounded((m - 1.0) * inverse(m + 1.0))));
}
#else
fn rounded(x: f32) -> f32 { return x; }
fn rounded_four(x: vec4<f32>) -> vec4<f32> { return x; }
fn inverse(x: f32) -> f32 { return 1.0 / x; }
fn quotient(a: f32, b: f32) -> f32 { return a / b; }
fn inverse_root(x: f32) -> f32 { return inverseSqrt(x); }
fn exponential(x: f32) -> f32 { return exp(x); }
fn logarithm(x: f32) -> f32 { return log(x); }
#endif

// ln((1 + s) / (1 − s))
fn log_ratio(s: f32) -> f32 {
    let q = rounded(s * s);
    var p = rounded(q * (1.0 / 13.0)) + 1.0 / 11.0;
    p = rounded(p * q) + 1.0 / 9.0;
    p = rounded(p * q) + 1.0 / 7.0;
    p = rounded(p * q) + 1.0 / 5.0;
    p = rounded(p * q) + 1.0 / 3.0;
    p = rounded(p * q) + 1.0;
    return rounded(2.0 * rounded(s * p));
}

#if WIDE
fn rounded_unit(x: vec4<f32>) -> vec4<f32> { return rounded_four(x); }
#else
fn rounded_unit(x: f32) -> f32 { return rounded(x); }
#endif
