// The stages `cut` and `last` of sampler.wgsl: the cuts and the draw among all tokens, by many workgroups.
//
// Every cut, and the draw, asks for a border: the token at which the weights, added in the order (key, id), reach a goal. A border
// takes two to four dispatches of `cut`, each of which goes once over all tokens:
//
//   digit  adds the weights up by a digit of the key (key >> shift), among the tokens that have the digits found so far
//   ties   adds up, for each part of 1024 tokens, the weights of the tokens that have the key found, or after top-k their number and
//          what the mean distance needs
//   mean   adds up what the mean distance needs, before the cut by typical-p without top-k
//
// Tokens at the same distance weigh the same. So top-p, and top-k without typical-p, need no ids: they find a distance and how many of its
// tokens survive (now.ties). The draw cannot come past these, because no goal is beyond the sum of the weights.
//
// Each dispatch begins with what the one before it left: every workgroup searches its sums for itself (`resume`), because no workgroup
// can wait for another. The host wrote the list of steps (settings.steps). A dispatch knows its own by the number of workgroups: it has
// one per part, and as many more as steps came before it.
//
// A step reads 4 bytes of each token, and each workgroup 12 KB of sums: on a large GPU that takes a few µs, as long as a launch does.
//
// Keys are distances from the nearest survivor, or deviations from the mean. A first digit has up to 1536 values, which is enough for
// all weights above 0 at temperature 1 with a shift of 10, and at temperature 100 with a shift of 20. Top-k counts tokens: counts take
// half the memory of weights, so a first digit may have 3072 values, which is enough for any distance.

const part_tokens = 1024u;
const weighed = 1536u;   // buckets of weights: low words, then high words
const counted = 3072u;   // or buckets of counts
const bunch_count = 16u; // sums of 16 threads each, so that a search takes three short loops

// A step.
const of_ties = 1u;
const of_mean = 2u;
const by_top_k = 0u;
const by_typical = 1u;
const by_top_p = 2u;

fn step_kind(what: u32) -> u32 { return what & 15u; }
fn step_cut(what: u32) -> u32 { return (what >> 4u) & 15u; }
fn step_shift(what: u32) -> u32 { return (what >> 8u) & 255u; }
fn step_first(what: u32) -> bool { return ((what >> 16u) & 1u) == 1u; }
fn step_closes(what: u32) -> bool { return ((what >> 17u) & 1u) == 1u; } // the last of a border without ids

fn part_count() -> u32 { return (n + part_tokens - 1u) / part_tokens; }

var<workgroup> buckets:     array<atomic<u32>, counted>;
var<workgroup> thread_sums: array<vec2<u32>, threads>;
var<workgroup> bunches:     array<vec2<u32>, bunch_count>;
var<workgroup> totals:      array<atomic<u32>, 4>;
var<workgroup> least:       array<atomic<u32>, 2>;
var<workgroup> most:        array<atomic<i32>, 2>;

var<private> now:   CutState;
var<private> found: u32; // the id at the last border

// ---- tokens ----

struct Token {
    distance: u32,
    key:      u32,
    survives: bool,
}

fn token_of(value: i32, id: u32, cut: u32) -> Token {
    let distance = bitcast<u32>(now.best) - bitcast<u32>(value);
    let deviation = select(now.mean - distance, distance - now.mean, distance > now.mean);
    let survives = value != never && not_behind(distance, id, now.reach) && not_behind(deviation, id, now.deviant);
    return Token(distance, select(distance - now.nearest, deviation, cut == by_typical), survives);
}

fn token_weight(token: Token, cut: u32) -> u32 {
    if (cut == by_top_k) { return 1u; }
    if (cut <= by_top_p) { return weight_of(token.distance - now.nearest, settings[row].one); }
    return weight_of(token.distance - now.nearest, settings[row].temperature);
}

fn value_of(id: u32) -> i32 {
    if (id < n) { return fixed[row * n + id]; }
    return never;
}

