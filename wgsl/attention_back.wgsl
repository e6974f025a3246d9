// Gradients of attention over the tokens of each span, in tiles. Of query i and key j that it sees:
//
//   p = exp(q_i · k_j − logs_i)     e = p · (d_i · v_j − delta_i)
//
//   KIND queries  out_i = Σ_j e · k_j       a workgroup has 16 queries (attention_tile.wgsl) and goes through the keys they see
//                 dispatch (1, for each span its tokens · group / 16 rounded up, kv_heads), group = heads / kv_heads
//   KIND keys     out = Σ_i e · q_i for each key, then Σ_i p · d_i for its value: a workgroup has 16 tokens of a span, and goes through the
//                 queries that see them     dispatch (1, for each span its tokens / 16 rounded up, kv_heads)
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

override quads: u32 = (head + 3u) / 4u;
const steps = ${STEPS}u;
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
var<workgroup> p_tile:     array<f32, tile * batch>;                // [other, own]
var<workgroup> e_tile:     array<f32, tile * batch>;

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
        var p = 0.0;
        var e = 0.0;
        if (there && index >= first_seen(row) && index <= last_seen(row)) {
            p = exp(scores[i] - logs[query]);
            e = p * (slopes[i] - delta[query]);
        }
        p_tile[other * batch + own] = p;
        e_tile[other * batch + own] = e;
    }
    workgroupBarrier();
}

fn write_quad(at: u32, quad: u32, four: vec4<f32>) {
    for (var i = 0u; i < 4u && 4u * quad + i < head; i++) { out[at * head + 4u * quad + i] = four[i]; }
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
    var sums: array<array<vec4<f32>, ${STEPS}>, 4>;
    for (var index = begin; index < end; index += tile) {
        workgroupBarrier();
        if (thread < tile) {
            other_at[thread] = select(nowhere, slot_after(slots, slot_place(slots, index), thread), index + thread < end);
            other_row[thread] = index + thread;
        }
        weigh(kv_head, thread);
        for (var j = 0u; j < tile; j++) {
            for (var s = 0u; s < steps; s++) {
                let four = quad_of_key(other_at[j], kv_head, thread % 32u + 32u * s, false);
                for (var i = 0u; i < 4u; i++) { sums[i][s] += e_tile[j * batch + thread / 32u * 4u + i] * four; }
            }
        }
    }
    for (var i = 0u; i < 4u; i++) {
        let at = own_at[thread / 32u * 4u + i];
        if (at == nowhere) { continue; }
        for (var s = 0u; s < steps; s++) { write_quad(at, thread % 32u + 32u * s, sums[i][s]); }
    }
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
    var of_keys: array<array<vec4<f32>, ${STEPS}>, 4>;
    var of_values: array<array<vec4<f32>, ${STEPS}>, 4>;
    let pairs = mine.tokens * group;
    for (var pair = 0u; pair < pairs; pair += tile) {
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
            for (var s = 0u; s < steps; s++) {
                let q = quad_of_query(other_at[j], thread % 32u + 32u * s, false);
                let d = quad_of_query(other_at[j], thread % 32u + 32u * s, true);
                for (var i = 0u; i < 4u; i++) {
                    of_keys[i][s]   += e_tile[j * batch + thread / 32u * 4u + i] * q;
                    of_values[i][s] += p_tile[j * batch + thread / 32u * 4u + i] * d;
                }
            }
        }
    }
    for (var i = 0u; i < 4u; i++) {
        let own = thread / 32u * 4u + i;
        if (own >= count) { continue; }
        let at = (mine.span + mine.first + own) * 2u * kv_heads + kv_head;
        for (var s = 0u; s < steps; s++) {
            write_quad(at, thread % 32u + 32u * s, of_keys[i][s]);
            write_quad(at + kv_heads, thread % 32u + 32u * s, of_values[i][s]);
        }
    }
}
#endif
