// Sums over the `lanes` threads (a power of two) that share rows; the first of them gets the result. The including file declares
// `lanes` and `threads`. Every thread of the workgroup must call. We assume that the threads of a subgroup are consecutive.

var<workgroup> partial: array<vec4<f32>, threads>;

fn reduce(sums: vec4<f32>, thread: u32, subgroup: u32) -> vec4<f32> {
    var total = sums;
    let width = min(lanes, subgroup);
#if SUBGROUPS
    for (var step = 1u; step < width; step *= 2u) { total += subgroupShuffleXor(total, step); }
#endif
    if (width < lanes) {
        workgroupBarrier();
        partial[thread] = total;
        for (var half = lanes / 2u; half >= width; half /= 2u) {
            workgroupBarrier();
            if (thread % lanes < half) { partial[thread] += partial[thread + half]; }
        }
        total = partial[thread];
    }
    return total;
}
