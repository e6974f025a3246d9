#if SUBGROUPS
enable subgroups;
#endif
// What adapters see of a column, for up to three weights that multiply it (src/graph/fuse.h). For each token t:
//
//   s = (x + b · b_weight / rms(b)) · factor with RESIDUAL, otherwise x; written to `sum` with SUM
//   c = s · weight · weight_factor / rms(s) with NORMED, otherwise s            rms(v) = √(mean(v²) + eps)
//   out[t] = Σ_s 2^(s mod 24) over the slots s in the token's set, each power once; from `head` on, for each row i of A: w_s · A[i] · c
//
//   a     f32, rows of k: rank_0 rows for each slot, then rank_1 for each, then rank_2     sets  f32 [sets, slots]: the weights w
//   x     COLUMN f32: from x_offset + t · x_token_stride on     COLUMN given: in 8 bits, row t (quantise.wgsl), x_scales in words
//   out   f32, row t from t · out_stride on; 0 for rows of slots without a weight     k, x_offset and x_token_stride in units
//   dispatch (rows of A / TOKENS, parts, tokens / TOKENS rounded up)     TOKENS is 1, or 4 if 4 divides every rank
//
// ONE: for one token; only then there is a residual or a norm, which every workgroup computes for itself.
// Slots without a weight are skipped. Few tokens have a workgroup for each row of A, and for each part of a long column without a residual
// and a norm, so that enough of the GPU is busy; whoever reads the result adds up the parts.

#include "unit.wgsl"

override slots:          u32;
override rank_0:         u32;
override rank_1:         u32 = 1u;
override rank_2:         u32 = 1u;
override first_1:        u32; // row of A at which the second weight's begin; without one, the number of rows
override first_2:        u32;
override k:              u32;
override head:           u32;
override out_stride:     u32;
override x_offset:       u32 = 0u;
override x_token_stride: u32 = 0u;
override part_units:     u32 = 0u; // units of a part
override part_stride:    u32 = 0u; // of the parts' results
override eps:            f32 = 0.0;
override weight_factor:  f32 = 1.0;
const threads = ${THREADS}u;
const ranks = ${TOKENS}u;
const tokens_each = ${TOKENS}u;

#if TOKENS == 1
#include "reduce.wgsl"
#else
const lanes = threads;
#include "lanes.wgsl"
#endif

#if COLUMN == given
@group(0) @binding(0) var<storage, read_write> x:    array<u32>;
#else
@group(0) @binding(0) var<storage, read_write> x:    array<unit>;
#endif
@group(0) @binding(1) var<storage, read_write> out:  array<f32>;
@group(0) @binding(2) var<storage, read>       a:    array<unit>;
@group(0) @binding(3) var<storage, read>       sets: array<f32>;
#include "run.wgsl"
#if ONE
// Uniform, because there are only 8 bindings of storage.
struct RunOfOne { tokens: u32, outputs: u32, window: u32, spare: u32, record: TokenRecord }
@group(0) @binding(4) var<uniform>             run:  RunOfOne;
#else
@group(0) @binding(4) var<storage, read>       run:  Run;
#endif
#if RESIDUAL
@group(0) @binding(${B_AT}) var<storage, read_write> b: array<unit>;
@group(0) @binding(${B_WEIGHT_AT}) var<storage, read> b_weight: array<unit>;
@group(0) @binding(${NUMBERS_AT}) var<uniform> numbers: vec4<f32>; // factor
#endif
#if NORMED
@group(0) @binding(${WEIGHT_AT}) var<storage, read> weight: array<unit>;
#endif
#if SUM
@group(0) @binding(${SUM_AT}) var<storage, read_write> sum: array<unit>;
#endif

#if COLUMN == given
override x_scales: u32;
fn column_unit(token: u32, i: u32) -> unit {
    let bytes = bitcast<i32>(x[token * k + i]);
    let scale = bitcast<f32>(x[x_scales + 4u * (token * (k / 8u) + i / 8u)]);
    return scale * vec4<f32>(vec4<i32>(bytes << 24u, bytes << 16u, bytes << 8u, bytes) >> vec4<u32>(24u));
}
#else
fn column_unit(token: u32, i: u32) -> unit { return x[x_offset + token * x_token_stride + i]; }
#endif

fn set_weight(token: u32, slot: u32) -> f32 {
#if ONE
    return sets[run.record.adapter * slots + slot];
#else
    if (token >= run.tokens) { return 0.0; }
    return sets[run.records[token].adapter * slots + slot];
#endif
}

fn slot_of(row: u32) -> u32 {
    if (row < first_1) { return row / rank_0; }
    if (row < first_2) { return (row - first_1) / rank_1; }
    return (row - first_2) / rank_2;
}

fn put_head(token: u32) {
    var mask = 0u;
    for (var slot = 0u; slot < slots; slot++) {
        if (set_weight(token, slot) != 0.0) { mask |= 1u << (slot % 24u); }
    }
    out[token * out_stride] = f32(mask);
}

#if TOKENS == 1
// A unit of a column, with what its residual and norm need.
struct Early {
    x: unit,
#if RESIDUAL
    b: unit,
    b_weight: unit,
#endif
#if NORMED
    weight: unit,
#endif
}