// ---- searching sums ----

fn bucket_sum(i: u32, counts: bool) -> vec2<u32> {
    if (counts) { return vec2<u32>(atomicLoad(&buckets[i]), 0u); }
    return vec2<u32>(atomicLoad(&buckets[i]), atomicLoad(&buckets[weighed + i]));
}

// Adds up the buckets, so that find_bucket can search them. Returns their sum.
fn add_buckets(counts: bool, thread: u32) -> vec2<u32> {
    let each = select(weighed, counted, counts) / threads;
    workgroupBarrier();
    var sum = vec2<u32>();
    for (var i = thread * each; i < (thread + 1u) * each; i++) { sum = wide_add(sum, bucket_sum(i, counts)); }
    thread_sums[thread] = sum;
    workgroupBarrier();
    if (thread < bunch_count) {
        sum = vec2<u32>();
        for (var i = thread * 16u; i < (thread + 1u) * 16u; i++) { sum = wide_add(sum, thread_sums[i]); }
        bunches[thread] = sum;
    }
    workgroupBarrier();
    sum = vec2<u32>();
    for (var i = 0u; i < bunch_count; i++) { sum = wide_add(sum, bunches[i]); }
    return sum;
}

// Adds to now.before, unless that reaches the goal.
fn stays_before(more: vec2<u32>) -> bool {
    let after = wide_add(now.before, more);
    if (!wide_less(after, now.goal)) { return false; }
    now.before = after;
    return true;
}

// The bucket in which the sum reaches the goal. All threads find the same.
fn find_bucket(counts: bool) -> u32 {
    let each = select(weighed, counted, counts) / threads;
    var at = 0u;
    for (; at < bunch_count - 1u; at++) { if (!stays_before(bunches[at])) { break; } }
    at *= 16u;
    for (let end = at + 15u; at < end; at++) { if (!stays_before(thread_sums[at])) { break; } }
    at *= each;
    for (let end = at + each - 1u; at < end; at++) { if (!stays_before(bucket_sum(at, counts))) { break; } }
    return at;
}

// ---- what the step before left ----

// The best of all, from the blocks.
fn begin(thread: u32) {
    if (thread == 0u) {
        atomicStore(&most[0], never);
        atomicStore(&most[1], 0);
    }
    workgroupBarrier();
    var mine = vec2<i32>(never, 0);
    let count = blocks_of_row();
    for (var i = thread; i < count; i += threads) { mine = max(mine, blocks[row * count + i]); }
    atomicMax(&most[0], mine.x);
    atomicMax(&most[1], mine.y);
    workgroupBarrier();
    now.best = atomicLoad(&most[0]);
    now.status = select(select(drawn, nothing_left, now.best == never), not_a_number, atomicLoad(&most[1]) != 0);
    now.reach = vec2<u32>(0xffffffffu);
    now.deviant = vec2<u32>(0xffffffffu);
    now.ties = 0xffffffffu;
}

fn goal_of(cut: u32, sum: vec2<u32>) -> vec2<u32> {
    if (cut == by_top_k) { return vec2<u32>(min(settings[row].top_k, sum.x), 0u); }
    if (cut == by_typical) { return share_of(settings[row].typical_p, sum); }
    if (cut == by_top_p) { return share_of(settings[row].top_p, sum); }
    return wide_add(wide_multiply_high(philox(draws_so_far(), settings[row].seed), sum), vec2<u32>(1u, 0u));
}

fn resume_digit(number: u32, what: u32, thread: u32) {
    let source = (number - 1u) % 3u * counted;
    for (var i = thread; i < counted; i += threads) { atomicStore(&buckets[i], atomicLoad(&cuts[row].sums[source + i])); }
    let counts = step_cut(what) == by_top_k;
    let sum = add_buckets(counts, thread);
    if (step_first(what)) {
        now.before = vec2<u32>();
        now.goal = goal_of(step_cut(what), sum);
        now.prefix = 0u;
    }
    now.prefix = (now.prefix << 10u) | find_bucket(counts);
    if (step_closes(what)) { close_border(step_cut(what)); }
}

