enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);

// Attention for many tokens with subgroup matrices: products of f16, sums and softmax in f32.
//
//   out[t, h] = Σ_j softmax_j(q[t, h] · k_j) v_j over the indices j that the token sees; the scale is 1
//
//   queries  f32 [tokens, heads, head] from q_offset on     keys, values  see kv.wgsl; f16 or q8_0
//   out      with FINAL (splits is 1): f32 [tokens, heads, head]; otherwise partial sums, as attention_decode.wgsl writes them
//   dispatch (splits, for each span its tokens · group / QUERIES rounded up, kv_heads), group = heads / kv_heads
//
// A workgroup handles QUERIES pairs (token, head) of one K/V head and one split of the keys (attention_split.wgsl), of which it reads
// only those that one of its queries sees, 64 at a time. Its subgroups (all of SUBGROUP threads) work on matrices of MATRIX × MATRIX:
//   scores   SCORE_BLOCKS adjacent matrices each; CHUNK eights of the head at a time go through workgroup memory
//   softmax  by threads, on scores in workgroup memory, which the weights then replace as f16
//   values   ROW_BLOCKS × COLUMN_BLOCKS matrices of the result each, in COLUMN_GROUPS columns of subgroups; VALUE_KEYS keys at a time go
//            through workgroup memory, with zeros past the end of the head
// What the next step needs is requested before the products of this one.
//
// Nobody can tell which value of a matrix is where, so its rows cannot be multiplied by different factors in place. That is needed only
// when the maximum of a query rises. Weights are therefore relative to an older maximum until one rises by more than 8: e^8 is still
// small for an f16. Then all results go through workgroup memory once.
//
// head is a multiple of 8.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override splits:   u32;
override q_offset: u32;

override quads: u32 = head / 4u;
const threads = 256u;
const subgroups = threads / ${SUBGROUP}u;
const m = ${MATRIX}u;
const tile_keys = 64u;
const chunk = ${CHUNK}u;           // eights of the head per step of the scores
const value_keys = ${VALUE_KEYS}u; // per step of the values
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

// Rows have one unit more than needed, so that rows accessed at the same time lie in different banks.
const stride = chunk + 1u;                // of queries, keys and weights
const score_stride = tile_keys / 4u + 1u;
const eights = ${COLUMN_GROUPS}u * ${COLUMN_BLOCKS}u * m / 8u; // of a row of values
const value_stride = eights + 1u;
const block = m * m / 4u;                 // a matrix of f32
const second = batch * stride;            // where keys, values and results begin
const size = max(max(second + tile_keys * stride, batch * score_stride), second + max(value_keys * value_stride, subgroups * block));

// One after another: queries, then keys; scores; weights, then values or a matrix of results per subgroup.
var<workgroup> tile:    array<vec4<u32>, size>;
var<workgroup> part_of: array<f32, threads>; // a number of each thread of the softmax
var<workgroup> shrink:  array<f32, batch>;   // the factor for a query's sums; at the end, its maximum
var<workgroup> rises:   atomic<u32>;         // the last tile, counted from 1, in which a maximum rose
var<workgroup> rose:    u32;

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

const q_slots = batch * chunk / threads;     // eights that a thread loads
const k_slots = tile_keys * chunk / threads;
const v_slots = (value_keys * eights + threads - 1u) / threads;

struct Scored { q: array<vec4<u32>, q_slots>, k: array<vec4<u32>, k_slots> }
alias Valued = array<vec4<u32>, v_slots>;

// Loads `chunk` eights of the queries and keys, with zeros past the end of the head.
fn fetch_scores(s: Source, mine: Queries, first: u32, thread: u32) -> Scored {
    var next = Scored();
    for (var i = 0u; i < q_slots; i++) {
        let item = thread + i * threads;
        let eight = first + item % chunk;
        if (8u * eight < head) {
            let row = query_at(mine, item / chunk, s.kv_head);
            next.q[i] = halves(query_quad(row, 2u * eight), query_quad(row, 2u * eight + 1u));
        }
    }
    for (var i = 0u; i < k_slots; i++) {
        let item = thread + i * threads;
        let eight = first + item % chunk;
        if (8u * eight < head) {
            let row = row_behind(s, item / chunk);
            next.k[i] = eight_of(key_words(row, 2u * eight), key_words(row, 2u * eight + 1u));
        }
    }
    return next;
}

