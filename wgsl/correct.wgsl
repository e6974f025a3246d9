// Adapters correct the rows of a product with many columns, in place: y[t, row] += Σ_s Σ_i B_s[i, row] · u[t, s, i], where u is what
// shrinks.wgsl wrote. Up to three weights have rows in y; EXPAND_0, EXPAND_1 and EXPAND_2 say which of them adapters correct.
//
//   y  f32, row r of token t at y_offset + t · y_token_stride + r     offsets, strides and ends in units (unit.wgsl)
//   dispatch (rows / 64 rounded up, 1, tokens / 8 rounded up)
//
// A thread computes one unit of rows for eight tokens, which share what it reads of B. A slot that none of them has is skipped. STEP ranks are
// read at once (1 or 4: it divides all ranks, and places in u are in steps). The sums have names, since NVIDIA's compiler may not keep an
// array of them in registers.

#include "run.wgsl"
#include "unit.wgsl"

override slots:          u32;
override shrunk_stride:  u32; // in steps
override y_offset:       u32;
override y_token_stride: u32;
override end_0:          u32; // row after the first weight's, the second one's, and the last
override end_1:          u32;
override end_2:          u32;
const threads = 64u;
const step = ${STEP}u;
#if STEP == 4
alias ranks = vec4<f32>;
struct Columns { b0: unit, b1: unit, b2: unit, b3: unit } // of B, for each rank of a step
#else
alias ranks = f32;
struct Columns { b0: unit }
#endif

@group(0) @binding(0) var<storage, read_write> y:      array<unit>;
@group(0) @binding(1) var<storage, read_write> shrunk: array<ranks>;
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

var<private> sum0: unit;
var<private> sum1: unit;
var<private> sum2: unit;
var<private> sum3: unit;
var<private> sum4: unit;
var<private> sum5: unit;
var<private> sum6: unit;
var<private> sum7: unit;

// Tokens past the last read the last one's.
fn u_of(token: u32, at: u32) -> ranks { return shrunk[min(token, run.tokens - 1u) * shrunk_stride + at]; }

fn columns_times(b: Columns, u: ranks) -> unit {
#if STEP == 4
    return b.b0 * u.x + b.b1 * u.y + b.b2 * u.z + b.b3 * u.w;
#else
    return b.b0 * u;
#endif
}

// Adds what columns of B give, which are multiplied with the values at `at` of each token's row.
fn add_columns(b: Columns, first: u32, at: u32) {
    sum0 += columns_times(b, u_of(first, at));
    sum1 += columns_times(b, u_of(first + 1u, at));
    sum2 += columns_times(b, u_of(first + 2u, at));
    sum3 += columns_times(b, u_of(first + 3u, at));
    sum4 += columns_times(b, u_of(first + 4u, at));
    sum5 += columns_times(b, u_of(first + 5u, at));
    sum6 += columns_times(b, u_of(first + 6u, at));
    sum7 += columns_times(b, u_of(first + 7u, at));
}

#if EXPAND_0
fn columns_0(r: u32, row: u32) -> Columns {
    let at = r * end_0 + row;
#if STEP == 4
    return Columns(expand_0[at], expand_0[at + end_0], expand_0[at + 2u * end_0], expand_0[at + 3u * end_0]);
#else
    return Columns(expand_0[at]);
#endif
}
#endif
#if EXPAND_1
fn columns_1(r: u32, row: u32) -> Columns {
    let rows = end_1 - end_0;
    let at = r * rows + row - end_0;
#if STEP == 4
    return Columns(expand_1[at], expand_1[at + rows], expand_1[at + 2u * rows], expand_1[at + 3u * rows]);
#else
    return Columns(expand_1[at]);
#endif
}
#endif
#if EXPAND_2
fn columns_2(r: u32, row: u32) -> Columns {
    let rows = end_2 - end_1;
    let at = r * rows + row - end_1;
#if STEP == 4
    return Columns(expand_2[at], expand_2[at + rows], expand_2[at + 2u * rows], expand_2[at + 3u * rows]);
#else
    return Columns(expand_2[at]);
#endif
}
#endif

fn mask_of(token: u32) -> u32 {
#if STEP == 4
    return u32(u_of(token, 0u).x);
#else
    return u32(u_of(token, 0u));
#endif
}

// Bit s: one of the tokens has slot s (shrinks.wgsl).
fn slots_of(first: u32) -> u32 {
    if (slots == 1u) { return 1u; }
    return mask_of(first) | mask_of(first + 1u) | mask_of(first + 2u) | mask_of(first + 3u) | mask_of(first + 4u) | mask_of(first + 5u) |
           mask_of(first + 6u) | mask_of(first + 7u);
}

fn y_at(token: u32, row: u32) -> u32 { return y_offset + min(token, run.tokens - 1u) * y_token_stride + row; }

fn put(token: u32, row: u32, sum: unit) {
    if (token < run.tokens) { y[y_at(token, row)] = sum; }
}

@compute @workgroup_size(threads)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let first = at.z * 8u;
    let row = at.x;
    if (row >= end_2 || first >= run.tokens) { return; }
    sum0 = y[y_at(first, row)]; // requested before anything is waited for
    sum1 = y[y_at(first + 1u, row)];
    sum2 = y[y_at(first + 2u, row)];
    sum3 = y[y_at(first + 3u, row)];
    sum4 = y[y_at(first + 4u, row)];
    sum5 = y[y_at(first + 5u, row)];
    sum6 = y[y_at(first + 6u, row)];
    sum7 = y[y_at(first + 7u, row)];
    let mask = slots_of(first);
    for (var slot = 0u; slot < slots; slot++) {
        if ((mask & (1u << (slot % 24u))) == 0u) { continue; }
        if (row < end_0) {
#if EXPAND_0
            for (var r = slot * rank_0; r < (slot + 1u) * rank_0; r += step) { add_columns(columns_0(r, row), first, (shrunk_0 + r) / step); }
#endif
        } else if (row < end_1) {
#if EXPAND_1
            for (var r = slot * rank_1; r < (slot + 1u) * rank_1; r += step) { add_columns(columns_1(r, row), first, (shrunk_1 + r) / step); }
#endif
        } else {
#if EXPAND_2
            for (var r = slot * rank_2; r < (slot + 1u) * rank_2; r += step) { add_columns(columns_2(r, row), first, (shrunk_2 + r) / step); }
#endif
        }
    }
    put(first, row, sum0);
    put(first + 1u, row, sum1);
    put(first + 2u, row, sum2);
    put(first + 3u, row, sum3);
    put(first + 4u, row, sum4);
    put(first + 5u, row, sum5);
    put(first + 6u, row, sum6);
    put(first + 7u, row, sum7);
}
