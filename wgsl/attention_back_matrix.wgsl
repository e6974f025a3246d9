enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);

// Gradients of attention with subgroup matrices: products of f16, everything else in f32. attention_back.wgsl has the formulas:
//
//   p = exp(q_i · k_j − logs_i)     e = p · (d_i · v_j − delta_i)
//
//   KIND queries  out_i = Σ_j e · k_j     the workgroup's own rows are queries, the others keys
//                 dispatch (1, for each span its tokens · group / QUERIES rounded up, kv_heads), group = heads / kv_heads
//   KIND keys     Σ_i e · q_i for each key, Σ_i p · d_i for each value: own rows are tokens of a span, the others queries
//                 dispatch (splits, for each span its tokens / QUERIES rounded up, 2 · kv_heads): keys first, then values. Results of both
//                 would not fit the registers, so values compute p once more. Splits are those of attention_back.wgsl.
//
//   queries    f32 [tokens, heads, head] from q_offset on     logs, delta  f32 [tokens, heads]     keys, values  see kv.wgsl
//   gradients  as halve.wgsl writes them: a row of f16 for each token, in the order 0 2 1 3, and its scale from d_scales on
//   out        f32 [tokens, heads, head], or [tokens, 2 · kv_heads, head]
//
// A workgroup has QUERIES own rows and takes 64 others at a time. Its subgroups divide scores and results as in attention_matrix.wgsl: first
// q · k, then d · v, which threads make weights of, e or p; then the weights times the other rows.
//
// Weights are as small as gradients may be, so each own row's are scaled to fit f16. p is at most 1: whatever multiplies it is a bound.
// The first bound of a row, scaled to 2^8 .. 2^9, sets the scale. If one comes to exceed 2^14, the scale falls, and all results go through
// workgroup memory once.
//
// head is a multiple of 8.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override q_offset: u32 = 0u;
override d_scales: u32;
override splits:   u32 = 1u;
override split_stride: u32 = 0u;

override quads: u32 = head / 4u;
override d_eights: u32 = (heads * head + 31u) / 32u * 4u; // of a token
const batch = ${QUERIES}u; // own rows
const threads = 256u;
const subgroups = threads / ${SUBGROUP}u;
const m = ${MATRIX}u;
const tile_rows = 64u;             // others
const chunk = ${CHUNK}u;           // eights of the head per step of the scores
const value_rows = ${VALUE_KEYS}u; // others per step of the results

#include "kv.wgsl"
@group(0) @binding(0) var<storage, read_write> queries:   array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out:       array<vec4<f32>>;
@group(0) @binding(2) var<storage, read>       run:       Run;
@group(0) @binding(3) var<storage, read>       keys:      array<kv_unit>;
@group(0) @binding(4) var<storage, read>       values:    array<kv_unit>;
@group(0) @binding(5) var<storage, read_write> gradients: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> logs:      array<f32>;
@group(0) @binding(7) var<storage, read_write> delta:     array<f32>;

// ---- workgroup memory, in units of 16 bytes ----

// Rows have one unit more than needed, so that rows accessed at the same time lie in different banks.
const stride = chunk + 1u;                // of own rows, others and weights
const score_stride = tile_rows / 4u + 1u;
const eights = ${COLUMN_GROUPS}u * ${COLUMN_BLOCKS}u * m / 8u; // of a row of results
const value_stride = eights + 1u;
const weight_stride = tile_rows / 8u + 1u;
const block = m * m / 4u;                 // a matrix of f32
const second = batch * stride;            // where others and results begin
const size = max(max(second + tile_rows * stride, batch * score_stride), second + max(value_rows * value_stride, subgroups * block));

// One after another: own rows, then others; scores; weights, then others or a matrix of results per subgroup.
var<workgroup> tile:       array<vec4<u32>, size>;
var<workgroup> own_rows:   array<vec2<u32>, batch>; // query_row_at, or slot_row
var<workgroup> other_rows: array<vec2<u32>, tile_rows>;
var<workgroup> part_of:    array<f32, threads>;     // the bound of each thread
var<workgroup> shrink:     array<f32, batch>;       // the factor for a row's results
var<workgroup> rises:      atomic<u32>;             // the last tile, counted from 1, in which a scale fell
#if KIND == keys
var<workgroup> other_log:   array<f32, tile_rows>;
var<workgroup> other_delta: array<f32, tile_rows>;
var<workgroup> other_unit:  array<f32, tile_rows>;
var<workgroup> other_seen:  array<vec2<u32>, tile_rows>; // the first key and the last
#endif

