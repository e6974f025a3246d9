// Experts: which ones each token uses, which tokens each expert gets, and the sum of their results.
//
//   KIND route  logits f32, row t at a_offset + t · a_token_stride; scale f32 [experts], only with SCALE
//               → routes u32 [tokens, 2 · used]: the ids of the `used` largest logits (lower ids first among equals), then the
//               bits of their weights: p_e / Σ_used p · scale_e, p = softmax over all experts
//               dispatch (1, tokens, 1)     experts ≤ 512, used ≤ 64
//   KIND slots  routes → slots u32 [tokens, 2 · used]: the slots of the ids (nowhere: it has none), for products that read a cache of experts in the
//               place of all of them. src/gpu/experts.h describes table and report. Adds to the uses in the table. If an expert has no slot,
//               halts the run, unless the report says that misses are quiet     dispatch (1, 1, 1)
//   KIND ahead  routes that were computed early → report: how many tokens will probably want each expert, and the layer     dispatch (1, 1, 1)
//   KIND group  routes, or slots → groups u32: [experts + 1] where each expert's pairs begin; [tiles] the tiles of up to `columns` pairs that products
//               are made of, the expert in the low half and in the high half which of its tiles it is (past the last: all ones); then
//               the pairs (token · used + slot) by expert; those of no slot are left out     dispatch (1, 1, 1)
//   KIND sum    out[t] = Σ_e weight_e · a[t, e]: a f32, a view as in elementwise.wgsl with a row per slot; out f32 [tokens, n]
//               dispatch (n / 64 rounded up, tokens, 1)     n, offset and strides in units (unit.wgsl)
//
// Routes are u32, never f32: ids read as f32 are subnormal, and a GPU may flush those to zero.

#include "run.wgsl"
#include "exact.wgsl"

override used: u32;
#if KIND == slots
@group(0) @binding(2) var<storage, read_write> run: Run;
#else
@group(0) @binding(2) var<storage, read> run: Run;
#endif

#if KIND == route
override a_offset:       u32;
override a_token_stride: u32;
override experts: u32;
const threads = 128u;
const most_experts = 512u;
const most_used = 64u;

@group(0) @binding(0) var<storage, read_write> a:      array<f32>;
@group(0) @binding(1) var<storage, read_write> routes: array<u32>;
#if SCALE
@group(0) @binding(3) var<storage, read>       scale:  array<f32>;
#endif

var<workgroup> logit:  array<f32, most_experts>;
var<workgroup> chosen: array<u32, most_used>;

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let token = group.y;
    if (token >= run.tokens) { return; }
    for (var x = thread; x < experts; x += threads) { logit[x] = a[a_offset + token * a_token_stride + x]; }
    if (thread < used) { chosen[thread] = thread; } // a NaN has no rank; this keeps the ids valid
    workgroupBarrier();

    // an expert's rank is the number of experts before it
    for (var x = thread; x < experts; x += threads) {
        var place = 0u;
        for (var other = 0u; other < experts; other++) {
            place += select(0u, 1u, logit[other] > logit[x] || (logit[other] == logit[x] && other < x));
        }
        if (place < used) { chosen[place] = x; }
    }
    workgroupBarrier();

    if (thread >= used) { return; }
    let most = logit[chosen[0]];
    var sum = 0.0;
    for (var i = 0u; i < used; i++) { sum += exponential(logit[chosen[i]] - most); }
    let id = chosen[thread];
    var weight = quotient(exponential(logit[id] - most), sum);
#if SCALE
    weight *= scale[id];
#endif
    routes[token * 2u * used + thread] = id;
    routes[token * 2u * used + used + thread] = bitcast<u32>(weight);
}
#elif KIND == slots
override experts: u32;
const threads = 256u;
const most_experts = 512u;
const header = 4u; // words of table and report

@group(0) @binding(0) var<storage, read_write> routes: array<u32>;
@group(0) @binding(1) var<storage, read_write> slots:  array<u32>;
@group(0) @binding(3) var<storage, read_write> table:  array<u32>;
@group(0) @binding(4) var<storage, read_write> report: array<u32>;

var<workgroup> count:  array<atomic<u32>, most_experts>;
var<workgroup> misses: atomic<u32>;

