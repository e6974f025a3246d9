// Rotary position embeddings.
//
//   KIND table   out[t] = the cosines, then the sines, of the angles position · frequencies[j]; with two AXES a row for the token's
//                  id comes first
//                  frequencies  f32 [pairs]     out  f32 [tokens, AXES, 2 · pairs]
//                  dispatch (pairs / 64 rounded up, tokens, AXES)
//   KIND rotate  (x_j, x_{j+pairs}) → (x_j cos − x_{j+pairs} sin, x_{j+pairs} cos + x_j sin) for each row of a
//                  BACK: by the negative angle
//                  a      f32, a view: unit i of row r of token t at a_offset + t · a_token_stride + r · a_row_stride + i
//                  table  f32 [tokens, table_rows, 2 · pairs]: row r by row r mod table_rows     out  f32 [tokens, rows, 2 · pairs]
//                  dispatch (rows · pairs / 64 rounded up, tokens, 1)     pairs, offsets and strides in units (unit.wgsl)

#include "run.wgsl"

override pairs: u32;
const threads = 64u;

#if KIND == table
#include "wide.wgsl"
#include "exact.wgsl"

@group(0) @binding(0) var<storage, read>       frequencies: array<f32>;
@group(0) @binding(1) var<storage, read_write> out:         array<f32>;
@group(0) @binding(2) var<storage, read>       run:         Run;

// To the nearest float: a conversion may round either way.
fn float_of(x: u32) -> f32 { return f32(x >> 16u) * 65536.0 + f32(x & 0xffffu); }

// Cosine and sine of an angle of up to 2^24. WGSL guarantees no useful accuracy for its sin and cos beyond π, so we remove whole
// turns in integer arithmetic: the angle is m · 2^-s, and we have 96 bits of 1/2π.
fn cosine_sine(angle: f32) -> vec2<f32> {
    let bits = bitcast<u32>(angle) & 0x7fffffffu;
    var quarter = 0u;
    var rest = abs(angle);
    if (bits >= 0x3f000000u) { // smaller angles need no reduction
        let m = (bits & 0x7fffffu) | 0x800000u;
        let s = clamp(150u - (bits >> 23u), 1u, 31u);
        let low = wide_product(m, 0x7f09d5f4u);
        let middle = wide_add(wide_product(m, 0x9391054au), vec2<u32>(low.y, 0u));
        let high = wide_add(wide_product(m, 0x28be60dbu), vec2<u32>(middle.y, 0u));
        // the binary point is before high.x; shifting by s drops the whole turns and leaves the fraction
        let turn = (high.y << (32u - s)) | (high.x >> s);
        let finer = (high.x << (32u - s)) | (middle.x >> s);
        quarter = (turn + 0x20000000u) >> 30u;
        let beside = bitcast<i32>(turn - (quarter << 30u)); // the nearest quarter turn, in units of 2^-32 turns
        let size = float_of(u32(abs(beside)));
        rest = rounded(select(size, -size, beside < 0) + float_of(finer) * 0x1p-32f) * (6.283185307179586 * 0x1p-32f);
    }
    // |rest| ≤ π/4, where the series converges quickly
    let q = rounded(rest * rest);
    var cosine = 1.0 / 40320.0 - rounded(q * (1.0 / 3628800.0));
    cosine = -1.0 / 720.0 + rounded(q * cosine);
    cosine = 1.0 / 24.0 + rounded(q * cosine);
    cosine = -0.5 + rounded(q * cosine);
    cosine = 1.0 + rounded(q * cosine);
    var sine = -1.0 / 5040.0 + rounded(q * (1.0 / 362880.0));
    sine = 1.0 / 120.0 + rounded(q * sine);
    sine = -1.0 / 6.0 + rounded(q * sine);
    sine = rest * (1.0 + rounded(q * sine));
    var result = vec2<f32>(cosine, sine);
    if ((quarter & 1u) == 1u) { result = vec2<f32>(-sine, cosine); }
    if ((quarter & 2u) == 2u) { result = -result; }
    return vec2<f32>(result.x, select(result.y, -result.y, angle < 0.0));
}

@compute @workgroup_size(threads)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x >= pairs || at.y >= run.tokens) { return; }
    var along = run.records[at.y].position;
#if AXES == 2
    if (at.z == 0u) { along = run.records[at.y].id; }
#endif
    let turned = cosine_sine(f32(along) * frequencies[at.x]);
    let to = (at.y * ${AXES}u + at.z) * 2u * pairs + at.x;
    out[to]         = turned.x;
    out[to + pairs] = turned.y;
}
#else
#include "unit.wgsl"
#include "exact.wgsl"

override rows:           u32;
override table_rows:     u32 = 1u;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;

@group(0) @binding(0) var<storage, read_write> a:     array<unit>;
@group(0) @binding(1) var<storage, read_write> out:   array<unit>;
@group(0) @binding(2) var<storage, read>       run:   Run;
@group(0) @binding(3) var<storage, read_write> table: array<unit>;

@compute @workgroup_size(threads)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let token = at.y;
    let row = at.x / pairs;
    let j = at.x % pairs;
    if (row >= rows || token >= ${COUNT}) { return; }
    let source = a_offset + token * a_token_stride + row * a_row_stride + j;
    let to = (token * rows + row) * 2u * pairs + j;
    let angle = (token * table_rows + row % table_rows) * 2u * pairs + j;
    let cosine = table[angle];
#if BACK
    let sine = -table[angle + pairs];
#else
    let sine = table[angle + pairs];
#endif
    out[to]         = rounded_unit(a[source] * cosine) - rounded_unit(a[source + pairs] * sine);
    out[to + pairs] = rounded_unit(a[source + pairs] * cosine) + rounded_unit(a[source] * sine);
}
#endif