// ---- rows in f16, by eights ----

fn halves(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}

// Where a query begins, in quads, and its gradient, in eights.
fn query_row_at(token: u32, head_index: u32) -> vec2<u32> {
    return vec2<u32>(q_offset / 4u + (token * heads + head_index) * quads, token * d_eights + head_index * (head / 8u));
}

// What a token's gradients must be multiplied by.
fn gradient_unit(token: u32) -> f32 { return bitcast<f32>(gradients[d_scales + token].x); }

fn query_eight(row: vec2<u32>, eight: u32) -> vec4<u32> {
    return halves(queries[row.x + 2u * eight], queries[row.x + 2u * eight + 1u]);
}
fn gradient_eight(row: vec2<u32>, eight: u32) -> vec4<u32> { return gradients[row.y + eight]; }
fn key_eight(row: vec2<u32>, eight: u32) -> vec4<u32> {
    return halves(key_quad(row, 2u * eight), key_quad(row, 2u * eight + 1u));
}
// In the order of the gradients.
fn value_eight(row: vec2<u32>, eight: u32) -> vec4<u32> {
    return halves(value_quad(row, 2u * eight).xzyw, value_quad(row, 2u * eight + 1u).xzyw);
}

// Of the scores q · k, and of the slopes d · v.
#if KIND == queries
fn own_of_scores(i: u32, eight: u32) -> vec4<u32> { return query_eight(own_rows[i], eight); }
fn own_of_slopes(i: u32, eight: u32) -> vec4<u32> { return gradient_eight(own_rows[i], eight); }
fn other_of_scores(i: u32, eight: u32) -> vec4<u32> { return key_eight(other_rows[i], eight); }
fn other_of_slopes(i: u32, eight: u32) -> vec4<u32> { return value_eight(other_rows[i], eight); }
#else
fn own_of_scores(i: u32, eight: u32) -> vec4<u32> { return key_eight(own_rows[i], eight); }
fn own_of_slopes(i: u32, eight: u32) -> vec4<u32> { return value_eight(own_rows[i], eight); }
fn other_of_scores(i: u32, eight: u32) -> vec4<u32> { return query_eight(other_rows[i], eight); }
fn other_of_slopes(i: u32, eight: u32) -> vec4<u32> { return gradient_eight(other_rows[i], eight); }
#endif

// ---- loading ----

const own_slots = batch * chunk / threads; // eights that a thread loads
const other_slots = tile_rows * chunk / threads;
const value_slots = (value_rows * eights + threads - 1u) / threads;

struct Scored { own: array<vec4<u32>, own_slots>, other: array<vec4<u32>, other_slots> }
alias Valued = array<vec4<u32>, value_slots>;

// Load `chunk` eights of own rows and others, with zeros past the end of the head. Two functions, because a branch around each load would
// make it wait for the one before.
fn fetch_scores(first: u32, thread: u32) -> Scored {
    var next = Scored();
    for (var i = 0u; i < own_slots; i++) {
        let item = thread + i * threads;
        let eight = first + item % chunk;
        if (8u * eight < head) { next.own[i] = own_of_scores(item / chunk, eight); }
    }
    for (var i = 0u; i < other_slots; i++) {
        let item = thread + i * threads;
        let eight = first + item % chunk;
        if (8u * eight < head) { next.other[i] = other_of_scores(item / chunk, eight); }
    }
    return next;
}

fn fetch_slopes(first: u32, thread: u32) -> Scored {
    var next = Scored();
    for (var i = 0u; i < own_slots; i++) {
        let item = thread + i * threads;
        let eight = first + item % chunk;
        if (8u * eight < head) { next.own[i] = own_of_slopes(item / chunk, eight); }
    }
    for (var i = 0u; i < other_slots; i++) {
        let item = thread + i * threads;
        let eight = first + item % chunk;
        if (8u * eight < head) { next.other[i] = other_of_slopes(item / chunk, eight); }
    }
    return next;
}

