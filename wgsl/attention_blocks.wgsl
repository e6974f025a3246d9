// Attention for many tokens in f32, with register blocks and an online softmax:
//
//   out[t, h] = Σ_j softmax_j(q[t, h] · k_j) v_j over the indices j that the token sees; the scale is 1
//
//   queries  f32 [tokens, heads, head] from q_offset on     keys, values  see kv.wgsl
//   out      with FINAL (splits is 1): f32 [tokens, heads, head]; otherwise partial sums, as attention_decode.wgsl writes them
//   logs     LOGS with FINAL: f32 [tokens, heads], the logarithm of Σ_j e^score
//   dispatch (splits, for each span its tokens · group / QUERIES rounded up, kv_heads), group = heads / kv_heads
//
// A workgroup handles QUERIES pairs (token, head) of one K/V head and one split of the keys (attention_split.wgsl), of which it reads
// only those that one of its queries sees, KEYS at a time. QUERIES · KEYS is 2048, and each of the 256 threads works on blocks that stay
// in registers:
//   scores   8 × 4 (QUERIES 64) or 4 × 8 queries × keys, over a quarter of each CHUNK of the head that is staged in workgroup memory. The
//            next chunk is requested before the products of this one. The quarters are added up one after another
//   softmax  one query and eight keys, with a running maximum
//   values   OWN queries (4 or 8) × STEPS quads of the head (1 or 2, LANES apart), over all keys. Values are read directly: a key's row
//            stays in the cache for all threads that need it
//
// head ≤ 4 · LANES · STEPS; LANES · QUERIES = 256 · OWN. Workgroup memory: 16,256 bytes at most with CHUNK 4, 22,784 with CHUNK 8.

#include "run.wgsl"

override head:     u32;
override heads:    u32;
override splits:   u32;
override q_offset: u32;

override quads: u32 = (head + 3u) / 4u;
const threads = 256u;
const tile = ${KEYS}u;
const chunk = ${CHUNK}u;     // quads of the head
const quarter_quads = chunk / 4u;
const lanes = ${LANES}u;
const own = ${OWN}u;
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
@group(0) @binding(3) var<storage, read> keys:   array<kv_unit>;
@group(0) @binding(4) var<storage, read> values: array<kv_unit>;
#if LOGS
@group(0) @binding(5) var<storage, read_write> logs: array<f32>;
#endif

// Rows have odd lengths, and every four keys an unused place, so that what is accessed at the same time lies in different banks.
const key_stride = tile + tile / 4u + 1u;
const query_stride = batch + 1u;
const queries_staged = chunk * key_stride;
const score_stride = tile / 4u + 1u;
const parts = threads / batch; // threads that share a query's softmax

// [quad of the chunk, key], then [quad of the chunk, query]; between the chunks, a number per thread
var<workgroup> staged: array<vec4<f32>, chunk * (key_stride + query_stride)>;
var<workgroup> score:  array<vec4<f32>, batch * score_stride>; // [query, four keys]: scores, then weights
var<workgroup> shrink: array<f32, batch>;                      // the factor for a query's sums when its maximum rises

// ---- loading ----

// Where a tile's keys begin, and how many follow the first.
struct Source { slots: Slots, place: u32, last: u32, kv_head: u32 }

// The row of the i-th key of a tile, or of its last.
fn row_behind(s: Source, i: u32) -> vec2<u32> { return slot_row(slot_after(s.slots, s.place, min(i, s.last)), s.kv_head); }

const k_items = tile * chunk;
const q_items = batch * chunk;
const k_slots = (k_items + threads - 1u) / threads;
const q_slots = (q_items + threads - 1u) / threads;

// What a thread loads of a chunk.
struct Fetched { k: array<kv_quad, k_slots>, q: array<vec4<f32>, q_slots> }

