// Chooses a token on the GPU, with exactly the algorithm described at the top of src/text/sampler.c; the result does not depend on
// the order of additions. One draw is these dispatches, where n is the vocabulary (at most 2^20):
//
//   STAGE convert    (n / 256 rounded up)  converts logits to integers, suppressed ids to `never`; finds the best of each block of 256
//         edit       (1)                   applies bias and penalties; omitted if there are none
//         blocks     (n / 256 rounded up)  finds the blocks' best again, after an edit
//         greedy     (1)                   with temperature 0: takes the largest, the lowest id among equals; ends the draw
// and then, with a top-k of at most half the number of blocks, so that few tokens can be among the first k, or with few tokens:
//         threshold  (1)                   finds the best of all, and how far from it a candidate may be: if k blocks have a logit
//                                          of at least x each, the k-th largest logit is at least x
//         gather     (n / 256 rounded up)  collects the candidates, in any order
//         choose     (1)                   applies the cuts and draws among the candidates; in the rare case that they are too many
//                                          for their list, among all tokens
// or otherwise:
//         cut        (n / 1024, and more)  once for each step of the cuts and of the draw: see sampler_cuts.wgsl
//         last       (1)                   takes the token that the steps have found
//
// For log-probabilities, the dispatches of sampler_logprobs.wgsl follow.
//
// Nothing is sorted and no list is compacted: each cut is a border in an order (key, id), and a token survives if it is within
// both borders, one in the order of distances and one in the order of deviations from the typical distance. A border is found
// digit by digit (10 bits) with a histogram of the survivors' weights.
//
//   logits      f32 [rows, n], read as bits
//   settings    see below; the host writes it when the parameters change
//   fixed       i32 [n]     counts  u32 [n], zeros between draws     blocks  i32 [n / 256 rounded up] × (best, NaN seen)
//   candidates  u32 [the smaller of n and 8192] × (id, distance)     header, cuts, record  the structs below
//   state       what persists from token to token: the number of draws so far (the random numbers' counter), a ring of
//               `results` results (token, status) and a ring of `history` tokens for the penalties
//   run         with settings.advance the run becomes one of the drawn token, which follows the run's last

#include "run.wgsl"
#include "wide.wgsl"

override n: u32;
const block = 256u;
const threads = 256u;
const capacity = 8192u;      // of the list of candidates
override results: u32 = 1u;
override history: u32 = 1u;

struct Settings {
    temperature: vec2<u32>, // (factor, shift) for weight_of
    one:         vec2<u32>, // the same for temperature 1
    seed:        vec2<u32>,
    row:         u32,       // of the logits
    advance:     u32,
    top_k:       u32,       // 0: off, here and below
    typical:     u32,       // 1: on
    typical_p:   u32,       // in units of 2^-32
    top:         u32,       // 1: on
    top_p:       u32,
    reach:       u32,       // min-p: the largest distance; 0xffffffff: off
    divide:      u32,       // repetition penalty: factor for logits above 0, in units of 2^-24
    multiply:    u32,       // and for all others
    presence:    i32,       // in units of 2^-16
    frequency:   i32,
    window:      u32,       // how many tokens of the history the penalties consider
    biases:      u32,
    suppress:    u32,       // 1: `rest` starts with one bit per id
    finite:      u32,       // 1: an infinite logit counts as NaN
    exponents:   array<u32, 257>, // round(2^31 · 2^(−i/256)), i ≤ 256
    alternatives: u32,            // number of alternatives in the log-probabilities, at most 20
    step_count:  u32,
    steps:       array<u32, 16>,  // see sampler_cuts.wgsl
    rest:        array<u32>,      // n / 32 words rounded up, if any; then biases × (token, bias in 2^-16, or "never"), by token
}

struct Header {
    best:     i32,
    farthest: u32,
    status:   u32,
    spare:    u32,
    count:    atomic<u32>, // of candidates; above the capacity, the list is incomplete
    widest:   atomic<u32>, // the largest distance of any token
}

// What the steps have found so far.
struct CutState {
    best:    i32,
    status:  u32,
    mean:    u32,
    nearest: u32,
    reach:   vec2<u32>, // (distance, id): tokens after this are cut off
    deviant: vec2<u32>, // (deviation, id): the same
    before:  vec2<u32>, // the sum of the weights before the border that is being sought,
    goal:    vec2<u32>, // and the sum at the border
    prefix:  u32,       // the digits of its key that are known
    spare:   u32,
}

