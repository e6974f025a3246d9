// CANVAS_NEXT (src/graph/graph.h): accepts what the step before has drawn, up to the bound, and replaces the rest by noise. If every
// canvas is done, the run has no tokens from here on.
//
//   findings, settings  four words for each token
//   state               canvas_state: id, pinned, likeliest, same
//   ids                 the result
//   dispatch (1, 1, 1)

#include "run.wgsl"
#include "wide.wgsl"
#include "philox.wgsl"

override units:      u32;
override bound:      u32;
override stability:  u32;
override confidence: u32;
override vocabulary: u32;

const threads = 128u;
const stream  = 0x63616e76u;
const pinned  = 0x40000000u;
const changed = 0x80000000u;

@group(0) @binding(0) var<storage, read_write> findings: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> settings: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> state:    array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> ids:      array<u32>;
@group(0) @binding(4) var<storage, read_write> run:      Run;

var<workgroup> going: atomic<u32>; // 1: not all are done

@compute @workgroup_size(threads)
fn main(@builtin(local_invocation_index) thread: u32) {
    let tokens = run.tokens;
    if (thread == 0u) { atomicStore(&going, 0u); }
    // first, ids has entropies in units with two flags: the position is pinned; its likeliest id has changed
    for (var t = thread; t < tokens; t += threads) {
        let s    = state[t];
        let free = s.y == 0u;
        ids[t] = select(pinned, u32(round(bitcast<f32>(findings[t].z) * f32(units))), free) |
                 select(changed, 0u, s.z == select(s.x, findings[t].x, free));
    }
    storageBarrier();
    workgroupBarrier();
    for (var t = thread; t < tokens; t += threads) {
        var s = state[t];
        if (((settings[t].w >> 10u) & 1023u) == 0u) {
            atomicMax(&going, 1u);
            continue;
        }
        let mine   = ids[t] & (pinned - 1u);
        let first  = run.records[t].span_first;
        var before = 0u;
        var total  = 0u;
        var open   = 0u;
        var flags  = 0u;
        for (var i = first; i < first + run.records[t].span_count; i++) {
            let entropy = ids[i] & (pinned - 1u);
            before += select(0u, entropy, entropy < mine || (entropy == mine && i < t));
            total += entropy;
            open += 1u - ((ids[i] / pinned) & 1u);
            flags |= ids[i];
        }
        s.w = select(s.w + 1u, 0u, flags >= changed);
        if (s.w < stability || total >= confidence * max(open, 1u)) { atomicMax(&going, 1u); }
        if (s.y == 0u) {
            s.x = findings[t].y;
            s.z = findings[t].x;
            if (before > bound) {
                let noise = philox_words(vec4<u32>(0u, settings[t].w, 1u, stream), settings[t].yz);
                s.x = wide_product(noise.x, vocabulary).y;
            }
        } else {
            s.z = s.x;
        }
        state[t] = s;
    }
    storageBarrier();
    workgroupBarrier();
    for (var t = thread; t < tokens; t += threads) { ids[t] = state[t].x; }
    if (thread == 0u && atomicLoad(&going) == 0u) { run.tokens = 0u; }
}