@compute @workgroup_size(threads)
fn main(@builtin(local_invocation_index) thread: u32) {
    let pairs = run.tokens * used;
    let quiet = report[1] != 0u;
    for (var x = thread; x < experts; x += threads) { atomicStore(&count[x], 0u); }
    if (thread == 0u) { atomicStore(&misses, 0u); }
    workgroupBarrier();
    for (var i = thread; i < pairs; i += threads) {
        let at = i / used * 2u * used + i % used;
        let id = routes[at];
        slots[at] = table[header + id];
        atomicAdd(&count[id], 1u);
    }
    workgroupBarrier();
    for (var x = thread; x < experts; x += threads) {
        if (!quiet && atomicLoad(&count[x]) > 0u && table[header + x] == nowhere) { atomicMax(&misses, 1u); }
    }
    workgroupBarrier();
    let missed = atomicLoad(&misses) > 0u;
    for (var x = thread; x < experts; x += threads) {
        let wanted = atomicLoad(&count[x]);
        if (missed) {
            report[header + x] = wanted;
            report[header + most_experts + x] = table[header + experts + x];
        } else if (!quiet && wanted > 0u) {
            table[header + experts + x] += wanted;
        }
    }
    if (thread == 0u && missed) {
        report[0] = table[0];
        run.tokens = 0u;
    }
}
#elif KIND == ahead
override experts: u32;
const threads = 128u;
const most_experts = 512u;
const header = 4u;

@group(0) @binding(0) var<storage, read_write> routes: array<u32>;
@group(0) @binding(1) var<storage, read_write> report: array<u32>;
@group(0) @binding(3) var<storage, read_write> table:  array<u32>;

@compute @workgroup_size(threads)
fn main(@builtin(local_invocation_index) thread: u32) {
    let pairs = run.tokens * used;
    for (var x = thread; x < experts; x += threads) {
        var wanted = 0u;
        for (var i = 0u; i < pairs; i++) { wanted += select(0u, 1u, routes[i / used * 2u * used + i % used] == x); }
        report[header + 2u * most_experts + x] = wanted;
    }
    if (thread == 0u && pairs > 0u) { report[2] = table[0]; }
}
#elif KIND == group
override experts: u32;
override columns: u32; // pairs of a tile
override tiles:   u32; // room for so many
const threads = 256u;
const most_experts = 512u;

@group(0) @binding(0) var<storage, read_write> routes: array<u32>;
@group(0) @binding(1) var<storage, read_write> groups: array<u32>;

var<workgroup> count:     array<atomic<u32>, most_experts>;
var<workgroup> next:      array<atomic<u32>, most_experts>; // where an expert's next pair goes
var<workgroup> all_tiles: u32;

@compute @workgroup_size(threads)
fn main(@builtin(local_invocation_index) thread: u32) {
    let pairs = run.tokens * used;
    for (var x = thread; x < experts; x += threads) { atomicStore(&count[x], 0u); }
    workgroupBarrier();
    for (var i = thread; i < pairs; i += threads) {
        let id = routes[i / used * 2u * used + i % used];
        if (id < experts) { atomicAdd(&count[id], 1u); }
    }
    workgroupBarrier();
    for (var x = thread; x <= experts; x += threads) {
        var begin = 0u;
        var tile = 0u;
        for (var other = 0u; other < x; other++) {
            let more = atomicLoad(&count[other]);
            begin += more;
            tile += (more + columns - 1u) / columns;
        }
        groups[x] = begin;
        if (x == experts) { all_tiles = tile; }
        else {
            atomicStore(&next[x], begin);
            for (var first = 0u; first * columns < atomicLoad(&count[x]); first++) { groups[experts + 1u + tile + first] = x | (first << 16u); }
        }
    }
    workgroupBarrier();
    for (var i = all_tiles + thread; i < tiles; i += threads) { groups[experts + 1u + i] = nowhere; }
    // in any order: the result of a pair does not depend on its place
    for (var i = thread; i < pairs; i += threads) {
        let id = routes[i / used * 2u * used + i % used];
        if (id >= experts) { continue; }
        let to = atomicAdd(&next[id], 1u);
        groups[experts + 1u + tiles + to] = i;
    }
}
#else
#include "unit.wgsl"
override n:              u32;
override a_offset:       u32;
override a_row_stride:   u32;
override a_token_stride: u32;

@group(0) @binding(0) var<storage, read_write> a:      array<unit>;
@group(0) @binding(1) var<storage, read_write> out:    array<unit>;
@group(0) @binding(3) var<storage, read_write> routes: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    if (at.x >= n || at.y >= run.tokens) { return; }
    let source = a_offset + at.y * a_token_stride + at.x;
    var sum = unit();
    for (var i = 0u; i < used; i++) {
        sum += rounded_unit(bitcast<f32>(routes[at.y * 2u * used + used + i]) * a[source + i * a_row_stride]);
    }
    out[at.y * n + at.x] = sum;
}
#endif