struct Cuts {
    states: array<CutState, 2>,         // a step reads one and writes the other
    sums:   array<atomic<u32>, 9216>,   // three histograms: one is read, one filled and one cleared; zeros between draws
    parts:  array<vec4<u32>>,           // two sets, each with the sums of every part of 1024 tokens
}

struct Record {
    token:     u32,
    status:    u32,
    known:     u32, // 0: the token's logit is −infinity, so it has no log-probability
    logit:     f32,
    largest:   f32,
    sum:       f32,
    likeliest: array<vec2<u32>, 20>, // (id, logit), likeliest first; id 0xffffffff: no more
}

const drawn = 0u;        // status of a result
const not_a_number = 1u; // the logits contain NaN, or an infinity if settings.finite
const nothing_left = 2u; // every token is `never`

struct State {
    draws:     vec2<u32>,
    appended:  u32, // tokens appended to the history so far
    delivered: u32, // results so far; the newest is at (delivered − 1) % results
    rings:     array<u32>, // results × (token, status), then history × token: the i-th of the history is at i % history
}

#if STAGE == convert
@group(0) @binding(0) var<storage, read_write> logits:   array<u32>;
@group(0) @binding(1) var<storage, read>       settings: Settings;
@group(0) @binding(2) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(3) var<storage, read_write> blocks:   array<vec2<i32>>;
#include "sampler_math.wgsl"
#elif STAGE == edit
@group(0) @binding(0) var<storage, read>       settings: Settings;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> counts:   array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> state:    State;
#include "sampler_math.wgsl"
#elif STAGE == blocks
const never = -0x7fffffff - 1;
@group(0) @binding(0) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(1) var<storage, read_write> blocks:   array<vec2<i32>>;
#elif STAGE == greedy
const never = -0x7fffffff - 1;
@group(0) @binding(0) var<storage, read>       settings: Settings;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(3) var<storage, read_write> state:    State;
@group(0) @binding(4) var<storage, read_write> run:      Run;
#elif STAGE == threshold
@group(0) @binding(0) var<storage, read>       settings: Settings;
@group(0) @binding(1) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(2) var<storage, read_write> header:   Header;
#include "sampler_math.wgsl"
#elif STAGE == gather
const never = -0x7fffffff - 1;
@group(0) @binding(0) var<storage, read_write> fixed:      array<i32>;
@group(0) @binding(1) var<storage, read_write> header:     Header;
@group(0) @binding(2) var<storage, read_write> candidates: array<vec2<u32>>;
#elif STAGE == cut
@group(0) @binding(0) var<storage, read>       settings: Settings;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(3) var<storage, read_write> cuts:     Cuts;
@group(0) @binding(4) var<storage, read_write> state:    State;
#include "sampler_math.wgsl"
#elif STAGE == last
@group(0) @binding(0) var<storage, read>       settings: Settings;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(3) var<storage, read_write> cuts:     Cuts;
@group(0) @binding(4) var<storage, read_write> state:    State;
@group(0) @binding(5) var<storage, read_write> run:      Run;
#include "sampler_math.wgsl"
#elif STAGE == likely
@group(0) @binding(0) var<storage, read_write> logits:   array<u32>;
@group(0) @binding(1) var<storage, read>       settings: Settings;
@group(0) @binding(2) var<storage, read_write> parts:    array<u32>;
#elif STAGE == logprobs
@group(0) @binding(0) var<storage, read_write> logits:   array<u32>;
@group(0) @binding(1) var<storage, read>       settings: Settings;
@group(0) @binding(2) var<storage, read_write> parts:    array<u32>;
@group(0) @binding(3) var<storage, read_write> state:    State;
@group(0) @binding(4) var<storage, read_write> record:   Record;
#else
@group(0) @binding(0) var<storage, read>       settings:   Settings;
@group(0) @binding(1) var<storage, read_write> header:     Header;
@group(0) @binding(2) var<storage, read_write> candidates: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> fixed:      array<i32>;
@group(0) @binding(4) var<storage, read_write> state:      State;
@group(0) @binding(5) var<storage, read_write> run:        Run;
#include "sampler_math.wgsl"
#endif

