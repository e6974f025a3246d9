// Repacks weights from the layout of the file into the planes that weights.wgsl describes. Nothing is rounded.
//
//   raw     a piece of the tile's bytes in file order; its first byte is the first byte of chunk `first`
//   planes  the tile
//   piece   what this dispatch does
//   flags   damage: for each tile 0, or the complement of the first place with NaN or an infinity. A place is a chunk, or, for plain
//           floats, an element, with rows counted including their padding
//   dispatch over chunks, 64 per workgroup: number = x + y · workgroups in x
//
// One thread moves one chunk of 32 weights. If several chunks share a word (scales), the first of them writes it for all, so a
// piece starts at a multiple of 16 chunks.

struct Piece {
    first:  u32, // the piece's first chunk in the tile
    count:  u32, // chunks
    k:      u32, // length of a row
    chunks: u32, // chunks per row
    high:   u32, // where planes start, in units of 16 bytes
    scales: u32,
    blocks: u32,
    flag:   u32, // the tile's index in flags
}

@group(0) @binding(0) var<storage, read>       raw:    array<u32>;
@group(0) @binding(1) var<storage, read_write> planes: array<u32>;
@group(0) @binding(2) var<storage, read>       piece:  Piece;
@group(0) @binding(3) var<storage, read_write> flags:  array<atomic<u32>>;

// GPUs need not propagate NaN, so bad weights might not show in the logits. We look for them during the upload.
fn report(place: u32) { atomicMax(&flags[piece.flag], ~place); }

fn half_is_broken(half: u32) -> bool { return (half & 0x7c00u) == 0x7c00u; }

fn byte_at(at: u32) -> u32 { return (raw[at >> 2u] >> (8u * (at & 3u))) & 255u; }

// Four bytes at any address.
fn word_at(at: u32) -> u32 {
    let shift = 8u * (at & 3u);
    let word  = raw[at >> 2u];
    if (shift == 0u) { return word; }
    return (word >> shift) | (raw[(at >> 2u) + 1u] << (32u - shift));
}

fn half_at(at: u32) -> u32 { return byte_at(at) | (byte_at(at + 1u) << 8u); }

fn put(plane: u32, word: u32, value: u32) { planes[4u * plane + word] = value; }

#if QUANTISED == 0
#if LOW == 32
const words = 32u;
#else
const words = 16u;
#endif

// Rows are padded with zeros to whole chunks.
fn repack(i: u32) {
    let row   = i / piece.chunks;
    let first = 32u * (i % piece.chunks); // element of the row
    let chunk = piece.first + i;
    for (var word = 0u; word < words; word++) {
#if LOW == 32
        let left = select(0u, 1u, first + word < piece.k);
        let at   = 4u * (row * piece.k + first + word);
        var value = 0u;
        if (left > 0u) { value = raw[at >> 2u]; }
        if ((value & 0x7f800000u) == 0x7f800000u) { report(32u * chunk + word); }
#else
        let left = select(0u, piece.k - (first + 2u * word), first + 2u * word < piece.k);
        let at   = 2u * (row * piece.k + first + 2u * word);
        var value = 0u;
        if (left >= 2u) { value = word_at(at); } else if (left == 1u) { value = half_at(at); }
#if WEIGHT == F16
        const exponent = 0x7c00u;
#else
        const exponent = 0x7f80u;
#endif
        if ((value & exponent) == exponent) { report(32u * chunk + 2u * word); }
        if (((value >> 16u) & exponent) == exponent) { report(32u * chunk + 2u * word + 1u); }
#endif
        put(0u, words * chunk + word, value);
    }
}
#else

const ones   = 0x01010101u;
const threes = 0x03030303u;
const lows   = 0x0f0f0f0fu;

// Where the block of the piece's chunk i starts, and which of the block's chunks it is.
fn block_of(i: u32) -> u32 { return (i * 32u / ${BLOCK}u) * ${BYTES}u; }
fn part_of(i: u32) -> u32 { return i % (${BLOCK}u / 32u); }

// ---- the bits of q ----

