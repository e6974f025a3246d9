// Finds a border: the place in the order (key, id) at which the sum of the weights reaches a target. The stages threshold (over
// blocks: their number, their best) and choose (over the candidates, or all tokens) of sampler.wgsl use it.

const digits = 1024u;
const bunch = 32u; // digits per partial sum, so that the search takes two short loops

var<workgroup> sum_low:  array<atomic<u32>, digits>;
var<workgroup> sum_high: array<atomic<u32>, digits>;
var<workgroup> bunches:  array<vec2<u32>, digits / bunch>;

#if STAGE == choose
var<workgroup> total_low:  atomic<u32>;
var<workgroup> total_high: atomic<u32>;
var<workgroup> least:      atomic<u32>;
#else
var<workgroup> most:  atomic<i32>;
var<workgroup> flags: atomic<i32>;
var<workgroup> alive: atomic<u32>;
#endif
var<workgroup> item_count:  u32;
var<workgroup> first_digit: u32;

// The items among which a border is sought; the same in every thread.
var<private> reach:     vec2<u32>; // (distance, id): items after this are cut off
var<private> deviant:   vec2<u32>; // (deviation, id): the same
var<private> mean:      u32;
var<private> nearest:   u32;
var<private> best_of_all: i32;
var<private> whole:     bool;      // use all tokens, not only the candidates

struct Item {
    id:        u32,
    distance:  u32,
    deviation: u32,
    survives:  bool,
}

fn item(i: u32) -> Item {
#if STAGE == choose
    var id = i;
    var distance = 0u;
    var possible = true;
    if (whole) {
        distance = bitcast<u32>(best_of_all) - bitcast<u32>(fixed[row * n + i]);
        possible = fixed[row * n + i] != never;
    } else {
        let candidate = candidates[row * min(n, capacity) + i];
        id = candidate.x;
        distance = candidate.y;
    }
    let deviation = select(mean - distance, distance - mean, distance > mean);
    let survives = possible && not_behind(distance, id, reach) && not_behind(deviation, id, deviant);
    return Item(id, distance, deviation, survives);
#else
    let best = blocks[row * blocks_of_row() + i].x;
    return Item(i, bitcast<u32>(best_of_all) - bitcast<u32>(best), 0u, best != never);
#endif
}

// If the scale is 0, each item weighs 1.
fn item_weight(it: Item, scale: vec2<u32>) -> u32 {
    if (scale.x == 0u) { return 1u; }
    return weight_of(it.distance - nearest, scale);
}

// The (key, id) at which the weights, added in order, reach the target, which is at least 1 and at most the sum of all weights.
fn find_border(by_deviation: bool, scale: vec2<u32>, target_sum: vec2<u32>, thread: u32) -> vec2<u32> {
    var before = vec2<u32>();
    var key_found = 0u;
    var id_found = 0u;
    let count = workgroupUniformLoad(&item_count);
    for (var digit_index = workgroupUniformLoad(&first_digit); digit_index < 6u; digit_index++) {
        let of_id = digit_index >= 4u; // four digits of the key, two of the id
        let shift = select(30u - 10u * digit_index, 50u - 10u * digit_index, of_id);
        workgroupBarrier();
        for (var i = thread; i < digits; i += threads) {
            atomicStore(&sum_low[i], 0u);
            atomicStore(&sum_high[i], 0u);
        }
        workgroupBarrier();
        for (var i = thread; i < count; i += threads) {
            let it = item(i);
            if (!it.survives) { continue; }
            let key = select(it.distance, it.deviation, by_deviation);
            var digit = (key >> shift) & (digits - 1u);
            var fits = digit_index == 0u || (key >> shift) >> 10u == key_found;
            if (of_id) {
                digit = (it.id >> shift) & (digits - 1u);
                fits = key == key_found && (it.id >> shift) >> 10u == id_found;
            }
            if (!fits) { continue; }
            let weight = item_weight(it, scale);
            let old = atomicAdd(&sum_low[digit], weight);
            if (old + weight < old) { atomicAdd(&sum_high[digit], 1u); }
        }
        workgroupBarrier();
        if (thread < digits / bunch) {
            var sum = vec2<u32>();
            for (var i = thread * bunch; i < (thread + 1u) * bunch; i++) {
                sum = wide_add(sum, vec2<u32>(atomicLoad(&sum_low[i]), atomicLoad(&sum_high[i])));
            }
            bunches[thread] = sum;
        }
        workgroupBarrier();
        var b = 0u;
        for (; b < digits / bunch - 1u; b++) {
            let after = wide_add(before, bunches[b]);
            if (!wide_less(after, target_sum)) { break; }
            before = after;
        }
        var found = b * bunch;
        for (; found < (b + 1u) * bunch - 1u; found++) {
            let after = wide_add(before, vec2<u32>(atomicLoad(&sum_low[found]), atomicLoad(&sum_high[found])));
            if (!wide_less(after, target_sum)) { break; }
            before = after;
        }
        if (of_id) { id_found = (id_found << 10u) | found; } else { key_found = (key_found << 10u) | found; }
    }
    return vec2<u32>(key_found, id_found);
}

// Where a search starts: the digits before this one are 0 in all keys up to `widest`.
fn first_digit_of(widest: u32) -> u32 {
    if (widest >= 1u << 30u) { return 0u; }
    if (widest >= 1u << 20u) { return 1u; }
    return select(2u, 3u, widest < 1u << 10u);
}
