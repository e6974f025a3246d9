// Reads repacked weights (repack.wgsl writes them, src/gpu/weights.c decides the layout).
//
// A chunk is 32 consecutive weights of a row; a row is ceil(k/32) chunks, and chunk c of a row is number row · chunks + c in every
// plane. The including file declares the whole tile with all its planes:
//
//     var<storage, read> weights: array<vec4<u32>>;
//
// A weight is (q − BIAS) · scale + offset. "Packed" means four q in the bytes of one u32; word i of 8 has the chunk's elements
// 4i..4i+3, unsigned, or i8 if SIGNED.
//
//   LOW      bits in the first plane: 2: two words, bits 2i of byte e%4 are word i (i < 4), the second word the same for i ≥ 4;
//            4: 16 bytes, low nibbles are words 0..3, high nibbles words 4..7; 8: 32 bytes; 16, 32: floats, no q
//   HIGH     further bits of q above those, in a plane at w_high: 1: one word, bit i of byte e%4 is word i's; 2: as LOW 2
//   VALUES   q is an index into a table: IQ4 or MXFP4
//   SCALES   the contents of the planes at w_scales and at w_blocks (one per 256); see unpack_scales
//   SPAN     16 or 32: values per scale
//
// Plane offsets are in units of 16 bytes.

override w_high:   u32 = 0u;
override w_scales: u32 = 0u;
override w_blocks: u32 = 0u;

// Word i of a plane.
fn plane_word(plane: u32, i: u32) -> u32 { return weights[plane + (i >> 2u)][i & 3u]; }

struct Quads { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32> }

#if LOW == 32
fn number_quad(chunk: u32, i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(weights[8u * chunk + i]); }
#elif LOW == 16
#if WEIGHT == BF16
fn two_numbers(word: u32) -> vec2<f32> { return bitcast<vec2<f32>>(vec2<u32>(word << 16u, word & 0xffff0000u)); }
#else
fn two_numbers(word: u32) -> vec2<f32> { return unpack2x16float(word); }
#endif
fn number_quad(chunk: u32, i: u32) -> vec4<f32> {
    let four = weights[4u * chunk + (i >> 1u)];
    let two  = select(four.xy, four.zw, (i & 1u) == 1u);
    return vec4<f32>(two_numbers(two.x), two_numbers(two.y));
}
#endif

#if QUANTISED == 0
fn chunk_quads(chunk: u32) -> Quads {
    return Quads(number_quad(chunk, 0u), number_quad(chunk, 1u), number_quad(chunk, 2u), number_quad(chunk, 3u),
                 number_quad(chunk, 4u), number_quad(chunk, 5u), number_quad(chunk, 6u), number_quad(chunk, 7u));
}

struct Pair { low: vec4<f32>, high: vec4<f32> }

// The weights of quads p and p + 4.
fn pair_weights(chunk: u32, p: u32) -> Pair { return Pair(number_quad(chunk, p), number_quad(chunk, p + 4u)); }
#else

// ---- q ----

