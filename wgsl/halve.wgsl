// Converts activations to f16, for subgroup matrices. Each row is first scaled by a power of two that brings its largest value to
// 2^14 .. 2^15. So large rows do not overflow (a residual stream may well exceed f16's 65504) and small rows keep their precision.
// The scaling itself is exact.
//
//   x    f32, row r (of `per` for each token) of token t at x_offset + t · x_token_stride + r · x_row_stride, k values
//   out  row t · per + r: f16, k rounded up to 32 (zeros), each four in the order 0 2 1 3 (matmul_matrix.wgsl says why); then, from
//        the end of all rows on, a vec4<f32> per row: the inverse of the power of two, then zeros
//   dispatch (1, rows), so that shape classes share a pipeline; rows of tokens beyond the run's are skipped

#include "run.wgsl"

override k:              u32;
override per:            u32 = 1u;
override x_offset:       u32 = 0u;
override x_token_stride: u32;
override x_row_stride:   u32 = 0u;

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
var<workgroup> largest: array<f32, threads>;

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let row   = group.y;
    let token = row / per;
#if OUTPUTS
    let count = run.outputs;
#else
    let count = run.tokens;
#endif
    if (token >= count) { return; }
    let column = x_offset + token * x_token_stride + (row % per) * x_row_stride;
    let quads  = 8u * ((k + 31u) / 32u);

    var most = vec4<f32>(0.0);
    for (var quad = thread; quad < quads; quad += threads) { most = max(most, abs(load_quad(column, quad))); }
    largest[thread] = max(max(most.x, most.y), max(most.z, most.w));
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { largest[thread] = max(largest[thread], largest[thread + half]); }
    }
    workgroupBarrier();

    // the biased exponent of 2^(14 − exponent), limited so that the inverse is a normal number, too
    let exponent = (bitcast<u32>(largest[0]) >> 23u) & 255u;
    let scaled   = min(268u - exponent, 253u);
    let scale    = bitcast<f32>(scaled << 23u);
    for (var eight = thread; eight < quads / 2u; eight += threads) {
        let a = load_quad(column, 2u * eight) * scale;
        let b = load_quad(column, 2u * eight + 1u) * scale;
        out[row * (quads / 2u) + eight] =
            vec4<u32>(pack2x16float(a.xz), pack2x16float(a.yw), pack2x16float(b.xz), pack2x16float(b.yw));
    }
    if (thread == 0u) {
        out[groups.y * (quads / 2u) + row] = bitcast<vec4<u32>>(vec4<f32>(bitcast<f32>((254u - scaled) << 23u), 0.0, 0.0, 0.0));
    }
}
