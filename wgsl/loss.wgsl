// Gradients of the router's logits and of the logits of the loss: one workgroup for each token or output.
//
//   KIND route  logits a, routes as in moe.wgsl, scale f32 [n] only with SCALE, d [used]: the gradient of the routes' weights
//               out = q_e · (s_e·d_e − Σ q·s·d) for the experts used, q = softmax over these; 0 for the others
//   KIND loss   z = a, or cap · tanh(a / cap) with CAPPED; routes is [entries, 2] here: the target, and the bits of its weight w
//               out = w · slope · (softmax(z) − 1 at the target); loss = −w · ln softmax(z)[target]
//
//   a, out  f32 [entries, n], of the loss in units     dispatch (1, entries, 1)

#include "run.wgsl"

override n:    u32;
override used: u32 = 1u;
override cap:  f32 = 1.0;
const threads = 256u;

#include "unit.wgsl"

@group(0) @binding(0) var<storage, read_write> a:      array<unit>;
@group(0) @binding(1) var<storage, read_write> out:    array<unit>;
@group(0) @binding(2) var<storage, read>       run:    Run;
@group(0) @binding(3) var<storage, read_write> routes: array<u32>;

#if KIND == route
@group(0) @binding(4) var<storage, read_write> d:      array<f32>;
#if SCALE
@group(0) @binding(5) var<storage, read>       scale:  array<f32>;
#endif

fn gradient_of(id: u32, at: u32) -> f32 {
#if SCALE
    return d[at] * scale[id];
#else
    return d[at];
#endif
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let entry = group.y;
    if (entry >= ${COUNT}) { return; }
    let ids = entry * 2u * used;
    var most = a[entry * n + routes[ids]];
    for (var i = 1u; i < used; i++) { most = max(most, a[entry * n + routes[ids + i]]); }
    var sum = 0.0;
    var mean = 0.0;
    for (var i = 0u; i < used; i++) {
        let id = routes[ids + i];
        let p = exp(a[entry * n + id] - most);
        sum += p;
        mean += p * gradient_of(id, entry * used + i);
    }
    for (var x = thread; x < n; x += threads) {
        var slope = 0.0;
        for (var i = 0u; i < used; i++) {
            if (routes[ids + i] == x) { slope = exp(a[entry * n + x] - most) / sum * (gradient_of(x, entry * used + i) - mean / sum); }
        }
        out[entry * n + x] = slope;
    }
}
#else
#include "curves.wgsl"

@group(0) @binding(4) var<storage, read_write> loss: array<f32>;

var<workgroup> partial: array<f32, threads>;

#if WIDE
fn highest(x: unit) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
#else
fn highest(x: unit) -> f32 { return x; }
#endif

fn logits(at: u32) -> unit {
#if CAPPED
    return cap * precise_tanh(a[at] / cap);
#else
    return a[at];
#endif
}

@compute @workgroup_size(threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let entry = group.y;
    if (entry >= ${COUNT}) { return; }
    let first = entry * n;
    var largest = unit(-3.0e38);
    for (var i = thread; i < n; i += threads) { largest = max(largest, logits(first + i)); }
    partial[thread] = highest(largest);
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] = max(partial[thread], partial[thread + half]); }
    }
    workgroupBarrier();
    let most = partial[0];
    workgroupBarrier();
    var part = unit();
    for (var i = thread; i < n; i += threads) { part += exp(logits(first + i) - most); }
    partial[thread] = total(part);
    for (var half = threads / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] += partial[thread + half]; }
    }
    workgroupBarrier();
    let sum = partial[0];
    let goal = routes[2u * entry];
    let weight = bitcast<f32>(routes[2u * entry + 1u]);
    for (var i = thread; i < n; i += threads) {
        let z = logits(first + i);
        var slope = weight * (exp(z - most) / sum);
#if WIDE
        let here = vec4<u32>(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) == vec4<u32>(goal);
        slope -= select(vec4<f32>(), vec4<f32>(weight), here);
        if (any(here)) { loss[entry] = weight * (most + log(sum) - z[goal % 4u]); }
#else
        if (i == goal) {
            slope -= weight;
            loss[entry] = weight * (most + log(sum) - z);
        }
#endif
#if CAPPED
        slope *= 1.0 - (z / cap) * (z / cap);
#endif
        out[first + i] = slope;
    }
}
#endif
