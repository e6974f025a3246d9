// Adapters correct the rows of a product with many columns, in place: y[t, row] += Σ_s Σ_i B_s[i, row] · u[t, s, i], where u is what
// shrinks.wgsl wrote. Up to three weights have rows in y; EXPAND_0, EXPAND_1 and EXPAND_2 say which of them adapters correct.
//
//   y  f32, row r of token t at y_offset + t · y_token_stride + r     offsets, strides and ends in units (unit.wgsl)
//   dispatch (rows / 64 rounded up, 1, tokens / TOKENS rounded up)
//
// The tokens of a thread share what they read of B. A slot that none of them has is skipped.

#include "run.wgsl"
#include "unit.wgsl"

override slots:          u32;
override shrunk_stride:  u32; // in values
override y_offset:       u32;
override y_token_stride: u32;
override end_0:          u32; // row after the first weight's, the second one's, and the last
override end_1:          u32;
override end_2:          u32;
const threads = 64u;
const tokens_each = ${TOKENS}u;

@group(0) @binding(0) var<storage, read_write> y:      array<unit>;
@group(0) @binding(1) var<storage, read_write> shrunk: array<f32>;
@group(0) @binding(2) var<storage, read>       run:    Run;
#if EXPAND_0
override rank_0:   u32;
override shrunk_0: u32;
@group(0) @binding(${EXPAND_0_AT}) var<storage, read> expand_0: array<unit>;
#endif
#if EXPAND_1
override rank_1:   u32;
override shrunk_1: u32;
@group(0) @binding(${EXPAND_1_AT}) var<storage, read> expand_1: array<unit>;
#endif
#if EXPAND_2
override rank_2:   u32;
override shrunk_2: u32;
@group(0) @binding(${EXPAND_2_AT}) var<storage, read> expand_2: array<unit>;
#endif

var<private> sums: array<unit, ${TOKENS}>;

// Adds what a column of B gives, which is multiplied with the value at `at` of each token's row.
fn add_column(column: unit, first: u32, at: u32) {
    for (var t = 0u; t < tokens_each; t++) { sums[t] += column * shrunk[min(first + t, run.tokens - 1u) * shrunk_stride + at]; }
}

// Bit s: one of the tokens has slot s (shrinks.wgsl).
fn slots_of(first: u32) -> u32 {
    if (slots == 1u) { return 1u; }
    var mask = 0u;
    for (var t = 0u; t < tokens_each; t++) { mask |= u32(shrunk[min(first + t, run.tokens - 1u) * shrunk_stride]); }
    return mask;
}

@compute @workgroup_size(threads)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let first = at.z * tokens_each;
    if (at.x >= end_2 || first >= run.tokens) { return; }
    let mask = slots_of(first);
    for (var slot = 0u; slot < slots; slot++) {
        if ((mask & (1u << (slot % 24u))) == 0u) { continue; }
        if (at.x < end_0) {
#if EXPAND_0
            for (var r = slot * rank_0; r < (slot + 1u) * rank_0; r++) { add_column(expand_0[r * end_0 + at.x], first, shrunk_0 + r); }
#endif
        } else if (at.x < end_1) {
#if EXPAND_1
            for (var r = slot * rank_1; r < (slot + 1u) * rank_1; r++) {
                add_column(expand_1[r * (end_1 - end_0) + at.x - end_0], first, shrunk_1 + r);
            }
#endif
        } else {
#if EXPAND_2
            for (var r = slot * rank_2; r < (slot + 1u) * rank_2; r++) {
                add_column(expand_2[r * (end_2 - end_1) + at.x - end_1], first, shrunk_2 + r);
            }
#endif
        }
    }
    for (var t = 0u; t < tokens_each && first + t < run.tokens; t++) { y[y_offset + (first + t) * y_token_stride + at.x] += sums[t]; }
}
