// Puts the splits of attention_decode.wgsl together:
//
//   out[row] = Σ_s e^(highest_s − highest) · partial_s / Σ_s e^(highest_s − highest) · sum_s, highest = the largest highest_s
//
//   partial  vec4<f32> [tokens · heads, splits, head/4 rounded up + 1], the last quad (highest_s, sum_s, 0, 0)
//   out      f32 [tokens, heads, head]
//   dispatch (heads, tokens, 1)

#include "run.wgsl"

override head:   u32;
override heads:  u32;
override splits: u32;

override quads: u32 = (head + 3u) / 4u;
const threads = 64u;

@group(0) @binding(0) var<storage, read_write> partial: array<vec4<f32>>;
#include "attention_out.wgsl"
@group(0) @binding(2) var<storage, read> run: Run;

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    if (group.y >= run.tokens) { return; }
    let row = group.y * heads + group.x;
    let source = row * splits * (quads + 1u);
    var highest = -3.0e38;
    for (var s = 0u; s < splits; s++) { highest = max(highest, partial[source + s * (quads + 1u) + quads].x); }

    for (var quad = thread; quad < quads; quad += threads) {
        var value = vec4<f32>();
        var sum = 0.0;
        for (var s = 0u; s < splits; s++) {
            let at = source + s * (quads + 1u);
            let part = partial[at + quads];
            if (part.y == 0.0) { continue; } // it saw nothing
            let weight = exp(part.x - highest);
            value += weight * partial[at + quad];
            sum += weight * part.y;
        }
        write_quad(row, quad, value / sum);
    }
}