fn close_border(cut: u32) {
    let distance = now.prefix + now.nearest;
    if (distance != now.reach.x) { now.reach = vec2<u32>(distance, 0xffffffffu); }
    let weight = vec2<u32>(token_weight(Token(distance, now.prefix, true), cut), 0u);
    let left = wide_subtract(now.goal, now.before);
    now.ties = 1u;
    if (wide_less(weight, left)) { now.ties = wide_quotient(wide_add(left, wide_subtract(weight, vec2<u32>(1u, 0u))), weight); }
}

fn resume_ties(number: u32, cut: u32, thread: u32) {
    let source = (number - 1u) % 2u * part_count();
    if (thread < 2u) { atomicStore(&least[thread], 0xffffffffu); }
    workgroupBarrier();
    for (var i = thread; i < weighed; i += threads) {
        var sum = vec4<u32>(0u, 0u, 0xffffffffu, 0xffffffffu);
        if (i < part_count()) { sum = cuts[row].parts[source + i]; }
        if (cut == by_top_k) { sum = select(vec4<u32>(), vec4<u32>(sum.w >> 16u, 0u, 0u, 0u), i < part_count()); }
        atomicStore(&buckets[i], sum.x);
        atomicStore(&buckets[weighed + i], sum.y);
        if (cut == by_typical && i < part_count()) {
            atomicMin(&least[0], sum.z);
            atomicMin(&least[1], sum.w);
        }
    }
    add_buckets(false, thread);
    let surviving = now.goal.x - now.before.x; // of the ties, after top-k
    let first = find_bucket(false) * part_tokens;
    workgroupBarrier();
    for (var i = thread; i < weighed; i += threads) {
        let token = token_of(value_of(first + i), first + i, cut);
        let ties = i < part_tokens && token.survives && token.key == now.prefix;
        atomicStore(&buckets[i], select(0u, token_weight(token, cut), ties));
        atomicStore(&buckets[weighed + i], 0u);
    }
    add_buckets(false, thread);
    found = first + find_bucket(false);
    if (cut == by_typical) {
        // The typical cut may remove the nearest token. Weights are then relative to the nearest that is left: a tie below the
        // mean, if one is before the border; or else one that is nearer to the mean; or else the border, which is above it.
        now.deviant = vec2<u32>(now.prefix, found);
        let inner = atomicLoad(&least[0]);
        now.nearest = select(inner, now.mean + now.prefix, inner == 0xffffffffu);
        if (atomicLoad(&least[1]) <= found) { now.nearest = now.mean - now.prefix; }
        return;
    }
    now.reach = vec2<u32>(now.prefix + now.nearest, found);
    if (cut == by_top_k) {
        let v = weight_of(now.prefix, settings[row].one) >> 4u;
        let one = wide_product(v, now.prefix);
        let moment = wide_add(wide_product(one.x, surviving), vec2<u32>(0u, one.y * surviving));
        let sums = part_sums(source, 0xffffu, thread);
        find_mean(vec4<u32>(wide_add(sums.xy, moment), wide_add(sums.zw, wide_product(v, surviving))));
    }
}

// M = Σ v·D / Σ v, v = weight / 16, D relative to the nearest.
fn find_mean(sums: vec4<u32>) {
    now.mean = now.nearest;
    if (any(sums.zw != vec2<u32>())) { now.mean += wide_quotient(sums.xy, sums.zw); }
}

// Two sums over all parts. Those bits of the last word count.
fn part_sums(source: u32, bits: u32, thread: u32) -> vec4<u32> {
    var sums = vec4<u32>();
    for (var i = thread; i < part_count(); i += threads) {
        let more = cuts[row].parts[source + i];
        sums = vec4<u32>(wide_add(sums.xy, more.xy), wide_add(sums.zw, vec2<u32>(more.z, more.w & bits)));
    }
    return add_up(sums, thread);
}

