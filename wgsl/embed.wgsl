// Embedding: y[t, i] = factor · table[id of t, i].
//
//   weights  one tile of the table: `rows` rows of k, starting with first_row (weights.wgsl)
//   y        f32, token t at y_offset + t · y_token_stride
//   run      the records have the ids, or with BY position the positions that stand for them; ids of other tiles are skipped, so one dispatch per tile fills every token. Ids from 2^31 on
//            have no row: with GIVEN the host has written y, otherwise row 0 is used
//   ids      with BY value, these are the ids
//   dispatch (4 · chunks of a row / 64, tokens), 8 values per thread

#include "weights.wgsl"

#include "run.wgsl"
#include "exact.wgsl"

override k:              u32;
override rows:           u32;
override first_row:      u32 = 0u;
override factor:         f32;
override y_offset:       u32 = 0u;
override y_token_stride: u32;

@group(0) @binding(0) var<storage, read>       weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read>       run: Run;
#if BY == value
@group(0) @binding(3) var<storage, read_write> ids: array<u32>;
#endif

fn store_quad(token: u32, quad: u32, four: vec4<f32>) {
    let v = rounded_four(four);
    let at = y_offset + token * y_token_stride + 4u * quad;
    for (var i = 0u; i < 4u; i++) {
        if (4u * quad + i < k) { y[at + i] = factor * v[i]; }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let chunks = (k + 31u) / 32u;
    let chunk  = id.x / 4u;
    let part   = id.x % 4u;
    let token  = id.y;
    if (chunk >= chunks || token >= run.tokens) { return; }
#if BY == value
    var token_id = ids[token];
#elif BY == position
    var token_id = run.records[token].position;
#else
    var token_id = run.records[token].id;
#endif
#if GIVEN
#else
    if (token_id >= 0x80000000u) { token_id = 0u; }
#endif
    let row = token_id - first_row; // wraps to a large number for smaller ids
    if (row >= rows) { return; }
    let two = pair_weights(row * chunks + chunk, part);
    store_quad(token, 8u * chunk + part, two.low);
    store_quad(token, 8u * chunk + part + 4u, two.high);
}