#if VALUES
#if VALUES == IQ4
// −127 −104 −83 −65, −49 −35 −22 −10, 1 13 25 38, 53 69 89 113
const table = array<u32, 4>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
#else
// 0 1 2 3, 4 6 8 12, and the same negative: twice the e2m1 values
const table = array<u32, 4>(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
#endif
// Looks up four nibbles, one per byte, in the table. Uses selects, because an indexed constant may go through memory.
fn looked_up(nibbles: u32) -> u32 {
    let n     = (vec4<u32>(nibbles) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    let bit2  = (n & vec4<u32>(4u)) != vec4<u32>(0u);
    let low   = select(vec4<u32>(table[0]), vec4<u32>(table[1]), bit2);
    let high  = select(vec4<u32>(table[2]), vec4<u32>(table[3]), bit2);
    let bytes = (select(low, high, n >= vec4<u32>(8u)) >> ((n & vec4<u32>(3u)) * 8u)) & vec4<u32>(255u);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}
#endif

struct Packed { low: vec4<u32>, high: vec4<u32> } // words 0..3 and 4..7

const shifts_1 = vec4<u32>(0u, 1u, 2u, 3u);
const shifts_2 = vec4<u32>(0u, 2u, 4u, 6u);

// A chunk's q as stored. Loading and unpacking are separate, so that other work can be done while the load is in flight.
struct RawQuants {
#if LOW == 2
    low: vec2<u32>,
#else
    low: vec4<u32>,
#endif
#if LOW == 8
    more: vec4<u32>,
#endif
#if HIGH == 1
    high: u32,
#elif HIGH == 2
    high: vec2<u32>,
#endif
}

fn raw_quants(chunk: u32) -> RawQuants {
    var raw: RawQuants;
#if LOW == 8
    raw.low  = weights[2u * chunk];
    raw.more = weights[2u * chunk + 1u];
#elif LOW == 4
    raw.low = weights[chunk];
#else
    raw.low = vec2<u32>(plane_word(0u, 2u * chunk), plane_word(0u, 2u * chunk + 1u));
#endif
#if HIGH == 1
    raw.high = plane_word(w_high, chunk);
#elif HIGH == 2
    raw.high = vec2<u32>(plane_word(w_high, 2u * chunk), plane_word(w_high, 2u * chunk + 1u));
#endif
    return raw;
}

fn unpack_quants(raw: RawQuants) -> Packed {
#if LOW == 8
    return Packed(raw.low, raw.more);
#else
#if LOW == 4
    var low  = raw.low & vec4<u32>(0x0f0f0f0fu);
    var high = (raw.low >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
#else
    var low  = (vec4<u32>(raw.low.x) >> shifts_2) & vec4<u32>(0x03030303u);
    var high = (vec4<u32>(raw.low.y) >> shifts_2) & vec4<u32>(0x03030303u);
#endif
#if HIGH == 1
    let bits = vec4<u32>(raw.high);
    low  |= ((bits >> shifts_1) & vec4<u32>(0x01010101u)) << vec4<u32>(${LOW}u);
    high |= ((bits >> (shifts_1 + vec4<u32>(4u))) & vec4<u32>(0x01010101u)) << vec4<u32>(${LOW}u);
#elif HIGH == 2
    low  |= ((vec4<u32>(raw.high.x) >> shifts_2) & vec4<u32>(0x03030303u)) << vec4<u32>(${LOW}u);
    high |= ((vec4<u32>(raw.high.y) >> shifts_2) & vec4<u32>(0x03030303u)) << vec4<u32>(${LOW}u);
#endif
#if VALUES
    low  = vec4<u32>(looked_up(low.x), looked_up(low.y), looked_up(low.z), looked_up(low.w));
    high = vec4<u32>(looked_up(high.x), looked_up(high.y), looked_up(high.z), looked_up(high.w));
#endif
    return Packed(low, high);
#endif
}

fn chunk_packed(chunk: u32) -> Packed { return unpack_quants(raw_quants(chunk)); }

// Words p and p + 4 of a chunk, p < 4.
fn pair_packed(chunk: u32, p: u32) -> vec2<u32> {
#if LOW == 8
    return vec2<u32>(plane_word(0u, 8u * chunk + p), plane_word(0u, 8u * chunk + 4u + p));
#else
#if LOW == 4
    let nibbles = plane_word(0u, 4u * chunk + p);
    var two = vec2<u32>(nibbles, nibbles >> 4u) & vec2<u32>(0x0f0f0f0fu);
#else
    let four = vec2<u32>(plane_word(0u, 2u * chunk), plane_word(0u, 2u * chunk + 1u));
    var two  = (four >> vec2<u32>(2u * p)) & vec2<u32>(0x03030303u);
#endif
#if HIGH == 1
    let bits = plane_word(w_high, chunk) >> p;
    two |= (vec2<u32>(bits, bits >> 4u) & vec2<u32>(0x01010101u)) << vec2<u32>(${LOW}u);
#elif HIGH == 2
    let bits = vec2<u32>(plane_word(w_high, 2u * chunk), plane_word(w_high, 2u * chunk + 1u)) >> vec2<u32>(2u * p);
    two |= (bits & vec2<u32>(0x03030303u)) << vec2<u32>(${LOW}u);
#endif
#if VALUES
    two = vec2<u32>(looked_up(two.x), looked_up(two.y));
#endif
    return two;
#endif
}

// The four q of a packed word as floats.
fn q_values(word: u32) -> vec4<f32> {
#if SIGNED
#if DOT4
    return vec4<f32>(unpack4xI8(word));
#else
    return vec4<f32>((vec4<i32>(i32(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
#endif
#else
#if DOT4
    return vec4<f32>(unpack4xU8(word));
#else
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
#endif
#endif
}

fn unpacked_quads(q: Packed) -> Quads {
    return Quads(q_values(q.low.x), q_values(q.low.y), q_values(q.low.z), q_values(q.low.w),
                 q_values(q.high.x), q_values(q.high.y), q_values(q.high.z), q_values(q.high.w));
}

fn chunk_quads(chunk: u32) -> Quads { return unpacked_quads(chunk_packed(chunk)); }

// ---- scales ----

// The words that hold a chunk's scales, as stored; unpack_scales describes them.
fn raw_scales(chunk: u32) -> vec4<u32> {
#if SCALES == D
    return vec4<u32>(plane_word(w_scales, chunk >> 1u), 0u, 0u, 0u);
#elif SCALES == DM
    return vec4<u32>(plane_word(w_scales, chunk), 0u, 0u, 0u);
#elif SCALES == E8
    return vec4<u32>(plane_word(w_scales, chunk >> 2u), 0u, 0u, 0u);
#elif SCALES == K4
    return weights[w_scales + (chunk >> 3u)];
#elif SCALES == K6
    return vec4<u32>(plane_word(w_scales, chunk >> 1u), plane_word(w_blocks, chunk >> 4u), 0u, 0u);
#elif SCALES == K2
    return vec4<u32>(plane_word(w_scales, chunk >> 1u), plane_word(w_blocks, chunk >> 3u), 0u, 0u);
#elif SCALES == K3
    return weights[w_scales + (chunk >> 3u)];
#else
    return vec4<u32>(plane_word(w_scales, 2u * (chunk >> 3u)), plane_word(w_scales, 2u * (chunk >> 3u) + 1u), 0u, 0u);
#endif
}

// The scales of the chunk's two halves, then their offsets (0 if the format has none).
fn unpack_scales(raw: vec4<u32>, chunk: u32) -> vec4<f32> {
#if SCALES == D
    // f16 d for each chunk
    let d = unpack2x16float(raw.x >> (16u * (chunk & 1u))).x;
    return vec4<f32>(d, d, 0.0, 0.0);
#elif SCALES == DM
    // f16 d, m for each chunk
    return unpack2x16float(raw.x).xxyy;
#elif SCALES == E8
    // one byte for each chunk: 2^(byte − 128); the two smallest are subnormal
    let e = (raw.x >> (8u * (chunk & 3u))) & 255u;
    let d = bitcast<f32>(select((e - 1u) << 23u, 0x200000u << (e & 1u), e < 2u));
    return vec4<f32>(d, d, 0.0, 0.0);
#elif SCALES == K4
    // per 256, 16 bytes: f16 d, dmin; low 4 bits of 8 scales; of 8 minima; their high bits, 2 and 2 in 4
    let d       = unpack2x16float(raw.x);
    let bits    = raw.yzw >> vec3<u32>(4u * (chunk & 7u));
    let scale   = (bits.x & 15u) | ((bits.z & 3u) << 4u);
    let minimum = (bits.y & 15u) | ((bits.z & 12u) << 2u);
    return vec4<f32>(d.x * f32(scale), d.x * f32(scale), -(d.y * f32(minimum)), -(d.y * f32(minimum)));
#elif SCALES == K6
    // i8 for each 16; f16 d for each 256
    let two = i32(raw.x >> (16u * (chunk & 1u)));
    let d   = unpack2x16float(raw.y >> (16u * ((chunk >> 3u) & 1u))).x;
    return vec4<f32>(d * f32((two << 24u) >> 24u), d * f32((two << 16u) >> 24u), 0.0, 0.0);
#elif SCALES == K2
    // for each 16 a byte: 4 bits scale, 4 bits minimum; f16 d, dmin for each 256
    let two = raw.x >> (16u * (chunk & 1u));
    let d   = unpack2x16float(raw.y);
    let n   = vec4<f32>((vec4<u32>(two) >> vec4<u32>(0u, 8u, 4u, 12u)) & vec4<u32>(15u));
    return vec4<f32>(d.x * n.xy, -(d.y * n.zw));
#elif SCALES == K3
    // per 256, 16 bytes: low 4 bits of 16 scales, their high 2 bits, f16 d; scales are biased by 32
    let j    = chunk & 7u;
    let low  = select(raw.x, raw.y, j >= 4u) >> (8u * (j & 3u));
    let high = raw.z >> (4u * j);
    let n    = (vec2<u32>(low, low >> 4u) & vec2<u32>(15u)) | ((vec2<u32>(high, high >> 2u) & vec2<u32>(3u)) << vec2<u32>(4u));
    return vec4<f32>(unpack2x16float(raw.w).x * vec2<f32>(vec2<i32>(n) - vec2<i32>(32)), 0.0, 0.0);
#else
    // XS: per 256, 8 bytes: low 4 bits of 8 scales; their high 2 bits, then f16 d; scales are biased by 32
    let j = chunk & 7u;
    let n = ((raw.x >> (4u * j)) & 15u) | (((raw.y >> (2u * j)) & 3u) << 4u);
    let d = unpack2x16float(raw.y).y * f32(i32(n) - 32);
    return vec4<f32>(d, d, 0.0, 0.0);
#endif
}

fn chunk_scales(chunk: u32) -> vec4<f32> { return unpack_scales(raw_scales(chunk), chunk); }

// The same for w = q · scale + offset, with BIAS folded into the offset.
fn with_bias(s: vec4<f32>) -> vec4<f32> {
#if BIAS
    return vec4<f32>(s.xy, s.xy * -${BIAS}.0);
#else
    return s;
#endif
}

fn chunk_affine(chunk: u32) -> vec4<f32> { return with_bias(chunk_scales(chunk)); }

struct Pair { low: vec4<f32>, high: vec4<f32> }

// The weights of quads p and p + 4.
fn pair_weights(chunk: u32, p: u32) -> Pair {
    let two = pair_packed(chunk, p);
    let s   = chunk_scales(chunk);
#if BIAS
    return Pair((q_values(two.x) - ${BIAS}.0) * s.x, (q_values(two.y) - ${BIAS}.0) * s.y);
#else
    return Pair(q_values(two.x) * s.x + s.z, q_values(two.y) * s.y + s.w);
#endif
}
#endif
