enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);

// Attention for thousands of tokens with small heads, as towers have: like attention_matrix.wgsl, but a subgroup has a band of 16 queries
// to itself. Bindings, results and dispatch are the same.
//
// The band's queries stay in registers as matrices, and so do its results. A tile of 64 keys and values goes through workgroup memory
// once for all bands. Nobody but the band's own subgroup needs its scores, so a maximum takes no barrier, only a shuffle; the barriers
// that remain make workgroup memory visible, because WGSL has none for a subgroup.
//
// Matrices are 16 × 16, subgroups have 32 threads. head is a multiple of 8 and at most 64, with FIVE 80; zeros fill it up. Matrices
// have names, because some compilers do not keep arrays of them in registers.
//
// As in attention_matrix.wgsl, weights are relative to an older maximum until one rises by more than 8. Then all results go through
// workgroup memory once.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override splits:   u32;
override q_offset: u32;

override quads: u32 = head / 4u;
const threads = 2u * batch; // subgroups of 32, bands of 16
const tile_keys = 64u;
const lowest = -3.0e38;
const rise = 8.0;

#include "kv.wgsl"
#include "attention_split.wgsl"
#include "attention_query.wgsl"
#if FINAL
#include "attention_out.wgsl"
#else
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
#endif
@group(0) @binding(2) var<storage, read> run:    Run;
@group(0) @binding(3) var<storage, read> keys:   array<kv_unit>;
@group(0) @binding(4) var<storage, read> values: array<kv_unit>;

// ---- workgroup memory, in units of 16 bytes ----

#if FIVE
const eights = 10u; // of a row of queries, keys or values
#else
const eights = 8u;
#endif
const stride = eights + 1u;               // one unit more than needed: rows accessed at the same time lie in different banks
const score_stride = tile_keys / 4u + 1u; // of a query's scores
const second = batch * score_stride;      // where values begin

// Queries, once; then for each tile keys, whose place the scores take, and values. Weights take the place of the scores that they are
// made of: eight weights that of the first two of four fours. So results find room between them (`spare`).
var<workgroup> tile:   array<vec4<u32>, second + tile_keys * stride>;
var<workgroup> shrink: array<f32, batch>; // the factor for a query's results
var<workgroup> rises:  atomic<u32>;       // the last tile, counted from 1, in which a maximum rose

// ---- loading ----

// Where a tile's keys begin, and how many follow the first.
struct Source { slots: Slots, place: u32, last: u32, kv_head: u32 }

// The row of the i-th key of a tile, or of its last.
fn row_behind(s: Source, i: u32) -> vec2<u32> { return slot_row(slot_after(s.slots, s.place, min(i, s.last)), s.kv_head); }

fn halves(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}

fn eight_of(a: kv_quad, b: kv_quad) -> vec4<u32> {
#if KV_TYPE == f16
    return vec4<u32>(a, b);
#else
    return halves(four_of(a), four_of(b));
#endif
}

fn keep_queries(mine: Queries, kv_head: u32, thread: u32) {
    for (var item = thread; item < batch * eights; item += threads) {
        let eight = item % eights;
        var words = vec4<u32>();
        if (8u * eight < head) {
            let row = query_at(mine, item / eights, kv_head);
            words = halves(query_quad(row, 2u * eight), query_quad(row, 2u * eight + 1u));
        }
        tile[item / eights * stride + eight] = words;
    }
}

const slots_each = (tile_keys * eights + threads - 1u) / threads; // eights that a thread loads, of keys and of values
alias Loaded = array<vec4<u32>, slots_each>;
struct Both { k: Loaded, v: Loaded }

fn fetch(s: Source, thread: u32) -> Both {
    var next = Both();
    for (var i = 0u; i < slots_each; i++) {
        let item = thread + i * threads;
        let eight = item % eights;
        if (8u * eight < head && item < tile_keys * eights) {
            let row = row_behind(s, item / eights);
            next.k[i] = eight_of(key_words(row, 2u * eight), key_words(row, 2u * eight + 1u));
            next.v[i] = eight_of(value_words(row, 2u * eight), value_words(row, 2u * eight + 1u));
        }
    }
    return next;
}

fn keep(next: Both, thread: u32) {
    for (var i = 0u; i < slots_each; i++) {
        let item = thread + i * threads;
        if (item >= tile_keys * eights) { break; }
        let to = item / eights * stride + item % eights;
        tile[to] = next.k[i];
        tile[second + to] = next.v[i];
    }
}

