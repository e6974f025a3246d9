// Quantises activations to 8 bits: per 32 values d = max|x| / 127 and p = round(x / d), and d · Σ p of each 16 for the matmul.
//
//   x    f32, row r (of `per` for each token) of token t at x_offset + t · x_token_stride + r · x_row_stride, k values, k a
//        multiple of 32
//   out  row t · per + r: k/16 vec4<u32> with p in bytes; then, from out_scales on (in units of 16 bytes), for each 32 values a
//        vec4<f32>: d, d·Σp of the first 16, d·Σp of the last 16; and FACTORED: the factor behind the row (norms.wgsl), otherwise 0
//   dispatch: 32 chunks (counted over all rows) per workgroup, spread over x and y; rows of tokens beyond the run's are skipped
//
// Eight threads share a chunk, four values each, so that adjacent threads read adjacent values.

#include "run.wgsl"

override k:              u32;
override per:            u32 = 1u;
override x_offset:       u32 = 0u;
override x_token_stride: u32;
override x_row_stride:   u32 = 0u;
override out_scales:     u32;
override all_rows:       u32; // tokens · per, for the shape class

#if VEC4
@group(0) @binding(0) var<storage, read_write> x: array<vec4<f32>>;
#else
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
#endif
@group(0) @binding(1) var<storage, read_write> out: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read>       run: Run;

struct Quads { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32> }

#include "clips.wgsl"
#include "columns.wgsl"

const threads = 256u;
const chunks  = threads / 8u; // per workgroup

var<workgroup> largest: array<f32, threads>;
var<workgroup> words:   array<u32, threads>; // four p each
var<workgroup> totals:  array<i32, threads>;

fn largest_of_chunk(chunk: u32) -> f32 {
    let i = 8u * chunk;
    return max(max(max(largest[i], largest[i + 1u]), max(largest[i + 2u], largest[i + 3u])),
               max(max(largest[i + 4u], largest[i + 5u]), max(largest[i + 6u], largest[i + 7u])));
}

// d, or 0 if the chunk is all zeros (or nearly so).
fn scale_of_chunk(chunk: u32) -> f32 {
    let d = largest_of_chunk(chunk) / 127.0;
    return select(0.0, d, d > 1e-35);
}

fn total_of_half(i: u32) -> f32 { return f32(totals[i] + totals[i + 1u] + totals[i + 2u] + totals[i + 3u]); }

fn row_at(row: u32) -> u32 { return x_offset + (row / per) * x_token_stride + (row % per) * x_row_stride; }

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
#if OUTPUTS
    let count = min(run.outputs * per, all_rows);
#else
    let count = min(run.tokens * per, all_rows);
#endif
    let row_chunks = k / 32u;
    let first = (group.y * groups.x + group.x) * chunks;
    let last  = row_chunks * count; // one past the last
    if (first >= last) { return; }

    let id  = min(first + thread / 8u, last - 1u);
    let row = id / row_chunks;
    let v   = load_quad(row_at(row), 8u * (id % row_chunks) + thread % 8u);
    let top = max(abs(v.xy), abs(v.zw));
    largest[thread] = max(top.x, top.y);
    workgroupBarrier();

    let d       = scale_of_chunk(thread / 8u);
    let inverse = select(0.0, 1.0 / d, d > 0.0);
    let p       = vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
    let bytes   = vec4<u32>(p) & vec4<u32>(255u);
    words[thread]  = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
    totals[thread] = p.x + p.y + p.z + p.w;
    workgroupBarrier();

    if (thread < 2u * chunks) { // 16 values
        let i = 4u * thread;
        if (first + thread / 2u < last) {
            out[2u * first + thread] = vec4<u32>(words[i], words[i + 1u], words[i + 2u], words[i + 3u]);
        }
    } else if (thread < 3u * chunks) {
        let chunk = thread - 2u * chunks;
        let scale = scale_of_chunk(chunk);
        if (first + chunk < last) {
#if FACTORED
            let factor = factor_behind(row_at((first + chunk) / row_chunks));
#else
            let factor = 0.0;
#endif
            out[out_scales + first + chunk] = bitcast<vec4<u32>>(
                vec4<f32>(scale, scale * total_of_half(8u * chunk), scale * total_of_half(8u * chunk + 4u), factor));
        }
    }
}
