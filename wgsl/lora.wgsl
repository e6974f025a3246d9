#if SUBGROUPS
enable subgroups;
#endif
// Adapters: corrections B · (A · x) of a product's result, for the slots that each token's set gives a weight (src/graph/graph.h).
//
//   KIND shrink  out[t, r, s · rank + i] = w_s · A_s[i] · x[t, r]     A f32 [slots, experts, rank, k]
//                dispatch (slots · rank / RANKS, rows, tokens / TOKENS rounded up)     RANKS divides rank
//   KIND look_up out[t, s · rank + i] = w_s · A_s[id, i], 0 for soft tokens     A f32 [slots, ids, rank], k = ids
//                dispatch (slots · rank / 64 rounded up, 1, tokens)
//   KIND expand  out[t, r] = y[t, r] + Σ_s Σ_i B_s[i] · u[t, r, s · rank + i]     B f32 [slots, experts, rank, m]
//                dispatch (m / 64 rounded up, rows, tokens / TOKENS rounded up)     without ADDED there is no y
//
//   x, y  f32, views: unit i of row r of token t at a_offset + t · a_token_stride + r · a_row_stride + i     k, m and strides in units
//   u     f32, row r of token t at u_offset + t · u_token_stride + r · slots · rank
//   sets  f32 [sets, slots]: the weights     out  f32 [tokens, rows, slots · rank or m]     OUTPUTS: t counts outputs, `outputs` names their tokens
//   ROUTED: row r of token t belongs to expert routes[t, r]; TOKENS is 1. Otherwise the tokens of a thread share what they read of A or B
//
// Slots without a weight are skipped. Their u is 0, so tokens with different sets can share a workgroup.

#include "run.wgsl"
#include "unit.wgsl"

override slots:          u32;
override rank:           u32;
override experts:        u32 = 1u;
override used:           u32 = 1u;
override k:              u32 = 1u;
override m:              u32 = 1u;
override a_offset:       u32 = 0u;
override a_row_stride:   u32 = 0u;
override a_token_stride: u32 = 0u;
override u_offset:       u32 = 0u;
override u_token_stride: u32 = 0u;
const threads = 64u;
const tokens_each = ${TOKENS}u;

@group(0) @binding(0) var<storage, read>       sets: array<f32>;
@group(0) @binding(1) var<storage, read>       run:  Run;
#if KIND == expand
@group(0) @binding(2) var<storage, read_write> out:  array<unit>;
@group(0) @binding(3) var<storage, read>       b:    array<unit>;
@group(0) @binding(4) var<storage, read_write> u:    array<f32>;
#if OUTPUTS
@group(0) @binding(5) var<storage, read>       outputs: array<u32>;
#elif ROUTED
@group(0) @binding(5) var<storage, read_write> routes:  array<u32>;
#endif
#if ADDED
@group(0) @binding(${Y_AT}) var<storage, read_write> y: array<unit>;
#endif
#else
@group(0) @binding(2) var<storage, read_write> out:  array<f32>;
#if KIND == shrink
@group(0) @binding(3) var<storage, read>       a:    array<unit>;
@group(0) @binding(4) var<storage, read_write> x:    array<unit>;
#else
@group(0) @binding(3) var<storage, read>       a:    array<f32>;
#endif
#if OUTPUTS
@group(0) @binding(5) var<storage, read>       outputs: array<u32>;
#elif ROUTED
@group(0) @binding(5) var<storage, read_write> routes:  array<u32>;
#endif
#endif

fn set_weight(entry: u32, slot: u32) -> f32 {
    if (entry >= ${COUNT}) { return 0.0; }
#if OUTPUTS
    let token = outputs[entry];
#else
    let token = entry;
#endif
    return sets[run.records[token].adapter * slots + slot];
}

fn expert_of(entry: u32, row: u32) -> u32 {
#if ROUTED
    return routes[entry * 2u * used + row];
#else
    return 0u;
#endif
}

#if KIND == shrink
const ranks = ${RANKS}u;