fn keep_scores(next: Scored, thread: u32) {
    for (var i = 0u; i < q_slots; i++) {
        let item = thread + i * threads;
        tile[item / chunk * stride + item % chunk] = next.q[i];
    }
    for (var i = 0u; i < k_slots; i++) {
        let item = thread + i * threads;
        tile[second + item / chunk * stride + item % chunk] = next.k[i];
    }
}

fn fetch_values(s: Source, first: u32, thread: u32) -> Valued {
    var next = Valued();
    for (var i = 0u; i < v_slots; i++) {
        let item = thread + i * threads;
        let eight = item % eights;
        if (8u * eight < head) {
            let row = row_behind(s, first + item / eights);
            next[i] = eight_of(value_words(row, 2u * eight), value_words(row, 2u * eight + 1u));
        }
    }
    return next;
}

fn keep_values(next: Valued, thread: u32) {
    for (var i = 0u; i < v_slots; i++) {
        let item = thread + i * threads;
        if (value_keys * eights % threads != 0u && item >= value_keys * eights) { break; }
        tile[second + item / eights * value_stride + item % eights] = next[i];
    }
}

// ---- matrices ----

alias Left   = subgroup_matrix_left<f16, ${MATRIX}, ${MATRIX}>;
alias Right  = subgroup_matrix_right<f16, ${MATRIX}, ${MATRIX}>;
alias Result = subgroup_matrix_result<f32, ${MATRIX}, ${MATRIX}>;

const score_blocks = ${SCORE_BLOCKS}u; // of a subgroup
const score_columns = tile_keys / m;   // of the workgroup
const row_blocks = ${ROW_BLOCKS}u;
const column_blocks = ${COLUMN_BLOCKS}u;
alias Scores  = array<Result, score_blocks>;
alias Results = array<Result, row_blocks * column_blocks>;

// Whatever has matrices is in main: compilers may not take pointers to them.

// ---- results ----

const parts = threads / batch; // threads that share a query's softmax

