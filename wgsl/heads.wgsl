#if SUBGROUPS
enable subgroups;
#endif
// Prepares queries, keys and values between their product and the attention, some heads of a token per workgroup:
//
//   q, k: x · weight / rms(x), then rotated: (x_j, x_{j+n/2}) → (x_j cos − x_{j+n/2} sin, x_{j+n/2} cos + x_j sin)
//   v:    x / rms(x)                                       rms(u) = √(mean(u²) + eps)
//
//   rows    f32: token t at t · row_stride: q, k and v start at q_offset, k_offset and v_offset; their heads of n are contiguous
//   table   f32 [tokens, axes, n / axes]: cosines, then sines     q_weight, k_weight  f32 [n]
//   axes    2: the halves of a head are rotated as if they were heads, by a row of the table each
//   out     f32 [tokens, heads, n]: the queries      keys, values  the layer's cache (kv.wgsl), only with STORE
//   dispatch (⌈all / teams⌉; tokens; 1), all: heads, or with STORE heads + 2 · kv_heads: keys, then values
//
// `lanes` threads (a power of two) are a team and compute one head: small heads share a workgroup, since one of them alone does not hide
// the time of its loads. teams · n ≤ 512, n is a multiple of 4 (of 32 for q8_0).

#include "run.wgsl"
#include "unit.wgsl"

override head:       u32;
override heads:      u32;
override kv_heads:   u32 = 0u;
override axes:       u32 = 1u;
override row_stride: u32;
override q_offset:   u32;
override k_offset:   u32 = 0u;
override v_offset:   u32 = 0u;
override eps:        f32;
override lanes:      u32 = 64u;
override n:          u32 = kv_heads * head; // values in a row of the cache
const threads = 64u;

#include "lanes.wgsl"

@group(0) @binding(0) var<storage, read_write> rows:     array<f32>;
@group(0) @binding(1) var<storage, read_write> table:    array<f32>;
@group(0) @binding(2) var<storage, read>       q_weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> out:      array<f32>;
@group(0) @binding(4) var<storage, read>       run:      Run;

var<workgroup> line:   array<f32, 512>; // the heads that this workgroup computes
var<workgroup> scales: array<f32, threads>;
var<private>   mine:   u32; // where this team's begins

#if STORE
#include "kv_unit.wgsl"
#include "slots.wgsl"
@group(0) @binding(5) var<storage, read>       k_weight: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys:     array<kv_unit>;
@group(0) @binding(7) var<storage, read_write> values:   array<kv_unit>;

fn input(at: u32, is_value: bool) -> unit {
    let i = mine + 4u * at % head;
    return vec4<f32>(line[i], line[i + 1u], line[i + 2u], line[i + 3u]);
}

#include "kv_write.wgsl"
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
    let token = group.y;
    if (token >= run.tokens) { return; }
    let team  = thread / lanes;
    let lane  = thread % lanes;
    let all   = heads + 2u * kv_heads;
    let which = group.x * (threads / lanes) + team;
    let one   = min(which, all - 1u); // a team without a head only waits at the barriers
    let is_query = one < heads;
    let is_value = one >= heads + kv_heads;
    var source = token * row_stride;
    if (is_query) { source += q_offset + one * head; }
    else if (is_value) { source += v_offset + (one - heads - kv_heads) * head; }
    else { source += k_offset + (one - heads) * head; }
    mine = team * head;

    var squares = 0.0;
    for (var i = lane; i < head; i += lanes) {
        let x = rows[source + i];
        squares += x * x;
        line[mine + i] = x;
    }
    let total = reduce(vec4<f32>(squares, 0.0, 0.0, 0.0), thread, subgroup).x;
    if (lane == 0u) { scales[team] = inverseSqrt(total / f32(head) + eps); }
    workgroupBarrier();

    let scale = scales[team];
    let pairs = head / 2u / axes; // of one axis
    for (var i = lane; i < head / 2u; i += lanes) {
        let j = i + i / pairs * pairs;
        var x = vec2<f32>(line[mine + j], line[mine + j + pairs]) * scale;
        if (!is_value) {
            if (is_query) { x *= vec2<f32>(q_weight[j], q_weight[j + pairs]); }
#if STORE
            else { x *= vec2<f32>(k_weight[j], k_weight[j + pairs]); }
#endif
            let turn = vec2<f32>(table[token * head + j], table[token * head + pairs + j]);
            x = vec2<f32>(x.x * turn.x - x.y * turn.y, x.y * turn.x + x.x * turn.y);
        }
        line[mine + j] = x.x;
        line[mine + j + pairs] = x.y;
    }
    workgroupBarrier();

    if (which >= all) { return; }
    if (is_query) {
        for (var i = lane; i < head; i += lanes) { out[(token * heads + one) * head + i] = line[mine + i]; }
    }
#if STORE
    else if (run.records[token].at != nowhere) {
        let kv_head = (one - heads) % kv_heads;
        for (var i = lane; i < head / piece_values; i += lanes) {
            store_piece(0u, own_slot(token), kv_head * (head / piece_values) + i, is_value);
        }
    }
#endif
}
