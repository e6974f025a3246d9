#if SUBGROUPS
enable subgroups;
#endif
// Combines the splits of attention_decode.wgsl and attention_blocks.wgsl:
//
//   out[row] = Σ_s e^(highest_s − highest) · partial_s / Σ_s e^(highest_s − highest) · sum_s, highest = the largest highest_s
//
//   split_sums  vec4<f32> [tokens · heads, splits, head/4 rounded up + 1], the last quad (highest_s, sum_s, 0, 0); splits ≤ 256
//   out      f32 [tokens, heads, head]     logs  LOGS: f32 [tokens, heads], the logarithm of the denominator, with highest added
//   dispatch (heads, tokens, quads / 32 rounded up)
//
// Reads only splits that have keys (attention_split.wgsl). A thread keeps the highest and the sum of one split, and sums a quad
// of every eighth split.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override kv_heads: u32;
override splits:   u32;

override quads: u32 = (head + 3u) / 4u;
const threads = 256u;
const lanes = 32u; // quads per workgroup
const parts = threads / lanes;
const lowest = -3.0e38;

#include "slots.wgsl"
#include "attention_split.wgsl"
#include "reduce.wgsl"

@group(0) @binding(0) var<storage, read_write> split_sums: array<vec4<f32>>;
#include "attention_out.wgsl"
@group(0) @binding(2) var<storage, read> run: Run;
#if LOGS
@group(0) @binding(3) var<storage, read_write> logs: array<f32>;
#endif

#if SHRINKS
// What adapters see of the part of a token's row that a workgroup writes, as in shrinks.wgsl: shrunk[t, u_head + part · rows_a + i] =
// w_s · A[i, part] · out[part] for each row i of A, rank rows for each slot s. Whoever reads it adds up the parts.
override slots:    u32;
override rank:     u32;
override u_head:   u32;
override u_stride: u32;
override rows_a:   u32 = slots * rank;
@group(0) @binding(3) var<storage, read>       a:      array<vec4<f32>>;
@group(0) @binding(4) var<storage, read>       sets:   array<f32>;
@group(0) @binding(5) var<storage, read_write> shrunk: array<f32>;
#include "lanes.wgsl"

fn set_weight(token: u32, slot: u32) -> f32 { return sets[run.records[token].adapter * slots + slot]; }

fn put_head(token: u32) {
    var mask = 0u;
    for (var slot = 0u; slot < slots && token < run.tokens; slot++) {
        if (set_weight(token, slot) != 0.0) { mask |= 1u << (slot % 24u); }
    }
    shrunk[token * u_stride] = f32(mask);
}
#endif

var<workgroup> most:   array<f32, threads>;
var<workgroup> weight: array<f32, threads>; // one per split
var<workgroup> staged: array<vec4<f32>, threads>;

// The maximum over the workgroup, in the same way as workgroup_sum.
fn workgroup_max(value: f32, thread: u32, subgroup: u32) -> f32 {
#if SUBGROUPS
    most[thread / subgroup] = subgroupMax(value);
    workgroupBarrier();
    var highest = lowest;
    for (var i = 0u; i < threads / subgroup; i++) { highest = max(highest, most[i]); }
    return highest;
#else
    most[thread] = value;
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { most[thread] = max(most[thread], most[thread + half]); }
    }
    workgroupBarrier();
    return most[0];
#endif
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup = 1u;
#endif
    let token = workgroup.y;
#if SHRINKS
    if (workgroup.x == 0u && workgroup.z == 0u && thread == 0u) { put_head(token); } // tokens past the last have no slots
#endif
    if (token >= run.tokens) { return; }
    let seen = keys_of(queries_with(token, workgroup.x));
    let used = (seen.count + seen.share - 1u) / seen.share;
    let row = token * heads + workgroup.x;
    let stride = quads + 1u;
    let source = row * splits * stride;
    let quad = workgroup.z * lanes + thread % lanes;
    let part = thread / lanes;
    let quad_at = source + min(quad, quads - 1u);

    // request the first sums before the weights are known
    var value = vec4<f32>();
    var kept = vec4<f32>(lowest, 0.0, 0.0, 0.0);
    if (part < used) { value = split_sums[quad_at + part * stride]; }
    if (thread < used) { kept = split_sums[source + thread * stride + quads]; }
    let highest = workgroup_max(kept.x, thread, subgroup);
    let mine = exp(kept.x - highest);
    weight[thread] = mine;
    let sum = workgroup_sum(mine * kept.y, thread, subgroup); // contains a barrier
    value *= weight[part];
    for (var s = part + parts; s < used; s += 4u * parts) {
        let b = min(s + parts, used - 1u);
        let c = min(s + 2u * parts, used - 1u);
        let d = min(s + 3u * parts, used - 1u);
        let four = array(split_sums[quad_at + s * stride], split_sums[quad_at + b * stride], split_sums[quad_at + c * stride], split_sums[quad_at + d * stride]);
        value += weight[s] * four[0];
        value += select(0.0, weight[b], b == s + parts) * four[1];
        value += select(0.0, weight[c], c == s + 2u * parts) * four[2];
        value += select(0.0, weight[d], d == s + 3u * parts) * four[3];
    }
    staged[thread] = value;
    workgroupBarrier();
    if (part == 0u && quad < quads) {
        for (var i = 1u; i < parts; i++) { value += staged[i * lanes + thread]; }
        write_quad(row, quad, value / sum);
#if LOGS
        if (quad == 0u) { logs[row] = highest + log(sum); }
#endif
    }
#if SHRINKS
    if (part == 0u) { staged[thread] = select(vec4<f32>(), value / sum, quad < quads); } // of these nobody reads what was there
    workgroupBarrier();
    let own   = staged[thread % lanes];
    let a_at  = workgroup.x * quads + min(quad, quads - 1u);
    let to    = token * u_stride + u_head + (workgroup.x * ((quads + lanes - 1u) / lanes) + workgroup.z) * rows_a;
    for (var base = 0u; base < rows_a; base += 4u * parts) { // each 32 threads compute four rows of A
        let first = base + 4u * part;
        var sums  = vec4<f32>();
        for (var r = 0u; r < 4u; r++) {
            if (first + r < rows_a && set_weight(token, min(first + r, rows_a - 1u) / rank) != 0.0) {
                sums[r] = dot(a[(first + r) * heads * quads + a_at], own);
            }
        }
        let total = reduce(sums, thread, subgroup);
        for (var r = 0u; r < 4u && first + r < rows_a && thread % lanes == 0u; r++) {
            shrunk[to + first + r] = set_weight(token, (first + r) / rank) * total[r];
        }
    }
#endif
}
