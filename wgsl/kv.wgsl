// How keys and values are stored. Include after declaring `head` and the bindings `keys` and `values` of array<kv_unit>.
//
// Each layer has a buffer of keys and one of values, with a row of kv_heads · head values in each slot; slots.wgsl says which slot an
// index of a sequence is in. The size of a row depends on KV_TYPE:
//   f32   4 bytes per value
//   f16   2 bytes per value, two in a word, the lower index in the lower half; kv_heads · head is even
//   q8_0  one byte per value, four in a word, then an f32 scale for every 32 values (equal to the f16 scale that a file would
//         hold), then padding to a multiple of 16 bytes; head is a multiple of 32
// QUADS: head is a multiple of 4, and four values are read at once.

override kv_heads: u32;

#include "kv_unit.wgsl"
#include "slots.wgsl"

// Where a head's part of the row in a slot starts: x for its values, y for its scales (q8_0).
fn slot_row(slot: u32, kv_head: u32) -> vec2<u32> {
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

// Four values of a row. key_words and value_words load them as stored (kv_quad), so that many loads can be in flight;
// four_of converts them.
#if KV_TYPE == q8_0
alias kv_quad = vec2<u32>; // four signed bytes, then the bits of their scale
fn four_of(words: kv_quad) -> vec4<f32> {
    let bytes = vec4<i32>(vec4<u32>(words.x << 24u, words.x << 16u, words.x << 8u, words.x)) >> vec4<u32>(24u);
    return vec4<f32>(bytes) * bitcast<f32>(words.y);
}
fn key_words(row: vec2<u32>, quad: u32) -> kv_quad { return kv_quad(keys[row.x + quad], keys[row.y + quad / 8u]); }
fn value_words(row: vec2<u32>, quad: u32) -> kv_quad { return kv_quad(values[row.x + quad], values[row.y + quad / 8u]); }
#elif QUADS
alias kv_quad = kv_unit;
#if KV_TYPE == f16
fn four_of(words: kv_quad) -> vec4<f32> { return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)); }
#else
fn four_of(words: kv_quad) -> vec4<f32> { return words; }
#endif
fn key_words(row: vec2<u32>, quad: u32) -> kv_quad { return keys[row.x + quad]; }
fn value_words(row: vec2<u32>, quad: u32) -> kv_quad { return values[row.x + quad]; }
#else
// Reads values one by one, with zeros past the end of the head.
alias kv_quad = vec4<f32>;
fn four_of(words: kv_quad) -> vec4<f32> { return words; }
#if KV_TYPE == f16
fn half_of(word: u32, at: u32) -> f32 { return unpack2x16float(word >> (at % 2u * 16u)).x; }
fn key_at(at: u32) -> f32 { return half_of(keys[at / 2u], at); }
fn value_at(at: u32) -> f32 { return half_of(values[at / 2u], at); }
#else
fn key_at(at: u32) -> f32 { return keys[at]; }
fn value_at(at: u32) -> f32 { return values[at]; }
#endif
fn key_words(row: vec2<u32>, quad: u32) -> kv_quad {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { four[i] = key_at(row.x + 4u * quad + i); }
    return four;
}
fn value_words(row: vec2<u32>, quad: u32) -> kv_quad {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { four[i] = value_at(row.x + 4u * quad + i); }
    return four;
}
#endif

fn key_quad(row: vec2<u32>, quad: u32) -> vec4<f32> { return four_of(key_words(row, quad)); }
fn value_quad(row: vec2<u32>, quad: u32) -> vec4<f32> { return four_of(value_words(row, quad)); }
