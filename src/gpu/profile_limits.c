/* Measures what a GPU can do at most, as the yardstick of a profile. */

#include "gpu/profile.h"

/* Reads a buffer of 16-byte words once. The store that never happens keeps the loads. */
static const char read_shader[] =
    "@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;\n"
    "@group(0) @binding(1) var<storage, read_write> result: array<u32>;\n"
    "@compute @workgroup_size(256)\n"
    "fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {\n"
    "    let step = groups.x * 256u;\n"
    "    let count = arrayLength(&words);\n"
    "    var a = vec4<u32>(); var b = vec4<u32>(); var c = vec4<u32>(); var d = vec4<u32>();\n"
    "    for (var i = at.x; i + 3u * step < count; i += 4u * step) {\n"
    "        a |= words[i]; b |= words[i + step]; c |= words[i + 2u * step]; d |= words[i + 3u * step];\n"
    "    }\n"
    "    let all = a | b | c | d;\n"
    "    if ((all.x | all.y | all.z | all.w) == 1u) { result[at.x % arrayLength(&result)] = 1u; }\n"
    "}\n";

/* Eight independent chains of multiply-adds in each thread. */
static const char multiply_shader[] =
    "@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;\n"
    "@group(0) @binding(1) var<storage, read_write> result: array<u32>;\n"
    "override rounds: u32;\n"
    "@compute @workgroup_size(256)\n"
    "fn main(@builtin(global_invocation_id) at: vec3<u32>) {\n"
    "    let x = vec4<f32>(words[0]) + 0.999;\n"
    "    let y = vec4<f32>(f32(at.x));\n"
    "    var a = y; var b = y + 1.0; var c = y + 2.0; var d = y + 3.0;\n"
    "    var e = y + 4.0; var f = y + 5.0; var g = y + 6.0; var h = y + 7.0;\n"
    "    for (var i = 0u; i < rounds; i++) {\n"
    "        a = fma(a, x, y); b = fma(b, x, y); c = fma(c, x, y); d = fma(d, x, y);\n"
    "        e = fma(e, x, y); f = fma(f, x, y); g = fma(g, x, y); h = fma(h, x, y);\n"
    "    }\n"
    "    let all = a + b + c + d + e + f + g + h;\n"
    "    if (all.x + all.y + all.z + all.w == -1.0) { result[at.x % arrayLength(&result)] = 1u; }\n"
    "}\n";

enum { ROUNDS = 8, LEAST_WORD = 16 };

typedef struct {
    gpu_id   words, result;
    uint64_t bytes;
} limit_buffers;

/* The seconds of one dispatch, the best of several. */
static gm_status limit_best_time(gpu_host *h, const limit_buffers *b, const char *label, const char *shader,
                                 const gpu_constant *constants, size_t constant_count, uint32_t groups, double *out,
                                 error *e) {
    const gpu_binding bindings[] = { { 0, b->words, 0, b->bytes }, { 1, b->result, 0, 256 } };
    const gpu_id      pipeline = gpu_pipeline_new(h, label, shader, constants, constant_count, e);
    const gpu_id      group = pipeline ? gpu_group_new(h, pipeline, bindings, COUNT_OF(bindings), e) : 0;
    gm_status         status = group ? GM_OK : e->status;
    *out = 0;
    for (size_t i = 0; i < ROUNDS && !status; i++) {
        const uint32_t list[] = { GPU_LIST_VERSION, GPU_DISPATCH | 5u << 16, pipeline, group, groups, 1, 1 };
        gpu_time       time;
        while ((status = gpu_submit(h, list, COUNT_OF(list), e)) == GM_AGAIN) gpu_host_wait(h, 100);
        while (!status && !gpu_clock_take(h, &time, 1)) {
            gpu_host_wait(h, 1);
            status = gpu_host_problem(h, e);
        }
        if (!status && time.seconds > 0 && (*out == 0 || time.seconds < *out)) *out = time.seconds;
    }
    gpu_group_free(h, group);
    return status;
}

gm_status gpu_limits_measure(gpu_host *h, gpu_limits *out, error *e) {
    const gpu_info    *info = gpu_host_info(h);
    const bool         slow = info->software; /* a thousandth of the work is enough */
    const uint64_t     wanted = slow ? 8 << 20 : 512 << 20;
    const uint32_t     readers = slow ? 16 : 2048, multipliers = slow ? 16 : 4096, rounds = slow ? 32 : 1024;
    const gpu_constant constants[] = { { "rounds", rounds } };
    limit_buffers      b = { .bytes = wanted < info->max_binding ? wanted : info->max_binding / 256 * 256 };
    double             reading = 0, multiplying = 0;
    TRY(gpu_clock_start(h, e));
    b.words = gpu_buffer_new(h, b.bytes, e);
    b.result = b.words ? gpu_buffer_new(h, 256, e) : 0;
    gm_status status = b.result ? GM_OK : e->status;
    if (!status) status = limit_best_time(h, &b, "bandwidth", read_shader, NULL, 0, readers, &reading, e);
    if (!status)
        status = limit_best_time(h, &b, "arithmetic", multiply_shader, constants, 1, multipliers, &multiplying, e);
    gpu_clock_stop(h);
    if (b.result) gpu_buffer_free(h, b.result);
    if (b.words) gpu_buffer_free(h, b.words);
    const double step = 4.0 * readers * 256 * LEAST_WORD, passes = (double)b.bytes / step;
    *out = (gpu_limits){ .bytes = reading > 0 ? (double)(uint64_t)passes * step / reading : 0,
                         .flops = multiplying > 0 ? 64.0 * rounds * multipliers * 256 / multiplying : 0 };
    return status;
}
