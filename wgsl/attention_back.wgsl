// Gradients of attention over the tokens of each span, in tiles. Of query i and key j that it sees:
//
//   p = exp(q_i · k_j − logs_i)     e = p · (d_i · v_j − delta_i)
//
//   KIND queries  out_i = Σ_j e · k_j       a workgroup has 16 queries (attention_tile.wgsl) and goes through the keys they see
//                 dispatch (1, for each span its tokens · group / 16 rounded up, kv_heads), group = heads / kv_heads
//   KIND keys     out = Σ_i e · q_i for each key, then Σ_i p · d_i for its value: a workgroup has 16 tokens of a span, and goes through the
//                 queries that see them     dispatch (splits, for each span its tokens / 16 rounded up, kv_heads)
//                 A sequence has few such tiles, so splits divide the queries: each takes every splits-th tile of them, and writes its sums
//                 split_stride after those of the split before it; matmul_sum.wgsl adds them
//
//   queries, gradients  f32 [tokens, heads, head]     logs, delta  f32 [tokens, heads]     keys, values  see kv.wgsl
//   out                 f32 [tokens, heads, head], or [tokens, 2 · kv_heads, head]
//
// A workgroup's own rows are queries or keys, the others keys or queries, 32 at a time. Their products are computed from chunks of 8 quads
// in workgroup memory: a thread has 4 own rows and one other. Then a thread has 4 own rows and every 32nd quad of the results (STEPS of them).

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override q_offset: u32 = 0u;
override d_offset: u32 = 0u;
override splits:   u32 = 1u;
override split_stride: u32 = 0u;

override quads: u32 = (head + 3u) / 4u;
const threads = 128u;
const batch = 16u; // own rows
const tile = 32u;  // others
const chunk = 8u;  // quads

#include "kv.wgsl"
@group(0) @binding(0) var<storage, read_write> queries:   array<q_unit>;
@group(0) @binding(1) var<storage, read_write> out:       array<f32>;
@group(0) @binding(2) var<storage, read>       run:       Run;
@group(0) @binding(3) var<storage, read>       keys:      array<kv_unit>;
@group(0) @binding(4) var<storage, read>       values:    array<kv_unit>;
@group(0) @binding(5) var<storage, read_write> gradients: array<q_unit>;
@group(0) @binding(6) var<storage, read_write> logs:      array<f32>;
@group(0) @binding(7) var<storage, read_write> delta:     array<f32>;

#if QUADS
alias q_unit = vec4<f32>;
fn query_quad(at: u32, quad: u32) -> vec4<f32> { return queries[q_offset / 4u + at * quads + quad]; }
fn gradient_quad(at: u32, quad: u32) -> vec4<f32> { return gradients[d_offset / 4u + at * quads + quad]; }
#else
alias q_unit = f32;
fn query_quad(at: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { four[i] = queries[q_offset + at * head + 4u * quad + i]; }
    return four;
}
fn gradient_quad(at: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { four[i] = gradients[d_offset + at * head + 4u * quad + i]; }
    return four;
}
#endif

// A row of a tile: of a query, token · heads + head and its token; of a key, its slot and its index. `nowhere`: there is none.
var<workgroup> own_at:     array<u32, batch>;
var<workgroup> own_row:    array<u32, batch>;
var<workgroup> other_at:   array<u32, tile>;
var<workgroup> other_row:  array<u32, tile>;
var<workgroup> own_tile:   array<vec4<f32>, batch * chunk>;         // [row, quad]
var<workgroup> other_tile: array<vec4<f32>, tile * (chunk + 1u)>;
var<workgroup> p_tile:     array<vec4<f32>, tile * batch / 4u>;     // [other, four own rows]
var<workgroup> e_tile:     array<vec4<f32>, tile * batch / 4u>;

fn quad_of_query(at: u32, quad: u32, second: bool) -> vec4<f32> {
    if (at == nowhere || quad >= quads) { return vec4<f32>(); }
    if (second) { return gradient_quad(at, quad); }
    return query_quad(at, quad);
}

fn quad_of_key(slot: u32, kv_head: u32, quad: u32, second: bool) -> vec4<f32> {
    if (slot == nowhere || quad >= quads) { return vec4<f32>(); }
    if (second) { return value_quad(slot_row(slot, kv_head), quad); }
    return key_quad(slot_row(slot, kv_head), quad);
}