#include "reduce.wgsl"

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup_size: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup_size = 1u;
#endif
    let first_rank = group.x * ranks;
    let slot = first_rank / rank;
    let first = group.z * tokens_each;
    var any = false;
    for (var t = 0u; t < tokens_each; t++) { any = any || set_weight(first + t, slot) != 0.0; }
    var sums: array<f32, ${TOKENS} * ${RANKS}>;
    if (any) {
        let matrix = ((slot * experts + expert_of(first, group.y)) * rank + first_rank % rank) * k;
        let last = ${COUNT} - 1u;
#if RANKS == 4
        // four tokens and four ranks; named, so that the compiler keeps the sums in registers
        let row = a_offset + group.y * a_row_stride;
        let at0 = row + min(first, last) * a_token_stride;
        let at1 = row + min(first + 1u, last) * a_token_stride;
        let at2 = row + min(first + 2u, last) * a_token_stride;
        let at3 = row + min(first + 3u, last) * a_token_stride;
        var s0 = vec4<f32>();
        var s1 = vec4<f32>();
        var s2 = vec4<f32>();
        var s3 = vec4<f32>();
        for (var i = thread; i < k; i += threads) {
            let a0 = a[matrix + i];
            let a1 = a[matrix + k + i];
            let a2 = a[matrix + 2u * k + i];
            let a3 = a[matrix + 3u * k + i];
            let x0 = x[at0 + i];
            let x1 = x[at1 + i];
            let x2 = x[at2 + i];
            let x3 = x[at3 + i];
            s0 += vec4<f32>(total(a0 * x0), total(a1 * x0), total(a2 * x0), total(a3 * x0));
            s1 += vec4<f32>(total(a0 * x1), total(a1 * x1), total(a2 * x1), total(a3 * x1));
            s2 += vec4<f32>(total(a0 * x2), total(a1 * x2), total(a2 * x2), total(a3 * x2));
            s3 += vec4<f32>(total(a0 * x3), total(a1 * x3), total(a2 * x3), total(a3 * x3));
        }
        for (var r = 0u; r < 4u; r++) {
            sums[r] = s0[r];
            sums[4u + r] = s1[r];
            sums[8u + r] = s2[r];
            sums[12u + r] = s3[r];
        }
#else
        for (var i = thread; i < k; i += threads) {
            for (var t = 0u; t < tokens_each; t++) {
                let value = x[a_offset + min(first + t, last) * a_token_stride + group.y * a_row_stride + i];
                for (var r = 0u; r < ranks; r++) { sums[t * ranks + r] += total(a[matrix + r * k + i] * value); }
            }
        }
#endif
    }
    for (var t = 0u; t < tokens_each; t++) {
        let weight = set_weight(first + t, slot);
        for (var r = 0u; r < ranks; r++) {
            var sum = 0.0;
            if (any) {
                sum = workgroup_sum(sums[t * ranks + r], thread, subgroup_size);
                workgroupBarrier();
            }
            if (thread == 0u && first + t < ${COUNT}) {
                out[((first + t) * groups.y + group.y) * slots * rank + first_rank + r] = weight * sum;
            }
        }
    }
}
#elif KIND == look_up
@compute @workgroup_size(threads)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x >= slots * rank || at.z >= ${COUNT}) { return; }
    let slot = at.x / rank;
    let weight = set_weight(at.z, slot);
    let id = run.records[at.z].id;
    var value = 0.0;
    if (weight != 0.0 && id < k) { value = weight * a[(slot * k + id) * rank + at.x % rank]; }
    out[at.z * slots * rank + at.x] = value;
}
#else
#if TOKENS == 8
fn before(entry: u32, at: vec3<u32>) -> unit {
#if ADDED
    return y[a_offset + entry * a_token_stride + at.y * a_row_stride + at.x];
#else
    return unit();
#endif
}
#endif

@compute @workgroup_size(threads)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let first = at.z * tokens_each;
    if (at.x >= m || first >= ${COUNT}) { return; }
    let last = ${COUNT} - 1u;
#if TOKENS == 8
    // named, so that the compiler keeps the sums in registers
    var s0 = before(first, at);
    var s1 = before(min(first + 1u, last), at);
    var s2 = before(min(first + 2u, last), at);
    var s3 = before(min(first + 3u, last), at);
    var s4 = before(min(first + 4u, last), at);
    var s5 = before(min(first + 5u, last), at);
    var s6 = before(min(first + 6u, last), at);
    var s7 = before(min(first + 7u, last), at);
    for (var slot = 0u; slot < slots; slot++) {
        var any = false;
        for (var t = 0u; t < 8u; t++) { any = any || set_weight(first + t, slot) != 0.0; }
        if (!any) { continue; }
        let matrix = slot * rank * m + at.x;
        let row = u_offset + at.y * slots * rank + slot * rank;
        for (var r = 0u; r < rank; r++) {
            let column = b[matrix + r * m];
            s0 += column * u[row + first * u_token_stride + r];
            s1 += column * u[row + min(first + 1u, last) * u_token_stride + r];
            s2 += column * u[row + min(first + 2u, last) * u_token_stride + r];
            s3 += column * u[row + min(first + 3u, last) * u_token_stride + r];
            s4 += column * u[row + min(first + 4u, last) * u_token_stride + r];
            s5 += column * u[row + min(first + 5u, last) * u_token_stride + r];
            s6 += column * u[row + min(first + 6u, last) * u_token_stride + r];
            s7 += column * u[row + min(first + 7u, last) * u_token_stride + r];
        }
    }
    let to = (first * groups.y + at.y) * m + at.x;
    let next = groups.y * m;
    out[to] = s0;
    if (first + 1u <= last) { out[to + next] = s1; }
    if (first + 2u <= last) { out[to + 2u * next] = s2; }
    if (first + 3u <= last) { out[to + 3u * next] = s3; }
    if (first + 4u <= last) { out[to + 4u * next] = s4; }
    if (first + 5u <= last) { out[to + 5u * next] = s5; }
    if (first + 6u <= last) { out[to + 6u * next] = s6; }
    if (first + 7u <= last) { out[to + 7u * next] = s7; }
#else
    var sums: array<unit, ${TOKENS}>;
#if ADDED
    for (var t = 0u; t < tokens_each; t++) {
        sums[t] = y[a_offset + min(first + t, last) * a_token_stride + at.y * a_row_stride + at.x];
    }
#endif
    for (var slot = 0u; slot < slots; slot++) {
        var any = false;
        for (var t = 0u; t < tokens_each; t++) { any = any || set_weight(first + t, slot) != 0.0; }
        if (!any) { continue; }
        let matrix = (slot * experts + expert_of(first, at.y)) * rank * m + at.x;
        for (var r = 0u; r < rank; r++) {
            let column = b[matrix + r * m];
            for (var t = 0u; t < tokens_each; t++) {
                sums[t] += column * u[u_offset + min(first + t, last) * u_token_stride + at.y * slots * rank + slot * rank + r];
            }
        }
    }
    for (var t = 0u; t < tokens_each && first + t <= last; t++) {
        out[((first + t) * groups.y + at.y) * m + at.x] = sums[t];
    }
#endif
}
#endif
