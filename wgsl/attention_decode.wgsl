// Attention of a few tokens (1 to 4), the keys shared out to several workgroups:
//
//   out[t, h] = Σ_j softmax_j(q[t, h] · k_j) v_j over the visible positions j; the scale is 1
//
//   queries  f32 [tokens, heads, head] from q_offset on     keys, values  see kv.wgsl
//   out      with FINAL (splits is 1): f32 [tokens, heads, head]
//            otherwise vec4<f32> [tokens · heads, splits, head/4 rounded up + 1]: Σ e^(score − highest) v without the division,
//            then a quad (highest, Σ e^(score − highest), 0, 0), for attention_reduce.wgsl; a sum of 0 says «nothing here»
//   dispatch (splits, tokens · group / QUERIES rounded up, kv_heads), group = heads / kv_heads
//
// A workgroup takes QUERIES pairs (token, head) of one K/V head, so that keys and values are read once for all of them, and
// its split of the positions in tiles of 32:
//   scores   eight lanes to a key, 16 keys at a time; the lanes' sums meet in workgroup memory
//   softmax  16 threads to a query, two keys each, with a running maximum
//   values   a thread owns four of the head's values for all queries; where the head is short, threads share out the keys
//
// head ≤ 512, QUERIES ≤ 8, QUERIES · head/4 rounded up ≤ 512: workgroup memory stays below 16 KB.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override window:   u32;
override splits:   u32;
override q_offset: u32;

override quads: u32 = (head + 3u) / 4u;
const batch = ${QUERIES}u; // queries of a workgroup
const threads = 128u;
const tile = 32u;   // keys
const lanes = 8u;   // to a key
const keys_at_once = 16u;   // keys at a time
const lane_stride = batch * keys_at_once + 4u; // + 4: the lanes' words fall into different banks
const score_stride = tile + 1u;
const lowest = -3.0e38;

#include "kv.wgsl"
#include "attention_query.wgsl"
#if FINAL
#include "attention_out.wgsl"
#else
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
#endif
@group(0) @binding(2) var<storage, read> run:    Run;
@group(0) @binding(3) var<storage, read> keys:   array<kv_unit>;
@group(0) @binding(4) var<storage, read> values: array<kv_unit>;

