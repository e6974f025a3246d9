// Chooses a token on the GPU, with exactly the algorithm described at the top of src/text/sampler.c; the result does not depend on
// the order of additions. One draw is these dispatches, where n is the vocabulary (at most 2^20). Several rows draw at once, each a
// workgroup in y, with settings and a state of its own; a row takes part in a stage if its settings say so (`how`):
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
//   settings    [rows], see below; the host writes a row when its parameters change
//   rest        from settings.rest_at on: n / 32 words rounded up, one bit per suppressed id, if settings.suppress; then
//               biases × (token, bias in 2^-16, or "never"), by token
//   fixed       i32 [n]     counts  u32 [n], zeros between draws     blocks  i32 [n / 256 rounded up] × (best, NaN seen)
//   candidates  u32 [the smaller of n and 8192] × (id, distance)     header, cuts, record  the structs below; all of these per row
//   state       what persists from token to token: the number of draws so far (the random numbers' counter), a ring of
//               `results` results (token, status) and a ring of `history` tokens for the penalties: see state_word and below
//   run         with settings.advance a row's record becomes one of the drawn token, which follows it; if there is one row, it follows
//               the last token of the run, which may be a whole prompt

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
    suppress:    u32,       // 1: `rest` has one bit per id
    finite:      u32,       // 1: an infinite logit counts as NaN
    exponents:   array<u32, 257>, // round(2^31 · 2^(−i/256)), i ≤ 256
    alternatives: u32,            // number of alternatives in the log-probabilities, at most 20
    step_count:  u32,
    steps:       array<u32, 16>,  // see sampler_cuts.wgsl
    how:         u32,             // the stages in which the row takes part, if there are several rows
    rest_at:     u32,
    spare:       u32,
}

const by_greedy = 1u;     // bits of settings.how
const by_candidates = 2u;
const by_steps = 4u;
const by_edits = 8u;
const by_logprobs = 16u;
const by_any = 7u;

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
    ties:    u32,       // how many of the tokens at reach.x survive; 0xffffffff: those up to reach.y
}