// The products of a thread's other row, thread % 32, with its four own ones: of queries and keys, or (second) of gradients and values.
fn products(kv_head: u32, second: bool, thread: u32) -> vec4<f32> {
    var sums = vec4<f32>();
    for (var first = 0u; first < quads; first += chunk) {
        workgroupBarrier();
        for (var i = thread; i < batch * chunk; i += threads) {
#if KIND == queries
            own_tile[i] = quad_of_query(own_at[i / chunk], first + i % chunk, second);
#else
            own_tile[i] = quad_of_key(own_at[i / chunk], kv_head, first + i % chunk, second);
#endif
        }
        for (var i = thread; i < tile * chunk; i += threads) {
#if KIND == queries
            let four = quad_of_key(other_at[i / chunk], kv_head, first + i % chunk, second);
#else
            let four = quad_of_query(other_at[i / chunk], first + i % chunk, second);
#endif
            other_tile[i / chunk * (chunk + 1u) + i % chunk] = four;
        }
        workgroupBarrier();
        for (var i = 0u; i < chunk; i++) {
            let x = other_tile[thread % tile * (chunk + 1u) + i];
            let row = thread / tile * 4u * chunk + i;
            sums += vec4<f32>(dot(x, own_tile[row]), dot(x, own_tile[row + chunk]), dot(x, own_tile[row + 2u * chunk]),
                              dot(x, own_tile[row + 3u * chunk]));
        }
    }
    return sums;
}

// Fills in p_tile and e_tile.
fn weigh(kv_head: u32, thread: u32) {
    let scores = products(kv_head, false, thread);
    let slopes = products(kv_head, true, thread);
    let other = thread % tile;
    var p_four = vec4<f32>();
    var e_four = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        let own = thread / tile * 4u + i;
#if KIND == queries
        let query = own_at[own];
        let row = own_row[own];
        let index = other_row[other];
        let there = query != nowhere && other_at[other] != nowhere;
#else
        let query = other_at[other];
        let row = other_row[other];
        let index = own_row[own];
        let there = query != nowhere && own_at[own] != nowhere;
#endif
        if (there && index >= first_seen(row) && index <= last_seen(row)) {
            let p = exp(scores[i] - logs[query]);
            p_four[i] = p;
            e_four[i] = p * (slopes[i] - delta[query]);
        }
    }
    p_tile[other * (batch / 4u) + thread / tile] = p_four;
    e_tile[other * (batch / 4u) + thread / tile] = e_four;
    workgroupBarrier();
}

// A quad times each of four weights: what four rows get of it.
fn outer(weights: vec4<f32>, four: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(weights.x * four, weights.y * four, weights.z * four, weights.w * four);
}

var<private> first_out: u32; // of the split

fn write_quad(at: u32, quad: u32, four: vec4<f32>) {
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { out[first_out + at * head + 4u * quad + i] = four[i]; }
}

#if KIND == queries
#include "attention_tile.wgsl"

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let kv_head = workgroup.z;
    let mine = queries_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let slots = slots_of(mine.row);
    let begin = first_seen(query_row(mine, 0u));
    let end = last_seen(query_row(mine, batch - 1u)) + 1u;
    if (thread < batch) {
        own_at[thread] = select(nowhere, query_at(mine, thread, kv_head), has_query(mine, thread));
        own_row[thread] = query_row(mine, thread);
    }
    // a matrix for each of a thread's quads, a column for each of its rows; named, so that the compiler keeps them in registers
    var s0 = mat4x4<f32>();
#if STEPS == 1
#else
    var s1 = mat4x4<f32>();
#if STEPS == 2
#else
    var s2 = mat4x4<f32>();
    var s3 = mat4x4<f32>();
#endif
#endif
    let quad = thread % 32u;
    for (var index = begin; index < end; index += tile) {
        workgroupBarrier();
        if (thread < tile) {
            other_at[thread] = select(nowhere, slot_after(slots, slot_place(slots, index), thread), index + thread < end);
            other_row[thread] = index + thread;
        }
        weigh(kv_head, thread);
        for (var j = 0u; j < tile; j++) {
            let e = e_tile[j * (batch / 4u) + thread / 32u];
            let slot = other_at[j];
            s0 += outer(e, quad_of_key(slot, kv_head, quad, false));
#if STEPS == 1
#else
            s1 += outer(e, quad_of_key(slot, kv_head, quad + 32u, false));
#if STEPS == 2
#else
            s2 += outer(e, quad_of_key(slot, kv_head, quad + 64u, false));
            s3 += outer(e, quad_of_key(slot, kv_head, quad + 96u, false));
#endif
#endif
        }
    }
    write_rows(thread, quad, s0);
#if STEPS == 1
#else
    write_rows(thread, quad + 32u, s1);
#if STEPS == 2
#else
    write_rows(thread, quad + 64u, s2);
    write_rows(thread, quad + 96u, s3);
#endif
#endif
}

fn write_rows(thread: u32, quad: u32, four: mat4x4<f32>) {
    let own = thread / 32u * 4u;
    if (own_at[own] != nowhere) { write_quad(own_at[own], quad, four[0]); }
    if (own_at[own + 1u] != nowhere) { write_quad(own_at[own + 1u], quad, four[1]); }
    if (own_at[own + 2u] != nowhere) { write_quad(own_at[own + 2u], quad, four[2]); }
    if (own_at[own + 3u] != nowhere) { write_quad(own_at[own + 3u], quad, four[3]); }
}
#else
struct Tokens { span: u32, tokens: u32, first: u32 } // the first row of the span, its tokens (0: there are none), the tile's first

