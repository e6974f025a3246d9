// Attention for many tokens, in tiles with an online softmax:
//
//   out[t, h] = Σ_j softmax_j(q[t, h] · k_j) v_j over the indices j that the token sees; the scale is 1
//
//   queries  f32 [tokens, heads, head] from q_offset on     keys, values  see kv.wgsl     out  f32 [tokens, heads, head]
//   dispatch (1, for each span its tokens · group / 16 rounded up, kv_heads), group = heads / kv_heads
//
// A workgroup handles 16 queries (attention_tile.wgsl). It covers all indices that any of them sees, in tiles of 32 keys:
//   scores   the head in chunks of 32 values; workgroup memory holds a chunk of the keys and queries. A thread has 4 × 4 scores
//            over a quarter of the chunk, and the quarters are added at the end
//   softmax  eight threads per query, four keys each, with a running maximum
//   values   a thread owns four queries × every 32nd quad of the head (STEPS of them), and reads the values directly
//
// head ≤ 512, STEPS = head/128 rounded up.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override q_offset: u32;

override quads: u32 = (head + 3u) / 4u;
const steps = ${STEPS}u;
const threads = 128u;
const batch = 16u;       // queries
const tile = 32u;        // keys
const chunk = 8u;        // quads of the head per step
const key_stride = 33u;  // one more than needed, so that rows written at the same time fall into different banks
const query_stride = 17u;
const queries_staged = chunk * key_stride;
const lowest = -3.0e38;

#include "kv.wgsl"
#include "attention_tile.wgsl"
#include "attention_query.wgsl"
#include "attention_out.wgsl"
@group(0) @binding(2) var<storage, read> run:    Run;
@group(0) @binding(3) var<storage, read> keys:   array<kv_unit>;
@group(0) @binding(4) var<storage, read> values: array<kv_unit>;

// [quad of the chunk, key], then [quad of the chunk, query]; after the last chunk, the quarters of the scores
var<workgroup> staged: array<vec4<f32>, 512>;
var<workgroup> score:  array<f32, batch * (tile + 1u)>; // [query, key]
var<workgroup> weight: array<f32, tile * batch>;        // [key, query]
var<workgroup> shrink: array<f32, batch>;               // the factor for a query's sums when its maximum rises
var<workgroup> total:  array<f32, threads>;

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let kv_head = workgroup.z;
    let mine = queries_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let slots = slots_of(mine.row);
    let begin = first_seen(query_row(mine, 0u));
    let end = last_seen(query_row(mine, batch - 1u)) + 1u;

    // scores: queries qt + 4 i, keys kt + 8 i, i < 4, and two quads of each chunk
    let kt = thread % 8u;
    let qt = thread / 8u % 4u;
    let quarter = thread / 32u;
    // softmax: one query, keys part + 8 i
    let my_query = thread / 8u;
    let part = thread % 8u;
    let my_first = first_seen(query_row(mine, my_query));
    let my_last = last_seen(query_row(mine, my_query));
    var my_highest = lowest;
    var my_sum = 0.0;
    // values: queries 4 · quarter + i, quads lane + 32 s
    let lane = thread % 32u;
    var sums: array<vec4<f32>, 4u * steps>;
    for (var i = 0u; i < 4u * steps; i++) { sums[i] = vec4<f32>(); }

    for (var at = begin; at < end; at += tile) {
        let place = slot_place(slots, at);
        var dots: array<vec4<f32>, 4>; // [query i], over the four keys
        for (var i = 0u; i < 4u; i++) { dots[i] = vec4<f32>(); }
        for (var first_quad = 0u; first_quad < quads; first_quad += chunk) {
            for (var i = thread; i < chunk * tile; i += threads) {
                let quad = first_quad + i % chunk;
                var key = vec4<f32>();
                if (quad < quads && at + i / chunk < end) { key = key_quad(slot_row(slot_after(slots, place, i / chunk), kv_head), quad); }
                staged[i % chunk * key_stride + i / chunk] = key;
            }
            { // 16 queries of 8 quads: one per thread
                let quad = first_quad + thread % chunk;
                var four = vec4<f32>();
                if (quad < quads && has_query(mine, thread / chunk)) {
                    four = query_quad(query_at(mine, thread / chunk, kv_head), quad);
                }
                staged[queries_staged + thread % chunk * query_stride + thread / chunk] = four;
            }
            workgroupBarrier();
            for (var c = 2u * quarter; c < 2u * quarter + 2u; c++) {
                var key: array<vec4<f32>, 4>;
                for (var i = 0u; i < 4u; i++) { key[i] = staged[c * key_stride + kt + 8u * i]; }
                for (var i = 0u; i < 4u; i++) {
                    let four = staged[queries_staged + c * query_stride + qt + 4u * i];
                    dots[i] += vec4<f32>(dot(four, key[0]), dot(four, key[1]), dot(four, key[2]), dot(four, key[3]));
                }
            }
            workgroupBarrier();
        }
        for (var i = 0u; i < 4u; i++) { staged[quarter * threads + i * 32u + lane] = dots[i]; }
        workgroupBarrier();
        { // thread: query qt + 4 · quarter, which is i here, keys kt + 8 · component
            let four = staged[thread] + staged[threads + thread] + staged[2u * threads + thread] + staged[3u * threads + thread];
            for (var i = 0u; i < 4u; i++) { score[(qt + 4u * quarter) * (tile + 1u) + kt + 8u * i] = four[i]; }
        }
        workgroupBarrier();

        var most = my_highest;
        for (var i = 0u; i < tile; i++) {
            let seen = at + i >= my_first && at + i <= my_last;
            most = max(most, select(lowest, score[my_query * (tile + 1u) + i], seen));
        }
        let fall = exp(my_highest - most);
        my_sum *= fall;
        for (var i = part; i < tile; i += 8u) {
            let seen = at + i >= my_first && at + i <= my_last;
            let w = select(0.0, exp(score[my_query * (tile + 1u) + i] - most), seen);
            weight[i * batch + my_query] = w;
            my_sum += w;
        }
        my_highest = most;
        if (part == 0u) { shrink[my_query] = fall; }
        workgroupBarrier();

        let here = min(tile, end - at);
        for (var i = 0u; i < 4u; i++) {
            for (var s = 0u; s < steps; s++) { sums[i * steps + s] *= shrink[4u * quarter + i]; }
        }
        for (var j = 0u; j < here; j++) {
            let row = slot_row(slot_after(slots, place, j), kv_head);
            let w = j * batch + 4u * quarter;
            for (var s = 0u; s < steps; s++) {
                let quad = lane + 32u * s;
                if (quad >= quads) { break; }
                let value = value_quad(row, quad);
                for (var i = 0u; i < 4u; i++) { sums[i * steps + s] += weight[w + i] * value; }
            }
        }
    }

    workgroupBarrier();
    total[thread] = my_sum;
    workgroupBarrier();
    for (var i = 0u; i < 4u; i++) {
        let query = 4u * quarter + i;
        if (!has_query(mine, query)) { continue; }
        var sum = 0.0;
        for (var p = 0u; p < 8u; p++) { sum += total[query * 8u + p]; }
        for (var s = 0u; s < steps; s++) {
            let quad = lane + 32u * s;
            if (quad < quads) { write_quad(query_at(mine, query, kv_head), quad, sums[i * steps + s] / sum); }
        }
    }
}
