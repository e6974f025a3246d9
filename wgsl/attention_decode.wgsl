#if SUBGROUPS
enable subgroups;
#endif
// Attention for a few tokens (1 to 4, or up to 32 that continue a sequence each), with the keys split among several workgroups:
//
//   out[t, h] = Σ_j softmax_j(q[t, h] · k_j) v_j over the indices j that the token sees; the scale is 1
//
//   queries  f32 [tokens, heads, head] from q_offset on     keys, values  see kv.wgsl
//   out      with FINAL (splits is 1): f32 [tokens, heads, head]
//            otherwise vec4<f32> [tokens · heads, splits, head/4 rounded up + 1]: Σ e^(score − highest) v without the division,
//            then a quad (highest, Σ e^(score − highest), 0, 0), for attention_reduce.wgsl; splits without keys write nothing
//   dispatch (splits, for each span its tokens · group / QUERIES rounded up, kv_heads), group = heads / kv_heads
//
// ONE: the run has a single token. HEADS: this kernel also does the work of heads.wgsl (attention_heads.wgsl), for tokens that continue a
// sequence each.
//
// A workgroup handles QUERIES (1, 2, 4 or 8) pairs (token, head) of one K/V head, so that keys and values are read once for all of
// them, and one split of the keys (attention_split.wgsl), usually a single tile of 32. Most of the time goes into waiting for a
// tile to load, so we request the whole tile before using any of it, and the next tile before summing this one's values:
//   scores   32 lanes share four keys; each lane has STEPS quads of the head for all queries. The sums are folded within the
//            subgroup, so that each lane ends up with fewer queries
//   softmax  eight threads per query, four keys each, with a running maximum
//   values   a thread owns four of the head's values for all queries, and one of SHARES (2 or 4) shares of the keys; the threads
//            of one quad are adjacent and fold their sums in the same way
// That is two barriers per tile. If subgroups have fewer than 32 threads, or there are none, sums go through workgroup memory.
// We assume that the threads of a subgroup are consecutive.
//
// head ≤ 512, head · SHARES ≤ 1024, STEPS = head/128 rounded up; workgroup memory: 16 bytes per quad of every query, plus 7 KB.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override splits:   u32;
override q_offset: u32;

override quads: u32 = (head + 3u) / 4u;
const threads = 256u;
const lanes = 32u;              // per group of four keys
const groups = threads / lanes; // groups of lanes
const tile = 4u * groups;       // keys in a tile
const steps = ${STEPS}u;
const shares = ${SHARES}u;
const lowest = -3.0e38;

#include "kv.wgsl"
#include "attention_split.wgsl"
#include "attention_query.wgsl"
#if FINAL
#include "attention_out.wgsl"
#else
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
#endif
@group(0) @binding(2) var<storage, read> run:    Run;
#if STORE
@group(0) @binding(3) var<storage, read_write> keys:   array<kv_unit>;
@group(0) @binding(4) var<storage, read_write> values: array<kv_unit>;
#else
@group(0) @binding(3) var<storage, read> keys:   array<kv_unit>;
@group(0) @binding(4) var<storage, read> values: array<kv_unit>;
#endif

override query_quads: u32 = batch * quads;
var<workgroup> query:   array<vec4<f32>, query_quads>;
var<workgroup> staged:  array<vec4<f32>, threads>;
var<workgroup> score:   array<vec4<f32>, batch * groups>; // [query, four keys]
var<workgroup> weight:  array<vec4<f32>, batch * groups>; // e^(score − highest)
var<workgroup> sum_of:  array<f32, batch * groups>;       // sums of the weights so far
var<workgroup> shrink:  array<f32, batch>;                // the factor for a query's sums when its maximum rises
var<workgroup> highest: array<f32, batch>;

// ---- loading ----

struct Four { a: kv_quad, b: kv_quad, c: kv_quad, d: kv_quad } // one quad each of four keys or values

struct Source { slots: Slots, place: u32, last: u32, kv_head: u32 } // where a tile's keys begin, and how many follow the first

// The row of the i-th key of a tile, or of its last.
fn row_behind(s: Source, i: u32) -> vec2<u32> { return slot_row(slot_after(s.slots, s.place, min(i, s.last)), s.kv_head); }

