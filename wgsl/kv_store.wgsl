// Writes the tokens' keys and values to the slots that their records name (kv.wgsl describes a row of the cache).
//
//   a, b  f32 [tokens, n], starting at a_offset and b_offset: keys and values, n = kv_heads · head
//   SHARED: both are views of one value, which is bound once
//   WIDE: n and the offsets are multiples of 4     f16: n is even     q8_0: n is a multiple of 32
//   dispatch (pieces / 64 rounded up, tokens, 2): z = 0 keys, 1 values; kv_write.wgsl says what a piece is

#include "run.wgsl"
#include "unit.wgsl"

override n:        u32;
override a_offset: u32;
override b_offset: u32;

#include "kv_unit.wgsl"
#include "slots.wgsl"

@group(0) @binding(0) var<storage, read_write> a:      array<unit>;
@group(0) @binding(1) var<storage, read_write> keys:   array<kv_unit>;
@group(0) @binding(2) var<storage, read_write> values: array<kv_unit>;
@group(0) @binding(3) var<storage, read>       run:    Run;
#if SHARED
fn value_in(at: u32) -> unit { return a[at]; }
#else
@group(0) @binding(4) var<storage, read_write> b:      array<unit>;
fn value_in(at: u32) -> unit { return b[at]; }
#endif

fn input(at: u32, is_value: bool) -> unit {
    if (is_value) { return value_in(at); }
    return a[at];
}

#include "kv_write.wgsl"

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let piece = at.x;
    let token = at.y;
    let is_value = at.z == 1u;
    if (token >= run.tokens || piece >= n / piece_values || run.records[token].at == nowhere) { return; }
    let source = (select(a_offset, b_offset, is_value) + token * n) / unit_values;
    store_piece(source, own_slot(token), piece, is_value);
}
