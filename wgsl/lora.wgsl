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
        for (var i = thread; i < k; i += threads) {
            for (var t = 0u; t < tokens_each; t++) {
                let value = x[a_offset + min(first + t, last) * a_token_stride + group.y * a_row_stride + i];
                for (var r = 0u; r < ranks; r++) { sums[t * ranks + r] += total(a[matrix + r * k + i] * value); }
            }
        }
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
@compute @workgroup_size(threads)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let first = at.z * tokens_each;
    if (at.x >= m || first >= ${COUNT}) { return; }
    let last = ${COUNT} - 1u;
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
}
#endif