fn four_keys(s: Source, i: u32, quad: u32) -> Four {
    return Four(key_words(row_behind(s, i), quad), key_words(row_behind(s, i + 1u), quad),
                key_words(row_behind(s, i + 2u), quad), key_words(row_behind(s, i + 3u), quad));
}

fn four_values(s: Source, i: u32, quad: u32) -> Four {
    return Four(value_words(row_behind(s, i), quad), value_words(row_behind(s, i + 1u), quad),
                value_words(row_behind(s, i + 2u), quad), value_words(row_behind(s, i + 3u), quad));
}

// What a thread loads of a tile: quad lane + 32 i of its group's four keys, in k_i; and its quad of the values of its share, which is
// four keys in every 4 · shares. These are named fields, not an array, so that the compiler can keep them in registers.
struct Tile { k0: Four, k1: Four, k2: Four, k3: Four, v0: Four, v1: Four, v2: Four, v3: Four }

fn fetch(slots: Slots, at: u32, end: u32, kv_head: u32, thread: u32) -> Tile {
    var t: Tile;
    if (at >= end) { return t; }
    let last = end - at - 1u;
    let s = Source(slots, slot_place(slots, at), last, kv_head);
    let key = 4u * (thread / lanes);
    let lane = thread % lanes;
    if (key <= last) {
        t.k0 = four_keys(s, key, min(lane, quads - 1u));
        if (steps > 1u) { t.k1 = four_keys(s, key, min(lane + 32u, quads - 1u)); }
        if (steps > 2u) { t.k2 = four_keys(s, key, min(lane + 64u, quads - 1u)); }
        if (steps > 3u) { t.k3 = four_keys(s, key, min(lane + 96u, quads - 1u)); }
    }
    let value = 4u * (thread % shares);
    let quad = min(thread / shares, quads - 1u);
    t.v0 = four_values(s, value, quad);
    if (4u * shares <= last) { t.v1 = four_values(s, value + 4u * shares, quad); }
    if (shares == 2u && 8u * shares <= last) { t.v2 = four_values(s, value + 8u * shares, quad); }
    if (shares == 2u && 12u * shares <= last) { t.v3 = four_values(s, value + 12u * shares, quad); }
    return t;
}

// ---- sums over threads ----

// Sums over the 32 lanes; every lane gets the result.
fn lane_sums(value: vec4<f32>, thread: u32, subgroup: u32) -> vec4<f32> {
    var total = value;
    let width = min(lanes, subgroup);
#if SUBGROUPS
    for (var step = 1u; step < width; step *= 2u) { total += subgroupShuffleXor(total, step); }
#endif
    if (width < lanes) {
        staged[thread] = total;
        workgroupBarrier();
        total = vec4<f32>();
        for (var i = 0u; i < lanes; i += width) { total += staged[thread / lanes * lanes + (thread + i) % lanes]; }
        workgroupBarrier();
    }
    return total;
}

#if SUBGROUPS
// Two threads exchange sums: the one with this bit set ends up with the total of b, the other with the total of a.
fn fold(a: vec4<f32>, b: vec4<f32>, thread: u32, bit: u32) -> vec4<f32> {
    let second = (thread & bit) != 0u;
    return select(a, b, second) + subgroupShuffleXor(select(b, a, second), bit);
}
#endif

#if HEADS
#include "attention_heads.wgsl"
#endif

// ---- scores ----

alias Sums = array<vec4<f32>, batch>; // scores: a query's dot products with four keys; values: a quad of a query's result