struct Cuts {
    states: array<CutState, 2>,         // a step reads one and writes the other
    sums:   array<atomic<u32>, 9216>,   // three histograms: one is read, one filled and one cleared; zeros between draws
    parts:  array<vec4<u32>, 2048>,     // two sets, each with the sums of every part of 1024 tokens
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
const halted       = 4u; // the run lacks experts

// A row's share of the buffers. Private, so it must not decide about control flow with barriers: what does is passed along.
var<private> row: u32;
var<private> rows: u32;

fn enter(group: vec3<u32>, groups: vec3<u32>) {
    row = group.y;
    rows = groups.y;
}

// The state: four words of each row, then the rows' rings of results, then their histories.
const draws = 0u;     // two words
const appended = 2u;  // tokens appended to the history so far; the i-th is at i % history
const delivered = 3u; // results so far; the newest is at (delivered − 1) % results
fn state_word(word: u32) -> u32 { return 4u * row + word; }
fn result_at(i: u32) -> u32 { return 4u * rows + 2u * (row * results + i % results); }
fn history_at(i: u32) -> u32 { return (4u + 2u * results) * rows + row * history + i % history; }

fn blocks_of_row() -> u32 { return (n + block - 1u) / block; }

#if STAGE == convert
@group(0) @binding(0) var<storage, read_write> logits:   array<u32>;
@group(0) @binding(1) var<storage, read>       settings: array<Settings>;
@group(0) @binding(2) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(3) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(4) var<storage, read>       rest:     array<u32>;
#include "sampler_math.wgsl"
#elif STAGE == edit
@group(0) @binding(0) var<storage, read>       settings: array<Settings>;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> counts:   array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> state:    array<u32>;
@group(0) @binding(4) var<storage, read>       rest:     array<u32>;
#include "sampler_math.wgsl"
#elif STAGE == blocks
const never = -0x7fffffff - 1;
@group(0) @binding(0) var<storage, read>       settings: array<Settings>;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> blocks:   array<vec2<i32>>;
#elif STAGE == greedy
const never = -0x7fffffff - 1;
@group(0) @binding(0) var<storage, read>       settings: array<Settings>;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(3) var<storage, read_write> state:    array<u32>;
@group(0) @binding(4) var<storage, read_write> run:      Run;
#elif STAGE == threshold
@group(0) @binding(0) var<storage, read>       settings: array<Settings>;
@group(0) @binding(1) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(2) var<storage, read_write> header:   array<Header>;
#include "sampler_math.wgsl"
#elif STAGE == gather
const never = -0x7fffffff - 1;
@group(0) @binding(0) var<storage, read>       settings:   array<Settings>;
@group(0) @binding(1) var<storage, read_write> fixed:      array<i32>;
@group(0) @binding(2) var<storage, read_write> header:     array<Header>;
@group(0) @binding(3) var<storage, read_write> candidates: array<vec2<u32>>;
#elif STAGE == cut
@group(0) @binding(0) var<storage, read>       settings: array<Settings>;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(3) var<storage, read_write> cuts:     array<Cuts>;
@group(0) @binding(4) var<storage, read_write> state:    array<u32>;
#include "sampler_math.wgsl"
#elif STAGE == last
@group(0) @binding(0) var<storage, read>       settings: array<Settings>;
@group(0) @binding(1) var<storage, read_write> fixed:    array<i32>;
@group(0) @binding(2) var<storage, read_write> blocks:   array<vec2<i32>>;
@group(0) @binding(3) var<storage, read_write> cuts:     array<Cuts>;
@group(0) @binding(4) var<storage, read_write> state:    array<u32>;
@group(0) @binding(5) var<storage, read_write> run:      Run;
#include "sampler_math.wgsl"
#elif STAGE == likely
@group(0) @binding(0) var<storage, read_write> logits:   array<u32>;
@group(0) @binding(1) var<storage, read>       settings: array<Settings>;
@group(0) @binding(2) var<storage, read_write> parts:    array<u32>;
#elif STAGE == logprobs
@group(0) @binding(0) var<storage, read_write> logits:   array<u32>;
@group(0) @binding(1) var<storage, read>       settings: array<Settings>;
@group(0) @binding(2) var<storage, read_write> parts:    array<u32>;
@group(0) @binding(3) var<storage, read_write> state:    array<u32>;
@group(0) @binding(4) var<storage, read_write> record:   array<Record>;
#else
@group(0) @binding(0) var<storage, read>       settings:   array<Settings>;
@group(0) @binding(1) var<storage, read_write> header:     array<Header>;
@group(0) @binding(2) var<storage, read_write> candidates: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> fixed:      array<i32>;
@group(0) @binding(4) var<storage, read_write> state:      array<u32>;
@group(0) @binding(5) var<storage, read_write> run:        Run;
#include "sampler_math.wgsl"
#endif

// Whether a row takes part in a stage. One row always does: what it skips is not dispatched.
fn takes_part(at: u32, among: u32, bits: u32) -> bool { return among == 1u || (settings[at].how & bits) != 0u; }

// ---- the best of each block ----

#if BLOCKS
var<workgroup> best: array<vec2<i32>, block>; // (largest, NaN seen)

fn block_best(value: i32, bad: i32, group: u32, thread: u32) {
    best[thread] = vec2<i32>(value, bad);
    for (var half = block / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { best[thread] = max(best[thread], best[thread + half]); }
    }
    if (thread == 0u) { blocks[row * blocks_of_row() + group] = best[0]; }
}
#endif

#if STAGE == convert
@compute @workgroup_size(block)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_any)) { return; }
    let id = at.x;
    var value = never;
    var bad = 0;
    if (id < n) {
        let bits = logits[settings[row].row * n + id];
        value = fixed_from_bits(bits);
        bad = select(0, 1, (bits & 0x7fffffffu) > 0x7f800000u - settings[row].finite);
        if (settings[row].suppress == 1u && ((rest[settings[row].rest_at + id / 32u] >> (id % 32u)) & 1u) == 1u) { value = never; }
        fixed[row * n + id] = value;
    }
    block_best(value, bad, group.x, thread);
}
#elif STAGE == blocks
@compute @workgroup_size(block)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_edits)) { return; }
    var value = never;
    if (at.x < n) { value = fixed[row * n + at.x]; }
    block_best(value, blocks[row * blocks_of_row() + group.x].y, group.x, thread); // `convert` has already looked for NaN
}
#elif STAGE == edit
// Biases are sorted by token; several for one token keep their order, and the thread of the first applies them all.
fn apply_biases(thread: u32) {
    let list = settings[row].rest_at + select(0u, (n + 31u) / 32u, settings[row].suppress == 1u);
    for (var i = thread; i < settings[row].biases; i += threads) {
        let token = rest[list + 2u * i];
        if (i > 0u && rest[list + 2u * i - 2u] == token) { continue; }
        var value = fixed[row * n + token];
        for (var j = i; j < settings[row].biases && rest[list + 2u * j] == token; j++) {
            let bias = bitcast<i32>(rest[list + 2u * j + 1u]);
            if (bias == never) { value = never; }
            if (value != never) { value = clamp(value + bias, -limit, limit); }
        }
        fixed[row * n + token] = value;
    }
}