// One word of a chunk: the low bits, or the high bits, of elements 4n to 4n + 3, one element per byte.
#if WEIGHT == Q4_K
fn low_bits(at: u32, s: u32, n: u32) -> u32 { return (word_at(at + 16u + 32u * (s / 2u) + 4u * n) >> (4u * (s & 1u))) & lows; }
#elif WEIGHT == Q5_K
fn low_bits(at: u32, s: u32, n: u32) -> u32 { return (word_at(at + 48u + 32u * (s / 2u) + 4u * n) >> (4u * (s & 1u))) & lows; }
fn high_bits(at: u32, s: u32, n: u32) -> u32 { return (word_at(at + 16u + 4u * n) >> s) & ones; }
#elif WEIGHT == Q6_K
fn low_bits(at: u32, s: u32, n: u32) -> u32 {
    return (word_at(at + 64u * (s / 4u) + 32u * (s & 1u) + 4u * n) >> (2u * (s & 2u))) & lows;
}
fn high_bits(at: u32, s: u32, n: u32) -> u32 {
    return (word_at(at + 128u + 32u * (s / 4u) + 4u * n) >> (2u * (s & 3u))) & threes;
}
#elif WEIGHT == Q2_K
fn low_bits(at: u32, s: u32, n: u32) -> u32 { return (word_at(at + 16u + 32u * (s / 4u) + 4u * n) >> (2u * (s & 3u))) & threes; }
#elif WEIGHT == Q3_K
fn low_bits(at: u32, s: u32, n: u32) -> u32 { return (word_at(at + 32u + 32u * (s / 4u) + 4u * n) >> (2u * (s & 3u))) & threes; }
fn high_bits(at: u32, s: u32, n: u32) -> u32 { return (word_at(at + 4u * n) >> s) & ones; }
#elif WEIGHT == Q8_0
fn low_bits(at: u32, s: u32, n: u32) -> u32 { return word_at(at + 2u + 4u * n); }
#else
// 16 bytes of nibbles for 32 values: low nibbles first.
#if WEIGHT == IQ4_XS
fn nibbles_at(at: u32, s: u32) -> u32 { return at + 8u + 16u * s; }
#elif WEIGHT == MXFP4
fn nibbles_at(at: u32, s: u32) -> u32 { return at + 1u; }
#elif WEIGHT == Q4_1
fn nibbles_at(at: u32, s: u32) -> u32 { return at + 4u; }
#elif WEIGHT == Q5_0
fn nibbles_at(at: u32, s: u32) -> u32 { return at + 6u; }
#elif WEIGHT == Q5_1
fn nibbles_at(at: u32, s: u32) -> u32 { return at + 8u; }
#else
fn nibbles_at(at: u32, s: u32) -> u32 { return at + 2u; }
#endif
fn low_bits(at: u32, s: u32, n: u32) -> u32 { return (word_at(nibbles_at(at, s) + 4u * (n & 3u)) >> (4u * (n >> 2u))) & lows; }
#if HIGH == 1
// A word before the nibbles has one bit per element. This takes four of them, one per byte.
fn high_bits(at: u32, s: u32, n: u32) -> u32 {
    let four = (word_at(nibbles_at(at, s) - 4u) >> (4u * n)) & 15u;
    return (four | (four << 7u) | (four << 14u) | (four << 21u)) & ones;
}
#endif
#endif

fn repack_bits(i: u32) {
    let at    = block_of(i);
    let s     = part_of(i);
    let chunk = piece.first + i;
    for (var n = 0u; n < 4u; n++) {
#if LOW == 8
        put(0u, 8u * chunk + n, low_bits(at, s, n));
        put(0u, 8u * chunk + 4u + n, low_bits(at, s, n + 4u));
#elif LOW == 4
        put(0u, 4u * chunk + n, low_bits(at, s, n) | (low_bits(at, s, n + 4u) << 4u));
#endif
    }
#if LOW == 2
    var low = vec2<u32>(0u);
    for (var n = 0u; n < 4u; n++) { low |= vec2<u32>(low_bits(at, s, n), low_bits(at, s, n + 4u)) << vec2<u32>(2u * n); }
    put(0u, 2u * chunk, low.x);
    put(0u, 2u * chunk + 1u, low.y);
#endif
#if HIGH == 1
    var bits = 0u;
    for (var n = 0u; n < 8u; n++) { bits |= high_bits(at, s, n) << n; }
    put(piece.high, chunk, bits);
#elif HIGH == 2
    var high = vec2<u32>(0u);
    for (var n = 0u; n < 4u; n++) { high |= vec2<u32>(high_bits(at, s, n), high_bits(at, s, n + 4u)) << vec2<u32>(2u * n); }
    put(piece.high, 2u * chunk, high.x);
    put(piece.high, 2u * chunk + 1u, high.y);
#endif
}

// ---- scales ----

// The f16 at `offset` in the blocks of chunks i and i + step, in one word; 0 past the end.
fn two_halves(i: u32, step: u32, offset: u32) -> u32 {
    var word = half_at(block_of(i) + offset);
    if (i + step < piece.count) { word |= half_at(block_of(i + step) + offset) << 16u; }
    return word;
}