fn fetch(s: Source, mine: Queries, first_quad: u32, thread: u32) -> Fetched {
    var next: Fetched;
    if (first_quad >= quads) { return next; }
    for (var i = 0u; i < k_slots; i++) {
        let item = min(thread + i * threads, k_items - 1u);
        next.k[i] = key_words(row_behind(s, item / chunk), min(first_quad + item % chunk, quads - 1u));
    }
    for (var i = 0u; i < q_slots; i++) {
        let item = min(thread + i * threads, q_items - 1u);
        let quad = first_quad + item % chunk;
        let four = query_quad(query_at(mine, item / chunk, s.kv_head), min(quad, quads - 1u));
        next.q[i] = select(vec4<f32>(), four, quad < quads);
    }
    return next;
}

// Past the end of the head, keys are whatever they are, and queries zero.
fn keep(next: Fetched, thread: u32) {
    for (var i = 0u; i < k_slots; i++) {
        let item = thread + i * threads;
        if (k_items % threads != 0u && item >= k_items) { break; }
        let key = item / chunk;
        staged[item % chunk * key_stride + key + key / 4u] = four_of(next.k[i]);
    }
    for (var i = 0u; i < q_slots; i++) {
        let item = thread + i * threads;
        if (q_items % threads != 0u && item >= q_items) { break; }
        staged[queries_staged + item % chunk * query_stride + item / chunk] = next.q[i];
    }
}

// ---- products ----

// sum + w.x a + w.y b + w.z c + w.w d, in this order, so that each step is one instruction.
fn weighted(sum: vec4<f32>, w: vec4<f32>, m: mat4x4<f32>) -> vec4<f32> {
    return (((sum + w.x * m[0]) + w.y * m[1]) + w.z * m[2]) + w.w * m[3];
}

// A quad of four adjacent keys: component i of column c is value c of key i.
fn four_keys(at: u32) -> mat4x4<f32> {
    return transpose(mat4x4<f32>(staged[at], staged[at + 1u], staged[at + 2u], staged[at + 3u]));
}

// A quad of the values of four keys.
struct Four { a: kv_quad, b: kv_quad, c: kv_quad, d: kv_quad }

fn load_values(s: Source, i: u32, quad: u32) -> Four {
    return Four(value_words(row_behind(s, i), quad), value_words(row_behind(s, i + 1u), quad),
                value_words(row_behind(s, i + 2u), quad), value_words(row_behind(s, i + 3u), quad));
}

fn values_of(f: Four) -> mat4x4<f32> { return mat4x4<f32>(four_of(f.a), four_of(f.b), four_of(f.c), four_of(f.d)); }

// Block: named fields, not an array, so that the compiler keeps them in registers.
struct Block {
    s0: vec4<f32>, s1: vec4<f32>, s2: vec4<f32>, s3: vec4<f32>,
    s4: vec4<f32>, s5: vec4<f32>, s6: vec4<f32>, s7: vec4<f32>,
}

fn add_scores(sums: ptr<function, Block>, c: u32, kt: u32, qt: u32) {
    let k = four_keys(c * key_stride + 5u * kt);
    let q = queries_staged + c * query_stride + qt;
    (*sums).s0 = weighted((*sums).s0, staged[q], k);
    (*sums).s1 = weighted((*sums).s1, staged[q + 8u], k);
    (*sums).s2 = weighted((*sums).s2, staged[q + 16u], k);
    (*sums).s3 = weighted((*sums).s3, staged[q + 24u], k);
#if KEYS == 64
    let more = four_keys(c * key_stride + 5u * (kt + 8u));
    (*sums).s4 = weighted((*sums).s4, staged[q], more);
    (*sums).s5 = weighted((*sums).s5, staged[q + 8u], more);
    (*sums).s6 = weighted((*sums).s6, staged[q + 16u], more);
    (*sums).s7 = weighted((*sums).s7, staged[q + 24u], more);
#else
    (*sums).s4 = weighted((*sums).s4, staged[q + 32u], k);
    (*sums).s5 = weighted((*sums).s5, staged[q + 40u], k);
    (*sums).s6 = weighted((*sums).s6, staged[q + 48u], k);
    (*sums).s7 = weighted((*sums).s7, staged[q + 56u], k);
#endif
}

