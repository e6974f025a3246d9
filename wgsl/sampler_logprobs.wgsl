// Computes the inputs of log-probabilities from the unmodified logits: the largest logit, the sum of e^(logit − largest), the logit
// of the drawn token, and the likeliest tokens. The host takes the logarithm, in double precision.
//
//   STAGE likely     (n / 4096 rounded up)  for each 4096 logits, into `parts`
//         logprobs   (1)                    for all, into `record`
//
// The likeliest tokens are found one after another: each is the first after the one before, in the order of decreasing logits, lower
// ids first among equals. Logits are compared as integers in the order of floats; −infinity and NaN are `none`, and skipped.

const span = 4096u;
const most_alternatives = 20u;
const part_words = 2u + 2u * most_alternatives;
const none = -0x7fffffff - 1;
const largest_float = 0x7f61b1e6; // 3e38: larger logits count as this, so that differences are finite

struct Place {
    key: i32,
    id:  u32,
}

fn key_of(bits: u32) -> i32 {
    let size = bitcast<i32>(bits & 0x7fffffffu);
    if (size > 0x7f800000) { return none; }
    if (bits >> 31u == 0u) { return min(size, largest_float); }
    return select(-size, none, size > largest_float);
}

fn value_of(key: i32) -> f32 { return bitcast<f32>(select(bitcast<u32>(key), bitcast<u32>(-key) | 0x80000000u, key < 0)); }

fn comes_first(a: Place, b: Place) -> bool { return a.key > b.key || (a.key == b.key && a.id < b.id); }

fn weight_below(key: i32, largest: i32) -> f32 {
    if (key == none) { return 0.0; }
    return exp(max(value_of(key) - value_of(largest), -200.0));
}

var<workgroup> places: array<Place, threads>;
var<workgroup> sums:   array<f32, threads>;

// The first place of all threads'; every thread gets it.
fn first_place(mine: Place, thread: u32) -> Place {
    places[thread] = mine;
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half && comes_first(places[thread + half], places[thread])) { places[thread] = places[thread + half]; }
    }
    workgroupBarrier();
    let first = places[0];
    workgroupBarrier();
    return first;
}

fn sum_of_all(mine: f32, thread: u32) -> f32 {
    sums[thread] = mine;
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { sums[thread] += sums[thread + half]; }
    }
    workgroupBarrier();
    return sums[0];
}

#if STAGE == likely
fn place_at(id: u32) -> Place { return Place(key_of(logits[settings[row].row * n + id]), id); }

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_logprobs)) { return; }
    let end = min(n, (group.x + 1u) * span);
    let begin = group.x * span + thread;
    let to = (row * groups.x + group.x) * part_words;
    var last = Place(0x7fffffff, 0u); // before all others
    var largest = none;
    for (var i = 0u; i < max(settings[group.y].alternatives, 1u); i++) {
        var best = Place(none, 0xffffffffu);
        for (var id = begin; id < end; id += threads) {
            let place = place_at(id);
            if (comes_first(last, place) && comes_first(place, best)) { best = place; }
        }
        last = first_place(best, thread);
        if (i == 0u) { largest = last.key; }
        if (thread == 0u) {
            parts[to + 2u + 2u * i] = bitcast<u32>(last.key);
            parts[to + 3u + 2u * i] = last.id;
        }
    }
    var mine = 0.0;
    for (var id = begin; id < end; id += threads) { mine += weight_below(place_at(id).key, largest); }
    let sum = sum_of_all(mine, thread);
    if (thread == 0u) {
        parts[to] = bitcast<u32>(largest);
        parts[to + 1u] = bitcast<u32>(sum);
    }
}
#else
@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    let result = result_at(state[state_word(delivered)] + results - 1u);
    if (thread == 0u) {
        record[row].token  = state[result];
        record[row].status = state[result + 1u];
    }
    if (!takes_part(group.y, groups.y, by_logprobs)) { return; } // the host reads all rows' tokens here
    let spans = (n + span - 1u) / span;
    let first = row * spans;
    let each = max(settings[group.y].alternatives, 1u);
    var last = Place(0x7fffffff, 0u);
    var largest = none;
    for (var i = 0u; i < each; i++) {
        var best = Place(none, 0xffffffffu);
        for (var at = thread; at < spans * each; at += threads) {
            let source = (first + at / each) * part_words + 2u + 2u * (at % each);
            let place = Place(bitcast<i32>(parts[source]), parts[source + 1u]);
            if (comes_first(last, place) && comes_first(place, best)) { best = place; }
        }
        last = first_place(best, thread);
        if (i == 0u) { largest = last.key; }
        if (thread == 0u) {
            record[row].likeliest[i] = vec2<u32>(last.id, bitcast<u32>(value_of(last.key)));
            if (last.key == none) { record[row].likeliest[i].x = 0xffffffffu; }
        }
    }
    var mine = 0.0;
    for (var i = first + thread; i < first + spans; i += threads) {
        mine += bitcast<f32>(parts[i * part_words + 1u]) * weight_below(bitcast<i32>(parts[i * part_words]), largest);
    }
    let sum = sum_of_all(mine, thread);
    if (thread > 0u) { return; }
    let key = key_of(logits[settings[row].row * n + min(state[result], n - 1u)]);
    record[row].known   = select(1u, 0u, key == none);
    record[row].logit   = value_of(key);
    record[row].largest = value_of(largest);
    record[row].sum     = sum;
}
#endif