// ---- matrices ----

alias Left   = subgroup_matrix_left<f16, 16, 16>;
alias Right  = subgroup_matrix_right<f16, 16, 16>;
alias Result = subgroup_matrix_result<f32, 16, 16>;

// A matrix of results lies in units 4 to 7 of the band's rows, in four units of each, between the weights.
const spare = 4u;

fn scale_results(own: u32, band: u32, lane: u32) {
    for (var j = lane; j < 64u; j += 32u) {
        let at = own + spare + j / 4u * score_stride + j % 4u;
        tile[at] = bitcast<vec4<u32>>(bitcast<vec4<f32>>(tile[at]) * shrink[band * 16u + j / 4u]);
    }
}

// ---- results ----

// Writes a matrix of results, the `column`-th of the band. shrink has the sums of the weights.
fn put_results(mine: Queries, band: u32, column: u32, own: u32, lane: u32, split: u32, kv_head: u32) {
    for (var j = lane; j < 64u; j += 32u) {
        let query = band * 16u + j / 4u;
        let quad = column * 4u + j % 4u;
        if (quad >= quads || !has_query(mine, query)) { continue; }
        let row = query_at(mine, query, kv_head);
        let four = bitcast<vec4<f32>>(tile[own + spare + j / 4u * score_stride + j % 4u]);
#if FINAL
        write_quad(row, quad, four / shrink[query]);
#else
        out[(row * splits + split) * (quads + 1u) + quad] = four;
#endif
    }
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
    let split = workgroup.x;
    let kv_head = workgroup.z;
    let mine = queries_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let slots = slots_of(mine.row);
    let seen = keys_of(mine);
    if (split * seen.share >= seen.count) { return; }
    let begin = seen.first + split * seen.share;
    let end = min(begin + seen.share, seen.first + seen.count);

    // softmax: two lanes share a query, each with 32 keys of a tile
    const fours = 8u;
    let my_query = subgroup * 16u + lane % 16u;
    let part = lane / 16u;
    let my_first = first_seen(query_row(mine, my_query));
    let my_last = last_seen(query_row(mine, my_query));
    let my_row = my_query * score_stride + part * fours;
    let own = subgroup * 16u * score_stride;
    var my_highest = lowest; // what the weights are relative to
    var my_sum = 0.0;

    keep_queries(mine, kv_head, thread);
    if (thread == 0u) { atomicStore(&rises, 0u); }
    workgroupBarrier();
    let q_at = subgroup * 16u * stride;
    let q0 = subgroupMatrixLoad<Left, row_major>(&tile, q_at, stride);
    let q1 = subgroupMatrixLoad<Left, row_major>(&tile, q_at + 2u, stride);
    let q2 = subgroupMatrixLoad<Left, row_major>(&tile, q_at + 4u, stride);
    let q3 = subgroupMatrixLoad<Left, row_major>(&tile, q_at + 6u, stride);
#if FIVE
    let q4 = subgroupMatrixLoad<Left, row_major>(&tile, q_at + 8u, stride);
#endif
    var r0 = Result();
    var r1 = Result();
    var r2 = Result();
    var r3 = Result();
#if FIVE
    var r4 = Result();
#endif

    var next = fetch(Source(slots, slot_place(slots, begin), end - 1u - begin, kv_head), thread);
    for (var at = begin; at < end; at += tile_keys) {
        workgroupBarrier(); // nobody reads the last tile any more
        keep(next, thread);
        workgroupBarrier();
        let after = min(at + tile_keys, end - 1u);
        next = fetch(Source(slots, slot_place(slots, after), end - 1u - after, kv_head), thread);

        var s0 = Result(); // a plain declaration keeps the last tile's in some compilers
        var s1 = Result();
        var s2 = Result();
        var s3 = Result();
        s0 = subgroupMatrixMultiplyAccumulate(q0, subgroupMatrixLoad<Right, col_major>(&tile, 0u, stride), s0);
        s1 = subgroupMatrixMultiplyAccumulate(q0, subgroupMatrixLoad<Right, col_major>(&tile, 16u * stride, stride), s1);
        s2 = subgroupMatrixMultiplyAccumulate(q0, subgroupMatrixLoad<Right, col_major>(&tile, 32u * stride, stride), s2);
        s3 = subgroupMatrixMultiplyAccumulate(q0, subgroupMatrixLoad<Right, col_major>(&tile, 48u * stride, stride), s3);
        s0 = subgroupMatrixMultiplyAccumulate(q1, subgroupMatrixLoad<Right, col_major>(&tile, 2u, stride), s0);
        s1 = subgroupMatrixMultiplyAccumulate(q1, subgroupMatrixLoad<Right, col_major>(&tile, 16u * stride + 2u, stride), s1);
        s2 = subgroupMatrixMultiplyAccumulate(q1, subgroupMatrixLoad<Right, col_major>(&tile, 32u * stride + 2u, stride), s2);
        s3 = subgroupMatrixMultiplyAccumulate(q1, subgroupMatrixLoad<Right, col_major>(&tile, 48u * stride + 2u, stride), s3);
        s0 = subgroupMatrixMultiplyAccumulate(q2, subgroupMatrixLoad<Right, col_major>(&tile, 4u, stride), s0);
        s1 = subgroupMatrixMultiplyAccumulate(q2, subgroupMatrixLoad<Right, col_major>(&tile, 16u * stride + 4u, stride), s1);
        s2 = subgroupMatrixMultiplyAccumulate(q2, subgroupMatrixLoad<Right, col_major>(&tile, 32u * stride + 4u, stride), s2);
        s3 = subgroupMatrixMultiplyAccumulate(q2, subgroupMatrixLoad<Right, col_major>(&tile, 48u * stride + 4u, stride), s3);
        s0 = subgroupMatrixMultiplyAccumulate(q3, subgroupMatrixLoad<Right, col_major>(&tile, 6u, stride), s0);
        s1 = subgroupMatrixMultiplyAccumulate(q3, subgroupMatrixLoad<Right, col_major>(&tile, 16u * stride + 6u, stride), s1);
        s2 = subgroupMatrixMultiplyAccumulate(q3, subgroupMatrixLoad<Right, col_major>(&tile, 32u * stride + 6u, stride), s2);
        s3 = subgroupMatrixMultiplyAccumulate(q3, subgroupMatrixLoad<Right, col_major>(&tile, 48u * stride + 6u, stride), s3);
#if FIVE
        s0 = subgroupMatrixMultiplyAccumulate(q4, subgroupMatrixLoad<Right, col_major>(&tile, 8u, stride), s0);
        s1 = subgroupMatrixMultiplyAccumulate(q4, subgroupMatrixLoad<Right, col_major>(&tile, 16u * stride + 8u, stride), s1);
        s2 = subgroupMatrixMultiplyAccumulate(q4, subgroupMatrixLoad<Right, col_major>(&tile, 32u * stride + 8u, stride), s2);
        s3 = subgroupMatrixMultiplyAccumulate(q4, subgroupMatrixLoad<Right, col_major>(&tile, 48u * stride + 8u, stride), s3);
#endif
        workgroupBarrier(); // nobody reads the keys any more
        subgroupMatrixStore<row_major>(&tile, own, s0, score_stride);
        subgroupMatrixStore<row_major>(&tile, own + 4u, s1, score_stride);
        subgroupMatrixStore<row_major>(&tile, own + 8u, s2, score_stride);
        subgroupMatrixStore<row_major>(&tile, own + 12u, s3, score_stride);
        workgroupBarrier();

        var s: array<vec4<f32>, fours>;
        var most = my_highest;
        for (var i = 0u; i < fours; i++) { s[i] = bitcast<vec4<f32>>(tile[my_row + i]); }
        if (at < my_first || at + tile_keys - 1u > my_last) {
            for (var i = 0u; i < fours; i++) {
                let j = at + 4u * (part * fours + i) + vec4<u32>(0u, 1u, 2u, 3u);
                s[i] = select(s[i], vec4<f32>(lowest), (j < vec4<u32>(my_first)) | (j > vec4<u32>(my_last)));
            }
        }
        for (var i = 0u; i < fours; i++) { most = max(most, max(max(s[i].x, s[i].y), max(s[i].z, s[i].w))); }
        most = max(most, subgroupShuffleXor(most, 16u));
        let number = (at - begin) / tile_keys + 1u;
        var fall = 1.0;
        if (most > my_highest + rise) {
            fall = exp(my_highest - most);
            my_highest = most;
            atomicMax(&rises, number);
        }
        my_sum *= fall;
        if (part == 0u) { shrink[my_query] = fall; }
        let base = max(my_highest, -1.0e38); // while a query has seen no key: weights are 0 then, too
        for (var i = 0u; i < fours; i += 2u) {
            let a = exp(s[i] - base);
            let b = exp(s[i + 1u] - base);
            tile[my_row + i / 2u] = halves(a, b);
            my_sum += dot(a + b, vec4<f32>(1.0));
        }
        if (workgroupUniformLoad(&rises) == number && at > begin) { // multiplies each row of the results by its query's factor
            subgroupMatrixStore<row_major>(&tile, own + spare, r0, score_stride);
            workgroupBarrier();
            scale_results(own, subgroup, lane);
            workgroupBarrier();
            r0 = subgroupMatrixLoad<Result, row_major>(&tile, own + spare, score_stride);
            workgroupBarrier();
            subgroupMatrixStore<row_major>(&tile, own + spare, r1, score_stride);
            workgroupBarrier();
            scale_results(own, subgroup, lane);
            workgroupBarrier();
            r1 = subgroupMatrixLoad<Result, row_major>(&tile, own + spare, score_stride);
            workgroupBarrier();
            subgroupMatrixStore<row_major>(&tile, own + spare, r2, score_stride);
            workgroupBarrier();
            scale_results(own, subgroup, lane);
            workgroupBarrier();
            r2 = subgroupMatrixLoad<Result, row_major>(&tile, own + spare, score_stride);
            workgroupBarrier();
            subgroupMatrixStore<row_major>(&tile, own + spare, r3, score_stride);
            workgroupBarrier();
            scale_results(own, subgroup, lane);
            workgroupBarrier();
            r3 = subgroupMatrixLoad<Result, row_major>(&tile, own + spare, score_stride);
#if FIVE
            workgroupBarrier();
            subgroupMatrixStore<row_major>(&tile, own + spare, r4, score_stride);
            workgroupBarrier();
            scale_results(own, subgroup, lane);
            workgroupBarrier();
            r4 = subgroupMatrixLoad<Result, row_major>(&tile, own + spare, score_stride);
#endif
        }

        for (var k = 0u; k < 4u; k++) { // 16 keys each; past the last key, weights are 0
            let weights = subgroupMatrixLoad<Left, row_major>(&tile, own + k / 2u * fours + k % 2u * 2u, score_stride);
            let v_at = second + k * 16u * stride;
            r0 = subgroupMatrixMultiplyAccumulate(weights, subgroupMatrixLoad<Right, row_major>(&tile, v_at, stride), r0);
            r1 = subgroupMatrixMultiplyAccumulate(weights, subgroupMatrixLoad<Right, row_major>(&tile, v_at + 2u, stride), r1);
            r2 = subgroupMatrixMultiplyAccumulate(weights, subgroupMatrixLoad<Right, row_major>(&tile, v_at + 4u, stride), r2);
            r3 = subgroupMatrixMultiplyAccumulate(weights, subgroupMatrixLoad<Right, row_major>(&tile, v_at + 6u, stride), r3);
#if FIVE
            r4 = subgroupMatrixMultiplyAccumulate(weights, subgroupMatrixLoad<Right, row_major>(&tile, v_at + 8u, stride), r4);
#endif
        }
    }

    my_sum += subgroupShuffleXor(my_sum, 16u);
    workgroupBarrier();
    if (part == 0u) {
        shrink[my_query] = my_sum;
#if FINAL
#else
        if (has_query(mine, my_query)) {
            let row = query_at(mine, my_query, kv_head);
            out[(row * splits + split) * (quads + 1u) + quads] = vec4<f32>(my_highest, my_sum, 0.0, 0.0);
        }
#endif
    }
    subgroupMatrixStore<row_major>(&tile, own + spare, r0, score_stride);
    workgroupBarrier();
    put_results(mine, subgroup, 0u, own, lane, split, kv_head);
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&tile, own + spare, r1, score_stride);
    workgroupBarrier();
    put_results(mine, subgroup, 1u, own, lane, split, kv_head);
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&tile, own + spare, r2, score_stride);
    workgroupBarrier();
    put_results(mine, subgroup, 2u, own, lane, split, kv_head);
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&tile, own + spare, r3, score_stride);
    workgroupBarrier();
    put_results(mine, subgroup, 3u, own, lane, split, kv_head);
#if FIVE
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&tile, own + spare, r4, score_stride);
    workgroupBarrier();
    put_results(mine, subgroup, 4u, own, lane, split, kv_head);
#endif
}
