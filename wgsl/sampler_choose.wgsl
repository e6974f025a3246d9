// The stage `choose` of sampler.wgsl: the cuts, each of which is a border, and the draw.

// The sum of the survivors' weights.
fn sum_of(scale: vec2<u32>, thread: u32) -> vec2<u32> {
    workgroupBarrier();
    if (thread == 0u) {
        atomicStore(&total_low, 0u);
        atomicStore(&total_high, 0u);
    }
    workgroupBarrier();
    var sum = vec2<u32>();
    for (var i = thread; i < item_count; i += threads) {
        let it = item(i);
        if (it.survives) { sum = wide_add(sum, vec2<u32>(item_weight(it, scale), 0u)); }
    }
    return add_up(sum);
}

// Sums over all threads. The caller has zeroed the totals.
fn add_up(mine: vec2<u32>) -> vec2<u32> {
    let old = atomicAdd(&total_low, mine.x);
    atomicAdd(&total_high, mine.y + select(0u, 1u, old + mine.x < old));
    workgroupBarrier();
    return vec2<u32>(atomicLoad(&total_low), atomicLoad(&total_high));
}

// M = Σ v·D / Σ v, v = weight / 16, D relative to the nearest.
fn mean_distance(thread: u32) -> u32 {
    workgroupBarrier();
    if (thread == 0u) {
        atomicStore(&total_low, 0u);
        atomicStore(&total_high, 0u);
    }
    workgroupBarrier();
    var moment = vec2<u32>();
    var mass = vec2<u32>();
    for (var i = thread; i < item_count; i += threads) {
        let it = item(i);
        if (!it.survives) { continue; }
        let v = weight_of(it.distance - nearest, settings[row].one) >> 4u;
        moment = wide_add(moment, wide_product(v, it.distance - nearest));
        mass = wide_add(mass, vec2<u32>(v, 0u));
    }
    let moments = add_up(moment);
    workgroupBarrier();
    if (thread == 0u) {
        atomicStore(&total_low, 0u);
        atomicStore(&total_high, 0u);
    }
    workgroupBarrier();
    let masses = add_up(mass);
    if ((masses.x | masses.y) == 0u) { return nearest; }
    return nearest + wide_quotient(moments, masses);
}

// The typical cut may remove the nearest token. Weights are then relative to the nearest that is left.
fn find_nearest(thread: u32) -> u32 {
    workgroupBarrier();
    if (thread == 0u) { atomicStore(&least, 0xffffffffu); }
    workgroupBarrier();
    for (var i = thread; i < item_count; i += threads) {
        let it = item(i);
        if (it.survives) { atomicMin(&least, it.distance); }
    }
    workgroupBarrier();
    return atomicLoad(&least);
}

// Applies the cuts and draws for a row. Returns the token.
fn choose(mine: u32, thread: u32) -> u32 {
    reach = vec2<u32>(0xffffffffu);
    deviant = reach;
    mean = 0u;
    nearest = 0u;
    let alive = sum_of(vec2<u32>(), thread);
    reach = find_border(false, vec2<u32>(), vec2<u32>(min(settings[mine].top_k, alive.x), 0u), thread);
    if (settings[mine].typical == 1u) {
        let sum = sum_of(settings[mine].one, thread);
        mean = mean_distance(thread);
        deviant = find_border(true, settings[mine].one, share_of(settings[mine].typical_p, sum), thread);
        nearest = find_nearest(thread);
    }
    if (settings[mine].top == 1u) {
        let sum = sum_of(settings[mine].one, thread);
        reach = nearer(find_border(false, settings[mine].one, share_of(settings[mine].top_p, sum), thread), reach);
    }
    if (settings[mine].reach <= 0xffffffffu - nearest) { reach = nearer(vec2<u32>(settings[mine].reach + nearest, 0xffffffffu), reach); }
    let sum = sum_of(settings[mine].temperature, thread);
    let end = wide_add(wide_multiply_high(philox(draws_so_far(), settings[mine].seed), sum), vec2<u32>(1u, 0u));
    return find_border(false, settings[mine].temperature, end, thread).y;
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    enter(group, groups);
    if (!takes_part(group.y, groups.y, by_candidates)) { return; }
    let listed = atomicLoad(&header[row].count) <= capacity;
    if (thread == 0u) {
        item_count = select(0u, select(n, atomicLoad(&header[row].count), listed), header[row].status == drawn);
        first_digit = first_digit_of(atomicLoad(&header[row].widest));
    }
    best_of_all = header[row].best;
    whole = !listed;
    if (workgroupUniformLoad(&item_count) == 0u) {
        if (thread == 0u) { finish(0u, header[row].status); }
        return;
    }
    let token = choose(group.y, thread);
    storageBarrier(); // all threads have read the state before finish changes it
    if (thread == 0u) { finish(token, drawn); }
}