fn penalised(value: i32, times: u32) -> i32 {
    var result = value;
    if (settings[row].divide != 1u << 24u || settings[row].multiply != 1u << 24u) {
        result = fixed_scale(value, select(settings[row].multiply, settings[row].divide, value > 0));
    }
    let size = wide_product(u32(abs(settings[row].frequency)), times);
    let frequency = select(size, wide_subtract(vec2<u32>(), size), vec2<bool>(settings[row].frequency < 0));
    let penalty = wide_add(wide_from(settings[row].presence), frequency);
    return fixed_clamp(wide_subtract(wide_from(result), penalty));
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_edits)) { return; }
    apply_biases(thread);
    let count = state[state_word(appended)];
    let window = min(min(settings[row].window, count), history);
    let first = count - window;
    storageBarrier();
    for (var i = thread; i < window; i += threads) {
        let token = state[history_at(first + i)];
        if (token < n) { atomicAdd(&counts[row * n + token], 1u); }
    }
    storageBarrier();
    for (var i = thread; i < window; i += threads) {
        let token = state[history_at(first + i)];
        if (token >= n) { continue; }
        let at = row * n + token;
        let times = atomicExchange(&counts[at], 0u); // handles each token once, and resets the count for the next draw
        if (times > 0u && fixed[at] != never) { fixed[at] = penalised(fixed[at], times); }
    }
}
#endif

#if COUNTED
fn draws_so_far() -> vec2<u32> { return vec2<u32>(state[state_word(draws)], state[state_word(draws) + 1u]); }
#endif

// ---- ending a draw ----

#if FINISH
// Makes the record of the token of text that follows. One row follows the last token of the run, and makes it a run of one token.
fn advance_run(token: u32) {
    var next = run.records[select(row, run.tokens - 1u, rows == 1u)];
    next.id = token;
    next.position += 1u;
    next.at += 1u;
    next.span_first = row;
    next.span_count = 1u;
    next.full_last = next.at;
    next.sliding_first = next.at + 1u - min(run.window, next.at + 1u);
    next.sliding_last = next.at;
    run.records[row] = next;
    if (rows > 1u) { return; }
    run.tokens = 1u;
    run.outputs = 1u;
}