// Tiles are counted span by span; the host dispatches as many as there are.
fn tokens_of(number: u32) -> Tokens {
    var left = number;
    var row = 0u;
    while (row < run.tokens) {
        let tokens = run.records[row].span_count;
        let tiles = (tokens + batch - 1u) / batch;
        if (left < tiles) { return Tokens(row, tokens, left * batch); }
        left -= tiles;
        row += max(tokens, 1u);
    }
    return Tokens(0u, 0u, 0u);
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let kv_head = workgroup.z;
    let group = heads / kv_heads;
    let mine = tokens_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let count = min(batch, mine.tokens - mine.first);
    if (thread < batch) {
        let row = mine.span + mine.first + min(thread, count - 1u);
        let stored = thread < count && run.records[row].at != nowhere;
        own_at[thread] = select(nowhere, own_slot(row), stored);
        own_row[thread] = run.records[row].at;
    }
    var least = nowhere;
    var most = 0u;
    for (var i = 0u; i < count; i++) {
        let at = run.records[mine.span + mine.first + i].at;
        least = min(least, at);
        if (at != nowhere) { most = max(most, at); }
    }
    // of keys and of values, as above
    var k0 = mat4x4<f32>();
    var v0 = mat4x4<f32>();
#if STEPS == 1
#else
    var k1 = mat4x4<f32>();
    var v1 = mat4x4<f32>();
#if STEPS == 2
#else
    var k2 = mat4x4<f32>();
    var v2 = mat4x4<f32>();
    var k3 = mat4x4<f32>();
    var v3 = mat4x4<f32>();
#endif
#endif
    let quad = thread % 32u;
    let pairs = mine.tokens * group;
    for (var pair = tile * workgroup.x; pair < pairs; pair += tile * splits) {
        if (last_seen(mine.span + min(pair + tile - 1u, pairs - 1u) / group) < least) { continue; }
        if (first_seen(mine.span + pair / group) > most) { break; }
        workgroupBarrier();
        if (thread < tile) {
            let token = mine.span + min(pair + thread, pairs - 1u) / group;
            other_at[thread] = select(nowhere, token * heads + kv_head * group + (pair + thread) % group, pair + thread < pairs);
            other_row[thread] = token;
        }
        weigh(kv_head, thread);
        for (var j = 0u; j < tile; j++) {
            let e = e_tile[j * (batch / 4u) + thread / 32u];
            let p = p_tile[j * (batch / 4u) + thread / 32u];
            let at = other_at[j];
            k0 += outer(e, quad_of_query(at, quad, false));
            v0 += outer(p, quad_of_query(at, quad, true));
#if STEPS == 1
#else
            k1 += outer(e, quad_of_query(at, quad + 32u, false));
            v1 += outer(p, quad_of_query(at, quad + 32u, true));
#if STEPS == 2
#else
            k2 += outer(e, quad_of_query(at, quad + 64u, false));
            v2 += outer(p, quad_of_query(at, quad + 64u, true));
            k3 += outer(e, quad_of_query(at, quad + 96u, false));
            v3 += outer(p, quad_of_query(at, quad + 96u, true));
#endif
#endif
        }
    }
    first_out = workgroup.x * split_stride;
    let first = mine.span + mine.first;
    write_tokens(thread, quad, first, count, kv_head, k0);
    write_tokens(thread, quad, first, count, kv_heads + kv_head, v0);
#if STEPS == 1
#else
    write_tokens(thread, quad + 32u, first, count, kv_head, k1);
    write_tokens(thread, quad + 32u, first, count, kv_heads + kv_head, v1);
#if STEPS == 2
#else
    write_tokens(thread, quad + 64u, first, count, kv_head, k2);
    write_tokens(thread, quad + 64u, first, count, kv_heads + kv_head, v2);
    write_tokens(thread, quad + 96u, first, count, kv_head, k3);
    write_tokens(thread, quad + 96u, first, count, kv_heads + kv_head, v3);
#endif
#endif
}

// Row `row` of the thread's tokens; `count` of the tile's 16 are there.
fn write_tokens(thread: u32, quad: u32, first: u32, count: u32, row: u32, four: mat4x4<f32>) {
    let own = thread / 32u * 4u;
    if (own < count) { write_quad((first + own) * 2u * kv_heads + row, quad, four[0]); }
    if (own + 1u < count) { write_quad((first + own + 1u) * 2u * kv_heads + row, quad, four[1]); }
    if (own + 2u < count) { write_quad((first + own + 2u) * 2u * kv_heads + row, quad, four[2]); }
    if (own + 3u < count) { write_quad((first + own + 3u) * 2u * kv_heads + row, quad, four[3]); }
}
#endif