fn fetch(turn: u32, first: u32, thread: u32) -> Scored {
    if (turn == 0u) { return fetch_scores(first, thread); }
    return fetch_slopes(first, thread);
}

fn keep_scores(next: Scored, thread: u32) {
    for (var i = 0u; i < own_slots; i++) {
        let item = thread + i * threads;
        tile[item / chunk * stride + item % chunk] = next.own[i];
    }
    for (var i = 0u; i < other_slots; i++) {
        let item = thread + i * threads;
        tile[second + item / chunk * stride + item % chunk] = next.other[i];
    }
}

fn fetch_values(first: u32, of_value: bool, thread: u32) -> Valued {
    var next = Valued();
    if (of_value) {
        for (var i = 0u; i < value_slots; i++) {
            let item = thread + i * threads;
            let eight = item % eights;
            if (8u * eight < head) { next[i] = other_of_slopes(min(first + item / eights, tile_rows - 1u), eight); }
        }
    } else {
        for (var i = 0u; i < value_slots; i++) {
            let item = thread + i * threads;
            let eight = item % eights;
            if (8u * eight < head) { next[i] = other_of_scores(min(first + item / eights, tile_rows - 1u), eight); }
        }
    }
    return next;
}

fn keep_values(next: Valued, thread: u32) {
    for (var i = 0u; i < value_slots; i++) {
        let item = thread + i * threads;
        if (value_rows * eights % threads != 0u && item >= value_rows * eights) { break; }
        tile[second + item / eights * value_stride + item % eights] = next[i];
    }
}

// ---- matrices ----

alias Left   = subgroup_matrix_left<f16, ${MATRIX}, ${MATRIX}>;
alias Right  = subgroup_matrix_right<f16, ${MATRIX}, ${MATRIX}>;
alias Result = subgroup_matrix_result<f32, ${MATRIX}, ${MATRIX}>;

const score_blocks = ${SCORE_BLOCKS}u; // of a subgroup
const score_columns = tile_rows / m;   // of the workgroup
const row_blocks = ${ROW_BLOCKS}u;
const column_blocks = ${COLUMN_BLOCKS}u;
alias Scores  = array<Result, score_blocks>;
alias Results = array<Result, row_blocks * column_blocks>;

// Whatever has matrices is in main: compilers may not take pointers to them.

// ---- weights ----

const parts = threads / batch; // threads that share an own row
const fours = tile_rows / 4u / parts;

// The power of two that takes a number above 0 to 2^8 .. 2^9; a normal number, and its inverse is one, too.
fn scale_for(bound: f32) -> f32 {
    let exponent = bitcast<u32>(bound) >> 23u;
    return bitcast<f32>(clamp(262u - exponent, 2u, 252u) << 23u);
}

#if KIND == queries
#include "attention_tile.wgsl"
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

fn fours_log(four: u32) -> vec4<f32> {
    return vec4<f32>(other_log[4u * four], other_log[4u * four + 1u], other_log[4u * four + 2u], other_log[4u * four + 3u]);
}
fn fours_delta(four: u32) -> vec4<f32> {
    return vec4<f32>(other_delta[4u * four], other_delta[4u * four + 1u], other_delta[4u * four + 2u], other_delta[4u * four + 3u]);
}
fn fours_unit(four: u32) -> vec4<f32> {
    return vec4<f32>(other_unit[4u * four], other_unit[4u * four + 1u], other_unit[4u * four + 2u], other_unit[4u * four + 3u]);
}
fn sees(other: u32, index: u32) -> bool { return index >= other_seen[other].x && index <= other_seen[other].y; }
#endif

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
    let kv_head = workgroup.z % kv_heads;
    let of_value = workgroup.z >= kv_heads;
    let group = heads / kv_heads;
    let my_own = thread % batch;
    let part = thread / batch;