// ---- the best of each block ----

#if BLOCKS
var<workgroup> best: array<vec2<i32>, block>; // (largest, NaN seen)

fn block_best(value: i32, bad: i32, group: u32, thread: u32) {
    best[thread] = vec2<i32>(value, bad);
    for (var half = block / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { best[thread] = max(best[thread], best[thread + half]); }
    }
    if (thread == 0u) { blocks[group] = best[0]; }
}
#endif

#if STAGE == convert
@compute @workgroup_size(block)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let id = at.x;
    var value = never;
    var bad = 0;
    if (id < n) {
        let bits = logits[settings.row * n + id];
        value = fixed_from_bits(bits);
        bad = select(0, 1, (bits & 0x7fffffffu) > 0x7f800000u - settings.finite);
        if (settings.suppress == 1u && ((settings.rest[id / 32u] >> (id % 32u)) & 1u) == 1u) { value = never; }
        fixed[id] = value;
    }
    block_best(value, bad, group.x, thread);
}
#elif STAGE == blocks
@compute @workgroup_size(block)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    var value = never;
    if (at.x < n) { value = fixed[at.x]; }
    block_best(value, blocks[group.x].y, group.x, thread); // `convert` has already looked for NaN
}
#elif STAGE == edit
// Biases are sorted by token; several for one token keep their order, and the thread of the first applies them all.
fn apply_biases(thread: u32) {
    let list = select(0u, (n + 31u) / 32u, settings.suppress == 1u);
    for (var i = thread; i < settings.biases; i += threads) {
        let token = settings.rest[list + 2u * i];
        if (i > 0u && settings.rest[list + 2u * i - 2u] == token) { continue; }
        var value = fixed[token];
        for (var j = i; j < settings.biases && settings.rest[list + 2u * j] == token; j++) {
            let bias = bitcast<i32>(settings.rest[list + 2u * j + 1u]);
            if (bias == never) { value = never; }
            if (value != never) { value = clamp(value + bias, -limit, limit); }
        }
        fixed[token] = value;
    }
}

fn penalised(value: i32, times: u32) -> i32 {
    var result = value;
    if (settings.divide != 1u << 24u || settings.multiply != 1u << 24u) {
        result = fixed_scale(value, select(settings.multiply, settings.divide, value > 0));
    }
    let size = wide_product(u32(abs(settings.frequency)), times);
    let frequency = select(size, wide_subtract(vec2<u32>(), size), vec2<bool>(settings.frequency < 0));
    let penalty = wide_add(wide_from(settings.presence), frequency);
    return fixed_clamp(wide_subtract(wide_from(result), penalty));
}

@compute @workgroup_size(threads)
fn main(@builtin(local_invocation_index) thread: u32) {
    apply_biases(thread);
    let window = min(min(settings.window, state.appended), history);
    let first = state.appended - window;
    storageBarrier();
    for (var i = thread; i < window; i += threads) {
        let token = state.rings[2u * results + (first + i) % history];
        if (token < n) { atomicAdd(&counts[token], 1u); }
    }
    storageBarrier();
    for (var i = thread; i < window; i += threads) {
        let token = state.rings[2u * results + (first + i) % history];
        if (token >= n) { continue; }
        let times = atomicExchange(&counts[token], 0u); // handles each token once, and resets the count for the next draw
        if (times > 0u && fixed[token] != never) { fixed[token] = penalised(fixed[token], times); }
    }
}
#endif

// ---- ending a draw ----

#if FINISH
// Makes a run of one token of text that follows the last token of this one.
fn advance_run(token: u32) {
    var next = run.records[run.tokens - 1u];
    next.id = token;
    next.position += 1u;
    next.at += 1u;
    next.span_first = 0u;
    next.span_count = 1u;
    next.full_last = next.at;
    next.sliding_first = next.at + 1u - min(run.window, next.at + 1u);
    next.sliding_last = next.at;
    run.records[0] = next;
    run.tokens = 1u;
    run.outputs = 1u;
}

fn finish(token: u32, status: u32) {
    state.draws = wide_add(state.draws, vec2<u32>(1u, 0u));
    state.rings[state.delivered % results * 2u]      = token;
    state.rings[state.delivered % results * 2u + 1u] = status;
    state.delivered += 1u;
    state.rings[2u * results + state.appended % history] = token;
    state.appended += 1u;
    if (settings.advance == 1u) { advance_run(token); }
}
#endif