fn unit_at(token: u32, i: u32) -> Early {
    var e: Early;
    e.x = column_unit(token, i);
#if RESIDUAL
    e.b = b[i];
    e.b_weight = b_weight[i];
#endif
#if NORMED
    e.weight = weight[i];
#endif
    return e;
}

var<private> dots:    f32;
var<private> squares: f32;

fn add_unit(i: u32, e: Early, of_a: unit, b_scale: f32, keep: bool) {
    var s = e.x;
#if RESIDUAL
    s = (s + e.b * (b_scale * e.b_weight)) * numbers.x;
#endif
#if SUM
    if (keep) { sum[i] = s; }
#endif
#if NORMED
    squares += square(s);
    s *= e.weight;
#endif
    dots += total(of_a * s);
}
#endif

#if TOKENS == 4
fn ranks_times(a0: unit, a1: unit, a2: unit, a3: unit, value: unit) -> vec4<f32> {
    return vec4<f32>(total(a0 * value), total(a1 * value), total(a2 * value), total(a3 * value));
}

// Writes the sums of four ranks of a token.
fn put_sums(token: u32, slot: u32, row: u32, sums: vec4<f32>, thread: u32, subgroup: u32) {
    let all = reduce(sums, thread, subgroup);
    if (thread != 0u || token >= run.tokens) { return; }
    let to = token * out_stride + head + row;
    let of_ranks = set_weight(token, slot) * all;
    out[to] = of_ranks.x;
    out[to + 1u] = of_ranks.y;
    out[to + 2u] = of_ranks.z;
    out[to + 3u] = of_ranks.w;
}
#endif

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup = 1u;
#endif
    let row  = group.x * ranks;
    let slot = slot_of(row);
#if TOKENS == 1
#if ONE
    let token = 0u;
#else
    let token = group.z;
    if (token >= run.tokens) { // no slots
        if (group.x == 0u && group.y == 0u && thread == 0u) { out[token * out_stride] = 0.0; }
        return;
    }
#endif
    let begin  = group.y * part_units;
    let end    = min(begin + part_units, k);
    let row_at = row * k;
    let out_at = token * out_stride + head + group.y * part_stride + row;
    // Most columns have one or two units for each thread. They are requested before anything is waited for.
    let i0 = begin + thread;
    let i1 = i0 + threads;
    let early0 = unit_at(token, min(i0, k - 1u));
    let early1 = unit_at(token, min(i1, k - 1u));
    let set_by = set_weight(token, slot);
    if (group.x == 0u && group.y == 0u && thread == 0u) { put_head(token); }
#if SUM
    let keep = group.x == 0u; // this workgroup writes the sum
#else
    let keep = false;
#endif
    if (set_by == 0.0 && !keep) {
        if (thread == 0u) { out[out_at] = 0.0; }
        return;
    }
    let a0 = a[row_at + min(i0, k - 1u)];
    let a1 = a[row_at + min(i1, k - 1u)];
    var b_scale = 1.0;
#if RESIDUAL
    var b_squares = 0.0;
    if (i0 < end) { b_squares += square(early0.b); }
    if (i1 < end) { b_squares += square(early1.b); }
    for (var i = i1 + threads; i < end; i += threads) { b_squares += square(b[i]); }
    b_scale = inverseSqrt(workgroup_sum(b_squares, thread, subgroup) / f32(k * unit_values) + eps);
    workgroupBarrier();
#endif
    if (i0 < end) { add_unit(i0, early0, a0, b_scale, keep); }
    if (i1 < end) { add_unit(i1, early1, a1, b_scale, keep); }
    for (var i = i1 + threads; i < end; i += threads) { add_unit(i, unit_at(token, i), a[row_at + i], b_scale, keep); }
    var scale = set_by;
#if NORMED
    scale *= weight_factor * inverseSqrt(workgroup_sum(squares, thread, subgroup) / f32(k * unit_values) + eps);
    workgroupBarrier();
#endif
    let dot_sum = workgroup_sum(dots, thread, subgroup);
    if (thread == 0u) { out[out_at] = select(0.0, dot_sum * scale, set_by != 0.0); }
#else
    let first = group.z * tokens_each;
    if (group.x == 0u && thread < tokens_each && first + thread < run.tokens) { put_head(first + thread); }
    var any = false;
    for (var t = 0u; t < tokens_each; t++) { any = any || set_weight(first + t, slot) != 0.0; }
    var sum0 = vec4<f32>(); // of four ranks for each token
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    if (any) {
        let last = run.tokens - 1u;
        for (var i = thread; i < k; i += threads) {
            let at = row * k + i;
            let a0 = a[at];
            let a1 = a[at + k];
            let a2 = a[at + 2u * k];
            let a3 = a[at + 3u * k];
            sum0 += ranks_times(a0, a1, a2, a3, column_unit(min(first, last), i));
            sum1 += ranks_times(a0, a1, a2, a3, column_unit(min(first + 1u, last), i));
            sum2 += ranks_times(a0, a1, a2, a3, column_unit(min(first + 2u, last), i));
            sum3 += ranks_times(a0, a1, a2, a3, column_unit(min(first + 3u, last), i));
        }
    }
    put_sums(first, slot, row, sum0, thread, subgroup);
    put_sums(first + 1u, slot, row, sum1, thread, subgroup);
    put_sums(first + 2u, slot, row, sum2, thread, subgroup);
    put_sums(first + 3u, slot, row, sum3, thread, subgroup);
#endif
}
