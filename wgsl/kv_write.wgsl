// Writes a row of keys or values (kv.wgsl describes one) piece by piece. A piece is four values (WIDE), otherwise one (f32) or two
// (f16), and 32 for q8_0. Include after unit.wgsl and after declaring `n`, the number of values in a row, the function
//
//     fn input(at: u32, is_value: bool) -> unit     // unit `at` of the values to store; a row starts at `source`
//
// and keys and values of array<kv_unit>. Rounding to f16 and dividing by 127 use integer arithmetic, because GPUs may round
// differently from a CPU.

// x as f16 bits, rounded to nearest, ties to even.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) { return sign | 0x7e00u; }  // NaN
    if (size >= 0x47800000u) { return sign | 0x7c00u; } // 2^16 and above
    if (size < 0x33000000u) { return sign; }            // below 2^-25
    let normal = size >= 0x38800000u;                   // 2^-14 and above
    let shift = select(126u - (size >> 23u), 13u, normal);
    let whole = select((size & 0x7fffffu) | 0x800000u, size - (112u << 23u), normal);
    let kept = whole >> shift;
    let rest = whole & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    return sign | (kept + select(0u, 1u, rest > half || (rest == half && (kept & 1u) == 1u)));
}

#if KV_TYPE == q8_0
// numerator / denominator, rounded to the nearest integer. Both are positive and the quotient is below 2^25. A guess in f32 is off
// by a few, and the remainder corrects it. The remainder is small, so the low word of the numerator is enough.
fn nearest_quotient(guess: u32, numerator_low: u32, denominator: u32) -> u32 {
    var quotient = guess;
    var left = bitcast<i32>(numerator_low - guess * denominator);
    let whole = i32(denominator);
    for (var i = 0; i < 8 && 2 * left > whole; i++) { left -= whole; quotient += 1u; }
    for (var i = 0; i < 8 && 2 * left < -whole; i++) { left += whole; quotient -= 1u; }
    if (2 * abs(left) == whole && (quotient & 1u) == 1u) { quotient = select(quotient - 1u, quotient + 1u, left > 0); }
    return quotient;
}

// most / 127 as a CPU rounds it, for most ≥ 2^-100: fraction · 2^6 or 2^7 / 127 has 24 bits.
fn divided_by_127(most: f32) -> f32 {
    let bits = bitcast<u32>(most);
    let fraction = (bits & 0x7fffffu) | 0x800000u;
    let shift = select(6u, 7u, fraction < 127u << 17u); // so that the quotient is at least 2^23
    let shifted = fraction << shift;
    let quotient = nearest_quotient(shifted / 127u, shifted, 127u);
    return bitcast<f32>((((bits >> 23u) - shift - 1u) << 23u) + quotient); // the quotient's highest bit adds the 1
}

// 1 / d as a CPU rounds it, for normal d: 2^47 / fraction is between 2^23 and 2^24.
fn inverted(d: f32) -> f32 {
    let bits = bitcast<u32>(d);
    let fraction = (bits & 0x7fffffu) | 0x800000u;
    if (fraction == 0x800000u) { return bitcast<f32>((254u - (bits >> 23u)) << 23u); }
    let guess = u32(0x1p47f / f32(fraction));
    let quotient = nearest_quotient(guess, 0u, fraction);
    return bitcast<f32>(((253u - (bits >> 23u) - 1u) << 23u) + quotient);
}

// The f32 value of f16 bits without a sign.
fn half_value(bits: u32) -> f32 {
    if (bits < 0x400u) { return f32(bits) * 0x1p-24f; }
    return bitcast<f32>((bits << 13u) + (112u << 23u));
}

// d = f16(max|x| / 127); q = round(x / d) with d before rounding. Blocks too small for 1/d become zeros, and so do NaNs.
fn store_block(source: u32, row: u32, block: u32, is_value: bool) {
    var x: array<vec4<f32>, 8>;
    var most = 0.0;
    for (var i = 0u; i < 8u; i++) {
        x[i] = input(source + block * 8u + i, is_value);
        let size = abs(x[i]);
        most = max(most, max(max(size.x, size.y), max(size.z, size.w)));
    }
    var d = 0.0;
    var inverse = 0.0;
    if (most > 0x1p-100f) { d = divided_by_127(most); }
    if (d > 1e-35) { inverse = inverted(d); } else { d = 0.0; }
    let words = (n / 4u + n / 32u + 3u) / 4u * 4u;
    let scale = bitcast<u32>(half_value(half_bits(d)));
    let scale_at = row * words + n / 4u + block;
    if (is_value) { values[scale_at] = scale; } else { keys[scale_at] = scale; }
    for (var i = 0u; i < 8u; i++) {
        let scaled = round(x[i] * inverse);
        let fits = abs(scaled) <= vec4<f32>(127.0);
        let q = vec4<u32>(vec4<i32>(select(vec4<f32>(), scaled, fits))) & vec4<u32>(255u);
        let word = q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
        let at = row * words + block * 8u + i;
        if (is_value) { values[at] = word; } else { keys[at] = word; }
    }
}
#elif KV_TYPE == f16
#if WIDE
fn pack(x: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(half_bits(x.x) | (half_bits(x.y) << 16u), half_bits(x.z) | (half_bits(x.w) << 16u));
}
#else
fn pack(x: f32, y: f32) -> u32 { return half_bits(x) | (half_bits(y) << 16u); }
#endif
#endif

#if KV_TYPE == q8_0
const piece_values = 32u;
#elif KV_TYPE == f16
const piece_values = max(2u, unit_values);
#else
const piece_values = unit_values;
#endif

// Stores piece `piece` of row `row`; the input row starts at `source`.
fn store_piece(source: u32, row: u32, piece: u32, is_value: bool) {
#if KV_TYPE == q8_0
    store_block(source, row, piece, is_value);
#else
#if KV_TYPE == f16
#if WIDE
    let stored = pack(input(source + piece, is_value));
#else
    let stored = pack(input(source + 2u * piece, is_value), input(source + 2u * piece + 1u, is_value));
#endif
#else
    let stored = input(source + piece, is_value);
#endif
    let to = row * (n / piece_values) + piece;
    if (is_value) { values[to] = stored; } else { keys[to] = stored; }
#endif
}