#if KIND == queries
    let mine = queries_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let slots = slots_of(mine.row);
    let begin = first_seen(query_row(mine, 0u));
    let end = last_seen(query_row(mine, batch - 1u)) + 1u;
    let my_row = query_row(mine, my_own);
    let my_query = query_at(mine, my_own, kv_head);
    let my_first = vec4<u32>(first_seen(my_row));
    let my_last = vec4<u32>(last_seen(my_row));
    let my_log = logs[my_query];
    let my_delta = delta[my_query];
    let my_unit = gradient_unit(my_row);
    if (thread < batch) { own_rows[thread] = query_row_at(my_row, my_query % heads); }
#else
    let mine = tokens_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let count = min(batch, mine.tokens - mine.first);
    let my_row = mine.span + mine.first + min(my_own, count - 1u);
    let my_index = select(nowhere, run.records[my_row].at, my_own < count);
    if (thread < batch) { own_rows[thread] = slot_row(select(0u, own_slot(my_row), my_index != nowhere), kv_head); }
    var least = nowhere;
    var most = 0u;
    for (var i = 0u; i < count; i++) {
        let at = run.records[mine.span + mine.first + i].at;
        least = min(least, at);
        if (at != nowhere) { most = max(most, at); }
    }
#endif
    var my_scale = 0.0; // none yet
    // the subgroup's first matrix of the scores, and of the results; where it puts one of the latter
    let score_row = subgroup * score_blocks / score_columns;
    let score_column = subgroup * score_blocks % score_columns;
    let row = subgroup / ${COLUMN_GROUPS}u * row_blocks;
    let column = subgroup % ${COLUMN_GROUPS}u * column_blocks;
    let own = second + subgroup * block;
    var results = Results();
    if (thread == 0u) { atomicStore(&rises, 0u); }

    var number = 0u; // of the tile, from 1 on