fn repack_scales(i: u32) {
    let at    = block_of(i);
    let chunk = piece.first + i;
#if SCALES == D
    if (i % 2u == 0u) { put(piece.scales, chunk / 2u, two_halves(i, 1u, 0u)); }
#elif SCALES == DM
    put(piece.scales, chunk, word_at(at));
#elif SCALES == E8
    if (i % 4u == 0u) {
        var word = 0u;
        for (var n = 0u; n < 4u && i + n < piece.count; n++) { word |= byte_at(block_of(i + n)) << (8u * n); }
        put(piece.scales, chunk / 4u, word);
    }
#elif SCALES == K4
    // 12 bytes: scales 0..3 are the low 6 bits of bytes 0..3, minima 0..3 those of bytes 4..7. Scale and minimum s of 4..7 have
    // their low 4 bits in byte s + 4, and their high 2 bits above those of s − 4
    if (i % 8u == 0u) {
        var low  = vec2<u32>(0u);
        var high = 0u;
        for (var s = 0u; s < 4u; s++) {
            let a = byte_at(at + 4u + s);
            let b = byte_at(at + 8u + s);
            let c = byte_at(at + 12u + s);
            low  |= vec2<u32>(a & 15u, b & 15u) << vec2<u32>(4u * s);
            low  |= vec2<u32>(c & 15u, c >> 4u) << vec2<u32>(4u * s + 16u);
            high |= (((a >> 4u) & 3u) | (((b >> 4u) & 3u) << 2u)) << (4u * s);
            high |= ((a >> 6u) | ((b >> 6u) << 2u)) << (4u * s + 16u);
        }
        let word = chunk / 2u;
        put(piece.scales, word, word_at(at));
        put(piece.scales, word + 1u, low.x);
        put(piece.scales, word + 2u, low.y);
        put(piece.scales, word + 3u, high);
    }
#elif SCALES == K6
    if (i % 2u == 0u) { put(piece.scales, chunk / 2u, word_at(at + 192u + 2u * part_of(i))); }
    if (i % 16u == 0u) { put(piece.blocks, chunk / 16u, two_halves(i, 8u, 208u)); }
#elif SCALES == K2
    if (i % 2u == 0u) { put(piece.scales, chunk / 2u, word_at(at + 2u * part_of(i))); }
    if (i % 8u == 0u) { put(piece.blocks, chunk / 8u, word_at(at + 80u)); }
#elif SCALES == K3
    // 12 bytes: 8 with the low 4 bits of scales 0..7 and, above them, of 8..15; 4 with the high 2 bits of s, s + 4, s + 8, s + 12
    if (i % 8u == 0u) {
        var low  = vec2<u32>(0u);
        var high = 0u;
        for (var s = 0u; s < 8u; s++) {
            let byte = byte_at(at + 96u + s);
            low |= vec2<u32>(byte & 15u, byte >> 4u) << vec2<u32>(4u * s);
        }
        for (var s = 0u; s < 16u; s++) { high |= ((byte_at(at + 104u + s % 4u) >> (2u * (s / 4u))) & 3u) << (2u * s); }
        let word = chunk / 2u;
        put(piece.scales, word, low.x);
        put(piece.scales, word + 1u, low.y);
        put(piece.scales, word + 2u, high);
        put(piece.scales, word + 3u, half_at(at + 108u));
    }
#else
    if (i % 8u == 0u) {
        put(piece.scales, chunk / 4u, word_at(at + 4u));
        put(piece.scales, chunk / 4u + 1u, half_at(at + 2u) | (half_at(at) << 16u));
    }
#endif
}

// The scales of the block that starts at `at`.
fn is_broken(at: u32) -> bool {
#if SCALES == E8
    return byte_at(at) == 255u;
#elif SCALES == DM
    return half_is_broken(half_at(at)) || half_is_broken(half_at(at + 2u));
#elif SCALES == K4
    return half_is_broken(half_at(at)) || half_is_broken(half_at(at + 2u));
#elif SCALES == K2
    return half_is_broken(half_at(at + 80u)) || half_is_broken(half_at(at + 82u));
#elif SCALES == K3
    return half_is_broken(half_at(at + 108u));
#elif SCALES == K6
    return half_is_broken(half_at(at + 208u));
#else
    return half_is_broken(half_at(at));
#endif
}

fn repack(i: u32) {
    repack_bits(i);
    repack_scales(i);
    if (part_of(i) == 0u && is_broken(block_of(i))) { report(piece.first + i); }
}
#endif

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let i = 64u * (group.x + group.y * groups.x) + thread;
    if (i < piece.count) { repack(i); }
}