#if STAGE == greedy
var<workgroup> largest: atomic<i32>;
var<workgroup> lowest_block: atomic<u32>;
var<workgroup> lowest_id: atomic<u32>;
var<workgroup> bad: atomic<i32>;

@compute @workgroup_size(threads)
fn main(@builtin(local_invocation_index) thread: u32) {
    let count = (n + block - 1u) / block;
    if (thread == 0u) {
        atomicStore(&largest, never);
        atomicStore(&lowest_block, 0xffffffffu);
        atomicStore(&lowest_id, 0xffffffffu);
        atomicStore(&bad, 0);
    }
    workgroupBarrier();
    var mine = vec2<i32>(never, 0);
    for (var i = thread; i < count; i += threads) { mine = max(mine, blocks[i]); }
    atomicMax(&largest, mine.x);
    atomicMax(&bad, mine.y);
    workgroupBarrier();
    let best = atomicLoad(&largest);
    for (var i = thread; i < count; i += threads) {
        if (blocks[i].x == best) { atomicMin(&lowest_block, i); }
    }
    workgroupBarrier();
    let id = atomicLoad(&lowest_block) * block + thread;
    if (id < n && fixed[id] == best) { atomicMin(&lowest_id, id); }
    workgroupBarrier();
    if (thread > 0u) { return; }
    if (atomicLoad(&bad) != 0) { finish(0u, not_a_number); }
    else if (best == never) { finish(0u, nothing_left); }
    else { finish(atomicLoad(&lowest_id), drawn); }
}
#endif

#if STAGE == gather
var<workgroup> here:  atomic<u32>;
var<workgroup> wide:  atomic<u32>;
var<workgroup> begin: u32;

@compute @workgroup_size(block)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    if (thread == 0u) {
        atomicStore(&here, 0u);
        atomicStore(&wide, 0u);
    }
    workgroupBarrier();
    let id = at.x;
    var distance = 0u;
    var candidate = false;
    var place = 0u;
    if (id < n && fixed[id] != never) {
        distance = bitcast<u32>(header.best) - bitcast<u32>(fixed[id]);
        candidate = distance <= header.farthest;
        atomicMax(&wide, distance);
        if (candidate) { place = atomicAdd(&here, 1u); }
    }
    workgroupBarrier();
    if (thread == 0u) {
        begin = atomicAdd(&header.count, atomicLoad(&here));
        atomicMax(&header.widest, atomicLoad(&wide));
    }
    workgroupBarrier();
    if (candidate && begin + place < min(n, capacity)) { candidates[begin + place] = vec2<u32>(id, distance); }
}
#endif

// ---- borders ----

#if BORDER
#include "sampler_border.wgsl"
#endif

#if STAGE == threshold
@compute @workgroup_size(threads)
fn main(@builtin(local_invocation_index) thread: u32) {
    let count = (n + block - 1u) / block;
    if (thread == 0u) {
        atomicStore(&most, never);
        atomicStore(&flags, 0);
        atomicStore(&alive, 0u);
        item_count = count;
        first_digit = 0u;
    }
    workgroupBarrier();
    for (var i = thread; i < count; i += threads) {
        atomicMax(&most, blocks[i].x);
        atomicMax(&flags, blocks[i].y);
        if (blocks[i].x != never) { atomicAdd(&alive, 1u); }
    }
    workgroupBarrier();
    best_of_all = atomicLoad(&most);
    let k = settings.top_k;
    let border = find_border(false, vec2<u32>(), vec2<u32>(k, 0u), thread);
    if (thread > 0u) { return; }
    header.best = best_of_all;
    header.farthest = select(0xffffffffu, border.x, k <= atomicLoad(&alive));
    header.status = select(select(drawn, nothing_left, best_of_all == never), not_a_number, atomicLoad(&flags) != 0);
    atomicStore(&header.count, 0u);
    atomicStore(&header.widest, 0u);
}
#endif

#if STAGE == choose
#include "sampler_choose.wgsl"
#endif

#if CUTS
#include "sampler_cuts.wgsl"
#endif

#if LOGPROBS
#include "sampler_logprobs.wgsl"
#endif