// Sums of two numbers over all threads.
fn add_up(mine: vec4<u32>, thread: u32) -> vec4<u32> {
    workgroupBarrier();
    if (thread < 4u) { atomicStore(&totals[thread], 0u); }
    workgroupBarrier();
    let first = atomicAdd(&totals[0], mine.x);
    atomicAdd(&totals[1], mine.y + select(0u, 1u, first + mine.x < first));
    let second = atomicAdd(&totals[2], mine.z);
    atomicAdd(&totals[3], mine.w + select(0u, 1u, second + mine.z < second));
    workgroupBarrier();
    return vec4<u32>(atomicLoad(&totals[0]), atomicLoad(&totals[1]), atomicLoad(&totals[2]), atomicLoad(&totals[3]));
}

fn resume(mine: u32, number: u32, thread: u32) {
    if (number == 0u) {
        begin(thread);
        return;
    }
    now = cuts[row].states[(number - 1u) % 2u];
    let what = settings[mine].steps[number - 1u];
    if (step_kind(what) == of_ties) { resume_ties(number, step_cut(what), thread); }
    else if (step_kind(what) == of_mean) { find_mean(part_sums((number - 1u) % 2u * part_count(), 0xffffffffu, thread)); }
    else { resume_digit(number, what, thread); }
}

#if STAGE == cut
// ---- a step ----

const each_thread = part_tokens / threads;
var<private> values: array<i32, each_thread>; // the thread's tokens

fn token_id(group: u32, i: u32, thread: u32) -> u32 { return group * part_tokens + i * threads + thread; }

fn add_weight(bucket: u32, weight: vec2<u32>) {
    let old = atomicAdd(&buckets[bucket], weight.x);
    let high = weight.y + select(0u, 1u, old + weight.x < old);
    if (high > 0u) { atomicAdd(&buckets[weighed + bucket], high); }
}

// Adds the weights of so many tokens that are alike.
fn add_token(token: Token, times: u32, what: u32) {
    let cut = step_cut(what);
    let weight = token_weight(token, cut);
    var digit = token.key >> step_shift(what);
    if (!step_first(what)) {
        if (digit >> 10u != now.prefix) { return; }
        digit &= 1023u;
    }
    if (cut == by_top_k) { atomicAdd(&buckets[min(digit, counted - 1u)], times); }
    else if (weight > 0u) { add_weight(min(digit, weighed - 1u), wide_product(weight, times)); }
}

fn step_digit(number: u32, what: u32, group: u32, thread: u32) {
    let cut = step_cut(what);
    workgroupBarrier(); // resume has read the buckets
    for (var i = thread; i < counted; i += threads) { atomicStore(&buckets[i], 0u); }
    workgroupBarrier();
    for (var i = 0u; i < each_thread; i++) {
        let token = token_of(values[i], token_id(group, i, thread), cut);
        if (token.survives && (now.ties == 0xffffffffu || token.distance != now.reach.x)) { add_token(token, 1u, what); }
    }
    if (now.ties != 0xffffffffu && group == 0u && thread == 0u) {
        add_token(Token(now.reach.x, now.reach.x - now.nearest, true), now.ties, what);
    }
    workgroupBarrier();
    let to = number % 3u * counted;
    if (cut == by_top_k) {
        for (var i = thread; i < counted; i += threads) {
            let count = atomicLoad(&buckets[i]);
            if (count > 0u) { atomicAdd(&cuts[row].sums[to + i], count); }
        }
        return;
    }
    for (var i = thread; i < weighed; i += threads) {
        let sum = bucket_sum(i, false);
        if (all(sum == vec2<u32>())) { continue; }
        let old = atomicAdd(&cuts[row].sums[to + i], sum.x);
        let high = sum.y + select(0u, 1u, old + sum.x < old);
        if (high > 0u) { atomicAdd(&cuts[row].sums[to + weighed + i], high); }
    }
}