fn finish(token: u32, status: u32) {
    if (run.tokens == 0u) { // the run was halted (moe.wgsl, KIND slots): its logits mean nothing, and it will be continued
        let result = result_at(state[state_word(delivered)] + results - 1u);
        state[result] = 0u;
        state[result + 1u] = halted;
        return;
    }
    let next = wide_add(draws_so_far(), vec2<u32>(1u, 0u));
    state[state_word(draws)] = next.x;
    state[state_word(draws) + 1u] = next.y;
    let result = result_at(state[state_word(delivered)]);
    state[result] = token;
    state[result + 1u] = status;
    state[state_word(delivered)] += 1u;
    state[history_at(state[state_word(appended)])] = token;
    state[state_word(appended)] += 1u;
    if (settings[row].advance == 1u) { advance_run(token); }
}
#endif

#if STAGE == greedy
var<workgroup> largest: atomic<i32>;
var<workgroup> lowest_block: atomic<u32>;
var<workgroup> lowest_id: atomic<u32>;
var<workgroup> bad: atomic<i32>;

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_greedy)) { return; }
    let count = blocks_of_row();
    let first = row * count;
    if (thread == 0u) {
        atomicStore(&largest, never);
        atomicStore(&lowest_block, 0xffffffffu);
        atomicStore(&lowest_id, 0xffffffffu);
        atomicStore(&bad, 0);
    }
    workgroupBarrier();
    var mine = vec2<i32>(never, 0);
    for (var i = thread; i < count; i += threads) { mine = max(mine, blocks[first + i]); }
    atomicMax(&largest, mine.x);
    atomicMax(&bad, mine.y);
    workgroupBarrier();
    let best = atomicLoad(&largest);
    for (var i = thread; i < count; i += threads) {
        if (blocks[first + i].x == best) { atomicMin(&lowest_block, i); }
    }
    workgroupBarrier();
    let id = atomicLoad(&lowest_block) * block + thread;
    if (id < n && fixed[row * n + id] == best) { atomicMin(&lowest_id, id); }
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
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_candidates)) { return; }
    if (thread == 0u) {
        atomicStore(&here, 0u);
        atomicStore(&wide, 0u);
    }
    workgroupBarrier();
    let id = at.x;
    var distance = 0u;
    var candidate = false;
    var place = 0u;
    if (id < n && fixed[row * n + id] != never) {
        distance = bitcast<u32>(header[row].best) - bitcast<u32>(fixed[row * n + id]);
        candidate = distance <= header[row].farthest;
        atomicMax(&wide, distance);
        if (candidate) { place = atomicAdd(&here, 1u); }
    }
    workgroupBarrier();
    if (thread == 0u) {
        begin = atomicAdd(&header[row].count, atomicLoad(&here));
        atomicMax(&header[row].widest, atomicLoad(&wide));
    }
    workgroupBarrier();
    let room = min(n, capacity);
    if (candidate && begin + place < room) { candidates[row * room + begin + place] = vec2<u32>(id, distance); }
}
#endif

// ---- borders ----

#if BORDER
#include "sampler_border.wgsl"
#endif

#if STAGE == threshold
@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_candidates)) { return; }
    let count = blocks_of_row();
    let first = row * count;
    if (thread == 0u) {
        atomicStore(&most, never);
        atomicStore(&flags, 0);
        atomicStore(&alive, 0u);
        item_count = count;
        first_digit = 0u;
    }
    workgroupBarrier();
    for (var i = thread; i < count; i += threads) {
        atomicMax(&most, blocks[first + i].x);
        atomicMax(&flags, blocks[first + i].y);
        if (blocks[first + i].x != never) { atomicAdd(&alive, 1u); }
    }
    workgroupBarrier();
    best_of_all = atomicLoad(&most);
    let k = settings[row].top_k;
    let border = find_border(false, vec2<u32>(), vec2<u32>(k, 0u), thread);
    if (thread > 0u) { return; }
    header[row].best = best_of_all;
    header[row].farthest = select(0xffffffffu, border.x, k <= atomicLoad(&alive));
    header[row].status = select(select(drawn, nothing_left, best_of_all == never), not_a_number, atomicLoad(&flags) != 0);
    atomicStore(&header[row].count, 0u);
    atomicStore(&header[row].widest, 0u);
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
