// Adds the partial sums of a matmul's splits: y[c, row] = Σ_s sums[s, c, row].
//
//   sums  f32 [splits, columns, rows], binding 0
//   y     f32, column c at y_offset + c · y_token_stride; first_row is the tile's first row; binding 1
//   run   binding 2
//   dispatch (rows / 256, columns), columns of the shape class: their number comes from here, so that classes share a pipeline

#include "run.wgsl"
#include "clips.wgsl"

override rows:           u32;
override splits:         u32;
override first_row:      u32 = 0u;
override y_offset:       u32 = 0u;
override y_token_stride: u32 = 0u;

@group(0) @binding(0) var<storage, read_write> sums: array<f32>;
@group(0) @binding(1) var<storage, read_write> y:    array<f32>;
@group(0) @binding(2) var<storage, read>       run:  Run;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
#if OUTPUTS
    let count = run.outputs;
#else
    let count = run.tokens;
#endif
    let row    = id.x;
    let column = id.y;
    if (row >= rows || column >= count) { return; }
    var sum = 0.0;
    for (var s = 0u; s < splits; s++) { sum += sums[(s * groups.y + column) * rows + row]; }
    y[y_offset + column * y_token_stride + first_row + row] = clip_result(first_row + row, sum);
}
