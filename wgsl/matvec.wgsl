#if SUBGROUPS
enable subgroups;
#endif
// Matrix times a few columns: y[c, row] = Σ_i W[row, i] · x[c, i] for 2 to 4 columns, with f32 activations and sums.
//
//   weights  one tile of W, rows of k (weights.wgsl)
//   x        f32, column c at x_offset + c · x_token_stride
//   y        f32, column c at y_offset + c · y_token_stride; first_row is the tile's first row
//   dispatch (row groups in x, continued in z)
//
// `lanes` threads (a power of two, at most 128) share two rows and take turns with their chunks of 32 weights. Tall matrices get few
// lanes, because then fewer cache lines of x are in use at a time; short matrices with long rows get many. Scaling comes after
// summing: Σ (scale·q + offset)·x = scale · Σ q·x + offset · Σ x. We assume that the threads of a subgroup are consecutive.

#include "weights.wgsl"

override k:              u32;
override rows:           u32;
override first_row:      u32 = 0u;
override w_first:        u32 = 0u; // row of the tile at which the matrix begins, if it lies joined with others
override lanes:          u32;
override columns:        u32; // 2 to 4
override x_offset:       u32 = 0u;
override x_token_stride: u32 = 0u;
override y_offset:       u32 = 0u;
override y_token_stride: u32 = 0u;
const threads = 128u;

@group(0) @binding(0) var<storage, read>       weights: array<vec4<u32>>;
#if VEC4
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
#endif
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

#include "clips.wgsl"
#include "columns.wgsl"
#include "lanes.wgsl"

#if QUANTISED
fn scales_of(chunk: u32) -> vec4<f32> { return chunk_affine(chunk); }
#else
fn scales_of(chunk: u32) -> vec4<f32> { return vec4<f32>(1.0); }
#endif

// A chunk's products with one column; v_sums are the sums of the column's halves.
fn chunk_dot(w: Quads, s: vec4<f32>, v: Quads, v_sums: vec2<f32>) -> f32 {
    let both = dot_halves(w, v);
#if QUANTISED == 0
    return both.x + both.y;
#elif AFFINE
    return dot(s, vec4<f32>(both, v_sums));
#else
    return dot(s.xy, both);
#endif
}

// Two rows times one column.
fn rows_dot(w0: Quads, s0: vec4<f32>, w1: Quads, s1: vec4<f32>, column: u32, chunk: u32) -> vec2<f32> {
    let v      = load_chunk(column, chunk);
    let v_sums = half_sums(v);
    return vec2<f32>(chunk_dot(w0, s0, v, v_sums), chunk_dot(w1, s1, v, v_sums));
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup = 1u;
#endif
    let lane   = thread % lanes;
    let first  = ((group.x + group.z * groups.x) * (threads / lanes) + thread / lanes) * 2u;
    let chunks = (k + 31u) / 32u;

    // Threads past the last row read the last row.
    let row0 = (w_first + min(first, rows - 1u)) * chunks;
    let row1 = (w_first + min(first + 1u, rows - 1u)) * chunks;
    let column1 = x_offset + x_token_stride;
    let column2 = x_offset + min(2u, columns - 1u) * x_token_stride;
    let column3 = x_offset + min(3u, columns - 1u) * x_token_stride;
    var sums0 = vec4<f32>(0.0); // one per column
    var sums1 = vec4<f32>(0.0);
    for (var chunk = lane; chunk < chunks; chunk += lanes) {
        let w0 = chunk_quads(row0 + chunk);
        let w1 = chunk_quads(row1 + chunk);
        let s0 = scales_of(row0 + chunk);
        let s1 = scales_of(row1 + chunk);
        let a = rows_dot(w0, s0, w1, s1, x_offset, chunk);
        let b = rows_dot(w0, s0, w1, s1, column1, chunk);
        let c = rows_dot(w0, s0, w1, s1, column2, chunk);
        let d = rows_dot(w0, s0, w1, s1, column3, chunk);
        sums0 += vec4<f32>(a.x, b.x, c.x, d.x);
        sums1 += vec4<f32>(a.y, b.y, c.y, d.y);
    }
    let total0 = reduce(sums0, thread, subgroup);
    let total1 = reduce(sums1, thread, subgroup);
    if (lane == 0u) {
        for (var c = 0u; c < columns; c++) {
            let at = y_offset + c * y_token_stride + first_row + first;
            if (first < rows) { y[at] = total0[c]; }
            if (first + 1u < rows) { y[at + 1u] = total1[c]; }
        }
    }
}