#if KIND == queries
    for (var at = begin; at < end; at += tile_rows) {
        let others = min(end - at, tile_rows);
        workgroupBarrier();
        if (thread < tile_rows) {
            other_rows[thread] = slot_row(slot_after(slots, slot_place(slots, at), min(thread, others - 1u)), kv_head);
        }
#else
    let pairs = mine.tokens * group;
    for (var at = tile_rows * workgroup.x; at < pairs; at += tile_rows * splits) {
        if (last_seen(mine.span + min(at + tile_rows - 1u, pairs - 1u) / group) < least) { continue; }
        if (first_seen(mine.span + at / group) > most) { break; }
        let others = min(pairs - at, tile_rows);
        workgroupBarrier();
        if (thread < tile_rows) {
            let pair = at + min(thread, others - 1u);
            let token = mine.span + pair / group;
            let head_index = kv_head * group + pair % group;
            other_rows[thread] = query_row_at(token, head_index);
            other_log[thread] = logs[token * heads + head_index];
            other_delta[thread] = delta[token * heads + head_index];
            other_unit[thread] = gradient_unit(token);
            other_seen[thread] = select(vec2<u32>(nowhere, 0u), vec2<u32>(first_seen(token), last_seen(token)), thread < others);
        }
#endif
        workgroupBarrier();
        number++;

        var weights: array<vec4<f32>, fours>; // p, then e
        var bound = 0.0;
        for (var turn = 0u; turn < 2u; turn++) { // q · k, then d · v, which values do not need
            if (of_value && turn == 1u) { break; }
            var sums = Scores(); // a plain declaration keeps the last tile's in some compilers
            var next = fetch(turn, 0u, thread);
            for (var first = 0u; first < head / 8u; first += chunk) {
                workgroupBarrier();
                keep_scores(next, thread);
                workgroupBarrier();
                next = fetch(turn, first + chunk, thread);
                for (var depth = 0u; depth < chunk; depth += m / 8u) {
                    let left = subgroupMatrixLoad<Left, row_major>(&tile, score_row * m * stride + depth, stride);
                    for (var i = 0u; i < score_blocks; i++) {
                        let source = second + (score_column + i) * m * stride + depth;
                        let right = subgroupMatrixLoad<Right, col_major>(&tile, source, stride);
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
            for (var i = 0u; i < fours; i++) {
                let four = part * fours + i;
                let score = bitcast<vec4<f32>>(tile[my_own * score_stride + four]);
#if KIND == queries
                if (turn == 0u) {
                    let j = at + 4u * four + vec4<u32>(0u, 1u, 2u, 3u);
                    weights[i] = select(vec4<f32>(), exp(score - my_log), (j >= my_first) & (j <= my_last));
                    continue;
                }
                let slope = score * my_unit - my_delta;
#else
                if (turn == 0u) {
                    let seen = vec4<bool>(sees(4u * four, my_index), sees(4u * four + 1u, my_index), sees(4u * four + 2u, my_index),
                                          sees(4u * four + 3u, my_index));
                    weights[i] = select(vec4<f32>(), exp(score - fours_log(four)), seen);
                    if (!of_value) { continue; }
                }
                let slope = select(score * fours_unit(four) - fours_delta(four), fours_unit(four), of_value);
#endif
                let there = select(vec4<f32>(), abs(slope), weights[i] > vec4<f32>());
                bound = max(bound, max(max(there.x, there.y), max(there.z, there.w)));
                weights[i] *= slope;
            }
        }

        var next_values = fetch_values(0u, of_value, thread);
        part_of[thread] = bound;
        workgroupBarrier(); // from here on weights may take the place of scores
        for (var i = 0u; i < parts; i++) { bound = max(bound, part_of[i * batch + my_own]); }
        var fall = 1.0;
        if (bound > 0.0 && (my_scale == 0.0 || bound * my_scale > 16384.0)) {
            let scale = scale_for(bound);
            if (my_scale > 0.0) {
                fall = scale / my_scale;
                atomicMax(&rises, number);
            }
            my_scale = scale;
        }
        if (part == 0u) { shrink[my_own] = fall; }
        for (var i = 0u; i < fours; i += 2u) {
            tile[my_own * weight_stride + (part * fours + i) / 2u] = halves(weights[i] * my_scale, weights[i + 1u] * my_scale);
        }
        if (workgroupUniformLoad(&rises) == number) { // multiplies each row of the results by its factor
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

        for (var first = 0u; first < others; first += value_rows) { // past the last of the others, weights are 0
            workgroupBarrier();
            keep_values(next_values, thread);
            workgroupBarrier();
            next_values = fetch_values(first + value_rows, of_value, thread);
            for (var other = 0u; other < value_rows; other += m) {
                var left: array<Left, row_blocks>;
                for (var r = 0u; r < row_blocks; r++) {
                    let source = (row + r) * m * weight_stride + (first + other) / 8u;
                    left[r] = subgroupMatrixLoad<Left, row_major>(&tile, source, weight_stride);
                }
                for (var c = 0u; c < column_blocks; c++) {
                    let source = second + other * value_stride + (column + c) * m / 8u;
                    let right = subgroupMatrixLoad<Right, row_major>(&tile, source, value_stride);
                    for (var r = 0u; r < row_blocks; r++) {
                        let i = r * column_blocks + c;
                        results[i] = subgroupMatrixMultiplyAccumulate(left[r], right, results[i]);
                    }
                }
            }
        }
    }

    workgroupBarrier();
    if (part == 0u) { shrink[my_own] = select(0.0, 1.0 / my_scale, my_scale > 0.0); }
    for (var i = 0u; i < row_blocks * column_blocks; i++) {
        subgroupMatrixStore<row_major>(&tile, own, results[i], m / 4u);
        workgroupBarrier();
        for (var j = lane; j < block; j += ${SUBGROUP}u) {
            let to = (row + i / column_blocks) * m + j / (m / 4u);
            let quad = (column + i % column_blocks) * m / 4u + j % (m / 4u);
            let four = bitcast<vec4<f32>>(tile[own + j]) * shrink[to];
            if (quad >= quads) { continue; }
#if KIND == queries
            if (has_query(mine, to)) { out[query_at(mine, to, kv_head) * quads + quad] = four; }
#else
            let at = (mine.span + mine.first + to) * 2u * kv_heads + workgroup.z;
            if (to < count) { out[workgroup.x * split_stride / 4u + at * quads + quad] = select(four, four.xzyw, of_value); }
#endif
        }
        workgroupBarrier();
    }
}
