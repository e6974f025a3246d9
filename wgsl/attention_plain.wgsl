// Attention by the formula, one query at a time; with EXACT it gives the same bits everywhere (exact.wgsl):
//
//   out[t, h] = Σ_j softmax_j(q[t, h] · k_j) v_j over the indices j that the token sees; the scale is 1
//
//   queries  f32 [tokens, heads, head] from q_offset on     keys, values  see kv.wgsl     out  f32 [tokens, heads, head]
//   dispatch (1, for each span its tokens · group, kv_heads), group = heads / kv_heads
//
// It goes over the keys twice: for the largest score, and for the sums, in the order of the keys. A thread computes the score of every 64th
// key, and the sums of every 64th quad of the head; head ≤ 512.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override q_offset: u32;

override quads: u32 = (head + 3u) / 4u;
const batch = 1u;
const threads = 64u;
const lowest = -3.0e38;

#include "kv.wgsl"
#include "attention_tile.wgsl"
#include "attention_query.wgsl"
#include "attention_out.wgsl"
#include "exact.wgsl"
@group(0) @binding(2) var<storage, read> run:    Run;
@group(0) @binding(3) var<storage, read> keys:   array<kv_unit>;
@group(0) @binding(4) var<storage, read> values: array<kv_unit>;

var<workgroup> query:  array<vec4<f32>, 128>;
var<workgroup> staged: array<f32, threads>; // the largest scores, then the weights of 64 keys

fn score(slot: u32, kv_head: u32) -> f32 {
    let row = slot_row(slot, kv_head);
    var lanes = vec4<f32>();
    for (var quad = 0u; quad < quads; quad++) { lanes += rounded_four(query[quad] * key_quad(row, quad)); }
    return (lanes.x + lanes.z) + (lanes.y + lanes.w);
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let kv_head = workgroup.z;
    let mine = queries_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let slots = slots_of(mine.row);
    let at = query_at(mine, 0u, kv_head);
    let begin = first_seen(query_row(mine, 0u));
    let end = last_seen(query_row(mine, 0u)) + 1u;
    let place = slot_place(slots, begin);
    for (var quad = thread; quad < quads; quad += threads) { query[quad] = query_quad(at, quad); }
    workgroupBarrier();

    var highest = lowest;
    for (var j = begin + thread; j < end; j += threads) { highest = max(highest, score(slot_after(slots, place, j - begin), kv_head)); }
    staged[thread] = highest;
    workgroupBarrier();
    for (var i = 0u; i < threads; i++) { highest = max(highest, staged[i]); }

    var sum = 0.0;
    var first = vec4<f32>();
    var second = vec4<f32>();
    for (var tile = begin; tile < end; tile += threads) {
        workgroupBarrier();
        if (tile + thread < end) {
            staged[thread] = exponential(score(slot_after(slots, place, tile + thread - begin), kv_head) - highest);
        }
        workgroupBarrier();
        for (var i = 0u; i < min(threads, end - tile); i++) {
            let row = slot_row(slot_after(slots, place, tile + i - begin), kv_head);
            let weight = staged[i];
            sum += weight;
            if (thread < quads) { first += rounded_four(weight * value_quad(row, thread)); }
            if (thread + threads < quads) { second += rounded_four(weight * value_quad(row, thread + threads)); }
        }
    }
    let share = inverse(sum);
    if (thread < quads) { write_quad(at, thread, first * share); }
    if (thread + threads < quads) { write_quad(at, thread + threads, second * share); }
}
