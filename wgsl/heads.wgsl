#if SUBGROUPS
enable subgroups;
#endif
// Prepares queries, keys and values between their product and the attention, one workgroup per head and token:
//
//   q, k: x · weight / rms(x), then rotated: (x_j, x_{j+n/2}) → (x_j cos − x_{j+n/2} sin, x_{j+n/2} cos + x_j sin)
//   v:    x / rms(x)                                       rms(u) = √(mean(u²) + eps)
//
//   rows    f32: token t at t · row_stride: q, k and v start at q_offset, k_offset and v_offset; their heads of n are contiguous
//   table   f32 [tokens, axes, n / axes]: cosines, then sines     q_weight, k_weight  f32 [n]
//   axes    2: the halves of a head are rotated as if they were heads, by a row of the table each
//   out     f32 [tokens, heads, n]: the queries      keys, values  the layer's cache (kv.wgsl), only with STORE
//   dispatch (heads, or with STORE heads + 2 · kv_heads: keys, then values; tokens; 1)     n ≤ 512, a multiple of 4 (of 32 for q8_0)

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
override n:          u32 = kv_heads * head; // values in a row of the cache
const threads = 64u;

#include "reduce.wgsl"

@group(0) @binding(0) var<storage, read_write> rows:     array<f32>;
@group(0) @binding(1) var<storage, read_write> table:    array<f32>;
@group(0) @binding(2) var<storage, read>       q_weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> out:      array<f32>;
@group(0) @binding(4) var<storage, read>       run:      Run;

var<workgroup> line: array<f32, 512>; // the head that this workgroup computes

#if STORE
#include "kv_unit.wgsl"
#include "slots.wgsl"
@group(0) @binding(5) var<storage, read>       k_weight: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys:     array<kv_unit>;
@group(0) @binding(7) var<storage, read_write> values:   array<kv_unit>;

fn input(at: u32, is_value: bool) -> unit {
    let i = 4u * at % head;
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
    let is_query = group.x < heads;
    let is_value = group.x >= heads + kv_heads;
    var source = token * row_stride;
    if (is_query) { source += q_offset + group.x * head; }
    else if (is_value) { source += v_offset + (group.x - heads - kv_heads) * head; }
    else { source += k_offset + (group.x - heads) * head; }

    var squares = 0.0;
    for (var i = thread; i < head; i += threads) {
        let x = rows[source + i];
        squares += x * x;
        line[i] = x;
    }
    let scale = inverseSqrt(workgroup_sum(squares, thread, subgroup) / f32(head) + eps);
    workgroupBarrier();

    let pairs = head / 2u / axes; // of one axis
    for (var i = thread; i < head / 2u; i += threads) {
        let j = i + i / pairs * pairs;
        var x = vec2<f32>(line[j], line[j + pairs]) * scale;
        if (!is_value) {
            if (is_query) { x *= vec2<f32>(q_weight[j], q_weight[j + pairs]); }
#if STORE
            else { x *= vec2<f32>(k_weight[j], k_weight[j + pairs]); }
#endif
            let turn = vec2<f32>(table[token * head + j], table[token * head + pairs + j]);
            x = vec2<f32>(x.x * turn.x - x.y * turn.y, x.y * turn.x + x.x * turn.y);
        }
        line[j] = x.x;
        line[j + pairs] = x.y;
    }
    workgroupBarrier();

    if (is_query) {
        for (var i = thread; i < head; i += threads) { out[(token * heads + group.x) * head + i] = line[i]; }
    }
#if STORE
    else if (run.records[token].at != nowhere) {
        let kv_head = (group.x - heads) % kv_heads;
        for (var i = thread; i < head / piece_values; i += threads) {
            store_piece(0u, own_slot(token), kv_head * (head / piece_values) + i, is_value);
        }
    }
#endif
}