fn step_ties(number: u32, cut: u32, group: u32, thread: u32) {
    workgroupBarrier(); // resume has read `least`
    if (thread < 2u) { atomicStore(&least[thread], 0xffffffffu); }
    workgroupBarrier();
    var sum = vec2<u32>();
    var inner = 0xffffffffu;
    var below = 0xffffffffu; // the first tie below the mean
    for (var i = 0u; i < each_thread; i++) {
        let id = token_id(group, i, thread);
        let token = token_of(values[i], id, cut);
        if (!token.survives) { continue; }
        if (token.key == now.prefix) {
            sum = wide_add(sum, vec2<u32>(token_weight(token, cut), 0u));
            if (token.distance <= now.mean) { below = min(below, id); }
        } else if (token.key < now.prefix) { inner = min(inner, token.distance); }
    }
    if (cut == by_typical) {
        atomicMin(&least[0], inner);
        atomicMin(&least[1], below);
    }
    let all = add_up(vec4<u32>(sum, 0u, 0u), thread);
    if (thread == 0u) {
        cuts[row].parts[number % 2u * part_count() + group] = vec4<u32>(all.xy, atomicLoad(&least[0]), atomicLoad(&least[1]));
    }
}

// What the mean needs. After top-k: that of the tokens before the border, and in the upper half of the last word how many are at it.
fn step_mean(number: u32, border: u32, group: u32, thread: u32) {
    var sums = vec4<u32>();
    for (var i = 0u; i < each_thread; i++) {
        let token = token_of(values[i], token_id(group, i, thread), by_top_k);
        if (!token.survives || token.key > border) { continue; }
        if (token.key == border) {
            sums.w += 1u << 16u;
            continue;
        }
        let v = token_weight(token, by_typical) >> 4u;
        sums = vec4<u32>(wide_add(sums.xy, wide_product(v, token.key)), wide_add(sums.zw, vec2<u32>(v, 0u)));
    }
    let all = add_up(sums, thread);
    if (thread == 0u) { cuts[row].parts[number % 2u * part_count() + group] = all; }
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    let number = groups.x - part_count();
    if (!takes_part(group.y, groups.y, by_steps) || number >= settings[group.y].step_count) { return; }
    let what = settings[group.y].steps[number];
    for (var i = 0u; i < each_thread; i++) { values[i] = value_of(token_id(group.x, i, thread)); } // early: memory is slow
    resume(group.y, number, thread);
    if (step_first(what) && step_cut(what) > by_top_p && settings[row].reach <= 0xffffffffu - now.nearest) {
        let by_min_p = settings[row].reach + now.nearest;
        if (by_min_p < now.reach.x) {
            now.reach = vec2<u32>(by_min_p, 0xffffffffu);
            now.ties = 0xffffffffu;
        }
    }
    let cleared = (number + 1u) % 3u * counted;
    for (var i = group.x * threads + thread; i < counted; i += groups.x * threads) { atomicStore(&cuts[row].sums[cleared + i], 0u); }
    if (group.x == 0u && thread == 0u) { cuts[row].states[number % 2u] = now; }
    if (group.x >= part_count()) { return; }
    let after_top_k = step_cut(what) == by_top_k;
    if (step_kind(what) == of_mean || (step_kind(what) == of_ties && after_top_k)) {
        step_mean(number, select(0xffffffffu, now.prefix, after_top_k), group.x, thread);
    } else if (step_kind(what) == of_ties) { step_ties(number, step_cut(what), group.x, thread); }
    else { step_digit(number, what, group.x, thread); }
}
#else
@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_steps)) { return; }
    resume(group.y, settings[group.y].step_count, thread);
    for (var i = thread; i < 3u * counted; i += threads) { atomicStore(&cuts[row].sums[i], 0u); } // for the next draw
    if (thread > 0u) { return; }
    if (now.status == drawn) { finish(found, drawn); } else { finish(0u, now.status); }
}
#endif
