// Keys and values in memory: include after declaring `head` and the bindings `keys` and `values` of array<kv_unit>.
//
// Each layer has a buffer of keys and one of values: rows of kv_heads · head values, position p in row p mod slots. A layer that
// never wraps is given slots = 0xffffffff. One row takes, KV_TYPE
//   f32   4 bytes a value
//   f16   2 bytes a value, two in a word, the lower index in the lower half; kv_heads · head is even
//   q8_0  a byte a value, four in a word, then a f32 scale for every 32 values (the value of the f16 scale that a file would
//         hold), then padding to a multiple of 16 bytes; head is a multiple of 32
// QUADS: head is a multiple of 4, and four values are read at once.

override kv_heads: u32;
override slots:    u32;

#include "kv_unit.wgsl"

// Where the row of a position and head begins: x for its values, y for its scales (q8_0).
fn kv_row(position: u32, kv_head: u32) -> vec2<u32> {
    let slot = position % slots;
#if KV_TYPE == q8_0
    let values = kv_heads * head;
    let words = (values / 4u + values / 32u + 3u) / 4u * 4u;
    return slot * words + vec2<u32>(kv_head * head / 4u, values / 4u + kv_head * head / 32u);
#elif QUADS
    return vec2<u32>((slot * kv_heads + kv_head) * (head / 4u), 0u);
#else
    return vec2<u32>((slot * kv_heads + kv_head) * head, 0u);
#endif
}

#if KV_TYPE == q8_0
// The four signed bytes of a word.
fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(vec4<u32>(word << 24u, word << 16u, word << 8u, word)) >> vec4<u32>(24u));
}
fn key_quad(row: vec2<u32>, quad: u32) -> vec4<f32> {
    return signed_bytes(keys[row.x + quad]) * bitcast<f32>(keys[row.y + quad / 8u]);
}
fn value_quad(row: vec2<u32>, quad: u32) -> vec4<f32> {
    return signed_bytes(values[row.x + quad]) * bitcast<f32>(values[row.y + quad / 8u]);
}
#elif QUADS
#if KV_TYPE == f16
fn four_halves(words: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)); }
fn key_quad(row: vec2<u32>, quad: u32) -> vec4<f32> { return four_halves(keys[row.x + quad]); }
fn value_quad(row: vec2<u32>, quad: u32) -> vec4<f32> { return four_halves(values[row.x + quad]); }
#else
fn key_quad(row: vec2<u32>, quad: u32) -> vec4<f32> { return keys[row.x + quad]; }
fn value_quad(row: vec2<u32>, quad: u32) -> vec4<f32> { return values[row.x + quad]; }
#endif
#else
// One by one; beyond the head's end there are zeros.
#if KV_TYPE == f16
fn half_of(word: u32, at: u32) -> f32 { return unpack2x16float(word >> (at % 2u * 16u)).x; }
fn key_at(at: u32) -> f32 { return half_of(keys[at / 2u], at); }
fn value_at(at: u32) -> f32 { return half_of(values[at / 2u], at); }
#else
fn key_at(at: u32) -> f32 { return keys[at]; }
fn value_at(at: u32) -> f32 { return values[at]; }
#endif
fn key_quad(row: vec2<u32>, quad: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { four[i] = key_at(row.x + 4u * quad + i); }
    return four;
}
fn value_quad(row: vec2<u32>, quad: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { four[i] = value_at(row.x + 4u * quad + i); }
    return four;
}
#endif

// Whether a query at `position` sees the key of position j.
fn visible(j: u32, position: u32) -> bool { return j <= position && (window == 0u || position - j < window); }

// The first position that it sees.
fn first_visible(position: u32) -> u32 { return select(0u, position + 1u - window, window > 0u && position >= window); }
