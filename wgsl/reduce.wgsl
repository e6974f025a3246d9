// Sums a value over all threads of a workgroup. Include in kernels that declare `threads`.
//
// Every thread must call this in uniform control flow, and gets the result. With subgroups it takes one barrier, otherwise a tree.
// We assume that the threads of a subgroup are consecutive: thread / subgroup_size is the subgroup's number.

var<workgroup> reduce_partial: array<f32, threads>;

#if SUBGROUPS
fn workgroup_sum(value: f32, thread: u32, subgroup_size: u32) -> f32 {
    reduce_partial[thread / subgroup_size] = subgroupAdd(value);
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < (threads + subgroup_size - 1u) / subgroup_size; i++) { sum += reduce_partial[i]; }
    return sum;
}
#else
fn workgroup_sum(value: f32, thread: u32, subgroup_size: u32) -> f32 {
    reduce_partial[thread] = value;
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { reduce_partial[thread] += reduce_partial[thread + half]; }
    }
    workgroupBarrier();
    return reduce_partial[0];
}
#endif
