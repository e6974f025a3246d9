// Attention to a token and to those shortly before it in its span, with a term for the distance:
//
//   score_d = cap · tanh(q_t · (k_{t−d} + relative_d) / cap),  d < reach     out_t = Σ_d softmax(score)_d · v_{t−d}
//
//   a, k, v   queries, keys, values: f32, views: value i of head h of token t at offset + t · token_stride + h · row_stride + i
//   relative  f32 [reach, heads, head]     out  f32 [tokens, heads, head]
//   dispatch (heads, tokens, 1): one workgroup per head of a token

#include "run.wgsl"
#include "unit.wgsl"

override head:           u32;
override reach:          u32;
override cap:            f32;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;
override b_offset:       u32;
override b_row_stride:   u32;
override b_token_stride: u32;
override v_offset:       u32;
override v_row_stride:   u32;
override v_token_stride: u32;
const threads = 64u;
const most_reach = 16u; // LOCAL_ATTENTION_MOST

@group(0) @binding(0) var<storage, read_write> a:        array<f32>;
@group(0) @binding(1) var<storage, read_write> out:      array<f32>;
@group(0) @binding(2) var<storage, read>       run:      Run;
@group(0) @binding(3) var<storage, read_write> k:        array<f32>;
@group(0) @binding(4) var<storage, read_write> v:        array<f32>;
@group(0) @binding(5) var<storage, read>       relative: array<f32>;

var<workgroup> parts: array<f32, most_reach * threads>;
var<workgroup> score: array<f32, most_reach>;

#include "curves.wgsl"

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let token = group.y;
    if (token >= run.tokens) { return; }
    let seen = min(token - run.records[token].span_first + 1u, reach);
    let q_at = a_offset + token * a_token_stride + group.x * a_row_stride;
    for (var d = 0u; d < seen; d++) {
        let k_at = b_offset + (token - d) * b_token_stride + group.x * b_row_stride;
        let r_at = (d * groups.x + group.x) * head;
        var sum = 0.0;
        for (var i = thread; i < head; i += threads) { sum += a[q_at + i] * (k[k_at + i] + relative[r_at + i]); }
        parts[d * threads + thread] = sum;
    }
    workgroupBarrier();
    if (thread < seen) {
        var sum = 0.0;
        for (var i = 0u; i < threads; i++) { sum += parts[thread * threads + i]; }
        score[thread] = cap * precise_tanh(sum / cap);
    }
    workgroupBarrier();
    var most = score[0];
    for (var d = 1u; d < seen; d++) { most = max(most, score[d]); }
    var total_weight = 0.0;
    for (var d = 0u; d < seen; d++) { total_weight += exp(score[d] - most); }
    for (var i = thread; i < head; i += threads) {
        var sum = 0.0;
        for (var d = 0u; d < seen; d++) {
            sum += exp(score[d] - most) * v[v_offset + (token - d) * v_token_stride + group.x * v_row_stride + i];
        }
        out[(token * groups.x + group.x) * head + i] = sum / total_weight;
    }
}