// Writes one quad of a query's result. part_of has the sums of the weights, shrink the maxima.
fn put(mine: Queries, query: u32, quad: u32, four: vec4<f32>, split: u32, kv_head: u32) {
    if (quad >= quads || !has_query(mine, query)) { return; }
    let row = query_at(mine, query, kv_head);
    var sum = 0.0;
    for (var p = 0u; p < parts; p++) { sum += part_of[p * batch + query]; }
#if FINAL
    write_quad(row, quad, four / sum);
#else
    let to = (row * splits + split) * (quads + 1u);
    out[to + quad] = four;
    if (quad == 0u) { out[to + quads] = vec4<f32>(shrink[query], sum, 0.0, 0.0); }
#endif
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

    // softmax: a query and some fours of keys
    const fours = tile_keys / 4u / parts;
    let my_query = thread % batch;
    let part = thread / batch;
    let my_first = vec4<u32>(first_seen(query_row(mine, my_query)));
    let my_last = vec4<u32>(last_seen(query_row(mine, my_query)));
    var my_highest = lowest; // what the weights are relative to
    var my_sum = 0.0;
    // the subgroup's first matrix of the scores, and of the results; where it puts one of the latter
    let score_row = subgroup * score_blocks / score_columns;
    let score_column = subgroup * score_blocks % score_columns;
    let row = subgroup / ${COLUMN_GROUPS}u * row_blocks;
    let column = subgroup % ${COLUMN_GROUPS}u * column_blocks;
    let own = second + subgroup * block;
    var results = Results();
    if (thread == 0u) { atomicStore(&rises, 0u); }

    for (var at = begin; at < end; at += tile_keys) {
        let source = Source(slots, slot_place(slots, at), end - 1u - at, kv_head);
        var sums = Scores(); // a plain declaration keeps the last tile's in some compilers
        var next = fetch_scores(source, mine, 0u, thread);
        for (var first = 0u; first < (head + 7u) / 8u; first += chunk) {
            workgroupBarrier();
            keep_scores(next, thread);
            workgroupBarrier();
            next = fetch_scores(source, mine, first + chunk, thread);
            for (var depth = 0u; depth < chunk; depth += m / 8u) {
                let left = subgroupMatrixLoad<Left, row_major>(&tile, score_row * m * stride + depth, stride);
                for (var i = 0u; i < score_blocks; i++) {
                    let at = second + (score_column + i) * m * stride + depth;
                    let right = subgroupMatrixLoad<Right, col_major>(&tile, at, stride);
                    sums[i] = subgroupMatrixMultiplyAccumulate(left, right, sums[i]);
                }
            }
        }
        workgroupBarrier();
        for (var i = 0u; i < score_blocks; i++) {
            let to = score_row * m * score_stride + (score_column + i) * m / 4u;
            subgroupMatrixStore<row_major>(&tile, to, sums[i], score_stride);
        }
        workgroupBarrier();
        var next_values = fetch_values(source, 0u, thread);

        var s: array<vec4<f32>, fours>;
        var most = my_highest;
        for (var i = 0u; i < fours; i++) {
            let four = part * fours + i;
            let j = at + 4u * four + vec4<u32>(0u, 1u, 2u, 3u);
            let score = bitcast<vec4<f32>>(tile[my_query * score_stride + four]);
            s[i] = select(score, vec4<f32>(lowest), (j < my_first) | (j > my_last));
            most = max(most, max(max(s[i].x, s[i].y), max(s[i].z, s[i].w)));
        }
        part_of[thread] = most;
        workgroupBarrier(); // from here on weights may take the place of scores
        for (var p = 0u; p < parts; p++) { most = max(most, part_of[p * batch + my_query]); }
        let number = (at - begin) / tile_keys + 1u;
        var fall = 1.0;
        if (most > my_highest + rise) {
            fall = exp(my_highest - most);
            my_highest = most;
            atomicMax(&rises, number);
        }
        my_sum *= fall;
        if (part == 0u) { shrink[my_query] = fall; }
        for (var i = 0u; i < fours; i += 2u) {
            let a = select(exp(s[i] - my_highest), vec4<f32>(), s[i] == vec4<f32>(lowest));
            let b = select(exp(s[i + 1u] - my_highest), vec4<f32>(), s[i + 1u] == vec4<f32>(lowest));
            tile[my_query * stride + (part * fours + i) / 2u] = halves(a, b);
            my_sum += dot(a + b, vec4<f32>(1.0));
        }
        workgroupBarrier();
        if (thread == 0u) { rose = atomicLoad(&rises); }
        if (workgroupUniformLoad(&rose) == number && at > begin) { // multiplies each row of the results by its query's factor
            for (var i = 0u; i < row_blocks * column_blocks; i++) {
                subgroupMatrixStore<row_major>(&tile, own, results[i], m / 4u);
                workgroupBarrier();
                for (var j = lane; j < block; j += ${SUBGROUP}u) {
                    let factor = shrink[(row + i / column_blocks) * m + j / (m / 4u)];
                    tile[own + j] = bitcast<vec4<u32>>(bitcast<vec4<f32>>(tile[own + j]) * factor);
                }
                workgroupBarrier();
                results[i] = subgroupMatrixLoad<Result, row_major>(&tile, own, m / 4u);
                workgroupBarrier();
            }
        }

        for (var first = 0u; first <= min(source.last, tile_keys - 1u); first += value_keys) { // past the last key, weights are 0
            workgroupBarrier();
            keep_values(next_values, thread);
            workgroupBarrier();
            next_values = fetch_values(source, first + value_keys, thread);
            for (var key = 0u; key < value_keys; key += m) {
                var left: array<Left, row_blocks>;
                for (var r = 0u; r < row_blocks; r++) {
                    left[r] = subgroupMatrixLoad<Left, row_major>(&tile, (row + r) * m * stride + (first + key) / 8u, stride);
                }
                for (var c = 0u; c < column_blocks; c++) {
                    let at = second + key * value_stride + (column + c) * m / 8u;
                    let right = subgroupMatrixLoad<Right, row_major>(&tile, at, value_stride);
                    for (var r = 0u; r < row_blocks; r++) {
                        let i = r * column_blocks + c;
                        results[i] = subgroupMatrixMultiplyAccumulate(left[r], right, results[i]);
                    }
                }
            }
        }
    }

    workgroupBarrier();
    part_of[thread] = my_sum;
    if (part == 0u) { shrink[my_query] = my_highest; }
    for (var i = 0u; i < row_blocks * column_blocks; i++) {
        subgroupMatrixStore<row_major>(&tile, own, results[i], m / 4u);
        workgroupBarrier();
        for (var j = lane; j < block; j += ${SUBGROUP}u) {
            let query = (row + i / column_blocks) * m + j / (m / 4u);
            let quad = (column + i % column_blocks) * m / 4u + j % (m / 4u);
            put(mine, query, quad, bitcast<vec4<f32>>(tile[own + j]), split, kv_head);
        }
        workgroupBarrier();
    }
}