var<workgroup> query:   array<vec4<f32>, 512>; // [query, quad]
var<workgroup> partial: array<f32, max(4u * threads, lanes * lane_stride)>;
var<workgroup> score:   array<f32, batch * score_stride>;
var<workgroup> weight:  array<f32, tile * batch>; // [key, query]
var<workgroup> shrink:  array<f32, batch>;        // by how much a query's sums fall when its maximum rises
var<workgroup> highest: array<f32, batch>;
var<workgroup> total:   array<f32, batch>;

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let split = workgroup.x;
    let kv_head = workgroup.z;
    let group = heads / kv_heads;
    let first_query = workgroup.y * batch;
    let first_token = first_query / group;
    if (first_token >= run.tokens) { return; }
    let last_token = min((first_query + batch - 1u) / group, run.tokens - 1u);

    // this workgroup's positions: a share of what any of its queries sees
    let first = first_visible(run.start + first_token);
    let count = run.start + last_token + 1u - first;
    let share = ((count + splits - 1u) / splits + tile - 1u) / tile * tile;
    let begin = first + min(split * share, count);
    let end = min(begin + share, first + count);

    for (var i = thread; i < batch * quads; i += threads) {
        let id = first_query + i / quads;
        let token = id / group;
        query[i] = vec4<f32>();
        if (token < run.tokens) { query[i] = query_quad(token * heads + kv_head * group + id % group, i % quads); }
    }
    workgroupBarrier();

    // as the keeper of a score: query thread / 16, keys thread % 16 and 16 more
    let my_query = thread / keys_at_once;
    let my_key = thread % keys_at_once;
    let my_token = (first_query + my_query) / group;
    let my_position = run.start + my_token;
    let mine = my_query < batch && my_token < run.tokens;
    var my_highest = lowest;
    var my_sum = 0.0;

    // as the owner of a quad of the result
    let key_groups = max(threads / quads, 1u);
    let quad = thread % quads;
    let key_group = thread / quads;
    var sums: array<vec4<f32>, batch>;
    for (var q = 0u; q < batch; q++) { sums[q] = vec4<f32>(); }

    for (var at = begin; at < end; at += tile) {
        for (var half = 0u; half < tile; half += keys_at_once) {
            let position = at + half + thread / lanes;
            let lane = thread % lanes;
            var dots: array<f32, batch>;
            for (var q = 0u; q < batch; q++) { dots[q] = 0.0; }
            if (position < end) {
                let row = kv_row(position, kv_head);
                for (var i = lane; i < quads; i += lanes) {
                    let key = key_quad(row, i);
                    for (var q = 0u; q < batch; q++) { dots[q] += dot(key, query[q * quads + i]); }
                }
            }
            for (var q = 0u; q < batch; q++) { partial[lane * lane_stride + q * keys_at_once + thread / lanes] = dots[q]; }
            workgroupBarrier();
            if (my_query < batch) {
                var sum = 0.0;
                for (var i = 0u; i < lanes; i++) { sum += partial[i * lane_stride + thread]; }
                let j = at + half + my_key;
                let seen = mine && j < end && visible(j, my_position);
                score[my_query * score_stride + half + my_key] = select(lowest, sum, seen);
            }
            workgroupBarrier();
        }

        if (my_query < batch) {
            var most = my_highest;
            for (var i = 0u; i < tile; i++) { most = max(most, score[my_query * score_stride + i]); }
            let fall = exp(my_highest - most);
            my_sum *= fall;
            for (var i = my_key; i < tile; i += keys_at_once) {
                let s = score[my_query * score_stride + i];
                let w = select(exp(s - most), 0.0, s == lowest);
                weight[i * batch + my_query] = w;
                my_sum += w;
            }
            my_highest = most;
            if (my_key == 0u) { shrink[my_query] = fall; }
        }
        workgroupBarrier();

        if (key_group < key_groups) {
            for (var q = 0u; q < batch; q++) { sums[q] *= shrink[q]; }
            let here = min(tile, end - at);
            for (var j = key_group; j < here; j += key_groups) {
                let value = value_quad(kv_row(at + j, kv_head), quad);
                for (var q = 0u; q < batch; q++) { sums[q] += weight[j * batch + q] * value; }
            }
        }
    }

    // the sums of the weights, then those of the key groups
    workgroupBarrier();
    partial[thread] = my_sum;
    workgroupBarrier();
    if (my_query < batch && my_key == 0u) {
        var sum = 0.0;
        for (var i = 0u; i < keys_at_once; i++) { sum += partial[thread + i]; }
        total[my_query] = sum;
        highest[my_query] = my_highest;
    }
    for (var q = 0u; q < batch; q++) {
        workgroupBarrier();
        for (var c = 0u; c < 4u; c++) { partial[c * threads + thread] = sums[q][c]; }
        workgroupBarrier();
        let id = first_query + q;
        let token = id / group;
        if (key_group == 0u && token < run.tokens) {
            var sum = vec4<f32>();
            for (var g = 0u; g < key_groups; g++) {
                let at = g * quads + quad;
                sum += vec4<f32>(partial[at], partial[threads + at], partial[2u * threads + at], partial[3u * threads + at]);
            }
            let row = token * heads + kv_head * group + id % group;
#if FINAL
            write_quad(row, quad, sum / total[q]);
#else
            let to = (row * splits + split) * (quads + 1u);
            out[to + quad] = sum;
            if (quad == 0u) { out[to + quads] = vec4<f32>(highest[q], total[q], 0.0, 0.0); }
#endif
        }
    }
}