fn put_score(query: u32, four: u32, sum: vec4<f32>, first: bool) {
    let at = query * score_stride + four;
    if (first) { score[at] = sum; }
    else { score[at] += sum; }
}

fn put_scores(sums: Block, kt: u32, qt: u32, first: bool) {
    put_score(qt, kt, sums.s0, first);
    put_score(qt + 8u, kt, sums.s1, first);
    put_score(qt + 16u, kt, sums.s2, first);
    put_score(qt + 24u, kt, sums.s3, first);
#if KEYS == 64
    put_score(qt, kt + 8u, sums.s4, first);
    put_score(qt + 8u, kt + 8u, sums.s5, first);
    put_score(qt + 16u, kt + 8u, sums.s6, first);
    put_score(qt + 24u, kt + 8u, sums.s7, first);
#else
    put_score(qt + 32u, kt, sums.s4, first);
    put_score(qt + 40u, kt, sums.s5, first);
    put_score(qt + 48u, kt, sums.s6, first);
    put_score(qt + 56u, kt, sums.s7, first);
#endif
}

fn add_values(sums: ptr<function, Block>, v: mat4x4<f32>, at: u32) {
    (*sums).s0 = weighted((*sums).s0, score[at], v);
    (*sums).s1 = weighted((*sums).s1, score[at + score_stride], v);
    (*sums).s2 = weighted((*sums).s2, score[at + 2u * score_stride], v);
    (*sums).s3 = weighted((*sums).s3, score[at + 3u * score_stride], v);
#if OWN == 8
    (*sums).s4 = weighted((*sums).s4, score[at + 4u * score_stride], v);
    (*sums).s5 = weighted((*sums).s5, score[at + 5u * score_stride], v);
    (*sums).s6 = weighted((*sums).s6, score[at + 6u * score_stride], v);
    (*sums).s7 = weighted((*sums).s7, score[at + 7u * score_stride], v);
#endif
}

fn shrunk(sums: Block, q: u32) -> Block {
#if OWN == 8
    return Block(sums.s0 * shrink[q], sums.s1 * shrink[q + 1u], sums.s2 * shrink[q + 2u], sums.s3 * shrink[q + 3u],
                 sums.s4 * shrink[q + 4u], sums.s5 * shrink[q + 5u], sums.s6 * shrink[q + 6u], sums.s7 * shrink[q + 7u]);
#else
    return Block(sums.s0 * shrink[q], sums.s1 * shrink[q + 1u], sums.s2 * shrink[q + 2u], sums.s3 * shrink[q + 3u],
                 sums.s4, sums.s5, sums.s6, sums.s7);
#endif
}

// ---- results ----

// Writes one quad of a query's result. staged[part · batch + query] has (sum, highest) of the query's parts.
fn put(mine: Queries, query: u32, quad: u32, four: vec4<f32>, split: u32, kv_head: u32) {
    if (quad >= quads || !has_query(mine, query)) { return; }
    let row = query_at(mine, query, kv_head);
    var sum = 0.0;
    for (var p = 0u; p < parts; p++) { sum += staged[p * batch + query].x; }
#if FINAL
    write_quad(row, quad, four / sum);
#if LOGS
    if (quad == 0u) { logs[row] = staged[query].y + log(sum); }
#endif
#else
    let to = (row * splits + split) * (quads + 1u);
    out[to + quad] = four;
    if (quad == 0u) { out[to + quads] = vec4<f32>(staged[query].y, sum, 0.0, 0.0); }
#endif
}

