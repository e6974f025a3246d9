// An 8-bit column in workgroup memory, for product.wgsl: per 32 values d = max|c| / 127 and p = round(c / d), as quantise.wgsl
// computes them for many columns. A chunk takes three vec4<u32>: the bytes p of its two halves; d, and d · Σp of each half.

override staged_quads: u32 = 3u * segment;
var<workgroup> staged: array<vec4<u32>, staged_quads>;
var<workgroup> tops:   array<f32, threads>;
#if SUBGROUPS
#else
var<workgroup> totals: array<i32, threads>;
#endif

// The largest value of eight adjacent threads. Every thread of the workgroup must call this.
fn chunk_top(value: f32, thread: u32, subgroup: u32) -> f32 {
    var top = value;
#if SUBGROUPS
    top = max(top, subgroupShuffleXor(top, 1u));
    top = max(top, subgroupShuffleXor(top, 2u));
    if (subgroup >= 8u) { return max(top, subgroupShuffleXor(top, 4u)); }
#endif
    workgroupBarrier();
    tops[thread] = top;
    workgroupBarrier();
    for (var i = 0u; i < 8u; i++) { top = max(top, tops[(thread & 0xfffffff8u) + i]); }
    return top;
}

// The sum over four adjacent threads. Every thread of the workgroup must call this.
fn half_total(value: i32, thread: u32) -> i32 {
#if SUBGROUPS
    let two = value + subgroupShuffleXor(value, 1u);
    return two + subgroupShuffleXor(two, 2u);
#else
    totals[thread] = value;
    workgroupBarrier();
    let i = thread & 0xfffffffcu;
    return totals[i] + totals[i + 1u] + totals[i + 2u] + totals[i + 3u];
#endif
}

// Stores quad i of the segment. Every thread must call this; past the end of the segment, with `there` false and zeros.
fn stage(i: u32, quad: vec4<f32>, there: bool, thread: u32, subgroup: u32) {
    let size = abs(quad);
    let d    = chunk_top(max(max(size.x, size.y), max(size.z, size.w)), thread, subgroup) / 127.0;
    let some = d > 1e-35;
    let p    = vec4<i32>(clamp(round(quad * select(0.0, 1.0 / d, some)), vec4<f32>(-127.0), vec4<f32>(127.0)));
    let b    = vec4<u32>(p) & vec4<u32>(255u);
    let half = half_total(p.x + p.y + p.z + p.w, thread);
    if (!there) { return; }
    let at    = 3u * (i >> 3u);
    let scale = select(0.0, d, some);
    staged[at + ((i >> 2u) & 1u)][i & 3u] = b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
    if ((i & 3u) == 0u) { staged[at + 2u][1u + ((i >> 2u) & 1u)] = bitcast<u32>(scale * f32(half)); }
    if ((i & 7u) == 0u) { staged[at + 2u].x = bitcast<u32>(scale); }
}

#include "q8_dot.wgsl"

fn column_chunk(chunk: u32) -> Column {
    let at = 3u * chunk;
    let s  = bitcast<vec4<f32>>(staged[at + 2u]);
    return Column(staged[at], staged[at + 1u], s.x, s.yz);
}