// sum + w.x a + w.y b + w.z c + w.w d, in this order, so that each step is one instruction.
fn weighted(sum: vec4<f32>, w: vec4<f32>, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> vec4<f32> {
    return (((sum + w.x * a) + w.y * b) + w.z * c) + w.w * d;
}

fn add_scores(sums: ptr<function, Sums>, four: Four, quad: u32) {
    if (quad >= quads) { return; }
    let k = transpose(mat4x4<f32>(four_of(four.a), four_of(four.b), four_of(four.c), four_of(four.d)));
    for (var q = 0u; q < batch; q++) {
        let x = query[q * quads + quad];
        (*sums)[q] = weighted((*sums)[q], x, k[0], k[1], k[2], k[3]);
    }
}

#if ONE
// A single token sees all keys of its workgroup.
fn sees(q: u32, j: vec4<u32>) -> vec4<bool> { return vec4<bool>(true); }
#elif HEADS
fn sees(q: u32, j: vec4<u32>) -> vec4<bool> { return vec4<bool>(true); }
#else
var<workgroup> sight: array<vec2<u32>, batch>; // the first and the last index that each query sees
fn sees(q: u32, j: vec4<u32>) -> vec4<bool> { return (j >= vec4<u32>(sight[q].x)) & (j <= vec4<u32>(sight[q].y)); }
#endif

// Stores a query's scores with the four keys from `at` on. Keys that the query does not see get `lowest`.
fn put_scores(q: u32, four: vec4<f32>, at: u32, end: u32, group: u32) {
    let j = at + vec4<u32>(0u, 1u, 2u, 3u);
    score[q * groups + group] = select(vec4<f32>(lowest), four, (j < vec4<u32>(end)) & sees(q, j));
}

// ---- values ----

fn add_values(sums: ptr<function, Sums>, four: Four, keys_at: u32) {
    let a = four_of(four.a);
    let b = four_of(four.b);
    let c = four_of(four.c);
    let d = four_of(four.d);
    for (var q = 0u; q < batch; q++) {
        (*sums)[q] = weighted((*sums)[q], weight[q * groups + keys_at], a, b, c, d);
    }
}

// Writes one quad of a query's result.
fn put_values(q: u32, quad: u32, four: vec4<f32>, mine: Queries, split: u32, kv_head: u32) {
    if (quad >= quads || !has_query(mine, q)) { return; }
    let row = query_at(mine, q, kv_head);
    var sum = 0.0;
#if FINAL
    for (var i = 0u; i < groups; i++) { sum += sum_of[q * groups + i]; }
    write_quad(row, quad, four / sum);
#else
    let to = (row * splits + split) * (quads + 1u);
    out[to + quad] = four;
    if (quad == 0u) {
        for (var i = 0u; i < groups; i++) { sum += sum_of[q * groups + i]; }
        out[to + quads] = vec4<f32>(highest[q], sum, 0.0, 0.0);
    }
#endif
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
#if SUBGROUPS
        @builtin(subgroup_size) subgroup: u32,
#endif
        @builtin(local_invocation_index) thread: u32) {
#if SUBGROUPS
#else
    let subgroup = 1u;
#endif
    let split = workgroup.x;
    let kv_head = workgroup.z;
    let mine = queries_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let slots = slots_of(mine.row);
    let seen = keys_of(mine);
    if (split * seen.share >= seen.count) { return; }
    let begin = seen.first + split * seen.share;
    let end = min(begin + seen.share, seen.first + seen.count);
    let group = thread / lanes;
    let lane = thread % lanes;
    let share = thread % shares;

    var now = fetch(slots, begin, end, kv_head, thread);
#if STORE
    // The split with the token's own index stores its key and value; if the token does not see itself, the first or the last split does.
    let at_own = run.records[mine.row].at;
    let stores = at_own != nowhere && (at_own >= begin || split == 0u) && (at_own < end || end == seen.first + seen.count);
    make_queries(mine, kv_head, thread, subgroup, stores);
    if (stores && at_own - begin < tile) { now = fetch(slots, begin, end, kv_head, thread); } // only now is its own key in the cache
#elif HEADS
    make_queries(mine, kv_head, thread, subgroup, false);
#else
    for (var i = thread; i < batch * quads; i += threads) { query[i] = query_quad(query_at(mine, i / quads, kv_head), i % quads); }
#if ONE
#else
    if (thread < batch) { sight[thread] = vec2<u32>(first_seen(query_row(mine, thread)), last_seen(query_row(mine, thread))); }
#endif
    workgroupBarrier();
#endif

    var my_highest = lowest; // kept by each of a query's eight threads
    var my_sum = 0.0;
    var sums: Sums;          // sums of the values
    for (var q = 0u; q < batch; q++) { sums[q] = vec4<f32>(); }
    for (var at = begin; at < end; at += tile) {
        var dots: Sums;
        for (var q = 0u; q < batch; q++) { dots[q] = vec4<f32>(); }
        if (at + 4u * group < end) {
            add_scores(&dots, now.k0, lane);
            if (steps > 1u) { add_scores(&dots, now.k1, lane + 32u); }
            if (steps > 2u) { add_scores(&dots, now.k2, lane + 64u); }
            if (steps > 3u) { add_scores(&dots, now.k3, lane + 96u); }
        }
        let four_at = at + 4u * group;
#if SUBGROUPS
        if (subgroup >= lanes) {
            // bits 16, 8, 4 for eight queries; 8, 4 for four; 4 for two. Then lane / 4 is the query, summed over the rest
            for (var q = 0u; q < batch / 2u; q++) { dots[q] = fold(dots[q], dots[q + batch / 2u], thread, 2u * batch); }
            for (var q = 0u; q < batch / 4u; q++) { dots[q] = fold(dots[q], dots[q + batch / 4u], thread, batch); }
            for (var q = 0u; q < batch / 8u; q++) { dots[q] = fold(dots[q], dots[q + batch / 8u], thread, batch / 2u); }
            var four = dots[0];
            four += subgroupShuffleXor(four, 1u);
            four += subgroupShuffleXor(four, 2u);
            for (var step = 4u * batch; step < lanes; step *= 2u) { four += subgroupShuffleXor(four, step); }
            if (lane % 4u == 0u && lane / 4u < batch) { put_scores(lane / 4u, four, four_at, end, group); }
        } else
#endif
        {
            for (var q = 0u; q < batch; q++) {
                let four = lane_sums(dots[q], thread, subgroup);
                if (lane == 0u) { put_scores(q, four, four_at, end, group); }
            }
        }
        workgroupBarrier();

        if (thread < batch * groups) {
            let q = thread / groups;
            var four = vec4<f32>(my_highest);
            for (var i = 0u; i < groups; i++) { four = max(four, score[q * groups + i]); }
            let most = max(max(four.x, four.y), max(four.z, four.w));
            let fall = exp(my_highest - most);
            let s = score[thread];
            let w = select(exp(s - most), vec4<f32>(), s == vec4<f32>(lowest));
            my_sum = my_sum * fall + w.x + w.y + w.z + w.w;
            my_highest = most;
            weight[thread] = w;
            sum_of[thread] = my_sum;
            if (thread % groups == 0u) {
                shrink[q] = fall;
                highest[q] = most;
            }
        }
        workgroupBarrier();

        let next = fetch(slots, at + tile, end, kv_head, thread);
        if (at > begin) {
            for (var q = 0u; q < batch; q++) { sums[q] *= shrink[q]; }
        }
        add_values(&sums, now.v0, share);
        if (at + 4u * shares < end) { add_values(&sums, now.v1, shares + share); }
        if (shares == 2u && at + 8u * shares < end) { add_values(&sums, now.v2, 2u * shares + share); }
        if (shares == 2u && at + 12u * shares < end) { add_values(&sums, now.v3, 3u * shares + share); }
        now = next;
    }

    let quad = thread / shares;
#if SUBGROUPS
    for (var q = 0u; q < batch / 2u; q++) { sums[q] = fold(sums[q], sums[q + batch / 2u], thread, shares / 2u); }
    if (batch < 2u) { sums[0] += subgroupShuffleXor(sums[0], shares / 2u); }
    if (shares == 4u) {
        for (var q = 0u; q < batch / 4u; q++) { sums[q] = fold(sums[q], sums[q + batch / 4u], thread, 1u); }
        if (batch < 4u) { sums[0] += subgroupShuffleXor(sums[0], 1u); }
    }
    if (share * batch % shares == 0u) {
        for (var q = 0u; q < max(batch / shares, 1u); q++) {
            put_values(share * batch / shares + q, quad, sums[q], mine, split, kv_head);
        }
    }
#else
    for (var q = 0u; q < batch; q++) {
        staged[thread] = sums[q];
        workgroupBarrier();
        if (share == 0u) {
            var sum = vec4<f32>();
            for (var i = 0u; i < shares; i++) { sum += staged[thread + i]; }
            put_values(q, quad, sum, mine, split, kv_head);
        }
        workgroupBarrier();
    }
#endif
}
