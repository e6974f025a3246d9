// Does the work of heads.wgsl within attention_decode.wgsl, for the one token of a workgroup. Each workgroup normalises and rotates its
// own queries. The workgroup whose split contains the token's own index also makes the token's key and value, and stores both (STORE).
// Other splits never read that slot. If several workgroups share a split, they all store the same bytes.
//
//   rows     f32 (bound as queries): token t at t · row_stride: q, k and v start at q_offset, k_offset and v_offset; their heads of n are
//            contiguous
//   table    f32 [tokens, n]: cosines, then sines     q_weight, k_weight  f32 [n]
//
// 32 lanes share a head: lane l has quads l and l + 32 of its first half, and their partners in the second. n is a multiple of 8.

override row_stride: u32;
override k_offset:   u32 = 0u;
override v_offset:   u32 = 0u;
override eps:        f32;

@group(0) @binding(5) var<storage, read_write> table:    array<vec4<f32>>;
@group(0) @binding(6) var<storage, read>       q_weight: array<vec4<f32>>;

struct Row { a: vec4<f32>, a_partner: vec4<f32>, b: vec4<f32>, b_partner: vec4<f32> }

fn row_of(begin: u32, lane: u32) -> Row {
    let half = quads / 2u;
    var row: Row;
    if (lane < half) {
        row.a = input_quad(begin, lane);
        row.a_partner = input_quad(begin, half + lane);
    }
    if (lane + 32u < half) {
        row.b = input_quad(begin, lane + 32u);
        row.b_partner = input_quad(begin, half + lane + 32u);
    }
    return row;
}

fn squares_of(r: Row) -> f32 {
    return dot(r.a, r.a) + dot(r.a_partner, r.a_partner) + dot(r.b, r.b) + dot(r.b_partner, r.b_partner);
}

struct Pair { x: vec4<f32>, partner: vec4<f32> }

fn turned(x: vec4<f32>, partner: vec4<f32>, token: u32, quad: u32) -> Pair {
    let cosines = table[token * quads + quad];
    let sines = table[token * quads + quads / 2u + quad];
    return Pair(x * cosines - partner * sines, partner * cosines + x * sines);
}

fn put_query(to: u32, x: vec4<f32>, partner: vec4<f32>, token: u32, quad: u32) {
    let pair = turned(x * q_weight[quad], partner * q_weight[quads / 2u + quad], token, quad);
    query[to + quad] = pair.x;
    query[to + quads / 2u + quad] = pair.partner;
}

#if STORE
@group(0) @binding(7) var<storage, read> k_weight: array<vec4<f32>>;
override n: u32 = kv_heads * head; // values in a row of the cache

#include "unit.wgsl"

// `staged` holds the token's key, followed by its value.
fn input(at: u32, is_value: bool) -> unit { return staged[select(0u, quads, is_value) + at % quads]; }

#include "kv_write.wgsl"

fn put_fresh(x: vec4<f32>, partner: vec4<f32>, token: u32, quad: u32, is_value: bool) {
    var pair = Pair(x, partner);
    if (!is_value) { pair = turned(x * k_weight[quad], partner * k_weight[quads / 2u + quad], token, quad); }
    let to = select(0u, quads, is_value) + quad;
    staged[to] = pair.x;
    staged[to + quads / 2u] = pair.partner;
}
#endif

// Ends with a barrier. After it the queries are ready and, if this split stores the token's key and value, they are in the cache.
fn make_queries(mine: Queries, kv_head: u32, thread: u32, subgroup: u32, stores: bool) {
    let group = heads / kv_heads;
    let token = mine.row;
    let begin = token * row_stride;
    let lane = thread % lanes;
    let q = thread / lanes; // batch ≤ groups
    let row = row_of(begin + q_offset + (kv_head * group + min(mine.first + q, group - 1u)) * head, lane);
    var squares = vec4<f32>(squares_of(row), 0.0, 0.0, 0.0);
#if STORE
    let is_value = q == 1u; // threads 0 to 31 make the key, the next 32 the value
    var fresh: Row;
    if (stores && q < 2u) { fresh = row_of(begin + select(k_offset, v_offset, is_value) + kv_head * head, lane); }
    squares.y = squares_of(fresh);
#endif
    let scale = inverseSqrt(lane_sums(squares, thread, subgroup) / f32(head) + eps);
    if (q < batch) {
        if (lane < quads / 2u) { put_query(q * quads, row.a * scale.x, row.a_partner * scale.x, token, lane); }
        if (lane + 32u < quads / 2u) { put_query(q * quads, row.b * scale.x, row.b_partner * scale.x, token, lane + 32u); }
    }
#if STORE
    if (stores) {
        if (q < 2u) {
            if (lane < quads / 2u) { put_fresh(fresh.a * scale.y, fresh.a_partner * scale.y, token, lane, is_value); }
            if (lane + 32u < quads / 2u) { put_fresh(fresh.b * scale.y, fresh.b_partner * scale.y, token, lane + 32u, is_value); }
        }
        workgroupBarrier();
        let pieces = head / piece_values; // of the key; the value has as many
        if (thread < 2u * pieces) { store_piece(0u, own_slot(token), kv_head * pieces + thread % pieces, thread >= pieces); }
        storageBarrier();
    }
#endif
    workgroupBarrier();
}
