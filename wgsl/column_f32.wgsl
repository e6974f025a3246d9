// An f32 column in workgroup memory, for product.wgsl. Quad i of chunk c is at i xor (c mod 8), so that threads with adjacent
// chunks read different banks.

override staged_quads: u32 = 8u * segment;
var<workgroup> staged: array<vec4<f32>, staged_quads>;

// Stores quad i of the segment. Every thread must call this; past the end of the segment, with `there` false.
fn stage(i: u32, quad: vec4<f32>, there: bool, thread: u32, subgroup: u32) {
    if (there) { staged[(i & 0xfffffff8u) | ((i ^ (i >> 3u)) & 7u)] = quad; }
}

#include "quads_dot.wgsl"

fn column_chunk(chunk: u32) -> Column {
    let at   = 8u * chunk;
    let turn = chunk & 7u;
    let v = Quads(staged[at + turn], staged[at + (turn ^ 1u)], staged[at + (turn ^ 2u)], staged[at + (turn ^ 3u)],
                  staged[at + (turn ^ 4u)], staged[at + (turn ^ 5u)], staged[at + (turn ^ 6u)], staged[at + (turn ^ 7u)]);
    return Column(v, half_sums(v));
}

// A chunk of a row times a chunk of the column.
fn chunk_dot(raw: Raw, chunk: u32, column: Column) -> f32 {
#if QUANTISED
    return scaled_dot(unpacked_quads(unpack_quants(raw.quants)), with_bias(unpack_scales(raw.scales, chunk)), column);
#else
    return plain_dot(chunk_quads(raw.chunk), column);
#endif
}
