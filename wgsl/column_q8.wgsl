// An 8-bit column in workgroup memory, for product.wgsl: per 32 values d = max|c| / 127 and p = round(c / d), as quantise.wgsl
// computes them for many columns. A chunk takes five vec4<u32>: the bytes p of its two halves, d · Σp of each quad, d.

override staged_quads: u32 = 5u * segment;
var<workgroup> staged: array<vec4<u32>, staged_quads>;
var<workgroup> tops:   array<f32, threads>;

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

// Stores quad i of the segment. Every thread must call this; past the end of the segment, with `there` false and zeros.
fn stage(i: u32, quad: vec4<f32>, there: bool, thread: u32, subgroup: u32) {
    let size = abs(quad);
    let d    = chunk_top(max(max(size.x, size.y), max(size.z, size.w)), thread, subgroup) / 127.0;
    let some = d > 1e-35;
    let p    = vec4<i32>(clamp(round(quad * select(0.0, 1.0 / d, some)), vec4<f32>(-127.0), vec4<f32>(127.0)));
    let b    = vec4<u32>(p) & vec4<u32>(255u);
    if (!there) { return; }
    let at    = 5u * (i >> 3u);
    let scale = select(0.0, d, some);
    staged[at + ((i >> 2u) & 1u)][i & 3u]      = b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
    staged[at + 2u + ((i >> 2u) & 1u)][i & 3u] = bitcast<u32>(scale * f32(p.x + p.y + p.z + p.w));
    if ((i & 7u) == 0u) { staged[at + 4u].x = bitcast<u32>(scale); }
}

#include "q8_dot.wgsl"

fn column_chunk(chunk: u32) -> Column {
    let at   = 5u * chunk;
    let low  = bitcast<vec4<f32>>(staged[at + 2u]);
    let high = bitcast<vec4<f32>>(staged[at + 3u]);
    return Column(staged[at], staged[at + 1u], bitcast<f32>(staged[at + 4u].x),
                  vec2<f32>(low.x + low.y + low.z + low.w, high.x + high.y + high.z + high.w));
}