fn put_block(mine: Queries, first: u32, quad: u32, sums: Block, split: u32, kv_head: u32) {
    put(mine, first, quad, sums.s0, split, kv_head);
    put(mine, first + 1u, quad, sums.s1, split, kv_head);
    put(mine, first + 2u, quad, sums.s2, split, kv_head);
    put(mine, first + 3u, quad, sums.s3, split, kv_head);
#if OWN == 8
    put(mine, first + 4u, quad, sums.s4, split, kv_head);
    put(mine, first + 5u, quad, sums.s5, split, kv_head);
    put(mine, first + 6u, quad, sums.s6, split, kv_head);
    put(mine, first + 7u, quad, sums.s7, split, kv_head);
#endif
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let split = workgroup.x;
    let kv_head = workgroup.z;
    let mine = queries_of(workgroup.y);
    if (mine.tokens == 0u) { return; }
    let slots = slots_of(mine.row);
    let seen = keys_of(mine);
    if (split * seen.share >= seen.count) { return; }
    let begin = seen.first + split * seen.share;
    let end = min(begin + seen.share, seen.first + seen.count);

    // scores
    let kt = thread % 8u;
    let qt = thread / 8u % 8u;
    let quarter = thread / 64u;
    // softmax
    let my_query = thread % batch;
    let part = thread / batch;
    let my_first = first_seen(query_row(mine, my_query));
    let my_last = last_seen(query_row(mine, my_query));
    var my_highest = lowest;
    var my_sum = 0.0;
    // values
    let lane = thread % lanes;
    let first_own = thread / lanes * own;
    var a = Block();
#if STEPS == 2
    var b = Block();
#endif

    for (var at = begin; at < end; at += tile) {
        let source = Source(slots, slot_place(slots, at), end - 1u - at, kv_head);
        var dots = Block();
        var next = fetch(source, mine, 0u, thread);
        for (var quad = 0u; quad < quads; quad += chunk) {
            workgroupBarrier();
            keep(next, thread);
            workgroupBarrier();
            next = fetch(source, mine, quad + chunk, thread);
            for (var c = quarter * quarter_quads; c < (quarter + 1u) * quarter_quads; c++) { add_scores(&dots, c, kt, qt); }
        }
        for (var q = 0u; q < 4u; q++) {
            if (q == quarter) { put_scores(dots, kt, qt, q == 0u); }
            workgroupBarrier();
        }

        let fours = my_query * score_stride + 2u * part;
        let keys_at = at + 8u * part + vec4<u32>(0u, 1u, 2u, 3u);
        let unseen = (keys_at < vec4<u32>(my_first)) | (keys_at > vec4<u32>(my_last));
        let unseen_next = (keys_at + 4u < vec4<u32>(my_first)) | (keys_at + 4u > vec4<u32>(my_last));
        let s = select(score[fours], vec4<f32>(lowest), unseen);
        let s_next = select(score[fours + 1u], vec4<f32>(lowest), unseen_next);
        let larger = max(s, s_next);
        staged[thread].x = max(max(larger.x, larger.y), max(larger.z, larger.w));
        workgroupBarrier();
        var most = my_highest;
        for (var p = 0u; p < parts; p++) { most = max(most, staged[p * batch + my_query].x); }
        let fall = exp(my_highest - most);
        let w = select(exp(s - most), vec4<f32>(), unseen);
        let w_next = select(exp(s_next - most), vec4<f32>(), unseen_next);
        score[fours] = w;
        score[fours + 1u] = w_next;
        my_sum = my_sum * fall + dot(w + w_next, vec4<f32>(1.0));
        my_highest = most;
        if (part == 0u) { shrink[my_query] = fall; }
        workgroupBarrier();

        a = shrunk(a, first_own);
#if STEPS == 2
        b = shrunk(b, first_own);
#endif
        let quad = min(lane, quads - 1u);
        let quad_b = min(lane + lanes, quads - 1u);
        for (var i = 0u; i <= min(source.last, tile - 1u); i += 4u) { // keys past the last have weight 0
            let four = load_values(source, i, quad);
#if STEPS == 2
            let four_b = load_values(source, i, quad_b);
#endif
            let weights_at = first_own * score_stride + i / 4u;
            add_values(&a, values_of(four), weights_at);
#if STEPS == 2
            add_values(&b, values_of(four_b), weights_at);
#endif
        }
    }

    workgroupBarrier();
    staged[thread] = vec4<f32>(my_sum, my_highest, 0.0, 0.0);
    workgroupBarrier();
    put_block(mine, first_own, lane, a, split, kv_head);
#if STEPS == 2
    put_block(mine, first_own, lane + lanes, b, split, kv_head);
#endif
}
